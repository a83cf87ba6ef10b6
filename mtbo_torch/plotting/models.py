"""Plots of models: what they predict, how well, and how their tasks are related."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from botorch.models.model import Model
from matplotlib.axes import Axes
from torch import Tensor

from mtbo_torch.checks import require_finite, require_positive, require_tensor, require_values
from mtbo_torch.intervals import Mixture
from mtbo_torch.models import MultiTaskGPModel
from mtbo_torch.plotting.axes import (
    COLORS,
    add_colorbar,
    add_legend,
    get_axes,
    get_grid,
    pick_style,
    require_model,
    require_single,
    resolve_names,
    set_name_ticks,
    to_cpu,
)
from mtbo_torch.strategies.explanation import Explanation

MOST_NUMBERED = 12


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
        X: ``N x 1``, in any order; or ``N x d`` points along a line, drawn over the first input.
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
    require_model(model)
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
    X = X[X[:, 0].argsort()]
    with torch.no_grad():
        posterior = model.posterior(X)
        mean = to_cpu(posterior.mean)
        if isinstance(radius, Mixture):
            assert isinstance(model, MultiTaskGPModel)
            lower, upper = (to_cpu(bound) for bound in model.intervals(X, radius))
        else:
            half = radius * to_cpu(posterior.variance.clamp_min(0).sqrt())
            lower, upper = mean - half, mean + half
    require_single(mean)
    labels = resolve_names(names, mean.shape[-1])
    if train_X is not None and train_Y is not None:
        _require_observations(train_X, train_Y, len(labels))
    ax = get_axes(ax)
    along = to_cpu(X[:, 0])
    for i, label in enumerate(labels):
        color, style = pick_style(i)
        ax.plot(along, mean[:, i], color=color, linestyle=style, label=label)
        ax.fill_between(along, lower[:, i], upper[:, i], color=color, alpha=0.2, linewidth=0)
    if train_X is not None and train_Y is not None:
        for i, values in enumerate(to_cpu(train_Y).unbind(dim=-1)):
            color = COLORS[i % len(COLORS)]
            ax.scatter(to_cpu(train_X[:, 0]), values, color=color, s=18, zorder=3, edgecolors="white")
    ax.set(xlabel="x", ylabel="value")
    if along.min() < along.max():
        ax.set_xlim(float(along.min()), float(along.max()))
    add_legend(ax)
    return ax


def plot_leave_one_out(
    train_Y: Tensor,
    mean: Tensor,
    covariance: Tensor,
    axes: Sequence[Axes] | None = None,
    names: Sequence[str] | None = None,
) -> list[Axes]:
    """Plot what a model predicts of each observation from all others against what was observed.

    The bars are two standard deviations. Of a model that fits, about 95 % of them reach the diagonal.

    Args:
        train_Y: ``t x n``, what was observed; NaN for values that are missing, which are left out.
        mean: ``t x n``, from :meth:`~mtbo_torch.ExactMultiTaskGP.leave_one_out`.
        covariance: ``t x n x n``, from there as well.
        axes: The n axes to draw on, one for each task; a new figure by default.
        names: The names of the n tasks.

    Example:
        >>> import torch
        >>> from mtbo_torch import ExactMultiTaskGP
        >>> from mtbo_torch.plotting import plot_leave_one_out
        >>> X = torch.linspace(0, 1, 9, dtype=torch.double).unsqueeze(-1)
        >>> Y = torch.cat([X.sin(), X.cos()], dim=-1)
        >>> axes = plot_leave_one_out(Y, *ExactMultiTaskGP(X, Y).leave_one_out(), names=["sine", "cosine"])
        >>> [ax.get_title() for ax in axes]
        ['sine', 'cosine']
    """
    observed = require_tensor("train_Y", train_Y, "Pass what the model was given.")
    if observed.dim() != 2 or not observed.numel():
        raise ValueError(f"train_Y should be `t x n`, got shape {tuple(observed.shape)}. Pass one row per observation.")
    t, n = observed.shape
    for name, value, shape in (("mean", mean, (t, n)), ("covariance", covariance, (t, n, n))):
        value = require_tensor(name, value, "Pass *model.leave_one_out().")
        if value.shape != shape:
            raise ValueError(
                f"{name} should be `{' x '.join(map(str, shape))}` (from train_Y), got shape {tuple(value.shape)}. "
                "Pass *model.leave_one_out() of the same observations."
            )
    require_values("train_Y", observed, allow_missing=True, hint="")
    labels = resolve_names(names, n)
    drawn = get_grid(axes, n)
    half = 2 * to_cpu(covariance).diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    for label, ax, y, center, bar in zip(
        labels, drawn, *(v.T for v in (to_cpu(observed), to_cpu(mean), half)), strict=True
    ):
        seen = ~y.isnan()
        y, center, bar = y[seen], center[seen], bar[seen]
        ends = torch.cat([y, center - bar, center + bar, y.new_zeros(0 if len(y) else 1)])
        margin = 0.05 * (ends.max() - ends.min()).item() or 1.0
        limits = (ends.min().item() - margin, ends.max().item() + margin)
        ax.plot(limits, limits, color="0.5", linewidth=1, zorder=1)
        inside = (y - center).abs() <= bar
        for color, what, mask in ((COLORS[0], "within", inside), (COLORS[1], "beyond", ~inside)):
            if mask.any():
                text = f"{what} 2 standard deviations: {int(mask.sum())}"
                options = {"fmt": "o", "markersize": 4, "elinewidth": 1, "color": color, "label": text}
                ax.errorbar(y[mask], center[mask], yerr=bar[mask], **options)
        ax.set(title=label, xlabel="observed", ylabel="predicted from the others", xlim=limits, ylim=limits)
        ax.legend(frameon=False, fontsize="small")
    return drawn


def plot_explanation(explanation: Explanation, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Plot what is expected of each task at a point, and how much that would change along each input.

    Args:
        explanation: From :meth:`Optimizer.explain` or that of another strategy.
        axes: The n axes to draw on, one for each task; a new figure by default.

    Example:
        >>> import torch
        >>> from mtbo_torch import Optimizer
        >>> from mtbo_torch.plotting import plot_explanation
        >>> optimizer = Optimizer(num_tasks=2, bounds=torch.tensor([[0.0], [1.0]], dtype=torch.double))
        >>> optimizer.tell([[0.1], [0.4], [0.9]], [[1.0, 2.0], [2.0, 1.0], [3.0, 0.0]])
        >>> len(plot_explanation(optimizer.explain([0.5])))
        2
    """
    if not isinstance(explanation, Explanation):
        raise ValueError(
            f"explanation should come from strategy.explain(), got {type(explanation).__name__}. Plot one at a time."
        )
    drawn = get_grid(axes, len(explanation.tasks))
    inputs = list(explanation.point)
    for j, (ax, task) in enumerate(zip(drawn, explanation.tasks, strict=True)):
        mean, lower, upper = (values[j].item() for values in (explanation.mean, explanation.lower, explanation.upper))
        ax.barh(inputs, explanation.effects[:, j].tolist(), color=COLORS[0])
        ax.invert_yaxis()
        ax.set(
            title=f"{task}: {mean:.3g}, from {lower:.3g} to {upper:.3g}", xlabel="change of the mean along the input"
        )
    return drawn


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
    labels = resolve_names(names, len(B))
    B = to_cpu(B)
    scale = B.diagonal().sqrt()
    correlation = B / (scale * scale.unsqueeze(-1))  # NaN, left blank, for a task without variance
    ax = get_axes(ax)
    image = ax.imshow(correlation.numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
    add_colorbar(ax, image, "correlation").set_ticks((-1, 0, 1))
    set_name_ticks(ax, "x", labels)
    set_name_ticks(ax, "y", labels)
    if len(B) <= MOST_NUMBERED:
        for i, row in enumerate(correlation.tolist()):
            for j, value in enumerate(row):
                text = "" if math.isnan(value) else f"{value:.2f}".replace("-", "−")
                ax.text(j, i, text, ha="center", va="center", color="white" if abs(value) > 0.6 else "black")
    return ax


def _require_observations(train_X: Tensor, train_Y: Tensor, num_tasks: int) -> None:
    for name, values, columns in (("train_X", train_X, 1), ("train_Y", train_Y, num_tasks)):
        values = require_tensor(name, values, "Pass one row per observation.")
        if values.dim() != 2 or values.shape[-1] != columns or len(values) != len(train_X):
            raise ValueError(
                f"{name} should be `{len(train_X)} x {columns}`, got shape {tuple(values.shape)}. Pass the "
                "observations of a function of one input, one column per task."
            )
