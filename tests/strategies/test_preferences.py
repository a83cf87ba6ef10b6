"""What a user may want of the objectives: signs, reference points, constraints, the hypervolume, weights in a box."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import oracles
import pytest
import torch
from catalogue import icm, rbf, task_matrix
from scipy.stats import norm
from suites import close
from torch import Tensor

from mtbo_torch import (
    MTBKB,
    MTKB,
    BoxWeights,
    ChebyshevScalarization,
    HypervolumeScalarization,
    ICMKernel,
    LinearScalarization,
    ScalarizedMultiTaskUCB,
)
from mtbo_torch.strategies import ITBKB, ITKB, MOBO
from mtbo_torch.strategies.kernelized import KernelStrategy

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.double)
CHOICES = BOUNDS[1] * torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
SPACES = [{"bounds": BOUNDS}, {"choices": CHOICES}]
REF = torch.tensor([-0.5, 0.4], dtype=torch.double)
LIMITS = (torch.tensor([[0.0, 1.0, 0.5]], dtype=torch.double), torch.tensor([0.3], dtype=torch.double))
SIGNS = (1, 0, -1)

kinds = pytest.mark.parametrize("kind", [MTKB, MTBKB, ITKB, ITBKB, MOBO])
both = pytest.mark.parametrize("kind", [MTKB, MTBKB])
bounds = pytest.mark.parametrize("bound", ["norm", "ellipsoid"])


def objective(x: Tensor) -> Tensor:
    return torch.stack([torch.sin(3 * x[..., 0]), torch.cos(2 * x[..., 1]), x.sum(dim=-1) - 1], dim=-1)


def strategy(kind: type[KernelStrategy], where: dict[str, Tensor], **options: object) -> KernelStrategy:
    defaults = {"norm_bound": 1.0, "bound": "norm", "noise_scale": 0.1, "num_restarts": 4, "raw_samples": 32}
    own = {"oversampling": 0.5} if kind in (MTBKB, ITBKB) else {}
    return kind(**({"kernel": icm(3, 2).kernel} | defaults | own | where | options))


def run(chosen: KernelStrategy, rounds: int, f: Callable[[Tensor], Tensor] = objective) -> KernelStrategy:
    for _ in range(rounds):
        x = chosen.ask()
        chosen.tell(x, f(x))
    return chosen


@kinds
@bounds
def test_a_task_to_be_minimized_is_its_negative_to_be_maximized(kind: type[KernelStrategy], bound: str) -> None:
    S = torch.diag(torch.tensor([1.0, -1.0, 1.0], dtype=torch.double))
    turned = ICMKernel(rbf(0.5), S @ task_matrix(3) @ S)
    options = {"bound": bound, "where": {"choices": CHOICES}, "ref_point": torch.tensor([0.1, 0.2, 0.3]).double()}
    minimizing = run(strategy(kind, signs=(1, -1, 1), **options), 6)
    options["ref_point"] = options["ref_point"] @ S
    maximizing = run(strategy(kind, kernel=turned, **options), 6, lambda x: objective(x) @ S)
    assert torch.equal(minimizing.train_X, maximizing.train_X)
    close(minimizing.train_Y @ S, maximizing.train_Y, 0)


def test_the_same_on_a_box() -> None:
    S = torch.diag(torch.tensor([1.0, -1.0, 1.0], dtype=torch.double))
    turned = ICMKernel(rbf(0.5), S @ task_matrix(3) @ S)
    for scalarization in (LinearScalarization, ChebyshevScalarization):
        options = {"where": {"bounds": BOUNDS}, "bound": "ellipsoid", "scalarization": scalarization}
        minimizing = run(strategy(MTKB, signs=torch.tensor([1, -1, 1]), **options), 3)
        maximizing = run(strategy(MTKB, kernel=turned, **options), 3, lambda x: objective(x) @ S)
        close(minimizing.train_X, maximizing.train_X, 1e-4)


def test_signs_that_are_all_one_change_nothing() -> None:
    for where in SPACES:
        plain, signed = (run(strategy(MTKB, where, signs=signs), 3) for signs in (None, (1, 1, 1)))
        close(plain.train_X, signed.train_X, 1e-6)


def value_of(
    chosen: KernelStrategy, w: np.ndarray, bound: str, s: Callable[[np.ndarray], float], L: float, i: int | None = None
) -> np.ndarray:
    """The acquisition of objectives (1, 0, -1) at all choices, with the constraint, naively; of trial i of a batch."""
    X, Y = ((part if i is None else part[i]).numpy() for part in (chosen.train_X, chosen.train_Y))
    radius = (chosen.radius if i is None else chosen.radius[i]).item()
    if isinstance(chosen, MTBKB):
        dictionary = sorted(set((chosen.dictionary if i is None else chosen.dictionary[i]).tolist()))
        mean, covariances = oracles.nystrom_posterior_of_tasks(
            icm(3, 2).gamma, X, Y, np.asarray(0.1), dictionary, CHOICES.numpy()
        )
    else:
        mean, joint = oracles.posterior(icm(3, 2).gamma, X, Y, 0.1, CHOICES.numpy())
        covariances = oracles.blocks(joint, 3)
    C = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
    of_objectives = mean @ C.T, C @ covariances @ C.T
    if bound == "ellipsoid":
        u = oracles.monotone_ellipsoid(s, radius, *of_objectives)
    else:
        norms = oracles.operator_norm(of_objectives[1])
        u = np.array([s(mu) for mu in of_objectives[0]]) + L * radius * np.sqrt(norms)
    if chosen.goal.constraints is None:
        return u
    a, c = LIMITS[0][0].numpy(), LIMITS[1].item()
    p = norm.cdf((c - mean @ a) / np.sqrt(np.einsum("i,qij,j->q", a, covariances, a)))
    worst = min(s(C @ y) for y in Y)
    return p * u + (1 - p) * worst


@both
@bounds
@pytest.mark.parametrize("limits", [None, LIMITS], ids=["free", "constrained"])
@pytest.mark.parametrize("batch", [False, True], ids=["alone", "batch"])
def test_a_choice_is_the_maximizer(kind: type[KernelStrategy], bound: str, limits: object, batch: bool) -> None:
    options = {"signs": SIGNS, "ref_point": REF, "constraints": limits, "bound": bound, "where": {"choices": CHOICES}}
    chosen = run(strategy(kind, seed=[3, 4] if batch else 3, **options), 6)
    x = chosen.ask()
    assert chosen.asked_weights.shape == ((2, 1, 2) if batch else (1, 2))
    z = REF.numpy() * np.array([1.0, -1.0])  # given in the values told: not turned
    for i in range(2) if batch else [None]:
        w = (chosen.asked_weights if i is None else chosen.asked_weights[i])[0].numpy()
        s = lambda y, w=w: oracles.chebyshev(w, y, z)  # noqa: E731
        values = value_of(chosen, w, bound, s, w.max(), i)
        assert torch.equal(x[0] if i is None else x[i, 0], CHOICES[int(values.argmax())])


@both
@bounds
def test_the_hypervolume_is_maximized_by_its_chebyshev_scalarization(kind: type[KernelStrategy], bound: str) -> None:
    options = {"signs": SIGNS, "ref_point": REF, "bound": bound, "scalarization": HypervolumeScalarization}
    chosen = run(strategy(kind, {"choices": CHOICES}, **options), 6)
    x = chosen.ask()
    weights = chosen.asked_weights[0].numpy()
    assert np.linalg.norm(weights) == pytest.approx(1.0)  # on the sphere
    z = REF.numpy() * np.array([1.0, -1.0])
    w = 1 / weights
    values = value_of(chosen, w, bound, lambda y: oracles.chebyshev(w, y, z), w.max())
    assert torch.equal(x[0], CHOICES[int(values.argmax())])


@both
def test_a_point_of_a_box_is_a_maximizer(kind: type[KernelStrategy]) -> None:
    options = {"signs": SIGNS, "ref_point": REF, "constraints": LIMITS, "bound": "ellipsoid", "num_restarts": 8}
    chosen = run(strategy(kind, {"bounds": BOUNDS}, raw_samples=256, seed=[0, 1], **options), 4)
    radius, model = chosen.radius, chosen.model
    x = chosen.ask()
    given = (chosen.asked_weights[:, 0], chosen._surrogate.units, chosen.train_Y)
    scalarization, worst = chosen.goal.scalarize(*given)
    acqf = ScalarizedMultiTaskUCB(
        model, scalarization, radius, bound="ellipsoid", constraints=LIMITS, infeasible_value=worst
    )
    grid = torch.cartesian_prod(torch.linspace(0, 1, 25), torch.linspace(0, 2, 25)).double()
    values = acqf(grid.reshape(-1, 1, 1, 2).expand(-1, 2, 1, 2))
    assert (acqf(x.unsqueeze(0)) >= values.amax(dim=0) - 1e-6).all()


@both
def test_trials_side_by_side_are_the_trials_alone(kind: type[KernelStrategy]) -> None:
    options = {"signs": SIGNS, "ref_point": REF, "constraints": LIMITS, "bound": "ellipsoid", "where": SPACES[1]}
    together = run(strategy(kind, seed=[0, 1, 2], **options), 5)
    for i in range(3):
        alone = run(strategy(kind, seed=i, **options), 5)
        assert torch.equal(together.train_X[i], alone.train_X)


@pytest.mark.parametrize(
    ("kind", "where", "scalarization"),
    [
        pytest.param(MTKB, {"bounds": BOUNDS}, ChebyshevScalarization, marks=pytest.mark.slow),
        pytest.param(MTKB, {"choices": CHOICES}, HypervolumeScalarization, marks=pytest.mark.slow),
        (MTBKB, {"choices": CHOICES}, ChebyshevScalarization),
    ],
    ids=["box", "hypervolume", "dictionary"],
)
def test_units_do_not_matter(kind: type[KernelStrategy], where: dict[str, Tensor], scalarization: type) -> None:
    scale = torch.tensor([2.0**10, 2.0**-10, 4.0], dtype=torch.double)
    offset = torch.tensor([512.0, -2.0, 64.0], dtype=torch.double)
    A = torch.tensor([[0.0, 1.0, 0.5], [1.0, 0.0, 0.0]], dtype=torch.double)
    c = torch.tensor([0.3, 0.9], dtype=torch.double)
    other = {"ref_point": REF * scale[[0, 2]] + offset[[0, 2]], "constraints": (A / scale, c + A @ (offset / scale))}
    options = {"kernel": 3, "refit_every": 1, "norm_bound": None, "noise_scale": None, "signs": SIGNS, "where": where}
    options |= {"scalarization": scalarization, "bound": "ellipsoid", "radius": 1.0}

    def asked(f: Callable[[Tensor], Tensor], **more: object) -> Tensor:
        chosen = strategy(kind, **options, **more)
        start = torch.tensor([[0.1, 0.2], [0.5, 1.7], [0.9, 0.6], [0.3, 1.1]], dtype=torch.double)
        chosen.tell(start, f(start))
        run(chosen, 1, f)
        return torch.cat([chosen.train_X[4:], chosen.ask()])

    ours = asked(objective, ref_point=REF, constraints=(A, c))
    theirs = asked(lambda x: objective(x) * scale + offset, **other)
    close(theirs, ours, 1e-3 if "bounds" in where else 0)
    # And what is wanted does matter.
    elsewhere = asked(objective, ref_point=REF + torch.tensor([5.0, 0.0]), constraints=(A, c - 3))
    assert (elsewhere - ours).abs().max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_offsets_do_not_matter_from_the_first_value_on(seed: int) -> None:
    # Multiples of 1/1024, and refits with 2 and 4 of them: offsets and units are exact, and so all fits are the same.
    def rounded(x: Tensor) -> Tensor:
        return (1024 * objective(x)).round() / 1024

    offset = torch.tensor([1.0, -2.0, 4.0], dtype=torch.double)
    options = {"kernel": 3, "refit_every": 2, "norm_bound": None, "noise_scale": None, "signs": SIGNS, "radius": 1.0}
    shifted = {"ref_point": REF + offset[[0, 2]], "constraints": (LIMITS[0], LIMITS[1] + LIMITS[0] @ offset)}
    plain = {"ref_point": REF, "constraints": LIMITS}
    ours = run(strategy(MTKB, {"choices": CHOICES}, seed=seed, **options, **plain), 5, rounded)
    theirs = strategy(MTKB, {"choices": CHOICES}, seed=seed, **options, **shifted)
    run(theirs, 5, lambda x: rounded(x) + offset)
    assert torch.equal(ours.train_X, theirs.train_X)


def test_without_a_reference_point_a_learning_strategy_takes_the_best_seen_of_each_objective() -> None:
    chosen = strategy(MTKB, {"choices": CHOICES}, kernel=3, refit_every=1, signs=SIGNS)
    chosen.tell(CHOICES[:6], objective(CHOICES[:6]))
    weights = torch.tensor([0.4, 0.6], dtype=torch.double)
    s, _ = chosen.goal.scalarize(weights, chosen._surrogate.units, chosen.train_Y)
    Y = objective(CHOICES[:6])
    standardized = (Y - Y.mean(dim=0)) / Y.std(dim=0)
    best = torch.stack([standardized[:, 0].max(), (-standardized[:, 2]).max()])
    close(s.scalarization.ref_point.flatten(), best, 1e-9)


@pytest.mark.parametrize(
    ("kind", "where", "learn"),
    [
        (MTKB, {"choices": CHOICES}, False),
        pytest.param(MTKB, {"bounds": BOUNDS}, True, marks=pytest.mark.slow),
        (MTBKB, {"choices": CHOICES}, True),
        (MTBKB, {"bounds": BOUNDS}, False),
    ],
)
def test_saving_continues_bit_for_bit(kind: type[KernelStrategy], where: dict[str, Tensor], learn: bool) -> None:
    options = {"signs": SIGNS, "ref_point": REF, "constraints": LIMITS, "bound": "ellipsoid", "num_restarts": 2}
    options |= {"weights": BoxWeights(torch.tensor([0.2, 0.1]), torch.tensor([0.9, 0.8])), "raw_samples": 16}
    options |= {"kernel": 3, "refit_every": 3} if learn else {}
    chosen = run(strategy(kind, where, **options), 4)
    chosen.ask()
    file = io.BytesIO()
    torch.save(chosen.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed = strategy(kind, where, seed=99, **options)
    resumed.load_state_dict(state)
    for one in (chosen, resumed):
        one.forget()
        run(one, 2)
    assert torch.equal(resumed.train_X, chosen.train_X)
    assert torch.equal(resumed.asked_weights, chosen.asked_weights)
    for name, other in (
        ("bound", "norm"),
        ("signs", (1, 0, 1)),
        ("ref_point", REF + 1),
        ("ref_point", None),
        ("constraints", (LIMITS[0], LIMITS[1] + 1)),
        ("constraints", None),
        ("weights", BoxWeights(torch.tensor([0.2, 0.2]), torch.tensor([0.9, 0.8]))),
    ):
        with pytest.raises(ValueError, match=rf"others: {name} \("):
            strategy(kind, where, **(options | {name: other})).load_state_dict(state)


@pytest.mark.parametrize(
    ("kind", "where", "learn"),
    [
        (MTKB, {"choices": CHOICES}, False),
        (MTBKB, {"choices": CHOICES}, True),
        pytest.param(MTKB, {"bounds": BOUNDS}, True, marks=pytest.mark.slow),
    ],
    ids=["known", "learned", "box"],
)
def test_constraints_are_respected_in_the_end(
    kind: type[KernelStrategy], where: dict[str, Tensor], learn: bool
) -> None:
    def f(x: Tensor) -> Tensor:  # to be maximized together at (1, 2), where the third is 3
        return torch.stack([x[..., 0], x[..., 1], x.sum(dim=-1)], dim=-1)

    limit = (torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.double), torch.tensor([1.5], dtype=torch.double))
    options = {"kernel": 3, "refit_every": 2, "norm_bound": None, "noise_scale": None} if learn else {}
    options |= {"signs": (1, 1, 0), "radius": 1.0, "bound": "ellipsoid", "eta": 1e-3 if not learn else None}
    if not learn:
        options["kernel"] = ICMKernel(rbf(1.0), torch.eye(3, dtype=torch.double) * 4)
    start = torch.tensor([[0.1, 0.2], [0.9, 1.7], [0.2, 1.5], [0.8, 0.1]], dtype=torch.double)
    told = []
    for constraints in (limit, None):
        chosen = strategy(kind, where, constraints=constraints, **options)
        chosen.tell(start, f(start))
        told.append(run(chosen, 4, f).train_Y[-3:, 2])
    assert (told[0] < 1.6).all()
    assert told[1].max() > 1.6


def test_single_precision() -> None:
    options = {"signs": SIGNS, "ref_point": REF.float(), "bound": "ellipsoid", "kernel": icm(3, 2).kernel.float()}
    limits = (LIMITS[0].float(), LIMITS[1].float())
    for where in SPACES:
        where = {name: value.float() for name, value in where.items()}
        for constraints in (None, limits):
            chosen = run(strategy(MTKB, where, constraints=constraints, **options), 3)
            assert chosen.train_X.dtype == torch.float
            assert chosen.asked_weights.dtype == torch.float


def test_single_precision_learned() -> None:
    where = {"choices": CHOICES.float()}
    options = {"signs": SIGNS, "ref_point": REF, "constraints": LIMITS, "kernel": 3, "refit_every": 1}
    assert run(strategy(MTKB, where, **options), 3).train_X.dtype == torch.float


def test_weights_of_a_box_are_drawn_for_the_objectives() -> None:
    weights = BoxWeights(torch.tensor([0.6, 0.0]), torch.tensor([0.8, 1.0]))
    chosen = strategy(MTKB, {"choices": CHOICES}, signs=SIGNS, weights=weights)
    chosen.ask(50)
    assert chosen.asked_weights.shape == (50, 2)
    assert ((chosen.asked_weights[:, 0] > 0.6 - 1e-9) & (chosen.asked_weights[:, 0] < 0.8 + 1e-9)).all()


def test_a_batch_of_learning_trials_has_its_own_units() -> None:
    options = {"signs": SIGNS, "ref_point": REF, "constraints": LIMITS, "kernel": 3, "refit_every": 4, "seed": [0, 1]}
    chosen = strategy(MTKB, {"choices": CHOICES}, **options)
    start = torch.stack([CHOICES[:5], CHOICES[5:10]])
    chosen.tell(start, objective(start))
    weights, units = torch.tensor([[0.5, 0.5], [0.1, 0.9]]).double(), chosen._surrogate.units
    Y = objective(start)
    close(units.offset, Y.mean(dim=1, keepdim=True), 1e-12)
    close(units.scale, Y.std(dim=1, keepdim=True), 1e-12)
    assert chosen.goal.scalarize(weights, units, chosen.train_Y)[1].shape == (2,)
    assert chosen.ask().shape == (2, 1, 2)
