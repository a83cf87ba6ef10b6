"""MT-KB as ask and tell."""

from __future__ import annotations

import io

import numpy as np
import oracles
import pytest
import torch
from catalogue import KERNELS, PATHS, Builder, general_sum, icm, rbf, similarity, task_matrix
from suites import close
from torch import Tensor

from mtbo_torch import MTKB, DirichletWeights, FixedWeights, ICMKernel, LinearScalarization, UniformWeights
from mtbo_torch.metrics import average_regret, scalarized_regret
from mtbo_torch.problems import RKHSFunction
from mtbo_torch.scalarizations import ChebyshevScalarization

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.double)
CHOICES = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
SPACES = [{"bounds": BOUNDS}, {"choices": CHOICES}]
space = pytest.mark.parametrize("where", SPACES, ids=["bounds", "choices"])


def objective(x: Tensor) -> Tensor:
    return torch.stack([torch.sin(3 * x[:, 0]), torch.cos(2 * x[:, 1]), x.sum(dim=-1)], dim=-1)


def strategy(where: dict[str, Tensor], build: Builder = icm, **kwargs: object) -> MTKB:
    options = {"norm_bound": 1.0, "bound": "norm", "noise_scale": 0.1, "num_restarts": 2, "raw_samples": 16}
    return MTKB(build(3, 2).kernel, **where, **(options | kwargs))


def run(mtkb: MTKB, rounds: int, q: int = 1) -> MTKB:
    for _ in range(rounds):
        x = mtkb.ask(q)
        mtkb.tell(x, objective(x))
    return mtkb


def test_a_choice_is_the_papers_maximizer() -> None:
    case, mtkb = icm(3, 2), run(strategy({"choices": CHOICES}), 6)
    X, Y = mtkb.train_X.numpy(), mtkb.train_Y.numpy()
    radius = oracles.exact_radius(oracles.info_gain(case.gamma, X, 0.1, 3), 1.0, 0.1, 0.1, 0.1)
    close(mtkb.radius, radius, 1e-8)
    mean, covariance = oracles.posterior(case.gamma, X, Y, 0.1, CHOICES.numpy())
    chosen = mtkb.ask()
    values = oracles.chebyshev_ucb(mtkb.asked_weights[0].numpy(), radius, mean, covariance)
    assert torch.equal(chosen[0], CHOICES[int(np.argmax(values))])


def test_a_point_of_a_box_is_a_maximizer() -> None:
    case, mtkb = icm(3, 2), run(strategy({"bounds": BOUNDS}, num_restarts=8, raw_samples=64), 5)
    X, Y = mtkb.train_X.numpy(), mtkb.train_Y.numpy()
    chosen, radius = mtkb.ask(), mtkb.radius.item()
    w = mtkb.asked_weights[0].numpy()

    def value(Z: Tensor) -> np.ndarray:
        return oracles.chebyshev_ucb(w, radius, *oracles.posterior(case.gamma, X, Y, 0.1, Z.numpy()))

    grid = torch.cartesian_prod(torch.linspace(0, 1, 15), torch.linspace(0, 2, 15)).double()
    assert value(chosen)[0] >= value(grid).max() - 1e-6


@space
def test_points_lie_in_the_space_and_seeds_decide(where: dict[str, Tensor]) -> None:
    first, again, other = (run(strategy(where, seed=seed), 4) for seed in (0, 0, 1))
    assert torch.equal(first.train_X, again.train_X)
    assert not torch.equal(first.train_X, other.train_X)
    if "bounds" in where:
        assert ((first.train_X >= BOUNDS[0]) & (first.train_X <= BOUNDS[1])).all()
    else:
        assert all((x == CHOICES).all(dim=-1).any() for x in first.train_X)


def test_a_fixed_input_leaves_the_choices_that_have_it() -> None:
    mtkb = run(strategy({"choices": CHOICES}), 2)
    for i in (3, 17):
        assert torch.equal(mtkb.ask(fixed={0: CHOICES[i, 0].item()}), CHOICES[i : i + 1])


@space
def test_the_global_generator_is_left_alone(where: dict[str, Tensor]) -> None:
    state = torch.get_rng_state()
    run(strategy(where), 2)
    assert torch.equal(torch.get_rng_state(), state)


@space
def test_asking_for_several_spreads_them(where: dict[str, Tensor]) -> None:
    mtkb = run(strategy(where, norm_bound=20.0), 3)
    points = mtkb.ask(4)
    assert points.shape == (4, 2)
    assert mtkb.asked_weights.shape == (4, 3)
    assert torch.pdist(points).min() > 0
    assert mtkb.num_observations == 3
    values = objective(points)
    mtkb.tell(points, values)
    assert torch.equal(mtkb.train_Y[3:], values)


@pytest.mark.parametrize("build", PATHS, ids=lambda build: build.__name__)
def test_the_followed_choices_agree_with_the_model(build: Builder) -> None:
    mtkb = run(strategy({"choices": CHOICES}, build=build), 5, q=2)
    mean, norm = (mtkb._surrogate.tracking.mean, mtkb._surrogate.tracking.norm)
    close(mean, mtkb.model.mean(CHOICES), 1e-10)
    close(norm, mtkb.model.covariance_norm(CHOICES), 1e-10)
    _, variance = (mtkb._surrogate.tracking.mean, mtkb._surrogate.tracking.variance())
    close(variance, mtkb.model.covariance(CHOICES).diagonal(dim1=-2, dim2=-1), 1e-10)
    close(mtkb.model.train_targets, mtkb.train_Y, 0)


@space
@pytest.mark.parametrize("build", [similarity, general_sum], ids=["kronecker", "dense"])
def test_saving_continues_bit_for_bit(where: dict[str, Tensor], build: Builder) -> None:
    mtkb = run(run(strategy(where, build=build), 3), 2, q=2)
    file = io.BytesIO()
    torch.save(mtkb.state_dict(), file)
    run(mtkb, 3)
    file.seek(0)
    resumed = strategy(where, build=build, seed=99)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    run(resumed, 3)
    assert torch.equal(resumed.train_X, mtkb.train_X)
    assert torch.equal(resumed.radius, mtkb.radius)
    assert torch.equal(resumed.model.mean(CHOICES), mtkb.model.mean(CHOICES))


def test_saving_continues_bit_for_bit_with_many_restarts() -> None:
    options = {"num_restarts": 70, "raw_samples": 128}
    mtkb = run(strategy({"bounds": BOUNDS}, **options), 5)
    resumed = strategy({"bounds": BOUNDS}, **options)
    resumed.load_state_dict(mtkb.state_dict())
    assert torch.equal(run(mtkb, 2).train_X, run(resumed, 2).train_X)


def test_the_default_dtype_does_not_matter() -> None:
    before = torch.get_default_dtype()
    try:
        runs = []
        for dtype in (torch.float, torch.double):
            torch.set_default_dtype(dtype)
            runs.append(run(strategy({"choices": CHOICES}), 4).train_X)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(*runs)


def test_what_is_handed_out_or_in_is_not_shared() -> None:
    choices = CHOICES.clone()
    mtkb, twin = strategy({"choices": choices}), strategy({"choices": CHOICES})
    run(mtkb, 2)
    choices.zero_()
    mtkb.train_X.zero_()
    assert torch.equal(run(mtkb, 2).train_X, run(twin, 4).train_X)


def test_states_are_snapshots() -> None:
    mtkb = run(strategy({"choices": CHOICES}), 3)
    state = mtkb.state_dict()
    run(mtkb, 3)
    assert len(state["train_X"]) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eta": 0.2}, "eta"),
        ({"norm_bound": 3.0}, "norm_bound"),
        ({"scalarization": LinearScalarization}, "scalarization"),
        ({"weights": DirichletWeights(3, 2.0)}, "weights"),
        ({"build": KERNELS[4]}, "kernel"),
        ({"where": {"choices": CHOICES + 0.1}}, "choices"),
    ],
)
def test_a_state_of_other_settings_is_refused(change: dict[str, object], message: str) -> None:
    state = run(strategy({"choices": CHOICES}), 2).state_dict()
    other = run(strategy(**({"where": {"choices": CHOICES}} | change)), 3)
    before = other.train_X
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(state)
    assert torch.equal(other.train_X, before)


def test_a_state_that_is_not_ours_is_refused() -> None:
    mtkb = run(strategy({"choices": CHOICES}), 3)
    state = mtkb.state_dict()
    junk = {"train_X": 3, "memory": {}, "generators": [None], "portions": [7], "asked_weights": None}
    broken = [{"train_X": CHOICES}, None] + [state | {key: value} for key, value in junk.items()]
    for bad in broken:
        with pytest.raises(ValueError, match="state_dict should come from MTKB"):
            mtkb.load_state_dict(bad)
    assert torch.equal(mtkb.train_X, state["train_X"])
    assert torch.equal(run(mtkb, 2).train_X, run(strategy({"choices": CHOICES}), 5).train_X)


@space
def test_points_it_did_not_propose_and_single_vectors(where: dict[str, Tensor]) -> None:
    mtkb = strategy(where)
    x = torch.tensor([[0.3, 0.7], [0.9, 0.1]], dtype=torch.double)
    mtkb.tell(x, objective(x))
    mtkb.tell(x[0] + 0.1, objective(x)[0])
    assert mtkb.num_observations == 3
    assert mtkb.ask().shape == (1, 2)


@pytest.mark.parametrize("where", SPACES[1:], ids=["choices"])
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(1, 2), torch.zeros(1, 2), "n = 3 tasks"),
        (torch.zeros(1, 2), torch.full((1, 3), torch.nan), "y should contain finite numbers"),
        (torch.full((1, 2), torch.inf), torch.zeros(1, 3), "x should contain finite numbers"),
        (torch.zeros(1, 3), torch.zeros(1, 3), "d = 2"),
        (torch.zeros(2, 2), torch.zeros(1, 3), "same leading shape"),
        (torch.zeros(0, 2), torch.zeros(0, 3), "at least one row"),
        (torch.zeros(1, 2, dtype=torch.int), torch.zeros(1, 3), "floating-point"),
        ([["warm", 0.0]], torch.zeros(1, 3), "torch.Tensor"),
    ],
)
def test_a_refused_tell_leaves_the_state_as_it_was(
    where: dict[str, Tensor], x: object, y: Tensor, message: str
) -> None:
    mtkb, twin = (run(strategy(where), 2) for _ in range(2))
    x = x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
    with pytest.raises(ValueError, match=message):
        mtkb.tell(x, y.double())
    assert torch.equal(mtkb.train_X, twin.train_X)
    assert torch.equal(run(mtkb, 2).train_X, run(twin, 2).train_X)


def test_single_precision_runs_and_wrong_precision_is_refused() -> None:
    mtkb = strategy({"choices": CHOICES.float()})
    run(mtkb, 3)
    assert mtkb.train_X.dtype == torch.float
    with pytest.raises(ValueError, match="dtype"):
        mtkb.tell(CHOICES[:1], objective(CHOICES[:1]))


def test_scalarization_and_weights_can_be_chosen() -> None:
    assert isinstance(strategy({"choices": CHOICES}, scalarization=LinearScalarization).weights, UniformWeights)
    fixed = torch.tensor([0.0, 0.0, 1.0], dtype=torch.double)
    mtkb = run(strategy({"choices": CHOICES}, weights=FixedWeights(fixed), scalarization=LinearScalarization), 25)
    best = objective(CHOICES)[:, 2].max()
    assert mtkb.train_Y[-5:, 2].mean() > best - 0.3


def test_the_callers_kernel_is_not_shared() -> None:
    kernel = ICMKernel(rbf(0.5), task_matrix(3))
    mtkb = MTKB(kernel, choices=CHOICES, norm_bound=1.0, bound="norm", noise_scale=0.1)
    run(mtkb, 2)
    before = mtkb.model.mean(CHOICES)
    kernel.base_kernel.lengthscale = 3.0
    assert torch.equal(mtkb.model.mean(CHOICES), before)


@pytest.mark.slow
def test_the_regret_falls_and_the_bound_holds() -> None:
    domain = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
    averages = []
    for seed in range(5):
        f = RKHSFunction.draw(ICMKernel(rbf(0.2), task_matrix(2, seed=seed)), domain, seed=seed)
        mtkb = MTKB(f.kernel, choices=domain, norm_bound=f.norm, bound="norm", noise_scale=0.1, seed=seed)
        generator, weights, covered = torch.Generator().manual_seed(seed), [], True
        for _ in range(60):
            x = mtkb.ask()
            weights.append(mtkb.asked_weights)
            mean, norm = (mtkb._surrogate.tracking.mean, mtkb._surrogate.tracking.norm)
            error = (f(domain) - mean).norm(dim=-1)
            covered &= bool((error <= mtkb.radius * norm.sqrt() + 1e-9).all())
            mtkb.tell(x, f(x) + 0.1 * torch.randn(1, 2, generator=generator, dtype=torch.double))
        scalarization = ChebyshevScalarization(torch.cat(weights))
        averages.append(average_regret(scalarized_regret(scalarization, f(mtkb.train_X), f(domain))))
        assert covered
    mean_curve = torch.stack(averages).mean(dim=0)
    assert mean_curve[-1] < 0.5 * mean_curve[:5].mean()
