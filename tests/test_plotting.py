"""Plots draw the numbers they are given, on the axes they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import matplotlib.pyplot as plt
import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel
from matplotlib.axes import Axes
from matplotlib.cbook import STEP_LOOKUP_MAP
from torch import Tensor

from mtbo_torch import ExactMultiTaskGP, ICMKernel, Mixture
from mtbo_torch.plotting import (
    plot_certificate,
    plot_dictionary,
    plot_pareto,
    plot_posterior,
    plot_regret,
    plot_task_correlation,
)

GRID = torch.linspace(0, 1, 20, dtype=torch.double).unsqueeze(-1)
POINTS = torch.tensor([[0.1], [0.5], [0.8]], dtype=torch.double)
VALUES = torch.cat([POINTS.sin(), POINTS.cos()], dim=-1)
CURVES = {"MT-KB": torch.rand(4, 30), "random": torch.rand(4, 30) + 1}
PAIRS = torch.tensor([[0.0, 3.0], [1.0, 2.0], [0.5, 1.0], [2.0, 0.0]])

PLOTS: list[Callable[[Axes | None], Axes]] = [
    lambda ax: plot_regret(CURVES, ax),
    lambda ax: plot_certificate(CURVES, {"MT-KB": 10 * CURVES["MT-KB"]}, ax),
    lambda ax: plot_pareto(PAIRS, ax=ax),
    lambda ax: plot_pareto(PAIRS, PAIRS + 1, ax),
    lambda ax: plot_posterior(model(), GRID, POINTS, VALUES, ax),
    lambda ax: plot_task_correlation(torch.eye(3), ax),
    lambda ax: plot_dictionary({"MT-BKB": torch.ones(1, 9)}, ax),
]


def model() -> ExactMultiTaskGP:
    return ExactMultiTaskGP(POINTS, VALUES, eta=0.01)


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def line(ax: Axes, label: str) -> tuple[Tensor, Tensor]:
    [found] = [line for line in ax.lines if line.get_label() == label]
    return torch.as_tensor(found.get_xdata()), torch.as_tensor(found.get_ydata())


@pytest.mark.parametrize("plot", PLOTS)
def test_draws_on_the_axes_given(plot: Callable[[Axes | None], Axes]) -> None:
    _, (left, right) = plt.subplots(1, 2)
    assert plot(right) is right
    assert right.has_data()
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


def test_bands_are_radius_standard_deviations() -> None:
    own = model()
    ax = plot_posterior(own, GRID, radius=3.0, names=["first", "second"])
    posterior = own.posterior(GRID)
    for i, (name, band) in enumerate(zip(("first", "second"), ax.collections, strict=True)):
        torch.testing.assert_close(line(ax, name)[1], posterior.mean[:, i].detach())
        heights = torch.as_tensor(band.get_paths()[0].vertices[:, 1])
        expected = posterior.mean[:, i] + 3 * posterior.variance[:, i].sqrt()
        assert (heights.unsqueeze(-1) - expected.detach()).abs().amin(dim=0).max() < 1e-9


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
    assert plot_certificate(curves, curves).get_xlim() == (1, 30)


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
