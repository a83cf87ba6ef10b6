"""Every refusal is a ValueError that names the argument."""

from __future__ import annotations

from collections.abc import Callable

import gpytorch
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Log, Normalize, Standardize
from catalogue import data, icm, rbf, task_matrix
from gpytorch.likelihoods import MultitaskGaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood

from mtbo_torch import (
    MTBKB,
    MTKB,
    BoxWeights,
    ChebyshevScalarization,
    DirichletWeights,
    ExactMultiTaskGP,
    FixedWeights,
    HypervolumeScalarization,
    ICMKernel,
    IndependentKernel,
    InverseUniformWeights,
    LinearScalarization,
    NystromMultiTaskGP,
    NystromScalarizedMultiTaskUCB,
    ScalarizedMultiTaskUCB,
    SphereWeights,
    SumOfSeparableKernel,
    TaskSimilarityKernel,
    UniformWeights,
    exact_radius,
    nystrom_radius,
    theory_oversampling,
)
from mtbo_torch.feasibility import OutcomeConstraints
from mtbo_torch.problems import RKHSFunction
from mtbo_torch.scalarizations import ObjectiveScalarization, Scalarization
from mtbo_torch.strategies import NEHVI

NAN, INF = float("nan"), float("inf")
X, Y, Z = data(5, 3, 2)
KERNEL = icm(3, 2).kernel
MODEL = ExactMultiTaskGP(X, Y, KERNEL, eta=0.1)
SCALARIZATION = ChebyshevScalarization(torch.full((3,), 1 / 3).double())
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
EYE = torch.eye(3, dtype=torch.double)


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
    (lambda: MODEL.mean_and_norm(Z[:, :1].clone().requires_grad_()), "X should be .* d = 2"),
    (lambda: MODEL.posterior(Z, observation_noise=torch.full((7, 3), -1.0)), "observation_noise"),
    (
        lambda: MODEL.condition_on_observations(Z[:5].expand(2, 5, 2), Y.expand(3, 5, 3)),
        "X and Y should have batch shapes that broadcast",
    ),
    # Scalarisations and weights
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
    (lambda: mtkb(radius=None), "radius should be a number"),
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
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[f"{i}: {message}" for i, (_, message) in enumerate(CALLS)])
def test_refusals_say_what_is_wrong(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_refusal_leaves_the_model_usable() -> None:
    model = ExactMultiTaskGP(X, Y, ICMKernel(rbf(0.5), task_matrix(3)), eta=0.1)
    before = model.mean(Z)
    with pytest.raises(ValueError, match="finite"):
        model.condition_on_observations(Z[:5], spoiled(Y, NAN))
    assert torch.equal(model.mean(Z), before)
