"""What was wrong without a word, and found by meeting the host's habits and the user's data."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Standardize
from catalogue import data, icm, rbf
from gpytorch.mlls import ExactMarginalLogLikelihood
from suites import close
from torch import Tensor

from mtbo_torch import (
    MTKB,
    ChebyshevScalarization,
    ExactMultiTaskGP,
    FixedWeights,
    HypervolumeScalarization,
    ICMKernel,
    NystromMultiTaskGP,
    ScalarizedMultiTaskUCB,
    TaskSimilarityKernel,
)
from mtbo_torch.strategies import NEHVI, SobolSearch

BOX = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.double)
NAN = torch.nan


def values(X: Tensor, scale: float = 1.0) -> Tensor:
    return scale * torch.stack([(3 * X).sin().sum(dim=-1), (2 * X).cos().sum(dim=-1)], dim=-1)


# Transforms belong to their model and its data.


@pytest.mark.parametrize("kind", [ExactMultiTaskGP, NystromMultiTaskGP])
def test_an_outcome_transform_is_learned_whatever_was_done_with_it(kind: type[ExactMultiTaskGP]) -> None:
    X, Y, Z = data(6, 3, 2)
    far = 1000 + Y
    transform = Standardize(3)
    first = kind(X, Y, icm(3, 2).kernel, eta=0.1, outcome_transform=transform)
    before = first.posterior(Z).mean
    fresh = kind(X, far, icm(3, 2).kernel, eta=0.1, outcome_transform=Standardize(3)).posterior(Z).mean
    for given in (transform, transform.eval(), first.outcome_transform.eval(), Standardize(3).eval()):
        model = kind(X, far, icm(3, 2).kernel, eta=0.1, outcome_transform=given)
        close(model.posterior(Z).mean, fresh, 1e-9)
        close(model.posterior(Z + 100).mean, far.mean(dim=0).expand(len(Z), 3), 1e-6)
    close(first.posterior(Z).mean, before, 0.0)


# Little is known of a task that was seen once, or never varied.


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning")  # of the values as they are
@pytest.mark.parametrize("kind", [ExactMultiTaskGP, NystromMultiTaskGP])
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e4])
def test_one_observation_does_not_make_a_task_certain(kind: type[ExactMultiTaskGP], scale: float) -> None:
    X = torch.tensor([[0.5, 0.5]], dtype=torch.double)
    for transforms in ({"outcome_transform": Standardize(2)}, {}):
        model = kind(X, values(X, scale), **transforms)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        variances = model.posterior(BOX).variance / (1 if transforms else values(X, scale).square())
        assert (variances > 0.1).all()


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_a_task_seen_once_is_not_certain(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    strategy = MTKB(2, bounds=BOX, refit_every=1, seed=0)
    X = BOX[1] * torch.rand(6, 2, generator=generator, dtype=torch.double)
    Y = values(X, scale)
    Y[1:, 1] = NAN
    for some in (slice(0, 1), slice(1, 6)):
        strategy.tell(X[some], Y[some], allow_missing=True)
    posterior = strategy.model.posterior(BOX[1] * torch.rand(50, 2, generator=generator, dtype=torch.double))
    assert (posterior.variance[:, 1].sqrt() > 0.1 * scale).all()


def test_a_constant_task_is_not_certain_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    X = BOX[1] * torch.rand(4, 2, generator=generator, dtype=torch.double)
    Y = torch.stack([values(X)[:, 0], torch.full((4,), 7.0, dtype=torch.double)], dim=-1)
    strategy = MTKB(2, bounds=BOX, refit_every=4, seed=0)
    strategy.tell(X, Y)
    assert strategy.model.posterior(BOX).variance[:, 1].sqrt().min() > 0.05


def run(scale: float, first: float | None, rounds: int = 8) -> MTKB:
    """Observe the second task from the third round on only, or as `first` until then."""
    strategy = MTKB(2, bounds=BOX, refit_every=20, seed=3)
    generator = torch.Generator().manual_seed(1)
    for i in range(rounds):
        x = BOX[1] * torch.rand(1, 2, generator=generator, dtype=torch.double)
        y = values(x)
        y[:, 1] *= scale
        if i < 3:
            y[:, 1] = NAN if first is None else first
        strategy.tell(x, y, allow_missing=first is None)
    return strategy


@pytest.mark.parametrize("first", [None, 0.0])
def test_a_task_that_shows_late_has_units_at_once(first: float | None) -> None:
    small, large = run(1.0, first), run(1000.0, first)
    close(large.radius, small.radius, 1e-6)
    close(large.ask(), small.ask(), 1e-5)
    known = large._known.surrogate.units.scale_values(large.train_Y)
    assert known.nan_to_num(nan=0.0).abs().max() < 10


# Weights of zero


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("bound", ["norm", "ellipsoid"])
def test_a_weight_of_zero_in_the_hypervolume(bound: str, dtype: torch.dtype) -> None:
    X, Y, Z = (part.to(dtype) for part in data(6, 2, 2))
    model = ExactMultiTaskGP(X, Y, icm(2, 2).kernel, eta=0.1)
    weights = FixedWeights(torch.tensor([1.0, 0.0])).sample(1, dtype=dtype).squeeze(0)
    scalarization = HypervolumeScalarization(weights, Y.amin(dim=0) - 1)
    for used in (scalarization.for_search(), scalarization):
        if used is scalarization and bound == "norm":
            continue  # it has no Lipschitz constant without an upper limit
        points = Z.unsqueeze(-2).clone().requires_grad_(True)
        ScalarizedMultiTaskUCB(model, used, 1.0, bound=bound)(points).sum().backward()
        assert points.grad is not None
        assert points.grad.isfinite().all()
    # The second task only has to exceed its limit.
    exceeding = torch.tensor([[0.5, 3.0], [0.7, 2.0], [0.9, -9.0]], dtype=dtype)
    value = HypervolumeScalarization(weights, torch.zeros(2, dtype=dtype))(exceeding)
    assert value[1] > value[0] > value[2] == 0


def test_a_strategy_with_a_weight_of_zero() -> None:
    weights = FixedWeights(torch.tensor([1.0, 0.0]))
    options = {"scalarization": HypervolumeScalarization, "ref_point": torch.tensor([-2.0, -2.0]).double()}
    strategy = MTKB(2, bounds=BOX, refit_every=2, weights=weights, bound="ellipsoid", radius=1.0, **options)
    for _ in range(6):
        x = strategy.ask()
        strategy.tell(x, values(x))
    assert strategy.train_Y[:, 0].max() > 1.2  # of at most 1.41... + 1


# States, defaults, dtypes


def test_a_state_of_another_reference_point_is_refused() -> None:
    one, other = (NEHVI(2, ref_point=torch.tensor([0.0, z]).double(), bounds=BOX) for z in (0.0, 1.0))
    with pytest.raises(ValueError, match="ref_point"):
        one.load_state_dict(other.state_dict())


def slow(t: int) -> float:
    return 1.0


def fast(t: int) -> float:
    return 2.0


class Own(ChebyshevScalarization):
    pass


def test_a_state_of_another_function_or_class_is_refused() -> None:
    kernel = ICMKernel(rbf(0.5), torch.eye(2).double())
    given = [{"radius": slow}, {"radius": fast}, {"radius": slow, "scalarization": Own}]
    strategies = [MTKB(kernel, bounds=BOX, **options) for options in given]
    strategies[0].load_state_dict(MTKB(kernel, bounds=BOX, radius=slow).state_dict())
    with pytest.raises(ValueError, match=r"radius .*fast there, .*slow here"):
        strategies[0].load_state_dict(strategies[1].state_dict())
    with pytest.raises(ValueError, match=r"scalarization .*Own there"):
        strategies[0].load_state_dict(strategies[2].state_dict())


def test_restarts_are_chosen_from_enough_points() -> None:
    kernel = ICMKernel(rbf(0.5), torch.eye(2).double())
    with pytest.raises(ValueError, match="raw_samples should be at least num_restarts = 8, got 4"):
        MTKB(kernel, bounds=BOX, num_restarts=8, raw_samples=4)


def test_proposals_do_not_depend_on_the_default_dtype() -> None:
    default = torch.get_default_dtype()
    found = []
    try:
        for dtype in (torch.float, torch.double):
            torch.set_default_dtype(dtype)
            base = gpytorch.kernels.RBFKernel().double()
            base.lengthscale = 0.5
            strategy = MTKB(TaskSimilarityKernel(base, 2, 0.5), bounds=BOX, num_restarts=2, raw_samples=8, seed=1)
            for _ in range(3):
                x = strategy.ask()
                strategy.tell(x, values(x))
            found.append(torch.cat([strategy.ask(2), SobolSearch(2, bounds=BOX).ask(3)]))
    finally:
        torch.set_default_dtype(default)
    assert torch.equal(found[0], found[1])
