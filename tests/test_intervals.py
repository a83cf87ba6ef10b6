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
from catalogue import KERNELS, Builder, data, icm, rbf, task_matrix
from suites import close
from torch import Tensor

from mtbo_torch import (
    MTBKB,
    MTKB,
    ChebyshevScalarization,
    ExactMultiTaskGP,
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

SIGMA, BOUND, DELTA = 0.3, 2.0, 0.1
MIXTURE = Mixture(BOUND, SIGMA, DELTA)
every_kernel = pytest.mark.parametrize("build", KERNELS, ids=lambda build: build.__name__)


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


@pytest.mark.parametrize("num_tasks", [2, 6])
@pytest.mark.parametrize("delta", [0.1, 0.5])
def test_the_truth_lies_inside(num_tasks: int, delta: float) -> None:
    """20 functions of known norm, points chosen by the bounds themselves, 25 rounds, everywhere and always."""
    choices = torch.linspace(0, 1, 51, dtype=torch.double).unsqueeze(-1)
    failures, widest = 0, 0.0
    for seed in range(20):
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
    assert failures <= 20 * delta / 2
    assert widest > 0.6  # not for being far too wide


def test_a_norm_that_is_too_small_is_found_out() -> None:
    X, _, _ = data(20, 2, 1)
    f = RKHSFunction.draw(ICMKernel(rbf(0.2), task_matrix(2)), X, num_centers=20, seed=1)
    model = ExactMultiTaskGP(X, f.evaluate_true(X), f.kernel, eta=0.1)
    small = Mixture(f.norm / 100, 1e-2 * f.norm)
    swept = small.sweep(model.surrogate)
    needed = small.smallest_norm(swept).item()
    assert f.norm / 100 < needed < f.norm
    true = Mixture(f.norm, 1e-2 * f.norm)
    assert true.smallest_norm(true.sweep(model.surrogate)).item() < f.norm
    exact = Mixture(needed * (1 + 1e-6), 1e-2 * f.norm)
    assert (exact._squares(swept) >= 0).all()
    assert (Mixture(needed * (1 - 1e-6), 1e-2 * f.norm)._squares(swept) < 0).any()
    close(small.radii(swept), exact.radii(swept), 1e-2)  # it goes on with the norm that is needed
    lower, upper = model.intervals(X, small)
    assert (lower <= upper + 1e-6).all()


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


def test_refusals() -> None:
    X, Y, Z = data(7, 3, 2)
    kernel = icm(3, 2).kernel
    for model in (
        NystromMultiTaskGP(X, Y, kernel, eta=0.1),
        ExactMultiTaskGP(X, Y, kernel, eta=torch.tensor([0.1, 0.2, 0.3], dtype=torch.double)),
        ExactMultiTaskGP(X, Y, kernel, train_Yvar=0.1 + torch.rand_like(Y)),
    ):
        with pytest.raises(UnsupportedError, match="Intervals are for exact models with one noise"):
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


def peaks(x: Tensor) -> Tensor:
    return torch.cat([(-20 * (x - 0.3).square()).exp(), (-20 * (x - 0.6).square()).exp()], dim=-1)


def strategy(**options: Any) -> MTKB:
    options = {"norm_bound": 8.0, "noise_scale": 0.1, "bound": "mixture"} | options
    return MTKB(ICMKernel(rbf(0.2), task_matrix(2)), **options)


def played(chosen: MTKB, rounds: int = 6) -> MTKB:
    for _ in range(rounds):
        x = chosen.ask()
        chosen.tell(x, peaks(x))
    return chosen


@pytest.mark.parametrize("where", [{"choices": CHOICES}, {"bounds": BOX}], ids=["choices", "bounds"])
@pytest.mark.parametrize("scalarization", [ChebyshevScalarization, LinearScalarization])
def test_a_strategy_asks_for_the_point_with_the_largest_bound(
    where: dict[str, Tensor], scalarization: type[Any]
) -> None:
    chosen = played(strategy(scalarization=scalarization, **where))
    x = chosen.ask()
    acqf = ScalarizedMultiTaskUCB(
        chosen.model, scalarization(chosen.asked_weights.squeeze(0)), Mixture(8.0, 0.1, chosen.delta)
    )
    grid = CHOICES if "choices" in where else torch.linspace(0, 1, 201, dtype=torch.double).unsqueeze(-1)
    assert acqf(x.unsqueeze(-2)) >= acqf(grid.unsqueeze(-2)).max() - 1e-6


def test_trials_side_by_side_are_each_alone_and_runs_continue() -> None:
    together = played(strategy(choices=CHOICES, seed=[3, 4]))
    for i, seed in enumerate([3, 4]):
        close(together.train_X[i], played(strategy(choices=CHOICES, seed=seed)).train_X, 0.0)
    first, second = played(strategy(choices=CHOICES)), strategy(choices=CHOICES)
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        assert torch.equal(first.ask(), second.ask())
        first.tell(first.asked_ids, peaks(first.pending[first.asked_ids[0]]).unsqueeze(0))
        second.tell(second.asked_ids, peaks(second.pending[second.asked_ids[0]]).unsqueeze(0))
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
    with pytest.raises(UnsupportedError, match="Intervals are for exact models"):
        MTBKB(ICMKernel(rbf(0.2), task_matrix(2)), choices=CHOICES, norm_bound=2.0, noise_scale=0.1, bound="mixture")
