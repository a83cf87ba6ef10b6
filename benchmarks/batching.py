"""Compare the cost of trials in one batch with the cost of one trial, on fig1b: ``make bench-batching``.

Ten of each algorithm, in seconds; and 64 of MT-BKB on the delayed schedule, in seconds of the processor.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import statistics
import time

import torch
from record import format_rows, record

from mtbo_torch import MTBKB
from mtbo_torch.experiments.algorithms import DEFAULT_ALGORITHMS
from mtbo_torch.experiments.panels import Settings, build_instances
from mtbo_torch.experiments.reproduce import make_benchmark
from mtbo_torch.experiments.runner import Part, run_part
from mtbo_torch.problems import paper

EXPERIMENT = "rkhs-2-chebyshev"
REPEATS = 3
MANY = 64


def time_trials(algorithm: str, trials: int) -> float:
    started = time.perf_counter()
    run_part(Part(make_benchmark(EXPERIMENT, Settings()), algorithm, tuple(range(trials))))
    return time.perf_counter() - started


def time_delayed(bound: str, trials: int) -> float:
    instances = build_instances(EXPERIMENT, tuple(range(trials)), Settings(), None)
    strategy = MTBKB(
        instances.kernel,
        norm_bound=instances.norm_bound,
        noise_scale=instances.noise_scale,
        eta=paper.ETA,
        delta=paper.DELTA,
        bound=bound,
        schedule="delayed",
        seed=list(range(trials)),
        **instances.space,
    )
    noise, started = torch.Generator().manual_seed(0), time.process_time()
    for _ in range(paper.NUM_ROUNDS):
        x = strategy.ask()
        values = instances.evaluate(x)
        draws = torch.randn(values.shape, generator=noise, dtype=values.dtype)
        strategy.tell(x, values + instances.noise_scale * draws)
    return time.process_time() - started


def compare_delayed() -> None:
    """Print and record what a batch of trials costs that draw their dictionaries at different times."""
    header = ("200 rounds of fig1b, delayed", "1 trial (CPU s)", f"{MANY} trials (CPU s)", "ratio")
    rows = [header]
    for bound in ("mixture", "norm"):
        time_delayed(bound, 1)
        pairs = [(time_delayed(bound, 1), time_delayed(bound, MANY)) for _ in range(REPEATS)]
        one, many = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratio = statistics.median(many / one for one, many in pairs)
        rows.append((f"MT-BKB, {bound}", f"{one:.2f}", f"{many:.2f}", f"{ratio:.2f}"))
        print(f"{f'MT-BKB, {bound}':<20}{one:>14.2f}{many:>15.2f}{ratio:>8.2f}   (bound: 8)", flush=True)
    sources = ["benchmarks/batching.py", "mtbo_torch/regression", "mtbo_torch/strategies"]
    record("batching_delayed", format_rows(rows), "make bench-batching", sources)


def main() -> None:
    print(f"{'delayed':<20}{'1 trial (CPU)':>14}{f'{MANY} trials':>15}{'ratio':>8}")
    compare_delayed()
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
