"""The method to pick by default: its design, its search, and everything a strategy has to survive."""

from __future__ import annotations

import copy
import math
from functools import cache
from typing import Any

import pytest
import torch
from botorch.test_functions.multi_objective import BraninCurrin
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor

from mtbo_torch import ExactMultiTaskGP, LogAverageImprovement, Optimizer
from mtbo_torch.optimization import draw_sobol
from mtbo_torch.strategies import SobolSearch

BOX = torch.tensor([[0.0, -1.0], [1.0, 1.0]], dtype=torch.double)
CHOICES = torch.rand(40, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
WHERE = [{"bounds": BOX}, {"choices": CHOICES}]
everywhere = pytest.mark.parametrize("where", WHERE, ids=["bounds", "choices"])


def values(x: Tensor) -> Tensor:
    first = -(x - 0.2).square().sum(dim=-1)
    return torch.stack([first, -(x - 0.7).square().sum(dim=-1) + 0.3 * first], dim=-1)


def played(optimizer: Optimizer, rounds: int, q: int = 1) -> Optimizer:
    for _ in range(rounds):
        x = optimizer.ask(q)
        optimizer.tell(x, values(x))
    return optimizer


@cache
def _after_the_design(where: str) -> Optimizer:
    return played(Optimizer(2, **WHERE[where == "choices"]), 7)


def after_the_design(where: str) -> Optimizer:
    """What has learned twice, and has asked once for an improvement."""
    return copy.deepcopy(_after_the_design(where))


@everywhere
def test_the_design_comes_first_and_fills_the_space(where: dict[str, Tensor]) -> None:
    one, together = Optimizer(2, **where, seed=3), Optimizer(2, **where, seed=3)
    assert one.design_size == 6
    assert "6 more points of its first design" in repr(one)
    singly = torch.cat([one.ask() for _ in range(6)])
    assert torch.equal(singly, together.ask(6))
    cube = one.space.from_cube(draw_sobol(2, 6, one._scrambles[0]))
    assert torch.equal(singly, cube)
    assert len(one.ask(3)) == 3  # all pending, nothing told: there is nothing to improve upon yet


def test_what_is_told_counts_as_a_part_of_the_design() -> None:
    optimizer, alone = Optimizer(2, bounds=BOX), Optimizer(2, bounds=BOX)
    mine = torch.rand(4, 2, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    optimizer.tell(mine, values(mine))
    assert torch.equal(optimizer.ask(2), alone.ask(6)[4:])
    optimizer.tell(optimizer.asked_ids, values(torch.stack([optimizer.pending[i] for i in optimizer.asked_ids])))
    assert "first design" not in repr(optimizer)
    assert optimizer.kernel_scores  # learned as soon as the design is there


def find_ends(optimizer: Optimizer, points: Tensor) -> Tensor:
    """Where the leading kernel expects the best of each objective, a bit of all others included, among points."""
    spread = optimizer.train_Y.std(dim=0)
    signs = torch.tensor(optimizer.goal.signs, dtype=torch.double)
    with torch.no_grad():
        mean = optimizer.model.posterior(points).mean * signs / spread
    return torch.stack([points[(mean[:, i] + 0.05 * mean.mean(dim=-1)).argmax()] for i in range(mean.shape[-1])])


def find_ref_point(model: ExactMultiTaskGP, X: Tensor, ends: Tensor, signs: tuple[int, int] | None) -> Tensor:
    """A tenth of the range of the front and its ends below the worst of them, as a user would write it."""
    turns = torch.tensor(signs or (1, 1), dtype=torch.double)
    with torch.no_grad():
        found, expected = model.posterior(X).mean * turns, model.posterior(ends).mean * turns
    front = torch.cat([found[is_non_dominated(found)], expected])
    worst, best = front.amin(dim=0), front.amax(dim=0)
    return (worst - 0.1 * (best - worst)) * turns


def expected_improvement(optimizer: Optimizer, x: Tensor, ends: Tensor | None = None, **options: Any) -> Tensor:
    """The log of what all kernels expect at ``N x d`` points, on average with Akaike's weights."""
    model, scores = optimizer.model, optimizer.kernel_scores
    relative = {name: math.exp(score - max(scores.values())) for name, score in scores.items()}
    kept = {name: share for name, share in relative.items() if share > 0.02 * sum(relative.values())}
    total = torch.zeros(len(x), dtype=torch.double)
    for name, share in kept.items():
        one = optimizer._known.candidates[name]
        transforms = {"input_transform": model.input_transform, "outcome_transform": model.outcome_transform}
        other = ExactMultiTaskGP(optimizer.train_X, optimizer.train_Y, one.kernel, eta=one.noise, **transforms).eval()
        if ends is not None:
            options["ref_point"] = find_ref_point(other, optimizer.train_X, ends, options.get("signs"))
        with torch.no_grad():
            gain = LogAverageImprovement(other, **options)(x.unsqueeze(-2)).exp()
        total = total + share / sum(kept.values()) * gain
    return total.log()


# In a box with neither signs nor a reference point or with both; on choices with either.
@pytest.mark.parametrize(
    ("where", "signs"),
    [
        (WHERE[0], (1, -1)),
        (WHERE[1], None),
        pytest.param(WHERE[0], None, marks=pytest.mark.slow),
        pytest.param(WHERE[1], (1, -1), marks=pytest.mark.slow),
    ],
)
def test_it_asks_for_the_largest_improvement(where: dict[str, Tensor], signs: tuple[int, int] | None) -> None:
    ref_point = torch.tensor([-2.0, -2.0 if signs is None else 2.0], dtype=torch.double)
    given = ref_point if ("choices" in where) == (signs is None) else None
    optimizer = played(Optimizer(2, **where, signs=signs, ref_point=given), 7)
    x = optimizer.ask()
    rivals = CHOICES if "choices" in where else BOX[0] + (BOX[1] - BOX[0]) * draw_sobol(2, 256, seed=1)
    ends = find_ends(optimizer, rivals) if given is None else None
    found, *others = expected_improvement(optimizer, torch.cat([x, rivals]), ends, ref_point=given, signs=signs)
    assert found >= max(others) - 1e-3


@pytest.mark.parametrize("where", [pytest.param(WHERE[0], marks=pytest.mark.slow), WHERE[1]], ids=["bounds", "choices"])
def test_runs_continue_bit_for_bit_in_the_design_and_after(where: dict[str, Tensor]) -> None:
    for first in (played(Optimizer(2, **where), 2), after_the_design(next(iter(where)))):
        second = Optimizer(2, **where, seed=9)
        first.ask()
        second.load_state_dict(first.state_dict())
        assert torch.equal(first.ask(2), second.ask(2))
        for optimizer in (first, second):
            told = list(optimizer.pending.values())[-1].unsqueeze(0)
            optimizer.tell(told, values(told))
        assert torch.equal(first.ask(), second.ask())


def test_trials_side_by_side_begin_as_each_alone() -> None:
    together = played(Optimizer(2, bounds=BOX, seed=[3, 4]), 6)
    for i, seed in enumerate([3, 4]):
        alone = Optimizer(2, bounds=BOX, seed=seed).ask(6)
        assert torch.equal(together.train_X[i, :6], alone)
    assert together.ask(2).shape == (2, 2, 2)


def test_a_design_on_few_choices_asks_for_each_once() -> None:
    few = torch.tensor([[0.0, 0.0], [0.01, 0.0], [0.0, 0.01], [0.01, 0.01], [1.0, 1.0]], dtype=torch.double)
    for seed in (0, [1, 2]):
        optimizer = Optimizer(2, choices=few, repeat=False, seed=seed)
        told = few[3].expand(*optimizer.batch_shape, 1, 2)
        optimizer.tell(told, values(told))
        rest = torch.cat([optimizer.ask(3), optimizer.ask()], dim=-2).reshape(-1, 4, 2)
        for points in rest:
            assert len(torch.cat([points, few[3:4]]).unique(dim=0)) == 5


@pytest.mark.parametrize("repeat", [True, False])
def test_units_do_not_decide_on_a_design_among_choices(repeat: bool) -> None:
    choices = torch.rand(60, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    units = torch.tensor([1.0, 1024.0, 1 / 1024], dtype=torch.double)
    plain, other = Optimizer(2, choices=choices, repeat=repeat), Optimizer(2, choices=choices * units, repeat=repeat)
    assert torch.equal(plain.ask(8) * units, other.ask(8))


def test_several_points_spread_and_choices_are_not_asked_twice() -> None:
    optimizer = played(Optimizer(2, choices=CHOICES, repeat=False), 6)
    x = optimizer.ask(4)
    assert len(torch.cat([optimizer.train_X, x]).unique(dim=0)) == 10
    apart = torch.pdist(after_the_design("bounds").ask(3))
    assert apart.min() > 1e-3


def test_constraints_and_pending_points_decide_what_it_asks_for() -> None:
    limit = (torch.tensor([[0.0, -1.0]], dtype=torch.double), torch.tensor([0.1], dtype=torch.double))
    ref_point = torch.tensor([-0.5, -0.5], dtype=torch.double)
    optimizer = Optimizer(2, choices=CHOICES, constraints=limit, ref_point=ref_point)
    optimizer.tell(CHOICES[:8], values(CHOICES[:8]))
    first, second = optimizer.ask(), optimizer.ask()
    options = {"constraints": limit, "X_pending": first}
    for left_out in (None, *options):
        others = {name: options[name] for name in options if name != left_out} | {"ref_point": ref_point}
        best = CHOICES[expected_improvement(optimizer, CHOICES, **others).argmax()]
        assert torch.equal(best, second[0]) == (left_out is None)


def test_the_ends_of_the_front_probably_satisfy_the_constraints() -> None:
    limit = (torch.tensor([[0.0, -1.0]], dtype=torch.double), torch.tensor([0.25], dtype=torch.double))
    free, limited = Optimizer(2, choices=CHOICES), Optimizer(2, choices=CHOICES, constraints=limit)
    for optimizer in (free, limited):
        optimizer.tell(CHOICES[:8], values(CHOICES[:8]))
    assert torch.equal(free._find_ends(), find_ends(free, CHOICES))
    assert values(free._find_ends())[:, 1].min() < -0.25 <= values(limited._find_ends())[:, 1].min()


def test_what_is_expected_can_be_asked_without_a_trace() -> None:
    optimizer, other = after_the_design("bounds"), after_the_design("bounds")
    assert optimizer.explain(BOX[0]).gain == optimizer.explain(BOX[0]).gain
    assert torch.equal(optimizer.ask(), other.ask())


def test_constraints_and_missing_values() -> None:
    limit = (torch.tensor([[0.0, -1.0]], dtype=torch.double), torch.tensor([0.5], dtype=torch.double))
    optimizer = Optimizer(2, choices=CHOICES, constraints=limit, signs=(1, 0))
    x = optimizer.ask(6)
    y = values(x)
    y[2, 0] = torch.nan
    optimizer.tell(x, y, allow_missing=True)
    for _ in range(4):
        x = optimizer.ask()
        optimizer.tell(x, values(x))
    allowed = values(CHOICES)[:, 1] >= -0.5
    best = values(CHOICES)[allowed, 0].max()
    found = optimizer.train_Y[optimizer.train_Y[:, 1] >= -0.5, 0]
    assert found[~found.isnan()].max() == best


def test_one_task_and_single_precision() -> None:
    optimizer = Optimizer(1, bounds=torch.tensor([[0.0], [1.0]]))
    for _ in range(8):
        x = optimizer.ask()
        optimizer.tell(x, -(x - 0.3).square())
    assert optimizer.train_Y.max() > -1e-3


@pytest.mark.slow
def test_it_finds_more_than_sobol_points() -> None:
    problem = BraninCurrin(negate=True).to(dtype=torch.double)

    def reach(strategy: Any) -> float:
        for _ in range(14):
            x = strategy.ask()
            strategy.tell(x, problem(x))
        Y = strategy.train_Y
        front = Y[is_non_dominated(Y) & (problem.ref_point < Y).all(dim=-1)]
        return Hypervolume(problem.ref_point).compute(front) if len(front) else 0.0

    for seed in (100, 101):
        ours = reach(Optimizer(2, bounds=problem.bounds, ref_point=problem.ref_point, seed=seed))
        assert ours > 1.1 * reach(SobolSearch(2, bounds=problem.bounds, seed=seed))
