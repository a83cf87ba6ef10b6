"""Noise that is known for single values, in strategies that learn their kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mtbo_torch import MTBKB, MTKB, Optimizer
from mtbo_torch.kernels import default_kernel
from mtbo_torch.models.noise import MIN_LEARNED_NOISE, make_learned_noise, noise_of, observe_noise, usual_noise_of
from mtbo_torch.strategies import ITKB, RandomSearch, Strategy

NAN = torch.nan
DRAWN = torch.Generator().manual_seed(0)
Z = torch.linspace(0, 2, 7, dtype=torch.double).unsqueeze(-1)  # the choices
X = Z[[0, 2, 6, 3, 1, 5, 2, 4, 0]]  # with replicates
SD = torch.tensor([1.0, 0.1], dtype=torch.double) * (0.5 + torch.rand(9, 2, generator=DRAWN, dtype=torch.double))
Y = torch.cat([50 + 10 * (3 * X).sin(), (3 * X).cos()], dim=-1) + SD * torch.randn(
    9, 2, generator=DRAWN, dtype=torch.double
)


def rows_known(sd: Tensor) -> Tensor:
    return torch.where(torch.arange(len(sd)).unsqueeze(-1) < 4, NAN, sd)


def task_known(sd: Tensor) -> Tensor:
    return torch.where(torch.tensor([True, False]), sd, NAN)


KNOWN: dict[str, Callable[[Tensor], Tensor]] = {"all": lambda sd: sd, "some rows": rows_known, "one task": task_known}
BUILD: dict[str, Callable[..., Any]] = {
    "Optimizer": lambda **options: Optimizer(2, choices=Z, **options),
    "MTKB": lambda **options: MTKB(default_kernel(2, 1), choices=Z, refit_every=8, **options),
}


def tell_all(strategy: Strategy, sd: Tensor, Y: Tensor = Y) -> Any:
    """Tell all observations in portions, so that some come with a refit and some between two of them."""
    portions = [8, 1] if isinstance(strategy, Optimizer) else [3, 1, 1, 3, 1]
    for rows in torch.arange(9).split(portions):
        strategy.tell(X[rows], Y[rows], sd=sd[rows], allow_missing=True)
    return strategy


def compute_posterior(strategy: Any, Y: Tensor, sd: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return mean ``7 x 2`` and variance at Z, from the full matrix of the values that were seen."""
    units, kernel = strategy._surrogate.units, strategy._known.kernel
    usual = (strategy._known.noise * units.scale.square()).numpy()
    seen = ~Y.isnan().numpy().reshape(-1)
    variances = np.where(sd.isnan().numpy(), usual, sd.square().numpy()).reshape(-1)[seen]
    scale, offset = units.scale.numpy(), units.offset.numpy()
    inside, at = X / 2, Z / 2
    with torch.no_grad():
        K, k, prior = (kernel(a, b).to_dense().numpy() for a, b in ((inside, inside), (inside, at), (at, at)))
    grow = [np.tile(scale[0], len(points)) for points in (X, Z)]
    K = (K * np.outer(grow[0], grow[0]))[np.ix_(seen, seen)] + np.diag(variances)
    k = (k * np.outer(grow[0], grow[1]))[seen]
    target = (Y.numpy() - offset).reshape(-1)[seen]
    mean = k.T @ np.linalg.solve(K, target)
    variance = np.diag(prior * np.outer(grow[1], grow[1]) - k.T @ np.linalg.solve(K, k))
    return mean.reshape(-1, 2) + offset, variance.reshape(-1, 2)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        *(("MTKB", known) for known in KNOWN),
        ("Optimizer", "some rows"),
        *(pytest.param("Optimizer", known, marks=pytest.mark.slow) for known in ("all", "one task")),
    ],
)
def test_each_value_counts_by_its_noise(name: str, known: str) -> None:
    values, sd = Y.clone(), KNOWN[known](SD)
    values[2, 0], values[5, 1] = NAN, NAN
    strategy = tell_all(BUILD[name](), sd, values)
    mean, variance = compute_posterior(strategy, values, sd)
    model = strategy.model
    for posterior in (strategy._surrogate.at(Z), model.at(Z)):
        np.testing.assert_allclose(posterior.mean, mean, rtol=1e-8)
        np.testing.assert_allclose(posterior.variance(), variance, rtol=1e-6)
    model._fit = None  # the model's own data say the same
    np.testing.assert_allclose(model.at(Z).mean.detach(), mean, rtol=1e-8)
    torch.testing.assert_close(strategy.train_sd, sd, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("MTKB", "some rows"),
        ("MTKB", "all"),
        *(pytest.param("Optimizer", known, marks=pytest.mark.slow) for known in ("all", "some rows")),
    ],
)
def test_runs_continue_bit_for_bit(name: str, known: str) -> None:
    strategy, other = tell_all(BUILD[name](seed=3), KNOWN[known](SD)), BUILD[name](seed=4)
    other.load_state_dict(strategy.state_dict())
    assert torch.equal(strategy.ask(2), other.ask(2))
    for one in (strategy, other):
        one.tell(X[:1], Y[:1], sd=0.3, instead_of=one.asked_ids)
    assert torch.equal(strategy._surrogate.at(Z).mean, other._surrogate.at(Z).mean)


def test_one_noise_for_all_is_that_of_the_regularizer() -> None:
    values = (Y - Y.mean(dim=0)) / Y.std(dim=0)  # in the units in which a kernel is learned
    fixed, told = BUILD["MTKB"](eta=0.04), BUILD["MTKB"]()
    fixed.tell(X, values)
    told.tell(X, values, sd=0.2)
    assert type(told._surrogate.regression) is type(fixed._surrogate.regression)
    torch.testing.assert_close(told._surrogate.at(Z).mean, fixed._surrogate.at(Z).mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(told.ask(), fixed.ask())


def test_noise_that_is_not_known_is_as_if_nothing_was_said() -> None:
    plain, told = BUILD["MTKB"](), BUILD["MTKB"]()
    plain.tell(X, Y)
    told.tell(X, Y, sd=[NAN, NAN])
    assert torch.equal(plain.ask(), told.ask())


def test_corrections_and_removals_keep_the_noise() -> None:
    strategy = BUILD["MTKB"]()
    strategy.tell(X, Y, sd=SD)
    strategy.correct(1, [60.0, 0.5])
    assert torch.equal(strategy.train_sd, SD)
    strategy.correct([0, 1], Y[:2], sd=[[2.0, NAN], [3.0, 0.5]])
    strategy.remove(2)
    expected = torch.cat([torch.tensor([[2.0, NAN], [3.0, 0.5]], dtype=torch.double), SD[3:]])
    torch.testing.assert_close(strategy.train_sd, expected, equal_nan=True)
    anew = BUILD["MTKB"]()
    anew.tell(strategy.train_X, strategy.train_Y, sd=expected)
    assert torch.equal(strategy._surrogate.at(Z).mean, anew._surrogate.at(Z).mean)


def test_trials_of_a_batch_have_their_own() -> None:
    batch = MTKB(default_kernel(2, 1, torch.Size([2])), choices=Z, refit_every=9, seed=[0, 1])
    batch.tell(torch.stack([X, X]), torch.stack([Y, Y]), sd=torch.stack([SD, 3 * SD]))
    for trial, sd in enumerate((SD, 3 * SD)):
        alone = BUILD["MTKB"]()
        alone.tell(X, Y, sd=sd)
        torch.testing.assert_close(batch._surrogate.at(Z).mean[trial], alone._surrogate.at(Z).mean, rtol=1e-3, atol=0)
    assert batch.ask(2).shape == (2, 2, 1)


def test_tiny_noise_and_single_precision() -> None:
    strategy = MTKB(default_kernel(2, 1), choices=Z.float(), refit_every=9)
    strategy.tell(X.float(), Y.float(), sd=[1e-30, 1e-3])
    torch.testing.assert_close(strategy.model.mean(X.float())[1:6], Y[1:6].float(), rtol=0.1, atol=0.1)
    assert strategy.train_sd.dtype == torch.float


def test_a_noise_that_is_partly_known() -> None:
    learned = make_learned_noise(2, torch.Size()).double()
    values = torch.tensor([[1.0, NAN], [2.0, 3.0]], dtype=torch.double)
    partly = observe_noise(learned, torch.tensor([[0.5, 0.1], [NAN, NAN]], dtype=torch.double), values)
    own = noise_of(learned)
    assert own.min() > MIN_LEARNED_NOISE
    expected = torch.stack([torch.stack([torch.tensor(0.5).double(), own[1]]), own])
    torch.testing.assert_close(partly.filled, expected)
    torch.testing.assert_close(usual_noise_of(partly), own)
    torch.testing.assert_close(partly.average, torch.stack([(0.5 + own[0]) / 2, own[1]]))
    partly.filled.sum().backward()
    assert learned.raw_task_noises.grad.isfinite().all()


@pytest.mark.parametrize(
    "strategy",
    [MTBKB(2, choices=Z, refit_every=4), ITKB(2, choices=Z, refit_every=4), RandomSearch(2, choices=Z)],
    ids=lambda strategy: type(strategy).__name__,
)
def test_where_the_theory_has_one_noise_it_is_refused(strategy: Strategy) -> None:
    with pytest.raises(ValueError, match=r"sd should be left out for this .* Use Optimizer, or MTKB with refit_every"):
        strategy.tell(X, Y, sd=SD)
    assert strategy.num_observations == 0
