"""Observations grouped by point: on a finite set they soon outnumber the points by far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

# An odd number without a pattern in its bits, by which the codes of rows are spread.
MIXING = -7046029254386353131


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


class Lookup:
    r"""The places of ``N x d`` points, found by their inputs to the last bit in :math:`O(\log N)`.

    Args:
        points: ``N x d``.
    """

    def __init__(self, points: Tensor) -> None:
        self.points = points
        self._codes, self._order = torch.sort(_encode_rows(points), stable=True)

    @cached_property
    def repeated(self) -> Tensor:
        """``N``, which points equal one before."""
        repeated = torch.zeros(len(self.points), dtype=torch.bool, device=self.points.device)
        candidates = self._order[1:][self._codes[1:] == self._codes[:-1]]
        if len(candidates):
            repeated[candidates] = self.find(self.points[candidates]) != candidates
        return repeated

    def find(self, X: Tensor) -> Tensor:
        """Return the places ``(b) x q`` of the first points that equal ``(b) x q x d`` ones; -1 for none."""
        wanted = X.reshape(-1, X.shape[-1])
        codes = _encode_rows(wanted)
        start = torch.searchsorted(self._codes, codes)
        places = self._order[start.clamp_max(len(self.points) - 1)]
        is_here = (self.points[places] == wanted).all(dim=-1)
        if not is_here.all():
            places = torch.where(is_here, places, -1)
            ends = torch.searchsorted(self._codes, codes, right=True)
            for row in ((ends > start + 1) & ~is_here).nonzero().flatten().tolist():  # other points with that code
                others = self._order[start[row] : ends[row]]
                equal = others[(self.points[others] == wanted[row]).all(dim=-1)]
                places[row] = equal[0] if len(equal) else -1
        return places.reshape(X.shape[:-1])


@dataclass(frozen=True, eq=False)
class Sites:
    """Observations grouped by point: how many there are at each, and their mean.

    Attributes:
        counts: ``(b) x u``.
        means: ``(b) x u x n``; zero where there is none.
        scatter: ``(b)``, the sum of the squared distances of all values from the mean at their point.
        places: ``u``, in order, where the points are among those that are tracked.
    """

    counts: Tensor
    means: Tensor
    scatter: Tensor
    places: Tensor

    @classmethod
    def of(cls, distinct: Distinct, Y: Tensor) -> Sites:
        """Summarize ``(b) x t x n`` values that were grouped by point."""
        means = distinct.sums / distinct.counts.clamp_min(1).unsqueeze(-1)
        own = means.gather(-2, distinct.index.unsqueeze(-1).expand_as(Y))
        places = torch.arange(means.shape[-2], device=Y.device)
        return cls(distinct.counts, means, (Y - own).square().sum(dim=(-2, -1)), places)

    @classmethod
    def none(cls, like: Tensor) -> Sites:
        """Return no observations yet, of values like ``(b) x t x n`` ones."""
        batch_shape, n = like.shape[:-2], like.shape[-1]
        nowhere = torch.empty(0, dtype=torch.long, device=like.device)
        return cls(
            like.new_zeros(*batch_shape, 0), like.new_zeros(*batch_shape, 0, n), like.new_zeros(batch_shape), nowhere
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of everything, by name."""
        return {name: getattr(self, name).clone() for name in ("counts", "means", "scatter", "places")}

    def restore(self, tensors: dict[str, Tensor]) -> Sites:
        """Return what :meth:`tensors` was made from, for values like these."""
        size, places = self.scatter.shape, tensors["places"]
        u, n = len(places), self.means.shape[-1]
        shapes = {"counts": (*size, u), "means": (*size, u, n), "scatter": size, "places": (u,)}
        for name, value in tensors.items():
            if value.shape != shapes[name]:
                raise ValueError(f"{name} of shape {tuple(value.shape)}")
        return Sites(**tensors | {"places": places.long()})

    def add(self, places: Tensor, Y: Tensor) -> Sites:
        """Take in ``(b) x q x n`` values at ``(b) x q`` places."""
        slots = torch.searchsorted(self.places, places)
        is_new = self.places.new_ones(()).expand_as(slots) > 0
        if len(self.places):
            is_new = self.places[slots.clamp_max(len(self.places) - 1)] != places
        if is_new.any():
            return self._make_room(torch.unique(places[is_new])).add(places, Y)
        counts = self.counts.scatter_add(-1, slots, torch.ones_like(Y[..., 0]))
        index = slots.unsqueeze(-1).expand_as(Y)
        # About the means so far, so that nothing is lost where values are large beside their differences.
        apart = Y - self.means.gather(-2, index)
        means = self.means.scatter_add(-2, index, apart / counts.gather(-1, slots).unsqueeze(-1))
        more = (apart * (Y - means.gather(-2, index))).sum(dim=(-2, -1))
        return replace(self, counts=counts, means=means, scatter=(self.scatter + more).clamp_min(0))

    def _make_room(self, new: Tensor) -> Sites:
        """Return the same observations with room for some at other places."""
        places, order = torch.cat([self.places, new]).sort()
        counts = torch.nn.functional.pad(self.counts, (0, len(new)))[..., order]
        means = torch.nn.functional.pad(self.means, (0, 0, 0, len(new)))[..., order, :]
        return replace(self, counts=counts, means=means, places=places)


def _encode_rows(X: Tensor) -> Tensor:
    """Give each of ``N`` rows a number that is the same for equal rows and hardly ever for others."""
    whole = torch.int64 if X.dtype == torch.double else torch.int32
    codes = torch.zeros(len(X), dtype=torch.long, device=X.device)
    for column in X.unbind(dim=-1):
        bits = (column + 0.0).view(whole)  # there is a negative zero, too
        codes = (codes ^ bits) * MIXING
        codes = codes ^ (codes >> 29)
    return codes


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
