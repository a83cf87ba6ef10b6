"""Multi-task Bayesian optimisation with guarantees, for BoTorch."""

from mtbo_torch import constructors as constructors  # registers them with BoTorch
from mtbo_torch.acquisition import NystromScalarizedMultiTaskUCB, ScalarizedMultiTaskUCB
from mtbo_torch.comparison import compare_kernels
from mtbo_torch.confidence import exact_radius, nystrom_radius, theory_oversampling
from mtbo_torch.kernels import ICMKernel, IndependentKernel, SumOfSeparableKernel, TaskSimilarityKernel
from mtbo_torch.models import ExactMultiTaskGP, NystromMultiTaskGP
from mtbo_torch.scalarizations import (
    BoxWeights,
    ChebyshevScalarization,
    DirichletWeights,
    FixedWeights,
    HypervolumeScalarization,
    InverseUniformWeights,
    LinearScalarization,
    ObjectiveScalarization,
    SphereWeights,
    UniformWeights,
)
from mtbo_torch.strategies import MTBKB, MTKB

__version__ = "0.1.0"

__all__ = [
    "MTBKB",
    "MTKB",
    "BoxWeights",
    "ChebyshevScalarization",
    "DirichletWeights",
    "ExactMultiTaskGP",
    "FixedWeights",
    "HypervolumeScalarization",
    "ICMKernel",
    "IndependentKernel",
    "InverseUniformWeights",
    "LinearScalarization",
    "NystromMultiTaskGP",
    "NystromScalarizedMultiTaskUCB",
    "ObjectiveScalarization",
    "ScalarizedMultiTaskUCB",
    "SphereWeights",
    "SumOfSeparableKernel",
    "TaskSimilarityKernel",
    "UniformWeights",
    "compare_kernels",
    "exact_radius",
    "nystrom_radius",
    "theory_oversampling",
]
