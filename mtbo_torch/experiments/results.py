"""Panels: the results of algorithms side by side, and verdicts on what is claimed of them."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from torch import Tensor

from mtbo_torch.display import format_html_table, format_mean_and_sd, format_text_table, shorten

NEAR = 0.25


@dataclass(frozen=True)
class Claim:
    """A claim about the last values of a panel's curves.

    Attributes:
        text: The claim in words.
        kind: ``"below"`` or ``"above"`` (the first curve ends there, seen from the second), ``"near"`` (within a
            quarter of it), ``"falls"`` (each curve ends below the next), or ``"gap"`` (the ratio of the second to the
            first is larger than elsewhere).
        curves: The labels of the curves.
        elsewhere: The panel to compare with, for ``"gap"``.
    """

    text: str
    kind: str
    curves: tuple[str, ...]
    elsewhere: str | None = None


@dataclass(frozen=True)
class Panel:
    """A figure.

    Attributes:
        name: The name of its folder.
        title: The title of the figure.
        experiments: The benchmarks by label. With several, there is one curve per benchmark, else one per algorithm.
        metric: What to draw.
        claims: What is claimed.
    """

    name: str
    title: str
    experiments: Mapping[str, str]
    metric: str
    claims: tuple[Claim, ...]

    @property
    def is_sweep(self) -> bool:
        """True if each curve is a benchmark, not an algorithm."""
        return len(self.experiments) > 1


@dataclass(frozen=True, repr=False)
class PanelResult:
    """The result of a panel, shown as a table when printed and in Jupyter.

    Attributes:
        panel: The panel.
        columns: For each curve, all measures as ``trials x rounds``.
        seconds: For each curve, the time of its strategy.
        settings: For each benchmark, everything that determined its numbers.
    """

    panel: Panel
    columns: dict[str, dict[str, Tensor]]
    seconds: dict[str, float]
    settings: dict[str, dict[str, Any]]

    @property
    def curves(self) -> dict[str, Tensor]:
        """What the panel shows, ``trials x rounds`` for each curve."""
        return {label: columns[self.panel.metric] for label, columns in self.columns.items()}

    @property
    def finals(self) -> dict[str, list[float]]:
        """The last values of each curve."""
        return {label: curve[:, -1].tolist() for label, curve in self.curves.items()}

    def __repr__(self) -> str:
        return f"{self.panel.name}: {self.panel.title}\n{format_text_table(self._make_rows())}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(f'{self.panel.name}: {self.panel.title}')}</p>{format_html_table(self._make_rows())}"

    def _make_rows(self) -> list[list[str]]:
        trials, rounds = next(iter(self.curves.values())).shape
        head = [f"{trials} trials, {rounds} rounds", f"final {self.panel.metric.replace('_', ' ')}", "seconds"]
        best = find_best(self.panel.metric, self.finals)
        rows = [
            [label, format_cell(last, label == best), f"{self.seconds[label]:.1f}"]
            for label, last in self.finals.items()
        ]
        return [head, *rows]


def find_best(metric: str, finals: Mapping[str, Sequence[float]]) -> str | None:
    """Return the label with the best mean of the last values, if there is a choice; bounds are not compared."""
    if len(finals) < 2 or metric == "certificate":
        return None
    is_gain = metric == "hypervolume" or metric.endswith("share")
    return (max if is_gain else min)(finals, key=lambda label: fmean(finals[label]))


def format_cell(values: Sequence[float], is_best: bool) -> str:
    """Format the last values of some trials, marked if they are the best."""
    return f"★ {format_mean_and_sd(values)}" if is_best else format_mean_and_sd(values)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim.

    Attributes:
        claim: The claim in words.
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
    """Judge a claim by the last values of all trials; `elsewhere` holds those of the other panel."""
    if not set(claim.curves) <= finals.keys():
        return Verdict(claim.text, "undecided", "not all of its algorithms were run")
    if claim.kind in ("below", "above"):
        return _judge_difference(claim, finals)
    means = [fmean(finals[label]) for label in claim.curves]
    if claim.kind == "falls":
        evidence = ", ".join(f"{label}: {shorten(mean)}" for label, mean in zip(claim.curves, means, strict=True))
        outcome = _name_outcome(*compute_gap(finals[claim.curves[0]], finals[claim.curves[-1]]))
        if outcome == "confirmed":
            outcome = _confirm(means == sorted(means))
        return Verdict(claim.text, outcome, evidence)
    if claim.kind == "near":
        is_near = abs(means[0] - means[1]) <= NEAR * means[1]
        return Verdict(claim.text, _confirm(is_near), f"{shorten(means[0])} against {shorten(means[1])}")
    if elsewhere is None or not set(claim.curves) <= elsewhere.keys():
        return Verdict(claim.text, "undecided", f"{claim.elsewhere} was not run with the same settings")
    others = [fmean(elsewhere[label]) for label in claim.curves]
    if means[0] == 0 or others[0] == 0:
        return Verdict(claim.text, "undecided", "a regret is zero")
    here, there = means[1] / means[0], others[1] / others[0]
    return Verdict(claim.text, _confirm(here > there), f"ratio {here:.2f} here, {there:.2f} in {claim.elsewhere}")


def _judge_difference(claim: Claim, finals: dict[str, list[float]]) -> Verdict:
    first, second = (finals[label] for label in claim.curves)
    gap, error = compute_gap(first, second) if claim.kind == "below" else compute_gap(second, first)
    evidence = f"{shorten(fmean(first))} against {shorten(fmean(second))}, gap {shorten(gap)} ± {shorten(error)}"
    return Verdict(claim.text, _name_outcome(gap, error), evidence)


def compute_gap(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the paired differences and its standard error, NaN for a single trial."""
    gaps = [b - a for a, b in zip(first, second, strict=True)]
    return fmean(gaps), stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan


def _name_outcome(gap: float, error: float) -> str:
    """Return the outcome of the claim that a gap is positive."""
    if math.isnan(error):
        return "undecided"
    return "within the noise" if abs(gap) <= 2 * error or gap == 0 else _confirm(gap > 0)


def _confirm(is_confirmed: bool) -> str:
    return "confirmed" if is_confirmed else "not confirmed"
