"""The figures of the command line."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from mtbo_torch.experiments.storage import write_atomically
from mtbo_torch.plotting.fronts import plot_pareto
from mtbo_torch.plotting.runs import plot_certificate, plot_differences, plot_regret


def save_demo(curves: Mapping[str, Tensor], attainable: Tensor, chosen: Tensor, path: Path) -> None:
    """Save the figure of ``mtbo-torch demo``: regret over all trials, and the chosen values of one trial."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    try:
        plot_regret(curves, left).set(title=f"{len(next(iter(curves.values())))} functions", ylim=(0, None))
        plot_pareto(chosen, attainable, right).set_title("one of them: the values chosen by MT-KB")
        _save(figure, [path])
    finally:
        plt.close(figure)


def save_panel(
    title: str,
    ylabel: str,
    curves: Mapping[str, Tensor],
    certificates: Mapping[str, Tensor],
    is_guaranteed: bool,
    pairs: Sequence[tuple[str, str]],
    paths: Sequence[Path],
    yscale: str = "log",
) -> None:
    """Save a panel: all curves, certificates if there are any, and paired differences."""
    parts = ["regret", "certificates"] if certificates else ["regret"]
    heights = [4.0, 1.0 + 0.35 * len(pairs)] if pairs else [4.0]
    figure = plt.figure(figsize=(6.5 * len(parts), sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), len(parts), height_ratios=heights)
    axes = {part: figure.add_subplot(grid[0, i]) for i, part in enumerate(parts)}
    try:
        plot_regret(curves, axes["regret"], ylabel).set(title=title, yscale=yscale)
        if certificates:
            doubt = "" if is_guaranteed else " (b is not a bound here)"
            ax = plot_certificate(curves, certificates, axes["certificates"])
            ax.set_title(f"certificates{doubt}")
        for part in parts:
            axes[part].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        if pairs:
            plot_differences(curves, pairs, figure.add_subplot(grid[1, :]), ylabel)
        _save(figure, paths)
    finally:
        plt.close(figure)


def _save(figure: Figure, paths: Sequence[Path]) -> None:
    for path in paths:
        suffix = path.suffix[1:] or "png"
        if suffix not in figure.canvas.get_supported_filetypes():
            raise ValueError(f"{path} should end as a picture does, got {suffix!r}. Use for instance .png or .svg.")
        picture = io.BytesIO()
        figure.savefig(picture, dpi=150, format=suffix)
        write_atomically(path, picture.getvalue())
