"""Observations grouped by point: on a finite set they soon outnumber the points by far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

import torch
from torch import Tensor


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
    r"""The places of ``N x d`` points, found by their inputs, to the last bit, in :math:`O(d + \log N)`.

    Args:
        points: ``N x d``.

    Example:
        >>> import torch
        >>> from mtbo_torch.regression import Lookup
        >>> lookup = Lookup(torch.tensor([[0.0, 1.0], [0.5, 0.5], [0.0, 1.0]]))
        >>> lookup.find(torch.tensor([[0.5, 0.5], [0.0, 1.0], [0.0, 0.9]]))
        tensor([ 1,  0, -1])
        >>> lookup.repeated
        tensor([False, False,  True])
    """

    def __init__(self, points: Tensor) -> None:
        self.points = points

    @cached_property
    def _index(self) -> tuple[Tensor, Tensor, Tensor]:
        """The factors of a code that no two different points have in common, the sorted codes, and their places."""
        for seed in count():
            generator = torch.Generator().manual_seed(seed)
            factors = torch.randint(-(2**63), 2**63 - 1, (self.points.shape[-1],), generator=generator) | 1
            factors = factors.to(self.points.device)
            codes, order = torch.sort(_encode(self.points, factors), stable=True)
            rows = self.points[order]
            if not ((codes[1:] == codes[:-1]) & (rows[1:] != rows[:-1]).any(dim=-1)).any():
                break
        return factors, codes, order

    @cached_property
    def repeated(self) -> Tensor:
        """``N``, which points equal one before."""
        _, codes, order = self._index
        nowhere = torch.zeros(len(order), dtype=torch.bool, device=order.device)
        return nowhere.scatter(0, order[1:], codes[1:] == codes[:-1])

    def find(self, X: Tensor) -> Tensor:
        """Return the places ``(b) x q`` of the first points that equal ``(b) x q x d`` ones; -1 for none."""
        factors, codes, order = self._index
        start = torch.searchsorted(codes, _encode(X, factors)).clamp_max(len(codes) - 1)
        places = order[start]
        return torch.where((self.points[places] == X).all(dim=-1), places, -1)


@dataclass(frozen=True, eq=False)
class Sites:
    """Observations grouped by point: how many there are at each, and their mean.

    Attributes:
        points: ``(b) x u x d``, or ``u x d`` for all data sets.
        counts: ``(b) x u``.
        means: ``(b) x u x n``; zero where there is none.
        scatter: ``(b)``, the sum of the squared distances of all values from the mean at their point.
        lookup: The places of the points, where observations are to be added.
    """

    points: Tensor
    counts: Tensor
    means: Tensor
    scatter: Tensor
    lookup: Lookup | None = None

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
        means, scatter = points.new_zeros(*counts.shape, like.shape[-1]), points.new_zeros(batch_shape)
        return cls(points, counts, means, scatter, Lookup(points))

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of everything but the points, by name."""
        return {name: getattr(self, name).clone() for name in ("counts", "means", "scatter")}

    def restore(self, tensors: dict[str, Tensor]) -> Sites:
        """Return the same sites with other counts, means and scatter."""
        for name, value in tensors.items():
            if value.shape != getattr(self, name).shape:
                raise ValueError(f"{name} of shape {tuple(value.shape)}")
        return replace(self, counts=tensors["counts"], means=tensors["means"], scatter=tensors["scatter"])

    def occupied(self) -> tuple[Sites, Tensor]:
        """Return the sites with observations in any data set, and their places among ``N x d`` points."""
        here = (self.counts.reshape(-1, len(self.points)) > 0).any(dim=0).nonzero().squeeze(-1)
        return Sites(self.points[here], self.counts[..., here], self.means[..., here, :], self.scatter), here

    def find(self, X: Tensor) -> Tensor | None:
        """Return the places ``(b) x q`` of ``(b) x q x d`` points among the sites; None if one is none of them."""
        assert self.lookup is not None
        places = self.lookup.find(X)
        return None if (places < 0).any() else places

    def add(self, places: Tensor, Y: Tensor) -> Sites:
        """Take in ``(b) x q x n`` values at ``(b) x q`` places."""
        counts = self.counts.scatter_add(-1, places, torch.ones_like(Y[..., 0]))
        index = places.unsqueeze(-1).expand_as(Y)
        # About the means so far, so that nothing is lost where values are large beside their differences.
        apart = Y - self.means.gather(-2, index)
        means = self.means.scatter_add(-2, index, apart / counts.gather(-1, places).unsqueeze(-1))
        more = (apart * (Y - means.gather(-2, index))).sum(dim=(-2, -1))
        return replace(self, counts=counts, means=means, scatter=(self.scatter + more).clamp_min(0))


def _encode(X: Tensor, factors: Tensor) -> Tensor:
    """Return whole numbers ``...``, the same for equal ones of ``... x d`` points and hardly ever for others."""
    whole = torch.int64 if X.dtype == torch.double else torch.int32
    return ((X + 0.0).view(whole) * factors).sum(dim=-1)  # plus zero, as there is a negative one


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
