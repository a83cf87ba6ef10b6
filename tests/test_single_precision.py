"""Single precision at t = 1,000 and eta = 1e-2, against double precision."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
import torch
from catalogue import general_sum, rbf, task_matrix
from torch import Tensor

from mtbo_torch import (
    ChebyshevScalarization,
    ExactMultiTaskGP,
    ICMKernel,
    LinearScalarization,
    NystromMultiTaskGP,
    ScalarizedMultiTaskUCB,
)

ETA, ROUNDS, NUM_TASKS = 1e-2, 1000, 3
# Of the prior variance, from which the posterior's is a difference; measured are 3e-6. Of the posterior variance itself
# that can be a tenth, where it is tiny.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Pair:
    """The same data in both precisions; the points are those of single precision."""

    single: ExactMultiTaskGP
    double: ExactMultiTaskGP
    choices: Tensor


def data() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X, choices = (torch.rand(count, 1, generator=generator) for count in (ROUNDS, 200))
    phases = torch.arange(NUM_TASKS)
    Y = torch.sin(4 * X.sum(dim=-1, keepdim=True) + phases) + 0.1 * torch.randn(ROUNDS, NUM_TASKS, generator=generator)
    return X.float(), Y.float(), torch.cat([choices, X[:50]]).float()


def kernel() -> ICMKernel:
    return ICMKernel(rbf(0.2), task_matrix(NUM_TASKS))


def fitted() -> Pair:
    X, Y, choices = data()
    models = [ExactMultiTaskGP(X.to(kind), Y.to(kind), kernel(), ETA) for kind in (torch.float, torch.double)]
    return Pair(*models, choices)


def appended() -> Pair:
    """All but the first half one by one, and in between a few at once."""
    X, Y, choices = data()
    single = ExactMultiTaskGP(X[:500], Y[:500], kernel(), ETA)
    regression = single.surrogate.regression
    for i in range(500, 950):
        regression = regression.append(X[i : i + 1], Y[i : i + 1])
    regression = regression.append(X[950:], Y[950:])
    single.set_train_data(X, Y, strict=False)
    single.adopt(replace(single.surrogate, regression=regression))
    return Pair(single, ExactMultiTaskGP(X.double(), Y.double(), kernel(), ETA), choices)


PRIOR = torch.linalg.matrix_norm(task_matrix(NUM_TASKS), 2).item()


def within(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == torch.float
    assert (actual >= 0).all()
    worst = (actual.double() - expected).abs().max().item()
    assert worst <= TOLERANCE * PRIOR, worst / PRIOR


@pytest.mark.parametrize("build", [fitted, pytest.param(appended, marks=pytest.mark.slow)])
def test_variances_and_bounds(build: Callable[[], Pair]) -> None:
    pair = build()
    points, exact_points = pair.choices, pair.choices.double()
    within(pair.single.covariance_norm(points), pair.double.covariance_norm(exact_points))
    within(pair.single.at(points).variance(), pair.double.at(exact_points).variance())
    single, double = (model.covariance(Z) for model, Z in ((pair.single, points), (pair.double, exact_points)))
    within(single.diagonal(dim1=-2, dim2=-1), double.diagonal(dim1=-2, dim2=-1))
    weights, radius = torch.tensor([0.2, 0.3, 0.5]), 10.0
    for scalarization in (LinearScalarization, ChebyshevScalarization):
        for bound in ("norm", "ellipsoid"):
            single, double = (
                ScalarizedMultiTaskUCB(model, scalarization(weights.to(Z)), radius, bound=bound)(Z.unsqueeze(-2))
                for model, Z in ((pair.single, points), (pair.double, exact_points))
            )
            # Deviations are off by the root of what variances are, and the mean, of order one, by less.
            assert single.dtype == torch.float
            assert ((single - double).abs() <= weights.norm() * radius * (TOLERANCE * PRIOR) ** 0.5).all()


@pytest.mark.slow
def test_choices_that_are_followed() -> None:
    X, Y, choices = data()
    followed = ExactMultiTaskGP(X[:500], Y[:500], kernel(), ETA).surrogate.regression.track(choices)
    for i in range(500, ROUNDS):
        followed = followed.advance(followed.regression.append(X[i : i + 1], Y[i : i + 1]))
    double = ExactMultiTaskGP(X.double(), Y.double(), kernel(), ETA)
    within(followed.norm, double.covariance_norm(choices.double()))
    within(followed.variance(), double.at(choices.double()).variance())


@pytest.mark.parametrize("seed", [0, 4])
def test_a_dictionary_of_near_neighbours_does_not_hide_variance(seed: int) -> None:
    # With the last seed, two of the atoms are nearly one, and what tells them apart is made up by rounding.
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(10, 1, generator=generator, dtype=torch.float).repeat(2, 1)
    Y, points = torch.randn(20, 3, generator=generator, dtype=torch.float), torch.linspace(0, 1, 50).unsqueeze(-1)
    kernel, variances = general_sum(3, 1).kernel, []
    for dtype in (torch.float, torch.double):
        own = deepcopy(kernel).to(dtype)
        model = NystromMultiTaskGP(X.to(dtype), Y.to(dtype), own, eta=0.01, dictionary=torch.arange(3))
        variances.append(model.at(points.to(dtype)).variance().double())
    single, double = variances
    assert (single - double).min() > -1e-2 * double.max()
