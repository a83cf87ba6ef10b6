"""Compare our Optuna sampler with Optuna's own: ``make bench-optuna``.

Three problems: BoTorch's BraninCurrin and VehicleSafety, and the made-up laboratory with mixed inputs of
``laboratory.py``, here without noise. All samplers have their defaults and start from the same 10 random trials; then
they choose 25 more, one at a time. The hypervolume is a share of the largest known one; seconds are of the CPU, for
each trial that the sampler chose. Runs are kept in a file, and those that are there are not repeated.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # runs are independent: one core each

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import torch
from botorch.test_functions.multi_objective import BraninCurrin, MultiObjectiveTestProblem, VehicleSafety
from laboratory import INPUTS, REF_POINT, TASKS, draw_rows, evaluate
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from record import RESULTS, record
from runs import Run, run_missing

from mtbo_torch.metrics import hypervolume
from mtbo_torch.optuna import MultiTaskSampler

FIRST = 10
SOURCES = (
    "benchmarks/optuna_samplers.py",
    "mtbo_torch/optuna.py",
    "mtbo_torch/strategies",
    "mtbo_torch/improvement.py",
)
SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "ours": lambda seed: MultiTaskSampler(seed=seed),
    "GPSampler": lambda seed: GPSampler(seed=seed),
    "TPESampler": lambda seed: TPESampler(seed=seed),
}


class Botorch:
    """One of BoTorch's problems, to be maximized."""

    def __init__(self, problem: MultiObjectiveTestProblem) -> None:
        self.problem = problem
        self.space = {f"x{i}": FloatDistribution(*ends) for i, ends in enumerate(problem.bounds.T.tolist())}
        self.ref_point, self.largest = problem.ref_point, problem.max_hv

    def evaluate(self, params: dict[str, Any]) -> list[float]:
        x = torch.tensor([params[name] for name in self.space], dtype=torch.double)
        return self.problem(x).tolist()


class Laboratory:
    """The laboratory's true values, to be maximized."""

    def __init__(self) -> None:
        self.space = {
            "temperature": FloatDistribution(300, 900),
            "loading": FloatDistribution(1e-3, 1, log=True),
            "steps": IntDistribution(1, 6),
            "catalyst": CategoricalDistribution(INPUTS["catalyst"].values),
        }
        self.ref_point = REF_POINT
        many = torch.tensor([self._turn(row) for row in evaluate(draw_rows(20_000, seed=0)).to_dict("records")])
        self.largest = hypervolume(many.double(), REF_POINT).item()

    def evaluate(self, params: dict[str, Any]) -> list[float]:
        return self._turn(evaluate(pd.DataFrame([params])).to_dict("records")[0])

    def _turn(self, row: dict[str, Any]) -> list[float]:
        return [-row[name] if aim == "minimize" else row[name] for name, aim in TASKS.items()]


PROBLEMS: dict[str, Callable[[], Botorch | Laboratory]] = {
    "BraninCurrin": lambda: Botorch(BraninCurrin(negate=True).double()),
    "VehicleSafety": lambda: Botorch(VehicleSafety(negate=True).double()),
    "Laboratory": Laboratory,
}


def run(problem: str, sampler: str, seed: int, trials: int) -> Run:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    goal, seconds = PROBLEMS[problem](), 0.0
    directions = ["maximize"] * len(goal.ref_point)
    study = optuna.create_study(directions=directions, sampler=RandomSampler(seed=seed))
    for count in range(FIRST + trials):
        if count == FIRST:
            study.sampler = SAMPLERS[sampler](seed)
        started = time.process_time()
        trial = study.ask(goal.space)
        seconds += time.process_time() - started if count >= FIRST else 0.0
        study.tell(trial, goal.evaluate(trial.params))
    Y = torch.tensor([trial.values for trial in study.trials], dtype=torch.double)
    share = hypervolume(Y, goal.ref_point).item() / goal.largest
    return {"share": share, "seconds": seconds / trials}


def show(runs: list[Run]) -> list[str]:
    """Return a Markdown table: mean and standard deviation over the seeds, and in how many of them ours is ahead."""
    lines = ["| problem | sampler | runs | hypervolume share | ours is ahead in | CPU seconds per trial |"]
    lines.append("|---|---|--:|--:|--:|--:|")
    for name in PROBLEMS:
        of_ours = {r["seed"]: r["share"] for r in runs if (r["problem"], r["sampler"]) == (name, "ours")}
        for sampler in SAMPLERS:
            mine = {r["seed"]: r for r in runs if (r["problem"], r["sampler"]) == (name, sampler)}
            if not mine:
                continue
            shares = torch.tensor([r["share"] for r in mine.values()], dtype=torch.double)
            seconds = sum(r["seconds"] for r in mine.values()) / len(mine)
            both = [seed for seed in mine if seed in of_ours]
            ahead = sum(of_ours[seed] > mine[seed]["share"] for seed in both)
            versus = "" if sampler == "ours" else f"{ahead} of {len(both)}"
            spread = f"{shares.mean():.3f} ± {shares.std(correction=0):.3f}"
            lines.append(f"| {name} | {sampler} | {len(mine)} | {spread} | {versus} | {seconds:.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=25, help="trials after the first 10")
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=SAMPLERS)
    parser.add_argument("--workers", type=int, default=2, help="number of processes")
    parser.add_argument("--out", type=Path, default=RESULTS / "optuna.jsonl")
    options = parser.parse_args()
    names = [(p, s, n) for n in range(options.seeds) for p in options.problems for s in options.samplers]
    jobs = [{"problem": p, "sampler": s, "seed": n, "trials": options.trials} for p, s, n in names]
    runs = run_missing(run, jobs, options.out, options.workers)
    lines = show(runs)
    print("\n".join(lines))
    command = "make bench-optuna" + (f' OPTIONS="{" ".join(sys.argv[1:])}"' if sys.argv[1:] else "")
    record("optuna", lines, command, SOURCES)


if __name__ == "__main__":
    main()
