"""Points that are allowed, and searches among them."""

from __future__ import annotations

import itertools

import pytest
import torch
from suites import close
from torch import Tensor

from mtbo_torch import Category, Inputs, Integer, Ordered, Real
from mtbo_torch import grid as module
from mtbo_torch.grid import Grid
from mtbo_torch.optimization import draw_sobol, maximize
from mtbo_torch.space import Choices, Described

CUBE = torch.tensor([[0.0], [1.0]], dtype=torch.double)


@pytest.fixture
def short_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw what is near by a short walk, where it does not matter how evenly."""
    monkeypatch.setattr(module, "THINNING", 1)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def limit(places: list[int], factors: list[float], bound: float) -> tuple[Tensor, Tensor, float]:
    return torch.tensor(places), numbers(*factors), bound


def test_points_are_placed_on_the_nearest_value() -> None:
    grid = Grid(2, {0: numbers(0, 0.1, 0.5, 1)})
    X = draw_sobol(2, 64, seed=0)
    placed = grid.place(X)
    for x, y in zip(X.tolist(), placed.tolist(), strict=True):
        assert y[0] == min((0, 0.1, 0.5, 1), key=lambda value: abs(value - x[0]))
        assert y[1] == x[1]
    close(grid.place(placed), placed, 0)


def test_categories_have_equal_shares_and_stay_where_they_are() -> None:
    values = numbers(0, 1 / 3, 2 / 3, 1)
    grid = Grid(1, {0: values}, categories=frozenset([0]))
    placed = grid.place(draw_sobol(1, 4096, seed=1))
    assert [int((placed == value).sum()) for value in values] == [1024] * 4
    close(grid.place(values.unsqueeze(-1)).squeeze(-1), values, 0)


def test_points_between_limits_stay_and_others_go_to_the_nearest() -> None:
    grid = Grid(2, {}, inequalities=(limit([0, 1], [-1, -1], -1.0),))
    X = draw_sobol(2, 256, seed=0)
    placed, inside = grid.place(X), X.sum(dim=-1) <= 1
    close(placed[inside], X[inside], 0)
    assert (placed.sum(dim=-1) <= 1 + 1e-9).all()
    # The nearest of the pool is not much farther than the nearest of all.
    excess = (X[~inside].sum(dim=-1) - 1) / 2**0.5
    assert ((placed[~inside] - X[~inside]).norm(dim=-1) - excess).max() < 0.15


def test_equalities_hold_and_their_points_are_spread() -> None:
    grid = Grid(3, {}, equalities=(limit([0, 1, 2], [1, 1, 1], 1.0),))
    placed = grid.place(draw_sobol(3, 512, seed=0))
    close(placed.sum(dim=-1), torch.ones(512), 1e-6)
    assert (placed.amin(dim=0) < 0.05).all()
    assert (placed.amax(dim=0) > 0.8).all()


@pytest.mark.usefixtures("short_walk")
def test_limits_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="limits should leave some points within the bounds"):
        Described(Inputs({"a": Real(0, 1), "b": Real(0, 1)}, ["a + b >= 3"]))
    space = Described(Inputs({"a": Real(0, 1), "b": Real(0, 1)}, ["a + b >= 1.5"]))
    with pytest.raises(ValueError, match="limits should leave some points"):
        space.from_cube(torch.rand(1, 2), {0: 0.25})


def wavy(X: Tensor) -> Tensor:
    """Return a function whose best point on a coarse grid is not the one nearest to its best point."""
    return -(X[..., 0] - 0.37).square() + 0.3 * torch.cos(9 * X[..., 1]) * X[..., 0] - (X[..., 2] - X[..., 1]).square()


def test_a_mixed_search_finds_the_best_of_all() -> None:
    grid = Grid(3, {0: numbers(0, 0.25, 0.5, 1), 1: numbers(0, 0.5, 1)}, categories=frozenset([1]))
    x, value = maximize(lambda X: wavy(X), CUBE.expand(2, 3), [0], num_restarts=6, raw_samples=64, grid=grid)
    fine = torch.linspace(0, 1, 2001, dtype=torch.double)
    each = [
        wavy(torch.stack([fine * 0 + a, fine * 0 + b, fine], dim=-1)).max()
        for a, b in itertools.product((0, 0.25, 0.5, 1), (0, 0.5, 1))
    ]
    close(value, torch.stack(each).max().reshape(1), 1e-6)
    close(wavy(x), value, 1e-12)
    close(grid.place(x), x, 0)


def test_long_ranges_are_climbed_and_rounded() -> None:
    grid = Grid(1, {0: torch.linspace(0, 1, 1001, dtype=torch.double)})
    x, _ = maximize(lambda X: -(X[..., 0] - 0.33337).square(), CUBE, [0], num_restarts=2, raw_samples=8, grid=grid)
    close(x, numbers(0.333).reshape(1, 1), 1e-12)


@pytest.mark.usefixtures("short_walk")
@pytest.mark.parametrize("is_equality", [False, True])
def test_a_search_between_limits_ends_on_the_limit(is_equality: bool) -> None:
    rule = (limit([0, 1], [-1, -1], -1.0),)
    grid = Grid(2, {}, equalities=rule) if is_equality else Grid(2, {}, inequalities=rule)
    target = numbers(0.9, 0.7)
    x, _ = maximize(
        lambda X: -(X - target).square().sum(-1), CUBE.expand(2, 2), [0], num_restarts=4, raw_samples=32, grid=grid
    )
    close(x, numbers(0.6, 0.4).unsqueeze(0), 1e-4)


@pytest.mark.usefixtures("short_walk")
def test_several_functions_at_once_are_each_alone() -> None:
    grid = Grid(2, {0: numbers(0, 0.5, 1)}, inequalities=(limit([0, 1], [-1, -1], -1.2),))
    centers = torch.tensor([[0.4, 0.9], [1.0, 0.6]], dtype=torch.double)
    box = CUBE.expand(2, 2)
    both, _ = maximize(lambda X: -(X - centers).square().sum(-1), box, [1, 2], 4, 32, grid=grid)
    for i, seed in enumerate([1, 2]):
        one, _ = maximize(lambda X, i=i: -(X - centers[i]).square().sum(-1), box, [seed], 4, 32, grid=grid)
        close(both[i], one[0], 1e-6)
    close(both, torch.tensor([[0.5, 0.7], [1.0, 0.2]], dtype=torch.double), 1e-4)


INPUTS = Inputs(
    {"x": Real(-2, 2), "n": Integer(0, 7), "r": Ordered(1, 10, 100), "c": Category("a", "b", "c")}, ["x + n <= 6"]
)


@pytest.mark.usefixtures("short_walk")
def test_described_points_are_exact() -> None:
    space = Described(INPUTS)
    X = space.from_cube(draw_sobol(4, 128, seed=0))
    assert (X[:, 0] + X[:, 1] <= 6 + 1e-6).all()
    for place, codes in INPUTS.codes.items():
        assert set(X[:, place].tolist()) <= set(codes)
    assert INPUTS.encode(INPUTS.decode(X)).equal(X)
    fixed = space.sample(50, torch.Generator().manual_seed(0), {1: 3.0, 3: 2.0})
    assert (fixed[:, 1] == 3).all()
    assert (fixed[:, 3] == 2).all()
    assert len(fixed[:, 0].unique()) > 10


@pytest.mark.usefixtures("short_walk")
def test_fixed_inputs_by_name_place_and_value() -> None:
    space = Described(INPUTS)
    assert space.read_fixed({"c": "b", "n": 3}) == {3: 1.0, 1: 3.0}
    assert space.read_fixed({0: 1.5}) == {0: 1.5}
    for fixed, message in (
        ({"d": 1}, "fixed should be of the inputs x, n, r, c, got 'd'"),
        ({4: 1}, "fixed should be of the inputs x, n, r, c, got 4"),
        ({"c": "z"}, "c should be one of a, b, c, got 'z'"),
        ({"x": 3}, "x should be from -2 to 2, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            space.read_fixed(fixed)


def test_choices_with_fixed_inputs() -> None:
    rows = [{"x": x, "n": n, "r": 1, "c": c} for x in (0.0, 1.0) for n in (1, 2) for c in "abc"]
    space = Choices(INPUTS.encode(rows), inputs=INPUTS)
    X = space.from_cube(draw_sobol(4, 32, seed=0), {3: 1.0})
    assert (X[:, 3] == 1).all()
    assert space.categories == [3]
    with pytest.raises(ValueError, match=r"fixed should be values that some choice has, got {'n': 5.0}"):
        space.from_cube(torch.rand(1, 4), {1: 5.0})
