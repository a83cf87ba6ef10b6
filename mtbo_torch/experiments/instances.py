"""The objective functions of several parallel trials."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from botorch.test_functions.base import MultiObjectiveTestProblem
from torch import Tensor

from mtbo_torch.kernels import MultiTaskKernel
from mtbo_torch.optimization import maximize
from mtbo_torch.scalarizations import Scalarization

# For the best value on a box, the reference of every regret.
BEST_RESTARTS, BEST_RAW_SAMPLES, POLISHING_STEPS = 4, 1024, 40


def derive_seed(seed: int, trial: int, purpose: str) -> int:
    """Derive the seed of one source of randomness of one trial; different purposes are independent."""
    digest = hashlib.sha256(f"{seed}/{trial}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


@dataclass(frozen=True)
class Instances(ABC):
    r"""b functions, and what an algorithm knows about them.

    Attributes:
        kernel: The multi-task kernel, one for all trials or with batch shape ``b``.
        norm_bound: ``b``, the bounds on the RKHS norms.
        noise_scale: The standard deviation of the noise.
    """

    kernel: MultiTaskKernel
    norm_bound: Tensor
    noise_scale: float

    @property
    @abstractmethod
    def space(self) -> dict[str, Tensor]:
        """The ``choices`` or ``bounds`` of a strategy, as keyword arguments."""

    @property
    @abstractmethod
    def attainable(self) -> Tensor | None:
        """The values on a finite domain, ``b x N x n``; None on a box."""

    @abstractmethod
    def evaluate(self, X: Tensor) -> Tensor:
        """Return the noiseless values ``b x q x n`` at ``b x q x d`` points."""

    @abstractmethod
    def find_best(self, scalarization: type[Scalarization], weights: Tensor) -> Tensor:
        r"""Return :math:`\max_x s_\lambda(f(x))`, ``b x q``, for ``b x q x n`` weights."""

    @property
    def num_tasks(self) -> int:
        """The number of tasks n."""
        return self.kernel.num_tasks


@dataclass(frozen=True)
class FiniteInstances(Instances):
    """Functions on N points, given by their values.

    Attributes:
        choices: ``N x d``.
        table: ``b x N x n``.
    """

    choices: Tensor
    table: Tensor

    @property
    def space(self) -> dict[str, Tensor]:
        return {"choices": self.choices}

    @property
    def attainable(self) -> Tensor:
        return self.table

    def evaluate(self, X: Tensor) -> Tensor:
        index = (X.unsqueeze(-2) == self.choices).all(dim=-1).to(torch.uint8).argmax(dim=-1)
        return self.table.gather(-2, index.unsqueeze(-1).expand(*index.shape, self.num_tasks))

    def find_best(self, scalarization: type[Scalarization], weights: Tensor) -> Tensor:
        # In chunks, since b x q x N x n numbers may not fit into memory.
        pieces = [scalarization(w)(self.table.unsqueeze(1)).amax(dim=-1) for w in weights.split(50, dim=1)]
        return torch.cat(pieces, dim=1)


@dataclass(frozen=True)
class BoxInstances(Instances):
    """One function on a box; trials differ in noise and weights.

    Attributes:
        problem: A test problem whose objectives are maximized.
        bounds: ``2 x d``.
    """

    problem: MultiObjectiveTestProblem
    bounds: Tensor
    _known: dict[tuple[str, bytes], Tensor] = field(default_factory=dict, repr=False)

    @property
    def space(self) -> dict[str, Tensor]:
        return {"bounds": self.bounds}

    @property
    def attainable(self) -> None:
        return None

    def evaluate(self, X: Tensor) -> Tensor:
        return self.problem.evaluate_true(X)

    def find_best(self, scalarization: type[Scalarization], weights: Tensor) -> Tensor:
        # All algorithms have the same weights, so one search serves all of them.
        key = (scalarization.__name__, weights.cpu().numpy().tobytes())
        if key not in self._known:
            self._known[key] = self._search(scalarization, weights)
        return self._known[key]

    def _search(self, scalarization: type[Scalarization], weights: Tensor) -> Tensor:
        flat, index = weights.flatten(end_dim=-2).unique(dim=0, return_inverse=True)
        scalarized = scalarization(flat)

        def function(X: Tensor) -> Tensor:
            return scalarized(self.problem.evaluate_true(X).unsqueeze(-2)).squeeze(-1)

        x, values = maximize(function, self.bounds, [0] * len(flat), BEST_RESTARTS, BEST_RAW_SAMPLES)
        return _polish(function, self.bounds, x, values)[index].reshape(weights.shape[:-1])


def _polish(function: Callable[[Tensor], Tensor], bounds: Tensor, x: Tensor, values: Tensor) -> Tensor:
    """Improve values by ever shorter steps in random directions, which also climb along a kink."""
    generator = torch.Generator().manual_seed(0)
    for exponent in range(POLISHING_STEPS):
        directions = torch.randn(32, 1, x.shape[-1], generator=generator, dtype=torch.double).to(x)
        steps = 0.03 * 0.75**exponent * (bounds[1] - bounds[0]) * directions
        candidates = torch.maximum(torch.minimum(x + steps, bounds[1]), bounds[0])
        found, place = function(candidates).max(dim=0)
        better = found > values
        x = torch.where(better.unsqueeze(-1), candidates[place, torch.arange(len(x), device=x.device)], x)
        values = torch.where(better, found, values)
    return values


def compute_norm_over_kappa(values: Tensor, kernel: MultiTaskKernel) -> Tensor:
    r"""Compute the paper's :math:`b = \max_x \|f(x)\|_2 / \kappa` from ``b x N x n`` values, for :math:`k(x, x) = 1`.

    It is not a bound on the RKHS norm, although the paper uses it as one.
    """
    ((_, B),) = kernel.terms()
    kappa = torch.linalg.eigvalsh(B.to(values)).amax(dim=-1)
    return values.norm(dim=-1).amax(dim=-1) / kappa
