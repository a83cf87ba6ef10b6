"""Figures; the only module that imports matplotlib. Every function draws on an ``ax`` and returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from botorch.utils.multi_objective.pareto import is_non_dominated
from matplotlib.axes import Axes
from torch import Tensor

# Okabe and Ito's palette: distinguishable with any kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":")


def plot_regret(curves: Mapping[str, Tensor], ax: Axes | None = None, ylabel: str = "time-average regret") -> Axes:
    """Mean and standard deviation over trials of one regret curve per algorithm, each ``trials x rounds``."""
    ax = plt.gca() if ax is None else ax
    for i, (name, curve) in enumerate(curves.items()):
        _mean_and_spread(ax, curve, COLOURS[i % len(COLOURS)], STYLES[i // len(COLOURS)], name)
    ax.set(xlabel="round", ylabel=ylabel, xlim=(1, None))
    ax.legend(frameon=False)
    return ax


def plot_certificate(regrets: Mapping[str, Tensor], certificates: Mapping[str, Tensor], ax: Axes | None = None) -> Axes:
    """The time-average regret, and dashed what the theorem guarantees of it, each ``trials x rounds``."""
    ax = plt.gca() if ax is None else ax
    for colour, (name, curve) in zip(COLOURS, certificates.items(), strict=False):
        _mean_and_spread(ax, regrets[name], colour, "-", f"{name}: regret")
        _mean_and_spread(ax, curve, colour, "--", f"{name}: certificate")
    ax.set(xlabel="round", ylabel="time-average regret", xlim=(1, None), yscale="log")
    ax.legend(frameon=False)
    return ax


def _mean_and_spread(ax: Axes, curve: Tensor, colour: str, style: str, label: str) -> None:
    rounds = range(1, curve.shape[-1] + 1)
    mean = curve.mean(dim=0)
    ax.plot(rounds, mean, color=colour, linestyle=style, label=label)
    if len(curve) > 1:
        spread = curve.std(dim=0)
        lower = torch.maximum(mean - spread, mean / 10)  # a band that reaches zero would fill a logarithmic axis
        ax.fill_between(rounds, lower, mean + spread, color=colour, alpha=0.2, linewidth=0)


def plot_pareto(attainable: Tensor, chosen: Tensor, ax: Axes | None = None) -> Axes:
    """The values of two tasks on the domain ``N x 2``, its Pareto front, and the ones that were chosen ``t x 2``."""
    ax = plt.gca() if ax is None else ax
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
    """The picture of ``mtbo-torch demo``: regret over all trials, and the choices of the last one."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    trials = len(next(iter(curves.values())))
    plot_regret(curves, left).set(title=f"{trials} functions, mean and standard deviation", ylim=(0, None))
    plot_pareto(attainable, chosen, right).set_title("the last one: what MT-KB chose")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def save_panel(
    title: str, ylabel: str, curves: Mapping[str, Tensor], certificates: Mapping[str, Tensor], paths: Sequence[Path]
) -> None:
    """A panel of the paper: the regret of every algorithm, and beside it the certificates, if there are any."""
    count = 2 if certificates else 1
    figure, axes = plt.subplots(1, count, figsize=(5.5 * count, 4), layout="constrained", squeeze=False)
    plot_regret(curves, axes[0, 0], ylabel).set(title=title, yscale="log")
    if certificates:
        plot_certificate(curves, certificates, axes[0, 1]).set_title("what Theorems 2 and 3 guarantee")
    for path in paths:
        figure.savefig(path, dpi=150)
    plt.close(figure)
