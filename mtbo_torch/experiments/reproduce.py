"""From a list of panels to results: what has to be run, where, and what came out."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

import mtbo_torch
from mtbo_torch.experiments.algorithms import DEFAULT_ALGORITHMS
from mtbo_torch.experiments.panels import EXPERIMENTS, PANELS, Panel, Settings, described, instances_of
from mtbo_torch.experiments.runner import Columns, Part, Run, joined, run_part
from mtbo_torch.experiments.storage import Store, sole_use
from mtbo_torch.problems import FieldProblem, paper
from mtbo_torch.progress import progress_bar
from mtbo_torch.strategies.reference import MOST_TASKS
from mtbo_torch.tables import html_table, mean_and_sd, text_table

# A killed run loses at most this and a block of rounds.
SECONDS_BETWEEN_COMMITS = 1.0
SECONDS_TO_CONNECT = 20
HOW_TO_GET = {
    "sensor": (
        "it needs the Intel Berkeley lab's readings: pass --sensor-data with a folder that holds data.txt and "
        "mote_locs.txt, or with a tidy CSV file"
    ),
    "soil": "it needs the Jura data, a CSV file with the columns Xloc, Yloc, seven metals and split: pass --soil-data",
}


@dataclass(frozen=True)
class Request:
    """What to reproduce.

    Attributes:
        panels: Their names.
        out: The folder for everything.
        settings: What all runs have in common.
        algorithms: Their names.
        trials: How many.
        batch: How many of them run side by side as one batch.
        fields: The data read from files, by kind.
        scheduler: The address of a Dask scheduler; None to run here.
    """

    panels: Sequence[str]
    out: Path
    settings: Settings = field(default_factory=Settings)
    algorithms: Sequence[str] = DEFAULT_ALGORITHMS
    trials: int = paper.NUM_TRIALS
    batch: int = paper.NUM_TRIALS
    fields: dict[str, FieldProblem] = field(default_factory=dict)
    scheduler: str | None = None


@dataclass(frozen=True, repr=False)
class PanelResult:
    """What came out of a panel; prints as a table, and shows as one in Jupyter.

    Attributes:
        panel: The panel.
        columns: For each curve, all regrets as ``trials x rounds``.
        seconds: For each curve, the time its rounds took.
        settings: For each experiment, what decided its numbers.
    """

    panel: Panel
    columns: dict[str, dict[str, Tensor]]
    seconds: dict[str, float]
    settings: dict[str, dict[str, Any]]

    @property
    def curves(self) -> dict[str, Tensor]:
        """The panel's own regret, ``trials x rounds`` for each curve."""
        return {label: columns[self.panel.metric] for label, columns in self.columns.items()}

    def __repr__(self) -> str:
        return f"{self.panel.name}: {self.panel.title}\n{text_table(self._rows())}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(f'{self.panel.name}: {self.panel.title}')}</p>{html_table(self._rows())}"

    def _rows(self) -> list[list[str]]:
        trials, rounds = next(iter(self.curves.values())).shape
        head = [f"{trials} trials, {rounds} rounds", f"final {self.panel.metric.replace('_', ' ')}", "seconds"]
        finals = {label: curve[:, -1].tolist() for label, curve in self.curves.items()}
        return [head, *[[label, mean_and_sd(values), f"{self.seconds[label]:.1f}"] for label, values in finals.items()]]


def reproduce(request: Request) -> tuple[list[PanelResult], list[str]]:
    """Run what is not on disk yet; the results of the panels, and why others were left out.

    Raises:
        ValueError: If the folder holds other or damaged results; then nothing has been written.
    """
    panels, notes = _feasible(request)
    needed: dict[str, list[str]] = {}
    for panel in panels:
        for experiment in panel.experiments.values():
            wanted, left_out = _supported(experiment, panel.algorithms(request.algorithms), request)
            if not set(wanted) <= set(request.algorithms):
                left_out.append(f"{panel.name} is about MT-KB, whatever algorithms are named.")
            needed[experiment] = list(dict.fromkeys([*needed.get(experiment, []), *wanted]))
            notes += [note for note in left_out if note not in notes]
    panels = [panel for panel in panels if any(needed[name] for name in panel.experiments.values())]
    needed = {name: algorithms for name, algorithms in needed.items() if algorithms}
    if not needed:
        return [], notes
    with sole_use(request.out):
        stores = {name: _store(name, request) for name in needed}
        _run(stores, needed, request)
        return [_result(panel, stores, needed, request) for panel in panels], notes


def _run(stores: dict[str, Store], needed: dict[str, list[str]], request: Request) -> None:
    parts = [part for name, algorithms in needed.items() for part in _parts(stores[name], name, algorithms, request)]
    interrupted = [part for part in parts if _is_active(stores[part.experiment], part)]
    rest = [part for part in parts if part not in interrupted]
    for name in dict.fromkeys(part.experiment for part in parts):
        stores[name].begin()
    _run_locally(interrupted, stores)
    if request.scheduler is None:
        _run_locally(rest, stores)
    else:
        _run_on_cluster(rest, stores, request.scheduler)
    for store in stores.values():
        store.finish()


def _feasible(request: Request) -> tuple[list[Panel], list[str]]:
    panels, notes = [], []
    for name in request.panels:
        kinds = {EXPERIMENTS[experiment].data for experiment in PANELS[name].experiments.values()} - {None}
        missing = [kind for kind in kinds if kind is not None and kind not in request.fields]
        if missing:
            notes.append(f"{name} is skipped: {HOW_TO_GET[missing[0]]}.")
        else:
            panels.append(PANELS[name])
    return panels, notes


def _supported(experiment: str, algorithms: Iterable[str], request: Request) -> tuple[list[str], list[str]]:
    num_tasks = _one_instance(experiment, request).num_tasks
    too_many = num_tasks > MOST_TASKS
    wanted = [name for name in algorithms if not (too_many and name == "qLogNEHVI")]
    note = f"qLogNEHVI is left out of {experiment}: it takes at most {MOST_TASKS} tasks, not {num_tasks}."
    return wanted, [note] if too_many and "qLogNEHVI" in algorithms else []


def _one_instance(experiment: str, request: Request) -> Any:
    return instances_of(experiment, (0,), request.settings, request.fields.get(EXPERIMENTS[experiment].data or ""))


def _store(name: str, request: Request) -> Store:
    experiment, one = EXPERIMENTS[name], _one_instance(name, request)
    facts = described(experiment, request.settings, request.fields.get(experiment.data or ""))
    d = next(iter(one.space.values())).shape[-1]
    settings = {"mtbo_torch": mtbo_torch.__version__} | facts
    return Store(request.out / "runs" / name, settings, (one.num_tasks, d, one.num_tasks))


def _parts(store: Store, experiment: str, algorithms: Sequence[str], request: Request) -> list[Part]:
    """What is left to do; first of all what was interrupted, with the very trials it had."""
    data = request.fields.get(EXPERIMENTS[experiment].data or "")
    parts, begun = [], set()
    if store.active is not None:
        parts.append(Part(experiment, store.active["algorithm"], tuple(store.active["trials"]), request.settings, data))
        begun = {(parts[0].algorithm, trial) for trial in parts[0].trials}
    for algorithm in algorithms:
        done = store.done(algorithm)
        left = [i for i in range(request.trials) if i not in done and (algorithm, i) not in begun]
        batches = [tuple(left[i : i + request.batch]) for i in range(0, len(left), request.batch)]
        parts += [Part(experiment, algorithm, trials, request.settings, data) for trials in batches]
    return parts


def _is_active(store: Store, part: Part) -> bool:
    active = store.active
    return active is not None and (active["algorithm"], tuple(active["trials"])) == (part.algorithm, part.trials)


def _run_locally(parts: Sequence[Part], stores: dict[str, Store]) -> None:
    if not parts:
        return
    with progress_bar(sum(part.settings.rounds for part in parts), "starting") as bar:
        for part in parts:
            bar.set_description(f"{part.experiment} {part.algorithm}")
            _run_one(part, stores[part.experiment], bar)


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
            active = {"algorithm": part.algorithm, "trials": list(part.trials), "run": run.state_dict()}
            left, spent = None if run.is_done else active, run.seconds - seconds
            store.append(part.algorithm, part.trials, committed + 1, joined(blocks), spent, left)
            blocks, committed, seconds, last = [], run.round, run.seconds, time.monotonic()


_ONE_AT_A_TIME = threading.Lock()


def _run_part_alone(part: Part) -> tuple[Columns, float]:
    # A worker may have several threads, but the hosts' optimizers use the process's random numbers.
    with _ONE_AT_A_TIME:
        return run_part(part)


def _run_on_cluster(parts: Sequence[Part], stores: dict[str, Store], scheduler: str) -> None:
    from distributed import Client, KilledWorker, as_completed

    try:
        client = Client(scheduler, timeout=SECONDS_TO_CONNECT)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--scheduler should be the address of a running Dask scheduler, got {scheduler} ({error})."
        ) from error
    with client, progress_bar(len(parts), "on the cluster", unit="part") as bar:
        futures = {client.submit(_run_part_alone, part, pure=False): part for part in parts}
        for future in as_completed(futures):
            part = futures[future]
            try:
                columns, seconds = future.result()
            except KilledWorker as error:
                raise ValueError(
                    f"--scheduler should have workers that live, got several lost over {part.algorithm} in "
                    f"{part.experiment}. Look at their memory and logs; what was finished is kept."
                ) from error
            stores[part.experiment].append(part.algorithm, part.trials, 1, columns, seconds, None)
            bar.update(1)


def _result(panel: Panel, stores: dict[str, Store], needed: dict[str, list[str]], request: Request) -> PanelResult:
    columns: dict[str, dict[str, Tensor]] = {}
    seconds: dict[str, float] = {}
    for label, experiment in panel.experiments.items():
        wanted = [name for name in panel.algorithms(request.algorithms) if name in needed[experiment]]
        for algorithm, curves in stores[experiment].curves(wanted, request.trials).items():
            columns[label or algorithm] = curves
            seconds[label or algorithm] = stores[experiment].seconds[algorithm]
    settings = {name: stores[name].settings for name in panel.experiments.values()}
    return PanelResult(panel, columns, seconds, settings)
