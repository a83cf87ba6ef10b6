"""Strategies that do not learn: random search and Sobol points."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from mtbo_torch.scalarizations import Scalarization
from mtbo_torch.strategies.base import RememberingStrategy


class RandomSearch(RememberingStrategy):
    """Points uniform on the box or among the choices.

    Args:
        num_tasks: The number of tasks n.
        bounds: ``2 x d``, a box to search; or
        choices: ``N x d``, the points that may be chosen.
        scalarization: As in :class:`MTKB`; the weights drawn from it play no part in the search.
        weights: As in :class:`MTKB`.
        seed: As in :class:`MTKB`.

    Example:
        >>> import torch
        >>> from mtbo_torch.strategies import RandomSearch
        >>> RandomSearch(num_tasks=2, bounds=torch.tensor([[0.0], [1.0]])).ask(3).shape
        torch.Size([3, 1])
    """

    def _propose(self, scalarizations: list[Scalarization]) -> Tensor:
        d = self._space.shape[-1]
        draws = [
            torch.rand(len(scalarizations), d if self.bounds is not None else 1, generator=source, dtype=torch.double)
            for source in self._generators
        ]
        uniform = torch.stack(draws).reshape(*self.batch_shape, len(scalarizations), -1)
        if self.choices is not None:
            return self.choices[(uniform.squeeze(-1) * len(self.choices)).long().to(self.choices.device)]
        lower, upper = self._space
        return lower + (upper - lower) * uniform.to(self._space)

    def _memory(self) -> dict[str, Any]:
        return {}


class SobolSearch(RememberingStrategy):
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

    def __init__(self, num_tasks: int, **options: Any) -> None:
        super().__init__(num_tasks, **options)
        self._scrambles = [int(torch.randint(2**31, (1,), generator=source)) for source in self._generators]
        self._num_drawn = 0

    def _propose(self, scalarizations: list[Scalarization]) -> Tensor:
        q, d = len(scalarizations), self._space.shape[-1]
        engines = [SobolEngine(d, scramble=True, seed=seed) for seed in self._scrambles]
        draws = [engine.fast_forward(self._num_drawn).draw(q, dtype=torch.double) for engine in engines]
        self._num_drawn += q
        lower, upper = (self._space.amin(dim=0), self._space.amax(dim=0)) if self.bounds is None else self._space
        points = lower + (upper - lower) * torch.stack(draws).reshape(*self.batch_shape, q, d).to(self._space)
        return points if self.choices is None else self.choices[torch.cdist(points, self.choices).argmin(dim=-1)]

    def _memory(self) -> dict[str, Any]:
        return {"scrambles": list(self._scrambles), "num_drawn": self._num_drawn}

    def _recall(self, X: Tensor, Y: Tensor, portions: list[int], memory: dict[str, Any]) -> None:
        scrambles, num_drawn = [int(seed) for seed in memory["scrambles"]], int(memory["num_drawn"])
        if len(scrambles) != len(self._scrambles) or num_drawn < 0:
            raise ValueError(f"{len(scrambles)} scrambles after {num_drawn} draws")
        super()._recall(X, Y, portions, memory)
        self._scrambles, self._num_drawn = scrambles, num_drawn
