"""Constraints on outcomes: how likely they are to hold, and what that does to the acquisition."""

from __future__ import annotations

import math

import numpy as np
import oracles
import pytest
import torch
from botorch.models import ModelListGP, SingleTaskGP
from catalogue import PATHS, Builder, data, general_sum, icm
from gpytorch.kernels import RBFKernel
from scipy.stats import multivariate_normal, norm
from suites import close
from torch import Tensor

from mtbo_torch import (
    ChebyshevScalarization,
    ExactMultiTaskGP,
    ICMKernel,
    LinearScalarization,
    NystromMultiTaskGP,
    NystromScalarizedMultiTaskUCB,
    ScalarizedMultiTaskUCB,
    feasibility,
)
from mtbo_torch.feasibility import OutcomeConstraints

W = torch.tensor([0.2, 0.5, 0.3], dtype=torch.double)
DICTIONARY = torch.tensor([0, 2, 3, 6])
bounds = pytest.mark.parametrize("bound", ["norm", "ellipsoid"])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tensor(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.double)


def moments(count: int, n: int, rank: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Means of order one and covariances with correlations of both signs."""
    root = torch.randn(count, n, rank or n, generator=generator(seed), dtype=torch.double)
    return torch.randn(count, n, generator=generator(seed + 1), dtype=torch.double), root @ root.mT


def by_scipy(A: Tensor, c: Tensor, mean: Tensor, covariance: Tensor) -> np.ndarray:
    """P(A y <= c), point by point."""
    values = []
    for mu, gamma in zip(mean.numpy(), covariance.numpy(), strict=True):
        center, spread = A.numpy() @ mu, A.numpy() @ gamma @ A.numpy().T
        options = {"allow_singular": True, "abseps": 1e-4, "releps": 1e-4}
        values.append(multivariate_normal.cdf(c.numpy(), mean=center, cov=spread, **options))
    return np.array(values)


def test_one_constraint_is_exact() -> None:
    mean, covariance = moments(50, 3)
    a, c = tensor([0.5, -2.0, 1.0]), tensor(0.3)
    center, sd = (mean @ a.T)[:, 0].numpy(), np.sqrt((a @ covariance @ a.T)[:, 0, 0].numpy())
    p = OutcomeConstraints(a, c).probability(mean, covariance)
    assert p.shape == (50,)
    close(p, norm.cdf((0.3 - center) / sd), 1e-12)
    close(OutcomeConstraints(3 * a, 3 * c.unsqueeze(-1)).probability(mean, covariance), p, 1e-12)


# With more constraints than tasks the last ones follow from those before: a step, which is averaged less well.
@pytest.mark.parametrize(("m", "n", "worst"), [(2, 2, 5e-3), (2, 3, 5e-3), (3, 3, 5e-3), (3, 2, 3e-2), (4, 3, 3e-2)])
def test_several_constraints_are_joint(m: int, n: int, worst: float) -> None:
    mean, covariance = moments(25, n, seed=m)
    A = torch.randn(m, n, generator=generator(7), dtype=torch.double)
    c = torch.rand(m, generator=generator(8), dtype=torch.double) + 0.3
    p, expected = OutcomeConstraints(A, c).probability(mean, covariance), by_scipy(A, c, mean, covariance)
    assert (p - torch.tensor(expected)).abs().max() < worst
    assert (p - torch.tensor(expected)).abs().median() < worst / 5
    # The tasks' covariances count: the product of the probabilities of each is something else.
    alone = [OutcomeConstraints(A[i : i + 1], c[i : i + 1]).probability(mean, covariance) for i in range(m)]
    assert (torch.stack(alone).prod(dim=0) - torch.tensor(expected)).abs().max() > 0.02


def test_two_rows_in_opposite_directions_are_an_interval() -> None:
    mean, covariance = moments(50, 2)
    sd = covariance[:, 0, 0].sqrt().numpy()
    expected = norm.cdf((0.8 - mean[:, 0].numpy()) / sd) - norm.cdf((-0.4 - mean[:, 0].numpy()) / sd)
    A = tensor([1.0, 0.0], [-2.0, 0.0])
    close(OutcomeConstraints(A, tensor(0.8, 0.8)).probability(mean, covariance), expected, 1e-12)
    # In any order, with rows that say less or the same.
    A, c = tensor([-2.0, 0.0], [3.0, 0.0], [1.0, 0.0], [-1.0, 0.0]), tensor(0.8, 2.4, 5.0, 7.0)
    close(OutcomeConstraints(A, c).probability(mean, covariance), expected, 1e-12)


def test_an_interval_beside_another_constraint() -> None:
    mean, covariance = moments(25, 2)
    A, c = tensor([1.0, 0.0], [-1.0, 0.0], [0.4, 1.0]), tensor(0.8, 0.4, 0.5)
    T = tensor([1.0, 0.0], [0.4, 1.0]).numpy()
    expected = []
    for mu, gamma in zip(mean.numpy(), covariance.numpy(), strict=True):
        normal = multivariate_normal(mean=T @ mu, cov=T @ gamma @ T.T)
        expected.append(normal.cdf([0.8, 0.5]) - normal.cdf([-0.4, 0.5]))
    close(OutcomeConstraints(A, c).probability(mean, covariance), np.array(expected), 5e-3)


def test_perfect_correlation() -> None:
    mean = torch.zeros(2, 2, dtype=torch.double)
    together, apart = tensor([1.0, 2.0], [2.0, 4.0]), tensor([1.0, -2.0], [-2.0, 4.0])
    p = OutcomeConstraints(torch.eye(2).double(), tensor(0.5, 0.4)).probability(mean, torch.stack([together, apart]))
    # y_2 = 2 y_1 <= 0.4, and y_1 <= 0.5; or y_2 = -2 y_1 <= 0.4, and y_1 <= 0.5.
    close(p, np.array([norm.cdf(0.2), norm.cdf(0.5) - norm.cdf(-0.2)]), 5e-3)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_covariance_that_rounding_made_too_large_counts_as_perfect_correlation(sign: int) -> None:
    mean, covariance = torch.zeros(2, dtype=torch.double), 1e-16 * tensor([1.0, 3.0 * sign], [3.0 * sign, 1.0])
    # The first constraint always holds, so the second one counts alone, with a deviation of 1e-8.
    p = OutcomeConstraints(torch.eye(2).double(), tensor(1.0, 1e-8)).probability(mean, covariance)
    assert p.item() == pytest.approx(norm.cdf(1), abs=5e-3)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_without_variance_it_is_known(dtype: torch.dtype) -> None:
    mean = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [2.0, 2.0]], dtype=dtype).requires_grad_()
    covariance = torch.zeros(4, 2, 2, dtype=dtype).requires_grad_()
    for A, c, expected in (
        (tensor([1.0, 0.0]), tensor(0.5), [1.0, 0.0, 1.0, 0.0]),
        (torch.eye(2).double(), tensor(0.5, 0.5), [1.0, 0.0, 0.0, 0.0]),
        (tensor([1.0, 0.0], [-1.0, 0.0]), tensor(1.5, -0.5), [0.0, 1.0, 0.0, 0.0]),
    ):
        p = OutcomeConstraints(A, c).probability(mean, covariance)
        close(p, torch.tensor(expected), 1e-6)
        for gradient in torch.autograd.grad(p.sum(), (mean, covariance)):
            assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("far", [6.0, 30.0, 1e3, 1e8])
def test_far_tails(far: float, dtype: torch.dtype) -> None:
    covariance = torch.tensor([[1.0, 0.6], [0.6, 2.0]], dtype=dtype).expand(3, 2, 2).clone().requires_grad_()
    mean = torch.tensor([[far, 0.0], [-far, 0.0], [far, far]], dtype=dtype).requires_grad_()
    one, two = tensor([1.0, 0.0]), torch.eye(2).double()
    tails = norm.cdf([-far, far, -far])
    close(OutcomeConstraints(one, tensor(0.0)).probability(mean, covariance), tails, 1e-6)
    both = OutcomeConstraints(two, tensor(0.0, 0.0)).probability(mean, covariance)
    assert ((both >= 0) & (both <= tails.max() + 1e-6)).all()
    assert both[1].item() == pytest.approx(0.5, abs=5e-3)
    window = OutcomeConstraints(tensor([1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]), tensor(1.0, 1.0, 0.0))
    for p in (both, window.probability(mean, covariance)):
        for gradient in torch.autograd.grad(p.sum(), (mean, covariance)):
            assert torch.isfinite(gradient).all()


def test_an_interval_in_the_tail_keeps_its_digits() -> None:
    mean, covariance = tensor([-10.0], [10.0]), torch.ones(2, 1, 1, dtype=torch.double)
    p = OutcomeConstraints(tensor([1.0], [-1.0]), tensor(1.0, 0.0)).probability(mean, covariance)
    expected = np.array([norm.sf(10) - norm.sf(11), norm.cdf(-9) - norm.cdf(-10)])
    torch.testing.assert_close(p, torch.tensor(expected), rtol=1e-10, atol=0)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_gradients_of_the_probability(m: int) -> None:
    mean, _ = moments(4, 3)
    root = torch.randn(4, 3, 3, generator=generator(5), dtype=torch.double).requires_grad_()
    A = torch.cat([torch.eye(3, dtype=torch.double)[:m], -torch.eye(3, dtype=torch.double)[:1]])
    constraints = OutcomeConstraints(A, torch.full((m + 1,), 0.7, dtype=torch.double))
    value = lambda mu, r: constraints.probability(mu, r @ r.mT + 0.1 * torch.eye(3).double())  # noqa: E731
    assert torch.autograd.gradcheck(value, (mean.requires_grad_(), root), atol=1e-6, rtol=1e-4)


def test_many_points_at_once_and_any_leading_shape() -> None:
    mean, covariance = moments(24, 3)
    constraints = OutcomeConstraints(torch.eye(3).double(), tensor(0.3, 0.2, 0.6))
    p = constraints.probability(mean, covariance)
    shaped = constraints.probability(mean.reshape(2, 3, 4, 3), covariance.reshape(2, 3, 4, 3, 3))
    close(shaped, p.reshape(2, 3, 4), 1e-14)
    single = constraints.probability(mean.float(), covariance.float())
    assert single.dtype == torch.float
    close(single, p, 2e-3)


# In the acquisition.

LIMITS = (tensor([1.0, 0.0, 0.5], [0.0, -1.0, 0.0]), tensor([0.2], [0.3]))
ONE = (tensor([1.0, 0.0, 0.5]), tensor(0.2))


def weighed(
    kind: type, build: Builder, bound: str, pair: tuple[Tensor, Tensor], worst: float, pending: Tensor | None = None
) -> np.ndarray:
    """p u + (1 - p) w at seven points for the Chebyshev scalarization, naively."""
    (X, Y, Z), gamma, w = data(8, 3, 2), build(3, 2).gamma, W.numpy()

    def posterior(X: Tensor, Y: Tensor, dictionary: list[int]) -> tuple[np.ndarray, np.ndarray]:
        if kind is NystromMultiTaskGP:
            parts = X.numpy(), Y.numpy(), np.asarray(0.1), dictionary, Z.numpy()
            return oracles.nystrom_posterior_of_tasks(gamma, *parts)
        mean, covariance = oracles.posterior(gamma, X.numpy(), Y.numpy(), 0.1, Z.numpy())
        return mean, oracles.blocks(covariance, 3)

    mean, covariances = posterior(X, Y, DICTIONARY.tolist())
    if pending is not None:
        more = list(range(8, 8 + len(pending)))
        covariances = posterior(
            torch.cat([X, pending]), torch.zeros(8 + len(pending), 3).double(), DICTIONARY.tolist() + more
        )[1]
    if bound == "ellipsoid":
        u = oracles.monotone_ellipsoid(lambda y: oracles.chebyshev(w, y, np.zeros(3)), 1.5, mean, covariances)
    else:
        norms = oracles.operator_norm(covariances)
        u = np.array([oracles.chebyshev(w, mu, np.zeros(3)) for mu in mean]) + w.max() * 1.5 * np.sqrt(norms)
    p = by_scipy(pair[0], pair[1].flatten(), torch.tensor(mean), torch.tensor(covariances))
    return p * u + (1 - p) * worst


def fitted(kind: type, build: Builder = icm) -> ExactMultiTaskGP | NystromMultiTaskGP:
    X, Y, _ = data(8, 3, 2)
    options = {"dictionary": DICTIONARY} if kind is NystromMultiTaskGP else {}
    return kind(X, Y, build(3, 2).kernel, eta=0.1, **options)


def constrained(model: object, pair: object = LIMITS, **options: object) -> ScalarizedMultiTaskUCB:
    kind = NystromScalarizedMultiTaskUCB if isinstance(model, NystromMultiTaskGP) else ScalarizedMultiTaskUCB
    return kind(model, ChebyshevScalarization(W), 1.5, constraints=pair, **options)


@bounds
@pytest.mark.parametrize("build", PATHS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("kind", [ExactMultiTaskGP, NystromMultiTaskGP], ids=["exact", "nystrom"])
def test_values_are_weighed_by_the_probability(kind: type, build: Builder, bound: str) -> None:
    _, _, Z = data(8, 3, 2)
    acqf = constrained(fitted(kind, build), ONE, bound=bound, infeasible_value=-0.7)
    close(acqf(Z.unsqueeze(-2)), weighed(kind, build, bound, ONE, -0.7), 1e-7)
    pending = constrained(fitted(kind, build), ONE, bound=bound, infeasible_value=-0.7, X_pending=Z[:2] + 0.05)
    close(pending(Z.unsqueeze(-2)), weighed(kind, build, bound, ONE, -0.7, Z[:2] + 0.05), 1e-7)


@bounds
def test_several_constraints_in_the_acquisition(bound: str) -> None:
    _, _, Z = data(8, 3, 2)
    acqf = constrained(fitted(ExactMultiTaskGP), bound=bound, infeasible_value=-0.7)
    close(acqf(Z.unsqueeze(-2)), weighed(ExactMultiTaskGP, icm, bound, LIMITS, -0.7), 5e-3)
    ready = constrained(fitted(ExactMultiTaskGP), OutcomeConstraints(*LIMITS), bound=bound, infeasible_value=-0.7)
    close(ready(Z.unsqueeze(-2)), acqf(Z.unsqueeze(-2)), 0)


@bounds
@pytest.mark.parametrize("build", [icm, general_sum])
def test_gradients(build: Builder, bound: str) -> None:
    _, _, Z = data(8, 3, 2)
    for points in (Z[:3].unsqueeze(-2), Z[:2].unsqueeze(0)):
        acqf = constrained(fitted(ExactMultiTaskGP, build), bound=bound)
        assert torch.autograd.gradcheck(acqf, (points.clone().requires_grad_(),), atol=1e-5, rtol=1e-4)


def test_by_default_a_point_that_violates_them_is_worth_the_lowest_mean() -> None:
    model, (X, Y, _) = fitted(ExactMultiTaskGP), data(8, 3, 2)
    mean, _ = oracles.posterior(icm(3, 2).gamma, X.numpy(), Y.numpy(), 0.1, X.numpy())
    lowest = min(oracles.chebyshev(W.numpy(), mu, np.zeros(3)) for mu in mean)
    close(constrained(model).infeasible_value, lowest, 1e-9)
    assert constrained(ExactMultiTaskGP(X[:0], Y[:0], icm(3, 2).kernel, eta=0.1)).infeasible_value == 0
    part = ScalarizedMultiTaskUCB(
        model.subset_output([1, 0]), ChebyshevScalarization(W[:2]), 1.5, constraints=(tensor([1.0, 0.0]), tensor(0.1))
    )
    close(part.infeasible_value, min(oracles.chebyshev(W[:2].numpy(), mu[[1, 0]], np.zeros(2)) for mu in mean), 1e-9)


@bounds
def test_batches(bound: str) -> None:
    sets = [data(6, 3, 2, seed) for seed in (0, 1)]
    X, Y, _ = (torch.stack(parts) for parts in zip(*sets, strict=True))
    kernel, points = icm(3, 2).kernel, torch.rand(5, 2, 1, 2, dtype=torch.double)
    together = constrained(ExactMultiTaskGP(X, Y, kernel, eta=0.1), bound=bound)
    assert together.infeasible_value.shape == (2,)
    for i in range(2):
        alone = constrained(ExactMultiTaskGP(X[i], Y[i], kernel, eta=0.1), bound=bound)
        close(together(points)[:, i], alone(points[:, i]), 1e-9)


@bounds
def test_a_list_of_models(bound: str) -> None:
    X, Y, Z = data(8, 3, 2)
    model = ModelListGP(SingleTaskGP(X, Y[:, :1]), ExactMultiTaskGP(X, Y[:, 1:], icm(2, 2).kernel, eta=0.1))
    with pytest.raises(ValueError, match="infeasible_value should be given for a ModelListGP"):
        constrained(model)
    first, others = (member.posterior(Z.unsqueeze(-2)) for member in model.models)
    mean = torch.cat([first.mean, others.mean], dim=-1).squeeze(-2).detach()
    covariance = torch.zeros(7, 3, 3, dtype=torch.double)
    covariance[:, 0, 0] = first.variance.flatten().detach()
    covariance[:, 1:, 1:] = others.distribution.covariance_matrix.detach()
    p = by_scipy(LIMITS[0], LIMITS[1].flatten(), mean, covariance)
    free = ScalarizedMultiTaskUCB(model, ChebyshevScalarization(W), 1.5, bound=bound)(Z.unsqueeze(-2)).detach().numpy()
    acqf = constrained(model, bound=bound, infeasible_value=-0.7)
    close(acqf(Z.unsqueeze(-2)), p * free + (1 - p) * -0.7, 5e-3)


def test_constraints_that_always_hold_change_nothing_and_those_that_never_do_leave_the_worst() -> None:
    _, _, Z = data(8, 3, 2)
    model = fitted(ExactMultiTaskGP)
    free = ScalarizedMultiTaskUCB(model, ChebyshevScalarization(W), 1.5)(Z.unsqueeze(-2))
    close(constrained(model, (ONE[0], tensor(1e6)))(Z.unsqueeze(-2)), free, 1e-12)
    never = constrained(model, (ONE[0], tensor(-1e6)), infeasible_value=-3.0)
    close(never(Z.unsqueeze(-2)), np.full(7, -3.0), 1e-12)


def test_everything_moves_with_to_and_weights_of_another_precision_follow() -> None:
    _, _, Z = data(8, 3, 2)
    acqf = constrained(fitted(ExactMultiTaskGP))
    before = acqf(Z.unsqueeze(-2))
    after = acqf.to(torch.float)(Z.float().unsqueeze(-2))
    assert after.dtype == torch.float
    close(after, before, 2e-3)
    single = (LIMITS[0].float(), LIMITS[1].float())
    close(constrained(fitted(ExactMultiTaskGP), single)(Z.unsqueeze(-2)), before, 1e-5)


def test_a_linear_scalarization_with_constraints() -> None:
    X, Y, Z = data(8, 3, 2)
    mean, covariance = oracles.posterior(icm(3, 2).gamma, X.numpy(), Y.numpy(), 0.1, Z.numpy())
    covariances = oracles.blocks(covariance, 3)
    u = oracles.linear_ellipsoid(W.numpy(), 1.5, mean, covariances)
    p = by_scipy(*ONE, torch.tensor(mean), torch.tensor(covariances))
    acqf = ScalarizedMultiTaskUCB(
        fitted(ExactMultiTaskGP), LinearScalarization(W), 1.5, bound="ellipsoid", constraints=ONE, infeasible_value=0.1
    )
    close(acqf(Z.unsqueeze(-2)), p * u + (1 - p) * 0.1, 1e-8)
    assert math.isclose(acqf.infeasible_value.item(), 0.1)


@pytest.mark.parametrize("build", ["one and the same", "rank one"])
def test_what_holds_surely_does_not_change_the_probability_of_the_rest(build: str) -> None:
    # Where tasks are bound to each other, some combinations of them have no variance at all.
    X = torch.rand(8, 1, generator=generator(), dtype=torch.double)
    weights = tensor(1.0, 1.0, 1.0) if build == "one and the same" else tensor(0.3, 0.7, -0.2)
    kernel = ICMKernel(RBFKernel(), torch.outer(weights, weights))
    model = ExactMultiTaskGP(X, X.sin() * weights, covar_module=kernel, eta=0.1)
    Z = torch.linspace(-2, 3, 41, dtype=torch.double).unsqueeze(-1)
    moments_at = (model.at(Z).mean, model.at(Z).covariance)
    free, surely = tensor(1.0, 0.0, 0.0), tensor(weights[1], -weights[0], 0.0)
    alone = OutcomeConstraints(free.unsqueeze(0), tensor(0.1)).probability(*moments_at)
    assert alone.min() < 0.9
    for rows in ([free, surely], [surely, free]):
        limits = tensor(*[0.1 if row is free else 0.5 for row in rows])
        together = OutcomeConstraints(torch.stack(rows), limits).probability(*moments_at)
        close(together, alone, 1e-6)
    impossible = OutcomeConstraints(torch.stack([free, surely]), tensor(0.1, -0.5)).probability(*moments_at)
    assert impossible.max() < 1e-12


def test_points_in_portions_are_points_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mean, covariance = moments(30, 3)
    constraints = OutcomeConstraints(tensor([1.0, 0.0, 0.0], [0.0, 1.0, 1.0]), tensor(0.3, 0.5))
    at_once = constraints.probability(mean, covariance)
    in_a_batch = constraints.probability(mean.reshape(2, 15, 3), covariance.reshape(2, 15, 3, 3))
    monkeypatch.setattr(feasibility, "MOST_NUMBERS", 7 * constraints.samples.numel())
    assert torch.equal(constraints.probability(mean, covariance), at_once)
    portions = constraints.probability(mean.reshape(2, 15, 3), covariance.reshape(2, 15, 3, 3))
    close(portions, in_a_batch, 1e-14)


def test_rows_are_joined_only_if_they_are_multiples() -> None:
    # In units of 1e9 the second task decides about the second constraint.
    mean, covariance = tensor(0.0, 1e9), torch.diag(tensor(1e-4, 1.0))
    constraints = OutcomeConstraints(tensor([1.0, 0.0], [1.0, 5e-9]), tensor(1.0, 1.0))
    assert constraints.probability(mean, covariance) < 1e-6
    assert len(OutcomeConstraints(tensor([1.0, 2.0], [-0.1, -0.2]), tensor(1.0, 1.0)).A) == 1
    with pytest.raises(ValueError, match="A and c should leave an interval allowed"):
        OutcomeConstraints(tensor([1.0, 2.0], [-1.0, -2.0]), tensor(1.0, -1.0))


def test_constraints_do_not_make_a_point_cost_as_much_as_all_tasks() -> None:
    X, Y, _ = data(10, 3, 2)
    model = ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=0.1)
    acqf = ScalarizedMultiTaskUCB(
        model, LinearScalarization(W), 1.0, constraints=(tensor([1.0, 0.0, 0.0]), tensor(0.5))
    )
    assert acqf._knowledge(model).regression.rotation is not None
    assert model.surrogate.regression.rotation is None


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_values_that_hold(dtype: torch.dtype) -> None:
    A, c = torch.tensor([[0.1, 0.2], [-1.0, 0.0]], dtype=torch.double), torch.tensor([0.3, 2.0], dtype=torch.double)
    # On the bound, where 0.1 + 0.2 is rounded above 0.3; beyond either bound by little; incomplete.
    Y = [[1.0, 1.0], [1.0, 1.0001], [-2.0, 0.0], [-2.0001, 0.0], [math.nan, 0.0]]
    constraints, values = OutcomeConstraints(A, c), torch.tensor(Y, dtype=dtype)
    assert constraints.hold(values).tolist() == [True, False, True, False, False]
