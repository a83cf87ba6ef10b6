"""Strategies on a dictionary of observations that is drawn anew as data come in."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any, Unpack

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.checks import require_finite, require_open_unit, require_oversampling
from mtbo_torch.confidence import DEFAULT_EPSILON, theory_oversampling
from mtbo_torch.kernels import adapt_kernel
from mtbo_torch.models import DEFAULT_OVERSAMPLING, NystromMultiTaskGP
from mtbo_torch.regression import Lookup, NystromRegression, Regression, Sites, rows_at
from mtbo_torch.regression.nystrom import MOST_STEPS
from mtbo_torch.strategies.base import Observations
from mtbo_torch.strategies.kernelized import KernelOptions, KernelStrategy
from mtbo_torch.strategies.learners import Knowledge
from mtbo_torch.surrogate import Surrogate

SCHEDULES = ("every_round", "delayed")
# The delayed schedule keeps a dictionary while 1 + (sum of variances in units of eta since it was drawn) is below this.
LARGEST_DRIFT = 2.0
SHORTEST_HORIZON = 64
# Kernels are learned from at most so many observations. With 8 inputs and 4 tasks that costs one or two seconds; twice
# as many cost five times as much, and predictions are hardly any better for it (benchmarks/large_learning.py).
MOST_LEARNED_FROM = 500
# A kernel is learned again after more and more observations: once there are this many times as many, every other time.
REFITS_BEFORE_DOUBLING = 8


class BudgetedStrategy(KernelStrategy[NystromMultiTaskGP]):
    """A strategy on a dictionary; see :class:`MTBKB` for the arguments."""

    _sweeps_boxes = True

    def __init__(
        self,
        kernel: Kernel | int,
        *,
        epsilon: float = DEFAULT_EPSILON,
        oversampling: float | None = DEFAULT_OVERSAMPLING,
        schedule: str = "every_round",
        **options: Unpack[KernelOptions],
    ) -> None:
        require_open_unit("epsilon", epsilon, "Pass the accuracy of the dictionary, for instance 0.5.")
        if oversampling is not None:
            require_oversampling(oversampling)
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule should be one of {SCHEDULES}, got {schedule!r}. The paper's is 'every_round'.")
        self.epsilon, self.oversampling, self.schedule = epsilon, oversampling, schedule
        super().__init__(kernel, **options)

    @property
    def dictionary(self) -> Tensor:
        """``(b) x m``, the indices of the observations in the dictionary; a batch's shorter ones repeat the newest."""
        return self._nystrom.dictionary

    @property
    def dictionary_size(self) -> int | Tensor:
        """The number of points in the dictionary; ``(b)`` of them for a batch of trials."""
        size = self._nystrom.dictionary_size
        return size if self.batch_shape else int(size)

    @property
    def inclusion_probs(self) -> Tensor:
        """``(b) x t``, the probabilities with which the next draw keeps each observation."""
        return self._nystrom.inclusion_probs

    @property
    def _nystrom(self) -> NystromRegression:
        return _nystrom(self._known.surrogate)

    @property
    def _is_proven(self) -> bool:
        # The theorem's dictionaries; with a mixture any will do.
        return super()._is_proven and self.oversampling is None and self.schedule == "every_round"

    def _must_refit(self, now: int, count: int, renewed_at: int) -> bool:
        assert self.refit_every is not None
        interval = self.refit_every
        while now >= REFITS_BEFORE_DOUBLING * interval:
            interval *= 2
        return now // interval > (now - count) // interval

    def _pick_to_learn(self, told: Observations) -> Observations:
        if told.size <= MOST_LEARNED_FROM:
            return told
        # The same at random for all trials, and by number alone, so nothing has to be saved. Points that are there
        # twice come last: a search that keeps coming back to a few of them would soon learn from nothing else.
        order = torch.randperm(told.size, generator=torch.Generator().manual_seed(0)).to(told.X.device)
        trials = told.X.reshape(-1, *told.X.shape[-2:])
        ranked = [order[Lookup(X[order]).repeated.int().argsort(stable=True)] for X in trials]
        places = torch.stack(ranked)[:, :MOST_LEARNED_FROM].reshape(*self.batch_shape, -1)
        return Observations(*(rows_at(part, places) for part in told))

    def _make_model(
        self, X: Tensor, Y: Tensor, kernel: Kernel, eta: float | Tensor | None, **options: Any
    ) -> NystromMultiTaskGP:
        oversampling = self._current_oversampling(X.shape[-2])
        return NystromMultiTaskGP(X, Y, covar_module=kernel, eta=eta, oversampling=oversampling, **options)

    def _fit_nothing(self, kernel: Kernel, noise: Tensor, X: Tensor, Y: Tensor) -> Regression:
        nothing = torch.arange(0)
        return NystromRegression.fit(
            adapt_kernel(kernel, Y.shape[-1]), noise, X, Y, nothing, self._current_oversampling(0)
        )

    def _grow(self, surrogate: Surrogate, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> Surrogate:
        # While many come in at once, choices are not followed.
        is_blind = X.shape[-2] > self._size_portion(surrogate)
        surrogate = replace(surrogate, tracking=None) if is_blind else surrogate
        while (size := self._size_portion(surrogate)) < X.shape[-2]:
            surrogate = surrogate.append(X[..., :size, :], Y[..., :size, :], renew=self._resample_if_due)
            X, Y = X[..., size:, :], Y[..., size:, :]
        if not is_blind:
            return surrogate.append(X, Y, renew=self._resample_if_due) if X.shape[-2] else surrogate
        # The last draw has the variances of all of them.
        drawn = self._resample(_nystrom(surrogate.append(X, Y) if X.shape[-2] else surrogate))
        return self.space.watch(replace(surrogate, regression=drawn.refit() if drawn.steps else drawn))

    def _size_portion(self, surrogate: Surrogate) -> int:
        """Return how many observations are taken in at once.

        Portions at most double what is known: the variances behind a draw are those of the portion before, and a first
        portion of all would keep them all.
        """
        return max(SHORTEST_HORIZON, surrogate.regression.num_observations)

    def _resample_if_due(self, regression: Regression) -> Regression:
        assert isinstance(regression, NystromRegression)
        due = self._is_due(regression)
        wanted = due.flatten().tolist()
        if any(wanted):
            regression = self._resample(regression, None if all(wanted) else due)
        return regression if len(regression.steps) < MOST_STEPS else replace(regression.refit(), drift=regression.drift)

    def _resample(self, regression: NystromRegression, due: Tensor | None = None) -> NystromRegression:
        """Return the regression with a dictionary drawn anew, of all data sets or of those ``(b)`` that are due."""
        regression = regression.with_oversampling(self._current_oversampling(regression.num_observations))
        generator = self._generators if self.batch_shape else self._generators[0]
        return regression.resample(generator, due, keep=self.schedule == "delayed")

    def _memory(self) -> dict[str, Any]:
        regression, tracking = self._nystrom, self._known.surrogate.tracking
        sites = {} if tracking is None or tracking.sites is None else tracking.sites.tensors()
        fitted = (regression.origin or regression).tensors()
        own = {"regression": fitted, "history": list(regression.steps), "sites": sites}
        own["dictionary"] = regression.dictionary.clone()
        return super()._memory() | own | {"oversampling": regression.oversampling, "luck": regression.luck.clone()}

    def _restore(
        self, started: Knowledge, told: Observations, portions: list[int], memory: dict[str, Any]
    ) -> Surrogate:
        X, Y, nothing = told.X, told.Y, started.surrogate
        tensors, of_sites = (
            {name: value.to(X.device) for name, value in memory[part].items()} for part in ("regression", "sites")
        )
        for name, value in (*tensors.items(), *of_sites.items()):
            require_finite(name, value)
        steps = memory["history"]
        appends = [place for place, step in enumerate(steps) if isinstance(step, int)]
        start = told.size - sum(steps[place] for place in appends)
        first = Observations(X[..., :start, :], Y[..., :start, :], told.sd[..., :start, :])
        regression = self._recall_fit(nothing, first, tensors)
        # They matter in the next draw alone.
        require_oversampling(memory["oversampling"])
        luck = memory["luck"].double().cpu()
        if luck.shape[:-1] != self.batch_shape or luck.shape[-1] > told.size:
            raise ValueError(f"luck of shape {tuple(luck.shape)}")
        regression = replace(regression, oversampling=memory["oversampling"], luck=luck)
        surrogate = replace(nothing, regression=regression)
        if nothing.tracking is not None:
            surrogate = self.space.watch(surrogate)
        # Taking the same steps repeats the same arithmetic.
        for place, following in zip_longest(appends, appends[1:]):
            new = told.pick(slice(start, start + steps[place]))
            renew = partial(_redo, steps=steps[place + 1 : following])
            surrogate = surrogate.append(new.X, new.Y, renew=renew)
            start += steps[place]
        if not torch.equal(_nystrom(surrogate).dictionary, memory["dictionary"].to(X.device)):
            raise ValueError("a history that leads to another dictionary here")
        if surrogate.tracking is not None:
            sites = Sites.none(nothing.regression.train_Y).restore(of_sites) if of_sites else None
            surrogate = replace(surrogate, tracking=surrogate.tracking.with_sites(sites))
        return surrogate

    def _recall_fit(self, nothing: Surrogate, told: Observations, tensors: dict[str, Tensor]) -> NystromRegression:
        """Return the regression that was last fitted; refuse what does not fit together."""
        points, values = nothing.units.scale_points(told.X), nothing.units.scale_values(told.Y)
        regression = _nystrom(nothing).restore(points, values, tensors)
        first = regression.at(points[..., :1, :])
        if (
            first.mean.shape != nothing.regression.at(points[..., :1, :]).mean.shape
            or regression.info_gain.shape != nothing.regression.info_gain.shape
            or not first.norm.isfinite().all()
        ):
            raise ValueError("a regression whose mean, norm or information gain is of another shape or not finite")
        return regression

    def _settings(self) -> dict[str, Any]:
        oversampling = None if self.oversampling is None else float(self.oversampling)
        own = {"epsilon": float(self.epsilon), "oversampling": oversampling, "schedule": self.schedule}
        return super()._settings() | own

    def _is_due(self, regression: NystromRegression) -> Tensor:
        """Return for which data sets, ``(b)``, the dictionary is to be drawn anew."""
        if self.schedule == "every_round":
            return torch.ones_like(regression.drift, dtype=torch.bool)
        if not regression.dictionary.shape[-1]:
            return torch.ones_like(regression.drift, dtype=torch.bool)
        return regression.drift > LARGEST_DRIFT - 1

    def _current_oversampling(self, num_observations: int) -> float:
        if self.oversampling is not None:
            return self.oversampling
        horizon = SHORTEST_HORIZON
        while horizon < num_observations:
            horizon *= 2
        return theory_oversampling(horizon, self.delta, self.epsilon)


def _nystrom(surrogate: Surrogate) -> NystromRegression:
    assert isinstance(surrogate.regression, NystromRegression)
    return surrogate.regression


def _redo(regression: Regression, steps: list[tuple[str, dict[int, list[int]]]]) -> NystromRegression:
    assert isinstance(regression, NystromRegression)
    for kind, indices in steps:
        regression = regression.redo(kind, indices)
    return regression
