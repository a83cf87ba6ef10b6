"""The likelihood a kernel is learned from, and the norm of what was fitted."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import torch
from catalogue import KERNELS, Builder, data, icm, independent, rbf, task_matrix
from suites import close, log_likelihood, nystrom_log_likelihood
from torch import Tensor

from mtbo_torch import ExactMultiTaskGP, ICMKernel, NystromMultiTaskGP
from mtbo_torch.kernels import adapt_kernel

NOISES = [[0.1], [0.1, 0.3, 0.05]]
every_kernel = pytest.mark.parametrize("build", KERNELS, ids=lambda build: build.__name__)
every_noise = pytest.mark.parametrize("noise", NOISES, ids=["one noise", "a noise for each task"])
# Far enough apart for the oracle's pseudo-inverse.
ATOMS = torch.tensor([[0.0, 0.1], [0.9, 0.2], [0.4, 0.9], [1.0, 1.0]], dtype=torch.double)


@every_kernel
@every_noise
def test_the_likelihood_is_that_of_the_dense_matrix(build: Builder, noise: list[float]) -> None:
    X, Y, _ = data(9, 3, 2)
    case = build(3, 2)
    value = log_likelihood(adapt_kernel(case.kernel, 3), torch.tensor(noise, dtype=torch.double), X, Y)
    close(value, oracles.log_likelihood(case.gamma, X.numpy(), Y.numpy(), np.array(noise)), 1e-9)


@every_kernel
@every_noise
def test_the_bound_is_titsias(build: Builder, noise: list[float]) -> None:
    X, Y, _ = data(9, 3, 2)
    case = build(3, 2)
    eta = torch.tensor(noise, dtype=torch.double)
    value = nystrom_log_likelihood(adapt_kernel(case.kernel, 3), eta, X, Y, ATOMS)
    expected = oracles.nystrom_log_likelihood(case.gamma, X.numpy(), Y.numpy(), np.array(noise), ATOMS.numpy())
    close(value, expected, 1e-6)
    exact = oracles.log_likelihood(case.gamma, X.numpy(), Y.numpy(), np.array(noise))
    assert value < exact


@every_kernel
def test_the_bound_is_tight_with_every_point_and_repeated_ones(build: Builder) -> None:
    X, Y, _ = data(7, 3, 2)
    case, eta = build(3, 2), torch.tensor([0.1], dtype=torch.double)
    exact = oracles.log_likelihood(case.gamma, X.numpy(), Y.numpy(), 0.1)
    for atoms in (X, torch.cat([X, X[:3]])):
        close(nystrom_log_likelihood(adapt_kernel(case.kernel, 3), eta, X, Y, atoms), exact, 1e-5)


@pytest.mark.parametrize("build", [icm, KERNELS[7]], ids=["k B", "any"])
def test_the_bound_is_tight_with_every_point_at_a_tiny_noise(build: Builder) -> None:
    X, Y, _ = data(30, 3, 1)
    kernel, eta = adapt_kernel(build(3, 1).kernel, 3), torch.tensor([1e-8], dtype=torch.double)
    Y = 1e-4 * Y  # of the size of the noise
    exact = log_likelihood(kernel, eta, X, Y)
    close(nystrom_log_likelihood(kernel, eta, X, Y, X), exact, 1e-3 / exact.abs().item())


def differentiable(where: str) -> tuple[list[Tensor], ICMKernel]:
    kernel = ICMKernel(rbf(0.5), num_tasks=3).double()
    if where == "unrelated tasks":  # all eigenvalues are equal: those of eigenvectors have no gradient
        return list(kernel.parameters()), kernel
    kernel.task_factor.data.copy_(task_matrix(3, rank=1 if where == "singular" else None))
    return list(kernel.parameters()), kernel


@pytest.mark.parametrize("where", ["unrelated tasks", "singular", "anywhere"])
@every_noise
@pytest.mark.parametrize("atoms", [None, ATOMS], ids=["exact", "bound"])
def test_gradients_hold_where_eigenvalues_are_equal(where: str, noise: list[float], atoms: Tensor | None) -> None:
    X, Y, _ = data(8, 3, 2)
    X[5] = X[2]  # a repeated point
    parameters, kernel = differentiable(where)
    eta = torch.tensor(noise, dtype=torch.double, requires_grad=True)

    def value(eta: Tensor, *_: Tensor) -> Tensor:
        gamma = adapt_kernel(kernel, 3)
        return log_likelihood(gamma, eta, X, Y) if atoms is None else nystrom_log_likelihood(gamma, eta, X, Y, atoms)

    assert torch.autograd.gradcheck(value, (eta, *parameters), eps=1e-6, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("build", [icm, independent])
def test_a_batch_is_its_members(build: Builder) -> None:
    case, eta = build(3, 2), torch.tensor([[0.1], [0.4]], dtype=torch.double)
    (X1, Y1, _), (X2, Y2, _) = data(6, 3, 2), data(6, 3, 2, seed=1)
    gamma = adapt_kernel(case.kernel, 3)
    X, Y = torch.stack([X1, X2]), torch.stack([Y1, Y2])
    alone = torch.stack([log_likelihood(gamma, eta[i], X[i], Y[i]) for i in range(2)])
    close(log_likelihood(gamma, eta, X, Y), alone, 1e-10)
    alone = torch.stack([nystrom_log_likelihood(gamma, eta[i], X[i], Y[i], X[i, :3]) for i in range(2)])
    close(nystrom_log_likelihood(gamma, eta, X, Y, X[:, :3]), alone, 1e-8)


@every_kernel
@every_noise
def test_the_norm_of_the_mean_is_its_rkhs_norm(build: Builder, noise: list[float]) -> None:
    X, Y, _ = data(8, 3, 2)
    case, eta = build(3, 2), torch.tensor(noise, dtype=torch.double)
    expected = oracles.mean_norm(case.gamma, X.numpy(), Y.numpy(), np.array(noise))
    exact = ExactMultiTaskGP(X, Y, case.kernel, eta=eta).surrogate.regression
    close(exact.mean_norm, expected, 1e-9)
    grown = ExactMultiTaskGP(X[:5], Y[:5], case.kernel, eta=eta).surrogate.regression.append(X[5:], Y[5:])
    close(grown.mean_norm, expected, 1e-9)
    whole = NystromMultiTaskGP(X, Y, case.kernel, eta=eta, dictionary=torch.arange(8)).surrogate.regression
    close(whole.mean_norm, expected, 1e-6)
    assert ExactMultiTaskGP(X[:0], Y[:0], case.kernel, eta=eta).surrogate.regression.mean_norm == 0
