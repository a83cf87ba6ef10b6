"""Strategies on a dictionary of observations that is drawn anew as data come in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.checks import require_finite, require_open_unit, require_oversampling
from mtbo_torch.confidence import DEFAULT_EPSILON, theory_oversampling
from mtbo_torch.kernels import adapt_kernel
from mtbo_torch.models import DEFAULT_OVERSAMPLING, NystromMultiTaskGP
from mtbo_torch.regression import NystromRegression, Regression, TrackedNystrom
from mtbo_torch.strategies.base import Observations
from mtbo_torch.strategies.kernelized import KernelOptions, KernelStrategy
from mtbo_torch.strategies.learners import Knowledge
from mtbo_torch.surrogate import Surrogate

SCHEDULES = ("every_round", "delayed")
# The delayed schedule keeps a dictionary while 1 + (sum of variances in units of eta since it was drawn) is below this.
LARGEST_DRIFT = 2.0
SHORTEST_HORIZON = 64


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
        # Many observations at once come in portions that at most double what is known: the variances behind a draw
        # are those of the portion before, and a first portion of all would keep them all.
        while X.shape[-2]:
            size = max(SHORTEST_HORIZON, surrogate.regression.num_observations)
            surrogate = surrogate.append(X[..., :size, :], Y[..., :size, :], renew=self._resample_if_due)
            X, Y = X[..., size:, :], Y[..., size:, :]
        return surrogate

    def _resample_if_due(self, regression: Regression) -> Regression:
        assert isinstance(regression, NystromRegression)
        due = self._is_due(regression)
        share = due.double().mean().item()
        if share == 0:
            return regression
        regression = regression.with_oversampling(self._current_oversampling(regression.num_observations))
        generator = self._generators if self.batch_shape else self._generators[0]
        return regression.resample(generator, None if share == 1 else due, keep=self.schedule == "delayed")

    def _memory(self) -> dict[str, Any]:
        regression, tracking = self._nystrom, self._known.surrogate.tracking
        tracked = tracking.tensors() if isinstance(tracking, TrackedNystrom) else {}
        own = {"regression": regression.tensors(), "oversampling": regression.oversampling, "tracked": tracked}
        return super()._memory() | own

    def _restore(
        self, started: Knowledge, told: Observations, portions: list[int], memory: dict[str, Any]
    ) -> Surrogate:
        X, Y, nothing = told.X, told.Y, started.surrogate
        tensors, tracked = (
            {name: value.to(X.device) for name, value in memory[part].items()} for part in ("regression", "tracked")
        )
        for name, value in (*tensors.items(), *tracked.items()):
            require_finite(name, value)
        require_oversampling(memory["oversampling"])
        points, values = nothing.units.scale_points(X), nothing.units.scale_values(Y)
        regression = _nystrom(nothing).restore(points, values, tensors).with_oversampling(memory["oversampling"])
        first = regression.at(points[..., :1, :])  # what does not fit together shows here
        if (
            first.mean.shape != nothing.regression.at(points[..., :1, :]).mean.shape
            or regression.info_gain.shape != nothing.regression.info_gain.shape
            or not first.norm.isfinite().all()
        ):
            raise ValueError("a regression whose mean, norm or information gain is of another shape or not finite")
        surrogate = replace(nothing, regression=regression)
        if nothing.tracking is not None:
            surrogate = self.space.watch(surrogate)
        if isinstance(surrogate.tracking, TrackedNystrom):
            surrogate = replace(surrogate, tracking=surrogate.tracking.restore(tracked))
        return surrogate

    def _settings(self) -> dict[str, Any]:
        oversampling = None if self.oversampling is None else float(self.oversampling)
        own = {"epsilon": float(self.epsilon), "oversampling": oversampling, "schedule": self.schedule}
        return super()._settings() | own

    def _is_due(self, regression: NystromRegression) -> Tensor:
        """Return for which data sets, ``(b)``, the dictionary is to be drawn anew."""
        if self.schedule == "every_round":
            return torch.ones_like(regression.drift, dtype=torch.bool)
        return (1 + regression.drift > LARGEST_DRIFT) | (regression.dictionary_size == 0)

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
