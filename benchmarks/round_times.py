"""Time a round of the default method and of its rivals, in turns and on the same data: ``make bench-rounds``.

The data are those of the first stored run of ``make bench-botorch`` on each problem. A round tells one more point and
asks for the next, with all that this takes: two of them right after the first design, and two at the end of the run.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import time
import warnings

import torch
from botorch_problems import ALGORITHMS, MAIN, PROBLEMS, SOURCES, STORED, build, can_run, turn
from record import format_rows, record
from runs import load_runs
from torch import Tensor

from mtbo_torch.display import progress_bar

OURS, RIVALS = "Optimizer", ("qLogNEHVI", "qLogNParEGO")
ROUNDS = 2


def time_rounds(problem: str, algorithm: str, X: Tensor, start: int) -> float:
    """Return the CPU seconds of a round after `start` of the points ``t x d``, as a mean of two."""
    goal = build(problem)
    Y = goal.evaluate_true(X) * turn(goal)
    strategy = ALGORITHMS[algorithm](goal, 0)
    strategy.tell(X[:start], Y[:start])
    started = time.process_time()
    for t in range(start, start + ROUNDS):
        strategy.tell(X[t : t + 1], Y[t : t + 1])
        strategy.ask()
    return (time.process_time() - started) / ROUNDS


def compare_rounds(problem: str, X: Tensor) -> dict[str, float]:
    """Return the CPU seconds of a round of each algorithm, early and late rounds alike."""
    first = 2 * (build(problem).dim + 1)
    times = {algorithm: 0.0 for algorithm in (OURS, *RIVALS) if can_run(problem, algorithm)}
    starts = (first, len(X) - ROUNDS)
    for start in starts:
        for algorithm in times:
            times[algorithm] += time_rounds(problem, algorithm, X, start) / len(starts)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", nargs="+", default=list(MAIN), choices=PROBLEMS, metavar="NAME")
    problems = parser.parse_args().problems
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # BoTorch's and GPyTorch's, about line searches and jitter
    stored = [run for run in load_runs(STORED) if (run["algorithm"], run["seed"], run["noise"]) == (OURS, 0, 0)]
    points = {run["problem"]: torch.tensor(run["X"], dtype=torch.double) for run in stored}
    rows = [["seconds per round", OURS, *[cell for rival in RIVALS for cell in (rival, "over ours")]]]
    time_rounds("BraninCurrin", OURS, points["BraninCurrin"], start=6)  # warms up
    with progress_bar(len(problems), "problems", "problem") as bar:
        for problem in problems:
            times = compare_rounds(problem, points[problem])
            row = [problem, f"{times[OURS]:.2f}"]
            for rival in RIVALS:
                seconds = times.get(rival)
                row += ["", ""] if seconds is None else [f"{seconds:.2f}", f"{seconds / times[OURS]:.1f}"]
            rows.append(row)
            bar.update(1)
    lines = format_rows(rows)
    print("\n".join(lines))
    if problems == list(MAIN):
        record("round_times", lines, "make bench-rounds", ("benchmarks/round_times.py", *SOURCES))


if __name__ == "__main__":
    main()
