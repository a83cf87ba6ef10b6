"""Confidence intervals of the martingale mixture: against its equations written out, and against the truth."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf
from botorch.utils.multi_objective.pareto import is_non_dominated
from catalogue import KERNELS, PATHS, Builder, data, icm, rbf, task_matrix
from suites import close
from torch import Tensor

from mtbo_torch import (
    MTBKB,
    MTKB,
    ChebyshevScalarization,
    ExactMultiTaskGP,
    HypervolumeScalarization,
    ICMKernel,
    LinearScalarization,
    Mixture,
    NystromMultiTaskGP,
    ScalarizedMultiTaskUCB,
    dual_radius,
    exact_radius,
    mixture_deviation,
    mixture_radius,
)
from mtbo_torch.intervals import GRID
from mtbo_torch.problems import RKHSFunction
from mtbo_torch.regression import Lookup, Sites, TrackedPieces
from mtbo_torch.regression.sites import Distinct
from mtbo_torch.strategies import ITKB

SIGMA, BOUND, DELTA = 0.3, 2.0, 0.1
MIXTURE = Mixture(BOUND, SIGMA, DELTA)
every_kernel = pytest.mark.parametrize("build", KERNELS, ids=lambda build: build.__name__)
every_path = pytest.mark.parametrize("build", PATHS, ids=lambda build: build.__name__)


def written_out(
    gamma: Any, X: np.ndarray, Y: np.ndarray, Z: np.ndarray, b: float, directions: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """MATH: the smallest bounds over the grid, with dense matrices and nothing of the package."""
    n = Y.shape[-1]
    e = np.eye(n) if directions is None else directions
    seen = ~np.isnan(Y.reshape(-1))
    y = Y.reshape(-1)[seen]
    G = np.block([[gamma(a, c) for c in X] for a in X])[seen][:, seen]
    eta0, size = SIGMA**2, len(y)
    _, logdet = np.linalg.slogdet(np.eye(size) + G / eta0)
    R2 = 2 * SIGMA**2 * math.log(1 / DELTA) + SIGMA**2 * logdet + eta0 * y @ np.linalg.solve(G + eta0 * np.eye(size), y)
    lower, upper = [], []
    for z in Z:
        cross = np.concatenate([gamma(a, z) for a in X])[seen]
        bounds = []
        for alpha in np.array(GRID) * SIGMA**2:
            inverse = np.linalg.inv(G + alpha * np.eye(size))
            mean, covariance = cross.T @ inverse @ y, gamma(z, z) - cross.T @ inverse @ cross
            beta2 = (R2 + alpha * b**2 - alpha * y @ inverse @ y) / alpha
            half = np.sqrt(beta2) * np.sqrt(np.einsum("ki,ij,kj->k", e, covariance, e))
            bounds.append((e @ mean - half, e @ mean + half))
        lower.append(np.max([low for low, _ in bounds], axis=0))
        upper.append(np.min([high for _, high in bounds], axis=0))
    return np.array(lower), np.array(upper)


# Radii


def test_radii_are_their_equations() -> None:
    gain, q, q_alpha = (torch.tensor(value, dtype=torch.double) for value in ([1.0, 4.0], [3.0, 5.0], [2.0, 6.0]))
    closed = mixture_radius(gain, 2.0, 0.3, 0.2, 0.05)
    close(closed, (4 + 0.09 / 0.2 * (2 * math.log(20) + 2 * gain)).sqrt(), 1e-12)
    R2 = mixture_deviation(gain, q, 0.3, 0.2, 0.05)
    close(R2, 0.09 * (2 * math.log(20) + 2 * gain) + 0.2 * q, 1e-12)
    close(dual_radius(R2, q_alpha, 2.0, 0.7), (4 + R2 / 0.7 - q_alpha).sqrt(), 1e-12)
    close(dual_radius(R2, q, 2.0, 0.2), closed, 1e-12)  # at its own regularizer the data cancel


def test_the_radius_is_never_longer_than_the_papers() -> None:
    gain, b = torch.rand(50, dtype=torch.double) * 20, torch.rand(50, dtype=torch.double) * 5
    ours, papers = mixture_radius(gain, b, 0.3, 0.2, 0.1), exact_radius(gain, b, 0.3, 0.2, 0.1)
    assert (ours <= papers).all()
    assert (papers <= math.sqrt(2) * ours).all()


# Intervals


@every_kernel
def test_intervals_are_the_equations(build: Builder) -> None:
    X, Y, Z = data(7, 3, 2)
    case = build(3, 2)
    model = ExactMultiTaskGP(X, 0.3 * Y, case.kernel, eta=0.05)
    directions = torch.tensor([[0.5, -0.2, 1.0], [0.0, 1.0, 0.0]], dtype=torch.double)
    for given in (None, directions):
        expected = written_out(
            case.gamma, X.numpy(), 0.3 * Y.numpy(), Z.numpy(), BOUND, None if given is None else given.numpy()
        )
        for found, wanted in zip(model.intervals(Z, MIXTURE, given), expected, strict=True):
            close(found, wanted, 1e-7)


@pytest.mark.parametrize("build", [icm, KERNELS[6]], ids=lambda build: build.__name__)
def test_intervals_with_missing_values(build: Builder) -> None:
    X, Y, Z = data(7, 3, 2)
    Y = 0.3 * Y
    Y[1, 0] = Y[4, 2] = torch.nan
    case = build(3, 2)
    model = ExactMultiTaskGP(X, Y, case.kernel, eta=0.05, allow_missing=True)
    expected = written_out(case.gamma, X.numpy(), Y.numpy(), Z.numpy(), BOUND)
    for found, wanted in zip(model.intervals(Z, MIXTURE), expected, strict=True):
        close(found, wanted, 1e-7)


def test_batches_units_and_some_tasks() -> None:
    X, Y, Z = data(7, 3, 2)
    kernel = icm(3, 2).kernel
    stacked = torch.stack([Y, 2 - Y])
    model = ExactMultiTaskGP(X.expand(2, 7, 2), stacked, kernel, eta=0.1)
    bounds = torch.tensor([2.0, 5.0], dtype=torch.double)
    lower, upper = model.intervals(Z.expand(4, 2, *Z.shape), Mixture(bounds, SIGMA))
    for i, b in enumerate(bounds.tolist()):
        alone = ExactMultiTaskGP(X, stacked[i], kernel, eta=0.1)
        low, high = alone.intervals(Z, Mixture(b, SIGMA))
        close(lower[:, i], low.expand(4, *low.shape), 1e-9)
        close(upper[:, i], high.expand(4, *high.shape), 1e-9)
    scaled = ExactMultiTaskGP(X, Y, kernel, eta=0.1, outcome_transform=Standardize(3))
    inner = ExactMultiTaskGP(X, (Y - Y.mean(dim=0)) / Y.std(dim=0), kernel, eta=0.1)
    for ours, theirs in zip(scaled.intervals(Z, MIXTURE), inner.intervals(Z, MIXTURE), strict=True):
        close(ours, Y.mean(dim=0) + Y.std(dim=0) * theirs, 1e-9)
    some = scaled.subset_output([2, 0]).intervals(Z, MIXTURE)[1]
    close(some, scaled.intervals(Z, MIXTURE)[1][:, [2, 0]], 1e-12)


def test_no_observation_gives_the_prior() -> None:
    X, Y, Z = data(3, 3, 2)
    kernel = icm(3, 2).kernel
    lower, upper = ExactMultiTaskGP(X[:0], Y[:0], kernel, eta=0.1).intervals(Z, Mixture(BOUND, SIGMA, delta=1.0))
    expected = BOUND * kernel.task_covar.diagonal().sqrt()
    close(upper, expected.expand_as(upper), 1e-9)
    close(lower, -upper, 1e-12)


def test_gradients_of_intervals() -> None:
    X, Y, Z = data(7, 3, 2)
    model = ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=0.1)
    points = Z[:3].clone().requires_grad_(True)
    assert torch.autograd.gradcheck(lambda z: model.intervals(z, MIXTURE), points)


# tests/test_guarantees.py has more functions, numbers of tasks and deltas.
@pytest.mark.slow
def test_the_truth_lies_inside() -> None:
    """10 functions of known norm, points chosen by the bounds themselves, 25 rounds, everywhere and always."""
    num_tasks, delta = 2, 0.1
    choices = torch.linspace(0, 1, 51, dtype=torch.double).unsqueeze(-1)
    failures, widest = 0, 0.0
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        kernel = ICMKernel(rbf(0.2), task_matrix(num_tasks))
        f = RKHSFunction.draw(kernel, choices, num_centers=10, seed=seed)
        truth = f.evaluate_true(choices)
        strategy = MTKB(
            kernel, choices=choices, norm_bound=f.norm, noise_scale=0.5, delta=delta, bound="mixture", seed=seed
        )
        is_inside = True
        for _ in range(25):
            x = strategy.ask()
            noise = 0.5 * torch.randn(1, num_tasks, generator=generator, dtype=torch.double)
            strategy.tell(x, f.evaluate_true(x) + noise)
            lower, upper = strategy.model.intervals(choices, Mixture(f.norm, 0.5, delta))
            is_inside &= bool((lower <= truth).all() and (truth <= upper).all())
            widest = max(widest, float((2 * (truth - (lower + upper) / 2).abs() / (upper - lower)).max()))
        failures += not is_inside
    assert failures <= 10 * delta / 2
    assert widest > 0.6  # not for being far too wide


def test_a_norm_that_is_too_small_is_found_out() -> None:
    X, _, _ = data(20, 2, 1)
    f = RKHSFunction.draw(ICMKernel(rbf(0.2), task_matrix(2)), X, num_centers=20, seed=1)
    model = ExactMultiTaskGP(X, f.evaluate_true(X), f.kernel, eta=0.1)
    small = Mixture(f.norm / 100, 1e-2 * f.norm)
    swept = small.sweep(model.surrogate)
    needed = small.judge(swept)[1].item()
    assert f.norm / 100 < needed < f.norm
    true = Mixture(f.norm, 1e-2 * f.norm)
    assert true.judge(true.sweep(model.surrogate))[1].item() < f.norm
    exact = Mixture(needed * (1 + 1e-6), 1e-2 * f.norm)
    close(small.judge(swept)[0], exact.judge(swept)[0], 1e-2)  # it goes on with the norm that is needed
    lower, upper = model.intervals(X, small)
    assert (lower <= upper + 1e-6).all()


# Dictionaries


def written_out_on(
    places: list[int], gamma: Any, X: np.ndarray, Y: np.ndarray, Z: np.ndarray, b: float
) -> tuple[np.ndarray, np.ndarray]:
    """The bounds on a dictionary, with the projection written out; both what is missed and unexplained are bounded."""
    n, t = Y.shape[-1], len(X)
    y, eta0 = Y.reshape(-1), SIGMA**2
    G = np.block([[gamma(a, c) for c in X] for a in X])
    rows = [n * i + j for i in places for j in range(n)]
    seen = G[:, rows] @ np.linalg.pinv(G[rows][:, rows], rcond=1e-15) @ G[rows]
    D, eye = G - seen, np.eye(n * t)
    logdet = np.linalg.slogdet(eye + seen / eta0)[1] + np.trace(D) / eta0
    R2 = 2 * eta0 * math.log(1 / DELTA) + eta0 * logdet + eta0 * y @ np.linalg.solve(seen + eta0 * eye, y)
    lower, upper = [], []
    for z in Z:
        cross = np.concatenate([gamma(a, z) for a in X])
        to_dictionary = np.linalg.pinv(G[rows][:, rows], rcond=1e-15) @ cross[rows]
        cross_seen, own_seen = G[:, rows] @ to_dictionary, cross[rows].T @ to_dictionary
        bounds = []
        for alpha in np.array(GRID) * SIGMA**2:
            inverse = np.linalg.inv(seen + alpha * eye)
            mean, covariance = cross_seen.T @ inverse @ y, gamma(z, z) - cross_seen.T @ inverse @ cross_seen
            assert np.allclose(covariance, gamma(z, z) - own_seen + own_seen - cross_seen.T @ inverse @ cross_seen)
            r = y - seen @ inverse @ y
            rho = math.sqrt(max(np.linalg.eigvalsh(D)[-1], 0) / alpha)
            kappa = math.sqrt(max(r @ D @ r, 0)) / alpha
            S = math.sqrt(b**2 + 2 * kappa * b + R2 / alpha - y @ inverse @ y)
            tau = max((math.sqrt(rho**4 + 4 * rho**2) - rho**2) / 2, 0)
            half = min(S + rho * b, S / math.sqrt(1 - tau)) * np.sqrt(np.diag(covariance).clip(0))
            bounds.append((mean - half, mean + half))
        lower.append(np.max([low for low, _ in bounds], axis=0))
        upper.append(np.min([high for _, high in bounds], axis=0))
    return np.array(lower), np.array(upper)


def test_what_is_missed_widens_the_radius_by_its_equation() -> None:
    S2, b, rho2, kappa = 1 + 2 * 0.3 + 5 / 0.5 - 4, 1.0, 0.09, 0.3
    tau = (math.sqrt(rho2**2 + 4 * rho2) - rho2) / 2
    assert tau**2 == pytest.approx((1 - tau) * rho2)
    expected = min(math.sqrt(S2) + 0.3 * b, math.sqrt(S2 / (1 - tau)))
    assert dual_radius(5.0, 4.0, b, 0.5, rho2, kappa).item() == pytest.approx(expected, rel=1e-6)
    assert dual_radius(5.0, 4.0, b, 0.5).item() == pytest.approx(math.sqrt(7), rel=1e-6)


@every_kernel
@pytest.mark.parametrize("places", [[0, 2, 5], [1, 2, 3, 4, 6], list(range(7))], ids=["three", "five", "all"])
def test_intervals_on_a_dictionary_hold_those_written_out(build: Builder, places: list[int]) -> None:
    """Eigenvalue and quadratic form are bounded from above, so the intervals are as wide, or a little wider."""
    X, Y, Z = data(7, 3, 2)
    X, Y, case = torch.cat([X, X[:2]]), 0.3 * torch.cat([Y, Y[:2] + 0.2]), build(3, 2)
    model = NystromMultiTaskGP(X, Y, case.kernel, eta=0.05, dictionary=torch.tensor(places))
    lower, upper = model.intervals(Z, MIXTURE)
    low, high = written_out_on(places, case.gamma, X.numpy(), Y.numpy(), Z.numpy(), BOUND)
    slack = 3e-5  # where nothing is missed, roots of rounding are left of it
    assert (lower.numpy() <= low + slack).all()
    assert (upper.numpy() >= high - slack).all()
    share = (upper - lower).numpy() / (high - low)
    assert share.max() < (1.5 if len(places) < 7 else 1 + slack)
    exact = ExactMultiTaskGP(X, Y, case.kernel, eta=0.05).intervals(Z, MIXTURE)
    assert (upper - lower >= exact[1] - exact[0] - slack).all()


def test_sites_are_the_observations_grouped() -> None:
    generator = torch.Generator().manual_seed(0)
    for batch in ((), (3,)):
        places = torch.randint(len(CHOICES), (*batch, 40), generator=generator)
        X, Y = CHOICES[places], 100 + torch.randn(*batch, 40, 2, generator=generator, dtype=torch.double)
        sites, lookup = Sites.none(Y), Lookup(CHOICES)
        for x, y in zip(X.split([1, 1, 10, 28], dim=-2), Y.split([1, 1, 10, 28], dim=-2), strict=True):
            sites = sites.add(lookup.find(x), y)
        assert sites.places.tolist() == sorted(set(places.flatten().tolist()))
        left = torch.zeros(batch, dtype=torch.double)
        for index in np.ndindex(*batch, len(sites.places)):
            here = Y[index[:-1]][places[index[:-1]] == sites.places[index[-1]]]
            assert sites.counts[index] == len(here)
            if len(here):
                close(sites.means[index], here.mean(dim=0), 1e-9)
                left[index[:-1]] += (here - here.mean(dim=0)).square().sum()
        close(sites.scatter, left, 1e-9)
        close(Sites.of(Distinct.of(X, Y), Y).scatter, left, 1e-9)
        assert (
            sites.add(places[..., :3].contiguous(), Y[..., :3, :]).places is sites.places
        )  # which nobody has to look up again


@pytest.mark.parametrize("schedule", ["every_round", "delayed"])
def test_a_tracked_audit_is_the_regressions(schedule: str) -> None:
    chosen = played(strategy(MTBKB, choices=CHOICES, schedule=schedule, seed=[1, 2]), 15)
    regression, tracking = chosen._known.surrogate.regression, chosen._known.surrogate.tracking
    assert isinstance(tracking, TrackedPieces)
    assert tracking.sites is not None
    for ours, written in zip(tracking.audit(), regression.with_noise(regression.noise).audit(), strict=True):
        close(ours, written, 1e-6)


def test_an_observation_at_none_of_the_choices() -> None:
    chosen, other = (strategy(MTBKB, choices=CHOICES, seed=4) for _ in range(2))
    stray = torch.tensor([[0.123]], dtype=torch.double)
    for one in (chosen, other):
        played(one, 5)
    with pytest.warns(UserWarning, match="none of the") if chosen.pending else warnings.catch_warnings():
        chosen.tell(stray, peaks(stray))
    tracking = chosen._known.surrogate.tracking
    assert isinstance(tracking, TrackedPieces)
    assert tracking.sites is None
    played(chosen, 3)
    acqf = ScalarizedMultiTaskUCB(
        chosen.model, ChebyshevScalarization(chosen.asked_weights.squeeze(0)), Mixture(8.0, 0.1, chosen.delta)
    )
    assert torch.isfinite(acqf(CHOICES.unsqueeze(-2))).all()


# Acquisition functions


@pytest.mark.parametrize("scalarization", [ChebyshevScalarization, LinearScalarization])
def test_the_acquisition_is_the_upper_bound(scalarization: type[Any]) -> None:
    X, Y, Z = data(7, 3, 2)
    model = ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=0.1)
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.double)
    acqf = ScalarizedMultiTaskUCB(model, scalarization(weights), MIXTURE)
    if scalarization is LinearScalarization:
        expected = model.intervals(Z, MIXTURE, weights.unsqueeze(0))[1].squeeze(-1)
    else:
        expected = (weights * model.intervals(Z, MIXTURE)[1]).amin(dim=-1)
    close(acqf(Z.unsqueeze(-2)), expected, 1e-9)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    _, value = optimize_acqf(acqf, bounds, q=1, num_restarts=2, raw_samples=16)
    assert value >= acqf(torch.rand(50, 1, 2, dtype=torch.double)).max() - 1e-2


def test_pending_points_lower_the_bound_there() -> None:
    X, Y, Z = data(7, 3, 2)
    model = ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=0.1)
    scalarization = ChebyshevScalarization(torch.ones(3, dtype=torch.double))
    free = ScalarizedMultiTaskUCB(model, scalarization, MIXTURE)
    waiting = ScalarizedMultiTaskUCB(model, scalarization, MIXTURE, X_pending=Z[:1])
    assert (waiting(Z.unsqueeze(-2)) <= free(Z.unsqueeze(-2)) + 1e-9).all()
    assert waiting(Z[:1].unsqueeze(-2)) < free(Z[:1].unsqueeze(-2)) - 1e-3
    with pytest.raises(UnsupportedError, match="one point at a time"):
        free(Z[:2].unsqueeze(0))


def test_the_noise_of_the_model_plays_no_part() -> None:
    X, Y, Z = data(7, 3, 2)
    mixture = Mixture(norm_bound=5.0, noise_scale=0.3)
    one, each = (
        ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=eta) for eta in (0.1, torch.tensor([0.1, 0.2, 0.3]).double())
    )
    for ours, theirs in zip(one.intervals(Z, mixture), each.intervals(Z, mixture), strict=True):
        close(ours, theirs, 1e-8)


def test_refusals() -> None:
    X, Y, Z = data(7, 3, 2)
    kernel = icm(3, 2).kernel
    for model in (
        NystromMultiTaskGP(X, Y, kernel, train_Yvar=0.1 + torch.rand_like(Y)),
        ExactMultiTaskGP(X, Y, kernel, train_Yvar=0.1 + torch.rand_like(Y)),
    ):
        with pytest.raises(
            UnsupportedError, match="Intervals are for models whose observations all have the same noise"
        ):
            model.intervals(Z, MIXTURE)
    with pytest.raises(ValueError, match="noise_scale should be finite and > 0"):
        Mixture(1.0, 0.0)
    with pytest.raises(ValueError, match="norm_bound should be finite"):
        Mixture(-1.0, 0.1)
    with pytest.raises(ValueError, match=r"delta should lie in \(0, 1\]"):
        Mixture(1.0, 0.1, delta=2.0)
    scalarization = ChebyshevScalarization(torch.ones(3, dtype=torch.double))
    with pytest.raises(ValueError, match="radius should be a number"):
        ScalarizedMultiTaskUCB(ExactMultiTaskGP(X, Y, kernel), scalarization, MIXTURE, bound="ellipsoid")


# Strategies


CHOICES = torch.linspace(0, 1, 21, dtype=torch.double).unsqueeze(-1)
BOX = torch.tensor([[0.0], [1.0]], dtype=torch.double)


Kind = type[MTKB] | type[MTBKB]
every_kind = pytest.mark.parametrize("kind", [MTKB, MTBKB])


def peaks(x: Tensor) -> Tensor:
    return torch.cat([(-20 * (x - 0.3).square()).exp(), (-20 * (x - 0.6).square()).exp()], dim=-1)


def strategy(kind: Kind = MTKB, **options: Any) -> MTKB | MTBKB:
    options = {"norm_bound": 8.0, "noise_scale": 0.1, "bound": "mixture"} | options
    return kind(ICMKernel(rbf(0.2), task_matrix(2)), **options)


def played(chosen: MTKB | MTBKB, rounds: int = 6) -> MTKB | MTBKB:
    for _ in range(rounds):
        x = chosen.ask()
        chosen.tell(x, peaks(x))
    return chosen


@pytest.mark.parametrize("where", [{"choices": CHOICES}, {"bounds": BOX}], ids=["choices", "bounds"])
@pytest.mark.parametrize("scalarization", [ChebyshevScalarization, LinearScalarization])
@every_kind
def test_a_strategy_asks_for_the_point_with_the_largest_bound(
    where: dict[str, Tensor], scalarization: type[Any], kind: Kind
) -> None:
    chosen = played(strategy(kind, scalarization=scalarization, **where))
    x = chosen.ask()
    acqf = ScalarizedMultiTaskUCB(
        chosen.model, scalarization(chosen.asked_weights.squeeze(0)), Mixture(8.0, 0.1, chosen.delta)
    )
    grid = CHOICES if "choices" in where else torch.linspace(0, 1, 201, dtype=torch.double).unsqueeze(-1)
    assert acqf(x.unsqueeze(-2)) >= acqf(grid.unsqueeze(-2)).max() - 1e-6


@every_kind
@pytest.mark.parametrize("where", [{"choices": CHOICES}, {"bounds": BOX}], ids=["choices", "bounds"])
def test_runs_continue(kind: Kind, where: dict[str, Tensor]) -> None:
    schedule = {"schedule": "delayed"} if kind is MTBKB else {}
    first, second = played(strategy(kind, **where, **schedule), 6), strategy(kind, **where, **schedule)
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        assert torch.equal(first.ask(), second.ask())
        for chosen in (first, second):
            chosen.tell(chosen.asked_ids, peaks(chosen.pending[chosen.asked_ids[0]]).unsqueeze(0))


@every_kind
def test_trials_side_by_side_are_each_alone(kind: Kind) -> None:
    together = played(strategy(kind, choices=CHOICES, seed=[3, 4]))
    for i, seed in enumerate([3, 4]):
        close(together.train_X[i], played(strategy(kind, choices=CHOICES, seed=seed)).train_X, 0.0)


@every_path
@pytest.mark.parametrize("seed", [3, [3, 4]], ids=["alone", "together"])
def test_what_is_kept_at_the_choices_is_what_a_fit_gives(build: Builder, seed: Any) -> None:
    """Observations come one by one, several at once, and from a point that is none of the choices."""
    options = {"choices": CHOICES, "norm_bound": 50.0, "noise_scale": 0.1, "schedule": "delayed", "seed": seed}
    chosen = MTBKB(build(2, 1).kernel, **options)
    stray = torch.full((*chosen.batch_shape, 1, 1), 0.123, dtype=torch.double)
    for q in (1, 1, 1, 3, 1, 0, 1):
        x = chosen.ask(q) if q else stray
        chosen.tell(x, peaks(x))
        regression, tracking = chosen._known.surrogate.regression, chosen._known.surrogate.tracking
        assert isinstance(tracking, TrackedPieces)
        fitted = regression.with_noise(regression.noise)
        close(tracking.mean, fitted.at(CHOICES).mean, 1e-7)
        close(tracking.variance(), fitted.at(CHOICES).variance(), 1e-7)
        (*ours, unexplained), (*written, expected) = tracking.audit(), fitted.audit()
        for one, other in zip(ours, written, strict=True):
            close(one, other, 1e-6)
        close(unexplained.square(), expected.square(), 1e-6)  # it is a root, of rounding where nothing is missed
        assert (tracking.sites is None) == bool((chosen.train_X == 0.123).any())
    assert chosen.dictionary.shape[-1] > 1


@every_kind
def test_the_models_regularizer_is_the_strategys_own(kind: Kind) -> None:
    chosen = played(strategy(kind, choices=CHOICES, eta=0.5), 8)
    whole = ExactMultiTaskGP(chosen.train_X, chosen.train_Y, chosen.model.covar_module, eta=0.5)
    close(chosen.covariance_norm(CHOICES), whole.covariance_norm(CHOICES), 1e-4 if kind is MTBKB else 1e-9)
    close(chosen.model.mean(CHOICES), whole.mean(CHOICES), 1e-4 if kind is MTBKB else 1e-9)
    assert chosen.radius > 0


@every_kind
@pytest.mark.parametrize("where", [{"choices": CHOICES}, {"bounds": BOX}], ids=["choices", "bounds"])
def test_points_do_not_depend_on_eta(kind: Kind, where: dict[str, Tensor]) -> None:
    small, large = (played(strategy(kind, eta=eta, **where)).train_X for eta in (0.01, 1.0))
    close(small, large, 1e-12 if "choices" in where else 1e-4)


def test_a_state_belongs_to_its_bound() -> None:
    first = played(strategy(choices=CHOICES))
    with pytest.raises(ValueError, match="bound"):
        strategy(choices=CHOICES, bound="norm").load_state_dict(first.state_dict())


def test_a_presumption_that_the_data_contradict_is_told_once() -> None:
    f = RKHSFunction.draw(ICMKernel(rbf(0.2), task_matrix(2)), CHOICES, num_centers=10, seed=1)

    def doubts(norm_bound: float) -> list[str]:
        chosen = MTKB(f.kernel, choices=CHOICES, norm_bound=norm_bound, noise_scale=0.02 * f.norm, bound="mixture")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(15):
                x = chosen.ask()
                chosen.tell(x, f.evaluate_true(x))
        return [str(warning.message) for warning in caught]

    assert doubts(f.norm) == []
    (told,) = doubts(f.norm / 20)
    assert "explains the values told" in told
    assert "norm_bound should be at least" in told


def test_several_points_constraints_and_missing_values() -> None:
    limit = (torch.tensor([[0.0, -1.0]], dtype=torch.double), torch.tensor([-0.3], dtype=torch.double))
    chosen = strategy(choices=CHOICES, constraints=limit, signs=(1, 0))
    x = chosen.ask(3)
    assert len(x.unique()) == 3
    y = peaks(x)
    y[1, 0] = torch.nan
    chosen.tell(x, y, allow_missing=True)
    for _ in range(8):
        x = chosen.ask()
        chosen.tell(x, peaks(x))
    assert (chosen.train_Y[-3:, 1] > 0.2).all()


def test_a_strategy_that_knows_too_little_says_so() -> None:
    for options in ({"norm_bound": None}, {"noise_scale": None}, {"radius": 1.0}, {"refit_every": 2}):
        with pytest.raises(ValueError, match=r'bound should be "norm" or "ellipsoid" unless norm_bound'):
            strategy(choices=CHOICES, **options)


# What a run has proven


def test_intervals_of_a_strategy_are_its_models() -> None:
    for kind in (MTKB, MTBKB):
        chosen = played(strategy(kind, choices=CHOICES))
        for ours, models in zip(chosen.intervals(), chosen.model.intervals(CHOICES, Mixture(8.0, 0.1)), strict=True):
            close(ours, models, 1e-6)
        for ours, models in zip(chosen.intervals(BOX), chosen.model.intervals(BOX, Mixture(8.0, 0.1)), strict=True):
            close(ours, models, 1e-6)


@pytest.mark.parametrize("scalarization", [ChebyshevScalarization, LinearScalarization, HypervolumeScalarization])
@pytest.mark.parametrize("q", [1, 3])
@pytest.mark.parametrize("repeat", [True, False])
def test_the_certificate_is_the_sum_of_the_gaps(scalarization: type[Any], q: int, repeat: bool) -> None:
    """Written out: the largest upper bound of all choices minus the lower bound at the point, at the time."""
    ref_point = {"ref_point": torch.tensor([-1.0, -1.0])} if scalarization is HypervolumeScalarization else {}
    chosen = strategy(choices=CHOICES, scalarization=scalarization, repeat=repeat, signs=(1, -1), **ref_point)
    assert chosen.certificate().shape == (0,)
    total, expected = 0.0, []
    for _ in range(4):
        model = chosen.model
        x = chosen.ask(q)
        signs = torch.tensor([1.0, -1.0], dtype=torch.double)
        for point, weights in zip(x, chosen.asked_weights, strict=True):
            s = scalarization.build(weights, None if not ref_point else torch.tensor([-1.0, 1.0], dtype=torch.double))
            values = []
            for where in (CHOICES, point.unsqueeze(0)):
                if scalarization is LinearScalarization:
                    bounds = model.intervals(where, Mixture(8.0, 0.1), (weights * signs).unsqueeze(0))
                    values.append([bound.squeeze(-1) for bound in bounds])
                else:
                    low, high = (signs * bound for bound in model.intervals(where, Mixture(8.0, 0.1)))
                    values.append([s(torch.minimum(low, high)), s(torch.maximum(low, high))])
            total += float(values[0][1].max() - values[1][0])
            expected.append(total)
        chosen.tell(x, peaks(x))
    close(chosen.certificate(), torch.tensor(expected, dtype=torch.double), 1e-6)


def test_the_certificate_bounds_the_regret_and_survives_a_save() -> None:
    f = RKHSFunction.draw(ICMKernel(rbf(0.2), task_matrix(2)), CHOICES, num_centers=10, seed=1)
    truth = f.evaluate_true(CHOICES)
    chosen = MTKB(f.kernel, choices=CHOICES, norm_bound=f.norm, noise_scale=0.1, seed=[0, 1])
    assert chosen.bound == "mixture"
    regret, costs = torch.zeros(2, dtype=torch.double), []
    noise = torch.Generator().manual_seed(0)
    for _ in range(30):
        x = chosen.ask()
        s = ChebyshevScalarization(chosen.asked_weights.squeeze(-2))
        regret = regret + s(truth.expand(2, -1, -1)).amax(dim=-1) - s(f.evaluate_true(x)).squeeze(-1)
        costs.append(regret)
        chosen.tell(x, f.evaluate_true(x) + 0.1 * torch.randn(2, 1, 2, generator=noise, dtype=torch.double))
    assert (torch.stack(costs, dim=-1) <= chosen.certificate()).all()
    again = MTKB(f.kernel, choices=CHOICES, norm_bound=f.norm, noise_scale=0.1, seed=[0, 1])
    again.load_state_dict(chosen.state_dict())
    assert torch.equal(again.certificate(), chosen.certificate())


def test_what_is_dominated_and_what_can_be_gained() -> None:
    chosen = played(strategy(choices=CHOICES, norm_bound=20.0, noise_scale=0.02, signs=(1, -1)), 40)
    lower, upper = (bound.numpy() for bound in chosen.intervals())
    low = np.stack([lower[:, 0], -upper[:, 1]], axis=-1)
    high = np.stack([upper[:, 0], -lower[:, 1]], axis=-1)
    expected = [any(all(low[j] > high[i]) for j in range(len(low))) for i in range(len(low))]
    assert chosen.dominated().tolist() == expected
    assert 0 < sum(expected) < len(expected)
    truth = peaks(CHOICES) * torch.tensor([1.0, -1.0], dtype=torch.double)
    front = is_non_dominated(truth)
    assert not (chosen.dominated() & front).any()
    weights = chosen.weights.sample(64, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    gains = [
        float((w * torch.tensor(high)).amin(dim=-1).max() - (w * torch.tensor(low)).amin(dim=-1).max()) for w in weights
    ]
    assert chosen.gain_left().item() == pytest.approx(max(np.mean(gains), 0), abs=1e-9)
    early = played(strategy(choices=CHOICES, norm_bound=20.0, noise_scale=0.02, signs=(1, -1)), 3)
    assert chosen.gain_left() < early.gain_left()


def test_proofs_need_a_mixture_choices_and_no_constraints() -> None:
    with pytest.raises(ValueError, match='certificate should be asked of a strategy with bound="mixture"'):
        strategy(choices=CHOICES, bound="norm").certificate()
    with pytest.raises(ValueError, match="gain_left should be asked of a strategy with choices"):
        strategy(bounds=BOX).gain_left()
    with pytest.raises(ValueError, match=r"intervals should be asked of a strategy with choices, got bounds. Pass x."):
        strategy(bounds=BOX).intervals()
    limit = (torch.tensor([[0.0, -1.0]], dtype=torch.double), torch.tensor([-0.3], dtype=torch.double))
    with pytest.raises(ValueError, match="dominated should be asked of a strategy without constraints"):
        strategy(choices=CHOICES, constraints=limit).dominated()


def test_the_mixture_is_the_default_of_those_that_know_enough() -> None:
    known = {"norm_bound": 2.0, "noise_scale": 0.1, "choices": CHOICES}
    kernel = ICMKernel(rbf(0.2), task_matrix(2))
    assert MTKB(kernel, **known).bound == MTBKB(kernel, **known).bound == "mixture"
    for less in (
        {"norm_bound": None},
        {"noise_scale": None},
        {"radius": 1.0},
        {"refit_every": 5},
        {"noise_scale": 0.0},
    ):
        assert MTKB(kernel, **(known | less)).bound == "norm"
    assert ITKB(kernel, **known).bound == "norm"
    assert MTKB(kernel, bound="norm", **known).bound == "norm"
