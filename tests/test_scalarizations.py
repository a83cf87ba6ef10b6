"""Scalarisations and weights."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch
from botorch.acquisition.objective import MCAcquisitionObjective
from suites import close

from mtbo_torch import (
    ChebyshevScalarization,
    DirichletWeights,
    FixedWeights,
    InverseUniformWeights,
    LinearScalarization,
    UniformWeights,
)

DISTRIBUTIONS = [
    UniformWeights(3),
    InverseUniformWeights(3),
    DirichletWeights(3, 0.5),
    DirichletWeights(3, torch.tensor([1.0, 2.0, 3.0])),
    FixedWeights(torch.tensor([1.0, 2.0, 1.0])),
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_values_against_the_formulae() -> None:
    weights = UniformWeights(3).sample(generator=generator(), dtype=torch.double)
    Y = torch.randn(4, 5, 3, generator=generator(1), dtype=torch.double)
    z = torch.tensor([0.1, -0.4, 0.3], dtype=torch.double)
    for i, j in np.ndindex(4, 5):
        y, w = Y[i, j].numpy(), weights.numpy()
        close(LinearScalarization(weights)(Y)[i, j], oracles.linear(w, y), 1e-12)
        close(ChebyshevScalarization(weights)(Y)[i, j], oracles.chebyshev(w, y, np.zeros(3)), 1e-12)
        close(ChebyshevScalarization(weights, ref_point=z)(Y)[i, j], oracles.chebyshev(w, y, z.numpy()), 1e-12)


@pytest.mark.parametrize("kind", [LinearScalarization, ChebyshevScalarization])
def test_batches_of_weights_pair_with_batches_of_values(kind: type) -> None:
    weights = UniformWeights(3).sample((4, 2), generator=generator(), dtype=torch.double)
    Y = torch.randn(6, 4, 2, 5, 3, generator=generator(1), dtype=torch.double)
    together = kind(weights)
    assert together(Y).shape == (6, 4, 2, 5)
    assert together.lipschitz.shape == (4, 2)
    for i, j in np.ndindex(4, 2):
        alone = kind(weights[i, j])
        close(together(Y)[:, i, j], alone(Y[:, i, j]), 1e-12)
        close(together.lipschitz[i, j], alone.lipschitz, 1e-12)


@pytest.mark.parametrize("kind", [LinearScalarization, ChebyshevScalarization])
def test_lipschitz_constants_hold_and_are_attained(kind: type) -> None:
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.double)
    scalarization = kind(weights)
    u, v = torch.randn(2, 2000, 3, generator=generator(), dtype=torch.double)
    slopes = (scalarization(u) - scalarization(v)).abs() / (u - v).norm(dim=-1)
    assert (slopes <= scalarization.lipschitz + 1e-12).all()
    steepest = weights if kind is LinearScalarization else torch.tensor([0.0, -1.0, 0.0], dtype=torch.double)
    rise = scalarization(steepest.unsqueeze(0)) - scalarization(torch.zeros(1, 3, dtype=torch.double))
    close(rise.abs() / steepest.norm(), scalarization.lipschitz.expand(1), 1e-12)


@pytest.mark.parametrize("kind", [LinearScalarization, ChebyshevScalarization])
def test_scalarizations_are_botorch_objectives(kind: type) -> None:
    scalarization = kind(torch.tensor([0.5, 0.5]))
    assert isinstance(scalarization, MCAcquisitionObjective)
    assert scalarization(torch.rand(16, 4, 2, 2), X=torch.rand(4, 2, 3)).shape == (16, 4, 2)
    assert scalarization.double().weights.dtype == torch.double


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda d: type(d).__name__)
def test_weights_lie_on_the_simplex(distribution: UniformWeights) -> None:
    assert distribution.sample().shape == (3,)
    assert distribution.sample(5).shape == (5, 3)
    draws = distribution.sample(torch.Size([50, 20]), generator=generator(), dtype=torch.double)
    assert draws.shape == (50, 20, 3)
    assert draws.dtype == torch.double
    assert (draws >= 0).all()
    close(draws.sum(dim=-1), torch.ones(50, 20), 1e-12)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda d: type(d).__name__)
def test_weights_follow_the_generator_and_leave_the_global_one_alone(distribution: UniformWeights) -> None:
    state = torch.get_rng_state()
    first, again = (distribution.sample(4, generator=generator(7)) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), state)


def test_inverse_uniform_weights_are_the_papers() -> None:
    u = torch.rand(6, 3, generator=generator(3), dtype=torch.double)
    alpha = u.sum(dim=-1, keepdim=True) / u
    expected = alpha / alpha.sum(dim=-1, keepdim=True)
    close(InverseUniformWeights(3).sample(6, generator=generator(3), dtype=torch.double), expected, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("concentration", [[0.5, 1.5, 2.0], [1e-3, 1e-3, 2e-3]])
def test_dirichlet_moments(concentration: list[float], dtype: torch.dtype) -> None:
    alpha = torch.tensor(concentration, dtype=torch.double)
    draws = DirichletWeights(3, alpha).sample(100_000, generator=generator(), dtype=dtype)
    assert draws.dtype == dtype
    mean = alpha / alpha.sum()
    close(draws.mean(dim=0), mean, 6e-3)
    close(draws.var(dim=0), mean * (1 - mean) / (alpha.sum() + 1), 6e-3)


@pytest.mark.parametrize("kind", [LinearScalarization, ChebyshevScalarization])
def test_a_single_vector_of_values(kind: type) -> None:
    scalarization = kind(torch.tensor([0.25, 0.75]))
    y = torch.tensor([4.0, 8.0])
    assert scalarization(y).shape == ()
    assert scalarization(y) == scalarization(y.unsqueeze(0))[0]
