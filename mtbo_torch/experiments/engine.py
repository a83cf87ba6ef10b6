"""Run what panels need and is not on disk yet, here or elsewhere, and collect it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mtbo_torch.display import progress_bar
from mtbo_torch.experiments.results import Panel, PanelResult
from mtbo_torch.experiments.runner import Benchmark, Columns, Part, Run, join, run_part
from mtbo_torch.experiments.storage import Store, lock_folder

# A killed run loses at most this time and a block of rounds.
SECONDS_BETWEEN_COMMITS = 1.0


@dataclass(frozen=True)
class Work:
    """What to run for some panels.

    Attributes:
        panels: The panels.
        benchmarks: Those of the panels, by name.
        algorithms: The names of the algorithms to run on each of them.
        trials: The numbers of the trials.
        batch: The number of trials that run as one batch.
    """

    panels: Sequence[Panel]
    benchmarks: Mapping[str, Benchmark]
    algorithms: Mapping[str, Sequence[str]]
    trials: Sequence[int]
    batch: int

    def run(self, out: Path, executor: Executor | None = None, can_continue: bool = True) -> list[PanelResult]:
        """Run what is not in the folder `out` yet; return the results of the panels.

        Args:
            out: A folder that has every round, and the state of an interrupted part.
            executor: Where to run; None for here.
            can_continue: False if nobody will continue an interrupted part, whose state is then not kept.

        Raises:
            ValueError: If the folder holds results of other settings or damaged files; then nothing is written.
        """
        with lock_folder(out):
            stores = {name: Store(out / "runs" / name, benchmark) for name, benchmark in self.benchmarks.items()}
            plans = [self._plan(name, store) for name, store in stores.items()]
            begun = [plan[0] for plan, store in zip(plans, stores.values(), strict=True) if store.active is not None]
            rest = [part for plan in plans for part in plan if part not in begun]
            for store in stores.values():
                store.begin()
            if executor is None and can_continue:
                _run_here(begun + rest, stores)
            else:
                _run_here(begun, stores)
                _run_whole(rest, stores, executor)
            for store in stores.values():
                store.finish()
            return [self._collect(panel, stores) for panel in self.panels]

    def _plan(self, name: str, store: Store) -> list[Part]:
        """Return the remaining parts of a benchmark, the interrupted part with its own trials first."""
        benchmark, parts, begun = self.benchmarks[name], list[Part](), set[tuple[str, int]]()
        if store.active is not None:
            algorithm, trials = store.active["algorithm"], tuple(store.active["trials"])
            if algorithm not in benchmark.algorithms:
                raise ValueError(
                    f"{store.folder} has an interrupted run of {algorithm}, got {', '.join(benchmark.algorithms)}. "
                    f"Name {algorithm}, too, so that it can be finished; or delete {store.folder}."
                )
            parts.append(Part(benchmark, algorithm, trials))
            begun = {(algorithm, trial) for trial in trials}
        for algorithm in self.algorithms[name]:
            done = store.find_complete(algorithm)
            left = [i for i in self.trials if i not in done and (algorithm, i) not in begun]
            batches = [tuple(left[i : i + self.batch]) for i in range(0, len(left), self.batch)]
            parts += [Part(benchmark, algorithm, trials) for trials in batches]
        return parts

    def _collect(self, panel: Panel, stores: dict[str, Store]) -> PanelResult:
        columns: dict[str, dict[str, Tensor]] = {}
        seconds: dict[str, float] = {}
        for label, name in panel.experiments.items():
            for algorithm, curves in stores[name].load_curves(self.algorithms[name], self.trials).items():
                columns[label or algorithm] = curves
                seconds[label or algorithm] = stores[name].seconds[algorithm]
        settings = {name: stores[name].settings for name in panel.experiments.values()}
        return PanelResult(panel, columns, seconds, settings)


def _run_here(parts: Sequence[Part], stores: dict[str, Store]) -> None:
    """Run parts one after the other, and keep the state on the way."""
    with progress_bar(sum(part.benchmark.rounds for part in parts), "starting") as bar:
        for part in parts:
            bar.set_description(f"{part.benchmark.name} {part.algorithm}")
            _run_one(part, stores[part.benchmark.name], bar)


def _run_one(part: Part, store: Store, bar: Any) -> None:
    run = Run(part)
    if store.active is not None:
        run.load_state_dict(store.active["run"])
        bar.update(run.round)
    blocks: list[Columns] = []
    committed, seconds, last = run.round, run.seconds, time.monotonic()
    while not run.is_done:
        before = run.round
        blocks.append(run.advance())
        bar.update(run.round - before)
        if run.is_done or time.monotonic() - last > SECONDS_BETWEEN_COMMITS:
            left = None
            if not run.is_done:
                left = {"algorithm": part.algorithm, "trials": list(part.trials), "run": run.state_dict()}
            store.append(part.algorithm, part.trials, committed + 1, join(blocks), run.seconds - seconds, left)
            blocks, committed, seconds, last = [], run.round, run.seconds, time.monotonic()


def _run_whole(parts: Sequence[Part], stores: dict[str, Store], executor: Executor | None) -> None:
    """Run parts, and keep those that are finished."""
    with progress_bar(len(parts), "running", unit="part") as bar:
        for part, (columns, seconds) in _finish(parts, executor):
            stores[part.benchmark.name].append(part.algorithm, part.trials, 1, columns, seconds, None)
            bar.update(1)


def _finish(parts: Sequence[Part], executor: Executor | None) -> Iterator[tuple[Part, tuple[Columns, float]]]:
    if executor is None:
        yield from ((part, run_part(part)) for part in parts)
        return
    futures = {executor.submit(_run_alone, part): part for part in parts}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


_ONE_AT_A_TIME = threading.Lock()


def _run_alone(part: Part) -> tuple[Columns, float]:
    # A worker may have several threads, but BoTorch's optimizers use the random generator of the process.
    with _ONE_AT_A_TIME:
        return run_part(part)
