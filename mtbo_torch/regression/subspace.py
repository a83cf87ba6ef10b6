"""The span of a dictionary, and the observations as it wants them: grouped by point, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mtbo_torch.regression.whitened import RowKernel

# Features of the past are made in pieces of this many numbers, so that no t x m matrix is ever held.
BLOCK_NUMBERS = 2**21


@dataclass(frozen=True, eq=False)
class Distinct:
    """Observations grouped by point: on a finite set they soon outnumber the points by far.

    Attributes:
        points: ``(b) x u x d``, the distinct points; a batch's shorter lists repeat a point with a count of zero.
        counts: ``(b) x u``, how often each was observed.
        sums: ``(b) x u x n``, the sums of the values observed there.
        index: ``(b) x t``, the place of each observation's point.
        deviations: ``(b) x u x n``, of the noise there, where observations have their own; equal points with other
            noise are then points of their own.
        sites: ``(b) x t``, a number below t for each observation's point, the same for equal ones whatever their noise.
    """

    points: Tensor
    counts: Tensor
    sums: Tensor
    index: Tensor
    deviations: Tensor | None
    sites: Tensor

    @classmethod
    def of(cls, X: Tensor, Y: Tensor, deviations: Tensor | None = None) -> Distinct:
        """Group ``(b) x t x d`` points and ``(b) x t x n`` values, and the deviations of their noise."""
        batch_shape = X.shape[:-2]
        if X.shape[-2] == 0:
            nowhere = torch.zeros(X.shape[:-1], dtype=torch.long, device=X.device)
            return cls(X, X[..., 0], Y, nowhere, deviations, nowhere)
        index = sites = _number_points(X.detach())
        if deviations is not None:
            index = _number_points(torch.cat([X.detach(), deviations], dim=-1))
        most = int(index.max()) + 1
        counts = X.new_zeros(*batch_shape, most).scatter_add(-1, index, X.new_ones(()).expand_as(index))
        # Some observation of each point; the first one where the list is padded.
        everything = torch.arange(X.shape[-2], device=X.device).expand_as(index)
        places = index.new_zeros(*batch_shape, most).scatter(-1, index, everything)
        sums = Y.new_zeros(*batch_shape, most, Y.shape[-1]).scatter_add(-2, index.unsqueeze(-1).expand_as(Y), Y)
        deviations = None if deviations is None else rows_at(deviations, places)
        return cls(rows_at(X, places), counts, sums, index, deviations, sites)


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

    def covariance(self, X: Tensor, features: Tensor, inverse: Tensor) -> Tensor:
        r"""Return :math:`\xi (k(x, x) - \phi^T \phi) + \phi^T H \phi`, ``(b) x r x N x p x p``, for the groups of H."""
        eigvals = self.rows.eigvals[..., : inverse.shape[-3], None, None, None]
        solved = features @ inverse
        seen = outer_by_point(self._by_point(features), self._by_point(solved))
        return eigvals * self.residual(X, features) + seen

    def _by_point(self, features: Tensor) -> Tensor:
        return features.unflatten(-2, (-1, self.rows.rows_per_point))


def _number_points(X: Tensor) -> Tensor:
    """Give each of ``(b) x t`` points a number, the same for equal points of a data set."""
    # There is no batched unique, and draws are rare.
    return torch.stack([_number_rows(x) for x in X.reshape(-1, *X.shape[-2:])]).reshape(X.shape[:-1])


def _number_rows(x: Tensor) -> Tensor:
    """Give each of ``t`` rows a number, the same for equal rows, from zero without gaps.

    Column by column, because sorting numbers is an order of magnitude faster than sorting rows.
    """
    index = torch.zeros(len(x), dtype=torch.long, device=x.device)
    for column in x.unbind(dim=-1):
        code = torch.unique(column, return_inverse=True)[1]
        index = torch.unique(index * len(x) + code, return_inverse=True)[1]
    return index


def _has_equal_before(atoms: Tensor) -> Tensor:
    """Return whether each of ``(b) x m`` atoms equals one before it."""
    equal = (atoms.unsqueeze(-2) == atoms.unsqueeze(-3)).all(dim=-1)
    return equal.tril(diagonal=-1).any(dim=-1)


def rows_at(X: Tensor, indices: Tensor) -> Tensor:
    """Pick rows ``(b) x m`` out of ``(b) x t x d``."""
    return X.gather(-2, indices.unsqueeze(-1).expand(*indices.shape, X.shape[-1]))


def outer_by_point(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right.mT`` for ``... x p x m``, without a matrix product for every point when p is one."""
    if left.shape[-2] == 1:
        return torch.einsum("...i,...i->...", left, right).unsqueeze(-1)
    return left @ right.mT
