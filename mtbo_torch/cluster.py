"""Choices that stay on the workers of a Dask cluster: each worker tracks its own, and answers with its best.

What travels is the small regression, or what an observation changed in it. Everything that workers keep follows from
their choices and from what was sent, so what a worker loses, Dask computes again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import torch
from botorch.acquisition import AcquisitionFunction
from torch import Tensor

from mtbo_torch.checks import checksum
from mtbo_torch.regression import NystromRegression, Regression, Tracked, TrackedPieces
from mtbo_torch.space import NOTHING, Choices, Search, Space, draw_ties
from mtbo_torch.surrogate import Surrogate, Units

# Gigabytes: workers keep all features of their choices.
ALL_OF_IT = 1e9


def is_dask_array(values: object) -> bool:
    """Return whether values are a Dask array, without importing Dask."""
    return type(values).__module__.startswith("dask.array")


@dataclass(frozen=True)
class Part:
    """The choices of one chunk, as a worker checked them.

    Attributes:
        rows: Their number.
        hull: ``2 x d``, the smallest box around them.
        fingerprint: Their checksum.
    """

    rows: int
    hull: Tensor
    fingerprint: str


class ClusterChoices(Space):
    """A finite set of points on the workers of a Dask cluster.

    Args:
        choices: A Dask array, ``N x d``. Chunks of some ten thousand rows and more are best.
        repeat: Whether a choice may be found again once it was told or while it is pending. Equal choices in different
            chunks count as two.
    """

    name = "choices on a cluster"

    def __init__(self, choices: Any, repeat: bool = True) -> None:
        self.repeat, self._client = repeat, _find_client()
        blocks = self._client.compute(_split(choices))
        self._chunks = [self._submit(_make_choices, block, repeat) for block in blocks]
        self._parts: list[Part] = []
        for future in [self._submit(_describe, chunk) for chunk in self._chunks]:
            try:
                self._parts.append(future.result())
            except BadRow as bad:
                raise ValueError(
                    f"choices should contain finite numbers only, got NaN or Inf in row {len(self) + bad.row}. Remove "
                    "or replace it."
                ) from None
        super().__init__(self._parts[0].hull[:0])
        # What counts as rounding follows from all choices.
        self._chunks = [self._submit(_compare_by, chunk, self.span) for chunk in self._chunks]

    def _submit(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._client.submit(function, *args, pure=False)

    def _ask_all(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        return self._client.gather([self._submit(function, chunk, *args) for chunk in self._chunks])

    def __len__(self) -> int:
        return sum(part.rows for part in self._parts)

    @cached_property
    def hull(self) -> Tensor:
        corners = torch.stack([part.hull for part in self._parts])
        return torch.stack([corners[:, 0].amin(dim=0), corners[:, 1].amax(dim=0)])

    @cached_property
    def fingerprint(self) -> str:
        return checksum([part.fingerprint for part in self._parts])

    def describe(self) -> str:
        return f"on {len(self):,} choices in {len(self._parts)} chunks on a cluster"

    def settings(self) -> dict[str, Any]:
        return {"repeat": self.repeat}

    def take_in(self, x: Tensor) -> tuple[Tensor, str]:
        is_choice = torch.stack(self._ask_all(_has, x)).any(dim=0)
        if is_choice.all():
            return x, ""
        closest, apart = (torch.stack(part) for part in zip(*self._ask_all(_find_closest, x), strict=True))
        least, chunk = apart.min(dim=0)
        closest = closest.gather(0, chunk[None, ..., None].expand(1, *x.shape)).squeeze(0)
        is_near = ~is_choice & (least <= self.tolerance)
        x, strange = torch.where(is_near.unsqueeze(-1), closest, x), (~is_choice & ~is_near).flatten()
        if not strange.any():
            return x, ""
        row = ", ".join(f"{value:g}" for value in x.reshape(-1, self.num_inputs)[strange][0].tolist())
        return x, self._describe_outside(x) or f"A point told is none of the {len(self):,} choices: [{row}]."

    def require_room(self, used: Tensor, wanted: int, fixed: Mapping[int, float] = NOTHING) -> None:
        if self.repeat and not fixed:
            return
        left = int(torch.stack(self._ask_all(_count_left, used, dict(fixed))).sum(dim=0).amin())
        if left < wanted:
            raise ValueError(
                f"q should be at most {left}, the number of choices that were neither told nor are pending and have "
                f"the fixed values, got {wanted}. With repeat=True choices are asked for again."
            )

    def watch(self, surrogate: Surrogate) -> Surrogate:
        assert isinstance(surrogate.regression, NystromRegression)
        light = surrogate.regression.without_data()
        pieces = [RemotePiece(self._submit, chunk, surrogate.units, light) for chunk in self._chunks]
        tracking = TrackedPieces(surrogate.regression, pieces)
        return Surrogate(surrogate.regression, surrogate.units, surrogate.prior_mean, tracking)

    def search(self, task: Search) -> tuple[Tensor, Tensor]:
        known = [_find_pieces(surrogate) for surrogate in task.surrogates]
        units, fixed = [surrogate.units for surrogate in task.surrogates], dict(task.fixed)
        used = task.used[..., :0, :] if self.repeat else task.used  # which may be very many
        scores = [
            self._submit(
                _score, chunk, [[p[i].future for p in of_one] for of_one in known], units, task.acquire, used, fixed
            )
            for i, chunk in enumerate(self._chunks)
        ]
        tops = self._client.gather([self._submit(_find_top, score) for score in scores])
        best, ties = (torch.stack(part) for part in zip(*tops, strict=True))  # C x (b)
        if (best.amax(dim=0) == -torch.inf).any():
            raise ValueError(
                "q should be at most the number of choices left, got more: no choice is left. Ask for fewer."
            )
        ties = torch.where(best == best.amax(dim=0), ties, 0)
        number = draw_ties(ties.sum(dim=0), task.generators).long()
        before = ties.cumsum(dim=0) - ties
        where = ((before <= number) & (number < before + ties)).to(torch.uint8).argmax(dim=0)
        rest = number - before.gather(0, where.unsqueeze(0)).squeeze(0)
        pairs = zip(where.flatten().tolist(), rest.flatten().tolist(), strict=True)
        taken = [
            self._submit(_take, self._chunks[chunk], scores[chunk], trial, tie)
            for trial, (chunk, tie) in enumerate(pairs)
        ]
        points, values = (torch.stack(part) for part in zip(*self._client.gather(taken), strict=True))
        batch_shape = task.used.shape[:-2]
        return points.reshape(*batch_shape, 1, -1), values.reshape(*batch_shape, 1, -1)

    def from_cube(self, unit: Tensor, fixed: Mapping[int, float] = NOTHING) -> NoReturn:
        raise NotImplementedError("Choices on a cluster are only searched.")

    def optimize(
        self, acqf: AcquisitionFunction, num_restarts: int, raw_samples: int, fixed: Mapping[int, float] = NOTHING
    ) -> NoReturn:
        raise NotImplementedError("Choices on a cluster are only searched.")


class RemotePiece(Tracked):
    """A chunk's choices, tracked by a worker.

    Args:
        submit: Takes a function and its arguments to the cluster.
        chunk: The choices.
        units: The user's units.
        regression: The regression, without data.
        before: What the worker knew before an append. It is of no use where the regression was fitted anew.

    Attributes:
        future: What the worker keeps: all pieces of the chunk.
    """

    is_here = False

    def __init__(
        self,
        submit: Callable[..., Any],
        chunk: Any,
        units: Units,
        regression: NystromRegression,
        before: RemotePiece | None = None,
    ) -> None:
        self.submit, self.chunk, self.units = submit, chunk, units
        if before is None or regression.growth is None:
            self.future = submit(_watch, chunk, Surrogate(regression, units))
        else:
            self.future = submit(_advance, before.future, regression)

    def advance(self, grown: Regression) -> Tracked:
        assert isinstance(grown, NystromRegression)
        return RemotePiece(self.submit, self.chunk, self.units, grown.without_data(), self)


class BadRow(Exception):
    """A chunk has a number that is not finite.

    Args:
        row: The first row with one.
    """

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def _find_client() -> Any:
    from distributed import get_client

    try:
        return get_client()
    except ValueError:
        raise ValueError(
            "choices should be a tensor or an array where there is no Dask cluster, got a Dask array. Start one with "
            "distributed.Client()."
        ) from None


def _split(choices: Any) -> list[Any]:
    """Return the chunks of a Dask array, all inputs in each."""
    if choices.ndim != 2 or 0 in choices.shape:
        raise ValueError(
            f"choices should be `N x d` with at least one row, got shape {choices.shape}. Pass one row per point."
        )
    if any(size != size for sizes in choices.chunks for size in sizes):  # NaN
        raise ValueError(
            f"choices should have chunks of known sizes, got {choices.chunks}. Use choices.compute_chunk_sizes()."
        )
    blocks: list[Any] = choices.rechunk({1: -1}).to_delayed().flatten().tolist()
    return blocks


def _find_pieces(surrogate: Surrogate) -> list[list[RemotePiece]]:
    """Return the pieces of a surrogate, and of the one that its mean is from, if that is another."""
    found = []
    for one in (surrogate, surrogate.real):
        if one is not None:
            assert one.tracking is not None
            found.append([piece for piece in one.tracking.parts if isinstance(piece, RemotePiece)])
    return found


# The rest runs on the workers.


def _make_choices(block: Any, repeat: bool) -> Choices:
    points = torch.as_tensor(block)
    bad = (~points.isfinite()).any(dim=-1).nonzero()
    if len(bad):
        raise BadRow(int(bad[0]))
    return Choices(points, repeat, memory=ALL_OF_IT)


def _compare_by(chunk: Choices, span: Tensor) -> Choices:
    chunk = copy(chunk)
    chunk.span = span
    return chunk


def _describe(chunk: Choices) -> Part:
    return Part(len(chunk.points), chunk.hull, chunk.fingerprint)


def _has(chunk: Choices, x: Tensor) -> Tensor:
    return chunk.has(x)


def _find_closest(chunk: Choices, x: Tensor) -> tuple[Tensor, Tensor]:
    return chunk.find_closest(x)


def _count_left(chunk: Choices, used: Tensor, fixed: dict[int, float]) -> Tensor:
    return chunk.find_allowed(used, fixed).sum(dim=-1)


def _watch(chunk: Choices, surrogate: Surrogate) -> TrackedPieces:
    with torch.no_grad():
        tracking = chunk.watch(surrogate).tracking
    assert tracking is not None
    return tracking


def _advance(tracking: TrackedPieces, grown: Regression) -> TrackedPieces:
    with torch.no_grad():
        return tracking.advance(grown)


Score = tuple[Tensor, Tensor]


def _score(
    chunk: Choices,
    known: list[list[TrackedPieces]],
    units: list[Units],
    acquire: Callable[..., Tensor],
    used: Tensor,
    fixed: dict[int, float],
) -> Score:
    """Return the values of all choices of a chunk, and the first of them where they may be asked for."""
    surrogates = []
    for (tracking, *real), unit in zip(known, units, strict=True):
        before = [Surrogate(one.regression, unit, tracking=one) for one in real]
        surrogates.append(Surrogate(tracking.regression, unit, None, tracking, *before))
    with torch.no_grad():
        return chunk.score(Search(surrogates, acquire, used, [], True, fixed=fixed))


def _find_top(score: Score) -> tuple[Tensor, Tensor]:
    """Return the largest first value of each data set, and how many choices have it, ``(b)``."""
    first = score[1]
    best = first.amax(dim=-1)
    return best, (first == best.unsqueeze(-1)).sum(dim=-1)


def _take(chunk: Choices, score: Score, trial: int, tie: int) -> tuple[Tensor, Tensor]:
    """Return the point ``d`` and the values ``c`` of one of a data set's equally good choices."""
    values, first = (part.reshape(-1, *part.shape[-k:]) for part, k in zip(score, (2, 1), strict=True))
    place = int((first[trial] == first[trial].amax()).nonzero()[tie])
    return chunk.points[place], values[trial, place]
