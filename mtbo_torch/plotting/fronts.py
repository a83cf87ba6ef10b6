"""Plots of values and of their Pareto front."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import torch
from botorch.utils.multi_objective.pareto import is_non_dominated
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from mtbo_torch.checks import require_finite, require_signs, require_tensor
from mtbo_torch.plotting.axes import COLORS, add_colorbar, get_axes, resolve_names, to_cpu

MOST_IN_MATRIX = 6
ROLES = {1: "maximized", -1: "minimized", 0: "no objective"}


def plot_pareto(
    chosen: Tensor,
    attainable: Tensor | None = None,
    ax: Axes | None = None,
    signs: Sequence[int] | Tensor | None = None,
    names: Sequence[str] | None = None,
) -> Axes:
    """Plot the chosen values of two tasks, or of each pair of up to six, and their Pareto front.

    Points are on the front if no other point is better in all tasks, those that a pair leaves out included.

    Args:
        chosen: ``t x n``, in the order of the rounds, which the colors show.
        attainable: ``N x n``, all attainable values or just their front, drawn in the background.
        ax: The axes to draw on; a new figure by default. With more than two tasks it is filled with smaller ones, its
            ``child_axes``.
        signs: 1 for a task that is maximized, -1 for one that is minimized, 0 for one that is no objective.
        names: The names of the n tasks.

    Example:
        >>> import torch
        >>> from mtbo_torch.plotting import plot_pareto
        >>> angle = torch.linspace(0, 1.57, 100)
        >>> circle = torch.stack([angle.cos(), angle.sin()], dim=-1)
        >>> ax = plot_pareto(0.9 * circle[::10], attainable=circle)
        >>> ax = plot_pareto(torch.rand(20, 3), signs=(1, -1, 1), names=["strength", "price", "comfort"])
    """
    n = _require_table("chosen", chosen)
    if not 2 <= n <= MOST_IN_MATRIX:
        raise ValueError(
            f"chosen should be `t x n` with n = 2 to {MOST_IN_MATRIX} tasks, got shape {tuple(chosen.shape)}. Select "
            "columns, or use plot_parallel."
        )
    if attainable is not None and _require_table("attainable", attainable) != n:
        raise ValueError(
            f"attainable should be `N x {n}` (from chosen), got shape {tuple(attainable.shape)}. Pass the same tasks."
        )
    way, labels = _resolve_signs(signs, n), resolve_names(names, n)
    labels = [f"{label} (minimized)" if sign < 0 else label for label, sign in zip(labels, way, strict=True)]
    found, possible = to_cpu(chosen), None if attainable is None else to_cpu(attainable)
    if n == 2:
        ax = get_axes(ax)
        dots = _draw_pair(ax, found, possible, way)
        ax.set(xlabel=labels[0], ylabel=labels[1])
        ax.legend(frameon=False)
    else:
        ax = get_axes(ax, figsize=(2.4 * n - 0.8, 2.1 * n - 1.5))
        dots = _draw_matrix(ax, found, possible, way, labels)
    add_colorbar(ax, dots, "round").locator = MaxNLocator(integer=True)
    return ax


def _draw_pair(ax: Axes, found: Tensor, possible: Tensor | None, way: Tensor) -> PathCollection:
    if possible is not None:
        _scatter_possible(ax, possible, _find_front(possible, way))
        ax.step(*_find_front(possible, way).T, where="pre", color=COLORS[1], alpha=0.5, zorder=2)
    ax.step(*_find_front(found, way).T, where="pre", color=COLORS[0], linewidth=1, zorder=3, label="front found")
    return _scatter_rounds(ax, found)


def _draw_matrix(ax: Axes, found: Tensor, possible: Tensor | None, way: Tensor, labels: list[str]) -> PathCollection:
    """Draw each task against each earlier one, below the diagonal; the legend is above it."""
    ax.set_axis_off()
    count, gap = len(labels) - 1, 0.05
    size = (1 + gap) / count - gap
    for row in range(count):
        for column in range(row + 1):
            pair = [column, row + 1]
            cell = ax.inset_axes((column * (size + gap), (count - 1 - row) * (size + gap), size, size))
            if possible is not None:
                _scatter_possible(cell, possible[:, pair], _find_front(possible, way)[:, pair])
            x, y = _find_front(found, way)[:, pair].T
            cell.scatter(x, y, facecolors="none", edgecolors=COLORS[0], s=60, zorder=3, label="front found")
            dots = _scatter_rounds(cell, found[:, pair])
            cell.set(xlabel=labels[column], ylabel=labels[row + 1])
            cell.locator_params(nbins=4)
            if row < count - 1:
                cell.set_xlabel("")
                cell.tick_params(labelbottom=False)
            if column:
                cell.set_ylabel("")
                cell.tick_params(labelleft=False)
    ax.legend(*cell.get_legend_handles_labels(), frameon=False, loc="upper right")
    return dots


def _scatter_possible(ax: Axes, possible: Tensor, front: Tensor) -> None:
    ax.scatter(possible[:, 0], possible[:, 1], color="0.85", s=6, zorder=1, label="attainable")
    ax.scatter(front[:, 0], front[:, 1], color=COLORS[1], s=12, zorder=2, label="true front")


def _scatter_rounds(ax: Axes, found: Tensor) -> PathCollection:
    x, y = found.unbind(dim=-1)
    rounds = range(1, len(found) + 1)
    return ax.scatter(x, y, c=rounds, cmap="viridis", s=24, zorder=4, edgecolors="white", linewidths=0.5)


def plot_parallel(
    values: Tensor,
    ax: Axes | None = None,
    signs: Sequence[int] | Tensor | None = None,
    names: Sequence[str] | None = None,
) -> Axes:
    """Plot each row of values as a line through one vertical axis per task, and their Pareto front in color.

    Each axis has its own scale, from the worst value at the bottom to the best at the top. Lines that cross between two
    axes show that one task is gained at the price of the other. The color follows the first task.

    Args:
        values: ``t x n``, with n of at least 2.
        ax: The axes to draw on; a new figure by default.
        signs: 1 for a task that is maximized, -1 for one that is minimized, 0 for one that is no objective.
        names: The names of the n tasks.

    Example:
        >>> import torch
        >>> from mtbo_torch.plotting import plot_parallel
        >>> ax = plot_parallel(torch.rand(20, 3), signs=(1, -1, 1), names=["strength", "price", "comfort"])
        >>> [label.get_text() for label in ax.get_xticklabels()]
        ['strength\\nmaximized', 'price\\nminimized', 'comfort\\nmaximized']
    """
    n = _require_table("values", values)
    if n < 2:
        raise ValueError(
            f"values should be `t x n` with n >= 2 tasks, got shape {tuple(values.shape)}. Plot a histogram."
        )
    way, labels = _resolve_signs(signs, n), resolve_names(names, n)
    Y = to_cpu(values)
    ax = get_axes(ax, figsize=(max(6.4, 1.5 * n), 4.8))
    low, high = Y.amin(dim=0), Y.amax(dim=0)
    worst, best = torch.where(way < 0, high, low), torch.where(way < 0, low, high)
    heights = torch.where(low < high, (Y - worst) / (best - worst), 0.5)
    on_front = is_non_dominated(Y * way, deduplicate=False)
    for line in heights[~on_front]:
        ax.plot(range(n), line, color="0.8", linewidth=0.8, zorder=1)
    for line in heights[on_front]:
        ax.plot(range(n), line, color=mpl.colormaps["viridis"](0.9 * line[0].item()), linewidth=1.5, zorder=2)
    for i in range(n):
        _draw_scale(ax, i, worst[i].item(), best[i].item())
    ax.set_xticks(range(n), [f"{label}\n{ROLES[sign]}" for label, sign in zip(labels, way.tolist(), strict=True)])
    ax.set_yticks([])
    ax.set(ylabel="better →", xlim=(-0.05, n - 0.6), ylim=(-0.03, 1.03))
    ax.spines[["left", "right", "top", "bottom"]].set_visible(False)
    for color, what, mask in ((mpl.colormaps["viridis"](0.45), "front", on_front), ("0.8", "dominated", ~on_front)):
        if mask.any():
            ax.plot([], [], color=color, label=f"{what} ({int(mask.sum())})")
    ax.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return ax


def _draw_scale(ax: Axes, place: int, worst: float, best: float) -> None:
    """Draw a vertical axis with numbers, from the worst to the best value."""
    ax.axvline(place, color="black", linewidth=0.8, zorder=3)
    low, high = min(worst, best), max(worst, best)
    ticks = [tick for tick in MaxNLocator(4).tick_values(low, high) if low <= tick <= high] if low < high else [low]
    for tick in ticks:
        height = (tick - worst) / (best - worst) if low < high else 0.5
        ax.plot(place, height, "_", color="black", zorder=3)
        box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.5}
        text = f"{tick:.4g}".replace("-", "−")
        ax.text(place, height, f"  {text}", va="center", fontsize="small", zorder=4, bbox=box)


def _require_table(name: str, values: object) -> int:
    """Check that values are ``N x n``, and return n."""
    values = require_tensor(name, values, "Pass one row per point.")
    if values.dim() != 2 or not values.numel():
        raise ValueError(
            f"{name} should be `N x n`, a column per task, got shape {tuple(values.shape)}. Pass one row per point."
        )
    require_finite(name, values)
    return values.shape[-1]


def _resolve_signs(signs: Sequence[int] | Tensor | None, num_tasks: int) -> Tensor:
    return torch.tensor([1] * num_tasks if signs is None else require_signs(signs, num_tasks)).double()


def _find_front(values: Tensor, way: Tensor) -> Tensor:
    """Return the rows that no other row dominates, sorted from the worst to the best first objective."""
    worth = values * way
    best = is_non_dominated(worth)
    return values[best][worth[best, 0].argsort()]
