"""Run independent trials of one algorithm in lockstep, as one batched tensor program."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mtbo_torch.strategies import Strategy

# Measures are computed in blocks of this many rounds, so that an interrupted run repeats the arithmetic of an
# uninterrupted one.
BLOCK = 10

Columns = dict[str, Tensor]


class Trials(ABC):
    """Trials of one algorithm side by side: what it runs on, and how well it does.

    Attributes:
        strategy: With b trials.
        noise_scale: The standard deviation of the noise.
        noise_seeds: Of each trial.
        state: What is needed besides the strategy to continue after any block; changed in place.
    """

    strategy: Strategy
    noise_scale: float
    noise_seeds: Sequence[int]
    state: dict[str, Tensor]

    @abstractmethod
    def evaluate(self, x: Tensor) -> Tensor:
        """Return the true values ``b x 1 x n`` at points ``b x 1 x d``."""

    def watch(self, x: Tensor) -> Columns:
        """Return what to note of points ``b x 1 x d`` before their values are told, each ``b x 1 x k``."""
        return {}

    @abstractmethod
    def measure(self, columns: Columns) -> Columns:
        """Return the measures of q rounds, each ``b x q``.

        The columns are those of :meth:`watch`, the points ``x``, what was observed there, ``y``, and the true
        ``values``.
        """


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A problem, the algorithms that can run on it, and what is measured.

    Attributes:
        name: The name of the folder with its results.
        settings: Everything that determines the numbers, as plain data, among it the number of `rounds`.
        sizes: How many columns the table has for weights, points and observations.
        measures: The names of what is measured.
        algorithms: The names of all algorithms, in the order of the table.
        start: Takes the name of an algorithm and the numbers of some trials to these trials, about to begin.
    """

    name: str
    settings: dict[str, Any]
    sizes: Mapping[str, int]
    measures: Sequence[str]
    algorithms: Sequence[str]
    start: Callable[[str, Sequence[int]], Trials]

    @property
    def rounds(self) -> int:
        """The number of rounds of each trial."""
        return int(self.settings["rounds"])


@dataclass(frozen=True)
class Part:
    """A piece of work: some trials of one algorithm.

    Attributes:
        benchmark: Where the algorithm runs.
        algorithm: The name of the algorithm.
        trials: The numbers of the trials.
    """

    benchmark: Benchmark
    algorithm: str
    trials: tuple[int, ...]


class Run:
    """A part in progress.

    Attributes:
        round: The number of rounds played.
        seconds: The time that the strategy took.
    """

    def __init__(self, part: Part) -> None:
        self.part, self.trials = part, part.benchmark.start(part.algorithm, part.trials)
        self.noise = [torch.Generator().manual_seed(seed) for seed in self.trials.noise_seeds]
        self.round, self.seconds = 0, 0.0

    @property
    def is_done(self) -> bool:
        """True if all rounds were played."""
        return self.round >= self.part.benchmark.rounds

    def advance(self) -> Columns:
        """Play a block of rounds; return its columns, each ``b x q`` or ``b x q x k``."""
        count = min(BLOCK - self.round % BLOCK, self.part.benchmark.rounds - self.round)
        columns = join([self._play() for _ in range(count)])
        self.round += count
        columns |= self.trials.measure(columns)
        return {name: column.double().cpu() for name, column in columns.items()}

    def _play(self) -> Columns:
        asked = self._time(self.trials.strategy.ask)
        x = asked.reshape(len(self.noise), 1, -1)
        values = self.trials.evaluate(x)
        draws = [torch.randn(1, values.shape[-1], generator=g, dtype=torch.double) for g in self.noise]
        y = values + self.trials.noise_scale * torch.stack(draws).to(values)
        row = {"x": x, "y": y, "values": values} | self.trials.watch(x)
        self._time(self.trials.strategy.tell, asked, y.reshape(*asked.shape[:-1], -1))
        return row

    def _time(self, step: Callable[..., Any], *arguments: Tensor) -> Any:
        started = time.perf_counter()
        result = step(*arguments)
        self.seconds += time.perf_counter() - started
        return result

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit after any block."""
        return {
            "round": self.round,
            "seconds": self.seconds,
            "strategy": self.trials.strategy.state_dict(),
            "noise": [generator.get_state() for generator in self.noise],
            "measured": dict(self.trials.state),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the :meth:`state_dict` of the same part."""
        self.trials.strategy.load_state_dict(state["strategy"])
        for generator, value in zip(self.noise, state["noise"], strict=True):
            generator.set_state(value)
        like = self.trials.strategy.train_X
        for name, value in state["measured"].items():
            self.trials.state[name] = value.to(like) if value.is_floating_point() else value.to(like.device)
        self.round, self.seconds = state["round"], state["seconds"]


def join(blocks: Sequence[Columns]) -> Columns:
    """Join consecutive blocks."""
    return {name: torch.cat([block[name] for block in blocks], dim=1) for name in blocks[0]}


def run_part(part: Part) -> tuple[Columns, float]:
    """Run all rounds of a part; return the columns and the time in seconds."""
    run, blocks = Run(part), []
    while not run.is_done:
        blocks.append(run.advance())
    return join(blocks), run.seconds
