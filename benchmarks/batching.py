"""Compare the cost of ten trials in one batch with the cost of one trial, on fig1b: ``make bench-batching``."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import statistics
import time

from record import format_rows, record

from mtbo_torch.experiments.algorithms import DEFAULT_ALGORITHMS
from mtbo_torch.experiments.panels import Settings
from mtbo_torch.experiments.reproduce import make_benchmark
from mtbo_torch.experiments.runner import Part, run_part

REPEATS = 3


def time_trials(algorithm: str, trials: int) -> float:
    started = time.perf_counter()
    run_part(Part(make_benchmark("rkhs-2-chebyshev", Settings()), algorithm, tuple(range(trials))))
    return time.perf_counter() - started


def main() -> None:
    print(f"{'200 rounds of fig1b':<20}{'1 trial (s)':>14}{'10 trials (s)':>15}{'ratio':>8}")
    totals, rows = [0.0, 0.0], [("200 rounds of fig1b", "1 trial (s)", "10 trials (s)", "ratio")]
    for algorithm in DEFAULT_ALGORITHMS:
        time_trials(algorithm, 1)
        pairs = [(time_trials(algorithm, 1), time_trials(algorithm, 10)) for _ in range(REPEATS)]
        one, ten = (statistics.median(times) for times in zip(*pairs, strict=True))
        totals = [totals[0] + one, totals[1] + ten]
        rows.append((algorithm, f"{one:.2f}", f"{ten:.2f}", f"{ten / one:.2f}"))
        print(f"{algorithm:<20}{one:>14.2f}{ten:>15.2f}{ten / one:>8.2f}", flush=True)
    rows.append(("all", *[f"{total:.2f}" for total in totals], f"{totals[1] / totals[0]:.2f}"))
    sources = ["benchmarks/batching.py", "mtbo_torch/experiments", "mtbo_torch/strategies"]
    record("batching", format_rows(rows), "make bench-batching", sources)
    print(f"{'all':<20}{totals[0]:>14.2f}{totals[1]:>15.2f}{totals[1] / totals[0]:>8.2f}   (bound: 3)")


if __name__ == "__main__":
    main()
