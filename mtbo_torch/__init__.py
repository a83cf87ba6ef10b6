r"""Multi-task Bayesian optimization with guarantees, for BoTorch.

The paper is Chowdhury & Gopalan, *No-regret Algorithms for Multi-task Bayesian Optimization*. In all docstrings:

* Shapes are written ``(b) x t x n``. ``(b)`` is an optional leading batch, of independent data sets or trials, and
  ``...`` are any other leading dimensions.
* t is the number of observations, n that of tasks, d of inputs, q of points, N of choices, k of objectives or
  directions, m of points in a dictionary, r of distinct non-zero eigenvalues of B.
* :math:`\Gamma(x, x')` is the multi-task kernel, :math:`\mu_t` and :math:`\Gamma_t` are the posterior mean and
  covariance of the tasks after t observations (with a tilde, those from a dictionary), :math:`\beta_t` is the radius,
  :math:`s_\lambda` a scalarization with weights :math:`\lambda` and Lipschitz constant :math:`L_\lambda`.
* All tasks are maximized, unless ``signs=`` says otherwise.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from mtbo_torch.acquisition import NystromScalarizedMultiTaskUCB, ScalarizedMultiTaskUCB
    from mtbo_torch.comparison import compare_kernels
    from mtbo_torch.confidence import (
        dual_radius,
        exact_radius,
        mixture_deviation,
        mixture_radius,
        nystrom_radius,
        theory_oversampling,
    )
    from mtbo_torch.experiment import Experiment
    from mtbo_torch.improvement import LogAverageImprovement
    from mtbo_torch.inputs import Category, Inputs, Integer, Ordered, Real
    from mtbo_torch.intervals import Mixture
    from mtbo_torch.kernels import ICMKernel, IndependentKernel, SumOfSeparableKernel, TaskSimilarityKernel
    from mtbo_torch.loop import optimize
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
    from mtbo_torch.strategies import MTBKB, MTKB, Optimizer

# Where the public names are: they are loaded when they are first used, so that importing the package is quick.
# Acquisition functions come from where they are registered with BoTorch.
_HOMES = {
    "comparison": "compare_kernels",
    "confidence": "dual_radius exact_radius mixture_deviation mixture_radius nystrom_radius theory_oversampling",
    "experiment": "Experiment",
    "inputs": "Category Inputs Integer Ordered Real",
    "intervals": "Mixture",
    "kernels": "ICMKernel IndependentKernel SumOfSeparableKernel TaskSimilarityKernel",
    "loop": "optimize",
    "models": "ExactMultiTaskGP NystromMultiTaskGP",
    "scalarizations": "ChebyshevScalarization HypervolumeScalarization LinearScalarization ObjectiveScalarization "
    "BoxWeights DirichletWeights FixedWeights InverseUniformWeights SphereWeights UniformWeights",
    "strategies": "MTBKB MTKB Optimizer",
    "ax_inputs": "LogAverageImprovement NystromScalarizedMultiTaskUCB ScalarizedMultiTaskUCB",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "MTBKB",
    "MTKB",
    "BoxWeights",
    "Category",
    "ChebyshevScalarization",
    "DirichletWeights",
    "ExactMultiTaskGP",
    "Experiment",
    "FixedWeights",
    "HypervolumeScalarization",
    "ICMKernel",
    "IndependentKernel",
    "Inputs",
    "Integer",
    "InverseUniformWeights",
    "LinearScalarization",
    "LogAverageImprovement",
    "Mixture",
    "NystromMultiTaskGP",
    "NystromScalarizedMultiTaskUCB",
    "ObjectiveScalarization",
    "Optimizer",
    "Ordered",
    "Real",
    "ScalarizedMultiTaskUCB",
    "SphereWeights",
    "SumOfSeparableKernel",
    "TaskSimilarityKernel",
    "UniformWeights",
    "compare_kernels",
    "dual_radius",
    "exact_radius",
    "mixture_deviation",
    "mixture_radius",
    "nystrom_radius",
    "optimize",
    "theory_oversampling",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        globals()[name] = value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        return value
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from error


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if "botorch.acquisition.input_constructors" in sys.modules:  # such as Ax, which asks for what is registered
    import_module("mtbo_torch.ax_inputs")
