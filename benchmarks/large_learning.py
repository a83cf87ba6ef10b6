"""Learn the kernel of MT-BKB on 100,000 choices with up to 3,000 observations: ``make bench-large-learning``.

Eight inputs, four correlated smooth tasks, 5 % noise, delayed schedule, ``refit_every=50``. All observations but those
of some rounds on the way come in portions from one refit to the next, so that it takes minutes and not an hour: every
refit is measured, and of the rounds between them a few. All times are of the CPU.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import timing  # noqa: F401  (sets the environment before torch is loaded)
import torch
from record import format_rows, record
from torch import Tensor

from mtbo_torch import MTBKB, ExactMultiTaskGP, NystromMultiTaskGP
from mtbo_torch.kernels import default_kernel
from mtbo_torch.models.learning import learn_kernel
from mtbo_torch.strategies.budgeted import MOST_LEARNED_FROM

torch.set_default_dtype(torch.double)
torch.set_num_threads(1)
CHOICES, INPUTS, TASKS, NOISE, EVERY = 100_000, 8, 4, 0.05, 50
LAST, ROUNDS = 3_000, 20
STAGES = (300, 1_000, LAST - ROUNDS)  # after which so many rounds are measured
COMPARED = 1_000
SOURCES = ["benchmarks/large_learning.py", "mtbo_torch/strategies/budgeted.py", "mtbo_torch/strategies/learners.py"]


class Problem:
    """Draws from a Gaussian process with lengthscales from 4 to 16, by 2,000 random features, mixed into tasks."""

    def __init__(self) -> None:
        self.source = torch.Generator().manual_seed(0)
        lengthscales = 4 * 4 ** torch.rand(INPUTS, 1, generator=self.source)
        self.frequencies = self._draw(INPUTS, 2_000) / lengthscales
        self.phases = 2 * math.pi * torch.rand(2_000, generator=self.source)
        self.loads = self._draw(2_000, TASKS) @ (torch.eye(TASKS) + 0.7 * self._draw(TASKS, TASKS))
        self.mean, self.scale = 0.0, 1.0
        values = self(self.draw_points(5_000))
        self.mean, self.scale = values.mean(dim=0), values.std(dim=0)

    def __call__(self, x: Tensor) -> Tensor:
        return (torch.cos(x @ self.frequencies + self.phases) @ self.loads - self.mean) / self.scale

    def draw_points(self, count: int) -> Tensor:
        return torch.rand(count, INPUTS, generator=self.source)

    def observe(self, x: Tensor) -> Tensor:
        return self(x) + NOISE * self._draw(len(x), TASKS)

    def _draw(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self.source)


class Clock:
    """CPU seconds by name, and how often each was measured."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def measure(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time measured."""

        def measured(*arguments: Any) -> Any:
            start = time.process_time()
            result = function(*arguments)
            self.seconds[name] += time.process_time() - start
            self.counts[name] += 1
            return result

        return measured


def run() -> list[tuple[str, ...]]:
    """Return rows with the costs of refits and of rounds, up to some numbers of observations."""
    problem, clock = Problem(), Clock()
    choices, held_out = problem.draw_points(CHOICES), problem.draw_points(1_000)
    strategy = MTBKB(TASKS, choices=choices, refit_every=EVERY, schedule="delayed")
    learner = strategy._learner
    learner._refit = clock.measure("fitting", learner._refit)
    learner._fill = clock.measure("filling", learner._fill)
    refits = [t for t in range(EVERY, LAST, EVERY) if strategy._must_refit(t, EVERY, 0)]
    rows: list[tuple[str, ...]] = []
    start, so_far, total = 0, Counter[str](), Counter[str]()
    for t in (*refits, LAST - ROUNDS):
        x = choices[strategy.num_observations : t]
        strategy.tell(x, problem.observe(x))
        if t not in STAGES:
            continue
        spent = clock.seconds - so_far
        of_rounds = time_rounds(strategy, problem)
        so_far = clock.seconds.copy()
        cost = spent | Counter({"rounds": of_rounds * (t - start)})
        total += cost
        rmse = (strategy.model.mean(held_out) - problem(held_out)).square().mean().sqrt().item()
        size, count = strategy.dictionary_size, clock.counts["fitting"]
        rows.append((f"{start:,} to {t:,}", f"{size}", f"{count}", *describe(cost, t - start), f"{rmse:.4f}"))
        print(*rows[-1], sep="  ", flush=True)
        start = t
    rows.append((f"0 to {start:,}", "", f"{clock.counts['fitting']}", *describe(total, start), ""))
    return rows


def time_rounds(strategy: MTBKB, problem: Problem) -> float:
    """Return the mean CPU seconds of some rounds, draws of the dictionary with them."""
    clock = Clock()
    ask, tell = clock.measure("round", strategy.ask), clock.measure("round", strategy.tell)
    for _ in range(ROUNDS):
        x = ask()
        tell(x, problem.observe(x))
    return clock.seconds["round"] / ROUNDS


def describe(cost: Counter[str], count: int) -> tuple[str, ...]:
    """Return the mean cost of a round in ms, and the shares of fitting and of filling."""
    whole = cost.total()
    return f"{1e3 * whole / count:.0f}", *[f"{100 * cost[name] / whole:.1f} %" for name in ("fitting", "filling")]


def compare() -> list[tuple[str, ...]]:
    """Return rows with what learning from some and from all observations costs, and how well all then predict."""
    problem, rows = Problem(), []
    X, held_out = problem.draw_points(COMPARED), problem.draw_points(1_000)
    Y, seen = problem.observe(X), problem.observe(held_out)
    some = torch.arange(MOST_LEARNED_FROM)  # the points are random as they are
    for name, kind, of in (
        (f"{MOST_LEARNED_FROM} of them, their likelihood", ExactMultiTaskGP, some),
        ("all, their likelihood", ExactMultiTaskGP, torch.arange(COMPARED)),
        ("all, the bound of a dictionary", NystromMultiTaskGP, torch.arange(COMPARED)),
    ):
        learned, clock = kind(X[of], Y[of], default_kernel(TASKS, INPUTS)), Clock()
        clock.measure("fit", learn_kernel)(learned)
        model = ExactMultiTaskGP(X, Y, deepcopy(learned.covar_module), learned.noise.detach())
        with torch.no_grad():
            belief = model.at(held_out)
            rmse = (belief.mean - problem(held_out)).square().mean().sqrt().item()
            deviation = (belief.variance() + model.noise).sqrt()
            density = torch.distributions.Normal(belief.mean, deviation).log_prob(seen).mean()
        rows.append((name, f"{clock.seconds['fit']:.1f}", f"{rmse:.4f}", f"{density:.3f}"))
        print(*rows[-1], sep="  ", flush=True)
    return rows


def main() -> None:
    head = ("observations", "dictionary", "refits so far", "a round, refits included (CPU ms)", "learning", "filling")
    record("large_learning", format_rows([(*head, "rmse"), *run()]), "make bench-large-learning", SOURCES)
    head = (f"learned from {COMPARED:,}", "CPU s", "rmse", "log density of a value held out")
    record("large_learning_subset", format_rows([head, *compare()]), "make bench-large-learning", SOURCES)


if __name__ == "__main__":
    main()
