"""Any multi-task kernel, on the full ``nt x nt`` matrix: the general path, and the others' oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from mtbo_torch.regression.base import SINGULAR_REMEDY, Folded, MatrixKernel, Regression, raise_variances
from mtbo_torch.regression.growing import InverseCholesky, safe_cholesky
from mtbo_torch.regression.norm import operator_norm
from mtbo_torch.regression.seen import Seen


@dataclass(frozen=True, eq=False)
class DenseRegression(Regression):
    r"""Regression with any :math:`\Gamma`.

    Fitting costs :math:`O(n^3 t^3)`, an append :math:`O(n^3 t^2)`, a point :math:`O(n^3 t^2)`.

    Values that are NaN were not seen, and everything is given the others. With s values that at least one data set
    has seen, read s for ``nt``.

    Attributes:
        kernel: :math:`\Gamma`.
        factor: ``M`` with :math:`M^T M = (G_t + \eta I)^{-1}`, of ``nt`` rows.
        dual: ``(b) x nt x 1``, :math:`(G_t + \eta I)^{-1} vec(Y_t)`.
    """

    kernel: MatrixKernel
    noise: Tensor
    train_X: Tensor
    train_Y: Tensor
    factor: InverseCholesky
    dual: Tensor

    @classmethod
    def fit(cls, kernel: MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor) -> DenseRegression:
        """Fit ``(b) x t x d`` points and ``(b) x t x n`` values with noise ``(b) x 1`` or ``(b) x n``."""
        seen = Seen.of(Y)
        gram = seen.rows(seen.columns(kernel(X, X)))
        gram = gram + torch.diag_embed(seen.noise(_noise_diagonal(noise, X, Y.shape[-1])))
        factor = InverseCholesky.of(gram, _floor(noise, X), SINGULAR_REMEDY)
        target = seen.values(Y).unsqueeze(-1)
        return cls(kernel, noise, X, Y, factor, factor.upper(factor.lower(target.mT)).mT)._ready()

    @property
    def info_gain(self) -> Tensor:
        noise = self._seen.noise(_noise_diagonal(self.noise, self.train_X, self.num_tasks))
        return (self.factor.logdet - noise.log().sum(dim=-1)).clamp_min(0) / 2

    @property
    def mean_norm(self) -> Tensor:
        # a^T G a with (G + Sigma) a = y
        dual = self.dual.squeeze(-1)
        noise = self._seen.noise(_noise_diagonal(self.noise, self.train_X, self.num_tasks))
        return (dual * (self._seen.values(self.train_Y) - noise * dual)).sum(dim=-1).clamp_min(0).sqrt()

    def append(self, X: Tensor, Y: Tensor) -> Regression:
        seen = Seen.of(Y)
        cross = seen.rows(self._cross(X))
        noise = seen.noise(_noise_diagonal(self.noise, X, self.num_tasks))
        corner = seen.rows(seen.columns(self.kernel(X, X))) + torch.diag_embed(noise)
        factor, extension = self.factor.append(cross, corner, _floor(self.noise, X), SINGULAR_REMEDY)
        residual = extension.corner @ (seen.values(Y).unsqueeze(-1) - cross @ self.dual)
        grown = torch.nn.functional.pad(self.dual, (0, 0, 0, corner.shape[-1]))
        return replace(
            self,
            train_X=torch.cat([self.train_X, X], dim=-2),
            train_Y=torch.cat([self.train_Y, Y], dim=-2),
            factor=factor,
            dual=grown + extension.rows.mT @ residual,
        )._ready()

    def expand(self, batch_shape: torch.Size) -> DenseRegression:
        return replace(
            self,
            train_X=self.train_X.expand(*batch_shape, *self.train_X.shape[-2:]),
            train_Y=self.train_Y.expand(*batch_shape, *self.train_Y.shape[-2:]),
            factor=self.factor.expand(batch_shape),
            dual=self.dual.expand(*batch_shape, *self.dual.shape[-2:]),
        )

    def mean(self, X: Tensor) -> Tensor:
        folded = Folded.of(X, self.batch_shape)
        return folded.unfold(self._mean(self._cross(folded.points)))

    def covariance(self, X: Tensor) -> Tensor:
        return self.mean_and_covariance(X)[1]

    def mean_and_covariance(self, X: Tensor) -> tuple[Tensor, Tensor]:
        folded = Folded.of(X, self.batch_shape)
        cross = self._cross(folded.points)
        return folded.unfold(self._mean(cross)), folded.unfold(self._covariance(folded.points, cross))

    def mean_and_norm(self, X: Tensor) -> tuple[Tensor, Tensor]:
        mean, covariance = self.mean_and_covariance(X)
        return mean, operator_norm(covariance)

    def joint_covariance(self, X: Tensor) -> Tensor:
        folded = Folded.of(X, self.batch_shape)
        projected = self.factor.lower(self._cross(folded.points))
        projected = folded.unfold(projected.unflatten(-2, (-1, self.num_tasks))).flatten(-3, -2)
        return self.kernel(X, X) - projected @ projected.mT

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        r"""Mean and covariance of the values at each training point given all others, their noise included.

        With :math:`C = G_t + \eta I` and :math:`P_i = (C^{-1})_{ii}`, block i of point i, they are
        :math:`y_i - P_i^{-1} (C^{-1} y)_i` and :math:`P_i^{-1}`, at :math:`O(n^3 t^2)`.

        Returns:
            ``(b) x t x n`` and ``(b) x t x n x n``.
        """
        precision = self.factor.inverse_blocks(self.num_tasks)
        floor = precision.diagonal(dim1=-2, dim2=-1).amin(dim=-1) * torch.finfo(precision.dtype).eps
        covariance = torch.cholesky_inverse(safe_cholesky(precision, floor, precision, SINGULAR_REMEDY))
        residual = covariance @ self.dual.unflatten(-2, (self.num_observations, self.num_tasks))
        return self.train_Y - residual.squeeze(-1), covariance

    @cached_property
    def _seen(self) -> Seen:
        return Seen.of(self.train_Y)

    def _ready(self) -> Self:
        """Know what was seen now, not in the first acquisition, which would wait for the device."""
        self._seen  # noqa: B018
        return self

    def _cross(self, points: Tensor) -> Tensor:
        """``(b) x Pn x nt``, the kernel with what was seen."""
        return self._seen.columns(self.kernel(points, self.train_X))

    def _mean(self, cross: Tensor) -> Tensor:
        return (cross @ self.dual).squeeze(-1).unflatten(-1, (-1, self.num_tasks))

    def _covariance(self, points: Tensor, cross: Tensor) -> Tensor:
        projected = self.factor.lower(cross).unflatten(-2, (points.shape[-2], self.num_tasks))
        return raise_variances(self.kernel.blocks(points) - projected @ projected.mT)


def _noise_diagonal(noise: Tensor, X: Tensor, num_tasks: int) -> Tensor:
    per_point = noise.unsqueeze(-2).expand(*X.shape[:-1], num_tasks)
    return per_point.flatten(-2)


def _floor(noise: Tensor, X: Tensor) -> Tensor:
    return noise.amin(dim=-1).expand(X.shape[:-2])
