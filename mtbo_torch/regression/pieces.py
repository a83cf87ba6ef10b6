"""A list of points that is tracked, in pieces: what a round takes besides what is kept depends on one piece alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Self

import torch
from torch import Tensor

from mtbo_torch.regression.base import Audit, Regression, Renewal, Tracked
from mtbo_torch.regression.belief import Belief
from mtbo_torch.regression.nystrom import NystromRegression, TrackedNystrom
from mtbo_torch.regression.sites import Lookup, Sites

# The number of points in a piece. Where a list is cut decides the last bits of what is known, so it is always the same.
PIECE = 2**14

Spread = list[tuple[slice, Tensor]]


class TrackedPieces(Belief):
    """The belief at fixed points while observations arrive, piece by piece.

    After a fit, all pieces are found anew, and only once they are asked for: by then, those before are forgotten.

    Args:
        regression: The regression.
        parts: The pieces, one after the other, or what finds them.
        sites: All observations by point, if they are known to be at these points.
        lookup: The places of the points, to find where observations are.
        spread: The sites and their places in each piece, if they are known.
    """

    def __init__(
        self,
        regression: Regression,
        parts: Sequence[Tracked] | Callable[[], Sequence[Tracked]],
        sites: Sites | None = None,
        lookup: Lookup | None = None,
        spread: Spread | None = None,
    ) -> None:
        self.regression, self.sites, self.lookup = regression, sites, lookup
        self._parts, self._spread = parts, spread

    @property
    def parts(self) -> Sequence[Tracked]:
        """The pieces, one after the other."""
        if callable(self._parts):
            with torch.no_grad():
                self._parts = self._parts()
        return self._parts

    @classmethod
    def start(cls, regression: Regression, pieces: Sequence[Tensor], memory: float, lookup: Lookup | None) -> Self:
        """Track pieces of ``N x d`` points.

        Args:
            regression: The regression.
            pieces: The points.
            memory: As in :meth:`Regression.track`, for all of them.
            lookup: The places of the points, if they are known.
        """
        share = memory / sum(map(len, pieces))
        parts = partial(_track, regression, [(piece, share * len(piece)) for piece in pieces])
        if not isinstance(regression, NystromRegression):
            return cls(regression, parts)
        sites = None
        if lookup is not None and regression.is_swept:  # others have no use for an audit
            places = lookup.find(regression.train_X).cpu()
            sites = Sites.none(regression.train_Y).add(places, regression.train_Y) if (places >= 0).all() else None
        return cls(regression, parts, sites, lookup)

    @property
    def mean(self) -> Tensor:
        return torch.cat([part.mean for part in self.parts], dim=-2)

    @property
    def covariance(self) -> Tensor:
        return torch.cat([part.covariance for part in self.parts], dim=-3)

    @property
    def norm(self) -> Tensor:
        return torch.cat([part.norm for part in self.parts], dim=-1)

    def variance(self, directions: Tensor | None = None) -> Tensor:
        return torch.cat([part.variance(directions) for part in self.parts], dim=-2)

    def append(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, renew: Renewal | None = None) -> TrackedPieces:
        """Return what is known after more observations.

        Args:
            X: ``(b) x q x d``.
            Y: ``(b) x q x n``.
            noise: ``(b) x q x n`` variances, where observations have their own.
            renew: What to do with the regression before points are tracked by it, such as drawing a dictionary.
        """
        places = [-1] if self.lookup is None else self.lookup.list_places(X)
        grown = self.regression.append(X, Y, noise, **self._recall(places))
        tracked = self.advance(grown if renew is None else renew(grown))
        if self.sites is None or -1 in places:
            return tracked
        sites = self.sites.add(torch.tensor(places).reshape(X.shape[:-1]), Y)
        return tracked.with_sites(sites, self._spread if sites.places is self.sites.places else None)

    def _recall(self, places: list[int]) -> dict[str, Tensor]:
        """Return what is known of a point that is observed, as an append takes it, if it is one point of one piece."""
        [place, *others], parts = places, iter(self.parts)
        if others or place < 0:
            return {}
        while place >= (size := (part := next(parts)).X.shape[-2]):
            place -= size
        return part.recall(place) if isinstance(part, TrackedNystrom) else {}

    def advance(self, grown: Regression) -> TrackedPieces:
        """Return what is known once :attr:`regression` has grown by an append, and perhaps by more points after it."""
        parts = [part.advance(grown) for part in self.parts] if self._keeps(grown) else self._start_over(grown)
        return TrackedPieces(grown, parts, lookup=self.lookup)

    def _keeps(self, grown: Regression) -> bool:
        return grown.growth is not None or not all(part.is_here for part in self.parts)

    def _start_over(self, regression: Regression) -> Callable[[], Sequence[Tracked]]:
        return partial(_track, regression, [(part.X, part.memory) for part in self.parts])

    def restart(self, regression: Regression) -> TrackedPieces:
        """Return what another regression knows at the same points."""
        return TrackedPieces(regression, self._start_over(regression))

    def with_sites(self, sites: Sites | None, spread: Spread | None = None) -> TrackedPieces:
        """Return the same, with all observations by point."""
        return TrackedPieces(self.regression, self._parts, sites, self.lookup, spread)

    def audit(self) -> Audit:
        """Return the regression's audit."""
        if self.sites is None or not isinstance(self.regression, NystromRegression):
            return self.regression.audit()
        if self._spread is None:
            self._spread = self._find_spread(self.sites.places)
        known = []
        for part, (rows, here) in zip(self.parts, self._spread, strict=True):
            assert isinstance(part, TrackedNystrom)
            known.append((rows, part.mean.index_select(-2, here), part.residual.index_select(-3, here)))
        return self.regression.audit_at(self.sites, known)

    def _find_spread(self, places: Tensor) -> Spread:
        """Return which of the sites are in each piece, and where in it."""
        edges = [0, *accumulate(part.X.shape[-2] for part in self.parts)]
        ends = torch.searchsorted(places, torch.tensor(edges)).tolist()
        rows = [slice(first, end) for first, end in pairwise(ends)]
        starts = zip(rows, edges, self.parts, strict=False)
        return [(row, (places[row] - start).to(part.X.device)) for row, start, part in starts]


def _track(regression: Regression, pieces: Sequence[tuple[Tensor, float]]) -> list[Tracked]:
    return [regression.track(points, memory) for points, memory in pieces]
