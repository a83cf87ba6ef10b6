"""Vector-valued kernel ridge regression in plain torch: a kernel's structure picks the fastest way."""

from mtbo_torch.regression.base import Regression, ScalarKernel, Tracked
from mtbo_torch.regression.belief import Belief, IndependentBeliefs, JointBelief, PointBelief
from mtbo_torch.regression.dense import DenseRegression
from mtbo_torch.regression.factor import GrowingRows
from mtbo_torch.regression.kronecker import CompletedRegression, KroneckerRegression
from mtbo_torch.regression.nystrom import NystromRegression, TrackedNystrom
from mtbo_torch.regression.spectral import SpectralRegression
from mtbo_torch.regression.structure import MatrixKernel, SeparableSum
from mtbo_torch.regression.subspace import rows_at

__all__ = [
    "Belief",
    "CompletedRegression",
    "DenseRegression",
    "GrowingRows",
    "IndependentBeliefs",
    "JointBelief",
    "KroneckerRegression",
    "MatrixKernel",
    "NystromRegression",
    "PointBelief",
    "Regression",
    "ScalarKernel",
    "SeparableSum",
    "SpectralRegression",
    "Tracked",
    "TrackedNystrom",
    "rows_at",
]
