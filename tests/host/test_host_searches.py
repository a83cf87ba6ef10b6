"""The optimizers, samplers and helpers around a model find what they find with the model of BoTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import PosteriorMean, qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.utils import prune_inferior_points_multi_objective
from botorch.acquisition.objective import LinearMCObjective, ScalarizedPosteriorTransform
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.acquisition.utils import get_infeasible_cost, get_optimal_samples, prune_inferior_points
from botorch.generation import BoltzmannSampling, MaxPosteriorSampling
from botorch.generation.gen import gen_candidates_scipy, gen_candidates_torch
from botorch.generation.sampling import ConstrainedMaxPosteriorSampling
from botorch.optim.optimize import (
    optimize_acqf,
    optimize_acqf_cyclic,
    optimize_acqf_discrete,
    optimize_acqf_discrete_local_search,
    optimize_acqf_list,
    optimize_acqf_mixed,
)
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
from host_reference import BOUNDS, EXACT, LISTS, NYSTROM, SINGLE, D, Kind, T, seeded
from suites import close
from torch import Tensor

CHOICES = seeded(12, D, seed=50)
QUICK: dict[str, Any] = {"num_restarts": 2, "raw_samples": 8}
EVERY = [EXACT, *(pytest.param(kind, marks=pytest.mark.slow) for kind in [NYSTROM, LISTS[0]])]
every_kind = pytest.mark.parametrize("kind", EVERY, ids=str)
pytestmark = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.BotorchWarning")


def draws(count: int = 16) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([count]), seed=3)


def improvement(model: Any, kind: Kind) -> qLogExpectedImprovement:
    return qLogExpectedImprovement(model, 0.3, objective=LinearMCObjective(kind.weights), sampler=draws())


def mean(model: Any, kind: Kind) -> PosteriorMean:
    return PosteriorMean(model, posterior_transform=ScalarizedPosteriorTransform(kind.weights))


def pair(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.double)


def at_most(limit: float) -> dict[str, Any]:
    """The coordinates sum to at most so much."""
    return {"inequality_constraints": [(torch.tensor([0, 1]), pair(-1.0, -1.0), -limit)]}


STARTS = 0.4 * seeded(2, 1, D, seed=51)
GIVEN: dict[str, Any] = {"num_restarts": 2, "batch_initial_conditions": STARTS}
DISK: dict[str, Any] = {
    **GIVEN,
    "nonlinear_inequality_constraints": [(lambda x: 0.5 - x.square().sum(dim=-1), True)],
    "options": {"batch_limit": 1},
}

# Each: what to call with an acquisition function, and what the points found should satisfy.
Search = Callable[[Any, Any, Kind], tuple[Tensor, Tensor]]
SEARCHES: dict[str, tuple[Search, Callable[[Tensor], Any]]] = {
    "optimize_acqf": (lambda make, model, kind: optimize_acqf(make(model, kind), BOUNDS, q=1, **QUICK), lambda X: True),
    "optimize_acqf, two points": (
        lambda make, model, kind: optimize_acqf(improvement(model, kind), BOUNDS, q=2, **QUICK),
        lambda X: X.shape == (2, D),
    ),
    "optimize_acqf, two points one by one": (
        lambda make, model, kind: optimize_acqf(improvement(model, kind), BOUNDS, q=2, sequential=True, **QUICK),
        lambda X: X.shape == (2, D),
    ),
    "optimize_acqf, fixed feature": (
        lambda make, model, kind: optimize_acqf(make(model, kind), BOUNDS, q=1, fixed_features={0: 0.4}, **QUICK),
        lambda X: X[..., 0] == 0.4,
    ),
    "optimize_acqf, inequality": (
        lambda make, model, kind: optimize_acqf(make(model, kind), BOUNDS, q=1, **at_most(0.7), **GIVEN),
        lambda X: X.sum(dim=-1) <= 0.7 + 1e-6,
    ),
    "optimize_acqf, equality": (
        lambda make, model, kind: optimize_acqf(
            make(model, kind),
            BOUNDS,
            q=1,
            equality_constraints=[(torch.tensor([0, 1]), pair(1.0, 1.0), 0.9)],
            num_restarts=2,
            batch_initial_conditions=pair(0.2, 0.7, 0.6, 0.3).view(2, 1, D),
        ),
        lambda X: (X.sum(dim=-1) - 0.9).abs() < 1e-6,
    ),
    "optimize_acqf, nonlinear": (
        lambda make, model, kind: optimize_acqf(make(model, kind), BOUNDS, q=1, **DISK),
        lambda X: X.square().sum(dim=-1) <= 0.5 + 1e-6,
    ),
    "optimize_acqf, torch's optimizer": (
        lambda make, model, kind: optimize_acqf(
            make(model, kind),
            BOUNDS,
            q=1,
            gen_candidates=gen_candidates_torch,
            **QUICK,
            options={"stopping_criterion_options": {"maxiter": 20}},
        ),
        lambda X: True,
    ),
    "optimize_acqf_mixed": (
        lambda make, model, kind: optimize_acqf_mixed(
            make(model, kind), BOUNDS, q=1, fixed_features_list=[{0: 0.2}, {0: 0.8}], **QUICK
        ),
        lambda X: (X[..., 0] == 0.2) | (X[..., 0] == 0.8),
    ),
    "optimize_acqf_discrete": (
        lambda make, model, kind: optimize_acqf_discrete(improvement(model, kind), q=2, choices=CHOICES),
        lambda X: torch.cdist(X, CHOICES).amin(dim=-1) == 0,
    ),
    "optimize_acqf_discrete_local_search": (
        lambda make, model, kind: optimize_acqf_discrete_local_search(
            make(model, kind), discrete_choices=[pair(0.0, 0.3, 0.6, 0.9), pair(0.0, 0.5, 1.0)], q=1, **QUICK
        ),
        lambda X: (X[..., 0] * 10 % 3 < 1e-6) | (3 - X[..., 0] * 10 % 3 < 1e-6),
    ),
    "optimize_acqf_cyclic": (
        lambda make, model, kind: optimize_acqf_cyclic(
            improvement(model, kind), BOUNDS, q=2, cyclic_options={"maxiter": 2}, **QUICK
        ),
        lambda X: X.shape == (2, D),
    ),
    "optimize_acqf_list": (
        lambda make, model, kind: optimize_acqf_list([improvement(model, kind)] * 2, BOUNDS, **QUICK),
        lambda X: X.shape == (2, D),
    ),
}


@pytest.mark.filterwarnings("ignore:If using a 2-dim `batch_initial_conditions`:RuntimeWarning")
@every_kind
@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_finds_what_it_finds_with_botorchs_model(name: str, kind: Kind) -> None:
    search, holds = SEARCHES[name]
    found = []
    for model in kind.pair():
        torch.manual_seed(0)
        X, value = search(mean, model, kind)
        assert torch.as_tensor(holds(X)).all()
        assert ((X >= 0) & (X <= 1)).all()
        found.append((X, value))
    # The optimizer stops at a small gradient: the value is known much better than the point.
    close(found[0][1], found[1][1], 1e-4)
    close(found[0][0], found[1][0], 1e-2)


@every_kind
def test_candidates_by_hand(kind: Kind) -> None:
    found = []
    for model in kind.pair():
        X, values = gen_candidates_scipy(STARTS, improvement(model, kind), 0.0, 1.0)
        found.append((X, values))
    close(found[0][1], found[1][1], 1e-5)


# Draws


@every_kind
def test_thompson_sampling_of_choices(kind: Kind) -> None:
    transform = ScalarizedPosteriorTransform(kind.weights)
    found = []
    for model in kind.pair():
        torch.manual_seed(0)
        found.append(MaxPosteriorSampling(model, posterior_transform=transform)(CHOICES, num_samples=5))
    close(found[0], found[1], 0.0)
    assert len(found[0].unique(dim=0)) > 1


@every_kind
def test_thompson_sampling_with_constraints(kind: Kind) -> None:
    found = []
    for model in kind.pair():
        torch.manual_seed(0)
        sampling = ConstrainedMaxPosteriorSampling(
            model, model.subset_output([1]), posterior_transform=ScalarizedPosteriorTransform(kind.weights)
        )
        found.append(sampling(CHOICES, num_samples=4))
    close(found[0], found[1], 0.0)


@every_kind
def test_boltzmann_sampling(kind: Kind) -> None:
    found = []
    for model in kind.pair():
        torch.manual_seed(0)
        found.append(BoltzmannSampling(improvement(model, kind), eta=2.0)(CHOICES.unsqueeze(-2), num_samples=3))
    close(found[0], found[1], 0.0)


NO_PATHS = "BoTorch's pathwise samplers know neither our kernels nor targets of shape t x n"


@pytest.mark.parametrize("kind", SINGLE, ids=str)
@pytest.mark.xfail(strict=True, reason=NO_PATHS, raises=NotImplementedError)
def test_matheron_paths_have_the_posteriors_moments(kind: Kind) -> None:
    model, reference = kind.pair()
    X = seeded(3, D, seed=22)
    paths = draw_matheron_paths(model, torch.Size([4000]))(X)
    posterior = reference.posterior(X)
    scale = posterior.variance.sqrt()
    assert ((paths.mean(dim=0) - posterior.mean).abs() < 0.1 * scale).all()
    assert ((paths.std(dim=0) - scale).abs() < 0.1 * scale).all()


@pytest.mark.parametrize("kind", SINGLE, ids=str)
@pytest.mark.parametrize("name", ["draw_kernel_feature_paths", "PathwiseThompsonSampling", "get_optimal_samples"])
@pytest.mark.xfail(strict=True, reason=NO_PATHS, raises=NotImplementedError)
def test_what_is_built_on_paths(name: str, kind: Kind) -> None:
    model, _ = kind.pair()
    transform = ScalarizedPosteriorTransform(kind.weights)
    if name == "draw_kernel_feature_paths":
        draw_kernel_feature_paths(model, torch.Size([4]))
    elif name == "PathwiseThompsonSampling":
        PathwiseThompsonSampling(model, posterior_transform=transform)(CHOICES.unsqueeze(-2))
    else:
        get_optimal_samples(model, BOUNDS, 2, posterior_transform=transform, **QUICK)


# Helpers


@every_kind
def test_the_cost_of_infeasible_points(kind: Kind) -> None:
    objective = LinearMCObjective(kind.weights)
    found = [get_infeasible_cost(CHOICES, model, objective) for model in kind.pair()]
    close(found[0], found[1], kind.tolerance)
    assert found[0].abs().max() > 1e-3


@every_kind
def test_pruned_points(kind: Kind) -> None:
    X = seeded(T, D)
    objective = LinearMCObjective(kind.weights)
    found = [prune_inferior_points(model, X, objective=objective, sampler=draws(64)) for model in kind.pair()]
    close(found[0], found[1], 0.0)
    assert 0 < len(found[0]) < T
    ref_point = torch.full((kind.num_outputs,), -2.0, dtype=torch.double)
    found = []
    for model in kind.pair():
        torch.manual_seed(0)
        found.append(prune_inferior_points_multi_objective(model, X, ref_point=ref_point, num_samples=64))
    close(found[0], found[1], 0.0)


@pytest.mark.parametrize("kind", [EXACT], ids=str)
def test_cached_roots_are_not_used_for_tasks_that_are_related(kind: Kind) -> None:
    """BoTorch caches the root of a covariance without covariances between outputs: our models must not let it."""
    model, reference = kind.pair()
    X = seeded(1, 2, D, seed=19)
    for acquisition in (qLogNoisyExpectedImprovement, qLogNoisyExpectedHypervolumeImprovement):
        options: dict[str, Any] = {"X_baseline": seeded(T, D), "prune_baseline": False}
        if acquisition is qLogNoisyExpectedImprovement:
            options["objective"] = LinearMCObjective(kind.weights)
        else:
            options["ref_point"] = pair(-2.0, -2.0)
        with pytest.warns(RuntimeWarning, match="cache_root"):
            cached = acquisition(model, sampler=draws(8), cache_root=True, **options)
        plain = acquisition(reference, sampler=draws(8), cache_root=False, **options)
        close(cached(X), plain(X), kind.tolerance)
