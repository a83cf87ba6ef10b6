"""Plan, run and collect the runs of a list of panels."""

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
from mtbo_torch.display import format_html_table, format_mean_and_sd, format_text_table, progress_bar
from mtbo_torch.experiments.algorithms import DEFAULT_ALGORITHMS
from mtbo_torch.experiments.panels import EXPERIMENTS, PANELS, Panel, Settings, build_instances, describe_experiment
from mtbo_torch.experiments.runner import Columns, Part, Run, join, run_part
from mtbo_torch.experiments.storage import Store, lock_folder
from mtbo_torch.problems import FieldProblem, paper
from mtbo_torch.strategies.reference import MOST_TASKS

# A killed run loses at most this time and a block of rounds.
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
    """A request to reproduce panels.

    Attributes:
        panels: The names of the panels.
        out: The output folder.
        settings: The settings that all runs share.
        algorithms: The names of the algorithms.
        trials: The number of trials.
        batch: The number of trials that run as one batch.
        fields: The data read from files: ``"sensor"``, ``"soil"``.
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
    """The result of a panel, shown as a table when printed and in Jupyter.

    Attributes:
        panel: The panel.
        columns: For each curve, all regrets as ``trials x rounds``.
        seconds: For each curve, the time of its rounds.
        settings: For each experiment, everything that determined its numbers.
    """

    panel: Panel
    columns: dict[str, dict[str, Tensor]]
    seconds: dict[str, float]
    settings: dict[str, dict[str, Any]]

    @property
    def curves(self) -> dict[str, Tensor]:
        """The regret that the panel shows, ``trials x rounds`` for each curve."""
        return {label: columns[self.panel.metric] for label, columns in self.columns.items()}

    def __repr__(self) -> str:
        return f"{self.panel.name}: {self.panel.title}\n{format_text_table(self._make_rows())}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(f'{self.panel.name}: {self.panel.title}')}</p>{format_html_table(self._make_rows())}"

    def _make_rows(self) -> list[list[str]]:
        trials, rounds = next(iter(self.curves.values())).shape
        head = [f"{trials} trials, {rounds} rounds", f"final {self.panel.metric.replace('_', ' ')}", "seconds"]
        finals = {label: curve[:, -1].tolist() for label, curve in self.curves.items()}
        rows = [[label, format_mean_and_sd(last), f"{self.seconds[label]:.1f}"] for label, last in finals.items()]
        return [head, *rows]


def reproduce(request: Request) -> tuple[list[PanelResult], list[str]]:
    """Run what is not on disk yet; return the results of the panels, and notes on what was left out.

    Raises:
        ValueError: If the folder holds results of other settings or damaged files; then nothing is written.
    """
    panels, notes = _select_panels(request)
    needed: dict[str, list[str]] = {}
    for panel in panels:
        for experiment in panel.experiments.values():
            wanted, left_out = _select_algorithms(experiment, panel.choose_algorithms(request.algorithms), request)
            if not set(wanted) <= set(request.algorithms):
                left_out.append(f"{panel.name} always runs MT-KB, whatever algorithms are named.")
            needed[experiment] = list(dict.fromkeys([*needed.get(experiment, []), *wanted]))
            notes += [note for note in left_out if note not in notes]
    panels = [panel for panel in panels if any(needed[name] for name in panel.experiments.values())]
    needed = {name: algorithms for name, algorithms in needed.items() if algorithms}
    if not needed:
        return [], notes
    with lock_folder(request.out):
        stores = {name: _open_store(name, request) for name in needed}
        _run(stores, needed, request)
        return [_collect_result(panel, stores, needed, request) for panel in panels], notes


def _run(stores: dict[str, Store], needed: dict[str, list[str]], request: Request) -> None:
    plans = [_plan_parts(stores[name], name, algorithms, request) for name, algorithms in needed.items()]
    parts = [part for plan in plans for part in plan]
    interrupted = [part for part in parts if _is_active(stores[part.experiment], part)]
    rest = [part for part in parts if part not in interrupted]
    for store in stores.values():
        store.begin()
    _run_locally(interrupted, stores)
    if request.scheduler is None:
        _run_locally(rest, stores)
    else:
        _run_on_cluster(rest, stores, request.scheduler)
    for store in stores.values():
        store.finish()


def _select_panels(request: Request) -> tuple[list[Panel], list[str]]:
    panels, notes = [], []
    for name in request.panels:
        needed = {EXPERIMENTS[experiment].data for experiment in PANELS[name].experiments.values()}
        missing = [data for data in needed if data is not None and data not in request.fields]
        if missing:
            notes.append(f"{name} is skipped: {HOW_TO_GET[missing[0]]}.")
        else:
            panels.append(PANELS[name])
    return panels, notes


def _select_algorithms(experiment: str, algorithms: Iterable[str], request: Request) -> tuple[list[str], list[str]]:
    num_tasks = _build_one_instance(experiment, request).num_tasks
    too_many = num_tasks > MOST_TASKS
    wanted = [name for name in algorithms if not (too_many and name == "qLogNEHVI")]
    note = f"qLogNEHVI is left out of {experiment}: it takes at most {MOST_TASKS} tasks, not {num_tasks}."
    return wanted, [note] if too_many and "qLogNEHVI" in algorithms else []


def _build_one_instance(experiment: str, request: Request) -> Any:
    return build_instances(experiment, (0,), request.settings, request.fields.get(EXPERIMENTS[experiment].data or ""))


def _open_store(name: str, request: Request) -> Store:
    experiment, one = EXPERIMENTS[name], _build_one_instance(name, request)
    facts = describe_experiment(experiment, request.settings, request.fields.get(experiment.data or ""))
    d = next(iter(one.space.values())).shape[-1]
    settings = {"mtbo_torch": mtbo_torch.__version__} | facts
    return Store(request.out / "runs" / name, settings, (one.num_tasks, d, one.num_tasks))


def _plan_parts(store: Store, experiment: str, algorithms: Sequence[str], request: Request) -> list[Part]:
    """Return the remaining parts of an experiment, the interrupted part with its own trials first."""
    data = request.fields.get(EXPERIMENTS[experiment].data or "")
    parts, begun = [], set()
    if store.active is not None:
        parts.append(Part(experiment, store.active["algorithm"], tuple(store.active["trials"]), request.settings, data))
        begun = {(parts[0].algorithm, trial) for trial in parts[0].trials}
    for algorithm in algorithms:
        done = store.find_complete(algorithm)
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
            store.append(part.algorithm, part.trials, committed + 1, join(blocks), spent, left)
            blocks, committed, seconds, last = [], run.round, run.seconds, time.monotonic()


_ONE_AT_A_TIME = threading.Lock()


def _run_part_alone(part: Part) -> tuple[Columns, float]:
    # A worker may have several threads, but BoTorch's optimizers use the random generator of the process.
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
                    f"--scheduler should have working workers, got several that died while running {part.algorithm} in "
                    f"{part.experiment}. Check their memory and logs; finished parts are kept."
                ) from error
            stores[part.experiment].append(part.algorithm, part.trials, 1, columns, seconds, None)
            bar.update(1)


def _collect_result(
    panel: Panel, stores: dict[str, Store], needed: dict[str, list[str]], request: Request
) -> PanelResult:
    columns: dict[str, dict[str, Tensor]] = {}
    seconds: dict[str, float] = {}
    for label, experiment in panel.experiments.items():
        wanted = [name for name in panel.choose_algorithms(request.algorithms) if name in needed[experiment]]
        for algorithm, curves in stores[experiment].load_curves(wanted, request.trials).items():
            columns[label or algorithm] = curves
            seconds[label or algorithm] = stores[experiment].seconds[algorithm]
    settings = {name: stores[name].settings for name in panel.experiments.values()}
    return PanelResult(panel, columns, seconds, settings)
