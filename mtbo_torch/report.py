"""The report of a reproduction: figures, tables, and a page that shows them all."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from torch import Tensor

from mtbo_torch.display import format_html_table, format_mean_and_sd, shorten
from mtbo_torch.experiments.compare import compute_gap
from mtbo_torch.experiments.panels import EXPERIMENTS, PANELS, Claim
from mtbo_torch.experiments.reproduce import PanelResult
from mtbo_torch.experiments.storage import format_settings, read_sealed, seal, write_atomically
from mtbo_torch.problems.paper import OPEN_CHOICES

NEAR = 0.25
REGRET_NAMES = {"average_regret": "time-average cumulative regret", "bayes_regret": "Bayes regret"}
FACTS = {"panel", "trials", "finals", "seconds", "settings", "versions"}
FINALS = ("average_regret", "bayes_regret", "simple_regret", "front_share", "hypervolume_share", "certificate")


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim.

    Attributes:
        claim: The claim of the paper.
        outcome: ``"confirmed"``, ``"not confirmed"``, ``"within the noise"`` (the mean of the paired differences is
            below two standard errors), or ``"undecided"`` (the runs do not suffice).
        evidence: The numbers behind the outcome.
    """

    claim: str
    outcome: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.claim}: {self.outcome} ({self.evidence})"


def judge(claim: Claim, finals: dict[str, list[float]], elsewhere: dict[str, list[float]] | None = None) -> Verdict:
    """Judge a claim by the final regrets of all trials; `elsewhere` holds the final regrets of the other panel."""
    if not set(claim.curves) <= finals.keys():
        return Verdict(claim.text, "undecided", "not all of its algorithms were run")
    if claim.kind == "below":
        return _judge_below(claim, finals)
    means = [fmean(finals[label]) for label in claim.curves]
    if claim.kind == "falls":
        evidence = ", ".join(f"{label}: {shorten(mean)}" for label, mean in zip(claim.curves, means, strict=True))
        outcome = _compare(finals[claim.curves[0]], finals[claim.curves[-1]])
        if outcome == "confirmed":
            outcome = _name_outcome(means == sorted(means))
        return Verdict(claim.text, outcome, evidence)
    if claim.kind == "near":
        is_near = abs(means[0] - means[1]) <= NEAR * means[1]
        return Verdict(claim.text, _name_outcome(is_near), f"{shorten(means[0])} against {shorten(means[1])}")
    if elsewhere is None or not set(claim.curves) <= elsewhere.keys():
        return Verdict(claim.text, "undecided", f"{claim.elsewhere} was not run with the same settings")
    others = [fmean(elsewhere[label]) for label in claim.curves]
    if means[0] == 0 or others[0] == 0:
        return Verdict(claim.text, "undecided", "a regret is zero")
    here, there = means[1] / means[0], others[1] / others[0]
    return Verdict(claim.text, _name_outcome(here > there), f"ratio {here:.2f} here, {there:.2f} in {claim.elsewhere}")


def _judge_below(claim: Claim, finals: dict[str, list[float]]) -> Verdict:
    first, second = (finals[label] for label in claim.curves)
    gap, error = compute_gap(first, second)
    evidence = f"{shorten(fmean(first))} against {shorten(fmean(second))}, gap {shorten(gap)} ± {shorten(error)}"
    return Verdict(claim.text, _compare(first, second), evidence)


def _compare(first: list[float], second: list[float]) -> str:
    """Return the outcome of the claim that the first regrets are below the second."""
    gap, error = compute_gap(first, second)
    if math.isnan(error):
        return "undecided"
    return "within the noise" if abs(gap) <= 2 * error or gap == 0 else _name_outcome(gap > 0)


def _name_outcome(is_confirmed: bool) -> str:
    return "confirmed" if is_confirmed else "not confirmed"


def write_panel(result: PanelResult, out: Path) -> None:
    """Write the figure (PNG and SVG), ``summary.csv`` and ``panel.json`` of a panel into its folder."""
    from mtbo_torch.plotting import save_panel

    name, metric = result.panel.name, result.panel.metric
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    certificates = {
        label: columns["certificate"]
        for label, columns in result.columns.items()
        if metric == "average_regret" and not columns["certificate"].isnan().any()
    }
    save_panel(
        f"{name}: {result.panel.title}",
        REGRET_NAMES[metric],
        result.curves,
        certificates,
        _is_guaranteed(result),
        _list_pairs(result),
        [folder / f"{name}.png", folder / f"{name}.svg"],
    )
    finals = {label: _select_finals(columns) for label, columns in result.columns.items()}
    write_atomically(folder / "summary.csv", _render_summary(finals, metric, result.seconds).encode())
    facts = {
        "panel": name,
        "trials": len(next(iter(result.curves.values()))),
        "finals": finals,
        "seconds": result.seconds,
        "settings": result.settings,
        "versions": _collect_versions(),
    }
    write_atomically(folder / "panel.json", json.dumps(seal(facts), indent=1).encode())


def _list_pairs(result: PanelResult) -> list[tuple[str, str]]:
    """Return the curves that the panel's claims compare by paired differences."""
    pairs = [(claim.curves[0], claim.curves[-1]) for claim in result.panel.claims if claim.kind in ("below", "falls")]
    return [pair for pair in pairs if set(pair) <= result.curves.keys()]


def _is_guaranteed(result: PanelResult) -> bool:
    """Return True if the certificates are based on true bounds on the norm."""
    return all(
        EXPERIMENTS[name].knows_norm and settings["norm_bound"] == "exact" for name, settings in result.settings.items()
    )


def give_verdicts(out: Path, name: str) -> list[Verdict]:
    """Return the verdicts on a panel's claims, from the files in the folder.

    Raises:
        ValueError: If the panel is not in the folder, or a file is not as it was written.
    """
    stored = load_facts(out)
    if name not in stored:
        raise ValueError(f"{out / name / 'panel.json'} should exist, got none. Reproduce {name} first.")
    return _judge_panel(stored, name)


def _judge_panel(stored: dict[str, dict[str, Any]], name: str) -> list[Verdict]:
    panel = PANELS[name]
    finals = {label: columns[panel.metric] for label, columns in stored[name]["finals"].items()}
    others = {
        other: {label: columns[PANELS[other].metric] for label, columns in facts["finals"].items()}
        for other, facts in stored.items()
        if _select_comparable(facts) == _select_comparable(stored[name])
    }
    return [judge(claim, finals, others.get(claim.elsewhere or "")) for claim in panel.claims]


def _select_comparable(facts: dict[str, Any]) -> tuple[Any, ...]:
    """Return the settings that two panels must share to be compared."""
    settings = next(iter(facts["settings"].values()))
    return (facts["trials"], *(settings[key] for key in ("seed", "rounds", "dtype", "norm_bound")))


def write_index(out: Path, notes: Sequence[str] = ()) -> Path:
    """Write ``index.html`` for all panels in the folder, and return its path.

    Raises:
        ValueError: If a file is not as it was written.
    """
    stored = load_facts(out)
    sections = "\n".join(_render_section(stored, name) for name in stored)
    contents = "".join(f'<li><a href="#{name}">{name}: {html.escape(PANELS[name].title)}</a></li>' for name in stored)
    skipped = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    choices = "".join(f"<tr><td>{html.escape(a)}</td><td>{html.escape(b)}</td></tr>" for a, b in OPEN_CHOICES)
    path = out / "index.html"
    page = PAGE.format(contents=contents, sections=sections, skipped=skipped, choices=choices)
    write_atomically(path, page.encode())
    return path


def load_facts(out: Path, names: Iterable[str] = PANELS) -> dict[str, dict[str, Any]]:
    """Return the facts of those panels that are in the folder.

    Raises:
        ValueError: If a file is not as it was written, or belongs to another panel or other runs.
    """
    return {name: _read_facts(out, name) for name in names if (out / name / "panel.json").exists()}


def _read_facts(out: Path, name: str) -> dict[str, Any]:
    path, remedy = out / name / "panel.json", f"Delete it; mtbo-torch reproduce {name} writes it again."
    facts = read_sealed(path, lambda path: json.loads(path.read_bytes()), FACTS, remedy)
    if facts["panel"] != name:
        raise ValueError(f"{path} should hold the facts of {name}, got those of {facts['panel']!r}. {remedy}")
    for run in PANELS[name].experiments.values():
        shown = out / "runs" / run / "settings.json"
        if shown.exists() and shown.read_bytes() != format_settings(facts["settings"][run]):
            raise ValueError(f"{path} should have the settings of {shown}, got others. {remedy}")
    return facts


def _render_section(stored: dict[str, dict[str, Any]], name: str) -> str:
    panel, facts = PANELS[name], stored[name]
    names = [column for column in FINALS if any(column in finals for finals in facts["finals"].values())]
    head = ["", *[column.replace("_", " ") for column in names], "seconds"]
    best = {column: _find_best(column, facts["finals"]) for column in names}
    rows = [
        [
            label,
            *[_render_cell(finals.get(column), best[column] == label) for column in names],
            f"{facts['seconds'][label]:.1f}",
        ]
        for label, finals in facts["finals"].items()
    ]
    marks = {"confirmed": "✓", "not confirmed": "✗"}
    items = "".join(f"<li>{marks.get(v.outcome, '○')} {html.escape(str(v))}</li>" for v in _judge_panel(stored, name))
    details = html.escape(json.dumps({"settings": facts["settings"], "versions": facts["versions"]}, indent=1))
    return (
        f'<section id="{name}"><h2>{name}: {html.escape(panel.title)}</h2>'
        f'<img src="{name}/{name}.svg" alt="{REGRET_NAMES[panel.metric]} of every algorithm over the rounds">'
        f"<p>{html.escape(str(facts['trials']))} trials; final values, mean ± standard deviation. "
        f"The figure shows the mean of the {REGRET_NAMES[panel.metric]} and the range from 10 % to 90 % of the trials; "
        "below, paired differences in the last round. "
        f'<a href="{name}/{name}.png">PNG</a> <a href="{name}/summary.csv">summary.csv</a> '
        + " ".join(f'<a href="runs/{run}/results.csv">{run}</a>' for run in panel.experiments.values())
        + f'</p><div class="wide">{format_html_table([head, *rows])}</div>'
        f"<p>★ has the best mean. Claims of the paper:</p><ul>{items}</ul>"
        f"<details><summary>settings and versions</summary><pre>{details}</pre></details></section>"
    )


def _find_best(column: str, finals: dict[str, dict[str, list[float]]]) -> str | None:
    """Return the label with the best mean of a column, if there is a choice; bounds are not compared."""
    means = {label: fmean(columns[column]) for label, columns in finals.items() if column in columns}
    if len(means) < 2 or column == "certificate":
        return None
    return (max if column.endswith("share") else min)(means, key=lambda label: means[label])


def _render_cell(values: list[float] | None, is_best: bool) -> str:
    if values is None:
        return ""
    return f"★ {format_mean_and_sd(values)}" if is_best else format_mean_and_sd(values)


def _select_finals(columns: dict[str, Tensor]) -> dict[str, list[float]]:
    """Return the last values of every column that is complete in every trial."""
    last = {name: columns[name][:, -1] for name in FINALS}
    return {name: values.tolist() for name, values in last.items() if not values.isnan().any()}


def _render_summary(finals: dict[str, dict[str, list[float]]], metric: str, seconds: dict[str, float]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["algorithm", f"final_{metric}_mean", f"final_{metric}_sd", "seconds"])
    for label, columns in finals.items():
        values = columns[metric]
        sd = stdev(values) if len(values) > 1 else math.nan
        writer.writerow([label, f"{fmean(values):.6g}", f"{sd:.6g}", f"{seconds[label]:.3f}"])
    return buffer.getvalue()


def _collect_versions() -> dict[str, str]:
    packages = ("mtbo_torch", "torch", "gpytorch", "linear_operator", "botorch")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>mtbo_torch: the paper's experiments</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222; }}
img {{ max-width: 100%; }} table {{ border-collapse: collapse; font-size: 14px; }}
td, th {{ border-bottom: 1px solid #ddd; padding: 0.2em 0.8em; text-align: left; }}
section td, section th {{ white-space: nowrap; font-variant-numeric: tabular-nums; }}
.wide, pre {{ overflow-x: auto; }} pre {{ font-size: 12px; }}
</style></head><body>
<h1>The paper's experiments</h1>
<p>Chowdhury &amp; Gopalan, <em>No-regret Algorithms for Multi-task Bayesian Optimization</em>, reproduced.</p>
{skipped}<nav><ul>{contents}<li><a href="#open">What the paper leaves open</a></li></ul></nav>{sections}
<h2 id="open">What the paper leaves open</h2><table>{choices}</table>
</body></html>
"""
