"""Plots of runs: regrets with their certificates and differences, hypervolumes, sizes of dictionaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import torch
from botorch.utils.multi_objective.pareto import is_non_dominated
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from mtbo_torch.checks import require_finite, require_ref_point, require_signs, require_tensor
from mtbo_torch.metrics import hypervolume
from mtbo_torch.plotting.axes import COLORS, add_legend, get_axes, pick_style, to_cpu

QUANTILES = (0.1, 0.9)
MOST_BANDS = 4


class Curve(NamedTuple):
    """A curve to draw: ``trials x rounds`` values."""

    label: str
    values: Tensor
    color: str
    style: str


def plot_regret(curves: Mapping[str, Tensor], ax: Axes | None = None, ylabel: str = "time-average regret") -> Axes:
    """Plot one regret curve per algorithm: the mean over trials, and the range of all but the extreme trials.

    The range is from the 10 % to the 90 % quantile. It is a band around each of up to four curves. More of them get a
    bar each, for their last round, to the right of all rounds. Triangles on the lower axis mark where a mean is zero,
    which a logarithmic axis cannot show.

    Args:
        curves: ``trials x rounds`` for each algorithm, by name.
        ax: The axes to draw on; a new figure by default.
        ylabel: The name of the regret.

    Example:
        >>> import torch
        >>> from mtbo_torch.metrics import average_regret
        >>> from mtbo_torch.plotting import plot_regret
        >>> ax = plot_regret({"random": average_regret(torch.rand(5, 100))})
        >>> print(ax.get_ylabel())
        time-average regret
        mean (band: 10 % to 90 % of trials)
    """
    _require_curves("curves", curves)
    ax = get_axes(ax)
    drawn = _list_curves(curves)
    _draw_curves(ax, drawn, ylabel)
    _mark_zeros(ax, drawn)
    add_legend(ax)
    return ax


def plot_certificate(regrets: Mapping[str, Tensor], certificates: Mapping[str, Tensor], ax: Axes | None = None) -> Axes:
    """Plot the time-average regret and, dashed, its certificate, on a logarithmic axis, as :func:`plot_regret` does.

    Args:
        regrets: ``trials x rounds`` for each algorithm, by name.
        certificates: The same for the certificates: :func:`~mtbo_torch.metrics.regret_certificate` divided by the
            number of the round.
        ax: The axes to draw on; a new figure by default.

    Example:
        >>> import torch
        >>> from mtbo_torch.plotting import plot_certificate
        >>> regret = 1 / torch.arange(1, 101).sqrt().expand(5, 100)
        >>> ax = plot_certificate({"MT-KB": regret}, {"MT-KB": 20 * regret})
        >>> ax.get_yscale()
        'log'
    """
    _require_curves("certificates", certificates)
    missing = sorted(certificates.keys() - regrets.keys()) if isinstance(regrets, Mapping) else list(certificates)
    if missing:
        raise ValueError(
            f"regrets should have a curve for each certificate, got none for {', '.join(map(str, missing))}. "
            "Use the same names for both."
        )
    _require_curves("regrets", regrets)
    ax = get_axes(ax)
    drawn = []
    for i, (name, curve) in enumerate(certificates.items()):
        color = COLORS[i % len(COLORS)]
        drawn += [
            Curve(f"{name}: certificate", curve, color, "--"),
            Curve(f"{name}: regret", regrets[name], color, "-"),
        ]
    ax.set_yscale("log")
    _draw_curves(ax, drawn, "time-average regret")
    _mark_zeros(ax, drawn)
    add_legend(ax)
    return ax


def plot_differences(
    curves: Mapping[str, Tensor],
    pairs: Sequence[tuple[str, str]],
    ax: Axes | None = None,
    xlabel: str = "time-average regret",
) -> Axes:
    """Plot how far the second curve of each pair ends above the first one, in the same trials.

    Trials differ more than algorithms do. Whether one algorithm is below another is told by their differences in the
    same trials: a bar that does not reach zero is a difference of more than two standard errors.

    Args:
        curves: ``trials x rounds`` for each algorithm, by name; trials of the same number belong together.
        pairs: The names of the curves to compare.
        ax: The axes to draw on; a new figure by default.
        xlabel: The name of what is compared.

    Example:
        >>> import torch
        >>> from mtbo_torch.plotting import plot_differences
        >>> curves = {"MT-KB": torch.rand(5, 100), "random": torch.rand(5, 100) + 1}
        >>> ax = plot_differences(curves, [("MT-KB", "random")])
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['random − MT-KB']
    """
    _require_curves("curves", curves)
    _require_pairs(curves, pairs)
    ax = get_axes(ax, figsize=(6.4, 1.6 + 0.5 * len(pairs)))
    ax.axvline(0, color="0.5", linewidth=1)
    for row, (first, second) in enumerate(pairs):
        gaps = to_cpu(curves[second][:, -1]) - to_cpu(curves[first][:, -1])
        ax.plot(gaps, torch.full_like(gaps, row + 0.22), ".", color="0.6", markeredgewidth=0)
        error = gaps.std() / len(gaps) ** 0.5 if len(gaps) > 1 else None
        ax.errorbar(gaps.mean(), row, xerr=None if error is None else 2 * error, fmt="o", color=COLORS[0], capsize=3)
    ax.set_yticks(range(len(pairs)), [f"{second} − {first}" for first, second in pairs])
    ax.set_ylim(len(pairs) - 0.4, -0.6)  # the first pair on top
    ax.set_xlabel(f"{xlabel} in the last round\nmean difference ± 2 standard errors; dots: trials")
    return ax


def plot_hypervolume(
    values: Tensor | Mapping[str, Tensor],
    ref_point: Tensor,
    ax: Axes | None = None,
    signs: Sequence[int] | Tensor | None = None,
) -> Axes:
    """Plot the hypervolume that the first values dominate, over their number, for one run or several.

    Args:
        values: ``(trials) x t x n``, in the order of the evaluations; or such values for each strategy, by name. With
            several trials, ranges are drawn as :func:`plot_regret` does.
        ref_point: ``k``, one value for each objective, in the units of the values.
        ax: The axes to draw on; a new figure by default.
        signs: 1 for a task that is maximized, -1 for one that is minimized, 0 for one that is no objective.

    Example:
        >>> import torch
        >>> from mtbo_torch.plotting import plot_hypervolume
        >>> ax = plot_hypervolume(torch.tensor([[2.0, 1.0], [1.0, 1.0], [1.0, 2.0]]), ref_point=torch.zeros(2))
        >>> ax.lines[0].get_ydata().tolist()
        [2.0, 2.0, 3.0]
    """
    runs = {"values": values} if isinstance(values, Tensor) else values
    if not isinstance(runs, Mapping) or not runs:
        raise ValueError(f"values should be a tensor, or a non-empty dict of tensors, got {values!r}. Pass train_Y.")
    curves = {}
    for name, given in runs.items():
        shown = "values" if runs is not values else f"values[{name!r}]"
        Y = require_tensor(shown, given, "Pass one row per evaluation.")
        if Y.dim() not in (2, 3) or not Y.numel():
            raise ValueError(
                f"{shown} should be `(trials) x t x n`, got shape {tuple(Y.shape)}. Pass one row per evaluation."
            )
        require_finite(shown, Y)
        Y = to_cpu(Y)
        way = torch.tensor([1] * Y.shape[-1] if signs is None else require_signs(signs, Y.shape[-1])).double()
        if way.count_nonzero() < 2:
            raise ValueError(
                f"{shown} should have at least two objectives, got {way.count_nonzero()}. Use plot_regret."
            )
        z = require_ref_point(ref_point, int(way.count_nonzero()), "objectives", "Pass one number per objective.")
        oriented, lowest = (Y * way)[..., way != 0], to_cpu(z) * way[way != 0]
        trials = oriented if Y.dim() == 3 else oriented.unsqueeze(0)
        curves[name] = torch.stack([_trace_hypervolume(trial, lowest) for trial in trials])
    ax = get_axes(ax)
    _draw_curves(ax, _list_curves(curves), "hypervolume")
    ax.set_xlabel("evaluations")
    if isinstance(values, Mapping):
        add_legend(ax)
    return ax


def _trace_hypervolume(Y: Tensor, ref_point: Tensor) -> Tensor:
    """Return ``t``, the hypervolume of the first row, the first two, and so on, of ``t x k`` values."""
    front, volume, volumes = Y[:0], 0.0, []
    for y in Y:
        if (y > ref_point).all() and not (front >= y).all(dim=-1).any():
            front = torch.cat([front, y.unsqueeze(0)])
            front = front[is_non_dominated(front)]
            volume = hypervolume(front, ref_point).item()
        volumes.append(volume)
    return Y.new_tensor(volumes)


def plot_dictionary(sizes: Mapping[str, Tensor], ax: Axes | None = None) -> Axes:
    """Plot the number of points in the dictionary after each round and, dotted, the number of observations.

    Args:
        sizes: ``trials x rounds`` for each strategy, by name; drawn as :func:`plot_regret` does.
        ax: The axes to draw on; a new figure by default.

    Example:
        >>> import torch
        >>> from mtbo_torch.plotting import plot_dictionary
        >>> ax = plot_dictionary({"MT-BKB": torch.arange(1, 101).log2().round().unsqueeze(0)})
    """
    _require_curves("sizes", sizes)
    ax = get_axes(ax)
    _draw_curves(ax, _list_curves(sizes), "points in the dictionary")
    rounds = max(curve.shape[-1] for curve in sizes.values())
    largest = max(float(to_cpu(curve).nan_to_num(nan=0).max()) for curve in sizes.values())
    ax.plot((1, rounds), (1, rounds), color="0.5", linestyle=":", label="all observations")
    ax.set_ylim(0, 1.15 * largest + 1)
    add_legend(ax)
    return ax


def _require_curves(name: str, curves: object) -> None:
    if not isinstance(curves, Mapping) or not curves:
        raise ValueError(f"{name} should be a non-empty dict of curves by name, got {curves!r}. Pass at least one.")
    for label, curve in curves.items():
        if isinstance(curve, Tensor) and not curve.is_complex():
            curve = curve.double()  # integers are allowed
        curve = require_tensor(f"{name}[{label!r}]", curve, "Pass one row per trial and one column per round.")
        if curve.dim() != 2 or curve.numel() == 0:
            raise ValueError(
                f"{name}[{label!r}] should be `trials x rounds`, got shape {tuple(curve.shape)}. "
                "Pass one row per trial and one column per round."
            )


def _require_pairs(curves: Mapping[str, Tensor], pairs: object) -> None:
    given: Sequence[object] = pairs if isinstance(pairs, Sequence) and not isinstance(pairs, str) else ()
    if not given or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in given):
        raise ValueError(f"pairs should be a non-empty list of pairs of names, got {pairs!r}. Pass at least one.")
    for first, second in cast("Sequence[tuple[str, str]]", given):
        for name in (first, second):
            if name not in curves:
                raise ValueError(f"pairs should have names of curves, got {name!r}. Use one of {list(curves)}.")
        if len(curves[first]) != len(curves[second]):
            raise ValueError(
                f"pairs should be of curves with the same trials, got {len(curves[first])} of {first!r} and "
                f"{len(curves[second])} of {second!r}. Leave out the trials that one of them lacks."
            )


def _list_curves(curves: Mapping[str, Tensor]) -> list[Curve]:
    return [Curve(name, curve, *pick_style(i)) for i, (name, curve) in enumerate(curves.items())]


def _draw_curves(ax: Axes, curves: Sequence[Curve], ylabel: str) -> None:
    """Draw means over trials, and the range of most trials: as bands of a few curves, as bars at the end of many."""
    rounds = max(curve.values.shape[-1] for curve in curves)
    ranged = [curve for curve in curves if len(curve.values) > 1]
    has_bars = len(ranged) > MOST_BANDS
    for label, values, color, style in curves:
        ax.plot(range(1, values.shape[-1] + 1), to_cpu(values).mean(dim=0), color=color, linestyle=style, label=label)
    ax.set(xlabel="round", ylabel=ylabel, xlim=(1, max(2, rounds)))
    if has_bars:
        _draw_bars(ax, ranged, rounds)
    else:
        for _, values, color, _ in ranged:
            low, high = _compute_range(values)
            ax.fill_between(range(1, len(low) + 1), low, high, color=color, alpha=0.2, linewidth=0)
    if ranged:
        ax.set_ylabel(f"{ylabel}\nmean ({'bars' if has_bars else 'band'}: 10 % to 90 % of trials)")


def _draw_bars(ax: Axes, curves: Sequence[Curve], rounds: int) -> None:
    """Draw the mean and the range of each curve's last round, next to each other beyond the last round."""
    start, end = 1.02 * rounds, 1.22 * rounds
    for i, (_, values, color, style) in enumerate(curves):
        place = start + (end - start) * (i + 1) / (len(curves) + 1)
        low, high = (bound[-1].item() for bound in _compute_range(values))
        ax.plot((place, place), (low, high), color=color, linestyle=style, linewidth=2)
        ax.plot(place, to_cpu(values)[:, -1].mean(), ".", color=color)
    ax.axvspan(start, end, color="0.95", zorder=0, linewidth=0)
    ticks = [int(tick) for tick in MaxNLocator(5, integer=True).tick_values(1, rounds) if 1 <= tick <= rounds]
    ax.set_xticks([*ticks, (start + end) / 2], [*map(str, ticks), "end"])
    ax.set_xlim(1, end)


def _compute_range(values: Tensor) -> tuple[Tensor, Tensor]:
    low, high = to_cpu(values).quantile(torch.tensor(QUANTILES, dtype=torch.double), dim=0)
    return low, high


def _mark_zeros(ax: Axes, curves: Sequence[Curve]) -> None:
    """Mark on the lower axis the first round in which a mean is zero."""
    label = "is 0"
    for _, values, color, _ in curves:
        [zeros] = (to_cpu(values).mean(dim=0) <= 0).nonzero(as_tuple=True)
        if len(zeros):
            [mark] = ax.plot(int(zeros[0]) + 1, 0, "v", color=color, label=label, transform=ax.get_xaxis_transform())
            mark.set(clip_on=False, zorder=3)
            label = "_"  # one in the legend
