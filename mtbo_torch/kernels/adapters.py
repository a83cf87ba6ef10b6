"""GPyTorch kernels as plain tensors, as the regression takes them."""

from __future__ import annotations

from functools import reduce

import gpytorch
import torch
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from torch import Tensor

from mtbo_torch.kernels import MultiTaskKernel
from mtbo_torch.linalg import is_free_to_look
from mtbo_torch.regression import MatrixKernel, SeparableSum


def adapt_kernel(kernel: Kernel, num_tasks: int) -> MatrixKernel:
    """Return a multi-task kernel as the regression takes it: as a sum of separable terms if it is one of ours."""
    if not isinstance(kernel, MultiTaskKernel):
        return MatrixAdapter(kernel, num_tasks)
    merged: dict[int, tuple[Kernel, Tensor]] = {}
    for base, task_covar in kernel.terms():  # k B1 + k B2 = k (B1 + B2)
        known = merged.get(id(base))
        merged[id(base)] = (base, task_covar if known is None else known[1] + task_covar)
    adapters = tuple(ScalarAdapter(base, kernel.active_dims) for base, _ in merged.values())
    return SeparableSum(adapters, tuple(task_covar for _, task_covar in merged.values()))


class ScalarAdapter:
    """A scalar GPyTorch kernel ``k`` as plain tensors."""

    def __init__(self, kernel: Kernel, active_dims: Tensor | None) -> None:
        self.kernel = kernel
        self.active_dims = active_dims

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        X1, X2 = self._select(X1), self._select(X2)
        if X1.requires_grad and type(self.kernel) is RBFKernel and not self.kernel.raw_lengthscale.requires_grad:
            return _rbf(self.kernel, X1, X2)
        if X1.requires_grad and X1.shape == X2.shape and X1.numel() and not is_free_to_look(X1):
            # GPyTorch compares as many points with as many others, which waits for the device: so one more.
            return self._evaluate(torch.cat([X1, X1[..., :1, :]], dim=-2), X2)[..., :-1, :]
        return self._evaluate(X1, X2)

    def _evaluate(self, X1: Tensor, X2: Tensor) -> Tensor:
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return self.kernel(X1, X2).to_dense()

    def diag(self, X: Tensor) -> Tensor:
        """Return ``k(x, x)``, ``(b) x N``, at ``(b) x N x d`` points."""
        variance = _constant_variance(self.kernel)
        if variance is None:
            return self.kernel(self._select(X), diag=True)
        batch_shape = torch.broadcast_shapes(X.shape[:-2], variance.shape)
        return variance.to(X).unsqueeze(-1).expand(*batch_shape, X.shape[-2])

    def _select(self, X: Tensor) -> Tensor:
        return X if self.active_dims is None else X.index_select(-1, self.active_dims)


def _constant_variance(kernel: Kernel) -> Tensor | None:
    """Return ``k(x, x)``, ``(b)``, where it is known to be the same for all points, else None.

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
    """Evaluate the RBF kernel with a gradient in `X1` alone.

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


class MatrixAdapter(MatrixKernel):
    """Any GPyTorch kernel with several outputs per input as plain tensors."""

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
        if not X.shape[-2]:
            batch_shape = torch.broadcast_shapes(X.shape[:-2], self.kernel.batch_shape)
            return X.new_zeros(*batch_shape, 0, self.num_tasks, self.num_tasks)
        # One point per batch entry, with the points in front so that the kernel's own batch shape stays in place.
        points = X.movedim(-2, 0).unsqueeze(-2)
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return self.kernel(points).to_dense().movedim(0, -3)
