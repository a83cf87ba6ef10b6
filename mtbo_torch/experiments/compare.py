"""Compare strategies on problems of one's own: the same seeds for all, saved on the way, judged in pairs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import torch
from botorch.test_functions.base import MultiObjectiveTestProblem
from torch import Tensor

from mtbo_torch.checks import require_bounds, require_count, require_positive, require_ref_point, require_seed
from mtbo_torch.display import format_html_table, format_mean_and_sd, format_text_table, progress_bar, shorten
from mtbo_torch.experiment import _load_pandas
from mtbo_torch.experiments.instances import derive_seed
from mtbo_torch.metrics import hypervolume
from mtbo_torch.strategies import Strategy

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Problem:
    """A problem to compare strategies on; all objectives are maximized.

    Attributes:
        function: Takes ``q x d`` points to their ``q x n`` true values.
        bounds: ``2 x d``, the box to search.
        ref_point: ``n``, the values above which the hypervolume is measured.
        noise_scale: The standard deviation of the noise that strategies see.

    Example:
        >>> import torch
        >>> from mtbo_torch.experiments.compare import Problem
        >>> box = torch.tensor([[0.0], [1.0]], dtype=torch.double)
        >>> problem = Problem(lambda X: torch.cat([X.sin(), X.cos()], -1), box, ref_point=torch.zeros(2))
        >>> problem.num_tasks
        2
    """

    function: Callable[[Tensor], Tensor]
    bounds: Tensor
    ref_point: Tensor
    noise_scale: float = 0.0

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"function should be callable, got {self.function!r}. Pass what evaluates points.")
        require_bounds(self.bounds)
        require_positive("noise_scale", self.noise_scale, "Pass 0 for none.", allow_zero=True)
        size = len(self.ref_point) if isinstance(self.ref_point, Tensor) and self.ref_point.dim() else 1
        require_ref_point(self.ref_point, size, "tasks", "Pass one number per task.")

    @property
    def num_tasks(self) -> int:
        """The number of tasks n."""
        return len(self.ref_point)


@dataclass(frozen=True, repr=False)
class BenchmarkResult:
    """The runs of a benchmark, shown as a table with the best marked, and verdicts.

    Attributes:
        runs: A dictionary for each run: problem, strategy, seed, the hypervolume after each round, seconds.
    """

    runs: list[dict[str, Any]]

    @property
    def table(self) -> pd.DataFrame:
        """A pandas data frame with a row for each round of each run."""
        rows = [
            {key: run[key] for key in ("problem", "strategy", "seed")} | {"round": i + 1, "hypervolume": volume}
            for run in self.runs
            for i, volume in enumerate(run["hypervolume"])
        ]
        return _load_pandas().DataFrame(rows)

    @property
    def verdicts(self) -> list[str]:
        """Sentences that say whether the first strategy found more hypervolume than each other one on each problem.

        "More" and "less" need paired differences whose mean exceeds two standard errors.
        """
        sentences = []
        for problem, finals in self._finals().items():
            first, *others = finals
            for other in others:
                gap, error = compute_gap(finals[other], finals[first])
                decided = "undecided, with one seed" if math.isnan(error) else "within the noise"
                if abs(gap) > 2 * error:
                    decided = "more" if gap > 0 else "less"
                evidence = f"{shorten(gap)} ± {shorten(error)} in {len(finals[first])} pairs"
                sentences.append(f"{problem}: {first} against {other}: {decided} ({evidence})")
        return sentences

    def __repr__(self) -> str:
        return "\n".join([format_text_table(self._make_rows()), "", *self.verdicts])

    def _repr_html_(self) -> str:
        return format_html_table(self._make_rows()) + "".join(f"<p>{sentence}</p>" for sentence in self.verdicts)

    def _finals(self) -> dict[str, dict[str, list[float]]]:
        """Return the last hypervolumes by problem and strategy, in the order of the seeds."""
        finals: dict[str, dict[str, list[float]]] = {}
        for run in sorted(self.runs, key=lambda run: run["seed"]):
            finals.setdefault(run["problem"], {}).setdefault(run["strategy"], []).append(run["hypervolume"][-1])
        names = list(dict.fromkeys(run["strategy"] for run in self.runs))
        return {
            problem: {name: finals[problem][name] for name in names}
            for problem in dict.fromkeys(run["problem"] for run in self.runs)
        }

    def _make_rows(self) -> list[list[str]]:
        rows = [["problem", "strategy", "runs", "final hypervolume", "seconds per run"]]
        for problem, finals in self._finals().items():
            best = max(finals, key=lambda name: fmean(finals[name]))
            for name, values in finals.items():
                seconds = [r["seconds"] for r in self.runs if (r["problem"], r["strategy"]) == (problem, name)]
                mark = " (best)" if name == best else ""
                rows.append(
                    [problem, name + mark, str(len(values)), format_mean_and_sd(values), shorten(fmean(seconds))]
                )
        return rows


def compare(
    strategies: Mapping[str, Callable[..., Strategy]],
    problems: Mapping[str, Problem | MultiObjectiveTestProblem],
    seeds: Sequence[int],
    rounds: int,
    *,
    path: str | Path | None = None,
    executor: Executor | None = None,
) -> BenchmarkResult:
    """Run every strategy on every problem with every seed; return the hypervolumes.

    Of the same seed, all strategies see the same noise, round by round, so that differences can be paired.

    Args:
        strategies: By name, what is called with the number of tasks, `bounds` and `seed`: a class such as
            :class:`Optimizer`, or a function. Verdicts compare the first with each of the others.
        problems: By name, those of BoTorch or :class:`Problem`. All are maximized: pass ``negate=True`` to those of
            BoTorch that are to be minimized.
        seeds: Of the runs.
        rounds: The number of evaluations of each run.
        path: A file that every run is appended to when it is done; those that are there are not run again. Delete it if
            a strategy or a problem changes under the same name.
        executor: Where to run: any of ``concurrent.futures``, or Dask's ``Client.get_executor()``. By default here. A
            process pool needs strategies and problems that can be pickled.

    Example:
        >>> from botorch.test_functions.multi_objective import BraninCurrin
        >>> from mtbo_torch.experiments.compare import compare
        >>> from mtbo_torch.strategies import RandomSearch, SobolSearch
        >>> strategies = {"Sobol": SobolSearch, "random": RandomSearch}
        >>> result = compare(strategies, {"BraninCurrin": BraninCurrin(negate=True)}, seeds=range(3), rounds=8)
        >>> len(result.runs)
        6
    """
    jobs = _plan(strategies, problems, seeds, rounds)
    file = None if path is None else Path(path)
    known = {} if file is None else _load(file)
    runs = {job: known[(*job, rounds)] for job in jobs if (*job, rounds) in known}
    missing = [job for job in jobs if job not in runs]
    with progress_bar(len(jobs), "runs", "run") as bar:
        bar.update(len(runs))
        work = [(strategies[strategy], problems[problem], seed, rounds) for problem, strategy, seed in missing]
        if executor is None:
            pairs = ((job, _run(*arguments)) for job, arguments in zip(missing, work, strict=True))
        else:
            futures = {executor.submit(_run, *arguments): job for job, arguments in zip(missing, work, strict=True)}
            pairs = ((futures[future], future.result()) for future in as_completed(futures))
        for (problem, strategy, seed), measured in pairs:
            run = {"problem": problem, "strategy": strategy, "seed": seed} | measured
            runs[problem, strategy, seed] = run
            if file is not None:
                with file.open("a") as stream:
                    stream.write(json.dumps(run) + "\n")
            bar.update(1)
    return BenchmarkResult([runs[job] for job in jobs])


def compute_gap(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the paired differences and its standard error, NaN for a single trial."""
    gaps = [b - a for a, b in zip(first, second, strict=True)]
    return fmean(gaps), stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan


def _plan(strategies: object, problems: object, seeds: Sequence[int], rounds: int) -> list[tuple[str, str, int]]:
    for name, given in (("strategies", strategies), ("problems", problems)):
        if not isinstance(given, Mapping) or not given:
            raise ValueError(f"{name} should be a dictionary with at least one name, got {given!r}. Name each.")
    assert isinstance(strategies, Mapping)
    assert isinstance(problems, Mapping)
    for name, build in strategies.items():
        if not callable(build):
            raise ValueError(f"strategies should be classes or functions, got {build!r} for {name!r}. Pass the class.")
    for name, problem in problems.items():
        if not isinstance(problem, Problem | MultiObjectiveTestProblem):
            raise ValueError(
                f"problems should be of the kind Problem, or BoTorch's with several objectives, got {problem!r} for "
                f"{name!r}. Wrap a function in Problem."
            )
    require_count("rounds", rounds, "Pass the number of evaluations.")
    for seed in seeds:
        require_seed("seeds", seed)
    if not len(seeds) or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds should be different numbers, at least one, got {list(seeds)}. Pass range(5).")
    return [(problem, strategy, seed) for seed in seeds for problem in problems for strategy in strategies]


def _run(
    build: Callable[..., Strategy], problem: Problem | MultiObjectiveTestProblem, seed: int, rounds: int
) -> dict[str, Any]:
    """Return the hypervolume after each round, and the seconds of the strategy."""
    own = problem if isinstance(problem, Problem) else _adopt(problem)
    bounds = own.bounds.double()
    strategy = build(own.num_tasks, bounds=bounds, seed=seed)
    noise = torch.Generator().manual_seed(derive_seed(seed, 0, "noise"))
    values, seconds = bounds.new_empty(0, own.num_tasks), 0.0
    for _ in range(rounds):
        started = time.perf_counter()
        x = strategy.ask()
        seconds += time.perf_counter() - started
        y = own.function(x)
        values = torch.cat([values, y.to(values)])
        draw = torch.randn(y.shape, generator=noise, dtype=torch.double)
        started = time.perf_counter()
        strategy.tell(x, y + own.noise_scale * draw.to(y))
        seconds += time.perf_counter() - started
    curve = [hypervolume(values[: i + 1], own.ref_point.double()).item() for i in range(rounds)]
    return {"hypervolume": curve, "seconds": seconds}


def _adopt(problem: MultiObjectiveTestProblem) -> Problem:
    """Return a problem of BoTorch's as one of ours."""
    noise = problem.noise_std
    if isinstance(noise, list) and len(set(noise)) > 1:
        raise ValueError(f"problems should have the same noise for all objectives, got {noise}. Wrap it in Problem.")
    scale = noise[0] if isinstance(noise, list) else noise
    return Problem(lambda X: problem(X, noise=False), problem.bounds, problem.ref_point, float(scale or 0.0))


def _load(path: Path) -> dict[tuple[str, str, int, int], dict[str, Any]]:
    """Return the runs of a file, from which a last line is removed that was cut off when a run was killed."""
    if not path.exists():
        return {}
    text = path.read_text()
    whole, end, rest = text.rpartition("\n")
    try:
        runs = [json.loads(line) for line in (whole if end else text).splitlines()]
        known = {(r["problem"], r["strategy"], r["seed"], len(r["hypervolume"])): r for r in runs}
    except Exception as error:  # whatever another file makes of it
        raise ValueError(f"path should be a file of compare(), got {path}. Pass another one.") from error
    if end and rest:
        path.write_text(whole + end)
    return known
