"""What is known of the tasks at some points: the one answer that every regression, surrogate and model gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mtbo_torch.checks import require_batch, require_tensor
from mtbo_torch.linalg import clamp_variances, operator_norm, posterior_cholesky, solve_lower, variances_along


def require_directions(directions: Tensor | None, num_tasks: int, batch_shape: torch.Size) -> None:
    """Refuse directions that are not ``(b) x k x n``."""
    if directions is None:
        return
    remedy = "Pass one row per direction and one column per task."
    directions = require_tensor("directions", directions, remedy)
    if directions.dim() < 2 or directions.shape[-1] != num_tasks:
        raise ValueError(
            f"directions should be `(b) x k x n` with n = {num_tasks} tasks, got shape {tuple(directions.shape)}. "
            f"{remedy}"
        )
    require_batch("directions", directions.shape[:-2], batch_shape)


class Belief:
    r"""The posterior of n tasks at ``... x q`` points, :math:`\mu_t(x)` and :math:`\Gamma_t(x, x')`.

    It is lazy: nothing is computed before it is asked for, and what the answers have in common is computed once.

    Attributes:
        mean: ``... x q x n``, :math:`\mu_t(x)`.
        covariance: ``... x q x n x n``, :math:`\Gamma_t(x, x)` at each point.
        joint_covariance: ``... x qn x qn``, :math:`[\Gamma_t(x_i, x_j)]_{ij}`, point-major; there is
            none where only each point alone is known.
    """

    if TYPE_CHECKING:  # fields or properties, as each subclass pleases

        @property
        def mean(self) -> Tensor: ...
        @property
        def covariance(self) -> Tensor: ...
        @property
        def joint_covariance(self) -> Tensor: ...

    @property
    def norm(self) -> Tensor:
        r"""``... x q``, the operator norm :math:`\|\Gamma_t(x, x)\|`."""
        return operator_norm(self.covariance)

    def variance(self, directions: Tensor | None = None) -> Tensor:
        r"""Return the variances :math:`e^T \Gamma_t(x, x) e`, ``... x q x k``.

        Args:
            directions: ``(b) x k x n``, the directions e; by default the n tasks.
        """
        return variances_along(self.covariance, directions)

    def mapped(self, matrix: Tensor | None, offset: Tensor | None = None, keeps_norm: bool = False) -> Belief:
        """Return what is known of ``C y + o``: of the tasks in other units, with other signs, or of some of them.

        Args:
            matrix: ``(b) x k x n``, C; None for the identity.
            offset: ``(b) x 1 x k`` or ``... x q x k``, o; None for zero.
            keeps_norm: Whether C is known to leave the norm as it is, as signs and permutations do.
        """
        return MappedBelief(self, matrix, offset, keeps_norm or matrix is None)

    def with_mean_of(self, other: Belief) -> Belief:
        """Return the same belief with the mean of another one at the same points."""
        return MappedBelief(self, None, None, True, other)

    @property
    def real(self) -> Belief:
        """The belief that the mean is from, without what is imagined or taken for the truth."""
        return self

    def given(self, noise: Tensor, count: int = 1) -> Belief:
        r"""Return what is known at the first `count` points once the others are observed: the mean stays.

        Args:
            noise: ``... x 1 x n`` or ``... x (q - count) x n``, of the observations.
            count: How many points are not observed.
        """
        n = self.mean.shape[-1]
        joint, own = self.joint_covariance, count * n
        noise = noise.expand(*joint.shape[:-2], self.mean.shape[-2] - count, n).flatten(-2)
        observed = joint[..., own:, own:] + torch.diag_embed(noise)
        explained = solve_lower(posterior_cholesky(observed), joint[..., own:, :own])
        return JointBelief(self.mean[..., :count, :], joint[..., :own, :own] - explained.mT @ explained)


@dataclass(frozen=True, eq=False)
class JointBelief(Belief):
    """A Gaussian that is there already: the mean ``... x q x n`` and the joint covariance ``... x qn x qn``."""

    mean: Tensor
    joint_covariance: Tensor

    @cached_property
    def covariance(self) -> Tensor:
        q, n = self.mean.shape[-2:]
        if q == 1:
            return self.joint_covariance.unsqueeze(-3)
        blocks = self.joint_covariance.unflatten(-1, (q, n)).unflatten(-3, (q, n))  # ... x q x n x q x n
        return blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


@dataclass(frozen=True, eq=False)
class PointBelief(Belief):
    """Gaussians that are there already, one at each point: means ``... x q x n``, covariances ``... x q x n x n``."""

    mean: Tensor
    covariance: Tensor


@dataclass(frozen=True, eq=False)
class MappedBelief(Belief):
    """See :meth:`Belief.mapped` and :meth:`Belief.with_mean_of`."""

    belief: Belief
    matrix: Tensor | None
    offset: Tensor | None
    keeps_norm: bool
    mean_of: Belief | None = None

    @cached_property
    def mean(self) -> Tensor:
        mean = (self.mean_of or self.belief).mean
        if self.matrix is not None:
            mean = mean @ self.matrix.to(mean).mT
        return mean if self.offset is None else mean + self.offset

    @cached_property
    def covariance(self) -> Tensor:
        covariance = self.belief.covariance
        if self.matrix is None:
            return covariance
        C = self.matrix.to(covariance).unsqueeze(-3)
        return clamp_variances(C @ covariance @ C.mT)

    @cached_property
    def joint_covariance(self) -> Tensor:
        joint = self.belief.joint_covariance
        if self.matrix is None:
            return joint
        n, C = self.matrix.shape[-1], self.matrix.to(joint).mT.unsqueeze(-3)
        for _ in range(2):  # columns, then rows
            joint = (joint.unflatten(-1, (-1, n)) @ C).flatten(-2).mT
        return joint

    @property
    def real(self) -> Belief:
        if self.mean_of is not None:
            return self.mean_of.real
        inner = self.belief.real
        return self if inner is self.belief else inner.mapped(self.matrix, self.offset, self.keeps_norm)

    @cached_property
    def norm(self) -> Tensor:
        return self.belief.norm if self.keeps_norm else operator_norm(self.covariance)

    def variance(self, directions: Tensor | None = None) -> Tensor:
        if self.matrix is None:
            return self.belief.variance(directions)
        require_directions(directions, self.matrix.shape[-2], self.mean.shape[:-2])
        return self.belief.variance(self.matrix if directions is None else directions @ self.matrix.to(directions))


class IndependentBeliefs(Belief):
    """Groups of tasks that are independent of each other, at the same points."""

    def __init__(self, groups: Sequence[Belief]) -> None:
        self.groups = groups

    @cached_property
    def mean(self) -> Tensor:
        return torch.cat([group.mean for group in self.groups], dim=-1)

    @cached_property
    def covariance(self) -> Tensor:
        n, start, rows = self.mean.shape[-1], 0, []
        for group in self.groups:
            block, width = group.covariance, group.mean.shape[-1]
            rows.append(torch.nn.functional.pad(block, (start, n - start - width)))
            start += width
        return torch.cat(rows, dim=-2)

    @cached_property
    def norm(self) -> Tensor:
        return reduce(torch.maximum, [group.norm for group in self.groups])

    def variance(self, directions: Tensor | None = None) -> Tensor:
        if directions is None:
            return torch.cat([group.variance() for group in self.groups], dim=-1)
        parts = directions.split([group.mean.shape[-1] for group in self.groups], dim=-1)
        return reduce(torch.add, [group.variance(part) for group, part in zip(self.groups, parts, strict=True)])
