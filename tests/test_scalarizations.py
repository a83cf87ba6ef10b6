"""Scalarizations and weights."""

from __future__ import annotations

import math

import numpy as np
import oracles
import pytest
import torch
from botorch.acquisition.objective import MCAcquisitionObjective
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.multi_objective.pareto import is_non_dominated
from catalogue import data, icm, rbf, task_matrix
from suites import close
from torch import Tensor

from mtbo_torch import (
    BoxWeights,
    ChebyshevScalarization,
    DirichletWeights,
    ExactMultiTaskGP,
    FixedWeights,
    HypervolumeScalarization,
    ICMKernel,
    InverseUniformWeights,
    LinearScalarization,
    ScalarizedMultiTaskUCB,
    SphereWeights,
    UniformWeights,
)
from mtbo_torch.scalarizations import ObjectiveScalarization, Scalarization

DISTRIBUTIONS = [
    BoxWeights(torch.tensor([0.1, 0.0, 0.3]), torch.tensor([0.5, 0.4, 1.0])),
    UniformWeights(3),
    InverseUniformWeights(3),
    DirichletWeights(3, 0.5),
    DirichletWeights(3, torch.tensor([1.0, 2.0, 3.0])),
    FixedWeights(torch.tensor([1.0, 2.0, 1.0])),
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_values_against_the_formulae() -> None:
    weights = UniformWeights(3).sample(generator=generator(), dtype=torch.double)
    Y = torch.randn(4, 5, 3, generator=generator(1), dtype=torch.double)
    z = torch.tensor([0.1, -0.4, 0.3], dtype=torch.double)
    for i, j in np.ndindex(4, 5):
        y, w = Y[i, j].numpy(), weights.numpy()
        close(LinearScalarization(weights)(Y)[i, j], oracles.linear(w, y), 1e-12)
        close(ChebyshevScalarization(weights)(Y)[i, j], oracles.chebyshev(w, y, np.zeros(3)), 1e-12)
        close(ChebyshevScalarization(weights, ref_point=z)(Y)[i, j], oracles.chebyshev(w, y, z.numpy()), 1e-12)


@pytest.mark.parametrize("kind", [LinearScalarization, ChebyshevScalarization])
def test_batches_of_weights_pair_with_batches_of_values(kind: type) -> None:
    weights = UniformWeights(3).sample((4, 2), generator=generator(), dtype=torch.double)
    Y = torch.randn(6, 4, 2, 5, 3, generator=generator(1), dtype=torch.double)
    together = kind(weights)
    assert together(Y).shape == (6, 4, 2, 5)
    assert together.lipschitz.shape == (4, 2)
    for i, j in np.ndindex(4, 2):
        alone = kind(weights[i, j])
        close(together(Y)[:, i, j], alone(Y[:, i, j]), 1e-12)
        close(together.lipschitz[i, j], alone.lipschitz, 1e-12)


@pytest.mark.parametrize("kind", [LinearScalarization, ChebyshevScalarization])
def test_lipschitz_constants_hold_and_are_attained(kind: type) -> None:
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.double)
    scalarization = kind(weights)
    u, v = torch.randn(2, 2000, 3, generator=generator(), dtype=torch.double)
    slopes = (scalarization(u) - scalarization(v)).abs() / (u - v).norm(dim=-1)
    assert (slopes <= scalarization.lipschitz + 1e-12).all()
    steepest = weights if kind is LinearScalarization else torch.tensor([0.0, -1.0, 0.0], dtype=torch.double)
    rise = scalarization(steepest.unsqueeze(0)) - scalarization(torch.zeros(1, 3, dtype=torch.double))
    close(rise.abs() / steepest.norm(), scalarization.lipschitz.expand(1), 1e-12)


@pytest.mark.parametrize("kind", [LinearScalarization, ChebyshevScalarization])
def test_scalarizations_are_botorch_objectives(kind: type) -> None:
    scalarization = kind(torch.tensor([0.5, 0.5]))
    assert isinstance(scalarization, MCAcquisitionObjective)
    assert scalarization(torch.rand(16, 4, 2, 2), X=torch.rand(4, 2, 3)).shape == (16, 4, 2)
    assert scalarization.double().weights.dtype == torch.double


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda d: type(d).__name__)
def test_weights_lie_on_the_simplex(distribution: UniformWeights) -> None:
    assert distribution.sample().shape == (3,)
    assert distribution.sample(5).shape == (5, 3)
    draws = distribution.sample(torch.Size([50, 20]), generator=generator(), dtype=torch.double)
    assert draws.shape == (50, 20, 3)
    assert draws.dtype == torch.double
    assert (draws >= 0).all()
    close(draws.sum(dim=-1), torch.ones(50, 20), 1e-12)


@pytest.mark.parametrize("distribution", [*DISTRIBUTIONS, SphereWeights(3)], ids=lambda d: type(d).__name__)
def test_weights_follow_the_generator_and_leave_the_global_one_alone(distribution: UniformWeights) -> None:
    state = torch.get_rng_state()
    first, again = (distribution.sample(4, generator=generator(7)) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), state)


def test_inverse_uniform_weights_are_the_papers() -> None:
    u = torch.rand(6, 3, generator=generator(3), dtype=torch.double)
    alpha = u.sum(dim=-1, keepdim=True) / u
    expected = alpha / alpha.sum(dim=-1, keepdim=True)
    close(InverseUniformWeights(3).sample(6, generator=generator(3), dtype=torch.double), expected, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("concentration", [[0.5, 1.5, 2.0], [1e-3, 1e-3, 2e-3]])
def test_dirichlet_moments(concentration: list[float], dtype: torch.dtype) -> None:
    alpha = torch.tensor(concentration, dtype=torch.double)
    draws = DirichletWeights(3, alpha).sample(100_000, generator=generator(), dtype=dtype)
    assert draws.dtype == dtype
    mean = alpha / alpha.sum()
    close(draws.mean(dim=0), mean, 6e-3)
    close(draws.var(dim=0), mean * (1 - mean) / (alpha.sum() + 1), 6e-3)


@pytest.mark.parametrize("kind", [LinearScalarization, ChebyshevScalarization])
def test_a_single_vector_of_values(kind: type) -> None:
    scalarization = kind(torch.tensor([0.25, 0.75]))
    y = torch.tensor([4.0, 8.0])
    assert scalarization(y).shape == ()
    assert scalarization(y) == scalarization(y.unsqueeze(0))[0]


# The hypervolume's scalarization.


def test_the_hypervolume_scalarization_by_a_loop() -> None:
    weights = SphereWeights(3).sample((4,), generator=generator(), dtype=torch.double)
    Z = torch.randn(4, 3, generator=generator(1), dtype=torch.double)
    Y = torch.randn(5, 4, 6, 3, generator=generator(2), dtype=torch.double)
    together, ranking = HypervolumeScalarization(weights, Z), HypervolumeScalarization(weights, Z).chebyshev()
    assert together(Y).shape == (5, 4, 6)
    for i, j, k in np.ndindex(5, 4, 6):
        expected = oracles.hypervolume_scalar(weights[j].numpy(), Y[i, j, k].numpy(), Z[j].numpy())
        close(together(Y)[i, j, k], expected, 1e-12)
        close(HypervolumeScalarization(weights[j], Z[j])(Y[i, j])[k], expected, 1e-12)
        close(ranking(Y)[i, j, k], oracles.chebyshev(1 / weights[j].numpy(), Y[i, j, k].numpy(), Z[j].numpy()), 1e-12)
    assert (together(Y) > 0).any()
    assert (together(Y) == 0).any()
    close(ranking(Y).clamp_min(0) ** 3, together(Y), 1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_its_average_over_the_sphere_is_the_hypervolume(n: int) -> None:
    ref = torch.linspace(-0.5, 0.2, n, dtype=torch.double)
    Y = ref + torch.rand(10, n, generator=generator(n), dtype=torch.double) * torch.linspace(1, 2, n).double()
    Y[0, 0] = ref[0] - 0.1  # worth nothing
    weights = SphereWeights(n).sample(200_000, generator=generator(1), dtype=torch.double)
    best = HypervolumeScalarization(weights, ref)(Y.expand(200_000, 10, n)).amax(dim=-1)
    volume = math.pi ** (n / 2) / (2**n * math.gamma(n / 2 + 1)) * best
    expected = Hypervolume(ref).compute(Y[is_non_dominated(Y)])
    error = volume.std().item() / math.sqrt(200_000)
    assert error < 0.0025 * expected
    assert abs(volume.mean().item() - expected) < 4 * error + 1e-12
    # Any other constant or exponent would be off by far more than that.
    assert abs(2 * volume.mean().item() - expected) > 40 * error


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_its_lipschitz_constant_holds_and_is_attained(n: int) -> None:
    weights = SphereWeights(n).sample(3, generator=generator(n), dtype=torch.double)
    ref, upper = torch.linspace(-1, 0, n, dtype=torch.double), torch.linspace(1.5, 1, n, dtype=torch.double)
    s = HypervolumeScalarization(weights, ref, upper=upper)
    assert s.lipschitz.shape == (3,)
    u = ref + (upper - ref) * torch.rand(3, 40_000, n, generator=generator(1), dtype=torch.double)
    near = u[:, 20_000:] + 1e-5 * torch.randn(3, 20_000, n, dtype=torch.double)
    v = torch.cat([u.flip(-2)[:, :20_000], near], dim=1).clamp(ref, upper)
    rises = (s(u) - s(v)).abs()
    assert (rises <= s.lipschitz.unsqueeze(-1) * (u - v).norm(dim=-1) + 1e-12).all()
    # Steepest where all gains in units of the weights are the largest common one, in the task of least weight.
    for w, constant in zip(weights, s.lipschitz, strict=True):
        corner = ref + w * ((upper - ref) / w).amin()
        lower = corner.clone()
        lower[w.argmin()] -= 1e-5
        alone = HypervolumeScalarization(w, ref, upper=upper)
        rise = (alone(corner.unsqueeze(0)) - alone(lower.unsqueeze(0))) / 1e-5
        assert rise > 0.99 * constant
        assert rise <= constant * (1 + 1e-6)


def test_without_a_range_there_is_no_lipschitz_constant() -> None:
    with pytest.raises(ValueError, match=r'upper should be given .* bound="ellipsoid"'):
        HypervolumeScalarization(torch.ones(2), torch.zeros(2)).lipschitz  # noqa: B018


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_zero_weights_and_values_below_the_reference_point(dtype: torch.dtype) -> None:
    s = HypervolumeScalarization(torch.tensor([0.0, 1.0], dtype=dtype), torch.zeros(2, dtype=dtype))
    Y = torch.tensor([[1.0, 0.5], [100.0, 0.5], [-1.0, 0.5], [1.0, -0.5], [0.0, 0.0], [-1.0, -1.0]], dtype=dtype)
    Y.requires_grad_()
    values = s(Y)
    # A task without weight only has to exceed the reference point.
    close(values, torch.tensor([0.25, 0.25, 0.0, 0.0, 0.0, 0.0]), 1e-6)
    (gradient,) = torch.autograd.grad(values.sum(), Y)
    close(gradient, torch.tensor([[0.0, 1.0], [0.0, 1.0], *[[0.0, 0.0]] * 4]), 1e-6)


def test_it_is_monotone_and_ranks_as_its_chebyshev_scalarization() -> None:
    weights = SphereWeights(3).sample(generator=generator(), dtype=torch.double)
    s = HypervolumeScalarization(weights, torch.zeros(3, dtype=torch.double))
    Y = torch.rand(200, 3, generator=generator(1), dtype=torch.double)
    assert (s(Y + torch.rand(200, 3, dtype=torch.double)) >= s(Y)).all()
    assert torch.equal(s(Y).argsort(), s.chebyshev()(Y).argsort())


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_sphere_weights_are_uniform_on_the_sphere(n: int) -> None:
    draws = SphereWeights(n).sample(100_000, generator=generator(), dtype=torch.double)
    assert (draws > 0).all()
    close(draws.square().sum(dim=-1), torch.ones(100_000), 1e-12)
    squares = draws.square().mean(dim=0)
    close(squares, torch.full((n,), 1 / n), 6e-3)
    close(draws.square().square().mean(dim=0), torch.full((n,), 3 / (n * (n + 2))), 6e-3)
    if n == 2:
        angles = torch.atan2(draws[:, 1], draws[:, 0]).sort().values / (math.pi / 2)
        apart = (angles - torch.linspace(0, 1, 100_000, dtype=torch.double)).abs().max()
        assert apart < 1.95 / math.sqrt(100_000)  # Kolmogorov: once in 1000 by chance
    if n == 3:
        height = draws[:, 0].sort().values  # uniform, by Archimedes
        assert (height - torch.linspace(0, 1, 100_000, dtype=torch.double)).abs().max() < 1.95 / math.sqrt(100_000)


# Weights in a box.


def box(*limits: tuple[float, float]) -> BoxWeights:
    lower, upper = torch.tensor(limits, dtype=torch.double).unbind(dim=-1)
    return BoxWeights(lower, upper)


BOXES = {
    "all of the simplex": box(*[(0.0, 1.0)] * 3),
    "more than the simplex": box(*[(0.0, 5.0)] * 3),
    "two tasks": box((0.5, 0.8), (0.0, 1.0)),
    "one task": box((0.0, 1.0)),
    "one fixed task": box((1.0, 1.0)),
    "a fixed coordinate": box((0.25, 0.25), (0.0, 1.0), (0.1, 0.6)),
    "a coordinate fixed at zero": box((0.0, 0.0), (0.3, 0.7), (0.0, 1.0)),
    "a single point": box((0.25, 0.25), (0.25, 0.25), (0.5, 0.5)),
    "a corner from below": box((0.2, 1.0), (0.3, 1.0), (0.5, 1.0)),
    "a corner from above": box((0.0, 0.2), (0.0, 0.3), (0.0, 0.5)),
    "narrow": box((0.3, 0.30001), (0.3, 0.30001), (0.0, 1.0)),
    "tight from below": box((0.33333, 1.0), (0.33333, 1.0), (0.33333, 1.0)),
    "twenty": box(*[(0.02, 0.2)] * 20),
    "twenty free": box(*[(0.0, 1.0)] * 20),
    "tenths": box(*[(0.1, 0.1)] * 10),
}


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("name", BOXES)
def test_weights_lie_in_the_box(name: str, dtype: torch.dtype) -> None:
    distribution = BOXES[name]
    draws = distribution.sample((50, 40), generator=generator(), dtype=dtype).flatten(0, 1)
    slack = 1e-6 if dtype == torch.float else 1e-12
    assert draws.dtype == dtype
    close(draws.sum(dim=-1), torch.ones(2000), slack)
    assert (draws >= distribution.lower - slack).all()
    assert (draws <= distribution.upper + slack).all()
    LinearScalarization(draws)  # not refused: none is negative


@pytest.mark.parametrize("name", ["all of the simplex", "two tasks", "a fixed coordinate", "tight from below"])
def test_every_part_of_the_box_is_reached(name: str) -> None:
    distribution = BOXES[name]
    lower, upper, n = distribution.lower, distribution.upper, distribution.num_tasks
    draws = distribution.sample(50_000, generator=generator(), dtype=torch.double)
    # Points of the box by brute force: the simplex, cut.
    free = DirichletWeights(n).sample(400_000, generator=generator(1), dtype=torch.double)
    least = torch.maximum(lower, 1 - (upper.sum() - upper))
    most = torch.minimum(upper, 1 - (lower.sum() - lower))
    close(draws.amin(dim=0), least, 5e-3)
    close(draws.amax(dim=0), most, 5e-3)
    wanted = free[((free >= lower - 1e-3) & (free <= upper + 1e-3)).all(dim=-1)][:300]
    if len(wanted):
        assert torch.cdist(wanted, draws).amin(dim=-1).max() < 0.02


def test_no_task_is_favoured_by_its_place() -> None:
    draws = BOXES["all of the simplex"].sample(100_000, generator=generator(), dtype=torch.double)
    close(draws.mean(dim=0), torch.full((3,), 1 / 3), 5e-3)
    assert (draws.var(dim=0).max() - draws.var(dim=0).min()) < 2e-3


# Objectives that are linear in the tasks.

C = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, -2.0]], dtype=torch.double)
SUM = torch.tensor([[1.0, -1.0, 0.5], [0.3, 0.2, 2.0]], dtype=torch.double)
SIGNS = torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=torch.double))
W2 = torch.tensor([0.3, 0.7], dtype=torch.double)
W3 = torch.tensor([0.2, 0.5, 0.3], dtype=torch.double)


def of_objectives(weights: Tensor) -> list[Scalarization]:
    ref = torch.linspace(-3, -2, weights.shape[-1], dtype=torch.double)
    return [
        LinearScalarization(weights),
        ChebyshevScalarization(weights, ref),
        HypervolumeScalarization(weights, ref, upper=ref + 10),
    ]


@pytest.mark.parametrize("matrix", [C, SUM, SIGNS], ids=["some", "sums", "signs"])
def test_objectives_are_scalarized(matrix: Tensor) -> None:
    Y = torch.randn(6, 3, generator=generator(), dtype=torch.double)
    deviations = torch.rand(6, len(matrix), generator=generator(1), dtype=torch.double)
    weights = W2 if len(matrix) == 2 else W3
    for inner in of_objectives(weights):
        s = ObjectiveScalarization(inner, matrix)
        assert s.num_tasks == 3
        close(s(Y), inner(torch.einsum("kn,qn->qk", matrix, Y)), 1e-12)
        close(s.lipschitz, inner.lipschitz * np.linalg.norm(matrix.numpy(), 2), 1e-12)
        if isinstance(inner, LinearScalarization):
            close(s.directions, (weights @ matrix).unsqueeze(0), 1e-12)
            close(s.upper_bound(Y, deviations[:, :1]), inner(Y @ matrix.T) + deviations[:, 0], 1e-12)
        else:
            close(s.directions, matrix, 1e-12)
            close(s.upper_bound(Y, deviations), inner(Y @ matrix.T + deviations), 1e-12)


def test_objectives_with_a_batch_of_weights() -> None:
    weights = UniformWeights(2).sample(4, generator=generator(), dtype=torch.double)
    Y = torch.randn(5, 4, 6, 3, generator=generator(1), dtype=torch.double)
    for inner in of_objectives(weights):
        s = ObjectiveScalarization(inner, SUM)
        close(s(Y), inner(Y @ SUM.T), 1e-12)
        assert s.lipschitz.shape == (4,)
    assert ObjectiveScalarization(LinearScalarization(weights), SUM).directions.shape == (4, 1, 3)


@pytest.mark.parametrize("bound", ["norm", "ellipsoid"])
def test_tasks_to_be_minimized_are_tasks_with_their_sign_turned(bound: str) -> None:
    X, Y, Z = data(8, 3, 2)
    model = ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=0.1)
    turned = ExactMultiTaskGP(X, Y @ SIGNS, ICMKernel(rbf(0.5), SIGNS @ task_matrix(3) @ SIGNS), eta=0.1)
    for inner in of_objectives(W3):
        for pending in (None, Z[:2]):
            ours = ScalarizedMultiTaskUCB(model, ObjectiveScalarization(inner, SIGNS), 1.5, pending, bound)
            plain = ScalarizedMultiTaskUCB(turned, inner, 1.5, pending, bound)
            close(ours(Z.unsqueeze(-2)), plain(Z.unsqueeze(-2)), 1e-9)
            close(ours(Z[:2]), plain(Z[:2]), 1e-8)


@pytest.mark.parametrize("matrix", [C, SUM], ids=["some", "sums"])
def test_only_the_objectives_enter_the_bound(matrix: Tensor) -> None:
    X, Y, Z = data(8, 3, 2)
    model = ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=0.1)
    mean, covariance = oracles.posterior(icm(3, 2).gamma, X.numpy(), Y.numpy(), 0.1, Z.numpy())
    C_ = matrix.numpy()
    mean, covariances = mean @ C_.T, C_ @ oracles.blocks(covariance, 3) @ C_.T
    norms = oracles.operator_norm(covariances)
    for inner in of_objectives(W2):
        s = ObjectiveScalarization(inner, matrix)
        loose = inner(torch.tensor(mean)).numpy() + inner.lipschitz.item() * 1.5 * np.sqrt(norms)
        close(ScalarizedMultiTaskUCB(model, s, 1.5)(Z.unsqueeze(-2)), loose, 1e-8)
        acqf = ScalarizedMultiTaskUCB(model, s, 1.5, bound="ellipsoid")
        if isinstance(inner, LinearScalarization):
            tight = oracles.linear_ellipsoid(W2.numpy(), 1.5, mean, covariances)
        else:
            w = W2.numpy() if isinstance(inner, ChebyshevScalarization) else 1 / W2.numpy()
            tight = oracles.monotone_ellipsoid(
                lambda y: oracles.chebyshev(w, y, np.array([-3.0, -2.0])),  # noqa: B023
                1.5,
                mean,
                covariances,
            )
        close(acqf(Z.unsqueeze(-2)), tight, 1e-8)
