"""Compare MT-KB with BoTorch's methods on BoTorch's problems, all kernels learned: ``make bench-botorch``.

Every run has the same first points and the same number of evaluations. Finished runs are stored in a file and not
repeated.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # runs are independent: one core each

import argparse
import json
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from botorch.test_functions.base import MultiObjectiveTestProblem
from botorch.test_functions.multi_objective import DTLZ2, BraninCurrin, CarSideImpact, Penicillin, VehicleSafety
from torch import Tensor

from mtbo_torch import MTKB, ChebyshevScalarization, HypervolumeScalarization, InverseUniformWeights
from mtbo_torch.display import progress_bar
from mtbo_torch.metrics import hypervolume
from mtbo_torch.strategies import NEHVI, NParEGO, SobolSearch, Strategy
from mtbo_torch.strategies.reference import NUM_RESTARTS, RAW_SAMPLES

PROBLEMS: dict[str, Callable[[], MultiObjectiveTestProblem]] = {
    "BraninCurrin": lambda: BraninCurrin(negate=True),
    "DTLZ2": lambda: DTLZ2(dim=6, num_objectives=2, negate=True),
    "VehicleSafety": lambda: VehicleSafety(negate=True),
    "Penicillin": lambda: Penicillin(negate=True),
    "CarSideImpact": lambda: CarSideImpact(negate=True),
}


def _make_mtkb(problem: MultiObjectiveTestProblem, seed: int, **options: Any) -> Strategy:
    effort = {"num_restarts": NUM_RESTARTS, "raw_samples": RAW_SAMPLES}  # as for BoTorch's methods
    return MTKB(problem.num_objectives, bounds=problem.bounds, refit_every=1, seed=seed, **effort, **options)


def _make_hypervolume_mtkb(problem: MultiObjectiveTestProblem, seed: int, **options: Any) -> Strategy:
    aim = {"scalarization": HypervolumeScalarization, "ref_point": problem.ref_point, "bound": "ellipsoid"}
    return _make_mtkb(problem, seed, **aim, **options)


ALGORITHMS: dict[str, Callable[[MultiObjectiveTestProblem, int], Strategy]] = {
    "MT-KB": _make_mtkb,
    "MT-KB, radius 1": lambda p, seed: _make_mtkb(p, seed, radius=1.0),
    "MT-KB, hypervolume": _make_hypervolume_mtkb,
    "MT-KB, hypervolume, radius 1": lambda p, seed: _make_hypervolume_mtkb(p, seed, radius=1.0),
    "qLogNParEGO": lambda p, seed: NParEGO(p.num_objectives, bounds=p.bounds, seed=seed),
    "qLogNEHVI": lambda p, seed: NEHVI(p.num_objectives, ref_point=p.ref_point, bounds=p.bounds, seed=seed),
    "Sobol": lambda p, seed: SobolSearch(p.num_objectives, bounds=p.bounds, seed=seed + 1000),
}
BAYES_WEIGHTS = 200
DENSE_SAMPLE = 2**14
PEER = "qLogNEHVI"


def build(name: str) -> MultiObjectiveTestProblem:
    problem = PROBLEMS[name]().to(dtype=torch.double)
    problem.ref_point = problem.ref_point.double()
    return problem


def run(name: str, algorithm: str, seed: int, rounds: int) -> dict[str, Any]:
    """Run one strategy; return the observed values and the seconds per round without the evaluation."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # BoTorch's and GPyTorch's, about line searches and jitter
    problem = build(name)
    first = SobolSearch(problem.num_objectives, bounds=problem.bounds, seed=seed).ask(2 * (problem.dim + 1))
    strategy = ALGORITHMS[algorithm](problem, seed)
    strategy.tell(first, problem(first))
    seconds = 0.0
    for _ in range(rounds):
        started = time.perf_counter()
        x = strategy.ask()
        seconds += time.perf_counter() - started
        y = problem(x)
        started = time.perf_counter()
        strategy.tell(x, y)
        seconds += time.perf_counter() - started
    return {
        "problem": name,
        "algorithm": algorithm,
        "seed": seed,
        "rounds": rounds,
        "seconds": seconds / rounds,
        "Y": strategy.train_Y.tolist(),
    }


def load(path: Path) -> list[dict[str, Any]]:
    """Load the finished runs, without lines that were cut off when a run was killed."""
    runs = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            runs.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return runs


def compute_bayes_regrets(problem: MultiObjectiveTestProblem, runs: list[dict[str, Any]]) -> list[float]:
    """Compute the Bayes regret of each run, on values scaled so that the reference point is 0 and the best of a task 1.

    The best attainable values come from a dense sample and all points of all runs.
    """
    everything = [torch.tensor(run["Y"], dtype=torch.double) for run in runs]
    generator = torch.Generator().manual_seed(0)
    weights = InverseUniformWeights(problem.num_objectives).sample(BAYES_WEIGHTS, generator, torch.double)
    sample = problem(SobolSearch(problem.num_objectives, bounds=problem.bounds).ask(DENSE_SAMPLE))
    attainable = torch.cat([sample, *everything])
    width = attainable.amax(dim=0) - problem.ref_point
    scalarization = ChebyshevScalarization(weights)

    def find_best(Y: Tensor) -> Tensor:
        return scalarization(((Y - problem.ref_point) / width).expand(BAYES_WEIGHTS, *Y.shape)).amax(dim=-1)

    return [(find_best(attainable) - find_best(Y)).mean().item() for Y in everything]


def format_spread(values: list[float]) -> str:
    numbers = torch.tensor(values, dtype=torch.double)
    return f"{numbers.mean():.3f} ± {numbers.std(correction=0):.3f}"


def show(runs: list[dict[str, Any]]) -> None:
    """Print a Markdown table of hypervolume as a share of the best known, Bayes regret, and seconds per round."""
    print("| problem | algorithm | runs | hypervolume share | Bayes regret | seconds per round | qLogNEHVI's over it |")
    print("|---|---|---|---|---|---|---|")
    for name in PROBLEMS:
        mine = [run for run in runs if run["problem"] == name]
        if not mine:
            continue
        problem = build(name)
        regrets = compute_bayes_regrets(problem, mine)
        times = {a: [run["seconds"] for run in mine if run["algorithm"] == a] for a in ALGORITHMS}
        mean = {a: sum(values) / len(values) for a, values in times.items() if values}
        for algorithm in mean:
            own = [i for i, run in enumerate(mine) if run["algorithm"] == algorithm]
            shares = [
                hypervolume(torch.tensor(mine[i]["Y"], dtype=torch.double), problem.ref_point) / problem.max_hv
                for i in own
            ]
            ratio = f"{mean[PEER] / mean[algorithm]:.1f}" if PEER in mean and algorithm not in (PEER, "Sobol") else ""
            print(
                f"| {name} | {algorithm} | {len(own)} | {format_spread(shares)} "
                f"| {format_spread([regrets[i] for i in own])} "
                f"| {mean[algorithm]:.2f} | {ratio} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25, help="evaluations after the first 2 (d + 1)")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="number of processes")
    parser.add_argument("--out", type=Path, default=Path("results/botorch_problems.jsonl"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    runs = [run for run in load(options.out) if run["rounds"] == options.rounds and run["seed"] in seeds]
    done = {(run["problem"], run["algorithm"], run["seed"]) for run in runs}
    wanted = [(p, a, s) for p in PROBLEMS for s in seeds for a in ALGORITHMS if (p, a, s) not in done]
    with (
        ProcessPoolExecutor(options.workers) as pool,
        progress_bar(len(done) + len(wanted), "runs", "run") as bar,
        options.out.open("a") as file,
    ):
        bar.update(len(done))
        for future in as_completed([pool.submit(run, *job, options.rounds) for job in wanted]):
            runs.append(future.result())
            file.write(json.dumps(runs[-1]) + "\n")
            file.flush()
            bar.update(1)
    show(runs)


if __name__ == "__main__":
    main()
