"""Strategies on a dictionary of observations that is drawn anew as data come in."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.checks import require_finite, require_open_unit, require_oversampling
from mtbo_torch.confidence import DEFAULT_EPSILON, theory_oversampling
from mtbo_torch.models import DEFAULT_OVERSAMPLING, NystromMultiTaskGP
from mtbo_torch.regression import Followed, FollowedNystrom, NystromRegression
from mtbo_torch.strategies.kernelized import KernelStrategy, State

SCHEDULES = ("every_round", "delayed")
# The delayed schedule keeps a dictionary while 1 + (sum of variances in units of eta since it was drawn) is below this.
LARGEST_DRIFT = 2.0
SHORTEST_HORIZON = 64


class BudgetedStrategy(KernelStrategy[NystromMultiTaskGP]):
    """A strategy on a dictionary; see :class:`MTBKB` for the arguments."""

    def __init__(
        self,
        kernel: Kernel | int,
        *,
        epsilon: float = DEFAULT_EPSILON,
        oversampling: float | None = DEFAULT_OVERSAMPLING,
        schedule: str = "every_round",
        **options: Any,
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
        return self._nystrom(self._state).dictionary

    @property
    def dictionary_size(self) -> int | Tensor:
        """The number of points in the dictionary; ``(b)`` of them for a batch of trials."""
        size = self._nystrom(self._state).dictionary_size
        return size if self.batch_shape else int(size)

    @property
    def inclusion_probs(self) -> Tensor:
        """``(b) x t``, the probabilities with which the next draw keeps each observation."""
        return self._nystrom(self._state).inclusion_probs

    def _model_of(
        self, X: Tensor, Y: Tensor, kernel: Kernel, eta: float | Tensor | None, **options: Any
    ) -> NystromMultiTaskGP:
        oversampling = self._current_oversampling(X.shape[-2])
        return NystromMultiTaskGP(X, Y, covar_module=kernel, eta=eta, oversampling=oversampling, **options)

    def _beliefs(self) -> dict[str, Any]:
        return {"dictionary": self.dictionary} if self.num_observations else {}

    def _learn(self, state: State, x: Tensor, y: Tensor) -> State:
        # Many observations at once come in portions that at most double what is known: the variances behind a draw
        # are those of the portion before, and a first portion of all would keep them all.
        while x.shape[-2]:
            size = max(SHORTEST_HORIZON, self._nystrom(state).num_observations)
            state = self._learn_portion(state, x[..., :size, :], y[..., :size, :])
            x, y = x[..., size:, :], y[..., size:, :]
        return state

    def _learn_portion(self, state: State, x: Tensor, y: Tensor) -> State:
        appended = state.append(x, y)
        regression = self._nystrom(appended)
        due = self._is_due(regression)
        share = due.double().mean().item()
        if share == 0:
            return appended
        regression = regression.with_oversampling(self._current_oversampling(regression.num_observations))
        generator = self._generators if self.batch_shape else self._generators[0]
        resampled = regression.resample(generator, where=None if share == 1 else due)
        return resampled.follow(state.points) if isinstance(state, Followed) else resampled

    def _imagine(self, followed: Followed, x: Tensor, y: Tensor) -> Followed:
        # In the dictionary as well: a point outside its span would keep its variance.
        regression = self._nystrom(followed).append(x, y).extend_dictionary(x.shape[-2])
        return regression.follow(followed.points)

    def _memory(self) -> dict[str, Any]:
        state = self._state
        followed = state.tensors() if isinstance(state, FollowedNystrom) else {}
        regression = self._nystrom(state)
        own = {"regression": regression.tensors(), "oversampling": regression.oversampling, "followed": followed}
        return super()._memory() | own

    def _recalled(self, state: State, X: Tensor, Y: Tensor, portions: list[int], memory: dict[str, Any]) -> State:
        tensors = {name: value.to(X.device) for name, value in memory["regression"].items()}
        for name, value in (*tensors.items(), *memory["followed"].items()):
            require_finite(name, value)
        restored = self._nystrom(state).restored(X, Y, tensors)
        require_oversampling(memory["oversampling"])
        restored = restored.with_oversampling(memory["oversampling"])
        state = restored.follow(state.points) if isinstance(state, Followed) else restored
        if isinstance(state, FollowedNystrom):
            state = state.restored({name: value.to(X.device) for name, value in memory["followed"].items()})
        mean, norm = restored.mean_and_norm(X[..., :1, :])  # what does not fit together shows here
        if (
            mean.shape != Y[..., :1, :].shape
            or restored.info_gain.shape != self.batch_shape
            or not norm.isfinite().all()
        ):
            raise ValueError("a regression whose mean, norm or information gain is of another shape or not finite")
        return state

    def _settings(self) -> dict[str, Any]:
        oversampling = None if self.oversampling is None else float(self.oversampling)
        own = {"epsilon": float(self.epsilon), "oversampling": oversampling, "schedule": self.schedule}
        return super()._settings() | own

    def _is_due(self, regression: NystromRegression) -> Tensor:
        """``(b)``, whether the dictionary is to be drawn anew."""
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

    @staticmethod
    def _nystrom(state: State) -> NystromRegression:
        regression = state.regression if isinstance(state, Followed) else state
        assert isinstance(regression, NystromRegression)
        return regression
