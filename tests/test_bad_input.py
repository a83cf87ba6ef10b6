"""Every refusal names the argument, says what was expected, what came and what to do, and changes nothing."""

from __future__ import annotations

import copy
import inspect
import re
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass
from pathlib import Path

import gpytorch
import matplotlib as mpl
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models.model import ModelList
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.test_functions.multi_objective import OSY, BraninCurrin
from catalogue import data, icm, rbf
from gpytorch.likelihoods import MultitaskGaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood

import mtbo_torch
from mtbo_torch import (
    MTBKB,
    MTKB,
    BoxWeights,
    Category,
    ChebyshevScalarization,
    DirichletWeights,
    ExactMultiTaskGP,
    Experiment,
    FixedWeights,
    HypervolumeScalarization,
    ICMKernel,
    IndependentKernel,
    Inputs,
    Integer,
    InverseUniformWeights,
    LinearScalarization,
    LogAverageImprovement,
    Mixture,
    NystromMultiTaskGP,
    NystromScalarizedMultiTaskUCB,
    Optimizer,
    Ordered,
    Real,
    ScalarizedMultiTaskUCB,
    SphereWeights,
    SumOfSeparableKernel,
    TaskSimilarityKernel,
    UniformWeights,
    ax_inputs,
    compare_kernels,
    comparison,
    confidence,
    dual_radius,
    exact_radius,
    feasibility,
    metrics,
    mixture_deviation,
    mixture_radius,
    nystrom_radius,
    optimize,
    plotting,
    problems,
    scalarizations,
    strategies,
    theory_oversampling,
)
from mtbo_torch.ax import make_generation_strategy
from mtbo_torch.ax_inputs import construct_inputs_scalarized_ucb, estimate_radius
from mtbo_torch.cli import main
from mtbo_torch.confidence import independent_nystrom_radius, independent_radius, mobo_radius
from mtbo_torch.experiments.compare import Problem, compare
from mtbo_torch.feasibility import OutcomeConstraints
from mtbo_torch.kernels import TaskwiseKernel, candidate_kernels, default_kernel, estimate_task_covar
from mtbo_torch.metrics import RegretTracker, average_regret, hypervolume, regret_certificate, scalarized_regret
from mtbo_torch.optuna import MultiTaskSampler
from mtbo_torch.plotting import (
    plot_certificate,
    plot_dictionary,
    plot_differences,
    plot_explanation,
    plot_hypervolume,
    plot_leave_one_out,
    plot_parallel,
    plot_pareto,
    plot_posterior,
    plot_regret,
    plot_slice,
    plot_task_correlation,
    save_demo,
    save_panel,
)
from mtbo_torch.problems import FieldProblem, PerturbedSine, RKHSFunction, ShiftedBranin, load_sensors, load_soil
from mtbo_torch.scalarizations import ObjectiveScalarization, Scalarization
from mtbo_torch.strategies import ITBKB, ITKB, MOBO, NEHVI, NParEGO, RandomSearch, SobolSearch, Strategy

mpl.use("Agg")

NAN, INF = float("nan"), float("inf")
X, Y, Z = data(5, 3, 2)
KERNEL = icm(3, 2).kernel
MODEL = ExactMultiTaskGP(X, Y, KERNEL, eta=0.1)
SCALARIZATION = ChebyshevScalarization(torch.full((3,), 1 / 3).double())
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
EYE = torch.eye(3, dtype=torch.double)
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def spoiled(tensor: torch.Tensor, value: float) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[-1, -1] = value
    return tensor


def mtkb(**kwargs: object) -> MTKB:
    return MTKB(**({"kernel": KERNEL, "bounds": BOX, "norm_bound": 1.0, "noise_scale": 0.1} | kwargs))


def mtbkb(**kwargs: object) -> MTBKB:
    return MTBKB(**({"kernel": KERNEL, "bounds": BOX, "norm_bound": 1.0, "noise_scale": 0.1} | kwargs))


def ucb(scalarization: Scalarization | None = None, **kwargs: object) -> ScalarizedMultiTaskUCB:
    return ScalarizedMultiTaskUCB(MODEL, scalarization or SCALARIZATION, 1.0, **kwargs)


def gp(**kwargs: object) -> ExactMultiTaskGP:
    return ExactMultiTaskGP(X, Y, KERNEL, **kwargs)


def mll_of(model: ExactMultiTaskGP) -> ExactMarginalLogLikelihood:
    return ExactMarginalLogLikelihood(model.likelihood, model)


def nystrom(**kwargs: object) -> NystromMultiTaskGP:
    return NystromMultiTaskGP(X, Y, KERNEL, **({"eta": 0.1} | kwargs))


def radius(**kwargs: object) -> torch.Tensor:
    return exact_radius(
        **({"info_gain": 1.0, "norm_bound": 1.0, "noise_scale": 0.1, "eta": 0.1, "delta": 0.1} | kwargs)
    )


def batched_rbf(b: int) -> gpytorch.kernels.RBFKernel:
    return gpytorch.kernels.RBFKernel(batch_shape=torch.Size([b]))


def stack_of(b: int) -> ICMKernel:
    return ICMKernel(rbf(0.5), EYE.expand(b, 3, 3))


def wide_kernel() -> ICMKernel:
    return ICMKernel(gpytorch.kernels.RBFKernel(ard_num_dims=5).double(), EYE)


def foreign_kernel() -> gpytorch.kernels.MultitaskKernel:
    return gpytorch.kernels.MultitaskKernel(rbf(0.5), num_tasks=3)


def best_of(weights: torch.Tensor) -> torch.Tensor:
    return weights.amax(dim=-1)


def told(strategy: Strategy) -> Strategy:
    """One that has seen three points, and waits for a fourth."""
    x, y = (values.expand(*strategy.batch_shape, *values.shape) for values in (X[:3], Y[:3]))
    strategy.tell(x, y)
    strategy.ask()
    return strategy


# What the calls are made on; nothing of it may change.
NYSTROM = nystrom()
NOISY = gp(train_Yvar=1 + Y.abs())
WARPED = ExactMultiTaskGP(X, Y.abs() + 0.1, KERNEL, eta=0.1, outcome_transform=Log())
ACQUISITION = ucb(X_pending=Z[:2])
WEIGHTS = UniformWeights(3)
BRANIN = BraninCurrin()
CONSTRAINTS = OutcomeConstraints(EYE, Y[0])
FUNCTION = RKHSFunction(KERNEL, Z[:5], Y)
TRACKER = RegretTracker(LinearScalarization, best_of, Y.abs(), Y[None])
TRACKER.update(Y.abs()[None], Y[None])
NAMES = ("a", "b", "c")
EXPERIMENT = Experiment({"a": Real(0, 1)}, {"f": "maximize"})
TOLD = told(mtkb(bounds=None, choices=Z, seed=3))
BUDGETED = told(mtbkb(bounds=None, choices=Z, seed=3))
LEARNING = told(mtkb(bounds=None, choices=Z, refit_every=100))
TRIALS = told(mtkb(bounds=None, choices=Z, seed=[3, 4]))


def no_radius(t: int) -> None:
    """Return nothing, where a radius is expected."""


FUSSY = mtkb(bounds=None, choices=Z, radius=no_radius)
SOBOL = SobolSearch(3, choices=Z)
STRATEGIES = (TOLD, BUDGETED, LEARNING, TRIALS, FUSSY, SOBOL)


CALLS: list[tuple[Callable[[], object], str]] = [
    # Kernels
    (lambda: ICMKernel(rbf(0.5)), "either task_covar"),
    (lambda: ICMKernel(rbf(0.5), EYE, num_tasks=3), "either task_covar"),
    (lambda: ICMKernel(rbf(0.5), EYE, rank=2), "rank"),
    (lambda: ICMKernel(rbf(0.5), num_tasks=3, rank=4), "rank"),
    (lambda: ICMKernel(rbf(0.5), num_tasks=3, rank=0), "rank"),
    (lambda: ICMKernel(rbf(0.5), num_tasks=0), "num_tasks"),
    (lambda: ICMKernel(rbf(0.5), EYE[:2]), "task_covar should be `n x n`"),
    (lambda: ICMKernel(rbf(0.5), [[1.0]]), "task_covar should be a torch.Tensor"),
    (lambda: ICMKernel(rbf(0.5), torch.eye(2, dtype=torch.long)), "task_covar should have a floating-point"),
    (lambda: ICMKernel(rbf(0.5), torch.tensor([[1.0, 0.5], [0.0, 1.0]])), "task_covar should be symmetric"),
    (
        lambda: ICMKernel(rbf(0.5), torch.tensor([[1.0, 2.0], [2.0, 1.0]])),
        "task_covar should be positive semi-definite",
    ),
    (lambda: ICMKernel(rbf(0.5), -EYE), "task_covar should be positive semi-definite"),
    (lambda: ICMKernel(rbf(0.5), spoiled(EYE, NAN)), "task_covar should contain finite"),
    (lambda: ICMKernel(rbf(0.5), spoiled(EYE, INF)), "task_covar should contain finite"),
    (lambda: ICMKernel(rbf(0.5), 0 * EYE), "task_covar should not be all zero"),
    (lambda: ICMKernel("rbf", EYE), "base_kernel"),
    (lambda: ICMKernel(KERNEL, EYE), "base_kernel should be a scalar kernel"),
    (lambda: TaskSimilarityKernel(rbf(0.5), 3, 1.5), "omega"),
    (lambda: TaskSimilarityKernel(rbf(0.5), 3, -0.1), "omega"),
    (lambda: TaskSimilarityKernel(rbf(0.5), 3, NAN), "omega"),
    (lambda: TaskSimilarityKernel(rbf(0.5), 0, 0.5), "num_tasks"),
    (lambda: TaskSimilarityKernel(None, 3, 0.5), "base_kernel"),
    (lambda: TaskSimilarityKernel(rbf(0.5), 3, "half"), "omega should be a number"),
    (lambda: ICMKernel(rbf(0.5), num_tasks=3, rank=1.5), "rank"),
    (lambda: ICMKernel(gpytorch.kernels.ScaleKernel(KERNEL), EYE), "base_kernel should be a scalar kernel"),
    (lambda: ICMKernel(gpytorch.kernels.RBFKernelGrad(), EYE), "base_kernel should be a scalar kernel"),
    (lambda: SumOfSeparableKernel([]), "kernels should be a non-empty list"),
    (lambda: SumOfSeparableKernel(KERNEL), "kernels should be a non-empty list"),
    (lambda: SumOfSeparableKernel([rbf(0.5)]), r"kernels\[0\] should be a multi-task kernel"),
    (lambda: SumOfSeparableKernel([KERNEL, ICMKernel(rbf(0.5), EYE[:2, :2])]), "same number of tasks"),
    (lambda: SumOfSeparableKernel([ICMKernel(rbf(0.5), EYE, active_dims=(0,))]), "active_dims"),
    (lambda: IndependentKernel([]), "kernels should be a non-empty list"),
    (lambda: IndependentKernel([KERNEL]), r"kernels\[0\] should be a scalar kernel"),
    (lambda: TaskwiseKernel(rbf(0.5)), "base_kernel should have a batch dimension for the tasks"),
    (lambda: TaskwiseKernel(KERNEL), "base_kernel should be a scalar kernel"),
    (lambda: candidate_kernels(2, 0), "num_inputs should be an integer"),
    # Model
    (lambda: ExactMultiTaskGP(X, Y[:, :2], KERNEL, eta=0.1), "train_Y should be .* n = 3 tasks"),
    (lambda: ExactMultiTaskGP(X, Y[:4], KERNEL, eta=0.1), "train_Y should be .* same leading shape"),
    (lambda: ExactMultiTaskGP(X, Y[:, 0], KERNEL, eta=0.1), "train_Y"),
    (lambda: ExactMultiTaskGP(X[:, 0], Y, KERNEL, eta=0.1), "train_X should be"),
    (lambda: ExactMultiTaskGP(X.float(), Y, KERNEL, eta=0.1), "train_Y should have the dtype"),
    (lambda: ExactMultiTaskGP(X.numpy(), Y, KERNEL, eta=0.1), "train_X should be a torch.Tensor"),
    (lambda: ExactMultiTaskGP(X, Y.long(), KERNEL, eta=0.1), "train_Y should have a floating-point"),
    (lambda: ExactMultiTaskGP(spoiled(X, NAN), Y, KERNEL, eta=0.1), "train_X should contain finite"),
    (lambda: ExactMultiTaskGP(X, spoiled(Y, INF), KERNEL, eta=0.1), r"train_Y should contain finite .* index \(4, 2\)"),
    (lambda: ExactMultiTaskGP(X, Y, KERNEL, eta=0.0), "eta should be finite and > 0"),
    (lambda: ExactMultiTaskGP(X, Y, KERNEL, eta=-0.1), "eta should be finite and > 0"),
    (lambda: ExactMultiTaskGP(X, Y, KERNEL, eta=NAN), "eta should be finite and > 0"),
    (lambda: ExactMultiTaskGP(X, Y, KERNEL, eta=torch.ones(2)), "eta should be a number or have one entry"),
    (lambda: ExactMultiTaskGP(X, Y, KERNEL, eta=torch.ones(4, 1)), "eta should have a batch shape"),
    (lambda: ExactMultiTaskGP(X, Y, rbf(0.5), eta=0.1), "covar_module should be a multi-task kernel"),
    (lambda: ExactMultiTaskGP(X, Y, "icm", eta=0.1), "covar_module should be a multi-task kernel"),
    (lambda: ExactMultiTaskGP(X, Y, ICMKernel(rbf(0.5), torch.stack([EYE, EYE])), eta=0.1), "covar_module should have"),
    (lambda: ExactMultiTaskGP(X, Y, KERNEL, eta=0.1, likelihood=MODEL.likelihood), "eta should not be given"),
    (lambda: ExactMultiTaskGP(X, Y, KERNEL, likelihood=gpytorch.likelihoods.GaussianLikelihood()), "likelihood"),
    (
        lambda: ExactMultiTaskGP(X, Y, KERNEL, likelihood=gpytorch.likelihoods.MultitaskGaussianLikelihood(2)),
        "likelihood should be for 3 tasks",
    ),
    (lambda: MODEL.mean(Z[:, :1]), "X should be .* d = 2"),
    (lambda: MODEL.mean(Z[0]), "X should be"),
    (lambda: MODEL.mean(Z.float()), "X should have the dtype"),
    (lambda: MODEL.covariance(Z[:, :1]), "X should be"),
    (lambda: MODEL.covariance_norm(Z[:, :1]), "X should be"),
    (lambda: MODEL.posterior(Z[:, :1]), "X should be"),
    (lambda: MODEL.condition_on_observations(Z, Y[:, :2]), "Y should be"),
    (lambda: MODEL.condition_on_observations(Z[:5, :1], Y), "X should be"),
    (lambda: MODEL.condition_on_observations(Z[:5], spoiled(Y, NAN)), "Y should contain finite"),
    (lambda: MODEL.condition_on_observations(Z[:5], Y, noise=Y), "noise"),
    (lambda: ExactMultiTaskGP(X, Y, KERNEL, eta="small"), "eta should be a number"),
    (lambda: ExactMultiTaskGP(X, Y, KERNEL, eta=0.1, mean_module="zero"), "mean_module should be a gpytorch"),
    (
        lambda: ExactMultiTaskGP(
            X, Y, KERNEL, eta=0.1, mean_module=gpytorch.means.MultitaskMean(gpytorch.means.ZeroMean(), 2)
        ),
        "mean_module should be for 3 tasks",
    ),
    (
        lambda: ExactMultiTaskGP(
            X, Y, KERNEL, likelihood=gpytorch.likelihoods.MultitaskGaussianLikelihood(3, batch_shape=torch.Size([2]))
        ),
        "likelihood should have a batch shape",
    ),
    (lambda: MODEL.mean(None), "X should be a torch.Tensor"),
    (lambda: MODEL.at(Z[:, :1].clone().requires_grad_()), "X should be .* d = 2"),
    (lambda: MODEL.posterior(Z, observation_noise=torch.full((7, 3), -1.0)), "observation_noise"),
    (
        lambda: MODEL.condition_on_observations(Z[:5].expand(2, 5, 2), Y.expand(3, 5, 3)),
        "X and Y should have batch shapes that broadcast",
    ),
    # Scalarizations and weights
    (lambda: LinearScalarization(torch.tensor([0.5, -0.5])), "weights should be non-negative"),
    (lambda: ChebyshevScalarization(torch.tensor([0.0, 0.0])), "weights should be non-negative and not all zero"),
    (lambda: ChebyshevScalarization(torch.tensor([0.5, NAN])), "weights should contain finite"),
    (lambda: ChebyshevScalarization(torch.tensor(0.5)), "weights should be `n`"),
    (lambda: ChebyshevScalarization([0.5, 0.5]), "weights should be a torch.Tensor"),
    (lambda: ChebyshevScalarization(torch.ones(2), ref_point=torch.ones(3)), "ref_point"),
    (lambda: ChebyshevScalarization(torch.ones(2), ref_point=torch.tensor([0.0, INF])), "ref_point"),
    (lambda: SCALARIZATION(Y[:, :2]), "Y should be .* n = 3 tasks"),
    (lambda: UniformWeights(0), "num_tasks"),
    (lambda: UniformWeights(2).sample(-1), "shape should not be negative"),
    (lambda: InverseUniformWeights(2.5), "num_tasks"),
    (lambda: DirichletWeights(3, 0.0), "concentration"),
    (lambda: DirichletWeights(3, torch.ones(2)), "concentration"),
    (lambda: FixedWeights(torch.tensor([-1.0, 2.0])), "weights"),
    (lambda: FixedWeights(torch.ones(2, 2)), "weights should be a vector"),
    (lambda: HypervolumeScalarization(torch.ones(2), None), "ref_point should be a torch.Tensor"),
    (lambda: HypervolumeScalarization(torch.ones(2), torch.zeros(3)), "ref_point should have one entry"),
    (lambda: HypervolumeScalarization(torch.ones(2), torch.tensor([0.0, NAN])), "ref_point should contain finite"),
    (lambda: HypervolumeScalarization(torch.ones(2), torch.zeros(2), upper=torch.ones(3)), "upper should have one"),
    (lambda: HypervolumeScalarization(torch.ones(2), torch.zeros(2), upper=[1.0, 1.0]), "upper should be a torch"),
    (
        lambda: HypervolumeScalarization(torch.ones(2), torch.zeros(2), upper=torch.tensor([1.0, 0.0])),
        "upper should exceed ref_point",
    ),
    (lambda: HypervolumeScalarization(-torch.ones(2), torch.zeros(2)), "weights should be non-negative"),
    (lambda: ObjectiveScalarization(torch.ones(3), EYE), "scalarization should be a Scalarization"),
    (lambda: ObjectiveScalarization(SCALARIZATION, EYE[:2]), "objectives should be `k x n` with k = 3"),
    (lambda: ObjectiveScalarization(SCALARIZATION, EYE[0]), "objectives should be `k x n`"),
    (lambda: ObjectiveScalarization(SCALARIZATION, spoiled(EYE, NAN)), "objectives should contain finite"),
    (lambda: ObjectiveScalarization(SCALARIZATION, [[1.0]]), "objectives should be a torch.Tensor"),
    (lambda: SphereWeights(0), "num_tasks"),
    (lambda: BoxWeights([0.0], [1.0]), "lower should be a torch.Tensor"),
    (lambda: BoxWeights(torch.zeros(2), torch.ones(2, dtype=torch.long)), "upper should have a floating-point"),
    (lambda: BoxWeights(torch.zeros(2), torch.ones(1, 2)), "upper should be a vector"),
    (lambda: BoxWeights(torch.zeros(0), torch.ones(0)), "lower should be a vector"),
    (lambda: BoxWeights(torch.tensor(0.0), torch.tensor(1.0)), "lower should be a vector"),
    (lambda: BoxWeights(torch.zeros(2), torch.ones(3)), "0 <= lower <= upper"),
    (lambda: BoxWeights(torch.tensor([-0.1, 0.0]), torch.ones(2)), "0 <= lower <= upper"),
    (lambda: BoxWeights(torch.tensor([0.5, 0.0]), torch.tensor([0.4, 1.0])), "0 <= lower <= upper"),
    (lambda: BoxWeights(torch.tensor([0.6, 0.6]), torch.ones(2)), "leave room for weights that sum to one"),
    (lambda: BoxWeights(torch.zeros(2), torch.tensor([0.3, 0.6])), "leave room for weights that sum to one"),
    (lambda: BoxWeights(torch.zeros(2), torch.tensor([INF, 1.0])), "upper should contain finite"),
    # Constraints
    (lambda: CONSTRAINTS.hold([1.0]), "Y should be a torch.Tensor"),
    (lambda: CONSTRAINTS.hold(Y[:, :1]), "Y should be `... x n` with n = 3"),
    (lambda: OutcomeConstraints([[1.0]], torch.ones(1)), "A should be a torch.Tensor"),
    (lambda: OutcomeConstraints(torch.ones(2), torch.ones(1)), "A should be `m x n`"),
    (lambda: OutcomeConstraints(torch.ones(0, 2), torch.ones(0)), "A should be `m x n`"),
    (lambda: OutcomeConstraints(torch.ones(1, 2), 1.0), "c should be a torch.Tensor"),
    (lambda: OutcomeConstraints(torch.ones(1, 2), torch.ones(2)), "c should have one entry for each of the 1"),
    (lambda: OutcomeConstraints(spoiled(torch.ones(1, 2), NAN), torch.ones(1)), "A should contain finite"),
    (lambda: OutcomeConstraints(torch.ones(1, 2), torch.tensor([INF])), "c should contain finite"),
    (lambda: OutcomeConstraints(torch.zeros(1, 2), torch.ones(1)), "A should have an entry other than zero"),
    (
        lambda: OutcomeConstraints(torch.tensor([[1.0, 0.0], [-2.0, 0.0]]), torch.tensor([1.0, -3.0])),
        "A and c should leave an interval allowed",
    ),
    # Radius
    (lambda: radius(info_gain=-1.0), "info_gain"),
    (lambda: radius(info_gain=NAN), "info_gain"),
    (lambda: radius(norm_bound=-1.0), "norm_bound"),
    (lambda: radius(noise_scale=INF), "noise_scale"),
    (lambda: radius(eta=0.0), "eta"),
    (lambda: radius(delta=0.0), "delta"),
    (lambda: radius(delta=1.5), "delta"),
    (lambda: radius(delta=NAN), "delta"),
    # Acquisition
    (
        lambda: ScalarizedMultiTaskUCB(MODEL, ChebyshevScalarization(torch.ones(2)), 1.0),
        "scalarization should have one",
    ),
    (lambda: ScalarizedMultiTaskUCB(MODEL, torch.ones(3), 1.0), "scalarization should be a Scalarization"),
    (lambda: ax_inputs.construct_inputs_average_improvement(None), "model should be a BoTorch model"),
    (lambda: LogAverageImprovement(MODEL, signs=[1, 2, 1]), "signs should be 1"),
    (lambda: LogAverageImprovement(MODEL, torch.zeros(2)), "ref_point should have one finite entry for each of the 3"),
    (lambda: LogAverageImprovement(MODEL, weights=torch.ones(3)), "weights should be `W x k` with k = 3"),
    (lambda: LogAverageImprovement(MODEL).set_X_pending(Z[0]), "X_pending should be `p x d`"),
    (lambda: ScalarizedMultiTaskUCB(MODEL, SCALARIZATION, -1.0), "radius"),
    (lambda: ScalarizedMultiTaskUCB(MODEL, SCALARIZATION, NAN), "radius"),
    (lambda: ScalarizedMultiTaskUCB(MODEL, SCALARIZATION, 1.0, X_pending=Z[:, :1]), "X should be"),
    (lambda: ScalarizedMultiTaskUCB(MODEL, SCALARIZATION, None), "radius should be a number"),
    (lambda: ScalarizedMultiTaskUCB(MODEL, SCALARIZATION, torch.ones(3)), "radius should be of the model's batch"),
    (
        lambda: ScalarizedMultiTaskUCB(MODEL, ChebyshevScalarization(torch.ones(4, 3)), 1.0),
        "scalarization should be of the model's batch",
    ),
    (lambda: ucb(bound="box"), r"bound should be one of \('norm', 'ellipsoid'\), got 'box'"),
    (lambda: ucb(bound=None), "bound should be one of"),
    (lambda: ucb(constraints=EYE), "constraints should be a pair of A"),
    (lambda: ucb(constraints=(EYE,)), "constraints should be a pair of A"),
    (lambda: ucb(constraints=(EYE[:2, :2], Y[0, :2])), "constraints should have one column for each of the 3 tasks"),
    (
        lambda: ucb(constraints=OutcomeConstraints(EYE[:2, :2], Y[0, :2])),
        "constraints should have one column for each of the 3 tasks",
    ),
    (lambda: ucb(constraints=(EYE, Y[0, :2])), "c should have one entry for each of the 3"),
    (lambda: ucb(constraints=(EYE, Y[0]), infeasible_value=NAN), "infeasible_value should contain finite"),
    (lambda: ucb(constraints=(EYE, Y[0]), infeasible_value="low"), "infeasible_value should be a number"),
    (lambda: ucb(constraints=(EYE, Y[0]), infeasible_value=torch.ones(3)), "infeasible_value should be of the model's"),
    (lambda: ucb(scalarization=HypervolumeScalarization(Y[0].abs(), Y[0]))(Z[:1]), "upper should be given"),
    # Strategy
    (lambda: mtkb(bound="box"), "bound should be one of"),
    (lambda: mtbkb(bound=1), "bound should be one of"),
    (lambda: mtkb(signs=(1, -1)), "signs should be 1 .* for each of the 3 tasks"),
    (lambda: mtkb(signs=(0, 0, 0)), "signs should be 1 .* not all zero"),
    (lambda: mtkb(signs=(1, 2, 1)), "signs should be 1"),
    (lambda: mtkb(signs=(1, 0.5, 1)), "signs should be 1"),
    (lambda: mtkb(signs=1), "signs should be 1"),
    (lambda: mtkb(signs="max"), "signs should be 1"),
    (lambda: mtkb(signs=(1, None, 1)), "signs should be 1"),
    (lambda: mtkb(signs=torch.ones(3, 1)), "signs should be 1"),
    (lambda: mtkb(ref_point=torch.zeros(2).double()), "ref_point should have one entry for each of the 3 objectives"),
    (lambda: mtkb(ref_point=Y[0], signs=(1, 0, 1)), "ref_point should have one entry for each of the 2 objectives"),
    (lambda: mtkb(ref_point=[0.0, 0.0, 0.0]), "ref_point should be a torch.Tensor"),
    (lambda: mtkb(ref_point=torch.tensor([0.0, NAN, 0.0])), "ref_point should contain finite"),
    (lambda: mtkb(ref_point=Y[0], scalarization=LinearScalarization), "ref_point should only be given for a scalar"),
    (lambda: mtkb(scalarization=HypervolumeScalarization), "ref_point should be given for a HypervolumeScalarization"),
    (lambda: mtkb(weights=UniformWeights(3), signs=(1, 0, 1)), "weights should be for 2 tasks"),
    (lambda: mtkb(constraints=EYE), "constraints should be a pair of A"),
    (lambda: mtkb(constraints=(EYE[:2, :2], Y[0, :2])), "constraints should have one column for each of the 3 tasks"),
    (lambda: mtbkb(constraints=(EYE, Y[0, :2])), "c should have one entry"),
    (lambda: mtkb(choices=Z), "either bounds or choices"),
    (lambda: mtkb(bounds=None), "either bounds or choices"),
    (lambda: mtkb(bounds=BOX.flip(0)), "bounds should have lower < upper"),
    (lambda: mtkb(bounds=BOX.T[:1]), "bounds should be `2 x d`"),
    (lambda: mtkb(bounds=spoiled(BOX, INF)), "bounds should contain finite"),
    (lambda: mtkb(bounds=[(0, 1)]), "bounds should be a torch.Tensor"),
    (lambda: mtkb(bounds=None, choices=Z[:0]), "choices should be `N x d`"),
    (lambda: mtkb(bounds=None, choices=Z[0]), "choices should be `N x d`"),
    (lambda: mtkb(bounds=None, choices=spoiled(Z, NAN)), "choices should contain finite"),
    (lambda: mtkb(kernel=rbf(0.5)), "kernel should be a multi-task kernel"),
    (lambda: mtkb(eta=0.0), "eta"),
    (lambda: mtkb(delta=2.0), "delta"),
    (lambda: mtkb(norm_bound=-1.0), "norm_bound"),
    (lambda: mtkb(noise_scale=NAN), "noise_scale"),
    (lambda: mtkb(weights=UniformWeights(2)), "weights should be for 3 tasks"),
    (lambda: mtkb(scalarization=SCALARIZATION), "scalarization should be a class"),
    (lambda: mtkb().ask(0), "q should be an integer >= 1"),
    (lambda: mtkb().ask(1.5), "q should be an integer >= 1"),
    (lambda: mtkb().ask(True), "q should be an integer >= 1"),
    (lambda: mtkb(eta=torch.tensor([0.1, 0.2])), "eta should be one number"),
    (lambda: mtkb(eta="small"), "eta should be a number"),
    (lambda: mtkb(weights="uniform"), "weights should be a distribution"),
    (lambda: mtkb(raw_samples=0), "raw_samples"),
    (lambda: mtkb(num_restarts=0), "num_restarts"),
    (lambda: mtkb(seed=1.5), "seed should be an integer"),
    (lambda: mtkb(seed=True), "seed should be an integer"),
    (lambda: mtkb(seed=[2**70]), "seed should be an integer"),
    (lambda: mtkb(seed=[]), "seed should be an integer .* or a non-empty list"),
    (lambda: mtkb(seed=[0, 1]).tell(Z[:1], Y[:1]), "x should be `2 x q x d`"),
    # Nystrom
    (lambda: nystrom(dictionary=torch.tensor([], dtype=torch.long)), "dictionary should have at least one index"),
    (lambda: nystrom(dictionary=torch.tensor([0, 5])), "dictionary should hold indices of the 5 observations"),
    (lambda: nystrom(dictionary=torch.tensor([-1])), "dictionary should hold indices"),
    (lambda: nystrom(dictionary=torch.tensor([0.0])), "dictionary should be a tensor of integer indices"),
    (lambda: nystrom(dictionary=[0, 1]), "dictionary should be a tensor of integer indices"),
    (lambda: nystrom(dictionary=torch.zeros(2, 1, dtype=torch.long)), "dictionary should have a batch shape"),
    (lambda: nystrom(oversampling=0.0), "oversampling"),
    (lambda: nystrom(oversampling=-1.0), "oversampling"),
    (lambda: nystrom(oversampling=torch.tensor([1.0, 2.0])), "oversampling should be one number"),
    (lambda: nystrom(seed=1.5), "seed should be an integer"),
    (lambda: nystrom(eta=0.0), "eta"),
    (lambda: nystrom_radius(1.0, "a", 0.1, 0.1, 0.1, epsilon=0.5), "norm_bound should be a number"),
    (lambda: nystrom_radius(None, 1.0, 0.1, 0.1, 0.1, epsilon=0.5), "info_gain should be a number"),
    (lambda: nystrom_radius(1.0, -1.0, 0.1, 0.1, 0.1, epsilon=0.5), "norm_bound .* got -1.0"),
    (lambda: nystrom_radius(1.0, 1.0, 0.1, 0.1, 0.1, epsilon=0.0), "epsilon should lie in"),
    (lambda: nystrom_radius(1.0, 1.0, 0.1, 0.1, 0.1, epsilon=1.0), "epsilon should lie in"),
    (lambda: nystrom_radius(1.0, 1.0, 0.1, 0.1, delta=0.0, epsilon=0.5), "delta"),
    (lambda: nystrom_radius(-1.0, 1.0, 0.1, 0.1, 0.1, epsilon=0.5), "info_gain"),
    (lambda: theory_oversampling(0, 0.1, 0.5), "num_rounds"),
    (lambda: theory_oversampling(10, 0.0, 0.5), "delta"),
    (lambda: theory_oversampling(10, 0.1, 1.5), "epsilon"),
    (lambda: NystromScalarizedMultiTaskUCB(MODEL, SCALARIZATION, 1.0), "model should be a NystromMultiTaskGP"),
    (lambda: mtbkb(oversampling=0.0), "oversampling"),
    (lambda: mtbkb(epsilon=1.0), "epsilon"),
    (lambda: mtbkb(schedule="sometimes"), "schedule should be one of"),
    (lambda: mtbkb(choices=Z), "MTBKB should get either bounds or choices"),
    # Transforms and known noise
    (lambda: gp(outcome_transform=Standardize(2)), "outcome_transform should take values of shape .* for 3 tasks"),
    (lambda: gp(outcome_transform=Standardize(3, batch_shape=torch.Size([2]))), "outcome_transform should"),
    (lambda: gp(outcome_transform=Log()), "outcome_transform should take|train_Y behind the outcome_transform"),
    (lambda: gp(outcome_transform="standardize"), "outcome_transform should be a BoTorch OutcomeTransform"),
    (lambda: gp(input_transform=Normalize(5)), "input_transform should take train_X of shape .* d = 2"),
    (lambda: gp(input_transform=Standardize(3)), "input_transform should be a BoTorch InputTransform"),
    (lambda: gp(train_Yvar=torch.full_like(Y[:, :2], 0.1)), "train_Yvar should have the shape"),
    (lambda: gp(train_Yvar=-torch.ones_like(Y)), "train_Yvar should be finite and > 0"),
    (lambda: gp(train_Yvar=spoiled(torch.ones_like(Y), NAN)), "train_Yvar should contain finite"),
    (lambda: gp(train_Yvar=torch.ones_like(Y).float()), "train_Yvar should have the dtype"),
    (lambda: gp(train_Yvar=0.1), "train_Yvar should be a torch.Tensor"),
    (lambda: gp(train_Yvar=torch.ones_like(Y), eta=0.1), "eta should not be given together with train_Yvar"),
    (
        lambda: gp(train_Yvar=torch.ones_like(Y), likelihood=MultitaskGaussianLikelihood(3)),
        "likelihood should not be given together with train_Yvar",
    ),
    (lambda: gp(likelihood=MultitaskGaussianLikelihood(2)), "likelihood should be for 3 tasks"),
    (lambda: gp(likelihood=MultitaskGaussianLikelihood(3, rank=1)), "likelihood should be .* with rank=0"),
    (
        lambda: gp(likelihood=MultitaskGaussianLikelihood(3, batch_shape=torch.Size([2]))),
        "likelihood should have a batch shape",
    ),
    (lambda: MODEL.posterior(Z, output_indices=[3]), "indices of outputs"),
    (lambda: MODEL.posterior(Z, output_indices=[]), "indices of outputs"),
    (lambda: MODEL.subset_output([0, 7]), "indices of outputs"),
    (lambda: MODEL.subset_output(1), "indices of outputs"),
    (lambda: MODEL.posterior(Z, output_indices=["a"]), "indices of outputs"),
    (lambda: MODEL.posterior(Z, observation_noise=0.1), "observation_noise should be a torch.Tensor"),
    (lambda: MODEL.posterior(Z, observation_noise=torch.ones(7, 2).double()), "observation_noise should broadcast"),
    (lambda: MODEL.posterior(Z, observation_noise=torch.ones(4, 3).double()), "observation_noise should broadcast"),
    (lambda: MODEL.condition_on_observations([[0.0, 0.0]], Y), "X should be a torch.Tensor"),
    (lambda: gp(input_transform=Normalize(2, batch_shape=torch.Size([3]))), "input_transform should take"),
    (lambda: ExactMultiTaskGP(X[:0], Y[:0], KERNEL, eta=0.1, input_transform=Normalize(2)), "input_transform should"),
    (lambda: ExactMultiTaskGP(X[:0], Y[:0], KERNEL, train_Yvar=Y[:0]), "train_Yvar should have at least one row"),
    (
        lambda: gp(train_Yvar=torch.ones_like(Y)).condition_on_observations(X, Y, noise=torch.ones(2, 2).double()),
        "noise should broadcast",
    ),
    (lambda: mtkb(radius=lambda t: torch.ones(2)).ask(), r"radius\(t\) should be one number"),
    (lambda: MODEL.posterior(Z, observation_noise=-torch.ones_like(Y[:1])), "observation_noise"),
    (lambda: MODEL.condition_on_observations(X, Y, noise=torch.ones_like(Y)), "noise should only be given"),
    (
        lambda: gp(train_Yvar=torch.ones_like(Y)).condition_on_observations(X, Y, noise=-torch.ones_like(Y)),
        "noise should be finite and > 0",
    ),
    # Learning
    (lambda: fit_gpytorch_mll(mll_of(ExactMultiTaskGP(X[:0], Y[:0]))), "train_X should have at least one row"),
    (lambda: mtkb(radius="practice"), r"radius should be a number, a function, or one of \('theory', 'mobo'\)"),
    (lambda: mtkb(radius=-1.0), "radius should be finite and >= 0"),
    (lambda: mtkb(radius=torch.ones(2)), "radius should be one number"),
    (lambda: mtkb(kernel=3), "kernel should be a multi-task kernel, got the number of tasks 3 without refit_every"),
    (lambda: mtkb(kernel=0, refit_every=1), "kernel should be a multi-task kernel"),
    (lambda: mtkb(kernel=True, refit_every=1), "kernel should be a multi-task kernel"),
    (lambda: mtkb(refit_every=1, seed=[0, 1]), r"kernel should have the batch shape \(2,\)"),
    (lambda: mtkb(refit_every=0), "refit_every should be an integer >= 1"),
    (lambda: mtkb(refit_every=2.5), "refit_every should be an integer >= 1"),
    (lambda: mtkb().tell(3, Y[0]), r"x should be numbers of pending points \(none is pending\), got 3"),
    (lambda: mtkb().forget([1]), "ids should be numbers of pending points"),
    (lambda: NEHVI(3, bounds=BOX, ref_point=torch.zeros(2)), "ref_point should have one entry"),
    # Problem
    (lambda: RKHSFunction(KERNEL, Z, Y), "coefficients"),
    (lambda: RKHSFunction(KERNEL, Z[:0], Y[:0]), "centers"),
    # Kernels, once more
    (lambda: ICMKernel(batched_rbf(2), EYE.expand(3, 3, 3)), "task_covar should have a batch shape"),
    (lambda: ICMKernel(rbf(0.5), num_tasks=3, rank=True), "rank should lie between"),
    (lambda: TaskSimilarityKernel(batched_rbf(2), 3, torch.rand(3)), "omega should have a batch shape"),
    (lambda: TaskSimilarityKernel(rbf(0.5), 3, torch.tensor(1)), "omega should have a floating-point dtype"),
    (lambda: TaskSimilarityKernel(rbf(0.5), 3, True), "omega should be a number"),
    (lambda: SumOfSeparableKernel("ab"), "kernels should be a non-empty list"),
    (lambda: SumOfSeparableKernel([stack_of(2), stack_of(4)]), "batches of kernels should have shapes that broadcast"),
    (lambda: IndependentKernel("ab"), "kernels should be a non-empty list"),
    (lambda: estimate_task_covar([[1.0]], EYE), "readings should be a torch.Tensor"),
    (lambda: estimate_task_covar(EYE, EYE.float()), "gram should have the dtype"),
    (lambda: estimate_task_covar(EYE[:0], EYE[:0, :0]), "readings and gram should be"),
    (lambda: estimate_task_covar(EYE, EYE[:2, :2]), "readings and gram should be"),
    (lambda: estimate_task_covar(spoiled(EYE, NAN), EYE), "readings should contain finite"),
    (lambda: estimate_task_covar(EYE, 0 * EYE), "gram should be positive definite"),
    (lambda: default_kernel(0, 1), "num_tasks should be an integer"),
    (lambda: default_kernel(2, 0), "num_inputs should be an integer"),
    (lambda: default_kernel(2, 1, 3), "batch_shape should be a torch.Size"),
    # Models, once more
    (lambda: MODEL.posterior(Z.expand(0, 7, 2)), "X should have no empty batch"),
    (lambda: MODEL.posterior(Z.to("meta")), "X should hold numbers"),
    (lambda: MODEL.posterior(Z.half()), "X should be in single or double precision"),
    (lambda: MODEL.posterior(Z.long()), "X should have a floating-point dtype"),
    (lambda: MODEL.posterior(Z.float()), "X should have the dtype"),
    (lambda: MODEL.posterior(Z, posterior_transform="a"), "posterior_transform should be a BoTorch"),
    (lambda: MODEL.posterior(Z, output_indices=[True]), "indices of outputs"),
    (lambda: MODEL.posterior(Z, observation_noise=torch.full((7, 3), NAN)), "observation_noise should be finite"),
    (lambda: MODEL.intervals(Z[:, :1], Mixture(1.0, 0.1)), "X should be .* d = 2"),
    (lambda: MODEL.intervals(Z, 2.0), "mixture should be a Mixture"),
    (lambda: MODEL.intervals(Z, Mixture(1.0, 0.1), EYE[:, :2]), "directions should be .* n = 3 tasks"),
    (lambda: nystrom().intervals(Z[:, :1], Mixture(1.0, 0.1)), "X should be .* d = 2"),
    (lambda: Mixture(-1.0, 0.1), "norm_bound should be finite and >= 0"),
    (lambda: Mixture(1.0, torch.ones(2)), "noise_scale should be one number"),
    (lambda: Mixture(1.0, 0.1, delta=0.0), "delta should lie in"),
    (lambda: mixture_radius(-1.0, 1.0, 0.1, 0.1, 0.1), "info_gain should be"),
    (lambda: mixture_deviation(1.0, -1.0, 0.1, 0.1, 0.1), "quadratic should be"),
    (lambda: dual_radius(1.0, 1.0, 1.0, 0.0), "alpha should be finite and > 0"),
    (lambda: MODEL.at(Z[:, :1]), "X should be .* d = 2"),
    (lambda: MODEL.at(Z).variance(EYE[:, :2]), "directions should be .* n = 3 tasks"),
    (lambda: MODEL.at(Z).variance(EYE[0]), "directions should be"),
    (lambda: MODEL.at(Z).variance(EYE.expand(2, 3, 3)), "directions should have a batch shape"),
    (lambda: MODEL.at(Z).variance([[1.0]]), "directions should be a torch.Tensor"),
    (lambda: MODEL.subset_output([0]).at(Z).variance(EYE), "directions should be .* n = 1 tasks"),
    (lambda: MODEL.condition_on_observations(None, None), "X should be a torch.Tensor"),
    (lambda: MODEL.get_fantasy_model(None, Y), "inputs should be a torch.Tensor"),
    (lambda: MODEL.get_fantasy_model(X, None), "targets should be a torch.Tensor"),
    (lambda: MODEL.get_fantasy_model(X, Y[:, :2]), "Y should be"),
    (lambda: MODEL.condition_on_observations(Z[0, 0], Y[0, 0]), "X should be"),
    (lambda: MODEL.condition_on_observations(Z[:5].to("meta"), Y), "X should hold numbers"),
    (lambda: MODEL.condition_on_observations(Z[:5].float(), Y.float()), "X should have the dtype"),
    (lambda: MODEL.condition_on_observations(Z[:5].expand(0, 5, 2), Y.expand(0, 5, 3)), "X should have no empty batch"),
    (lambda: NYSTROM.condition_on_observations(Z[:2], Y[:3]), "Y should be .* same leading shape"),
    (lambda: NOISY.condition_on_observations(X, Y, noise=[1.0]), "noise should be a torch.Tensor"),
    (lambda: NOISY.condition_on_observations(X, Y, noise=Y.float().abs()), "noise should have the dtype"),
    (lambda: MODEL.imagine(None), "X should be a torch.Tensor"),
    (lambda: MODEL.imagine(Z[:, :1]), "X should be"),
    (lambda: MODEL.imagine(spoiled(Z, NAN)), "X should contain finite"),
    (lambda: NYSTROM.imagine(Z[0]), "X should be"),
    (lambda: NYSTROM.resample(None), "generator should be a torch.Generator"),
    (lambda: NYSTROM.resample(0), "generator should be a torch.Generator"),
    (lambda: MODEL.subset_output(None), "indices of outputs"),
    (lambda: MODEL.subset_output([True, False]), "indices of outputs"),
    (lambda: MODEL.set_train_data([[0.0]], Y), "inputs should be a torch.Tensor"),
    (lambda: MODEL.set_train_data(X[:3], Y), "inputs should keep the shape"),
    (lambda: MODEL.set_train_data(X, Y[:3]), "targets should keep the shape"),
    (lambda: MODEL.set_train_data(X[:3], Y, strict=False), "inputs and targets should have the same leading shape"),
    (lambda: MODEL.set_train_data(targets=Y[:3], strict=False), "inputs and targets should have the same leading"),
    (lambda: MODEL.set_train_data(X[:, :1], Y, strict=False), "inputs should have 2 columns"),
    (lambda: MODEL.set_train_data(X, Y[:, :2], strict=False), "targets should have 3 columns"),
    (lambda: MODEL.set_train_data(X, "y"), "targets should be a torch.Tensor"),
    (lambda: MODEL.set_train_data((spoiled(X, NAN),), Y), "inputs should contain finite"),
    (lambda: MODEL.set_train_data(X.float(), Y.float()), "inputs should have the dtype"),
    (lambda: NYSTROM.set_train_data(X, spoiled(Y, INF)), "targets should contain finite"),
    (lambda: MODEL.covariance(Z.to("meta")), "X should hold numbers"),
    (lambda: MODEL.covariance_norm(None), "X should be a torch.Tensor"),
    (lambda: MODEL.at(Z.float()), "X should have the dtype"),
    (lambda: ExactMultiTaskGP(None, None), "train_X should be a torch.Tensor"),
    (lambda: ExactMultiTaskGP(X.to("meta"), Y, KERNEL, eta=0.1), "train_X should hold numbers"),
    (lambda: ExactMultiTaskGP(X.half(), Y.half(), KERNEL, eta=0.1), "train_X should be in single or double"),
    (lambda: ExactMultiTaskGP(X.expand(0, 5, 2), Y.expand(0, 5, 3), KERNEL, eta=0.1), "train_X should be .* b >= 1"),
    (lambda: ExactMultiTaskGP(X, Y, wide_kernel(), eta=0.1), "covar_module should take points with d = 2"),
    (lambda: gp(eta=[0.1]), "eta should be a number"),
    (lambda: nystrom(seed=-1), "seed should be an integer"),
    (lambda: nystrom(seed=2**70), "seed should be an integer"),
    (lambda: nystrom(oversampling=None), "oversampling should be a number"),
    (lambda: NystromMultiTaskGP(X, spoiled(Y, NAN), KERNEL, eta=0.1), "train_Y should contain finite"),
    # Acquisition, once more
    (lambda: ScalarizedMultiTaskUCB(None, SCALARIZATION, 1.0), "model should be a BoTorch model"),
    (lambda: ScalarizedMultiTaskUCB(MODEL, SCALARIZATION, torch.tensor(1j)), "radius should hold real numbers"),
    (lambda: ucb(bound=torch.ones(2)), "bound should be one of"),
    (lambda: ucb(infeasible_value=1.0), "infeasible_value should only be given with constraints"),
    (lambda: ACQUISITION(None), "X should be a torch.Tensor"),
    (lambda: ACQUISITION([[0.0]]), "X should be a torch.Tensor"),
    (lambda: ACQUISITION(Z[0]), "X should be `b x q x d`"),
    (lambda: ACQUISITION(Z[:, None, :1]), "X should be .* d = 2"),
    (lambda: ACQUISITION(Z[:, None][:, :0]), "X should be `b x q x d` with q >= 1"),
    (lambda: ACQUISITION(Z.float()[:, None]), "X should have the dtype"),
    (lambda: ACQUISITION.set_X_pending([0.1]), "X_pending should be a torch.Tensor"),
    (lambda: ACQUISITION.set_X_pending(Z[0]), "X_pending should be `p x d`"),
    (lambda: ACQUISITION.set_X_pending(Z[:, :1]), "X should be .* d = 2"),
    (lambda: ACQUISITION.set_X_pending(spoiled(Z, NAN)), "X should contain finite"),
    (lambda: ACQUISITION.set_X_pending(Z.long()), "X_pending should have a floating-point"),
    (lambda: NystromScalarizedMultiTaskUCB(NYSTROM, SCALARIZATION, -1.0), "radius should be finite and >= 0"),
    (lambda: estimate_radius(None), "radius should be given for a NoneType"),
    (lambda: estimate_radius(ModelList()), "model should have at least one member"),
    (lambda: estimate_radius(MODEL, delta=0), "delta should lie in"),
    (lambda: construct_inputs_scalarized_ucb(None), "model should be a BoTorch model"),
    (lambda: construct_inputs_scalarized_ucb(MODEL, ref_point=[0.0]), "ref_point should be a torch.Tensor"),
    (lambda: construct_inputs_scalarized_ucb(MODEL, X_baseline=[0.0]), "X_baseline should be a torch.Tensor"),
    (lambda: construct_inputs_scalarized_ucb(MODEL, weights="a"), "weights should be a torch.Tensor"),
    (lambda: construct_inputs_scalarized_ucb(MODEL, scalarization=3), "scalarization should be a Scalarization"),
    # Scalarizations and weights, once more
    (lambda: SCALARIZATION(None), "Y should be a torch.Tensor"),
    (lambda: SCALARIZATION(torch.ones(2, 3).long()), "Y should have a floating-point"),
    (lambda: SCALARIZATION(torch.tensor(1.0)), "Y should be"),
    (lambda: LinearScalarization(torch.ones(2, 3))(torch.ones(5, 4, 3)), "weights and Y should have shapes that broad"),
    (lambda: LinearScalarization(torch.ones(0)), "weights should be `n`"),
    (lambda: ChebyshevScalarization(torch.ones(2, 3), torch.ones(4, 3)), "ref_point and weights should have shapes"),
    (
        lambda: HypervolumeScalarization(torch.ones(3), torch.zeros(4, 3), torch.ones(5, 3)),
        "ref_point and upper should",
    ),
    (lambda: HypervolumeScalarization(torch.ones(3), torch.zeros(3)).lipschitz, "upper should be given"),
    (lambda: ObjectiveScalarization(SCALARIZATION, EYE[:, :0]), "objectives should be"),
    (lambda: ObjectiveScalarization(SCALARIZATION, EYE)(Y[:, :2]), "Y should be"),
    (lambda: WEIGHTS.sample(1.5), "shape should be an integer"),
    (lambda: WEIGHTS.sample("a"), "shape should be an integer"),
    (lambda: WEIGHTS.sample((1.5,)), "shape should be an integer"),
    (lambda: WEIGHTS.sample(True), "shape should be an integer"),
    (lambda: WEIGHTS.sample(1, generator=0), "generator should be a torch.Generator"),
    (lambda: WEIGHTS.sample(1, dtype=torch.long), "dtype should be torch.float32"),
    (lambda: InverseUniformWeights(3).sample(-1), "shape should not be negative"),
    (lambda: SphereWeights(3).sample((2, -1)), "shape should not be negative"),
    (lambda: DirichletWeights(3, "a"), "concentration should be a number"),
    (lambda: DirichletWeights(3, None), "concentration should be a number"),
    (lambda: DirichletWeights(3).sample("a"), "shape should be an integer"),
    (lambda: FixedWeights([1.0]), "weights should be a torch.Tensor"),
    (lambda: BoxWeights(torch.zeros(2).float(), torch.ones(2).double()), "upper should have the dtype"),
    (lambda: LinearScalarization.default_weights(0), "num_tasks should be an integer"),
    # Constraints, once more
    (lambda: CONSTRAINTS.probability(Y[0, :2], EYE), "mean and covariance should be"),
    (lambda: CONSTRAINTS.probability(Y[0], EYE[:2, :2]), "mean and covariance should be"),
    (lambda: CONSTRAINTS.probability([0.0], EYE), "mean should be a torch.Tensor"),
    # Radii, once more
    (lambda: radius(info_gain=torch.ones(2), norm_bound=torch.ones(3)), "info_gain, norm_bound, .* should have shapes"),
    (lambda: radius(info_gain=torch.tensor(1j)), "info_gain should hold real numbers"),
    (lambda: radius(info_gain=torch.ones(2, device="meta")), "info_gain should hold real numbers"),
    (lambda: radius(delta=True), "delta should lie in"),
    (lambda: radius(delta=torch.tensor(0.1)), "delta should lie in"),
    (lambda: nystrom_radius(1.0, 1.0, None, 0.1, 0.1, 0.5), "noise_scale should be a number"),
    (lambda: independent_radius(-1.0, 2, 1.0, 0.1, 0.1, 0.1), "largest_gain should be"),
    (lambda: independent_radius(1.0, 0, 1.0, 0.1, 0.1, 0.1), "num_tasks should be an integer"),
    (lambda: independent_nystrom_radius(1.0, 1, -1.0, 2, 1.0, 0.1, 0.1, 0.1, 0.5), "largest_variance should be"),
    (lambda: independent_nystrom_radius(1.0, 1.5, 1.0, 2, 1.0, 0.1, 0.1, 0.1, 0.5), "num_observations should be"),
    (lambda: independent_nystrom_radius(NAN, 1, 1.0, 2, 1.0, 0.1, 0.1, 0.1, 0.5), "effective_dimension should be"),
    (lambda: mobo_radius(0), "round_number should be an integer"),
    (lambda: mobo_radius(1.5), "round_number should be an integer"),
    (lambda: theory_oversampling(1.5, 0.1, 0.5), "num_rounds should be an integer"),
    # Metrics
    (lambda: scalarized_regret(None, Y, Y), "scalarization should be a Scalarization"),
    (lambda: scalarized_regret(SCALARIZATION, Y[:, :2], Y), "achieved should be"),
    (lambda: scalarized_regret(SCALARIZATION, Y, Y[:, :2]), "attainable should be"),
    (lambda: scalarized_regret(SCALARIZATION, Y, Y[:0]), "attainable should have at least one row"),
    (lambda: scalarized_regret(SCALARIZATION, [1.0], Y), "achieved should be a torch.Tensor"),
    (lambda: average_regret([1.0]), "instantaneous should be a torch.Tensor"),
    (lambda: average_regret(torch.tensor(1.0)), "instantaneous should be `... x T`"),
    (lambda: regret_certificate(torch.ones(2), torch.ones(3), torch.ones(2)), "radius should have one entry for each"),
    (lambda: regret_certificate([1.0], torch.ones(2), torch.ones(2)), "lipschitz should be a torch.Tensor"),
    (lambda: regret_certificate(torch.ones(2), torch.ones(2), -torch.ones(2)), "norm should be finite and >= 0"),
    (lambda: hypervolume([[1.0]], Y[0]), "achieved should be a torch.Tensor"),
    (lambda: hypervolume(Y, Y[0, :2]), "ref_point should have one entry for each of the 3"),
    (lambda: hypervolume(Y[0], Y[0]), "achieved should be `... x q x n`"),
    (lambda: hypervolume(Y, Y[:1]), r"be `\(b\) x n` with the batch shape \(\) of achieved, got shape \(1, 3\)"),
    (lambda: hypervolume(torch.stack([Y, Y]), Y), r"with the batch shape \(2,\) of achieved, got shape \(5, 3\)"),
    (lambda: hypervolume(Y, spoiled(Y, NAN)[-1]), "ref_point should contain finite"),
    (lambda: hypervolume(spoiled(Y, NAN), Y[0]), "achieved should contain finite"),
    (lambda: RegretTracker("a", best_of, Y.abs(), None), "scalarization should be a class"),
    (lambda: RegretTracker(LinearScalarization, None, Y.abs(), None), "best should be a function"),
    (lambda: RegretTracker(LinearScalarization, best_of, None, None), "weights should be a torch.Tensor"),
    (lambda: RegretTracker(LinearScalarization, best_of, Y.abs(), Y), "attainable should be `b x N x n`"),
    (lambda: RegretTracker(LinearScalarization, best_of, Y.abs(), Y[None, :, :2]), "attainable should be"),
    (lambda: TRACKER.update(Y.abs(), Y), "weights and values should be `b x q x n`"),
    (lambda: TRACKER.update(Y.abs()[None], Y[None, :, :2]), "values should be"),
    (lambda: TRACKER.update(Y.abs()[None], Y[None, :2]), "weights and values should be `b x q x n`"),
    (lambda: TRACKER.update(Y.abs().expand(2, 5, 3), Y.expand(2, 5, 3)), "weights and values should be .* b = 1"),
    (lambda: TRACKER.update([Y], Y[None]), "weights should be a torch.Tensor"),
    # Comparison
    (lambda: compare_kernels(None, None), "train_X should be a torch.Tensor"),
    (lambda: compare_kernels(X, spoiled(Y, NAN)), "train_Y should contain finite"),
    (lambda: compare_kernels(X[:1], Y[:1]), "train_X should be `t x d` with t >= 2"),
    (lambda: compare_kernels(X, Y, "ab"), "kernels should be a non-empty dict or list"),
    (lambda: compare_kernels(X, Y, [rbf(0.5)]), "should be a multi-task kernel"),
    (lambda: compare_kernels(X, Y, [KERNEL, KERNEL]), "kernels should be told apart"),
    (lambda: compare_kernels(X, Y, {"wide": wide_kernel()}), r"kernels\['wide'\] should take points with d = 2"),
    (lambda: compare_kernels(X, Y, {"stack": stack_of(2)}), r"kernels\['stack'\] should be one kernel"),
    # Problems
    (lambda: PerturbedSine()(torch.ones(1, 1).long()), "X should have a floating-point"),
    (lambda: ShiftedBranin()(torch.ones(1, 2).long()), "X should have a floating-point"),
    (lambda: RKHSFunction(rbf(0.5), Z, Y), "kernel should be a multi-task kernel"),
    (lambda: RKHSFunction(stack_of(2), Z[:5], Y), "kernel should be a multi-task kernel without a batch"),
    (lambda: RKHSFunction(KERNEL, Z[:5], spoiled(Y, NAN)), "coefficients should contain finite"),
    (lambda: RKHSFunction(KERNEL, Z[:5], Y.float()), "coefficients should have the dtype"),
    (lambda: RKHSFunction(KERNEL, Z[:5], Y, noise_std="a"), "noise_std should be a number"),
    (lambda: RKHSFunction.draw(rbf(0.5), Z), "kernel should be a multi-task kernel"),
    (lambda: RKHSFunction.draw(KERNEL, Z[:0]), "domain should be `N x d`"),
    (lambda: RKHSFunction.draw(KERNEL, Z, num_centers=0), "num_centers should be an integer"),
    (lambda: RKHSFunction.draw(KERNEL, Z, seed=1.5), "seed should be an integer"),
    (lambda: FUNCTION.evaluate_true(Z[:, :1]), "X should be .* d = 2"),
    (lambda: FUNCTION.evaluate_true([[0.0]]), "X should be a torch.Tensor"),
    (lambda: FUNCTION.scale_to(-1.0), "norm should be finite and > 0"),
    (lambda: FUNCTION.scale_to(torch.ones(2)), "norm should be one number"),
    (lambda: RKHSFunction(KERNEL, Z[:5], 0 * Y).scale_to(1.0), "coefficients should not all be zero"),
    (lambda: load_sensors(None), "path should be the path of a file"),
    (lambda: load_sensors("/no/such/file"), "/no/such/file should be a readable text file"),
    (lambda: load_soil(3), "path should be the path of a file"),
    (lambda: load_soil("/no/such/file"), "/no/such/file should be a readable text file"),
    (lambda: FieldProblem.from_halves(("a",), X, Y, X, Y, ""), "values should be .* n = 1 tasks"),
    (lambda: FieldProblem.from_halves(NAMES, X[:3], Y, X, Y, ""), "values should be .* same leading shape"),
    (lambda: FieldProblem.from_halves(NAMES, X, Y, X[:3], Y, ""), "readings should be .* same leading shape"),
    (lambda: FieldProblem.from_halves(NAMES, X, spoiled(Y, NAN), X, Y, ""), "values should contain finite"),
    (lambda: FieldProblem.from_halves(NAMES, X, Y, X.float(), Y.float(), ""), "kernel_places should have the dtype"),
    (lambda: FieldProblem.from_halves(NAMES, X, Y, X, torch.ones_like(Y), ""), "a should vary"),
    # Figures
    (lambda: plot_regret({}), "curves should be a non-empty dict"),
    (lambda: plot_regret([1]), "curves should be a non-empty dict"),
    (lambda: plot_regret({"a": [1.0]}), r"curves\['a'\] should be a torch.Tensor"),
    (lambda: plot_regret({"a": torch.rand(5)}), r"curves\['a'\] should be `trials x rounds`"),
    (lambda: plot_regret({"a": torch.rand(0, 5)}), r"curves\['a'\] should be `trials x rounds`"),
    (lambda: plot_regret({"a": torch.rand(2, 5)}, ax="left"), "ax should be matplotlib axes"),
    (lambda: plot_certificate({}, {}), "certificates should be a non-empty dict"),
    (lambda: plot_certificate({}, {"a": torch.rand(2, 5)}), "regrets should have a curve for each"),
    (lambda: plot_certificate({}, {1: torch.rand(2, 5)}), "regrets should have a curve for each .* got none for 1"),
    (lambda: plot_regret({"a": torch.rand(2, 5).cfloat()}), r"curves\['a'\] should have a floating-point dtype"),
    (lambda: plot_pareto([1]), "chosen should be a torch.Tensor"),
    (lambda: plot_pareto(Y[:, :1]), "chosen should be `t x n` with n = 2 to 6 tasks"),
    (lambda: plot_pareto(torch.rand(5, 7)), "chosen should be `t x n` with n = 2 to 6 tasks"),
    (lambda: plot_pareto(Y[:0, :2]), "chosen should be `N x n`"),
    (lambda: plot_pareto(spoiled(Y[:, :2], NAN)), "chosen should contain finite"),
    (lambda: plot_pareto(Y[:, :2], Y[:, :1]), "attainable should be `N x 2`"),
    (lambda: plot_pareto(Y[:, :2], signs=(1, 2)), "signs should be 1"),
    (lambda: plot_pareto(Y[:, :2], names=["one"]), "names should be one for each of the 2 tasks"),
    (lambda: plot_parallel([1]), "values should be a torch.Tensor"),
    (lambda: plot_parallel(Y[0]), "values should be `N x n`"),
    (lambda: plot_parallel(Y[:, :1]), "values should be `t x n` with n >= 2 tasks"),
    (lambda: plot_parallel(spoiled(Y, NAN)), "values should contain finite"),
    (lambda: plot_parallel(Y, signs=(1, 1)), "signs should be 1 .* for each of the 3 tasks"),
    (lambda: plot_parallel(Y, ax=3), "ax should be matplotlib axes"),
    (lambda: plot_differences({}, [("a", "b")]), "curves should be a non-empty dict"),
    (lambda: plot_differences({"a": Y}, []), "pairs should be a non-empty list of pairs"),
    (lambda: plot_differences({"a": Y}, "ab"), "pairs should be a non-empty list of pairs"),
    (lambda: plot_differences({"a": Y}, ["a"]), "pairs should be a non-empty list of pairs"),
    (lambda: plot_differences({"a": Y}, [("a", "b")]), "pairs should have names of curves, got 'b'"),
    (lambda: plot_differences({"a": Y, "b": Y[:4]}, [("a", "b")]), "pairs should be of curves with the same trials"),
    (lambda: plot_hypervolume({}, Y[0]), "values should be a tensor, or a non-empty dict"),
    (lambda: plot_hypervolume({"a": [1.0]}, Y[0]), r"values\['a'\] should be a torch.Tensor"),
    (lambda: plot_hypervolume(Y[0], Y[0]), r"values should be `\(trials\) x t x n`"),
    (lambda: plot_hypervolume(spoiled(Y, NAN), Y[0]), "values should contain finite"),
    (lambda: plot_hypervolume(Y, Y[0, :2]), "ref_point should have one entry for each of the 3 objectives"),
    (lambda: plot_hypervolume(Y, Y[0, :1], signs=(1, 0, 0)), "values should have at least two objectives, got 1"),
    (lambda: plot_slice(KERNEL, EYE[:2], (0,)), "model should be a BoTorch model"),
    (lambda: plot_slice(MODEL, X[0], (0,)), "bounds should be `2 x d`"),
    (lambda: plot_slice(MODEL, BOUNDS, 0), "inputs should be one or two different numbers from 0 to 1"),
    (lambda: plot_slice(MODEL, BOUNDS, (1, 1)), "inputs should be one or two different numbers"),
    (lambda: plot_slice(MODEL, BOUNDS, (0, 2)), "inputs should be one or two different numbers"),
    (lambda: plot_slice(MODEL, BOUNDS, ["heat"]), r"or names \(x_1, x_2\), got \['heat'\]"),
    (lambda: plot_slice(MODEL, BOUNDS, "x_1"), r"got 'x_1'. Pass for instance \['x_1'\]"),
    (lambda: plot_slice(MODEL, BOUNDS, (0,), at=X), "at should be `d` with d = 2 inputs"),
    (lambda: plot_slice(MODEL, BOUNDS, (0,), at=spoiled(X, NAN)[-1]), "at should contain finite"),
    (lambda: plot_slice(MODEL, BOUNDS, (0,), axes=["left"]), "axes should be one for each of the 3 tasks, got 1 of"),
    (lambda: plot_slice(MODEL, BOUNDS, (0,), input_names=["a"]), "input_names should be one for each of the 2 inputs"),
    (
        lambda: plot_slice(ExactMultiTaskGP(X.expand(2, 5, 2), Y.expand(2, 5, 3), KERNEL, eta=0.1), BOUNDS, (0,)),
        "model should be a single one",
    ),
    (lambda: plot_leave_one_out(Y[0], Y, Y), "train_Y should be `t x n`"),
    (lambda: plot_leave_one_out(Y, Y[:4], Y), "mean should be `5 x 3`"),
    (lambda: plot_leave_one_out(Y, Y, Y), "covariance should be `5 x 3 x 3`"),
    (lambda: plot_leave_one_out(spoiled(Y, INF), Y, Y.unsqueeze(-1).expand(5, 3, 3)), "train_Y should contain finite"),
    (lambda: mtkb(signs=(True, True, False)), "signs should be 1"),
    (lambda: plot_pareto(Y[:, :2], ax="left"), "ax should be matplotlib axes"),
    (lambda: plot_posterior(KERNEL, X), "model should be a BoTorch model"),
    (lambda: plot_posterior(MODEL, [0.0]), "X should be a torch.Tensor"),
    (lambda: plot_posterior(MODEL, X[0]), "X should be `N x d`"),
    (lambda: plot_posterior(MODEL, X, radius=-1.0), "radius should be"),
    (lambda: plot_posterior(MODEL, X, radius=torch.ones(2)), "radius should be one number"),
    (lambda: plot_posterior(MODEL, X, names=["one"]), "names should be one for each of the"),
    (lambda: plot_posterior(MODEL, X, names=3), "names should be one for each of the"),
    (
        lambda: plot_posterior(ExactMultiTaskGP(X.expand(2, 5, 2), Y.expand(2, 5, 3), KERNEL, eta=0.1), X),
        r"model should be a single one, got a batch of \(2,\)",
    ),
    (lambda: plot_posterior(MODEL, X, train_X=X), "train_X and train_Y should be given together"),
    (lambda: plot_posterior(MODEL, X, X, Y), "train_X should be `5 x 1`"),
    (lambda: plot_posterior(MODEL, X, X[:, :1], Y[:3]), "train_Y should be `5 x 3`"),
    (lambda: plot_task_correlation([1.0]), "task_covar should be a torch.Tensor"),
    (lambda: plot_task_correlation(torch.ones(2, 3)), "task_covar should be `n x n`"),
    (lambda: plot_task_correlation(spoiled(EYE, NAN)), "task_covar should contain finite"),
    (lambda: plot_task_correlation(-EYE), "task_covar should have a non-negative diagonal"),
    (lambda: plot_task_correlation(EYE, names="abc"), "names should be one for each of the"),
    (lambda: plot_dictionary({}), "sizes should be a non-empty dict"),
    (lambda: plot_dictionary({"a": torch.rand(5)}), r"sizes\['a'\] should be `trials x rounds`"),
    (lambda: save_demo({}, Y[:, :2], Y[:, :2], Path("x.png")), "curves should be a non-empty dict"),
    (lambda: save_demo({"a": torch.rand(2, 5)}, Y[:, :2], Y[:, :2], Path("x.odd")), "should end as a picture does"),
    (lambda: save_panel("", "", {}, {}, True, [], []), "curves should be a non-empty dict"),
    (lambda: save_panel("", "", {"a": torch.rand(2, 5)}, {}, True, [], [Path("x.odd")]), "should end as a picture"),
    # Strategies, once more
    (lambda: mtkb(repeat="no"), "repeat should be True, or False on choices, got 'no'"),
    (lambda: mtkb(repeat=False), "repeat should be True, or False on choices, got False on bounds"),
    (lambda: mtkb(bounds=None, choices=X, repeat=False).ask(6), "q should be at most 5, the number of choices"),
    (lambda: mtkb(norm_bound=torch.ones(2)), "norm_bound should be a number or of the shape"),
    (lambda: mtkb(noise_scale=torch.ones(2)), "noise_scale should be one number"),
    (lambda: mtkb(kernel=wide_kernel()), "kernel should take points with d = 2"),
    (lambda: mtkb(kernel=stack_of(2)), "kernel should have no batch shape"),
    (lambda: mtkb(ref_point=Y[0].to("meta")), "ref_point should hold numbers"),
    (lambda: mtkb(radius=lambda t: None).ask(), r"radius\(t\) should be a number"),
    (lambda: TOLD.tell(None, None), "x should be numbers of pending points"),
    (lambda: TOLD.tell(Z[0], None), "y should be a torch.Tensor"),
    (lambda: TOLD.tell(Z[:1, :1], Y[:1]), "x should be `q x d` with d = 2"),
    (lambda: TOLD.tell(Z[:2], Y[:1]), "y should be .* same leading shape"),
    (lambda: TOLD.tell(Z[:1], Y[:1, :2]), "y should be .* n = 3 tasks"),
    (lambda: TOLD.tell(Z[:1], NAN * Y[:1]), "y should contain finite"),
    (lambda: TOLD.tell(Z[:1], NAN * Y[:1], allow_missing=True), "y should have a value of at least one task"),
    (lambda: TOLD.tell(Z[:1], INF * Y[:1], allow_missing=True), "y should contain finite numbers, or NaN"),
    (lambda: TOLD.tell(Z[:1], Y[:1], sd=0.1), "sd should be left out for this MTKB, which has one noise for all"),
    (lambda: TOLD.correct(0, Y[0], sd=0.1), "sd should be left out for this MTKB"),
    (lambda: LEARNING.tell(Z[:1], Y[:1], sd=0), "sd should be finite and > 0"),
    (lambda: LEARNING.tell(Z[:1], Y[:1], sd=-Y[:1].abs()), "sd should be finite and > 0"),
    (lambda: LEARNING.tell(Z[:1], Y[:1], sd=INF), "sd should be finite and > 0"),
    (lambda: LEARNING.tell(Z[:1], Y[:1], sd=[0.1, 0.1]), r"sd should have the shape \(1, 3\) of the values"),
    (lambda: LEARNING.tell(Z[:1], Y[:1], sd="little"), "sd should have the shape .* got str"),
    (lambda: LEARNING.tell(Z[:1], Y[:1], sd=Y[:1].abs().half()), "sd should have the dtype and device of y"),
    (lambda: LEARNING.correct(0, Y[0], sd=0), "sd should be finite and > 0"),
    (lambda: TOLD.tell(Z[:0], Y[:0]), "x should be .* at least one row"),
    (lambda: TOLD.tell([], Y[:0]), "x should be numbers of pending points"),
    (lambda: TOLD.tell(Z[:1].half(), Y[:1].half()), "x should be in single or double precision"),
    (lambda: TOLD.tell(Z[:1].to("meta"), Y[:1]), "x should hold numbers"),
    (lambda: TOLD.tell([0, 0], Y[:2]), "x should be numbers of pending points"),
    (lambda: TOLD.tell(True, Y[0]), "x should be numbers of pending points"),
    (lambda: TOLD.tell([0], Y[:2]), "y should be .* same leading shape"),
    (lambda: BUDGETED.tell(Z[:1], Y[:1], allow_missing=True), "allow_missing should be False for MTBKB"),
    (lambda: BUDGETED.tell(Z[:1], spoiled(Y[:1], NAN)), "y should contain finite"),
    (lambda: TRIALS.tell(Z[:1], Y[:1]), "x should be `2 x q x d`"),
    (lambda: TOLD.tell(Z[:1], Y[:1], instead_of=[99]), "instead_of should be numbers of pending points"),
    (lambda: TOLD.correct(99, Y[0]), "rows should be different numbers from 0 to"),
    (lambda: TOLD.correct(0, Y[0, :2]), "y should be .* n = 3 tasks"),
    (lambda: TOLD.correct(0, NAN * Y[0]), "y should contain finite"),
    (lambda: TOLD.remove([0, 0]), "rows should be different numbers from 0 to"),
    (lambda: TOLD.expect(Z[:1, :1]), "x should be `q x d` with d = 2"),
    (lambda: TOLD.expect(None), "x should be a torch.Tensor"),
    (lambda: TOLD.explain(Z[0, :1]), "x should be .* d = 2"),
    (lambda: TOLD.ask(fixed={"x_3": 0.0}), "fixed should be of the inputs x_1, x_2, got 'x_3'"),
    (lambda: TOLD.ask(fixed={"x_1": 99.0}), "fixed should have x_1 from"),
    (lambda: Real(1, 0), "Real should have low < high"),
    (lambda: Integer(0.5, 2), "Integer should have a whole number"),
    (lambda: Ordered(2, 1), "Ordered should have numbers in ascending order"),
    (lambda: Category("a"), "Category should have at least two values"),
    (lambda: Inputs({}), "inputs should be a dictionary"),
    (lambda: Inputs({"a": Real(0, 1)}).encode({"a": 1}), "rows should be a list of dictionaries"),
    (lambda: Inputs({"a": Real(0, 1)}).encode_value("b", 1), "name should be one of the inputs a, got 'b'"),
    (lambda: Inputs({"a": Real(0, 1)}).decode(Z), "X should be a tensor `t x d` with d = 1 inputs"),
    (lambda: Experiment({"a": Real(0, 1)}, {}), "tasks should be a dictionary"),
    (lambda: EXPERIMENT.ask(0), "q should be an integer"),
    (lambda: EXPERIMENT.tell(Z), "table should be a pandas DataFrame"),
    (lambda: EXPERIMENT.correct(0, f=1.0), "rows should be different numbers"),
    (lambda: EXPERIMENT.remove(0), "rows should be different numbers"),
    (lambda: EXPERIMENT.forget(7), "ids should be numbers of pending points"),
    (lambda: EXPERIMENT.predict(Z), "table should be a pandas DataFrame"),
    (lambda: EXPERIMENT.explain(Z), "table should be a pandas DataFrame"),
    (lambda: Experiment.load(__file__), "path should be a file that save"),
    (lambda: plot_explanation(None), "explanation should come from strategy"),
    (lambda: TOLD.forget("a"), "ids should be numbers of pending points"),
    (lambda: TOLD.forget(99), "ids should be numbers of pending points"),
    (lambda: TOLD.forget([]), "ids should be numbers of pending points"),
    (lambda: TOLD.forget(0.0), "ids should be numbers of pending points"),
    (lambda: TOLD.ask(None), "q should be an integer"),
    (lambda: TOLD.ask(-1), "q should be an integer"),
    (lambda: BUDGETED.ask(torch.tensor(2)), "q should be an integer"),
    (lambda: FUSSY.ask(), r"radius\(t\) should be a number"),
    (lambda: TOLD.covariance_norm(Z[:, :1]), "x should be .* d = 2"),
    (lambda: TOLD.intervals(Z[:, :1]), "x should be .* d = 2"),
    (lambda: mtkb().intervals(), "intervals should be asked of a strategy with choices"),
    (lambda: mtkb().gain_left(), "gain_left should be asked of a strategy with choices"),
    (lambda: mtkb().dominated(), "dominated should be asked of a strategy with choices"),
    (lambda: mtkb(bound="norm").certificate(), 'certificate should be asked of a strategy with bound="mixture"'),
    (lambda: Optimizer(0, bounds=BOX), "num_tasks should be"),
    (lambda: Optimizer(2), "Optimizer should get either bounds or choices"),
    (lambda: Optimizer(2, bounds=BOX, ref_point=torch.zeros(3)), "ref_point should have"),
    (lambda: Optimizer(2, bounds=BOX, signs=[1]), "signs should be"),
    (lambda: dual_radius(1.0, 1.0, 1.0, 1.0, missed=-1.0), "missed should be"),
    (lambda: dual_radius(1.0, 1.0, 1.0, 1.0, unexplained=-1.0), "unexplained should be"),
    (lambda: TOLD.covariance_norm([0.0]), "x should be a torch.Tensor"),
    (lambda: TOLD.covariance_norm(Z.float()), "x should have the dtype"),
    (lambda: TRIALS.covariance_norm(Z.expand(3, 7, 2)), "batches of x and of the trials should"),
    (lambda: TOLD.load_state_dict(None), "state_dict should come from MTKB.* without"),
    (lambda: TOLD.load_state_dict({}), "state_dict should come from MTKB.* without"),
    (lambda: TOLD.load_state_dict(BUDGETED.state_dict()), "state_dict should come from a strategy with the same"),
    (lambda: BUDGETED.load_state_dict(TOLD.state_dict()), "state_dict should come from a strategy with the same"),
    (lambda: SOBOL.load_state_dict(TOLD.state_dict()), "state_dict should come from a strategy with the same"),
    (lambda: SOBOL.ask("a"), "q should be an integer"),
    (lambda: NEHVI(2, bounds=BOX, ref_point=[0.0, 0.0]), "ref_point should be a torch.Tensor"),
    (lambda: NEHVI(2, bounds=BOX, ref_point=torch.tensor([0.0, NAN])), "ref_point should contain finite"),
    (lambda: NEHVI(5, bounds=BOX), "num_tasks should be at most 4"),
    *[
        entry
        for kind in (RandomSearch, SobolSearch, NParEGO, NEHVI)
        for entry in (
            (lambda kind=kind: kind(0, bounds=BOX), "num_tasks should be an integer"),
            (lambda kind=kind: kind(2), f"{kind.__name__} should get either bounds or choices"),
            (lambda kind=kind: kind(2, bounds=BOX, seed=-1), "seed should be an integer"),
            (
                lambda kind=kind: kind(2, bounds=BOX, scalarization=HypervolumeScalarization),
                "scalarization should need nothing but weights",
            ),
        )
    ],
    *[
        entry
        for kind in (ITKB, ITBKB, MOBO)
        for entry in (
            (lambda kind=kind: kind(rbf(0.5), bounds=BOX), "kernel should be a multi-task kernel"),
            (lambda kind=kind: kind(foreign_kernel(), bounds=BOX), "kernel should be one of ours"),
            (lambda kind=kind: kind(KERNEL), f"{kind.__name__} should get either bounds or choices"),
            (lambda kind=kind: kind(KERNEL, bounds=BOX, delta=0), "delta should lie in"),
        )
    ],
    (lambda: NParEGO(2, bounds=BOX, shares_tasks="yes"), "shares_tasks should be True or False"),
    (lambda: construct_inputs_scalarized_ucb(MODEL, scalarization="sum"), "scalarization should be one of hypervolume"),
    (lambda: make_generation_strategy(num_initial=0), "num_initial should be an integer >= 1"),
    (lambda: make_generation_strategy(seed=-1), "seed should be an integer from 0"),
    # Benchmarks
    (lambda: Problem("f", BOX, torch.zeros(2)), "function should be callable"),
    (lambda: Problem(len, BOX[0], torch.zeros(2)), "bounds should be"),
    (lambda: Problem(len, BOX, torch.tensor([0.0, NAN])), "ref_point should contain finite"),
    (lambda: Problem(len, BOX, torch.zeros(2), noise_scale=-1.0), "noise_scale should"),
    (lambda: compare({}, {"p": BRANIN}, range(2), 3), "strategies should be a dictionary"),
    (lambda: compare({"a": RandomSearch}, [BRANIN], range(2), 3), "problems should be a dictionary"),
    (lambda: compare({"a": TOLD}, {"p": BRANIN}, range(2), 3), "strategies should be classes or functions"),
    (lambda: compare({"a": RandomSearch}, {"p": len}, range(2), 3), "problems should be of the kind Problem"),
    (lambda: compare({"a": RandomSearch}, {"p": OSY()}, range(2), 3), "objectives and no constraints, got OSY"),
    (lambda: compare({"a,b": RandomSearch}, {"p": BRANIN}, range(2), 3), "strategies should have names of letters"),
    (lambda: compare({"a": RandomSearch}, {"../p": BRANIN}, range(2), 3), "problems should have names of letters"),
    (lambda: compare({"a": RandomSearch}, {"p": BRANIN}, range(2), 3, batch=0), "batch should be an integer >= 1"),
    (lambda: compare({"a": RandomSearch}, {"p": BRANIN}, [], 3), "seeds should be different numbers"),
    (lambda: compare({"a": RandomSearch}, {"p": BRANIN}, [1, 1], 3), "seeds should be different numbers"),
    (lambda: compare({"a": RandomSearch}, {"p": BRANIN}, [-1], 3), "seeds should be an integer from 0"),
    (lambda: compare({"a": RandomSearch}, {"p": BRANIN}, range(2), 0), "rounds should be an integer >= 1"),
    # Loops, ours and those of others
    (lambda: optimize(TOLD, len, rounds=0), "rounds should be an integer >= 1"),
    (lambda: optimize(TOLD, len, rounds=1, retries=-1), "retries should be an integer >= 0"),
    (lambda: optimize(TOLD, "f", rounds=1), "function should be callable"),
    (lambda: optimize(MODEL, len, rounds=1), "strategy should be a Strategy of a single trial"),
    (lambda: optimize(TRIALS, len, rounds=1), "got a batch of 2"),
    (lambda: optimize(TOLD, len, rounds=1, workers=2), "workers should be 1 without an executor"),
    (lambda: optimize(TOLD, len, rounds=1, executor="threads", workers=2), "executor should be one of concurrent"),
    (lambda: optimize(TOLD, len, rounds=1, executor=ThreadPoolExecutor(1)), "workers should be an integer >= 1"),
    (lambda: MultiTaskSampler(seed=-1), "seed should be an integer from 0"),
    (lambda: MultiTaskSampler(seed=None), "seed should be an integer from 0"),
]
# Refusals of what this package cannot do, in the host's words for that.
UNSUPPORTED: list[tuple[Callable[[], object], str]] = [
    (lambda: MODEL.subset_output([0]).condition_on_observations(Z[:5], Y), "shows 1 of its 3 tasks"),
    (lambda: WARPED.leave_one_out(), "outcome_transform Log is not affine"),
    (lambda: WARPED.log_marginal_likelihood(), "outcome_transform Log is not affine"),
    (lambda: WARPED.mean(Z), "outcome_transform Log is not affine"),
    (lambda: construct_inputs_scalarized_ucb(MODEL, objective="a"), "objective should be a WeightedMCMultiOutput"),
    (lambda: construct_inputs_scalarized_ucb(MODEL, constraints=[1]), "constraints should come with constraints_tuple"),
]
# What the host refuses before it reaches us, in its words.
HOST: list[tuple[Callable[[], object], str]] = [
    (lambda: PerturbedSine()(torch.rand(5, 2)), "Expected `X` to have shape"),
    (lambda: PerturbedSine()(torch.full((1, 1), 2.0)), "Expected `X` to be within the bounds"),
    (lambda: ShiftedBranin()(torch.rand(5, 3)), "Expected `X` to have shape"),
]
TABLE = [
    *[(call, message, ValueError) for call, message in CALLS],
    *[(call, message, UnsupportedError) for call, message in UNSUPPORTED],
    *[(call, message, ValueError) for call, message in HOST],
]
COMMANDS = [
    ([], "a command is required: demo or reproduce"),
    (["dance"], "invalid choice: 'dance'"),
    (["demo", "--rounds", "0"], "--rounds: should be a whole number, at least 1, got 0"),
    (["demo", "--trials", "two"], "--trials: should be a whole number, at least 1, got two"),
    (["demo", "--out", "/no/such/folder/x.png"], "--out should lie in an existing folder"),
    (["demo", "--rounds", "1", "--trials", "1", "--out", "x.odd"], "x.odd should end as a picture does"),
    (["reproduce"], "the following arguments are required: PANEL"),
    (["reproduce", "fig9"], "PANEL should be among"),
    (["reproduce", "fig1b", "--algorithms", "MTKBB"], "--algorithms should be among"),
    (["reproduce", "fig1b", "--seed", "-1"], "--seed: should be a whole number, at least 0, got -1"),
    (["reproduce", "fig1b", "--batch", "1.5"], "--batch: should be a whole number, at least 1, got 1.5"),
    (["reproduce", "fig1b", "--device", "meta"], "--device should be usable"),
    (["reproduce", "fig1b", "--dtype", "float16"], "--dtype should be among float64, float32"),
    (["reproduce", "fig1b", "--norm-bound", "none"], "--norm-bound should be among exact, paper"),
    (["reproduce", "fig1b", "--executor", "slurm"], "--executor should be among local, dask"),
    (["reproduce", "soil", "--soil-data", "/no/such/file"], "/no/such/file should be a readable text file"),
]


def bits(value: object) -> object:
    """Nested tuples that are equal only if every bit is."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return tuple((key, bits(value[key])) for key in sorted(value, key=str))
    return tuple(map(bits, value)) if isinstance(value, list | tuple) else repr(value)


def next_points() -> list[torch.Tensor]:
    return [copy.deepcopy(strategy).ask(2) for strategy in STRATEGIES if strategy is not FUSSY]


def answers() -> dict[str, object]:
    """What everything that calls are made on has to say."""
    posteriors = [model.posterior(Z) for model in (MODEL, NYSTROM, NOISY)]
    generator = torch.Generator().manual_seed(0)
    return {
        "models": [[posterior.mean, posterior.covariance_matrix] for posterior in posteriors],
        "model data": [MODEL.train_inputs[0], MODEL.train_targets, NYSTROM.train_targets, NYSTROM.dictionary],
        "states": [strategy.state_dict() for strategy in STRATEGIES],
        "acquisition": [ACQUISITION(Z.unsqueeze(-2)), ACQUISITION.X_pending],
        "kernel": KERNEL(X).to_dense(),
        "scalarization": [SCALARIZATION(Y), CONSTRAINTS.probability(Y[0], EYE), WEIGHTS.sample(2, generator=generator)],
        "function": FUNCTION(Z[:1]),
        "tracker": [TRACKER.state, copy.deepcopy(TRACKER).update(Y.abs()[None], Y[None])],
    }


BEFORE, POINTS_BEFORE = bits(answers()), bits(next_points())
# What was expected, what came, and what to do.
IN_ORDER = re.compile(r"\bshould\b.*\bgot\b.*[.)] \S", flags=re.DOTALL)


def refused(call: Callable[[], object]) -> Exception:
    with pytest.raises((ValueError, UnsupportedError)) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    ("call", "message", "kind"), TABLE, ids=[f"{i}: {message}" for i, (_, message, _) in enumerate(TABLE)]
)
def test_refusals_say_what_is_wrong(call: Callable[[], object], message: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=message) as caught:
        call()
    assert type(caught.value) is kind
    if (call, message) in CALLS:
        assert IN_ORDER.search(str(caught.value))


# Looking at everything takes longer than many refusals.
@pytest.mark.parametrize("start", range(0, len(TABLE), 50))
def test_refusals_change_nothing(start: int) -> None:
    for call, _, _ in TABLE[start : start + 50]:
        refused(call)
    assert bits(answers()) == BEFORE
    assert bits(next_points()) == POINTS_BEFORE


@pytest.mark.parametrize(("arguments", "message"), COMMANDS, ids=[" ".join(a) for a, _ in COMMANDS])
def test_commands_are_refused_in_a_sentence(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as failure:
        main(arguments)
    assert failure.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())


def where_refused(error: Exception) -> tuple[str | None, str]:
    """The class and the name of the call of ours that an error came out of."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in frames:
        owner = frame.f_locals.get("self", frame.f_locals.get("cls"))
        owner = owner if isinstance(owner, type) or owner is None else type(owner)
        is_ours = owner is not None and owner.__module__.startswith("mtbo_torch.")
        if is_ours or frame.f_globals["__name__"].startswith("mtbo_torch."):
            return owner.__name__ if is_ours else None, frame.f_code.co_name
    raise AssertionError("The call did not reach us.")


MODULES = (
    mtbo_torch,
    comparison,
    confidence,
    ax_inputs,
    feasibility,
    metrics,
    plotting,
    problems,
    scalarizations,
    strategies,
)
# Abstract, tested through its children; or made by the package alone.
NOT_CALLED = {
    "ComparedKernel",
    "KernelComparison",
    "MultiTaskKernel",
    "Scalarization",
    "Strategy",
    "WeightDistribution",
    "list_strategies",
    "widen_for_missed",
}
# What the host or the package calls, not the user.
NOT_CALLED_METHODS = {
    "compute_custom_loss",
    "construct_inputs",
    "extra_repr",
    "forward",
    "num_outputs_per_input",
    "train",
    "upper_bound",
    "round_off",
    "show",
    "place",
    "adopt",
    "build",
    "on_objectives",
    "sweep",
    "judge",
    "save",
}


def public_callables() -> dict[str, object]:
    found = {}
    for module in MODULES:
        names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith(("_", "require_"))])
        for name in names:
            value = getattr(module, name)
            if callable(value) and getattr(value, "__module__", "").startswith(module.__name__.split(".")[0]):
                is_own = hasattr(module, "__all__") or value.__module__ == module.__name__
                if is_own and name not in NOT_CALLED:
                    found[name] = value
    return found


def public_methods(kind: type) -> set[str]:
    """Those with an argument that this package defines."""
    names = set()
    for parent in kind.__mro__:
        if parent.__module__.startswith("mtbo_torch"):
            for name, value in vars(parent).items():
                function = getattr(value, "__func__", value)
                if not name.startswith("_") and inspect.isfunction(function) and function.__code__.co_argcount > 1:
                    names.add(name)
    return names - NOT_CALLED_METHODS


def test_every_public_callable_is_in_the_table() -> None:
    places = Counter(where_refused(refused(call)) for call, _, _ in TABLE)
    ours = (value for module in MODULES for value in vars(module).values() if isinstance(value, type))
    kinds = {kind.__name__: kind for kind in ours}
    missing = []
    for name, value in public_callables().items():
        if not isinstance(value, type):
            missing += [] if places[None, name] else [name]
            continue
        if not any(owner == name for owner, _ in places):
            missing.append(name)
        has_own = value.__init__.__module__.startswith("mtbo_torch") and not is_dataclass(value)
        if has_own and not places[name, "__init__"]:
            missing.append(f"{name}.__init__")
        for method in public_methods(value):
            callers = [kinds[owner] for owner, place in places if place == method and owner in kinds]
            if not any(set(definers(value, method)) & set(caller.__mro__) for caller in callers):
                missing.append(f"{name}.{method}")
    assert not missing
    assert len(TABLE) > 450


def definers(kind: type, method: str) -> list[type]:
    return [parent for parent in kind.__mro__ if method in vars(parent)]
