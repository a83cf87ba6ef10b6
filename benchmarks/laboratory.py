"""Compare ways to run a made-up laboratory with mixed inputs: ``make bench-laboratory``.

Four inputs (one a category, one on a logarithmic scale, one whole number) and three objectives, one of them minimized.
Every run starts with the same 12 noisy rows, one of them with an empty cell, and has 30 more evaluations by two
workers. The table shows the hypervolume of the true values, as a share of that of 20,000 random points.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # runs are independent: one core each

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from record import RESULTS, record
from runs import Run, run_missing
from torch import Tensor

from mtbo_torch import Category, Experiment, Inputs, Integer, Optimizer, Real
from mtbo_torch.metrics import hypervolume
from mtbo_torch.strategies import RandomSearch

INPUTS = {
    "temperature": Real(300, 900),
    "loading": Real(1e-3, 1, log=True),
    "steps": Integer(1, 6),
    "catalyst": Category("Pd", "Ni", "Cu", "Fe"),
}
TASKS = {"yield": "maximize", "purity": "maximize", "cost": "minimize"}
NOISE = {"yield": 0.02, "purity": 0.02, "cost": 0.05}
REF_POINT = torch.tensor([0.0, 0.0, -4.0], dtype=torch.double)
SOURCES = ("benchmarks/laboratory.py", "mtbo_torch/experiment.py", "mtbo_torch/strategies", "mtbo_torch/improvement.py")
FIRST, EVALUATIONS, WORKERS = 12, 30, 2


def evaluate(rows: pd.DataFrame, generator: np.random.Generator | None = None) -> pd.DataFrame:
    """Return the rows with their values, noisy with a generator."""
    u, v = (rows["temperature"] - 300) / 600, np.log10(rows["loading"]) / 3 + 1
    w = (rows["steps"] - 1) / 5
    best = rows["catalyst"].map({"Pd": 0.7, "Ni": 0.5, "Cu": 0.35, "Fe": 0.8}).astype(float)
    activity = rows["catalyst"].map({"Pd": 1.0, "Ni": 0.8, "Cu": 0.55, "Fe": 0.45}).astype(float)
    price = rows["catalyst"].map({"Pd": 1.5, "Ni": 0.6, "Cu": 0.3, "Fe": 0.1}).astype(float)
    values = {
        "yield": activity * np.exp(-6 * (u - best) ** 2) * (0.3 + 0.7 * v) * (0.7 + 0.3 * w),
        "purity": (1 - 0.6 * v) * np.exp(-3 * (u - 0.35) ** 2) * (0.5 + 0.5 * np.sin(1 + 2 * w)),
        "cost": price * (0.3 + v) + 0.8 * u + 1.2 * w,
    }
    noisy = {
        name: value + (generator.normal(0, NOISE[name], len(rows)) if generator else 0)
        for name, value in values.items()
    }
    return rows[list(INPUTS)].assign(**noisy)


def draw_rows(count: int, seed: int) -> pd.DataFrame:
    return Experiment(INPUTS, TASKS, strategy=RandomSearch, seed=seed).ask(count)[list(INPUTS)].reset_index(drop=True)


def start(seed: int) -> tuple[pd.DataFrame, np.random.Generator]:
    generator = np.random.default_rng(seed)
    rows = evaluate(draw_rows(FIRST, seed), generator)
    rows.loc[3, "purity"] = np.nan
    return rows, generator


def run_experiment(seed: int, **options: Any) -> pd.DataFrame:
    rows, generator = start(seed)
    experiment = Experiment(INPUTS, TASKS, seed=seed, **options)
    experiment.tell(rows)
    for _ in range(EVALUATIONS // WORKERS):
        proposals = experiment.ask(WORKERS)
        experiment.tell(evaluate(proposals, generator))
    return experiment.table


def run_random(seed: int) -> pd.DataFrame:
    return pd.concat([start(seed)[0], draw_rows(EVALUATIONS, seed + 1000)], ignore_index=True)


def run_one_hot(seed: int) -> pd.DataFrame:
    """Run our optimizer on a box in which every category is an input from 0 to 1, rounded to the largest."""
    inputs, (rows, generator) = Inputs(INPUTS), start(seed)
    bounds = torch.cat([inputs.bounds[:, :3], torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, 4)], dim=-1)
    optimizer = Optimizer(3, bounds=bounds, signs=(1, 1, -1), seed=seed)

    def encode(table: pd.DataFrame) -> Tensor:
        X = inputs.encode(table.to_dict("records"))
        return torch.cat([X[:, :3], torch.nn.functional.one_hot(X[:, 3].long(), 4).to(X)], dim=-1)

    def decode(X: Tensor) -> pd.DataFrame:
        codes = torch.cat([X[:, :2], X[:, 2:3].round(), X[:, 3:].argmax(dim=-1, keepdim=True).to(X)], dim=-1)
        return pd.DataFrame(inputs.decode(codes))

    optimizer.tell(encode(rows), rows[list(TASKS)].to_numpy(), allow_missing=True)
    for _ in range(EVALUATIONS // WORKERS):
        asked = evaluate(decode(optimizer.ask(WORKERS)), generator)
        optimizer.tell(encode(asked), asked[list(TASKS)].to_numpy(), instead_of=optimizer.asked_ids)
        rows = pd.concat([rows, asked], ignore_index=True)
    return rows


def run_ax(seed: int) -> pd.DataFrame:
    from ax.api.client import Client
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

    rows, generator = start(seed)
    client = Client(random_seed=seed)
    client.configure_experiment(
        parameters=[
            RangeParameterConfig(name="temperature", parameter_type="float", bounds=(300.0, 900.0)),
            RangeParameterConfig(name="loading", parameter_type="float", bounds=(1e-3, 1.0), scaling="log"),
            RangeParameterConfig(name="steps", parameter_type="int", bounds=(1, 6)),
            ChoiceParameterConfig(
                name="catalyst", parameter_type="str", values=["Pd", "Ni", "Cu", "Fe"], is_ordered=False
            ),
        ]
    )
    client.configure_optimization(objective="yield_, purity, -cost")
    rename = {"yield": "yield_", "purity": "purity", "cost": "cost"}

    def report(index: int, row: dict[str, Any]) -> None:
        data = {rename[name]: row[name] for name in TASKS if row[name] == row[name]}
        client.complete_trial(trial_index=index, raw_data=data)

    for row in rows.to_dict("records"):
        report(client.attach_trial(parameters={name: row[name] for name in INPUTS}), row)
    for _ in range(EVALUATIONS // WORKERS):
        trials = client.get_next_trials(max_trials=WORKERS)
        asked = evaluate(pd.DataFrame(list(trials.values())), generator)
        for index, row in zip(trials, asked.to_dict("records"), strict=True):
            report(index, row)
        rows = pd.concat([rows, asked], ignore_index=True)
    return rows


WAYS: dict[str, Callable[[int], pd.DataFrame]] = {
    "Experiment": run_experiment,
    "one-hot inputs": run_one_hot,
    "Ax": run_ax,
    "random": run_random,
}


def measure(rows: pd.DataFrame) -> float:
    values = torch.tensor(evaluate(rows)[list(TASKS)].to_numpy()) * torch.tensor([1.0, 1.0, -1.0])
    return hypervolume(values, REF_POINT).item()


def run(way: str, seed: int) -> Run:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("ax").setLevel(logging.ERROR)  # which tells of every trial
    started = time.process_time()
    rows = WAYS[way](seed)
    return {"volume": measure(rows), "seconds": (time.process_time() - started) / EVALUATIONS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--workers", type=int, default=1, help="how many runs go side by side, one core each")
    parser.add_argument("--out", type=Path, default=RESULTS / "laboratory.jsonl")
    options = parser.parse_args()
    best = measure(draw_rows(20_000, seed=0))
    jobs = [{"way": way, "seed": seed} for way in options.ways for seed in range(options.seeds)]
    done = run_missing(run, jobs, options.out, options.workers)
    seeds = " | ".join(f"seed {seed}" for seed in range(options.seeds))
    lines = [f"| way | {seeds} | mean | seconds per evaluation |", "|---|" + "---|" * (options.seeds + 2)]
    for name in options.ways:
        shares = [one["volume"] / best for one in done if one["way"] == name]
        seconds = [one["seconds"] for one in done if one["way"] == name]
        cells = [f"{share:.3f}" for share in [*shares, sum(shares) / len(shares)]]
        lines.append(f"| {name} | {' | '.join(cells)} | {sum(seconds) / len(seconds):.2f} |")
    print("\n".join(lines))
    command = "make bench-laboratory" + (f' OPTIONS="{" ".join(sys.argv[1:])}"' if sys.argv[1:] else "")
    record("laboratory", lines, command, SOURCES)


if __name__ == "__main__":
    main()
