"""Predictions of each point from the others, against regressions without that point."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import oracles
import pytest
import torch
from botorch import settings
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms import Log, Normalize, Standardize
from catalogue import KERNELS, PATHS, Builder, data, general_sum, icm, identical_tasks, independent, rbf, task_matrix
from gpytorch.kernels import MultitaskKernel
from gpytorch.means import ConstantMean, MultitaskMean
from suites import close, fit, freeze
from torch import Tensor

from mtbo_torch import ExactMultiTaskGP, ICMKernel
from mtbo_torch.kernels import adapt_kernel
from mtbo_torch.regression import DenseRegression, KroneckerRegression
from mtbo_torch.regression.factor import InverseCholesky

every_kernel = pytest.mark.parametrize("build", KERNELS, ids=lambda build: build.__name__)
every_path = pytest.mark.parametrize("build", PATHS, ids=lambda build: build.__name__)


def noise_for(n: int, kind: str) -> Tensor:
    return torch.tensor([0.1], dtype=torch.double) if kind == "one" else torch.linspace(0.05, 0.3, n).double()


def without(tensor: Tensor, i: int) -> Tensor:
    return torch.cat([tensor[:i], tensor[i + 1 :]])


def by_refitting(kernel: MultitaskKernel, noise: Tensor, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """One regression without each of the points."""
    n = Y.shape[-1]
    means, covariances = [], []
    for i in range(len(X)):
        others = fit(adapt_kernel(kernel, n), noise, without(X, i), without(Y, i))
        means.append(others.at(X[i : i + 1]).mean[0])
        covariances.append(others.at(X[i : i + 1]).covariance[0] + torch.diag(noise.expand(n)))
    return torch.stack(means), torch.stack(covariances)


@every_path
@pytest.mark.parametrize("kind", ["one", "each"])
@pytest.mark.parametrize(("t", "n"), [(1, 1), (2, 3), (9, 1), (9, 7)])
def test_it_is_the_regression_without_the_point(build: Builder, kind: str, t: int, n: int) -> None:
    case, noise = build(n, 2), noise_for(n, kind)
    X, Y, _ = data(t, n, 2)
    with torch.no_grad():
        mean, covariance = fit(adapt_kernel(case.kernel, n), noise, X, Y).leave_one_out()
        refitted = by_refitting(case.kernel, noise, X, Y)
    for expected in (refitted, oracles.leave_one_out(case.gamma, X.numpy(), Y.numpy(), noise.numpy())):
        close(mean, expected[0], 1e-8)
        close(covariance, expected[1], 1e-8)


@every_path
@pytest.mark.parametrize("kind", ["one", "each"])
def test_points_that_are_there_twice(build: Builder, kind: str) -> None:
    case, noise = build(3, 2), noise_for(3, kind)
    X, Y, _ = data(9, 3, 2)
    X[4], X[8] = X[1], X[1]
    with torch.no_grad():
        mean, covariance = fit(adapt_kernel(case.kernel, 3), noise, X, Y).leave_one_out()
    expected = oracles.leave_one_out(case.gamma, X.numpy(), Y.numpy(), noise.numpy())
    close(mean, expected[0], 1e-8)
    close(covariance, expected[1], 1e-8)


@every_path
@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_batches_and_single_precision(build: Builder, dtype: torch.dtype) -> None:
    case = build(3, 2)
    sets = [data(8, 3, 2, seed)[:2] for seed in (0, 1)]
    X, Y = (torch.stack(parts).to(dtype) for parts in zip(*sets, strict=True))
    eta = torch.tensor([[0.1], [0.4]], dtype=dtype)
    mean, covariance = ExactMultiTaskGP(X, Y, case.kernel, eta=eta).leave_one_out()
    assert mean.dtype == covariance.dtype == dtype
    for i, (points, values) in enumerate(sets):
        expected = oracles.leave_one_out(case.gamma, points.numpy(), values.numpy(), eta[i].double().numpy())
        tolerance = 1e-8 if dtype == torch.double else 1e-3
        close(mean[i], expected[0], tolerance)
        close(covariance[i], expected[1], tolerance)


@pytest.mark.parametrize("rank", [1, 3])
def test_a_batch_in_which_only_one_task_matrix_is_singular(rank: int) -> None:
    matrices = torch.stack([task_matrix(3, rank=1), task_matrix(3, rank=rank, seed=1)])
    X, Y, _ = data(6, 3, 2)
    model = ExactMultiTaskGP(X.expand(2, 6, 2), Y.expand(2, 6, 3), ICMKernel(rbf(0.5), matrices), eta=0.1)
    mean, covariance = model.leave_one_out()
    for i in range(2):
        gamma = oracles.separable((oracles.rbf(0.5), matrices[i].numpy()))
        expected = oracles.leave_one_out(gamma, X.numpy(), Y.numpy(), 0.1)
        close(mean[i], expected[0], 1e-8)
        close(covariance[i], expected[1], 1e-8)


@pytest.mark.parametrize("build", [icm, general_sum, independent])
def test_appended_points_and_blocks_of_the_factor_that_end_within_a_point(build: Builder) -> None:
    case = build(3, 2)
    X, Y, _ = data(110, 3, 2)  # the general sum has 330 rows, in blocks of up to 256
    at_once = ExactMultiTaskGP(X, Y, case.kernel, eta=0.1)
    grown = ExactMultiTaskGP(X[:90], Y[:90], case.kernel, eta=0.1)
    for i in range(90, 110, 5):
        grown = grown.condition_on_observations(X[i : i + 5], Y[i : i + 5])
    for i in (0, 84, 85, 86, 109):
        others = ExactMultiTaskGP(without(X, i), without(Y, i), case.kernel, eta=0.1)
        for model in (at_once, grown):
            mean, covariance = model.leave_one_out()
            close(mean[i], others.at(X[i : i + 1]).mean[0], 1e-8)
            close(covariance[i], others.at(X[i : i + 1]).covariance[0] + 0.1 * torch.eye(3), 1e-8)


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_diagonal_blocks_of_the_inverse(width: int, batch: tuple[int, ...]) -> None:
    root = torch.randn(*batch, 300, 300, dtype=torch.double)
    A = root @ root.mT / 300 + torch.eye(300).double()
    factor = InverseCholesky.of(A, torch.ones(batch).double())
    inverse = torch.linalg.inv(A)
    blocks = [inverse[..., i : i + width, i : i + width] for i in range(0, 300, width)]
    close(factor.inverse_blocks(width), torch.stack(blocks, dim=-3), 1e-10)


def test_nothing_is_factorized_where_tasks_rotate(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y, _ = data(8, 3, 2)
    model = ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=0.1)
    assert isinstance(model.surrogate.regression, KroneckerRegression)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a factorization")

    for name in ("cholesky", "cholesky_ex", "eigh", "inv", "solve", "solve_triangular", "svd"):
        monkeypatch.setattr(torch.linalg, name, refuse)
    model.leave_one_out()


@every_kernel
def test_without_data_there_is_nothing_to_leave_out(build: Builder) -> None:
    X, Y, _ = data(0, 3, 2)
    mean, covariance = ExactMultiTaskGP(X, Y, build(3, 2).kernel, eta=0.1).leave_one_out()
    assert mean.shape == (0, 3)
    assert covariance.shape == (0, 3, 3)


@every_kernel
def test_a_single_point_is_predicted_by_the_prior(build: Builder) -> None:
    case = build(3, 2)
    X, Y, _ = data(1, 3, 2)
    mean_module = ConstantMean().double().initialize(constant=2.0)
    model = ExactMultiTaskGP(X, Y, case.kernel, eta=0.1, mean_module=mean_module)
    mean, covariance = model.leave_one_out()
    close(mean, torch.full((1, 3), 2.0), 1e-10)
    close(covariance[0], case.gamma(X[0].numpy(), X[0].numpy()) + 0.1 * np.eye(3), 1e-10)


def test_any_kernel_with_several_outputs() -> None:
    X, Y, _ = data(6, 3, 2)
    kernel = MultitaskKernel(rbf(0.5), num_tasks=3, rank=2).double()
    model = ExactMultiTaskGP(X, Y, kernel, eta=0.1)
    assert isinstance(model.surrogate.regression, DenseRegression)
    B = kernel.task_covar_module.covar_matrix.to_dense().detach().numpy()
    gamma = oracles.separable((oracles.rbf(0.5), B))
    mean, covariance = model.leave_one_out()
    expected = oracles.leave_one_out(gamma, X.numpy(), Y.numpy(), 0.1)
    close(mean, expected[0], 1e-8)
    close(covariance, expected[1], 1e-8)


class Learned:
    """What a model of the data learned from all of them, for models of a part."""

    def __init__(self, X: Tensor, Y: Tensor) -> None:
        self.outcomes, self.inputs = Standardize(Y.shape[-1]), Normalize(X.shape[-1])
        self.outcomes(Y)
        self.inputs(X)
        freeze(self.outcomes)
        self.inputs.eval()
        means = [ConstantMean().initialize(constant=float(j) - 0.5) for j in range(Y.shape[-1])]
        self.mean = MultitaskMean(means, num_tasks=Y.shape[-1]).double()


def options_of(kind: str, learned: Learned) -> dict[str, object]:
    return {
        "plain": {},
        "outcomes": {"outcome_transform": learned.outcomes},
        "inputs": {"input_transform": learned.inputs},
        "mean": {"mean_module": learned.mean},
        "all": {"outcome_transform": learned.outcomes, "input_transform": learned.inputs, "mean_module": learned.mean},
    }[kind]


@pytest.mark.parametrize("build", [identical_tasks, general_sum])
@pytest.mark.parametrize("kind", ["plain", "outcomes", "inputs", "mean", "all"])
@pytest.mark.parametrize("noise", ["eta", "constant variances", "variances"])
def test_models_speak_the_users_units(build: Builder, kind: str, noise: str) -> None:
    X, Y, _ = data(8, 3, 2)
    X, Y = 5 * X - 1, torch.tensor([3.0, 100.0, 0.01]).double() * Y + torch.tensor([10.0, 0.0, -1.0]).double()
    options, kernel = options_of(kind, Learned(X, Y)), build(3, 2).kernel
    scales = Y.var(dim=0) if "outcome_transform" in options else torch.ones(3).double()
    variances = 0.05 * Y.var(dim=0) * (1 + 5 * torch.rand_like(Y))
    if noise == "constant variances":
        variances = variances[:1].expand(8, 3)

    def model_of(rows: list[int]) -> ExactMultiTaskGP:
        own = {"eta": 0.1} if noise == "eta" else {"train_Yvar": variances[rows]}
        return ExactMultiTaskGP(X[rows], Y[rows], kernel, **options, **own)

    mean, covariance = model_of(list(range(8))).leave_one_out()
    for i in (0, 4, 7):
        others = model_of([j for j in range(8) if j != i])
        own_noise = 0.1 * scales if noise == "eta" else variances[i]
        size = own_noise.sqrt()
        close((mean[i] - others.at(X[i : i + 1]).mean[0]) / size, torch.zeros(3), 1e-8)
        expected = others.at(X[i : i + 1]).covariance[0] + torch.diag(own_noise)
        outer = size.unsqueeze(-1) * size
        close(covariance[i] / outer, expected / outer, 1e-8)


@pytest.mark.parametrize("build", [icm, general_sum])
def test_a_conditioned_model_with_noise_of_each_observation(build: Builder) -> None:
    X, Y, _ = data(8, 3, 2)
    variances = 0.05 + torch.rand_like(Y)
    kernel = build(3, 2).kernel
    whole = ExactMultiTaskGP(X, Y, kernel, train_Yvar=variances)
    grown = ExactMultiTaskGP(X[:5], Y[:5], kernel, train_Yvar=variances[:5])
    grown = grown.condition_on_observations(X[5:], Y[5:], noise=variances[5:])
    for one, other in zip(grown.leave_one_out(), whole.leave_one_out(), strict=True):
        close(one, other, 1e-8)


def test_some_of_the_tasks() -> None:
    X, Y, _ = data(6, 3, 2)
    model = ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=0.1, outcome_transform=Standardize(3))
    mean, covariance = model.leave_one_out()
    few = model.subset_output([2, 0]).leave_one_out()
    close(few[0], mean[:, [2, 0]], 1e-12)
    close(few[1], covariance[:, [2, 0]][..., [2, 0]], 1e-12)


@pytest.mark.parametrize("method", ["leave_one_out", "log_marginal_likelihood"])
def test_there_is_no_gaussian_behind_a_logarithm(method: str) -> None:
    X, Y, _ = data(6, 3, 2)
    model = ExactMultiTaskGP(X, Y.exp(), icm(3, 2).kernel, eta=0.1, outcome_transform=Log())
    with pytest.raises(UnsupportedError, match="not affine"):
        getattr(model, method)()


def test_it_follows_the_hyperparameters() -> None:
    X, Y, _ = data(6, 3, 2)
    kernel = ICMKernel(rbf(0.5), task_matrix(3))
    model = ExactMultiTaskGP(X, Y, kernel, eta=0.1)
    model.leave_one_out()
    kernel.base_kernel.lengthscale = 0.2
    gamma = oracles.separable((oracles.rbf(0.2), task_matrix(3).numpy()))
    close(model.leave_one_out()[0], oracles.leave_one_out(gamma, X.numpy(), Y.numpy(), 0.1)[0], 1e-8)
    value = oracles.log_likelihood(gamma, X.numpy(), Y.numpy(), 0.1)
    close(model.log_marginal_likelihood(), np.array(value), 1e-9)


@pytest.mark.parametrize("build", [icm, general_sum])
def test_its_gradient(build: Builder) -> None:
    X, Y, _ = data(5, 2, 1)
    kernel = build(2, 1).kernel
    model = ExactMultiTaskGP(X, Y, kernel, eta=0.1)
    raw = next(iter(kernel.parameters()))

    def value(shift: float) -> Tensor:
        raw.data += shift
        with settings.propagate_grads(True):
            mean, covariance = model.leave_one_out()
        raw.data -= shift
        return mean.square().sum() + covariance.square().sum()

    (slope,) = torch.autograd.grad(value(0.0), raw)
    close(slope.squeeze(), ((value(1e-5) - value(-1e-5)) / 2e-5).detach(), 1e-6)


def observed(kind: str) -> tuple[dict[str, object], Callable[[np.ndarray], np.ndarray]]:
    """Arguments of a model, and its noise behind standardized values."""
    variances = 0.05 + torch.rand(7, 3, dtype=torch.double)
    if kind == "eta":
        return {"eta": 0.1}, lambda scale: np.full((7, 3), 0.1) * scale**2
    if kind == "constant variances":
        variances = variances[:1].expand(7, 3)
    return {"train_Yvar": variances}, lambda scale: variances.numpy()


@every_kernel
@pytest.mark.parametrize("kind", ["eta", "constant variances", "variances"])
def test_the_marginal_likelihood_in_the_users_units(build: Builder, kind: str) -> None:
    X, Y, _ = data(7, 3, 2)
    Y = torch.tensor([3.0, 100.0, 0.1]).double() * Y + 4
    arguments, noise = observed(kind)
    case = build(3, 2)
    model = ExactMultiTaskGP(X, Y, case.kernel, outcome_transform=Standardize(3), **arguments)
    mean, scale = Y.numpy().mean(axis=0), Y.numpy().std(axis=0, ddof=1)
    gamma = lambda x, y: np.outer(scale, scale) * case.gamma(x, y)  # noqa: E731
    covariance = oracles.gram(gamma, X.numpy(), X.numpy(), 3) + np.diag(noise(scale).reshape(-1))
    y = (Y.numpy() - mean).reshape(-1)
    quadratic = y @ np.linalg.solve(covariance, y)
    expected = -(quadratic + np.linalg.slogdet(covariance)[1] + len(y) * math.log(2 * math.pi)) / 2
    close(model.log_marginal_likelihood(), np.array(expected), 1e-8)
