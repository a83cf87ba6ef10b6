"""Time the first trial from a model in Ax, with and without a limit between parameters: ``make bench-ax``.

CPU seconds of one thread, on a problem with six parameters, an integer and a category among them, and three metrics.
Ax's own generation strategy is beside ours, ours also with the settings that Ax has by default.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import logging
import math
import time
import warnings
from typing import Any

from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from record import format_rows, record

from mtbo_torch import ax as ours

NUM_INITIAL = 5
AS_AX = {"num_restarts": 20, "raw_samples": 1024}
BUILDERS: dict[str, tuple[dict[str, Any], dict[str, Any]] | None] = {
    "Ax's own": None,
    "ours, with Ax's 20 restarts, 1,024 samples and long walks": (AS_AX, {}),
    "ours, with long walks": (ours.SEARCH, {}),
    "ours": (ours.SEARCH, ours.LIMITED_SEARCH),
}


def make_client(name: str, limits: list[str]) -> Client:
    client = Client(random_seed=0)
    floats = [RangeParameterConfig(name=each, parameter_type="float", bounds=(0.0, 1.0)) for each in "uvw"]
    others = [
        RangeParameterConfig(name="loading", parameter_type="float", bounds=(1e-3, 1.0), scaling="log"),
        RangeParameterConfig(name="steps", parameter_type="int", bounds=(1, 3)),
        ChoiceParameterConfig(name="metal", parameter_type="str", values=["Pd", "Ni", "Cu"], is_ordered=False),
    ]
    client.configure_experiment(parameters=[*floats, *others], parameter_constraints=limits)
    client.configure_optimization(objective="quality, -cost", outcome_constraints=["size <= 0.9"])
    if BUILDERS[name] is None:
        client.configure_generation_strategy(initialization_budget=NUM_INITIAL, initialization_random_seed=0)
    else:
        client.set_generation_strategy(ours.make_generation_strategy(NUM_INITIAL, seed=0))
    return client


def measure(point: dict[str, Any]) -> dict[str, float]:
    load = math.log10(point["loading"]) / 3 + 1
    quality = point["u"] + load * (point["metal"] == "Pd")
    return {"quality": quality, "cost": 0.5 * point["steps"] + load, "size": point["u"] + 0.2 * point["v"]}


def time_trial(name: str, limits: list[str]) -> float:
    """Return the CPU seconds of the first trial after the Sobol points."""
    if (settings := BUILDERS[name]) is not None:
        ours.SEARCH, ours.LIMITED_SEARCH = settings
    client, spent = make_client(name, limits), 0.0
    for _ in range(NUM_INITIAL + 1):
        started = time.process_time()
        ((index, point),) = client.get_next_trials(max_trials=1).items()
        spent = time.process_time() - started
        client.complete_trial(trial_index=index, raw_data=measure(point))
    return spent


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    rows = [("CPU seconds of the first trial from a model", "no limit", "u + v <= 1")]
    time_trial("ours", [])  # what is loaded late is loaded here
    for name in BUILDERS:
        rows.append((name, *[f"{time_trial(name, limits):.1f}" for limits in ([], ["u + v <= 1"])]))
        print(*rows[-1], sep=", ", flush=True)
    record("ax_limits", format_rows(rows), "make bench-ax", ["benchmarks/ax_limits.py", "mtbo_torch/ax.py"])


if __name__ == "__main__":
    main()
