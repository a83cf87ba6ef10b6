"""Whitened kernels: a multi-task kernel as rows of scalar features, for regressions that work in a subspace.

A point has one row in each group when the task matrices commute, and ``n`` rows in a single group otherwise.
Everything is in whitened task space, where the noise is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mtbo_torch.linalg import clamp_variances, operator_norm, plus_product, thin_product, variances_along
from mtbo_torch.regression.base import pick_trials
from mtbo_torch.regression.kronecker import Groups
from mtbo_torch.regression.spectrum import Spectrum

if TYPE_CHECKING:
    from mtbo_torch.regression.structure import MatrixKernel


@dataclass(frozen=True, eq=False)
class GroupedRows:
    """One row per point and group: task matrices that commute, above all a single one. ``G`` is 1 or ``r``.

    Attributes:
        kernel: The scalar kernels of the groups.
        spectrum: The groups.
        noise: ``(b) x 1 x 1`` or ``(b) x 1 x n``, by which rows are whitened.
        rows_per_point: ``p``, here one.
    """

    kernel: Groups
    spectrum: Spectrum
    noise: Tensor
    rows_per_point: int = 1

    @property
    def eigvals(self) -> Tensor:
        """``(b) x r``, the factor of each group's kernel."""
        return self.kernel.eigvals

    @cached_property
    def scales(self) -> Tensor:
        """``(b) x r x 1 x 1``, the same beside matrices."""
        return self.eigvals[..., None, None]

    @property
    def leading_groups(self) -> int:
        """The number of first groups that decide the norm in units of the noise."""
        return 1 if self.kernel.shared else self.eigvals.shape[-1]

    @property
    def groups_in_norm(self) -> int:
        """The number of first groups that decide the norm itself."""
        return self.leading_groups if self.noise.shape[-1] == 1 else self.eigvals.shape[-1]

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return ``(b) x G x N1 p x N2 p``."""
        return self.kernel(X1, X2)

    def pick(self, trials: Tensor) -> GroupedRows:
        """Return the rows of some data sets, ``k`` places."""
        return GroupedRows(self.kernel.pick(trials), self.spectrum.pick(trials), pick_trials(self.noise, trials, 2))

    def blocks(self, X: Tensor) -> Tensor:
        """Return the kernel of each point with itself, ``(b) x G x N x p x p``."""
        return self.kernel.diag(X)[..., None, None]

    def targets(self, Y: Tensor) -> Tensor:
        """Turn ``(b) x N x n`` values into ``(b) x r x N p x k`` whitened targets of the rows."""
        groups, _, width = self.spectrum.bases.shape[-3:]
        return torch.unflatten(Y @ self._whitening, -1, (groups, width)).transpose(-3, -2)

    @cached_property
    def _whitening(self) -> Tensor:
        """``(b) x n x rk``, what takes values to the targets of all groups, next to each other."""
        return (self.spectrum.bases / self.noise.sqrt().mT.unsqueeze(-3)).movedim(-3, -2).flatten(-2)

    @cached_property
    def _coloring(self) -> Tensor:
        """``(b) x r x k x n``, what takes targets of each group to values."""
        return self.spectrum.bases.mT * self.noise.sqrt().unsqueeze(-3)

    def mean(self, features: Tensor, coefficients: Tensor) -> Tensor:
        """Multiply ``(b) x G x N p x m`` features by ``(b) x r x m x k`` coefficients, to ``(b) x N x n`` means."""
        colored = coefficients @ self._coloring
        if self.kernel.shared:
            return features.squeeze(-3) @ colored.sum(dim=-3)
        return features.movedim(-3, -2).flatten(-2) @ colored.flatten(-3, -2)

    def add_to_mean(self, mean: Tensor, columns: Tensor, coefficients: Tensor) -> Tensor:
        """Return ``(b) x N x n`` means plus those of every group's own features, ``(b) x r x m x N p`` columns."""
        # The sum over groups and features is one product.
        combined = thin_product(coefficients, self._coloring).flatten(-3, -2)
        return plus_product(mean.mT, combined.mT, columns.flatten(-3, -2)).mT

    def covariance(self, blocks: Tensor) -> Tensor:
        """Turn covariances ``... x (b) x r x Np x Np`` of rows into ``... x (b) x Nn x Nn`` ones, noise restored."""
        return self.spectrum.spread(blocks, self.noise)

    def covariance_blocks(self, blocks: Tensor) -> Tensor:
        """Turn ``(b) x r x N x p x p`` covariances of each point's rows into ``(b) x N x n x n``, noise restored."""
        return self.spectrum.spread_diagonal(blocks[..., 0, 0], self.noise)

    def variances(self, blocks: Tensor, directions: Tensor | None) -> Tensor:
        """Do so for ``(b) x N x k`` variances along ``(b) x k x n`` directions, or of the tasks with None."""
        if directions is None:
            return (self._shares @ blocks[..., 0, 0]).mT
        return self.spectrum.spread_variances(blocks[..., 0, 0], self.noise, directions)

    @cached_property
    def _shares(self) -> Tensor:
        return self.spectrum.share(self.noise)

    def norm(self, blocks: Tensor) -> Tensor:
        """Turn ``(b) x groups_in_norm x N x p x p`` covariances into norms ``(b) x N``, noise restored."""
        if self.noise.shape[-1] == 1:
            return self.whitened_norm(blocks) * self.noise.squeeze(-1)
        return operator_norm(self.covariance_blocks(blocks))

    def whitened_norm(self, blocks: Tensor) -> Tensor:
        """Do so without the noise: in units of the noise."""
        return blocks[..., 0, 0].amax(dim=-2)

    def logdet(self, per_group: Tensor) -> Tensor:
        """Turn ``(b) x r`` log-determinants of groups into ``(b)`` of the whole."""
        return self.spectrum.total(per_group)


@dataclass(frozen=True, eq=False)
class MatrixRows:
    """``n`` rows per point in a single group: any kernel, by Algorithm 2's ``nm x nm`` matrices.

    It answers whatever :class:`GroupedRows` does, which says what that is.
    """

    kernel: MatrixKernel
    noise: Tensor
    rows_per_point: int
    leading_groups: int = 1
    groups_in_norm: int = 1

    @classmethod
    def of(cls, kernel: MatrixKernel, noise: Tensor, num_tasks: int) -> MatrixRows:
        """Return rows that are whitened by the noise, or not at all if observations have their own."""
        shared = noise if noise.shape[-2] == 1 else noise.new_ones(*noise.shape[:-2], 1, 1)
        return cls(kernel, shared, num_tasks)

    @property
    def eigvals(self) -> Tensor:
        return self.noise.new_ones(1)

    @property
    def scales(self) -> Tensor:
        return self.eigvals[..., None, None]

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        sd1, sd2 = (self._deviations(X.shape[-2]) for X in (X1, X2))
        return (self.kernel(X1, X2) / (sd1.unsqueeze(-1) * sd2.unsqueeze(-2))).unsqueeze(-3)

    def pick(self, trials: Tensor) -> MatrixRows:
        return MatrixRows(self.kernel.pick(trials), pick_trials(self.noise, trials, 2), self.rows_per_point)

    def blocks(self, X: Tensor) -> Tensor:
        sd = self.noise.sqrt()
        return (self.kernel.blocks(X) / (sd.unsqueeze(-1) * sd.unsqueeze(-2))).unsqueeze(-4)

    def targets(self, Y: Tensor) -> Tensor:
        return (Y / self.noise.sqrt()).flatten(-2)[..., None, :, None]

    def mean(self, features: Tensor, coefficients: Tensor) -> Tensor:
        rows = features @ coefficients
        return rows[..., 0, :, 0].unflatten(-1, (-1, self.rows_per_point)) * self.noise.sqrt()

    def add_to_mean(self, mean: Tensor, columns: Tensor, coefficients: Tensor) -> Tensor:
        return mean + self.mean(columns.mT, coefficients)

    def covariance(self, blocks: Tensor) -> Tensor:
        sd = self._deviations(blocks.shape[-1] // self.rows_per_point)
        return sd.unsqueeze(-1) * blocks.squeeze(-3) * sd.unsqueeze(-2)

    def covariance_blocks(self, blocks: Tensor) -> Tensor:
        sd = self.noise.sqrt()
        return clamp_variances(sd.unsqueeze(-1) * blocks.squeeze(-4) * sd.unsqueeze(-2))

    def variances(self, blocks: Tensor, directions: Tensor | None) -> Tensor:
        return variances_along(self.covariance_blocks(blocks), directions)

    def norm(self, blocks: Tensor) -> Tensor:
        return operator_norm(self.covariance_blocks(blocks))

    def whitened_norm(self, blocks: Tensor) -> Tensor:
        return operator_norm(blocks.squeeze(-4))

    def logdet(self, per_group: Tensor) -> Tensor:
        return per_group.squeeze(-1)

    def _deviations(self, num_points: int) -> Tensor:
        sd = self.noise.sqrt()
        return sd.expand(*sd.shape[:-2], num_points, self.rows_per_point).flatten(-2)


RowKernel = GroupedRows | MatrixRows
