"""The span of a dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from mtbo_torch.linalg import eye_like, trace
from mtbo_torch.regression.base import pick_fields, put_fields
from mtbo_torch.regression.sites import rows_at
from mtbo_torch.regression.whitened import RowKernel

# Features of the past are made in pieces of this many numbers, so that no t x m matrix is ever held.
BLOCK_NUMBERS = 2**21
# Units in the last place, for each feature, up to which what a span misses of a point is rounding.
ROUNDING = 4


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
        # Zero rows come last, so that those of a shorter dictionary can be cut off.
        return cls(rows, atoms, (scale.unsqueeze(-1) * vectors.mT).flip(-2).to(gram.dtype))

    def widen(self, atoms: Tensor, is_new: Tensor) -> tuple[Subspace, Tensor, Tensor, Tensor]:
        r"""Return the span of more atoms, whose features follow the old ones, where rounding allows.

        With R the inverse of the Cholesky factor of what the span misses of the new atoms a, their features are
        :math:`R (k_a(x) - \phi(a) \phi(x))`. That loses digits where little is missed, and where old atoms are nearly
        the same.

        Args:
            atoms: ``(b) x j x d``.
            is_new: ``(b) x j``, whether each counts; others get a zero row in the root.

        Returns:
            The span; the features of the atoms so far, ``(b) x G x jp x mp``; R, ``(b) x G x jp x jp``; and for which
            data sets, ``(b)``, the features have 70 % of all digits. Where they have not, no atom counts.
        """
        own, whole = self.features(atoms), self.rows(atoms, atoms)
        counts = is_new.repeat_interleave(self.rows.rows_per_point, dim=-1)[..., None, :, None]
        missed = torch.where(counts & counts.mT, whole - own @ own.mT, eye_like(whole))
        chol, info = torch.linalg.cholesky_ex(missed)
        size = whole.diagonal(dim1=-2, dim2=-1).amax(dim=-1)
        smallest = torch.where(counts.squeeze(-1), chol.diagonal(dim1=-2, dim2=-1), torch.inf).amin(dim=-1)
        fine = self._of_data_sets((info == 0) & self._has_digits(smallest, size))
        counts = counts & fine[..., None, None, None]
        root = torch.where(counts, torch.linalg.solve_triangular(chol, eye_like(chol), upper=False), 0)
        old = pad(self.root, (0, root.shape[-1]))
        new = torch.cat([-root @ own @ self.root, root], dim=-1)
        wider = Subspace(self.rows, torch.cat([self.atoms, atoms], dim=-2), torch.cat([old, new], dim=-2))
        return wider, own, root, fine

    def could_widen(self) -> Tensor:
        """Return for which data sets, ``(b)``, rounding allows more atoms if they are as new as can be."""
        size = self.rows.blocks(self.atoms).diagonal(dim1=-2, dim2=-1).amax(dim=(-2, -1))  # ... x G
        return self._of_data_sets(self._has_digits(size.sqrt(), size))

    def _of_data_sets(self, is_so: Tensor) -> Tensor:
        """Return for which data sets, ``(b)``, something is so in all groups, ``... x (b) x G``."""
        return is_so.all(dim=-1).reshape(-1, *self.atoms.shape[:-2]).all(dim=0)

    def _has_digits(self, root: Tensor, size: Tensor) -> Tensor:
        """Return whether features have 70 % of all digits where the root of what the span misses is this.

        Args:
            root: ``... x G``.
            size: ``... x G``, the largest value of the kernel.
        """
        steepest = torch.linalg.vector_norm(self.root, dim=-1).amax(dim=-1)
        return root >= torch.finfo(root.dtype).eps ** 0.3 * size * steepest

    def expand(self, batch_shape: torch.Size) -> Subspace:
        """Return the same span under a larger batch shape, as views."""
        atoms, root = (x.expand(*batch_shape, *x.shape[x.dim() - n :]) for x, n in ((self.atoms, 2), (self.root, 3)))
        return Subspace(self.rows, atoms, root)

    def pick(self, trials: Tensor) -> Subspace:
        """Return the spans of some data sets, ``k`` places."""
        return Subspace(self.rows.pick(trials), **pick_fields(self, trials, atoms=2, root=3))

    def put(self, trials: Tensor, part: Subspace) -> Subspace:
        """Return the spans with those of some data sets, ``k`` places, exchanged."""
        return Subspace(self.rows, **put_fields(self, trials, part, atoms=2, root=3))

    def arrange(self, atoms: Tensor, features: Tensor) -> Subspace:
        """Return the spans with ``(b) x M`` of the atoms, and ``(b) x Mp`` of the features and columns of the root."""
        root = take_rows(take_rows(self.root, features).mT, features).mT
        return Subspace(self.rows, rows_at(self.atoms, atoms), root)

    def resize(self, places: Tensor) -> Subspace:
        """Return the spans padded or cut to ``(b) x M`` of the atoms, where only zero rows of the root are cut off."""
        atoms = rows_at(pad(self.atoms, (0, 0, 0, max(0, places.shape[-1] - self.atoms.shape[-2]))), places)
        more = places.shape[-1] * self.rows.rows_per_point - self.root.shape[-1]
        return Subspace(self.rows, atoms, pad(self.root, (0, more, 0, more)))

    def features(self, X: Tensor) -> Tensor:
        """Return ``(b) x G x Np x mp``."""
        return self.rows(X, self.atoms) @ self.root.mT

    def columns(self, X: Tensor) -> Tensor:
        """Return the same the other way round, ``(b) x G x mp x Np``."""
        return self.root @ self.rows(self.atoms, X)

    def in_blocks(self, X: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield pieces of ``(b) x t x d`` points, at least one: where they are, the points, and their features."""
        numbers = max(1, self.root.shape[:-1].numel() * self.rows.rows_per_point)
        size = max(1, BLOCK_NUMBERS // numbers)
        for start in range(0, max(1, X.shape[-2]), size):
            piece = X[..., start : start + size, :]
            yield slice(start, start + size), piece, self.features(piece)

    def residual(self, X: Tensor, features: Tensor) -> Tensor:
        r"""Return what the subspace misses of each point, :math:`k(x, x) - \phi^T \phi`, ``(b) x G x N x p x p``."""
        own, whole = self._by_point(features), self.rows.blocks(X)
        return self.clear_rounding(whole - outer_by_point(own, own), whole)

    def clear_rounding(self, residual: Tensor, whole: Tensor) -> Tensor:
        """Return what the subspace misses of the kernel at each point, with zeros where that is nothing but rounding.

        Args:
            residual: ``(b) x G x N x p x p``.
            whole: The kernel of each point with itself, of the same shape.
        """
        rounding = ROUNDING * self.root.shape[-1] * torch.finfo(whole.dtype).eps * trace(whole)
        return torch.where((trace(residual) > rounding)[..., None, None], residual, 0)

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


def take_rows(matrix: Tensor, order: Tensor) -> Tensor:
    """Return rows ``(b) x M`` of ``... x (b) x G x m x k``."""
    return matrix.gather(-2, order[..., None, :, None].expand(*matrix.shape[:-2], -1, matrix.shape[-1]))


def _has_equal_before(atoms: Tensor) -> Tensor:
    """Return whether each of ``(b) x m`` atoms equals one before it."""
    equal = (atoms.unsqueeze(-2) == atoms.unsqueeze(-3)).all(dim=-1)
    return equal.tril(diagonal=-1).any(dim=-1)


def outer_by_point(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right.mT`` for ``... x p x m``, without a matrix product for every point when p is one."""
    if left.shape[-2] == 1:
        return torch.linalg.vecdot(left, right).unsqueeze(-2)
    return left @ right.mT
