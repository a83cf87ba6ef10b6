"""Values that were not seen: what is said is said given the others."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import oracles
import pytest
import torch
from botorch import settings as botorch_settings
from botorch.fit import fit_gpytorch_mll
from botorch.models import MultiTaskGP
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.models.transforms.outcome import ChainedOutcomeTransform, OutcomeTransform
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset
from catalogue import (
    KERNELS,
    PATHS,
    Builder,
    Case,
    data,
    general_sum,
    icm,
    identical_tasks,
    independent,
    rbf,
    similarity,
    task_matrix,
)
from gpytorch.kernels import IndexKernel, RBFKernel
from gpytorch.likelihoods import MultitaskGaussianLikelihood
from gpytorch.means import ConstantMean, Mean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from suites import check_gradient, close, log_likelihood
from torch import Tensor

from mtbo_torch import (
    MTBKB,
    MTKB,
    ChebyshevScalarization,
    ExactMultiTaskGP,
    ICMKernel,
    LinearScalarization,
    NystromMultiTaskGP,
    ScalarizedMultiTaskUCB,
)
from mtbo_torch.ax_inputs import estimate_radius
from mtbo_torch.kernels import adapt_kernel
from mtbo_torch.regression import CompletedRegression, DenseRegression, KroneckerRegression, SeparableSum
from mtbo_torch.regression.factor import InverseCholesky
from mtbo_torch.strategies import ITBKB, ITKB, MOBO, NEHVI, RandomSearch, Strategy

N, NAN = 3, math.nan
every_kernel = pytest.mark.parametrize("build", KERNELS, ids=lambda build: build.__name__)
every_path = pytest.mark.parametrize("build", PATHS, ids=lambda build: build.__name__)
ETAS = [0.1, (0.1, 0.3, 0.05)]
every_eta = pytest.mark.parametrize("eta", ETAS, ids=["one noise", "noise of each task"])


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def without(Y: Tensor, unseen: Tensor) -> Tensor:
    return torch.where(unseen, NAN, Y)


def half_of_a_task(Y: Tensor) -> Tensor:
    Y = Y.clone()
    Y[..., ::2, 1] = NAN
    return Y


def at_random(Y: Tensor, share: float = 0.3, seed: int = 0) -> Tensor:
    return without(Y, torch.rand(Y.shape, generator=torch.Generator().manual_seed(seed)) < share)


def a_whole_task(Y: Tensor) -> Tensor:
    Y = Y.clone()
    Y[..., -1] = NAN
    return Y


def a_whole_row(Y: Tensor) -> Tensor:
    Y = Y.clone()
    Y[..., 2, :] = NAN
    return Y


def one_value(Y: Tensor) -> Tensor:
    Y = Y.clone()
    Y[..., -1, 0] = NAN
    return Y


def one_task_at_a_point(Y: Tensor) -> Tensor:
    t, n = Y.shape[-2:]
    return without(Y, torch.arange(t).unsqueeze(-1) % n != torch.arange(n))


def everything(Y: Tensor) -> Tensor:
    return torch.full_like(Y, NAN)


PATTERNS = [half_of_a_task, at_random, a_whole_task, a_whole_row, one_value, one_task_at_a_point, everything]
every_pattern = pytest.mark.parametrize("hide", PATTERNS, ids=lambda hide: hide.__name__)
# Few missing values, many, and points without any.
PORTIONS = [half_of_a_task, a_whole_row, one_task_at_a_point, everything]
every_portion = pytest.mark.parametrize("hide", PORTIONS, ids=lambda hide: hide.__name__)


def list_cases(patterns: list[Callable[[Tensor], Tensor]]) -> Any:
    """Return every pattern with a structured kernel and with a dense one; other kernels with few missing and many."""
    cases = [(build, eta, hide) for build, eta in ((icm, ETAS[1]), (general_sum, ETAS[0])) for hide in patterns]
    for build in PATHS:
        cases += [(build, ETAS[0], half_of_a_task), (build, ETAS[1], one_task_at_a_point)]
    unique = list(dict.fromkeys(cases))
    ids = [
        f"{build.__name__}-{'one noise' if eta is ETAS[0] else 'noises'}-{hide.__name__}" for build, eta, hide in unique
    ]
    return pytest.mark.parametrize(("build", "eta", "hide"), unique, ids=ids)


def model_of(X: Tensor, Y: Tensor, build: Builder = icm, **options: Any) -> ExactMultiTaskGP:
    kernel = build(Y.shape[-1], X.shape[-1]).kernel
    return ExactMultiTaskGP(X, Y, kernel, **({"eta": 0.1, "allow_missing": True} | options))


def check_against_oracle(model: ExactMultiTaskGP, gamma: oracles.Gamma, eta: Any, Z: Tensor, tolerance: float) -> None:
    X, Y = model.train_inputs[0].double().numpy(), model.train_targets.double().numpy()
    mean, covariance, gain, norm, likelihood = oracles.given_seen(gamma, X, Y, np.asarray(eta), Z.numpy())
    n, points = Y.shape[-1], Z.to(model.train_targets)
    blocks = oracles.blocks(covariance, n)
    close(model.mean(points), mean, tolerance)
    close(model.covariance(points), blocks, tolerance)
    close(model.covariance_norm(points), oracles.operator_norm(blocks), tolerance)
    both = (model.at(points).mean, model.at(points).norm)
    close(both[0], mean, tolerance)
    close(both[1], oracles.operator_norm(blocks), tolerance)
    close(model.at(points).variance(), blocks.diagonal(axis1=-2, axis2=-1), tolerance)
    posterior = model.posterior(points)
    close(posterior.mean, mean, tolerance)
    close(posterior.distribution.covariance_matrix, covariance, tolerance)
    close(model.info_gain, gain, tolerance)
    close(model.surrogate.regression.mean_norm, norm, tolerance)
    kernel_noise = model.noise.double(), model.train_inputs[0].double(), model.train_targets.double()
    if not np.isnan(Y).all():
        close(log_likelihood(adapt_kernel(model.covar_module.double(), n), *kernel_noise), likelihood, 10 * tolerance)


@list_cases(PATTERNS)
def test_hiding_values_is_conditioning_on_the_others(
    build: Builder, eta: Any, hide: Callable[[Tensor], Tensor]
) -> None:
    X, Y, Z = data(10, N, 2)
    X[5] = X[4]  # a repeated point
    model = model_of(X, hide(Y), build, eta=double(eta))
    assert torch.equal(model.train_targets.isnan(), hide(Y).isnan())
    check_against_oracle(model, build(N, 2).gamma, eta, Z, 1e-9)


@every_path
@pytest.mark.parametrize("hide", [half_of_a_task, at_random])
def test_in_single_precision(build: Builder, hide: Callable[[Tensor], Tensor]) -> None:
    X, Y, Z = data(10, N, 2)
    model = model_of(X.float(), hide(Y).float(), build)
    assert model.mean(Z.float()).dtype == torch.float
    check_against_oracle(model, build(N, 2).gamma, 0.1, Z, 2e-4)


@pytest.mark.parametrize(("t", "n"), [(1, 3), (6, 1), (1, 1), (40, 2)])
@pytest.mark.parametrize("build", [icm, general_sum, independent])
def test_other_sizes(t: int, n: int, build: Builder) -> None:
    X, Y, Z = data(t, n, 2)
    for hide in (one_value, at_random):
        check_against_oracle(model_of(X, hide(Y), build), build(n, 2).gamma, 0.1, Z, 1e-9)


@every_path
@every_eta
def test_members_of_a_batch_miss_values_of_their_own(build: Builder, eta: Any) -> None:
    hidden = [half_of_a_task, at_random, a_whole_task, lambda Y: Y, everything]
    sets = [data(8, N, 2, seed) for seed in range(len(hidden))]
    alone = [model_of(X, hide(Y), build, eta=double(eta)) for (X, Y, _), hide in zip(sets, hidden, strict=True)]
    X, Z = torch.stack([X for X, _, _ in sets]), torch.stack([Z for _, _, Z in sets])
    Y = torch.stack([hide(Y) for (_, Y, _), hide in zip(sets, hidden, strict=True)])
    together = model_of(X, Y, build, eta=double(eta))
    close(together.info_gain, torch.stack([model.info_gain for model in alone]), 1e-9)
    close(
        together.surrogate.regression.mean_norm,
        torch.stack([model.surrogate.regression.mean_norm for model in alone]),
        1e-9,
    )
    for method in ("mean", "covariance", "covariance_norm"):
        expected = torch.stack([getattr(model, method)(Z[i]) for i, model in enumerate(alone)])
        close(getattr(together, method)(Z), expected, 1e-9)
        close(getattr(together, method)(torch.stack([Z, Z])), torch.stack([expected, expected]), 1e-9)
    joint = [model.posterior(Z[i]).distribution.covariance_matrix for i, model in enumerate(alone)]
    close(together.posterior(Z).distribution.covariance_matrix, torch.stack(joint), 1e-9)
    gamma, noise = adapt_kernel(together.covar_module, N), together.noise
    seen = [log_likelihood(gamma, noise, X[i], Y[i]) for i in range(len(Y) - 1)]
    close(log_likelihood(gamma, noise, X, Y), torch.stack([*seen, double(0.0)]), 1e-8)


@pytest.mark.parametrize(
    ("build", "hide", "batch"),
    [
        *(
            (build, hide, batch)
            for build in PATHS
            for hide, batch in ((half_of_a_task, (2,)), (one_task_at_a_point, ()))
        ),
        *(
            (build, hide, batch)
            for build in (icm, general_sum)
            for hide, batch in ((a_whole_row, (2,)), (everything, ()))
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_appending_is_fitting_at_once(build: Builder, hide: Callable[[Tensor], Tensor], batch: tuple[int, ...]) -> None:
    X, Y, Z = data(12, N, 2)
    Y = torch.cat([Y[:3], hide(Y[3:9]), Y[9:]])  # first complete, then not, then complete again
    X, Y = (tensor.expand(*batch, *tensor.shape).clone() for tensor in (X, Y))
    if batch:
        Y[1, 4] = double([NAN, 0.3, NAN])
    start = model_of(X[..., :0, :], Y[..., :0, :], build)
    for step in (1, 3):
        model, followed = start, start.surrogate.regression.track(Z)
        for i in range(0, 12, step):
            new = X[..., i : i + step, :], Y[..., i : i + step, :]
            before = model.mean(Z)
            grown = model.condition_on_observations(*new)
            followed = followed.advance(followed.regression.append(*new))
            assert torch.equal(model.mean(Z), before)
            model = grown
        fitted = model_of(X, Y, build)
        assert torch.equal(model.train_targets.isnan(), Y.isnan())
        close(model.mean(Z), fitted.mean(Z), 1e-9)
        close(model.covariance(Z), fitted.covariance(Z), 1e-9)
        close(model.info_gain, fitted.info_gain, 1e-9)
        close(model.surrogate.regression.mean_norm, fitted.surrogate.regression.mean_norm, 1e-9)
        close(followed.mean, fitted.mean(Z), 1e-9)
        close(followed.norm, fitted.covariance_norm(Z), 1e-9)
        close(followed.variance(), fitted.at(Z).variance(), 1e-9)


@every_path
def test_with_every_value_seen_nothing_changes(build: Builder) -> None:
    X, Y, Z = data(8, N, 2)
    ours, theirs = model_of(X[:6], Y[:6], build), ExactMultiTaskGP(X[:6], Y[:6], build(N, 2).kernel, eta=0.1)
    for _ in range(2):
        for a, b in zip((ours.at(Z).mean, ours.at(Z).norm), (theirs.at(Z).mean, theirs.at(Z).norm), strict=True):
            assert torch.equal(a, b)
        assert torch.equal(ours.info_gain, theirs.info_gain)
        assert type(ours.surrogate.regression) is type(theirs.surrogate.regression)
        ours, theirs = (model.condition_on_observations(X[6:], Y[6:]) for model in (ours, theirs))


@every_kernel
def test_few_missing_values_keep_the_structure(build: Builder) -> None:
    X, Y, Z = data(30, N, 2)
    structured = KroneckerRegression if build is not general_sum else DenseRegression
    corrected = CompletedRegression if build is not general_sum else DenseRegression
    assert type(model_of(X, Y, build).surrogate.regression) is structured
    assert type(model_of(X, half_of_a_task(Y), build).surrogate.regression) is corrected
    assert isinstance(model_of(X, one_task_at_a_point(Y), build).surrogate.regression, DenseRegression)
    model = model_of(X[:3], Y[:3], build)
    kinds = []
    for hide in (half_of_a_task, lambda Y: Y, one_task_at_a_point, one_task_at_a_point):
        model = model.condition_on_observations(Z, hide(Y[:7]))
        kinds.append(type(model.surrogate.regression))
    assert kinds[:3] == [corrected] * 3
    assert issubclass(kinds[3], DenseRegression)


@every_path
def test_hardly_any_noise_and_repeated_points(build: Builder) -> None:
    X, Y, Z = data(15, N, 2)
    X[5:10] = X[4]
    model = model_of(X, half_of_a_task(Y), build, eta=1e-3)
    check_against_oracle(model, build(N, 2).gamma, 1e-3, Z, 1e-9)
    assert (model.at(X).variance() >= 0).all()


@pytest.mark.parametrize("build", [icm, general_sum])
def test_fantasies_of_a_batch_whose_members_miss_different_values(build: Builder) -> None:
    X, Y, Z = data(10, N, 2)
    X, Y = torch.stack([X, X + 0.1]), torch.stack([half_of_a_task(Y), one_value(Y)])
    model = model_of(X[:, :8], Y[:, :8], build)
    new = torch.stack([Y[:, 8:], at_random(Y[:, 8:]), one_value(Y[:, 8:])])
    grown = model.condition_on_observations(X[:, 8:], new)
    assert grown.batch_shape == (3, 2)
    for i in range(3):
        for j in range(2):
            alone = model_of(X[j], torch.cat([Y[j, :8], new[i, j]]), build)
            close(grown.mean(Z)[i, j], alone.mean(Z), 1e-9)
            close(grown.covariance(Z)[i, j], alone.covariance(Z), 1e-9)
            close(grown.info_gain[i, j], alone.info_gain, 1e-9)


@pytest.mark.parametrize("hide", [half_of_a_task, one_task_at_a_point])
def test_gradients_reach_the_points_that_were_observed(hide: Callable[[Tensor], Tensor]) -> None:
    X, Y, Z = data(8, N, 2)
    model = model_of(X[:6], hide(Y)[:6])

    def value(new_X: Tensor) -> Tensor:
        with botorch_settings.propagate_grads(True):
            grown = model.condition_on_observations(new_X, hide(Y)[6:])
        return torch.cat(
            [grown.surrogate.regression.at(Z).mean.flatten(), grown.surrogate.regression.at(Z).covariance.flatten()]
        )

    assert torch.autograd.gradcheck(value, (X[6:].clone().requires_grad_(),), eps=1e-6, atol=1e-5, rtol=1e-4)


def dense_likelihood(kernel: ICMKernel, eta: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    """By autograd through a matrix of the seen entries only."""
    seen = (~Y.flatten().isnan()).nonzero().flatten()
    noise = eta.expand(Y.shape).flatten()
    covariance = (kernel(X).to_dense() + torch.diag(noise))[seen][:, seen]
    return torch.distributions.MultivariateNormal(torch.zeros(len(seen)).double(), covariance).log_prob(
        Y.flatten()[seen]
    )


@pytest.mark.parametrize("hide", PATTERNS[:-1], ids=lambda hide: hide.__name__)
@pytest.mark.parametrize(
    ("eta", "where"),
    [(ETAS[0], "unrelated tasks"), (ETAS[1], "singular"), (ETAS[0], "singular"), (ETAS[1], "anywhere")],
)
def test_the_likelihood_has_the_gradient_of_the_dense_one(
    hide: Callable[[Tensor], Tensor], eta: Any, where: str
) -> None:
    X, Y, _ = data(8, N, 2)
    X[5], Y = X[2], hide(Y)
    kernel = ICMKernel(rbf(0.5), num_tasks=N).double()
    if where != "unrelated tasks":
        kernel.task_factor.data.copy_(task_matrix(N, rank=1 if where == "singular" else None))
    values, gradients = [], []
    for function in (lambda noise: log_likelihood(adapt_kernel(kernel, N), noise, X, Y), None):
        noise = double(eta).reshape(-1).requires_grad_()
        value = function(noise) if function else dense_likelihood(kernel, noise, X, Y)
        values.append(value)
        gradients.append(torch.autograd.grad(value, [noise, *kernel.parameters()]))
    close(values[0], values[1], 1e-9)
    for ours, theirs in zip(*gradients, strict=True):
        close(ours, theirs, 1e-8)


@every_kernel
def test_gradients_of_the_likelihood_of_a_batch(build: Builder) -> None:
    X, Y, _ = data(6, N, 2)
    X, Y = torch.stack([X, X + 0.1]), torch.stack([half_of_a_task(Y), at_random(Y)])
    kernel = build(N, 2).kernel
    noise = double([[0.1], [0.2]]).requires_grad_()

    def value(noise: Tensor, *_: Tensor) -> Tensor:
        return log_likelihood(adapt_kernel(kernel, N), noise, X, Y)

    assert torch.autograd.gradcheck(value, (noise, *kernel.parameters()), eps=1e-6, atol=1e-5, rtol=1e-5)


def test_without_data_the_likelihood_is_one() -> None:
    X, Y, _ = data(3, N, 2)
    assert log_likelihood(adapt_kernel(icm(N, 2).kernel, N), double([0.1]), X[:0], Y[:0]) == 0


def test_the_loss_is_per_value_that_was_seen() -> None:
    X, Y, _ = data(8, N, 2)
    for options in ({"eta": 0.1}, {"eta": None, "train_Yvar": torch.rand(8, N).double() + 0.1}):
        model = model_of(X, half_of_a_task(Y), **options)
        noise = options.get("train_Yvar", double(0.1))
        *_, likelihood = oracles.given_seen(
            icm(N, 2).gamma, X.numpy(), half_of_a_task(Y).numpy(), noise.numpy(), X.numpy()
        )
        loss = model.train().compute_custom_loss(ExactMarginalLogLikelihood(model.likelihood, model))
        close(loss, np.array(-likelihood / 20), 1e-9)


def test_a_kernel_is_learned_from_what_was_seen() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(40, 1, generator=generator, dtype=torch.double)
    Y = torch.cat([torch.sin(6 * X), -torch.sin(6 * X), torch.cos(9 * X)], dim=-1)
    Y = at_random(Y + 0.05 * torch.randn(Y.shape, generator=generator, dtype=torch.double), 0.4)
    model = ExactMultiTaskGP(X, Y, allow_missing=True, outcome_transform=Standardize(N), input_transform=Normalize(1))
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    before = model.compute_custom_loss(mll).item()
    fit_gpytorch_mll(mll)
    covar = model.covar_module.task_covar.detach()
    assert covar[0, 1] / (covar[0, 0] * covar[1, 1]).sqrt() < -0.9
    assert model.train().compute_custom_loss(mll).item() < before
    truth = torch.cat([torch.sin(6 * X), -torch.sin(6 * X), torch.cos(9 * X)], dim=-1)
    assert (model.mean(X) - truth).abs().max() < 0.2


def test_a_batch_is_learned_although_one_member_has_seen_nothing() -> None:
    X, Y, _ = data(6, N, 2)
    Y = torch.stack([at_random(Y), everything(Y)])
    model = ExactMultiTaskGP(torch.stack([X, X]), Y, allow_missing=True)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.mean(X).isfinite().all()
    empty = ExactMultiTaskGP(X, everything(Y[0]), allow_missing=True)
    with pytest.raises(ValueError, match="train_Y should have at least one value to learn from"):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(empty.likelihood, empty))


def test_botorchs_long_format_says_the_same() -> None:
    X, Y, Z = data(9, N, 2)
    Y, B = half_of_a_task(at_random(Y, 0.2)), task_matrix(N)
    rows, tasks = (~Y.isnan()).nonzero(as_tuple=True)
    long_X = torch.cat([X[rows], tasks.unsqueeze(-1).double()], dim=-1)
    noise = torch.full((len(rows), 1), 0.1).double()
    theirs = MultiTaskGP(
        long_X,
        Y[rows, tasks].unsqueeze(-1),
        task_feature=-1,
        train_Yvar=noise,
        mean_module=ZeroMean(),
        covar_module=rbf(0.5, [0, 1]),
        outcome_transform=None,
        all_tasks=list(range(N)),
    )
    # Its own index kernel knows positive correlations only.
    index_kernel = IndexKernel(num_tasks=N, rank=N, active_dims=(2,)).double()
    index_kernel.covar_factor.data = torch.linalg.cholesky(B)
    index_kernel.var = torch.full((N,), 1e-12).double()
    theirs.covar_module = rbf(0.5, [0, 1]) * index_kernel
    ours = model_of(X, Y).posterior(Z)
    expected = theirs.posterior(Z)
    close(ours.mean, expected.mean, 1e-6)
    close(ours.variance, expected.variance, 1e-6)


# The model's other parts


def spread(t: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Data far from the unit cube, with tasks of different sizes."""
    X, Y, Z = data(t, N, 2)
    return 2 + 3 * X, 12 + Y * double([1.0, 10.0, 0.5]), 2 + 3 * Z


def check_standardized(model: ExactMultiTaskGP, Y: Tensor, noise: Any, X: Tensor, Z: Tensor) -> None:
    """Against the oracle on values standardized by hand, task by task, and inputs scaled by hand."""
    lower, upper = X.amin(dim=0), X.amax(dim=0)
    inputs, points = (((A - lower) / (upper - lower)).numpy() for A in (X, Z))
    offset, scale = np.zeros(N), np.ones(N)
    for j in range(N):
        seen = [y for y in Y[:, j].tolist() if not math.isnan(y)]
        offset[j] = np.mean(seen) if seen else 0.0
        scale[j] = np.std(seen, ddof=1) if len(seen) > 1 else 1.0
    values = (Y.numpy() - offset) / scale
    mean, covariance, *_ = oracles.given_seen(icm(N, 2).gamma, inputs, values, noise / scale**2, points)
    posterior = model.posterior(Z)
    close(posterior.mean, mean * scale + offset, 1e-9)
    factors = np.tile(scale, len(points))
    close(posterior.distribution.covariance_matrix, covariance * np.outer(factors, factors), 1e-9)
    close(model.mean(Z), mean * scale + offset, 1e-9)


@every_pattern
@pytest.mark.parametrize("noise", ["constant", "varying"])
def test_standardizing_and_known_noise_go_by_what_was_seen(hide: Callable[[Tensor], Tensor], noise: str) -> None:
    X, Y, Z = spread()
    Y = hide(Y)
    Y[1:, 2] = NAN  # a task with one value, or none
    variances = double([0.05, 2.0, 0.01]) * (torch.ones(8, N) if noise == "constant" else 0.2 + torch.rand(8, N))
    options = {"input_transform": Normalize(2), "outcome_transform": Standardize(N), "eta": None}
    for unseen in (NAN, 7.0):
        model = model_of(X, Y, train_Yvar=torch.where(Y.isnan(), unseen, variances), **copy.deepcopy(options))
        check_standardized(model, Y, variances.numpy(), X, Z)
        assert model.noise.isfinite().all()
        fitted = model.surrogate.regression
        assert model.surrogate.regression is fitted  # nothing is taken for changed
        assert model.posterior(Z, observation_noise=True).variance.isfinite().all()


@pytest.mark.parametrize("constant", [True, False])
def test_conditioning_with_known_noise(constant: bool) -> None:
    X, Y, Z = data(9, N, 2)
    Y = at_random(Y)
    variances = double([0.05, 2.0, 0.1]) * (torch.ones(9, N) if constant else 0.2 + torch.rand(9, N))
    variances = without(variances, Y.isnan())
    model = model_of(X[:6], Y[:6], eta=None, train_Yvar=variances[:6])
    grown = model.condition_on_observations(X[6:], Y[6:], noise=variances[6:])
    fitted = model_of(X, Y, eta=None, train_Yvar=variances)
    close(grown.mean(Z), fitted.mean(Z), 1e-9)
    close(grown.covariance(Z), fitted.covariance(Z), 1e-9)
    close(grown.noise, fitted.noise, 1e-12)
    by_hand = [np.nanmean(variances[:, j].numpy()) for j in range(N)]
    close(fitted.noise, np.array(by_hand), 1e-12)


class Offset(Mean):
    def forward(self, x: Tensor) -> Tensor:
        return 2.0 + x.sum(dim=-1)


def test_a_prior_mean_and_learned_noise() -> None:
    X, Y, Z = data(8, N, 2)
    Y = at_random(Y)
    likelihood = MultitaskGaussianLikelihood(N, rank=0).double()
    likelihood.noise, likelihood.task_noises = 0.05, double([0.1, 0.2, 0.3])
    model = model_of(X, Y, eta=None, likelihood=likelihood, mean_module=Offset())
    prior = lambda P: 2.0 + P.sum(dim=-1, keepdim=True)  # noqa: E731
    noise = np.array([0.15, 0.25, 0.35])
    mean, *_ = oracles.given_seen(icm(N, 2).gamma, X.numpy(), (Y - prior(X)).numpy(), noise, Z.numpy())
    close(model.mean(Z), mean + prior(Z).numpy(), 1e-6)
    close(model.condition_on_observations(X[:1], Y[:1]).train_targets[-1].nan_to_num(9), Y[0].nan_to_num(9), 1e-12)


def test_copies_subsets_fantasies_and_new_data() -> None:
    X, Y, Z = spread()
    Y = at_random(Y)
    options = {"input_transform": Normalize(2), "outcome_transform": Standardize(N)}
    model = model_of(X, Y, **copy.deepcopy(options))
    expected = model.posterior(Z).mean
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin.posterior(Z).mean, expected)
        assert torch.equal(twin.train_targets.isnan(), Y.isnan())
    other = model_of(X, Y, **copy.deepcopy(options))
    other.load_state_dict(model.state_dict())
    close(other.posterior(Z).mean, expected, 1e-12)
    close(model.subset_output([2, 0]).posterior(Z).mean, expected[:, [2, 0]], 1e-12)
    fantasies = model.fantasize(Z[:2], SobolQMCNormalSampler(torch.Size([4]), seed=0))
    assert fantasies.batch_shape == (4,)
    assert fantasies.mean(Z).isfinite().all()
    assert fantasies.train_targets.isnan().sum() == 4 * Y.isnan().sum()
    model.set_train_data(targets=one_value(model.train_targets))
    assert not torch.equal(model.posterior(Z).mean, expected)
    assert model.posterior(Z).mean.isfinite().all()
    dataset = SupervisedDataset(X, Y, feature_names=["a", "b"], outcome_names=["u", "v", "w"])
    inputs = ExactMultiTaskGP.construct_inputs(
        dataset, allow_missing=True, covar_module=icm(N, 2).kernel, eta=0.1, **options
    )
    close(ExactMultiTaskGP(**inputs).posterior(Z).mean, expected, 1e-12)


def test_a_batch_of_new_values_gives_a_batch_of_models() -> None:
    X, Y, Z = data(8, N, 2)
    model = model_of(X[:6], half_of_a_task(Y[:6]))
    new = torch.stack([at_random(Y[6:], seed=0), at_random(Y[6:], 0.6, seed=1), Y[6:]])
    grown = model.condition_on_observations(X[6:], new)
    for i in range(3):
        alone = model_of(X, torch.cat([half_of_a_task(Y[:6]), new[i]]))
        close(grown.mean(Z)[i], alone.mean(Z), 1e-9)
        close(grown.covariance_norm(Z)[i], alone.covariance_norm(Z), 1e-9)


def test_a_transform_that_is_not_affine() -> None:
    X, Y, Z = spread()
    transform = ChainedOutcomeTransform(log=Log(), standardize=Standardize(N))
    model = model_of(X, a_whole_task(at_random(Y.abs())), outcome_transform=transform)
    assert model.posterior(Z).mean.isfinite().all()
    grown = model.condition_on_observations(X[:1], one_value(Y[:1]))
    assert grown.posterior(Z).mean.isfinite().all()


class Mixing(OutcomeTransform):
    _is_linear = True

    def forward(self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return Y @ task_matrix(N), Yvar


@pytest.mark.parametrize(
    ("build", "hide"),
    [*((build, half_of_a_task) for build in PATHS), *((icm, hide) for hide in PORTIONS[1:]), (general_sum, everything)],
    ids=lambda value: value.__name__,
)
def test_acquisitions_and_their_gradients_are_finite(build: Builder, hide: Callable[[Tensor], Tensor]) -> None:
    X, Y, Z = data(10, N, 2)
    model = model_of(X, hide(Y), build)
    for scalarization in (
        ChebyshevScalarization(double([0.2, 0.3, 0.5])),
        LinearScalarization(double([0.2, 0.3, 0.5])),
    ):
        acqf = ScalarizedMultiTaskUCB(model, scalarization, estimate_radius(model), X_pending=Z[:2])
        points = torch.cat([X, Z]).unsqueeze(-2).requires_grad_()
        value = acqf(points)
        assert value.isfinite().all()
        assert torch.autograd.grad(value.sum(), points)[0].isfinite().all()
    check_gradient(ScalarizedMultiTaskUCB(model, LinearScalarization(double([0.2, 0.3, 0.5])), 1.5), Z)


def test_botorch_maximizes_it() -> None:
    X, Y, _ = data(10, N, 2)
    model = model_of(X, at_random(Y))
    acqf = ScalarizedMultiTaskUCB(model, LinearScalarization(double([0.2, 0.3, 0.5])), 1.5)
    box = double([[0.0, 0.0], [1.0, 1.0]])
    x, value = optimize_acqf(acqf, box, q=1, num_restarts=4, raw_samples=64)
    grid = torch.cartesian_prod(torch.linspace(0, 1, 20), torch.linspace(0, 1, 20)).double()
    assert value >= acqf(grid.unsqueeze(-2)).max() - 1e-6
    assert x.shape == (1, 2)


# Strategies

BOUNDS = double([[0.0, -1.0], [1.0, 3.0]])
CHOICES = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(
    30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double
)
SPACES = [{"bounds": BOUNDS}, {"choices": CHOICES}]
space = pytest.mark.parametrize("where", SPACES, ids=["bounds", "choices"])
learning = pytest.mark.parametrize("refit_every", [None, 3, pytest.param(1, marks=pytest.mark.slow)])
# One trial in a box and two on choices; the other way round is slow.
trials_in_a_space = pytest.mark.parametrize(
    ("where", "seed"),
    [
        (SPACES[0], 0),
        (SPACES[1], [0, 1]),
        pytest.param(SPACES[1], 0, marks=pytest.mark.slow),
        pytest.param(SPACES[0], [0, 1], marks=pytest.mark.slow),
    ],
    ids=["a trial in a box", "trials on choices", "a trial on choices", "trials in a box"],
)


def objective(x: Tensor) -> Tensor:
    wave = torch.sin(4 * x[..., 0]) + torch.cos(2 * x[..., 1])
    return torch.stack([wave, -wave + 0.1 * x[..., 0], x[..., 1]], dim=-1)


def strategy(where: dict[str, Tensor], refit_every: int | None = None, seed: Any = 0, **options: Any) -> MTKB:
    batch_shape = torch.Size([len(seed)]) if isinstance(seed, list) else torch.Size()
    kernel = ICMKernel(RBFKernel(ard_num_dims=2, batch_shape=batch_shape).double(), task_matrix(N))
    options = {"num_restarts": 2, "raw_samples": 16, "refit_every": refit_every, "seed": seed} | options
    return MTKB(kernel, **where, **options)


def run(mtkb: MTKB, rounds: int, q: int = 1, f: Callable[[Tensor], Tensor] = objective) -> MTKB:
    for _ in range(rounds):
        x = mtkb.ask(q)
        y = f(x)
        hidden = torch.rand(y.shape, generator=torch.Generator().manual_seed(mtkb.num_observations)) < 0.4
        hidden &= ~hidden.all(dim=-1, keepdim=True)
        mtkb.tell(x, without(y, hidden), allow_missing=True)
    return mtkb


@trials_in_a_space
@learning
def test_a_loop_with_missing_values(where: dict[str, Tensor], refit_every: int | None, seed: Any) -> None:
    mtkb = run(run(strategy(where, refit_every, seed), 4), 2, q=2)
    assert mtkb.train_Y.isnan().any()
    seen = ~mtkb.train_Y.isnan()
    assert torch.equal(mtkb.train_Y[seen], objective(mtkb.train_X)[seen])
    assert mtkb.radius.isfinite().all()
    assert mtkb.model.mean(CHOICES).isfinite().all()
    points = mtkb.ask(3)
    assert points.isfinite().all()
    # A point pending among them is told in part; another is forgotten.
    mtkb.tell(mtkb.asked_ids[0], without(objective(points[..., :1, :]), torch.tensor([True, False, True])), True)
    mtkb.forget(mtkb.asked_ids[1])
    assert mtkb.ask().isfinite().all()


def test_a_choice_is_the_maximizer_given_what_was_seen() -> None:
    mtkb = run(strategy({"choices": CHOICES}, norm_bound=1.0, bound="norm", noise_scale=0.1), 6)
    gamma = oracles.separable((oracles.rbf(math.log(2)), task_matrix(N).numpy()))
    X, Y = mtkb.train_X.numpy(), mtkb.train_Y.numpy()
    mean, covariance, gain, *_ = oracles.given_seen(gamma, X, Y, 0.1, CHOICES.numpy())
    radius = oracles.exact_radius(gain, 1.0, 0.1, 0.1, 0.1)
    close(mtkb.radius, radius, 1e-6)
    chosen = mtkb.ask()
    values = oracles.chebyshev_ucb(mtkb.asked_weights[0].numpy(), radius, mean, covariance)
    assert torch.equal(chosen[0], CHOICES[int(np.argmax(values))])


@trials_in_a_space
@learning
def test_saving_continues_bit_for_bit(where: dict[str, Tensor], refit_every: int | None, seed: Any) -> None:
    mtkb = run(strategy(where, refit_every, seed), 5)
    mtkb.ask()
    file = io.BytesIO()
    torch.save(mtkb.state_dict(), file)
    run(mtkb, 2)
    file.seek(0)
    resumed = strategy(where, refit_every, [8, 9] if isinstance(seed, list) else 9)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    run(resumed, 2)
    assert torch.equal(resumed.train_X, mtkb.train_X)
    assert torch.equal(resumed.train_Y.isnan(), mtkb.train_Y.isnan())
    assert torch.equal(resumed.radius, mtkb.radius)


@space
@learning
def test_with_every_value_seen_a_run_is_the_same(where: dict[str, Tensor], refit_every: int | None) -> None:
    ours, theirs = strategy(where, refit_every), strategy(where, refit_every)
    for _ in range(5):
        x = ours.ask()
        assert torch.equal(x, theirs.ask())
        ours.tell(x, objective(x), allow_missing=True)
        theirs.tell(x, objective(x))


@learning
def test_the_model_is_what_the_strategy_believes(refit_every: int | None) -> None:
    mtkb = run(strategy({"choices": CHOICES}, refit_every), 7)
    close(mtkb.model.mean(CHOICES), mtkb._surrogate.at(CHOICES).mean, 1e-9)
    units = mtkb._surrogate.units
    if units.scale is not None:
        close(mtkb.model.mean(CHOICES), mtkb._surrogate.tracking.mean * units.scale + units.offset, 1e-9)


@space
@pytest.mark.parametrize("refit_every", [1, 2])
def test_a_task_that_is_never_seen_or_only_later(where: dict[str, Tensor], refit_every: int) -> None:
    def first_only(x: Tensor) -> Tensor:
        return torch.where(torch.tensor([False, True, True]), NAN, objective(x))

    mtkb = strategy(where, refit_every)
    for _ in range(3):
        x = mtkb.ask()
        mtkb.tell(x, first_only(x), allow_missing=True)
    assert mtkb.model.posterior(CHOICES).variance.isfinite().all()
    run(mtkb, 3)
    assert mtkb.ask().isfinite().all()


def test_the_best_values_are_those_seen() -> None:
    mtkb = strategy({"choices": CHOICES}, refit_every=10)
    y = double([[1.0, NAN, NAN], [5.0, -2.0, NAN], [NAN, -4.0, NAN]])
    mtkb.tell(CHOICES[:3], y, allow_missing=True)
    mean, std = np.array([3.0, -3.0]), np.array([math.sqrt(8), math.sqrt(2)])
    expected = [*((np.array([5.0, -2.0]) - mean) / std), 0.0]
    scalarization, _ = mtkb.goal.scalarize(double([1.0, 1.0, 1.0]), mtkb._surrogate.units, mtkb.train_Y)
    close(scalarization.ref_point, np.array(expected), 1e-12)


def test_one_trial_of_a_batch_may_see_nothing() -> None:
    mtkb = strategy({"choices": CHOICES}, 1, [0, 1])
    x = mtkb.ask()
    y = objective(x)
    y[0] = NAN
    mtkb.tell(x, y, allow_missing=True)
    assert mtkb.ask().isfinite().all()


REFUSALS: list[tuple[Callable[[], object], str]] = [
    (lambda: ExactMultiTaskGP(X0, YNAN, eta=0.1), r"train_Y should contain finite .*allow_missing=True"),
    (lambda: ExactMultiTaskGP(X0, YINF, eta=0.1), r"train_Y should contain finite .*entries\.$"),
    (
        lambda: model_of(X0, YINF),
        r"train_Y should contain finite numbers, or NaN .* 1 Inf \(the first at index \(4, 2\)",
    ),
    (lambda: NystromMultiTaskGP(X0, YNAN, eta=0.1), r"train_Y should contain finite .*entries\.$"),
    (lambda: FULL.condition_on_observations(X0, YNAN), "Y should contain finite .* Build the model with allow_missing"),
    (lambda: FULL.set_train_data(targets=YNAN), "targets should contain finite .*allow_missing"),
    (lambda: model_of(X0, YNAN).condition_on_observations(X0, YINF), "Y should contain finite numbers, or NaN"),
    (lambda: model_of(X0, YNAN).set_train_data(targets=YINF), "targets should contain finite numbers, or NaN"),
    (lambda: model_of(X0 * NAN, YNAN), "train_X should contain finite"),
    (lambda: model_of(X0, YNAN, eta=None, train_Yvar=Y0.abs() * NAN), "train_Yvar should contain finite"),
    (lambda: model_of(X0, YNAN, outcome_transform=Mixing()), "outcome_transform should keep observed .* Mixing"),
    (lambda: model_of(X0, YNAN - 5, outcome_transform=Log()), "outcome_transform should keep observed .* Log"),
]
X0, Y0, _ = data(5, N, 2)
YNAN, YINF = one_value(Y0), Y0.clone()
YINF[-1, -1] = math.inf
FULL = ExactMultiTaskGP(X0, Y0, icm(N, 2).kernel, eta=0.1)


@pytest.mark.parametrize(("call", "message"), REFUSALS, ids=[str(i) for i in range(len(REFUSALS))])
def test_refusals(call: Callable[[], object], message: str) -> None:
    before = FULL.mean(X0)
    with pytest.raises(ValueError, match=message):
        call()
    assert torch.equal(FULL.mean(X0), before)


@space
@pytest.mark.parametrize("refit_every", [None, 1])
def test_a_refused_tell_changes_nothing(where: dict[str, Tensor], refit_every: int | None) -> None:
    mtkb, twin = run(strategy(where, refit_every), 3), run(strategy(where, refit_every), 3)
    for x, y, options, message in [
        (CHOICES[:1], YNAN[-1:], {}, r"y should contain finite .* Pass allow_missing=True"),
        (CHOICES[:1], YINF[-1:], {}, r"y should contain finite .*entries\.$"),
        (CHOICES[:1], YINF[-1:], {"allow_missing": True}, "y should contain finite numbers, or NaN"),
        (CHOICES[:2], everything(Y0[:2]), {"allow_missing": True}, r"NaN only in the rows \[0, 1\]\. .* forget them"),
    ]:
        with pytest.raises(ValueError, match=message):
            mtkb.tell(x, y, **options)
    assert torch.equal(run(mtkb, 2).train_X, run(twin, 2).train_X)


@pytest.mark.parametrize("kind", [MTBKB, ITKB, ITBKB, MOBO, RandomSearch, NEHVI])
def test_other_strategies_need_every_value(kind: type[Strategy]) -> None:
    kernel = similarity(N, 2).kernel if kind in (MTBKB, ITKB, ITBKB, MOBO) else N
    other = kind(kernel, choices=CHOICES)
    with pytest.raises(ValueError, match=f"allow_missing should be False for {kind.__name__}, .* Use MTKB"):
        other.tell(CHOICES[:1], YNAN[-1:], allow_missing=True)
    with pytest.raises(ValueError, match=r"y should contain finite .*entries\.$"):
        other.tell(CHOICES[:1], YNAN[-1:])
    state = other.state_dict() | {"train_X": CHOICES[:1], "train_Y": YNAN[-1:], "portions": [1]}
    with pytest.raises(ValueError, match="train_Y should contain finite"):
        other.load_state_dict(state)


def test_what_becomes_nearly_complete_gets_its_structure_back() -> None:
    X, Y, Z = data(12, N, 2)
    strategy = MTKB(icm(N, 2).kernel, choices=Z, norm_bound=1.0, bound="norm", noise_scale=0.1, eta=0.1)
    strategy.tell(X[:1], one_task_at_a_point(Y[:1]), allow_missing=True)
    assert isinstance(strategy.model.surrogate.regression, DenseRegression)
    strategy.tell(X[1:], Y[1:])
    assert isinstance(strategy.model.surrogate.regression, CompletedRegression)
    seen = torch.cat([one_task_at_a_point(Y[:1]), Y[1:]])
    close(strategy.model.mean(Z), model_of(X, seen, icm, eta=0.1).mean(Z), 1e-10)
    close(strategy.model.covariance(Z), model_of(X, seen, icm, eta=0.1).covariance(Z), 1e-10)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": 2, "refit_every": 1},
        {"kernel": 2, "refit_every": 100},
        {"ref_point": double([2.0, 2.0]), "eta": 1e-3},
    ],
    ids=["learned", "to be learned", "known"],
)
def test_constraints_hold_even_if_no_point_was_observed_completely(options: dict[str, Any]) -> None:
    choices = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
    known = ICMKernel(rbf(0.5), torch.eye(2, dtype=torch.double))
    limits = (double([[1.0, 0.0]]), double([0.5]))  # the first task, x itself, should be at most a half
    strategy = MTKB(**({"kernel": known, "choices": choices, "radius": 1.0, "constraints": limits} | options))
    x = double([[(0.37 * i) % 1] for i in range(12)])
    y = without(torch.cat([x, 1 - x], dim=-1), torch.arange(12).unsqueeze(-1) % 2 == torch.arange(2))
    for some in (slice(0, 5), slice(5, 12)):
        strategy.tell(x[some], y[some], allow_missing=True)
    assert strategy.ask().item() < 0.6


def test_nothing_seen_has_a_density_of_one() -> None:
    X, Y, _ = data(4, N, 2)
    for build in (icm, general_sum, independent):
        assert model_of(X, torch.full_like(Y, NAN), build).log_marginal_likelihood() == 0


# Predictions of what was seen at a point, from what was seen at all others


def a_task_seen_once(Y: Tensor) -> Tensor:
    Y = Y.clone()
    Y[..., 1:, 0] = NAN
    return Y


def all_but_one_of_a_row(Y: Tensor) -> Tensor:
    Y = Y.clone()
    Y[..., 3, 1:] = NAN
    return Y


def agree(actual: tuple[Tensor, Tensor], expected: tuple[Any, Any], tolerance: float) -> None:
    """NaN in the same places, and the same numbers elsewhere."""
    for ours, theirs in zip(actual, expected, strict=True):
        theirs = torch.as_tensor(theirs)
        assert torch.equal(ours.isnan(), theirs.isnan())
        close(ours.nan_to_num(nan=0.0), theirs.nan_to_num(nan=0.0), tolerance)


def left_out(case: Case, X: Tensor, Y: Tensor, noise: Any) -> tuple[np.ndarray, np.ndarray]:
    return oracles.leave_one_out(case.gamma, X.numpy(), Y.numpy(), np.asarray(noise))


@list_cases([*PATTERNS, a_task_seen_once, all_but_one_of_a_row])
def test_leave_one_out_predicts_what_was_seen(build: Builder, eta: Any, hide: Callable[[Tensor], Tensor]) -> None:
    X, Y, _ = data(9, N, 2)
    X[5], Y = X[4], hide(Y)
    mean, covariance = model_of(X, Y, build, eta=double(eta)).leave_one_out()
    assert torch.equal(mean.isnan(), Y.isnan())
    agree((mean, covariance), left_out(build(N, 2), X, Y, eta), 1e-8)


@pytest.mark.parametrize("hide", [half_of_a_task, one_task_at_a_point])
@pytest.mark.parametrize(("t", "n"), [(1, 3), (6, 1), (40, 2)])
def test_leave_one_out_of_other_sizes(hide: Callable[[Tensor], Tensor], t: int, n: int) -> None:
    X, Y, _ = data(t, n, 2)
    Y = one_value(Y) if n == 1 else hide(Y)
    agree(model_of(X, Y).leave_one_out(), left_out(icm(n, 2), X, Y, 0.1), 1e-8)


@every_path
@pytest.mark.parametrize(("eta", "dtype"), [(ETAS[0], torch.float), (ETAS[1], torch.double)])
def test_leave_one_out_of_a_batch(build: Builder, eta: Any, dtype: torch.dtype) -> None:
    hidden = [half_of_a_task, at_random, a_whole_row, lambda Y: Y]
    sets = [(X, hide(Y)) for (X, Y, _), hide in zip([data(8, N, 2, i) for i in range(4)], hidden, strict=True)]
    X, Y = (torch.stack(parts).to(dtype) for parts in zip(*sets, strict=True))
    for chosen in ([0, 1, 2, 3], [1, 2], [3]):  # most missing, few, none
        mean, covariance = model_of(X[chosen], Y[chosen], build, eta=double(eta).to(dtype)).leave_one_out()
        assert mean.dtype == covariance.dtype == dtype
        for i, j in enumerate(chosen):
            expected = left_out(build(N, 2), *sets[j], eta)
            agree((mean[i], covariance[i]), expected, 1e-8 if dtype == torch.double else 1e-3)


@pytest.mark.parametrize("build", [icm, general_sum])
def test_leave_one_out_of_fantasies(build: Builder) -> None:
    X, Y, _ = data(10, N, 2)
    model = model_of(X[:8], half_of_a_task(Y)[:8], build)
    new = torch.stack([Y[8:], one_value(Y[8:]), everything(Y[8:])])
    mean, covariance = model.condition_on_observations(X[8:], new).leave_one_out()
    for i in range(3):
        values = torch.cat([half_of_a_task(Y)[:8], new[i]])
        agree((mean[i], covariance[i]), left_out(build(N, 2), X, values, 0.1), 1e-8)


@pytest.mark.parametrize("build", [icm, general_sum, independent])
@every_portion
def test_leave_one_out_after_appending(build: Builder, hide: Callable[[Tensor], Tensor]) -> None:
    X, Y, _ = data(12, N, 2)
    Y = torch.cat([Y[:3], hide(Y[3:9]), Y[9:]])
    model = model_of(X[:0], Y[:0], build)
    for i in range(0, 12, 3):
        model = model.condition_on_observations(X[i : i + 3], Y[i : i + 3])
    agree(model.leave_one_out(), left_out(build(N, 2), X, Y, 0.1), 1e-8)


@pytest.mark.parametrize("build", [icm, identical_tasks, general_sum])
@pytest.mark.parametrize("noise", ["eta", "constant variances", "variances"])
@pytest.mark.parametrize("hide", [half_of_a_task, one_task_at_a_point])
def test_leave_one_out_in_the_users_units(build: Builder, noise: str, hide: Callable[[Tensor], Tensor]) -> None:
    X, Y, _ = data(9, N, 2)
    Y = hide(double([3.0, -100.0, 0.1]) * Y + double([10.0, 0.0, -1.0]))
    offset, scale = Y.nanmean(dim=0), double([y[~y.isnan()].std().item() for y in Y.mT])
    variances = 0.1 * scale.square() * (1 + torch.rand_like(Y))
    if noise == "constant variances":
        variances = variances[:1].expand_as(Y)
    own = {"eta": 0.1} if noise == "eta" else {"eta": None, "train_Yvar": torch.where(Y.isnan(), NAN, variances)}
    noises = 0.1 * scale.square() if noise == "eta" else variances
    prior_mean = ConstantMean().double().initialize(constant=0.5)
    model = model_of(5 * X - 1, Y, build, outcome_transform=Standardize(N), mean_module=prior_mean, **own)
    model.input_transform = Normalize(2, bounds=double([[-1.0, -1.0], [4.0, 4.0]])).eval()
    inner, middle = build(N, 2).gamma, offset + 0.5 * scale
    gamma = lambda x, y: np.outer(scale, scale) * inner(x, y)  # noqa: E731
    mean, covariance = oracles.leave_one_out(gamma, X.numpy(), (Y - middle).numpy(), noises.numpy())
    ours, outer = model.leave_one_out(), scale.unsqueeze(-1) * scale
    agree(((ours[0] - middle) / scale, ours[1] / outer), (torch.tensor(mean) / scale, covariance / outer.numpy()), 1e-8)


@pytest.mark.parametrize("hide", [half_of_a_task, one_task_at_a_point])
def test_leave_one_out_of_some_tasks(hide: Callable[[Tensor], Tensor]) -> None:
    X, Y, _ = data(6, N, 2)
    model = model_of(X, hide(Y), outcome_transform=Standardize(N))
    mean, covariance = model.leave_one_out()
    few = model.subset_output([2, 0]).leave_one_out()
    agree(few, (mean[:, [2, 0]], covariance[:, [2, 0]][..., [2, 0]]), 1e-12)


@pytest.mark.parametrize("build", [icm, general_sum])
@pytest.mark.parametrize("hide", [half_of_a_task, one_task_at_a_point])
def test_the_gradient_of_leave_one_out(build: Builder, hide: Callable[[Tensor], Tensor]) -> None:
    X, Y, _ = data(6, N, 1)
    model = model_of(X, hide(Y), build)
    raw = next(iter(model.covar_module.parameters()))

    def value(shift: float) -> Tensor:
        raw.data += shift
        with botorch_settings.propagate_grads(True):
            mean, covariance = model.leave_one_out()
        raw.data -= shift
        return mean[~mean.isnan()].square().sum() + covariance[~covariance.isnan()].square().sum()

    (slope,) = torch.autograd.grad(value(0.0), raw)
    close(slope.squeeze(), ((value(1e-5) - value(-1e-5)) / 2e-5).detach(), 1e-6)


def test_leave_one_out_with_few_missing_values_never_sees_the_whole_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y, _ = data(20, N, 2)
    model = model_of(X, half_of_a_task(Y))
    assert isinstance(model.surrogate.regression, CompletedRegression)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the nt x nt matrix")

    monkeypatch.setattr(SeparableSum, "__call__", refuse)
    monkeypatch.setattr(DenseRegression, "fit", refuse)
    model.leave_one_out()


@pytest.mark.parametrize("batch", [(), (2,)])
def test_blocks_of_the_inverse_of_what_was_seen(batch: tuple[int, ...]) -> None:
    """Blocks of the factor, of up to 256 rows, end within those of points, some of which have no rows at all."""
    generator = torch.Generator().manual_seed(0)
    seen = torch.rand(450, generator=generator) < 0.8
    seen[9:15] = False
    places, size = seen.nonzero().flatten(), int(seen.sum())
    root = torch.randn(*batch, size, size, dtype=torch.double, generator=generator)
    A = root @ root.mT / size + torch.eye(size).double()
    inverse = torch.zeros(*batch, 450, 450, dtype=torch.double)
    inverse[..., places.unsqueeze(-1), places] = torch.linalg.inv(A)
    factor = InverseCholesky.of(A, torch.ones(batch).double())
    blocks = [inverse[..., i : i + 3, i : i + 3] for i in range(0, 450, 3)]
    close(factor.inverse_blocks_at(places, 150, 3), torch.stack(blocks, dim=-3), 1e-10)
