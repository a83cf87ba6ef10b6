"""The joint covariance of a posterior as a linear operator that is evaluated when asked."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from linear_operator.operators import DenseLinearOperator, LinearOperator
from torch import Tensor

from mtbo_torch.regression import Regression, raise_variances


class JointCovariance(LinearOperator):
    r""":math:`[\Gamma_t(x_i, x_j)]_{ij}` over q points, point-major, perhaps with noise on its diagonal.

    Its size and its diagonal need no ``qn x qn`` matrix, so the mean and the variances at thousands of points are
    cheap; whatever else is asked makes the matrix, once.

    Args:
        X: ``... x q x d``, as the regression takes them.
        regression: The regression.
        tasks: The indices of the tasks to keep; None for all.
        noise: ``... x q x n`` variances of the tasks that are kept; None for none.
    """

    def __init__(self, X: Tensor, *, regression: Regression, tasks: list[int] | None, noise: Tensor | None) -> None:
        super().__init__(X, regression=regression, tasks=tasks, noise=noise)
        self.X, self.regression, self.tasks, self.noise = X, regression, tasks, noise

    @cached_property
    def matrix(self) -> DenseLinearOperator:
        """The matrix itself."""
        covariance = raise_variances(self.regression.joint_covariance(self.X))
        if self.tasks is not None:
            q, n = self.X.shape[-2], self.regression.num_tasks
            points = torch.arange(q, device=covariance.device).unsqueeze(-1) * n
            kept = (points + torch.tensor(self.tasks, device=covariance.device)).flatten()
            covariance = covariance[..., kept, :][..., kept]
        if self.noise is not None:
            covariance = covariance + torch.diag_embed(self.noise.flatten(-2))
        return DenseLinearOperator(covariance)

    def to_dense(self) -> Tensor:
        """``... x qn x qn``, the matrix itself."""
        return self.matrix.tensor

    def _size(self) -> torch.Size:
        n = self.regression.num_tasks if self.tasks is None else len(self.tasks)
        size = self.X.shape[-2] * n
        return torch.broadcast_shapes(self.X.shape[:-2], self.regression.batch_shape) + torch.Size([size, size])

    def _diagonal(self) -> Tensor:
        variance = self.regression.mean_and_variance(self.X)[1].clamp_min(0)
        variance = variance if self.tasks is None else variance[..., self.tasks]
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

    def type(self, dtype: torch.dtype) -> LinearOperator:
        return self.matrix.type(dtype)

    # Linear operators differentiate what they consist of; here that is the matrix, whose own graph does the rest.

    def representation(self) -> tuple[Tensor, ...]:
        return self.matrix.representation()

    def representation_tree(self) -> Any:
        return self.matrix.representation_tree()
