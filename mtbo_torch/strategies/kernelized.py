"""Strategies that learn by kernel ridge regression: an upper confidence bound from a surrogate."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Generic, TypedDict, TypeVar

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.acquisition import require_bound, scalarized_ucb, weigh_by_feasibility
from mtbo_torch.checks import (
    name_of,
    require_broadcast,
    require_count,
    require_positive,
    require_probability,
    require_same_kind,
    require_tensor,
)
from mtbo_torch.confidence import RADII, mobo_radius
from mtbo_torch.intervals import Mixture
from mtbo_torch.kernels import (
    MultiTaskKernel,
    adapt_kernel,
    default_kernel,
    describe_kernel,
    num_tasks_of,
    require_takes,
    shared_parameter,
)
from mtbo_torch.models import ExactMultiTaskGP, MultiTaskGPModel
from mtbo_torch.models.learning import make_transforms
from mtbo_torch.regression import Belief, PointBelief, Regression
from mtbo_torch.scalarizations import ChebyshevScalarization, Scalarization, WeightDistribution
from mtbo_torch.space import DEFAULT_RAW_SAMPLES, DEFAULT_RESTARTS, Search, make_space
from mtbo_torch.strategies.base import Strategy
from mtbo_torch.strategies.goal import Goal
from mtbo_torch.strategies.learners import DEFAULT_ETA, KnownKernel, LearnedKernel
from mtbo_torch.surrogate import IDENTITY, Surrogate, Units

ModelT = TypeVar("ModelT", bound=MultiTaskGPModel)


class KernelOptions(TypedDict, total=False):
    """The arguments that all strategies with a kernel take; see :class:`MTKB`."""

    bounds: Tensor | None
    choices: Tensor | None
    norm_bound: float | Tensor | None
    noise_scale: float | None
    eta: float | None
    delta: float
    radius: str | float | Callable[[int], float]
    bound: str
    refit_every: int | None
    scalarization: type[Scalarization]
    ref_point: Tensor | None
    weights: WeightDistribution | None
    signs: Sequence[int] | Tensor | None
    constraints: tuple[Tensor, Tensor] | None
    repeat: bool
    seed: int | Sequence[int]
    num_restarts: int
    raw_samples: int


class KernelStrategy(Strategy, Generic[ModelT]):
    """An upper confidence bound from a surrogate; see :class:`MTKB` for the arguments."""

    # Whether a task is learned from the others, too.
    _shares_tasks = True
    _has_doubts = False

    def __init__(
        self,
        kernel: Kernel | int,
        *,
        bounds: Tensor | None = None,
        choices: Tensor | None = None,
        norm_bound: float | Tensor | None = None,
        noise_scale: float | None = None,
        eta: float | None = None,
        delta: float = 0.1,
        radius: str | float | Callable[[int], float] = "theory",
        bound: str = "norm",
        refit_every: int | None = None,
        scalarization: type[Scalarization] = ChebyshevScalarization,
        ref_point: Tensor | None = None,
        weights: WeightDistribution | None = None,
        signs: Sequence[int] | Tensor | None = None,
        constraints: tuple[Tensor, Tensor] | None = None,
        repeat: bool = True,
        seed: int | Sequence[int] = 0,
        num_restarts: int = DEFAULT_RESTARTS,
        raw_samples: int = DEFAULT_RAW_SAMPLES,
    ) -> None:
        space = make_space(type(self).__name__, bounds, choices, repeat, num_restarts, raw_samples)
        _require_scales(norm_bound, noise_scale, eta, delta)
        _require_radius(radius)
        if bound != "mixture":
            require_bound(bound)
        num_tasks = _count_tasks(kernel, refit_every)
        goal = Goal(num_tasks, space.points, scalarization, weights, ref_point, signs, constraints)
        super().__init__(space, goal, seed)
        _require_norm_per_trial(norm_bound, self.batch_shape)
        self.norm_bound, self.noise_scale, self.delta = norm_bound, noise_scale, delta
        self.radius_rule, self.bound, self.refit_every = radius, bound, refit_every
        self.eta = DEFAULT_ETA if eta is None and refit_every is None else eta
        if not isinstance(kernel, Kernel):
            kernel = default_kernel(num_tasks, space.num_inputs, self.batch_shape)
        self._kernel = deepcopy(kernel) if self._shares_tasks else _cut_ties(kernel)
        _require_batch(self._kernel, self.batch_shape)
        require_takes("kernel", deepcopy(self._kernel).to(space.points), space.points)
        if refit_every is None:
            self._learner = KnownKernel(self, self._kernel, self.eta)
        else:
            _require_own_parameters(self._kernel, self.batch_shape)
            self._learner = LearnedKernel(self, self._kernel, self.eta, refit_every)
        self._known = self._learner.start(num_tasks)
        self._mixture = self._make_mixture() if bound == "mixture" else None
        self._swept = self._sweep_to_track(self._surrogate)

    def _make_mixture(self) -> Mixture:
        is_known = self.norm_bound is not None and self.noise_scale is not None and self.refit_every is None
        if not is_known or self.radius_rule != "theory":
            raise ValueError(
                'bound should be "norm" or "ellipsoid" unless norm_bound, noise_scale and the kernel are known and the '
                f'radius is the theory\'s, got "mixture" for a {type(self).__name__} without. Pass these.'
            )
        assert self.norm_bound is not None
        assert self.noise_scale is not None
        return Mixture(self.norm_bound, self.noise_scale, self.delta)

    def _sweep_to_track(self, surrogate: Surrogate) -> Surrogate | None:
        """Return what is known with all regularizers, where points are tracked; elsewhere it is found in every ask."""
        if self._mixture is None:
            return None
        watched = self.space.watch(self._mixture.sweep(surrogate, grows=True))
        return None if watched.tracking is None else watched

    def _doubt(self, mixture: Mixture, swept: Surrogate) -> None:
        """Warn, once, if no function of the norm that is presumed explains what was told."""
        if self._has_doubts:
            return
        needed = mixture.smallest_norm(swept)
        given = torch.as_tensor(mixture.norm_bound).to(needed).expand_as(needed)
        if not (needed > given).any():
            return
        self._has_doubts, worst = True, (needed - given).argmax()
        warnings.warn(
            f"No function of norm {given.flatten()[worst]:.4g} explains the values told at the level delta = "
            f"{self.delta}. With this noise_scale, norm_bound should be at least {needed.flatten()[worst]:.4g}.",
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
        eta = self._known.noise.squeeze(-1) if self.eta is None else self.eta
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

    def covariance_norm(self, x: Tensor) -> Tensor:
        r"""Return :math:`\|\Gamma_t(x, x)\|`, ``(b) x q``, at ``(b) x q x d`` points, given what was told.

        With `refit_every` it is that of the standardized values.
        """
        d = self.space.num_inputs
        x = require_tensor("x", x, "Pass one row per point.")
        if x.dim() < 2 or x.shape[-1] != d:
            raise ValueError(
                f"x should be `(b) x q x d` with d = {d}, got shape {tuple(x.shape)}. Pass one row per point."
            )
        require_same_kind(("the search space", self.space.points), ("x", x))
        require_broadcast("The batches of x and of the trials", x.shape[:-2], self.batch_shape)
        with torch.no_grad():
            return self._surrogate.inside(x).norm

    @property
    def model(self) -> ModelT:
        """The posterior given everything told, as a BoTorch model in the user's units; signs are not turned."""
        units = self._surrogate.units
        transforms = {} if units.low is None else make_transforms(units)
        kernel, noise = deepcopy(self._known.kernel), self._known.noise
        model = self._make_model(self.train_X, self.train_Y, kernel, noise, **transforms).eval()
        # A model transforms its inputs itself.
        return model.adopt(replace(self._surrogate, units=replace(units, low=None, width=None), tracking=None))

    @property
    def _surrogate(self) -> Surrogate:
        return self._known.surrogate

    @abstractmethod
    def _make_model(self, X: Tensor, Y: Tensor, kernel: Kernel, eta: float | Tensor | None, **options: Any) -> ModelT:
        """Return the model of the strategy."""

    @abstractmethod
    def _fit_nothing(self, kernel: Kernel, noise: Tensor, X: Tensor, Y: Tensor) -> Regression:
        """Return the regression of the strategy before the first observation."""

    @abstractmethod
    def _grow(self, surrogate: Surrogate, X: Tensor, Y: Tensor) -> Surrogate:
        """Return what is known after ``(b) x q x d`` more points and ``(b) x q x n`` values."""

    @abstractmethod
    def _restore(
        self, started: Surrogate, X: Tensor, Y: Tensor, portions: list[int], memory: dict[str, Any]
    ) -> Surrogate:
        """Return what was known after the observations had been told in these portions, from what was at first."""

    def _start(self, kernel: Kernel, noise: Tensor, units: Units) -> Surrogate:
        no_X, no_Y = self._observed_X.rows[..., :0, :], self._observed_Y.rows[..., :0, :]
        return self.space.watch(Surrogate(self._fit_nothing(kernel, noise.unsqueeze(-2), no_X, no_Y), units))

    def _learn(self, X: Tensor, Y: Tensor, count: int) -> None:
        known = self._learner.learn(self._known, X, Y, count)
        if self._swept is not None:
            new_X, new_Y = (values[..., values.shape[-2] - count :, :].contiguous() for values in (X, Y))
            self._swept = self._swept.append(new_X, new_Y)
        self._known = known

    def _memory(self) -> dict[str, Any]:
        return self._learner.memory(self._known)

    def _recall(self, X: Tensor, Y: Tensor, portions: list[int], memory: dict[str, Any]) -> None:
        known = self._learner.recall(self._known, X, Y, portions, memory)
        swept = self._sweep_to_track(self._start(known.kernel, known.noise, IDENTITY))
        if swept is not None:
            for x, y in zip(X.split(portions, dim=-2), Y.split(portions, dim=-2), strict=True):
                swept = swept.append(x.contiguous(), y.contiguous())
        self._swept = swept
        self._known = known

    def _propose(self, weights: Tensor) -> Tensor:
        told, pending = self._observed_X.rows, self._pending_points()
        used = torch.cat([told, pending], dim=-2)
        self.space.require_room(used, weights.shape[-2])
        with torch.no_grad():
            surrogate, radius = self._surrogate, self.radius
            if self._mixture is not None:
                surrogate = self._swept or self._mixture.sweep(surrogate)
                radius = self._mixture.radii(surrogate)
                self._doubt(self._mixture, surrogate)
            if pending.shape[-2]:
                surrogate = surrogate.imagine(pending)
        for i, weight in enumerate(weights.unbind(dim=-2)):
            if i:
                with torch.no_grad():
                    surrogate = surrogate.imagine(used[..., -1:, :])
            used = torch.cat([used, self._search(surrogate, weight, radius, used)], dim=-2)
        return used[..., -weights.shape[-2] :, :]

    def _search(self, surrogate: Surrogate, weights: Tensor, radius: Tensor, used: Tensor) -> Tensor:
        """Return the best points ``(b) x 1 x d`` for ``(b) x k`` weights."""
        goal, units = self.goal, surrogate.units
        scalarization, worst = goal.scalarize(weights, units, self._observed_Y.rows)

        def acquire(belief: Belief) -> Tensor:
            value = scalarized_ucb(belief, scalarization, radius, self.bound)
            if self._mixture is not None and goal.constraints is not None:
                belief = PointBelief(belief.mean[0], belief.covariance[0])
            return weigh_by_feasibility(value, units.restore(belief), goal.constraints, worst)

        needs_variances = self.bound != "norm" or goal.constraints is not None or not scalarization.keeps_norm
        return self.space.search(Search(surrogate, acquire, used, self._generators, needs_variances))

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {
            "kernel": describe_kernel(self._kernel),
            "norm_bound": _to_plain(self.norm_bound),
            "noise_scale": _to_plain(self.noise_scale),
            "eta": _to_plain(self.eta),
            "delta": float(self.delta),
            "radius": _to_plain(self.radius_rule),
            "bound": self.bound,
            "refit_every": self.refit_every,
            **self.space.settings(),
        }


class ExactStrategy(KernelStrategy[ExactMultiTaskGP]):
    """A strategy on all observations; see :class:`MTKB` for the arguments."""

    def _make_model(
        self, X: Tensor, Y: Tensor, kernel: Kernel, eta: float | Tensor | None, **options: Any
    ) -> ExactMultiTaskGP:
        return ExactMultiTaskGP(X, Y, covar_module=kernel, eta=eta, allow_missing=self._can_miss_values, **options)

    def _fit_nothing(self, kernel: Kernel, noise: Tensor, X: Tensor, Y: Tensor) -> Regression:
        return adapt_kernel(kernel, Y.shape[-1]).fit(noise, X, Y)

    def _grow(self, surrogate: Surrogate, X: Tensor, Y: Tensor) -> Surrogate:
        return surrogate.append(X, Y)

    def _restore(
        self, started: Surrogate, X: Tensor, Y: Tensor, portions: list[int], memory: dict[str, Any]
    ) -> Surrogate:
        # Telling the observations again, in the same portions, repeats the same arithmetic.
        for x, y in zip(X.split(portions, dim=-2), Y.split(portions, dim=-2), strict=True):
            started = self._grow(started, x.contiguous(), y.contiguous())
        return started


def _cut_ties(kernel: Kernel) -> MultiTaskKernel:
    """Return the kernel of a strategy that learns each task separately."""
    if not isinstance(kernel, MultiTaskKernel):
        raise ValueError(
            f"kernel should be one of ours to be cut into independent tasks, got {type(kernel).__name__}. "
            "Pass for instance IndependentKernel([k1, k2])."
        )
    return kernel.independent()


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


def _require_batch(kernel: Kernel, batch_shape: torch.Size) -> None:
    if kernel.batch_shape not in ((), batch_shape):
        raise ValueError(
            f"kernel should have no batch shape, or that of the trials, {tuple(batch_shape)} (from seed), got "
            f"{tuple(kernel.batch_shape)}. Pass one kernel for all trials, or a seed for each kernel."
        )


def _require_own_parameters(kernel: Kernel, batch_shape: torch.Size) -> None:
    shared = shared_parameter(kernel, batch_shape)
    if shared is not None:
        raise ValueError(
            f"kernel should have the batch shape {tuple(batch_shape)} of the trials to be learned in each of them, got "
            f"a shared {shared}. Build its parts with batch_shape={batch_shape}, or pass the number of tasks."
        )


def _count_tasks(kernel: object, refit_every: int | None) -> int:
    if refit_every is not None:
        require_count("refit_every", refit_every, "Pass after how many observations to learn the kernel again.")
    if not isinstance(kernel, int) or isinstance(kernel, bool) or kernel < 1:
        return num_tasks_of("kernel", kernel)
    if refit_every is None:
        raise ValueError(
            f"kernel should be a multi-task kernel, got the number of tasks {kernel} without refit_every. "
            "Pass refit_every=1 to learn a kernel."
        )
    return kernel
