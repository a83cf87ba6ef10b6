"""What ask-and-tell strategies share: the search, the book-keeping, saving and continuing."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Generic, TypeVar

import torch
from botorch.exceptions.warnings import BadInitialCandidatesWarning
from botorch.generation import gen_candidates_scipy
from botorch.optim import optimize_acqf
from botorch.optim.initializers import initialize_q_batch
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.acquisition import ScalarizedMultiTaskUCB, scalarized_ucb
from mtbo_torch.checks import (
    require_bounds,
    require_choices,
    require_count,
    require_data,
    require_positive,
    require_probability,
)
from mtbo_torch.models import MultiTaskGPModel
from mtbo_torch.regression import Followed, Regression
from mtbo_torch.scalarizations import (
    ChebyshevScalarization,
    InverseUniformWeights,
    Scalarization,
    UniformWeights,
    WeightDistribution,
)

ModelT = TypeVar("ModelT", bound=MultiTaskGPModel)
State = Followed | Regression


class Strategy(ABC, Generic[ModelT]):
    """Ask for points, evaluate them, tell the values; see :class:`MTKB` for the arguments.

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
        space = _search_space(type(self).__name__, bounds, choices)
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
        seeds = _seeds(seed)
        self.bounds = None if bounds is None else bounds.detach().clone()
        self.choices = None if choices is None else choices.detach().clone()
        self.norm_bound, self.noise_scale, self.eta, self.delta = norm_bound, noise_scale, eta, delta
        self.num_restarts, self.raw_samples = num_restarts, raw_samples
        self.scalarization = scalarization
        self.num_tasks = _num_tasks(kernel, space)
        self.weights = _weight_distribution(weights, scalarization, self.num_tasks)
        self.batch_shape = torch.Size([len(seeds)]) if isinstance(seed, Sequence) else torch.Size()
        self._generators = [torch.Generator().manual_seed(number) for number in seeds]
        self._portions: list[int] = []
        self._asked_weights = self._space.new_empty(*self.batch_shape, 0, self.num_tasks)
        no_X = self._space.new_empty(*self.batch_shape, 0, self._space.shape[-1])
        no_Y = self._space.new_empty(*self.batch_shape, 0, self.num_tasks)
        self._prior = self._model_of(no_X, no_Y, deepcopy(kernel))
        self._state = self._start(self._prior)

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

    @property
    def train_X(self) -> Tensor:
        """``(b) x t x d``, the points told so far."""
        return self._regression.train_X.clone()

    @property
    def train_Y(self) -> Tensor:
        """``(b) x t x n``, the values told so far."""
        return self._regression.train_Y.clone()

    @property
    def num_observations(self) -> int:
        """The number of points told so far."""
        return self._regression.num_observations

    @property
    def asked_weights(self) -> Tensor:
        """``(b) x q x n``, the weights behind the points of the last :meth:`ask`; none before the first."""
        return self._asked_weights

    @property
    def model(self) -> ModelT:
        """The posterior given everything told, as a BoTorch model."""
        return self._prior.with_regression(self._regression)

    def ask(self, q: int = 1) -> Tensor:
        """The next ``(b) x q x d`` points to evaluate.

        Every point has weights of its own. Points after the first take those before them as if their values had
        been the mean: the variance shrinks there, so they spread.
        """
        require_count("q", q, "Ask for at least one point.")
        dtype = self._space.dtype
        draws = [self.weights.sample(q, generator=generator, dtype=dtype) for generator in self._generators]
        weights = torch.stack(draws).reshape(*self.batch_shape, q, self.num_tasks).to(self._space)
        scalarizations = [self.scalarization(w) for w in weights.unbind(dim=-2)]
        with torch.no_grad():
            radius = self.radius
        search = self._search_choices if self.choices is not None else self._search_box
        points = search(scalarizations, radius)
        self._asked_weights = weights
        return points

    def tell(self, x: Tensor, y: Tensor) -> None:
        """Learn the values at some points, proposed or not; a refused call changes nothing.

        Args:
            x: ``(b) x q x d``, or ``d`` for one point.
            y: ``(b) x q x n``, or ``n`` for one point.
        """
        x, y = self._checked(x, y)
        with torch.no_grad():
            self._state = self._learn(self._state, x, y)
        self._portions.append(x.shape[-2])

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit; safe for ``torch.save`` and ``torch.load(weights_only=True)``."""
        return {
            "settings": self._settings(),
            "space": self._space.clone(),
            "kernel": deepcopy(dict(self._prior.covar_module.state_dict())),
            "train_X": self.train_X,
            "train_Y": self.train_Y,
            "portions": list(self._portions),
            "asked_weights": self._asked_weights.clone(),
            "generators": [generator.get_state() for generator in self._generators],
            "memory": self._memory(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict` of a strategy built with the same arguments.

        A refused state changes nothing.
        """
        expected = f"state_dict should come from {type(self).__name__}.state_dict()"
        missing = self.state_dict().keys() - state_dict.keys() if isinstance(state_dict, dict) else {"everything"}
        if missing:
            raise ValueError(f"{expected}, got one without {sorted(missing)}. Pass what state_dict() returned.")
        self._require_same_settings(state_dict)
        try:
            fresh = deepcopy(self._prior)
            fresh.covar_module.load_state_dict(state_dict["kernel"])
            X, Y = state_dict["train_X"].to(self._space), state_dict["train_Y"].to(self._space)
            require_data(X, Y, self.num_tasks)
            generators = [torch.Generator() for _ in self._generators]
            for generator, state in zip(generators, state_dict["generators"], strict=True):
                generator.set_state(state)
            with torch.no_grad():
                portions = list(state_dict["portions"])
                recalled = self._recall(self._start(fresh), X, Y, portions, state_dict["memory"])
            asked_weights = state_dict["asked_weights"].to(self._space)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
            raise ValueError(f"{expected}, got one that does not fit together ({error}). Save it again.") from error
        self._prior, self._state, self._generators = fresh, recalled, generators
        self._portions, self._asked_weights = portions, asked_weights

    @abstractmethod
    def _memory(self) -> dict[str, Any]:
        """What :meth:`_recall` needs beside the observations and the portions they came in."""

    @abstractmethod
    def _recall(self, state: State, X: Tensor, Y: Tensor, portions: list[int], memory: dict[str, Any]) -> State:
        """What was known after the observations had been told in these portions, bit for bit."""

    @property
    def _space(self) -> Tensor:
        space = self.bounds if self.bounds is not None else self.choices
        assert space is not None
        return space

    @property
    def _regression(self) -> Regression:
        return self._state.regression if isinstance(self._state, Followed) else self._state

    def _start(self, prior: ModelT) -> State:
        return self._follow(prior.regression)

    def _follow(self, regression: Regression) -> State:
        return regression if self.choices is None else regression.follow(self.choices)

    def _search_choices(self, scalarizations: list[Scalarization], radius: Tensor) -> Tensor:
        assert self.choices is not None
        assert isinstance(self._state, Followed)
        followed, chosen = self._state, []
        with torch.no_grad():
            for scalarization in scalarizations:
                mean, norm = followed.mean_and_norm()
                index = self._argmax(scalarized_ucb(mean, norm, scalarization, radius)).unsqueeze(-1)
                chosen.append(self.choices[index])
                if len(chosen) < len(scalarizations):
                    value = mean.gather(-2, index.unsqueeze(-1).expand(*index.shape, self.num_tasks))
                    followed = self._imagine(followed, chosen[-1], value)
        return torch.cat(chosen, dim=-2)

    def _argmax(self, values: Tensor) -> Tensor:
        """``(b)``, one of the maximisers of each row, at random: before the first observation every choice is one."""
        best = values == values.amax(dim=-1, keepdim=True)
        uniform = torch.cat([torch.rand(1, generator=source, dtype=torch.double) for source in self._generators])
        uniform = uniform.reshape(self.batch_shape).to(values)
        number = (uniform * best.sum(dim=-1)).floor().unsqueeze(-1)
        return ((best.cumsum(dim=-1) > number) & best).to(torch.uint8).argmax(dim=-1)

    def _search_box(self, scalarizations: list[Scalarization], radius: Tensor) -> Tensor:
        model, points = self.model, self._space.new_empty(*self.batch_shape, 0, self._space.shape[-1])
        for scalarization in scalarizations:
            acqf = ScalarizedMultiTaskUCB(model, scalarization, radius, X_pending=points if points.numel() else None)
            seeds = [int(torch.randint(2**31, (1,), generator=generator)) for generator in self._generators]
            with manual_seed(seeds[0]), warnings.catch_warnings():
                # Before the first observation the acquisition may be flat: every point is a maximiser.
                warnings.simplefilter("ignore", BadInitialCandidatesWarning)
                best = self._maximise_together(acqf, seeds) if self.batch_shape else self._maximise(acqf, seeds[0])
            points = torch.cat([points, best], dim=-2)
        return points

    def _maximise(self, acqf: ScalarizedMultiTaskUCB, seed: int) -> Tensor:
        restarts, samples = self.num_restarts, self.raw_samples
        best, _ = optimize_acqf(
            acqf, bounds=self._space, q=1, num_restarts=restarts, raw_samples=samples, options={"seed": seed}
        )
        return best

    def _maximise_together(self, acqf: ScalarizedMultiTaskUCB, seeds: list[int]) -> Tensor:
        """``b x 1 x d``: all trials in one optimiser call, in which each start holds a point of every trial."""
        raw = torch.stack([draw_sobol_samples(self._space, self.raw_samples, 1, seed=seed) for seed in seeds], dim=1)
        with torch.no_grad():
            values = acqf(raw)
        starts = [
            initialize_q_batch(raw[:, trial], values[:, trial], self.num_restarts)[0] for trial in range(len(seeds))
        ]
        lower, upper = self._space
        found, _ = gen_candidates_scipy(torch.cat(starts, dim=-2), _AcrossTrials(acqf), lower, upper)
        with torch.no_grad():
            best = acqf(found.unsqueeze(-2)).argmax(dim=0)
        return found[best, torch.arange(len(seeds), device=found.device)].unsqueeze(-2)

    def _checked(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if not self.batch_shape:
            x = x.unsqueeze(0) if isinstance(x, Tensor) and x.dim() == 1 else x
            y = y.unsqueeze(0) if isinstance(y, Tensor) and y.dim() == 1 else y
        require_data(x, y, self.num_tasks, names=("x", "y"))
        d = self._space.shape[-1]
        if x.shape[:-2] != self.batch_shape or x.shape[-1] != d or x.shape[-2] == 0:
            wanted = " x ".join(map(str, (*self.batch_shape, "q", "d")))
            raise ValueError(
                f"x should be `{wanted}` with d = {d} and at least one row, got shape {tuple(x.shape)}. "
                "Pass one row per point."
            )
        if x.dtype != self._space.dtype or x.device != self._space.device:
            raise ValueError(
                f"x should have the dtype and device of the search space ({self._space.dtype}, {self._space.device}), "
                f"got {x.dtype} on {x.device}. Use x.to(bounds) or x.to(choices)."
            )
        return x.detach(), y.detach()

    def _settings(self) -> dict[str, Any]:
        norm_bound = torch.as_tensor(self.norm_bound, dtype=torch.double)
        return {
            "strategy": type(self).__name__,
            "num_tasks": self.num_tasks,
            "kernel": repr(self._prior.covar_module),
            "batch_shape": list(self.batch_shape),
            "space": "bounds" if self.bounds is not None else "choices",
            "dtype": str(self._space.dtype),
            "norm_bound": norm_bound.tolist(),
            "noise_scale": float(self.noise_scale),
            "eta": float(self.eta),
            "delta": float(self.delta),
            "scalarization": self.scalarization.__name__,
            "weights": repr(self.weights),
            "num_restarts": self.num_restarts,
            "raw_samples": self.raw_samples,
        }

    def _require_same_settings(self, state_dict: dict[str, Any]) -> None:
        ours, theirs = self._settings(), state_dict["settings"]
        different = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        parts = [f"{key} ({theirs.get(key)} there, {ours.get(key)} here)" for key in different]
        if not different and not torch.equal(state_dict["space"].to(self._space), self._space):
            parts = [f"{ours['space']} (other points)"]
        if parts:
            raise ValueError(
                f"state_dict should come from a strategy with the same settings, got others: {', '.join(parts)}. "
                "Build the strategy with the arguments it was saved with."
            )


class _AcrossTrials(torch.nn.Module):
    """``R x b x d`` points, one for each trial, as the sum of the trials' acquisition values."""

    def __init__(self, acqf: ScalarizedMultiTaskUCB) -> None:
        super().__init__()
        self.acqf = acqf

    def forward(self, X: Tensor) -> Tensor:
        values: Tensor = self.acqf(X.unsqueeze(-2))
        return values.sum(dim=-1)


def _search_space(name: str, bounds: Tensor | None, choices: Tensor | None) -> Tensor:
    if bounds is not None and choices is None:
        require_bounds(bounds)
        return bounds
    if choices is not None and bounds is None:
        require_choices("choices", choices)
        return choices
    raise ValueError(
        f"{name} should get either bounds or choices, got {'neither' if bounds is None else 'both'}. "
        "Pass bounds (2 x d) to search a box, or choices (N x d) to search a finite set."
    )


def _seeds(seed: int | Sequence[int]) -> list[int]:
    seeds = list(seed) if isinstance(seed, Sequence) else [seed]
    if not seeds or not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63 for n in seeds):
        raise ValueError(
            f"seed should be an integer from 0 to 2^63 - 1, or a non-empty list of such, got {seed!r}. Pass one."
        )
    return seeds


def _num_tasks(kernel: object, space: Tensor) -> int:
    count = kernel.num_outputs_per_input(space, space) if isinstance(kernel, Kernel) else 0
    if not count or (count == 1 and not hasattr(kernel, "num_tasks")):
        raise ValueError(
            f"kernel should be a multi-task kernel, got {type(kernel).__name__}. "
            "Pass for instance TaskSimilarityKernel(gpytorch.kernels.RBFKernel(), num_tasks=2, omega=0.5)."
        )
    return count


def _weight_distribution(
    weights: WeightDistribution | None, scalarization: type[Scalarization], num_tasks: int
) -> WeightDistribution:
    if not (isinstance(scalarization, type) and issubclass(scalarization, Scalarization)):
        raise ValueError(
            f"scalarization should be a class such as ChebyshevScalarization, got {scalarization!r}. "
            "Every round builds one with weights of its own."
        )
    if weights is None:
        is_chebyshev = issubclass(scalarization, ChebyshevScalarization)
        return InverseUniformWeights(num_tasks) if is_chebyshev else UniformWeights(num_tasks)
    if not isinstance(weights, WeightDistribution):
        raise ValueError(
            f"weights should be a distribution such as UniformWeights({num_tasks}), got {weights!r}. "
            "Wrap a fixed vector as FixedWeights(vector)."
        )
    if weights.num_tasks != num_tasks:
        raise ValueError(
            f"weights should be for {num_tasks} tasks (from the kernel), got {weights.num_tasks}. "
            f"Build them with num_tasks={num_tasks}."
        )
    return weights
