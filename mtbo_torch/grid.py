"""Which points of the unit cube are allowed, and how to move among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from botorch.utils.sampling import get_polytope_samples
from torch import Tensor

# Numbers with more values than this are climbed as if all between were allowed, and rounded afterwards.
MOST_VALUES = 20
MOST_MOVES = 16
# By how much a limit may be missed.
TOLERANCE = 1e-6
# From a walk through the points allowed, to which others are the nearest.
POOL, BURN_IN, THINNING = 1024, 512, 8

Limit = tuple[Tensor, Tensor, float]


@dataclass(frozen=True, eq=False)
class Grid:
    r"""Points of the unit cube with a few values for some inputs, and linear limits between inputs.

    Attributes:
        num_inputs: The number of inputs d.
        values: By input, the values allowed, in ascending order.
        categories: The inputs whose values have no order.
        inequalities: Inputs, factors and c of each limit :math:`\sum_i a_i x_i \ge c`, as BoTorch has them.
        equalities: The same with equality.

    Example:
        >>> import torch
        >>> from mtbo_torch.grid import Grid
        >>> halves = Grid(2, {0: torch.tensor([0.0, 0.5, 1.0])})
        >>> halves.place(torch.tensor([[0.6, 0.6]]))
        tensor([[0.5000, 0.6000]])
    """

    num_inputs: int
    values: Mapping[int, Tensor]
    categories: frozenset[int] = frozenset()
    inequalities: tuple[Limit, ...] = ()
    equalities: tuple[Limit, ...] = ()

    def fix(self, fixed: Mapping[int, float]) -> Grid:
        """Return those of its points where some inputs have these values."""
        one = {place: torch.tensor([value], dtype=torch.double) for place, value in fixed.items()}
        return replace(self, values={**self.values, **one})

    @property
    def held(self) -> list[int]:
        """The inputs that no gradient moves."""
        return [i for i, values in self.values.items() if i in self.categories or len(values) <= MOST_VALUES]

    @property
    def constraints(self) -> dict[str, Any]:
        """The limits, as BoTorch's searches take them."""
        given = {"inequality_constraints": list(self.inequalities), "equality_constraints": list(self.equalities)}
        return {name: limits for name, limits in given.items() if limits}

    def holds(self, X: Tensor) -> Tensor:
        """Return which of ``... x d`` points satisfy the limits, ``...``."""
        holds = torch.ones_like(X[..., 0], dtype=torch.bool)
        for inputs, factors, bound in self.inequalities:
            holds &= X[..., inputs] @ factors.to(X) >= bound - TOLERANCE
        for inputs, factors, bound in self.equalities:
            holds &= (X[..., inputs] @ factors.to(X) - bound).abs() <= TOLERANCE
        return holds

    def place(self, X: Tensor) -> Tensor:
        """Return the allowed points nearest to ``... x d`` ones; each category has an equal share of its side."""
        snapped = self._snap(X)
        if not self.constraints:
            return snapped
        pool = self._pool.to(X)
        nearest = pool[torch.cdist(snapped, pool).argmin(dim=-1)]
        return torch.where(self.holds(snapped).unsqueeze(-1), snapped, nearest)

    def step(self, function: Callable[[Tensor], Tensor], points: Tensor) -> tuple[Tensor, Tensor]:
        """Return where changes of one input at a time lead from ``R x b x d`` points, and the values ``R x b`` there.

        Args:
            function: Takes ``R x b x d`` points to ``R x b`` values.
            points: Where to begin; at first they are placed on the grid.
        """
        points = self.place(points)
        with torch.no_grad():
            values = function(points)
            for _ in range(MOST_MOVES):
                moved = self._move(points)
                if not len(moved):
                    break
                reached = function(moved.flatten(0, 1)).unflatten(0, moved.shape[:2])
                best, which = reached.masked_fill(~self.holds(moved), -torch.inf).max(dim=0)
                is_better = best > values
                if not is_better.any():
                    break
                chosen = moved.gather(0, which[None, ..., None].expand(1, *points.shape)).squeeze(0)
                points, values = torch.where(is_better.unsqueeze(-1), chosen, points), torch.maximum(values, best)
        return points, values

    def _snap(self, X: Tensor) -> Tensor:
        columns = list(X.unbind(dim=-1))
        for place, values in self.values.items():
            allowed, x = values.to(X), columns[place].contiguous()
            if place in self.categories:
                index = (x * len(allowed)).floor().long().clamp(0, len(allowed) - 1)
            else:
                index = torch.bucketize(x, (allowed[1:] + allowed[:-1]) / 2)
            columns[place] = allowed[index]
        return torch.stack(columns, dim=-1)

    def _move(self, points: Tensor) -> Tensor:
        """Return all changes of one input, ``V x R x b x d``: to any value, of long ranges to the ones beside."""
        moved = [points[:0]]
        for place, values in self.values.items():
            allowed = values.to(points)
            if len(allowed) <= MOST_VALUES or place in self.categories:
                options = allowed.reshape(-1, 1, 1).expand(-1, *points.shape[:-1])
            else:
                index = torch.bucketize(points[..., place].contiguous(), (allowed[1:] + allowed[:-1]) / 2)
                options = torch.stack([allowed[(index + i).clamp(0, len(allowed) - 1)] for i in (-1, 1)])
            copies = points.expand(len(options), *points.shape).clone()
            copies[..., place] = options
            moved.append(copies)
        return torch.cat([part.reshape(-1, *points.shape) for part in moved])

    @cached_property
    def _pool(self) -> Tensor:
        """``P x d``, points all over those allowed."""
        cube = torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, self.num_inputs)
        fixed = [(i, values) for i, values in self.values.items() if len(values) == 1]
        one = torch.ones(1, dtype=torch.double)
        equal = [(torch.tensor([i]), one, values.item()) for i, values in fixed] + list(self.equalities)
        try:
            drawn = get_polytope_samples(POOL, cube, list(self.inequalities), equal, 0, BURN_IN, THINNING)
            pool = self._snap(drawn)
            pool = pool[self.holds(pool)]
        except ValueError:  # BoTorch found no point at all
            pool = cube[:0]
        if not len(pool):
            raise ValueError(
                "limits should leave some points within the bounds, got limits that leave none. Change or remove one "
                "of them, or an input that is fixed."
            )
        return pool
