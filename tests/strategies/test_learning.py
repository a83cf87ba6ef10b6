"""Strategies that learn their kernel, and radii that are not the theory's."""

from __future__ import annotations

import functools
import io
import itertools
import math
import warnings
from collections.abc import Callable

import numpy as np
import oracles
import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import OptimizationWarning
from catalogue import icm, rbf
from gpytorch.kernels import RBFKernel
from suites import close
from torch import Tensor

from mtbo_torch import MTBKB, MTKB, ExactMultiTaskGP, ICMKernel, LinearScalarization, exact_radius
from mtbo_torch.confidence import mobo_radius
from mtbo_torch.kernels import candidate_kernels, default_kernel
from mtbo_torch.models import learning
from mtbo_torch.strategies import ITBKB, ITKB, MOBO, budgeted, learners
from mtbo_torch.strategies.base import Observations
from mtbo_torch.strategies.kernelized import KernelStrategy

BOUNDS = torch.tensor([[0.0, -1.0], [1.0, 3.0]], dtype=torch.double)
CHOICES = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(
    40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double
)
SPACES = [{"bounds": BOUNDS}, {"choices": CHOICES}]
space = pytest.mark.parametrize("where", SPACES, ids=["bounds", "choices"])
both = pytest.mark.parametrize("kind", [MTKB, MTBKB])
# On a box, which takes seconds, they are slow.
in_both_spaces = pytest.mark.parametrize(
    ("kind", "where"),
    [
        (MTKB, SPACES[1]),
        (MTBKB, SPACES[1]),
        pytest.param(MTKB, SPACES[0], marks=pytest.mark.slow),
        pytest.param(MTBKB, SPACES[0], marks=pytest.mark.slow),
    ],
    ids=["MTKB on choices", "MTBKB on choices", "MTKB on a box", "MTBKB on a box"],
)


def objective(x: Tensor) -> Tensor:
    wave = torch.sin(4 * x[..., 0]) + torch.cos(2 * x[..., 1])
    return torch.stack([wave, -wave + 0.1 * x[..., 0]], dim=-1)


def free_kernel(batch_shape: tuple[int, ...] = ()) -> ICMKernel:
    return ICMKernel(RBFKernel(ard_num_dims=2, batch_shape=torch.Size(batch_shape)), num_tasks=2)


def strategy(kind: type[KernelStrategy], where: dict[str, Tensor], **options: object) -> KernelStrategy:
    defaults = {"refit_every": 4, "num_restarts": 2, "raw_samples": 16}
    return kind(free_kernel(), **where, **(defaults | options))


def run(chosen: KernelStrategy, rounds: int, f: Callable[[Tensor], Tensor] = objective) -> KernelStrategy:
    for _ in range(rounds):
        x = chosen.ask()
        chosen.tell(x, f(x))
    return chosen


@in_both_spaces
def test_the_kernel_changes_at_each_refit_and_only_then(kind: type[KernelStrategy], where: dict[str, Tensor]) -> None:
    chosen = strategy(kind, where, refit_every=3)
    learned = []
    for _ in range(9):
        run(chosen, 1)
        learned.append(chosen.model.covar_module.base_kernel.lengthscale.detach().flatten())
    changed = [not torch.equal(a, b) for a, b in itertools.pairwise(learned)]
    assert changed == [False, True, False, False, True, False, False, True]


@both
def test_many_values_told_at_once_are_learned_from(kind: type[KernelStrategy]) -> None:
    chosen = strategy(kind, {"choices": CHOICES}, refit_every=1000)
    chosen.tell(CHOICES[:20], objective(CHOICES[:20]))
    unlearned = chosen.model.covar_module.task_covar
    assert torch.equal(unlearned, torch.eye(2, dtype=torch.double))
    chosen = strategy(kind, {"choices": CHOICES}, refit_every=7)
    chosen.tell(CHOICES[:20], objective(CHOICES[:20]))
    covar = chosen.model.covar_module.task_covar.detach()
    assert covar[0, 1] / (covar[0, 0] * covar[1, 1]).sqrt() < -0.9


@in_both_spaces
def test_units_do_not_matter(kind: type[KernelStrategy], where: dict[str, Tensor]) -> None:
    # Powers of two, so that no digit is lost.
    stretch, shift = torch.tensor([16.0, 0.25], dtype=torch.double), torch.tensor([4.0, -8.0], dtype=torch.double)
    elsewhere = {name: value * stretch + shift for name, value in where.items()}
    scale, offset = (
        torch.tensor([2.0**40, 2.0**-40], dtype=torch.double),
        torch.tensor([512.0, 0.0], dtype=torch.double),
    )

    def in_other_units(x: Tensor) -> Tensor:
        return objective((x - shift) / stretch) * scale + offset

    ours, theirs = run(strategy(kind, where), 7), run(strategy(kind, elsewhere), 7, in_other_units)
    close((theirs.train_X - shift) / stretch, ours.train_X, 1e-5)
    close(theirs.radius, ours.radius, 1e-2)  # to the tolerance of the fit


@in_both_spaces
def test_the_model_is_what_the_strategy_believes_in_the_users_units(
    kind: type[KernelStrategy], where: dict[str, Tensor]
) -> None:
    chosen = run(strategy(kind, where), 10)
    units = chosen._surrogate.units
    inside = chosen._surrogate.regression.at(units.scale_points(CHOICES)).mean
    mean, std = units.offset, units.scale
    close(chosen.model.mean(CHOICES), inside * std + mean, 1e-10 if kind is MTKB else 1e-6)
    close(chosen.model.posterior(CHOICES).mean, chosen.model.mean(CHOICES), 1e-10)
    assert torch.equal(chosen.model.train_inputs[0], units.scale_points(chosen.train_X))


def test_what_was_told_comes_back_as_it_was() -> None:
    chosen, x = strategy(MTKB, {"choices": CHOICES}), CHOICES[3:12]
    chosen.tell(x, 1e3 * objective(x) + 1e4)
    assert torch.equal(chosen.train_X, x)
    assert torch.equal(chosen.train_Y, 1e3 * objective(x) + 1e4)


@in_both_spaces
def test_saving_continues_bit_for_bit(kind: type[KernelStrategy], where: dict[str, Tensor]) -> None:
    for rounds in (1, 5):
        chosen = run(strategy(kind, where), rounds)
        chosen.ask()
        file = io.BytesIO()
        torch.save(chosen.state_dict(), file)
        run(chosen, 4)
        file.seek(0)
        resumed = strategy(kind, where, seed=99)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        run(resumed, 4)
        assert torch.equal(resumed.train_X, chosen.train_X)
        assert torch.equal(resumed.radius, chosen.radius)
        assert resumed.pending.keys() == chosen.pending.keys()


@pytest.mark.parametrize("change", [{"refit_every": 5}, {"radius": 2.0}, {"eta": 0.1}, {"noise_scale": 0.3}])
def test_a_state_of_other_settings_is_refused(change: dict[str, object]) -> None:
    state = run(strategy(MTKB, {"choices": CHOICES}), 2).state_dict()
    with pytest.raises(ValueError, match=next(iter(change))):
        strategy(MTKB, {"choices": CHOICES}, **change).load_state_dict(state)


@both
def test_a_fit_that_fails_costs_neither_data_nor_kernel(
    kind: type[KernelStrategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = run(strategy(kind, {"choices": CHOICES}), 5)
    kernel = chosen.model.covar_module.task_covar.detach()

    def fail(*args: object, **kwargs: object) -> None:
        raise ModelFittingError("on purpose")

    monkeypatch.setattr(learning, "fit_gpytorch_mll", fail)
    run(chosen, 2)
    with pytest.warns(UserWarning, match="could not be learned from 8 observations"):
        run(chosen, 1)
    assert chosen.num_observations == 8
    assert torch.equal(chosen.model.covar_module.task_covar.detach(), kernel)
    run(chosen, 1)


def test_a_refused_tell_leaves_a_learning_strategy_as_it_was() -> None:
    chosen, twin = (run(strategy(MTKB, {"choices": CHOICES}), 7) for _ in range(2))
    with pytest.raises(ValueError, match="finite"):
        chosen.tell(CHOICES[:1], torch.tensor([[math.nan, 0.0]], dtype=torch.double))
    assert torch.equal(run(chosen, 2).train_X, run(twin, 2).train_X)


@pytest.mark.parametrize("kind", [MTKB, pytest.param(MTBKB, marks=pytest.mark.slow)])
def test_trials_of_a_batch_learn_kernels_of_their_own(kind: type[KernelStrategy]) -> None:
    def together(second: float) -> KernelStrategy:
        chosen = kind(free_kernel((2,)), choices=CHOICES, seed=[0, 1], refit_every=3)
        for _ in range(7):
            x = chosen.ask()
            y = objective(x)
            y[1] = second * y[1] + torch.sin(9 * x[1])
            chosen.tell(x, y)
        return chosen

    one, other = together(1.0), together(-3.0)
    assert torch.equal(one.train_X[0], other.train_X[0])  # whatever happens in the second trial
    lengthscales = one.model.covar_module.base_kernel.lengthscale
    assert lengthscales.shape == (2, 1, 2)
    assert not torch.equal(lengthscales[0], lengthscales[1])


def test_known_kernels_can_have_their_noise_learned() -> None:
    generator = torch.Generator().manual_seed(0)
    kernel = ICMKernel(rbf(0.3).requires_grad_(False), torch.eye(2).double())
    chosen = MTKB(kernel, choices=CHOICES, refit_every=20)
    y = objective(CHOICES) + 0.5 * torch.randn(40, 2, generator=generator, dtype=torch.double)
    chosen.tell(CHOICES, y)
    learned = chosen.model.noise.sqrt() * y.std(dim=0)
    assert ((learned > 0.3) & (learned < 0.7)).all()
    assert chosen.model.covar_module.base_kernel.lengthscale.item() == kernel.base_kernel.lengthscale.item()


def test_every_task_has_a_noise_of_its_own() -> None:
    sd = torch.tensor([0.05, 0.5], dtype=torch.double)
    y = objective(CHOICES) + sd * torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    chosen = MTKB(2, choices=CHOICES, refit_every=40)
    chosen.tell(CHOICES, y)
    learned = chosen.model.noise.sqrt() * y.std(dim=0)
    assert ((learned > sd / 2) & (learned < 2 * sd)).all()


@pytest.mark.parametrize(
    "where", [pytest.param(SPACES[0], marks=pytest.mark.slow), SPACES[1]], ids=["bounds", "choices"]
)
def test_a_number_of_tasks_is_kernel_enough(where: dict[str, Tensor]) -> None:
    options = {"refit_every": 3, "num_restarts": 2, "raw_samples": 16}
    chosen = run(MTKB(2, **where, **options), 4)
    assert sorted(chosen.kernel_scores) == sorted(candidate_kernels(2, 2))
    given, expected = (run(MTBKB(kernel, **where, **options), 5) for kernel in (default_kernel(2, 2), 2))
    assert torch.equal(expected.train_X, given.train_X)
    assert MTKB(2, choices=CHOICES, seed=[0, 1, 2], refit_every=3).ask().shape == (3, 1, 2)


@pytest.mark.parametrize("kind", [ITKB, ITBKB, MOBO])
def test_baselines_learn_too(kind: type[KernelStrategy]) -> None:
    chosen = run(strategy(kind, {"choices": CHOICES}), 9)
    lengthscale = chosen.model.covar_module.base_kernel.lengthscale
    assert not torch.allclose(lengthscale, free_kernel().base_kernel.lengthscale.double())
    covar = chosen.model.covar_module.task_covar
    assert torch.equal(covar, torch.diag_embed(covar.diagonal()))  # and still not of one task from another


@pytest.mark.parametrize("oversampling", [0.2, 1.0])
def test_the_model_of_a_dictionary_has_that_dictionary(oversampling: float) -> None:
    chosen = strategy(MTBKB, {"choices": CHOICES}, oversampling=oversampling)
    generator = torch.Generator().manual_seed(0)
    x = CHOICES[torch.randint(40, (80,), generator=generator)]
    chosen.tell(x, objective(x) + torch.randn(80, 2, generator=generator, dtype=torch.double))
    assert torch.equal(chosen.model.dictionary, chosen.dictionary)


@both
def test_a_task_that_says_nothing_does_no_harm(kind: type[KernelStrategy]) -> None:
    def constant(x: Tensor) -> Tensor:
        return torch.stack([x[..., 0], 0 * x[..., 0] + 3e9], dim=-1)

    chosen = run(strategy(kind, {"bounds": BOUNDS}, refit_every=3), 9, constant)
    assert torch.isfinite(chosen.radius)
    close(chosen._surrogate.units.scale[..., 1], torch.tensor([3e9]).double(), 0)  # all there is


def test_the_reference_point_is_the_best_seen() -> None:
    chosen = run(strategy(MTKB, {"choices": CHOICES}), 6)
    units = chosen._surrogate.units
    scalarization, _ = chosen.goal.scalarize(torch.tensor([0.5, 0.5], dtype=torch.double), units, chosen.train_Y)
    standardized = (chosen.train_Y - units.offset) / units.scale
    close(scalarization.ref_point, standardized.amax(dim=0), 1e-12)
    linear = run(strategy(MTKB, {"choices": CHOICES}, scalarization=LinearScalarization), 6)
    scalarized, _ = linear.goal.scalarize(torch.ones(2).double(), linear._surrogate.units, linear.train_Y)
    assert isinstance(scalarized, LinearScalarization)


# Radii


def fixed(**options: object) -> MTKB:
    return MTKB(icm(2, 2).kernel, choices=CHOICES, **options)


@pytest.mark.parametrize(
    ("radius", "expected"),
    [(0.0, 0.0), (2.5, 2.5), ("mobo", mobo_radius(6)), (lambda t: 1 + t / 10, 1.5)],
    ids=["zero", "number", "mobo", "function"],
)
def test_a_radius_is_as_it_was_asked_for(radius: object, expected: float) -> None:
    chosen = run(fixed(radius=radius), 5)
    assert chosen.radius.item() == pytest.approx(expected, rel=1e-12)
    gamma = icm(2, 2).gamma
    mean, covariance = oracles.posterior(gamma, chosen.train_X.numpy(), chosen.train_Y.numpy(), 0.1, CHOICES.numpy())
    x = chosen.ask()
    values = oracles.chebyshev_ucb(chosen.asked_weights[0].numpy(), expected, mean, covariance)
    assert torch.equal(x[0], CHOICES[int(np.argmax(values))])


def test_a_batch_has_one_radius_for_each_trial() -> None:
    chosen = fixed(radius=2.0, seed=[0, 1, 2])
    close(chosen.radius, torch.full((3,), 2.0, dtype=torch.double), 0)


@pytest.mark.parametrize("scale", [0.01, 30.0])
def test_norm_and_noise_are_estimated_when_they_are_not_given(scale: float) -> None:
    chosen = run(fixed(eta=0.2, radius="theory"), 6, lambda x: scale * objective(x))
    X, y = chosen.train_X.numpy(), chosen.train_Y.numpy().reshape(-1)
    G = oracles.gram(icm(2, 2).gamma, X, X, 2)
    dual = np.linalg.solve(G + 0.2 * np.eye(len(y)), y)
    norm = max(1.0, math.sqrt(dual @ G @ dual))
    assert (norm == 1.0) == (scale < 1)
    gain = oracles.info_gain(icm(2, 2).gamma, X, 0.2, 2)
    close(chosen.radius, oracles.exact_radius(gain, norm, math.sqrt(0.2), 0.2, 0.1), 1e-8)
    given = run(fixed(eta=0.2, norm_bound=3.0, noise_scale=0.5), 6)
    close(given.radius, exact_radius(given.model.info_gain, 3.0, 0.5, 0.2, 0.1), 1e-10)


def half(t: int) -> float:
    return 0.5


class Schedule:
    def __call__(self, t: int) -> float:
        return 1.0


@pytest.mark.parametrize("radius", [half, np.float64(1.0)])
def test_states_are_plain_whatever_the_radius(radius: object) -> None:
    chosen = run(fixed(radius=radius, eta=np.float64(0.1)), 2)
    file = io.BytesIO()
    torch.save(chosen.state_dict(), file)
    file.seek(0)
    resumed = fixed(radius=radius, eta=0.1)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(resumed.ask(), chosen.ask())


@pytest.mark.parametrize("radius", [lambda t: 1.0, functools.partial(half), Schedule()])
def test_a_radius_without_a_name_cannot_be_saved(radius: object) -> None:
    chosen = run(fixed(radius=radius), 2)
    with pytest.raises(ValueError, match=r"radius should have a name to be saved.*at the top of a module"):
        chosen.state_dict()


def test_a_schedule_that_returns_nonsense_is_refused() -> None:
    chosen = fixed(radius=lambda t: -1.0 if t else 1.0)
    run(chosen, 1)
    with pytest.raises(ValueError, match=r"radius\(t\)"):
        chosen.ask()


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning")
def test_a_fit_that_fails_at_first_starts_again_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    X = torch.rand(8, 1, dtype=torch.double)
    model = ExactMultiTaskGP(X, torch.cat([X.sin(), X.cos()], dim=-1))
    starts = []
    own = ExactMultiTaskGP.compute_custom_loss

    def loss(self: ExactMultiTaskGP, mll: object, **kwargs: object) -> torch.Tensor:
        starts.append(tuple(self.noise.tolist()))
        if len(set(starts)) == 1:
            warnings.warn("failed", OptimizationWarning, stacklevel=1)
        return own(self, mll, **kwargs)

    monkeypatch.setattr(ExactMultiTaskGP, "compute_custom_loss", loss)
    learning.learn_kernel(model)
    assert len(set(starts)) > 1
    assert ((model.noise >= 1e-4) & (model.noise < 1)).all()


# Thousands of observations


def wave_at(count: int) -> tuple[Tensor, Tensor]:
    """Draw points and noisy values."""
    generator = torch.Generator().manual_seed(0)
    x = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(count, 2, generator=generator, dtype=torch.double)
    return x, objective(x) + 0.1 * torch.randn(count, 2, generator=generator, dtype=torch.double)


def read_parameters(chosen: KernelStrategy) -> Tensor:
    """Return lengthscales, task matrix and noise deviations of what was learned."""
    model = chosen.model
    kernel = model.covar_module
    parts = kernel.base_kernel.lengthscale, kernel.task_covar, model.noise.sqrt()
    return torch.cat([part.detach().flatten() for part in parts])


@pytest.mark.parametrize("kind", [MTKB, MTBKB, ITBKB])
def test_a_dictionary_has_its_kernel_learned_less_and_less_often(
    kind: type[KernelStrategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = []

    def note(model: ExactMultiTaskGP) -> None:
        learned.append(model.train_targets.shape[-2])

    monkeypatch.setattr(learners, "learn_kernel", note)
    chosen, (x, y) = strategy(kind, {"choices": CHOICES}, refit_every=1), wave_at(34)
    for i in range(34):
        chosen.tell(x[i], y[i])
    seldom = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32]
    assert learned == (list(range(1, 35)) if kind is MTKB else seldom)


def test_portions_of_any_size_are_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    learned, (x, y) = [], wave_at(70)
    monkeypatch.setattr(learners, "learn_kernel", lambda model: learned.append(model.train_targets.shape[-2]))
    chosen = strategy(MTBKB, {"choices": CHOICES}, refit_every=2)
    for start, end in itertools.pairwise([0, 33, 39, 41, 63, 70]):
        chosen.tell(x[start:end], y[start:end])
    assert learned == [33, 41, 63, 70]  # all but the one that holds no multiple of 8


def test_a_part_of_the_observations_says_what_all_of_them_do(monkeypatch: pytest.MonkeyPatch) -> None:
    (x, y), found = wave_at(200), {}
    for most in (100, 200):
        monkeypatch.setattr(budgeted, "MOST_LEARNED_FROM", most)
        chosen = strategy(MTBKB, {"choices": CHOICES})
        chosen.tell(x, y)
        found[most] = read_parameters(chosen)
    close(found[100] / found[200], torch.ones(8), 0.4)  # prior variances are the least certain
    close((found[100] / found[200])[[0, 1, 6, 7]], torch.ones(4), 0.2)
    assert not torch.equal(found[100], found[200])


def test_points_that_came_up_once_are_learned_from_first() -> None:
    chosen, (x, _) = MTBKB(free_kernel((2,)), choices=CHOICES, seed=[0, 1], refit_every=4), wave_at(450)
    often = torch.cat([x[:3].repeat(200, 1), x])
    X = torch.stack([often, often.flip(0) + 1])
    told = Observations(X, objective(X), torch.full((2, 1050, 2), math.nan, dtype=torch.double))
    picked = chosen._pick_to_learn(told)
    assert picked.size == 500
    for own, points in zip(X, picked.X, strict=True):
        assert len(points.unique(dim=0)) == len(own.unique(dim=0)) == 450
    close(picked.Y, objective(picked.X), 0)


def test_learning_from_a_part_continues_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgeted, "MOST_LEARNED_FROM", 40)
    x, y = wave_at(180)
    chosen = strategy(MTBKB, {"choices": CHOICES}, schedule="delayed")
    chosen.tell(x[:130], y[:130])
    run(chosen, 3)
    file = io.BytesIO()
    torch.save(chosen.state_dict(), file)
    file.seek(0)
    resumed = strategy(MTBKB, {"choices": CHOICES}, schedule="delayed", seed=99)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    before = read_parameters(chosen)
    for one in (chosen, resumed):
        run(one, 1)
        one.tell(x[130:], y[130:])
        run(one, 2)
    assert not torch.equal(read_parameters(chosen), before)
    assert torch.equal(read_parameters(resumed), read_parameters(chosen))
    assert torch.equal(resumed.train_X, chosen.train_X)
    assert torch.equal(resumed.dictionary, chosen.dictionary)


def test_a_batch_learns_from_parts_as_its_trials_would_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgeted, "MOST_LEARNED_FROM", 40)
    x, y = wave_at(200)
    X, Y = x.unflatten(0, (2, 100)), y.unflatten(0, (2, 100))
    together = MTBKB(free_kernel((2,)), choices=CHOICES, seed=[3, 4], refit_every=4)
    together.tell(X, Y)
    kernel = together.model.covar_module
    for i, seed in enumerate((3, 4)):
        alone = strategy(MTBKB, {"choices": CHOICES}, seed=seed)
        alone.tell(X[i], Y[i])
        close(kernel.base_kernel.lengthscale[i], alone.model.covar_module.base_kernel.lengthscale, 0.02)
        close(kernel.task_covar[i], alone.model.covar_module.task_covar, 0.02)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_a_long_tell_follows_the_choices_as_the_model_does(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgeted, "MOST_LEARNED_FROM", 100)
    x, y = (part.to(dtype) for part in wave_at(700))
    chosen = strategy(MTBKB, {"choices": CHOICES.to(dtype)})
    chosen.tell(x, y)
    close(chosen._surrogate.tracking.mean, chosen._surrogate.inside(CHOICES.to(dtype)).mean, 1e-3)
    assert chosen.dictionary_size < 150
    truth = objective(CHOICES)
    assert (chosen.model.mean(CHOICES.to(dtype)) - truth).square().mean().sqrt() < 0.05
    run(chosen, 2, lambda x: objective(x).to(dtype))
