"""Plots draw the numbers they are given, on the axes they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import RBFKernel
from matplotlib.axes import Axes
from matplotlib.cbook import STEP_LOOKUP_MAP
from torch import Tensor

from mtbo_torch import Category, ExactMultiTaskGP, ICMKernel, Inputs, Integer, Mixture, Optimizer, Ordered, Real
from mtbo_torch.experiments.panels import PANELS
from mtbo_torch.experiments.results import Panel, PanelResult
from mtbo_torch.metrics import hypervolume
from mtbo_torch.plotting import (
    plot_certificate,
    plot_dictionary,
    plot_differences,
    plot_explanation,
    plot_hypervolume,
    plot_leave_one_out,
    plot_parallel,
    plot_pareto,
    plot_posterior,
    plot_regret,
    plot_slice,
    plot_task_correlation,
)
from mtbo_torch.report import FINALS, write_panel

GRID = torch.linspace(0, 1, 20, dtype=torch.double).unsqueeze(-1)
POINTS = torch.tensor([[0.1], [0.5], [0.8]], dtype=torch.double)
VALUES = torch.cat([POINTS.sin(), POINTS.cos()], dim=-1)
CURVES = {"MT-KB": torch.rand(4, 30), "random": torch.rand(4, 30) + 1}
TRIPLES = torch.tensor([[0.0, 3.0, 5.0], [1.0, 2.0, 5.0], [0.5, 1.0, 4.0], [2.0, 0.0, 7.0]])
PAIRS = torch.tensor([[0.0, 3.0], [1.0, 2.0], [0.5, 1.0], [2.0, 0.0]])

PLOTS: list[Callable[[Axes | None], Axes]] = [
    lambda ax: plot_regret(CURVES, ax),
    lambda ax: plot_certificate(CURVES, {"MT-KB": 10 * CURVES["MT-KB"]}, ax),
    lambda ax: plot_pareto(PAIRS, ax=ax),
    lambda ax: plot_pareto(PAIRS, PAIRS + 1, ax),
    lambda ax: plot_pareto(TRIPLES, TRIPLES + 1, ax),
    lambda ax: plot_parallel(TRIPLES, ax),
    lambda ax: plot_differences(CURVES, [("MT-KB", "random")], ax),
    lambda ax: plot_hypervolume(PAIRS, torch.zeros(2), ax),
    lambda ax: plot_posterior(model(), GRID, POINTS, VALUES, ax),
    lambda ax: plot_slice(alone(), UNIT, (0,), axes=None if ax is None else [ax])[0],
    lambda ax: plot_slice(alone(), UNIT, (0, 1), axes=None if ax is None else [ax])[0],
    lambda ax: plot_leave_one_out(*left_out(), None if ax is None else [ax])[0],
    lambda ax: plot_task_correlation(torch.eye(3), ax),
    lambda ax: plot_dictionary({"MT-BKB": torch.ones(1, 9)}, ax),
]


UNIT = torch.tensor([[0.0, 0.0, 2.0], [1.0, 1.0, 4.0]], dtype=torch.double)
INPUTS = UNIT[0] + (UNIT[1] - UNIT[0]) * torch.rand(8, 3, generator=torch.Generator().manual_seed(0)).double()


def model() -> ExactMultiTaskGP:
    return ExactMultiTaskGP(POINTS, VALUES, eta=0.01)


def alone() -> SingleTaskGP:
    return SingleTaskGP(INPUTS, INPUTS.sum(dim=-1, keepdim=True), input_transform=Normalize(3, bounds=UNIT))


def left_out() -> tuple[Tensor, Tensor, Tensor]:
    observed = torch.tensor([[1.0], [2.0], [4.0]])
    return observed, torch.tensor([[1.5], [2.0], [3.0]]), torch.tensor([0.25, 1.0, 0.16]).reshape(3, 1, 1)


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def result(panel: Panel) -> PanelResult:
    labels = tuple(panel.experiments) if panel.is_sweep else ("MT-KB", "IT-KB", "MOBO")
    columns = {label: {name: torch.rand(3, 5) for name in FINALS} for label in labels}
    settings = {name: {"norm_bound": "exact"} for name in panel.experiments.values()}
    return PanelResult(panel, columns, dict.fromkeys(labels, 0.0), settings)


def line(ax: Axes, label: str) -> tuple[Tensor, Tensor]:
    [found] = [line for line in ax.lines if line.get_label() == label]
    return torch.as_tensor(found.get_xdata()), torch.as_tensor(found.get_ydata())


@pytest.mark.parametrize("plot", PLOTS)
def test_draws_on_the_axes_given(plot: Callable[[Axes | None], Axes]) -> None:
    _, (left, right) = plt.subplots(1, 2)
    assert plot(right) is right
    assert any(ax.has_data() for ax in (right, *right.child_axes))
    assert not left.has_data()


@pytest.mark.parametrize("plot", PLOTS)
def test_opens_a_figure_of_its_own(plot: Callable[[Axes | None], Axes]) -> None:
    _, other = plt.subplots()
    ax = plot(None)
    assert ax.figure is not other.figure
    assert not other.has_data()


def test_regret_is_the_mean_over_trials() -> None:
    ax = plot_regret(CURVES)
    for name, curve in CURVES.items():
        rounds, means = line(ax, name)
        assert rounds.tolist() == list(range(1, 31))
        torch.testing.assert_close(means, curve.double().mean(dim=0))


def test_bands_of_regrets_are_quantiles_and_the_axis_says_so() -> None:
    values = torch.arange(11.0).unsqueeze(-1) * torch.tensor([1.0, 2.0])  # the 10 % quantile is 1, the 90 % one is 9
    for ax in (
        plot_regret({"a": values}),
        plot_certificate({"a": values}, {"a": values}),
        plot_dictionary({"a": values}),
    ):
        heights = ax.collections[0].get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == pytest.approx((1.0, 18.0))
        assert ax.get_ylabel().endswith("\nmean (band: 10 % to 90 % of trials)")


def test_a_single_trial_has_no_range() -> None:
    ax = plot_regret({"a": torch.rand(1, 5)})
    assert not ax.collections
    assert ax.get_ylabel() == "time-average regret"


def test_many_curves_have_one_bar_each_beyond_the_last_round() -> None:
    values = torch.arange(11.0).unsqueeze(-1) * torch.tensor([2.0, 1.0])
    ax = plot_regret({str(i): values + i for i in range(9)})
    assert not ax.collections
    assert ax.get_ylabel().endswith("\nmean (bars: 10 % to 90 % of trials)")
    bars = [line for line in ax.lines if len(line.get_xdata()) == 2 and min(line.get_xdata()) > 2]
    assert [pytest.approx(list(bar.get_ydata())) for bar in bars] == [[1 + i, 9 + i] for i in range(9)]
    places = [bar.get_xdata()[0] for bar in bars]
    assert places == sorted(set(places))
    assert places[-1] < ax.get_xlim()[1]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "end"]


@pytest.mark.parametrize("plot", [plot_regret, lambda curves: plot_certificate(curves, {"a": curves["a"] + 1})])
def test_means_of_zero_are_marked_on_the_axis(plot: Callable[[dict[str, Tensor]], Axes]) -> None:
    curves = {"a": torch.tensor([[1.0, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]), "b": torch.rand(2, 4) + 1}
    ax = plot(curves)
    ax.set_yscale("log")
    rounds, heights = line(ax, "is 0")
    assert rounds.tolist() == [3]
    [mark] = [line for line in ax.lines if line.get_label() == "is 0"]
    ax.figure.canvas.draw()
    assert mark.get_transform().transform([3, heights[0]])[1] == pytest.approx(ax.bbox.y0)
    assert "is 0" not in [text.get_text() for text in plot({"a": curves["b"]}).get_legend().get_texts()]


def test_differences_are_those_of_the_same_trials() -> None:
    first, gaps = 100 * torch.rand(4, 3, dtype=torch.double), torch.tensor([1.0, 2.0, 3.0, 6.0]).double()
    curves = {"A": first, "B": first + gaps.unsqueeze(-1), "C": first}
    ax = plot_differences(curves, [("A", "B"), ("A", "C")], xlabel="Bayes regret")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["B − A", "C − A"]
    assert ax.get_xlabel() == "Bayes regret in the last round\nmean difference ± 2 standard errors; dots: trials"
    torch.testing.assert_close(torch.as_tensor(ax.lines[1].get_xdata()), gaps)
    [bar] = ax.containers[0].lines[2][0].get_segments()
    error = gaps.std().item() / 2
    assert bar[:, 0] == pytest.approx([3 - 2 * error, 3 + 2 * error])
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first pair is on top


def test_a_difference_of_one_trial_has_no_error() -> None:
    ax = plot_differences({"A": torch.ones(1, 2), "B": torch.zeros(1, 2)}, [("A", "B")])
    assert not ax.containers[0].has_xerr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fig1a", ["ω = 1 − ω = 0"]),
        ("fig1d", ["IT-KB − MT-KB", "MOBO − MT-KB"]),  # without those that were not run
    ],
)
def test_panels_show_the_differences_that_claims_are_about(
    name: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr("mtbo_torch.plotting.figures._save", lambda figure, paths: drawn.append(figure))
    write_panel(result(PANELS[name]), tmp_path)
    [figure] = drawn
    assert [label.get_text() for label in figure.axes[-1].get_yticklabels()] == expected


def test_hypervolume_is_that_of_the_values_so_far() -> None:
    values = torch.rand(2, 9, 3, generator=torch.Generator().manual_seed(1)).double()
    ref_point = torch.tensor([0.2, 0.8], dtype=torch.double)
    ax = plot_hypervolume({"a": values}, ref_point, signs=(1, 0, -1))
    oriented, lowest = values[..., [0, 2]] * torch.tensor([1, -1]), ref_point * torch.tensor([1, -1])
    expected = [hypervolume(oriented[:, : t + 1], lowest).mean().item() for t in range(9)]
    evaluations, means = line(ax, "a")
    assert evaluations.tolist() == list(range(1, 10))
    assert means.tolist() == pytest.approx(expected)
    assert expected[-1] > 0
    assert (ax.get_xlabel(), ax.get_ylabel().split("\n")[0]) == ("evaluations", "hypervolume")


def test_front_found_is_what_no_other_point_dominates() -> None:
    x, y = line(plot_pareto(PAIRS), "front found")
    assert torch.stack([x, y], dim=-1).tolist() == [[0.0, 3.0], [1.0, 2.0], [2.0, 0.0]]


def test_no_corner_of_a_front_is_beyond_what_was_found() -> None:
    [front] = [line for line in plot_pareto(PAIRS).lines if line.get_label() == "front found"]
    corners = STEP_LOOKUP_MAP[front.get_drawstyle()](*front.get_data())
    assert all((torch.tensor(corner) <= PAIRS).all(dim=-1).any() for corner in zip(*corners, strict=True))


@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1), (-1, -1)])
def test_fronts_of_what_is_minimized(signs: tuple[int, int]) -> None:
    x, y = line(plot_pareto(PAIRS * torch.tensor(signs), signs=signs), "front found")
    assert [[signs[0] * a, signs[1] * b] for a, b in zip(x.tolist(), y.tolist(), strict=True)] == [
        [0.0, 3.0],
        [1.0, 2.0],
        [2.0, 0.0],
    ]


def test_more_than_two_tasks_are_shown_in_pairs() -> None:
    values = TRIPLES * torch.tensor([1.0, -1.0, 1.0])
    ax = plot_pareto(values, values - 1, signs=(1, -1, 1), names=["strength", "price", "comfort"])
    names = [(cell.get_xlabel(), cell.get_ylabel()) for cell in ax.child_axes]
    assert names == [("", "price (minimized)"), ("strength", "comfort"), ("price (minimized)", "")]
    for cell, pair in zip(ax.child_axes, ([0, 1], [0, 2], [1, 2]), strict=True):
        [ring] = [dots for dots in cell.collections if dots.get_label() == "front found"]
        front = torch.as_tensor(ring.get_offsets().data)
        assert sorted(front.tolist()) == sorted(values[[0, 1, 3]][:, pair].double().tolist())  # not those of the pair
        assert cell.collections[-1].get_offsets().tolist() == values[:, pair].tolist()
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"attainable", "true front", "front found"}


def test_two_tasks_have_names_too() -> None:
    ax = plot_pareto(PAIRS, signs=(1, -1), names=["strength", "price"])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("strength", "price (minimized)")


def test_parallel_axes_go_from_the_worst_to_the_best() -> None:
    values = torch.tensor([[0.0, 10.0, 7.0, 1.0], [4.0, 30.0, 7.0, 2.0], [1.0, 20.0, 7.0, 5.0]])
    ax = plot_parallel(values, signs=(1, -1, 1, 0), names=["strength", "price", "comfort", "age"])
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["strength\nmaximized", "price\nminimized", "comfort\nmaximized", "age\nno objective"]
    lines = [drawn.get_ydata().tolist() for drawn in ax.lines if len(drawn.get_xdata()) == 4]
    assert sorted(lines) == [[0, 1, 0.5, 0], [0.25, 0.5, 0.5, 1], [1, 0, 0.5, 0.25]]
    prices = {text.get_text().strip(): text.get_position()[1] for text in ax.texts if text.get_position()[0] == 1}
    assert prices["10"] == 1
    assert prices["30"] == 0
    assert [text.get_text().strip() for text in ax.texts if text.get_position()[0] == 2] == ["7"]


def test_parallel_lines_of_the_front_are_in_color() -> None:
    ax = plot_parallel(TRIPLES)
    lines = [drawn for drawn in ax.lines if len(drawn.get_xdata()) == 3]
    assert [drawn.get_color() == "0.8" for drawn in lines] == [True, False, False, False]
    assert lines[0].get_ydata().tolist() == pytest.approx([0.25, 1 / 3, 0])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["front (3)", "dominated (1)"]


def test_bands_are_radius_standard_deviations() -> None:
    own = model()
    ax = plot_posterior(own, GRID, radius=3.0, names=["first", "second"])
    posterior = own.posterior(GRID)
    for i, (name, band) in enumerate(zip(("first", "second"), ax.collections, strict=True)):
        torch.testing.assert_close(line(ax, name)[1], posterior.mean[:, i].detach())
        heights = torch.as_tensor(band.get_paths()[0].vertices[:, 1])
        expected = posterior.mean[:, i] + 3 * posterior.variance[:, i].sqrt()
        assert (heights.unsqueeze(-1) - expected.detach()).abs().amin(dim=0).max() < 1e-9


def test_points_in_any_order_give_the_same_lines() -> None:
    own, order = model(), torch.randperm(len(GRID), generator=torch.Generator().manual_seed(0))
    sorted_ax, shuffled_ax = plot_posterior(own, GRID), plot_posterior(own, GRID[order])
    for name in ("task 1", "task 2"):
        for one, other in zip(line(sorted_ax, name), line(shuffled_ax, name), strict=True):
            torch.testing.assert_close(one, other)


def test_a_slice_of_one_input_is_the_posterior_there() -> None:
    own = ExactMultiTaskGP(INPUTS, torch.cat([INPUTS.sin(), INPUTS[:, :1]], dim=-1), eta=0.01)
    axes = plot_slice(own, UNIT, (2,), at=INPUTS[0], names=list("abcd"), input_names=["heat", "time", "load"])
    along = torch.linspace(2, 4, 101, dtype=torch.double)
    X = INPUTS[0].repeat(101, 1)
    X[:, 2] = along
    posterior = own.posterior(X)
    assert [ax.get_title() for ax in axes] == list("abcd")
    for i, ax in enumerate(axes):
        curve, fixed = ax.lines
        torch.testing.assert_close(torch.as_tensor(curve.get_xdata()), along)
        torch.testing.assert_close(torch.as_tensor(curve.get_ydata()), posterior.mean[:, i].detach())
        assert fixed.get_xdata()[0] == pytest.approx(INPUTS[0, 2].item())
        heights = torch.as_tensor(ax.collections[0].get_paths()[0].vertices[:, 1])
        for sign in (-2, 2):
            expected = (posterior.mean[:, i] + sign * posterior.variance[:, i].sqrt()).detach()
            assert (heights.unsqueeze(-1) - expected).abs().amin(dim=0).max() < 1e-9
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("load", "mean ± 2 standard deviations")
    assert axes[0].figure.get_suptitle() == f"at heat = {INPUTS[0, 0]:.3g}, time = {INPUTS[0, 1]:.3g}"


def test_a_slice_of_two_inputs_is_a_map_of_the_mean() -> None:
    own = alone()
    [ax] = plot_slice(own, UNIT, (2, 0))
    [surface] = ax.collections
    places = torch.as_tensor(surface.get_coordinates().data)  # rows are heights
    assert places[[0, 0, -1, -1], [0, -1, 0, -1]].tolist() == [[2, 0], [4, 0], [2, 1], [4, 1]]
    X = torch.stack([places[..., 1], torch.full((41, 41), 0.5), places[..., 0]], dim=-1).reshape(-1, 3)
    shown = torch.as_tensor(surface.get_array().data).flatten()
    torch.testing.assert_close(shown, own.posterior(X).mean[:, 0].detach())
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x_3", "x_1")
    assert ax.lines[0].get_xydata().tolist() == [[3.0, 0.5]]  # the middle
    assert ax.figure.get_suptitle() == "at x_2 = 0.5"


REACTION = Inputs(
    {
        "loading": Real(1e-3, 1, log=True),
        "catalyst": Category("Pd", "Ni", "Cu"),
        "stages": Integer(1, 4),
        "dose": Ordered(1, 2, 10),
        "days": Integer(0, 500),
    }
)
RUNS = [
    {"loading": 0.002, "catalyst": "Cu", "stages": 3, "dose": 2, "days": 10, "yield": 0.3},
    {"loading": 0.5, "catalyst": "Pd", "stages": 1, "dose": 10, "days": 400, "yield": 0.9},
    {"loading": 0.03, "catalyst": "Ni", "stages": 4, "dose": 1, "days": 230, "yield": 0.1},
]


def reaction() -> SingleTaskGP:
    targets = torch.tensor([[row["yield"]] for row in RUNS], dtype=torch.double)
    return SingleTaskGP(REACTION.encode(RUNS), targets, input_transform=Normalize(5, bounds=REACTION.bounds))


def expect(own: SingleTaskGP, rows: list[dict[str, object]]) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation at the first run with other values of some inputs."""
    posterior = own.posterior(REACTION.encode([RUNS[0] | row for row in rows]))
    return posterior.mean[:, 0].tolist(), posterior.variance[:, 0].sqrt().tolist()


@pytest.mark.parametrize(("name", "count"), [("loading", 101), ("days", 101)])
def test_a_slice_along_a_described_number_is_in_its_units(name: str, count: int) -> None:
    own = reaction()
    [ax] = plot_slice(own, REACTION, [name], at=RUNS[0])
    curve, fixed = ax.lines
    shown = curve.get_xdata().tolist()
    assert len(shown) == count
    assert (shown[0], shown[-1]) == pytest.approx((0.001, 1) if name == "loading" else (0, 500))
    assert curve.get_ydata().tolist() == pytest.approx(expect(own, [{name: value} for value in shown])[0], rel=1e-6)
    assert fixed.get_xdata()[0] == pytest.approx(RUNS[0][name])
    assert (ax.get_xlabel(), ax.get_xscale()) == (name, "log" if name == "loading" else "linear")
    assert ax.get_xlim() == pytest.approx((shown[0], shown[-1]))
    if name == "days":
        assert all(value == round(value) for value in shown)


@pytest.mark.parametrize(
    ("name", "values", "places", "here"),
    [
        ("catalyst", ["Pd", "Ni", "Cu"], [0, 1, 2], 2),
        ("dose", [1, 2, 10], [0, 1, 2], 1),
        ("stages", [1, 2, 3, 4], [1, 2, 3, 4], 3),
    ],
)
def test_a_slice_along_a_few_values_has_a_bar_for_each(
    name: str, values: list[object], places: list[int], here: int
) -> None:
    own = reaction()
    [ax] = plot_slice(own, REACTION, [name], at=RUNS[0])
    dots, _, (bars,) = ax.containers[0].lines
    mean, sd = expect(own, [{name: value} for value in values])
    assert dots.get_xdata().tolist() == places
    assert dots.get_ydata().tolist() == pytest.approx(mean)
    for bar, center, width in zip(bars.get_segments(), mean, sd, strict=True):
        assert bar[:, 1].tolist() == pytest.approx([center - 2 * width, center + 2 * width])
    assert ax.lines[-1].get_xdata()[0] == here
    ax.figure.canvas.draw()
    low, high = ax.get_xlim()
    ticks = [
        label.get_text()
        for tick, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
        if low <= tick <= high
    ]
    assert ticks == list(map(str, values))


def test_a_map_of_described_inputs_has_a_cell_for_each_of_a_few_values() -> None:
    own = reaction()
    [ax] = plot_slice(own, REACTION, ["loading", "catalyst"], at=RUNS[0], names=["yield"])
    [surface] = ax.collections
    edges = surface.get_coordinates()
    assert edges[:, 0, 1].tolist() == [-0.5, 0.5, 1.5, 2.5]
    assert (edges[0, 0, 0], edges[0, -1, 0]) == pytest.approx((0.001, 1))
    loadings = [10 ** (-3 + 3 * i / 40) for i in range(41)]
    assert all(
        left <= loading <= right for (left, right), loading in zip(pairwise(edges[0, :, 0]), loadings, strict=True)
    )
    expected = [expect(own, [{"catalyst": name, "loading": v} for v in loadings])[0] for name in ("Pd", "Ni", "Cu")]
    torch.testing.assert_close(torch.as_tensor(surface.get_array().data), torch.tensor(expected, dtype=torch.double))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["Pd", "Ni", "Cu"]
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == ("yield", "loading", "catalyst")
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    assert ax.lines[0].get_xydata()[0] == pytest.approx([0.002, 2])
    assert ax.figure.get_suptitle() == "at stages = 3, dose = 2, days = 10"


def test_a_map_of_two_ranges_is_smooth_in_their_units() -> None:
    [ax] = plot_slice(reaction(), REACTION, ["days", "loading"])
    places = ax.collections[0].get_coordinates()
    assert places[0, [0, -1], 0].tolist() == [0, 500]
    assert places[[0, -1], 0, 1].tolist() == pytest.approx([0.001, 1])
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")


def test_the_middle_of_described_inputs_is_allowed() -> None:
    [ax] = plot_slice(reaction(), REACTION, ["days"])
    assert ax.figure.get_suptitle() == "at loading = 0.0316, catalyst = Ni, stages = 2, dose = 2"


def test_a_slice_goes_through_a_row_of_a_table() -> None:
    row = pd.DataFrame(RUNS).iloc[0]
    [one], [other] = (plot_slice(reaction(), REACTION, ["dose"], at=at) for at in (row, RUNS[0]))
    assert (
        one.figure.get_suptitle()
        == other.figure.get_suptitle()
        == "at loading = 0.002, catalyst = Cu, stages = 3, days = 10"
    )


def test_slices_by_name_and_by_number_are_the_same() -> None:
    for inputs in (["load"], [2]):
        [ax] = plot_slice(alone(), UNIT, inputs, input_names=["heat", "time", "load"])
        assert ax.get_xlabel() == "load"


def test_predictions_are_shown_with_two_standard_deviations() -> None:
    [ax] = plot_leave_one_out(*left_out(), names=["strength"])
    assert ax.get_title() == "strength"
    within, beyond = ax.containers
    assert within.lines[0].get_xydata().tolist() == [[1.0, 1.5], [2.0, 2.0]]
    assert beyond.lines[0].get_xydata().tolist() == [[4.0, 3.0]]
    assert [bar[:, 1].tolist() for bar in within.lines[2][0].get_segments()] == [[0.5, 2.5], [0.0, 4.0]]
    assert [bar[:, 1].tolist() for bar in beyond.lines[2][0].get_segments()] == [pytest.approx([2.2, 3.8])]
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["within 2 standard deviations: 2", "beyond 2 standard deviations: 1"]
    diagonal = ax.lines[0]
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == list(ax.get_xlim()) == list(ax.get_ylim())


def test_axes_of_tasks_may_be_a_table() -> None:
    _, table = plt.subplots(2, 2)
    own = ExactMultiTaskGP(INPUTS, torch.cat([INPUTS.sin(), INPUTS[:, :1]], dim=-1), eta=0.01)
    assert plot_slice(own, UNIT, (0,), axes=table) == list(table.flat)


BARS: list[Callable[[Axes], object]] = [
    lambda ax: plot_pareto(PAIRS, ax=ax),
    lambda ax: plot_pareto(TRIPLES, ax=ax),
    lambda ax: plot_task_correlation(torch.eye(3), ax),
    lambda ax: plot_slice(alone(), UNIT, (0, 1), axes=[ax]),
]


@pytest.mark.parametrize("layout", [None, "constrained"])
@pytest.mark.parametrize("plot", BARS)
def test_color_bars_do_not_run_into_the_next_plot(plot: Callable[[Axes], object], layout: str | None) -> None:
    figure, (left, right) = plt.subplots(1, 2, layout=layout)
    right.set(ylabel="value")
    plot(left)
    figure.canvas.draw()
    [bar] = [ax for ax in figure.axes if ax not in (left, right) and ax not in left.child_axes]
    assert bar.get_tightbbox().x1 < right.get_tightbbox().x0


def test_bands_of_a_mixture_are_its_intervals() -> None:
    own, mixture = model(), Mixture(norm_bound=3.0, noise_scale=0.1)
    bands = plot_posterior(own, GRID, radius=mixture).collections
    for bound in own.intervals(GRID, mixture):
        for band, expected in zip(bands, bound.unbind(dim=-1), strict=True):
            heights = torch.as_tensor(band.get_paths()[0].vertices[:, 1])
            assert (heights.unsqueeze(-1) - expected.detach()).abs().amin(dim=0).max() < 1e-9
    with pytest.raises(ValueError, match="radius should be a number for a SingleTaskGP"):
        plot_posterior(SingleTaskGP(POINTS, VALUES), GRID, radius=mixture)


def test_bands_take_missing_values_and_parameters_that_are_learned() -> None:
    values = VALUES.clone()
    values[1, 0] = torch.nan
    own = ExactMultiTaskGP(POINTS, values, eta=0.01, allow_missing=True)
    dots = plot_posterior(own, GRID, POINTS, values).collections[2:]
    assert [len(dot.get_offsets().compressed()) // 2 for dot in dots] == [2, 3]


def test_correlations_are_scaled_covariances() -> None:
    B = ICMKernel(RBFKernel(), num_tasks=3).task_covar
    [image] = plot_task_correlation(B).images
    B = B.detach()
    expected = [[float(B[i, j]) / float(B[i, i] * B[j, j]) ** 0.5 for j in range(3)] for i in range(3)]
    torch.testing.assert_close(torch.as_tensor(image.get_array().data).tolist(), expected)


def test_a_task_without_variance_is_left_blank() -> None:
    ax = plot_task_correlation(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    assert [text.get_text() for text in ax.texts] == ["1.00", "", "", ""]


def test_dictionary_is_shown_below_all_observations() -> None:
    ax = plot_dictionary({"MT-BKB": torch.full((2, 50), 7)})
    assert line(ax, "MT-BKB")[1].tolist() == [7.0] * 50
    assert line(ax, "all observations")[1].tolist() == [1, 50]


def test_all_rounds_of_all_curves_are_shown() -> None:
    curves = {"short": torch.rand(4, 5), "long": torch.rand(4, 30), "between": torch.rand(4, 9)}
    assert plot_regret(curves).get_xlim() == (1, 30)
    two = {name: curves[name] for name in ("short", "long")}
    assert plot_certificate(curves, two).get_xlim() == (1, 30)


def test_however_many_curves_all_are_drawn_and_named() -> None:
    curves = {str(i): torch.rand(2, 5) for i in range(20)}
    axes = [plot_regret(curves), plot_certificate(curves, curves), plot_dictionary(curves)]
    for ax, count in zip(axes, (20, 40, 21), strict=True):
        assert len(ax.get_legend().get_texts()) == count
        ax.figure.canvas.draw()  # which warns if the legend leaves no room


def test_sizes_in_a_graph_or_unknown() -> None:
    sizes = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, torch.nan]], requires_grad=True)
    assert plot_dictionary({"MT-BKB": sizes}).get_ylim() == pytest.approx((0, 5.6))


def test_a_single_point_can_be_shown() -> None:
    assert line(plot_posterior(model(), GRID[:1]), "task 1")[0].tolist() == GRID[:1, 0].tolist()


def test_refused_observations_leave_the_axes_empty() -> None:
    _, ax = plt.subplots()
    with pytest.raises(ValueError, match="train_Y should be"):
        plot_posterior(model(), GRID, POINTS, VALUES[:1], ax)
    assert not ax.has_data()


def test_names_may_be_numbers() -> None:
    labels = plot_task_correlation(torch.eye(2), names=[10, 20]).get_xticklabels()
    assert [label.get_text() for label in labels] == ["10", "20"]


@pytest.mark.parametrize("names", [["a", "b"], ["strength of it", "price of it"] * 3, [f"task {i}" for i in range(20)]])
def test_names_of_tasks_do_not_overlap(names: list[str]) -> None:
    ax = plot_task_correlation(torch.eye(len(names)), names=names)
    ax.figure.canvas.draw()
    labels = ax.get_xticklabels()
    boxes = [label.get_window_extent() for label in labels]
    if labels[0].get_rotation() in (0, 90):
        assert all(one.x1 < other.x0 for one, other in pairwise(boxes))
    else:  # slanted, they need the room of a line
        assert all(one.x1 + labels[0].get_fontsize() < other.x1 for one, other in pairwise(boxes))


def test_an_explanation_shows_each_task_and_what_it_depends_on() -> None:
    optimizer = Optimizer(2, bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    X = torch.rand(8, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    optimizer.tell(X, torch.stack([X[:, 0], X[:, 1]], dim=-1))
    explained = optimizer.explain([0.5, 0.5])
    axes = plot_explanation(explained)
    for j, ax in enumerate(axes):
        assert [label.get_text() for label in ax.get_yticklabels()] == ["x_1", "x_2"]
        assert [bar.get_width() for bar in ax.patches] == pytest.approx(explained.effects[:, j].tolist())
        assert ax.get_title().startswith(f"task {j + 1}: {explained.mean[j]:.3g}")
    with pytest.raises(ValueError, match="explanation should come from strategy"):
        plot_explanation([explained])


def test_missing_values_are_left_out_of_leave_one_out() -> None:
    X = torch.linspace(0, 1, 9, dtype=torch.double).unsqueeze(-1)
    Y = torch.cat([X.sin(), X.cos()], dim=-1)
    Y[3, 0] = torch.nan
    axes = plot_leave_one_out(Y, *ExactMultiTaskGP(X, Y, eta=0.1, allow_missing=True).leave_one_out())
    counts = [sum(len(drawn[0].get_xdata()) for drawn in ax.containers) for ax in axes]
    assert counts == [8, 9]
