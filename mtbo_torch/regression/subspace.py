"""The span of a dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mtbo_torch.regression.whitened import RowKernel

# Features of the past are made in pieces of this many numbers, so that no t x m matrix is ever held.
BLOCK_NUMBERS = 2**21


@dataclass(frozen=True, eq=False)
class Subspace:
    r"""The span of a dictionary, with features :math:`\phi(x) = R k_D(x)` for a root :math:`R^T R = K_{DD}^+`.

    The paper's weights :math:`1 / \sqrt{p_i}` only rescale a basis of the same span and are left out. Directions of
    :math:`K_{DD}` that rounding has made up get a zero row in the root, so duplicates in the dictionary are harmless;
    the shorter dictionaries of a batch are padded with them.

    Attributes:
        rows: The kernel, with p rows for each point.
        atoms: ``(b) x m x d``, the dictionary.
        root: ``(b) x G x mp x mp``.
    """

    rows: RowKernel
    atoms: Tensor
    root: Tensor

    @classmethod
    def spanned_by(cls, rows: RowKernel, atoms: Tensor) -> Subspace:
        """Return the span of ``(b) x m x d`` atoms."""
        # Only the first of equal atoms counts, so that a span does not depend on what a dictionary is padded with.
        is_new = ~_has_equal_before(atoms.detach()).repeat_interleave(rows.rows_per_point, dim=-1).unsqueeze(-2)
        gram = rows(atoms, atoms) * (is_new.unsqueeze(-1) & is_new.unsqueeze(-2))
        values, vectors = torch.linalg.eigh(gram.double())
        # Below, a direction is made up by rounding. That of the entries moves an eigenvalue by their size times the
        # root of their number, that of the factorization by its share of the largest one. All above are kept: what
        # the span misses counts in units of the noise, which may be tiny.
        largest = gram.diagonal(dim1=-2, dim2=-1).sort(dim=-1).values[..., -1:]  # none in an empty dictionary
        rounding = is_new.sum(dim=-1, keepdim=True).sqrt() * torch.finfo(gram.dtype).eps * largest
        cutoff = torch.maximum(values[..., -1:] * torch.finfo(values.dtype).eps, rounding)
        scale = torch.where(values > cutoff, values.clamp_min(cutoff).rsqrt(), torch.zeros_like(values))
        return cls(rows, atoms, (scale.unsqueeze(-1) * vectors.mT).to(gram.dtype))

    def expand(self, batch_shape: torch.Size) -> Subspace:
        """Return the same span under a larger batch shape, as views."""
        atoms, root = (x.expand(*batch_shape, *x.shape[x.dim() - n :]) for x, n in ((self.atoms, 2), (self.root, 3)))
        return Subspace(self.rows, atoms, root)

    def features(self, X: Tensor) -> Tensor:
        """Return ``(b) x G x Np x mp``."""
        return self.rows(X, self.atoms) @ self.root.mT

    def in_blocks(self, X: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield pieces of ``(b) x t x d`` points, at least one: where they are, the points, and their features."""
        numbers = max(1, self.root.shape[:-1].numel() * self.rows.rows_per_point)
        size = max(1, BLOCK_NUMBERS // numbers)
        for start in range(0, max(1, X.shape[-2]), size):
            piece = X[..., start : start + size, :]
            yield slice(start, start + size), piece, self.features(piece)

    def residual(self, X: Tensor, features: Tensor) -> Tensor:
        r"""Return what the subspace misses of each point, :math:`k(x, x) - \phi^T \phi`, ``(b) x G x N x p x p``."""
        own = self._by_point(features)
        residual = self.rows.blocks(X) - outer_by_point(own, own)
        return residual.clamp_min(0) if self.rows.rows_per_point == 1 else residual

    def joint_residual(self, X: Tensor, features: Tensor) -> Tensor:
        """Return what the subspace misses of points together, ``(b) x G x Np x Np``."""
        if X.shape[-2] == 1:
            return self.residual(X, features).squeeze(-3)
        return self.rows(X, X) - features @ features.mT

    def covariance(self, X: Tensor, features: Tensor, inverse: Tensor) -> Tensor:
        r"""Return :math:`\xi (k(x, x) - \phi^T \phi) + \phi^T H \phi`, ``(b) x r x N x p x p``, for the groups of H."""
        eigvals = self.rows.eigvals[..., : inverse.shape[-3], None, None, None]
        solved = features @ inverse
        seen = outer_by_point(self._by_point(features), self._by_point(solved))
        return eigvals * self.residual(X, features) + seen

    def _by_point(self, features: Tensor) -> Tensor:
        return features.unflatten(-2, (-1, self.rows.rows_per_point))


def _has_equal_before(atoms: Tensor) -> Tensor:
    """Return whether each of ``(b) x m`` atoms equals one before it."""
    equal = (atoms.unsqueeze(-2) == atoms.unsqueeze(-3)).all(dim=-1)
    return equal.tril(diagonal=-1).any(dim=-1)


def outer_by_point(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right.mT`` for ``... x p x m``, without a matrix product for every point when p is one."""
    if left.shape[-2] == 1:
        return torch.linalg.vecdot(left, right).unsqueeze(-1)
    return left @ right.mT


def minus_outer(matrix: Tensor, left: Tensor) -> Tensor:
    """Return ``matrix - left @ left.mT`` for ``... x p x q``, in one pass when q is one, as in most rounds."""
    if left.shape[-1] == 1:
        return torch.addcmul(matrix, left, left.mT, value=-1)
    return matrix - outer_by_point(left, left)
