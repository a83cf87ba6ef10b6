"""The joint covariance of a posterior as a linear operator that is evaluated when asked."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from linear_operator.operators import DenseLinearOperator, LinearOperator
from torch import Tensor

from mtbo_torch.linalg import clamp_variances
from mtbo_torch.regression import Belief


class JointCovariance(LinearOperator):
    r""":math:`[\Gamma_t(x_i, x_j)]_{ij}` over q points, point-major, perhaps with noise on its diagonal.

    Its size and its diagonal need no ``qn x qn`` matrix, so the mean and the variances at thousands of points are
    cheap; whatever else is asked makes the matrix, once.

    Args:
        mean: ``... x q x n``, of the belief.
        belief: What is known at the points.
        noise: ``... x q x n`` variances; None for none.
    """

    def __init__(self, mean: Tensor, *, belief: Belief, noise: Tensor | None) -> None:
        super().__init__(mean, belief=belief, noise=noise)
        self.mean_shape, self.belief, self.noise = mean.shape, belief, noise

    @cached_property
    def matrix(self) -> DenseLinearOperator:
        """The matrix itself."""
        covariance = clamp_variances(self.belief.joint_covariance)
        if self.noise is not None:
            covariance = covariance + torch.diag_embed(self.noise.flatten(-2))
        return DenseLinearOperator(covariance)

    def to_dense(self) -> Tensor:
        """Return the matrix itself, ``... x qn x qn``."""
        return self.matrix.tensor

    def _size(self) -> torch.Size:
        size = self.mean_shape[-2:].numel()
        return self.mean_shape[:-2] + torch.Size([size, size])

    def _diagonal(self) -> Tensor:
        variance = self.belief.variance().clamp_min(0)
        return (variance if self.noise is None else variance + self.noise).flatten(-2)

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.to_dense() @ rhs

    def _transpose_nonbatch(self) -> LinearOperator:
        return self

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        return self.matrix._getitem(row_index, col_index, *batch_indices)

    def _get_indices(self, row_index: Any, col_index: Any, *batch_indices: Any) -> Tensor:
        return self.matrix._get_indices(row_index, col_index, *batch_indices)

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        return self.matrix._expand_batch(batch_shape)

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return self.matrix._unsqueeze_batch(dim)

    def _permute_batch(self, *dims: int) -> LinearOperator:
        return self.matrix._permute_batch(*dims)

    def type(self, dtype: torch.dtype) -> LinearOperator:
        return self.matrix.type(dtype)

    # Linear operators differentiate what they consist of; here that is the matrix, whose own graph does the rest.

    def representation(self) -> tuple[Tensor, ...]:
        return self.matrix.representation()

    def representation_tree(self) -> Any:
        return self.matrix.representation_tree()
