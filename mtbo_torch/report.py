"""Reports of reproductions and comparisons: figures, tables, and a page that shows them all."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from torch import Tensor

from mtbo_torch.display import format_html_table
from mtbo_torch.experiments.compare import Comparison
from mtbo_torch.experiments.panels import PANELS
from mtbo_torch.experiments.reproduce import REGRETS
from mtbo_torch.experiments.results import Panel, PanelResult, Verdict, find_best, format_cell, judge
from mtbo_torch.experiments.storage import format_settings, read_sealed, seal, write_atomically
from mtbo_torch.problems.paper import OPEN_CHOICES

METRIC_NAMES = {
    "average_regret": "time-average cumulative regret",
    "bayes_regret": "Bayes regret",
    "hypervolume": "hypervolume",
}
FACTS = {"panel", "trials", "finals", "seconds", "settings", "versions"}
FINALS = (*REGRETS[1:], "hypervolume")


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
        METRIC_NAMES[metric],
        result.curves,
        certificates,
        _is_guaranteed(result),
        _list_pairs(result),
        [folder / f"{name}.png", folder / f"{name}.svg"],
        "linear" if metric == "hypervolume" else "log",
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
    """Return the curves that the panel's claims compare by paired differences, the lower one first if they are true."""
    claims = [claim for claim in result.panel.claims if set(claim.curves) <= result.curves.keys()]
    pairs = [(claim.curves[0], claim.curves[-1]) for claim in claims if claim.kind in ("below", "falls")]
    return pairs + [(claim.curves[1], claim.curves[0]) for claim in claims if claim.kind == "above"]


def _is_guaranteed(result: PanelResult) -> bool:
    """Return True if the certificates are based on true bounds on the norm."""
    return all(settings.get("norm_bound") == "exact" for settings in result.settings.values())


def give_verdicts(out: Path, name: str) -> list[Verdict]:
    """Return the verdicts on a panel's claims, from the files in the folder.

    Raises:
        ValueError: If the panel is not in the folder, or a file is not as it was written.
    """
    stored = load_facts(out)
    if name not in stored:
        raise ValueError(f"{out / name / 'panel.json'} should exist, got none. Reproduce {name} first.")
    return _judge_panel(stored, name, PANELS)


def _judge_panel(stored: dict[str, dict[str, Any]], name: str, panels: Mapping[str, Panel]) -> list[Verdict]:
    panel = panels[name]
    finals = {label: columns[panel.metric] for label, columns in stored[name]["finals"].items()}
    others = {
        other: {label: columns[panels[other].metric] for label, columns in facts["finals"].items()}
        for other, facts in stored.items()
        if _select_comparable(facts) == _select_comparable(stored[name])
    }
    return [judge(claim, finals, others.get(claim.elsewhere or "")) for claim in panel.claims]


def _select_comparable(facts: dict[str, Any]) -> tuple[Any, ...]:
    """Return the settings that two panels must share to be compared."""
    settings = next(iter(facts["settings"].values()))
    return (facts["trials"], *(settings.get(key) for key in ("seed", "rounds", "dtype", "norm_bound")))


def write_index(out: Path, notes: Sequence[str] = ()) -> Path:
    """Write ``index.html`` for all panels of the paper in the folder, and return its path.

    Raises:
        ValueError: If a file is not as it was written.
    """
    skipped = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    choices = "".join(f"<tr><td>{html.escape(a)}</td><td>{html.escape(b)}</td></tr>" for a, b in OPEN_CHOICES)
    end = f'<h2 id="open">What the paper leaves open</h2><table>{choices}</table>'
    contents = '<li><a href="#open">What the paper leaves open</a></li>'
    return _write_page(out, PANELS, "The paper's experiments", PAPER + skipped, contents, end)


def write_comparison(result: Comparison, out: str | Path) -> Path:
    """Write a page with all tables, figures and verdicts of a comparison, ``index.html``, and return its path.

    Args:
        result: What :func:`~mtbo_torch.experiments.compare.compare` returned.
        out: The folder. If it is the one that the runs were saved to, the page has links to their tables.
    """
    for panel in result.panels:
        write_panel(panel, Path(out))
    panels = {panel.panel.name: panel.panel for panel in result.panels}
    return _write_page(Path(out), panels, f"Comparison of {', '.join(result.panels[0].curves)}", "", "", "")


def _write_page(out: Path, panels: Mapping[str, Panel], title: str, start: str, contents: str, end: str) -> Path:
    stored = load_facts(out, panels)
    items = "".join(f'<li><a href="#{name}">{name}: {html.escape(panels[name].title)}</a></li>' for name in stored)
    sections = "\n".join(_render_section(stored, name, panels, out) for name in stored)
    page = PAGE.format(title=title, start=start, contents=items + contents, sections=sections, end=end)
    write_atomically(out / "index.html", page.encode())
    return out / "index.html"


def load_facts(out: Path, panels: Mapping[str, Panel] = PANELS) -> dict[str, dict[str, Any]]:
    """Return the facts of those panels that are in the folder.

    Raises:
        ValueError: If a file is not as it was written, or belongs to another panel or other runs.
    """
    return {name: _read_facts(out, panel) for name, panel in panels.items() if (out / name / "panel.json").exists()}


def _read_facts(out: Path, panel: Panel) -> dict[str, Any]:
    name = panel.name
    path, remedy = out / name / "panel.json", f"Delete it; mtbo-torch reproduce {name} writes it again."
    facts = read_sealed(path, lambda path: json.loads(path.read_bytes()), FACTS, remedy)
    if facts["panel"] != name:
        raise ValueError(f"{path} should hold the facts of {name}, got those of {facts['panel']!r}. {remedy}")
    for run in panel.experiments.values():
        shown = out / "runs" / run / "settings.json"
        if shown.exists() and shown.read_bytes() != format_settings(facts["settings"][run]):
            raise ValueError(f"{path} should have the settings of {shown}, got others. {remedy}")
    return facts


def _render_section(stored: dict[str, dict[str, Any]], name: str, panels: Mapping[str, Panel], out: Path) -> str:
    panel, facts = panels[name], stored[name]
    marks = {"confirmed": "✓", "not confirmed": "✗"}
    verdicts = _judge_panel(stored, name, panels)
    items = "".join(f"<li>{marks.get(v.outcome, '○')} {html.escape(str(v))}</li>" for v in verdicts)
    details = html.escape(json.dumps({"settings": facts["settings"], "versions": facts["versions"]}, indent=1))
    tables = [run for run in panel.experiments.values() if (out / "runs" / run / "results.csv").exists()]
    return (
        f'<section id="{name}"><h2>{name}: {html.escape(panel.title)}</h2>'
        f'<img src="{name}/{name}.svg" alt="{METRIC_NAMES[panel.metric]} of every algorithm over the rounds">'
        f"<p>{html.escape(str(facts['trials']))} trials; final values, mean ± standard deviation. "
        f"The figure shows the mean of the {METRIC_NAMES[panel.metric]} and the range from 10 % to 90 % of the trials; "
        "below, paired differences in the last round. "
        f'<a href="{name}/{name}.png">PNG</a> <a href="{name}/summary.csv">summary.csv</a> '
        + " ".join(f'<a href="runs/{run}/results.csv">{run}</a>' for run in tables)
        + f'</p><div class="wide">{format_html_table(_list_rows(facts))}</div>'
        f"<p>★ has the best mean. Claims:</p><ul>{items}</ul>"
        f"<details><summary>settings and versions</summary><pre>{details}</pre></details></section>"
    )


def _list_rows(facts: dict[str, Any]) -> list[list[str]]:
    """Return the table of a panel: a row for each curve, the best of each column marked."""
    curves = facts["finals"]
    names = [column for column in FINALS if any(column in finals for finals in curves.values())]
    rows = [["", *[column.replace("_", " ") for column in names], "seconds"], *([label] for label in curves)]
    for column in names:
        seen = {label: finals[column] for label, finals in curves.items() if column in finals}
        best = find_best(column, seen)
        for row in rows[1:]:
            row.append(format_cell(seen[row[0]], row[0] == best) if row[0] in seen else "")
    return [rows[0], *[[*row, f"{facts['seconds'][row[0]]:.1f}"] for row in rows[1:]]]


def _select_finals(columns: dict[str, Tensor]) -> dict[str, list[float]]:
    """Return the last values of every column that is complete in every trial."""
    last = {name: columns[name][:, -1] for name in FINALS if name in columns}
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


PAPER = (
    "<p>Chowdhury &amp; Gopalan, <em>No-regret Algorithms for Multi-task Bayesian Optimization</em>, reproduced.</p>\n"
)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>mtbo_torch: {title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222; }}
img {{ max-width: 100%; }} table {{ border-collapse: collapse; font-size: 14px; }}
td, th {{ border-bottom: 1px solid #ddd; padding: 0.2em 0.8em; text-align: left; }}
section td, section th {{ white-space: nowrap; font-variant-numeric: tabular-nums; }}
.wide, pre {{ overflow-x: auto; }} pre {{ font-size: 12px; }}
</style></head><body>
<h1>{title}</h1>
{start}<nav><ul>{contents}</ul></nav>{sections}
{end}
</body></html>
"""
