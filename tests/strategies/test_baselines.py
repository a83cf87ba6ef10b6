"""The baselines against their own papers, and what every strategy promises."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import oracles
import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models import SingleTaskGP
from catalogue import Builder, general_sum, icm, independent, rbf, similarity
from gpytorch.kernels import MultitaskKernel
from suites import close
from torch import Tensor

from mtbo_torch import MTBKB, MTKB, Category, ExactMultiTaskGP, Inputs, LinearScalarization, Real
from mtbo_torch.confidence import independent_nystrom_radius, independent_radius, mobo_radius
from mtbo_torch.space import Box
from mtbo_torch.strategies import ITBKB, ITKB, MOBO, NEHVI, NParEGO, RandomSearch, SobolSearch, Strategy

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.double)
CHOICES = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
SPACES = [{"bounds": BOUNDS}, {"choices": CHOICES}]
space = pytest.mark.parametrize("where", SPACES, ids=["bounds", "choices"])
KERNELIZED = [MTKB, MTBKB, ITKB, ITBKB, MOBO]
PLAIN = [RandomSearch, SobolSearch]
every = pytest.mark.parametrize("kind", [*KERNELIZED, *PLAIN], ids=lambda kind: kind.__name__)
# All on choices; on a box, those that search it are slow.
every_in_its_space = pytest.mark.parametrize(
    ("kind", "where"),
    [
        *((kind, SPACES[1]) for kind in [*KERNELIZED, *PLAIN]),
        *((kind, SPACES[0]) for kind in PLAIN),
        *(pytest.param(kind, SPACES[0], marks=pytest.mark.slow) for kind in KERNELIZED),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else next(iter(value)),
)


def objective(x: Tensor) -> Tensor:
    return torch.stack([torch.sin(3 * x[..., 0]), torch.cos(2 * x[..., 1]), x.sum(dim=-1)], dim=-1)


def build(kind: type[Strategy], where: dict[str, Tensor], case: Builder = icm, **kwargs: object) -> Strategy:
    if kind in KERNELIZED:
        options = {"norm_bound": 1.0, "bound": "norm", "noise_scale": 0.1, "num_restarts": 3, "raw_samples": 32}
        return kind(case(3, 2).kernel, **where, **(options | kwargs))
    return kind(3, **where, **kwargs)


def run(strategy: Strategy, rounds: int, q: int = 1) -> Strategy:
    for _ in range(rounds):
        x = strategy.ask(q)
        strategy.tell(x, objective(x))
    return strategy


def posterior_of_cut(case: Builder, strategy: Strategy, Z: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variances, task by task."""
    gamma = oracles.cut(case(3, 2).gamma)
    X, Y = strategy.train_X.numpy(), strategy.train_Y.numpy()
    mean, covariance = oracles.posterior(gamma, X, Y, 0.1, Z.numpy())
    return mean, np.diag(covariance).reshape(len(Z), 3)


kernels = pytest.mark.parametrize("case", [icm, similarity, general_sum, independent], ids=lambda case: case.__name__)


@kernels
def test_itkb_is_gp_ucb_on_each_task(case: Builder) -> None:
    itkb = run(build(ITKB, {"choices": CHOICES}, case), 6)
    gain = oracles.largest_gain(oracles.cut(case(3, 2).gamma), itkb.train_X.numpy(), 0.1, 3)
    radius = oracles.independent_radius(gain, 3, 1.0, 0.1, 0.1, 0.1)
    close(itkb.radius, radius, 1e-8)
    mean, variances = posterior_of_cut(case, itkb, CHOICES)
    chosen = itkb.ask()
    w = itkb.asked_weights[0].numpy()
    values = [
        oracles.chebyshev(w, m, np.zeros(3)) + max(w) * radius * math.sqrt(max(v))
        for m, v in zip(mean, variances, strict=True)
    ]
    assert torch.equal(chosen[0], CHOICES[int(np.argmax(values))])


@kernels
def test_itbkb_with_all_points_in_the_dictionary_is_bkb_on_each_task(case: Builder) -> None:
    itbkb = run(build(ITBKB, {"choices": CHOICES}, case, oversampling=1e9), 6)
    mean, variances = posterior_of_cut(case, itbkb, CHOICES)
    _, observed = posterior_of_cut(case, itbkb, itbkb.train_X)
    kappa2 = max(np.diag(case(3, 2).gamma(x, x)).max() for x in CHOICES.numpy())
    # The largest sum, and the sum of the largest: one task has the largest variance everywhere unless kernels differ.
    largest = observed.max(axis=1, keepdims=True).repeat(3, axis=1)
    radius = oracles.independent_nystrom_radius(largest, kappa2, 3, 1.0, 0.1, 0.1, 0.1, 0.5)
    assert radius >= oracles.independent_nystrom_radius(observed, kappa2, 3, 1.0, 0.1, 0.1, 0.1, 0.5)
    if case in (icm, similarity):
        close(itbkb.radius, oracles.independent_nystrom_radius(observed, kappa2, 3, 1.0, 0.1, 0.1, 0.1, 0.5), 1e-6)
    close(itbkb.radius, radius, 1e-6)
    chosen = itbkb.ask()
    w = itbkb.asked_weights[0].numpy()
    values = [
        oracles.chebyshev(w, m, np.zeros(3)) + max(w) * radius * math.sqrt(max(v))
        for m, v in zip(mean, variances, strict=True)
    ]
    assert torch.equal(chosen[0], CHOICES[int(np.argmax(values))])


def mobo_values(case: Builder, mobo: Strategy, Z: Tensor, s: Callable[[np.ndarray, np.ndarray], float]) -> np.ndarray:
    mean, variances = posterior_of_cut(case, mobo, Z)
    radius = math.sqrt(0.125 * math.log(2 * (len(mobo.train_X) + 1) + 1))
    w = mobo.asked_weights[0].numpy()
    return np.array([s(w, m + radius * np.sqrt(v)) for m, v in zip(mean, variances, strict=True)])


@kernels
@pytest.mark.parametrize("is_linear", [False, True])
def test_mobo_is_optimistic_in_every_component(case: Builder, is_linear: bool) -> None:
    options = {"scalarization": LinearScalarization} if is_linear else {}
    mobo = run(build(MOBO, {"choices": CHOICES}, case, **options), 6)
    chosen = mobo.ask()
    s = oracles.linear if is_linear else lambda w, y: oracles.chebyshev(w, y, np.zeros(3))
    assert torch.equal(chosen[0], CHOICES[int(np.argmax(mobo_values(case, mobo, CHOICES, s)))])


def test_mobo_on_a_box_and_several_points() -> None:
    mobo = run(build(MOBO, {"bounds": BOUNDS}, num_restarts=8, raw_samples=64), 3)
    chosen = mobo.ask()
    grid = torch.cartesian_prod(torch.linspace(0, 1, 15), torch.linspace(0, 2, 15)).double()
    s = lambda w, y: oracles.chebyshev(w, y, np.zeros(3))  # noqa: E731
    assert mobo_values(icm, mobo, chosen, s)[0] >= mobo_values(icm, mobo, grid, s).max() - 1e-5
    assert mobo.ask(3).shape == (3, 2)


def test_radii_are_the_printed_ones() -> None:
    close(
        independent_radius(2.5, 3, 1.2, 0.3, 0.2, 0.05), oracles.independent_radius(2.5, 3, 1.2, 0.3, 0.2, 0.05), 1e-6
    )
    variances = np.array([[0.3, 0.1], [0.4, 0.2]])
    ours = independent_nystrom_radius(0.7 / 0.2, 2, 1.5, 2, 1.2, 0.3, 0.2, 0.05, 0.4)
    close(ours, oracles.independent_nystrom_radius(variances, 1.5, 2, 1.2, 0.3, 0.2, 0.05, 0.4), 1e-6)
    assert mobo_radius(7) == math.sqrt(0.125 * math.log(15))


@pytest.mark.parametrize("largest_variance", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("delta", [1.0, 0.05])
def test_a_negative_logarithm_counts_as_zero(largest_variance: float, delta: float) -> None:
    ours = independent_nystrom_radius(0.7 / 0.2, 2, largest_variance, 2, 1.2, 0.3, 0.2, delta, 0.4)
    no_variances = np.zeros((2, 2))  # without the product of the logarithm and their sum
    close(ours, oracles.independent_nystrom_radius(no_variances, 1.0, 2, 1.2, 0.3, 0.2, delta, 0.4), 1e-6)


@every_in_its_space
def test_saving_continues_bit_for_bit(kind: type[Strategy], where: dict[str, Tensor]) -> None:
    strategy = run(run(build(kind, where), 4), 2, q=2)
    file = io.BytesIO()
    torch.save(strategy.state_dict(), file)
    run(strategy, 3)
    file.seek(0)
    resumed = build(kind, where, seed=99)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(run(resumed, 3).train_X, strategy.train_X)
    assert torch.equal(resumed.asked_weights, strategy.asked_weights)
    assert resumed.num_observations == strategy.num_observations == 11


@every_in_its_space
def test_trials_side_by_side_are_the_trials_alone(kind: type[Strategy], where: dict[str, Tensor]) -> None:
    together = run(build(kind, where, seed=[3, 4, 5]), 6)
    alone = torch.stack([run(build(kind, where, seed=seed), 6).train_X for seed in (3, 5)])
    close(together.train_X[[0, 2]], alone, 0 if "choices" in where else 1e-5)


def test_the_same_seed_meets_the_same_weights_in_every_strategy() -> None:
    strategies = [build(kind, {"choices": CHOICES}, seed=[3, 4]) for kind in (*KERNELIZED, *PLAIN)]
    for _ in range(3):
        for strategy in strategies:
            run(strategy, 1)
        assert all(torch.equal(strategy.asked_weights, strategies[0].asked_weights) for strategy in strategies)


@space
@every
def test_the_global_generator_is_left_alone(kind: type[Strategy], where: dict[str, Tensor]) -> None:
    state = torch.get_rng_state()
    run(build(kind, where), 2)
    assert torch.equal(torch.get_rng_state(), state)


@space
@pytest.mark.parametrize("kind", PLAIN)
def test_searches_cover_the_space(kind: type[Strategy], where: dict[str, Tensor]) -> None:
    points = run(build(kind, where), 256).train_X
    if "choices" in where:
        counts = (points.unsqueeze(1) == CHOICES).all(dim=-1).sum(dim=0)
        assert counts.sum() == 256
        assert (counts > 0).float().mean() > 0.9
    else:
        assert ((points >= BOUNDS[0]) & (points <= BOUNDS[1])).all()
        scaled = points / BOUNDS[1]
        cells = (scaled * 4).long().clamp_max(3) @ torch.tensor([4, 1])
        counts = torch.bincount(cells, minlength=16)
        assert counts.min() > (15 if kind is SobolSearch else 4)


@space
def test_sobol_points_asked_for_in_parts_are_those_asked_for_at_once(where: dict[str, Tensor]) -> None:
    at_once, in_parts = build(SobolSearch, where), build(SobolSearch, where)
    points = torch.cat([in_parts.ask(q) for q in (3, 1, 2)])
    assert torch.equal(points, at_once.ask(6))


@pytest.mark.filterwarnings("ignore:A not p.d.", "ignore:Optimization failed")
@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (NParEGO, SPACES[1]),
        pytest.param(NEHVI, SPACES[0], marks=pytest.mark.slow),
        pytest.param(partial(NParEGO, shares_tasks=True), SPACES[0], marks=pytest.mark.slow),
        pytest.param(partial(NEHVI, shares_tasks=True), SPACES[1], marks=pytest.mark.slow),
    ],
    ids=["NParEGO on choices", "NEHVI on a box", "NParEGO with our model on a box", "NEHVI with our model on choices"],
)
def test_botorchs_references_run_and_continue(kind: type[Strategy], where: dict[str, Tensor]) -> None:
    strategy = run(build(kind, where, seed=[0, 1]), 7)
    resumed = build(kind, where, seed=[8, 9])
    resumed.load_state_dict(strategy.state_dict())
    points = strategy.ask()
    assert torch.equal(resumed.ask(), points)
    assert points.shape == (2, 1, 2)
    assert ((points >= BOUNDS[0]) & (points <= BOUNDS[1])).all()


def test_botorchs_references_answer_with_what_they_found_last(monkeypatch: pytest.MonkeyPatch) -> None:
    found = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(3, 2, dtype=torch.double)
    points = iter(found.split(1))
    monkeypatch.setattr(Box, "optimize", lambda *arguments: next(points))
    strategy = build(NParEGO, SPACES[0])
    X = strategy.ask(6)
    strategy.tell(X, objective(X))
    assert torch.equal(torch.cat([strategy.ask(), strategy.ask(2)]), found)


class Peak(AcquisitionFunction):
    """The same hill in every box, in shares of its sides."""

    top = torch.tensor([0.3, 0.6, 0.8], dtype=torch.double)

    def __init__(self, box: Tensor) -> None:
        super().__init__(SingleTaskGP(box, box[:, :1]))
        self.box = box

    def forward(self, X: Tensor) -> Tensor:
        low, high = self.box
        return -((X.squeeze(-2) - low) / (high - low) - self.top).square().sum(dim=-1)


@pytest.mark.filterwarnings("ignore:Data")
@pytest.mark.parametrize("fixed", [{}, {1: 0.25}], ids=["free", "one input fixed"])
@pytest.mark.parametrize("sides", [[1.0, 1.0, 1.0], [1e5, 1e-4, 1.0]], ids=["alike", "very different"])
def test_what_botorch_finds_does_not_depend_on_the_units_of_the_inputs(
    sides: list[float], fixed: dict[int, float]
) -> None:
    low, width = torch.tensor([[-3.0, 0.5, 40.0], sides], dtype=torch.double)
    box = torch.stack([low, low + width])
    given = {place: (low[place] + share * width[place]).item() for place, share in fixed.items()}
    torch.manual_seed(0)
    x = Box(box).optimize(Peak(box), num_restarts=4, raw_samples=16, fixed=given)
    assert all(x[0, place] == value for place, value in given.items())
    expected = torch.tensor([[fixed.get(i, share) for i, share in enumerate(Peak.top.tolist())]], dtype=torch.double)
    close((x - low) / width, expected, 1e-6)


def test_botorchs_references_on_our_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The acquisition gets one fitted model of all tasks in the user's units, with a category among the inputs."""
    asked: list[ExactMultiTaskGP] = []

    def keep(self: NEHVI, model: ExactMultiTaskGP, *others: object) -> None:
        asked.append(model)
        raise InterruptedError

    monkeypatch.setattr(NEHVI, "_acquisition", keep)
    inputs = Inputs({"heat": Real(300, 900), "metal": Category("Pd", "Ni")})
    strategy = NEHVI(2, bounds=inputs, signs=[1, -1], shares_tasks=True)
    X = inputs.encode([{"heat": 300 + 50 * i, "metal": ("Pd", "Ni")[i % 2]} for i in range(8)])
    Y = torch.stack([(X[:, 0] / 200).sin() + X[:, 1], 100 * (X[:, 0] / 200).sin()], dim=-1)
    strategy.tell(X, Y)
    with pytest.raises(InterruptedError):
        strategy.ask()
    (model,) = asked
    assert type(model) is ExactMultiTaskGP
    apart = (model.posterior(X).mean - Y * torch.tensor([1, -1])).abs() / Y.std(dim=0)
    assert apart.max() < 0.2
    with pytest.raises(ValueError, match="shares_tasks"):
        NEHVI(2, bounds=inputs, signs=[1, -1]).load_state_dict(strategy.state_dict())


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(ValueError, match="at most 4"):
        NEHVI(5, bounds=BOUNDS)
    with pytest.raises(ValueError, match="either bounds or choices"):
        RandomSearch(2)
    with pytest.raises(ValueError, match="num_tasks"):
        SobolSearch(0, bounds=BOUNDS)
    foreign = MultitaskKernel(rbf(0.5), num_tasks=3)
    for kind in (ITKB, ITBKB, MOBO):
        with pytest.raises(ValueError, match="MultitaskKernel"):
            kind(foreign, bounds=BOUNDS, norm_bound=1.0, noise_scale=0.1)
    with pytest.raises(ValueError, match="strategy"):
        build(RandomSearch, {"bounds": BOUNDS}).load_state_dict(build(SobolSearch, {"bounds": BOUNDS}).state_dict())
