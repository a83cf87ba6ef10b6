"""Record the tables of the paper's experiments, from the folder that ``mtbo-torch reproduce`` filled.

Run with ``make bench-paper`` (about 15 minutes), with the data of the sensor and soil panels in ``DATA``:
``make bench-paper DATA="--sensor-data intel_lab.csv.gz --soil-data jura.csv"``. A table of which a panel or an
algorithm is missing stays as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from record import format_rows, record

from mtbo_torch.display import format_mean_and_sd
from mtbo_torch.experiments.algorithms import DEFAULT_ALGORITHMS
from mtbo_torch.experiments.panels import PANELS
from mtbo_torch.report import give_verdicts, load_facts

COMMAND = "make bench-paper"
SOURCES = ["mtbo_torch/experiments", "mtbo_torch/strategies", "mtbo_torch/problems", "mtbo_torch/intervals.py"]
SWEEPS = ("fig1a", "fig1a-scaled")
ELLIPSOID = ("MT-KB", "MT-KB-ellipsoid", "MT-BKB", "MT-BKB-ellipsoid", "MOBO")
MIXTURE = ("MT-KB", "MT-KB-mixture", "MT-BKB-mixture")
Facts = dict[str, dict[str, Any]]


def tabulate_regrets(facts: Facts, panels: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return the final regrets, mean and standard deviation."""
    rows = [("panel", *labels)]
    for name in panels:
        finals, metric = facts[name]["finals"], PANELS[name].metric
        rows.append((f"{name}: {PANELS[name].title}", *[format_mean_and_sd(finals[label][metric]) for label in labels]))
    return format_rows(rows)


def tabulate_certificates(facts: Facts, panels: Sequence[str]) -> list[str]:
    """Return the final regrets, and the certificates in multiples of them."""
    head = ("panel", *MIXTURE, "MOBO, no guarantee", *[f"certificate over regret, {label}" for label in MIXTURE])
    rows = [head]
    for name in panels:
        finals = facts[name]["finals"]
        regrets = [format_mean_and_sd(finals[label]["average_regret"]) for label in (*MIXTURE, "MOBO")]
        ratios = [fmean(finals[label]["certificate"]) / fmean(finals[label]["average_regret"]) for label in MIXTURE]
        rows.append((f"{name}: {PANELS[name].title}", *regrets, *[f"{ratio:.3g}" for ratio in ratios]))
    return format_rows(rows)


def tabulate_claims(out: Path, panels: Sequence[str]) -> list[str]:
    """Return the verdicts on the paper's claims."""
    rows = [("panel", "claim of the paper", "here", "numbers")]
    for name in panels:
        rows += [(name, verdict.claim, verdict.outcome, verdict.evidence) for verdict in give_verdicts(out, name)]
    return format_rows(rows)


def find_missing(facts: Facts, needed: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the panels that were not run, or not with all algorithms that are needed of them."""
    return [name for name in needed if name not in facts or not set(needed[name]) <= facts[name]["finals"].keys()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("results"), help="the folder of the reproduction")
    out = parser.parse_args().out
    facts = load_facts(out)
    panels = [name for name in PANELS if name not in SWEEPS]
    average = [name for name in panels if PANELS[name].metric == "average_regret"]
    sweeps, usual = dict.fromkeys(SWEEPS, ()), dict.fromkeys(panels, DEFAULT_ALGORITHMS)
    tables: dict[str, tuple[Mapping[str, Sequence[str]], Callable[[], list[str]]]] = {
        "paper_regrets": (usual, lambda: tabulate_regrets(facts, panels, DEFAULT_ALGORITHMS)),
        "paper_similarity": (sweeps, lambda: tabulate_regrets(facts, SWEEPS, list(facts[SWEEPS[0]]["finals"]))),
        "paper_ellipsoid": (dict.fromkeys(average, ELLIPSOID), lambda: tabulate_regrets(facts, average, ELLIPSOID)),
        "paper_certificates": (
            dict.fromkeys(average, (*MIXTURE, "MOBO")),
            lambda: tabulate_certificates(facts, average),
        ),
        "paper_claims": (sweeps | usual, lambda: tabulate_claims(out, list(PANELS))),
    }
    for name, (needed, tabulate) in tables.items():
        missing = find_missing(facts, needed)
        if missing:
            print(f"{name} stays as it is, because {out} does not have all of {', '.join(missing)}.")
        else:
            record(name, tabulate(), COMMAND, SOURCES)


if __name__ == "__main__":
    main()
