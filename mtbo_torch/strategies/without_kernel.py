"""What strategies without a kernel of the user's share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from torch import Tensor

from mtbo_torch.checks import require_count
from mtbo_torch.scalarizations import ChebyshevScalarization, Scalarization, WeightDistribution
from mtbo_torch.space import make_space
from mtbo_torch.strategies.base import Strategy
from mtbo_torch.strategies.goal import Goal


class SearchOptions(TypedDict, total=False):
    """The arguments that all strategies without a kernel take; see :class:`RandomSearch`."""

    bounds: Tensor | None
    choices: Tensor | None
    scalarization: type[Scalarization]
    weights: WeightDistribution | None
    seed: int | Sequence[int]


class SearchStrategy(Strategy):
    """A strategy without a kernel of the user's; see :class:`RandomSearch` for the arguments.

    Points are ``(b) x q x d`` and values ``(b) x q x n``.
    """

    def __init__(
        self,
        num_tasks: int,
        *,
        bounds: Tensor | None = None,
        choices: Tensor | None = None,
        scalarization: type[Scalarization] = ChebyshevScalarization,
        weights: WeightDistribution | None = None,
        seed: int | Sequence[int] = 0,
    ) -> None:
        space = make_space(type(self).__name__, bounds, choices)
        require_count("num_tasks", num_tasks, "Pass the number of tasks.")
        if isinstance(scalarization, type) and getattr(scalarization, "needs_ref_point", bool)():
            raise ValueError(
                f"scalarization should need nothing but weights for {type(self).__name__}, got "
                f"{scalarization.__name__}, which needs a reference point. Leave it out, or use MTKB."
            )
        super().__init__(space, Goal(num_tasks, space.points, scalarization, weights), seed)
