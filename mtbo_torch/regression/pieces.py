"""Very many points that are tracked, in pieces: what a round takes besides what is kept depends on one piece alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mtbo_torch.regression.base import Audit, Regression, Renewal, Tracked
from mtbo_torch.regression.nystrom import NystromRegression, TrackedNystrom
from mtbo_torch.regression.sites import Lookup, Sites

# The number of points in a piece.
PIECE = 2**14


def track_in_pieces(regression: Regression, points: Tensor, memory: float) -> Tracked:
    """Keep what is known at ``N x d`` points up to date, in pieces if there are many; see :meth:`Regression.track`."""
    if len(points) <= PIECE:
        return regression.track(points, memory)
    parts = [regression.track(piece, memory * len(piece) / len(points)) for piece in points.split(PIECE)]
    is_nystrom = isinstance(regression, NystromRegression) and regression.num_observations == 0
    return TrackedPieces(regression, points, parts, memory, Sites.none(regression.train_Y) if is_nystrom else None)


class TrackedPieces(Tracked):
    """The belief at fixed points, in pieces that are brought up to date one after the other.

    Args:
        regression: The regression.
        X: ``N x d``.
        parts: The pieces.
        memory: As in :meth:`Regression.track`.
        sites: All observations of a regression with a dictionary, if they are known to be at these points.
        lookup: The places of these points, if somebody has looked for some before.
    """

    def __init__(
        self,
        regression: Regression,
        X: Tensor,
        parts: Sequence[Tracked],
        memory: float,
        sites: Sites | None = None,
        lookup: Lookup | None = None,
    ) -> None:
        super().__init__(regression, X, memory)
        self._parts, self.sites, self._lookup = parts, sites, lookup

    @property
    def parts(self) -> Sequence[Tracked]:
        return self._parts

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

    def append(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, renew: Renewal | None = None) -> Tracked:
        tracked = super().append(X, Y, noise, renew)
        if self.sites is not None and isinstance(tracked, TrackedPieces):
            self._lookup = Lookup(self.X) if self._lookup is None else self._lookup
            places = self._lookup.find(X)
            tracked.sites = None if (places < 0).any() else self.sites.add(places, Y)
            tracked._lookup = self._lookup
        return tracked

    def advance(self, grown: Regression) -> Tracked:
        return self._change(grown, lambda part: part.advance(grown))

    def restart(self, regression: Regression) -> Tracked:
        return self._change(regression, lambda part: part.restart(regression))

    def audit(self) -> Audit:
        if self.sites is None or not isinstance(self.regression, NystromRegression):
            return super().audit()
        places, known, start = self.sites.places, [], 0
        for part in self.parts:
            assert isinstance(part, TrackedNystrom)
            first, end = torch.searchsorted(places, torch.tensor([start, start + len(part.X)]).to(places)).tolist()
            if first < end:
                known.append((slice(first, end), *part.pick(places[first:end] - start)))
            start += len(part.X)
        return self.regression.audit_at(self.sites, known)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything but the regression, the points and their features; :meth:`restore` takes it back."""
        of_parts = [part.tensors() for part in self.parts if isinstance(part, TrackedNystrom)]
        joined = {
            name: torch.cat([one[name] for one in of_parts], dim=dim) for name, dim in TrackedNystrom.STORED.items()
        }
        return joined | ({} if self.sites is None else self.sites.tensors())

    def restore(self, tensors: dict[str, Tensor]) -> TrackedPieces:
        """Return what :meth:`tensors` was made from, to the last bit."""
        of_points = {name: tensors[name].split(PIECE, dim=dim) for name, dim in TrackedNystrom.STORED.items()}
        rest = {name: value for name, value in tensors.items() if name not in of_points}
        parts = []
        for i, part in enumerate(self.parts):
            assert isinstance(part, TrackedNystrom)
            parts.append(part.restore({name: pieces[i] for name, pieces in of_points.items()}))
        sites = Sites.none(self.regression.train_Y).restore(rest) if rest else None
        return TrackedPieces(self.regression, self.X, parts, self.memory, sites)

    def _change(self, regression: Regression, change: Callable[[Tracked], Tracked]) -> TrackedPieces:
        parts = [change(part) for part in self.parts]
        return TrackedPieces(regression, self.X, parts, self.memory)
