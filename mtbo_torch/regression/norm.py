"""The operator norm of covariance matrices, on a device without waiting for it."""

from __future__ import annotations

from math import ceil, log2
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def operator_norm(covariance: Tensor) -> Tensor:
    """The largest eigenvalue of ``... x n x n`` positive semi-definite matrices, clamped at zero."""
    if covariance.shape[-1] == 1:
        return covariance[..., 0, 0].clamp_min(0)
    if covariance.device.type == "cpu":
        return torch.linalg.eigvalsh(covariance)[..., -1].clamp_min(0)
    return LargestEigenvalue.apply(covariance).clamp_min(0)


class LargestEigenvalue(torch.autograd.Function):
    r"""The largest eigenvalue of symmetric matrices by products alone.

    Eigenvalue routines tell the host whether they have converged, for which it waits. Here :math:`2^k`-th powers P of
    :math:`A / c + I`, by k squarings, each scaled to :math:`tr P = 1`, tend to the projector on the leading
    eigenvector; with :math:`c = \|A\|_\infty` negative eigenvalues stay behind. :math:`tr(A P)` is the eigenvalue up to
    :math:`n (\sqrt n + 1) 2^{-k}` of itself however close the next ones are, and P its gradient, one of them if it is
    multiple. On a CPU this takes two to six times as long as ``torch.linalg.eigvalsh`` for n = 2 to 50.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        projector = _leading_projector(matrix)
        ctx.save_for_backward(projector)
        return (matrix * projector).sum(dim=(-2, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient[..., None, None] * ctx.saved_tensors[0]


def _leading_projector(matrix: Tensor) -> Tensor:
    n, kind = matrix.shape[-1], torch.finfo(matrix.dtype)
    scale = matrix.abs().sum(dim=-1).amax(dim=-1).clamp_min(kind.tiny)[..., None, None]
    power = _of_unit_trace(matrix / scale + torch.eye(n, dtype=matrix.dtype, device=matrix.device))
    for _ in range(ceil(log2(n**1.5 / kind.eps))):
        power = _of_unit_trace(power @ power.mT)
    return power


def _of_unit_trace(matrix: Tensor) -> Tensor:
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return matrix / trace.clamp_min(torch.finfo(matrix.dtype).tiny)[..., None, None]
