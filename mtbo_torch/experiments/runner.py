"""Run independent trials of one algorithm in lockstep, as one batched tensor program."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mtbo_torch.experiments.algorithms import ALGORITHMS, CERTIFIED
from mtbo_torch.experiments.instances import derive_seed
from mtbo_torch.experiments.panels import EXPERIMENTS, Settings, build_instances
from mtbo_torch.metrics import RegretTracker, regret_certificate
from mtbo_torch.problems import FieldProblem, paper
from mtbo_torch.strategies.kernelized import KernelStrategy

# Regrets are computed in blocks of this many rounds, so that an interrupted run repeats the arithmetic of an
# uninterrupted one.
BLOCK = 10

Columns = dict[str, Tensor]


@dataclass(frozen=True)
class Part:
    """A piece of work: some trials of one algorithm.

    Attributes:
        experiment: The name of the experiment.
        algorithm: The name of the algorithm.
        trials: The numbers of the trials.
        settings: The settings that all runs share.
        field: The data of the experiment, if it needs any.
    """

    experiment: str
    algorithm: str
    trials: tuple[int, ...]
    settings: Settings
    field: FieldProblem | None = None


class Run:
    """A part in progress.

    Attributes:
        round: The number of rounds played.
        seconds: The time of these rounds.
    """

    def __init__(self, part: Part) -> None:
        settings, experiment = part.settings, EXPERIMENTS[part.experiment]
        self.part, self.scalarization = part, experiment.scalarization
        self.instances = build_instances(part.experiment, part.trials, settings, part.field)
        seeds = [derive_seed(settings.seed, trial, "strategy") for trial in part.trials]
        self.strategy = ALGORITHMS[part.algorithm](self.instances, self.scalarization, seeds)
        self.noise = [torch.Generator().manual_seed(derive_seed(settings.seed, i, "noise")) for i in part.trials]
        fixed = torch.Generator().manual_seed(derive_seed(settings.seed, -1, "Bayes weights"))
        bayes = self.strategy.weights.sample(paper.NUM_BAYES_WEIGHTS, generator=fixed, dtype=torch.double)
        self.tracker = RegretTracker(
            self.scalarization,
            lambda weights: self.instances.find_best(self.scalarization, weights),
            bayes.to(settings.like),
            self.instances.attainable,
        )
        self.bounds = settings.like.new_empty(len(part.trials), 0, 3)
        self.round, self.seconds = 0, 0.0

    @property
    def is_done(self) -> bool:
        """True if all rounds were played."""
        return self.round >= self.part.settings.rounds

    def advance(self) -> Columns:
        """Play a block of rounds; return its columns, each ``b x q`` or ``b x q x k``."""
        started = time.perf_counter()
        count = min(BLOCK - self.round % BLOCK, self.part.settings.rounds - self.round)
        rounds = [self._play() for _ in range(count)]
        columns = join(rounds)
        self.seconds += time.perf_counter() - started
        self.round += count
        values = columns.pop("values")
        columns |= self.tracker.update(columns["weights"], values)
        certificate = self._certify(columns.pop("bounds", None))
        if certificate is not None:
            numbers = torch.arange(self.round - count + 1, self.round + 1).to(values)
            columns["certificate"] = certificate[:, -count:] / numbers
        return {name: column.double().cpu() for name, column in columns.items()}

    def _certify(self, bounds: Tensor | None) -> Tensor | None:
        """Return the bounds of the regret after each round, ``b x t``, given the latest radii and norms, if any."""
        if bounds is not None:
            self.bounds = torch.cat([self.bounds, bounds], dim=1)
            return regret_certificate(*self.bounds.unbind(dim=-1))
        strategy = self.strategy
        if isinstance(strategy, KernelStrategy) and strategy.bound == "mixture":
            return strategy.certificate()
        return None

    def _play(self) -> Columns:
        strategy, instances = self.strategy, self.instances
        x = strategy.ask()
        values = instances.evaluate(x)
        draws = [torch.randn(1, instances.num_tasks, generator=g, dtype=torch.double) for g in self.noise]
        y = values + instances.noise_scale * torch.stack(draws).to(values)
        row = {"weights": strategy.asked_weights, "x": x, "y": y, "values": values}
        if self.part.algorithm in CERTIFIED and isinstance(strategy, KernelStrategy):
            lipschitz = self.scalarization(strategy.asked_weights.squeeze(-2)).lipschitz
            norm = strategy.covariance_norm(x).squeeze(-1)
            row["bounds"] = torch.stack([lipschitz, strategy.radius, norm], dim=-1).unsqueeze(-2)
        strategy.tell(x, y)
        return row

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit after any block."""
        return {
            "round": self.round,
            "seconds": self.seconds,
            "strategy": self.strategy.state_dict(),
            "noise": [generator.get_state() for generator in self.noise],
            "tracker": dict(self.tracker.state),
            "bounds": self.bounds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the :meth:`state_dict` of the same part."""
        self.strategy.load_state_dict(state["strategy"])
        for generator, value in zip(self.noise, state["noise"], strict=True):
            generator.set_state(value)
        like = self.part.settings.like
        self.tracker.state = {
            name: value.to(like) if value.is_floating_point() else value.to(like.device)
            for name, value in state["tracker"].items()
        }
        self.bounds = state["bounds"].to(like)
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
