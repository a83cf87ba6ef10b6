"""GPyTorch kernels as plain tensors: the regression's view of ``k`` and ``Gamma``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import gpytorch
import torch
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from torch import Tensor

from mtbo_torch.kernels import MultiTaskKernel
from mtbo_torch.regression import MatrixKernel, SeparableSum


def as_gamma(kernel: Kernel, num_tasks: int) -> MatrixKernel:
    """A multi-task kernel as the regression takes it: as a sum of separable terms if it is one of ours."""
    if not isinstance(kernel, MultiTaskKernel):
        return MatrixEvaluator(kernel, num_tasks)
    merged: dict[int, tuple[Kernel, Tensor]] = {}
    for base, task_covar in kernel.terms():  # k B1 + k B2 = k (B1 + B2)
        known = merged.get(id(base))
        merged[id(base)] = (base, task_covar if known is None else known[1] + task_covar)
    evaluators = tuple(ScalarEvaluator(base, kernel.active_dims) for base, _ in merged.values())
    return SeparableSum(evaluators, tuple(task_covar for _, task_covar in merged.values()))


def rescaled(gamma: MatrixKernel, scale: Tensor) -> MatrixKernel:
    """The kernel of the tasks in other units, ``(b) x n`` times the old ones."""
    if not isinstance(gamma, SeparableSum):
        return ConstantlyScaled(gamma, scale)
    outer = scale.unsqueeze(-1) * scale.unsqueeze(-2)
    return SeparableSum(gamma.kernels, tuple(task_covar * outer for task_covar in gamma.task_covars))


@dataclass(frozen=True)
class ConstantlyScaled:
    """``diag(s) Gamma(x, x') diag(s)``; s is ``(b) x n``."""

    gamma: MatrixKernel
    scale: Tensor

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        rows, columns = (
            self.scale.unsqueeze(-2).expand(*self.scale.shape[:-1], X.shape[-2], -1).flatten(-2) for X in (X1, X2)
        )
        return rows.unsqueeze(-1) * self.gamma(X1, X2) * columns.unsqueeze(-2)

    def blocks(self, X: Tensor) -> Tensor:
        """``(b) x N x n x n``, at ``(b) x N x d`` points."""
        return (self.scale.unsqueeze(-1) * self.scale.unsqueeze(-2)).unsqueeze(-3) * self.gamma.blocks(X)


@dataclass(frozen=True)
class ScaledAtPoints:
    """``diag(s(x))^-1 Gamma(x, x') diag(s(x'))^-1``; a point's s are the last n of its columns.

    With an observation's standard deviations for s, noise that varies from one observation to the next becomes unit
    noise; with ones for s, a point is a point of the function itself.
    """

    gamma: MatrixKernel
    num_tasks: int

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        (X1, rows), (X2, columns) = self._split(X1), self._split(X2)
        return self.gamma(X1, X2) / (rows.flatten(-2).unsqueeze(-1) * columns.flatten(-2).unsqueeze(-2))

    def blocks(self, X: Tensor) -> Tensor:
        """``(b) x N x n x n``, at ``(b) x N x (d + n)`` points with their s."""
        X, scale = self._split(X)
        return self.gamma.blocks(X) / (scale.unsqueeze(-1) * scale.unsqueeze(-2))

    def _split(self, X: Tensor) -> tuple[Tensor, Tensor]:
        return X[..., : -self.num_tasks], X[..., -self.num_tasks :]


class ScalarEvaluator:
    """A GPyTorch kernel as plain tensors: the regression's view of ``k``."""

    def __init__(self, kernel: Kernel, active_dims: Tensor | None) -> None:
        self.kernel = kernel
        self.active_dims = active_dims

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        X1, X2 = self._select(X1), self._select(X2)
        if X1.requires_grad and type(self.kernel) is RBFKernel and not self.kernel.raw_lengthscale.requires_grad:
            return _rbf(self.kernel, X1, X2)
        if X1.requires_grad and X1.shape == X2.shape and X1.numel() and X1.device.type != "cpu":
            # GPyTorch compares as many points with as many others, which waits for the device: so one more.
            return self._evaluated(torch.cat([X1, X1[..., :1, :]], dim=-2), X2)[..., :-1, :]
        return self._evaluated(X1, X2)

    def _evaluated(self, X1: Tensor, X2: Tensor) -> Tensor:
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return self.kernel(X1, X2).to_dense()

    def diag(self, X: Tensor) -> Tensor:
        """``(b) x N``, ``k(x, x)`` at ``(b) x N x d`` points."""
        variance = _constant_variance(self.kernel)
        if variance is None:
            return self.kernel(self._select(X), diag=True)
        batch_shape = torch.broadcast_shapes(X.shape[:-2], variance.shape)
        return variance.to(X).unsqueeze(-1).expand(*batch_shape, X.shape[-2])

    def _select(self, X: Tensor) -> Tensor:
        return X if self.active_dims is None else X.index_select(-1, self.active_dims)


def _constant_variance(kernel: Kernel) -> Tensor | None:
    """``(b)``, ``k(x, x)`` where it is known to be the same for all points, else None.

    GPyTorch's own way compares the points with themselves, which waits for the device in every acquisition.
    """
    if type(kernel) in (RBFKernel, MaternKernel):
        return kernel.lengthscale.new_ones(kernel.batch_shape)
    if type(kernel) is ScaleKernel:
        inner = _constant_variance(kernel.base_kernel)
        return None if inner is None else kernel.outputscale * inner
    if type(kernel) in (AdditiveKernel, ProductKernel):
        parts = [_constant_variance(part) for part in kernel.kernels]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            return reduce(torch.add if type(kernel) is AdditiveKernel else torch.mul, known)
    return None


def _rbf(kernel: RBFKernel, X1: Tensor, X2: Tensor) -> Tensor:
    """The RBF kernel with a gradient in `X1` alone.

    GPyTorch's clamps, divides and compares its inputs, which makes its gradient cost half as much again as the whole
    acquisition on top of it, and waits for the device. Here the exponent is one product.
    """
    if kernel.active_dims is not None:
        X1, X2 = X1.index_select(-1, kernel.active_dims), X2.index_select(-1, kernel.active_dims)
    if X2.shape[-2]:
        center = X2.mean(dim=-2, keepdim=True)  # far from the origin, squares would swallow the differences
        X1, X2 = X1 - center, X2 - center
    X1, X2 = X1 / kernel.lengthscale, X2 / kernel.lengthscale
    half1, half2 = (-X.square().sum(dim=-1, keepdim=True) / 2 for X in (X1, X2))
    left = torch.cat([X1, half1, torch.ones_like(half1)], dim=-1)
    right = torch.cat([X2, torch.ones_like(half2), half2], dim=-1)
    return (left @ right.mT).exp_()


class MatrixEvaluator:
    """Any GPyTorch kernel with several outputs per input, as plain tensors: the regression's view of ``Gamma``."""

    def __init__(self, kernel: Kernel, num_tasks: int) -> None:
        self.kernel = kernel
        self.num_tasks = num_tasks

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        rows, columns = (self.num_tasks * X.shape[-2] for X in (X1, X2))
        if not rows or not columns:  # not every kernel of GPyTorch knows what to do
            batch_shape = torch.broadcast_shapes(X1.shape[:-2], X2.shape[:-2], self.kernel.batch_shape)
            return X1.new_zeros(*batch_shape, rows, columns)
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return self.kernel(X1, X2).to_dense()

    def blocks(self, X: Tensor) -> Tensor:
        """``(b) x N x n x n``, ``Gamma(x, x)`` at ``(b) x N x d`` points."""
        if not X.shape[-2]:
            batch_shape = torch.broadcast_shapes(X.shape[:-2], self.kernel.batch_shape)
            return X.new_zeros(*batch_shape, 0, self.num_tasks, self.num_tasks)
        # One point per batch entry, with the points in front so that the kernel's own batch shape stays in place.
        points = X.movedim(-2, 0).unsqueeze(-2)
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return self.kernel(points).to_dense().movedim(0, -3)
