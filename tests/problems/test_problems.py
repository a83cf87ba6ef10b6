"""Each problem against its formula."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch
from botorch.test_functions import Branin
from catalogue import icm
from suites import close

from mtbo_torch.problems import PerturbedSine, RKHSFunction, ShiftedBranin, paper
from mtbo_torch.problems.branin import branin


def test_an_rkhs_function_and_its_norm() -> None:
    case = icm(3, 2)
    domain = torch.rand(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    f = RKHSFunction.draw(case.kernel, domain, num_centers=6, seed=1)
    centers, c = f.centers.numpy(), f.coefficients.numpy()
    value = [sum(case.gamma(x, z) @ a for z, a in zip(centers, c, strict=True)) for x in domain.numpy()]
    close(f(domain), np.array(value), 1e-10)
    close(f(domain[0]), np.array(value[0]), 1e-10)
    squared = sum(
        a @ case.gamma(x, z) @ b for x, a in zip(centers, c, strict=True) for z, b in zip(centers, c, strict=True)
    )
    assert f.norm == pytest.approx(np.sqrt(squared), abs=1e-10)
    assert (f.coefficients.abs() <= 1).all()
    doubled = f.scale_to(2 * f.norm)
    assert doubled.norm == pytest.approx(2 * f.norm)
    close(doubled(domain), 2 * f(domain), 1e-10)


def test_the_perturbed_sine() -> None:
    X = torch.linspace(0, 1, 23, dtype=torch.double).unsqueeze(-1)
    expected = [[oracles.perturbed_sine(x, w) for w in paper.SINE_WEIGHTS] for x in X[:, 0].tolist()]
    close(PerturbedSine()(X), np.array(expected), 1e-12)


def test_the_shifted_branin() -> None:
    U = torch.rand(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double) * 0.8 + 0.1
    values, original = ShiftedBranin()(U), Branin()
    for i in range(1, 10):
        shift = torch.tensor([i / 100, 0.0] if i % 2 else [0.0, i / 100], dtype=torch.double)
        expected = original(15 * (U - shift) + torch.tensor([-5.0, 0.0]))
        close(values[:, i - 1] * paper.BRANIN_SD, paper.BRANIN_MEAN - expected, 1e-10)


def test_branins_mean_and_deviation_are_those_of_the_box() -> None:
    nodes, weights = np.polynomial.legendre.leggauss(120)
    x, y = (torch.tensor(7.5 * (nodes + 1) + start) for start in (-5, 0))
    values = branin(x.unsqueeze(-1), y).numpy()
    area = np.outer(weights, weights) / 4
    mean = (area * values).sum()
    assert mean == pytest.approx(paper.BRANIN_MEAN, abs=1e-4)
    assert np.sqrt((area * (values - mean) ** 2).sum()) == pytest.approx(paper.BRANIN_SD, abs=1e-4)


@pytest.mark.parametrize("problem", [PerturbedSine(), ShiftedBranin(), PerturbedSine(noise_std=0.1)])
def test_they_serve_in_other_peoples_loops(problem: PerturbedSine | ShiftedBranin) -> None:
    lower, upper = problem.bounds
    X = lower + (upper - lower) * torch.rand(4, 3, problem.dim, dtype=torch.double)
    assert problem(X).shape == (4, 3, problem.num_objectives)
    assert (problem.evaluate_true(X) >= problem.ref_point).all()
    assert (problem(X) != problem.evaluate_true(X)).any() == (problem.noise_std is not None)
    with pytest.raises(ValueError, match="bounds"):
        problem(upper + 1)
    gradient = torch.autograd.grad(problem.evaluate_true(X.requires_grad_()).sum(), X)[0]
    assert gradient.abs().sum() > 0
