"""Strategies without a kernel of the user's: random search and Sobol points, and what others share with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from mtbo_torch.arrays import ArrayLike
from mtbo_torch.checks import require_count
from mtbo_torch.inputs import Inputs
from mtbo_torch.optimization import draw_sobol
from mtbo_torch.scalarizations import ChebyshevScalarization, Scalarization, WeightDistribution
from mtbo_torch.space import make_space
from mtbo_torch.strategies.base import Observations, Strategy
from mtbo_torch.strategies.goal import Goal


class SearchOptions(TypedDict, total=False):
    """The arguments that all strategies without a kernel take; see :class:`RandomSearch`."""

    bounds: Tensor | Inputs | None
    choices: ArrayLike | None
    scalarization: type[Scalarization]
    weights: WeightDistribution | None
    signs: Sequence[int] | Tensor | Mapping[str, str] | None
    seed: int | Sequence[int]


class SearchStrategy(Strategy):
    """A strategy without a kernel of the user's; see :class:`RandomSearch` for the arguments.

    Points are ``(b) x q x d`` and values ``(b) x q x n``.
    """

    def __init__(
        self,
        num_tasks: int,
        *,
        bounds: Tensor | Inputs | None = None,
        choices: ArrayLike | None = None,
        scalarization: type[Scalarization] = ChebyshevScalarization,
        weights: WeightDistribution | None = None,
        signs: Sequence[int] | Tensor | Mapping[str, str] | None = None,
        seed: int | Sequence[int] = 0,
    ) -> None:
        space = make_space(type(self).__name__, bounds, choices)
        require_count("num_tasks", num_tasks, "Pass the number of tasks.")
        if isinstance(scalarization, type) and getattr(scalarization, "needs_ref_point", bool)():
            raise ValueError(
                f"scalarization should need nothing but weights for {type(self).__name__}, got "
                f"{scalarization.__name__}, which needs a reference point. Leave it out, or use MTKB."
            )
        super().__init__(space, Goal(num_tasks, space.points, scalarization, weights, signs=signs), seed)


class RandomSearch(SearchStrategy):
    """Points uniform on the box or among the choices.

    Args:
        num_tasks: The number of tasks n.
        bounds: ``2 x d``, a box to search; or
        choices: ``N x d``, the points that may be chosen.
        scalarization: As in :class:`MTKB`; the weights drawn from it play no part in the search.
        weights: As in :class:`MTKB`.
        signs: As in :class:`MTKB`.
        seed: As in :class:`MTKB`.

    Example:
        >>> import torch
        >>> from mtbo_torch.strategies import RandomSearch
        >>> RandomSearch(num_tasks=2, bounds=torch.tensor([[0.0], [1.0]])).ask(3).shape
        torch.Size([3, 1])
    """

    def _propose(self, weights: Tensor, fixed: Mapping[int, float]) -> Tensor:
        q = weights.shape[-2]
        points = [self.space.sample(q, generator, fixed) for generator in self._generators]
        return torch.stack(points).reshape(*self.batch_shape, q, self.space.num_inputs)


class SobolSearch(SearchStrategy):
    """Scrambled Sobol points, or the choices nearest to them.

    Args:
        num_tasks: The number of tasks n.
        options: The other arguments of :class:`RandomSearch`.

    Example:
        >>> import torch
        >>> from mtbo_torch.strategies import SobolSearch
        >>> SobolSearch(num_tasks=2, bounds=torch.tensor([[0.0], [1.0]])).ask(3).shape
        torch.Size([3, 1])
    """

    def __init__(self, num_tasks: int, **options: Unpack[SearchOptions]) -> None:
        super().__init__(num_tasks, **options)
        self._scrambles = [int(torch.randint(2**31, (1,), generator=source)) for source in self._generators]

    def _propose(self, weights: Tensor, fixed: Mapping[int, float]) -> Tensor:
        q, d = weights.shape[-2], self.space.num_inputs
        draws = [draw_sobol(d, q, seed, start=self._num_asked) for seed in self._scrambles]
        return self.space.from_cube(torch.stack(draws).reshape(*self.batch_shape, q, d), fixed)

    def _memory(self) -> dict[str, Any]:
        return {"scrambles": list(self._scrambles)}

    def _recall(self, told: Observations, portions: list[int], memory: dict[str, Any]) -> None:
        scrambles = [int(seed) for seed in memory["scrambles"]]
        if len(scrambles) != len(self._scrambles):
            raise ValueError(f"{len(scrambles)} scrambles")
        self._scrambles = scrambles
