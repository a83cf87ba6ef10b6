"""Strategies that choose by an upper confidence bound, and what their runs have proven."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.acquisition import require_bound, scalarized_bounds, scalarized_ucb, weigh_by_feasibility
from mtbo_torch.arrays import ArrayLike
from mtbo_torch.checks import name_of, require_positive, require_probability
from mtbo_torch.confidence import RADII, mobo_radius
from mtbo_torch.inputs import Inputs
from mtbo_torch.intervals import Mixture, find_bounds
from mtbo_torch.models import ExactMultiTaskGP
from mtbo_torch.regression import Belief, GrowingRows, PointBelief
from mtbo_torch.scalarizations import ChebyshevScalarization, Scalarization, WeightDistribution
from mtbo_torch.space import DEFAULT_MEMORY, DEFAULT_RAW_SAMPLES, DEFAULT_RESTARTS, Choices, Search, Space, make_space
from mtbo_torch.strategies.base import Observations
from mtbo_torch.strategies.goal import Goal
from mtbo_torch.strategies.modeling import ExactModelStrategy, ModelStrategy, ModelT, count_tasks
from mtbo_torch.strategies.proofs import bound_gain, find_dominated
from mtbo_torch.surrogate import IDENTITY, Surrogate

# Where nothing is guaranteed.
DEFAULT_RADIUS = 1.0
# Over how many weights the gain that is left is averaged.
WEIGHTS_OF_GAIN = 64


class KernelOptions(TypedDict, total=False):
    """The arguments that all strategies with a kernel take; see :class:`MTKB`."""

    bounds: Tensor | Inputs | None
    choices: ArrayLike | None
    norm_bound: float | Tensor | None
    noise_scale: float | None
    eta: float | None
    delta: float
    radius: str | float | Callable[[int], float] | None
    bound: str | None
    refit_every: int | None
    scalarization: type[Scalarization]
    ref_point: Tensor | None
    weights: WeightDistribution | None
    signs: Sequence[int] | Tensor | Mapping[str, str] | None
    constraints: tuple[Tensor, Tensor] | None
    repeat: bool
    memory: float
    seed: int | Sequence[int]
    num_restarts: int
    raw_samples: int


class KernelStrategy(ModelStrategy[ModelT]):
    """A strategy that chooses by an upper confidence bound; see :class:`MTKB` for the arguments."""

    # Whether all regularizers of a mixture are kept up to date in a box, too; otherwise every search there finds them.
    _sweeps_boxes = False
    _has_doubts = False

    def __init__(
        self,
        kernel: Kernel | int,
        *,
        bounds: Tensor | Inputs | None = None,
        choices: ArrayLike | None = None,
        norm_bound: float | Tensor | None = None,
        noise_scale: float | None = None,
        eta: float | None = None,
        delta: float = 0.1,
        radius: str | float | Callable[[int], float] | None = None,
        bound: str | None = None,
        refit_every: int | None = None,
        scalarization: type[Scalarization] = ChebyshevScalarization,
        ref_point: Tensor | None = None,
        weights: WeightDistribution | None = None,
        signs: Sequence[int] | Tensor | Mapping[str, str] | None = None,
        constraints: tuple[Tensor, Tensor] | None = None,
        repeat: bool = True,
        memory: float = DEFAULT_MEMORY,
        seed: int | Sequence[int] = 0,
        num_restarts: int = DEFAULT_RESTARTS,
        raw_samples: int = DEFAULT_RAW_SAMPLES,
    ) -> None:
        space = self._make_space(bounds, choices, repeat, num_restarts, raw_samples, memory)
        _require_scales(norm_bound, noise_scale, eta, delta)
        if radius is None:
            knows_enough = norm_bound is not None and noise_scale is not None and refit_every is None
            radius = "theory" if knows_enough else DEFAULT_RADIUS
        _require_radius(radius)
        if bound not in (None, "mixture"):
            require_bound(bound)
        num_tasks = count_tasks(kernel, refit_every)
        goal = Goal(num_tasks, space.points, scalarization, weights, ref_point, signs, constraints)
        self.norm_bound, self.noise_scale, self.delta, self.radius_rule = norm_bound, noise_scale, delta, radius
        self._mixture = self._make_mixture(bound, refit_every)
        self.bound = (bound or "norm") if self._mixture is None else "mixture"
        super().__init__(space, goal, seed, kernel, eta, refit_every)
        _require_norm_per_trial(norm_bound, self.batch_shape)
        # What each point asked for may cost, (b) x T x 1.
        self._gaps = GrowingRows.of(space.points.new_empty(*self.batch_shape, 0, 1))

    def _make_space(self, bounds: Tensor | Inputs | None, choices: ArrayLike | None, *options: Any) -> Space:
        return make_space(type(self).__name__, bounds, choices, *options)

    def _make_mixture(self, bound: str | None, refit_every: int | None) -> Mixture | None:
        """Return the mixture if it is asked for, or if nothing is and all that it presumes is given."""
        b, sigma = self.norm_bound, self.noise_scale
        applies = self._shares_tasks and refit_every is None and self.radius_rule == "theory"
        if b is not None and sigma is not None and sigma > 0 and applies and bound in (None, "mixture"):
            return Mixture(b, sigma, self.delta)
        if bound != "mixture":
            return None
        raise ValueError(
            'bound should be "norm" or "ellipsoid" unless norm_bound, noise_scale > 0 and the kernel are known, the '
            f'radius is the theory\'s, and tasks are learned together, got "mixture" for a {type(self).__name__} '
            "without. Pass these, or use MTKB or MTBKB."
        )

    def _doubt(self, needed: Tensor) -> None:
        """Warn, once, if no function of the norm that is presumed explains what was told, but one of those needed."""
        assert self.norm_bound is not None
        given = self.norm_bound.to(needed) if isinstance(self.norm_bound, Tensor) else self.norm_bound
        if self._has_doubts or not (needed > given).any():
            return
        lacking = needed - given
        self._has_doubts, worst = True, int(lacking.argmax())
        smallest = needed.flatten()[worst].item()
        presumed = smallest - lacking.flatten()[worst].item()
        warnings.warn(
            f"No function of norm {presumed:.4g} explains the values told at the level delta = {self.delta}. With this "
            f"noise_scale, norm_bound should be at least {smallest:.4g}.",
            stacklevel=4,
        )

    @abstractmethod
    def _compute_radius(self, norm_bound: float | Tensor, noise_scale: float | Tensor, eta: float | Tensor) -> Tensor:
        """Return the radius ``(b)`` of the strategy's theorem."""

    @property
    def radius(self) -> Tensor:
        """``(b)``, the confidence radius with which :meth:`ask` would choose now."""
        if self.radius_rule != "theory":
            return self.space.points.new_full(self.batch_shape, self._follow_rule())
        eta = self._known.noise.amax(dim=-1) if self.eta is None else self.eta
        sigma = eta**0.5 if self.noise_scale is None else self.noise_scale
        # The norm of the fitted function, or of one that is as high as its prior standard deviation at one point.
        b = self._surrogate.regression.mean_norm.clamp_min(1) if self.norm_bound is None else self.norm_bound
        return self._compute_radius(b, sigma, eta)

    def _follow_rule(self) -> float:
        rule = self.radius_rule
        if not callable(rule):
            return mobo_radius(self.num_observations + 1) if isinstance(rule, str) else float(rule)
        value = rule(self.num_observations)
        remedy = "Return the radius after t observations."
        require_positive("radius(t)", value, remedy, allow_zero=True)
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ValueError(f"radius(t) should be one number, got {value.tolist()}. {remedy}")
        return float(value)

    def intervals(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""Return a lower and an upper bound of every task, ``(b) x q x n`` each, given what was told.

        All of them hold, at all points and in all rounds at once, with probability :math:`1 - \delta`.

        Args:
            x: ``(b) x q x d`` points; all choices by default.
        """
        mixture = self._require_mixture("intervals")
        if x is None:
            self._require_choices("intervals", "Pass x.")
            x = self.space.points.expand(*self.batch_shape, *self.space.points.shape)
        self._require_inputs(x)
        with torch.no_grad():
            swept, radii, _ = self._judge(mixture)
            return find_bounds(swept.inside(x), radii)

    def _find_intervals(self, X: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, str]:
        if self._mixture is None:
            return super()._find_intervals(X, mean, variance)
        lower, upper = self.intervals(X)
        return lower[0], upper[0], f"all of them with probability {1 - self.delta:g}"

    def certificate(self) -> Tensor:
        r"""Return ``(b) x T``, the most that the points asked for so far can have cost: a bound of the regret.

        A point costs :math:`\max_x s_\lambda(f(x)) - s_\lambda(f(x_t))`, which by the intervals at the time is at most
        :math:`\max_x s_\lambda(u_t(x)) - s_\lambda(l_t(x_t))`; entry T is the sum of the first T. It holds with
        probability :math:`1 - \delta`, in a box as far as the search finds the largest bound.
        """
        self._require_mixture("certificate")
        return self._gaps.rows.squeeze(-1).cumsum(dim=-1)

    def dominated(self) -> Tensor:
        r"""Return which choices are certainly dominated, ``(b) x N``: another one is better in all objectives.

        That is so with probability :math:`1 - \delta`, for all choices and rounds at once.
        """
        return find_dominated(*self._bound_objectives("dominated"))

    def gain_left(self) -> Tensor:
        r"""Return ``(b)``, how much better the best choice can be than the best that is certain: a rule for stopping.

        It is :math:`\max_x s_\lambda(u(x)) - \max_x s_\lambda(l(x))` with the bounds of :meth:`intervals`, on average
        over 64 fixed draws of the weights. Once it is below what an evaluation is worth, stop.
        """
        lower, upper = self._bound_objectives("gain_left")
        fixed = torch.Generator().manual_seed(0)
        weights = self.weights.sample(WEIGHTS_OF_GAIN, generator=fixed, dtype=lower.dtype).to(lower)
        weights = weights.reshape(-1, *[1] * len(self.batch_shape), weights.shape[-1])
        weights = weights.expand(-1, *self.batch_shape, -1)
        scalarization = self.goal.scalarize_objectives(weights, IDENTITY, self._observed_Y.rows)
        return bound_gain(scalarization, lower, upper).mean(dim=0)

    def _bound_objectives(self, name: str) -> tuple[Tensor, Tensor]:
        """Return bounds of the objectives at all choices, ``(b) x N x k`` each."""
        self._require_mixture(name)
        self._require_choices(name, "In a box, ask the model of a grid of points.")
        one, other = (self.goal.orient(bound) for bound in self.intervals())
        return torch.minimum(one, other), torch.maximum(one, other)

    def _judge(self, mixture: Mixture) -> tuple[Surrogate, Tensor, Tensor]:
        """Return what is known with all regularizers, their radii ``A x (b)``, and the norm ``(b)`` the data need."""
        known = self._known.surrogate
        swept = known if known.regression.is_swept else mixture.sweep(known)
        return swept, *mixture.judge(swept)

    def _require_mixture(self, name: str) -> Mixture:
        if self._mixture is None:
            raise ValueError(
                f'{name} should be asked of a strategy with bound="mixture", got {self.bound!r}. Pass norm_bound, '
                "noise_scale and a kernel that is known to MTKB or MTBKB."
            )
        if name != "intervals" and self.goal.constraints is not None:
            raise ValueError(f"{name} should be asked of a strategy without constraints, got some. Use intervals().")
        return self._mixture

    def _require_choices(self, name: str, remedy: str) -> None:
        if self.space.name != "choices":
            raise ValueError(f"{name} should be asked of a strategy with choices, got {self.space.name}. {remedy}")

    def _sweep(self, nothing: Surrogate) -> Surrogate:
        if self._mixture is None or not (self._sweeps_boxes or isinstance(self.space, Choices)):
            return nothing
        return self._mixture.sweep(nothing, grows=True)

    def _memory(self) -> dict[str, Any]:
        memory = super()._memory()
        return memory if self._mixture is None else memory | {"gaps": self._gaps.rows.clone()}

    def _recall(self, told: Observations, portions: list[int], memory: dict[str, Any]) -> None:
        gaps = self._gaps
        if self._mixture is not None:
            rows = memory["gaps"].to(told.X)
            if rows.shape[:-2] != self.batch_shape or rows.shape[-1] != 1 or not (rows >= 0).all():
                raise ValueError(f"gaps of shape {tuple(rows.shape)}")
            gaps = GrowingRows.of(rows)
        super()._recall(told, portions, memory)
        self._gaps = gaps

    def _start_over(self, told: Observations) -> None:
        super()._start_over(told)
        # What the rounds so far can have cost followed from other values: nothing is certain of it any more.
        self._gaps = GrowingRows.of(torch.full_like(self._gaps.rows, torch.inf))

    def _propose(self, weights: Tensor, fixed: Mapping[int, float]) -> Tensor:
        used, pending = self._observed_X.rows, self._pending_points() if self._pending else None
        if pending is not None:  # there may be very many points told, which nobody wants to copy
            used = torch.cat([used, pending], dim=-2)
        self.space.require_room(used, weights.shape[-2], fixed)
        with torch.no_grad():
            if self._mixture is None:
                surrogate, radius = self._surrogate, self.radius
            else:
                surrogate, radius, needed = self._judge(self._mixture)
                self._doubt(needed)
            if pending is not None:
                surrogate = surrogate.imagine(pending)
        gaps, found = self._gaps, list[Tensor]()
        for weight in weights.unbind(dim=-2):
            if found:
                used = torch.cat([used, found[-1]], dim=-2)
                with torch.no_grad():
                    surrogate = surrogate.imagine(found[-1])
            search = self._plan(surrogate, weight, radius, used, fixed)
            point, values = self.space.search(search)
            if self._mixture is not None:
                gaps = gaps.extend(self._find_gap(search, point, values))
            found.append(point)
        self._gaps = gaps
        return found[0] if len(found) == 1 else torch.cat(found, dim=-2)

    def _plan(
        self, surrogate: Surrogate, weights: Tensor, radius: Tensor, used: Tensor, fixed: Mapping[int, float]
    ) -> Search:
        """Return the search for the best points for ``(b) x k`` weights; with a mixture, it reports bounds as well."""
        constraints, units, bound = self.goal.constraints, surrogate.units, self.bound
        scalarization, worst = self.goal.scalarize(weights, units, self._observed_Y.rows)
        searched = scalarization.for_search()

        def acquire(belief: Belief) -> Tensor:  # it travels to the workers of a cluster, and the strategy does not
            if bound != "mixture":
                bounds = [scalarized_ucb(belief, searched, radius, bound)]
            else:
                lower, upper = scalarized_bounds(belief, scalarization, radius)
                same = searched is scalarization
                bounds = [upper if same else scalarized_bounds(belief, searched, radius)[1], upper, lower]
                if constraints is not None:
                    belief = PointBelief(belief.mean[0], belief.covariance[0])
            bounds[0] = weigh_by_feasibility(bounds[0], units.restore(belief), constraints, worst)
            return torch.stack(bounds, dim=-1)

        needs_variances = bound != "norm" or constraints is not None or not scalarization.keeps_norm
        return Search([surrogate], acquire, used, self._generators, needs_variances, fixed=fixed)

    def _find_gap(self, search: Search, point: Tensor, values: Tensor) -> Tensor:
        """Return what a point that was found may cost at most, ``(b) x 1 x 1``."""
        [surrogate] = search.surrogates
        if surrogate.real is not None or not self.space.repeat or search.fixed:
            # Of all points, and with what was told alone.
            real = surrogate.real or surrogate
            _, values = self.space.search(replace(search, surrogates=[real], used=search.used[..., :0, :], fixed={}))
            with torch.no_grad():
                values = torch.cat([values[..., :2], search.acquire(real.inside(point))[..., 2:]], dim=-1)
        return (values[..., 1:2] - values[..., 2:]).clamp_min(0)

    def _describe_guarantee(self) -> str:
        """Return how optimistic the strategy is, and what that guarantees."""
        if self._mixture is not None:
            return f"its intervals hold with probability {1 - self.delta:g}, if norm_bound and noise_scale do"
        if self._is_proven:
            return f"its bounds hold with probability {1 - self.delta:g}"
        rule = self.radius_rule
        name = "a radius of your own" if callable(rule) else f"radius {rule}"
        return f"{name}, without a guarantee"

    @property
    def _is_proven(self) -> bool:
        """Whether the strategy's theorem holds, if what it is given is true."""
        knows_enough = self.norm_bound is not None and self.noise_scale is not None and self.refit_every is None
        return knows_enough and self.radius_rule == "theory"

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {
            "norm_bound": _to_plain(self.norm_bound),
            "noise_scale": _to_plain(self.noise_scale),
            "delta": float(self.delta),
            "radius": _to_plain(self.radius_rule),
            "bound": self.bound,
        }


class ExactStrategy(ExactModelStrategy, KernelStrategy[ExactMultiTaskGP]):
    """An upper confidence bound from all observations; see :class:`MTKB` for the arguments."""


def _to_plain(value: object) -> object:
    """Return a setting as what ``torch.load(weights_only=True)`` reads: functions by their name."""
    if value is None or isinstance(value, str):
        return value
    if callable(value):
        return name_of(value, "radius")
    return torch.as_tensor(value, dtype=torch.double).tolist()


def _require_scales(norm_bound: object, noise_scale: object, eta: object, delta: float) -> None:
    if norm_bound is not None:
        require_positive("norm_bound", norm_bound, "Pass a bound on the objective's RKHS norm.", allow_zero=True)
    if noise_scale is not None:
        require_positive("noise_scale", noise_scale, "Pass the noise's standard deviation.", allow_zero=True)
        if isinstance(noise_scale, Tensor) and noise_scale.dim():
            raise ValueError(
                f"noise_scale should be one number, got shape {tuple(noise_scale.shape)}. Pass the largest of them."
            )
    if eta is not None:
        require_positive("eta", eta, "Pass the regularizer, for instance 0.1.")
    if isinstance(eta, Tensor):
        raise ValueError(f"eta should be one number, got {eta.tolist()}. The theory has one regularizer for all tasks.")
    require_probability("delta", delta, "Pass the probability with which the bound may fail, for instance 0.1.")


def _require_norm_per_trial(norm_bound: object, batch_shape: torch.Size) -> None:
    if isinstance(norm_bound, Tensor) and norm_bound.shape not in ((), batch_shape):
        raise ValueError(
            f"norm_bound should be a number or of the shape {tuple(batch_shape)} of the trials (from seed), "
            f"got shape {tuple(norm_bound.shape)}. Pass one number for all."
        )


def _require_radius(radius: object) -> None:
    if callable(radius) or (isinstance(radius, str) and radius in RADII):
        return
    remedy = "Pass a function of the number of observations for a schedule of your own."
    if isinstance(radius, str):
        raise ValueError(f"radius should be a number, a function, or one of {RADII}, got {radius!r}. {remedy}")
    require_positive("radius", radius, remedy, allow_zero=True)
    if isinstance(radius, Tensor):
        raise ValueError(f"radius should be one number, got {radius.tolist()}. {remedy}")
