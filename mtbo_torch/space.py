"""Where to search: a box, or a list of choices. A space checks points, draws them, and finds the best one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from torch import Tensor

from mtbo_torch.checks import require_bounds, require_choices, require_count
from mtbo_torch.optimization import maximize
from mtbo_torch.regression import Belief, rows_at
from mtbo_torch.surrogate import Surrogate

DEFAULT_RESTARTS, DEFAULT_RAW_SAMPLES = 10, 256


@dataclass(frozen=True)
class Search:
    """A search for the best points.

    Attributes:
        surrogate: What is known.
        acquire: Takes what is known inside the surrogate at ``... x (b) x q`` points to ``... x (b) x q x c`` values,
            the first of which is maximized.
        used: ``(b) x t x d``, points told or pending.
        generators: One for each data set of the surrogate.
        needs_variances: Whether `acquire` looks at more than mean and norm.
        starts: ``(b) x S x d`` points of the unit cube, which stands for the space's hull, to start from as well.
    """

    surrogate: Surrogate
    acquire: Callable[[Belief], Tensor]
    used: Tensor
    generators: Sequence[torch.Generator]
    needs_variances: bool
    starts: Tensor | None = None


class Space(ABC):
    """A set of points with d inputs to search.

    Attributes:
        points: The points that span it: ``2 x d`` corners, or ``N x d`` choices.
        name: What users call them: ``"bounds"`` or ``"choices"``.
        repeat: Whether a point may be found again.
    """

    name: str
    repeat = True

    def __init__(self, points: Tensor) -> None:
        self.points = points.detach().clone()

    @property
    def num_inputs(self) -> int:
        """The number of inputs d."""
        return self.points.shape[-1]

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs."""
        return [f"x_{i + 1}" for i in range(self.num_inputs)]

    @cached_property
    def hull(self) -> Tensor:
        """``2 x d``, the corners of the smallest box around it."""
        return torch.stack([self.points.amin(dim=0), self.points.amax(dim=0)])

    @cached_property
    def span(self) -> Tensor:
        """``d``, the width of each input, by which points are compared; one for an input that never varies."""
        width = self.hull[1] - self.hull[0]
        return torch.where(width > 0, width, 1)

    @property
    def tolerance(self) -> float:
        """The difference of an input, in shares of its width, up to which two points are the same but for rounding."""
        return math.sqrt(torch.finfo(self.points.dtype).eps)

    def require_points(self, x: Tensor, batch_shape: torch.Size) -> None:
        """Refuse points that are not ``(b) x q x d`` of the space's dtype and device."""
        d = self.num_inputs
        if x.shape[:-2] != batch_shape or x.shape[-1] != d or x.shape[-2] == 0:
            wanted = " x ".join(map(str, (*batch_shape, "q", "d")))
            raise ValueError(
                f"x should be `{wanted}` with d = {d} and at least one row, got shape {tuple(x.shape)}. "
                "Pass one row per point."
            )
        if x.dtype != self.points.dtype or x.device != self.points.device:
            raise ValueError(
                f"x should have the dtype and device of the search space ({self.points.dtype}, {self.points.device}), "
                f"got {x.dtype} on {x.device}. Use x.to(bounds) or x.to(choices)."
            )

    def require_room(self, used: Tensor, wanted: int) -> None:  # noqa: B027  (a box always has room)
        """Refuse to look for more points than are left besides ``(b) x t x d`` used ones."""

    @abstractmethod
    def describe(self) -> str:
        """Return what it is in a few words."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return what decides how it is searched, as plain values."""

    @abstractmethod
    def from_cube(self, unit: Tensor) -> Tensor:
        """Return the points of the space nearest to ``... x d`` points of the unit cube, which stands for its hull."""

    def find_nearest(self, unit: Tensor, used: Tensor) -> Tensor:
        """Return the points nearest to ``(b) x q x d`` ones of the unit cube that may be asked for.

        Args:
            unit: ``(b) x q x d``.
            used: ``(b) x t x d``, points told or pending.
        """
        return self.from_cube(unit)

    @abstractmethod
    def sample(self, q: int, generator: torch.Generator) -> Tensor:
        """Return ``q x d`` points, uniformly at random."""

    @abstractmethod
    def watch(self, surrogate: Surrogate) -> Surrogate:
        """Prepare a surrogate for being searched while observations arrive."""

    @abstractmethod
    def search(self, task: Search) -> tuple[Tensor, Tensor]:
        """Return the best points, ``(b) x 1 x d``, and their values, ``(b) x 1 x c``."""

    @abstractmethod
    def optimize(self, acqf: AcquisitionFunction, num_restarts: int, raw_samples: int) -> Tensor:
        """Return the point ``1 x d`` that maximizes a BoTorch acquisition function."""


class Box(Space):
    """All points between two corners.

    Args:
        bounds: ``2 x d``.
        num_restarts: From how many points an acquisition is maximized.
        raw_samples: From how many Sobol points these are chosen.
    """

    name = "bounds"

    def __init__(
        self, bounds: Tensor, num_restarts: int = DEFAULT_RESTARTS, raw_samples: int = DEFAULT_RAW_SAMPLES
    ) -> None:
        require_bounds(bounds)
        super().__init__(bounds)
        self.num_restarts, self.raw_samples = num_restarts, raw_samples

    def describe(self) -> str:
        return "in a box"

    def settings(self) -> dict[str, Any]:
        return {"num_restarts": self.num_restarts, "raw_samples": self.raw_samples}

    def from_cube(self, unit: Tensor) -> Tensor:
        return self._stretch(unit.to(self.points)).clamp(*self.points)

    def _stretch(self, unit: Tensor) -> Tensor:
        low, high = self.points
        return low + (high - low) * unit

    def sample(self, q: int, generator: torch.Generator) -> Tensor:
        return self.from_cube(torch.rand(q, self.num_inputs, generator=generator, dtype=torch.double))

    def watch(self, surrogate: Surrogate) -> Surrogate:
        return surrogate

    def search(self, task: Search) -> tuple[Tensor, Tensor]:
        batch_shape = task.used.shape[:-2]
        known = task.surrogate.prepare_for_variances() if task.needs_variances else task.surrogate

        def evaluate(unit: Tensor) -> Tensor:
            X = self._stretch(unit).unsqueeze(-2)  # R x b x 1 x d
            values = task.acquire(known.inside(X if batch_shape else X.squeeze(1)))[..., 0, 0]
            return values if batch_shape else values.unsqueeze(-1)

        seeds = [int(torch.randint(2**31, (1,), generator=generator)) for generator in task.generators]
        cube = torch.stack([torch.zeros_like(self.points[0]), torch.ones_like(self.points[1])])
        extra = None if task.starts is None else task.starts.reshape(len(seeds), *task.starts.shape[-2:]).movedim(0, 1)
        best, _ = maximize(evaluate, cube, seeds, self.num_restarts, self.raw_samples, extra)
        points = self.from_cube(best).reshape(*batch_shape, 1, self.num_inputs)
        with torch.no_grad():
            return points, task.acquire(known.inside(points))

    def optimize(self, acqf: AcquisitionFunction, num_restarts: int, raw_samples: int) -> Tensor:
        best, _ = optimize_acqf(acqf, self.points, q=1, num_restarts=num_restarts, raw_samples=raw_samples)
        return best.detach()


class Choices(Space):
    """A finite set of points.

    Args:
        choices: ``N x d``.
        repeat: Whether a choice may be found again once it was told or while it is pending.
    """

    name = "choices"

    def __init__(self, choices: Tensor, repeat: bool = True) -> None:
        require_choices("choices", choices)
        super().__init__(choices)
        self.repeat = repeat

    def describe(self) -> str:
        return f"on {len(self.points):,} choice{'' if len(self.points) == 1 else 's'}"

    def settings(self) -> dict[str, Any]:
        return {"repeat": self.repeat}

    def from_cube(self, unit: Tensor) -> Tensor:
        low, high = self.hull
        points = low + (high - low) * unit.to(low)
        return self.points[torch.cdist(points, self.points).argmin(dim=-1)]

    def find_nearest(self, unit: Tensor, used: Tensor) -> Tensor:
        if self.repeat:
            return self.from_cube(unit)
        low, high = self.hull
        found = used
        for point in (low + (high - low) * unit.to(low)).split(1, dim=-2):
            apart = torch.cdist(point, self.points).squeeze(-2).masked_fill(self._find_taken(found), torch.inf)
            found = torch.cat([found, self.points[apart.argmin(dim=-1, keepdim=True)]], dim=-2)
        return found[..., used.shape[-2] :, :]

    def sample(self, q: int, generator: torch.Generator) -> Tensor:
        uniform = torch.rand(q, 1, generator=generator, dtype=torch.double).squeeze(-1)
        return self.points[(uniform * len(self.points)).long().to(self.points.device)]

    def watch(self, surrogate: Surrogate) -> Surrogate:
        return surrogate.track(self.points)

    def search(self, task: Search) -> tuple[Tensor, Tensor]:
        values = task.acquire(task.surrogate.tracked)
        first = values[..., 0]
        if not self.repeat:
            first = first.masked_fill(self._find_taken(task.used), -torch.inf)
        # Ties, such as all choices before the first observation, are broken at random.
        index = _pick_best(first, task.generators).unsqueeze(-1)
        return self.points[index], rows_at(values, index)

    def optimize(self, acqf: AcquisitionFunction, num_restarts: int, raw_samples: int) -> Tensor:
        return optimize_acqf_discrete(acqf, q=1, choices=self.points)[0].detach()

    def require_room(self, used: Tensor, wanted: int) -> None:
        if self.repeat:
            return
        left = int((~self._find_taken(used)).sum(dim=-1).amin())
        if left < wanted:
            raise ValueError(
                f"q should be at most {left}, the number of choices that were neither told nor are pending, got "
                f"{wanted}. With repeat=True choices are asked for again."
            )

    @cached_property
    def _first_equal(self) -> Tensor:
        """``N``, for each choice the place of the first that equals it."""
        distinct, index = torch.unique(self.points, dim=0, return_inverse=True)
        places = torch.arange(len(self.points), device=self.points.device)
        return index.new_full((len(distinct),), len(self.points)).scatter_reduce(0, index, places, "amin")[index]

    def _find_taken(self, used: Tensor) -> Tensor:
        """Return which choices, ``(b) x N``, were used or equal one before."""
        apart = torch.cdist(self.points / self.span, used / self.span, p=torch.inf)  # (b) x N x t
        # The nearest only: choices may be as close to each other as what is taken for rounding.
        distance, nearest = apart.min(dim=-2)
        is_choice = distance <= self.tolerance
        told = apart.new_zeros(apart.shape[:-1]).scatter_add(-1, self._first_equal[nearest], is_choice.to(apart))
        return (told > 0) | (self._first_equal != torch.arange(len(self.points), device=told.device))


def make_space(
    owner: str,
    bounds: Tensor | None,
    choices: Tensor | None,
    repeat: bool = True,
    num_restarts: int = DEFAULT_RESTARTS,
    raw_samples: int = DEFAULT_RAW_SAMPLES,
) -> Space:
    """Return the box or the choices, whichever is given; refuse both and neither in the name of `owner`."""
    if (bounds is None) == (choices is None):
        raise ValueError(
            f"{owner} should get either bounds or choices, got {'neither' if bounds is None else 'both'}. "
            "Pass bounds (2 x d) to search a box, or choices (N x d) to search a finite set."
        )
    if not isinstance(repeat, bool) or (choices is None and not repeat):
        raise ValueError(
            f"repeat should be True, or False on choices, got {repeat!r}{' on bounds' if choices is None else ''}. "
            "False asks for each choice once."
        )
    require_count("num_restarts", num_restarts, "Pass for instance 10.")
    require_count("raw_samples", raw_samples, "Pass for instance 256.")
    if raw_samples < num_restarts:
        raise ValueError(
            f"raw_samples should be at least num_restarts = {num_restarts}, got {raw_samples}. The restarts are chosen "
            "from them."
        )
    if bounds is not None:
        return Box(bounds, num_restarts, raw_samples)
    assert choices is not None
    return Choices(choices, repeat)


def _pick_best(values: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Return the place of a largest entry of each ``(b) x N`` row, of equal ones at random."""
    best = values == values.amax(dim=-1, keepdim=True)
    uniform = torch.cat([torch.rand(1, generator=source, dtype=torch.double) for source in generators])
    number = (uniform.reshape(best.shape[:-1]).to(values) * best.sum(dim=-1)).floor().unsqueeze(-1)
    return ((best.cumsum(dim=-1) > number) & best).to(torch.uint8).argmax(dim=-1)
