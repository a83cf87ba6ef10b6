"""What all plots share: axes, colors, names, legends and color bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.pyplot as plt
from botorch.models.model import Model
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from torch import Tensor

# Okabe and Ito's palette, distinguishable with any kind of color vision, with gray in place of its yellow.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
STYLES = ("-", "--", ":")
MOST_IN_COLUMN = 12
MOST_IN_ROW = 3
BAR_ROOM = 1.0  # inches, for a color bar with its numbers and its name
LETTERS_PER_INCH = 12
MOST_SLANTED = 12


def get_axes(ax: object, figsize: tuple[float, float] | None = None) -> Axes:
    """Return the axes given, or those of a new figure."""
    if ax is None:
        return plt.subplots(figsize=figsize, layout="constrained")[1]
    if not isinstance(ax, Axes):
        raise ValueError(f"ax should be matplotlib axes, got {type(ax).__name__}. Leave it out for a new figure.")
    return ax


def get_grid(axes: object, count: int) -> list[Axes]:
    """Return `count` axes, one for each task: those given, or those of a new figure."""
    if axes is None:
        columns = min(count, MOST_IN_ROW)
        rows = math.ceil(count / columns)
        figure = plt.figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained")
        return [figure.add_subplot(rows, columns, i + 1) for i in range(count)]
    given: list[Any] = list(getattr(axes, "flat", axes)) if isinstance(axes, Iterable) else [axes]
    if len(given) != count or not all(isinstance(ax, Axes) for ax in given):
        raise ValueError(
            f"axes should be one for each of the {count} tasks, got {len(given)} of type "
            f"{', '.join(sorted({type(ax).__name__ for ax in given}))}. Leave them out for a new figure."
        )
    return given


def pick_style(i: int) -> tuple[str, str]:
    """Return the color and the line style of the curve with this number."""
    return COLORS[i % len(COLORS)], STYLES[i // len(COLORS) % len(STYLES)]


def add_legend(ax: Axes) -> None:
    """Add a legend with enough columns to fit into the height of the figure."""
    ax.legend(frameon=False, ncols=math.ceil(len(ax.get_legend_handles_labels()[0]) / MOST_IN_COLUMN) or 1)


def add_colorbar(ax: Axes, colors: ScalarMappable, label: str) -> Colorbar:
    """Add a color bar that takes all its room from the axes, not from what is next to them."""
    width = ax.get_window_extent().width / ax.figure.dpi
    return ax.figure.colorbar(colors, ax=ax, label=label, fraction=min(0.5, BAR_ROOM / width), pad=0.03, aspect=25)


def set_name_ticks(ax: Axes, which: str, names: Sequence[str]) -> None:
    """Put names at 0, 1, ... of the axis `which`, "x" or "y"; below it turned so far that none meets the next."""
    axis, places = getattr(ax, f"{which}axis"), range(len(names))
    room = ax.get_window_extent().width / ax.figure.dpi - BAR_ROOM
    if which == "y" or len(names) * max(map(len, names)) <= LETTERS_PER_INCH * room:
        axis.set_ticks(places, names)
    elif len(names) <= MOST_SLANTED:
        axis.set_ticks(places, names, rotation=45, ha="right")
    else:
        axis.set_ticks(places, names, rotation=90)


def require_model(model: object) -> None:
    """Refuse what is no BoTorch model."""
    if not isinstance(model, Model):
        raise ValueError(f"model should be a BoTorch model, got {type(model).__name__}. Pass e.g. strategy.model.")


def require_single(mean: Tensor) -> None:
    """Refuse the means of a batch of models."""
    if mean.dim() != 2:
        raise ValueError(f"model should be a single one, got a batch of {tuple(mean.shape[:-2])}. Select one of them.")


def resolve_names(names: Sequence[str] | None, count: int, argument: str = "names", prefix: str = "task ") -> list[str]:
    """Return the names given, or numbers after the prefix."""
    if names is None:
        return [f"{prefix}{i + 1}" for i in range(count)]
    if isinstance(names, str) or not isinstance(names, Sequence) or len(names) != count:
        kind = "tasks" if argument == "names" else "inputs"
        raise ValueError(
            f"{argument} should be one for each of the {count} {kind}, got {names!r}. Pass a list of them."
        )
    return list(map(str, names))


def to_cpu(values: Tensor) -> Tensor:
    """Return a detached copy in double precision on the CPU, which matplotlib can draw."""
    return values.detach().double().cpu()
