"""MT-BKB as ask and tell: what it has beyond MT-KB."""

from __future__ import annotations

import io

import numpy as np
import oracles
import pytest
import torch
from catalogue import KERNELS, PATHS, Builder, icm, rbf, task_matrix
from suites import close
from torch import Tensor

from mtbo_torch import MTBKB, MTKB, ICMKernel, theory_oversampling
from mtbo_torch.metrics import average_regret, scalarized_regret
from mtbo_torch.problems import RKHSFunction
from mtbo_torch.scalarizations import ChebyshevScalarization

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.double)
CHOICES = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
SPACES = [{"bounds": BOUNDS}, {"choices": CHOICES}]
space = pytest.mark.parametrize("where", SPACES, ids=["bounds", "choices"])
schedules = pytest.mark.parametrize("schedule", ["every_round", "delayed"])


def objective(x: Tensor) -> Tensor:
    return torch.stack([torch.sin(3 * x[..., 0]), torch.cos(2 * x[..., 1]), x.sum(dim=-1)], dim=-1)


def strategy(where: dict[str, Tensor], build: Builder = icm, **kwargs: object) -> MTBKB:
    options = {"norm_bound": 1.0, "bound": "norm", "noise_scale": 0.1, "num_restarts": 2, "raw_samples": 16}
    return MTBKB(build(3, 2).kernel, **where, **(options | kwargs))


def run(mtbkb: MTBKB | MTKB, rounds: int, q: int = 1) -> MTBKB | MTKB:
    for _ in range(rounds):
        x = mtbkb.ask(q)
        mtbkb.tell(x, objective(x))
    return mtbkb


def test_a_choice_is_the_maximizer_of_algorithm_2() -> None:
    case, mtbkb = icm(3, 2), run(strategy({"choices": CHOICES}, oversampling=0.5), 12)
    X, Y, dictionary = mtbkb.train_X.numpy(), mtbkb.train_Y.numpy(), mtbkb.dictionary.tolist()
    assert len(dictionary) < 12
    mean, covariance = oracles.nystrom_posterior(case.gamma, X, Y, 0.1, dictionary, np.ones(12), CHOICES.numpy())
    chosen = mtbkb.ask()
    values = oracles.chebyshev_ucb(mtbkb.asked_weights[0].numpy(), mtbkb.radius.item(), mean, covariance)
    assert torch.equal(chosen[0], CHOICES[int(np.argmax(values))])


@space
@pytest.mark.parametrize(
    ("schedule", "build"),
    [("every_round", icm), ("delayed", KERNELS[7])],
    ids=["every round, grouped", "delayed, matrix"],
)
def test_saving_continues_bit_for_bit(where: dict[str, Tensor], schedule: str, build: Builder) -> None:
    options = {"build": build, "schedule": schedule, "oversampling": 0.5}
    mtbkb = run(run(strategy(where, **options), 5), 2, q=2)
    file = io.BytesIO()
    torch.save(mtbkb.state_dict(), file)
    run(mtbkb, 4)
    file.seek(0)
    resumed = strategy(where, seed=99, **options)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    run(resumed, 4)
    assert torch.equal(resumed.train_X, mtbkb.train_X)
    assert torch.equal(resumed.radius, mtbkb.radius)
    assert torch.equal(resumed.dictionary, mtbkb.dictionary)
    assert torch.equal(resumed.model.mean(CHOICES), mtbkb.model.mean(CHOICES))


@space
@schedules
def test_asking_for_several_spreads_them(where: dict[str, Tensor], schedule: str) -> None:
    mtbkb = run(strategy(where, schedule=schedule, norm_bound=20.0, oversampling=0.5), 4)
    points = mtbkb.ask(4)
    assert torch.pdist(points).min() > 0
    mtbkb.tell(points, objective(points))
    assert mtbkb.num_observations == 8


@schedules
@pytest.mark.parametrize("build", PATHS, ids=lambda build: build.__name__)
def test_the_followed_choices_agree_with_the_model(schedule: str, build: Builder) -> None:
    mtbkb = run(strategy({"choices": CHOICES}, build=build, schedule=schedule), 5, q=2)
    mean, norm = (mtbkb._surrogate.tracking.mean, mtbkb._surrogate.tracking.norm)
    close(mean, mtbkb.model.mean(CHOICES), 1e-10)
    close(norm, mtbkb.model.covariance_norm(CHOICES), 1e-10)


def test_the_radius_is_theorem_3s_along_the_run() -> None:
    mtbkb, gain = strategy({"choices": CHOICES}, oversampling=0.5), 0.0
    for _ in range(10):
        close(mtbkb.radius, oracles.nystrom_radius(gain, 1.0, 0.1, 0.1, 0.1, 0.5), 1e-8)
        x = mtbkb.ask()
        covariance = mtbkb.model.covariance(x)[0].numpy()
        gain += 0.5 * np.linalg.slogdet(np.eye(3) + covariance / 0.1)[1]
        mtbkb.tell(x, objective(x))


def test_the_delayed_schedule_draws_less_often_and_never_keeps_an_empty_dictionary() -> None:
    often, seldom = (strategy({"choices": CHOICES}, schedule=schedule) for schedule in ("every_round", "delayed"))
    draws = {id(often): 0, id(seldom): 0}
    for mtbkb in (often, seldom):
        dictionary = mtbkb.dictionary
        for _ in range(60):
            run(mtbkb, 1)
            assert mtbkb.dictionary_size >= 1
            draws[id(mtbkb)] += mtbkb.dictionary is not dictionary
            dictionary = mtbkb.dictionary
    assert draws[id(often)] == 60
    assert draws[id(seldom)] < 45


def test_the_delayed_schedule_draws_once_the_variances_since_then_sum_up_to_the_noise() -> None:
    mtbkb, drift, draws = run(strategy({"choices": CHOICES}, schedule="delayed"), 1), 0.0, 0
    for _ in range(40):
        x = mtbkb.ask()
        drift += mtbkb.covariance_norm(x).item() / 0.1
        mtbkb.tell(x, objective(x))
        assert (mtbkb._nystrom.drift == 0) == (drift > 1)
        draws, drift = (draws + 1, 0.0) if drift > 1 else (draws, drift)
    assert 0 < draws < 40


@schedules
def test_many_observations_at_once_do_not_fill_the_dictionary(schedule: str) -> None:
    x = torch.rand(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    at_once = strategy({"choices": CHOICES}, build=KERNELS[4], schedule=schedule)
    at_once.tell(x, objective(x))
    one_by_one = strategy({"choices": CHOICES}, build=KERNELS[4], schedule="delayed")
    for point in x:
        one_by_one.tell(point, objective(point))
    assert at_once.dictionary_size < 3 * one_by_one.dictionary_size
    assert at_once.num_observations == 300


def test_states_do_not_share_memory_and_broken_ones_are_refused() -> None:
    mtbkb = run(strategy({"choices": CHOICES}, oversampling=None), 4)
    before, state = mtbkb.radius, mtbkb.state_dict()
    state["memory"]["regression"]["information"].fill_(99)
    state["memory"]["regression"]["inverse"] = state["memory"]["regression"]["inverse"][..., :3, :]
    assert torch.equal(mtbkb.radius, before)
    with pytest.raises(ValueError, match=r"state_dict should come from MTBKB.* changed after it was saved"):
        mtbkb.load_state_dict(state)
    assert torch.equal(mtbkb.radius, before)


def test_unknown_horizons_double() -> None:
    mtbkb = strategy({"choices": CHOICES}, oversampling=None)
    run(mtbkb, 3)
    assert mtbkb._surrogate.regression.oversampling == theory_oversampling(64, 0.1, 0.5)
    x = CHOICES.repeat(2, 1)
    mtbkb.tell(x, objective(x))
    assert mtbkb._surrogate.regression.oversampling == theory_oversampling(128, 0.1, 0.5)
    resumed = strategy({"choices": CHOICES}, oversampling=None)
    resumed.load_state_dict(mtbkb.state_dict())
    assert resumed._surrogate.regression.oversampling == theory_oversampling(128, 0.1, 0.5)


@schedules
def test_a_tiny_noise_does_not_fill_the_dictionary_with_copies(schedule: str) -> None:
    few = CHOICES[:20]
    options = {
        "choices": few,
        "norm_bound": 1.0,
        "bound": "norm",
        "noise_scale": 0.1,
        "eta": 1e-6,
        "schedule": schedule,
    }
    mtbkb = run(run(MTBKB(icm(3, 2).kernel, seed=[0, 1], **options), 30), 5, q=3)
    assert mtbkb.num_observations == 45
    for i, size in enumerate(mtbkb.dictionary_size.tolist()):
        points = mtbkb.train_X[i, mtbkb.dictionary[i]]
        assert len(points.unique(dim=0)) == size <= 20
    assert mtbkb.dictionary.shape[-1] == mtbkb.dictionary_size.max()


def test_dictionary_and_probabilities_can_be_read() -> None:
    mtbkb = run(strategy({"choices": CHOICES}), 30)
    assert mtbkb.dictionary.shape == (mtbkb.dictionary_size,)
    assert mtbkb.inclusion_probs.shape == (30,)
    assert ((mtbkb.inclusion_probs >= 0) & (mtbkb.inclusion_probs <= 1)).all()
    assert mtbkb.model.dictionary_size == mtbkb.dictionary_size


@pytest.mark.parametrize("kind", [MTKB, MTBKB])
@schedules
def test_trials_side_by_side_equal_trials_one_by_one(kind: type, schedule: str) -> None:
    options = {"choices": CHOICES, "norm_bound": 1.0, "bound": "norm", "noise_scale": 0.1}
    options |= {"schedule": schedule, "oversampling": 0.5} if kind is MTBKB else {}
    seeds = [3, 1, 4]
    together = run(run(kind(icm(3, 2).kernel, seed=seeds, **options), 10), 2, q=2)
    assert together.train_X.shape == (3, 14, 2)
    for i, seed in enumerate(seeds):
        alone = run(run(kind(icm(3, 2).kernel, seed=seed, **options), 10), 2, q=2)
        assert torch.equal(together.train_X[i], alone.train_X)
        close(together.radius[i], alone.radius, 1e-8)
        if kind is MTBKB:
            size = alone.dictionary_size
            assert together.dictionary_size[i] == size
            assert sorted(together.dictionary[i, :size].tolist()) == sorted(alone.dictionary.tolist())


@pytest.mark.parametrize("kind", [MTKB, MTBKB])
def test_trials_side_by_side_on_a_box_find_maximizers(kind: type) -> None:
    options = {"norm_bound": 1.0, "bound": "norm", "noise_scale": 0.1, "num_restarts": 12, "raw_samples": 128}
    together = run(kind(icm(3, 2).kernel, bounds=BOUNDS, seed=[0, 1], **options), 4)
    radius, points = together.radius, together.ask()
    assert points.shape == (2, 1, 2)
    scalarization = ChebyshevScalarization(together.asked_weights[:, 0])
    grid = torch.cartesian_prod(torch.linspace(0, 1, 15), torch.linspace(0, 2, 15)).double()

    def value(at: Tensor) -> Tensor:
        mean, norm = (together.model.at(at).mean, together.model.at(at).norm)
        return scalarization(mean) + (scalarization.lipschitz * radius).unsqueeze(-1) * norm.sqrt()

    assert (value(points).squeeze(-1) >= value(grid).amax(dim=-1) - 1e-3).all()
    assert together.ask(2).shape == (2, 2, 2)


@pytest.mark.parametrize("kind", [MTKB, MTBKB])
def test_a_batch_of_trials_saves_and_continues(kind: type) -> None:
    def fresh() -> MTKB | MTBKB:
        return kind(icm(3, 2).kernel, choices=CHOICES, norm_bound=1.0, bound="norm", noise_scale=0.1, seed=[0, 1])

    first = run(fresh(), 4)
    second = fresh()
    second.load_state_dict(first.state_dict())
    assert torch.equal(run(first, 4).train_X, run(second, 4).train_X)


def delayed(seed: int | list[int], bound: str, build: Builder = icm) -> MTBKB:
    options = {"norm_bound": 20.0, "schedule": "delayed", "oversampling": 1.0}
    return strategy({"choices": CHOICES}, build, seed=seed, bound=bound, **options)


def list_draws(mtbkb: MTBKB) -> list[tuple[str, int]]:
    """Whether the last draws were wider or fits, and of how many trials."""
    return [(step[0], len(step[1])) for step in mtbkb._nystrom.steps if not isinstance(step, int)]


bounds_of_batches = pytest.mark.parametrize(
    ("bound", "build"), [("norm", icm), ("mixture", icm), ("mixture", KERNELS[7])], ids=["norm", "mixture", "matrix"]
)


@bounds_of_batches
def test_delayed_trials_side_by_side_equal_trials_one_by_one(bound: str, build: Builder) -> None:
    """Each draws when it is due, and the others take no notice."""
    seeds = [3, 1, 4, 2, 5]
    together = run(run(delayed(seeds, bound, build), 24), 2, q=2)
    draws = list_draws(together)
    assert {kind for kind, count in draws if count < len(seeds)} == {"widen", "fit"}
    sizes = together.dictionary_size.tolist()
    assert len(set(sizes)) > 1
    known = together._known.surrogate.tracking
    for i, seed in enumerate(seeds):
        alone = run(run(delayed(seed, bound, build), 24), 2, q=2)
        assert torch.equal(together.train_X[i], alone.train_X)
        assert sizes[i] == alone.dictionary_size
        assert sorted(together.dictionary[i, : sizes[i]].tolist()) == sorted(alone.dictionary.tolist())
        close(together.radius[i], alone.radius, 1e-8)
        close(known.mean[..., i, :, :], alone._known.surrogate.tracking.mean, 1e-8)
        close(known.norm[..., i, :], alone._known.surrogate.tracking.norm, 1e-8)


@pytest.mark.parametrize(
    ("bound", "build", "rounds"),
    [("norm", icm, 18), ("norm", icm, 23), ("mixture", icm, 18), ("mixture", KERNELS[7], 23)],
)
def test_a_batch_of_delayed_trials_continues_bit_for_bit(bound: str, build: Builder, rounds: int) -> None:
    first, file = run(delayed([3, 1, 4, 2], bound, build), rounds), io.BytesIO()
    draws = list_draws(first)
    assert any(count < 4 for _, count in draws)
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = delayed([0, 0, 0, 0], bound, build)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert list_draws(second) == draws
    known, other = (one._known.surrogate.tracking for one in (first, second))
    assert torch.equal(known.mean, other.mean)
    assert torch.equal(known.covariance, other.covariance)
    run(first, 6)
    run(second, 6)
    assert torch.equal(first.train_X, second.train_X)
    assert torch.equal(first.dictionary, second.dictionary)
    assert torch.equal(first.model.mean(CHOICES), second.model.mean(CHOICES))


def test_each_trial_may_have_a_function_of_its_own() -> None:
    matrices = torch.stack([task_matrix(3, seed=seed) for seed in (0, 1)])
    bounds = torch.tensor([10.0, 20.0], dtype=torch.double)
    together = MTKB(ICMKernel(rbf(0.5), matrices), choices=CHOICES, norm_bound=bounds, noise_scale=0.1, seed=[0, 1])
    run(together, 5)
    for i in range(2):
        alone = MTKB(
            ICMKernel(rbf(0.5), matrices[i]), choices=CHOICES, norm_bound=bounds[i].item(), noise_scale=0.1, seed=i
        )
        assert torch.equal(run(alone, 5).train_X, together.train_X[i])


@pytest.mark.slow
@pytest.mark.parametrize("oversampling", [None, 3.0], ids=["theory's", "default"])
def test_regret_stays_within_the_theorems_factor_of_mt_kb(oversampling: float | None) -> None:
    """Theorem 3: at most 2 rho^(3/2) times MT-KB's, on the paper's RKHS functions with its settings."""
    domain = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
    final = {MTKB: [], MTBKB: []}
    for seed in range(4):
        A = torch.rand(2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
        f = RKHSFunction.draw(ICMKernel(rbf(0.2), A.T @ A), domain, seed=seed)
        for kind, averages in final.items():
            options = {"oversampling": oversampling} if kind is MTBKB else {}
            chosen = kind(f.kernel, choices=domain, norm_bound=f.norm, noise_scale=0.1, seed=seed, **options)
            generator, weights = torch.Generator().manual_seed(seed), []
            for _ in range(80):
                x = chosen.ask()
                weights.append(chosen.asked_weights)
                chosen.tell(x, f(x) + 0.1 * torch.randn(1, 2, generator=generator, dtype=torch.double))
            scalarization = ChebyshevScalarization(torch.cat(weights))
            averages.append(average_regret(scalarized_regret(scalarization, f(chosen.train_X), f(domain)))[-1])
    rho = (1 + 0.5) / (1 - 0.5)
    assert torch.stack(final[MTBKB]).mean() <= 2 * rho**1.5 * torch.stack(final[MTKB]).mean()
