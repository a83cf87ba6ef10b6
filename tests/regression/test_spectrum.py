"""Common eigenvectors: which directions are one group, which matrices commute, and what rounding may do to either."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from catalogue import rbf
from torch import Tensor

from mtbo_torch import ICMKernel, SumOfSeparableKernel
from mtbo_torch.kernels import MultiTaskKernel, adapt_kernel
from mtbo_torch.regression import DenseRegression, KroneckerRegression, Regression
from mtbo_torch.regression.spectrum import Spectrum

both_precisions = pytest.mark.parametrize("dtype", [torch.float, torch.double])


def rotation(n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.double)).Q


def with_eigenvalues(values: Tensor, seed: int = 0) -> Tensor:
    Q = rotation(len(values), seed)
    return (Q * values.double()) @ Q.T


def one_large_many_close(n: int) -> Tensor:
    return torch.cat([torch.ones(1), torch.linspace(2e-3, 1e-6, n - 1)])


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def errors(fitted: Regression, exact: Regression, points: Tensor) -> tuple[float, float, float]:
    """Return by how much means (in posterior deviations), variances and the gain (relative) are off, at the worst."""
    answer, truth = fitted.at(points.to(fitted.train_X)), exact.at(points)
    mean = (answer.mean - truth.mean).abs() / truth.variance().sqrt()
    variance = (answer.variance() - truth.variance()).abs() / truth.variance()
    return mean.max().item(), variance.max().item(), (fitted.info_gain / exact.info_gain - 1).abs().item()


def fit_three(kernel: MultiTaskKernel, n: int, eta: float, t: int = 20) -> tuple[Regression, Regression, Regression]:
    """Fit in single precision, densely in single precision, and densely in double precision to the same numbers."""
    X, Y, noise = (
        uniform(t, 2).float(),
        2 * uniform(t, n, seed=1).float() - 1,
        torch.full((1, 1), eta, dtype=torch.float),
    )
    single = adapt_kernel(deepcopy(kernel).float(), n)
    double = adapt_kernel(deepcopy(kernel).float().double(), n)
    return (
        single.fit(noise, X, Y),
        DenseRegression.fit(single, noise, X, Y),
        DenseRegression.fit(double, noise.double(), X.double(), Y.double()),
    )


@pytest.mark.parametrize("eta", [1e-3, 1e-1])
@pytest.mark.parametrize(
    "eigenvalues", [one_large_many_close(50), torch.logspace(0, -5, 50)], ids=["close", "geometric"]
)
def test_close_eigenvalues_in_single_precision_are_as_good_as_a_dense_matrix(eta: float, eigenvalues: Tensor) -> None:
    kernel = ICMKernel(rbf(0.5), with_eigenvalues(eigenvalues))
    fast, dense, exact = fit_three(kernel, 50, eta)
    assert isinstance(fast, KroneckerRegression)
    assert len(fast.spectrum.multiplicities) == 50
    Z = uniform(30, 2, seed=2).float().double()
    (mean, variance, gain), (dense_mean, dense_variance, _) = (errors(fit, exact, Z) for fit in (fast, dense))
    assert mean <= dense_mean
    assert variance <= dense_variance
    assert gain <= 1e-5


def test_many_small_steps_are_not_one_group() -> None:
    n, eps = 200, torch.finfo(torch.double).eps
    values = 1 + 10 * eps * torch.arange(n, dtype=torch.double)
    spectrum = Spectrum.of(torch.diag(values).unsqueeze(0))
    assert spectrum is not None
    width = 2 * values.norm() * (1 + n**0.5) * eps
    assert max(spectrum.multiplicities) * 10 * eps <= width + 10 * eps
    assert 1 < len(spectrum.multiplicities) < n


@both_precisions
@pytest.mark.parametrize("n", [3, 10, 50, 200])
def test_equal_eigenvalues_are_one_group_in_spite_of_rounding(dtype: torch.dtype, n: int) -> None:
    for seed in range(5):
        two = with_eigenvalues(torch.cat([2 * torch.ones(n // 2), torch.ones(n - n // 2)]), seed).to(dtype)
        similar = 0.4 * torch.eye(n, dtype=dtype) + 0.6 * torch.ones(n, n, dtype=dtype) / n
        for B in (two, similar, two / 0.013, similar / 0.013):
            spectrum = Spectrum.of(B.unsqueeze(0))
            assert spectrum is not None
            assert len(spectrum.multiplicities) == 2
        A = uniform(n, 2, seed=seed).to(dtype)
        spectrum = Spectrum.of((A @ A.T / 0.013).unsqueeze(0))  # all zeros together, if they are not dropped
        assert spectrum is not None
        assert len(spectrum.multiplicities) <= 3


@both_precisions
@pytest.mark.parametrize("n", [3, 10, 50, pytest.param(200, marks=pytest.mark.slow)])
def test_matrices_that_commute_up_to_rounding_are_diagonal_up_to_rounding(dtype: torch.dtype, n: int) -> None:
    for seed in range(3):
        four = torch.stack([with_eigenvalues(uniform(n, seed=j), seed) for j in range(4)]).to(dtype)
        A = uniform(n, n, seed=seed).to(dtype)
        powers = torch.stack([A @ A.T, A @ A.T @ A @ A.T])
        for matrices in (four[:2], four, powers):
            spectrum = Spectrum.of(matrices)
            assert spectrum is not None
            back = spectrum.bases.double() * spectrum.eigvals.double()[..., None, None]
            back = (back @ spectrum.bases.double().mT).sum(dim=-3)
            lost = torch.linalg.matrix_norm(back - matrices.double()) / torch.linalg.matrix_norm(matrices.double())
            assert lost.max() <= 20 * torch.finfo(dtype).eps * (1 if dtype == torch.float else 1 + n**0.5)


def test_matrices_that_nearly_commute_in_single_precision_are_not_taken_as_such() -> None:
    n = 50
    B, other = (with_eigenvalues(torch.linspace(1, 0.1, n), seed) for seed in (0, 1))
    kernel = SumOfSeparableKernel([ICMKernel(rbf(0.5), B), ICMKernel(rbf(0.2), B @ B + 0.1 * other)])
    fitted, dense, exact = fit_three(kernel, n, 1e-3, t=8)
    Z = uniform(30, 2, seed=2).float().double()
    found, expected = errors(fitted, exact, Z), errors(dense, exact, Z)
    assert all(a <= 1.01 * b + 1e-6 for a, b in zip(found, expected, strict=True)), (found, expected)
