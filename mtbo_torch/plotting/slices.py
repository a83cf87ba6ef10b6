"""Plots of a model along one or two inputs, in the units and the words of the inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from botorch.models.model import Model
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from mtbo_torch.checks import require_bounds, require_finite, require_tensor
from mtbo_torch.inputs import Category, Input, Inputs, Integer, Ordered, Real
from mtbo_torch.plotting.axes import (
    COLORS,
    add_colorbar,
    get_grid,
    require_model,
    require_single,
    resolve_names,
    set_name_ticks,
    to_cpu,
)

MOST_FIXED = 4
MOST_LISTED = 20  # numbers that are drawn one by one
POINTS_PER_INPUT = {1: 101, 2: 41}


def plot_slice(
    model: Model,
    bounds: Tensor | Inputs,
    inputs: Sequence[int | str],
    at: Tensor | Mapping[str, Any] | None = None,
    axes: Sequence[Axes] | None = None,
    names: Sequence[str] | None = None,
    input_names: Sequence[str] | None = None,
) -> list[Axes]:
    """Plot what a model says of each task as one or two inputs vary and the others are fixed.

    One input gives each task's mean with a band, or bars, of two standard deviations, two inputs a map of its mean. A
    dotted line or a star shows the fixed point. Described inputs are shown in the user's units: on a logarithmic axis,
    as whole numbers, by the names of categories and ordered values.

    Args:
        model: Any BoTorch model.
        bounds: ``2 x d``, the range of each input; or :class:`~mtbo_torch.Inputs`, such as ``experiment.inputs``.
        inputs: The one or two inputs that vary: their names, or their numbers from 0 to d - 1.
        at: The point that has the fixed values, such as one of the front: ``d``, or with :class:`~mtbo_torch.Inputs` a
            row of a table, or a dictionary. The middle of the bounds by default.
        axes: The n axes to draw on, one for each task; a new figure by default.
        names: The names of the n tasks.
        input_names: The names of the d inputs; those of :class:`~mtbo_torch.Inputs` by default.

    Example:
        >>> import torch
        >>> from mtbo_torch import Category, ExactMultiTaskGP, Inputs, Real
        >>> from mtbo_torch.plotting import plot_slice
        >>> inputs = Inputs({"loading": Real(1e-3, 1, log=True), "catalyst": Category("Pd", "Ni")})
        >>> X = inputs.encode([{"loading": 0.01, "catalyst": "Pd"}, {"loading": 0.5, "catalyst": "Ni"}])
        >>> model = ExactMultiTaskGP(X, torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.double))
        >>> axes = plot_slice(model, inputs, ["loading"], at={"loading": 0.1, "catalyst": "Ni"})
        >>> maps = plot_slice(model, inputs, ["loading", "catalyst"], names=["yield", "cost"])
        >>> [(ax.get_title(), ax.get_xlabel(), ax.get_xscale()) for ax in maps]
        [('yield', 'loading', 'log'), ('cost', 'loading', 'log')]
    """
    require_model(model)
    described = bounds if isinstance(bounds, Inputs) else None
    box = bounds.bounds if isinstance(bounds, Inputs) else bounds
    require_bounds(box)
    d = box.shape[-1]
    if input_names is None and described is not None:
        input_names = described.names
    labels = resolve_names(input_names, d, "input_names", "x_")
    varied = _require_inputs(inputs, labels)
    fixed = _find_fixed(at, box, described)
    kinds: list[Input | None] = [None] * d if described is None else list(described.kinds.values())
    lines = [_make_line(labels[i], kinds[i], box[:, i], POINTS_PER_INPUT[len(varied)]) for i in varied]
    shape = [len(line.codes) for line in lines]
    X = fixed.repeat(math.prod(shape), 1)
    X[:, varied] = torch.cartesian_prod(*(line.codes for line in lines)).reshape(-1, len(varied)).to(X)
    with torch.no_grad():
        require_single(model.posterior(X[:1]).mean)
        posterior = model.posterior(X.unsqueeze(-2))  # each point on its own: no covariances between them
        mean, sd = (to_cpu(v).squeeze(-2) for v in (posterior.mean, posterior.variance.clamp_min(0).sqrt()))
    tasks = resolve_names(names, mean.shape[-1])
    drawn = get_grid(axes, len(tasks))
    here = [line.show(to_cpu(fixed[[i]])).item() for line, i in zip(lines, varied, strict=True)]
    for i, (task, ax) in enumerate(zip(tasks, drawn, strict=True)):
        if len(lines) == 1:
            _draw_line(ax, lines[0], mean[:, i], sd[:, i], COLORS[i % len(COLORS)])
            ax.axvline(here[0], color="0.5", linestyle=":", zorder=1)
        else:
            _draw_map(ax, lines, mean[:, i].reshape(shape).T)
            ax.plot(*here, "*", color="white", markeredgecolor="black", markersize=12)
        ax.set_title(task)
    others = [f"{labels[i]} = {_format(fixed, i, described)}" for i in range(d) if i not in varied]
    if axes is None and others:
        more = ["..."] if len(others) > MOST_FIXED else []
        drawn[0].figure.suptitle(f"at {', '.join(others[:MOST_FIXED] + more)}", fontsize="medium")
    return drawn


@dataclass(frozen=True)
class _Line:
    """The values of one input in a plot.

    Attributes:
        name: The name of the input.
        kind: What it is, if that was described.
        codes: ``V``, the numbers inside.
        is_listed: Whether these are all that are allowed, and few.
    """

    name: str
    kind: Input | None
    codes: Tensor
    is_listed: bool

    @property
    def is_log(self) -> bool:
        return isinstance(self.kind, Real) and self.kind.log

    @property
    def words(self) -> list[str]:
        """What stands at the axis instead of numbers: the names of categories or ordered values."""
        if not isinstance(self.kind, Category | Ordered):
            return []
        return list(map(str, self.kind.values))

    def show(self, codes: Tensor) -> Tensor:
        """Return where ``N`` numbers inside are drawn: in the user's units, or one after another if they have names."""
        if self.words:
            return (codes.unsqueeze(-1) - self.codes).abs().argmin(dim=-1).to(codes)
        return 10**codes if self.is_log else codes

    @property
    def edges(self) -> Tensor:
        """``V + 1``, where the cells of a map begin and end: half-way between the values, and with the range."""
        if self.is_listed:
            places = self.show(self.codes)
            return torch.cat([places - 0.5, places[-1:] + 0.5])
        middles = (self.codes[1:] + self.codes[:-1]) / 2
        return self.show(torch.cat([self.codes[:1], middles, self.codes[-1:]]))

    def dress(self, ax: Axes, which: str) -> None:
        """Name the axis `which`, "x" or "y", and give it this input's scale and ticks."""
        ax.set(**{f"{which}label": self.name})
        if self.is_log:
            ax.set(**{f"{which}scale": "log"})
        elif self.words:
            set_name_ticks(ax, which, self.words)
        elif isinstance(self.kind, Integer):
            getattr(ax, f"{which}axis").set_major_locator(MaxNLocator(integer=True))
        if not self.is_listed:
            ends = self.show(self.codes[[0, -1]]).tolist()
            ax.set(**{f"{which}lim": ends})


def _make_line(name: str, kind: Input | None, bounds: Tensor, count: int) -> _Line:
    allowed = None if kind is None else kind.codes
    if allowed is None or kind is None:
        low, high = bounds.tolist()
        return _Line(name, kind, torch.linspace(low, high, count, dtype=torch.double), False)
    codes = torch.tensor(allowed, dtype=torch.double)
    if len(codes) <= MOST_LISTED or not isinstance(kind, Integer):
        return _Line(name, kind, codes, True)
    places = torch.linspace(0, len(codes) - 1, min(count, len(codes)), dtype=torch.double).round().long()
    return _Line(name, kind, codes[places], False)


def _draw_line(ax: Axes, line: _Line, mean: Tensor, sd: Tensor, color: str) -> None:
    along = line.show(line.codes)
    if line.is_listed:
        ax.errorbar(along, mean, yerr=2 * sd, fmt="o", color=color, capsize=4)
        ax.margins(x=0.5 / len(along))
    else:
        ax.plot(along, mean, color=color)
        ax.fill_between(along, mean - 2 * sd, mean + 2 * sd, color=color, alpha=0.2, linewidth=0)
    line.dress(ax, "x")
    ax.set_ylabel("mean ± 2 standard deviations")


def _draw_map(ax: Axes, lines: Sequence[_Line], surface: Tensor) -> None:
    """Draw a map of ``V_2 x V_1`` values."""
    in_cells = any(line.is_listed for line in lines)
    places = [(line.edges if in_cells else line.show(line.codes)).numpy() for line in lines]
    shading: Literal["flat", "gouraud"] = "flat" if in_cells else "gouraud"
    add_colorbar(ax, ax.pcolormesh(*places, surface.numpy(), shading=shading, rasterized=True), "mean")
    for line, which in zip(lines, "xy", strict=True):
        line.dress(ax, which)


def _find_fixed(at: Any, box: Tensor, described: Inputs | None) -> Tensor:
    """Return the point ``d`` with the fixed values; by default the allowed one next to the middle."""
    if at is None:
        middle = box.mean(dim=0)
        for place, codes in ({} if described is None else described.codes).items():
            middle[place] = min(codes, key=lambda code: abs(code - middle[place].item()))
        return middle
    if described is not None and hasattr(at, "keys"):
        return described.encode([dict(at)])[0]
    point = require_tensor("at", at, "Pass one number per input.")
    d = box.shape[-1]
    if point.shape != (d,):
        raise ValueError(
            f"at should be `d` with d = {d} inputs (from bounds), got shape {tuple(point.shape)}. Pass a point."
        )
    require_finite("at", point)
    return point.to(box)


def _format(point: Tensor, place: int, described: Inputs | None) -> str:
    value = point[place].item() if described is None else list(described.decode(point.unsqueeze(0))[0].values())[place]
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _require_inputs(inputs: object, labels: Sequence[str]) -> list[int]:
    """Return the places of one or two inputs."""
    given = list(inputs) if isinstance(inputs, Sequence) and not isinstance(inputs, str) else []
    places = [labels.index(i) if i in labels else i for i in given]
    are_places = all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < len(labels) for i in places)
    if len(places) not in (1, 2) or not are_places or len(set(places)) < len(places):
        raise ValueError(
            f"inputs should be one or two different numbers from 0 to {len(labels) - 1}, or names "
            f"({', '.join(labels)}), got {inputs!r}. Pass for instance [{labels[0]!r}]."
        )
    return places
