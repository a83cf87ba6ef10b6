"""ExactMultiTaskGP against the oracle, against GPyTorch, and where numbers get difficult."""

from __future__ import annotations

import copy
import pickle
from itertools import product

import gpytorch
import numpy as np
import oracles
import pytest
import suites
import torch
from botorch import settings as botorch_settings
from botorch.models.utils import gpt_posterior_settings
from catalogue import KERNELS, PATHS, Builder, data, general_sum, icm, matern, rbf, scaled, similarity, task_matrix
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from suites import close

from mtbo_torch import ExactMultiTaskGP, ICMKernel, IndependentKernel, SumOfSeparableKernel, TaskSimilarityKernel
from mtbo_torch.kernels import ScalarAdapter
from mtbo_torch.regression import DenseRegression, KroneckerRegression, SeparableSum

every_kernel = pytest.mark.parametrize("build", KERNELS, ids=lambda build: build.__name__)
every_path = pytest.mark.parametrize("build", PATHS, ids=lambda build: build.__name__)
# No data, one point, few and many; one task, few and many; one input and several.
SIZES = [(0, 2, 3), (1, 1, 1), (1, 7, 3), (2, 2, 1), (40, 1, 3), (40, 7, 1)]
# Neither the path nor the shapes depend on the precision.
EXTREMES = [SIZES[0], SIZES[1], SIZES[-1]]


@every_kernel
@pytest.mark.parametrize(("t", "n", "d"), SIZES)
def test_agrees_with_the_oracle(build: Builder, t: int, n: int, d: int) -> None:
    suites.check_model(build(n, d), t, d, torch.double, 0.1, 1e-8)


@every_path
@pytest.mark.parametrize(("t", "n", "d"), EXTREMES)
def test_single_precision_agrees_with_the_oracle(build: Builder, t: int, n: int, d: int) -> None:
    suites.check_model(build(n, d), t, d, torch.float, 0.1, 1e-3)


@every_path
@pytest.mark.parametrize(("t", "n", "d"), SIZES)
def test_batches_agree_with_single_data_sets(build: Builder, t: int, n: int, d: int) -> None:
    suites.check_batches(build(n, d), t, d, torch.double, 1e-10)


@every_path
def test_batches_agree_with_single_data_sets_in_single_precision(build: Builder) -> None:
    suites.check_batches(build(7, 1), 40, 1, torch.float, 1e-3)


@every_kernel
@pytest.mark.parametrize("n", [1, 2, 7])
def test_noise_of_each_task(build: Builder, n: int) -> None:
    eta = torch.linspace(0.05, 0.3, n, dtype=torch.double)
    suites.check_model(build(n, 3), 12, 3, torch.double, eta, 1e-8)


@pytest.mark.parametrize(
    ("build", "n"),
    [*((build, 3) for build in PATHS), (icm, 1), (general_sum, 1)],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_appending_agrees_with_fitting(build: Builder, n: int) -> None:
    suites.check_appending(build(n, 2), 9, 2)


@every_kernel
def test_appending_with_noise_of_each_task(build: Builder) -> None:
    X, Y, Z = data(6, 3, 2)
    eta = torch.tensor([0.05, 0.1, 0.3], dtype=torch.double)
    kernel = build(3, 2).kernel
    grown = ExactMultiTaskGP(X[:3], Y[:3], kernel, eta=eta).condition_on_observations(X[3:], Y[3:])
    fitted = ExactMultiTaskGP(X, Y, kernel, eta=eta)
    close(grown.mean(Z), fitted.mean(Z), 1e-10)
    close(grown.covariance_norm(Z), fitted.covariance_norm(Z), 1e-10)
    close(grown.info_gain, fitted.info_gain, 1e-10)


def test_the_structure_decides_the_path() -> None:
    X, Y, _ = data(4, 2, 1)
    B1, B2 = task_matrix(2), task_matrix(2, seed=1)
    commuting = SumOfSeparableKernel([ICMKernel(rbf(0.5), B1), ICMKernel(rbf(0.2), B1 @ B1)])
    clashing = SumOfSeparableKernel([ICMKernel(rbf(0.5), B1), ICMKernel(rbf(0.2), B2)])
    shared = rbf(0.3)
    same_base = SumOfSeparableKernel([ICMKernel(shared, B1), ICMKernel(shared, B2)])

    def path(kernel: gpytorch.kernels.Kernel, eta: object = 0.1) -> type:
        return type(ExactMultiTaskGP(X, Y, kernel, eta=eta).surrogate.regression)

    assert path(commuting) is KroneckerRegression
    assert path(same_base) is KroneckerRegression
    assert path(IndependentKernel([rbf(0.5), rbf(0.2)]), torch.tensor([0.1, 0.2])) is KroneckerRegression
    assert path(clashing) is DenseRegression
    assert path(commuting, torch.tensor([0.1, 0.2])) is DenseRegression  # whitening undoes the commutation


@pytest.mark.parametrize(
    ("kernel", "groups"),
    [
        (TaskSimilarityKernel(rbf(0.5), 7, 0.4), 2),
        (TaskSimilarityKernel(rbf(0.5), 7, 0.0), 1),
        (TaskSimilarityKernel(rbf(0.5), 7, 1.0), 1),
        (ICMKernel(rbf(0.5), task_matrix(7, rank=2)), 2),
        (ICMKernel(rbf(0.5), task_matrix(7)), 7),
        (IndependentKernel([rbf(0.5), rbf(0.4), rbf(0.3)]), 3),
    ],
)
def test_equal_eigenvalues_share_a_factor_and_zero_ones_cost_nothing(
    kernel: gpytorch.kernels.Kernel, groups: int
) -> None:
    n = kernel.num_tasks
    X, Y, _ = data(4, n, 1)
    regression = ExactMultiTaskGP(X, Y, kernel, eta=0.1).surrogate.regression
    assert isinstance(regression, KroneckerRegression)
    assert regression.factor.batch_shape == (groups,)


def test_a_shared_kernel_of_independent_tasks_has_one_factor() -> None:
    base = rbf(0.5)
    X, Y, _ = data(4, 3, 1)
    regression = ExactMultiTaskGP(X, Y, IndependentKernel([base, base, base]), eta=0.1).surrogate.regression
    assert isinstance(regression, KroneckerRegression)
    assert regression.factor.batch_shape == (1,)


def test_three_hundred_appended_points_and_their_ancestors() -> None:
    """More than a block of the factor holds."""
    n = 3
    X, Y, Z = data(300, n, 2)
    kernel = ICMKernel(rbf(0.3), task_matrix(n))
    model = ExactMultiTaskGP(X[:0], Y[:0], kernel, eta=0.1)
    ancestors, answers = {}, {}
    for i in range(300):
        if i in (1, 17, 100, 257, 299):
            ancestors[i] = model
            answers[i] = (model.mean(Z), model.covariance_norm(Z), model.info_gain)
        model = model.condition_on_observations(X[i : i + 1], Y[i : i + 1])
    fitted = ExactMultiTaskGP(X, Y, kernel, eta=0.1)
    close(model.mean(Z), fitted.mean(Z), 1e-8)
    close(model.covariance(Z), fitted.covariance(Z), 1e-8)
    close(model.info_gain, fitted.info_gain, 1e-8)
    for i, old in ancestors.items():
        for now, then in zip((old.mean(Z), old.covariance_norm(Z), old.info_gain), answers[i], strict=True):
            assert torch.equal(now, then)


def test_a_graph_survives_a_later_append() -> None:
    X, Y, Z = data(5, 2, 1)
    parent = ExactMultiTaskGP(X, Y, icm(2, 1).kernel, eta=0.1).condition_on_observations(X[:1], Y[:1])
    points = Z.clone().requires_grad_()
    value = parent.covariance_norm(points).sum()
    (expected,) = torch.autograd.grad(value, points, retain_graph=True)
    parent.condition_on_observations(X[1:3], Y[1:3])
    (actual,) = torch.autograd.grad(value, points)
    assert torch.equal(actual, expected)


def test_batch_of_task_matrices_noises_and_lengthscales() -> None:
    n, sets = 3, [data(8, 3, 2, seed) for seed in (0, 1)]
    matrices = [task_matrix(n), task_matrix(n, rank=1, seed=3)]
    scales, noises = (0.4, 0.9), (0.1, 0.02)
    X, Y, Z = (torch.stack(parts) for parts in zip(*sets, strict=True))
    base = gpytorch.kernels.RBFKernel(batch_shape=torch.Size([2])).double()
    base.lengthscale = torch.tensor(scales, dtype=torch.double)[:, None, None]
    kernel = ICMKernel(base, torch.stack(matrices))
    assert kernel.batch_shape == (2,)
    model = ExactMultiTaskGP(X, Y, kernel, eta=torch.tensor(noises, dtype=torch.double).unsqueeze(-1))
    grown = model.condition_on_observations(Z[:, :2], Y[:, :2])
    for i in range(2):
        alone = ExactMultiTaskGP(X[i], Y[i], ICMKernel(rbf(scales[i]), matrices[i]), eta=noises[i])
        close(model.mean(Z)[i], alone.mean(Z[i]), 1e-10)
        close(model.covariance(Z)[i], alone.covariance(Z[i]), 1e-10)
        close(model.covariance_norm(Z)[i], alone.covariance_norm(Z[i]), 1e-10)
        close(model.info_gain[i], alone.info_gain, 1e-10)
        alone = alone.condition_on_observations(Z[i, :2], Y[i, :2])
        close(grown.mean(Z)[i], alone.mean(Z[i]), 1e-10)


def test_batches_of_batches_and_batches_of_one() -> None:
    n, kernel = 2, icm(2, 1).kernel
    X = torch.rand(3, 1, 5, 1, dtype=torch.double)
    Y = torch.rand(3, 1, 5, n, dtype=torch.double)
    model = ExactMultiTaskGP(X, Y, kernel, eta=0.1)
    Z = torch.rand(4, 3, 6, 2, 1, dtype=torch.double)  # 4 extra, 3 shared, 6 against the batch of one
    mean, norm = model.mean(Z), model.covariance_norm(Z)
    assert mean.shape == (4, 3, 6, 2, n)
    for i, j, k in product(range(4), range(3), range(6)):
        alone = ExactMultiTaskGP(X[j, 0], Y[j, 0], kernel, eta=0.1)
        close(mean[i, j, k], alone.mean(Z[i, j, k]), 1e-10)
        close(norm[i, j, k], alone.covariance_norm(Z[i, j, k]), 1e-10)


def test_conditioning_can_add_batch_dimensions() -> None:
    X, Y, Z = data(5, 2, 1)
    model = ExactMultiTaskGP(X, Y, icm(2, 1).kernel, eta=0.1)
    fantasies = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    points = torch.rand(3, 2, 1, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    grown = model.condition_on_observations(points, fantasies)
    assert grown.batch_shape == (4, 3)
    for i, j in product(range(4), range(3)):
        alone = model.condition_on_observations(points[j], fantasies[i, j])
        close(grown.mean(Z)[i, j], alone.mean(Z), 1e-10)
        close(grown.covariance_norm(Z)[i, j], alone.covariance_norm(Z), 1e-10)


class _Reference(gpytorch.models.ExactGP):
    """A multi-task GP in plain GPyTorch."""

    def __init__(self, X: torch.Tensor, Y: torch.Tensor, B: torch.Tensor, lengthscale: float, noises: torch.Tensor):
        n = Y.shape[-1]
        likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(
            n, has_global_noise=False, noise_constraint=gpytorch.constraints.GreaterThan(1e-8)
        ).double()
        likelihood.task_noises = noises
        super().__init__(X, Y, likelihood)
        self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ZeroMean(), n)
        self.covar_module = gpytorch.kernels.MultitaskKernel(rbf(lengthscale), n, rank=n).double()
        index = self.covar_module.task_covar_module
        index.var = torch.full((n,), 1e-10, dtype=torch.double)
        index.covar_factor.data = torch.linalg.cholesky(B)

    def forward(self, x: torch.Tensor) -> MultitaskMultivariateNormal:
        return MultitaskMultivariateNormal(self.mean_module(x), self.covar_module(x))


@pytest.mark.parametrize("noises", [[0.1, 0.1, 0.1], [0.05, 0.1, 0.3]])
def test_agrees_with_gpytorch(noises: list[float]) -> None:
    X, Y, Z = data(15, 3, 2)
    B, eta = task_matrix(3), torch.tensor(noises, dtype=torch.double)
    reference = _Reference(X, Y, B, 0.5, eta).eval()
    with torch.no_grad(), gpt_posterior_settings():
        expected = reference(Z)
    kernel = ICMKernel(rbf(0.5), reference.covar_module.task_covar_module.covar_matrix.to_dense().detach())
    model = ExactMultiTaskGP(X, Y, kernel, eta=eta)
    close(model.posterior(Z).mean, expected.mean, 1e-10)
    close(model.posterior(Z).distribution.covariance_matrix, expected.covariance_matrix, 1e-10)


@every_kernel
def test_the_training_prior_agrees_with_gpytorchs_posterior(build: Builder) -> None:
    X, Y, Z = data(10, 2, 2)
    model = ExactMultiTaskGP(X, Y, build(2, 2).kernel, eta=0.1).eval()
    with torch.no_grad(), gpt_posterior_settings():
        expected = model(Z)  # GPyTorch's own ExactGP.__call__ on our kernel
    close(model.posterior(Z).mean, expected.mean, 1e-8)
    close(model.posterior(Z).distribution.covariance_matrix, expected.covariance_matrix, 1e-8)


def test_foreign_multitask_kernels_take_the_dense_path() -> None:
    X, Y, Z = data(6, 2, 2)
    kernel = gpytorch.kernels.MultitaskKernel(rbf(0.5), num_tasks=2, rank=2).double()
    B = kernel.task_covar_module.covar_matrix.to_dense().detach()
    foreign, own = ExactMultiTaskGP(X, Y, kernel, eta=0.1), ExactMultiTaskGP(X, Y, ICMKernel(rbf(0.5), B), eta=0.1)
    assert isinstance(foreign.surrogate.regression, DenseRegression)
    close(foreign.mean(Z), own.mean(Z), 1e-10)
    close(foreign.covariance(Z), own.covariance(Z), 1e-10)
    batch = ExactMultiTaskGP(torch.stack([X, X]), torch.stack([Y, -Y]), kernel, eta=0.1)
    close(batch.mean(Z), torch.stack([own.mean(Z), -own.mean(Z)]), 1e-10)
    close(batch.covariance_norm(Z), torch.stack([own.covariance_norm(Z)] * 2), 1e-10)


@every_path
@pytest.mark.parametrize("offset", [0.0, 1e-9])
@pytest.mark.parametrize("eta", [0.1, 1e-6])
def test_duplicates_and_near_duplicates(build: Builder, offset: float, eta: float) -> None:
    X, Y, Z = data(10, 3, 2)
    X, Y = torch.cat([X, X + offset, X]), torch.cat([Y, Y, Y])
    case = build(3, 2)
    mean, covariance = oracles.posterior(case.gamma, X.numpy(), Y.numpy(), eta, Z.numpy())
    model = ExactMultiTaskGP(X, Y, case.kernel, eta=eta)
    tolerance = 1e-8 if eta > 1e-3 else 1e-6  # numpy's own solve is good to cond * eps = 1e-7 here
    close(model.mean(Z), mean, tolerance)
    close(model.covariance(Z), oracles.blocks(covariance, 3), 1e-8)
    grown = ExactMultiTaskGP(X[:10], Y[:10], case.kernel, eta=eta)
    for i in range(10, 30, 4):
        grown = grown.condition_on_observations(X[i : i + 4], Y[i : i + 4])
    close(grown.mean(Z), mean, tolerance)
    close(grown.covariance(Z), oracles.blocks(covariance, 3), 1e-8)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_many_duplicates_with_a_tiny_eta_stay_finite_and_non_negative(dtype: torch.dtype) -> None:
    X = torch.zeros(60, 1, dtype=dtype)
    Y = torch.ones(60, 2, dtype=dtype)
    model = ExactMultiTaskGP(X, Y, similarity(2, 1).kernel, eta=1e-6)
    for _ in range(3):
        model = model.condition_on_observations(X[:5], Y[:5])
    Z = torch.linspace(0, 1, 50, dtype=dtype).unsqueeze(-1)
    assert torch.isfinite(model.mean(Z)).all()
    assert (model.covariance_norm(Z) >= 0).all()
    close(model.mean(Z)[0], torch.ones(2), 1e-2)


def test_prior_mean() -> None:
    X, Y, Z = data(6, 2, 1)
    kernel = icm(2, 1).kernel
    constant = gpytorch.means.ConstantMean().double()
    constant.constant.data.fill_(3.0)
    shifted = ExactMultiTaskGP(X, Y + 3.0, kernel, eta=0.1, mean_module=constant)
    plain = ExactMultiTaskGP(X, Y, kernel, eta=0.1)
    close(shifted.mean(Z), plain.mean(Z) + 3.0, 1e-12)
    close(shifted.posterior(Z).mean, plain.mean(Z) + 3.0, 1e-12)
    grown = shifted.condition_on_observations(Z[:2], Y[:2] + 3.0)
    close(grown.mean(Z), plain.condition_on_observations(Z[:2], Y[:2]).mean(Z) + 3.0, 1e-12)
    close(grown.train_targets, torch.cat([Y, Y[:2]]) + 3.0, 1e-12)
    means = [gpytorch.means.ConstantMean().double() for _ in range(2)]
    means[1].constant.data.fill_(-1.0)
    per_task = ExactMultiTaskGP(
        X, Y + torch.tensor([0.0, -1.0]), kernel, eta=0.1, mean_module=gpytorch.means.MultitaskMean(means, 2)
    )
    close(per_task.mean(Z), plain.mean(Z) + torch.tensor([0.0, -1.0]), 1e-12)


def test_defaults_learn_everything() -> None:
    X, Y, Z = data(6, 3, 2)
    model = ExactMultiTaskGP(X, Y)
    assert isinstance(model.covar_module, ICMKernel)
    assert model.covar_module.base_kernel.lengthscale.shape == (1, 2)
    assert model.covar_module.task_factor.shape == (3, 3)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model.mean(Z).shape == (7, 3)
    batch = ExactMultiTaskGP(torch.stack([X, X]), torch.stack([Y, Y]))
    assert batch.covar_module.task_factor.shape == (2, 3, 3)
    close(batch.mean(Z), torch.stack([model.mean(Z)] * 2), 1e-10)


def test_fixed_eta_is_kept_to_the_last_digit_and_not_learned() -> None:
    X, Y, _ = data(6, 3, 2)
    model = ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=1e-6)
    assert model.noise.item() == 1e-6
    assert not any(parameter.requires_grad for parameter in model.likelihood.parameters())


def test_a_likelihood_gives_the_noise() -> None:
    X, Y, Z = data(6, 2, 1)
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(2).double()
    likelihood.noise, likelihood.task_noises = 0.1, torch.tensor([0.2, 0.3], dtype=torch.double)
    model = ExactMultiTaskGP(X, Y, icm(2, 1).kernel, likelihood=likelihood)
    expected = ExactMultiTaskGP(X, Y, icm(2, 1).kernel, eta=torch.tensor([0.3, 0.4], dtype=torch.double))
    close(model.mean(Z), expected.mean(Z), 1e-10)


def test_posterior_options() -> None:
    X, Y, Z = data(6, 3, 2)
    eta = torch.tensor([0.1, 0.2, 0.3], dtype=torch.double)
    model = ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=eta)
    joint = model.posterior(Z)
    noisy = model.posterior(Z, observation_noise=True)
    close(noisy.variance - joint.variance, eta.expand(7, 3), 1e-12)
    close(model.posterior(Z, observation_noise=torch.full((7, 3), 0.5)).variance, joint.variance + 0.5, 1e-12)
    part = model.posterior(Z, output_indices=[2, 0])
    close(part.mean, joint.mean[:, [2, 0]], 1e-12)
    rows = (torch.arange(7).unsqueeze(-1) * 3 + torch.tensor([2, 0])).flatten()
    close(part.distribution.covariance_matrix, joint.distribution.covariance_matrix[rows][:, rows], 1e-12)
    assert isinstance(model.posterior(Z, output_indices=[1]).distribution, MultivariateNormal)


def test_changed_hyperparameters_are_noticed() -> None:
    X, Y, Z = data(6, 2, 1)
    model = ExactMultiTaskGP(X, Y, ICMKernel(rbf(0.5), task_matrix(2)), eta=0.1)
    before, child = model.mean(Z), model.condition_on_observations(Z[:1], Y[:1])
    of_child = child.mean(Z)
    model.covar_module.base_kernel.lengthscale = torch.tensor(0.1, dtype=torch.double)
    expected = ExactMultiTaskGP(X, Y, ICMKernel(rbf(0.1), task_matrix(2)), eta=0.1)
    close(model.mean(Z), expected.mean(Z), 1e-10)
    assert not torch.allclose(model.mean(Z), before)
    assert torch.equal(child.mean(Z), of_child)
    model.set_train_data(X, -Y)
    close(model.mean(Z), -expected.mean(Z), 1e-10)
    model.load_state_dict(ExactMultiTaskGP(X, Y, ICMKernel(rbf(0.5), task_matrix(2)), eta=0.1).state_dict())
    close(model.mean(Z), -before, 1e-10)


@pytest.mark.parametrize("how", ["another kernel", "another smoothness"])
def test_changes_that_leave_all_numbers_alone_are_noticed(how: str) -> None:
    X, Y, Z = data(6, 2, 1)
    model = ExactMultiTaskGP(X, Y, ICMKernel(matern(0.5), task_matrix(2)), eta=0.1)
    before, other = model.mean(Z), rbf(0.5)
    if how == "another kernel":
        model.covar_module.base_kernel = other
    else:
        other = matern(0.5)
        other.nu = model.covar_module.base_kernel.nu = 0.5
    expected = ExactMultiTaskGP(X, Y, ICMKernel(other, task_matrix(2)), eta=0.1)
    close(model.mean(Z), expected.mean(Z), 1e-10)
    assert not torch.allclose(model.mean(Z), before)


def test_copies_pickles_and_casts() -> None:
    X, Y, Z = data(6, 2, 1)
    model = ExactMultiTaskGP(X, Y, icm(2, 1).kernel, eta=0.1)
    expected = model.mean(Z)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        close(twin.mean(Z), expected, 1e-12)
    single = model.to(torch.float)
    assert single.mean(Z.float()).dtype == torch.float
    close(single.mean(Z.float()), expected, 1e-4)


@pytest.mark.parametrize("build", [icm, KERNELS[6], KERNELS[7]], ids=lambda build: build.__name__)
def test_gradients_reach_new_data_and_hyperparameters(build: Builder) -> None:
    X, Y, Z = data(5, 2, 1)

    def answer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        model = ExactMultiTaskGP(X, Y, build(2, 1).kernel, eta=0.1)
        grown = model.condition_on_observations(x, y).condition_on_observations(x + 0.3, y)
        mean, norm = (grown.at(Z).mean, grown.at(Z).norm)
        return torch.cat([mean.flatten(), norm])

    x, y = Z[:2].clone().requires_grad_(), Y[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(answer, (x, y), eps=1e-6, atol=1e-5)
    model = ExactMultiTaskGP(X, Y, build(2, 1).kernel, eta=0.1)
    with botorch_settings.propagate_grads(True):
        model.mean(Z).sum().backward()
    assert all(p.grad is not None for p in model.covar_module.parameters() if p.requires_grad)


@pytest.mark.parametrize("rank", [1, 3])
def test_gradients_of_a_learned_matrix_with_equal_eigenvalues(rank: int) -> None:
    X, Y, Z = data(5, 3, 1)

    def mean_of(W: torch.Tensor) -> torch.Tensor:
        return (
            DenseRegression.fit(
                _separable(ICMKernel(rbf(0.5), num_tasks=3).base_kernel, W @ W.T), torch.tensor([[0.1]]).double(), X, Y
            )
            .at(Z)
            .mean
        )

    kernel = ICMKernel(rbf(0.5), num_tasks=3, rank=rank).double()  # starts at B = I, or at all ones
    model = ExactMultiTaskGP(X, Y, kernel, eta=0.1)
    with botorch_settings.propagate_grads(True):
        (gradient,) = torch.autograd.grad(model.mean(Z).sum(), kernel.task_factor)
    W = kernel.task_factor.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(mean_of(W).sum(), W)
    close(gradient, expected, 1e-8)
    assert torch.autograd.gradcheck(mean_of, (W,))


def _separable(base: gpytorch.kernels.Kernel, B: torch.Tensor) -> SeparableSum:
    return SeparableSum((ScalarAdapter(base, None),), (B,))


def test_conditioning_with_a_learnable_mean_can_be_copied() -> None:
    X, Y, Z = data(6, 2, 1)
    model = ExactMultiTaskGP(X, Y, icm(2, 1).kernel, eta=0.1, mean_module=gpytorch.means.ConstantMean())
    grown = model.condition_on_observations(Z[:1], Y[:1])
    close(copy.deepcopy(grown).mean(Z), grown.mean(Z), 1e-12)


def test_evaluating_leaves_no_trace_in_the_state() -> None:
    X, Y, Z = data(6, 2, 1)
    model = ExactMultiTaskGP(X, Y, icm(2, 1).kernel, eta=0.1, mean_module=gpytorch.means.ConstantMean())
    keys, parameters = set(model.state_dict()), len(list(model.parameters()))
    model.posterior(Z)
    assert set(model.state_dict()) == keys
    assert len(list(model.parameters())) == parameters


def test_a_small_task_beside_a_large_one_in_single_precision() -> None:
    X, Y, Z = data(10, 2, 1)
    B = torch.diag(torch.tensor([1e8, 1.0], dtype=torch.double))
    scale = torch.tensor([1e4, 1.0], dtype=torch.double)
    double = ExactMultiTaskGP(X, Y * scale, ICMKernel(rbf(0.5), B), eta=1e-3)
    single = ExactMultiTaskGP(X.float(), (Y * scale).float(), ICMKernel(rbf(0.5), B), eta=1e-3)
    close(single.mean(Z.float())[:, 1], double.mean(Z)[:, 1], 2e-2)


def test_a_tiny_prior_has_no_negative_gain() -> None:
    X, Y, _ = data(10, 2, 1)
    for scale in (1e-16, 1e-8):
        assert ExactMultiTaskGP(X, Y, ICMKernel(rbf(0.5), task_matrix(2) * scale), eta=1.0).info_gain >= 0


@pytest.mark.parametrize("n", [3, 20, 50])
def test_commuting_sums_of_any_size_are_recognized(n: int) -> None:
    X, Y, _ = data(3, n, 1)
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        Q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.double)).Q
        spectra = torch.rand(3, n, generator=generator, dtype=torch.double)
        terms = [ICMKernel(rbf(0.2 + 0.1 * j), Q @ torch.diag(spectra[j]) @ Q.T) for j in range(3)]
        assert isinstance(
            ExactMultiTaskGP(X, Y, SumOfSeparableKernel(terms), eta=0.1).surrogate.regression, KroneckerRegression
        )


def test_sums_and_scales_of_our_kernels_work_as_foreign_ones() -> None:
    X, Y, Z = data(6, 2, 1)
    first, second = ICMKernel(rbf(0.5), task_matrix(2)), ICMKernel(rbf(0.2), task_matrix(2, seed=1))
    added = ExactMultiTaskGP(X, Y, first + second, eta=0.1)
    expected = ExactMultiTaskGP(X, Y, SumOfSeparableKernel([first, second]), eta=0.1)
    close(added.mean(Z), expected.mean(Z), 1e-10)
    close(added.covariance(Z), expected.covariance(Z), 1e-10)
    doubled = ExactMultiTaskGP(X, Y, scaled(first, 2.0), eta=0.1)
    close(doubled.mean(Z), ExactMultiTaskGP(X, Y, ICMKernel(rbf(0.5), 2 * task_matrix(2)), eta=0.1).mean(Z), 1e-10)


def test_prior_without_data_is_the_kernel() -> None:
    case = icm(3, 2)
    _, _, Z = data(0, 3, 2)
    model = ExactMultiTaskGP(torch.empty(0, 2).double(), torch.empty(0, 3).double(), case.kernel, eta=0.1)
    assert torch.equal(model.mean(Z), torch.zeros(7, 3, dtype=torch.double))
    close(model.covariance(Z), np.stack([case.gamma(z, z) for z in Z.numpy()]), 1e-12)
    assert model.info_gain.item() == 0


def test_information_gain_is_the_sum_over_rounds() -> None:
    case = icm(3, 2)
    X, Y, _ = data(12, 3, 2)
    model = ExactMultiTaskGP(X, Y, case.kernel, eta=0.1)
    close(model.info_gain, oracles.info_gain_by_rounds(case.gamma, X.numpy(), 0.1, 3), 1e-8)


def test_many_tasks() -> None:
    X, Y, Z = data(20, 50, 2)
    model = ExactMultiTaskGP(X, Y, ICMKernel(rbf(0.5), task_matrix(50)), eta=0.1)
    gamma = oracles.separable((oracles.rbf(0.5), task_matrix(50).numpy()))
    mean, covariance = oracles.posterior(gamma, X.numpy(), Y.numpy(), 0.1, Z.numpy())
    close(model.mean(Z), mean, 1e-8)
    close(model.covariance_norm(Z), oracles.operator_norm(oracles.blocks(covariance, 50)), 1e-8)
