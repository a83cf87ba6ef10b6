"""What can be set in an experiment, in the user's words: numbers, ordered values, categories, and their limits."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from numbers import Real as RealNumber
from typing import Any

import torch
from torch import Tensor

# How far a number may be off an allowed one, in shares of the input's width, to count as that.
TOLERANCE = 1e-6


class Input(ABC):
    """The base of what an input can be. Inside, every input is one number."""

    @property
    @abstractmethod
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest number inside."""

    @property
    def codes(self) -> list[float] | None:
        """The allowed numbers inside, in ascending order; None if all between the bounds are."""
        return None

    @property
    def is_category(self) -> bool:
        """Whether its numbers have no order."""
        return False

    @property
    def is_linear(self) -> bool:
        """Whether the numbers inside are the user's."""
        return True

    @abstractmethod
    def _encode(self, value: Any) -> float:
        """Return the number inside of a value; raise a ``ValueError`` that says what was expected."""

    @abstractmethod
    def _decode(self, code: float) -> Any:
        """Return the value of a number inside."""


@dataclass(frozen=True)
class Real(Input):
    """A real number from `low` to `high`, with `log` on a logarithmic scale.

    Example:
        >>> from mtbo_torch import Real
        >>> print(Real(1e-3, 1e3, log=True))
        0.001 to 1000 (log scale)
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _require_range("Real", self.low, self.high)
        if self.log and self.low <= 0:
            raise ValueError(
                f"Real should have low > 0 on a logarithmic scale, got {self.low}. Raise low, or leave out log=True."
            )

    @property
    def bounds(self) -> tuple[float, float]:
        return (math.log10(self.low), math.log10(self.high)) if self.log else (float(self.low), float(self.high))

    @property
    def is_linear(self) -> bool:
        return not self.log

    def _encode(self, value: Any) -> float:
        number = _read_number(value)
        _require_between(number, self.low, self.high)
        return math.log10(min(max(number, self.low), self.high)) if self.log else number

    def _decode(self, code: float) -> float:
        number = float(f"{10**code:.12g}") if self.log else code  # 0.3 comes back as 0.3
        return min(max(float(number), float(self.low)), float(self.high))

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{' (log scale)' if self.log else ''}"


@dataclass(frozen=True)
class Integer(Input):
    """A whole number from `low` to `high`, both included.

    Example:
        >>> from mtbo_torch import Integer
        >>> print(Integer(1, 5))
        1 to 5, whole numbers
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        for name, value in (("low", self.low), ("high", self.high)):
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise ValueError(f"Integer should have a whole number as {name}, got {value!r}. Use Real for others.")
        _require_range("Integer", self.low, self.high)

    @property
    def bounds(self) -> tuple[float, float]:
        return float(self.low), float(self.high)

    @property
    def codes(self) -> list[float]:
        return [float(number) for number in range(self.low, self.high + 1)]

    def _encode(self, value: Any) -> float:
        number = _read_number(value)
        _require_between(number, self.low, self.high)
        if abs(number - round(number)) > TOLERANCE:
            raise ValueError(f"a whole number, got {value!r}")
        return float(round(number))

    def _decode(self, code: float) -> int:
        return round(code)

    def __str__(self) -> str:
        return f"{self.low} to {self.high}, whole numbers"


class _Listed(Input):
    """An input with a few allowed values."""

    def __init__(self, *values: Any) -> None:
        kind = type(self).__name__
        if len(values) == 1 and isinstance(values[0], Sequence) and not isinstance(values[0], str):
            values = tuple(values[0])
        if len(values) < 2 or len({_normalize(value) for value in values}) < len(values):
            raise ValueError(
                f"{kind} should have at least two values, all different, got {list(values)}. Leave out an input that "
                "never changes."
            )
        self.values = values
        self._places = {_normalize(value): place for place, value in enumerate(values)}

    @property
    def bounds(self) -> tuple[float, float]:
        codes = self.codes
        assert codes is not None
        return codes[0], codes[-1]

    @property
    def codes(self) -> list[float]:
        return [float(place) for place in range(len(self.values))]

    def _encode(self, value: Any) -> float:
        place = self._places.get(_normalize(value))
        if place is None:
            raise ValueError(f"one of {', '.join(map(str, self.values))}, got {value!r}")
        return self.codes[place]

    def _decode(self, code: float) -> Any:
        return min(zip(self.codes, self.values, strict=True), key=lambda pair: abs(pair[0] - code))[1]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, _Listed) and other.values == self.values

    def __hash__(self) -> int:
        return hash((type(self), self.values))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.values))})"

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))


class Ordered(_Listed):
    """One of a few values in an order: numbers, whose distances count, or words.

    Example:
        >>> from mtbo_torch import Ordered
        >>> Ordered(10, 20, 50).codes, Ordered("low", "medium", "high").codes
        ([10.0, 20.0, 50.0], [0.0, 1.0, 2.0])
    """

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        numbers = [value for value in self.values if isinstance(value, RealNumber)]
        if 0 < len(numbers) < len(self.values) or numbers != sorted(numbers):
            raise ValueError(
                f"Ordered should have numbers in ascending order, or words, got {list(self.values)}. Use Category for "
                "values without an order."
            )
        self._numbers = numbers

    @property
    def codes(self) -> list[float]:
        return [float(number) for number in self._numbers] or super().codes

    @property
    def is_linear(self) -> bool:
        return bool(self._numbers)


class Category(_Listed):
    """One of a few values without an order.

    Example:
        >>> from mtbo_torch import Category
        >>> print(Category("Pd", "Ni", "Cu"))
        Pd, Ni, Cu
    """

    @property
    def is_category(self) -> bool:
        return True

    @property
    def is_linear(self) -> bool:
        return False


@dataclass(frozen=True)
class LinearLimit:
    r"""A limit between inputs, :math:`\sum_i a_i x_i \ge c`, or equality.

    Attributes:
        text: In the user's words.
        indices: The inputs.
        coefficients: a.
        bound: c.
        is_equality: Whether both sides have to be equal.
    """

    text: str
    indices: list[int]
    coefficients: list[float]
    bound: float
    is_equality: bool


class Inputs:
    """The inputs of an experiment by name, and the limits between them.

    Points are tensors ``... x d`` inside: one number for each input in this order, real and whole numbers as they are,
    those on a logarithmic scale as log10, categories and words as their place in the list.

    Args:
        inputs: By name: :class:`Real`, :class:`Integer`, :class:`Ordered` or :class:`Category`.
        limits: What has to hold between inputs, such as ``"water + ethanol <= 1"`` or ``"a + b + c == 1"``: sums of
            inputs with numbers in front of them. Equalities are for real inputs only, and no limit is for inputs on a
            logarithmic scale, categories or words. Points that are asked for satisfy them; points told need not.

    Example:
        >>> from mtbo_torch import Category, Inputs, Real
        >>> inputs = Inputs({"temperature": Real(300, 900), "catalyst": Category("Pd", "Ni")})
        >>> inputs.encode([{"temperature": 350.0, "catalyst": "Ni"}])
        tensor([[350.,   1.]], dtype=torch.float64)
    """

    def __init__(self, inputs: Mapping[str, Input], limits: Sequence[str] = ()) -> None:
        if not isinstance(inputs, Mapping) or not inputs:
            raise ValueError(
                f"inputs should be a dictionary with at least one input, got {inputs!r}. Pass for instance "
                '{"temperature": Real(300, 900)}.'
            )
        for name, kind in inputs.items():
            if not isinstance(name, str) or not name.strip():
                raise ValueError(f"inputs should have names, got {name!r}. Use the names of your table's columns.")
            if not isinstance(kind, Input):
                raise ValueError(
                    f"inputs should be of the kinds Real, Integer, Ordered and Category, got {kind!r} for {name!r}. "
                    "Pass for instance Real(0, 1)."
                )
        if isinstance(limits, str):
            raise ValueError(f"limits should be a list of texts, got {limits!r}. Put it in brackets.")
        self.kinds = dict(inputs)
        self.limits = [_read_limit(text, self.kinds) for text in limits]

    @property
    def names(self) -> list[str]:
        """The names of the inputs."""
        return list(self.kinds)

    @property
    def bounds(self) -> Tensor:
        """``2 x d``, the smallest and the largest number of each input inside."""
        return torch.tensor([kind.bounds for kind in self.kinds.values()], dtype=torch.double).T.contiguous()

    @property
    def codes(self) -> dict[int, list[float]]:
        """The allowed numbers of the inputs that have a few only, by place."""
        return {place: codes for place, kind in enumerate(self.kinds.values()) if (codes := kind.codes) is not None}

    @property
    def categories(self) -> list[int]:
        """The places of the inputs without an order."""
        return [place for place, kind in enumerate(self.kinds.values()) if kind.is_category]

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> Tensor:
        """Return the points ``t x d`` of rows that have a value for each input; other keys do not matter."""
        if isinstance(rows, Mapping) or not all(isinstance(row, Mapping) for row in rows):
            raise ValueError(
                f"rows should be a list of dictionaries, got {type(rows).__name__}. Pass one for each point."
            )
        return torch.tensor([self._encode_row(row, place) for place, row in enumerate(rows)], dtype=torch.double)

    def _encode_row(self, row: Mapping[str, Any], place: int) -> list[float]:
        missing = [name for name in self.kinds if name not in row]
        if missing:
            raise ValueError(
                f"Row {place} should have a value for each input ({', '.join(self.names)}), got none for "
                f"{', '.join(missing)}. Add it."
            )
        return [self.encode_value(name, row[name], f" in row {place}") for name in self.kinds]

    def encode_value(self, name: str, value: Any, where: str = "") -> float:
        """Return the number inside of one input's value."""
        if name not in self.kinds:
            raise ValueError(f"name should be one of the inputs {', '.join(self.names)}, got {name!r}. Correct it.")
        try:
            return self.kinds[name]._encode(value)
        except ValueError as error:
            raise ValueError(
                f"{name} should be {error}{where}. Correct it, or change the description of this input."
            ) from error

    def decode(self, X: Tensor) -> list[dict[str, Any]]:
        """Return ``t x d`` points as rows with a value for each input."""
        if not isinstance(X, Tensor) or X.dim() != 2 or X.shape[-1] != len(self.kinds):
            raise ValueError(
                f"X should be a tensor `t x d` with d = {len(self.kinds)} inputs, got "
                f"{tuple(X.shape) if isinstance(X, Tensor) else type(X).__name__}. Pass one row per point."
            )
        return [
            {name: kind._decode(code) for (name, kind), code in zip(self.kinds.items(), row, strict=True)}
            for row in X.tolist()
        ]

    def describe(self) -> list[list[str]]:
        """Return a row for each input: its name and what it may be."""
        return [[name, str(kind)] for name, kind in self.kinds.items()]

    def settings(self) -> dict[str, Any]:
        """Return everything that it is made of, as plain values; see :func:`restore_inputs`."""
        kinds = {name: [type(kind).__name__, *_list_arguments(kind)] for name, kind in self.kinds.items()}
        return {"inputs": kinds, "limits": [limit.text for limit in self.limits]}

    def __repr__(self) -> str:
        parts = [*(f"{name}: {kind}" for name, kind in self.kinds.items()), *(limit.text for limit in self.limits)]
        return f"Inputs({'; '.join(parts)})"


def restore_inputs(settings: Mapping[str, Any]) -> Inputs:
    """Return the inputs that :meth:`Inputs.settings` came from."""
    kinds: dict[str, type[Any]] = {kind.__name__: kind for kind in (Real, Integer, Ordered, Category)}
    inputs = {name: kinds[kind](*arguments) for name, (kind, *arguments) in settings["inputs"].items()}
    return Inputs(inputs, settings["limits"])


def _list_arguments(kind: Input) -> list[Any]:
    if isinstance(kind, _Listed):
        return list(kind.values)
    return [value.item() if isinstance(value, Tensor) else value for value in vars(kind).values()]


def _read_number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"a number, got {value!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"a finite number, got {value!r}")
    return number


def _require_between(number: float, low: float, high: float) -> None:
    margin = TOLERANCE * (high - low)
    if not low - margin <= number <= high + margin:
        raise ValueError(f"from {low:g} to {high:g}, got {number:g}")


def _require_range(kind: str, low: Any, high: Any) -> None:
    try:
        is_range = math.isfinite(low) and math.isfinite(high) and low < high
    except TypeError:
        is_range = False
    if not is_range:
        raise ValueError(f"{kind} should have low < high, got {low!r} and {high!r}. Pass two numbers.")


def _normalize(value: Any) -> Any:
    """Return what decides whether two values are the same: numbers by value, also as text, and all others as text."""
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"


def _read_limit(text: object, kinds: Mapping[str, Input]) -> LinearLimit:
    sides = re.split(r"(<=|>=|==|=)", text) if isinstance(text, str) else []
    if not isinstance(text, str) or len(sides) != 3:
        raise ValueError(
            f"limits should be texts with one of <=, >= and ==, got {text!r}. Write for instance "
            f'"{next(iter(kinds))} <= 1".'
        )
    names, constant = list(kinds), 0.0
    total = dict.fromkeys(names, 0.0)
    for sign, side in ((1, sides[0]), (-1, sides[2])):
        for factor, name in _read_terms(text, side, names):
            if name is None:
                constant += sign * factor
            else:
                total[name] += sign * factor
    used = {name: factor for name, factor in total.items() if factor}
    is_equality = sides[1] in ("==", "=")
    for name in used:
        kind = kinds[name]
        if not kind.is_linear or (is_equality and not isinstance(kind, Real)):
            raise ValueError(
                f"limits should be between {'real inputs' if is_equality else 'numbers'} on a linear scale, got "
                f"{name!r} ({kind}) in {text!r}. Leave it out, or describe this input in another way."
            )
    if not used:
        raise ValueError(f"limits should be between inputs, got {text!r}. Use the names {', '.join(names)}.")
    turn = -1.0 if sides[1] == "<=" else 1.0
    coefficients = [turn * factor for factor in used.values()]
    return LinearLimit(text, [names.index(name) for name in used], coefficients, -turn * constant, is_equality)


def _read_terms(text: str, side: str, names: list[str]) -> list[tuple[float, str | None]]:
    """Return the factors and names of a sum; None for a number alone."""
    one = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    term = re.compile(rf"\s*([+-]?)\s*(?:({NUMBER})\s*(?:\*\s*({one}))?|({one}))\s*(?=[+-]|$)")
    terms: list[tuple[float, str | None]] = []
    place = 0
    while place < len(side) or not terms:
        found = term.match(side, place)
        if found is None or (terms and not found[1]):
            raise ValueError(
                f"limits should be sums of inputs with numbers in front of them, got {text!r}. Write for instance "
                f'"2 * {names[0]} <= 1", with the names {", ".join(names)}.'
            )
        factor = float(found[2] or 1) * (-1 if found[1] == "-" else 1)
        terms.append((factor, found[3] or found[4]))
        place = found.end()
    return terms
