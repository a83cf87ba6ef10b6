"""Small linear algebra in plain torch: factors, determinants, norms, and when it may wait for a device."""

from __future__ import annotations

from math import ceil, log2
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SINGULAR_REMEDY = "Use a larger eta, float64, or fewer near-duplicate points."


class NotPositiveDefiniteError(ValueError):
    """A matrix that should be positive definite is not, in the precision at hand."""


def is_free_to_look(tensor: Tensor) -> bool:
    """Return whether the host can read the tensor without waiting for a device.

    Acquisition functions never wait: away from the CPU they take ways that need no look at a number.
    """
    return tensor.device.type == "cpu"


def safe_cholesky(matrix: Tensor, floor: Tensor, source: Tensor, remedy: str = SINGULAR_REMEDY) -> Tensor:
    r"""Factorize a matrix whose eigenvalues are known to be at least `floor`, by Cholesky.

    Rounding can hide that: a Gram matrix with duplicated points plus a tiny shift may fail to factorize. Then the
    diagonal is raised by a few units in the last place of `source`, a hundredfold more at each of three attempts. A
    single row needs no attempt: its value is clamped at the floor.

    Args:
        matrix: ``... x q x q``, symmetric.
        floor: ``...``, positive.
        source: ``... x q x q``, what the matrix was computed from, for the size of its rounding.
        remedy: The sentence that ends the error message.

    Raises:
        NotPositiveDefiniteError: If all attempts fail. To know that, the host waits for the device.
    """
    if matrix.shape[-1] == 1:
        return torch.maximum(matrix, floor[..., None, None]).sqrt()
    chol, info = torch.linalg.cholesky_ex(matrix)
    if not info.any():
        return chol
    unit = source.diagonal(dim1=-2, dim2=-1).amax(dim=-1) * matrix.shape[-1] * torch.finfo(matrix.dtype).eps
    jitter = torch.zeros_like(unit)
    for factor in (1.0, 100.0, 10_000.0):
        jitter = torch.where(info > 0, factor * unit, jitter)
        chol, info = torch.linalg.cholesky_ex(_raise_diagonal(matrix, jitter))
        if not info.any():
            return chol
    raise NotPositiveDefiniteError(
        f"The regularized kernel matrix is not positive definite in {matrix.dtype}. {remedy}"
    )


def cholesky_plus_one(matrix: Tensor) -> Tensor:
    """Factorize ``I + matrix`` for a positive semi-definite ``... x q x q``, by Cholesky."""
    if matrix.shape[-1] == 1:
        return (matrix + 1).clamp_min(1).sqrt()
    raised = matrix + eye_like(matrix)
    return safe_cholesky(raised, raised.new_ones(()), raised, "Use float64.")


def posterior_cholesky(matrix: Tensor) -> Tensor:
    """Factorize a covariance ``... x q x q`` that is known only to the rounding of a posterior, by Cholesky.

    Where needed, its diagonal is raised by 1e-8 of its largest entry (1e-6 in single precision), by ten times as much
    in a second and a hundred times in a third attempt. Away from the CPU nobody waits to hear that all have failed: the
    factor is then NaN.

    Raises:
        NotPositiveDefiniteError: If all attempts fail, on the CPU.
    """
    if is_free_to_look(matrix):
        chol, info = torch.linalg.cholesky_ex(matrix)
        if not info.any():
            return chol
    first = 1e-8 if matrix.dtype == torch.double else 1e-6
    unit = first * matrix.detach().diagonal(dim1=-2, dim2=-1).amax(dim=-1)
    jitter = torch.zeros_like(unit)
    for factor in (1.0, 10.0, 100.0):
        info = torch.linalg.cholesky_ex(_raise_diagonal(matrix.detach(), jitter)).info
        jitter = torch.where(info > 0, factor * unit, jitter)
    chol, info = torch.linalg.cholesky_ex(_raise_diagonal(matrix, jitter))
    if is_free_to_look(matrix) and info.any():
        raise NotPositiveDefiniteError(f"A covariance is not positive definite in {matrix.dtype}. {SINGULAR_REMEDY}")
    return torch.where(info[..., None, None] > 0, torch.nan, chol)


def solve_lower(chol: Tensor, right: Tensor) -> Tensor:
    """Return ``chol^{-1} right``; a division when there is a single row, as in most rounds."""
    return right / chol if chol.shape[-1] == 1 else torch.linalg.solve_triangular(chol, right, upper=False)


def cholesky_logdet(chol: Tensor) -> Tensor:
    """Return the log-determinant ``...`` of the matrix with the Cholesky factor ``... x q x q``."""
    return 2 * (chol[..., 0, 0].log() if chol.shape[-1] == 1 else chol.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1))


def thin_product(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right`` for ``... x m x q`` and ``... x q x k``, elementwise when q is one."""
    return left * right if left.shape[-1] == 1 else left @ right


def plus_product(matrix: Tensor, left: Tensor, right: Tensor, sign: int = 1) -> Tensor:
    """Return ``matrix + sign * left @ right`` for ``... x m x q`` and ``... x q x k``, where possible in one pass."""
    if left.shape[-1] == 1:
        return torch.addcmul(matrix, left, right, value=sign)
    if matrix.dim() == left.dim() == right.dim() == 2:
        return torch.addmm(matrix, left, right, alpha=sign)
    if matrix.dim() == left.dim() == right.dim() == 3 and left.shape[0] == right.shape[0]:
        return torch.baddbmm(matrix, left, right, alpha=sign)
    return torch.add(matrix, left @ right, alpha=sign)


def eye_like(matrix: Tensor) -> Tensor:
    """Return the identity in the shape of ``... x q x q``, as a view."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand_as(matrix)


def trace(matrix: Tensor) -> Tensor:
    """Return the traces ``...`` of ``... x n x n`` matrices."""
    return matrix[..., 0, 0] if matrix.shape[-1] == 1 else matrix.diagonal(dim1=-2, dim2=-1).sum(dim=-1)


def kron(K: Tensor, B: Tensor) -> Tensor:
    """Return ``kron(K, B)`` for batches: ``... x p x q`` and ``... x n x m`` give ``... x pn x qm``."""
    product = K[..., :, None, :, None] * B[..., None, :, None, :]
    return product.flatten(-4, -3).flatten(-2, -1)


def variances_along(covariance: Tensor, directions: Tensor | None) -> Tensor:
    """Return the variances ``... x q x k`` of ``... x q x n x n`` covariances along ``(b) x k x n`` directions.

    With None they are those of the tasks.
    """
    if directions is None:
        return covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0)
    directions = directions.to(covariance).unsqueeze(-3)
    return ((directions @ covariance) * directions).sum(dim=-1).clamp_min(0)


def root_of(variance: Tensor) -> Tensor:
    """Return the standard deviations.

    The square root has no finite slope at zero; far below any variance that matters, it is cut off.
    """
    return variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()


def factor_covariance(covariance: Tensor) -> Tensor:
    """Return lower triangular R with ``R R^T`` the covariance, ``... x n x n``, to draw from it.

    Correlations are shrunk by a millionth, so that singular matrices have a factor, too; where rounding leaves them
    none, by a thousandth; and where that is not enough, tasks count as uncorrelated. Nobody waits to hear of it.
    """
    if covariance.shape[-1] == 1:
        return root_of(covariance)
    deviation = root_of(covariance.diagonal(dim1=-2, dim2=-1))
    correlation = covariance / deviation.unsqueeze(-1) / deviation.unsqueeze(-2)
    chosen = eye = eye_like(covariance)
    for share in (1e-3, 1e-6):
        shrunk = torch.where(eye > 0, eye, (1 - share) * correlation)
        works = torch.linalg.cholesky_ex(shrunk.detach()).info == 0
        chosen = torch.where(works[..., None, None], shrunk, chosen)
    return deviation.unsqueeze(-1) * torch.linalg.cholesky_ex(chosen).L


def clamp_variances(covariance: Tensor) -> Tensor:
    """Return covariances ``... x n x n`` with zero for variances that rounding has made negative."""
    return covariance + torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1).neg().clamp_min(0))


def operator_norm(covariance: Tensor) -> Tensor:
    """Return the largest eigenvalue ``...`` of ``... x n x n`` positive semi-definite matrices, clamped at zero."""
    if covariance.shape[-1] == 1:
        return covariance[..., 0, 0].clamp_min(0)
    if is_free_to_look(covariance):
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
    n, number = matrix.shape[-1], torch.finfo(matrix.dtype)
    scale = matrix.abs().sum(dim=-1).amax(dim=-1).clamp_min(number.tiny)[..., None, None]
    power = _scale_to_unit_trace(matrix / scale + eye_like(matrix))
    for _ in range(ceil(log2(n**1.5 / number.eps))):
        power = _scale_to_unit_trace(power @ power.mT)
    return power


def _scale_to_unit_trace(matrix: Tensor) -> Tensor:
    return matrix / trace(matrix).clamp_min(torch.finfo(matrix.dtype).tiny)[..., None, None]


def _raise_diagonal(matrix: Tensor, jitter: Tensor) -> Tensor:
    return matrix + torch.diag_embed(jitter[..., None].expand(matrix.shape[:-1]))
