"""Timing that survives a noisy machine: what is compared is run in turns, in one process."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence

# Idle OpenMP threads that spin steal the cores from each other on shared machines; must be set before torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def in_turns(functions: Sequence[Callable[[], object]], repeats: int = 15) -> list[list[float]]:
    """Seconds for each function and repeat, after one unmeasured round."""
    seconds: list[list[float]] = [[] for _ in functions]
    for repeat in range(repeats + 1):
        for function, record in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function()
            if repeat:
                record.append(time.perf_counter() - start)
    return seconds


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """The median of the ratios of runs that stood next to each other."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def milliseconds(seconds: Sequence[float]) -> float:
    return 1e3 * statistics.median(seconds)
