"""How a strategy comes to its surrogate: with a kernel that is known, or one that is learned as data come in."""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from botorch.exceptions.errors import ModelFittingError
from gpytorch.kernels import Kernel
from torch import Tensor

from mtbo_torch.checks import require_finite
from mtbo_torch.models.learning import count_facts, learn_kernel, standardize
from mtbo_torch.models.noise import set_noise
from mtbo_torch.surrogate import IDENTITY, Surrogate, Units

if TYPE_CHECKING:
    from mtbo_torch.strategies.kernelized import KernelStrategy

# Where none is given, and until it is learned.
DEFAULT_ETA = 0.1


@dataclass(frozen=True)
class Knowledge:
    """The state of a strategy's learning. Immutable: it is replaced at the very end, so a refused call changes nothing.

    Attributes:
        surrogate: What is known.
        kernel: The kernel behind it.
        noise: ``(b) x 1`` or ``1``, the regularizer behind it.
        renewed_at: With how many observations its units, and perhaps its kernel, were last found.
        fresh_at: With how many the kernel was last learned from the start.
        facts: How much was known of the units when they were last found.
    """

    surrogate: Surrogate
    kernel: Kernel
    noise: Tensor
    renewed_at: int = 0
    fresh_at: int = 0
    facts: int = 0


class KnownKernel:
    """The kernel stays as it is given, in the user's units.

    Args:
        strategy: The strategy.
        kernel: The kernel.
        eta: The regularizer.
    """

    def __init__(self, strategy: KernelStrategy[Any], kernel: Kernel, eta: float | None) -> None:
        self.strategy, self.kernel, self.eta = strategy, kernel, eta

    def start(self, num_tasks: int) -> Knowledge:
        """Return what is known before the first observation of n tasks."""
        points = self.strategy.space.points
        noise = points.new_tensor([DEFAULT_ETA if self.eta is None else self.eta])
        no_Y = points.new_empty(*self.strategy.batch_shape, 0, num_tasks)
        return self._know(deepcopy(self.kernel).to(points), noise, self._find_units(no_Y))

    def learn(self, known: Knowledge, X: Tensor, Y: Tensor, count: int) -> Knowledge:
        """Return what is known after ``(b) x t x d`` points and their values, of which the last `count` are new."""
        new_X, new_Y = (values[..., values.shape[-2] - count :, :].contiguous() for values in (X, Y))
        return replace(known, surrogate=self.strategy._grow(known.surrogate, new_X, new_Y))

    def memory(self, known: Knowledge) -> dict[str, Any]:
        """Return what :meth:`recall` needs, as plain values and tensors."""
        units = known.surrogate.units
        return {
            "kernel": deepcopy(dict(known.kernel.state_dict())),
            "noise": known.noise.clone(),
            "offset": None if units.offset is None else units.offset.clone(),
            "scale": None if units.scale is None else units.scale.clone(),
            "renewed_at": known.renewed_at,
            "fresh_at": known.fresh_at,
        }

    def recall(self, known: Knowledge, X: Tensor, Y: Tensor, portions: list[int], memory: dict[str, Any]) -> Knowledge:
        """Return what was known after the observations had been told in these portions, bit for bit."""
        renewed_at, fresh_at = int(memory["renewed_at"]), int(memory["fresh_at"])
        kernel, noise = deepcopy(known.kernel), memory["noise"].to(X)
        kernel.load_state_dict(memory["kernel"])
        units = self._find_units(Y[..., :renewed_at, :])
        offset, scale = (None if memory[name] is None else memory[name].to(X) for name in ("offset", "scale"))
        if [_shape(offset), _shape(scale)] != [_shape(units.offset), _shape(units.scale)]:
            raise ValueError("units that do not belong to the observations")
        if noise.dim() > X.dim() - 1:
            raise ValueError(f"noise of shape {tuple(noise.shape)}")
        numbers = {"noise": noise, "offset": offset, "scale": scale} | dict(kernel.named_parameters())
        for name, value in numbers.items():
            if value is not None:
                require_finite(name, value)
        # To the last bit, which may depend on how the values lay in memory.
        started = self._know(kernel, noise, replace(units, offset=offset, scale=scale))
        joined = _join_until(portions, renewed_at)
        surrogate = self.strategy._restore(started.surrogate, X, Y, joined, memory)
        facts = count_facts(Y[..., :renewed_at, :])
        return replace(started, surrogate=surrogate, renewed_at=renewed_at, fresh_at=fresh_at, facts=facts)

    def _find_units(self, Y: Tensor) -> Units:
        return IDENTITY

    def _know(self, kernel: Kernel, noise: Tensor, units: Units) -> Knowledge:
        """Return what is known of a kernel before the first observation."""
        kernel = kernel.requires_grad_(False)
        return Knowledge(self.strategy._start(kernel, noise, units), kernel, noise)


class LearnedKernel(KnownKernel):
    """The kernel's free parameters are learned again and again, by maximum likelihood, in standardized units.

    Args:
        strategy: The strategy.
        kernel: The kernel that learning starts from.
        eta: The regularizer; None to learn it as well.
        refit_every: After how many observations the kernel is learned again.
    """

    def __init__(self, strategy: KernelStrategy[Any], kernel: Kernel, eta: float | None, refit_every: int) -> None:
        super().__init__(strategy, kernel, eta)
        self.refit_every = refit_every

    def learn(self, known: Knowledge, X: Tensor, Y: Tensor, count: int) -> Knowledge:
        now = X.shape[-2]
        if now // self.refit_every > (now - count) // self.refit_every:
            return self._fill(self._refit(known, X, Y), X, Y)
        # Before the first refit, the units follow the data at ever larger steps; always, once a task is seen or varies.
        is_early = now < self.refit_every and now >= 2 * known.renewed_at
        if is_early or (known.facts < 2 * Y[..., 0, :].numel() and count_facts(Y) > known.facts):
            renewed = self._know(known.kernel, known.noise, self._find_units(Y))
            return self._fill(replace(renewed, fresh_at=known.fresh_at), X, Y)
        return super().learn(known, X, Y, count)

    def _refit(self, known: Knowledge, X: Tensor, Y: Tensor) -> Knowledge:
        """Return a new kernel's knowledge before the first observation."""
        units, count = self._find_units(Y), X.shape[-2]
        # From where the last refit ended; once the data have doubled, from the start again.
        is_fresh = count >= 2 * known.fresh_at
        kernel = deepcopy(self.kernel if is_fresh else known.kernel)
        learned = {name for name, parameter in self.kernel.named_parameters() if parameter.requires_grad}
        for name, parameter in kernel.named_parameters():
            parameter.requires_grad_(name in learned)
        model = self.strategy._make_model(units.scale_points(X), units.scale_values(Y), kernel, self.eta)
        if not is_fresh and self.eta is None:
            set_noise(model.likelihood, known.noise)
        fresh_at = count if is_fresh else known.fresh_at
        try:
            learn_kernel(model)
        except ModelFittingError:
            warnings.warn(
                f"The kernel could not be learned from {count} observations; the strategy goes on with the one it had.",
                stacklevel=2,
            )
            return replace(self._know(known.kernel, known.noise, units), fresh_at=fresh_at)
        return replace(self._know(model.covar_module, model.noise.detach(), units), fresh_at=fresh_at)

    def _fill(self, started: Knowledge, X: Tensor, Y: Tensor) -> Knowledge:
        grown = self.strategy._grow(started.surrogate, X, Y)
        return replace(started, surrogate=grown, renewed_at=X.shape[-2], facts=count_facts(Y))

    def _find_units(self, Y: Tensor) -> Units:
        return standardize(self.strategy.space.points, Y)


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
