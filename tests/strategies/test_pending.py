"""Points of workers that have not reported, and results told in any order."""

from __future__ import annotations

import io
import random

import pytest
import torch
from catalogue import icm
from suites import close
from torch import Tensor

from mtbo_torch import MTBKB, MTKB
from mtbo_torch.strategies import ITBKB, ITKB, MOBO, NEHVI, NParEGO, RandomSearch, SobolSearch, Strategy

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.double)
CHOICES = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
SPACES = [{"bounds": BOUNDS}, {"choices": CHOICES}]
space = pytest.mark.parametrize("where", SPACES, ids=["bounds", "choices"])
KERNELIZED = [MTKB, MTBKB, ITKB, ITBKB, MOBO]
PLAIN = [RandomSearch, SobolSearch, NParEGO, NEHVI]
every = pytest.mark.parametrize("kind", [*KERNELIZED, *PLAIN], ids=lambda kind: kind.__name__)
kernelized = pytest.mark.parametrize("kind", KERNELIZED, ids=lambda kind: kind.__name__)


def objective(x: Tensor) -> Tensor:
    return torch.stack([torch.sin(3 * x[..., 0]), torch.cos(2 * x[..., 1]), x.sum(dim=-1)], dim=-1)


def build(kind: type[Strategy], where: dict[str, Tensor], **options: object) -> Strategy:
    if kind in KERNELIZED:
        defaults = {"norm_bound": 5.0, "bound": "norm", "noise_scale": 0.1, "num_restarts": 2, "raw_samples": 16}
        return kind(icm(3, 2).kernel, **where, **(defaults | options))
    return kind(3, **where, **options)


def started(kind: type[Strategy], where: dict[str, Tensor], **options: object) -> Strategy:
    strategy = build(kind, where, **options)
    x = CHOICES[:4].expand(*strategy.batch_shape, 4, 2)
    strategy.tell(x, objective(x))
    return strategy


@every
@space
def test_what_is_asked_for_is_pending_until_it_is_told(kind: type[Strategy], where: dict[str, Tensor]) -> None:
    strategy = build(kind, where)
    assert strategy.pending == {}
    first, second = strategy.ask(), strategy.ask(2)
    assert strategy.asked_ids == [1, 2]
    assert list(strategy.pending) == [0, 1, 2]
    assert torch.equal(torch.stack(list(strategy.pending.values())), torch.cat([first, second]))
    strategy.tell(second[1:], objective(second[1:]))
    assert list(strategy.pending) == [0, 1]
    strategy.tell(0, objective(first))
    assert list(strategy.pending) == [1]
    strategy.tell([1], objective(second[:1]))
    assert strategy.pending == {}
    assert torch.equal(strategy.train_X, torch.cat([second[1:], first, second[:1]]))


@kernelized
@space
def test_asking_one_by_one_is_asking_for_several(kind: type[Strategy], where: dict[str, Tensor]) -> None:
    together, one_by_one = started(kind, where), started(kind, where)
    points = together.ask(3)
    close(torch.cat([one_by_one.ask() for _ in range(3)]), points, 1e-6)


@pytest.mark.parametrize("kind", KERNELIZED[:-1], ids=lambda kind: kind.__name__)  # MOBO explores too little
@space
def test_pending_points_spread_what_is_asked_for(kind: type[Strategy], where: dict[str, Tensor]) -> None:
    waiting, forgetful = (started(kind, where, norm_bound=50.0) for _ in range(2))
    apart, close_by = [], []
    for _ in range(5):
        apart.append(waiting.ask())
        close_by.append(forgetful.ask())
        forgetful.forget()
    distances = [torch.pdist(torch.cat(points)).min().item() for points in (apart, close_by)]
    assert distances[0] > distances[1]
    assert distances[0] > 0.05


@kernelized
def test_pending_points_leave_the_beliefs_alone(kind: type[Strategy]) -> None:
    strategy = started(kind, {"choices": CHOICES})
    mean, radius = strategy.model.mean(CHOICES), strategy.radius
    strategy.ask(3)
    assert torch.equal(strategy.model.mean(CHOICES), mean)
    assert torch.equal(strategy.radius, radius)


# What is slow, on one space only.
REPORTS = [(kind, where) for kind in [*KERNELIZED, *PLAIN] for where in SPACES[kind in PLAIN[2:] :]]


@pytest.mark.filterwarnings("ignore:A not p.d.")  # the hosts', when a choice is asked for twice
@pytest.mark.parametrize(
    ("kind", "where"), [pytest.param(*r, marks=pytest.mark.slow) if r[0] in (NEHVI, NParEGO) else r for r in REPORTS]
)
def test_workers_may_report_in_any_order(kind: type[Strategy], where: dict[str, Tensor]) -> None:
    strategy, shuffle = build(kind, where), random.Random(0)
    working: dict[int, Tensor] = {}
    for _ in range(9):
        while len(working) < 3:
            x = strategy.ask()
            working[strategy.asked_ids[0]] = x
        number = shuffle.choice(list(working))
        strategy.tell(number, objective(working.pop(number)))
        assert set(strategy.pending) == set(working)
    assert strategy.num_observations == 9


def test_a_batch_of_trials_waits_for_all_its_points() -> None:
    strategy = started(MTKB, {"choices": CHOICES}, seed=[0, 1])
    first, second = strategy.ask(), strategy.ask()
    assert strategy.pending[1].shape == (2, 2)
    strategy.tell(second, objective(second))
    assert list(strategy.pending) == [0]
    strategy.tell(0, objective(first))
    assert torch.equal(strategy.train_X[:, -2:], torch.cat([second, first], dim=-2))


def test_equal_points_are_settled_oldest_first() -> None:
    strategy = build(MTKB, {"choices": CHOICES[:1]})
    x = strategy.ask(3)
    strategy.tell(x[:1], objective(x[:1]))
    assert list(strategy.pending) == [1, 2]
    strategy.tell(x[:2], objective(x[:2]))
    assert strategy.pending == {}


def test_the_nearest_pending_point_is_meant() -> None:
    choices = torch.tensor([[0.0], [1e-9], [1.0]], dtype=torch.double).expand(3, 2).contiguous()
    strategy = build(MTKB, {"choices": choices})
    strategy._pending = dict(enumerate(choices))
    strategy.tell(choices[1:2], objective(choices[1:2]))
    assert list(strategy.pending) == [0, 2]


def test_what_is_handed_out_is_not_shared() -> None:
    strategy, twin = started(MTKB, {"bounds": BOUNDS}), started(MTKB, {"bounds": BOUNDS})
    x = strategy.ask()
    expected = x.clone()
    x.mul_(10)
    strategy.pending[0].zero_()
    strategy.asked_weights.zero_()
    twin.ask()
    assert torch.equal(strategy.asked_weights, twin.asked_weights)
    strategy.tell(0, objective(expected))
    assert torch.equal(strategy.train_X[-1:], expected)


def test_a_rounded_point_is_still_the_one_asked_for() -> None:
    strategy = started(MTKB, {"bounds": BOUNDS})
    x = (strategy.ask() * 1e9).round() / 1e9
    strategy.tell(x, objective(x))
    assert strategy.pending == {}
    assert torch.equal(strategy.train_X[-1:], x)


def test_a_point_that_is_not_pending_leaves_the_others_so_and_says_so() -> None:
    strategy = started(MTKB, {"bounds": BOUNDS})
    strategy.ask()
    with pytest.warns(UserWarning, match="none of the 1 pending"):
        strategy.tell(CHOICES[9], objective(CHOICES[9]))
    assert list(strategy.pending) == [0]
    strategy.forget(0)
    assert strategy.pending == {}
    strategy.tell(CHOICES[8], objective(CHOICES[8]))


@pytest.mark.parametrize("wrong", [7, -1, True, "0", 0.5, [0, 0], [0, 9], [], None, {0}])
def test_what_is_neither_pending_nor_a_point_is_refused(wrong: object) -> None:
    strategy = started(MTKB, {"choices": CHOICES})
    x = strategy.ask(2)
    with pytest.raises(ValueError, match=r"x should be numbers of pending points \(0, 1\), got .* torch.Tensor"):
        strategy.tell(wrong, objective(x))
    if wrong is not None:
        with pytest.raises(ValueError, match="ids should be numbers of pending points"):
            strategy.forget(wrong)
    assert list(strategy.pending) == [0, 1]
    assert strategy.num_observations == 4


def test_a_result_cannot_be_told_twice_by_its_number() -> None:
    strategy = started(MTKB, {"choices": CHOICES})
    y = objective(strategy.ask())
    strategy.tell(0, y)
    with pytest.raises(ValueError, match="none is pending"):
        strategy.tell(0, y)


def test_values_that_do_not_fit_leave_a_point_pending() -> None:
    strategy = started(MTKB, {"choices": CHOICES})
    strategy.ask()
    with pytest.raises(ValueError, match="y should be"):
        strategy.tell(0, torch.zeros(2, dtype=torch.double))
    assert list(strategy.pending) == [0]


@every
def test_pending_points_are_saved(kind: type[Strategy]) -> None:
    strategy = started(kind, {"choices": CHOICES})
    strategy.ask(2)
    strategy.tell(1, objective(strategy.pending[1]))
    file = io.BytesIO()
    torch.save(strategy.state_dict(), file)
    file.seek(0)
    resumed = build(kind, {"choices": CHOICES}, seed=9)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert list(resumed.pending) == [0]
    assert resumed.asked_ids == strategy.asked_ids
    assert torch.equal(resumed.ask(), strategy.ask())
    resumed.tell(0, objective(resumed.pending[0]))
    assert list(resumed.pending) == [2]
