r"""Scalarizations :math:`s_\lambda` with their Lipschitz constants, and the distributions the weights come from."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from typing import Any, Self

import torch
from botorch.acquisition.objective import MCAcquisitionObjective
from torch import Tensor

from mtbo_torch.checks import (
    describe,
    require_broadcast,
    require_count,
    require_finite,
    require_positive,
    require_same_kind,
    require_tensor,
)
from mtbo_torch.regression import Belief

# How wide a rounded kink is, as a share of what is uncertain.
ROUND_SHARE = 0.3
# By how much the sums of a box may miss one.
ROUNDING = 1e-6


class Scalarization(MCAcquisitionObjective, ABC):
    r"""The base of all scalarizations: one value :math:`s_\lambda(y)`, to be maximized, from the values y of n tasks.

    :math:`s_\lambda : R^n \to R` never falls when a task rises. It is a BoTorch objective for Monte-Carlo acquisitions,
    too. For one of your own, define ``_scalarize``, from ``... x n`` values to ``...``, and :attr:`lipschitz`. If its
    constructor has a parameter `ref_point`, it gets the reference point, wherever there is one.

    Args:
        weights: ``(b) x n``, non-negative and not all zero: :math:`\lambda`, one for each batch.

    Example:
        >>> import torch
        >>> from mtbo_torch.scalarizations import Scalarization
        >>> class Smallest(Scalarization):
        ...     def _scalarize(self, Y):
        ...         return Y.amin(dim=-1)
        ...     @property
        ...     def lipschitz(self):
        ...         return torch.ones_like(self.weights[..., 0])
        >>> Smallest(torch.ones(2))(torch.tensor([[4.0, 8.0], [5.0, -1.0]]))
        tensor([ 4., -1.])
    """

    weights: Tensor
    # Whether the norm of what is known of the tasks is that of what is known of the objectives.
    keeps_norm = True

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        require_weights(weights)
        self.register_buffer("weights", weights)

    @classmethod
    def default_weights(cls, num_tasks: int) -> WeightDistribution:
        """Return the distribution of weights that goes with the scalarization; unless a class says otherwise, uniform.

        Example:
            >>> from mtbo_torch import ChebyshevScalarization
            >>> ChebyshevScalarization.default_weights(3)
            InverseUniformWeights(3)
        """
        return UniformWeights(num_tasks)

    @classmethod
    def takes_ref_point(cls) -> bool:
        """Return whether the constructor has a parameter `ref_point`."""
        return "ref_point" in inspect.signature(cls).parameters

    @classmethod
    def needs_ref_point(cls) -> bool:
        """Return whether the constructor cannot do without `ref_point`."""
        parameter = inspect.signature(cls).parameters.get("ref_point")
        return parameter is not None and parameter.default is parameter.empty

    @classmethod
    def build(cls, weights: Tensor, ref_point: Tensor | None = None) -> Self:
        """Return one with ``(b) x n`` weights and, if the class takes one, a reference point, ``n`` or ``(b) x n``."""
        if ref_point is None or not cls.takes_ref_point():
            return cls(weights)
        return cls(weights, ref_point=ref_point)  # type: ignore[call-arg]

    @property
    def num_tasks(self) -> int:
        """The number of tasks n."""
        return self.weights.shape[-1]

    @property
    @abstractmethod
    def lipschitz(self) -> Tensor:
        r"""``(b)``, the Lipschitz constant: :math:`|s_\lambda(y) - s_\lambda(y')| \le L_\lambda \|y - y'\|_2`."""

    @property
    def directions(self) -> Tensor | None:
        """``(b) x k x n``, the directions in which :meth:`upper_bound` wants to know deviations; None for the tasks."""
        return None

    def upper_bound(self, mean: Tensor, deviations: Tensor) -> Tensor:
        r"""Return the largest value, ``... x q``, if y is within `deviations` of `mean` in each of :attr:`directions`.

        For the tasks that is :math:`s_\lambda(\mu + \delta)`, because s never falls when one of them rises.

        Args:
            mean: ``... x q x n``, :math:`\mu`.
            deviations: ``... x q x k``, :math:`\delta`.
        """
        return self(mean + deviations)

    def round_off(self, Y: Tensor, deviations: Tensor) -> Tensor:
        r"""Return :math:`s_\lambda(y)`, ``... x q``, with its kinks rounded off, for a search that follows gradients.

        Args:
            Y: ``... x q x n``, y.
            deviations: ``... x q x n`` or ``... x q x 1``, how uncertain y is: the kinks are as wide as a share of it.
        """
        return self(Y)

    def for_search(self) -> Scalarization:
        """Return a scalarization with the same best points whose search is never on a plateau."""
        return self

    def on_objectives(self, belief: Belief) -> tuple[Scalarization, Belief]:
        """Return a scalarization that never falls when an objective rises, and what is known of the objectives."""
        return self, belief

    @abstractmethod
    def _scalarize(self, Y: Tensor) -> Tensor: ...

    def forward(self, samples: Tensor, X: Tensor | None = None) -> Tensor:
        """Scalarize ``... x (b) x q x n`` values into ``... x (b) x q``; `X` is ignored, for BoTorch."""
        samples = require_tensor("Y", samples, "Pass one column per task.")
        if samples.dim() == 0 or samples.shape[-1] != self.num_tasks:
            raise ValueError(
                f"Y should be `... x q x n` with n = {self.num_tasks} tasks (from weights), "
                f"got shape {tuple(samples.shape)}. Pass one column per task."
            )
        if self.weights.dim() > 1:
            require_broadcast("The batches of weights and Y", self.weights.shape[:-1], samples.shape[:-2])
        return self._scalarize(samples)


class LinearScalarization(Scalarization):
    r"""The weighted sum :math:`s_\lambda(y) = \sum_i \lambda_i y_i`, with :math:`L_\lambda = \|\lambda\|_2`.

    Args:
        weights: ``(b) x n``, non-negative and not all zero.

    Example:
        >>> import torch
        >>> from mtbo_torch import LinearScalarization
        >>> LinearScalarization(torch.tensor([0.25, 0.75]))(torch.tensor([[4.0, 8.0]]))
        tensor([7.])
    """

    @property
    def lipschitz(self) -> Tensor:
        r"""``(b)``, :math:`\|\lambda\|_2`."""
        return torch.linalg.vector_norm(self.weights, dim=-1)

    @property
    def directions(self) -> Tensor:
        """``(b) x 1 x n``, the weights."""
        return self.weights.unsqueeze(-2)

    def upper_bound(self, mean: Tensor, deviations: Tensor) -> Tensor:
        r"""Return :math:`\lambda^T \mu + \delta`, ``... x q``, for ``... x q x n`` means and ``... x q x 1`` deltas."""
        return self(mean) + deviations.squeeze(-1)

    def _scalarize(self, Y: Tensor) -> Tensor:
        return (Y @ self.weights.to(Y).unsqueeze(-1)).squeeze(-1)


class ChebyshevScalarization(Scalarization):
    r"""The worst weighted task, :math:`s_\lambda(y) = \min_i \lambda_i (y_i - z_i)`.

    With z below all values, or above all, every point of the Pareto front maximizes it for some weights; of the
    weighted sum that is only true of convex fronts.

    Args:
        weights: ``(b) x n``, non-negative and not all zero. A larger one makes a task matter more if z is above its
            values, less if z is below.
        ref_point: ``n`` or ``(b) x n``, the reference point z; the origin by default.

    Example:
        >>> import torch
        >>> from mtbo_torch import ChebyshevScalarization
        >>> ChebyshevScalarization(torch.tensor([0.25, 0.75]))(torch.tensor([[4.0, 8.0]]))
        tensor([1.])
    """

    ref_point: Tensor | None

    def __init__(self, weights: Tensor, ref_point: Tensor | None = None) -> None:
        super().__init__(weights)
        if ref_point is not None:
            _require_point("ref_point", ref_point, weights)
        self.register_buffer("ref_point", ref_point)

    @classmethod
    def default_weights(cls, num_tasks: int) -> WeightDistribution:
        """Return the paper's weights."""
        return InverseUniformWeights(num_tasks)

    @property
    def lipschitz(self) -> Tensor:
        r"""``(b)``, :math:`\max_i \lambda_i`."""
        return self.weights.amax(dim=-1)

    def round_off(self, Y: Tensor, deviations: Tensor) -> Tensor:
        r"""Return :math:`\tau \log n - \tau \log \sum_i \exp(-\lambda_i (y_i - z_i) / \tau)`, ``... x q``.

        That is never below :math:`s_\lambda(y)`, and at most :math:`\tau \log n` above it. :math:`\tau` is 0.3 times
        the average of :math:`\lambda_i` times the deviation.

        Args:
            Y: ``... x q x n``, y.
            deviations: ``... x q x n`` or ``... x q x 1``.
        """
        width = ROUND_SHARE * (_beside_points(self.weights, Y) * deviations).mean(dim=-1, keepdim=True)
        width = width.clamp_min(torch.finfo(Y.dtype).tiny ** 0.5)
        parts = self._weigh(Y)
        smallest = parts.detach().amin(dim=-1, keepdim=True)
        rest = ((smallest - parts) / width).exp().mean(dim=-1, keepdim=True)
        return (smallest - width * rest.log()).squeeze(-1)

    def _weigh(self, Y: Tensor) -> Tensor:
        if self.ref_point is not None:
            Y = Y - _beside_points(self.ref_point, Y)
        return _beside_points(self.weights, Y) * Y

    def _scalarize(self, Y: Tensor) -> Tensor:
        return self._weigh(Y).amin(dim=-1)


class HypervolumeScalarization(Scalarization):
    r"""For the hypervolume, :math:`s_\lambda(y) = \min_i (\max(0, (y_i - z_i) / \lambda_i))^n`.

    With :class:`SphereWeights`, the average over :math:`\lambda` of the best value in a set is the hypervolume that the
    set dominates beyond z, divided by a constant, the volume of the unit ball's positive part (Zhang & Golovin 2020):
    who maximizes :math:`s_\lambda` in each round maximizes the hypervolume. Where something is gained, it ranks points
    as :meth:`chebyshev` does.

    Args:
        weights: ``(b) x n``, non-negative and not all zero. A small one makes a task matter little.
        ref_point: ``n`` or ``(b) x n``, the reference point z of the hypervolume: what counts exceeds it in every task.
        upper: ``n`` or ``(b) x n``, the largest values that the tasks can take, from which :attr:`lipschitz` follows.
            Only the bound ``"norm"`` of an acquisition needs it.

    Example:
        >>> import torch
        >>> from mtbo_torch import HypervolumeScalarization
        >>> scalarization = HypervolumeScalarization(torch.tensor([0.6, 0.8]), ref_point=torch.zeros(2))
        >>> scalarization(torch.tensor([[1.2, 2.4], [1.0, -0.1]]))
        tensor([4., 0.])
    """

    ref_point: Tensor
    upper: Tensor | None

    def __init__(self, weights: Tensor, ref_point: Tensor, upper: Tensor | None = None) -> None:
        super().__init__(weights)
        _require_point("ref_point", ref_point, weights)
        if upper is not None:
            _require_point("upper", upper, weights)
            require_broadcast("ref_point and upper", ref_point.shape, upper.shape)
            if not (upper > ref_point).all():
                raise ValueError(
                    f"upper should exceed ref_point in every task, got {describe(upper)} against "
                    f"{describe(ref_point)}. Pass the largest values that the tasks can take."
                )
        self.register_buffer("ref_point", ref_point)
        self.register_buffer("upper", upper)

    @classmethod
    def default_weights(cls, num_tasks: int) -> WeightDistribution:
        """Return the weights for which the average of the best value is a hypervolume."""
        return SphereWeights(num_tasks)

    def for_search(self) -> ChebyshevScalarization:
        """Return :meth:`chebyshev`, which also ranks points that do not exceed the reference point."""
        return self.chebyshev()

    @property
    def lipschitz(self) -> Tensor:
        r"""``(b)``, :math:`n M^{n-1} / \min_i \lambda_i` with :math:`M = \min_i (u_i - z_i) / \lambda_i`, for y <= u.

        Raises:
            ValueError: If `upper` was not given.
        """
        if self.upper is None:
            raise ValueError(
                "upper should be given for a Lipschitz constant, which this scalarization only has on a bounded range, "
                'got None. Pass upper=, or use bound="ellipsoid", which needs no constant.'
            )
        steps = (self.upper - self.ref_point).to(self.weights) / self._positive_weights
        slope = self.num_tasks * steps.amin(dim=-1) ** (self.num_tasks - 1)
        return slope / self._positive_weights.amin(dim=-1)

    def chebyshev(self) -> ChebyshevScalarization:
        r"""Return the scalarization c with :math:`s = \max(0, c)^n`: weights :math:`1 / \lambda_i`, the same point.

        It also ranks points that are worth nothing here, so a search is never on a plateau.
        """
        return ChebyshevScalarization(self._positive_weights.reciprocal(), self.ref_point)

    @property
    def _positive_weights(self) -> Tensor:
        # So much larger than zero that its reciprocal has a square, and a gradient.
        return self.weights.clamp_min(torch.finfo(self.weights.dtype).eps ** 0.5)

    def _scalarize(self, Y: Tensor) -> Tensor:
        steps = (Y - _beside_points(self.ref_point, Y)) / _beside_points(self._positive_weights, Y)
        return steps.amin(dim=-1).clamp_min(0) ** self.num_tasks


class ObjectiveScalarization(Scalarization):
    r"""A scalarization of objectives that are linear in the tasks: :math:`s(C y)`.

    A row of C with a single entry of -1 is a task to be minimized; a column of zeros, a task that is no objective. So
    it may fall when a task rises, but not when an objective does.

    Args:
        scalarization: s, of the k objectives, all maximized.
        objectives: ``k x n``, the matrix C.

    Example:
        >>> import torch
        >>> from mtbo_torch import LinearScalarization, ObjectiveScalarization
        >>> profit_and_cost = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
        >>> scalarization = ObjectiveScalarization(LinearScalarization(torch.tensor([0.5, 0.5])), profit_and_cost)
        >>> scalarization(torch.tensor([[3.0, 1.0]]))
        tensor([1.])
    """

    objectives: Tensor
    _stretch: Tensor

    def __init__(self, scalarization: Scalarization, objectives: Tensor) -> None:
        require_scalarization(scalarization)
        super().__init__(scalarization.weights)
        objectives = require_tensor("objectives", objectives, "Pass one row per objective and one column per task.")
        if objectives.dim() != 2 or objectives.shape[-1] == 0 or len(objectives) != scalarization.num_tasks:
            raise ValueError(
                f"objectives should be `k x n` with k = {scalarization.num_tasks} (from the scalarization's weights), "
                f"got shape {tuple(objectives.shape)}. Pass one row per objective and one column per task."
            )
        require_finite("objectives", objectives)
        self.scalarization = scalarization
        self.register_buffer("objectives", objectives)
        self.register_buffer("_stretch", torch.linalg.matrix_norm(objectives, ord=2), persistent=False)
        gram = objectives.mT @ objectives
        eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        # Whether the objectives are all tasks in some order, some of them with their sign turned.
        self.keeps_norm = len(objectives) == self.num_tasks and bool((gram == eye).all())

    @property
    def num_tasks(self) -> int:
        """The number of tasks n, not that of the k objectives, which have the weights."""
        return self.objectives.shape[-1]

    @property
    def lipschitz(self) -> Tensor:
        r"""``(b)``, :math:`L_\lambda \|C\|` with the largest singular value of C."""
        return self.scalarization.lipschitz * self._stretch.to(self.weights)

    @property
    def directions(self) -> Tensor:
        """``k x n``, the rows of C; or ``(b) x 1 x n``, their weighted sum, for a linear scalarization."""
        inner = self.scalarization.directions
        return self.objectives if inner is None else inner @ self.objectives.to(inner)

    def upper_bound(self, mean: Tensor, deviations: Tensor) -> Tensor:
        return self.scalarization.upper_bound(mean @ self.objectives.to(mean).mT, deviations)

    def for_search(self) -> ObjectiveScalarization:
        inner = self.scalarization.for_search()
        return self if inner is self.scalarization else ObjectiveScalarization(inner, self.objectives)

    def on_objectives(self, belief: Belief) -> tuple[Scalarization, Belief]:
        return self.scalarization, belief.mapped(self.objectives, keeps_norm=self.keeps_norm)

    def _scalarize(self, Y: Tensor) -> Tensor:
        return self.scalarization(Y @ self.objectives.to(Y).mT)


class WeightDistribution(ABC):
    r"""A distribution of weights :math:`P_\lambda`, on the simplex unless a class says otherwise.

    For one of your own, define ``_draw``, which need not normalize what it draws.

    Args:
        num_tasks: The number of tasks n.

    Example:
        >>> import torch
        >>> from mtbo_torch.scalarizations import WeightDistribution
        >>> class OneTaskAtATime(WeightDistribution):
        ...     def _draw(self, like, generator):
        ...         order = torch.rand(like.shape, generator=generator).argsort(dim=-1)
        ...         return (order == 0).to(like)
        >>> OneTaskAtATime(3).sample(100, generator=torch.Generator().manual_seed(0)).sum(dim=-1).unique()
        tensor([1.])
    """

    _norm_order = 1

    def __init__(self, num_tasks: int) -> None:
        require_count("num_tasks", num_tasks, "Pass the number of tasks.")
        self.num_tasks = num_tasks

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_tasks})"

    def sample(
        self,
        shape: int | torch.Size | tuple[int, ...] = (),
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw weights of shape ``shape x n``, non-negative; with sum one, unless the class says otherwise.

        Args:
            shape: How many, as a number or a shape; a single vector by default.
            generator: The source of randomness.
            dtype: The default dtype if not given.
            device: The generator's device if not given, or the CPU without one.

        Example:
            >>> import torch
            >>> from mtbo_torch import UniformWeights
            >>> UniformWeights(3).sample((4, 2), dtype=torch.double).shape
            torch.Size([4, 2, 3])
        """
        shape = _checked_shape(shape)
        if generator is not None and not isinstance(generator, torch.Generator):
            raise ValueError(
                f"generator should be a torch.Generator, got {type(generator).__name__}. "
                "Pass for instance torch.Generator().manual_seed(0)."
            )
        if dtype not in (None, torch.float32, torch.float64):
            raise ValueError(f"dtype should be torch.float32 or torch.float64, got {dtype}. Cast what is drawn.")
        if device is None:
            device = "cpu" if generator is None else generator.device
        draw = self._draw(torch.empty(*shape, self.num_tasks, dtype=dtype, device=device), generator)
        return draw / torch.linalg.vector_norm(draw, ord=self._norm_order, dim=-1, keepdim=True)

    @abstractmethod
    def _draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw non-negative vectors of the shape, dtype and device of `like`; :meth:`sample` normalizes them."""


class UniformWeights(WeightDistribution):
    r"""Normalized uniform weights, :math:`\lambda = u / \|u\|_1` with u uniform on the unit cube.

    They favor the middle of the simplex; :class:`DirichletWeights` are uniform on it.

    Args:
        num_tasks: The number of tasks n.

    Example:
        >>> import torch
        >>> from mtbo_torch import UniformWeights
        >>> UniformWeights(3).sample(5, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([5, 3])
    """

    def _draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        return _positive_uniform(like, generator)


class InverseUniformWeights(WeightDistribution):
    r"""The paper's weights for the Chebyshev scalarization (Section 5).

    :math:`\lambda = \alpha / \|\alpha\|_1`, :math:`\alpha_i = \|u\|_1 / u_i`, u uniform on the unit cube.

    Args:
        num_tasks: The number of tasks n.

    Example:
        >>> import torch
        >>> from mtbo_torch import InverseUniformWeights
        >>> InverseUniformWeights(3).sample(generator=torch.Generator().manual_seed(0)).shape
        torch.Size([3])
    """

    def _draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        u = _positive_uniform(like, generator)
        return u.amin(dim=-1, keepdim=True) / u  # proportional to 1 / u, without overflow


class DirichletWeights(WeightDistribution):
    r"""Weights from a Dirichlet distribution, with a density proportional to :math:`\prod_i \lambda_i^{a_i - 1}`.

    Args:
        num_tasks: The number of tasks n.
        concentration: :math:`a`, a positive number or ``n`` of them. With 1, the default, weights are uniform on the
            simplex; larger ones gather around :math:`a / \|a\|_1`, smaller ones at the corners.

    Example:
        >>> import torch
        >>> from mtbo_torch import DirichletWeights
        >>> DirichletWeights(3, concentration=2.0).sample((4, 2)).shape
        torch.Size([4, 2, 3])
    """

    def __init__(self, num_tasks: int, concentration: float | Tensor = 1.0) -> None:
        super().__init__(num_tasks)
        require_positive("concentration", concentration, "Use 1 for the uniform distribution on the simplex.")
        value = torch.as_tensor(concentration)
        if value.shape not in (torch.Size(), torch.Size([num_tasks])):
            raise ValueError(
                f"concentration should be a number or have one entry for each of the {num_tasks} tasks, "
                f"got shape {tuple(value.shape)}. Pass a single number for a symmetric distribution."
            )
        self.concentration = value

    def __repr__(self) -> str:
        return f"DirichletWeights({self.num_tasks}, concentration={self.concentration.tolist()})"

    def _draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        alpha = self.concentration.to(like.device, torch.double).expand(like.shape).contiguous()
        # torch.distributions takes no generator; this is the draw behind its Gamma. In logarithms, because a
        # Gamma(alpha) = Gamma(alpha + 1) U^(1 / alpha) underflows when alpha is small.
        larger = torch._standard_gamma(alpha + 1, generator=generator)
        u = _positive_uniform(alpha, generator)
        logs = larger.log() + u.log() / alpha
        return (logs - logs.amax(dim=-1, keepdim=True)).exp().to(like)


class SphereWeights(WeightDistribution):
    r"""Uniform on the positive part of the unit sphere, for :class:`HypervolumeScalarization`: squares sum to one.

    :math:`\lambda = |z| / \|z\|_2` with z from the standard normal distribution.

    Args:
        num_tasks: The number of tasks n.

    Example:
        >>> import torch
        >>> from mtbo_torch import SphereWeights
        >>> SphereWeights(3).sample(5).square().sum(dim=-1).allclose(torch.ones(5))
        True
    """

    _norm_order = 2

    def _draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        normal = torch.empty_like(like).normal_(generator=generator)
        return normal.abs().clamp_min(torch.finfo(like.dtype).eps)


class BoxWeights(WeightDistribution):
    r"""Weights in a part of the simplex, :math:`l_i \le \lambda_i \le u_i`: a preference for a part of the front.

    The weights are drawn one after another in random order, each uniformly from what the box and those before leave it.

    Args:
        lower: ``n``, l, non-negative, with a sum of at most one.
        upper: ``n``, u, not below `lower`, with a sum of at least one.

    Example:
        >>> import torch
        >>> from mtbo_torch import BoxWeights
        >>> weights = BoxWeights(lower=torch.tensor([0.5, 0.0]), upper=torch.tensor([0.8, 1.0])).sample(100)
        >>> weights[:, 0].min() > 0.499, weights[:, 0].max() < 0.801
        (tensor(True), tensor(True))
    """

    def __init__(self, lower: Tensor, upper: Tensor) -> None:
        for name, value in (("lower", lower), ("upper", upper)):
            require_tensor(name, value, "Pass one number per task.")
            if value.dim() != 1 or len(value) == 0:
                raise ValueError(
                    f"{name} should be a vector with one entry per task, got shape {tuple(value.shape)}. "
                    "Pass one number per task."
                )
            require_finite(name, value)
        require_same_kind(("lower", lower), ("upper", upper))
        if lower.shape != upper.shape or (lower < 0).any() or (upper < lower).any():
            raise ValueError(
                f"lower and upper should satisfy 0 <= lower <= upper in every task, got {describe(lower)} and "
                f"{describe(upper)}. Use 0 and 1 where a weight is free."
            )
        if lower.sum() > 1 + ROUNDING or upper.sum() < 1 - ROUNDING:
            raise ValueError(
                f"lower and upper should leave room for weights that sum to one, got sums of {lower.sum():g} and "
                f"{upper.sum():g}. Widen the box."
            )
        super().__init__(len(lower))
        self.lower, self.upper = lower, upper

    def __repr__(self) -> str:
        return f"BoxWeights({self.lower.tolist()}, {self.upper.tolist()})"

    def _draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        order, u = (torch.empty_like(like).uniform_(generator=generator) for _ in range(2))
        order = order.argsort(dim=-1)
        lower, upper = (bound.to(u).expand(like.shape).gather(-1, order) for bound in (self.lower, self.upper))
        rest, later_lower, later_upper = u.new_ones(like.shape[:-1]), lower.sum(dim=-1), upper.sum(dim=-1)
        drawn = torch.zeros_like(u)
        for i in range(self.num_tasks):
            later_lower, later_upper = later_lower - lower[..., i], later_upper - upper[..., i]
            least = torch.maximum(lower[..., i], rest - later_upper)
            most = torch.minimum(upper[..., i], rest - later_lower)
            drawn[..., i] = torch.lerp(least, most, u[..., i])
            rest = rest - drawn[..., i]
        return torch.zeros_like(u).scatter(-1, order, drawn).clamp(self.lower.to(u), self.upper.to(u))


class FixedWeights(WeightDistribution):
    r"""Always the same weights, :math:`\lambda = w / \|w\|_1`: one trade-off.

    Args:
        weights: ``n``, w, non-negative and not all zero.

    Example:
        >>> import torch
        >>> from mtbo_torch import FixedWeights
        >>> FixedWeights(torch.tensor([1.0, 3.0])).sample(2)
        tensor([[0.2500, 0.7500],
                [0.2500, 0.7500]])
    """

    def __init__(self, weights: Tensor) -> None:
        require_weights(weights)
        if weights.dim() != 1:
            raise ValueError(
                f"weights should be a vector with one entry per task, got shape {tuple(weights.shape)}. "
                "Use sample(shape) for a batch of them."
            )
        super().__init__(weights.shape[-1])
        self.weights = weights

    def __repr__(self) -> str:
        return f"FixedWeights({self.weights.tolist()})"

    def _draw(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.weights.to(like).expand(like.shape)


def _beside_points(vectors: Tensor, Y: Tensor) -> Tensor:
    """Shape ``(b) x n`` vectors so that they broadcast with ``... x (b) x q x n`` values."""
    return (vectors if vectors.dim() == 1 else vectors.unsqueeze(-2)).to(Y)


def _positive_uniform(like: Tensor, generator: torch.Generator | None) -> Tensor:
    uniform = torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)
    return uniform.clamp_min_(torch.finfo(like.dtype).eps)


def _checked_shape(shape: object) -> tuple[int, ...]:
    sizes: tuple[Any, ...] = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        raise ValueError(f"shape should be an integer or several, got {shape!r}. Pass how many weights to draw.")
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape should not be negative, got {sizes}. Pass how many weights to draw.")
    return sizes


def _require_point(name: str, point: object, weights: Tensor) -> None:
    point, num_tasks = require_tensor(name, point, "Pass one number per task."), weights.shape[-1]
    if point.dim() == 0 or point.shape[-1] != num_tasks:
        raise ValueError(
            f"{name} should have one entry for each of the {num_tasks} tasks (from weights), "
            f"got shape {tuple(point.shape)}. Pass one number per task."
        )
    require_broadcast(f"{name} and weights", point.shape, weights.shape)
    require_finite(name, point)


def require_weights(weights: object) -> None:
    """Refuse anything but non-negative ``(b) x n`` weights."""
    weights = require_tensor("weights", weights, "Pass one non-negative number per task.")
    if weights.dim() == 0 or weights.shape[-1] == 0:
        raise ValueError(
            f"weights should be `n` or `(b) x n`, got shape {tuple(weights.shape)}. Pass one number per task."
        )
    # They are few, and every round has new ones.
    if all(min(row) >= 0 and 0 < sum(row) < math.inf for row in weights.reshape(-1, weights.shape[-1]).tolist()):
        return
    require_finite("weights", weights)
    if (weights < 0).any() | (weights.amax(dim=-1) == 0).any():
        raise ValueError(
            f"weights should be non-negative and not all zero, got {describe(weights)}. "
            "Turn the sign of an objective that is to be minimized instead."
        )


def require_scalarization(scalarization: object) -> None:
    """Refuse anything but a scalarization."""
    if not isinstance(scalarization, Scalarization):
        raise ValueError(
            f"scalarization should be a Scalarization, got {type(scalarization).__name__}. "
            "Pass for instance ChebyshevScalarization(weights)."
        )


def require_scalarization_class(scalarization: object) -> None:
    """Refuse anything but a class of scalarizations."""
    if not (isinstance(scalarization, type) and issubclass(scalarization, Scalarization)):
        raise ValueError(
            f"scalarization should be a class such as ChebyshevScalarization, got {scalarization!r}. "
            "Every round builds one with weights of its own."
        )
