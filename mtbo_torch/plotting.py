"""Figures. Only this module imports matplotlib. Every function draws on an ``ax`` and returns it."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from botorch.models.model import Model
from botorch.utils.multi_objective.pareto import is_non_dominated
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from mtbo_torch.checks import require_finite, require_positive, require_tensor
from mtbo_torch.experiments.storage import write_atomically
from mtbo_torch.intervals import Mixture
from mtbo_torch.models import MultiTaskGPModel

# Okabe and Ito's palette, distinguishable with any kind of color vision, with gray in place of its yellow.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
STYLES = ("-", "--", ":")
MOST_BANDS = 3
MOST_NUMBERED = 12
MOST_IN_COLUMN = 12
MOST_LETTERS = 48  # next to each other below an axis


def plot_regret(curves: Mapping[str, Tensor], ax: Axes | None = None, ylabel: str = "time-average regret") -> Axes:
    """Plot the mean and standard deviation over trials of one regret curve per algorithm.

    The standard deviation is drawn as a band for up to three curves, else as error bars at some rounds. Below the mean
    it ends at a tenth of the mean, for logarithmic axes.

    Args:
        curves: ``trials x rounds`` for each algorithm, by name.
        ax: The axes to draw on; a new figure by default.
        ylabel: The name of the regret.

    Example:
        >>> import torch
        >>> from mtbo_torch.metrics import average_regret
        >>> from mtbo_torch.plotting import plot_regret
        >>> ax = plot_regret({"random": average_regret(torch.rand(5, 100))})
        >>> ax.get_ylabel()
        'time-average regret'
    """
    _require_curves("curves", curves)
    ax = _get_axes(ax)
    for i, (name, curve) in enumerate(curves.items()):
        color, style = COLORS[i % len(COLORS)], STYLES[i // len(COLORS) % len(STYLES)]
        _draw_mean(ax, curve, color, style, name)
        if len(curves) <= MOST_BANDS:
            _draw_band(ax, curve, color)
        else:
            _draw_bars(ax, curve, color, place=i / len(curves))
    ax.set(xlabel="round", ylabel=ylabel, xlim=(1, max(2, _count_rounds(curves))))
    _add_legend(ax)
    return ax


def plot_certificate(regrets: Mapping[str, Tensor], certificates: Mapping[str, Tensor], ax: Axes | None = None) -> Axes:
    """Plot the time-average regret and, dashed, its certificate, on a logarithmic axis.

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
    ax = _get_axes(ax)
    for i, (name, curve) in enumerate(certificates.items()):
        color = COLORS[i % len(COLORS)]
        for values, style, what in ((curve, "--", "certificate"), (regrets[name], "-", "regret")):
            _draw_mean(ax, values, color, style, f"{name}: {what}")
            _draw_band(ax, values, color)
    ax.set(xlabel="round", ylabel="time-average regret", yscale="log", xlim=(1, max(2, _count_rounds(certificates))))
    _add_legend(ax)
    return ax


def _get_axes(ax: object) -> Axes:
    if ax is None:
        return plt.subplots(layout="constrained")[1]
    if not isinstance(ax, Axes):
        raise ValueError(f"ax should be matplotlib axes, got {type(ax).__name__}. Leave it out for a new figure.")
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


def _count_rounds(curves: Mapping[str, Tensor]) -> int:
    return max(curve.shape[-1] for curve in curves.values())


def _add_legend(ax: Axes) -> None:
    """Add a legend with enough columns to fit into the height of the figure."""
    ax.legend(frameon=False, ncols=math.ceil(len(ax.get_legend_handles_labels()[0]) / MOST_IN_COLUMN) or 1)


def _draw_mean(ax: Axes, curve: Tensor, color: str, style: str, label: str) -> None:
    ax.plot(range(1, curve.shape[-1] + 1), _to_cpu(curve).mean(dim=0), color=color, linestyle=style, label=label)


def _draw_band(ax: Axes, curve: Tensor, color: str) -> None:
    mean, below, above = _compute_spread(curve)
    ax.fill_between(range(1, curve.shape[-1] + 1), mean - below, mean + above, color=color, alpha=0.2, linewidth=0)


def _draw_bars(ax: Axes, curve: Tensor, color: str, place: float) -> None:
    rounds = curve.shape[-1]
    step = max(1, rounds // 8)
    at = torch.arange(int(step * (0.5 + place)) - 1, rounds, step).clamp(0, rounds - 1)
    mean, below, above = (values[at] for values in _compute_spread(curve))
    ax.errorbar(at + 1, mean, yerr=torch.stack([below, above]), fmt="none", ecolor=color, capsize=2, alpha=0.7)


def _compute_spread(curve: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean and how far to draw below and above it; the lower end is positive, for a logarithmic axis."""
    curve = _to_cpu(curve)
    mean, sd = curve.mean(dim=0), curve.std(dim=0, correction=min(1, len(curve) - 1))
    return mean, torch.minimum(sd, 0.9 * mean.clamp_min(0)), sd


def plot_pareto(
    chosen: Tensor, attainable: Tensor | None = None, ax: Axes | None = None, signs: Sequence[int] = (1, 1)
) -> Axes:
    """Plot the chosen values of two objectives, and their Pareto front.

    Args:
        chosen: ``t x 2``, in the order of the rounds, which the colors show.
        attainable: ``N x 2``, all attainable values or just their front, drawn in the background.
        ax: The axes to draw on; a new figure by default.
        signs: 1 for an objective that is maximized, -1 for one that is minimized.

    Example:
        >>> import torch
        >>> from mtbo_torch.plotting import plot_pareto
        >>> angle = torch.linspace(0, 1.57, 100)
        >>> circle = torch.stack([angle.cos(), angle.sin()], dim=-1)
        >>> ax = plot_pareto(0.9 * circle[::10], attainable=circle)
    """
    _require_pairs("chosen", chosen)
    if attainable is not None:
        _require_pairs("attainable", attainable)
    if len(signs) != 2 or any(sign not in (1, -1) for sign in signs):
        raise ValueError(
            f"signs should be 1 (maximized) or -1 (minimized) for two objectives, got {signs!r}. Pass both."
        )
    ax = _get_axes(ax)
    if attainable is not None:
        possible = _to_cpu(attainable)
        front = _find_front(possible, signs)
        ax.scatter(possible[:, 0], possible[:, 1], color="0.85", s=6, zorder=1, label="attainable")
        ax.step(*front.T, where="pre", color=COLORS[1], alpha=0.5, zorder=2)
        ax.scatter(front[:, 0], front[:, 1], color=COLORS[1], s=12, zorder=2, label="true front")
    found = _to_cpu(chosen)
    ax.step(*_find_front(found, signs).T, where="pre", color=COLORS[0], linewidth=1, zorder=3, label="front found")
    rounds = range(1, len(found) + 1)
    x, y = found.unbind(dim=-1)
    dots = ax.scatter(x, y, c=rounds, cmap="viridis", s=24, zorder=4, edgecolors="white", linewidths=0.5)
    ax.figure.colorbar(dots, ax=ax, label="round", ticks=MaxNLocator(integer=True))
    ax.set(xlabel="task 1", ylabel="task 2")
    ax.legend(frameon=False)
    return ax


def _require_pairs(name: str, values: object) -> None:
    values = require_tensor(name, values, "Pass one row per point.")
    if values.dim() != 2 or values.shape[-1] != 2 or not len(values):
        raise ValueError(
            f"{name} should be `N x 2`, the values of two tasks, got shape {tuple(values.shape)}. Select two columns."
        )
    require_finite(name, values)


def _find_front(values: Tensor, signs: Sequence[int]) -> Tensor:
    """Return the rows that no other row dominates, sorted from the worst to the best first objective."""
    worth = values * values.new_tensor(signs)
    best = is_non_dominated(worth)
    return values[best][worth[best, 0].argsort()]


def plot_posterior(
    model: Model,
    X: Tensor,
    train_X: Tensor | None = None,
    train_Y: Tensor | None = None,
    ax: Axes | None = None,
    radius: float | Mixture = 2.0,
    names: Sequence[str] | None = None,
) -> Axes:
    r"""Plot each task's posterior mean and a band of ``radius`` standard deviations around it, in one color per task.

    .. math:: \mu_i(x) \pm \beta \sqrt{\Gamma_{ii}(x, x)}

    Args:
        model: Any BoTorch model.
        X: ``N x 1``, sorted; or ``N x d`` points along a line on which the first input increases.
        train_X: ``t x 1``, to draw the observations as well.
        train_Y: ``t x n``; NaN for missing values.
        ax: The axes to draw on; a new figure by default.
        radius: The half-width of the bands; or a :class:`~mtbo_torch.Mixture`, for a model of ours, to draw its
            intervals, in which all tasks lie everywhere with probability 1 - delta.
        names: The names of the n tasks.

    Example:
        >>> import torch
        >>> from mtbo_torch import ExactMultiTaskGP
        >>> from mtbo_torch.plotting import plot_posterior
        >>> X = torch.rand(5, 1, dtype=torch.double)
        >>> Y = torch.cat([X.sin(), X.cos()], dim=-1)
        >>> grid = torch.linspace(0, 1, 50, dtype=torch.double).unsqueeze(-1)
        >>> ax = plot_posterior(ExactMultiTaskGP(X, Y), grid, X, Y)
    """
    if not isinstance(model, Model):
        raise ValueError(f"model should be a BoTorch model, got {type(model).__name__}. Pass e.g. strategy.model.")
    X = require_tensor("X", X, "Pass one row per point.")
    if X.dim() != 2 or not len(X):
        raise ValueError(f"X should be `N x d`, got shape {tuple(X.shape)}. Pass one row per point.")
    if isinstance(radius, Mixture):
        if not isinstance(model, MultiTaskGPModel):
            raise ValueError(
                f"radius should be a number for a {type(model).__name__}, got a Mixture. Use a model of ours."
            )
    else:
        require_positive("radius", radius, "Pass the half-width of the bands in standard deviations.", allow_zero=True)
    if isinstance(radius, Tensor) and radius.dim():
        raise ValueError(f"radius should be one number, got shape {tuple(radius.shape)}. Pass the radius of one model.")
    if (train_X is None) != (train_Y is None):
        raise ValueError("train_X and train_Y should be given together, got one of them. Pass both, or neither.")
    with torch.no_grad():
        posterior = model.posterior(X)
        mean = _to_cpu(posterior.mean)
        if isinstance(radius, Mixture):
            assert isinstance(model, MultiTaskGPModel)
            lower, upper = (_to_cpu(bound) for bound in model.intervals(X, radius))
        else:
            half = radius * _to_cpu(posterior.variance.clamp_min(0).sqrt())
            lower, upper = mean - half, mean + half
    if mean.dim() != 2:
        raise ValueError(f"model should be a single one, got a batch of {tuple(mean.shape[:-2])}. Select one of them.")
    labels = _resolve_names(names, mean.shape[-1])
    if train_X is not None and train_Y is not None:
        _require_observations(train_X, train_Y, len(labels))
    ax = _get_axes(ax)
    along = _to_cpu(X[:, 0])
    for i, label in enumerate(labels):
        color = COLORS[i % len(COLORS)]
        ax.plot(along, mean[:, i], color=color, linestyle=STYLES[i // len(COLORS) % len(STYLES)], label=label)
        ax.fill_between(along, lower[:, i], upper[:, i], color=color, alpha=0.2, linewidth=0)
    if train_X is not None and train_Y is not None:
        for i, values in enumerate(_to_cpu(train_Y).unbind(dim=-1)):
            color = COLORS[i % len(COLORS)]
            ax.scatter(_to_cpu(train_X[:, 0]), values, color=color, s=18, zorder=3, edgecolors="white")
    ax.set(xlabel="x", ylabel="value")
    if along.min() < along.max():
        ax.set_xlim(float(along.min()), float(along.max()))
    _add_legend(ax)
    return ax


def _require_observations(train_X: Tensor, train_Y: Tensor, num_tasks: int) -> None:
    for name, values, columns in (("train_X", train_X, 1), ("train_Y", train_Y, num_tasks)):
        values = require_tensor(name, values, "Pass one row per observation.")
        if values.dim() != 2 or values.shape[-1] != columns or len(values) != len(train_X):
            raise ValueError(
                f"{name} should be `{len(train_X)} x {columns}`, got shape {tuple(values.shape)}. Pass the "
                "observations of a function of one input, one column per task."
            )


def plot_task_correlation(task_covar: Tensor, ax: Axes | None = None, names: Sequence[str] | None = None) -> Axes:
    r"""Plot the correlations :math:`B_{ij} / \sqrt{B_{ii} B_{jj}}` of the tasks as a heat map.

    Args:
        task_covar: ``n x n``, for instance ``model.covar_module.task_covar``.
        ax: The axes to draw on; a new figure by default.
        names: The names of the n tasks.

    Example:
        >>> import torch
        >>> from mtbo_torch.plotting import plot_task_correlation
        >>> ax = plot_task_correlation(torch.tensor([[4.0, -1.0], [-1.0, 1.0]]), names=["strength", "price"])
        >>> [text.get_text() for text in ax.texts]
        ['1.00', '−0.50', '−0.50', '1.00']
    """
    B = require_tensor("task_covar", task_covar, "Pass for instance kernel.task_covar.")
    if B.dim() != 2 or B.shape[0] != B.shape[1] or not B.numel():
        raise ValueError(f"task_covar should be `n x n`, got shape {tuple(B.shape)}. Pass the matrix of one kernel.")
    require_finite("task_covar", B)
    if (B.diagonal() < 0).any():
        raise ValueError("task_covar should have a non-negative diagonal, got a negative variance. Pass a covariance.")
    labels = _resolve_names(names, len(B))
    B = _to_cpu(B)
    scale = B.diagonal().sqrt()
    correlation = B / (scale * scale.unsqueeze(-1))  # NaN, left blank, for a task without variance
    ax = _get_axes(ax)
    image = ax.imshow(correlation.numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
    ax.figure.colorbar(image, ax=ax, label="correlation")
    if len(B) > MOST_NUMBERED:
        ax.set_xticks(range(len(B)), labels, rotation=90)
    elif len(B) * max(map(len, labels)) > MOST_LETTERS:
        ax.set_xticks(range(len(B)), labels, rotation=45, ha="right")
    else:
        ax.set_xticks(range(len(B)), labels)
    ax.set_yticks(range(len(B)), labels)
    if len(B) <= MOST_NUMBERED:
        for i, row in enumerate(correlation.tolist()):
            for j, value in enumerate(row):
                text = "" if math.isnan(value) else f"{value:.2f}".replace("-", "−")
                ax.text(j, i, text, ha="center", va="center", color="white" if abs(value) > 0.6 else "black")
    return ax


def plot_dictionary(sizes: Mapping[str, Tensor], ax: Axes | None = None) -> Axes:
    """Plot the number of points in the dictionary after each round and, dotted, the number of observations.

    Args:
        sizes: ``trials x rounds`` for each strategy, by name.
        ax: The axes to draw on; a new figure by default.

    Example:
        >>> import torch
        >>> from mtbo_torch.plotting import plot_dictionary
        >>> ax = plot_dictionary({"MT-BKB": torch.arange(1, 101).log2().round().unsqueeze(0)})
    """
    _require_curves("sizes", sizes)
    ax = _get_axes(ax)
    for i, (name, curve) in enumerate(sizes.items()):
        color, style = COLORS[i % len(COLORS)], STYLES[i // len(COLORS) % len(STYLES)]
        _draw_mean(ax, curve, color, style, name)
        _draw_band(ax, curve, color)
    rounds = _count_rounds(sizes)
    largest = max(float(_to_cpu(curve).nan_to_num(nan=0).max()) for curve in sizes.values())
    ax.plot((1, rounds), (1, rounds), color="0.5", linestyle=":", label="all observations")
    ax.set(xlabel="round", ylabel="points in the dictionary", xlim=(1, max(2, rounds)), ylim=(0, 1.15 * largest + 1))
    _add_legend(ax)
    return ax


def _resolve_names(names: Sequence[str] | None, num_tasks: int) -> list[str]:
    if names is None:
        return [f"task {i + 1}" for i in range(num_tasks)]
    if isinstance(names, str) or not isinstance(names, Sequence) or len(names) != num_tasks:
        raise ValueError(f"names should be one for each of the {num_tasks} tasks, got {names!r}. Pass a list of them.")
    return list(map(str, names))


def _to_cpu(values: Tensor) -> Tensor:
    """Return a detached copy in double precision on the CPU, which matplotlib can draw."""
    return values.detach().double().cpu()


def save_demo(curves: Mapping[str, Tensor], attainable: Tensor, chosen: Tensor, path: Path) -> None:
    """Save the figure of ``mtbo-torch demo``: regret over all trials, and the chosen values of one trial."""
    _require_curves("curves", curves)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    trials = len(next(iter(curves.values())))
    plot_regret(curves, left).set(title=f"{trials} functions, mean and standard deviation", ylim=(0, None))
    plot_pareto(chosen, attainable, right).set_title("one of them: the values chosen by MT-KB")
    _save(figure, [path])


def save_panel(
    title: str,
    ylabel: str,
    curves: Mapping[str, Tensor],
    certificates: Mapping[str, Tensor],
    is_guaranteed: bool,
    paths: Sequence[Path],
) -> None:
    """Save a panel of the paper: the regret of every algorithm and, next to it, the certificates if there are any."""
    _require_curves("curves", curves)
    count = 2 if certificates else 1
    figure, axes = plt.subplots(1, count, figsize=(6.5 * count, 4), layout="constrained", squeeze=False)
    plot_regret(curves, axes[0, 0], ylabel).set(title=title, yscale="log")
    axes[0, 0].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    if certificates:
        doubt = "" if is_guaranteed else " (b is not a bound here)"
        plot_certificate(curves, certificates, axes[0, 1]).set_title(f"certificates of Theorems 2 and 3{doubt}")
        axes[0, 1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    _save(figure, paths)


def _save(figure: Figure, paths: Sequence[Path]) -> None:
    try:
        for path in paths:
            suffix = path.suffix[1:] or "png"
            if suffix not in figure.canvas.get_supported_filetypes():
                raise ValueError(f"{path} should end as a picture does, got {suffix!r}. Use for instance .png or .svg.")
            picture = io.BytesIO()
            figure.savefig(picture, dpi=150, format=suffix)
            write_atomically(path, picture.getvalue())
    finally:
        plt.close(figure)
