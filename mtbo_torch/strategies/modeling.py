"""Strategies that model the tasks: a surrogate with a kernel that is known, or learned again and again."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import accumulate
from typing import Any, Generic, TypeVar

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.checks import require_broadcast, require_count, require_same_kind, require_tensor
from mtbo_torch.kernels import (
    MultiTaskKernel,
    adapt_kernel,
    candidate_kernels,
    default_kernel,
    describe_kernel,
    num_tasks_of,
    require_takes,
    shared_parameter,
)
from mtbo_torch.linalg import root_of
from mtbo_torch.models import ExactMultiTaskGP, MultiTaskGPModel
from mtbo_torch.models.learning import make_transforms
from mtbo_torch.regression import Regression
from mtbo_torch.space import Space
from mtbo_torch.strategies.base import Observations, Strategy
from mtbo_torch.strategies.explanation import Explanation
from mtbo_torch.strategies.goal import Goal
from mtbo_torch.strategies.learners import DEFAULT_ETA, Knowledge, KnownKernel, LearnedKernel
from mtbo_torch.surrogate import Surrogate, Units

ModelT = TypeVar("ModelT", bound=MultiTaskGPModel)


class ModelStrategy(Strategy, Generic[ModelT]):
    """A strategy that asks where a surrogate of the tasks says; see :class:`MTKB` for the arguments.

    Args:
        space: Where to search.
        goal: What to search for.
        seed: A number, or b of them for as many trials side by side.
        kernel: The kernel, or the number of tasks for one to be learned.
        eta: The regularizer.
        refit_every: After how many observations the kernel is learned again; None for a kernel that is known.
    """

    # Whether a task is learned from the others, too.
    _shares_tasks = True
    # Whether the data choose the kernel, if only the number of tasks is given.
    _chooses_kernel = False

    def __init__(
        self,
        space: Space,
        goal: Goal,
        seed: int | Sequence[int],
        kernel: Kernel | int,
        eta: float | None,
        refit_every: int | None,
    ) -> None:
        super().__init__(space, goal, seed)
        self.eta = DEFAULT_ETA if eta is None and refit_every is None else eta
        self.refit_every = refit_every
        self._kernels = self._find_kernels(kernel)
        for candidate in self._kernels.values():
            _require_batch(candidate, self.batch_shape)
            require_takes("kernel", deepcopy(candidate).to(space.points), space.points)
        if refit_every is None:
            self._learner = KnownKernel(self, self._kernels, self.eta)
        else:
            for candidate in self._kernels.values():
                _require_own_parameters(candidate, self.batch_shape)
            self._learner = LearnedKernel(self, self._kernels, self.eta, refit_every)
        self._known = self._learner.start(goal.num_tasks)

    def _find_kernels(self, kernel: Kernel | int) -> dict[str, Kernel]:
        """Return a copy of the kernel given, or those to choose from, by name."""
        size = self.num_tasks, self.space.num_inputs, self.batch_shape, self.space.categories
        if not isinstance(kernel, Kernel) and self._chooses_kernel:
            return dict(candidate_kernels(*size))
        given = kernel if isinstance(kernel, Kernel) else default_kernel(*size)
        return {"given": deepcopy(given) if self._shares_tasks else _cut_ties(given)}

    @property
    def kernel_scores(self) -> dict[str, float]:
        """The scores of the kernels that the last refit had to choose from, by name, the one that is used first.

        The score is the log marginal likelihood minus the number of parameters learned, and the mean of it over the
        trials of a batch, which all use the same kernel. Empty if there was nothing to choose.

        Example:
            >>> import torch
            >>> from mtbo_torch import MTKB
            >>> strategy = MTKB(2, bounds=torch.tensor([[0.0], [1.0]], dtype=torch.double), refit_every=8)
            >>> x = torch.linspace(0, 1, 8, dtype=torch.double).unsqueeze(-1)
            >>> strategy.tell(x, torch.cat([(6 * x).sin(), 1 - (6 * x).sin()], dim=-1))
            >>> next(iter(strategy.kernel_scores))  # the second task is the first one upside down
            'shared'
        """
        known = self._known
        names = sorted(known.candidates, key=lambda name: name != known.chosen)
        scores = {name: known.candidates[name].score for name in names}
        return {name: score for name, score in scores.items() if not math.isnan(score)}

    def covariance_norm(self, x: Tensor) -> Tensor:
        r"""Return :math:`\|\Gamma_t(x, x)\|`, ``(b) x q``, at ``(b) x q x d`` points, given what was told.

        With `refit_every` it is that of the standardized values.
        """
        self._require_inputs(x)
        with torch.no_grad():
            return self._surrogate.inside(x).norm

    def _require_inputs(self, x: Tensor) -> None:
        d = self.space.num_inputs
        x = require_tensor("x", x, "Pass one row per point.")
        if x.dim() < 2 or x.shape[-1] != d:
            raise ValueError(
                f"x should be `(b) x q x d` with d = {d}, got shape {tuple(x.shape)}. Pass one row per point."
            )
        require_same_kind(("the search space", self.space.points), ("x", x))
        require_broadcast("The batches of x and of the trials", x.shape[:-2], self.batch_shape)

    @property
    def model(self) -> ModelT:
        """The posterior given everything told, as a BoTorch model in the user's units; signs are not turned."""
        units = self._surrogate.units
        transforms = {} if units.low is None else make_transforms(units)
        own = self._learner.find_own_noise(self._known, self._observations.sd)
        noise = {"eta": self._known.noise} if own is None else {"eta": None, "train_Yvar": own}
        kernel = deepcopy(self._known.kernel)
        model = self._make_model(self.train_X, self.train_Y, kernel, **noise, **transforms).eval()
        # A model transforms its inputs itself.
        return model.adopt(replace(self._surrogate, units=replace(units, low=None, width=None), tracking=None))

    def explain(self, x: Any = None) -> Explanation | list[Explanation]:
        """Return why a point is worth asking for: what is expected there, how sure that is, and what it depends on.

        Args:
            x: ``d`` for one point, or ``q x d`` for a list of explanations; by default the point or points of the last
                :meth:`ask`.

        Example:
            >>> import torch
            >>> from mtbo_torch import Optimizer
            >>> optimizer = Optimizer(num_tasks=2, bounds=torch.tensor([[0.0], [1.0]], dtype=torch.double))
            >>> x = torch.rand(8, 1, dtype=torch.double, generator=torch.Generator().manual_seed(0))
            >>> optimizer.tell(x, torch.cat([x.sin(), x.cos()], dim=-1))
            >>> explanation = optimizer.explain([0.5])
            >>> explanation.nearest, explanation.effects.shape
            (2, torch.Size([1, 2]))
        """
        if self.batch_shape:
            raise ValueError(
                f"explain should be asked of a single trial, got a batch of {self.batch_shape.numel()}. Pass one seed."
            )
        if x is None:
            known = [self._pending[number] for number in self._asked_ids if number in self._pending]
            if not known:
                raise ValueError(
                    "x should be given when no point that was asked for is pending, got None. Pass a point."
                )
            points = torch.stack(known)
            is_one = len(known) == 1
        else:
            points = self._convert("x", x)
            is_one = isinstance(points, Tensor) and points.dim() == 1
            points = points.unsqueeze(0) if is_one else points
            self._require_inputs(points)
        with torch.no_grad():
            explained = [self._explain_one(point) for point in points]
        return explained[0] if is_one else explained

    def _explain_one(self, x: Tensor) -> Explanation:
        X, surrogate = x.unsqueeze(0), self._surrogate
        belief = surrogate.at(X)
        mean, told = belief.mean[0], self._observed_X.rows
        lower, upper, level = self._find_intervals(X, mean, belief.variance()[0])
        is_category = torch.tensor([place in self.space.categories for place in range(len(x))], device=x.device)
        apart = (told - x).abs() / self.space.span
        apart = torch.where(is_category, (apart > 0).to(x), apart)
        nearest = int(apart.amax(dim=-1).argmin()) if len(told) else None
        constraints = self.goal.constraints
        prior = adapt_kernel(self._known.kernel, self.num_tasks)
        inside = surrogate.units.scale_points(X)
        covariance = prior(inside, inside).reshape(self.num_tasks, self.num_tasks)
        deviation = root_of(covariance.diagonal())
        return Explanation(
            point=dict(zip(self.space.input_names, self.space.format_points(X)[0], strict=True)),
            tasks=self.goal.label_tasks(),
            mean=mean,
            lower=lower,
            upper=upper,
            level=level,
            probability=None if constraints is None else constraints.probability(belief.mean, belief.covariance).item(),
            gain=self._expect_gain(X),
            nearest=nearest,
            distance=x.new_zeros(len(x)) if nearest is None else apart[nearest],
            effects=torch.stack([self._find_effect(x, place) for place in range(len(x))]),
            correlation=covariance / deviation / deviation.unsqueeze(-1),
        )

    def _find_effect(self, x: Tensor, place: int) -> Tensor:
        """Return by how much the mean of each task changes along one input, ``n``."""
        values = self.space.list_values(place)
        line = x.repeat(len(values), 1)
        line[:, place] = values
        mean = self._surrogate.at(line).mean
        return mean.amax(dim=0) - mean.amin(dim=0)

    def _find_intervals(self, X: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, str]:
        """Return the ends of each task's interval at ``1 x d``, ``n`` both, and what they are."""
        deviation = 1.96 * root_of(variance)
        return mean - deviation, mean + deviation, "95 % of the posterior"

    def _expect_gain(self, X: Tensor) -> float | None:
        """Return the expected gain in hypervolume at ``1 x d``, as a share of what is dominated so far."""
        return None

    def _must_refit(self, now: int, count: int, renewed_at: int) -> bool:
        """Return whether kernels are to be learned again from now on, `count` observations after the last were told."""
        assert self.refit_every is not None
        return now // self.refit_every > (now - count) // self.refit_every

    def _pick_to_learn(self, told: Observations) -> Observations:
        """Return the observations that kernels are learned from."""
        return told

    @property
    def _surrogate(self) -> Surrogate:
        return self._known.own

    @abstractmethod
    def _make_model(self, X: Tensor, Y: Tensor, kernel: Kernel, eta: float | Tensor | None, **options: Any) -> ModelT:
        """Return the model of the strategy."""

    @abstractmethod
    def _fit_nothing(self, kernel: Kernel, noise: Tensor, X: Tensor, Y: Tensor) -> Regression:
        """Return the regression of the strategy before the first observation."""

    @abstractmethod
    def _grow(self, surrogate: Surrogate, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> Surrogate:
        """Return what is known after ``(b) x q x d`` more points, ``(b) x q x n`` values and their noise variances."""

    @abstractmethod
    def _restore(
        self, started: Knowledge, told: Observations, portions: list[int], memory: dict[str, Any]
    ) -> Surrogate:
        """Return what was known after the observations had been told in these portions, from what was at first."""

    def _start(self, kernel: Kernel, noise: Tensor, units: Units) -> Surrogate:
        """Return what is known before the first observation."""
        no_X, no_Y = self._observed_X.rows[..., :0, :], self._observed_Y.rows[..., :0, :]
        regression = self._fit_nothing(kernel, noise.unsqueeze(-2), no_X, no_Y)
        return self.space.watch(self._sweep(Surrogate(regression, units)))

    def _sweep(self, nothing: Surrogate) -> Surrogate:
        """Return what is known before the first observation with all the regularizers that the strategy needs."""
        return nothing

    def _learn(self, told: Observations, count: int) -> None:
        self._known = self._learner.learn(self._known, told, count)

    def _start_over(self, told: Observations) -> None:
        known = self._learner.start(self.num_tasks)
        self._known = self._learner.learn(known, told, told.size) if told.size else known

    def _memory(self) -> dict[str, Any]:
        return self._learner.memory(self._known)

    def _recall(self, told: Observations, portions: list[int], memory: dict[str, Any]) -> None:
        self._known = self._learner.recall(self._known, told, portions, memory)

    @abstractmethod
    def _describe_guarantee(self) -> str:
        """Return how optimistic the strategy is, and what that guarantees."""

    def _summarize(self) -> tuple[str, list[list[str]]]:
        headline, rows = super()._summarize()
        headline += f"; {self._describe_guarantee()}"
        if self.kernel_scores:
            ranked = ", ".join(f"{name} {score:.1f}" for name, score in self.kernel_scores.items())
            headline += f"; the kernel is {self._known.chosen!r} (scores: {ranked})"
        return headline, rows

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {
            "kernel": {name: describe_kernel(kernel) for name, kernel in self._kernels.items()},
            "eta": None if self.eta is None else float(self.eta),
            "refit_every": self.refit_every,
            **self.space.settings(),
        }


class ExactModelStrategy(ModelStrategy[ExactMultiTaskGP]):
    """A strategy that models all observations."""

    @property
    def _can_know_noise(self) -> bool:  # type: ignore[override]
        return self._can_miss_values and self.refit_every is not None

    def _make_model(
        self, X: Tensor, Y: Tensor, kernel: Kernel, eta: float | Tensor | None, **options: Any
    ) -> ExactMultiTaskGP:
        return ExactMultiTaskGP(X, Y, covar_module=kernel, eta=eta, allow_missing=self._can_miss_values, **options)

    def _fit_nothing(self, kernel: Kernel, noise: Tensor, X: Tensor, Y: Tensor) -> Regression:
        return adapt_kernel(kernel, Y.shape[-1]).fit(noise, X, Y)

    def _grow(self, surrogate: Surrogate, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> Surrogate:
        return surrogate.append(X, Y, noise)

    def _restore(
        self, started: Knowledge, told: Observations, portions: list[int], memory: dict[str, Any]
    ) -> Surrogate:
        # Telling the observations again, in the same portions, repeats the same arithmetic.
        for end, size in zip(accumulate(portions), portions, strict=True):
            started = self._learner.append(started, told.pick(slice(0, end)), size)
        return started.surrogate


def _cut_ties(kernel: Kernel) -> MultiTaskKernel:
    """Return the kernel of a strategy that learns each task separately."""
    if not isinstance(kernel, MultiTaskKernel):
        raise ValueError(
            f"kernel should be one of ours to be cut into independent tasks, got {type(kernel).__name__}. "
            "Pass for instance IndependentKernel([k1, k2])."
        )
    return kernel.independent()


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


def count_tasks(kernel: object, refit_every: int | None) -> int:
    """Return the number of tasks of a kernel, or the number itself for one that is learned."""
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
