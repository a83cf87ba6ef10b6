"""A fit that knows whether it is still valid, and the parts of a model that a fit depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gpytorch.means import Mean, MultitaskMean
from torch import Tensor

from mtbo_torch.linalg import is_free_to_look
from mtbo_torch.surrogate import Surrogate


@dataclass(frozen=True)
class Stamp:
    """The state of some tensors: which they are, how often they were changed, and what they held.

    Torch counts the changes of a tensor in place, which costs no look at it. GPyTorch's setters write past that
    counter, so wherever it is free to look, and wherever waiting is allowed, the values decide.

    Attributes:
        tensors: The tensors themselves.
        versions: How often each had been changed.
        values: Copies of those tensors that are few and small.
    """

    tensors: tuple[Tensor, ...]
    versions: tuple[int, ...]
    values: tuple[Tensor, ...]

    @classmethod
    def of(cls, data: Sequence[Tensor], parameters: Sequence[Tensor]) -> Stamp:
        """Stamp the data, of which no copies are made, and the parameters."""
        tensors = (*parameters, *data)
        return cls(tensors, tuple(map(_version, tensors)), tuple(value.detach().clone() for value in parameters))

    def matches(self, data: Sequence[Tensor], parameters: Sequence[Tensor], may_wait: bool) -> bool:
        """Return whether nothing has changed since."""
        count = len(parameters)
        if count != len(self.values) or len(data) != len(self.tensors) - count:
            return False
        same = [
            _is_same(now, then) and _version(now) == version
            for now, then, version in zip((*parameters, *data), self.tensors, self.versions, strict=True)
        ]
        if not all(same[count:]):
            return False
        if not parameters or not (may_wait or all(map(is_free_to_look, parameters))):
            return all(same)
        return _are_equal(parameters, self.values)


@dataclass(frozen=True)
class Fit:
    """A surrogate, and the state of everything that it was fitted to."""

    surrogate: Surrogate
    stamp: Stamp


def evaluate_mean(module: Mean, X: Tensor, num_tasks: int) -> Tensor:
    """Return ``... x q x n``, a prior mean for one output or for all."""
    mean = module(X)
    if not isinstance(module, MultitaskMean):
        mean = mean.unsqueeze(-1)
    return mean.expand(*mean.shape[:-1], num_tasks)


def _is_same(now: Tensor, then: Tensor) -> bool:
    """Return whether two tensors are one, or the same memory: BoTorch's transforms detach theirs at every call."""
    return now is then or (now.data_ptr() == then.data_ptr() and now.shape == then.shape and now.dtype == then.dtype)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _are_equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Return whether the tensors are the same, NaN being equal to NaN."""
    pairs = list(zip(first, second, strict=True))
    if any(a.shape != b.shape or a.dtype != b.dtype or a.device != b.device for a, b in pairs):
        return False
    if all(is_free_to_look(a) for a, _ in pairs):
        return all(torch.equal(a, b) or bool(_equals(a, b)) for a, b in pairs)
    # Elsewhere all at once, to wait for the device only once.
    return bool(torch.stack([_equals(a, b) for a, b in pairs]).all())


def _equals(a: Tensor, b: Tensor) -> Tensor:
    return ((a == b) | (a.isnan() & b.isnan())).all()
