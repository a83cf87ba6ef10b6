"""What users ask for is what they get: weights on a part of the front, signs, constraints, the hypervolume."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.test_functions.multi_objective import ConstrainedBraninCurrin
from gpytorch.kernels import RBFKernel
from torch import Tensor

from mtbo_torch import (
    MTBKB,
    MTKB,
    BoxWeights,
    DirichletWeights,
    HypervolumeScalarization,
    ICMKernel,
    LinearScalarization,
)
from mtbo_torch.metrics import hypervolume
from mtbo_torch.strategies import SobolSearch

CHOICES = torch.linspace(0, 1, 201, dtype=torch.double).unsqueeze(-1)
ROUNDS, FIRST = 30, 10


def peaks(x: Tensor) -> Tensor:
    """Two objectives whose Pareto front lies between their maxima, 0.2 and 0.8."""
    return torch.cat([-((x - 0.2) ** 2), -((x - 0.8) ** 2)], dim=-1)


def kernel(task_covar: list[list[float]]) -> ICMKernel:
    base = RBFKernel()
    base.lengthscale = 0.5
    return ICMKernel(base, torch.tensor(task_covar, dtype=torch.double))


OPPOSED = kernel([[1.0, -0.5], [-0.5, 1.0]])


def found(strategy: MTKB | MTBKB, values: Any, rounds: int = ROUNDS) -> tuple[Tensor, Tensor]:
    """The points of all rounds but the first ones, and the weights behind them."""
    X, W = [], []
    for _ in range(rounds):
        x = strategy.ask()
        strategy.tell(x, values(x))
        X.append(x.squeeze(-2))
        W.append(strategy.asked_weights.squeeze(-2))
    return torch.stack(X)[FIRST:], torch.stack(W)[FIRST:]


BOX = BoxWeights(torch.tensor([0.6, 0.0], dtype=torch.double), torch.tensor([0.8, 1.0], dtype=torch.double))
NARROW = DirichletWeights(2, concentration=torch.tensor([30.0, 10.0]))


@pytest.mark.parametrize("kind", [MTKB, MTBKB])
@pytest.mark.parametrize("weights", [BOX, NARROW], ids=["box", "Dirichlet"])
def test_weights_lead_to_a_part_of_the_front(kind: Any, weights: Any) -> None:
    options = {"choices": CHOICES, "eta": 1e-4, "radius": 1.0, "bound": "ellipsoid", "weights": weights}
    x, drawn = found(kind(OPPOSED, scalarization=LinearScalarization, **options), peaks)
    # The weighted sum of the two parabolas has its maximum at the weighted mean of theirs.
    wanted = (0.2 * drawn[..., :1] + 0.8 * drawn[..., 1:]) / drawn.sum(dim=-1, keepdim=True)
    assert (x - wanted).abs().median() < 0.02
    assert (x - wanted).abs().max() < 0.1
    if weights is BOX:
        assert x.min() > 0.32 - 0.05
        assert x.max() < 0.44 + 0.05


def test_a_box_of_chebyshev_weights_leads_to_a_part_of_the_front() -> None:
    ideal = torch.zeros(2, dtype=torch.double)
    options = {"choices": CHOICES, "eta": 1e-4, "radius": 1.0, "bound": "ellipsoid", "weights": BOX}
    x, drawn = found(MTKB(OPPOSED, ref_point=ideal, **options), peaks)
    # From the ideal point the best compromise has equal weighted losses: w1 (x - 0.2)^2 = w2 (0.8 - x)^2.
    root = drawn.sqrt()
    wanted = 0.2 + 0.6 * root[..., 1:] / root.sum(dim=-1, keepdim=True)
    assert (x - wanted).abs().median() < 0.02
    assert (x - wanted).abs().max() < 0.1


@pytest.mark.parametrize("bound", ["norm", "ellipsoid"])
def test_what_is_to_be_minimized_is(bound: str) -> None:
    costs = torch.tensor([1.0, -1.0], dtype=torch.double)
    together = kernel([[1.0, 0.5], [0.5, 1.0]])
    options = {"choices": CHOICES, "eta": 1e-4, "radius": 1.0, "bound": bound, "scalarization": LinearScalarization}
    plain, weights = found(MTKB(OPPOSED, **options), peaks)
    turned, same = found(MTKB(together, signs=(1, -1), **options), lambda x: peaks(x) * costs)
    assert torch.equal(weights, same)
    assert torch.allclose(plain, turned)
    assert turned.min() > 0.15
    assert turned.max() < 0.85


@pytest.mark.slow
def test_a_constraint_keeps_most_points_on_its_side() -> None:
    problem = ConstrainedBraninCurrin(negate=True).to(dtype=torch.double)
    slack_at_least_zero = (torch.tensor([[0.0, 0.0, -1.0]], dtype=torch.double), torch.zeros(1, dtype=torch.double))

    def values(X: Tensor) -> Tensor:
        return torch.cat([problem(X), problem.evaluate_slack(X)], dim=-1)

    axis = torch.linspace(0, 1, 31, dtype=torch.double)
    options = {"choices": torch.cartesian_prod(axis, axis), "bound": "ellipsoid", "refit_every": 5, "signs": (1, 1, 0)}

    def feasible_share(constraints: tuple[Tensor, Tensor] | None, seed: int) -> float:
        strategy = MTKB(3, constraints=constraints, seed=seed, **options)
        x = SobolSearch(3, bounds=problem.bounds.double(), seed=seed).ask(6)
        strategy.tell(x, values(x))
        for _ in range(15):
            x = strategy.ask()
            strategy.tell(x, values(x))
        return (strategy.train_Y[6:, 2] >= 0).double().mean().item()

    assert feasible_share(None, seed=0) < 0.4
    assert all(feasible_share(slack_at_least_zero, seed) >= 0.7 for seed in range(2))


def test_constraints_that_hold_together_are_weighed_by_their_joint_probability() -> None:
    # The optimum of both objectives is out of bounds: x may be at most 0.5 and at least 0.4.
    def values(x: Tensor) -> Tensor:
        return torch.cat([-((x - 0.8) ** 2), x], dim=-1)

    interval = (torch.tensor([[0.0, 1.0], [0.0, -1.0]], dtype=torch.double), torch.tensor([0.5, -0.4]).double())
    options = {"choices": CHOICES, "eta": 1e-4, "radius": 1.0, "bound": "ellipsoid", "signs": (1, 0)}
    x, _ = found(MTKB(kernel([[1.0, 0.0], [0.0, 1.0]]), constraints=interval, **options), values)
    assert ((x >= 0.4 - 1e-9) & (x <= 0.5 + 1e-9)).double().mean() > 0.8
    assert (x - 0.5).abs().median() < 0.03  # as near to the optimum as is allowed


def test_the_hypervolume_grows_faster_than_by_quasi_random_search() -> None:
    axis = torch.linspace(0, 1, 31, dtype=torch.double)
    choices = torch.cartesian_prod(axis, axis)
    corners = torch.tensor([[0.2, 0.2], [0.8, 0.5]], dtype=torch.double)

    def values(x: Tensor) -> Tensor:
        return -torch.cdist(x, corners).square()

    reference = torch.full((2,), -0.6, dtype=torch.double)
    options = {"choices": choices, "eta": 1e-4, "radius": 1.0, "bound": "ellipsoid", "ref_point": reference}
    shares = []
    for strategy in (MTKB(OPPOSED, scalarization=HypervolumeScalarization, **options), SobolSearch(2, choices=choices)):
        for _ in range(25):
            x = strategy.ask()
            strategy.tell(x, values(x))
        shares.append(hypervolume(strategy.train_Y, reference) / hypervolume(values(choices), reference))
    assert shares[0] > 0.95
    assert 1 - shares[0] < (1 - shares[1]) / 2


@pytest.mark.slow
def test_fifty_objectives_are_optimized_like_two() -> None:
    generator = torch.Generator().manual_seed(0)
    centers = 0.4 + 0.2 * torch.rand(50, generator=generator, dtype=torch.double)
    features = torch.randn(50, 3, generator=generator, dtype=torch.double)
    related = features @ features.mT / 3 + 0.1 * torch.eye(50, dtype=torch.double)
    base = RBFKernel()
    base.lengthscale = 0.5

    def values(x: Tensor) -> Tensor:
        return -((x - centers) ** 2)

    box = {"bounds": CHOICES[[0, -1]], "num_restarts": 2, "raw_samples": 32}
    for rounds, options in ((25, {"choices": CHOICES}), (25, {"choices": CHOICES, "bound": "ellipsoid"}), (22, box)):
        strategy = MTKB(ICMKernel(base, related), eta=1e-3, radius=0.5, **options)
        x, weights = found(strategy, values, rounds)
        assert weights.shape[-1] == 50
        on_the_front = (x > centers.min() - 0.02) & (x < centers.max() + 0.02)
        assert on_the_front.double().mean() > 0.8
