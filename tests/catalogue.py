"""The kernels every contract is checked with: a GPyTorch kernel, and the same kernel written out for the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import oracles
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from mtbo_torch import ICMKernel, IndependentKernel, SumOfSeparableKernel, TaskSimilarityKernel
from mtbo_torch.kernels import MultiTaskKernel, TaskwiseKernel


@dataclass(frozen=True)
class Case:
    kernel: MultiTaskKernel
    gamma: oracles.Gamma


Builder = Callable[[int, int], Case]


def task_matrix(n: int, rank: int | None = None, seed: int = 0) -> Tensor:
    """A random B with entries of both signs, of order one."""
    A = torch.randn(n, rank or n, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    return A @ A.T / n


def rbf(lengthscale: float, active_dims: list[int] | None = None) -> RBFKernel:
    kernel = RBFKernel(active_dims=None if active_dims is None else tuple(active_dims)).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.double)
    return kernel


def matern(lengthscale: float, active_dims: list[int] | None = None) -> MaternKernel:
    kernel = MaternKernel(nu=2.5, active_dims=None if active_dims is None else tuple(active_dims)).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.double)
    return kernel


def scaled(kernel: Kernel, scale: float) -> ScaleKernel:
    result = ScaleKernel(kernel).double()
    result.outputscale = torch.tensor(scale, dtype=torch.double)
    return result


def icm(n: int, d: int) -> Case:
    B = task_matrix(n)
    return Case(ICMKernel(rbf(0.5), B), oracles.separable((oracles.rbf(0.5), B.numpy())))


def icm_of_rank_one(n: int, d: int) -> Case:
    B = task_matrix(n, rank=1)
    return Case(ICMKernel(scaled(matern(0.7), 1.7), B), oracles.separable((oracles.matern52(0.7), 1.7 * B.numpy())))


def icm_on_sums_and_products(n: int, d: int) -> Case:
    B, first, last = task_matrix(n), [0], [d - 1]
    base = rbf(0.5, first) * matern(0.9, last) + scaled(rbf(0.3, last), 0.6)
    f, g, h = oracles.rbf(0.5, first), oracles.matern52(0.9, last), oracles.rbf(0.3, last)
    return Case(ICMKernel(base, B), oracles.separable((lambda x, y: f(x, y) * g(x, y) + 0.6 * h(x, y), B.numpy())))


def icm_learned(n: int, d: int) -> Case:
    rank = (n + 1) // 2
    kernel = ICMKernel(rbf(0.5), num_tasks=n, rank=rank).double()
    W = torch.randn(n, rank, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    kernel.task_factor.data.copy_(W)
    return Case(kernel, oracles.separable((oracles.rbf(0.5), (W @ W.T).numpy())))


def similarity(n: int, d: int) -> Case:
    B = 0.4 * np.eye(n) + 0.6 * np.ones((n, n)) / n
    return Case(
        TaskSimilarityKernel(rbf(0.5), n, torch.tensor(0.4, dtype=torch.double)),
        oracles.separable((oracles.rbf(0.5), B)),
    )


def identical_tasks(n: int, d: int) -> Case:
    kernel = TaskSimilarityKernel(rbf(0.5), n, torch.tensor(0.0, dtype=torch.double))
    return Case(kernel, oracles.separable((oracles.rbf(0.5), np.ones((n, n)) / n)))


def commuting_sum(n: int, d: int) -> Case:
    B = task_matrix(n)
    kernel = SumOfSeparableKernel([ICMKernel(rbf(0.5), B), ICMKernel(matern(0.8), B @ B)])
    return Case(kernel, oracles.separable((oracles.rbf(0.5), B.numpy()), (oracles.matern52(0.8), (B @ B).numpy())))


def general_sum(n: int, d: int) -> Case:
    B1, B2 = task_matrix(n), task_matrix(n, rank=1, seed=1)
    kernel = SumOfSeparableKernel([ICMKernel(rbf(0.5), B1), ICMKernel(matern(0.8), B2)])
    return Case(kernel, oracles.separable((oracles.rbf(0.5), B1.numpy()), (oracles.matern52(0.8), B2.numpy())))


def independent(n: int, d: int) -> Case:
    scales = [0.3 + 0.2 * j for j in range(n)]
    kernel = IndependentKernel([rbf(scale) for scale in scales])
    terms = [(oracles.rbf(scale), np.diag(np.eye(n)[j])) for j, scale in enumerate(scales)]
    return Case(kernel, oracles.separable(*terms))


def taskwise(n: int, d: int) -> Case:
    base = RBFKernel(batch_shape=torch.Size([n])).double()
    base.lengthscale = torch.tensor([[[0.3 + 0.2 * j]] for j in range(n)], dtype=torch.double)
    return Case(TaskwiseKernel(base), independent(n, d).gamma)


KERNELS: list[Builder] = [
    icm,
    icm_of_rank_one,
    icm_on_sums_and_products,
    icm_learned,
    similarity,
    identical_tasks,
    commuting_sum,
    general_sum,
    independent,
    taskwise,
]

# One for each way through the regressions: k B, with equal eigenvalues, and singular; sums of matrices that commute
# and of any; and unrelated tasks, each alone or all at once.
PATHS: list[Builder] = [icm, similarity, identical_tasks, commuting_sum, general_sum, independent, taskwise]


def data(t: int, n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Training points, values, and seven other points."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.double)  # noqa: E731
    return draw(t, d), 2 * draw(t, n) - 1, draw(7, d)
