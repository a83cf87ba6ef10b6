"""Values that were not seen, which NaN stands for, and how what was seen is picked out of dense matrices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Seen:
    """Which of ``(b) x t x n`` values were seen.

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
        return cls.where(~Y.isnan(), Y)

    @classmethod
    def where(cls, chosen: Tensor, like: Tensor) -> Seen:
        """The values at which ``(b) x t x n`` are true; of the dtype of `like`."""
        chosen = chosen.flatten(-2)
        if chosen.all():
            return cls(None, None)
        index = chosen.reshape(-1, chosen.shape[-1]).any(dim=0).nonzero().squeeze(-1)
        mask = chosen[..., index]
        return cls(index, None if mask.all() else mask.to(like))

    def columns(self, matrix: Tensor) -> Tensor:
        """``(b) x N x s`` of ``(b) x N x nt``."""
        if self.index is None:
            return matrix
        matrix = matrix.index_select(-1, self.index)
        return matrix if self.mask is None else matrix * self.mask.unsqueeze(-2)

    def rows(self, matrix: Tensor) -> Tensor:
        """``(b) x s x N`` of ``(b) x nt x N``."""
        return matrix if self.index is None else self.columns(matrix.mT).mT

    def noise(self, variances: Tensor) -> Tensor:
        """``(b) x s`` of ``(b) x nt``, also where some data sets have not seen the value."""
        return variances if self.index is None else variances.index_select(-1, self.index)

    def values(self, Y: Tensor) -> Tensor:
        """``(b) x s``, with zero for what was not seen."""
        flat = Y.flatten(-2)
        if self.index is None:
            return flat
        flat = flat.index_select(-1, self.index)
        return flat if self.mask is None else torch.where(flat.isnan(), 0, flat)

    def spread(self, values: Tensor, size: int) -> Tensor:
        """``(b) x size`` from ``(b) x s``, with zeros between."""
        if self.index is None:
            return values
        return values.new_zeros(*values.shape[:-1], size).index_copy(-1, self.index, values)

    def expand(self, batch_shape: torch.Size) -> Seen:
        """The same under a larger batch shape."""
        mask = self.mask
        return Seen(self.index, None if mask is None else mask.expand(*batch_shape, mask.shape[-1]))
