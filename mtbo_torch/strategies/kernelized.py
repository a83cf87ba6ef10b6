"""Strategies that learn by kernel ridge regression: the search for the next point, and what is remembered."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Generic, TypeVar

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.acquisition import ScalarizedMultiTaskUCB, scalarized_ucb
from mtbo_torch.checks import require_count, require_positive, require_probability
from mtbo_torch.kernels import MultiTaskKernel
from mtbo_torch.models import ExactMultiTaskGP, MultiTaskGPModel
from mtbo_torch.optimization import maximise
from mtbo_torch.regression import Followed, Regression
from mtbo_torch.scalarizations import ChebyshevScalarization, Scalarization, WeightDistribution
from mtbo_torch.strategies.base import Strategy, search_space

ModelT = TypeVar("ModelT", bound=MultiTaskGPModel)
State = Followed | Regression


class KernelStrategy(Strategy, Generic[ModelT]):
    """An upper confidence bound from a model; see :class:`MTKB` for the arguments.

    What has been learned is one immutable object, ``_state``: a regression, followed at the choices if there are
    any. :meth:`tell` replaces it at the very end, so a refused call changes nothing.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        bounds: Tensor | None = None,
        choices: Tensor | None = None,
        norm_bound: float | Tensor,
        noise_scale: float,
        eta: float = 0.1,
        delta: float = 0.1,
        scalarization: type[Scalarization] = ChebyshevScalarization,
        weights: WeightDistribution | None = None,
        seed: int | Sequence[int] = 0,
        num_restarts: int = 10,
        raw_samples: int = 256,
    ) -> None:
        space = search_space(type(self).__name__, bounds, choices)
        require_positive("norm_bound", norm_bound, "Pass a bound of the objective's RKHS norm.", allow_zero=True)
        require_positive("noise_scale", noise_scale, "Pass the noise's standard deviation.", allow_zero=True)
        require_positive("eta", eta, "Pass the regulariser, for instance 0.1.")
        if isinstance(eta, Tensor):
            raise ValueError(
                f"eta should be one number, got {eta.tolist()}. The theory has one regulariser for all tasks."
            )
        require_probability("delta", delta, "Pass the probability with which the bound may fail, for instance 0.1.")
        require_count("num_restarts", num_restarts, "Pass for instance 10.")
        require_count("raw_samples", raw_samples, "Pass for instance 256.")
        self.norm_bound, self.noise_scale, self.eta, self.delta = norm_bound, noise_scale, eta, delta
        self.num_restarts, self.raw_samples = num_restarts, raw_samples
        super().__init__(_num_tasks(kernel, space), bounds, choices, scalarization, weights, seed)
        no_X = self._space.new_empty(*self.batch_shape, 0, self._space.shape[-1])
        no_Y = self._space.new_empty(*self.batch_shape, 0, self.num_tasks)
        self._prior = self._model_of(no_X, no_Y, deepcopy(kernel))
        self._state = self._follow(self._prior.regression)

    @abstractmethod
    def _model_of(self, X: Tensor, Y: Tensor, kernel: Kernel) -> ModelT:
        """The model of the strategy."""

    @property
    @abstractmethod
    def radius(self) -> Tensor:
        """``(b)``, the current confidence radius."""

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
        return self._regression.train_X.clone()

    @property
    def train_Y(self) -> Tensor:
        """``(b) x t x n``, the values told so far."""
        return self._regression.train_Y.clone()

    def covariance_norm(self, x: Tensor) -> Tensor:
        r"""``(b) x q``, :math:`\|\Gamma_t(x, x)\|` at ``(b) x q x d`` points, given everything told."""
        with torch.no_grad():
            return self._regression.covariance_norm(x)

    @property
    def model(self) -> ModelT:
        """The posterior given everything told, as a BoTorch model."""
        return self._prior.with_regression(self._regression)

    def _observe(self, x: Tensor, y: Tensor) -> None:
        self._state = self._learn(self._state, x, y)

    def _recall(self, X: Tensor, Y: Tensor, portions: list[int], memory: dict[str, Any]) -> None:
        prior = deepcopy(self._prior)
        prior.covar_module.load_state_dict(memory["kernel"])
        state = self._recalled(self._follow(prior.regression), X, Y, portions, memory)
        self._prior, self._state = prior, state

    def _memory(self) -> dict[str, Any]:
        return {"kernel": deepcopy(dict(self._prior.covar_module.state_dict()))}

    @property
    def _regression(self) -> Regression:
        return self._state.regression if isinstance(self._state, Followed) else self._state

    def _follow(self, regression: Regression) -> State:
        return regression if self.choices is None else regression.follow(self.choices)

    def _propose(self, scalarizations: list[Scalarization]) -> Tensor:
        with torch.no_grad():
            radius = self.radius
        search = self._search_choices if self.choices is not None else self._search_box
        return search(scalarizations, radius)

    def _search_choices(self, scalarizations: list[Scalarization], radius: Tensor) -> Tensor:
        assert self.choices is not None
        assert isinstance(self._state, Followed)
        followed, chosen = self._state, []
        with torch.no_grad():
            for scalarization in scalarizations:
                values = self._values(followed, scalarization, radius)
                # Ties, such as all choices before the first observation, are broken at random.
                index = self._pick(values == values.amax(dim=-1, keepdim=True)).unsqueeze(-1)
                chosen.append(self.choices[index])
                if len(chosen) < len(scalarizations):
                    mean, _ = followed.mean_and_norm()
                    value = mean.gather(-2, index.unsqueeze(-1).expand(*index.shape, self.num_tasks))
                    followed = self._imagine(followed, chosen[-1], value)
        return torch.cat(chosen, dim=-2)

    def _values(self, followed: Followed, scalarization: Scalarization, radius: Tensor) -> Tensor:
        """``(b) x N``, the acquisition at the choices."""
        return scalarized_ucb(*followed.mean_and_norm(), scalarization, radius)

    def _search_box(self, scalarizations: list[Scalarization], radius: Tensor) -> Tensor:
        model, d = self.model, self._space.shape[-1]
        points = self._space.new_empty(*self.batch_shape, 0, d)
        for scalarization in scalarizations:
            pending = points if points.numel() else None
            acqf = self._acquisition(model, scalarization, radius, pending)

            def values(X: Tensor, acqf: ScalarizedMultiTaskUCB = acqf) -> Tensor:
                X = X.unsqueeze(-2)
                return acqf(X) if self.batch_shape else acqf(X.squeeze(1)).unsqueeze(-1)

            seeds = [int(torch.randint(2**31, (1,), generator=generator)) for generator in self._generators]
            best, _ = maximise(values, self._space, seeds, self.num_restarts, self.raw_samples)
            points = torch.cat([points, best.reshape(*self.batch_shape, 1, d)], dim=-2)
        return points

    def _acquisition(
        self, model: ModelT, scalarization: Scalarization, radius: Tensor, pending: Tensor | None
    ) -> ScalarizedMultiTaskUCB:
        return ScalarizedMultiTaskUCB(model, scalarization, radius, X_pending=pending)

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {
            "kernel": repr(self._prior.covar_module),
            "norm_bound": torch.as_tensor(self.norm_bound, dtype=torch.double).tolist(),
            "noise_scale": float(self.noise_scale),
            "eta": float(self.eta),
            "delta": float(self.delta),
            "num_restarts": self.num_restarts,
            "raw_samples": self.raw_samples,
        }


class ExactStrategy(KernelStrategy[ExactMultiTaskGP]):
    """On all observations."""

    def _model_of(self, X: Tensor, Y: Tensor, kernel: Kernel) -> ExactMultiTaskGP:
        return ExactMultiTaskGP(X, Y, covar_module=kernel, eta=self.eta)

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


def _num_tasks(kernel: object, space: Tensor) -> int:
    count = kernel.num_outputs_per_input(space, space) if isinstance(kernel, Kernel) else 0
    if not count or (count == 1 and not hasattr(kernel, "num_tasks")):
        raise ValueError(
            f"kernel should be a multi-task kernel, got {type(kernel).__name__}. "
            "Pass for instance TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.5)."
        )
    return count
