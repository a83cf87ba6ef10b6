"""Regret against brute force."""

from __future__ import annotations

import numpy as np
import oracles
import torch
from catalogue import icm
from suites import close

from mtbo_torch import ChebyshevScalarization, UniformWeights
from mtbo_torch.metrics import average_regret, scalarized_regret
from mtbo_torch.problems import RKHSFunction


def test_regret_against_brute_force() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = UniformWeights(3).sample(4, generator=generator, dtype=torch.double)
    attainable = torch.randn(20, 3, generator=generator, dtype=torch.double)
    achieved = attainable[:4]
    regret = scalarized_regret(ChebyshevScalarization(weights), achieved, attainable)
    s = [[oracles.chebyshev(w, y, np.zeros(3)) for y in attainable.numpy()] for w in weights.numpy()]
    expected = [max(s[t]) - s[t][t] for t in range(4)]
    close(regret, np.array(expected), 1e-12)
    close(average_regret(regret), np.array([sum(expected[: t + 1]) / (t + 1) for t in range(4)]), 1e-12)


def test_an_rkhs_function_and_its_norm() -> None:
    case = icm(3, 2)
    domain = torch.rand(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    f = RKHSFunction.draw(case.kernel, domain, num_centers=6, seed=1)
    centers, c = f.centers.numpy(), f.coefficients.numpy()
    value = [sum(case.gamma(x, z) @ a for z, a in zip(centers, c, strict=True)) for x in domain.numpy()]
    close(f(domain), np.array(value), 1e-10)
    squared = sum(
        a @ case.gamma(x, z) @ b for x, a in zip(centers, c, strict=True) for z, b in zip(centers, c, strict=True)
    )
    close(torch.tensor(f.norm, dtype=torch.double), np.sqrt(squared), 1e-10)
    assert (f.coefficients.abs() <= 1).all()
