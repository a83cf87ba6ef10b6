"""Vector-valued kernel ridge regression in plain torch; :func:`fit` picks the fastest way a kernel allows."""

from __future__ import annotations

from torch import Tensor

from mtbo_torch.regression.base import (
    Followed,
    MatrixKernel,
    Regression,
    ScalarKernel,
    SeparableSum,
    raise_variances,
    sum_all,
    variances_along,
)
from mtbo_torch.regression.dense import DenseRegression
from mtbo_torch.regression.growing import GrowingRows, NotPositiveDefiniteError
from mtbo_torch.regression.kronecker import CompletedRegression, KroneckerRegression
from mtbo_torch.regression.likelihood import log_likelihood, nystrom_log_likelihood
from mtbo_torch.regression.norm import operator_norm
from mtbo_torch.regression.nystrom import FollowedNystrom, NystromRegression
from mtbo_torch.regression.subspace import rows_at


def fit(gamma: MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor) -> Regression:
    """Fit ``(b) x t x d`` points and ``(b) x t x n`` values with noise ``(b) x 1`` or ``(b) x n``.

    A sum of separable terms whose (whitened) task matrices commute, above all a single term, takes the Kronecker
    path; everything else the dense one, and so do task matrices with a gradient: that of common eigenvectors does not
    exist where eigenvalues are equal. Values that are NaN were not seen: if these are few, they are a correction of the
    Kronecker path, and else the path is dense.
    """
    if isinstance(gamma, SeparableSum) and not any(B.requires_grad for B in (*gamma.task_covars, noise)):
        path = CompletedRegression if Y.isnan().any() else KroneckerRegression
        regression = path.try_fit(gamma, noise, X, Y)
        if regression is not None:
            return regression
    return DenseRegression.fit(gamma, noise, X, Y)


__all__ = [
    "CompletedRegression",
    "DenseRegression",
    "Followed",
    "FollowedNystrom",
    "GrowingRows",
    "KroneckerRegression",
    "MatrixKernel",
    "NotPositiveDefiniteError",
    "NystromRegression",
    "Regression",
    "ScalarKernel",
    "SeparableSum",
    "fit",
    "log_likelihood",
    "nystrom_log_likelihood",
    "operator_norm",
    "raise_variances",
    "rows_at",
    "sum_all",
    "variances_along",
]
