"""Where to search: a box, described inputs, or a list of choices. A space checks and draws points, and searches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from torch import Tensor

from mtbo_torch.arrays import ArrayLike, File, read_array
from mtbo_torch.checks import checksum, require_bounds, require_choices, require_count, require_positive
from mtbo_torch.grid import Grid
from mtbo_torch.inputs import Inputs
from mtbo_torch.linalg import is_free_to_look
from mtbo_torch.optimization import maximize
from mtbo_torch.regression import Belief, Lookup, rows_at
from mtbo_torch.regression.pieces import PIECE
from mtbo_torch.surrogate import Surrogate

DEFAULT_RESTARTS, DEFAULT_RAW_SAMPLES, DEFAULT_MEMORY = 10, 256, 2.5
# Points told are compared with the choices in pieces of this many numbers.
BLOCK_NUMBERS = 2**22
# Of an input all over its range.
VALUES_SHOWN = 21
NOTHING: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True)
class Search:
    """A search for the best points.

    Attributes:
        surrogates: What is known, according to one or several kernels.
        acquire: Takes what is known inside each surrogate at ``... x (b) x q`` points to ``... x (b) x q x c`` values,
            the first of which is maximized.
        used: ``(b) x t x d``, points told or pending.
        generators: One for each data set of the surrogate.
        needs_variances: Whether `acquire` looks at more than mean and norm.
        starts: ``(b) x S x d`` points of the unit cube, which stands for the space's hull, to start from as well.
        fixed: By place, the inputs that have one value in this search.
    """

    surrogates: Sequence[Surrogate]
    acquire: Callable[..., Tensor]
    used: Tensor
    generators: Sequence[torch.Generator]
    needs_variances: bool
    starts: Tensor | None = None
    fixed: Mapping[int, float] = field(default_factory=dict)

    def list_tracked(self) -> Iterator[tuple[Belief, ...]]:
        """Return what each surrogate knows, piece by piece of the points that are tracked."""
        return zip(*[surrogate.tracked for surrogate in self.surrogates], strict=True)


class Space(ABC):
    """A set of points with d inputs to search.

    Attributes:
        name: What users call them: ``"bounds"`` or ``"choices"``.
        repeat: Whether a point may be found again.
        inputs: What the inputs are, if they were described.
    """

    name: str
    repeat = True

    def __init__(self, points: Tensor, inputs: Inputs | None = None) -> None:
        self._points = points.detach()
        self.inputs = inputs

    @property
    def points(self) -> Tensor:
        """The points that span it: ``2 x d`` corners, or ``N x d`` choices."""
        return self._points

    @property
    def num_inputs(self) -> int:
        """The number of inputs d."""
        return self.points.shape[-1]

    @cached_property
    def fingerprint(self) -> str:
        """The checksum of the points, by which a saved state knows the space."""
        return checksum(self.points)

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs."""
        return [f"x_{i + 1}" for i in range(self.num_inputs)] if self.inputs is None else self.inputs.names

    @property
    def categories(self) -> list[int]:
        """The places of the inputs whose values have no order."""
        return [] if self.inputs is None else self.inputs.categories

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

    def take_in(self, x: Tensor) -> tuple[Tensor, str]:
        """Return ``(b) x q x d`` points told, without rounding, and which of them lie outside, in a sentence.

        The sentence is empty if none does. Away from the CPU nobody looks.
        """
        return x, self._describe_outside(x) if is_free_to_look(x) else ""

    def _describe_outside(self, x: Tensor) -> str:
        low, high = self.hull[0] - self.tolerance * self.span, self.hull[1] + self.tolerance * self.span
        outside = ((x < low) | (x > high)).reshape(-1, self.num_inputs)
        if not outside.any():
            return ""
        row, place = outside.nonzero()[0].tolist()
        value = x.reshape(-1, self.num_inputs)[row, place].item()
        bounds = f"{self.hull[0, place].item():g} to {self.hull[1, place].item():g}"
        return f"A point told lies outside the {self.name}: {self.input_names[place]} is {value:g}, not in {bounds}."

    def format_points(self, X: Tensor) -> list[list[str]]:
        """Return ``t x d`` points for people to read, a row each."""
        rows = X.tolist() if self.inputs is None else [list(row.values()) for row in self.inputs.decode(X)]
        return [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row] for row in rows]

    def list_values(self, place: int) -> Tensor:
        """Return values of one input all over its range, ``V``."""
        codes = None if self.inputs is None else self.inputs.codes.get(place)
        if codes is None or len(codes) > VALUES_SHOWN:
            low, high = self.hull[:, place].tolist()
            return torch.linspace(low, high, VALUES_SHOWN, dtype=self.points.dtype, device=self.points.device)
        return self.points.new_tensor(codes)

    def read_fixed(self, fixed: Mapping[Any, Any] | None) -> dict[int, float]:
        """Return inputs that have one value, by name or place, as numbers by place."""
        if not fixed:
            return {}
        numbers: dict[int, float] = {}
        low, high = self.hull.tolist()
        for key, value in fixed.items():
            place = self.input_names.index(key) if key in self.input_names else key
            if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < self.num_inputs:
                raise ValueError(
                    f"fixed should be of the inputs {', '.join(self.input_names)}, got {key!r}. Correct the name."
                )
            name = self.input_names[place]
            number = float(value) if self.inputs is None else self.inputs.encode_value(name, value)
            if not low[place] <= number <= high[place]:
                raise ValueError(
                    f"fixed should have {name} from {low[place]:g} to {high[place]:g}, got {value!r}. Pass a value "
                    "of the search space."
                )
            numbers[place] = number
        return numbers

    def require_room(self, used: Tensor, wanted: int, fixed: Mapping[int, float] = NOTHING) -> None:  # noqa: B027
        """Refuse to look for more points than are left besides ``(b) x t x d`` used ones."""

    @abstractmethod
    def describe(self) -> str:
        """Return what it is in a few words."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return what decides how it is searched, as plain values."""

    @abstractmethod
    def from_cube(self, unit: Tensor, fixed: Mapping[int, float] = NOTHING) -> Tensor:
        """Return the points of the space nearest to ``... x d`` points of the unit cube, which stands for its hull.

        Args:
            unit: ``... x d``.
            fixed: By place, the inputs that have one value.
        """

    def find_nearest(self, unit: Tensor, used: Tensor, fixed: Mapping[int, float] = NOTHING) -> Tensor:
        """Return the points nearest to ``(b) x q x d`` ones of the unit cube that may be asked for.

        Args:
            unit: ``(b) x q x d``.
            used: ``(b) x t x d``, points told or pending.
            fixed: By place, the inputs that have one value.
        """
        return self.from_cube(unit, fixed)

    def sample(self, q: int, generator: torch.Generator, fixed: Mapping[int, float] = NOTHING) -> Tensor:
        """Return ``q x d`` points, uniformly at random; limits and inputs that are fixed by the nearest that has them.

        Args:
            q: The number of points.
            generator: The source of randomness.
            fixed: By place, the inputs that have one value.
        """
        return self.from_cube(torch.rand(q, self.num_inputs, generator=generator, dtype=torch.double), fixed)

    @abstractmethod
    def watch(self, surrogate: Surrogate) -> Surrogate:
        """Prepare a surrogate for being searched while observations arrive."""

    @abstractmethod
    def search(self, task: Search) -> tuple[Tensor, Tensor]:
        """Return the best points, ``(b) x 1 x d``, and their values, ``(b) x 1 x c``."""

    @abstractmethod
    def optimize(
        self, acqf: AcquisitionFunction, num_restarts: int, raw_samples: int, fixed: Mapping[int, float] = NOTHING
    ) -> Tensor:
        """Return the point ``1 x d`` that maximizes a BoTorch acquisition function."""


class _InCube(AcquisitionFunction):
    """An acquisition function of points in the unit cube, where no input is longer than another.

    Args:
        acqf: The acquisition function of points in a box.
        stretch: Takes points of the cube to those of the box.
    """

    def __init__(self, acqf: AcquisitionFunction, stretch: Callable[[Tensor], Tensor]) -> None:
        super().__init__(acqf.model)
        self.acqf, self.stretch = acqf, stretch

    def forward(self, X: Tensor) -> Tensor:
        """Return the values ``b`` at ``b x q x d`` points of the cube."""
        value: Tensor = self.acqf(self.stretch(X))
        return value


class Box(Space):
    """All points between two corners.

    Args:
        bounds: ``2 x d``.
        num_restarts: From how many points an acquisition is maximized.
        raw_samples: From how many Sobol points these are chosen.
        inputs: What the inputs are, if they were described.
    """

    name = "bounds"

    def __init__(
        self,
        bounds: Tensor,
        num_restarts: int = DEFAULT_RESTARTS,
        raw_samples: int = DEFAULT_RAW_SAMPLES,
        inputs: Inputs | None = None,
    ) -> None:
        require_bounds(bounds)
        super().__init__(bounds.clone(), inputs)
        self.num_restarts, self.raw_samples = num_restarts, raw_samples

    def describe(self) -> str:
        return "in a box"

    def settings(self) -> dict[str, Any]:
        return {"num_restarts": self.num_restarts, "raw_samples": self.raw_samples}

    def from_cube(self, unit: Tensor, fixed: Mapping[int, float] = NOTHING) -> Tensor:
        grid = self._restrict(fixed)
        return self._settle(unit.to(self.points) if grid is None else grid.place(unit.to(self.points)), fixed)

    @cached_property
    def _cube(self) -> Tensor:
        return torch.stack([torch.zeros_like(self.points[0]), torch.ones_like(self.points[1])])

    def _stretch(self, unit: Tensor) -> Tensor:
        low, high = self.points
        return low + (high - low) * unit

    def _settle(self, unit: Tensor, fixed: Mapping[int, float]) -> Tensor:
        """Return points of the space from allowed ones of the unit cube, without any rounding."""
        points = self._stretch(unit).clamp(*self.points)
        for place, value in fixed.items():
            points[..., place] = value
        return points

    @cached_property
    def _grid(self) -> Grid | None:
        """Which points of the unit cube are allowed, if not all are."""
        return None

    def _restrict(self, fixed: Mapping[int, float]) -> Grid | None:
        if not fixed:
            return self._grid
        grid = Grid(self.num_inputs, {}) if self._grid is None else self._grid
        return grid.fix(self._scale(fixed))

    def _scale(self, fixed: Mapping[int, float]) -> dict[int, float]:
        """Return the fixed inputs in the unit cube."""
        low, width = self.points[0].tolist(), self.span.tolist()
        return {place: (value - low[place]) / width[place] for place, value in fixed.items()}

    def watch(self, surrogate: Surrogate) -> Surrogate:
        return surrogate

    def search(self, task: Search) -> tuple[Tensor, Tensor]:
        batch_shape = task.used.shape[:-2]
        known = [s.prepare_for_variances() if task.needs_variances else s for s in task.surrogates]

        def acquire(X: Tensor) -> Tensor:
            return task.acquire(*[surrogate.inside(X) for surrogate in known])

        def evaluate(unit: Tensor) -> Tensor:
            X = self._stretch(unit).unsqueeze(-2)  # R x b x 1 x d
            values = acquire(X if batch_shape else X.squeeze(1))[..., 0, 0]
            return values if batch_shape else values.unsqueeze(-1)

        seeds = [int(torch.randint(2**31, (1,), generator=generator)) for generator in task.generators]
        extra = None if task.starts is None else task.starts.reshape(len(seeds), *task.starts.shape[-2:]).movedim(0, 1)
        grid = self._restrict(task.fixed)
        best, _ = maximize(evaluate, self._cube, seeds, self.num_restarts, self.raw_samples, extra, grid)
        points = self._settle(best, task.fixed).reshape(*batch_shape, 1, self.num_inputs)
        with torch.no_grad():
            return points, acquire(points)

    def optimize(
        self, acqf: AcquisitionFunction, num_restarts: int, raw_samples: int, fixed: Mapping[int, float] = NOTHING
    ) -> Tensor:
        inside = _InCube(acqf, self._stretch)
        search = {"num_restarts": num_restarts, "raw_samples": raw_samples, "fixed_features": self._scale(fixed)}
        best, _ = optimize_acqf(inside, self._cube, q=1, **search)
        return self._settle(best.detach(), fixed)


class Described(Box):
    """Inputs of several kinds, with limits between them.

    Args:
        inputs: What the inputs are.
        num_restarts: From how many points an acquisition is maximized.
        raw_samples: From how many Sobol points these are chosen.
    """

    name = "inputs"

    def __init__(
        self, inputs: Inputs, num_restarts: int = DEFAULT_RESTARTS, raw_samples: int = DEFAULT_RAW_SAMPLES
    ) -> None:
        super().__init__(inputs.bounds, num_restarts, raw_samples, inputs)
        if inputs.limits:
            self.from_cube(torch.full((1, self.num_inputs), 0.5))  # finds out whether there is any point

    def describe(self) -> str:
        return f"({', '.join(self.input_names)})"

    def settings(self) -> dict[str, Any]:
        assert self.inputs is not None
        return super().settings() | self.inputs.settings()

    @cached_property
    def _codes(self) -> dict[int, Tensor]:
        assert self.inputs is not None
        return {place: self.points.new_tensor(codes) for place, codes in self.inputs.codes.items()}

    @cached_property
    def _grid(self) -> Grid:
        assert self.inputs is not None
        low, width = self.points[0], self.span
        values = {place: (codes - low[place]) / width[place] for place, codes in self._codes.items()}
        limits: dict[bool, list[tuple[Tensor, Tensor, float]]] = {False: [], True: []}
        for limit in self.inputs.limits:
            inputs = torch.tensor(limit.indices)
            factors = self.points.new_tensor(limit.coefficients)
            scaled, bound = factors * width[inputs], limit.bound - (factors * low[inputs]).sum().item()
            size = scaled.norm().item()
            limits[limit.is_equality].append((inputs, scaled / size, bound / size))
        return Grid(self.num_inputs, values, frozenset(self.categories), tuple(limits[False]), tuple(limits[True]))

    def _stretch(self, unit: Tensor) -> Tensor:
        points = super()._stretch(unit)
        if not self.categories:
            return points
        # Categories are compared to the last bit.
        is_category = torch.tensor([place in self.categories for place in range(self.num_inputs)], device=unit.device)
        return torch.where(is_category, points.detach().round(), points)

    def _settle(self, unit: Tensor, fixed: Mapping[int, float]) -> Tensor:
        points = super()._settle(unit, fixed)
        for place, codes in self._codes.items():
            middles = (codes[1:] + codes[:-1]) / 2
            points[..., place] = codes[torch.bucketize(points[..., place].contiguous(), middles)]
        return points

    def optimize(
        self, acqf: AcquisitionFunction, num_restarts: int, raw_samples: int, fixed: Mapping[int, float] = NOTHING
    ) -> Tensor:
        best, _ = maximize(
            lambda unit: acqf(self._stretch(unit)).unsqueeze(-1),  # R x 1 x d
            self._cube,
            [int(torch.randint(2**31, (1,)))],
            num_restarts,
            raw_samples,
            grid=self._restrict(fixed),
        )
        return self._settle(best, fixed).detach()


class Choices(Space):
    """A finite set of points, searched in pieces.

    Args:
        choices: ``N x d``; a ``numpy.memmap`` stays in its file.
        repeat: Whether a choice may be found again once it was told or while it is pending.
        inputs: What the inputs are, if they were described.
        memory: The gigabytes that what is known of the choices may take. Mean and variances are always kept.
    """

    name = "choices"

    def __init__(
        self, choices: ArrayLike, repeat: bool = True, inputs: Inputs | None = None, memory: float = DEFAULT_MEMORY
    ) -> None:
        require_positive("memory", memory, "Pass gigabytes, for instance 2.0.", allow_zero=True)
        self._file = File.behind(choices)
        if self._file is not None:
            self._file.require_whole()
        points = require_choices("choices", read_array("choices", choices))
        super().__init__(points if self._file is not None else points.clone(), inputs)
        self.repeat, self.memory = repeat, memory

    @property
    def points(self) -> Tensor:
        if self._file is not None:
            self._file.require_whole()
        return self._points

    def describe(self) -> str:
        return f"on {len(self.points):,} choice{'' if len(self.points) == 1 else 's'}"

    def settings(self) -> dict[str, Any]:
        return {"repeat": self.repeat}

    def from_cube(self, unit: Tensor, fixed: Mapping[int, float] = NOTHING) -> Tensor:
        low, high = self.hull
        points = self._find_fixed(fixed)
        return points[torch.cdist(low + (high - low) * unit.to(low), points).argmin(dim=-1)]

    def find_nearest(self, unit: Tensor, used: Tensor, fixed: Mapping[int, float] = NOTHING) -> Tensor:
        low, high = self.hull
        found, others = used, ~self._has(fixed)
        for point in (low + (high - low) * unit.to(low)).split(1, dim=-2):
            is_out = others if self.repeat else self._find_taken(found) | others
            # In shares of each input's range: otherwise the widest one would decide alone.
            apart = torch.cdist(point / self.span, self.points / self.span).squeeze(-2).masked_fill(is_out, torch.inf)
            found = torch.cat([found, self.points[apart.argmin(dim=-1, keepdim=True)]], dim=-2)
        return found[..., used.shape[-2] :, :]

    def sample(self, q: int, generator: torch.Generator, fixed: Mapping[int, float] = NOTHING) -> Tensor:
        points = self._find_fixed(fixed)
        uniform = torch.rand(q, 1, generator=generator, dtype=torch.double).squeeze(-1)
        return points[(uniform * len(points)).long().to(points.device)]

    def take_in(self, x: Tensor) -> tuple[Tensor, str]:
        if not is_free_to_look(x):
            return self.round_to_choices(x), ""
        if self.has(x).all():
            return x, ""
        x = self.round_to_choices(x)
        strange = ~self.has(x).flatten()
        if not strange.any():
            return x, ""
        row = ", ".join(f"{value:g}" for value in x.reshape(-1, self.num_inputs)[strange][0].tolist())
        return x, self._describe_outside(x) or f"A point told is none of the {len(self.points):,} choices: [{row}]."

    def has(self, x: Tensor) -> Tensor:
        """Return which of ``(b) x q x d`` points are choices, to the last bit, ``(b) x q``."""
        return self._lookup.find(x) >= 0

    def find_closest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the choices nearest to ``(b) x q x d`` points, and how far they are, in shares of the inputs' widths.

        Returns:
            The choices ``(b) x q x d``, and the distances ``(b) x q``: the largest of all inputs.
        """
        size = max(1, BLOCK_NUMBERS // (x.shape[:-2].numel() * len(self.points)))
        pairs = [
            torch.cdist(some / self.span, self.points / self.span, p=torch.inf).min(dim=-1)
            for some in x.split(size, dim=-2)
        ]
        distance, nearest = (torch.cat(part, dim=-1) for part in zip(*pairs, strict=True))
        return self.points[nearest], distance

    def round_to_choices(self, x: Tensor) -> Tensor:
        """Return ``(b) x q x d`` points, those that differ from a choice by rounding as that choice."""
        closest, distance = self.find_closest(x)
        return torch.where((distance <= self.tolerance).unsqueeze(-1), closest, x)

    def _match(self, fixed: Mapping[int, float]) -> Tensor:
        """Return which choices have these values, ``N``."""
        matches = torch.ones(len(self.points), dtype=torch.bool, device=self.points.device)
        for place, value in fixed.items():
            matches &= (self.points[:, place] - value).abs() <= self.tolerance * self.span[place]
        return matches

    def _has(self, fixed: Mapping[int, float]) -> Tensor:
        """Do so, and refuse values that no choice has."""
        matches = self._match(fixed)
        if not matches.any():
            values = {self.input_names[place]: value for place, value in fixed.items()}
            raise ValueError(f"fixed should be values that some choice has, got {values}. Pass those of a choice.")
        return matches

    def _find_fixed(self, fixed: Mapping[int, float]) -> Tensor:
        return self.points[self._has(fixed)] if fixed else self.points

    def watch(self, surrogate: Surrogate) -> Surrogate:
        lookup = self._lookup if surrogate.units.are_same else None
        return surrogate.track(self.points.split(PIECE), self.memory * 1e9, lookup)

    def search(self, task: Search) -> tuple[Tensor, Tensor]:
        values, first = self.score(task)
        # Ties, such as all choices before the first observation, are broken at random.
        index = _pick_best(first, task.generators)
        return self.points[index], rows_at(values, index)

    def score(self, task: Search) -> tuple[Tensor, Tensor]:
        """Return the values of all choices, ``(b) x N x c``, and the first of them, or -Inf where it is not allowed."""
        pieces = [task.acquire(*beliefs) for beliefs in task.list_tracked()]
        values = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-2)
        first = values[..., 0]
        if self.repeat and not task.fixed:
            return values, first
        return values, first.masked_fill(~self.find_allowed(task.used, task.fixed), -torch.inf)

    def find_allowed(self, used: Tensor, fixed: Mapping[int, float]) -> Tensor:
        """Return which choices, ``(b) x N`` or ``N``, may be asked for besides ``(b) x t x d`` used ones."""
        allowed = self._match(fixed)
        return allowed if self.repeat else allowed & ~self._find_taken(used)

    def optimize(
        self, acqf: AcquisitionFunction, num_restarts: int, raw_samples: int, fixed: Mapping[int, float] = NOTHING
    ) -> Tensor:
        return optimize_acqf_discrete(acqf, q=1, choices=self._find_fixed(fixed))[0].detach()

    def require_room(self, used: Tensor, wanted: int, fixed: Mapping[int, float] = NOTHING) -> None:
        if self.repeat:
            return
        self._has(fixed)
        left = int(self.find_allowed(used, fixed).sum(dim=-1).amin())
        if left < wanted:
            raise ValueError(
                f"q should be at most {left}, the number of choices that were neither told nor are pending, got "
                f"{wanted}. With repeat=True choices are asked for again."
            )

    @cached_property
    def _lookup(self) -> Lookup:
        return Lookup(self.points)

    def _find_taken(self, used: Tensor) -> Tensor:
        """Return which choices, ``(b) x N``, were used or equal one before."""
        places, N = self._lookup.find(used), len(self.points)
        nowhere = torch.zeros(*used.shape[:-2], N + 1, dtype=torch.bool, device=used.device)
        return nowhere.scatter(-1, places.where(places >= 0, N), True)[..., :N] | self._lookup.repeated


def make_space(
    owner: str,
    bounds: Tensor | Inputs | None,
    choices: ArrayLike | None,
    repeat: bool = True,
    num_restarts: int = DEFAULT_RESTARTS,
    raw_samples: int = DEFAULT_RAW_SAMPLES,
    memory: float = DEFAULT_MEMORY,
) -> Space:
    """Return the box, the inputs or the choices, whichever is given; refuse both and neither in the name of `owner`.

    Inputs may come with choices, which they describe.
    """
    inputs = bounds if isinstance(bounds, Inputs) else None
    if (bounds is None) == (choices is None) and inputs is None:
        raise ValueError(
            f"{owner} should get either bounds or choices, got {'neither' if bounds is None else 'both'}. "
            "Pass bounds (2 x d, or Inputs) to search a box, or choices (N x d) to search a finite set."
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
    if choices is not None:
        return Choices(choices, repeat, inputs, memory)
    if isinstance(bounds, Inputs):
        return Described(bounds, num_restarts, raw_samples)
    assert bounds is not None
    return Box(bounds, num_restarts, raw_samples)


def _pick_best(values: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Return the place of a largest entry of each ``(b) x N`` row, ``(b) x 1``, of equal ones at random."""
    number = (values == values.amax(dim=-1, keepdim=True)).cumsum(dim=-1, dtype=torch.double)
    wanted = draw_ties(number[..., -1:], generators)
    # There is none if a value is NaN.
    return torch.searchsorted(number, wanted, right=True).clamp_max(values.shape[-1] - 1)


def draw_ties(counts: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Return ``(b)`` or ``(b) x 1`` numbers, each at random from zero on and below its count, a generator for each."""
    uniform = torch.cat([torch.rand(1, generator=source, dtype=torch.double) for source in generators])
    return uniform.reshape(counts.shape).to(counts.device) * counts
