"""BoTorch's own multi-objective acquisitions, as outside references."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.multi_objective import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.parego import qLogNParEGO
from botorch.models import MixedSingleTaskGP, ModelListGP, SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize, Standardize
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.sampling import manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from torch import Tensor

from mtbo_torch.checks import require_ref_point
from mtbo_torch.kernels import default_kernel
from mtbo_torch.models import ExactMultiTaskGP
from mtbo_torch.strategies.search import SearchOptions, SearchStrategy

# Beyond, the boxes of the hypervolume are too many.
MOST_TASKS = 4


class _BoTorchStrategy(SearchStrategy):
    """GPs with learned hyperparameters, after ``2 (d + 1)`` random points; one trial after another.

    Attributes:
        shares_tasks: Whether one :class:`ExactMultiTaskGP` models all tasks, instead of a GP for each.
        num_restarts: From how many points the acquisition is maximized.
        raw_samples: From how many points these are chosen.
        mc_samples: The number of samples of the posterior.
    """

    num_restarts, raw_samples, mc_samples = 4, 128, 64

    def __init__(self, num_tasks: int, shares_tasks: bool = False, **options: Unpack[SearchOptions]) -> None:
        super().__init__(num_tasks, **options)
        if not isinstance(shares_tasks, bool):
            raise ValueError(f"shares_tasks should be True or False, got {shares_tasks!r}. Pass one of them.")
        self.shares_tasks = shares_tasks

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"shares_tasks": self.shares_tasks}

    def _propose(self, weights: Tensor, fixed: Mapping[int, float]) -> Tensor:
        seeds = [int(torch.randint(2**31, (1,), generator=source)) for source in self._generators]
        if self.goal.constraints is not None:
            raise ValueError(
                f"signs should have no limits for {type(self).__name__}, got some. Use Optimizer, which takes them."
            )
        trials = (self._observed_X.rows, self.goal.orient(self._observed_Y.rows), self._pending_points(), weights)
        each = zip(*(data.reshape(len(seeds), *data.shape[-2:]) for data in trials), seeds, strict=True)
        points = torch.stack([self._propose_one(fixed, *trial) for trial in each])
        return points.reshape(*self.batch_shape, *points.shape[-2:])

    def _propose_one(
        self, fixed: Mapping[int, float], X: Tensor, Y: Tensor, pending: Tensor, weights: Tensor, seed: int
    ) -> Tensor:
        q, d = len(weights), self.space.num_inputs
        with manual_seed(seed), torch.enable_grad():
            if len(X) < 2 * (d + 1):
                return self.space.from_cube(torch.rand(q, d), fixed)
            model = self._fit_together(X, Y) if self.shares_tasks else self._fit_each(X, Y)
            for weight in weights:
                acqf = self._acquisition(model, X, Y, weight, pending if len(pending) else None, seed)
                point = self.space.optimize(acqf, self.num_restarts, self.raw_samples, fixed)
                pending = torch.cat([pending, point])
        return pending[-q:]

    def _fit_together(self, X: Tensor, Y: Tensor) -> ExactMultiTaskGP:
        n = Y.shape[-1]
        kernel = default_kernel(n, self.space.num_inputs, categories=self.space.categories)
        scaled = {"input_transform": self._normalize(), "outcome_transform": Standardize(n)}
        model = ExactMultiTaskGP(X, Y, covar_module=kernel.to(X), **scaled)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model

    def _fit_each(self, X: Tensor, Y: Tensor) -> ModelListGP:
        model = ModelListGP(*[self._make_model(X, y) for y in Y.split(1, dim=-1)])
        fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
        return model

    def _make_model(self, X: Tensor, Y: Tensor) -> SingleTaskGP:
        categories = self.space.categories
        scaled = {"input_transform": self._normalize(), "outcome_transform": Standardize(1)}
        if not categories:
            return SingleTaskGP(X, Y, **scaled)
        return MixedSingleTaskGP(X, Y, cat_dims=categories, **scaled)

    def _normalize(self) -> Normalize | None:
        """Return what takes all inputs but the categories to the unit cube."""
        categories, d = self.space.categories, self.space.num_inputs
        if not categories:
            return Normalize(d, bounds=self.space.hull)
        others = [place for place in range(d) if place not in categories]
        return Normalize(d, bounds=self.space.hull, indices=others) if others else None

    @abstractmethod
    def _acquisition(
        self, model: Model, X: Tensor, Y: Tensor, weights: Tensor, pending: Tensor | None, seed: int
    ) -> AcquisitionFunction: ...


class NParEGO(_BoTorchStrategy):
    """BoTorch's qLogNParEGO with the weights of the round, as an outside reference.

    Independent GPs, or one model of all tasks, with hyperparameters that are learned anew in every round, after
    ``2 (d + 1)`` random points; a batch of trials is worked off one by one.

    Args:
        num_tasks: The number of tasks n.
        shares_tasks: Whether one :class:`ExactMultiTaskGP` models all tasks, instead of a GP for each.
        options: The other arguments of :class:`RandomSearch`, such as `bounds`, ``2 x d``.

    Example:
        >>> import torch
        >>> from mtbo_torch.strategies import NParEGO
        >>> NParEGO(num_tasks=2, bounds=torch.tensor([[0.0], [1.0]], dtype=torch.double)).ask().shape
        torch.Size([1, 1])
    """

    def _acquisition(
        self, model: Model, X: Tensor, Y: Tensor, weights: Tensor, pending: Tensor | None, seed: int
    ) -> AcquisitionFunction:
        sampler = SobolQMCNormalSampler(torch.Size([self.mc_samples]), seed=seed)
        return qLogNParEGO(model, X, scalarization_weights=weights, sampler=sampler, X_pending=pending)


class NEHVI(_BoTorchStrategy):
    """BoTorch's qLogNEHVI, the noisy expected hypervolume improvement, as an outside reference.

    Models and first points as in :class:`NParEGO`; weights play no part.

    Args:
        num_tasks: The number of tasks n, from 2 to 4.
        ref_point: ``k``, the values of the objectives below which nothing counts, signs turned for those that are
            minimized; the worst values observed by default.
        shares_tasks: As in :class:`NParEGO`.
        options: The other arguments of :class:`RandomSearch`, such as `bounds`, ``2 x d``.

    Example:
        >>> import torch
        >>> from mtbo_torch.strategies import NEHVI
        >>> NEHVI(num_tasks=2, bounds=torch.tensor([[0.0], [1.0]], dtype=torch.double)).ask().shape
        torch.Size([1, 1])
    """

    def __init__(
        self,
        num_tasks: int,
        ref_point: Tensor | None = None,
        shares_tasks: bool = False,
        **options: Unpack[SearchOptions],
    ) -> None:
        super().__init__(num_tasks, shares_tasks, **options)
        if ref_point is not None:
            remedy = "Leave it out to use the worst values observed."
            ref_point = require_ref_point(ref_point, self.goal.num_objectives, "tasks", remedy)
        self.ref_point = ref_point
        if self.goal.num_objectives > MOST_TASKS:
            raise ValueError(
                f"num_tasks should be at most {MOST_TASKS} for a hypervolume method, got {num_tasks}. Use NParEGO."
            )

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"ref_point": None if self.ref_point is None else self.ref_point.double().tolist()}

    def _acquisition(
        self, model: Model, X: Tensor, Y: Tensor, weights: Tensor, pending: Tensor | None, seed: int
    ) -> AcquisitionFunction:
        return qLogNoisyExpectedHypervolumeImprovement(
            model,
            ref_point=Y.amin(dim=0) if self.ref_point is None else self.ref_point.to(Y),
            X_baseline=X,
            sampler=SobolQMCNormalSampler(torch.Size([self.mc_samples]), seed=seed),
            prune_baseline=True,
            X_pending=pending,
        )
