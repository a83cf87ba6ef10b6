"""Any multi-task kernel, on the full ``nt x nt`` matrix: the general path, and the others' oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mtbo_torch.linalg import clamp_variances, safe_cholesky
from mtbo_torch.regression.base import Regression, expand_fields
from mtbo_torch.regression.factor import InverseCholesky
from mtbo_torch.regression.missing import Seen

if TYPE_CHECKING:
    from mtbo_torch.regression.structure import MatrixKernel


@dataclass(frozen=True, eq=False)
class DenseRegression(Regression):
    r"""Regression with any :math:`\Gamma`, and any noise.

    Fitting costs :math:`O(n^3 t^3)`, an append :math:`O(n^3 t^2)`, a point :math:`O(n^3 t^2)`.

    Values that are NaN are missing, and everything is given the others. With s values that at least one data set
    has seen, read s for ``nt``.

    Attributes:
        kernel: :math:`\Gamma`.
        factor: ``M`` with :math:`M^T M = (G_t + \eta I)^{-1}`, of ``nt`` rows.
        dual: ``(b) x nt x 1``, :math:`(G_t + \eta I)^{-1} vec(Y_t)`.
        seen: Which values are not missing.
    """

    kernel: MatrixKernel
    noise: Tensor
    train_X: Tensor
    train_Y: Tensor
    factor: InverseCholesky
    dual: Tensor
    seen: Seen

    @classmethod
    def fit(cls, kernel: MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor) -> DenseRegression:
        """Fit ``(b) x t x d`` points and ``(b) x t x n`` values; noise as in :class:`Regression`."""
        seen = Seen.of(Y)
        gram = seen.rows(seen.columns(kernel(X, X))) + torch.diag_embed(seen.noise(_flat_noise(noise, Y)))
        factor = InverseCholesky.of(gram, _smallest(noise, X))
        target = seen.values(Y).unsqueeze(-1)
        return cls(kernel, noise, X, Y, factor, factor.upper(factor.lower(target.mT)).mT, seen)

    @property
    def info_gain(self) -> Tensor:
        noise = self.seen.noise(_flat_noise(self.noise, self.train_Y))
        return (self.factor.logdet - noise.log().sum(dim=-1)).clamp_min(0) / 2

    @property
    def mean_norm(self) -> Tensor:
        # a^T G a with (G + Sigma) a = y
        dual = self.dual.squeeze(-1)
        noise = self.seen.noise(_flat_noise(self.noise, self.train_Y))
        return (dual * (self.seen.values(self.train_Y) - noise * dual)).sum(dim=-1).clamp_min(0).sqrt()

    @property
    def quadratic(self) -> Tensor:
        return (self.dual.squeeze(-1) * self.seen.values(self.train_Y)).sum(dim=-1)

    def with_noise(self, noise: Tensor) -> Regression:
        return self.kernel.fit(noise, self.train_X, self.train_Y)

    def append(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> Regression:
        if not X.shape[-2]:
            return self
        seen = Seen.of(Y)
        noise = self.expected_noise if noise is None else noise
        cross = seen.rows(self._evidence(X))
        corner = seen.rows(seen.columns(self.kernel(X, X))) + torch.diag_embed(seen.noise(_flat_noise(noise, Y)))
        factor, extension = self.factor.append(cross, corner, _smallest(noise, X))
        residual = extension.corner @ (seen.values(Y).unsqueeze(-1) - cross @ self.dual)
        grown = torch.nn.functional.pad(self.dual, (0, 0, 0, corner.shape[-1]))
        train_Y = torch.cat([self.train_Y, Y], dim=-2)
        return replace(
            self,
            noise=_join_noise(self.noise, self.train_Y, noise, Y),
            train_X=torch.cat([self.train_X, X], dim=-2),
            train_Y=train_Y,
            factor=factor,
            dual=grown + extension.rows.mT @ residual,
            seen=Seen.of(train_Y),
        )

    def expand(self, batch_shape: torch.Size) -> DenseRegression:
        tensors = expand_fields(self, batch_shape, train_X=2, train_Y=2, dual=2)
        return replace(self, **tensors, factor=self.factor.expand(batch_shape))

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        r"""Predict the values at each training point from all others, their noise included.

        With :math:`C = G_t + \eta I` and :math:`P_i = (C^{-1})_{ii}`, block i of point i, mean and covariance are
        :math:`y_i - P_i^{-1} (C^{-1} y)_i` and :math:`P_i^{-1}`, at :math:`O(n^3 t^2)`. Values that are missing are in
        neither C nor y, and s of them seen cost :math:`O(n^2 t s)`.

        Returns:
            ``(b) x t x n`` and ``(b) x t x n x n``; zero and the noise for a value that is missing.
        """
        seen, (t, n) = self.seen, self.train_Y.shape[-2:]
        precision = self.factor.inverse_blocks_at(seen.places(self.train_Y), t, n)
        dual = seen.spread(self.dual.squeeze(-1), self.train_Y)
        return predict_left_out(precision, dual, self.train_Y, self.noise)

    def _evidence(self, points: Tensor) -> Tensor:
        """Return the kernel with what was seen, ``(b) x Pn x nt``."""
        return self.seen.columns(self.kernel(points, self.train_X))

    def _mean(self, evidence: Tensor) -> Tensor:
        return (evidence @ self.dual).squeeze(-1).unflatten(-1, (-1, self.num_tasks))

    def _covariance(self, points: Tensor, evidence: Tensor) -> Tensor:
        projected = self.factor.lower(evidence).unflatten(-2, (points.shape[-2], self.num_tasks))
        return clamp_variances(self.kernel.blocks(points) - projected @ projected.mT)

    def _joint_covariance(self, X: Tensor, evidence: Tensor, unfold: Callable[[Tensor], Tensor]) -> Tensor:
        projected = self.factor.lower(evidence)
        projected = unfold(projected.unflatten(-2, (-1, self.num_tasks))).flatten(-3, -2)
        return self.kernel(X, X) - projected @ projected.mT


def predict_left_out(precision: Tensor, dual: Tensor, Y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of each row of values, given all others; zero and the noise for a missing value.

    Args:
        precision: ``(b) x t x n x n``, the blocks of :math:`C^{-1}`, C the covariance of the values that were seen.
        dual: ``(b) x t x n``, :math:`C^{-1} y`.
        Y: ``(b) x t x n``, NaN for values that are missing. Whatever `precision` and `dual` say of these is ignored.
        noise: ``(b) x t x n`` variances, with 1 in place of t or n where all observations or tasks share them.
    """
    seen = ~Y.isnan()
    alone = torch.diag_embed(noise.reciprocal().expand(Y.shape))
    precision = torch.where(seen.unsqueeze(-1) & seen.unsqueeze(-2), precision, alone)
    floor = precision.diagonal(dim1=-2, dim2=-1).amin(dim=-1) * torch.finfo(precision.dtype).eps
    covariance = torch.cholesky_inverse(safe_cholesky(precision, floor, precision))
    residual = (covariance @ torch.where(seen, dual, 0).unsqueeze(-1)).squeeze(-1)
    return torch.where(seen, Y - residual, 0), covariance


def _flat_noise(noise: Tensor, Y: Tensor) -> Tensor:
    """Return a variance for each of ``(b) x t x n`` values, ``(b) x nt``."""
    return noise.expand(torch.broadcast_shapes(noise.shape, Y.shape)).flatten(-2)


def _join_noise(old: Tensor, old_Y: Tensor, new: Tensor, new_Y: Tensor) -> Tensor:
    if new is old:
        return old
    return torch.cat([old.expand(old_Y.shape), new.expand(new_Y.shape)], dim=-2)


def _smallest(noise: Tensor, X: Tensor) -> Tensor:
    smallest = noise.amin(dim=(-2, -1))
    return smallest.expand(torch.broadcast_shapes(smallest.shape, X.shape[:-2]))
