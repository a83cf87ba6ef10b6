"""Choices that are asked for once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from catalogue import icm
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mtbo_torch import MTBKB, MTKB
from mtbo_torch.space import Choices
from mtbo_torch.strategies import ITKB, MOBO, Strategy

CHOICES = torch.rand(12, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
SETTINGS = {"choices": CHOICES, "norm_bound": 30.0, "noise_scale": 0.1, "repeat": False}


def values(x: Tensor) -> Tensor:
    return torch.stack([x.sum(dim=-1).sin(), x.prod(dim=-1)], dim=-1)


def places(x: Tensor) -> list[int]:
    return [int((row == CHOICES).all(dim=-1).nonzero()) for row in x.reshape(-1, 2)]


@pytest.mark.parametrize("kind", [MTKB, MTBKB, ITKB, MOBO])
def test_every_choice_comes_once(kind: type[Strategy]) -> None:
    strategy, seen = kind(icm(2, 2).kernel, **SETTINGS), []
    strategy.tell(CHOICES[3:5] + 1e-12, values(CHOICES[3:5]))  # equal up to rounding
    for q in (1, 3, 1, 5):
        x = strategy.ask(q)
        seen += places(x)
        strategy.tell(x, values(x))
    assert sorted([3, 4, *seen]) == list(range(12))
    with pytest.raises(ValueError, match="q should be at most 0"):
        strategy.ask()
    assert strategy.num_observations == 12


def test_what_is_told_with_rounding_is_the_choice() -> None:
    strategy = MTKB(icm(2, 2).kernel, **SETTINGS)
    near = torch.cat([CHOICES[3:5] + 1e-12, CHOICES[7:8]])
    strategy.tell(near, values(near))
    assert torch.equal(strategy.train_X, CHOICES[[3, 4, 7]])
    between = CHOICES[:2].mean(dim=0)
    with pytest.warns(UserWarning, match="none of the 12 choices"):
        strategy.tell(between, values(between))
    assert torch.equal(strategy.train_X[-1], between)


class LargestTensor(TorchDispatchMode):
    size = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.size = max(self.size, result.numel() if isinstance(result, Tensor) else 0)
        return result


def test_what_is_left_takes_no_more_than_the_choices_do() -> None:
    choices = torch.rand(400, 2, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    space = Choices(choices, repeat=False)
    with LargestTensor() as largest:
        space.require_room(choices[:300], 100)
        assert space._find_taken(choices[:300]).sum() == 300
    assert largest.size <= 2 * len(choices)


def test_what_is_pending_is_not_asked_for_and_what_is_forgotten_is() -> None:
    strategy = MTKB(icm(2, 2).kernel, **SETTINGS)
    first = places(strategy.ask(11))
    [last] = places(strategy.ask())
    assert sorted([*first, last]) == list(range(12))
    strategy.forget(4)
    assert places(strategy.ask()) == [first[4]]


def test_the_best_of_what_is_left_is_asked_for() -> None:
    free, once = (MTKB(icm(2, 2).kernel, **SETTINGS | {"repeat": repeat}, radius=0.0) for repeat in (True, False))
    for strategy in (free, once):
        strategy.tell(CHOICES[:6], values(CHOICES[:6]))
    best_of_all, best_left = places(free.ask()), places(once.ask())
    with torch.no_grad():
        worth = once.goal.scalarization(once.asked_weights)(once.model.mean(CHOICES)).flatten()
    assert best_of_all == [int(worth.argmax())]
    assert best_left == [6 + int(worth[6:].argmax())]


def test_every_trial_of_a_batch_has_its_own() -> None:
    strategy = MTKB(icm(2, 2).kernel, **SETTINGS, seed=[0, 1, 2])
    for _ in range(12):
        x = strategy.ask()
        strategy.tell(x, values(x))
    for X in strategy.train_X:
        assert sorted(places(X)) == list(range(12))


def test_a_strategy_that_continues_knows_what_was_asked() -> None:
    strategy = MTKB(icm(2, 2).kernel, **SETTINGS)
    x = strategy.ask(4)
    strategy.tell(x[:2], values(x[:2]))
    other = MTKB(icm(2, 2).kernel, **SETTINGS)
    other.load_state_dict(strategy.state_dict())
    assert sorted(places(x) + places(other.ask(8))) == list(range(12))
    with pytest.raises(ValueError, match="repeat"):
        MTKB(icm(2, 2).kernel, **SETTINGS | {"repeat": True}).load_state_dict(strategy.state_dict())


def test_choices_that_are_equal_are_one() -> None:
    doubled = torch.tensor([[0.5], [0.0], [0.5], [1.0], [0.0]], dtype=torch.double)
    strategy = MTKB(icm(2, 1).kernel, **SETTINGS | {"choices": doubled})
    assert sorted(strategy.ask(3).flatten().tolist()) == [0.0, 0.5, 1.0]
    with pytest.raises(ValueError, match="q should be at most 0"):
        strategy.ask()
    strategy.forget()
    with pytest.raises(ValueError, match="q should be at most 3"):
        strategy.ask(4)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_near_neighbours_of_what_was_told_are_left(dtype: torch.dtype) -> None:
    fine = torch.linspace(0, 1, 8, dtype=dtype).unsqueeze(-1) * torch.finfo(dtype).eps ** 0.5
    choices = torch.cat([fine, torch.ones(1, 1, dtype=dtype)])
    strategy = MTKB(icm(2, 1).kernel.to(dtype), **SETTINGS | {"choices": choices})
    strategy.tell(choices[3] + 1e-3 * choices[1], torch.zeros(2, dtype=dtype))
    assert sorted(strategy.ask(8).flatten().tolist()) == [*choices[:3, 0].tolist(), *choices[4:, 0].tolist()]
