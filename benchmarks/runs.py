"""Keep finished runs in a file, a line each, so that a benchmark can be stopped and continued, on any machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from mtbo_torch.display import progress_bar

Run = dict[str, Any]


def load_runs(path: Path) -> list[Run]:
    """Load the finished runs, without lines that were cut off when a run was killed."""
    runs = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            runs.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return runs


def run_missing(run: Callable[..., Run], jobs: Sequence[Run], path: Path, workers: int) -> list[Run]:
    """Run the jobs that are not in the file yet, add them to it, and return the runs of all jobs in their order.

    Args:
        run: Takes a job as keyword arguments to what was measured.
        jobs: Names and numbers that say what to run.
        path: The file.
        workers: The number of processes.
    """
    stored = load_runs(path)
    wanted = [job for job in jobs if _find(job, stored) is None]
    is_cut_off = path.exists() and not path.read_text().endswith("\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
        progress_bar(len(jobs), "runs", "run") as bar,
        path.open("a") as file,
    ):
        if is_cut_off:
            file.write("\n")
        bar.update(len(jobs) - len(wanted))
        futures = {pool.submit(run, **job): job for job in wanted}
        for future in as_completed(futures):
            stored.append(futures[future] | future.result())
            file.write(json.dumps(stored[-1]) + "\n")
            file.flush()
            bar.update(1)
    return [found for job in jobs if (found := _find(job, stored)) is not None]


def _find(job: Run, runs: Sequence[Run]) -> Run | None:
    return next((run for run in runs if all(run.get(name) == value for name, value in job.items())), None)
