"""Compare strategies on problems of one's own: the same seeds for all, saved on the way, judged in pairs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from botorch.test_functions.base import ConstrainedBaseTestProblem, MultiObjectiveTestProblem
from torch import Tensor

import mtbo_torch
from mtbo_torch.checks import require_bounds, require_count, require_positive, require_ref_point, require_seed
from mtbo_torch.experiment import _load_pandas
from mtbo_torch.experiments.engine import Work
from mtbo_torch.experiments.instances import derive_seed
from mtbo_torch.experiments.results import Claim, Panel, PanelResult, judge
from mtbo_torch.experiments.runner import Benchmark, Columns, Trials
from mtbo_torch.metrics import hypervolume
from mtbo_torch.strategies import Strategy

if TYPE_CHECKING:
    import pandas as pd

Strategies = Mapping[str, Callable[..., Strategy]]
# They are names of folders, and cells of a table.
NAME = re.compile(r"\w[\w .+=()-]*")


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

    def __str__(self) -> str:
        return f"{self.num_tasks} tasks, {self.bounds.shape[-1]} inputs, noise {self.noise_scale:g}"


@dataclass(frozen=True, repr=False)
class Comparison:
    """The results of :func:`compare`, shown as tables with the best marked, and verdicts.

    :func:`mtbo_torch.report.write_comparison` makes a page of it.

    Attributes:
        panels: The result for each problem.
        seeds: Of the runs.
    """

    panels: list[PanelResult]
    seeds: tuple[int, ...]

    @property
    def table(self) -> pd.DataFrame:
        """A pandas data frame with a row for each round of each run."""
        rows = [
            {"problem": result.panel.name, "strategy": name, "seed": seed, "round": i + 1, "hypervolume": volume}
            for result in self.panels
            for name, curve in result.curves.items()
            for seed, values in zip(self.seeds, curve.tolist(), strict=True)
            for i, volume in enumerate(values)
        ]
        return _load_pandas().DataFrame(rows)

    @property
    def verdicts(self) -> list[str]:
        """Sentences that say whether the first strategy found more hypervolume than each other one on each problem.

        Confirmed or not, that needs paired differences whose mean exceeds two standard errors.
        """
        return [
            f"{result.panel.name}: {judge(claim, result.finals)}"
            for result in self.panels
            for claim in result.panel.claims
        ]

    def __repr__(self) -> str:
        return "\n\n".join([*map(repr, self.panels), "\n".join(self.verdicts)]).rstrip()

    def _repr_html_(self) -> str:
        return "".join([*(result._repr_html_() for result in self.panels), *(f"<p>{v}</p>" for v in self.verdicts)])


def compare(
    strategies: Strategies,
    problems: Mapping[str, Problem | MultiObjectiveTestProblem],
    seeds: Sequence[int],
    rounds: int,
    *,
    batch: int = 1,
    path: str | Path | None = None,
    executor: Executor | None = None,
) -> Comparison:
    """Run every strategy on every problem with every seed; return the hypervolumes.

    Of the same seed, all strategies see the same noise, round by round, so that differences can be paired.

    Args:
        strategies: By name, what is called with the number of tasks, `bounds` and `seed`: a class such as
            :class:`Optimizer`, or a function. Verdicts compare the first with each of the others.
        problems: By name, those of BoTorch or :class:`Problem`. All are maximized: pass ``negate=True`` to those of
            BoTorch that are to be minimized.
        seeds: Of the runs.
        rounds: The number of evaluations of each run.
        batch: How many seeds run side by side, as one batch of trials, which is faster. A strategy is then called with
            a list of seeds.
        path: A folder that every round is saved to; what is there is not run again, and an interrupted run continues
            where it stopped. Delete it if a strategy or a problem changes under the same name.
        executor: Where to run: any of ``concurrent.futures``, or Dask's ``Client.get_executor(pure=False)``. By default
            here. A process pool needs strategies and problems that can be pickled; threads take turns.

    Example:
        >>> from botorch.test_functions.multi_objective import BraninCurrin
        >>> from mtbo_torch.experiments.compare import compare
        >>> from mtbo_torch.strategies import RandomSearch, SobolSearch
        >>> strategies = {"Sobol": SobolSearch, "random": RandomSearch}
        >>> result = compare(strategies, {"BraninCurrin": BraninCurrin(negate=True)}, seeds=range(3), rounds=8)
        >>> len(result.verdicts)
        1
    """
    _require_names("strategies", strategies)
    _require_names("problems", problems)
    for name, build in strategies.items():
        if not callable(build):
            raise ValueError(f"strategies should be classes or functions, got {build!r} for {name!r}. Pass the class.")
    require_count("rounds", rounds, "Pass the number of evaluations.")
    require_count("batch", batch, "Pass the number of seeds that run side by side.")
    for seed in seeds:
        require_seed("seeds", seed)
    if not len(seeds) or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds should be different numbers, at least one, got {list(seeds)}. Pass range(5).")
    own = {name: _adopt(name, problem) for name, problem in problems.items()}
    benchmarks = {name: _make_benchmark(name, problem, strategies, rounds) for name, problem in own.items()}
    first, *others = strategies
    claims = tuple(Claim(f"{first} ends above {other}", "above", (first, other)) for other in others)
    panels = [Panel(name, str(problem), {"": name}, "hypervolume", claims) for name, problem in own.items()]
    work = Work(panels, benchmarks, {name: list(strategies) for name in problems}, seeds, batch)
    where: AbstractContextManager[Any] = TemporaryDirectory() if path is None else nullcontext(path)
    with where as out:
        return Comparison(work.run(Path(out), executor, can_continue=path is not None), tuple(seeds))


def _make_benchmark(name: str, problem: Problem, strategies: Strategies, rounds: int) -> Benchmark:
    numbers = {what: getattr(problem, what).tolist() for what in ("bounds", "ref_point")}
    facts = {"mtbo_torch": mtbo_torch.__version__, "problem": name, "rounds": rounds, **numbers}
    facts["noise_scale"] = problem.noise_scale
    sizes = {"x": problem.bounds.shape[-1], "y": problem.num_tasks}
    start = partial(_ProblemTrials, problem, dict(strategies))
    return Benchmark(name, facts, sizes, ("hypervolume",), list(strategies), start)


class _ProblemTrials(Trials):
    """Trials of a strategy, measured by the hypervolume of the true values so far."""

    def __init__(self, problem: Problem, strategies: Strategies, name: str, seeds: Sequence[int]) -> None:
        seed = list(seeds) if len(seeds) > 1 else seeds[0]
        self.strategy = strategies[name](problem.num_tasks, bounds=problem.bounds.double(), seed=seed)
        if self.strategy.batch_shape.numel() != len(seeds):
            raise ValueError(
                f"{name} should run {len(seeds)} seeds side by side, got a strategy of "
                f"{self.strategy.batch_shape.numel()}. Let it pass the list `seed` on, or use batch=1."
            )
        self.problem, self.noise_scale = problem, problem.noise_scale
        self.noise_seeds, self.state = [derive_seed(seed, 0, "noise") for seed in seeds], {}

    def evaluate(self, x: Tensor) -> Tensor:
        return self.problem.function(x.flatten(end_dim=-2)).to(x).reshape(*x.shape[:-1], self.problem.num_tasks)

    def measure(self, columns: Columns) -> Columns:
        new = columns["values"]
        values = self.state["values"] = torch.cat([self.state.get("values", new[:, :0]), new], dim=1)
        ends = range(values.shape[1] - new.shape[1] + 1, values.shape[1] + 1)
        ref_point = self.problem.ref_point.to(values)
        return {"hypervolume": torch.stack([hypervolume(values[:, :end], ref_point) for end in ends], dim=1)}


def _require_names(what: str, given: object) -> None:
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"{what} should be a dictionary with at least one name, got {given!r}. Name each.")
    for name in given:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(
                f"{what} should have names of letters, digits, spaces and .+-=(), got {name!r}. Rename it."
            )


def _adopt(name: str, problem: object) -> Problem:
    """Return a problem of BoTorch's as one of ours."""
    if isinstance(problem, Problem):
        return problem
    if not isinstance(problem, MultiObjectiveTestProblem) or isinstance(problem, ConstrainedBaseTestProblem):
        raise ValueError(
            "problems should be of the kind Problem, or BoTorch's with several objectives and no constraints, got "
            f"{problem!r} for {name!r}. Wrap a function in Problem."
        )
    noise = problem.noise_std
    scales = set(noise) if isinstance(noise, list) else {noise or 0.0}
    if len(scales) > 1:
        raise ValueError(f"problems should have the same noise for all objectives, got {noise}. Wrap it in Problem.")
    return Problem(partial(problem, noise=False), problem.bounds, problem.ref_point, float(scales.pop()))
