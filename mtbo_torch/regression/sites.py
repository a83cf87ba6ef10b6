"""Observations grouped by point: on a finite set they soon outnumber the points by far."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import count

import torch
from torch import Tensor

from mtbo_torch.linalg import is_free_to_look


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
        self._found: dict[tuple[float, ...], int] = {}

    @cached_property
    def _index(self) -> tuple[Tensor, Tensor, Tensor]:
        """The factors of a code that no two different points have in common, the sorted codes, and their places."""
        for seed in count():
            generator = torch.Generator().manual_seed(seed)
            factors = torch.randint(-(2**63), 2**63 - 1, (self.points.shape[-1],), generator=generator) | 1
            factors = factors.to(self.points.device)
            codes, order = torch.sort(_encode(self.points, factors), stable=True)
            again = (codes[1:] == codes[:-1]).nonzero().squeeze(-1)
            if torch.equal(self.points[order[again]], self.points[order[again + 1]]):
                break
        return factors, codes, order

    @cached_property
    def repeated(self) -> Tensor:
        """``N``, which points equal one before."""
        _, codes, order = self._index
        nowhere = torch.zeros(len(order), dtype=torch.bool, device=order.device)
        return nowhere.scatter(0, order[1:], codes[1:] == codes[:-1])

    def list_places(self, X: Tensor) -> list[int]:
        """Return the places of all ``(b) x q`` points as numbers; on the CPU, those found before are remembered."""
        if not is_free_to_look(X):
            return _list(self.find(X))
        points = [tuple(point) for point in X.reshape(-1, X.shape[-1]).tolist()]
        if not all(point in self._found for point in points):
            places = _list(self.find(X))
            self._found.update({point: place for point, place in zip(points, places, strict=True) if place >= 0})
            return places
        return [self._found[point] for point in points]

    def find(self, X: Tensor) -> Tensor:
        """Return the places ``(b) x q`` of the first points that equal ``(b) x q x d`` ones; -1 for none."""
        factors, codes, order = self._index
        places = order[torch.searchsorted(codes, _encode(X, factors)).clamp_max_(codes.shape[0] - 1)]
        return places.masked_fill_((self.points[places] != X).any(dim=-1), -1)


@dataclass(frozen=True, eq=False)
class Sites:
    """Observations grouped by point: how many there are at each, and their mean.

    Attributes:
        counts: ``(b) x u``.
        means: ``(b) x u x n``; zero where there is none.
        scatter: ``(b)``, the sum of the squared distances of all values from the mean at their point.
        places: ``u`` on the CPU, in order: where the points are in the list that they are from.
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
        no_means = like[..., :0, :]
        nowhere = torch.empty(0, dtype=torch.long)
        return cls(no_means[..., 0], no_means, like.new_zeros(like.shape[:-2]), nowhere)

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of everything, by name."""
        return {name: value.clone() for name, value in vars(self).items()}

    def restore(self, tensors: dict[str, Tensor]) -> Sites:
        """Return what :meth:`tensors` was made from, for values like these."""
        batch_shape, u, n = self.scatter.shape, len(tensors["places"]), self.means.shape[-1]
        shapes = {"counts": (*batch_shape, u), "means": (*batch_shape, u, n), "scatter": batch_shape, "places": (u,)}
        for name, shape in shapes.items():
            if tensors[name].shape != shape:
                raise ValueError(f"{name} of shape {tuple(tensors[name].shape)}")
        return Sites(**tensors | {"places": tensors["places"].cpu()})

    def add(self, places: Tensor, Y: Tensor) -> Sites:
        """Take in ``(b) x q x n`` values at ``(b) x q`` places, which are on the CPU."""
        sites, slots = self._make_room(places)
        counts = sites.counts.scatter_add(-1, slots, torch.ones_like(slots, dtype=Y.dtype))
        index = slots.unsqueeze(-1).expand_as(Y)
        # About the means so far, so that nothing is lost where values are large beside their differences.
        apart = Y - sites.means.gather(-2, index)
        means = sites.means.scatter_add(-2, index, apart / counts.gather(-1, slots).unsqueeze(-1))
        more = (apart * (Y - means.gather(-2, index))).sum(dim=(-2, -1))
        return Sites(counts, means, (self.scatter + more).clamp_min(0), sites.places)

    def _make_room(self, places: Tensor) -> tuple[Sites, Tensor]:
        """Return the same with these places, and their slots ``(b) x q``; nothing is moved unless one is new."""
        slots, device = torch.searchsorted(self.places, places), self.means.device
        if (slots < torch.searchsorted(self.places, places, right=True)).all():
            return self, slots.to(device)
        new = places.unique()
        new = new[~torch.isin(new, self.places)]
        known, order = torch.cat([self.places, new]).sort()
        moved = torch.cat([order, torch.searchsorted(known, places).flatten()]).to(device)  # one wait for both
        order, slots = moved[: len(known)], moved[len(known) :].reshape(places.shape)
        counts = torch.nn.functional.pad(self.counts, (0, len(new)))[..., order]
        means = torch.nn.functional.pad(self.means, (0, 0, 0, len(new)))[..., order, :]
        return Sites(counts, means, self.scatter, known), slots


def _list(places: Tensor) -> list[int]:
    listed: list[int] = places.flatten().tolist()
    return listed


def _encode(X: Tensor, factors: Tensor) -> Tensor:
    """Return whole numbers ``...``, the same for equal ones of ``... x d`` points and hardly ever for others."""
    whole = torch.int64 if X.dtype == torch.double else torch.int32
    return ((X + 0.0).view(whole) * factors).sum(dim=-1)  # plus zero, as there is a negative one


def _number_points(X: Tensor) -> Tensor:
    """Give each of ``(b) x t`` points a number, the same for equal points of a data set."""
    # Column by column, because sorting numbers is an order of magnitude faster than sorting rows.
    first, *others = (_number_values(column) for column in X.unbind(dim=-1))
    return reduce(lambda index, code: _number_values(index * X.shape[-2] + code), others, first)


def _number_values(values: Tensor) -> Tensor:
    """Give each of ``(b) x t`` values a number, the same for equal ones of a data set, from zero without gaps."""
    ordered, order = values.sort(dim=-1)
    number = torch.nn.functional.pad((ordered[..., 1:] != ordered[..., :-1]).cumsum(dim=-1), (1, 0))
    return torch.empty_like(order).scatter(-1, order, number)


def rows_at(X: Tensor, indices: Tensor) -> Tensor:
    """Pick rows ``(b) x m`` out of ``(b) x t x d``."""
    return torch.take_along_dim(X, indices.unsqueeze(-1), dim=-2)
