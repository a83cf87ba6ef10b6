"""The ellipsoid: values, gradients, never above the norm, valid on the theorem's event; and the variances behind it."""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import numpy as np
import oracles
import pytest
import torch
from botorch.exceptions.warnings import BotorchWarning
from botorch.models import KroneckerMultiTaskGP, ModelListGP, MultiTaskGP, SingleTaskGP
from catalogue import PATHS, Builder, data, general_sum, icm, independent, rbf, task_matrix
from suites import close
from torch import Tensor

from mtbo_torch import (
    MTBKB,
    MTKB,
    ChebyshevScalarization,
    ExactMultiTaskGP,
    FixedWeights,
    HypervolumeScalarization,
    ICMKernel,
    LinearScalarization,
    NystromMultiTaskGP,
    NystromScalarizedMultiTaskUCB,
    ScalarizedMultiTaskUCB,
    exact_radius,
)
from mtbo_torch.linalg import variances_along
from mtbo_torch.regression import KroneckerRegression
from mtbo_torch.scalarizations import Scalarization
from mtbo_torch.strategies import ITBKB, ITKB, MOBO
from mtbo_torch.strategies.kernelized import KernelStrategy

W = torch.tensor([0.2, 0.5, 0.3], dtype=torch.double)
REF = torch.tensor([-1.5, -1.2, -1.0], dtype=torch.double)
RADIUS = 1.5
DICTIONARY = torch.tensor([0, 2, 3, 6])
CHOICES = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
BOX = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.double)

Moments = tuple[np.ndarray, np.ndarray]
builds = pytest.mark.parametrize("build", PATHS, ids=lambda build: build.__name__)
noises = pytest.mark.parametrize("eta", [0.1, (0.1, 0.2, 0.3)], ids=["one noise", "noise of each task"])
models = pytest.mark.parametrize("kind", [ExactMultiTaskGP, NystromMultiTaskGP], ids=["exact", "nystrom"])


def scalarizations(w: Tensor = W, ref: Tensor = REF) -> list[tuple[Scalarization, Callable[..., np.ndarray]]]:
    """Each with its bound from the radius, means and covariances."""
    weights, z = w.numpy(), ref.numpy()

    def monotone(s: Callable[[np.ndarray], float]) -> Callable[..., np.ndarray]:
        return lambda radius, mean, covariances: oracles.monotone_ellipsoid(s, radius, mean, covariances)

    return [
        (LinearScalarization(w), lambda *known: oracles.linear_ellipsoid(weights, *known)),
        (ChebyshevScalarization(w, ref), monotone(lambda y: oracles.chebyshev(weights, y, z))),
        (HypervolumeScalarization(w, ref), monotone(lambda y: oracles.chebyshev(1 / weights, y, z))),
    ]


def fitted(kind: type, build: Builder = icm, eta: object = 0.1, t: int = 8) -> ExactMultiTaskGP | NystromMultiTaskGP:
    X, Y, _ = data(t, 3, 2)
    options = {"dictionary": DICTIONARY} if kind is NystromMultiTaskGP else {}
    return kind(X, Y, build(3, 2).kernel, eta=torch.tensor(eta, dtype=torch.double), **options)


def known(kind: type, build: Builder, eta: object, Z: Tensor, pending: Tensor | None = None) -> Moments:
    """Means and the blocks of the covariance; pending points count for the covariance alone."""
    gamma, (X, Y, _) = build(3, 2).gamma, data(8, 3, 2)

    def moments(X: Tensor, Y: Tensor, dictionary: list[int]) -> Moments:
        if kind is NystromMultiTaskGP:
            points = X.numpy(), Y.numpy(), np.asarray(eta), dictionary, Z.numpy()
            return oracles.nystrom_posterior_of_tasks(gamma, *points)
        mean, covariance = oracles.posterior(gamma, X.numpy(), Y.numpy(), np.asarray(eta), Z.numpy())
        return mean, oracles.blocks(covariance, 3)

    mean, covariances = moments(X, Y, DICTIONARY.tolist())
    if pending is not None:
        new = list(range(8, 8 + len(pending)))
        covariances = moments(torch.cat([X, pending]), torch.zeros(8 + len(pending), 3), DICTIONARY.tolist() + new)[1]
    return mean, covariances


def ellipsoid(model: object, s: Scalarization, radius: float | Tensor = RADIUS, **options: object) -> object:
    kind = NystromScalarizedMultiTaskUCB if isinstance(model, NystromMultiTaskGP) else ScalarizedMultiTaskUCB
    return kind(model, s, radius, bound="ellipsoid", **options)


@builds
@noises
@models
def test_values_are_the_formulas(kind: type, build: Builder, eta: object) -> None:
    model, (_, _, Z) = fitted(kind, build, eta), data(8, 3, 2)
    moments = known(kind, build, eta, Z)
    for s, bound in scalarizations():
        close(ellipsoid(model, s)(Z.unsqueeze(-2)), bound(RADIUS, *moments), 1e-7)


@builds
@models
def test_gradients(kind: type, build: Builder) -> None:
    model, (_, _, Z) = fitted(kind, build, (0.1, 0.2, 0.3)), data(8, 3, 2)
    acqfs = [ellipsoid(model, s) for s, _ in scalarizations()]
    points = Z[:2].unsqueeze(-2).requires_grad_()
    together = lambda X: torch.stack([acqf(X) for acqf in acqfs])  # noqa: E731
    assert torch.autograd.gradcheck(together, (points,), eps=1e-6, atol=1e-5, rtol=1e-4)


@models
def test_gradients_are_finite_where_a_task_has_no_variance(kind: type) -> None:
    (X, Y, Z), B = data(8, 3, 2), torch.diag(torch.tensor([1.0, 0.0, 0.0], dtype=torch.double))
    model = kind(X, Y, ICMKernel(rbf(0.5), B), eta=0.1)
    for s, _ in scalarizations():
        points = Z.unsqueeze(-2).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(ellipsoid(model, s)(points).sum(), points)
        assert gradient.isfinite().all()


@builds
@models
def test_pending_points_shrink_the_ellipsoid(kind: type, build: Builder) -> None:
    model, (_, _, Z) = fitted(kind, build), data(8, 3, 2)
    moments = known(kind, build, 0.1, Z, pending=Z[:2] + 0.05)
    for s, bound in scalarizations():
        acqf = ellipsoid(model, s, X_pending=Z[:2] + 0.05)
        close(acqf(Z.unsqueeze(-2)), bound(RADIUS, *moments), 1e-7)


@pytest.mark.parametrize("build", [icm, general_sum])
def test_several_points_are_taken_one_after_another(build: Builder) -> None:
    model, (_, _, Z) = fitted(ExactMultiTaskGP, build), data(8, 3, 2)
    for s, bound in scalarizations():
        acqf = ellipsoid(model, s)
        expected = 0.0
        for j in range(3):
            moments = known(ExactMultiTaskGP, build, 0.1, Z[j : j + 1], pending=Z[:j] if j else None)
            expected += bound(RADIUS, *moments)
        close(acqf(Z[:3]), expected, 1e-7)
        points = Z[:2].unsqueeze(0).clone().requires_grad_()
        assert torch.autograd.gradcheck(acqf, (points,), atol=1e-5, rtol=1e-4)


@models
@noises
def test_some_of_the_tasks(kind: type, eta: object) -> None:
    model, (_, _, Z), tasks = fitted(kind, icm, eta), data(8, 3, 2), [2, 0]
    mean, covariances = known(kind, icm, eta, Z)
    part = mean[:, tasks], covariances[:, tasks][:, :, tasks]
    for s, bound in scalarizations(W[:2], REF[:2]):
        close(ellipsoid(model.subset_output(tasks), s)(Z.unsqueeze(-2)), bound(RADIUS, *part), 1e-7)
    shrunk = known(kind, icm, eta, Z, pending=Z[:2])[1][:, tasks][:, :, tasks]
    for s, bound in scalarizations(W[:2], REF[:2]):
        acqf = ellipsoid(model.subset_output(tasks), s, X_pending=Z[:2])
        close(acqf(Z.unsqueeze(-2)), bound(RADIUS, part[0], shrunk), 1e-7)


@models
@pytest.mark.parametrize("build", [icm, general_sum, independent])
def test_batches(kind: type, build: Builder) -> None:
    sets = [data(8, 3, 2, seed) for seed in (0, 1)]
    X, Y, _ = (torch.stack(parts) for parts in zip(*sets, strict=True))
    options = {"dictionary": DICTIONARY} if kind is NystromMultiTaskGP else {}
    kernel, radii = build(3, 2).kernel, torch.tensor([0.7, 2.0], dtype=torch.double)
    weights, refs = torch.stack([W, W.flip(0)]), torch.stack([REF, REF - 0.3])
    points = torch.rand(5, 2, 1, 2, dtype=torch.double)
    together = kind(X, Y, kernel, eta=0.1, **options)
    alone = [kind(X[i], Y[i], kernel, eta=0.1, **options) for i in range(2)]
    for make in (LinearScalarization, ChebyshevScalarization, HypervolumeScalarization):
        own = [(w,) if make is LinearScalarization else (w, z) for w, z in zip(weights, refs, strict=True)]
        values = ellipsoid(together, make(*map(torch.stack, zip(*own, strict=True))), radii)(points)
        assert values.shape == (5, 2)
        for i in range(2):
            close(values[:, i], ellipsoid(alone[i], make(*own[i]), radii[i])(points[:, i]), 1e-9)


@pytest.mark.parametrize("n", [1, 3])
def test_before_the_first_observation_and_with_a_single_task(n: int) -> None:
    X, Y, Z = data(8, n, 2)
    case = icm(n, 2)
    for t in (0, 1):
        model = ExactMultiTaskGP(X[:t], Y[:t], case.kernel, eta=0.1)
        mean, covariance = oracles.posterior(case.gamma, X[:t].numpy(), Y[:t].numpy(), 0.1, Z.numpy())
        for s, bound in scalarizations(W[:n], REF[:n]):
            expected = bound(RADIUS, mean, oracles.blocks(covariance, n))
            close(ellipsoid(model, s)(Z.unsqueeze(-2)), expected, 1e-8)


def test_single_precision() -> None:
    X, Y, Z = data(8, 3, 2)
    kernel = ICMKernel(rbf(0.5), task_matrix(3)).float()
    model = ExactMultiTaskGP(X.float(), Y.float(), kernel, eta=0.1)
    moments = known(ExactMultiTaskGP, icm, 0.1, Z)
    for s, bound in scalarizations():
        value = ellipsoid(model, s)(Z.float().unsqueeze(-2))
        assert value.dtype == torch.float
        close(value, bound(RADIUS, *moments), 2e-4)


@pytest.mark.parametrize("make", [SingleTaskGP, lambda X, Y: ModelListGP(*(SingleTaskGP(X, y[:, None]) for y in Y.T))])
def test_models_of_independent_tasks(make: Callable[[Tensor, Tensor], object]) -> None:
    X, Y, Z = data(8, 3, 2)
    model = make(X, Y)
    posterior = model.posterior(Z.unsqueeze(-2))
    mean, variance = (part.squeeze(-2).detach().numpy() for part in (posterior.mean, posterior.variance))
    moments = mean, np.stack([np.diag(v) for v in variance])
    for s, bound in scalarizations():
        close(ellipsoid(model, s)(Z.unsqueeze(-2)), bound(RADIUS, *moments), 1e-8)


def test_a_list_with_one_of_ours_keeps_what_its_tasks_share() -> None:
    X, Y, Z = data(8, 3, 2)
    single, ours = SingleTaskGP(X, Y[:, :1]), ExactMultiTaskGP(X, Y[:, 1:], icm(2, 2).kernel, eta=0.1)
    alone = single.posterior(Z.unsqueeze(-2))
    mean, covariance = oracles.posterior(icm(2, 2).gamma, X.numpy(), Y[:, 1:].numpy(), 0.1, Z.numpy())
    mean = np.concatenate([alone.mean.squeeze(-2).detach().numpy(), mean], axis=-1)
    covariances = np.zeros((7, 3, 3))
    covariances[:, 0, 0] = alone.variance.flatten().detach().numpy()
    covariances[:, 1:, 1:] = oracles.blocks(covariance, 2)
    for s, bound in scalarizations():
        close(ellipsoid(ModelListGP(single, ours), s)(Z.unsqueeze(-2)), bound(RADIUS, mean, covariances), 1e-8)


def test_botorchs_multi_task_gp() -> None:
    X, Y, Z = data(6, 2, 1)
    long_X = torch.cat([torch.cat([X, torch.full_like(X, task)], dim=-1) for task in (0, 1)])
    model = MultiTaskGP(long_X, Y.T.reshape(-1, 1), task_feature=-1, output_tasks=[0, 1])
    posterior = model.posterior(Z.unsqueeze(-2))
    moments = posterior.mean.squeeze(-2).detach().numpy(), posterior.distribution.covariance_matrix.detach().numpy()
    assert np.abs(moments[1][:, 0, 1]).min() > 1e-6
    for s, bound in scalarizations(W[:2], REF[:2]):
        close(ellipsoid(model, s)(Z.unsqueeze(-2)), bound(RADIUS, *moments), 1e-8)


def test_a_posterior_without_covariances_is_used_as_independent() -> None:
    X, Y, Z = data(6, 3, 2)
    model = KroneckerMultiTaskGP(X, Y)
    posterior = model.posterior(Z.unsqueeze(-2))
    mean, variance = (part.squeeze(-2).detach().numpy() for part in (posterior.mean, posterior.variance))
    moments = mean, np.stack([np.diag(v) for v in variance])
    for s, bound in scalarizations():
        acqf = ellipsoid(model, s)
        with pytest.warns(BotorchWarning, match="no covariances between tasks"):
            value = acqf(Z.unsqueeze(-2))
        close(value, bound(RADIUS, *moments), 1e-8)


@builds
@models
def test_never_above_the_norm_bound(kind: type, build: Builder) -> None:
    model = fitted(kind, build, (0.1, 0.2, 0.3) if build is general_sum else 0.1)
    points = 1.5 * torch.rand(300, 1, 2, dtype=torch.double) - 0.25
    for weights in (W, torch.tensor([0.0, 1.0, 0.0], dtype=torch.double)):
        upper = torch.full((3,), 50.0, dtype=torch.double)  # above anything that is believed possible
        for s in (
            LinearScalarization(weights),
            ChebyshevScalarization(weights, REF),
            HypervolumeScalarization(weights.clamp_min(0.05), REF, upper=upper),
        ):
            tight, loose = ellipsoid(model, s)(points), ScalarizedMultiTaskUCB(model, s, RADIUS)(points)
            if isinstance(s, HypervolumeScalarization):
                tight = tight.clamp_min(0) ** 3
            assert (tight <= loose + 1e-9).all()
            assert (tight < loose - 1e-3).any() or weights[0] == 0  # they are not the same formula


@pytest.mark.parametrize("t", [20, 40])
def test_on_the_event_of_theorem_1_it_is_an_upper_bound(t: int) -> None:
    runs, n, b, sigma, eta, delta, lengthscale = 200, 3, 2.0, 0.3, 0.1, 0.1, 0.2
    random = np.random.default_rng(t)
    B = task_matrix(n).numpy()
    K = lambda x, y: np.exp(-((x[..., :, None] - y[..., None, :]) ** 2) / (2 * lengthscale**2))  # noqa: E731
    # f = sum_i k(., c_i) B a_i has the norm sum_ij k(c_i, c_j) a_i^T B a_j, squared.
    centers, a = random.random((runs, 5)), random.standard_normal((runs, 5, n))
    squared = np.einsum("rij,rik,kl,rjl->r", K(centers, centers), a, B, a)
    a *= b / np.sqrt(squared)[:, None, None]
    grid = np.linspace(-0.1, 1.1, 61)
    f = lambda x: np.einsum("rqi,rik,kl->rql", K(x, centers), a, B)  # noqa: E731
    X, noise = random.random((runs, t)), sigma * random.standard_normal((runs, t, n))
    Y, truth = f(X) + noise, f(np.broadcast_to(grid, (runs, 61)))
    # The event: eps^T G (G + eta I)^-1 eps <= sigma^2 (2 log(1 / delta) + log det(I + G / eta)).
    G = np.einsum("rst,kl->rsktl", K(X, X), B).reshape(runs, t * n, t * n)
    eps, eye = noise.reshape(runs, -1), np.eye(t * n)
    left = np.einsum("ri,rij,rj->r", eps, G @ np.linalg.inv(G + eta * eye), eps)
    right = sigma**2 * (2 * math.log(1 / delta) + np.linalg.slogdet(eye + G / eta)[1])
    holds = torch.tensor(left <= right)
    assert holds.double().mean() >= 1 - delta

    points, values = torch.tensor(X).unsqueeze(-1), torch.tensor(Y)
    model = ExactMultiTaskGP(points, values, ICMKernel(rbf(lengthscale), torch.tensor(B)), eta=eta)
    radius = exact_radius(model.info_gain, b, sigma, eta, delta)
    weights = torch.tensor(random.dirichlet(np.ones(n), runs))
    everywhere = torch.tensor(grid).reshape(61, 1, 1, 1).expand(61, runs, 1, 1)
    for s in (LinearScalarization(weights), ChebyshevScalarization(weights, REF)):
        reached = s(torch.tensor(truth)).mT
        assert (ellipsoid(model, s, radius)(everywhere) >= reached - 1e-9)[:, holds].all()
        # A tenth of the radius is no bound, so that this could fail.
        is_missed = (ellipsoid(model, s, radius / 10)(everywhere) < reached).any(dim=0)
        assert is_missed[holds].double().mean() > 0.5


# The variances behind it.


def directions(*batch: int, k: int = 2, n: int = 3) -> Tensor:
    return torch.randn(*batch, k, n, generator=torch.Generator().manual_seed(3), dtype=torch.double)


@builds
@noises
@models
def test_variances_are_those_of_the_covariance(kind: type, build: Builder, eta: object) -> None:
    model, (_, _, Z) = fitted(kind, build, eta), data(8, 3, 2)
    covariances = known(kind, build, eta, Z)[1]
    regression = model.surrogate.regression
    few = torch.rand(4, 3, 2, dtype=torch.double)
    for source in (regression, regression.append(Z[:2], Z[:2] @ torch.ones(2, 3).double())):
        for points in (Z, few):
            mean, covariance = (source.at(points).mean, source.at(points).covariance)
            for e in (None, torch.eye(3, dtype=torch.double), directions(), W.unsqueeze(0)):
                own, variance = (source.at(points).mean, source.at(points).variance(e))
                close(own, mean, 1e-10)
                along = torch.eye(3, dtype=torch.double) if e is None else e
                close(variance, torch.einsum("ki,...ij,kj->...k", along, covariance, along), 1e-9)
    e = directions()
    expected = np.einsum("ki,qij,kj->qk", e.numpy(), covariances, e.numpy())
    close(model.at(Z).variance(e), expected, 1e-7)
    close(variances_along(torch.tensor(covariances), e), expected, 1e-12)
    tasks = [2, 0]
    part = model.subset_output(tasks)
    expected = np.einsum("ki,qij,kj->qk", e[:, :2].numpy(), covariances[:, tasks][:, :, tasks], e[:, :2].numpy())
    close(part.at(Z).variance(e[:, :2]), expected, 1e-7)
    close(part.at(Z).variance(), covariances.diagonal(axis1=1, axis2=2)[:, tasks], 1e-7)
    close(part.at(Z).mean, model.mean(Z)[:, tasks], 1e-9)


@builds
@noises
@models
def test_followed_variances(kind: type, build: Builder, eta: object) -> None:
    X, Y, Z = data(12, 3, 2)
    X, Y = torch.stack([X, X.flip(-2)]), torch.stack([Y, -2 * Y])
    model = kind(X[..., :4, :], Y[..., :4, :], build(3, 2).kernel, eta=torch.tensor(eta, dtype=torch.double))
    followed = model.surrogate.regression.track(Z)
    for i, step in ((4, 1), (5, 7)):
        followed = followed.advance(followed.regression.append(X[..., i : i + step, :], Y[..., i : i + step, :]))
        for e in (None, directions(), directions(2)):
            expected_mean, covariance = (followed.regression.at(Z).mean, followed.regression.at(Z).covariance)
            mean, variance = (followed.mean, followed.variance(e))
            close(mean, expected_mean, 1e-9)
            along = torch.eye(3, dtype=torch.double) if e is None else e
            close(variance, torch.einsum("...ki,...qij,...kj->...qk", along, covariance, along), 1e-9)
            close(followed.covariance, covariance, 1e-9)
            close(followed.regression.at(Z).variance(e), variance, 1e-9)


def regression_of(X: Tensor, Y: Tensor, n: int, eta: object) -> KroneckerRegression:
    kernel = ICMKernel(rbf(0.5), task_matrix(n)).to(X)
    regression = ExactMultiTaskGP(X, Y, kernel, eta=torch.as_tensor(eta, dtype=X.dtype)).surrogate.regression
    assert isinstance(regression, KroneckerRegression)
    return regression


@pytest.mark.parametrize("eta", [1e-1, 1e-4, (0.1, 0.2, 0.3, 0.4)], ids=str)
@pytest.mark.parametrize("rows", [[], [0], [*range(20)], [*range(10), *range(10)], [3] * 6], ids=len)
@pytest.mark.parametrize("batch", [(), (3,)], ids=["alone", "batch"])
def test_eigenvectors_in_place_of_factors(eta: object, rows: list[int], batch: tuple[int, ...]) -> None:
    X, Y, Z = data(20, 4, 2)
    X, Y = X[rows].expand(*batch, len(rows), 2), Y[rows].expand(*batch, len(rows), 4)
    plain = regression_of(X, Y, 4, eta)
    before = plain.at(Z).variance()
    prepared = plain.prepare_for_variances()
    assert prepared.rotation is not None  # what is tested is there
    assert plain.rotation is None
    assert torch.equal(plain.at(Z).variance(), before)
    points = torch.cat([Z, X.reshape(-1, 2)[:3]])
    for e in (None, directions(n=4), directions(*batch, n=4)):
        close(prepared.at(points).mean, plain.at(points).mean, 1e-9)
        close(prepared.at(points).variance(e), plain.at(points).variance(e), 1e-9)
    close(prepared.at(points).covariance, plain.at(points).covariance, 1e-9)
    leaf = points.clone().requires_grad_()
    slopes = [torch.autograd.grad(r.at(leaf).variance().sum(), leaf)[0] for r in (prepared, plain)]
    close(slopes[0], slopes[1], 1e-7)
    later = prepared.append(X[..., :1, :] + 0.1, Y[..., :1, :]) if rows else prepared
    close(later.at(points).variance(), later.at(points).covariance.diagonal(dim1=-2, dim2=-1), 1e-9)


def test_eigenvectors_with_hardly_any_noise() -> None:
    X, Y, Z = data(20, 4, 2)
    plain = regression_of(torch.cat([X, X]), torch.cat([Y, Y]), 4, 1e-8)
    prepared = plain.prepare_for_variances()
    truth = regression_of(X, Y, 4, 0.5e-8)  # each point twice is each point once, with half the noise
    close(prepared.at(Z).variance(), plain.at(Z).variance(), 1e-9)
    close(prepared.at(Z).variance(), truth.at(Z).variance(), 1e-9)


def test_eigenvectors_in_single_precision() -> None:
    X, Y, Z = data(60, 4, 2)
    exact = regression_of(X, Y, 4, 0.1).at(Z).variance()
    prepared = regression_of(X.float(), Y.float(), 4, 0.1).prepare_for_variances()
    variance = prepared.at(Z.float()).variance()
    assert variance.dtype == torch.float
    torch.testing.assert_close(variance.double(), exact, rtol=2e-3, atol=1e-5)


def test_eigenvectors_do_not_outlive_a_change_of_the_kernel() -> None:
    X, Y, Z = data(12, 4, 2)
    kernel = ICMKernel(rbf(0.5), task_matrix(4))
    model = ExactMultiTaskGP(X, Y, kernel, eta=0.1)
    s = ChebyshevScalarization(torch.full((4,), 0.25, dtype=torch.double))
    acqf = ellipsoid(model, s)
    before = acqf(Z.unsqueeze(-2))
    model.covar_module.base_kernel.lengthscale = torch.tensor(0.2, dtype=torch.double)
    fresh = ellipsoid(ExactMultiTaskGP(X, Y, ICMKernel(rbf(0.2), task_matrix(4)), eta=0.1), s)
    close(acqf(Z.unsqueeze(-2)), fresh(Z.unsqueeze(-2)), 1e-9)
    assert (acqf(Z.unsqueeze(-2)) - before).abs().max() > 1e-3


def test_the_gradient_can_be_taken_again_and_again() -> None:
    X, Y, Z = data(12, 4, 2)
    model = ExactMultiTaskGP(X, Y)  # a kernel with free parameters
    acqf = ellipsoid(model, ChebyshevScalarization(torch.full((4,), 0.25, dtype=torch.double)))
    for _ in range(2):
        points = Z.unsqueeze(-2).clone().requires_grad_()
        acqf(points).sum().backward()
        assert torch.isfinite(points.grad).all()
        assert points.grad.abs().max() > 0


def test_at_an_observed_point_with_hardly_any_noise_the_gradient_is_finite() -> None:
    X, Y, _ = data(8, 3, 2)
    model = ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=1e-12)
    for s, _ in scalarizations():
        points = X.unsqueeze(-2).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(ellipsoid(model, s)(points).sum(), points)
        assert torch.isfinite(gradient).all()


# Strategies.


def objective(x: Tensor) -> Tensor:
    return torch.stack([torch.sin(3 * x[..., 0]), torch.cos(2 * x[..., 1]), x.sum(dim=-1) - 1], dim=-1)


def strategy(kind: type[KernelStrategy], **options: object) -> KernelStrategy:
    where = {} if "bounds" in options else {"choices": CHOICES}
    defaults = {"norm_bound": 1.0, "noise_scale": 0.1, "bound": "ellipsoid", "num_restarts": 8, "raw_samples": 64}
    return kind(icm(3, 2).kernel, **(defaults | where | options))


def run(chosen: KernelStrategy, rounds: int) -> KernelStrategy:
    for _ in range(rounds):
        x = chosen.ask()
        chosen.tell(x, objective(x))
    return chosen


def believed(chosen: KernelStrategy, Z: Tensor, i: int | None = None) -> Moments:
    """The naive posterior behind a strategy, of its trial i."""
    gamma = icm(3, 2).gamma if isinstance(chosen, MTKB | MTBKB) else oracles.cut(icm(3, 2).gamma)
    X, Y = ((part if i is None else part[i]).numpy() for part in (chosen.train_X, chosen.train_Y))
    if isinstance(chosen, MTBKB | ITBKB):
        dictionary = (chosen.dictionary if i is None else chosen.dictionary[i]).tolist()
        return oracles.nystrom_posterior_of_tasks(gamma, X, Y, np.asarray(0.1), sorted(set(dictionary)), Z.numpy())
    mean, covariance = oracles.posterior(gamma, X, Y, 0.1, Z.numpy())
    return mean, oracles.blocks(covariance, 3)


def bound_of(scalarization: type, weights: Tensor) -> Callable[..., np.ndarray]:
    zero = torch.zeros(3, dtype=torch.double)
    return next(bound for s, bound in scalarizations(weights, zero) if isinstance(s, scalarization))


kinds = pytest.mark.parametrize("kind", [MTKB, MTBKB, ITKB, ITBKB])
rules = pytest.mark.parametrize("scalarization", [LinearScalarization, ChebyshevScalarization])


@kinds
@rules
def test_a_choice_is_the_maximizer(kind: type[KernelStrategy], scalarization: type) -> None:
    own = {"oversampling": 0.5} if kind in (MTBKB, ITBKB) else {}
    chosen = run(strategy(kind, scalarization=scalarization, **own), 7)
    x = chosen.ask()
    values = bound_of(scalarization, chosen.asked_weights[0])(chosen.radius.item(), *believed(chosen, CHOICES))
    assert torch.equal(x[0], CHOICES[int(values.argmax())])


@kinds
def test_choices_of_a_batch_of_trials(kind: type[KernelStrategy]) -> None:
    chosen = run(strategy(kind, seed=[3, 4, 5]), 6)
    x = chosen.ask()
    for i in range(3):
        bound = bound_of(ChebyshevScalarization, chosen.asked_weights[i, 0])
        values = bound(chosen.radius[i].item(), *believed(chosen, CHOICES, i))
        assert torch.equal(x[i, 0], CHOICES[int(values.argmax())])


@pytest.mark.parametrize("kind", [MTKB, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (MTBKB, ITKB, ITBKB))])
def test_a_point_of_a_box_is_a_maximizer(kind: type[KernelStrategy]) -> None:
    chosen = run(strategy(kind, bounds=BOX, seed=[0, 1]), 3)
    x = chosen.ask()
    grid = torch.cartesian_prod(torch.linspace(0, 1, 12), torch.linspace(0, 2, 12)).double()
    for i in range(2):
        bound = bound_of(ChebyshevScalarization, chosen.asked_weights[i, 0])
        values = bound(chosen.radius[i].item(), *believed(chosen, torch.cat([x[i], grid]), i))
        assert values[0] >= values.max() - 1e-6


def test_several_choices_at_once_take_each_other_as_pending() -> None:
    chosen = run(strategy(MTKB), 5)
    x = chosen.ask(2)
    mean, _ = believed(chosen, CHOICES)
    X = torch.cat([chosen.train_X, x[:1]]).numpy()
    covariance = oracles.posterior(icm(3, 2).gamma, X, np.zeros((6, 3)), 0.1, CHOICES.numpy())[1]
    bound = bound_of(ChebyshevScalarization, chosen.asked_weights[1])
    values = bound(chosen.radius.item(), mean, oracles.blocks(covariance, 3))
    assert torch.equal(x[1], CHOICES[int(values.argmax())])


@kinds
def test_saving_continues_bit_for_bit(kind: type[KernelStrategy]) -> None:
    where = {"bounds": BOX} if kind in (MTKB, ITBKB) else {"choices": CHOICES}
    options = where | {"num_restarts": 2, "raw_samples": 16}
    chosen = run(strategy(kind, **options), 4)
    file = io.BytesIO()
    torch.save(chosen.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed = strategy(kind, seed=99, **options)
    resumed.load_state_dict(state)
    assert torch.equal(run(resumed, 2).train_X, run(chosen, 2).train_X)
    with pytest.raises(ValueError, match=r"bound \(ellipsoid there, norm here\)"):
        strategy(kind, bound="norm", **options).load_state_dict(state)


def test_mobo_is_the_ellipsoid_by_task_whatever_bound_is_asked_for() -> None:
    for bound in ("norm", "ellipsoid"):
        mobo = run(strategy(MOBO, scalarization=LinearScalarization, weights=FixedWeights(W), bound=bound), 5)
        x = mobo.ask()
        mean, covariances = believed(mobo, CHOICES)
        deviations = np.sqrt(covariances.diagonal(axis1=1, axis2=2))
        values = (mean + mobo.radius.item() * deviations) @ W.numpy()
        assert torch.equal(x[0], CHOICES[int(values.argmax())])
