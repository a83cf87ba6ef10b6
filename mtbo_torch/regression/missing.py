"""Missing values, for which NaN stands, and how dense matrices do without them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Seen:
    """The ``(b) x t x n`` values that were seen.

    The rows and columns of values that no data set has seen are left out. Those that some have not seen are set to
    zero for them: such a value, with its noise on the diagonal and a target of zero, says nothing about any other.

    Attributes:
        index: ``s``, the values that at least one data set has seen, point-major; None if every one has seen them all.
        mask: ``(b) x s``, one where a data set has seen the value, zero where not; None if it would be all ones.
    """

    index: Tensor | None
    mask: Tensor | None

    @classmethod
    def of(cls, Y: Tensor) -> Seen:
        """Find out from ``(b) x t x n`` values, NaN for those that are missing."""
        seen = ~Y.isnan().flatten(-2)
        if seen.all():
            return cls(None, None)
        index = seen.reshape(-1, seen.shape[-1]).any(dim=0).nonzero().squeeze(-1)
        mask = seen[..., index]
        return cls(index, None if mask.all() else mask.to(Y))

    def places(self, Y: Tensor) -> Tensor:
        """Return `index`, or that of all ``(b) x t x n`` values."""
        return torch.arange(Y.shape[-2:].numel(), device=Y.device) if self.index is None else self.index

    def spread(self, values: Tensor, Y: Tensor) -> Tensor:
        """Return ``(b) x t x n`` like `Y` from ``(b) x s`` values, with zeros elsewhere."""
        zeros = values.new_zeros(*values.shape[:-1], Y.shape[-2:].numel())
        return zeros.index_copy(-1, self.places(Y), values).unflatten(-1, Y.shape[-2:])

    def columns(self, matrix: Tensor) -> Tensor:
        """Pick ``(b) x N x s`` out of ``(b) x N x nt``."""
        if self.index is None:
            return matrix
        matrix = matrix.index_select(-1, self.index)
        return matrix if self.mask is None else matrix * self.mask.unsqueeze(-2)

    def rows(self, matrix: Tensor) -> Tensor:
        """Pick ``(b) x s x N`` out of ``(b) x nt x N``."""
        return matrix if self.index is None else self.columns(matrix.mT).mT

    def noise(self, variances: Tensor) -> Tensor:
        """Pick ``(b) x s`` out of ``(b) x nt``, also where some data sets have not seen the value."""
        return variances if self.index is None else variances.index_select(-1, self.index)

    def values(self, Y: Tensor) -> Tensor:
        """Return ``(b) x s``, with zero for what was not seen."""
        flat = Y.flatten(-2)
        if self.index is None:
            return flat
        flat = flat.index_select(-1, self.index)
        return flat if self.mask is None else torch.where(flat.isnan(), 0, flat)


def few_are_missing(Y: Tensor) -> bool:
    """Return whether it pays to complete the values and correct for that, rather than to use those seen only."""
    unseen = Y.isnan().reshape(Y.shape[:-2].numel(), *Y.shape[-2:])
    return bool(2 * unseen.any(dim=0).sum() <= (~unseen).any(dim=0).sum())


@dataclass(frozen=True)
class Missing:
    """The places where ``(b) x t x n`` values are missing: the u ones at which some data set misses one.

    Attributes:
        points: ``u``.
        tasks: ``u``.
        mask: ``(b) x u``, one where a data set misses the value, zero where not; None if it would be all ones.
    """

    points: Tensor
    tasks: Tensor
    mask: Tensor | None

    @classmethod
    def of(cls, Y: Tensor) -> Missing:
        """Find out from ``(b) x t x n`` values, NaN for those that are missing."""
        unseen = Y.isnan()
        points, tasks = unseen.reshape(-1, *Y.shape[-2:]).any(dim=0).nonzero(as_tuple=True)
        mask = unseen[..., points, tasks]
        return cls(points, tasks, None if mask.all() else mask.to(Y))

    def mask_out(self, values: Tensor) -> Tensor:
        """Set ``(b) x ... x u`` numbers to zero for data sets that do not miss the value."""
        if self.mask is None:
            return values
        return values * self.mask.reshape(*self.mask.shape[:-1], *[1] * (values.dim() - self.mask.dim()), -1)

    def pick(self, values: Tensor) -> Tensor:
        """Pick ``(b) x u`` out of ``(b) x t x n``."""
        return self.mask_out(values[..., self.points, self.tasks])

    def put(self, values: Tensor, Y: Tensor) -> Tensor:
        """Return ``(b) x t x n`` like `Y`, with ``(b) x u`` values at the places and zeros elsewhere."""
        zeros = torch.zeros_like(Y).flatten(-2)
        return zeros.index_copy(-1, self.points * Y.shape[-1] + self.tasks, values).unflatten(-1, Y.shape[-2:])

    def only(self, matrix: Tensor) -> Tensor:
        """Give ``(b) x u x u`` the identity's rows and columns for values that are not missing."""
        if self.mask is None:
            return matrix
        return self.mask_out(self.mask_out(matrix).mT) + torch.diag_embed(1 - self.mask)

    def expand(self, batch_shape: torch.Size) -> Missing:
        """Return the same under a larger batch shape."""
        mask = self.mask
        return Missing(self.points, self.tasks, None if mask is None else mask.expand(*batch_shape, mask.shape[-1]))
