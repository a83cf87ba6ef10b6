"""The contract of vector-valued kernel ridge regression, and how points of any batch shape reach it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Protocol, Self

import torch
from torch import Tensor

SINGULAR_REMEDY = "Use a larger eta, float64, or fewer near-duplicate points."


class ScalarKernel(Protocol):
    """A scalar kernel ``k`` as plain tensors, with leading batch dimensions broadcast."""

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        """``(b) x N1 x N2``."""
        ...

    def diag(self, X: Tensor) -> Tensor:
        """``(b) x N``, the values ``k(x, x)``."""
        ...


class MatrixKernel(Protocol):
    """A matrix-valued kernel ``Gamma`` as plain tensors, point-major."""

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        """``(b) x N1 n x N2 n``."""
        ...

    def blocks(self, X: Tensor) -> Tensor:
        """``(b) x N x n x n``, the matrices ``Gamma(x, x)``."""
        ...


@dataclass(frozen=True)
class SeparableSum:
    """``Gamma = sum_j k_j B_j``; a :class:`MatrixKernel`.

    Attributes:
        kernels: The scalar kernels ``k_j``.
        task_covars: The matrices ``B_j``, each ``(b) x n x n``.
    """

    kernels: tuple[ScalarKernel, ...]
    task_covars: tuple[Tensor, ...]

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        return sum_all(kron(k(X1, X2), B) for k, B in zip(self.kernels, self.task_covars, strict=True))

    def blocks(self, X: Tensor) -> Tensor:
        """``(b) x N x n x n``, ``Gamma(x, x)`` at ``(b) x N x d`` points."""
        return sum_all(
            k.diag(X)[..., None, None] * B.unsqueeze(-3) for k, B in zip(self.kernels, self.task_covars, strict=True)
        )


def sum_all(tensors: Iterable[Tensor]) -> Tensor:
    """The sum of at least one tensor."""
    return reduce(torch.add, tensors)


def kron(K: Tensor, B: Tensor) -> Tensor:
    """Batched ``kron(K, B)``: ``... x p x q`` and ``... x n x m`` give ``... x pn x qm``."""
    product = K[..., :, None, :, None] * B[..., None, :, None, :]
    return product.flatten(-4, -3).flatten(-2, -1)


def variances_along(covariance: Tensor, directions: Tensor | None) -> Tensor:
    """``... x q x n x n`` covariances along ``(b) x k x n`` directions (None: the tasks), ``... x q x k``."""
    if directions is None:
        return covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0)
    directions = directions.to(covariance).unsqueeze(-3)
    return ((directions @ covariance) * directions).sum(dim=-1).clamp_min(0)


def raise_variances(covariance: Tensor) -> Tensor:
    """Covariances ``... x n x n`` with zero for variances that rounding has made negative."""
    return covariance + torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1).neg().clamp_min(0))


def shared_product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` for ``(b) x r x q x m`` and ``(b) x G x m x N``; with G = 1 `right` is read only once."""
    groups, q = left.shape[-3:-1]
    if right.shape[-3] == groups:
        return left @ right
    return (left.flatten(-3, -2) @ right.squeeze(-3)).unflatten(-2, (groups, q))


class Regression(ABC):
    r"""Vector-valued kernel ridge regression on ``t`` observations of ``n`` tasks, ``b`` data sets at once.

    .. math::

        \mu_t(x) &= G_t(x)^T (G_t + \eta I)^{-1} vec(Y_t) \\
        \Gamma_t(x, x') &= \Gamma(x, x') - G_t(x)^T (G_t + \eta I)^{-1} G_t(x')

    with :math:`\eta I` replaced by :math:`I \otimes diag(noise)` when the tasks have noises of their own. Points
    come as ``... x (b) x q x d``, and everything said about them has the leading shape ``... x (b) x q``.
    Objects are immutable.

    Attributes:
        train_X: ``(b) x t x d``.
        train_Y: ``(b) x t x n``; NaN for a value that was not seen, which all but the Nystrom regression allow.
        noise: ``(b) x 1`` (the same for all tasks) or ``(b) x n``.
    """

    if TYPE_CHECKING:  # fields or properties, as each subclass pleases

        @property
        def train_X(self) -> Tensor: ...
        @property
        def train_Y(self) -> Tensor: ...
        @property
        def noise(self) -> Tensor: ...

    @property
    def batch_shape(self) -> torch.Size:
        """``(b)``, of the data sets."""
        return self.train_X.shape[:-2]

    @property
    def num_observations(self) -> int:
        """The number of points t."""
        return self.train_X.shape[-2]

    @property
    def num_tasks(self) -> int:
        """The number of tasks n."""
        return self.train_Y.shape[-1]

    @property
    @abstractmethod
    def info_gain(self) -> Tensor:
        r"""``(b)``, the information gain :math:`\frac12 \log\det(I + \eta^{-1} G_t)`."""

    @property
    @abstractmethod
    def mean_norm(self) -> Tensor:
        r"""``(b)``, the RKHS norm :math:`\|\mu_t\|_\Gamma` of the mean."""

    @abstractmethod
    def append(self, X: Tensor, Y: Tensor) -> Regression:
        """Condition on ``(b) x q x d`` points and ``(b) x q x n`` values; the kernel matrix is not factorised anew."""

    @abstractmethod
    def expand(self, batch_shape: torch.Size) -> Self:
        """The same regression under a larger batch shape, as views."""

    @abstractmethod
    def mean(self, X: Tensor) -> Tensor:
        r"""``... x (b) x q x n``, :math:`\mu_t(x)`."""

    @abstractmethod
    def covariance(self, X: Tensor) -> Tensor:
        r"""``... x (b) x q x n x n``, :math:`\Gamma_t(x, x)` at each point."""

    @abstractmethod
    def joint_covariance(self, X: Tensor) -> Tensor:
        r"""``... x (b) x qn x qn``, :math:`[\Gamma_t(x_i, x_j)]_{ij}`, point-major."""

    @abstractmethod
    def mean_and_norm(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""The mean, and the operator norm :math:`\|\Gamma_t(x, x)\|` of shape ``... x (b) x q``, in one pass."""

    def mean_and_covariance(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and :meth:`covariance`."""
        return self.mean(X), self.covariance(X)

    def mean_and_variance(self, X: Tensor, directions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""The mean, and the variances :math:`e^T \Gamma_t(x, x) e` of shape ``... x (b) x q x k``.

        Args:
            X: ``... x (b) x q x d``.
            directions: ``(b) x k x n``, the directions e; by default the n tasks.
        """
        mean, covariance = self.mean_and_covariance(X)
        return mean, variances_along(covariance, directions)

    def prepare_variances(self) -> None:  # noqa: B027
        """Do once what makes :meth:`mean_and_variance` cheap at very many points, if there is such a thing."""

    def covariance_norm(self, X: Tensor) -> Tensor:
        r"""``... x (b) x q``, :math:`\|\Gamma_t(x, x)\|`."""
        return self.mean_and_norm(X)[1]

    def follow(self, points: Tensor) -> Followed:
        """Keep mean and norm up to date at a fixed set of ``N x d`` points while observations arrive."""
        return Followed(self, points)


class Followed:
    """Mean and norm of a regression at fixed points; this general version computes them when asked.

    Attributes:
        regression: The regression that is followed.
        points: ``N x d``.
    """

    def __init__(self, regression: Regression, points: Tensor) -> None:
        self.regression = regression
        self.points = points

    def append(self, X: Tensor, Y: Tensor) -> Followed:
        """Append to the regression; returns a new object."""
        return Followed(self.regression.append(X, Y), self.points)

    def mean_and_norm(self) -> tuple[Tensor, Tensor]:
        """``(b) x N x n`` and ``(b) x N``."""
        return self.regression.mean_and_norm(self.points)

    def mean_and_variance(self, directions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``(b) x N x n``, and ``(b) x N x k`` variances along ``(b) x k x n`` directions, by default the tasks."""
        return self.regression.mean_and_variance(self.points, directions)

    def mean_and_covariance(self) -> tuple[Tensor, Tensor]:
        """``(b) x N x n`` and ``(b) x N x n x n``."""
        return self.regression.mean_and_covariance(self.points)


@dataclass(frozen=True)
class Folded:
    """Points of shape ``... x (b) x q x d`` folded into ``(b) x P x d``, one long list for each data set.

    One long list turns many small products into a single large one. Data sets of batch size one also take the
    points' batch dimension at their place into the list.

    Attributes:
        points: ``(b) x P x d``.
        unfold: Takes ``(b) x P x *tail`` back to ``... x (b) x q x *tail``.
    """

    points: Tensor
    unfold: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, X: Tensor, batch_shape: torch.Size) -> Folded:
        """Fold ``... x (b) x q x d`` points for data sets of this batch shape."""
        if not batch_shape:
            return cls(X.reshape(-1, X.shape[-1]), lambda values: values.reshape(*X.shape[:-1], *values.shape[1:]))
        full = torch.broadcast_shapes(X.shape[:-2], batch_shape)
        X = X.expand(*full, *X.shape[-2:])
        first = len(full) - len(batch_shape)
        mine = [first + i for i, size in enumerate(batch_shape) if size == full[first + i]]
        extra = [i for i in range(len(full)) if i not in mine]
        order = [*mine, *extra, len(full)]
        moved = X.permute(*order, len(full) + 1)
        inverse = sorted(range(len(order)), key=order.__getitem__)

        def unfold(values: Tensor) -> Tensor:
            tail = values.shape[len(batch_shape) + 1 :]
            values = values.reshape(*moved.shape[:-1], *tail)
            return values.permute(*inverse, *range(len(order), values.dim()))

        return cls(moved.reshape(*batch_shape, -1, X.shape[-1]), unfold)
