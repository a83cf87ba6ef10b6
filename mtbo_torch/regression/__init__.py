"""Vector-valued kernel ridge regression in plain torch: a kernel's structure picks the fastest way."""

from mtbo_torch.regression.base import Audit, Regression, Renewal, ScalarKernel, Tracked
from mtbo_torch.regression.belief import Belief, IndependentBeliefs, JointBelief, PointBelief
from mtbo_torch.regression.dense import DenseRegression
from mtbo_torch.regression.factor import GrowingRows
from mtbo_torch.regression.kronecker import CompletedRegression, KroneckerRegression
from mtbo_torch.regression.nystrom import NystromRegression, TrackedNystrom
from mtbo_torch.regression.pieces import TrackedPieces
from mtbo_torch.regression.sites import Lookup, Sites, rows_at
from mtbo_torch.regression.spectral import SpectralRegression
from mtbo_torch.regression.structure import IndependentTasks, MatrixKernel, SeparableSum

__all__ = [
    "Audit",
    "Belief",
    "CompletedRegression",
    "DenseRegression",
    "GrowingRows",
    "IndependentBeliefs",
    "IndependentTasks",
    "JointBelief",
    "KroneckerRegression",
    "Lookup",
    "MatrixKernel",
    "NystromRegression",
    "PointBelief",
    "Regression",
    "Renewal",
    "ScalarKernel",
    "SeparableSum",
    "Sites",
    "SpectralRegression",
    "Tracked",
    "TrackedNystrom",
    "TrackedPieces",
    "rows_at",
]
