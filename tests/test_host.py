"""Every entry point of BoTorch with both models: what comes out is checked, not that something does."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import oracles
import pytest
import torch
from botorch import settings as botorch_settings
from botorch.acquisition import AcquisitionFunction, qKnowledgeGradient, qLogExpectedImprovement
from botorch.acquisition.multi_objective import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.parego import qLogNParEGO
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.generation import MaxPosteriorSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms.input import ChainedInputTransform, InputPerturbation, Log10, Normalize, Warp
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Log, OutcomeTransform, Standardize
from botorch.optim import optimize_acqf
from botorch.posteriors import GPyTorchPosterior, Posterior, TransformedPosterior
from botorch.sampling import SobolQMCNormalSampler
from catalogue import Builder, Case, data, general_sum, icm, independent, rbf, similarity, task_matrix
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from gpytorch.likelihoods import MultitaskGaussianLikelihood
from gpytorch.means import ConstantMean, MultitaskMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from gpytorch.priors import GammaPrior
from linear_operator.operators import DenseLinearOperator, DiagLinearOperator
from suites import close, freeze
from torch import Tensor

from mtbo_torch import (
    MTBKB,
    MTKB,
    ChebyshevScalarization,
    ExactMultiTaskGP,
    ICMKernel,
    IndependentKernel,
    NystromMultiTaskGP,
    ScalarizedMultiTaskUCB,
    SumOfSeparableKernel,
    TaskSimilarityKernel,
)
from mtbo_torch.kernels import MultiTaskKernel, estimate_task_covar
from mtbo_torch.models import MultiTaskGPModel
from mtbo_torch.models.joint_covariance import JointCovariance
from mtbo_torch.models.noise import ObservedNoise
from mtbo_torch.regression import DenseRegression, KroneckerRegression

ModelClass = type[MultiTaskGPModel]
Answer = tuple[np.ndarray, np.ndarray]

N = 3
TOLERANCE: dict[ModelClass, float] = {ExactMultiTaskGP: 1e-9, NystromMultiTaskGP: 1e-6}
every_model = pytest.mark.parametrize("model_class", list(TOLERANCE), ids=["exact", "nystrom"])
plain_and_transformed = pytest.mark.parametrize("transformed", [False, True], ids=["plain", "transformed"])


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def seeded(*shape: int, seed: int = 9) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def build(model_class: ModelClass, X: Tensor, Y: Tensor, kernel: Kernel | None, **options: Any) -> MultiTaskGPModel:
    """A model; the Nystrom one gets every point into its dictionary, so that it is the exact one."""
    if model_class is NystromMultiTaskGP:
        options.setdefault("dictionary", torch.arange(X.shape[-2]))
    return model_class(X, Y, kernel, **options)


def in_units(t: int = 8, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Data far from the unit cube, with tasks of different sizes and all values positive."""
    X, Y, Z = data(t, N, 2, seed)
    return 2 + 3 * X, 12 + Y * double([1.0, 10.0, 0.5]), 2 + 3 * Z


def standardized_data(t: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    X, Y, Z = data(t, n, 2)
    return X, (Y - Y.mean(dim=0)) / Y.std(dim=0), Z


def transforms(n: int = N, batch: tuple[int, ...] = ()) -> dict[str, Any]:
    shape = torch.Size(batch)
    return {"input_transform": Normalize(2, batch_shape=shape), "outcome_transform": Standardize(n, batch_shape=shape)}


def frozen(model: MultiTaskGPModel) -> dict[str, Any]:
    """The transforms of a model, with the constants they have learned, which a new model does not learn anew."""
    names = ("input_transform", "outcome_transform")
    return {name: freeze(copy.deepcopy(getattr(model.eval(), name))) for name in names if hasattr(model, name)}


def known_noise(t: int, is_constant: bool) -> Tensor:
    return double([0.05, 2.0, 0.01]) * (torch.ones(t, N).double() if is_constant else 0.2 + seeded(t, N))


NOISES: dict[str, Callable[[], dict[str, Any]]] = {
    "one noise": lambda: {"eta": 0.1},
    "a noise for each task": lambda: {"eta": double([0.05, 0.1, 0.3])},
    "known": lambda: {"train_Yvar": known_noise(8, True)},
    "known and varying": lambda: {"train_Yvar": known_noise(8, False)},
}
every_noise = pytest.mark.parametrize("noise", NOISES)


def moments(Y: Tensor, is_standardized: bool = True) -> Answer:
    values = Y.numpy()
    return (values.mean(axis=0), values.std(axis=0, ddof=1)) if is_standardized else (np.zeros(N), np.ones(N))


def by_hand(case: Case, X: np.ndarray, Y: Tensor, variances: np.ndarray, Z: np.ndarray, constants: Answer) -> Answer:
    """Standardized, solved densely and transformed back; the variances of all values are those behind the transform."""
    offset, scale = constants
    G = oracles.gram(case.gamma, X, X, N) + np.diag(np.broadcast_to(variances, Y.shape).reshape(-1))
    cross = oracles.gram(case.gamma, X, Z, N)
    mean = cross.T @ np.linalg.solve(G, ((Y.numpy() - offset) / scale).reshape(-1))
    covariance = oracles.gram(case.gamma, Z, Z, N) - cross.T @ np.linalg.solve(G, cross)
    factors = np.tile(scale, len(Z))
    return mean.reshape(-1, N) * scale + offset, covariance * np.outer(factors, factors)


def check(posterior: Posterior, expected: Answer, tolerance: float) -> None:
    mean, covariance = expected
    close(posterior.mean, mean, tolerance)
    close(posterior.variance, covariance.diagonal().reshape(mean.shape), tolerance)
    close(posterior.distribution.covariance_matrix, covariance, tolerance)


def same(one: Posterior, other: Posterior, tolerance: float) -> None:
    check(one, (other.mean.detach().numpy(), other.distribution.covariance_matrix.detach().numpy()), tolerance)


def normalized(X: Tensor, Z: Tensor) -> Answer:
    low, high = X.numpy().min(axis=0), X.numpy().max(axis=0)
    return (X.numpy() - low) / (high - low), (Z.numpy() - low) / (high - low)


def first_in_decades(X: Tensor) -> Tensor:
    return torch.stack([X[:, 0].log10(), X[:, 1]], dim=-1)


INPUTS: dict[str, tuple[Callable[[], Any], Callable[[Tensor, Tensor], Answer]]] = {
    "as they are": (lambda: None, lambda X, Z: (X.numpy(), Z.numpy())),
    "normalized": (lambda: Normalize(2), normalized),
    "chained": (
        lambda: ChainedInputTransform(log=Log10([0]), box=Normalize(2)),
        lambda X, Z: normalized(first_in_decades(X), first_in_decades(Z)),
    ),
}
OUTCOMES: dict[str, Callable[[], OutcomeTransform | None]] = {
    "as they are": lambda: None,
    "standardized": lambda: Standardize(N),
    "chained": lambda: ChainedOutcomeTransform(first=Standardize(N, outputs=[1]), second=Standardize(N)),
}
every_outcome = pytest.mark.parametrize("outcomes", ["as they are", "standardized"])


# Transforms and noise


@every_model
@every_noise
@pytest.mark.parametrize(
    ("inputs", "outcomes"), [("as they are", "standardized"), ("normalized", "as they are"), ("chained", "chained")]
)
@pytest.mark.parametrize("make", [icm, general_sum], ids=["icm", "sum"])
def test_transforms_and_noise_by_hand(
    model_class: ModelClass, noise: str, inputs: str, outcomes: str, make: Builder
) -> None:
    X, Y, Z = in_units()
    case, tolerance = make(N, 2), TOLERANCE[model_class]
    make_transform, transformed = INPUTS[inputs]
    options = {"input_transform": make_transform(), "outcome_transform": OUTCOMES[outcomes]()} | NOISES[noise]()
    model = build(model_class, X, Y, case.kernel, **options)
    constants = moments(Y, outcomes != "as they are")
    squares = constants[1] ** 2
    variances = options["train_Yvar"].numpy() / squares if "train_Yvar" in options else np.asarray(options["eta"])
    X0, Z0 = transformed(X, Z)
    mean, covariance = by_hand(case, X0, Y, variances, Z0, constants)
    posterior = model.posterior(Z)
    assert type(posterior) is GPyTorchPosterior
    assert type(posterior.distribution) is MultitaskMultivariateNormal
    check(posterior, (mean, covariance), tolerance)
    blocks = oracles.blocks(covariance, N)
    norms = oracles.operator_norm(blocks)
    close(model.mean(Z), mean, tolerance)
    close(model.covariance(Z), blocks, tolerance)
    close(model.covariance_norm(Z), norms, tolerance)
    close(model.at(Z).mean, mean, tolerance)
    close(model.at(Z).norm, norms, tolerance)
    close(model.at(Z).mean, mean, tolerance)
    close(model.at(Z).variance(), blocks.diagonal(axis1=-2, axis2=-1), tolerance)
    average = np.broadcast_to(variances, (8, N)).mean(axis=0)
    noisy = covariance + np.diag(np.tile(average * squares, len(Z)))
    check(model.posterior(Z, observation_noise=True), (mean, noisy), tolerance)


@pytest.mark.parametrize("noise", ["known", "known and varying"])
@every_outcome
def test_known_noise_that_is_constant_takes_the_fast_path(noise: str, outcomes: str) -> None:
    X, Y, _ = in_units()
    model = ExactMultiTaskGP(X, Y, icm(N, 2).kernel, outcome_transform=OUTCOMES[outcomes](), **NOISES[noise]())
    assert type(model.surrogate.regression) is (KroneckerRegression if noise == "known" else DenseRegression)


def logarithms() -> OutcomeTransform:
    return ChainedOutcomeTransform(log=Log(), standardize=Standardize(N))


@every_model
def test_logarithms_give_a_log_normal_posterior_and_nothing_else(model_class: ModelClass) -> None:
    X, Y, Z = in_units()
    case, tolerance = icm(N, 2), TOLERANCE[model_class]
    model = build(model_class, X, Y, case.kernel, eta=0.1, outcome_transform=logarithms())
    mean, covariance = by_hand(case, X.numpy(), Y.log(), np.asarray(0.1), Z.numpy(), moments(Y.log()))
    variance = covariance.diagonal().reshape(mean.shape)
    posterior = model.posterior(Z)
    assert isinstance(posterior, TransformedPosterior)
    close(posterior.mean, np.exp(mean + variance / 2), tolerance)
    close(posterior.variance, np.expm1(variance) * np.exp(2 * mean + variance), 10 * tolerance)
    close(model.posterior(Z, output_indices=[2, 0]).mean, posterior.mean[:, [2, 0]], tolerance)
    base = seeded(5, 7, N) - 0.5
    draws = posterior.rsample_from_base_samples(torch.Size([5]), base)
    gaussian = mean.reshape(-1) + base.flatten(-2).numpy() @ np.linalg.cholesky(covariance).T
    close(draws, np.exp(gaussian).reshape(5, 7, N), 100 * tolerance)
    new_X, new_Y, _ = in_units(2, seed=1)
    grown, fresh = (
        model.condition_on_observations(new_X, new_Y).posterior(Z),
        refitted(model, new_X, new_Y).posterior(Z),
    )
    close(grown.mean, fresh.mean, tolerance)
    close(grown.variance, fresh.variance, 10 * tolerance)
    for method in ("at", "mean", "covariance", "covariance_norm", "imagine"):
        with pytest.raises(UnsupportedError, match="not affine"):
            getattr(model, method)(Z)


@every_model
@plain_and_transformed
@pytest.mark.parametrize("noise", ["one noise", "known", "known and varying"])
def test_one_task_is_a_single_task_model(model_class: ModelClass, noise: str, transformed: bool) -> None:
    X, Y, Z = in_units()
    y, tolerance = (Y[:, 1:2] - 12) / 5, 10 * TOLERANCE[model_class]
    variances = torch.full_like(y, 0.1) if noise == "one noise" else known_noise(8, noise == "known")[:, :1]
    options = transforms(1) if transformed else {"outcome_transform": None}
    ours = build(
        model_class, X, y, ICMKernel(rbf(0.5), double([[1.0]])), train_Yvar=variances, **copy.deepcopy(options)
    )
    with botorch_settings.validate_input_scaling(False):
        theirs = SingleTaskGP(X, y, variances, covar_module=rbf(0.5), mean_module=ZeroMean(), **options)
    for option in (False, True, torch.full((7, 1), 0.3, dtype=torch.double)):
        same(ours.posterior(Z, observation_noise=option), theirs.posterior(Z, observation_noise=option), tolerance)
    sampler, points = SobolQMCNormalSampler(torch.Size([8]), seed=0), 2 + 3 * seeded(4, 2, 2)
    values = [qLogExpectedImprovement(m, y.mean(), sampler=copy.deepcopy(sampler))(points) for m in (ours, theirs)]
    close(values[0], values[1], tolerance)
    mll = ExactMarginalLogLikelihood(theirs.likelihood, theirs).train()
    close(ours.compute_custom_loss(mll_of(ours)), -mll(theirs(*theirs.train_inputs), theirs.train_targets), tolerance)


@every_model
@every_noise
def test_a_batch_with_transforms_says_of_each_data_set_what_it_says_alone(model_class: ModelClass, noise: str) -> None:
    X, Y, Z = in_units()
    options, tolerance = NOISES[noise](), TOLERANCE[model_class]
    pair = options | {name: value.expand(2, 8, N) for name, value in options.items() if name == "train_Yvar"}
    X, Y, Z = torch.stack([X, X + 0.3]), torch.stack([Y, 2 * Y - 3]), torch.stack([Z, Z + 0.1])
    batch = build(model_class, X, Y, icm(N, 2).kernel, **pair, **transforms(N, (2,)))
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
    fantasies = batch.fantasize(Z[:, :1], sampler).posterior(Z)
    drawn = sampler(batch.posterior(Z[:, :1], observation_noise=True))
    extra, variances = seeded(2, 1, N), batch.posterior(Z.expand(4, 2, 7, 2), observation_noise=True).variance
    for i in range(2):
        alone = build(model_class, X[i], Y[i], icm(N, 2).kernel, **options, **transforms())
        expected, part = alone.posterior(Z[i]), batch.posterior(Z, output_indices=[2, 0], observation_noise=extra)
        close(batch.posterior(Z).mean[i], expected.mean, tolerance)
        close(batch.posterior(Z).distribution.covariance_matrix[i], expected.distribution.covariance_matrix, tolerance)
        close(variances[3, i], alone.posterior(Z[i], observation_noise=True).variance, tolerance)
        close(part.variance[i], alone.posterior(Z[i], observation_noise=extra[i]).variance[:, [2, 0]], tolerance)
        grown = alone.condition_on_observations(Z[i, :1], drawn[1, i]).posterior(Z[i])
        close(fantasies.mean[1, i], grown.mean, tolerance)
        close(fantasies.variance[1, i], grown.variance, tolerance)


# The options of posterior


@every_model
@every_outcome
def test_a_posterior_transform_weighs_the_joint_covariance(model_class: ModelClass, outcomes: str) -> None:
    X, Y, Z = in_units()
    model = build(model_class, X, Y, icm(N, 2).kernel, eta=0.1, outcome_transform=OUTCOMES[outcomes]())
    weights = double([0.5, -0.2, 0.7])
    transform = ScalarizedPosteriorTransform(weights, offset=2.0)
    joint = model.posterior(Z).distribution.covariance_matrix.numpy()
    collapse = np.kron(np.eye(len(Z)), weights.numpy())
    scalar = model.posterior(Z, posterior_transform=transform)
    check(scalar, (model.mean(Z).numpy() @ weights.numpy()[:, None] + 2.0, collapse @ joint @ collapse.T), 1e-10)
    one_by_one = model.posterior(Z.unsqueeze(-2), posterior_transform=transform)
    close(one_by_one.variance[:, 0], scalar.variance, 1e-10)


@every_model
@every_outcome
@every_noise
@pytest.mark.parametrize("tasks", [[1], [2, 0], [0, 1, 2], [-1]], ids=str)
def test_output_indices_and_observation_noise(
    model_class: ModelClass, noise: str, outcomes: str, tasks: list[int]
) -> None:
    X, Y, Z = in_units()
    model = build(model_class, X, Y, icm(N, 2).kernel, outcome_transform=OUTCOMES[outcomes](), **NOISES[noise]())
    squares = torch.tensor(moments(Y, outcomes != "as they are")[1]).square()
    joint, for_each = model.posterior(Z), 0.1 + seeded(7, N)
    rows = (torch.arange(7).unsqueeze(-1) * N + torch.tensor(tasks) % N).flatten()
    options = [False, True, for_each[:, tasks], for_each[:1, tasks]]
    added = [torch.zeros(7, N), model.noise.expand(7, N), for_each, for_each[:1].expand(7, N)]
    for option, variances in zip(options, added, strict=True):
        expected = joint.distribution.covariance_matrix + torch.diag((variances * squares).flatten())
        part = model.posterior(Z, output_indices=tasks, observation_noise=option)
        close(part.mean, joint.mean[:, tasks], 1e-10)
        close(part.variance, expected.diagonal().reshape(7, N)[:, tasks], 1e-10)
        close(part.distribution.covariance_matrix, expected[rows][:, rows], 1e-10)


# Conditioning, fantasies, subsets


def refitted(model: MultiTaskGPModel, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> MultiTaskGPModel:
    """A new model of the data and more, with a model's transforms as they are and its dictionary."""
    old_X, old_Y, _ = in_units()
    options: dict[str, Any] = frozen(model)
    if isinstance(model.likelihood, ObservedNoise):
        added = model.noise.expand(len(Y), N) if noise is None else noise
        behind = torch.cat([model.likelihood.variances, added])
        is_scaled = "outcome_transform" in options
        options["train_Yvar"] = options["outcome_transform"].untransform(behind, behind)[1] if is_scaled else behind
    else:
        options["eta"] = model.noise
    if isinstance(model, NystromMultiTaskGP):
        options["dictionary"] = torch.arange(8)
    return build(type(model), torch.cat([old_X, X]), torch.cat([old_Y, Y]), icm(N, 2).kernel, **options)


@every_model
@every_noise
@plain_and_transformed
def test_conditioning_is_fitting_again_with_frozen_transforms(
    model_class: ModelClass, noise: str, transformed: bool
) -> None:
    X, Y, Z = in_units()
    new_X, new_Y, _ = in_units(2, seed=1)
    options = transforms() if transformed else {}
    model, tolerance = build(model_class, X, Y, icm(N, 2).kernel, **NOISES[noise](), **options), TOLERANCE[model_class]
    before = model.posterior(Z).mean
    grown, one_by_one = model.condition_on_observations(new_X, new_Y), model
    for i in range(2):
        one_by_one = one_by_one.condition_on_observations(new_X[i : i + 1], new_Y[i : i + 1])
    expected = refitted(model, new_X, new_Y).posterior(Z)
    for other in (grown, one_by_one, copy.deepcopy(grown), pickle.loads(pickle.dumps(one_by_one))):
        same(other.posterior(Z), expected, tolerance)
    if "train_Yvar" in NOISES[noise]():
        given = double([[0.3, 0.2, 0.1], [0.01, 0.02, 0.5]])
        grown = model.condition_on_observations(new_X, new_Y, noise=given)
        same(grown.posterior(Z), refitted(model, new_X, new_Y, given).posterior(Z), tolerance)
        close(grown.noise, torch.cat([model.likelihood.variances, given]).mean(dim=0), 1e-12)
    assert torch.equal(model.posterior(Z).mean, before)


@every_model
def test_what_was_conditioned_answers_alike_when_it_has_to_fit_again(model_class: ModelClass) -> None:
    X, Y, Z = data(150, N, 2)
    options = {"oversampling": 0.3} if model_class is NystromMultiTaskGP else {}
    model = model_class(X, Y, icm(N, 2).kernel, eta=0.5, **options)  # the dictionary is drawn
    grown = model.condition_on_observations(Z[:1], Y[:1])
    expected = grown.posterior(Z)
    with botorch_settings.propagate_grads(True):
        same(grown.posterior(Z), expected, 1e-9)
    same(copy.deepcopy(grown).double().posterior(Z), expected, 1e-9)


@every_model
@every_noise
@plain_and_transformed
def test_every_fantasy_is_a_model_of_the_data_and_that_fantasy(
    model_class: ModelClass, noise: str, transformed: bool
) -> None:
    X, Y, Z = in_units()
    options, tolerance = transforms() if transformed else {}, TOLERANCE[model_class]
    model = build(model_class, X, Y, icm(N, 2).kernel, **NOISES[noise](), **options)
    sampler = SobolQMCNormalSampler(torch.Size([4]), seed=0)
    points = Z[:4].reshape(2, 2, 2)  # a batch of two, each of two points
    extra = double([[0.5, 0.1, 0.2]])
    for given in (None, extra) if "train_Yvar" in NOISES[noise]() else (None,):
        fantasies = model.fantasize(points, sampler, observation_noise=given)
        drawn = sampler(model.posterior(points, observation_noise=True if given is None else given))
        posterior = fantasies.posterior(Z)
        assert fantasies.batch_shape == (4, 2)
        assert posterior.mean.shape == (4, 2, 7, N)
        for i, j in ((0, 0), (3, 1)):
            alone = refitted(model, points[j], drawn[i, j], None if given is None else given.expand(2, N)).posterior(Z)
            close(posterior.mean[i, j], alone.mean, tolerance)
            close(posterior.distribution.covariance_matrix[i, j], alone.distribution.covariance_matrix, tolerance)


@every_model
def test_fantasies_of_no_points_are_the_model(model_class: ModelClass) -> None:
    X, Y, Z = in_units()
    model = build(model_class, X, Y, icm(N, 2).kernel, eta=0.1, **transforms())
    fantasies = model.fantasize(Z[:0], SobolQMCNormalSampler(torch.Size([3]), seed=0))
    close(fantasies.posterior(Z).mean, model.mean(Z).expand(3, 7, N), 1e-9)


@every_model
def test_perturbed_inputs(model_class: ModelClass) -> None:
    X, Y, Z = in_units()
    steps = double([[0.1, 0.0], [0.0, 0.2], [-0.1, 0.1]])
    perturbed = build(model_class, X, Y, icm(N, 2).kernel, eta=0.1, input_transform=InputPerturbation(steps))
    plain = build(model_class, X, Y, icm(N, 2).kernel, eta=0.1)
    points, sampler = (Z.unsqueeze(1) + steps).flatten(0, 1), SobolQMCNormalSampler(torch.Size([2]), seed=0)
    same(perturbed.posterior(Z), plain.posterior(points), 1e-9)
    fantasies = [model.fantasize(Z[:1], copy.deepcopy(sampler)) for model in (perturbed, plain)]
    close(fantasies[0].posterior(Z).mean, fantasies[1].posterior(points).mean, 1e-9)


@every_model
@plain_and_transformed
@pytest.mark.parametrize("tasks", [[1], [2, 0], [0, 1, 2]], ids=str)
def test_a_subset_of_outputs_says_what_the_whole_says_of_them(
    model_class: ModelClass, tasks: list[int], transformed: bool
) -> None:
    X, Y, Z = in_units()
    options = transforms() if transformed else {}
    model = build(model_class, X, Y, icm(N, 2).kernel, eta=double([0.05, 0.1, 0.3]), **options)
    part = model.subset_output(tasks)
    assert (part.num_outputs, model.num_outputs) == (len(tasks), N)
    for noise in (False, True):
        expected = model.posterior(Z, output_indices=tasks, observation_noise=noise)
        same(part.posterior(Z, observation_noise=noise), expected, 1e-10)
    mean, blocks = model.mean(Z)[:, tasks], model.covariance(Z)[:, tasks][:, :, tasks]
    norms, variances = torch.linalg.matrix_norm(blocks, ord=2), blocks.diagonal(dim1=-2, dim2=-1)
    answers = (part.mean(Z), part.covariance(Z), part.covariance_norm(Z))
    both = (part.at(Z).mean, part.at(Z).norm, part.at(Z).mean, part.at(Z).variance())
    for own, whole in zip((*answers, *both), (mean, blocks, norms, mean, norms, mean, variances), strict=True):
        close(own, whole, 1e-10)
    same(part.subset_output([-1]).posterior(Z), model.posterior(Z, output_indices=[tasks[-1]]), 1e-10)
    with pytest.raises(UnsupportedError, match="Condition the model that subset_output was called on"):
        part.condition_on_observations(Z[:1], mean[:1])


# Storing and moving


@every_model
@pytest.mark.parametrize("keep", [True, False], ids=["keep transforms", "do not"])
@pytest.mark.parametrize("evaluated", [True, False], ids=["evaluated before", "new"])
def test_a_state_goes_into_a_model_with_other_hyperparameters(
    model_class: ModelClass, keep: bool, evaluated: bool
) -> None:
    X, Y, Z = in_units()
    model = build(model_class, X, Y, ICMKernel(rbf(0.5), task_matrix(N)), eta=0.1, **transforms())
    other = build(model_class, X, Y, ICMKernel(rbf(0.2), task_matrix(N, seed=1)), eta=0.5, **transforms())
    if evaluated:
        other.posterior(Z)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue())), keep_transforms=keep)
    same(other.posterior(Z), model.posterior(Z), 1e-9)


@every_model
@pytest.mark.parametrize("keep", [True, False], ids=["keep transforms", "do not"])
@pytest.mark.parametrize("noise", ["one noise", "known and varying"])
def test_a_state_goes_into_a_model_of_other_data(model_class: ModelClass, keep: bool, noise: str) -> None:
    X, Y, Z = in_units()
    few_X, few_Y, case = X[:6], Y[:6] + 1.0, icm(N, 2)
    options = NOISES[noise]()
    model = build(model_class, X, Y, case.kernel, **options, **transforms())
    options |= {name: value[:6] for name, value in options.items() if name == "train_Yvar"}
    few = build(model_class, few_X, few_Y, case.kernel, **options, **transforms())
    few.posterior(Z)
    few.load_state_dict(model.state_dict(), keep_transforms=keep)
    loaded, own = moments(Y), moments(Y) if keep else moments(few_Y)
    variances = options["train_Yvar"].numpy() / own[1] ** 2 if "train_Yvar" in options else np.asarray(0.1)
    values = (few_Y - torch.tensor(own[0])) / torch.tensor(own[1]) * torch.tensor(loaded[1]) + torch.tensor(loaded[0])
    expected = by_hand(case, normalized(X, few_X)[1], values, variances, normalized(X, Z)[1], loaded)
    check(few.posterior(Z), expected, TOLERANCE[model_class])


@every_model
@every_noise
def test_copies_pickles_and_casts_answer_alike(model_class: ModelClass, noise: str) -> None:
    X, Y, Z = in_units()
    model = build(model_class, X, Y, icm(N, 2).kernel, **NOISES[noise](), **transforms())
    new = copy.deepcopy(model).to(torch.float)
    expected = model.posterior(Z)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        same(twin.posterior(Z), expected, 1e-10)
    for single in (new, copy.deepcopy(model).to(torch.float)):  # before and after it was evaluated
        posterior = single.posterior(Z.float())
        assert posterior.mean.dtype == posterior.variance.dtype == torch.float
        close(posterior.mean, expected.mean, 1e-3)
        close(posterior.variance, expected.variance, 2e-3)
        back = single.to(torch.double).posterior(Z)
        close(back.mean, expected.mean, 1e-5)
        close(back.variance, expected.variance, 1e-5)


# Lists of models


def single_task(X: Tensor, y: Tensor, lengthscale: float) -> SingleTaskGP:
    noise, kernel = torch.full_like(y, 0.01).unsqueeze(-1), rbf(lengthscale)
    return SingleTaskGP(X, y.unsqueeze(-1), noise, covar_module=kernel, mean_module=ZeroMean(), outcome_transform=None)


@every_model
def test_a_member_of_a_list_says_the_same_as_alone(model_class: ModelClass) -> None:
    X, Y, Z = standardized_data(10, N + 1)
    model = build(model_class, X, Y[:, :N], icm(N, 2).kernel, eta=0.1, outcome_transform=Standardize(N))
    other = single_task(X, Y[:, N], 0.4)
    joined = ModelListGP(model, other)
    assert joined.num_outputs == N + 1
    extra = seeded(7, N + 1)
    for noise, parts in ((False, (False, False)), (True, (True, True)), (extra, (extra[:, :N], extra[:, N:]))):
        posterior = joined.posterior(Z, observation_noise=noise)
        alone = [m.posterior(Z, observation_noise=part) for m, part in zip((model, other), parts, strict=True)]
        close(posterior.mean, torch.cat([part.mean for part in alone], dim=-1), 1e-8)
        close(posterior.variance, torch.cat([part.variance for part in alone], dim=-1), 1e-8)
    posterior = joined.posterior(Z)
    joint = posterior.distribution.covariance_matrix.reshape(N + 1, 7, N + 1, 7)  # not interleaved
    own = model.posterior(Z).distribution.covariance_matrix.reshape(7, N, 7, N)
    for task in range(N):  # the host drops covariances between tasks
        close(joint[task, :, task], own[:, task, :, task], 1e-8)
    part = joined.subset_output([1, 3])
    close(part.posterior(Z).mean, posterior.mean[:, [1, 3]], 1e-8)
    close(part.posterior(Z).variance, posterior.variance[:, [1, 3]], 1e-8)
    same(joined.subset_output([2, 0]).posterior(Z), model.posterior(Z, output_indices=[2, 0]), 1e-10)
    close(joined.posterior(Z, output_indices=[0, 2]).mean, posterior.mean[:, [0, 2]], 1e-8)


@every_model
def test_a_list_is_fitted_member_by_member(model_class: ModelClass) -> None:
    X, Y, _ = standardized_data(12, 4)
    alone = [build(model_class, X, y, ICMKernel(rbf(0.3), num_tasks=2)) for y in (Y[:, :2], Y[:, 2:])]
    joined = ModelListGP(*copy.deepcopy(alone))
    fit_gpytorch_mll(SumMarginalLogLikelihood(joined.likelihood, joined))
    for model, member in zip(alone, joined.models, strict=True):
        fit_gpytorch_mll(mll_of(model))
        for name, value in model.named_parameters():
            close(member.get_parameter(name), value, 1e-8)
        assert not torch.allclose(member.covar_module.base_kernel.lengthscale, double([[0.3]]), atol=1e-3)
    assert not joined.training


# Draws, joint covariances, many points


@every_model
@every_outcome
def test_draws_have_the_posteriors_moments(model_class: ModelClass, outcomes: str) -> None:
    X, Y, Z = in_units()
    model = build(model_class, X, Y, icm(N, 2).kernel, eta=0.1, outcome_transform=OUTCOMES[outcomes]())
    posterior, sampler = model.posterior(Z[:3]), SobolQMCNormalSampler(torch.Size([2**13]), seed=0)
    draws, covariance = sampler(posterior), posterior.distribution.covariance_matrix
    assert draws.shape == (2**13, 3, N)
    scale = covariance.diagonal().sqrt()
    close((draws.mean(dim=0) - posterior.mean).flatten() / scale, torch.zeros(3 * N), 5e-3)
    close(draws.flatten(1).T.cov() / torch.outer(scale, scale), covariance / torch.outer(scale, scale), 3e-2)
    assert torch.equal(sampler(model.posterior(Z[:3])), draws)


@every_model
@pytest.mark.parametrize("make", [icm, general_sum, independent, similarity], ids=lambda make: make.__name__)
def test_joint_posteriors_of_batches_of_points(model_class: ModelClass, make: Builder) -> None:
    X, Y, _ = data(10, N, 2)
    case, eta = make(N, 2), double([0.05, 0.1, 0.3])
    model = build(model_class, X, Y, case.kernel, eta=eta)
    Z = seeded(2, 3, 4, 2)
    posterior = model.posterior(Z)
    assert posterior.mean.shape == (2, 3, 4, N)
    for index in np.ndindex(2, 3):
        expected = oracles.posterior(case.gamma, X.numpy(), Y.numpy(), eta.numpy(), Z[index].numpy())
        close(posterior.mean[index], expected[0], TOLERANCE[model_class])
        close(posterior.variance[index].flatten(), expected[1].diagonal().copy(), TOLERANCE[model_class])
        close(posterior.distribution.covariance_matrix[index], expected[1], TOLERANCE[model_class])


@every_model
@pytest.mark.parametrize("tasks", [None, [2, 0]], ids=["all", "some"])
@pytest.mark.parametrize("noise", [False, True], ids=["plain", "noisy"])
def test_the_joint_covariance_is_a_linear_operator(
    model_class: ModelClass, tasks: list[int] | None, noise: bool
) -> None:
    X, Y, _ = data(6, N, 2)
    model = build(model_class, X, Y, icm(N, 2).kernel, eta=double([0.05, 0.1, 0.3]))
    posterior = model.posterior(seeded(4, 3, 2), output_indices=tasks, observation_noise=noise)
    operator = posterior.distribution.lazy_covariance_matrix
    assert isinstance(operator, JointCovariance)
    dense, size = operator.to_dense(), 3 * (N if tasks is None else 2)
    assert operator.shape == dense.shape == (4, size, size)
    vectors, diagonal, eye = seeded(4, size, 2), seeded(size), torch.eye(size, dtype=torch.double)
    close(operator.diagonal(), dense.diagonal(dim1=-2, dim2=-1), 1e-10)
    close(operator @ vectors, dense @ vectors, 1e-12)
    close(operator[2, 1, 3], dense[2, 1, 3], 1e-12)
    close(operator[:, [0, 2], [1, 3]], dense[:, [0, 2], [1, 3]], 1e-12)
    pairs = [
        (operator[1], dense[1]),
        (operator[[0, 2]], dense[[0, 2]]),
        (operator[..., 1:3, :2], dense[..., 1:3, :2]),
        (operator.add_jitter(1e-3), dense + 1e-3 * eye),
        (operator.mT, dense.mT),
        (operator * 2.0, 2 * dense),
        (operator + operator, 2 * dense),
        (operator.expand(5, 4, size, size), dense.expand(5, 4, size, size)),
        (operator.unsqueeze(0), dense.unsqueeze(0)),
        (operator.repeat(2, 1, 1, 1), dense.repeat(2, 1, 1, 1)),
        (operator.detach(), dense),
        (operator.clone(), dense),
        (operator.to(X), dense),
        (copy.deepcopy(operator), dense),
        (pickle.loads(pickle.dumps(operator)), dense),
    ]
    for actual, expected in pairs:
        close(actual.to_dense(), expected, 1e-12)
    for root in (operator.cholesky().to_dense(), operator.root_decomposition().root.to_dense()):
        close(root @ root.mT, dense, 1e-10)
    total, added = operator + DiagLinearOperator(diagonal.expand(4, size)), dense + torch.diag(diagonal)
    close(total.to_dense(), added, 1e-12)
    close(total.diagonal(), added.diagonal(dim1=-2, dim2=-1), 1e-10)
    solved = torch.linalg.solve(added, vectors)
    close(total.solve(vectors), solved, 1e-8)
    quadratic, logdet = total.inv_quad_logdet(vectors, logdet=True)
    close(quadratic, (vectors * solved).sum(dim=(-2, -1)), 1e-8)
    close(logdet, torch.linalg.slogdet(added).logabsdet, 1e-8)


@every_model
@pytest.mark.parametrize(
    ("outcomes", "make"), [("standardized", icm), ("as they are", general_sum)], ids=["icm, standardized", "sum"]
)
def test_gradients_with_respect_to_points(model_class: ModelClass, outcomes: str, make: Builder) -> None:
    X, Y, Z = in_units()
    options = {"input_transform": Normalize(2), "outcome_transform": OUTCOMES[outcomes]()}
    model = build(model_class, X, Y / 10, make(N, 2).kernel, eta=0.1, **options)
    base, transform = seeded(3, 1, 2, N).expand(3, 2, 2, N), ScalarizedPosteriorTransform(double([0.3, -0.2, 0.5]))
    diagonal = DiagLinearOperator(double([0.1] * 2 * N))
    answers: list[Callable[[Posterior], Any]] = [
        lambda posterior: posterior.variance,
        lambda posterior: transform(posterior).variance,
        lambda posterior: posterior.rsample_from_base_samples(torch.Size([3]), base),
        lambda posterior: (posterior.distribution.lazy_covariance_matrix + diagonal).logdet(),
    ]
    points = Z[:4].reshape(2, 2, 2).clone().requires_grad_()
    for answer in answers:
        function = lambda points, answer=answer: answer(model.posterior(points))  # noqa: E731
        assert torch.autograd.gradcheck(function, (points,), eps=1e-6, atol=1e-5, rtol=1e-4)


CHILD = """
import resource, sys
import torch
from botorch.models.transforms.outcome import Standardize
from gpytorch.kernels import RBFKernel
import mtbo_torch
torch.manual_seed(0)
X, Y, Z = torch.rand(50, 2).double(), torch.randn(50, 9).double(), torch.rand(4096, 2).double()
A = torch.randn(9, 9).double()
kernel = mtbo_torch.ICMKernel(RBFKernel().double(), A @ A.T)
model = getattr(mtbo_torch, sys.argv[1])(X, Y, kernel, eta=0.1, outcome_transform=Standardize(9))
parts = [model.posterior(part, observation_noise=True) for part in Z.split(64)]
mean, variance = torch.cat([part.mean for part in parts]), torch.cat([part.variance for part in parts])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
posterior = model.posterior(Z, observation_noise=True)
errors = (posterior.mean - mean).abs().max(), (posterior.variance - variance).abs().max()
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) / 1024, *(error.item() for error in errors))
"""


@pytest.mark.slow
@every_model
def test_thousands_of_points_at_once_take_little_memory(model_class: ModelClass) -> None:
    command = [sys.executable, "-c", CHILD, model_class.__name__]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    megabytes, mean_error, variance_error = map(float, result.stdout.split())
    assert megabytes < 500
    assert max(mean_error, variance_error) < 1e-8


# Acquisitions


BOX = double([[0.0, 0.0], [1.0, 1.0]])


def log_ei(model: Any, X: Tensor, **options: Any) -> AcquisitionFunction:
    objective = ChebyshevScalarization(double([0.4, 0.6]), ref_point=double([-3.0, -3.0]))
    best = objective(model.posterior(X).mean.detach()).max()
    sampler = SobolQMCNormalSampler(torch.Size([32]), seed=1)
    return qLogExpectedImprovement(model, best_f=best, sampler=sampler, objective=objective)


def log_nparego(model: Any, X: Tensor, **options: Any) -> AcquisitionFunction:
    sampler = SobolQMCNormalSampler(torch.Size([32]), seed=1)
    return qLogNParEGO(model, X, scalarization_weights=double([0.4, 0.6]), sampler=sampler, **options)


def log_nehvi(model: Any, X: Tensor, **options: Any) -> AcquisitionFunction:
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=1)
    return qLogNoisyExpectedHypervolumeImprovement(model, [-1.5, -1.5], X, sampler=sampler, **options)


every_acquisition = pytest.mark.parametrize("make", [log_ei, log_nparego, log_nehvi], ids=lambda make: make.__name__)


@every_model
@every_acquisition
@pytest.mark.parametrize("q", [1, 3])
def test_acquisitions_of_unrelated_tasks_agree_with_single_task_models(
    model_class: ModelClass, make: Callable[..., AcquisitionFunction], q: int
) -> None:
    X, Y, _ = standardized_data(8, 2)
    ours = build(model_class, X, Y, IndependentKernel([rbf(0.3), rbf(0.5)]), eta=0.01)
    theirs = ModelListGP(single_task(X, Y[:, 0], 0.3), single_task(X, Y[:, 1], 0.5))
    answers = []
    for model, options in ((ours, {}), (theirs, {"cache_root": False})):
        points = seeded(6, q, 2).requires_grad_()
        values = make(model, X, **options)(points)
        answers.append((values, torch.autograd.grad(values.sum(), points)[0]))
    tolerance = 100 * TOLERANCE[model_class]
    close(answers[0][0], answers[1][0], tolerance)
    close(answers[0][1], answers[1][1], tolerance)


@every_model
@every_acquisition
def test_acquisitions_are_optimized(model_class: ModelClass, make: Callable[..., AcquisitionFunction]) -> None:
    X, Y, _ = standardized_data(8, 2)
    kernel = ICMKernel(rbf(0.4), double([[1.0, -0.6], [-0.6, 1.0]]))
    model = build(model_class, X, Y, kernel, eta=0.01, **transforms(2))
    torch.manual_seed(0)
    acquisition = make(model, X)
    candidate, value = optimize_acqf(acquisition, BOX, q=1, num_restarts=2, raw_samples=8)
    close(acquisition(candidate), value.reshape(1), 1e-8)
    with torch.no_grad():
        grid = acquisition(torch.cartesian_prod(*[torch.linspace(0, 1, 6, dtype=torch.double)] * 2).unsqueeze(-2))
    assert value >= grid.quantile(0.95)
    assert ((candidate >= 0) & (candidate <= 1)).all()


@every_model
@plain_and_transformed
def test_knowledge_gradient_averages_the_means_of_fantasies(model_class: ModelClass, transformed: bool) -> None:
    X, Y, Z = in_units()
    model = build(model_class, X, Y, icm(N, 2).kernel, eta=0.1, **(transforms() if transformed else {}))
    weights, sampler = double([0.05, -0.02, 0.07]), SobolQMCNormalSampler(torch.Size([4]), seed=0)
    transform = ScalarizedPosteriorTransform(weights)
    acquisition = qKnowledgeGradient(model, num_fantasies=4, sampler=sampler, posterior_transform=transform)
    points = torch.cat([Z[:1], Z[2:6]]).unsqueeze(0)  # one candidate, and a point for each fantasy
    drawn = sampler(model.posterior(Z[:1].unsqueeze(0), observation_noise=True))
    values = [refitted(model, Z[:1], drawn[i, 0]).mean(Z[2 + i : 3 + i]) @ weights for i in range(4)]
    close(acquisition(points), torch.stack(values).mean().reshape(1), TOLERANCE[model_class])
    assert torch.autograd.gradcheck(acquisition, (points.requires_grad_(),), eps=1e-6, atol=1e-6, rtol=1e-4)


@every_model
@pytest.mark.parametrize("by", [pytest.param("objective", marks=pytest.mark.slow), "posterior transform"])
def test_knowledge_gradients_are_optimized(model_class: ModelClass, by: str) -> None:
    X, Y, _ = standardized_data(8, 2)
    model = build(model_class, X, Y, ICMKernel(rbf(0.4), task_matrix(2)), eta=0.01)
    torch.manual_seed(0)
    weights = double([0.4, 0.6])
    options: dict[str, Any] = {"posterior_transform": ScalarizedPosteriorTransform(weights)}
    if by == "objective":
        inner = SobolQMCNormalSampler(torch.Size([8]), seed=1)
        options = {"objective": ChebyshevScalarization(weights), "inner_sampler": inner}
    acquisition = qKnowledgeGradient(model, num_fantasies=4, **options)
    arguments = {"q": 1, "num_restarts": 2, "raw_samples": 8, "return_full_tree": True, "options": {"maxiter": 30}}
    candidates, value = optimize_acqf(acquisition, BOX, **arguments)
    assert candidates.shape == (5, 2)
    close(acquisition(candidates.unsqueeze(0)), value.reshape(1), 1e-8)
    with torch.no_grad():
        assert (value > acquisition(seeded(50, 5, 2))).all()


@every_model
def test_thompson_sampling_takes_the_best_of_each_draw(model_class: ModelClass) -> None:
    X, Y, _ = in_units()
    model = build(model_class, X, Y, icm(N, 2).kernel, eta=0.1, **transforms())
    choices, weights = 2 + 3 * seeded(20, 2), double([0.5, 0.1, 0.4])
    torch.manual_seed(0)
    picked = MaxPosteriorSampling(model, objective=ChebyshevScalarization(weights))(choices, num_samples=1000)
    picks = (picked.unsqueeze(1) == choices).all(dim=-1)
    assert (picks.sum(dim=-1) == 1).all()
    mean, covariance = model.mean(choices).numpy(), model.posterior(choices).distribution.covariance_matrix.numpy()
    draws = np.random.default_rng(0).multivariate_normal(mean.reshape(-1), covariance, 20000, method="eigh")
    best = (draws.reshape(-1, 20, N) * weights.numpy()).min(axis=-1).argmax(axis=-1)
    expected = np.bincount(best, minlength=20) / 20000
    close(picks.double().mean(dim=0), expected, 0.05)
    assert expected.max() < 0.9  # not a foregone conclusion


# Learning


def base_kernel(shape: torch.Size) -> RBFKernel:
    kernel = RBFKernel(ard_num_dims=2, batch_shape=shape, lengthscale_prior=GammaPrior(3.0, 6.0)).double()
    kernel.lengthscale = 0.3 + 0.5 * seeded(*shape, 1, 2)
    return kernel


def learned_icm(shape: torch.Size, rank: int = N, seed: int = 0) -> ICMKernel:
    kernel = ICMKernel(base_kernel(shape), num_tasks=N, rank=rank).double()
    kernel.task_factor.data.copy_(2 * seeded(*shape, N, rank, seed=seed) - 1)
    return kernel


LEARNED: dict[str, Callable[[torch.Size], MultiTaskKernel]] = {
    "full rank": learned_icm,
    "low rank": lambda shape: learned_icm(shape, rank=1),
    "at the start": lambda shape: ICMKernel(base_kernel(shape), num_tasks=N).double(),
    "fixed B": lambda shape: ICMKernel(base_kernel(shape), task_matrix(N)),
    "independent": lambda shape: IndependentKernel([base_kernel(shape) for _ in range(N)]),
    "sum": lambda shape: SumOfSeparableKernel([learned_icm(shape), learned_icm(shape, rank=1, seed=1)]),
    "similarity": lambda shape: TaskSimilarityKernel(base_kernel(shape), N, 0.4),
    "foreign": lambda shape: learned_icm(shape) + learned_icm(shape, rank=1, seed=1),
}
LIKELIHOODS: dict[str, dict[str, bool]] = {
    "one noise": {"has_task_noise": False},
    "a noise for each task": {"has_global_noise": False},
    "both": {},
}
every_learned = pytest.mark.parametrize("kernel", LEARNED)
every_likelihood = pytest.mark.parametrize("noise", LIKELIHOODS)
ONE, TWO = torch.Size(), torch.Size([2])


def learned_noise(kind: str, shape: torch.Size = ONE) -> MultitaskGaussianLikelihood:
    likelihood = MultitaskGaussianLikelihood(N, batch_shape=shape, **LIKELIHOODS[kind]).double()
    if kind != "one noise":
        likelihood.task_noises = double([0.1, 0.3, 0.7]).expand(*shape, N).clone()
    return likelihood


def mll_of(model: MultiTaskGPModel) -> ExactMarginalLogLikelihood:
    return ExactMarginalLogLikelihood(model.likelihood, model).train()


def loss_of(model: MultiTaskGPModel) -> Tensor:
    return model.compute_custom_loss(mll_of(model))


def gpytorchs_loss(model: MultiTaskGPModel) -> Tensor:
    """The host's own, on a dense matrix and by Cholesky."""
    mll = mll_of(model)
    prior = model(*model.train_inputs)
    dense = MultitaskMultivariateNormal(prior.mean, DenseLinearOperator(prior.lazy_covariance_matrix.to_dense()))
    exact = gpytorch.settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False)
    with exact, gpytorch.settings.max_cholesky_size(10_000):
        return -mll(dense, model.train_targets)


def check_loss(model: MultiTaskGPModel) -> None:
    own, host = loss_of(model), gpytorchs_loss(model)
    assert own.shape == model.batch_shape
    close(own, host, 1e-8)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    slopes = [torch.autograd.grad(loss.sum(), learned) for loss in (own, host)]
    assert learned
    for own, host in zip(*slopes, strict=True):
        close(own, host, 1e-8)


@every_learned
@every_likelihood
@pytest.mark.parametrize("shape", [ONE, TWO], ids=["one", "batch"])
def test_the_loss_and_its_gradient_are_gpytorchs(kernel: str, noise: str, shape: torch.Size) -> None:
    X, Y, _ = data(8, N, 2)
    if shape:
        X, Y = torch.stack([X, X + 0.1 * X.sin()]), torch.stack([Y, 0.3 - Y])
    check_loss(ExactMultiTaskGP(X, Y, LEARNED[kernel](shape), likelihood=learned_noise(noise, shape)))


@pytest.mark.parametrize("noise", ["known", "known and varying"])
@pytest.mark.parametrize("kernel", ["full rank", "low rank", "independent", "sum"])
def test_the_loss_with_transforms_known_noise_and_a_mean_is_gpytorchs(kernel: str, noise: str) -> None:
    X, Y, _ = in_units()
    mean = MultitaskMean(ConstantMean(), N).double()
    mean.base_means[1].constant.data.fill_(0.3)
    check_loss(ExactMultiTaskGP(X, Y, LEARNED[kernel](ONE), mean_module=mean, **NOISES[noise](), **transforms()))
    warp = Warp(2, [0, 1]).double()
    warp.concentration0.data, warp.concentration1.data = double([1.3, 0.8]), double([0.7, 1.2])
    options = {"input_transform": warp, "outcome_transform": Standardize(N)} | NOISES[noise]()
    check_loss(ExactMultiTaskGP((X - 2) / 3, Y, LEARNED[kernel](ONE), **options))


@every_learned
@every_likelihood
def test_the_nystrom_loss_is_never_below_the_exact_one_and_meets_it(kernel: str, noise: str) -> None:
    X, Y, _ = data(12, N, 2)
    exact = loss_of(ExactMultiTaskGP(X, Y, LEARNED[kernel](ONE), likelihood=learned_noise(noise)))
    bounds = []
    for size in (12, 8, 4, 1):
        options = {"likelihood": learned_noise(noise), "dictionary": torch.arange(size)}
        bounds.append(loss_of(NystromMultiTaskGP(X, Y, LEARNED[kernel](ONE), **options)))
    close(bounds[0], exact, 1e-5)
    for larger, smaller in zip([exact, *bounds[1:]], bounds[1:], strict=False):  # a smaller dictionary is a worse bound
        assert smaller > larger


@pytest.mark.parametrize("kernel", ["full rank", "low rank", "independent", "sum", "similarity"])
def test_the_gradient_of_the_nystrom_loss(kernel: str) -> None:
    X, Y, _ = data(8, N, 2)
    options = {"likelihood": learned_noise("a noise for each task"), "dictionary": torch.arange(3)}
    model = NystromMultiTaskGP(X, Y, LEARNED[kernel](ONE), **options)
    for parameter in model.parameters():
        (slope,) = torch.autograd.grad(loss_of(model), parameter)
        values = parameter.data.view(-1)
        for index in range(parameter.numel()):
            losses = []
            for step in (1e-5, -2e-5):
                values[index] += step
                losses.append(loss_of(model))
            values[index] += 1e-5
            close(slope.flatten()[index], (losses[0] - losses[1]) / 2e-5, 1e-6)


@every_model
def test_what_is_fixed_is_left_alone_by_a_fit(model_class: ModelClass) -> None:
    X, Y, _ = standardized_data(10, N)
    first, second = ICMKernel(rbf(0.3), task_matrix(N)), ICMKernel(rbf(0.4), num_tasks=N, rank=1)
    first.base_kernel.requires_grad_(False)
    model = build(model_class, X, Y, SumOfSeparableKernel([first, second]), eta=0.1)
    fit_gpytorch_mll(mll_of(model))
    assert not model.training
    assert model.noise.item() == 0.1
    assert torch.equal(first.base_kernel.lengthscale, rbf(0.3).lengthscale)
    assert torch.equal(first.task_covar, task_matrix(N))
    assert not torch.allclose(second.base_kernel.lengthscale, rbf(0.4).lengthscale, atol=1e-3)


@every_model
def test_with_nothing_to_learn_a_fit_changes_nothing(model_class: ModelClass) -> None:
    X, Y, Z = in_units()
    kernel = ICMKernel(rbf(0.5).requires_grad_(False), task_matrix(N))
    model = build(model_class, X, Y, kernel, eta=0.1, **transforms())
    before, state, mll = model.posterior(Z), copy.deepcopy(model.state_dict()), mll_of(model)
    assert fit_gpytorch_mll(mll) is mll
    assert not mll.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])
    same(model.posterior(Z), before, 1e-12)


def drawn_from(B: Tensor, t: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    X, white = seeded(t, 2), torch.randn(2, t, N, generator=generator, dtype=torch.double)
    K = rbf(0.1)(X).to_dense().detach() + 1e-8 * torch.eye(t, dtype=torch.double)
    values, vectors = torch.linalg.eigh(B)
    root = vectors * values.clamp_min(0).sqrt()
    return X, torch.linalg.cholesky(K) @ white[0] @ root.T + 0.1 * white[1]


@pytest.mark.parametrize(
    ("model_class", "rank", "transformed"),
    [
        (ExactMultiTaskGP, 3, True),
        pytest.param(ExactMultiTaskGP, 1, False, marks=pytest.mark.slow),
        pytest.param(NystromMultiTaskGP, 1, False, marks=pytest.mark.slow),
        pytest.param(NystromMultiTaskGP, 3, True, marks=pytest.mark.slow),
    ],
)
def test_negative_correlations_are_learned(model_class: ModelClass, rank: int, transformed: bool) -> None:
    factor = double([[1.0], [-0.8], [0.5]])
    full = double([[1.0, -0.7, 0.3], [-0.7, 1.0, -0.5], [0.3, -0.5, 1.0]])
    X, Y = drawn_from(full if rank == N else factor @ factor.T, 200)
    Y = 5 + 2 * Y if transformed else Y
    kernel = ICMKernel(rbf(0.2), num_tasks=N, rank=rank)
    model = build(model_class, X, Y, kernel, **(transforms() if transformed else {}))
    start = gpytorchs_loss(model)
    fit_gpytorch_mll(mll_of(model))
    correlations = kernel.task_covar.detach()
    scale = correlations.diagonal().sqrt()
    expected = full if rank == N else factor.sign() @ factor.sign().T
    close(correlations / torch.outer(scale, scale), expected, 0.1)
    assert 0.08 < kernel.base_kernel.lengthscale.item() < 0.12
    loss, parameters = gpytorchs_loss(model), [kernel.task_factor, kernel.base_kernel.raw_lengthscale]
    assert loss < start
    for slope in torch.autograd.grad(loss, parameters):  # a stationary point of the host's likelihood
        close(slope, torch.zeros_like(slope), 5e-3)
    likelihood = copy.deepcopy(model.likelihood)
    fresh = build(model_class, X, Y, copy.deepcopy(kernel), likelihood=likelihood, **frozen(model))
    close(model.posterior(X[:5] + 0.01).mean, fresh.posterior(X[:5] + 0.01).mean, 1e-8)


@pytest.mark.parametrize(
    ("model_class", "kernel"),
    [
        (ExactMultiTaskGP, "full rank"),
        (NystromMultiTaskGP, "independent"),
        pytest.param(ExactMultiTaskGP, "sum", marks=pytest.mark.slow),
        pytest.param(NystromMultiTaskGP, "full rank", marks=pytest.mark.slow),
    ],
)
def test_a_batch_fits_each_data_set_as_alone(model_class: ModelClass, kernel: str) -> None:
    sets = [data(12, N, 2, seed)[:2] for seed in (0, 1)]
    X, Y = (torch.stack(parts) for parts in zip(*sets, strict=True))
    start = LEARNED[kernel](TWO)
    batch = build(model_class, X, Y, copy.deepcopy(start), likelihood=learned_noise("one noise", TWO))
    fit_gpytorch_mll(mll_of(batch))
    for i, (x, y) in enumerate(sets):
        alone = build(model_class, x, y, LEARNED[kernel](ONE), likelihood=learned_noise("one noise"))
        for name, value in alone.covar_module.named_parameters():
            value.data.copy_(start.get_parameter(name).data[i])
        fit_gpytorch_mll(mll_of(alone))
        close(loss_of(batch)[i], loss_of(alone), 1e-5)
        close(batch.noise[i], alone.noise, 1e-2)


def test_the_estimate_of_a_task_matrix_is_numpys_and_the_most_likely_one() -> None:
    X, R, _ = data(9, N, 2)
    K = rbf(0.3)(X).to_dense().detach() + 0.01 * torch.eye(9, dtype=torch.double)
    best = estimate_task_covar(R, K)
    close(best, R.numpy().T @ np.linalg.inv(K.numpy()) @ R.numpy() / 9, 1e-10)

    def likelihood(B: Tensor) -> Tensor:
        zero = torch.zeros(9 * N, dtype=torch.double)
        return torch.distributions.MultivariateNormal(zero, torch.kron(K, B)).log_prob(R.flatten())

    for seed in range(5):
        step = 0.05 * task_matrix(N, seed=seed)
        assert likelihood(best) > max(likelihood(best + step), likelihood(best @ torch.linalg.inv(best + step) @ best))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [RBFKernel, MaternKernel])
@every_model
def test_fits_survive_repeated_points_and_constant_tasks(model_class: ModelClass, kernel: type[Kernel]) -> None:
    for seed in range(6):
        X, Y = seeded(6, 2, seed=seed), seeded(6, 2, seed=seed + 50)
        X[1] = X[0]
        if seed % 2:
            Y[:, 1] = 3.0
        model = model_class(X, Y, ICMKernel(kernel(ard_num_dims=2), num_tasks=2))
        fit_gpytorch_mll(mll_of(model))
        assert torch.isfinite(model.mean(X)).all()


def test_a_mistake_in_the_data_is_not_taken_for_a_fit_that_failed() -> None:
    X, Y, _ = data(8, N, 2)
    model = NystromMultiTaskGP(X, Y, learned_icm(ONE), dictionary=torch.arange(8))
    model.set_train_data(X[:4], Y[:4], strict=False)
    with pytest.raises(ValueError, match="dictionary should hold indices of the 4 observations"):
        fit_gpytorch_mll(mll_of(model))


def test_a_parameter_that_only_looks_like_a_batch_is_shared() -> None:
    X, Y = seeded(2, 8, 2), seeded(2, 8, 2, seed=3)
    kernel = ICMKernel(rbf(0.5).requires_grad_(False), num_tasks=2)  # as many tasks as data sets
    model = ExactMultiTaskGP(X, Y, kernel, eta=0.1)
    assert model._aug_batch_shape == torch.Size()
    fit_gpytorch_mll(mll_of(model))
    loss_of(model).sum().backward()
    assert kernel.task_factor.grad.abs().max() < 1e-4
    own = ICMKernel(RBFKernel(batch_shape=torch.Size([2])), num_tasks=2)
    assert ExactMultiTaskGP(X, Y, own)._aug_batch_shape == torch.Size([2])


@every_model
def test_known_noise_with_gradients_and_more_data(model_class: ModelClass) -> None:
    X, Y, Z = data(6, N, 2)
    model = build(model_class, X, Y, icm(N, 2).kernel, train_Yvar=known_noise(6, is_constant=False))
    more = model.condition_on_observations(Z[:2], Y[:2])
    with botorch_settings.propagate_grads(True):
        again = model.condition_on_observations(Z[:2], Y[:2])
        close(again.mean(Z), more.mean(Z), TOLERANCE[model_class])


@every_model
def test_a_subset_with_two_points_is_a_sequence_of_hallucinations(model_class: ModelClass) -> None:
    X, Y, Z = data(6, N, 2)
    subset = build(model_class, X, Y, icm(N, 2).kernel, eta=0.1).subset_output([0, 2])
    scalarization = ChebyshevScalarization(torch.tensor([0.4, 0.6], dtype=torch.double))
    acqf = ScalarizedMultiTaskUCB(subset, scalarization, radius=2.0)
    second = ScalarizedMultiTaskUCB(subset, scalarization, radius=2.0, X_pending=Z[:1])
    close(
        acqf(Z[None, :2]), acqf(Z[None, :1]) + second(Z[None, 1:2]), 1e-8 if model_class is ExactMultiTaskGP else 1e-4
    )


@every_model
def test_tiny_known_noise_is_taken_as_it_is(model_class: ModelClass) -> None:
    X, Y, _ = data(5, N, 2)
    model = build(model_class, X, Y, icm(N, 2).kernel, train_Yvar=torch.full_like(Y, 1e-8))
    close(model.mean(X), Y, 1e-4)


def test_known_noise_of_one_task_in_gpytorchs_hands() -> None:
    X, Y, Z = data(5, 1, 2)
    model = ExactMultiTaskGP(X, Y, icm(1, 2).kernel, train_Yvar=0.1 + seeded(5, 1).abs())
    noisy = model.likelihood(model.posterior(Z).distribution)
    close(noisy.variance, model.posterior(Z, observation_noise=True).variance.squeeze(-1), 1e-10)


def test_what_is_exchanged_is_checked() -> None:
    X, Y, Z = data(5, N, 2)
    model = ExactMultiTaskGP(X, Y, icm(N, 2).kernel, eta=0.1)
    before = model.mean(Z)
    with pytest.raises(ValueError, match="targets should contain finite"):
        model.set_train_data(targets=torch.full_like(Y, torch.nan))
    assert torch.equal(model.mean(Z), before)


def test_a_second_derivative_of_the_likelihood_is_refused() -> None:
    model = ExactMultiTaskGP(*data(5, N, 2)[:2], learned_icm(ONE)).train()
    parameter = model.covar_module.task_factor
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(loss_of(model), parameter, create_graph=True)


@pytest.mark.parametrize("strategy", [MTKB, MTBKB])
def test_foreign_kernels_start_from_nothing(strategy: type[MTKB | MTBKB]) -> None:
    kernel = gpytorch.kernels.MultitaskKernel(rbf(0.5), num_tasks=2, rank=1).double()
    chosen = strategy(kernel, choices=seeded(9, 2), norm_bound=1.0, noise_scale=0.1)
    for _ in range(3):
        x = chosen.ask()
        chosen.tell(x, x)
    assert chosen.num_observations == 3
