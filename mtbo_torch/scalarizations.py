r"""Scalarisations :math:`s_\lambda` with their Lipschitz constants, and the distributions the weights come from."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from botorch.acquisition.objective import MCAcquisitionObjective
from torch import Tensor

from mtbo_torch.checks import describe, require_count, require_finite, require_positive, require_tensor


class Scalarization(MCAcquisitionObjective, ABC):
    r"""A monotone map :math:`s_\lambda : R^n \to R`; also a BoTorch objective for Monte-Carlo acquisitions.

    Args:
        weights: ``(b) x n``, non-negative and not all zero: :math:`\lambda`, one for each batch.
    """

    weights: Tensor

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        _require_weights(weights)
        self.register_buffer("weights", weights)

    @property
    def num_tasks(self) -> int:
        return self.weights.shape[-1]

    @property
    @abstractmethod
    def lipschitz(self) -> Tensor:
        r"""``(b)``, the Lipschitz constant :math:`L_\lambda` in the Euclidean norm."""

    @abstractmethod
    def _scalarize(self, Y: Tensor) -> Tensor: ...

    def forward(self, samples: Tensor, X: Tensor | None = None) -> Tensor:
        """Scalarise ``... x (b) x q x n`` values into ``... x (b) x q``."""
        if samples.shape[-1] != self.num_tasks:
            raise ValueError(
                f"Y should be `... x q x n` with n = {self.num_tasks} tasks (from weights), "
                f"got shape {tuple(samples.shape)}. Pass one column per task."
            )
        return self._scalarize(samples)


class LinearScalarization(Scalarization):
    r""":math:`s_\lambda(y) = \sum_i \lambda_i y_i`, with :math:`L_\lambda = \|\lambda\|_2`.

    Example:
        >>> import torch
        >>> from mtbo_torch import LinearScalarization
        >>> LinearScalarization(torch.tensor([0.25, 0.75]))(torch.tensor([[4.0, 8.0]]))
        tensor([7.])
    """

    @property
    def lipschitz(self) -> Tensor:
        return torch.linalg.vector_norm(self.weights, dim=-1)

    def _scalarize(self, Y: Tensor) -> Tensor:
        return (Y @ self.weights.to(Y).unsqueeze(-1)).squeeze(-1)


class ChebyshevScalarization(Scalarization):
    r""":math:`s_\lambda(y) = \min_i \lambda_i (y_i - z_i)`, with :math:`L_\lambda = \max_i \lambda_i`.

    Args:
        weights: ``(b) x n``, non-negative and not all zero.
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
            require_tensor("ref_point", ref_point, "Pass one number per task.")
            if ref_point.dim() == 0 or ref_point.shape[-1] != self.num_tasks:
                raise ValueError(
                    f"ref_point should have one entry for each of the {self.num_tasks} tasks (from weights), "
                    f"got shape {tuple(ref_point.shape)}. Leave it out to use the origin."
                )
            require_finite("ref_point", ref_point)
        self.register_buffer("ref_point", ref_point)

    @property
    def lipschitz(self) -> Tensor:
        return self.weights.amax(dim=-1)

    def _scalarize(self, Y: Tensor) -> Tensor:
        if self.ref_point is not None:
            Y = Y - _beside_points(self.ref_point, Y)
        return (_beside_points(self.weights, Y) * Y).amin(dim=-1)


class WeightDistribution(ABC):
    r"""A distribution :math:`P_\lambda` of weights on the simplex.

    Args:
        num_tasks: The number of tasks n.
    """

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
        """Draw weights of shape ``shape x n``, non-negative with sum one.

        Args:
            shape: How many, as a number or a shape; a single vector by default.
            generator: The source of randomness.
            dtype: The default dtype if not given.
            device: The generator's device if not given.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(size < 0 for size in shape):
            raise ValueError(f"shape should not be negative, got {shape}. Pass how many weights to draw.")
        if device is None:
            device = "cpu" if generator is None else generator.device
        draw = self._draw((*shape, self.num_tasks), generator, dtype or torch.get_default_dtype(), torch.device(device))
        return draw / draw.sum(dim=-1, keepdim=True)

    @abstractmethod
    def _draw(
        self, shape: tuple[int, ...], generator: torch.Generator | None, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Draw non-negative vectors; :meth:`sample` makes them sum to one."""


class UniformWeights(WeightDistribution):
    r""":math:`\lambda = u / \|u\|_1` with u uniform on the unit cube.

    Example:
        >>> import torch
        >>> from mtbo_torch import UniformWeights
        >>> UniformWeights(3).sample(5, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([5, 3])
    """

    def _draw(
        self, shape: tuple[int, ...], generator: torch.Generator | None, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return _positive_uniform(shape, generator, dtype, device)


class InverseUniformWeights(WeightDistribution):
    r"""The paper's weights for the Chebyshev scalarisation (Section 5).

    :math:`\lambda = \alpha / \|\alpha\|_1`, :math:`\alpha_i = \|u\|_1 / u_i`, u uniform on the unit cube.

    Example:
        >>> import torch
        >>> from mtbo_torch import InverseUniformWeights
        >>> InverseUniformWeights(3).sample(generator=torch.Generator().manual_seed(0)).shape
        torch.Size([3])
    """

    def _draw(
        self, shape: tuple[int, ...], generator: torch.Generator | None, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        u = _positive_uniform(shape, generator, dtype, device)
        return u.amin(dim=-1, keepdim=True) / u  # proportional to 1 / u, without overflow


class DirichletWeights(WeightDistribution):
    r"""Weights from a Dirichlet distribution; uniform on the simplex when all concentrations are one.

    Args:
        num_tasks: The number of tasks n.
        concentration: A positive number, or a tensor with one for each task.

    Example:
        >>> import torch
        >>> from mtbo_torch import DirichletWeights
        >>> DirichletWeights(3, concentration=2.0).sample((4, 2)).shape
        torch.Size([4, 2, 3])
    """

    def __init__(self, num_tasks: int, concentration: float | Tensor = 1.0) -> None:
        super().__init__(num_tasks)
        value = torch.as_tensor(concentration)
        require_positive("concentration", value, "Use 1 for the uniform distribution on the simplex.")
        if value.shape not in (torch.Size(), torch.Size([num_tasks])):
            raise ValueError(
                f"concentration should be a number or have one entry for each of the {num_tasks} tasks, "
                f"got shape {tuple(value.shape)}. Pass a single number for a symmetric distribution."
            )
        self.concentration = value

    def __repr__(self) -> str:
        return f"DirichletWeights({self.num_tasks}, concentration={self.concentration.tolist()})"

    def _draw(
        self, shape: tuple[int, ...], generator: torch.Generator | None, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        alpha = self.concentration.to(dtype=torch.double, device=device).expand(shape).contiguous()
        # torch.distributions takes no generator; this is the draw behind its Gamma. In logarithms, because a
        # Gamma(alpha) = Gamma(alpha + 1) U^(1 / alpha) underflows when alpha is small.
        larger = torch._standard_gamma(alpha + 1, generator=generator)
        u = _positive_uniform(shape, generator, torch.double, device)
        logs = larger.log() + u.log() / alpha
        return (logs - logs.amax(dim=-1, keepdim=True)).exp().to(dtype)


class FixedWeights(WeightDistribution):
    r"""Always the same weights: a deterministic scalarisation. They are scaled to sum to one.

    Args:
        weights: ``n``, non-negative and not all zero.

    Example:
        >>> import torch
        >>> from mtbo_torch import FixedWeights
        >>> FixedWeights(torch.tensor([1.0, 3.0])).sample(2)
        tensor([[0.2500, 0.7500],
                [0.2500, 0.7500]])
    """

    def __init__(self, weights: Tensor) -> None:
        _require_weights(weights)
        if weights.dim() != 1:
            raise ValueError(
                f"weights should be a vector with one entry per task, got shape {tuple(weights.shape)}. "
                "Use sample(shape) for a batch of them."
            )
        super().__init__(weights.shape[-1])
        self.weights = weights

    def __repr__(self) -> str:
        return f"FixedWeights({self.weights.tolist()})"

    def _draw(
        self, shape: tuple[int, ...], generator: torch.Generator | None, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return self.weights.to(dtype=dtype, device=device).expand(shape)


def _beside_points(vectors: Tensor, Y: Tensor) -> Tensor:
    """``(b) x n`` vectors so that they broadcast with ``... x (b) x q x n`` values."""
    return (vectors if vectors.dim() == 1 else vectors.unsqueeze(-2)).to(Y)


def _positive_uniform(
    shape: tuple[int, ...], generator: torch.Generator | None, dtype: torch.dtype, device: torch.device
) -> Tensor:
    u = torch.rand(shape, generator=generator, dtype=dtype, device=device)
    return u.clamp_min(torch.finfo(dtype).eps)


def default_weights(scalarization: type[Scalarization], num_tasks: int) -> WeightDistribution:
    """:class:`InverseUniformWeights` (the paper's) for the Chebyshev scalarisation, else :class:`UniformWeights`."""
    is_chebyshev = issubclass(scalarization, ChebyshevScalarization)
    return InverseUniformWeights(num_tasks) if is_chebyshev else UniformWeights(num_tasks)


def _require_weights(weights: object) -> None:
    weights = require_tensor("weights", weights, "Pass one non-negative number per task.")
    if weights.dim() == 0 or weights.shape[-1] == 0:
        raise ValueError(
            f"weights should be `n` or `(b) x n`, got shape {tuple(weights.shape)}. Pass one number per task."
        )
    require_finite("weights", weights)
    if (weights < 0).any() or (weights.amax(dim=-1) == 0).any():
        raise ValueError(
            f"weights should be non-negative and not all zero, got {describe(weights)}. "
            "Turn the sign of an objective that is to be minimised instead."
        )
