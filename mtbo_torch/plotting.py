"""Figures; the only module that imports matplotlib. Every function draws on an ``ax`` and returns it."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from botorch.utils.multi_objective.pareto import is_non_dominated
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from mtbo_torch.checks import require_finite, require_tensor
from mtbo_torch.experiments.storage import write_atomically

# Okabe and Ito's palette: distinguishable with any kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":")
MOST_BANDS = 3


def plot_regret(curves: Mapping[str, Tensor], ax: Axes | None = None, ylabel: str = "time-average regret") -> Axes:
    """Mean and standard deviation over trials of one regret curve per algorithm, each ``trials x rounds``.

    The standard deviation is a band for up to three curves, and bars at some rounds for more; downwards it is drawn to
    a tenth of the mean at most, for logarithmic axes.
    """
    _require_curves("curves", curves)
    ax = _axes(ax)
    for i, (name, curve) in enumerate(curves.items()):
        colour, style = COLOURS[i % len(COLOURS)], STYLES[i // len(COLOURS)]
        _draw_mean(ax, curve, colour, style, name)
        if len(curves) <= MOST_BANDS:
            _draw_band(ax, curve, colour)
        else:
            _draw_bars(ax, curve, colour, place=i / len(curves))
    ax.set(xlabel="round", ylabel=ylabel, xlim=(1, max(2, next(iter(curves.values())).shape[-1])))
    ax.legend(frameon=False)
    return ax


def plot_certificate(regrets: Mapping[str, Tensor], certificates: Mapping[str, Tensor], ax: Axes | None = None) -> Axes:
    """The time-average regret, and dashed what the theorem guarantees of it, each ``trials x rounds``."""
    _require_curves("certificates", certificates)
    missing = sorted(certificates.keys() - regrets.keys()) if isinstance(regrets, Mapping) else list(certificates)
    if missing:
        raise ValueError(
            f"regrets should have a curve for each of certificates, got none for {', '.join(missing)}. "
            "Pass both by the same names."
        )
    _require_curves("regrets", regrets)
    ax = _axes(ax)
    for colour, (name, curve) in zip(COLOURS, certificates.items(), strict=False):
        for values, style, what in ((curve, "--", "certificate"), (regrets[name], "-", "regret")):
            _draw_mean(ax, values, colour, style, f"{name}: {what}")
            _draw_band(ax, values, colour)
    ax.set(xlabel="round", ylabel="time-average regret", yscale="log", xlim=(1, max(2, curve.shape[-1])))
    ax.legend(frameon=False)
    return ax


def _axes(ax: object) -> Axes:
    if ax is None:
        return plt.gca()
    if not isinstance(ax, Axes):
        raise ValueError(f"ax should be matplotlib axes, got {type(ax).__name__}. Leave it out for the current ones.")
    return ax


def _require_curves(name: str, curves: object) -> None:
    if not isinstance(curves, Mapping) or not curves:
        raise ValueError(f"{name} should be a non-empty dict of curves by name, got {curves!r}. Pass at least one.")
    for label, curve in curves.items():
        curve = require_tensor(f"{name}[{label!r}]", curve, "Pass one row per trial and one column per round.")
        if curve.dim() != 2 or curve.numel() == 0:
            raise ValueError(
                f"{name}[{label!r}] should be `trials x rounds`, got shape {tuple(curve.shape)}. "
                "Pass one row per trial and one column per round."
            )


def _draw_mean(ax: Axes, curve: Tensor, colour: str, style: str, label: str) -> None:
    ax.plot(range(1, curve.shape[-1] + 1), curve.mean(dim=0), color=colour, linestyle=style, label=label)


def _draw_band(ax: Axes, curve: Tensor, colour: str) -> None:
    mean, below, above = _spread(curve)
    ax.fill_between(range(1, curve.shape[-1] + 1), mean - below, mean + above, color=colour, alpha=0.2, linewidth=0)


def _draw_bars(ax: Axes, curve: Tensor, colour: str, place: float) -> None:
    rounds = curve.shape[-1]
    step = max(1, rounds // 8)
    at = torch.arange(int(step * (0.5 + place)) - 1, rounds, step).clamp(0, rounds - 1)
    mean, below, above = (values[at] for values in _spread(curve))
    ax.errorbar(at + 1, mean, yerr=torch.stack([below, above]), fmt="none", ecolor=colour, capsize=2, alpha=0.7)


def _spread(curve: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, and the standard deviation below and above it; below it stays positive, for a logarithmic axis."""
    mean, sd = curve.mean(dim=0), curve.std(dim=0, correction=min(1, len(curve) - 1))
    return mean, torch.minimum(sd, 0.9 * mean.clamp_min(0)), sd


def plot_pareto(attainable: Tensor, chosen: Tensor, ax: Axes | None = None) -> Axes:
    """The values of two tasks on the domain ``N x 2``, its Pareto front, and the ones that were chosen ``t x 2``."""
    for label, value in (("attainable", attainable), ("chosen", chosen)):
        value = require_tensor(label, value, "Pass one row per point.")
        if value.dim() != 2 or value.shape[-1] != 2:
            raise ValueError(
                f"{label} should be `N x 2`, the values of two tasks, got shape {tuple(value.shape)}. Pick two columns."
            )
        require_finite(label, value)
    ax = _axes(ax)
    front = attainable[is_non_dominated(attainable)]
    ax.plot(attainable[:, 0], attainable[:, 1], color="0.8", zorder=1, label="attainable")
    ax.scatter(front[:, 0], front[:, 1], color=COLOURS[1], s=30, zorder=2, label="Pareto front")
    rounds = range(1, len(chosen) + 1)
    dots = ax.scatter(chosen[:, 0], chosen[:, 1], c=rounds, cmap="viridis", s=18, zorder=3, edgecolors="white")
    ax.figure.colorbar(dots, ax=ax, label="round")
    ax.set(xlabel="task 1", ylabel="task 2")
    ax.legend(frameon=False)
    return ax


def save_demo(curves: Mapping[str, Tensor], attainable: Tensor, chosen: Tensor, path: Path) -> None:
    """The picture of ``mtbo-torch demo``: regret over all trials, and the choices in one."""
    _require_curves("curves", curves)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    trials = len(next(iter(curves.values())))
    plot_regret(curves, left).set(title=f"{trials} functions, mean and standard deviation", ylim=(0, None))
    plot_pareto(attainable, chosen, right).set_title("one of them: what MT-KB chose")
    _save(figure, [path])


def save_panel(
    title: str,
    ylabel: str,
    curves: Mapping[str, Tensor],
    certificates: Mapping[str, Tensor],
    is_guaranteed: bool,
    paths: Sequence[Path],
) -> None:
    """A panel of the paper: the regret of every algorithm, and beside it the certificates, if there are any."""
    _require_curves("curves", curves)
    count = 2 if certificates else 1
    figure, axes = plt.subplots(1, count, figsize=(6.5 * count, 4), layout="constrained", squeeze=False)
    plot_regret(curves, axes[0, 0], ylabel).set(title=title, yscale="log")
    axes[0, 0].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    if certificates:
        doubt = "" if is_guaranteed else " (b is no bound here)"
        plot_certificate(curves, certificates, axes[0, 1]).set_title(f"certificates of Theorems 2 and 3{doubt}")
        axes[0, 1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    _save(figure, paths)


def _save(figure: Figure, paths: Sequence[Path]) -> None:
    try:
        for path in paths:
            kind = path.suffix[1:] or "png"
            if kind not in figure.canvas.get_supported_filetypes():
                raise ValueError(f"{path} should end as a picture does, got {kind!r}. Use for instance .png or .svg.")
            picture = io.BytesIO()
            figure.savefig(picture, dpi=150, format=kind)
            write_atomically(path, picture.getvalue())
    finally:
        plt.close(figure)
