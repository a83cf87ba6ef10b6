"""Reproduce panels of the paper."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mtbo_torch
from mtbo_torch.experiments.algorithms import ALGORITHMS, CERTIFIED, DEFAULT_ALGORITHMS
from mtbo_torch.experiments.engine import Work
from mtbo_torch.experiments.instances import derive_seed
from mtbo_torch.experiments.panels import EXPERIMENTS, PANELS, Settings, build_instances
from mtbo_torch.experiments.results import Panel, PanelResult
from mtbo_torch.experiments.runner import Benchmark, Columns, Trials
from mtbo_torch.metrics import RegretTracker, regret_certificate
from mtbo_torch.problems import FieldProblem, paper
from mtbo_torch.strategies.kernelized import KernelStrategy
from mtbo_torch.strategies.reference import MOST_TASKS

SECONDS_TO_CONNECT = 20
REGRETS = (
    "regret",
    "average_regret",
    "simple_regret",
    "bayes_regret",
    "front_share",
    "hypervolume_share",
    "certificate",
)
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


def make_benchmark(name: str, settings: Settings, field: FieldProblem | None = None) -> Benchmark:
    """Make a benchmark of an experiment of the paper; `field` has its data, if it needs any."""
    constants = {name.lower(): value for name, value in vars(paper).items() if name.isupper()}
    del constants["open_choices"]
    facts: dict[str, Any] = {"mtbo_torch": mtbo_torch.__version__, "experiment": name}
    facts |= asdict(settings) | {"paper": constants}
    if not EXPERIMENTS[name].knows_norm:
        facts["norm_bound"] = "paper"
    if field is not None:
        numbers = torch.cat([tensor.flatten() for tensor in (field.choices, field.values, field.task_covar)])
        facts["data"] = {
            "report": field.report,
            "lengthscale": field.lengthscale,
            "noise_scale": field.noise_scale,
            "sha256": hashlib.sha256(numbers.numpy().tobytes()).hexdigest(),
        }
    one = build_instances(name, (0,), settings, field)
    sizes = {"weights": one.num_tasks, "x": next(iter(one.space.values())).shape[-1], "y": one.num_tasks}
    return Benchmark(name, facts, sizes, REGRETS, tuple(ALGORITHMS), partial(PaperTrials, name, settings, field))


class PaperTrials(Trials):
    """Trials of an algorithm, measured by regrets, and by bounds on them where the algorithm has any."""

    def __init__(
        self, name: str, settings: Settings, field: FieldProblem | None, algorithm: str, trials: Sequence[int]
    ) -> None:
        self.scalarization = EXPERIMENTS[name].scalarization
        self.instances = build_instances(name, tuple(trials), settings, field)
        seeds = [derive_seed(settings.seed, trial, "strategy") for trial in trials]
        self.strategy = ALGORITHMS[algorithm](self.instances, self.scalarization, seeds)
        self.has_certificate = algorithm in CERTIFIED
        self.noise_scale = self.instances.noise_scale
        self.noise_seeds = [derive_seed(settings.seed, trial, "noise") for trial in trials]
        fixed = torch.Generator().manual_seed(derive_seed(settings.seed, -1, "Bayes weights"))
        bayes = self.strategy.weights.sample(paper.NUM_BAYES_WEIGHTS, generator=fixed, dtype=torch.double)
        self.tracker = RegretTracker(
            self.scalarization,
            lambda weights: self.instances.find_best(self.scalarization, weights),
            bayes.to(settings.like),
            self.instances.attainable,
        )
        self.state = self.tracker.state

    def evaluate(self, x: Tensor) -> Tensor:
        return self.instances.evaluate(x)

    def watch(self, x: Tensor) -> Columns:
        strategy = self.strategy
        row = {"weights": strategy.asked_weights}
        if self.has_certificate and isinstance(strategy, KernelStrategy):
            lipschitz = self.scalarization(strategy.asked_weights.squeeze(-2)).lipschitz
            norm = strategy.covariance_norm(x).squeeze(-1)
            row["bounds"] = torch.stack([lipschitz, strategy.radius, norm], dim=-1).unsqueeze(-2)
        return row

    def measure(self, columns: Columns) -> Columns:
        measures = self.tracker.update(columns["weights"], columns["values"])
        certificate = self._certify(columns.get("bounds"))
        if certificate is not None:
            numbers = torch.arange(1, certificate.shape[1] + 1).to(certificate)
            measures["certificate"] = (certificate / numbers)[:, -columns["x"].shape[1] :]
        return measures

    def _certify(self, bounds: Tensor | None) -> Tensor | None:
        """Return the bounds of the regret after each round, ``b x t``, given the latest radii and norms, if any."""
        if bounds is not None:
            self.state["bounds"] = torch.cat([self.state.get("bounds", bounds[:, :0]), bounds], dim=1)
            return regret_certificate(*self.state["bounds"].unbind(dim=-1))
        if isinstance(self.strategy, KernelStrategy) and self.strategy.bound == "mixture":
            return self.strategy.certificate()
        return None


def reproduce(request: Request) -> tuple[list[PanelResult], list[str]]:
    """Run what is not on disk yet; return the results of the panels, and notes on what was left out.

    Raises:
        ValueError: If the folder holds results of other settings or damaged files; then nothing is written.
    """
    panels, notes = _select_panels(request)
    benchmarks = {
        name: make_benchmark(name, request.settings, request.fields.get(EXPERIMENTS[name].data or ""))
        for panel in panels
        for name in panel.experiments.values()
    }
    needed: dict[str, list[str]] = {}
    for panel in panels:
        chosen = ("MT-KB",) if panel.is_sweep else request.algorithms
        for name in panel.experiments.values():
            needed[name], left_out = _select_algorithms(benchmarks[name], chosen)
            if not set(needed[name]) <= set(request.algorithms):
                left_out.append(f"{panel.name} always runs MT-KB, whatever algorithms are named.")
            notes += [note for note in left_out if note not in notes]
    panels = [panel for panel in panels if any(needed[name] for name in panel.experiments.values())]
    benchmarks = {name: benchmark for name, benchmark in benchmarks.items() if needed[name]}
    if not panels:
        return [], notes
    with _connect(request.scheduler) as executor:
        work = Work(panels, benchmarks, needed, range(request.trials), request.batch)
        return work.run(request.out, executor), notes


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


def _select_algorithms(benchmark: Benchmark, algorithms: Sequence[str]) -> tuple[list[str], list[str]]:
    num_tasks = benchmark.sizes["y"]
    too_many = num_tasks > MOST_TASKS
    wanted = [name for name in dict.fromkeys(algorithms) if not (too_many and name == "qLogNEHVI")]
    note = f"qLogNEHVI is left out of {benchmark.name}: it takes at most {MOST_TASKS} tasks, not {num_tasks}."
    return wanted, [note] if too_many and "qLogNEHVI" in algorithms else []


@contextmanager
def _connect(scheduler: str | None) -> Iterator[Executor | None]:
    """Connect to a Dask cluster, if there is one."""
    if scheduler is None:
        yield None
        return
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise ImportError('A cluster needs Dask. Run: pip install "mtbo-torch[cluster]"') from None
    try:
        client = Client(scheduler, timeout=SECONDS_TO_CONNECT)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--scheduler should be the address of a running Dask scheduler, got {scheduler} ({error})."
        ) from error
    with client:
        try:
            yield client.get_executor(pure=False)
        except KilledWorker as error:
            raise ValueError(
                "--scheduler should have working workers, got several that died while running the same part. Check "
                "their memory and logs; finished parts are kept."
            ) from error
