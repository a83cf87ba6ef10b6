r"""How likely the observations are under a kernel, with the gradient from which the kernel is learned."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mtbo_torch.regression.base import SINGULAR_REMEDY, MatrixKernel, SeparableSum, sum_all
from mtbo_torch.regression.growing import safe_cholesky, solve_lower
from mtbo_torch.regression.seen import Missing, Seen, few_are_missing
from mtbo_torch.regression.spectrum import whiten

# The share of its own variance that is added to every atom's.
DICTIONARY_JITTER = 1e-10


def log_likelihood(gamma: MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    r"""``(b)``, :math:`\log N(vec(Y); 0, G_t + I \otimes diag(noise))`.

    For :math:`\Gamma = k B` it costs :math:`O(t^3 + n^3)`, whatever is to be learned, and for independent tasks n
    times :math:`O(t^3)`; other sums work on the ``nt x nt`` matrix. Values that are NaN were not seen, and it is the
    density of the others. That costs the same for independent tasks, :math:`O(u n t^2 + u^3)` more for
    :math:`\Gamma = k B` if only u values are missing, and else it takes the ``s x s`` matrix of the s values seen.

    Args:
        gamma: The kernel.
        noise: ``(b) x 1`` or ``(b) x n``.
        X: ``(b) x t x d``.
        Y: ``(b) x t x n``, with a prior mean of zero.
    """
    if isinstance(gamma, SeparableSum):
        if len(gamma.kernels) == 1 and few_are_missing(Y):
            return _of_one_term(gamma, noise, X, Y)
        if all(_is_diagonal(B) for B in gamma.task_covars):
            return _of_independent_tasks(gamma, noise, X, Y)
    return _gaussian(gamma(X, X), noise.unsqueeze(-2).expand(Y.shape).flatten(-2), Y)


def nystrom_log_likelihood(gamma: MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor, atoms: Tensor) -> Tensor:
    r"""``(b)``, a lower bound of :func:`log_likelihood` from a dictionary, exact when every point is in it.

    .. math:: \log N(vec(Y); 0, \tilde G_t + I \otimes \Sigma) - \frac12 tr((I \otimes \Sigma)^{-1} (G_t - \tilde G_t))

    with :math:`\tilde G_t` the part of :math:`G_t` in the dictionary's span (Titsias 2009). It costs
    :math:`O(t m^2 + n^3)` for :math:`\Gamma = k B`; for other kernels read ``nt`` and ``nm`` for t and m.

    Args:
        gamma: The kernel.
        noise: ``(b) x 1`` or ``(b) x n``.
        X: ``(b) x t x d``.
        Y: ``(b) x t x n``, with a prior mean of zero.
        atoms: ``(b) x m x d``, the dictionary.
    """
    whitened = Y / noise.sqrt().unsqueeze(-2)
    variances = noise.expand(*noise.shape[:-1], Y.shape[-1])
    if isinstance(gamma, SeparableSum) and len(gamma.kernels) == 1:
        k, task_covar = gamma.kernels[0], whiten(gamma.task_covars, noise).squeeze(-3)
        features = _features(k(atoms, atoms), k(atoms, X))
        unseen = (k.diag(X).sum(dim=-1) - features.square().sum(dim=(-2, -1))) * _trace(task_covar)
        value = _kronecker(features @ features.mT, task_covar, features @ whitened, whitened.square().sum(dim=(-2, -1)))
    else:
        sd = variances.sqrt()
        scale = [sd.unsqueeze(-2).expand(*sd.shape[:-1], Z.shape[-2], sd.shape[-1]).flatten(-2) for Z in (atoms, X)]
        own = gamma(atoms, atoms) / (scale[0].unsqueeze(-1) * scale[0].unsqueeze(-2))
        features = _features(own, gamma(atoms, X) / (scale[0].unsqueeze(-1) * scale[1].unsqueeze(-2)))
        blocks = gamma.blocks(X).diagonal(dim1=-2, dim2=-1) / variances.unsqueeze(-2)
        unseen = blocks.sum(dim=(-2, -1)) - features.square().sum(dim=(-2, -1))
        eye = torch.eye(features.shape[-2], dtype=X.dtype, device=X.device)
        chol = _cholesky(eye + features @ features.mT)
        explained = solve_lower(chol, features @ whitened.flatten(-2).unsqueeze(-1)).square().sum(dim=(-2, -1))
        value = _minus_half(whitened.square().sum(dim=(-2, -1)) - explained, _logdet(chol))
    return value - unseen.clamp_min(0) / 2 + _constant(variances, X)


def _of_one_term(gamma: SeparableSum, noise: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    unseen = Y.isnan()
    whitened = torch.where(unseen, 0, Y) / noise.sqrt().unsqueeze(-2)
    task_covar = whiten(gamma.task_covars, noise).squeeze(-3)
    variances = noise.expand(*noise.shape[:-1], Y.shape[-1])
    if not unseen.any():
        return _kronecker(gamma.kernels[0](X, X), task_covar, whitened, None) + _constant(variances, X)
    value = _kronecker(gamma.kernels[0](X, X), task_covar, whitened, None, Missing.of(Y))
    return value - torch.where(unseen, 0, (2 * math.pi * variances).log().unsqueeze(-2)).sum(dim=(-2, -1)) / 2


def _kronecker(K: Tensor, B: Tensor, Z: Tensor, total: Tensor | None, missing: Missing | None = None) -> Tensor:
    r"""``(b)``, minus half of a quadratic form and of :math:`\log\det(K \otimes B + I)`, without a constant.

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
            rows = missing.masked(rows.movedim(-3, -1)).movedim(-1, -3)
            chol = _cholesky(missing.only(rows[..., missing.points, missing.tasks]))
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
                logdet = logdet + _logdet(chol)
                (K, K_slope), (B, B_slope), of_values = slopes
                left, right = (part.movedim(-3, -2).flatten(-2) for part in (rows @ B.unsqueeze(-3), rows))
                B_change = (rows.mT @ K.unsqueeze(-3) @ rows).sum(dim=-3)
                slopes = [(K, K_slope - left @ right.mT), (B, B_slope - B_change), of_values]
        else:
            quadratic = -(B_values * shrinkage * rotated.square()).sum(dim=(-2, -1))
            slopes = [
                (K, K_slope + projected @ projected.mT),
                (B, B_slope - solved.mT @ solved),
                (Z, -2 * projected),
            ]
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


def _of_independent_tasks(gamma: SeparableSum, noise: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    grams = [
        k(X, X).unsqueeze(-3) * B.diagonal(dim1=-2, dim2=-1)[..., None, None]
        for k, B in zip(gamma.kernels, gamma.task_covars, strict=True)
    ]
    return _gaussian(sum_all(grams), noise.unsqueeze(-2).expand(Y.shape).mT, Y.mT.unsqueeze(-1)).sum(dim=-1)


def _gaussian(gram: Tensor, noise: Tensor, Y: Tensor) -> Tensor:
    """The log density of those of ``... x t x n`` values that were seen, with a mean of zero.

    Args:
        gram: ``... x nt x nt``, their covariance without noise.
        noise: ``... x nt``, the variance of their noise.
        Y: The values.
    """
    seen = Seen.of(Y)
    y, noise = seen.values(Y), seen.noise(noise)
    if y.shape[-1] == 0:
        return y.sum(dim=-1)
    chol = _cholesky(seen.rows(seen.columns(gram)) + torch.diag_embed(noise))
    quadratic = solve_lower(chol, y.unsqueeze(-1)).square().sum(dim=(-2, -1))
    density = _minus_half(quadratic, _logdet(chol)) - y.shape[-1] / 2 * math.log(2 * math.pi)
    if seen.mask is None:
        return density
    # Where some data sets have not seen a value, that of a zero with nothing but noise was counted.
    return density + ((1 - seen.mask) * (2 * math.pi * noise).log()).sum(dim=-1) / 2


def _features(own: Tensor, cross: Tensor) -> Tensor:
    """``(b) x m x N``: the coordinates of points in the span of a dictionary, from the kernel with its atoms."""
    jitter = torch.diag_embed(DICTIONARY_JITTER * own.detach().diagonal(dim1=-2, dim2=-1))
    return solve_lower(_cholesky(own + jitter), cross)


def _cholesky(matrix: Tensor) -> Tensor:
    floor = matrix.diagonal(dim1=-2, dim2=-1).amin(dim=-1) * torch.finfo(matrix.dtype).eps
    return safe_cholesky(matrix, floor, matrix, SINGULAR_REMEDY)


def _minus_half(quadratic: Tensor, logdet: Tensor) -> Tensor:
    return -(quadratic + logdet) / 2


def _logdet(chol: Tensor) -> Tensor:
    return 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)


def _constant(variances: Tensor, X: Tensor) -> Tensor:
    return -X.shape[-2] / 2 * (2 * math.pi * variances).log().sum(dim=-1)


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(dim=-1)


def _is_diagonal(matrix: Tensor) -> bool:
    off_diagonal = matrix - torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))
    return not matrix.requires_grad and not off_diagonal.any()
