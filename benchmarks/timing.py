"""Timing on a noisy machine: functions to be compared run in turns, in one process."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence

# Idle OpenMP threads that spin steal cores from each other on shared machines. Set this before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def time_in_turns(functions: Sequence[Callable[[], object]], repeats: int = 15) -> list[list[float]]:
    """Return the seconds of each function and repeat, after one round of warm-up."""
    seconds: list[list[float]] = [[] for _ in functions]
    for repeat in range(repeats + 1):
        for function, record in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function()
            if repeat:
                record.append(time.perf_counter() - start)
    return seconds


def compute_ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Return the median ratio of runs next to each other."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def to_ms(seconds: Sequence[float]) -> float:
    return 1e3 * statistics.median(seconds)
