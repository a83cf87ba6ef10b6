"""Observations grouped by point: on a finite set they soon outnumber the points by far."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

# New observations are compared with the sites in pieces of this many numbers.
BLOCK_NUMBERS = 2**22


@dataclass(frozen=True, eq=False)
class Distinct:
    """Observations grouped by point, as a dictionary is drawn from them.

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
class Sites:
    """Observations grouped by point: how many there are at each, and their mean.

    Attributes:
        points: ``(b) x u x d``, or ``u x d`` for all data sets.
        counts: ``(b) x u``.
        means: ``(b) x u x n``; zero where there is none.
        scatter: ``(b)``, the sum of the squared distances of all values from the mean at their point.
    """

    points: Tensor
    counts: Tensor
    means: Tensor
    scatter: Tensor

    @classmethod
    def of(cls, X: Tensor, Y: Tensor) -> Sites:
        """Group ``(b) x t x d`` points and ``(b) x t x n`` values."""
        distinct = Distinct.of(X, Y)
        means = distinct.sums / distinct.counts.clamp_min(1).unsqueeze(-1)
        own = means.gather(-2, distinct.index.unsqueeze(-1).expand_as(Y))
        return cls(distinct.points, distinct.counts, means, (Y - own).square().sum(dim=(-2, -1)))

    @classmethod
    def at(cls, points: Tensor, like: Tensor) -> Sites:
        """Return ``N x d`` points without observations yet, of values like ``(b) x t x n`` ones."""
        batch_shape = like.shape[:-2]
        counts = points.new_zeros(*batch_shape, len(points))
        return cls(points, counts, points.new_zeros(*counts.shape, like.shape[-1]), points.new_zeros(batch_shape))

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of everything but the points, by name."""
        return {name: getattr(self, name).clone() for name in ("counts", "means", "scatter")}

    def restore(self, tensors: dict[str, Tensor]) -> Sites:
        """Return the same sites with other counts, means and scatter."""
        for name, value in tensors.items():
            if value.shape != getattr(self, name).shape:
                raise ValueError(f"{name} of shape {tuple(value.shape)}")
        return replace(self, **tensors)

    def occupied(self) -> tuple[Sites, Tensor]:
        """Return the sites with observations in any data set, and their places among ``N x d`` points."""
        here = (self.counts.reshape(-1, len(self.points)) > 0).any(dim=0).nonzero().squeeze(-1)
        return Sites(self.points[here], self.counts[..., here], self.means[..., here, :], self.scatter), here

    def find(self, X: Tensor) -> Tensor | None:
        """Return the places ``(b) x q`` of ``(b) x q x d`` points among the sites; None if one is none of them."""
        size, places = max(1, BLOCK_NUMBERS // (X.shape[:-2].numel() * self.points.numel())), []
        for x in X.split(size, dim=-2):
            is_here, place = (x.unsqueeze(-2) == self.points).all(dim=-1).max(dim=-1)  # of (b) x q x N
            if not is_here.all():
                return None
            places.append(place)
        return torch.cat(places, dim=-1)

    def add(self, places: Tensor, Y: Tensor) -> Sites:
        """Take in ``(b) x q x n`` values at ``(b) x q`` places."""
        counts = self.counts.scatter_add(-1, places, torch.ones_like(Y[..., 0]))
        index = places.unsqueeze(-1).expand_as(Y)
        # About the means so far, so that nothing is lost where values are large beside their differences.
        apart = Y - self.means.gather(-2, index)
        means = self.means.scatter_add(-2, index, apart / counts.gather(-1, places).unsqueeze(-1))
        more = (apart * (Y - means.gather(-2, index))).sum(dim=(-2, -1))
        return replace(self, counts=counts, means=means, scatter=(self.scatter + more).clamp_min(0))


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


def rows_at(X: Tensor, indices: Tensor) -> Tensor:
    """Pick rows ``(b) x m`` out of ``(b) x t x d``."""
    return X.gather(-2, indices.unsqueeze(-1).expand(*indices.shape, X.shape[-1]))
