"""Strategies that learn by kernel ridge regression: the search for the next point, and what is remembered."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Generic, TypeVar

import torch
from botorch.exceptions.errors import ModelFittingError
from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.acquisition import ScalarizedMultiTaskUCB, constraints_of, on_device, require_bound, scalarized_ucb
from mtbo_torch.checks import (
    require_broadcast,
    require_count,
    require_finite,
    require_positive,
    require_probability,
    require_ref_point,
    require_same_kind,
    require_tensor,
)
from mtbo_torch.confidence import RADII, mobo_radius
from mtbo_torch.kernels import MultiTaskKernel, learned_kernel, num_tasks_of, require_takes, shared_parameter
from mtbo_torch.learning import Units, learn_kernel
from mtbo_torch.models import ExactMultiTaskGP, MultiTaskGPModel
from mtbo_torch.noise import set_noise
from mtbo_torch.optimization import maximize
from mtbo_torch.regression import Followed, GrowingRows, Regression
from mtbo_torch.scalarizations import (
    ChebyshevScalarization,
    HypervolumeScalarization,
    ObjectiveScalarization,
    Scalarization,
    WeightDistribution,
)
from mtbo_torch.strategies.base import Strategy, search_space

# Where none is given, and until it is learned.
DEFAULT_ETA = 0.1

ModelT = TypeVar("ModelT", bound=MultiTaskGPModel)
State = Followed | Regression


class KernelStrategy(Strategy, Generic[ModelT]):
    """An upper confidence bound from a model; see :class:`MTKB` for the arguments.

    What has been learned is one immutable object, ``_state``: a regression, followed at the choices if there are
    any. :meth:`tell` replaces it at the very end, so a refused call changes nothing.

    A strategy that learns its kernel works in units of its own, ``_units``, which change with every refit; the
    observations are then kept beside the regression, in the user's.
    """

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
        num_restarts: int = 10,
        raw_samples: int = 256,
    ) -> None:
        space = search_space(type(self).__name__, bounds, choices)
        if not isinstance(repeat, bool) or (choices is None and not repeat):
            raise ValueError(
                f"repeat should be True, or False on choices, got {repeat!r}{' on bounds' if choices is None else ''}. "
                "False asks for each choice once."
            )
        if norm_bound is not None:
            require_positive("norm_bound", norm_bound, "Pass a bound of the objective's RKHS norm.", allow_zero=True)
        if noise_scale is not None:
            require_positive("noise_scale", noise_scale, "Pass the noise's standard deviation.", allow_zero=True)
            if isinstance(noise_scale, Tensor) and noise_scale.dim():
                raise ValueError(
                    f"noise_scale should be one number, got shape {tuple(noise_scale.shape)}. Pass the largest of them."
                )
        if eta is not None:
            _require_eta(eta)
        elif refit_every is None:
            eta = DEFAULT_ETA
        _require_radius(radius)
        if refit_every is not None:
            require_count("refit_every", refit_every, "Pass after how many observations to learn the kernel again.")
        require_probability("delta", delta, "Pass the probability with which the bound may fail, for instance 0.1.")
        require_count("num_restarts", num_restarts, "Pass for instance 10.")
        require_count("raw_samples", raw_samples, "Pass for instance 256.")
        require_bound(bound)
        num_tasks = _num_tasks(kernel, refit_every)
        self._objectives = None if signs is None else _objectives(signs, num_tasks).to(space)
        num_objectives = num_tasks if self._objectives is None else len(self._objectives)
        self.norm_bound, self.noise_scale, self.eta, self.delta = norm_bound, noise_scale, eta, delta
        self.radius_rule, self.bound, self.refit_every = radius, bound, refit_every
        self.repeat, self.num_restarts, self.raw_samples = repeat, num_restarts, raw_samples
        super().__init__(num_tasks, bounds, choices, scalarization, weights, seed, num_objectives)
        self._first_equal = None if repeat else _first_equals(space)
        if isinstance(norm_bound, Tensor) and norm_bound.shape not in ((), self.batch_shape):
            raise ValueError(
                f"norm_bound should be a number or of the shape {tuple(self.batch_shape)} of the trials (from seed), "
                f"got shape {tuple(norm_bound.shape)}. Pass one number for all."
            )
        self.ref_point = _checked_ref_point(ref_point, scalarization, num_objectives)
        own = None if constraints is None else constraints_of(constraints, num_tasks)
        self.constraints = None if own is None else on_device(own, space.device)
        self._no_X = self._space.new_empty(*self.batch_shape, 0, self._space.shape[-1])
        self._no_Y = self._space.new_empty(*self.batch_shape, 0, self.num_tasks)
        if not isinstance(kernel, Kernel):
            kernel = learned_kernel(num_tasks, space.shape[-1], self.batch_shape)
        self._kernel = self._own_kernel(deepcopy(kernel))
        require_takes("kernel", deepcopy(self._kernel).to(space), space)
        if refit_every is not None:
            _require_own_parameters(self._kernel, self.batch_shape)
        self._units = None if refit_every is None else Units.of(self._space, self._no_Y)
        self._told_X, self._told_Y = GrowingRows.of(self._no_X), GrowingRows.of(self._no_Y)
        self._renewed_at = self._fresh_at = 0
        first_eta = DEFAULT_ETA if eta is None else eta
        self._prior = self._model_of(self._no_X, self._no_Y, deepcopy(self._kernel), first_eta)
        self._state = self._follow(self._prior.regression, self._units)

    @abstractmethod
    def _model_of(self, X: Tensor, Y: Tensor, kernel: Kernel, eta: float | Tensor | None, **options: Any) -> ModelT:
        """The model of the strategy."""

    def _beliefs(self) -> dict[str, Any]:
        """What a model needs to know beside the data to say what the strategy does."""
        return {}

    def _own_kernel(self, kernel: Kernel) -> Kernel:
        """What the strategy makes of the kernel it is given."""
        return kernel

    @abstractmethod
    def _theory_radius(self, norm_bound: float | Tensor, noise_scale: float | Tensor, eta: float | Tensor) -> Tensor:
        """``(b)``, the radius of the strategy's theorem."""

    @property
    def radius(self) -> Tensor:
        """``(b)``, the confidence radius with which :meth:`ask` would choose now."""
        if self.radius_rule != "theory":
            return self._space.new_full(self.batch_shape, self._ruled_radius())
        eta = self._prior.noise.squeeze(-1) if self.eta is None else self.eta
        sigma = eta**0.5 if self.noise_scale is None else self.noise_scale
        # The norm of the fitted function, or of one that is as high as its prior standard deviation at one point.
        b = self._regression.mean_norm.clamp_min(1) if self.norm_bound is None else self.norm_bound
        return self._theory_radius(b, sigma, eta)

    def _ruled_radius(self) -> float:
        rule = self.radius_rule
        if not callable(rule):
            return mobo_radius(self.num_observations + 1) if isinstance(rule, str) else float(rule)
        value = rule(self.num_observations)
        remedy = "Return the radius after t observations."
        require_positive("radius(t)", value, remedy, allow_zero=True)
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ValueError(f"radius(t) should be one number, got {value.tolist()}. {remedy}")
        return float(value)

    @abstractmethod
    def _learn(self, state: State, x: Tensor, y: Tensor) -> State:
        """What is known after an observation."""

    @abstractmethod
    def _imagine(self, followed: Followed, x: Tensor, y: Tensor) -> Followed:
        """What would be known of the choices if the values at `x` were `y`."""

    @abstractmethod
    def _recalled(self, state: State, X: Tensor, Y: Tensor, portions: list[int], memory: dict[str, Any]) -> State:
        """What was known after the observations had been told in these portions, from the state before the first."""

    @property
    def train_X(self) -> Tensor:
        """``(b) x t x d``, the points told so far."""
        return (self._regression.train_X if self._units is None else self._told_X.rows).clone()

    @property
    def train_Y(self) -> Tensor:
        """``(b) x t x n``, the values told so far."""
        return (self._regression.train_Y if self._units is None else self._told_Y.rows).clone()

    def covariance_norm(self, x: Tensor) -> Tensor:
        r"""``(b) x q``, :math:`\|\Gamma_t(x, x)\|` at ``(b) x q x d`` points, given what was told, without the pending.

        With `refit_every` it is that of the standardised values.
        """
        d = self._space.shape[-1]
        x = require_tensor("x", x, "Pass one row per point.")
        if x.dim() < 2 or x.shape[-1] != d:
            raise ValueError(
                f"x should be `(b) x q x d` with d = {d}, got shape {tuple(x.shape)}. Pass one row per point."
            )
        require_same_kind(("the search space", self._space), ("x", x))
        require_broadcast("The batches of x and of the trials", x.shape[:-2], self.batch_shape)
        with torch.no_grad():
            return self._regression.covariance_norm(self._inside(x))

    @property
    def model(self) -> ModelT:
        """The posterior given everything told, as a BoTorch model in the user's units; signs are not turned."""
        if self._units is None:
            return self._prior.with_regression(self._regression)
        kernel, eta = deepcopy(self._prior.covar_module), self._prior.noise.detach()
        options = self._units.transforms() | self._beliefs()
        return self._model_of(self.train_X, self.train_Y, kernel, eta, **options).eval()

    def _observe(self, x: Tensor, y: Tensor) -> None:
        if self._units is None:
            self._state = self._learn(self._state, x, y)
            return
        assert self.refit_every is not None
        told_X, told_Y = self._told_X.extend(x), self._told_Y.extend(y)
        before, now = self._told_X.length, told_X.length
        is_due = now // self.refit_every > before // self.refit_every
        # Before the first refit, the units follow the data at ever larger steps.
        if is_due or (now < self.refit_every and now >= 2 * self._renewed_at):
            self._renew(told_X.rows, told_Y.rows, learn=is_due)
        else:
            self._state = self._learn(self._state, self._units.x(x), self._units.y(y))
        self._told_X, self._told_Y = told_X, told_Y

    def _renew(self, X: Tensor, Y: Tensor, learn: bool) -> None:
        """Take the units from all values, and the kernel if it is to be learned."""
        units, prior, fresh_at = Units.of(self._space, Y), self._prior, self._fresh_at
        if learn:
            # From where the last refit ended; once the data have doubled, from the start again.
            fresh_at = X.shape[-2] if X.shape[-2] >= 2 * fresh_at else fresh_at
            kernel = self._kernel if fresh_at == X.shape[-2] else prior.covar_module
            model = self._model_of(units.x(X), units.y(Y), deepcopy(kernel), self.eta)
            if kernel is not self._kernel and self.eta is None:
                set_noise(model.likelihood, prior.noise)
            try:
                learn_kernel(model)
            except ModelFittingError:
                warnings.warn(
                    f"The kernel could not be learned from {X.shape[-2]} observations; "
                    "the strategy goes on with the one it had.",
                    stacklevel=2,
                )
            else:
                prior = self._model_of(self._no_X, self._no_Y, model.covar_module, model.noise.detach())
        state = self._learn(self._follow(prior.regression, units), units.x(X), units.y(Y))
        self._units, self._prior, self._state = units, prior, state
        self._renewed_at, self._fresh_at = X.shape[-2], fresh_at

    def _recall(self, X: Tensor, Y: Tensor, portions: list[int], memory: dict[str, Any]) -> None:
        prior, units = deepcopy(self._prior), None
        renewed_at, fresh_at = int(memory["renewed_at"]), int(memory["fresh_at"])
        if self._units is not None:
            units = Units.of(self._space, Y[..., :renewed_at, :])
            units.outcomes.load_state_dict(memory["outcomes"])
            for name, value in units.outcomes.named_buffers():
                require_finite(name, value)
            prior = self._model_of(self._no_X, self._no_Y, prior.covar_module, memory["noise"].to(X))
        prior.covar_module.load_state_dict(memory["kernel"])
        for name, parameter in prior.covar_module.named_parameters():
            require_finite(name, parameter)
        inside = (X, Y) if units is None else (units.x(X), units.y(Y))
        state = self._recalled(self._follow(prior.regression, units), *inside, _since(portions, renewed_at), memory)
        self._prior, self._state, self._units = prior, state, units
        self._renewed_at, self._fresh_at = renewed_at, fresh_at
        if units is not None:
            self._told_X, self._told_Y = GrowingRows.of(X), GrowingRows.of(Y)

    def _memory(self) -> dict[str, Any]:
        memory: dict[str, Any] = {"kernel": deepcopy(dict(self._prior.covar_module.state_dict()))}
        memory |= {"renewed_at": self._renewed_at, "fresh_at": self._fresh_at}
        if self._units is not None:
            memory["noise"] = self._prior.noise.detach().clone()
            memory["outcomes"] = deepcopy(dict(self._units.outcomes.state_dict()))
        return memory

    @property
    def _regression(self) -> Regression:
        return self._state.regression if isinstance(self._state, Followed) else self._state

    def _follow(self, regression: Regression, units: Units | None) -> State:
        if self.choices is None:
            return regression
        return regression.follow(self.choices if units is None else units.x(self.choices))

    def _inside(self, X: Tensor) -> Tensor:
        """Points as the regression takes them."""
        return X if self._units is None else self._units.x(X)

    def _scalarization_of(self, weights: Tensor) -> Scalarization:
        scalarization = self._of_objectives(weights)
        return scalarization if self._objectives is None else ObjectiveScalarization(scalarization, self._objectives)

    def _of_objectives(self, weights: Tensor) -> Scalarization:
        if not issubclass(self.scalarization, ChebyshevScalarization | HypervolumeScalarization):
            return super()._scalarization_of(weights)
        ref_point = self.ref_point
        if ref_point is not None:
            ref_point = self._inside_objectives(ref_point.to(weights))
        elif self._units is not None and self._told_Y.length:
            # As is usual, from the best values seen: every part of the front is nearest to them for some weights.
            ref_point = _best_seen(self._oriented(self._units.y(self._told_Y.rows)))
        if issubclass(self.scalarization, HypervolumeScalarization):
            assert ref_point is not None
            # Ranks points alike, and also those that do not exceed the reference point.
            return self.scalarization(weights, ref_point).chebyshev()
        return self.scalarization(weights, ref_point)

    def _inside_objectives(self, point: Tensor) -> Tensor:
        """A point of the objectives in the user's units, ``(b) x k``, as the scalarisation takes it."""
        tasks = point if self._objectives is None else point @ self._objectives.abs()
        if self._units is not None:
            tasks = self._units.y(tasks.expand(*self.batch_shape, 1, self.num_tasks)).squeeze(-2)
        return self._oriented(tasks)

    def _feasibility(self, scalarization: Scalarization) -> dict[str, Any]:
        """The constraints, and what a point that violates them is worth: the lowest of the values told."""
        if self.constraints is None:
            return {}
        Y, constraints = self.train_Y, self.constraints
        if self._units is not None:
            Y, constraints = self._units.y(Y), constraints.in_units(*self._units.offset_and_scale)
        if isinstance(scalarization, ObjectiveScalarization):
            scalarization = scalarization.scalarization
        return {"constraints": constraints, "infeasible_value": _lowest(scalarization, self._oriented(Y))}

    def _oriented(self, Y: Tensor) -> Tensor:
        """Values of the tasks as values of the objectives, all to be maximised."""
        if self._objectives is None:
            return Y
        tasks = self._objectives.abs().argmax(dim=-1)
        return Y[..., tasks] * self._objectives.sum(dim=-1)  # a product would spread NaN to other objectives

    def _counts(self, Y: Tensor) -> Tensor:
        counts = super()._counts(Y)
        return counts if self.constraints is None else counts & self.constraints.hold(Y)

    def _task_names(self) -> list[str]:
        names = super()._task_names()
        if self._objectives is None:
            return names
        roles = ("watched", "max", "min")  # by sign: 0, 1, -1
        return [f"{name} ({roles[int(s)]})" for name, s in zip(names, self._objectives.sum(dim=0), strict=True)]

    def _shown(self) -> tuple[str, list[list[str]]]:
        headline, rows = super()._shown()
        if self.constraints is not None and self.num_observations:
            kept = int(self.constraints.hold(self.train_Y).sum())
            headline += f"; {kept} of {self.train_Y[..., 0].numel()} keep the constraints"
        return headline, rows

    def _propose(self, scalarizations: list[Scalarization]) -> Tensor:
        with torch.no_grad():
            radius = self.radius
        search = self._search_choices if self.choices is not None else self._search_box
        return search(scalarizations, radius)

    def _search_choices(self, scalarizations: list[Scalarization], radius: Tensor) -> Tensor:
        assert self.choices is not None
        assert isinstance(self._state, Followed)
        followed, chosen = self._state, []
        taken = None if self.repeat else self._taken(len(scalarizations))
        with torch.no_grad():
            pending = self._inside(self._pending_points())
            if pending.shape[-2]:
                followed = self._imagine(followed, pending, followed.regression.mean(pending))
            for scalarization in scalarizations:
                values = self._values(followed, scalarization, radius)
                if taken is not None:
                    values = values.masked_fill(taken, -torch.inf)
                # Ties, such as all choices before the first observation, are broken at random.
                index = self._pick(values == values.amax(dim=-1, keepdim=True)).unsqueeze(-1)
                chosen.append(self.choices[index])
                if taken is not None:
                    taken = taken.scatter(-1, index, True)
                if len(chosen) < len(scalarizations):
                    point = self._inside(chosen[-1])
                    followed = self._imagine(followed, point, followed.regression.mean(point))
        return torch.cat(chosen, dim=-2)

    def _taken(self, wanted: int) -> Tensor:
        """``(b) x N``, which choices were told, are pending or equal one before; `wanted` should be left."""
        assert self.choices is not None
        assert self._first_equal is not None
        points = torch.cat([self.train_X, self._pending_points()], dim=-2)
        apart = torch.cdist(self.choices / self._span, points / self._span, p=torch.inf)  # (b) x N x t
        # The nearest only: choices may be as close to each other as what :meth:`tell` takes for rounding.
        distance, nearest = apart.min(dim=-2)
        is_choice = distance <= math.sqrt(torch.finfo(apart.dtype).eps)
        told = apart.new_zeros(apart.shape[:-1]).scatter_add(-1, self._first_equal[nearest], is_choice.to(apart))
        taken = (told > 0) | (self._first_equal != torch.arange(len(self.choices), device=told.device))
        left = int((~taken).sum(dim=-1).amin())
        if left < wanted:
            raise ValueError(
                f"q should be at most {left}, the number of choices that were neither told nor are pending, got "
                f"{wanted}. With repeat=True choices are asked for again."
            )
        return taken

    def _values(self, followed: Followed, scalarization: Scalarization, radius: Tensor) -> Tensor:
        """``(b) x N``, the acquisition at the choices."""
        return scalarized_ucb(followed, scalarization, radius, self.bound, **self._feasibility(scalarization))

    def _search_box(self, scalarizations: list[Scalarization], radius: Tensor) -> Tensor:
        model, d = self._prior.with_regression(self._regression), self._space.shape[-1]
        box = self._space if self._units is None else self._inside(self._space)
        points = self._inside(self._pending_points())
        for scalarization in scalarizations:
            pending = points if points.numel() else None
            acqf = self._acquisition(model, scalarization, radius, pending)

            def values(X: Tensor, acqf: ScalarizedMultiTaskUCB = acqf) -> Tensor:
                X = X.unsqueeze(-2)
                return acqf(X) if self.batch_shape else acqf(X.squeeze(1)).unsqueeze(-1)

            seeds = [int(torch.randint(2**31, (1,), generator=generator)) for generator in self._generators]
            best, _ = maximize(values, box, seeds, self.num_restarts, self.raw_samples)
            points = torch.cat([points, best.reshape(*self.batch_shape, 1, d)], dim=-2)
        points = points[..., -len(scalarizations) :, :]
        return points if self._units is None else self._units.original(points)

    def _acquisition(
        self, model: ModelT, scalarization: Scalarization, radius: Tensor, pending: Tensor | None
    ) -> ScalarizedMultiTaskUCB:
        feasibility = self._feasibility(scalarization)
        return ScalarizedMultiTaskUCB(model, scalarization, radius, X_pending=pending, bound=self.bound, **feasibility)

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {
            "kernel": repr(self._kernel),
            "norm_bound": _plain(self.norm_bound),
            "noise_scale": _plain(self.noise_scale),
            "eta": _plain(self.eta),
            "delta": float(self.delta),
            "radius": _plain(self.radius_rule),
            "bound": self.bound,
            "ref_point": _plain(self.ref_point),
            "signs": None if self._objectives is None else self._objectives.sum(dim=0).tolist(),
            "constraints": None if self.constraints is None else repr(self.constraints),
            "refit_every": self.refit_every,
            "repeat": self.repeat,
            "num_restarts": self.num_restarts,
            "raw_samples": self.raw_samples,
        }


class ExactStrategy(KernelStrategy[ExactMultiTaskGP]):
    """A strategy on all observations; see :class:`MTKB` for the arguments."""

    def _model_of(
        self, X: Tensor, Y: Tensor, kernel: Kernel, eta: float | Tensor | None, **options: Any
    ) -> ExactMultiTaskGP:
        return ExactMultiTaskGP(X, Y, covar_module=kernel, eta=eta, allow_missing=self._can_miss_values, **options)

    def _learn(self, state: State, x: Tensor, y: Tensor) -> State:
        return state.append(x, y)

    def _imagine(self, followed: Followed, x: Tensor, y: Tensor) -> Followed:
        return followed.append(x, y)

    def _recalled(self, state: State, X: Tensor, Y: Tensor, portions: list[int], memory: dict[str, Any]) -> State:
        # Telling the observations again, in the same portions, repeats the same arithmetic.
        for x, y in zip(X.split(portions, dim=-2), Y.split(portions, dim=-2), strict=True):
            state = self._learn(state, x, y)
        return state


def independent_tasks(kernel: Kernel) -> MultiTaskKernel:
    """The kernel of a strategy that learns each task for itself."""
    if not isinstance(kernel, MultiTaskKernel):
        raise ValueError(
            f"kernel should be one of ours to be cut into independent tasks, got {type(kernel).__name__}. "
            "Pass for instance IndependentKernel([k1, k2])."
        )
    return kernel.independent()


def _since(portions: list[int], start: int) -> list[int]:
    """The portions of the observations, those before `start` as one."""
    later, rest = [], sum(portions) - start
    for size in reversed(portions):
        if rest <= 0:
            break
        later.append(size)
        rest -= size
    return ([start] if start else []) + later[::-1]


def _plain(value: object) -> object:
    """A setting as what ``torch.load(weights_only=True)`` reads: functions by their name."""
    if value is None or isinstance(value, str):
        return value
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    return torch.as_tensor(value, dtype=torch.double).tolist()


def _require_eta(eta: object) -> None:
    require_positive("eta", eta, "Pass the regulariser, for instance 0.1.")
    if isinstance(eta, Tensor):
        raise ValueError(f"eta should be one number, got {eta.tolist()}. The theory has one regulariser for all tasks.")


def _require_radius(radius: object) -> None:
    if callable(radius) or (isinstance(radius, str) and radius in RADII):
        return
    remedy = "Pass a function of the number of observations for a schedule of your own."
    if isinstance(radius, str):
        raise ValueError(f"radius should be a number, a function, or one of {RADII}, got {radius!r}. {remedy}")
    require_positive("radius", radius, remedy, allow_zero=True)
    if isinstance(radius, Tensor):
        raise ValueError(f"radius should be one number, got {radius.tolist()}. {remedy}")


def _objectives(signs: object, num_tasks: int) -> Tensor:
    """``k x n``, a row for each task that is an objective, with its sign."""
    given = signs.tolist() if isinstance(signs, Tensor) else signs
    values: Sequence[Any] = given if isinstance(given, Sequence) else ()
    are_signs = all(v in (-1, 0, 1) and not isinstance(v, bool) for v in values)
    if len(values) != num_tasks or not are_signs or not any(values):
        raise ValueError(
            f"signs should be 1 (maximise), -1 (minimise) or 0 (no objective) for each of the {num_tasks} tasks, not "
            f"all zero, got {signs!r}. Leave them out to maximise all."
        )
    matrix = torch.diag(torch.tensor(values, dtype=torch.double))
    return matrix[matrix.any(dim=-1)]


def _first_equals(rows: Tensor) -> Tensor:
    """``N``, for each of ``N x d`` rows the place of the first that equals it."""
    distinct, index = torch.unique(rows, dim=0, return_inverse=True)
    places = torch.arange(len(rows), device=rows.device)
    return index.new_full((len(distinct),), len(rows)).scatter_reduce(0, index, places, "amin")[index]


def _best_seen(Y: Tensor) -> Tensor:
    """``(b) x n``, the largest of ``(b) x t x n`` values, NaN being none; zero without any."""
    if Y.shape[-2] == 0:
        return Y.new_zeros(*Y.shape[:-2], Y.shape[-1])
    best = Y.nan_to_num(nan=-torch.inf).amax(dim=-2)
    return torch.where(best.isinf(), 0, best)


def _lowest(scalarization: Scalarization, Y: Tensor) -> Tensor:
    """``(b)``, the lowest of ``(b) x t x n`` values, scalarised; of each objective alone if no row is complete."""
    of_each = scalarization(-_best_seen(-Y).unsqueeze(-2))
    lowest = torch.cat([scalarization(Y).nan_to_num(nan=torch.inf), torch.full_like(of_each, torch.inf)], dim=-1)
    lowest = lowest.amin(dim=-1)
    return torch.where(lowest.isinf(), of_each.squeeze(-1), lowest)


def _checked_ref_point(ref_point: object, scalarization: type[Scalarization], num_objectives: int) -> Tensor | None:
    takes_one = issubclass(scalarization, ChebyshevScalarization | HypervolumeScalarization)
    if ref_point is None:
        if issubclass(scalarization, HypervolumeScalarization):
            raise ValueError(
                "ref_point should be given for a HypervolumeScalarization, got None. Pass the values of the tasks that "
                "have to be exceeded to count."
            )
        return None
    if not takes_one:
        raise ValueError(
            f"ref_point should only be given for a scalarization that has one, got one for {scalarization.__name__}. "
            "Leave it out, or use ChebyshevScalarization or HypervolumeScalarization."
        )
    remedy = "Pass values in the units of the tasks, signs not turned."
    return require_ref_point(ref_point, num_objectives, "objectives", remedy)


def _require_own_parameters(kernel: Kernel, batch_shape: torch.Size) -> None:
    shared = shared_parameter(kernel, batch_shape)
    if shared is not None:
        raise ValueError(
            f"kernel should have the batch shape {tuple(batch_shape)} of the trials to be learned in each of them, got "
            f"a shared {shared}. Build its parts with batch_shape={batch_shape}, or pass the number of tasks."
        )


def _num_tasks(kernel: object, refit_every: int | None) -> int:
    if not isinstance(kernel, int) or isinstance(kernel, bool) or kernel < 1:
        return num_tasks_of("kernel", kernel)
    if refit_every is None:
        raise ValueError(
            f"kernel should be a multi-task kernel, got the number of tasks {kernel} without refit_every. "
            "Pass refit_every=1 to learn a kernel."
        )
    return kernel
