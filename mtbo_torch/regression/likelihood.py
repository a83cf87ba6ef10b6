r"""The likelihood of the observations under a kernel, with the gradient from which the kernel is learned.

The noise is ``(b) x t x n``, with 1 in place of t or n where all observations or tasks share it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mtbo_torch.linalg import cholesky_logdet, eye_like, safe_cholesky, solve_lower, trace
from mtbo_torch.regression.base import ScalarKernel
from mtbo_torch.regression.missing import Missing, Seen
from mtbo_torch.regression.spectrum import whiten

if TYPE_CHECKING:
    from mtbo_torch.regression.structure import MatrixKernel

# The share of its own variance that is added to every atom's: t times as much, in units of the noise, is what it costs.
DICTIONARY_JITTER = 1e-14


def independent_log_likelihood(grams: Tensor, noise: Tensor, Y: Tensor) -> Tensor:
    """Return ``(b)``, for independent tasks, from their ``(b) x n x t x t`` kernel matrices."""
    return gaussian_log_likelihood(grams, noise.expand(Y.shape).mT, Y.mT.unsqueeze(-1)).sum(dim=-1)


def kronecker_log_likelihood(
    base_kernel: ScalarKernel, task_covar: Tensor, noise: Tensor, X: Tensor, Y: Tensor
) -> Tensor:
    r"""Return ``(b)``, for :math:`\Gamma = k B`, in :math:`O(t^3 + n^3 + u n t^2 + u^3)` if u values are missing."""
    unseen = Y.isnan()
    whitened = torch.where(unseen, 0, Y) / noise.sqrt()
    B = whiten([task_covar], noise).squeeze(-3)
    if not unseen.any():
        return _kronecker(base_kernel(X, X), B, whitened, None) - _half_log_noise(noise, Y).sum(dim=(-2, -1))
    value = _kronecker(base_kernel(X, X), B, whitened, None, Missing.of(Y))
    return value - torch.where(unseen, 0, _half_log_noise(noise, Y)).sum(dim=(-2, -1))


def kronecker_nystrom_log_likelihood(
    base_kernel: ScalarKernel, task_covar: Tensor, noise: Tensor, X: Tensor, Y: Tensor, atoms: Tensor
) -> Tensor:
    r"""Return ``(b)``, the bound of a dictionary for :math:`\Gamma = k B`, in :math:`O(t m^2 + n^3)`."""
    whitened, B = Y / noise.sqrt(), whiten([task_covar], noise).squeeze(-3)
    features = _features(base_kernel(atoms, atoms), base_kernel(atoms, X))
    unseen = (base_kernel.diag(X).sum(dim=-1) - features.square().sum(dim=(-2, -1))) * trace(B)
    total = whitened.square().sum(dim=(-2, -1))
    value = _kronecker(features @ features.mT, B, features @ whitened, total)
    return value - unseen.clamp_min(0) / 2 - _half_log_noise(noise, Y).sum(dim=(-2, -1))


def dense_nystrom_log_likelihood(kernel: MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor, atoms: Tensor) -> Tensor:
    """Return ``(b)``, the bound of a dictionary for any kernel, in :math:`O(n^3 t m^2)`."""
    sd = noise.expand(Y.shape).sqrt()
    whitened = (Y / sd).flatten(-2).unsqueeze(-1)
    features = _features(kernel(atoms, atoms), kernel(atoms, X)) / sd.flatten(-2).unsqueeze(-2)
    variances = kernel.blocks(X).diagonal(dim1=-2, dim2=-1) / sd.square()
    unseen = variances.sum(dim=(-2, -1)) - features.square().sum(dim=(-2, -1))
    moment = features @ features.mT
    chol = _factorize(eye_like(moment) + moment)
    explained = solve_lower(chol, features @ whitened).square().sum(dim=(-2, -1))
    quadratic = whitened.square().sum(dim=(-2, -1)) - explained
    value = -(quadratic + cholesky_logdet(chol) + unseen.clamp_min(0)) / 2
    return value - _half_log_noise(noise, Y).sum(dim=(-2, -1))


def _kronecker(K: Tensor, B: Tensor, Z: Tensor, total: Tensor | None, missing: Missing | None = None) -> Tensor:
    r"""Return ``(b)``, minus half of a quadratic form and of :math:`\log\det(K \otimes B + I)`, without a constant.

    The quadratic form is :math:`z^T (K \otimes B + I)^{-1} z`. If `total` is given, the points are features
    :math:`\Phi`, and it is :math:`y^T (\Phi^T \Phi \otimes B + I)^{-1} y` from :math:`K = \Phi \Phi^T`,
    :math:`Z = \Phi Y` and :math:`total = \|Y\|^2`. If some values are missing, both are of the others: the missing ones
    are completed by those for which the quadratic form is smallest, and the determinant of their block of the inverse
    is another factor (see :class:`CompletedRegression`).

    The gradient is written out: that of eigenvectors does not exist where eigenvalues are equal, as they are for
    repeated points and unrelated tasks.
    """
    with torch.no_grad():
        K_values, K_vectors = torch.linalg.eigh(K)
        B_values, B_vectors = torch.linalg.eigh(B)
        K_values, B_values = K_values.clamp_min(0).unsqueeze(-1), B_values.clamp_min(0).unsqueeze(-2)
        shrinkage = (K_values * B_values + 1).reciprocal()
        rotated = K_vectors.mT @ Z @ B_vectors
        if missing is not None:
            # The rows of the inverse for the missing values, as u matrices of t x n.
            of_tasks = B_vectors[..., missing.tasks, :].unsqueeze(-2)
            rows = K_vectors[..., missing.points, :].unsqueeze(-1) * shrinkage.unsqueeze(-3) * of_tasks
            rows = K_vectors.unsqueeze(-3) @ rows @ B_vectors.mT.unsqueeze(-3)
            rows = missing.mask_out(rows.movedim(-3, -1)).movedim(-1, -3)
            chol = _factorize(missing.only(rows[..., missing.points, missing.tasks]))
            said = missing.pick(K_vectors @ (shrinkage * rotated) @ B_vectors.mT)
            change = -torch.cholesky_solve(said.unsqueeze(-1), chol).squeeze(-1)
            rotated = K_vectors.mT @ (Z + missing.put(change, Z)) @ B_vectors
            rows = solve_lower(chol, rows.flatten(-2)).unflatten(-1, Z.shape[-2:])
        solved = K_vectors @ (shrinkage * rotated) @ B_vectors.mT
        K_slope = (K_vectors * (B_values * shrinkage).sum(dim=-1).unsqueeze(-2)) @ K_vectors.mT
        B_slope = (B_vectors * (K_values * shrinkage).sum(dim=-2).unsqueeze(-2)) @ B_vectors.mT
        logdet = -shrinkage.log().sum(dim=(-2, -1))
        projected = solved @ B
        if total is None:
            quadratic = (shrinkage * rotated.square()).sum(dim=(-2, -1))
            slopes = [(K, K_slope - solved @ projected.mT), (B, B_slope - solved.mT @ K @ solved), (Z, 2 * solved)]
            if missing is not None:
                logdet = logdet + cholesky_logdet(chol)
                (K, K_slope), (B, B_slope), of_values = slopes
                left, right = (part.movedim(-3, -2).flatten(-2) for part in (rows @ B.unsqueeze(-3), rows))
                B_change = (rows.mT @ K.unsqueeze(-3) @ rows).sum(dim=-3)
                slopes = [(K, K_slope - left @ right.mT), (B, B_slope - B_change), of_values]
        else:
            quadratic = -(B_values * shrinkage * rotated.square()).sum(dim=(-2, -1))
            slopes = [(K, K_slope + projected @ projected.mT), (B, B_slope - solved.mT @ solved), (Z, -2 * projected)]
    value = _WithSlopes.apply(quadratic + logdet, [slope for _, slope in slopes], *[x for x, _ in slopes])
    return -(value if total is None else value + total) / 2


class _WithSlopes(torch.autograd.Function):
    """``(b)`` values whose derivatives by some matrices are known."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, slopes: list[Tensor], *matrices: Tensor) -> Tensor:
        ctx.slopes, ctx.shapes = slopes, [matrix.shape for matrix in matrices]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("The likelihood can be differentiated once only. Leave create_graph out.")
        gradient = gradients[0][..., None, None]
        slopes = zip(ctx.slopes, ctx.shapes, strict=True)
        return None, None, *[(gradient * slope).sum_to_size(shape) for slope, shape in slopes]


def gaussian_log_likelihood(gram: Tensor, noise: Tensor, Y: Tensor) -> Tensor:
    """Return the log density of those of ``... x t x n`` values that were seen, with a mean of zero.

    Args:
        gram: ``... x nt x nt``, their covariance without noise.
        noise: ``... x nt``, the variance of their noise.
        Y: The values.
    """
    seen = Seen.of(Y)
    y, noise = seen.values(Y), seen.noise(noise)
    if y.shape[-1] == 0:
        return y.sum(dim=-1)
    chol = _factorize(seen.rows(seen.columns(gram)) + torch.diag_embed(noise))
    quadratic = solve_lower(chol, y.unsqueeze(-1)).square().sum(dim=(-2, -1))
    density = -(quadratic + cholesky_logdet(chol) + y.shape[-1] * math.log(2 * math.pi)) / 2
    if seen.mask is None:
        return density
    # Where some data sets have not seen a value, that of a zero with nothing but noise was counted.
    return density + ((1 - seen.mask) * (2 * math.pi * noise).log()).sum(dim=-1) / 2


def _features(own: Tensor, cross: Tensor) -> Tensor:
    """Return the coordinates ``(b) x m x N`` of points in a dictionary's span, from the kernel with its atoms."""
    jitter = torch.diag_embed(DICTIONARY_JITTER * own.detach().diagonal(dim1=-2, dim2=-1))
    return solve_lower(_factorize(own + jitter), cross)


def _factorize(matrix: Tensor) -> Tensor:
    floor = matrix.diagonal(dim1=-2, dim2=-1).amin(dim=-1) * torch.finfo(matrix.dtype).eps
    return safe_cholesky(matrix, floor, matrix)


def _half_log_noise(noise: Tensor, Y: Tensor) -> Tensor:
    r"""Return half of :math:`\log(2 \pi \sigma^2)` for each of ``(b) x t x n`` values."""
    return ((2 * math.pi * noise).log() / 2).expand(Y.shape)
