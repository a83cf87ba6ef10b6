"""Compare the default method and its rivals on BoTorch's problems, all kernels learned: ``make bench-botorch``.

Every run has the same first points, the same noise and the same number of evaluations. Finished runs are stored and not
repeated, so the command can be stopped at any time, and continued on another machine. It records a table and a picture
of curves over evaluations of all runs that are stored. Optuna takes part if it is installed.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # runs are independent: one core each

import argparse
import importlib.util
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
from botorch.test_functions.base import MultiObjectiveTestProblem
from botorch.test_functions.multi_objective import (
    DTLZ2,
    GMM,
    ZDT1,
    ZDT2,
    BraninCurrin,
    CarSideImpact,
    Penicillin,
    VehicleSafety,
)
from gpytorch.kernels import RBFKernel
from record import ROOT, format_rows, record
from runs import Run, load_runs, run_missing
from torch import Tensor

from mtbo_torch import (
    MTKB,
    ChebyshevScalarization,
    DirichletWeights,
    HypervolumeScalarization,
    ICMKernel,
    InverseUniformWeights,
    Optimizer,
)
from mtbo_torch.metrics import hypervolume
from mtbo_torch.optimization import draw_sobol
from mtbo_torch.problems import RKHSFunction
from mtbo_torch.strategies import NEHVI, NParEGO, SobolSearch


def make_rkhs(num_tasks: int, seed: int) -> MultiObjectiveTestProblem:
    """Return a function with correlated and conflicting tasks: of three inputs, with lengthscale 0.3."""
    generator = torch.Generator().manual_seed(seed)
    factor = torch.randn(num_tasks, 2, generator=generator, dtype=torch.double)
    task_covar = factor @ factor.T + 0.1 * torch.eye(num_tasks, dtype=torch.double)
    base = RBFKernel().double()
    base.lengthscale = 0.3
    return RKHSFunction.draw(ICMKernel(base, task_covar), draw_sobol(3, 512, seed), seed=seed)


MAIN: dict[str, Callable[[], MultiObjectiveTestProblem]] = {
    "BraninCurrin": lambda: BraninCurrin(negate=True),
    "DTLZ2": lambda: DTLZ2(dim=6, num_objectives=2, negate=True),
    "VehicleSafety": lambda: VehicleSafety(negate=True),
    "Penicillin": lambda: Penicillin(negate=True),
    "CarSideImpact": lambda: CarSideImpact(negate=True),
}
# The number after a dash is that of the objectives.
PROBLEMS: dict[str, Callable[[], MultiObjectiveTestProblem]] = MAIN | {
    "ZDT1": lambda: ZDT1(dim=8, negate=True),
    "ZDT2": lambda: ZDT2(dim=8, negate=True),
    "GMM-2": lambda: GMM(num_objectives=2, negate=True),
    "GMM-3": lambda: GMM(num_objectives=3, negate=True),
    "GMM-4": lambda: GMM(num_objectives=4, negate=True),
    "DTLZ2-5": lambda: DTLZ2(dim=9, num_objectives=5, negate=True),
    "DTLZ2-8": lambda: DTLZ2(dim=12, num_objectives=8, negate=True),
    "RKHS-2": lambda: make_rkhs(2, seed=1),
    "RKHS-4": lambda: make_rkhs(4, seed=2),
}
# In shares of each task's standard deviation, whatever --noise says.
OWN_NOISE = {"RKHS-2": 0.1, "RKHS-4": 0.1}
MOST_EXACT = 4  # objectives; with more, the hypervolume is estimated
BAYES_WEIGHTS, DENSE_SAMPLE, HYPERVOLUME_SAMPLE = 200, 2**14, 2**16
PEERS = ("qLogNEHVI", "qLogNEHVI, modest")
FIRST_TUNING_SEED = 100
# Rules were changed after looking at seeds 0 to 4. The following ones were run once, with the final rule.
FRESH_SEEDS = range(5, 10)
STORED = ROOT / "benchmarks" / "results" / "botorch_problems.jsonl"
SOURCES = (
    "benchmarks/botorch_problems.py",
    "mtbo_torch/strategies",
    "mtbo_torch/improvement.py",
    "mtbo_torch/kernels.py",
)


class Asked(Protocol):
    """Whatever is asked for points and told values."""

    def ask(self) -> Tensor: ...
    def tell(self, x: Tensor, y: Tensor) -> None: ...


class ThoroughNEHVI(NEHVI):
    """qLogNEHVI with Ax's settings."""

    num_restarts, raw_samples, mc_samples = 20, 1024, 128


class ThoroughNParEGO(NParEGO):
    """qLogNParEGO with Ax's settings. Its own weights are uniform on the simplex."""

    num_restarts, raw_samples, mc_samples = 20, 1024, 128


class Optuna:
    """Optuna's sampler with Gaussian processes; it finds a reference point itself."""

    def __init__(self, problem: MultiObjectiveTestProblem, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.problem, self.optuna = problem, optuna
        sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=1)
        self.study = optuna.create_study(directions=["maximize"] * problem.num_objectives, sampler=sampler)
        low, high = problem.bounds.tolist()
        sides = zip(low, high, strict=True)
        self.space = {f"x{i:02}": optuna.distributions.FloatDistribution(*side) for i, side in enumerate(sides)}
        self.trial: Any = None

    def ask(self) -> Tensor:
        self.trial = self.study.ask(self.space)
        return self.problem.bounds.new_tensor([[self.trial.params[name] for name in self.space]])

    def tell(self, x: Tensor, y: Tensor) -> None:
        if self.trial is not None:
            self.study.tell(self.trial, y[0].tolist())
            return
        for point, values in zip(x.tolist(), y.tolist(), strict=True):
            params = dict(zip(self.space, point, strict=True))
            create = self.optuna.trial.create_trial
            self.study.add_trial(create(params=params, distributions=self.space, values=values))


ALGORITHMS: dict[str, Callable[[MultiObjectiveTestProblem, int], Asked]] = {
    "Optimizer": lambda p, seed: Optimizer(p.num_objectives, bounds=p.bounds, ref_point=p.ref_point, seed=seed),
    "Optimizer, no reference point": lambda p, seed: Optimizer(p.num_objectives, bounds=p.bounds, seed=seed),
    "MT-KB": lambda p, seed: MTKB(p.num_objectives, bounds=p.bounds, refit_every=1, seed=seed),
    "MT-KB, hypervolume": lambda p, seed: MTKB(
        p.num_objectives,
        bounds=p.bounds,
        refit_every=1,
        scalarization=HypervolumeScalarization,
        ref_point=p.ref_point,
        bound="ellipsoid",
        seed=seed,
    ),
    "qLogNEHVI": lambda p, seed: ThoroughNEHVI(p.num_objectives, ref_point=p.ref_point, bounds=p.bounds, seed=seed),
    "qLogNEHVI, modest": lambda p, seed: NEHVI(p.num_objectives, ref_point=p.ref_point, bounds=p.bounds, seed=seed),
    "qLogNParEGO": lambda p, seed: ThoroughNParEGO(
        p.num_objectives, bounds=p.bounds, weights=DirichletWeights(p.num_objectives), seed=seed
    ),
    "qLogNParEGO, the paper's weights": lambda p, seed: ThoroughNParEGO(p.num_objectives, bounds=p.bounds, seed=seed),
    "Optuna": Optuna,
    "Sobol": lambda p, seed: SobolSearch(p.num_objectives, bounds=p.bounds, seed=seed + 1000),
}


def can_run(name: str, algorithm: str) -> bool:
    """Return False for what takes hours, boxes of the hypervolume with many objectives, and for what is missing."""
    if algorithm == "Optuna" and importlib.util.find_spec("optuna") is None:
        return False
    return algorithm not in (*PEERS, "Optuna") or build(name).num_objectives <= MOST_EXACT


@cache
def build(name: str) -> MultiObjectiveTestProblem:
    problem = PROBLEMS[name]().to(dtype=torch.double)
    problem.ref_point, problem.bounds = problem.ref_point.double(), problem.bounds.double()
    return problem


@cache
def sample(name: str) -> Tensor:
    """Return the values at many points, ``N x n``."""
    problem = build(name)
    unit = draw_sobol(problem.dim, DENSE_SAMPLE, seed=0)
    return problem.evaluate_true(problem.bounds[0] + (problem.bounds[1] - problem.bounds[0]) * unit) * turn(problem)


def turn(problem: MultiObjectiveTestProblem) -> int:
    return -1 if problem.negate else 1


def run(problem: str, algorithm: str, seed: int, rounds: int, noise: float) -> Run:
    """Run one strategy and return the points it asked for."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    warnings.simplefilter("ignore")  # BoTorch's and GPyTorch's, about line searches and jitter
    goal = build(problem)
    generator = torch.Generator().manual_seed(seed)
    scale = OWN_NOISE.get(problem, noise) * sample(problem).std(dim=0)

    def evaluate(x: Tensor) -> Tensor:
        values = goal.evaluate_true(x) * turn(goal)
        return values + scale * torch.randn(values.shape, generator=generator, dtype=values.dtype)

    strategy = ALGORITHMS[algorithm](goal, seed)
    x = SobolSearch(goal.num_objectives, bounds=goal.bounds, seed=seed).ask(2 * (goal.dim + 1))
    strategy.tell(x, evaluate(x))
    points = [x]
    for _ in range(rounds):
        points.append(strategy.ask())
        strategy.tell(points[-1], evaluate(points[-1]))
    return {"X": [[float(f"{value:.6g}") for value in point] for point in torch.cat(points).tolist()]}


class Judge:
    """What the runs on one problem found, without the noise.

    Hypervolumes are shares of the best known: BoTorch's, or else that of a dense sample and all points of all runs. The
    Bayes regret is over 200 Chebyshev weights, on values scaled so that the reference point is 0 and the best of a task
    1; what is attainable is again the best of a dense sample and all points of all runs.

    Args:
        name: The problem.
        runs: All runs on it.
    """

    def __init__(self, name: str, runs: list[Run]) -> None:
        self.problem = problem = build(name)
        self.ref_point, self.first = problem.ref_point, 2 * (problem.dim + 1)
        self.values = [problem.evaluate_true(torch.tensor(r["X"], dtype=torch.double)) * turn(problem) for r in runs]
        attainable = torch.cat([sample(name), *self.values])
        self.width = (attainable.amax(dim=0) - self.ref_point).clamp_min(1e-12)
        self.weights = InverseUniformWeights(problem.num_objectives).sample(
            BAYES_WEIGHTS, torch.Generator().manual_seed(0), torch.double
        )
        self.largest = self.scalarize(attainable).amax(dim=-1)
        self.cube = draw_sobol(problem.num_objectives, HYPERVOLUME_SAMPLE, seed=0)
        try:
            self.best = problem.max_hv
        except NotImplementedError:
            self.best = self.measure(attainable)

    def scalarize(self, Y: Tensor) -> Tensor:
        scaled = (Y - self.ref_point) / self.width
        return ChebyshevScalarization(self.weights)(scaled.expand(BAYES_WEIGHTS, *Y.shape))

    def measure(self, Y: Tensor) -> float:
        """Return the hypervolume of ``t x n`` values."""
        if Y.shape[-1] <= MOST_EXACT:
            return hypervolume(Y, self.ref_point).item()
        scaled = (Y - self.ref_point) / self.width
        dominated = torch.zeros(len(self.cube), dtype=torch.bool)
        for row in scaled:
            dominated |= (self.cube <= row).all(dim=-1)
        return dominated.double().mean().item() * self.width.prod().item()

    def follow(self, place: int) -> tuple[list[float], list[float]]:
        """Return the share of the hypervolume and the Bayes regret of a run, from its first points on."""
        Y = self.values[place]
        shares = [self.measure(Y[:t]) / self.best for t in range(self.first, len(Y) + 1)]
        found = self.scalarize(Y).cummax(dim=-1).values[:, self.first - 1 :]
        return shares, (self.largest.unsqueeze(-1) - found).mean(dim=0).tolist()


def format_spread(values: list[float]) -> str:
    numbers = torch.tensor(values, dtype=torch.double)
    return f"{numbers.mean():.3f}" + (f" ± {numbers.std(correction=0):.3f}" if len(values) > 1 else "")


HEAD = ["problem", "algorithm", "runs", "hypervolume share", "Bayes regret"]
Curves = dict[str, dict[str, list[tuple[list[float], list[float]]]]]


def judge_runs(runs: list[Run]) -> Curves:
    """Return the curves of each problem and algorithm."""
    curves = Curves()
    for name in PROBLEMS:
        mine = [run for run in runs if run["problem"] == name]
        if not mine:
            continue
        judge = Judge(name, mine)
        for algorithm in ALGORITHMS:
            own = [judge.follow(i) for i, run in enumerate(mine) if run["algorithm"] == algorithm]
            if own:
                curves.setdefault(name, {})[algorithm] = own
    return curves


def list_all(curves: Curves) -> list[list[str]]:
    """Return the rows of a table of all problems and algorithms: how every run ended."""
    rows = [HEAD]
    for name, of_algorithm in curves.items():
        for algorithm, own in of_algorithm.items():
            found, regret = (format_spread([curve[i][-1] for curve in own]) for i in (0, 1))
            rows.append([name, algorithm, str(len(own)), found, regret])
    return rows


def drop_incomplete(curves: Curves) -> Curves:
    """Return the curves without those of algorithms that have fewer runs than ours."""
    least = {name: len(of_algorithm.get("Optimizer", ())) for name, of_algorithm in curves.items()}
    return {
        name: {algorithm: own for algorithm, own in of_algorithm.items() if len(own) >= least[name]}
        for name, of_algorithm in curves.items()
    }


def draw(curves: Curves, path: Path) -> None:
    """Save a picture: hypervolume over evaluations, mean and standard deviation."""
    from matplotlib.figure import Figure

    columns = min(3, len(curves))
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.1 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, (name, of_algorithm) in zip(axes, curves.items(), strict=False):
        for number, algorithm in enumerate(ALGORITHMS):
            if algorithm not in of_algorithm:
                continue
            shares = torch.tensor([shares for shares, _ in of_algorithm[algorithm]])
            mean, sd = shares.mean(dim=0), shares.std(dim=0, correction=0)
            line = axis.plot(mean, label=algorithm, color=f"C{number}")
            axis.fill_between(range(len(mean)), mean - sd, mean + sd, color=line[0].get_color(), alpha=0.15, lw=0)
        axis.set(title=name, xlabel="evaluations after the first points", ylabel="share of the hypervolume")
    for axis in axes[len(curves) :]:
        axis.remove()
    lines = {line.get_label(): line for axis in axes[: len(curves)] for line in axis.lines}
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=130)
    print(f"Saved {path}.")


def summarize(curves: Curves) -> list[list[str]]:
    """Return the rows of a short table of mean shares. An asterisk marks a variant, where that alone was run."""
    columns = {name: (name,) for name in ("Optimizer", "qLogNEHVI", "qLogNParEGO", "Optuna", "Sobol")}
    columns |= {"qLogNEHVI": PEERS, "qLogNParEGO": ("qLogNParEGO", "qLogNParEGO, the paper's weights")}
    were_run = {algorithm for of_algorithm in curves.values() for algorithm in of_algorithm}
    columns = {column: names for column, names in columns.items() if were_run & set(names)}
    table = [["hypervolume share", *columns]]
    for name, of_algorithm in curves.items():
        cells = [name]
        for names in columns.values():
            found = next((algorithm for algorithm in names if algorithm in of_algorithm), None)
            last = [shares[-1] for shares, _ in of_algorithm.get(found, ())]
            mark = "" if found == names[0] else "*"
            cells.append(f"{sum(last) / len(last):.3f}{mark}" if last else "")
        table.append(cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", nargs="+", default=list(MAIN), choices=[*PROBLEMS, "all"], metavar="NAME")
    parser.add_argument("--algorithms", nargs="*", default=list(ALGORITHMS), choices=ALGORITHMS, metavar="NAME")
    parser.add_argument("--noise", type=float, default=0.0, help="in shares of each task's standard deviation")
    parser.add_argument("--rounds", type=int, default=25, help="evaluations after the first 2 (d + 1)")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0, help="from 100 on for tuning, and not recorded")
    parser.add_argument("--workers", type=int, default=2, help="number of processes")
    parser.add_argument("--record", action="store_true", help="run nothing, record what is stored")
    parser.add_argument("--out", type=Path, default=STORED, help="the file of finished runs; others are not recorded")
    options = parser.parse_args()
    problems = list(PROBLEMS) if "all" in options.problems else options.problems
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    alike = {"rounds": options.rounds, "noise": options.noise}
    triples = [(p, a, s) for s in seeds for p in problems for a in options.algorithms if can_run(p, a)]
    if not options.record:
        jobs = [{"problem": p, "algorithm": a, "seed": s, **alike} for p, a, s in triples]
        run_missing(run, jobs, options.out, options.workers)
    stored = [one for one in load_runs(options.out) if one.items() >= alike.items()]
    if options.first_seed >= FIRST_TUNING_SEED or options.out != STORED:
        print("\n".join(format_rows(list_all(judge_runs([one for one in stored if one["seed"] in seeds])))))
        return
    noisy = "_noisy" if options.noise else ""
    settings = f"--noise {options.noise} --rounds {options.rounds}" if noisy else ""
    fresh = judge_runs([one for one in stored if one["seed"] in FRESH_SEEDS])
    if fresh:
        said = " ".join(filter(None, [settings, f"--first-seed {FRESH_SEEDS.start}"]))
        record(f"botorch_fresh{noisy}", format_rows(list_all(fresh)), f'make bench-botorch OPTIONS="{said}"', SOURCES)
    curves = judge_runs([one for one in stored if one["seed"] < FRESH_SEEDS.start])
    print("\n".join(format_rows(list_all(curves))))
    for group, names in {"": list(MAIN), "_more": [name for name in PROBLEMS if name not in MAIN]}.items():
        part = {name: of_algorithm for name, of_algorithm in curves.items() if name in names}
        if not part:
            continue
        said = " ".join(filter(None, [settings, "--problems all" if group else ""]))
        command = "make bench-botorch" + (f' OPTIONS="{said}"' if said else "")
        complete = drop_incomplete(part)
        record(f"botorch_problems{noisy}{group}", format_rows(list_all(part)), command, SOURCES)
        if not group:
            record(f"botorch_summary{noisy}", format_rows(summarize(complete)), command, SOURCES)
        draw(complete, ROOT / "docs" / "figures" / f"botorch_problems{noisy}{group}.png")


if __name__ == "__main__":
    main()
