"""Search candidates on the workers of a Dask cluster: how much of a round is not their arithmetic.

Run with ``make bench-cluster``. Two worker processes on this machine, four chunks, 16 inputs, four tasks, the delayed
schedule and the paper's bound; 30 rounds after 100 observations. The arithmetic of a round is what the busier worker
computes. Times are of the clock, so run it on a quiet machine.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # of each worker

import argparse
import time

import dask.array
import gpytorch
import torch
from distributed import Client, LocalCluster, get_task_stream
from large import FIRST, INPUTS, LENGTHSCALE, NOISE, TASKS, observe
from record import format_rows, record

from mtbo_torch import MTBKB, ICMKernel

SOURCES = ("benchmarks/cluster.py", "mtbo_torch/cluster.py", "mtbo_torch/regression")
WORKERS, CHUNKS, ROUNDS = 2, 4, 30


def measure(client: Client, N: int) -> tuple[str, ...]:
    """Return the row of N candidates: milliseconds of a round, of its arithmetic, and the share of the rest."""
    torch.manual_seed(0)
    library = dask.array.random.default_rng(0).random((N, INPUTS), chunks=(N // CHUNKS, INPUTS)).persist()
    kernel = gpytorch.kernels.RBFKernel()
    kernel.lengthscale = LENGTHSCALE
    strategy = MTBKB(
        ICMKernel(kernel, 0.5 * torch.eye(TASKS) + 0.5),
        choices=library,
        norm_bound=20.0,
        noise_scale=NOISE,
        schedule="delayed",
        bound="norm",
    )
    x = torch.as_tensor(library[:FIRST].compute())
    strategy.tell(x, observe(x))
    strategy.ask()
    strategy.forget()
    with get_task_stream(client) as stream:
        start = time.perf_counter()
        for _ in range(ROUNDS):
            x = strategy.ask()
            strategy.tell(x, observe(x))
        strategy.ask()  # what the last observation changed
        seconds = time.perf_counter() - start
    busy: dict[str, float] = {}
    for task in stream.data:
        computing = sum(part["stop"] - part["start"] for part in task["startstops"] if part["action"] == "compute")
        busy[task["worker"]] = busy.get(task["worker"], 0.0) + computing
    arithmetic = max(busy.values())
    numbers = [f"{1e3 * value / ROUNDS:.0f}" for value in (seconds, arithmetic)]
    return f"{N:,}", str(strategy.dictionary_size), *numbers, f"{1 - arithmetic / seconds:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[65_536, 262_144, 1_048_576])
    options = parser.parse_args()
    torch.set_default_dtype(torch.double)
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        rows = [measure(client, N) for N in options.sizes]
    head = ("N", "m", "a round (ms)", "the workers' arithmetic (ms)", "share of the rest")
    lines = format_rows([head, *rows])
    print("\n".join(lines))
    record("cluster", lines, "make bench-cluster", SOURCES)


if __name__ == "__main__":
    main()
