r"""The regressions of one data set with many regularizers, from one diagonalization of the kernel matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mtbo_torch.linalg import operator_norm
from mtbo_torch.regression.base import Regression, expand_fields
from mtbo_torch.regression.dense import DenseRegression
from mtbo_torch.regression.kronecker import GroupedKernel
from mtbo_torch.regression.spectrum import Spectrum, whiten

if TYPE_CHECKING:
    from mtbo_torch.regression.structure import SeparableSum


@dataclass(frozen=True, eq=False)
class SpectralRegression(Regression):
    r"""The answers of a :class:`KroneckerRegression` with :math:`\Gamma = k B`, from :math:`K_t = Q diag(e) Q^T`.

    With whitened eigenvalues :math:`\xi_g` of B, :math:`(K_t + I / \xi_g)^{-1} = Q diag(1 / (e + 1 / \xi_g)) Q^T` for
    all groups and all regularizers: fitting costs one :math:`O(t^3)`, and a point :math:`O(t^2)`, however many there
    are. New observations start again.

    Attributes:
        kernel: The scalar kernel, and :math:`\xi_g`, ``A x (b) x r``.
        spectrum: The groups.
        noise: ``A x (b) x 1 x 1``.
        vectors: ``(b) x t x t``, Q.
        values: ``(b) x t x 1``, e.
    """

    kernel: GroupedKernel
    spectrum: Spectrum
    noise: Tensor
    train_X: Tensor
    train_Y: Tensor
    vectors: Tensor
    values: Tensor

    @classmethod
    def fit(cls, whole: SeparableSum, noise: Tensor, X: Tensor, Y: Tensor) -> SpectralRegression:
        """Fit a kernel ``k B`` to ``(b) x t x d`` points and ``(b) x t x n`` values with ``A x (b) x 1 x 1`` noises."""
        spectrum = Spectrum.of(whiten(whole.task_covars, noise))
        assert spectrum is not None  # one matrix commutes with itself
        values, vectors = torch.linalg.eigh(whole.kernels[0](X, X).double())
        values = values.clamp_min(0).unsqueeze(-1).to(X).expand(*X.shape[:-1], 1)
        kernel = GroupedKernel.of(whole, spectrum)
        return cls(kernel, spectrum, noise, X, Y, vectors.to(X).expand(*X.shape[:-1], -1), values)

    @cached_property
    def _shrinkage(self) -> Tensor:
        """``A x (b) x t x r``."""
        return (self.values + self.kernel.eigvals.reciprocal().unsqueeze(-2)).reciprocal()

    @cached_property
    def _rotated(self) -> Tensor:
        """The whitened values in the coordinates of points and groups, ``A x (b) x r x t x m``."""
        return self.spectrum.rotate(self.vectors.mT @ (self.train_Y / self.noise.sqrt()))

    @cached_property
    def _weights(self) -> Tensor:
        """The coefficients of the kernel in the whitened mean, ``A x (b) x t x n``."""
        per_group = (self._shrinkage.mT.unsqueeze(-1) * self._rotated) @ self.spectrum.bases.mT
        return self.vectors @ per_group.sum(dim=-3)

    @property
    def info_gain(self) -> Tensor:
        logdets = (1 + self.values * self.kernel.eigvals.unsqueeze(-2)).log().sum(dim=-2)
        return self.spectrum.total(logdets) / 2

    @property
    def quadratic(self) -> Tensor:
        solved = self._shrinkage.mT / self.kernel.eigvals.unsqueeze(-1)  # 1 / (1 + xi e)
        inside = (solved.unsqueeze(-1) * self._rotated.square()).sum(dim=(-3, -2, -1))
        # In directions without a prior variance there is nothing but noise.
        total = (self.train_Y / self.noise.sqrt()).square().sum(dim=(-2, -1))
        return inside + (total - self._rotated.square().sum(dim=(-3, -2, -1))).clamp_min(0)

    @property
    def mean_norm(self) -> Tensor:
        solved = self._shrinkage.mT / self.kernel.eigvals.unsqueeze(-1)
        squares = solved * (1 - solved)
        return (squares.unsqueeze(-1) * self._rotated.square()).sum(dim=(-3, -2, -1)).clamp_min(0).sqrt()

    def with_noise(self, noise: Tensor) -> Regression:
        return self.kernel.whole.fit(noise, self.train_X, self.train_Y)

    def append(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> Regression:
        assert noise is None
        X, Y = torch.cat([self.train_X, X], dim=-2), torch.cat([self.train_Y, Y], dim=-2)
        way = DenseRegression if Y.isnan().any() else SpectralRegression
        return way.fit(self.kernel.whole, self.noise, X, Y)

    def expand(self, batch_shape: torch.Size) -> SpectralRegression:
        tensors = expand_fields(self, batch_shape, train_X=2, train_Y=2, vectors=2, values=2)
        return SpectralRegression(self.kernel, self.spectrum, self.noise, **tensors)

    def _evidence(self, points: Tensor) -> Tensor:
        """Return the scalar kernel with the data, ``(b) x P x t``."""
        return self.kernel(points, self.train_X).squeeze(-3)

    def _mean(self, evidence: Tensor) -> Tensor:
        return (evidence @ self._weights) * self.noise.sqrt()

    def _group_variances(self, points: Tensor, evidence: Tensor) -> Tensor:
        explained = (evidence @ self.vectors).square() @ self._shrinkage
        return (self.kernel.eigvals.unsqueeze(-1) * (self.kernel.diag(points) - explained.mT)).clamp_min(0)

    def _covariance(self, points: Tensor, evidence: Tensor) -> Tensor:
        return self.spectrum.spread_diagonal(self._group_variances(points, evidence), self.noise)

    def _variance(self, points: Tensor, evidence: Tensor, directions: Tensor | None) -> Tensor:
        return self.spectrum.spread_variances(self._group_variances(points, evidence), self.noise, directions)

    def _norm(self, points: Tensor, evidence: Tensor) -> Tensor:
        return operator_norm(self._covariance(points, evidence))

    def _joint_covariance(self, X: Tensor, evidence: Tensor, unfold: Callable[[Tensor], Tensor]) -> Tensor:
        rotated = unfold(evidence @ self.vectors).unsqueeze(-3)  # ... x (b) x 1 x q x t
        explained = (rotated * self._shrinkage.mT.unsqueeze(-2)) @ rotated.mT
        per_group = self.kernel.eigvals[..., None, None] * (self.kernel(X, X) - explained)
        return self.spectrum.spread(per_group, self.noise)
