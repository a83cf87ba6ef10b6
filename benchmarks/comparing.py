"""See what ``compare_kernels`` says: ``make bench-comparing DATA="--data jura.csv"``, of the Jura and of made-up data.

The made-up tasks share a known part of their variance; each data set has functions of one input with lengthscale 0.2,
observed at random points with noise of standard deviation 0.1. It takes about ten minutes.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pandas as pd
import torch
from gpytorch.kernels import RBFKernel
from record import format_rows, record
from tqdm import tqdm

from mtbo_torch import ExactMultiTaskGP, ICMKernel, compare_kernels

COMMAND = "make bench-comparing"
SOURCES = ["benchmarks/comparing.py", "mtbo_torch/comparison.py", "mtbo_torch/regression/likelihood.py"]
# The share of the variance that tasks have in common, their number, and that of the points.
MADE_UP = ((0.0, 2, 20), (0.0, 3, 40), (0.7, 3, 40), (0.95, 3, 40))
NOISE = 0.1


def draw(share: float, num_tasks: int, num_points: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw tasks of variance one that have a share of it in common."""
    torch.manual_seed(seed)
    base = RBFKernel().double()
    base.lengthscale = 0.2
    B = share * torch.ones(num_tasks, num_tasks) + (1 - share) * torch.eye(num_tasks)
    X = torch.rand(num_points, 1, dtype=torch.double)
    prior = ExactMultiTaskGP(X[:0], X.new_empty(0, num_tasks), ICMKernel(base, B.double()), eta=1.0)
    with torch.no_grad():
        Y = prior.posterior(X).rsample(torch.Size([1]))[0]
    return X, Y + NOISE * torch.randn_like(Y)


def count_verdicts(share: float, num_tasks: int, num_points: int, sets: int) -> int:
    verdicts = [compare_kernels(*draw(share, num_tasks, num_points, seed)).verdict for seed in tqdm(range(sets))]
    return sum(verdict.startswith("Multi-task helps") for verdict in verdicts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=20, help="data sets of each kind")
    parser.add_argument("--data", type=Path, help="the Jura data as a CSV file")
    options = parser.parse_args()
    if options.data:
        table = pd.read_csv(options.data)
        table = table[table["split"] == "pred"]
        X, Y = (torch.tensor(table[names].to_numpy()) for names in (["Xloc", "Yloc"], ["Cd", "Ni", "Zn"]))
        lines = str(compare_kernels(X, Y)).splitlines()
        record("comparison_jura", ["```text", *lines, "```"], COMMAND, SOURCES)
    rows = [("in common", "tasks", "points", "data sets", "says that multi-task helps")]
    for share, num_tasks, num_points in MADE_UP:
        helps = count_verdicts(share, num_tasks, num_points, options.sets)
        rows.append((f"{share:.0%}", f"{num_tasks}", f"{num_points}", f"{options.sets}", f"{helps}"))
    record("comparison_calibration", format_rows(rows), COMMAND, SOURCES)


if __name__ == "__main__":
    main()
