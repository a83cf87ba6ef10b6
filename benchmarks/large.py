"""Search many candidates with MT-BKB: memory, rounds and their growth. Run with ``make bench-large``.

Candidates lie in a file (``numpy.memmap``): N of them with 16 inputs, uniformly at random, and four tasks. 100
observations are told at once, 500 rounds follow, with the delayed schedule, each candidate at most once. The kernel is
an RBF whose lengthscale is the root of the number of inputs. Next to a round's time is that of what it cannot avoid:
one pass of the product between what is kept at all candidates and the directions of one observation. Some rounds make
the dictionary wider, and some fit it anew. Times are CPU time; the memory is beyond that of the file.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from timing import to_ms  # isort: skip - sets the environment before torch is loaded

import gpytorch
import numpy as np
import torch
from record import format_rows, record
from torch import Tensor
from tqdm import tqdm

from mtbo_torch import MTBKB, ICMKernel
from mtbo_torch.regression import NystromRegression, TrackedNystrom

torch.set_default_dtype(torch.double)
SOURCES = ("benchmarks/large.py", "mtbo_torch/regression", "mtbo_torch/space.py", "mtbo_torch/strategies/budgeted.py")
INPUTS, TASKS, NOISE, LENGTHSCALE, FIRST = 16, 4, 0.1, 4.0, 100


def make_file(path: Path, N: int) -> np.memmap:
    """Write N candidates, piece by piece, and return the file as an array."""
    array = np.memmap(path, dtype=np.float64, mode="w+", shape=(N, INPUTS))
    source = np.random.default_rng(0)
    for start in range(0, N, 100_000):
        array[start : start + 100_000] = source.random((min(100_000, N - start), INPUTS))
    array.flush()
    return np.memmap(path, dtype=np.float64, mode="r", shape=(N, INPUTS))


def observe(x: Tensor) -> Tensor:
    """Return four smooth tasks that disagree, with noise."""
    angles = torch.linspace(0.2, 1.4, TASKS) * x.mean(dim=-1, keepdim=True) * 6
    return torch.sin(angles + x[..., :1]) + NOISE * torch.randn(*x.shape[:-1], TASKS)


def measure_memory() -> float:
    """Return the peak memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def time_pass(strategy: MTBKB) -> float:
    """Return the CPU seconds of what a round cannot avoid: the features of all candidates times its directions."""
    known = strategy._known.surrogate
    regression, tracking = known.regression, known.tracking
    assert isinstance(regression, NystromRegression)
    assert tracking is not None
    directions, seconds = regression.inverse[..., :1, :], 0.0
    for part in tracking.parts:
        assert isinstance(part, TrackedNystrom)
        start = time.process_time()
        part._project(directions)
        seconds += time.process_time() - start
    return seconds


def run(N: int, rounds: int, bound: str, folder: Path) -> dict[str, float]:
    """Return what a run took: milliseconds of CPU time, and gigabytes."""
    torch.manual_seed(0)
    choices = make_file(folder / f"{N}.dat", N)
    kernel = gpytorch.kernels.RBFKernel()
    kernel.lengthscale = LENGTHSCALE
    task_covar = 0.5 * torch.eye(TASKS) + 0.5
    before = measure_memory()
    strategy = MTBKB(
        ICMKernel(kernel, task_covar),
        choices=choices,
        norm_bound=20.0,
        noise_scale=NOISE,
        schedule="delayed",
        bound=bound,
        repeat=False,
    )
    rows = torch.randint(N, (FIRST,), generator=torch.Generator().manual_seed(0))
    x = strategy.space.points[rows]
    strategy.tell(x, observe(x))
    seconds, passes, kinds = [], [], []
    for i in tqdm(range(rounds), desc=f"{bound}, N = {N:,}", disable=None, mininterval=5):
        size, start = strategy.dictionary_size, time.process_time()
        x = strategy.ask()
        strategy.tell(x, observe(x))
        seconds.append(time.process_time() - start)
        kinds.append("fit" if not strategy._nystrom.steps else "wider" if strategy.dictionary_size > size else "usual")
        if i % max(1, rounds // 20) == 0:
            passes.append(time_pass(strategy))
    found = {kind: [s for s, k in zip(seconds, kinds, strict=True) if k == kind] for kind in ("usual", "wider", "fit")}
    return {
        "N": N,
        "m": strategy.dictionary_size,
        "pass": 1e3 * statistics.mean(passes),
        "mean": 1e3 * statistics.mean(seconds),
        "GB": measure_memory() - before,
        "file": choices.nbytes / 1e9,
        **{kind: to_ms(times) if times else math.nan for kind, times in found.items()},
        **{f"{kind}s": len(times) for kind, times in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--bounds", nargs="+", default=["norm", "mixture"])
    arguments = parser.parse_args()
    is_usual = all(vars(arguments)[name] == parser.get_default(name) for name in ("sizes", "rounds", "bounds"))
    command = "make bench-large" if is_usual else f'make bench-large OPTIONS="{" ".join(sys.argv[1:])}"'
    head = (
        "bound",
        "N",
        "m",
        "one pass",
        "usual round",
        "wider",
        "fit",
        "rounds of each",
        "mean",
        "mean over pass",
        "GB",
    )
    missed = 0
    # Each run has a process of its own, whose peak of memory is that of the run.
    alone = multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1)
    with tempfile.TemporaryDirectory() as folder, alone as pool:
        for bound in arguments.bounds:
            rows = [head]
            found = [pool.apply(run, (N, arguments.rounds, bound, Path(folder))) for N in arguments.sizes]
            for one in found:
                ratio, memory = one["mean"] / one["pass"], one["GB"] - one["file"]
                missed += (ratio > 3) + (memory > 3)
                times = [f"{one[kind]:.0f}" for kind in ("pass", "usual", "wider", "fit")]
                counts = " / ".join(str(one[kind]) for kind in ("usuals", "widers", "fits"))
                cells = (bound, f"{one['N']:,}", f"{one['m']}", *times, counts, f"{one['mean']:.0f}", f"{ratio:.2f}")
                rows.append((*cells, f"{memory:.2f}"))
                print(rows[-1], flush=True)
            if len(found) > 1:
                first, last = found[0], found[-1]
                growth = math.log(last["mean"] / first["mean"]) / math.log(last["N"] / first["N"])
                missed += growth > 1.1
                print(f"{bound}: exponent of the cost of a round in N: {growth:.2f} (<= 1.1)", flush=True)
            record(f"large_{bound}", format_rows(rows), command, SOURCES)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
