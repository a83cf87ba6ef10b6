"""The structures of multi-task kernels that a regression can make use of; a new one is a new class here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from mtbo_torch.linalg import kron
from mtbo_torch.regression.base import Regression, ScalarKernel, pick_trials
from mtbo_torch.regression.dense import DenseRegression
from mtbo_torch.regression.kronecker import CompletedRegression, GroupedKernel, Groups, KroneckerRegression, TaskKernels
from mtbo_torch.regression.likelihood import (
    dense_nystrom_log_likelihood,
    gaussian_log_likelihood,
    independent_log_likelihood,
    kronecker_log_likelihood,
    kronecker_nystrom_log_likelihood,
)
from mtbo_torch.regression.missing import few_are_missing
from mtbo_torch.regression.spectrum import Spectrum, whiten
from mtbo_torch.regression.whitened import GroupedRows, MatrixRows, RowKernel


class MatrixKernel(ABC):
    r"""Any matrix-valued kernel :math:`\Gamma` as plain tensors, point-major, with the methods that suit every kernel.

    In all methods `noise` is ``(b) x t x n``, with 1 in place of t or n where all observations or tasks share it.
    """

    @abstractmethod
    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return ``(b) x N1 n x N2 n``."""

    @abstractmethod
    def blocks(self, X: Tensor) -> Tensor:
        """Return the matrices ``Gamma(x, x)``, ``(b) x N x n x n``."""

    def pick(self, trials: Tensor) -> MatrixKernel:
        """Return that of some data sets, ``k`` places: by default the same for all."""
        return self

    def group(self, noise: Tensor) -> tuple[Groups, Spectrum] | None:
        """Return the scalar problems that a rotation of the tasks leaves, if it does, with a noise that all share."""
        return None

    def fit(self, noise: Tensor, X: Tensor, Y: Tensor) -> Regression:
        """Fit ``(b) x t x d`` points and ``(b) x t x n`` values, NaN for those that are missing."""
        regression = None
        if _is_shared(noise) and not noise.requires_grad:
            way = CompletedRegression if Y.isnan().any() else KroneckerRegression
            regression = way.try_fit(self, noise, X, Y)
        return DenseRegression.fit(self, noise, X, Y) if regression is None else regression

    def rows(self, noise: Tensor, num_tasks: int) -> RowKernel:
        """Return the cheapest rows of features that the kernel allows, for a dictionary."""
        groups = self.group(noise) if _is_shared(noise) else None
        return MatrixRows.of(self, noise, num_tasks) if groups is None else GroupedRows(*groups, noise)

    def log_likelihood(self, noise: Tensor, X: Tensor, Y: Tensor) -> Tensor:
        r"""Return ``(b)``, :math:`\log N(vec(Y); 0, G_t + \Sigma)`, differentiable in the kernel's parameters.

        Values that are NaN are missing, and it is the density of the others.
        """
        return gaussian_log_likelihood(self(X, X), noise.expand(Y.shape).flatten(-2), Y)

    def nystrom_log_likelihood(self, noise: Tensor, X: Tensor, Y: Tensor, atoms: Tensor) -> Tensor:
        r"""Return ``(b)``, a lower bound of :meth:`log_likelihood` from a dictionary, exact when it has every point.

        .. math:: \log N(vec(Y); 0, \tilde G_t + \Sigma) - \frac12 tr(\Sigma^{-1} (G_t - \tilde G_t))

        with :math:`\tilde G_t` the part of :math:`G_t` in the span of the ``(b) x m x d`` atoms (Titsias 2009).
        """
        return dense_nystrom_log_likelihood(self, noise, X, Y, atoms)


@dataclass(frozen=True)
class SeparableSum(MatrixKernel):
    r""":math:`\Gamma = \sum_j k_j B_j`.

    If the (whitened) task matrices commute, above all if there is only one, a rotation of the tasks leaves scalar
    problems; otherwise everything works on the full matrix, as it does for task matrices with a gradient: that of
    common eigenvectors does not exist where eigenvalues are equal. Missing values are a correction if they are few.
    The likelihood costs :math:`O(t^3 + n^3)` for a single term, and n times :math:`O(t^3)` for independent tasks.

    Attributes:
        kernels: The scalar kernels ``k_j``.
        task_covars: The matrices ``B_j``, each ``(b) x n x n``.
    """

    kernels: tuple[ScalarKernel, ...]
    task_covars: tuple[Tensor, ...]

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        return reduce(torch.add, [kron(k(X1, X2), B) for k, B in zip(self.kernels, self.task_covars, strict=True)])

    def blocks(self, X: Tensor) -> Tensor:
        terms = zip(self.kernels, self.task_covars, strict=True)
        return reduce(torch.add, [k.diag(X)[..., None, None] * B.unsqueeze(-3) for k, B in terms])

    def pick(self, trials: Tensor) -> SeparableSum:
        kernels = tuple(kernel.pick(trials, 0) for kernel in self.kernels)
        return SeparableSum(kernels, tuple(pick_trials(B, trials, 2) for B in self.task_covars))

    def group(self, noise: Tensor) -> tuple[Groups, Spectrum] | None:
        spectrum = Spectrum.of(whiten(self.task_covars, noise))
        return None if spectrum is None else (GroupedKernel.of(self, spectrum), spectrum)

    def fit(self, noise: Tensor, X: Tensor, Y: Tensor) -> Regression:
        if any(B.requires_grad for B in self.task_covars):
            return DenseRegression.fit(self, noise, X, Y)
        return super().fit(noise, X, Y)

    def log_likelihood(self, noise: Tensor, X: Tensor, Y: Tensor) -> Tensor:
        if len(self.kernels) == 1 and _is_shared(noise) and few_are_missing(Y):
            return kronecker_log_likelihood(self.kernels[0], self.task_covars[0], noise, X, Y)
        if all(_is_diagonal(B) for B in self.task_covars):
            terms = zip(self.kernels, self.task_covars, strict=True)
            grams = [k(X, X).unsqueeze(-3) * B.diagonal(dim1=-2, dim2=-1)[..., None, None] for k, B in terms]
            return independent_log_likelihood(reduce(torch.add, grams), noise, Y)
        return super().log_likelihood(noise, X, Y)

    def nystrom_log_likelihood(self, noise: Tensor, X: Tensor, Y: Tensor, atoms: Tensor) -> Tensor:
        if len(self.kernels) == 1 and _is_shared(noise):
            return kronecker_nystrom_log_likelihood(self.kernels[0], self.task_covars[0], noise, X, Y, atoms)
        return super().nystrom_log_likelihood(noise, X, Y, atoms)


@dataclass(frozen=True)
class IndependentTasks(MatrixKernel):
    r""":math:`\Gamma = diag(k_1, \dots, k_n)` with kernels of one kind, all evaluated at once.

    The likelihood costs n times :math:`O(t^3)`, and so does a fit.

    Attributes:
        kernel: The scalar kernels: ``(b) x n x N1 x N2`` between ``(b) x 1 x N1 x d`` and ``(b) x 1 x N2 x d`` points.
        num_tasks: The number of tasks n.
    """

    kernel: ScalarKernel
    num_tasks: int

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        between = torch.diag_embed(self._grams(X1, X2).movedim(-3, -1))  # (b) x N1 x N2 x n x n
        return between.transpose(-3, -2).flatten(-4, -3).flatten(-2)

    def blocks(self, X: Tensor) -> Tensor:
        return torch.diag_embed(self.kernel.diag(X.unsqueeze(-3)).mT)

    def pick(self, trials: Tensor) -> IndependentTasks:
        return IndependentTasks(self.kernel.pick(trials, 1), self.num_tasks)

    def group(self, noise: Tensor) -> tuple[Groups, Spectrum] | None:
        eigvals = noise.squeeze(-2).expand(*noise.shape[:-2], self.num_tasks).reciprocal()
        bases = torch.eye(self.num_tasks, dtype=noise.dtype, device=noise.device).unsqueeze(-1)
        return TaskKernels(self, eigvals), Spectrum(torch.diag_embed(eigvals), bases, (1,) * self.num_tasks)

    def log_likelihood(self, noise: Tensor, X: Tensor, Y: Tensor) -> Tensor:
        return independent_log_likelihood(self._grams(X, X), noise, Y)

    def _grams(self, X1: Tensor, X2: Tensor) -> Tensor:
        return self.kernel(X1.unsqueeze(-3), X2.unsqueeze(-3))


def _is_shared(noise: Tensor) -> bool:
    """Return whether all observations share the noise."""
    return noise.shape[-2] == 1


def _is_diagonal(matrix: Tensor) -> bool:
    off_diagonal = matrix - torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))
    return not matrix.requires_grad and not off_diagonal.any()
