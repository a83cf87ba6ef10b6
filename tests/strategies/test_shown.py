"""The best observations, and what a strategy shows of itself."""

from __future__ import annotations

import re

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from mtbo_torch import MTBKB, MTKB, ICMKernel, Optimizer

BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
POINTS = torch.rand(40, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
VALUES = torch.randn(40, 3, dtype=torch.double, generator=torch.Generator().manual_seed(1))


def dominated(y: list[float], others: list[list[float]]) -> bool:
    return any(all(a >= b for a, b in zip(z, y, strict=True)) and z != y for z in others)


def told(values: Tensor = VALUES, **options: object) -> MTKB:
    strategy = MTKB(3, bounds=BOX, refit_every=100, **options)
    strategy.tell(POINTS[: len(values)], values, allow_missing=True)
    return strategy


def indices(strategy: MTKB) -> list[int]:
    X, Y = strategy.pareto()
    found = [int((x == POINTS).all(dim=-1).nonzero()) for x in X]
    assert torch.equal(strategy.train_Y[found], Y)
    return found


def test_pareto_is_what_no_other_dominates() -> None:
    rows = VALUES.tolist()
    assert indices(told()) == [i for i, row in enumerate(rows) if not dominated(row, rows)]


def test_pareto_looks_at_the_objectives() -> None:
    rows = [[y[0], -y[1]] for y in VALUES.tolist()]
    assert indices(told(signs=(1, -1, 0))) == [i for i, row in enumerate(rows) if not dominated(row, rows)]


def test_pareto_leaves_out_what_is_forbidden_or_incomplete() -> None:
    values = VALUES.clone()
    values[::5, 1] = torch.nan
    limits = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.double), torch.tensor([0.3], dtype=torch.double)
    allowed = [i for i, y in enumerate(values.tolist()) if i % 5 and y[2] <= 0.3]
    rows = [values[i].tolist() for i in allowed]
    expected = [i for i, row in zip(allowed, rows, strict=True) if not dominated(row, rows)]
    assert 0 < len(expected) < len(allowed) < 30
    assert indices(told(values, constraints=limits)) == expected


def test_pareto_has_all_points_of_equal_values() -> None:
    values = torch.tensor([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 2.0, 0.0]], dtype=torch.double)
    assert indices(told(values)) == [0, 1, 2]


def test_pareto_of_nothing_is_nothing() -> None:
    X, Y = MTKB(3, bounds=BOX, refit_every=1).pareto()
    assert X.shape == (0, 2)
    assert Y.shape == (0, 3)


def test_pareto_of_a_batch_has_a_pair_for_each_trial() -> None:
    X = torch.stack([POINTS, POINTS.flip(0), POINTS])
    Y = torch.stack([VALUES, -VALUES, VALUES])
    Y[2, ::5, 1] = torch.nan
    limits = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.double), torch.tensor([0.3], dtype=torch.double)
    options = {"signs": (1, -1, 0), "constraints": limits}
    trials = MTKB(3, bounds=BOX, refit_every=100, seed=[0, 1, 2], **options)
    assert [(len(x), len(y)) for x, y in trials.pareto()] == [(0, 0)] * 3
    trials.tell(X, Y, allow_missing=True)
    pairs = trials.pareto()
    assert len(pairs) == 3
    for pair, points, values in zip(pairs, X, Y, strict=True):
        alone = MTKB(3, bounds=BOX, refit_every=100, **options)
        alone.tell(points, values, allow_missing=True)
        for ours, theirs in zip(pair, alone.pareto(), strict=True):
            assert torch.equal(ours, theirs)
    assert {len(x) for x, _ in pairs} == {3, 5}  # so they cannot be one tensor


def test_a_strategy_shows_its_best_observations() -> None:
    strategy = told()
    strategy.ask(2)
    best, text = indices(strategy), repr(strategy)
    assert text.startswith(
        "MTKB: 40 observations of 3 tasks, 2 inputs in a box, 2 pending; radius 1.0, without a guarantee\n"
    )
    assert re.findall(r"^row (\d+) ", text, flags=re.MULTILINE) == [str(i) for i in best[:10]]
    assert f"{VALUES[best[0], 0]:.4g}" in text
    page = strategy._repr_html_()
    assert page.count("<tr>") == text.count("\n") - 1  # a head, no rule
    assert f'<td style="text-align: left">row {best[0]}</td>' in page


def test_roles_of_tasks_and_constraints_are_said() -> None:
    limits = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.double), torch.tensor([0.3], dtype=torch.double)
    first, second = repr(told(signs=(1, -1, 0), constraints=limits)).splitlines()[:2]
    assert f"; {sum(y <= 0.3 for y in VALUES[:, 2].tolist())} of 40 satisfy the constraints; " in first
    assert second.split("x_2")[1].split("  ") == ["", "task 1 (max)", "task 2 (min)", "task 3 (watched)"]
    never = limits[0], torch.tensor([-10.0], dtype=torch.double)
    assert repr(told(constraints=never)) == (
        "MTKB: 40 observations of 3 tasks, 2 inputs in a box; 0 of 40 satisfy the constraints; radius 1.0, without a "
        "guarantee"
    )


def test_what_has_nothing_to_show_says_so_in_a_line() -> None:
    choices = torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1)
    nothing = "0 observations of 1 task, 1 input on 5 choices"
    assert repr(MTKB(1, choices=choices, refit_every=1)) == f"MTKB: {nothing}; radius 1.0, without a guarantee"
    assert repr(Optimizer(1, choices=choices)) == f"Optimizer: {nothing}; 4 more points of its first design"
    known = {"kernel": ICMKernel(RBFKernel(), torch.eye(1)), "choices": choices, "norm_bound": 1.0, "noise_scale": 0.1}
    held = "its intervals hold with probability 0.9, if norm_bound and noise_scale do"
    assert repr(MTKB(**known)) == f"MTKB: {nothing}; {held}"
    assert repr(MTKB(**known, bound="norm")) == f"MTKB: {nothing}; its bounds hold with probability 0.9"
    assert repr(MTBKB(**known, bound="norm")) == f"MTBKB: {nothing}; radius theory, without a guarantee"
    trials = MTBKB(2, bounds=BOX, refit_every=1, seed=[0, 1, 2])
    assert (
        repr(trials)
        == "MTBKB: 3 trials with 0 observations of 2 tasks, 2 inputs in a box; radius 1.0, without a guarantee"
    )


def test_wide_tables_are_cut() -> None:
    strategy = MTKB(20, bounds=torch.stack([torch.zeros(9), torch.ones(9)]), refit_every=100)
    strategy.tell(torch.rand(30, 9), torch.randn(30, 20))
    lines = repr(strategy).splitlines()
    assert "x_6  " in lines[1]
    assert "x_7" not in lines[1]
    assert lines[1].endswith("task 6")
    assert lines[-1] == "and 20 more"
