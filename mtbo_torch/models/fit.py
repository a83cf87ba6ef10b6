"""A fit that knows whether it is still valid, and the prior mean that it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gpytorch.means import Mean, MultitaskMean
from gpytorch.priors import Prior
from torch import Tensor
from torch.nn import Module

from mtbo_torch.linalg import is_free_to_look
from mtbo_torch.surrogate import Surrogate

# What torch itself keeps in every module: hooks, whether it is in training, and the tensors, which are looked at apart.
OF_EVERY_MODULE = vars(Module()).keys()


@dataclass(frozen=True, eq=False)
class Stamp:
    """The state of some data and modules: which objects they are, how often they were changed, and what they hold.

    Torch counts the changes of a tensor in place, which costs no look at it. GPyTorch's setters write past that
    counter, so wherever it is free to look, and wherever waiting is allowed, the values of parameters and buffers
    decide.

    Attributes:
        parts: The modules and all modules inside them, but for priors, and what each holds besides tensors.
        tensors: The data, and then the tensors of the modules.
        versions: How often each had been changed.
        values: Copies of those of the modules, which are few and small.
    """

    parts: list[tuple[Module, dict[str, object]]]
    tensors: list[Tensor]
    versions: list[int]
    values: list[Tensor]

    @classmethod
    def of(cls, data: Sequence[Tensor], modules: Sequence[Module]) -> Stamp:
        """Stamp the data, of which no copies are made, and the modules."""
        parts = _take_apart(modules)
        own = _collect_tensors(parts)
        tensors = [*data, *own]
        return cls(parts, tensors, [_version(x) for x in tensors], [x.detach().clone() for x in own])

    def matches(self, data: Sequence[Tensor], modules: Sequence[Module], may_wait: bool) -> bool:
        """Return whether nothing has changed since."""
        parts = _take_apart(modules)
        own = _collect_tensors(parts)
        if parts != self.parts or len(own) != len(self.values) or len(data) + len(own) != len(self.tensors):
            return False
        pairs = zip((*data, *own), self.tensors, self.versions, strict=True)
        same = [_is_same(now, then) and _version(now) == version for now, then, version in pairs]
        if not all(same[: len(data)]):
            return False
        if not own or not (may_wait or all(map(is_free_to_look, own))):
            return all(same)
        return _are_equal(own, self.values)


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


def _take_apart(modules: Sequence[Module]) -> list[tuple[Module, dict[str, object]]]:
    """Return all modules inside some with their settings; modules are equal if they are the same object."""
    parts = [part for module in modules for part in module.modules() if not isinstance(part, Prior)]
    return [(part, {name: _freeze(value) for name, value in _own(part)}) for part in parts]


def _collect_tensors(parts: Sequence[tuple[Module, dict[str, object]]]) -> list[Tensor]:
    """Return the parameters, the buffers, and the tensors that modules hold as plain attributes."""
    held = [(*part._parameters.values(), *part._buffers.values(), *(v for _, v in _own(part))) for part, _ in parts]
    return [value for values in held for value in values if isinstance(value, Tensor)]


def _own(part: Module) -> list[tuple[str, object]]:
    return [(name, value) for name, value in vars(part).items() if name not in OF_EVERY_MODULE]


def _freeze(value: object) -> object:
    """Return something that equals what is made of the same value later on, if nothing has changed."""
    if isinstance(value, list | tuple):
        return tuple(map(_freeze, value))
    if isinstance(value, dict):
        return {key: _freeze(item) for key, item in value.items()}
    return None if isinstance(value, Tensor) else value


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
