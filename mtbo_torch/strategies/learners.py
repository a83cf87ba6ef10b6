"""How a strategy comes to its surrogate: with a kernel that is known, or one that is learned as data come in."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from botorch.exceptions.errors import ModelFittingError
from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.checks import require_finite
from mtbo_torch.models import ExactMultiTaskGP
from mtbo_torch.models.learning import count_facts, learn_kernel, score_kernel, standardize
from mtbo_torch.models.noise import MIN_LEARNED_NOISE, observe_noise, set_noise, usual_noise_of
from mtbo_torch.strategies.base import Observations
from mtbo_torch.surrogate import IDENTITY, Surrogate, Units

if TYPE_CHECKING:
    from mtbo_torch.strategies.modeling import ModelStrategy

# Where none is given, and until it is learned.
DEFAULT_ETA = 0.1


# By how much another kernel's score has to be larger before it takes the place of the one that is used. On BoTorch's
# problems this halves the number of changes and costs hardly any accuracy.
SMALLEST_LEAD = 2.0
# Kernels with less weight than this are left out of an average.
LEAST_WEIGHT = 0.02


@dataclass(frozen=True)
class Candidate:
    """A kernel that may be chosen, as it was last learned.

    Attributes:
        kernel: The kernel.
        noise: ``(b) x n`` or ``1``, the regularizer that was learned with it.
        scores: ``(b)`` on the CPU, how well it suited the data at the last refit, by :func:`score_kernel`; NaN if it
            was not asked.
    """

    kernel: Kernel
    noise: Tensor
    scores: Tensor

    @property
    def score(self) -> float:
        """The mean of its scores over the trials."""
        return self.scores.mean().item()


@dataclass(frozen=True)
class Knowledge:
    """The state of a strategy's learning. Immutable: it is replaced at the very end, so a refused call changes nothing.

    Attributes:
        surrogate: What is known; with all regularizers of a mixture where these are kept up to date.
        candidates: The kernels that may be behind it, by name.
        chosen: The name of the one that is.
        renewed_at: With how many observations its units, and perhaps its kernel, were last found.
        fresh_at: With how many the kernel was last learned from the start.
        facts: How much was known of the units when they were last found.
    """

    surrogate: Surrogate
    candidates: Mapping[str, Candidate]
    chosen: str
    renewed_at: int = 0
    fresh_at: int = 0
    facts: int = 0

    @property
    def kernel(self) -> Kernel:
        """The kernel behind the surrogate."""
        return self.candidates[self.chosen].kernel

    @property
    def noise(self) -> Tensor:
        """``(b) x n`` or ``1``, the regularizer behind it."""
        return self.candidates[self.chosen].noise

    @cached_property
    def own(self) -> Surrogate:
        """What is known with the one regularizer :attr:`noise`."""
        known = self.surrogate
        if not known.regression.is_swept:
            return known
        return replace(known, regression=known.regression.with_noise(self.noise.unsqueeze(-2)), tracking=None)


class KnownKernel:
    """The kernel stays as it is given, in the user's units.

    Args:
        strategy: The strategy.
        kernels: The kernel, or several of which the first is used at the start, by name.
        eta: The regularizer.
    """

    def __init__(self, strategy: ModelStrategy[Any], kernels: Mapping[str, Kernel], eta: float | None) -> None:
        self.strategy, self.kernels, self.eta = strategy, kernels, eta

    def start(self, num_tasks: int) -> Knowledge:
        """Return what is known before the first observation of n tasks."""
        points = self.strategy.space.points
        noise = points.new_tensor([DEFAULT_ETA if self.eta is None else self.eta])
        no_Y = points.new_empty(*self.strategy.batch_shape, 0, num_tasks)
        unknown = torch.full(self.strategy.batch_shape, math.nan, dtype=torch.double)
        kernels = {name: deepcopy(kernel).to(points) for name, kernel in self.kernels.items()}
        candidates = {name: Candidate(kernel, noise, unknown) for name, kernel in kernels.items()}
        return self._know(candidates, next(iter(candidates)), self._find_units(no_Y))

    def learn(self, known: Knowledge, told: Observations, count: int) -> Knowledge:
        """Return what is known after all observations, of which the last `count` are new."""
        return self.append(known, told, count)

    def append(self, known: Knowledge, told: Observations, count: int) -> Knowledge:
        """Return what is known after the last `count` of all observations, kernel and units as they are."""
        start = told.size - count
        X, Y = (part.narrow(-2, start, count).contiguous() for part in (told.X, told.Y))
        noise = self.find_own_noise(known, told.sd)
        own = None if noise is None else noise.narrow(-2, start, count)
        return replace(known, surrogate=self.strategy._grow(known.surrogate, X, Y, own))

    def weigh(self, known: Knowledge, told: Observations) -> list[tuple[Surrogate, Tensor]]:
        """Return what each kernel that may be right makes of all observations, and its weights, ``(b)``."""
        return [(known.own, torch.ones(self.strategy.batch_shape, dtype=torch.double))]

    def find_own_noise(self, known: Knowledge, sd: Tensor) -> Tensor | None:
        """Return the variances of the values' noise, ``(b) x t x n``; None if it is the same for all of a task's.

        Args:
            known: What is presumed of the noise where it is not known.
            sd: ``(b) x t x n``, standard deviations, NaN where they are not known.
        """
        return None

    def memory(self, known: Knowledge) -> dict[str, Any]:
        """Return what :meth:`recall` needs, as plain values and tensors."""
        units = known.surrogate.units
        candidates = {
            name: {
                "kernel": deepcopy(dict(one.kernel.state_dict())),
                "noise": one.noise.clone(),
                "scores": one.scores.clone(),
            }
            for name, one in known.candidates.items()
        }
        return {
            "candidates": candidates,
            "chosen": known.chosen,
            "offset": None if units.offset is None else units.offset.clone(),
            "scale": None if units.scale is None else units.scale.clone(),
            "renewed_at": known.renewed_at,
            "fresh_at": known.fresh_at,
        }

    def recall(self, known: Knowledge, told: Observations, portions: list[int], memory: dict[str, Any]) -> Knowledge:
        """Return what was known after the observations had been told in these portions, bit for bit."""
        X, Y = told.X, told.Y
        renewed_at, fresh_at = int(memory["renewed_at"]), int(memory["fresh_at"])
        candidates = {name: _restore(one, memory["candidates"][name], X) for name, one in known.candidates.items()}
        if memory["chosen"] not in candidates:
            raise ValueError(f"a kernel called {memory['chosen']!r}")
        units = self._find_units(Y[..., :renewed_at, :])
        offset, scale = (None if memory[name] is None else memory[name].to(X) for name in ("offset", "scale"))
        if [_shape(offset), _shape(scale)] != [_shape(units.offset), _shape(units.scale)]:
            raise ValueError("units that do not belong to the observations")
        for name, value in {"offset": offset, "scale": scale}.items():
            if value is not None:
                require_finite(name, value)
        # To the last bit, which may depend on how the values lay in memory.
        started = self._know(candidates, memory["chosen"], replace(units, offset=offset, scale=scale))
        joined = _join_until(portions, renewed_at)
        surrogate = self.strategy._restore(started, told, joined, memory)
        facts = count_facts(Y[..., :renewed_at, :])
        return replace(started, surrogate=surrogate, renewed_at=renewed_at, fresh_at=fresh_at, facts=facts)

    def _find_units(self, Y: Tensor) -> Units:
        return IDENTITY

    def _know(self, candidates: Mapping[str, Candidate], chosen: str, units: Units) -> Knowledge:
        """Return what is known of the kernels before the first observation."""
        for one in candidates.values():
            one.kernel.requires_grad_(False)
        started = self.strategy._start(candidates[chosen].kernel, candidates[chosen].noise, units)
        return Knowledge(started, candidates, chosen)


class LearnedKernel(KnownKernel):
    """The kernels' free parameters are learned again and again, by maximum likelihood, in standardized units.

    Of several kernels, that with the largest score is used, if it leads by enough: so none takes the place of another
    for a single observation's sake. The trials of a batch use the same one, by the mean of their scores.

    Args:
        strategy: The strategy.
        kernels: The kernels that learning starts from, by name.
        eta: The regularizer; None to learn it as well.
        refit_every: After how many observations the kernels are learned again, at first.
    """

    def __init__(
        self, strategy: ModelStrategy[Any], kernels: Mapping[str, Kernel], eta: float | None, refit_every: int
    ) -> None:
        super().__init__(strategy, kernels, eta)
        self.refit_every = refit_every

    def learn(self, known: Knowledge, told: Observations, count: int) -> Knowledge:
        now, Y = told.size, told.Y
        if self.strategy._must_refit(now, count, known.renewed_at):
            return self._fill(self._refit(known, told), told)
        # Before the first refit, the units follow the data at ever larger steps; always, once a task is seen or varies.
        is_early = now < self.refit_every and now >= 2 * known.renewed_at
        if is_early or (known.facts < 2 * Y[..., 0, :].numel() and count_facts(Y) > known.facts):
            renewed = self._know(known.candidates, known.chosen, self._find_units(Y))
            return self._fill(replace(renewed, fresh_at=known.fresh_at), told)
        return self.append(known, told, count)

    def weigh(self, known: Knowledge, told: Observations) -> list[tuple[Surrogate, Tensor]]:
        scores = torch.stack([one.scores for one in known.candidates.values()])
        if known.candidates[known.chosen].scores.isnan().any():  # it could not be learned anew
            return super().weigh(known, told)
        weights = zip(known.candidates, weigh_scores(scores), strict=True)
        return [(self._exchange(known, name, told), weight) for name, weight in weights if weight.any()]

    def _exchange(self, known: Knowledge, name: str, told: Observations) -> Surrogate:
        """Return what another of the kernels makes of all observations."""
        if name == known.chosen:
            return known.own
        other = self._know(known.candidates, name, known.surrogate.units)
        return self.append(other, told, told.size).own

    def find_own_noise(self, known: Knowledge, sd: Tensor) -> Tensor | None:
        if not self.strategy._may_know_noise:
            return None
        units, usual = known.surrogate.units, known.noise.unsqueeze(-2)
        variances = _scale_noise(units, sd)
        if ((variances == usual) | sd.isnan()).all():
            return None
        return units.restore_variances(torch.where(sd.isnan(), usual, variances))

    def _refit(self, known: Knowledge, told: Observations) -> Knowledge:
        """Return what is known of the kernels learned anew, before the first observation."""
        units, count = self._find_units(told.Y), told.size
        # From where the last refit ended; once the data have doubled, from the start again.
        is_fresh = count >= 2 * known.fresh_at
        some = self.strategy._pick_to_learn(told)
        scaled = (units.scale_points(some.X), units.scale_values(some.Y), _scale_noise(units, some.sd))
        fitted = {name: self._fit(name, known.candidates[name], *scaled, is_fresh) for name in self.kernels}
        unknown = torch.full(self.strategy.batch_shape, math.nan, dtype=torch.double)
        candidates = {name: fitted[name] or replace(known.candidates[name], scores=unknown) for name in fitted}
        scores = {name: one.score for name, one in fitted.items() if one is not None}
        if not scores:
            warnings.warn(
                f"The kernel could not be learned from {count} observations; the strategy goes on with the one it had.",
                stacklevel=2,
            )
        chosen = choose(scores, known.chosen) if scores else known.chosen
        return replace(self._know(candidates, chosen, units), fresh_at=count if is_fresh else known.fresh_at)

    def _fit(self, name: str, last: Candidate, X: Tensor, Y: Tensor, noise: Tensor, is_fresh: bool) -> Candidate | None:
        """Return a kernel learned from standardized data, or None if it cannot be learned."""
        kernel = deepcopy(self.kernels[name] if is_fresh else last.kernel)
        learned = {name for name, parameter in self.kernels[name].named_parameters() if parameter.requires_grad}
        for path, parameter in kernel.named_parameters():
            parameter.requires_grad_(path in learned)
        model = ExactMultiTaskGP(X, Y, kernel, self.eta, allow_missing=self.strategy._can_miss_values)
        if not is_fresh and self.eta is None:
            set_noise(model.likelihood, last.noise)
        if not noise.isnan().all():
            model.likelihood = observe_noise(model.likelihood, noise, Y)
        try:
            learn_kernel(model)
        except ModelFittingError:
            return None
        scores = score_kernel(model).double().cpu() if len(self.kernels) > 1 else torch.full_like(last.scores, math.nan)
        return Candidate(model.covar_module, usual_noise_of(model.likelihood).detach(), scores)

    def _fill(self, started: Knowledge, told: Observations) -> Knowledge:
        return replace(self.append(started, told, told.size), renewed_at=told.size, facts=count_facts(told.Y))

    def _find_units(self, Y: Tensor) -> Units:
        return standardize(self.strategy.space.hull, Y)


def choose(scores: Mapping[str, float], current: str) -> str:
    """Return the name with the largest score, or the current one if that hardly leads."""
    best = max(scores, key=lambda name: -math.inf if math.isnan(scores[name]) else scores[name])
    lead = scores[best] - scores.get(current, -math.inf)
    return current if lead <= SMALLEST_LEAD else best


def weigh_scores(scores: Tensor) -> Tensor:
    """Return weights in proportion to the exponentials of scores (Akaike's), zero for those that are hardly anything.

    Args:
        scores: ``K x (b)``, of each kernel in each trial, NaN for those that were not asked.
    """
    weights = scores.nan_to_num(nan=-torch.inf).softmax(dim=0)
    weights = torch.where(weights < LEAST_WEIGHT, 0, weights)
    return weights / weights.sum(dim=0)


def _scale_noise(units: Units, sd: Tensor) -> Tensor:
    """Return standard deviations of noise as variances inside, at least as large as can be told from none."""
    least = min(torch.finfo(sd.dtype).eps ** 0.5, MIN_LEARNED_NOISE)
    scale = sd.new_ones(()) if units.scale is None else units.scale
    return (sd / scale).square().clamp_min(least)


def _restore(candidate: Candidate, memory: dict[str, Any], X: Tensor) -> Candidate:
    kernel, noise = deepcopy(candidate.kernel), memory["noise"].to(X)
    kernel.load_state_dict(memory["kernel"])
    if noise.dim() > X.dim() - 1:
        raise ValueError(f"noise of shape {tuple(noise.shape)}")
    for name, value in {"noise": noise, **dict(kernel.named_parameters())}.items():
        require_finite(name, value)
    scores = memory["scores"]
    if scores.shape != candidate.scores.shape:
        raise ValueError(f"scores of shape {tuple(scores.shape)}")
    return Candidate(kernel, noise, scores.double().cpu())


def _shape(tensor: Tensor | None) -> torch.Size | None:
    return None if tensor is None else tensor.shape


def _join_until(portions: list[int], start: int) -> list[int]:
    """Return the portions of the observations, those before `start` as one."""
    later, rest = [], sum(portions) - start
    for size in reversed(portions):
        if rest <= 0:
            break
        later.append(size)
        rest -= size
    return ([start] if start else []) + later[::-1]
