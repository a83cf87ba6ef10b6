"""One check per contract, for every kernel in the catalogue."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracles
import torch
from botorch.acquisition import AcquisitionFunction
from catalogue import Case, data
from torch import Tensor

from mtbo_torch import ChebyshevScalarization, ExactMultiTaskGP, ScalarizedMultiTaskUCB
from mtbo_torch.regression import MatrixKernel, Regression


def close(actual: Tensor, expected: np.ndarray | Tensor, tolerance: float) -> None:
    expected = expected.detach() if isinstance(expected, Tensor) else torch.tensor(expected, dtype=torch.double)
    torch.testing.assert_close(actual.detach().double(), expected.double(), atol=tolerance, rtol=tolerance)


def check_kernel(case: Case, d: int) -> None:
    """Values, diagonal and shapes as the formula says, point-major."""
    n = case.kernel.num_tasks
    X, _, Z = data(5, n, d)
    close(case.kernel(X, Z).to_dense(), oracles.gram(case.gamma, X.numpy(), Z.numpy(), n), 1e-12)
    close(case.kernel(X).diagonal(), oracles.gram(case.gamma, X.numpy(), X.numpy(), n).diagonal(), 1e-12)
    close(case.kernel(X, diag=True), oracles.gram(case.gamma, X.numpy(), X.numpy(), n).diagonal(), 1e-12)
    assert case.kernel(X, Z).shape == (5 * n, 7 * n)
    assert case.kernel.num_outputs_per_input(X, Z) == n


def check_model(case: Case, t: int, d: int, dtype: torch.dtype, eta: float | Tensor, tolerance: float) -> None:
    """Mean, covariance, norm, information gain and acquisition against the oracle."""
    n = case.kernel.num_tasks
    X, Y, Z = data(t, n, d)
    mean, covariance = oracles.posterior(case.gamma, X.numpy(), Y.numpy(), np.asarray(eta), Z.numpy())
    per_point = oracles.blocks(covariance, n)
    model = ExactMultiTaskGP(X.to(dtype), Y.to(dtype), covar_module=case.kernel, eta=eta)
    points = Z.to(dtype)
    assert model.mean(points).dtype == dtype
    close(model.mean(points), mean, tolerance)
    close(model.covariance(points), per_point, tolerance)
    close(model.covariance_norm(points), oracles.operator_norm(per_point), tolerance)
    both = (model.at(points).mean, model.at(points).variance())
    close(both[0], mean, tolerance)
    close(both[1], per_point.diagonal(axis1=-2, axis2=-1), tolerance)
    close(model.info_gain, oracles.info_gain(case.gamma, X.numpy(), np.asarray(eta), n), tolerance)
    posterior = model.posterior(points)
    close(posterior.mean, mean, tolerance)
    close(posterior.distribution.covariance_matrix, covariance, tolerance)
    weights = torch.linspace(1, 2, n, dtype=torch.double) / (1.5 * n)
    acqf = ScalarizedMultiTaskUCB(model, ChebyshevScalarization(weights.to(dtype)), radius=1.5)
    value = oracles.chebyshev_ucb(weights.numpy(), 1.5, mean, covariance)
    # The square root of a variance that is zero up to rounding is only known to the square root of that rounding.
    settled = oracles.operator_norm(per_point) > 1e-3
    close(acqf(points.unsqueeze(-2))[settled], value[settled], tolerance)


def check_batches(case: Case, t: int, d: int, dtype: torch.dtype, tolerance: float) -> None:
    """Two data sets at once answer as each alone does, at points with and without batch dimensions of their own."""
    n = case.kernel.num_tasks
    sets = [[tensor.to(dtype) for tensor in data(t, n, d, seed)] for seed in (0, 1)]
    alone = [ExactMultiTaskGP(X, Y, covar_module=case.kernel, eta=0.1) for X, Y, _ in sets]
    X, Y, Z = (torch.stack(parts) for parts in zip(*sets, strict=True))
    together = ExactMultiTaskGP(X, Y, covar_module=case.kernel, eta=0.1)
    close(together.info_gain, torch.stack([model.info_gain for model in alone]), tolerance)
    for method in ("mean", "covariance", "covariance_norm"):
        at = lambda model, points, method=method: getattr(model, method)(points)  # noqa: E731
        expected = torch.stack([at(model, Z[i]) for i, model in enumerate(alone)])
        close(at(together, Z), expected, tolerance)
        close(at(together, torch.stack([Z, Z, Z])), torch.stack([expected] * 3), tolerance)
        shared = torch.stack([at(model, Z[0]) for model in alone])
        close(at(together, Z[0]), shared, tolerance)
    joint = together.posterior(Z).distribution.covariance_matrix
    close(
        joint, torch.stack([m.posterior(Z[i]).distribution.covariance_matrix for i, m in enumerate(alone)]), tolerance
    )


def check_appending(case: Case, t: int, d: int) -> None:
    """Appending one by one, in twos, and from one parent twice equals fitting at once; parents keep their answers."""
    n = case.kernel.num_tasks
    X, Y, Z = data(t, n, d)
    start = ExactMultiTaskGP(X[:0], Y[:0], covar_module=case.kernel, eta=0.1)
    for step in (1, 2):
        chain = [start]
        for i in range(0, t, step):
            chain.append(chain[-1].condition_on_observations(X[i : i + step], Y[i : i + step]))
            chain[-1].condition_on_observations(X[:1] + 0.1, Y[:1] - 1)  # a branch that must leave no trace
        for model in (chain[0], chain[len(chain) // 2], chain[-1]):
            size = model.train_inputs[0].shape[-2]
            fitted = ExactMultiTaskGP(X[:size], Y[:size], covar_module=case.kernel, eta=0.1)
            close(model.mean(Z), fitted.mean(Z), 1e-9)
            close(model.covariance(Z), fitted.covariance(Z), 1e-9)
            close(model.covariance_norm(Z), fitted.covariance_norm(Z), 1e-9)
            close(model.info_gain, fitted.info_gain, 1e-9)


def check_gradient(acqf: AcquisitionFunction, points: Tensor) -> None:
    points = points.unsqueeze(-2).requires_grad_()
    assert torch.autograd.gradcheck(acqf, (points,), eps=1e-6, atol=1e-5, rtol=1e-4)


def fit(kernel: MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor) -> Regression:
    """Fit with noise ``(b) x 1`` or ``(b) x n``, the same for all observations."""
    return kernel.fit(noise.unsqueeze(-2), X, Y)


def log_likelihood(kernel: MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    return kernel.log_likelihood(noise.unsqueeze(-2), X, Y)


def nystrom_log_likelihood(kernel: MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor, atoms: Tensor) -> Tensor:
    return kernel.nystrom_log_likelihood(noise.unsqueeze(-2), X, Y, atoms)


def freeze(transform: Any) -> Any:
    """Keep what a transform of BoTorch has learned: no model learns it anew."""
    kind = type(transform.eval())
    transform.__class__ = type(kind.__name__, (kind,), {"train": lambda self, mode=True: self})
    return transform
