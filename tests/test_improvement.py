"""The average improvement: against plain loops, BoTorch's expected hypervolume, and every way BoTorch maximizes it."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import suites
import torch
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.multi_objective.analytic import ExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.objective import WeightedMCMultiOutputObjective
from botorch.exceptions.errors import UnsupportedError
from botorch.models import KroneckerMultiTaskGP, ModelListGP, SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf, optimize_acqf_discrete, optimize_acqf_mixed
from botorch.test_functions.multi_objective import BraninCurrin
from botorch.utils.multi_objective.box_decompositions.non_dominated import NondominatedPartitioning
from botorch.utils.multi_objective.hypervolume import Hypervolume, infer_reference_point
from botorch.utils.multi_objective.pareto import is_non_dominated
from botorch.utils.sampling import draw_sobol_samples
from botorch.utils.testing import MockModel, MockPosterior
from catalogue import PATHS, Builder, data, icm, rbf
from scipy.stats import norm
from suites import close
from torch import Tensor

from mtbo_torch import (
    ChebyshevScalarization,
    ExactMultiTaskGP,
    HypervolumeScalarization,
    ICMKernel,
    LinearScalarization,
    LogAverageImprovement,
    NystromMultiTaskGP,
)
from mtbo_torch import improvement as module
from mtbo_torch.improvement import (
    GAIN_WIDTH,
    MIN_WIDTH,
    NUM_SAMPLES,
    Incumbent,
    Samples,
    count_samples,
    log_improvement,
)
from mtbo_torch.linalg import factor_covariance
from mtbo_torch.models.learning import learn_kernel

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
AIMS = [HypervolumeScalarization, ChebyshevScalarization]


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def fitted(n: int = 3, d: int = 2, t: int = 8, build: Builder = icm, **kwargs: Any) -> ExactMultiTaskGP:
    X, Y, _ = data(t, n, d)
    return ExactMultiTaskGP(X, Y, build(n, d).kernel, **({"eta": 0.1} | kwargs))


def worth(aim: type, y: list[float], weight: list[float]) -> float:
    if aim is HypervolumeScalarization:
        return min(max(0.0, a / w) for a, w in zip(y, weight, strict=True)) ** len(y)
    return min(a * w for a, w in zip(y, weight, strict=True))


def plain_improvement(
    aim: type,
    mean: np.ndarray,
    covariance: np.ndarray,
    found: list[list[float]],
    samples: Samples,
    ref_point: list[float],
    scale: list[float],
) -> float:
    """The improvement without any smoothing, by loops."""

    def above(y: Any) -> list[float]:
        return [(a - z) / s for a, z, s in zip(y, ref_point, scale, strict=True)]

    total, factor, (n,) = 0.0, np.linalg.cholesky(covariance), mean.shape
    for slopes, luck in zip(samples.slopes.tolist(), samples.luck.numpy(), strict=True):
        weight = [1 / a for a in slopes] if aim is HypervolumeScalarization else slopes
        best = max(worth(aim, above(y), weight) for y in found)
        density = np.exp(-luck @ luck / 2)
        mass = 2 * density / (density + np.exp(-luck @ luck / 8) / 2**n)
        total += mass * max(0.0, worth(aim, above(mean + factor @ luck), weight) - best)
    return total / len(samples.luck)


def scene(n: int, t: int = 6, q: int = 9, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    found, mean = (torch.rand(size, n, generator=source, dtype=torch.double) for size in (t, q))
    factor = 0.3 * torch.rand(q, n, n, generator=source, dtype=torch.double) - 0.1
    return found, mean, factor @ factor.mT + 0.05**2 * torch.eye(n, dtype=torch.double)


def incumbent_of(found: Tensor, aim: type = HypervolumeScalarization, **options: Any) -> Incumbent:
    ref_point, n = torch.full(found.shape[-1:], -0.1, dtype=found.dtype), found.shape[-1]
    return Incumbent.among(found, torch.full_like(found, 1e-4), Samples.draw(n, aim, **options), ref_point)


def found_among(mean: Tensor, variance: Tensor, ref_point: Tensor | None = None, *feasible: Tensor) -> Incumbent:
    return Incumbent.among(mean, variance, Samples.draw(mean.shape[-1]), ref_point, *feasible)


def loops(aim: type, found: Tensor, mean: Tensor, covariance: Tensor, incumbent: Incumbent) -> Tensor:
    frame = [incumbent.samples, incumbent.ref_point[0].tolist(), incumbent.scale[0].tolist()]
    rows = zip(mean.numpy(), covariance.numpy(), strict=True)
    return double([plain_improvement(aim, m, C, found.tolist(), *frame) for m, C in rows])


@pytest.mark.parametrize("aim", AIMS)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_without_smoothing_it_is_what_loops_say(aim: type, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_WIDTH", 1e-9)
    monkeypatch.setattr(module, "GAIN_WIDTH", 1e-9)
    found, mean, covariance = scene(n)
    found = found / 2
    incumbent = incumbent_of(found, aim)
    expected = loops(aim, found, mean, covariance, incumbent)
    assert (expected > 1e-3).sum() > 5
    close(log_improvement(mean, covariance, incumbent).exp(), expected, 1e-5)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_smoothing_errs_by_no_more_than_is_stated(n: int) -> None:
    """The smooth minimum is up to tau log k below the smallest, of candidates as of incumbents; gains add tau."""
    found, mean, covariance = scene(n)
    incumbent = incumbent_of(found, ChebyshevScalarization)
    exact = loops(ChebyshevScalarization, found, mean, covariance, incumbent)
    error = log_improvement(mean, covariance, incumbent).exp() - exact
    slopes = incumbent.samples.slopes
    width = MIN_WIDTH * slopes.amin(dim=-1)
    mass = incumbent.samples.log_mass.exp()
    # Correlations are shrunk by a millionth as well.
    assert error.abs().max() <= (mass * (width * math.log(n) + GAIN_WIDTH)).mean() + 1e-6
    assert error.abs().max() > 0
    assert error.abs().max() < 0.02 * exact.max()
    values = (mean - incumbent.ref_point) / incumbent.scale
    below = (values.unsqueeze(-2) * slopes).amin(dim=-1) - incumbent.samples.reach(values)
    assert below.min() >= -1e-12
    assert (below <= width * math.log(n) + 1e-12).all()


@pytest.mark.parametrize("n", [2, 3])
def test_the_average_over_weights_is_the_gain_in_hypervolume(n: int) -> None:
    """Many weights, no doubt about the value: BoTorch's hypervolume, divided by the ball's positive part."""
    found, mean, _ = scene(n, q=4)
    mean = mean + 0.6
    incumbent = incumbent_of(found, count=2**14)
    value = log_improvement(mean, torch.zeros(4, n, n, dtype=torch.double), incumbent).exp()
    volume = Hypervolume(incumbent.ref_point[0])
    before = volume.compute(found[is_non_dominated(found)])
    gains = []
    for y in mean:
        both = torch.cat([found, y.unsqueeze(0)])
        gains.append(volume.compute(both[is_non_dominated(both)]) - before)
    ball = math.pi ** (n / 2) / math.gamma(n / 2 + 1) / 2**n
    expected = double(gains) / incumbent.scale.prod() / ball
    assert (expected > 0.05).all()
    torch.testing.assert_close(value, expected, rtol=0.02, atol=0)


def test_with_many_samples_it_is_botorchs_expected_hypervolume_improvement() -> None:
    """Of independent objectives, for which BoTorch has a closed form."""
    found, mean, covariance = scene(2)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    incumbent = incumbent_of(found, count=2**15)
    value = log_improvement(mean, torch.diag_embed(variance), incumbent).exp() * incumbent.scale.prod() * math.pi / 4
    ref_point = incumbent.ref_point[0]
    for m, v, ours in zip(mean, variance, value, strict=True):
        model = MockModel(MockPosterior(mean=m.unsqueeze(0), variance=v.unsqueeze(0)))
        boxes = NondominatedPartitioning(ref_point=ref_point, Y=found)
        peer = ExpectedHypervolumeImprovement(model, ref_point=ref_point.tolist(), partitioning=boxes)
        theirs = peer(torch.zeros(1, 1, dtype=torch.double))
        torch.testing.assert_close(ours, theirs.squeeze(), rtol=0.03, atol=2e-4)


def test_correlated_objectives_have_the_expected_gain_of_plain_draws() -> None:
    found, mean, covariance = scene(2)
    incumbent = incumbent_of(found, count=2**14)
    value = log_improvement(mean, covariance, incumbent).exp() * incumbent.scale.prod() * math.pi / 4
    source = np.random.default_rng(0)
    volume = Hypervolume(incumbent.ref_point[0])
    front = found[is_non_dominated(found)]
    before = volume.compute(front)
    for i in (0, 4):
        draws = torch.tensor(source.multivariate_normal(mean[i].numpy(), covariance[i].numpy(), size=2000))
        gains = double([volume.compute(torch.cat([front, y.unsqueeze(0)])) - before for y in draws])
        assert (gains.mean() - value[i]).abs() < 4 * gains.std() / math.sqrt(2000) + 0.02 * value[i]


@pytest.mark.parametrize("n", [1, 3, 12])
def test_samples_are_normal_whether_near_or_far(n: int) -> None:
    samples = Samples.draw(n, count=2**14)
    mass = samples.log_mass.exp()
    assert mass.max() <= 2
    assert samples.luck.abs().max() > 5
    close(mass.mean(), np.array(1.0), 0.02)
    moments = (samples.luck.mT * mass) @ samples.luck / len(mass)
    close(moments, np.eye(n), 0.05)
    close((mass.unsqueeze(-1) * samples.luck).mean(dim=0), np.zeros(n), 0.02)
    given = torch.rand(7, n, dtype=torch.double)
    few = Samples.draw(n, weights=given)
    share = math.ceil(NUM_SAMPLES / 7)
    assert len(few.luck) == 7 * share
    close(few.slopes, given.reciprocal().repeat_interleave(share, dim=0), 1e-12)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_there_are_enough_samples_to_tell_small_gains(n: int) -> None:
    """On a crowded front, where few samples gain anything, the average hardly depends on which are drawn."""
    source = torch.Generator().manual_seed(0)
    values = torch.randn(90, n, generator=source, dtype=torch.double).abs()
    found, mean = (values / values.norm(dim=-1, keepdim=True)).split([60, 30])
    covariance = 0.05**2 * torch.eye(n, dtype=torch.double).expand(30, n, n)
    frames = [incumbent_of(found, count=count_samples(n), seed=seed) for seed in range(12)]
    logs = torch.stack([log_improvement(mean, covariance, frame) for frame in frames])
    assert logs.std(dim=0).mean() < 0.06


@pytest.mark.parametrize("aim", AIMS)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_what_was_found_is_looked_at_in_pieces(
    aim: type, batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of observations, all reaches at once would take gigabytes."""
    source = torch.Generator().manual_seed(0)
    mean = torch.randn(*batch, 7, 3, generator=source, dtype=torch.double)
    feasible = torch.rand(*batch, 7, generator=source) < 0.5
    samples, sizes, reach = Samples.draw(3, aim), [], Samples.reach

    def find() -> Tensor:
        return Incumbent.among(mean, mean.square(), samples, feasible=feasible).best

    expected = find()
    monkeypatch.setattr(module, "CHUNK", 2 * samples.slopes.numel() * max(1, math.prod(batch)))
    monkeypatch.setattr(Samples, "reach", lambda self, y: (sizes.append(y.shape[-2]), reach(self, y))[1])
    assert torch.equal(find(), expected)
    assert sizes == [2, 2, 2, 1]


def test_the_luck_of_every_weight_is_spread_evenly() -> None:
    weights = torch.rand(64, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    luck = Samples.draw(2, weights=weights).luck.reshape(64, -1, 2)
    assert (luck.amin(dim=1) < -1).all()
    assert (luck.amax(dim=1) > 1).all()


@pytest.mark.parametrize("n", [1, 2, 3, 5, 12])
def test_directions_are_uniform_on_the_sphere(n: int) -> None:
    directions = Samples.draw(n, count=2**14).slopes.reciprocal()
    close(directions.square().sum(dim=-1), torch.ones(2**14), 1e-12)
    squares = directions.square()
    moments = squares.mT @ squares / len(squares)
    close(moments, (1 + 2 * np.eye(n)) / (n * (n + 2)), 1e-3)
    for coordinate in directions.unbind(dim=-1) if n == 3 else ():
        # Heights on a sphere are uniform, by Archimedes.
        close(coordinate.sort().values, torch.linspace(0, 1, 2**14, dtype=torch.double), 2e-3)


@pytest.mark.parametrize(("n", "tolerance"), [(2, 5e-5), (3, 2e-4)])
def test_few_directions_measure_a_hypervolume(n: int, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_WIDTH", 1e-9)
    front = torch.rand(12, n, generator=torch.Generator().manual_seed(1), dtype=torch.double) + 0.2
    reached = Samples.draw(n).reach(front).amax(dim=0).pow(n).mean().item()
    part_of_ball = math.pi ** (n / 2) / math.gamma(n / 2 + 1) / 2**n
    exact = Hypervolume(torch.zeros(n, dtype=torch.double)).compute(front[is_non_dominated(front)])
    assert abs(part_of_ball * reached / exact - 1) < tolerance


def test_few_weights_of_the_users_own_are_judged_by_as_many_samples() -> None:
    model, points = fitted(), torch.rand(200, 1, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    weights = double([[0.2, 0.5, 0.3]])
    values = torch.stack(
        [average(model, scalarization=ChebyshevScalarization, weights=weights, seed=s)(points) for s in range(4)]
    )
    likely = values[0] > values[0].max() - 1
    assert likely.sum() > 3
    assert values[:, likely].std(dim=0).max() < 0.1


def test_one_objective_has_to_exceed_a_reference_point() -> None:
    found, candidates = double([[-3.0], [-2.0]]), double([[-1.0], [1.0]])
    incumbent = found_among(found, torch.zeros_like(found), torch.zeros(1))
    below, above = log_improvement(candidates, torch.full((2, 1, 1), 1e-6, dtype=torch.double), incumbent).exp()
    assert below < 1e-9
    close(above * incumbent.scale.squeeze(), np.array(1.0), 0.01)


def test_one_objective_is_expected_improvement() -> None:
    found, mean, covariance = scene(1, q=30)
    incumbent, sd = incumbent_of(found, count=2**14), covariance.sqrt().squeeze(-1)
    u = (mean - found.max()) / sd
    exact = (sd * (u * torch.special.ndtr(u) + torch.exp(-u.square() / 2) / math.sqrt(2 * math.pi))).squeeze(-1)
    value = log_improvement(mean, covariance, incumbent).exp() * incumbent.scale.squeeze()
    likely = exact > 1e-4
    assert likely.sum() > 5
    torch.testing.assert_close(value[likely], exact[likely], rtol=0.02, atol=0)


def test_factors_of_covariances_that_have_none() -> None:
    source = torch.Generator().manual_seed(0)
    factor = torch.randn(5, 4, 4, generator=source, dtype=torch.double)
    regular = factor @ factor.mT
    root = factor_covariance(regular)
    close(root @ root.mT, regular, 1e-5)
    close(root, root.tril(), 1e-12)
    lined_up = torch.ones(4, 4, dtype=torch.double)
    lined_up[1] *= -1
    lined_up[:, 1] *= -1
    one_sided = torch.diag(double([1.0, 0.0, 4.0, 0.0]))
    for singular in (lined_up, one_sided, torch.zeros(4, 4, dtype=torch.double)):
        for dtype, tolerance in ((torch.double, 1e-5), (torch.float, 1e-2)):
            matrix = singular.to(dtype).requires_grad_()
            root = factor_covariance(matrix)
            close(root @ root.mT, singular, tolerance)
            assert torch.autograd.grad(root.sum(), matrix)[0].isfinite().all()
    impossible = torch.tensor([[1.0, 3.0], [3.0, 4.0]], dtype=torch.double)
    close(factor_covariance(impossible), np.diag([1.0, 2.0]), 1e-12)
    assert torch.autograd.gradcheck(
        lambda A: factor_covariance(A @ A.mT + torch.eye(4, dtype=torch.double)), (factor.requires_grad_(),)
    )


@pytest.mark.parametrize("aim", AIMS)
def test_weights_are_spread_as_the_scalarization_draws_them(aim: type) -> None:
    slopes = Samples.draw(3, aim, count=4096).slopes
    even = slopes.reciprocal() if aim is HypervolumeScalarization else slopes
    drawn = aim.default_weights(3).sample(100_000, torch.Generator().manual_seed(0), torch.double)
    for order in (1, 2):
        close((even**order).mean(dim=0), (drawn**order).mean(dim=0), 0.01)
    close((even[:, 0] * even[:, 1]).mean(), (drawn[:, 0] * drawn[:, 1]).mean(), 0.01)
    assert torch.equal(Samples.draw(3, aim, seed=1).slopes, Samples.draw(3, aim, seed=1).slopes)
    assert not torch.equal(Samples.draw(3, aim, seed=1).slopes, Samples.draw(3, aim, seed=2).slopes)


@pytest.mark.parametrize("aim", AIMS)
@pytest.mark.parametrize("n", [1, 3])
def test_gradients_by_mean_covariance_and_best(aim: type, n: int) -> None:
    found, mean, covariance = scene(n)
    incumbent = incumbent_of(found, aim, count=64)

    def value(mean: Tensor, factor: Tensor, best: Tensor) -> Tensor:
        return log_improvement(mean, factor @ factor.mT, replace(incumbent, best=best))

    start = (mean, torch.linalg.cholesky(covariance), incumbent.best)
    inputs = tuple(tensor.clone().requires_grad_() for tensor in start)
    assert torch.autograd.gradcheck(value, inputs, eps=1e-8, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("n", [1, 2, 8, 20])
def test_there_is_a_gradient_where_nothing_exceeds_the_reference_point(n: int, dtype: torch.dtype) -> None:
    found = -torch.rand(5, n, dtype=dtype) - 1
    incumbent = found_among(found, torch.full_like(found, 1e-4), torch.zeros(n, dtype=dtype))
    mean = (-torch.linspace(0.5, 100, 7, dtype=dtype)[:, None]).expand(7, n).clone().requires_grad_()
    value = log_improvement(mean, 1e-6 * torch.eye(n, dtype=dtype).expand(7, n, n), incumbent)
    (gradient,) = torch.autograd.grad(value.sum(), mean)
    assert torch.isfinite(value).all()
    assert (value.diff() < 0).all()
    assert (gradient.sum(dim=-1) > 1e-3).all()


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    found, mean, covariance = scene(3, q=50)
    incumbent, inputs = incumbent_of(found), mean.clone().requires_grad_()
    value = log_improvement(inputs, covariance, incumbent)
    (gradient,) = torch.autograd.grad(value.sum(), inputs)
    monkeypatch.setattr(module, "CHUNK", 7 * 3 * 1024)
    again = log_improvement(inputs, covariance, incumbent)
    close(again, value, 1e-12)
    close(torch.autograd.grad(again.sum(), inputs)[0], gradient, 1e-12)
    close(log_improvement(mean, covariance, incumbent), value, 1e-12)


def test_trials_at_once_are_each_alone() -> None:
    parts = [scene(2, seed=seed) for seed in (0, 1, 2)]
    found, mean, variance = (torch.stack(part) for part in zip(*parts, strict=True))
    together = incumbent_of(found)
    many = log_improvement(torch.stack([mean, mean + 0.1]), torch.stack([variance] * 2), together)
    assert many.shape == (2, 3, 9)
    for i, (own, m, v) in enumerate(parts):
        alone = incumbent_of(own)
        close(many[0, i], log_improvement(m, v, alone), 1e-12)
        close(many[1, i], log_improvement(m + 0.1, v, alone), 1e-12)


def find_whisker(values: np.ndarray) -> float:
    first, third = np.percentile(values, [25, 75])
    return max(values.min(), first - 1.5 * (third - first))


def test_the_inferred_reference_point_is_botorchs_or_that_of_a_box_plot() -> None:
    found = torch.stack([scene(3, t=12, seed=seed)[0] for seed in (0, 1)])
    found[0, 5, 1] = -1e6  # an outlier
    inferred = found_among(found, torch.zeros_like(found)).ref_point
    lower = set()
    for own, point in zip(found, inferred, strict=True):
        theirs = infer_reference_point(own[is_non_dominated(own)])
        whiskers = double([find_whisker(values) for values in own.mT.numpy()])
        close(point[0], torch.minimum(theirs, whiskers), 1e-12)
        lower |= set((whiskers < theirs).tolist())
    assert lower == {True, False}
    assert inferred[0, 0, 1] > -1e3
    given = found_among(found, torch.zeros_like(found), double([0.2, math.nan, math.nan])).ref_point
    close(given[..., 0], torch.full((2, 1), 0.2, dtype=torch.double), 1e-12)
    close(given[..., 1:], inferred[..., 1:], 1e-12)
    # Points that do not count are no part of the front; one point alone has the doubt about it for a range.
    only = torch.zeros(2, 12, dtype=torch.bool)
    only[:, 3] = True
    one = found_among(found, torch.zeros_like(found), None, only)
    assert (one.ref_point.squeeze(-2) < found[:, 3]).all()
    close(one.ref_point.squeeze(-2), found[:, 3] - 0.1 * found.std(dim=-2, correction=0), 1e-12)


def test_the_inferred_reference_point_lies_below_the_expected_ends_of_the_front() -> None:
    found = torch.stack([scene(3, t=12, seed=seed)[0] for seed in (0, 1)])
    expected = found.amax(dim=-2, keepdim=True) - 2 * (1 - torch.eye(3, dtype=torch.double))
    given, aim = double([math.nan, 0.2, math.nan]), Samples.draw(3)
    inferred = Incumbent.among(found, torch.zeros_like(found), aim, given, ends=expected).ref_point
    for own, ends, point in zip(found, expected, inferred, strict=True):
        front = torch.cat([own[is_non_dominated(own)], ends]).numpy()
        below = front.min(axis=0) - 0.1 * (front.max(axis=0) - front.min(axis=0))
        close(point[0], double([below[0], 0.2, below[2]]), 1e-12)
    # Ends that are no more extreme than the front leave the host's rule.
    for own in found:
        front = own[is_non_dominated(own)]
        point = Incumbent.among(own, torch.zeros_like(own), aim, ends=front.mean(dim=0, keepdim=True)).ref_point
        close(point[0], infer_reference_point(front), 1e-12)


@pytest.mark.parametrize("aim", AIMS)
def test_only_what_counts_is_an_incumbent(aim: type) -> None:
    found, mean, covariance = scene(2)
    ref_point, samples = torch.full((2,), -0.1), Samples.draw(2, aim)
    counts = double([1, 0, 1, 0, 1, 1]) > 0
    some = Incumbent.among(found, torch.zeros_like(found), samples, ref_point, counts)
    reached = samples.reach((found[counts] - some.ref_point) / some.scale)
    close(some.best, reached.amax(dim=-2), 1e-12)
    none = Incumbent.among(found, torch.zeros_like(found), samples, ref_point, counts & False)
    assert (none.best <= some.best).all()
    assert torch.isfinite(log_improvement(mean, covariance, none)).all()


def average(model: Any, *arguments: Any, **options: Any) -> LogAverageImprovement:
    return LogAverageImprovement(model, *arguments, **({"seed": 0} | options))


def by_hand(acqf: LogAverageImprovement, model: Any, trusted: Any, X: Tensor) -> Tensor:
    told, mean = model.posterior(acqf.X_baseline), model.posterior(X).mean
    incumbent = found_among(told.mean, told.variance, acqf.ref_point)
    return log_improvement(mean, covariance_at(trusted, X), incumbent).squeeze(-1)


def covariance_at(model: Any, X: Tensor) -> Tensor:
    """The covariance at ``b x 1 x d`` points from BoTorch's posterior."""
    return model.posterior(X).distribution.covariance_matrix.unsqueeze(-3)


@pytest.mark.parametrize("build", PATHS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("kind", [ExactMultiTaskGP, NystromMultiTaskGP])
def test_our_models(build: Builder, kind: type) -> None:
    X, Y, Z = data(8, 3, 2)
    kernel, points = build(3, 2).kernel, Z.unsqueeze(-2)
    dictionary = {} if kind is ExactMultiTaskGP else {"dictionary": torch.arange(1, 8)}
    model, trusted = (kind(X, Y, kernel, eta=eta, **dictionary) for eta in (0.1, 1e-5))
    acqf = average(model)
    expected = by_hand(acqf, model, trusted, points)
    close(acqf(points), expected, 1e-6)
    assert expected.std() > 0.1
    suites.check_gradient(acqf, Z)


@pytest.mark.filterwarnings("ignore::linear_operator.utils.warnings.NumericalWarning")  # the host's own
def test_any_model() -> None:
    X, Y, Z = data(6, 2, 2)
    points = Z.unsqueeze(-2)
    for model in (ModelListGP(SingleTaskGP(X, Y[:, :1]), SingleTaskGP(X, Y[:, 1:])), KroneckerMultiTaskGP(X, Y)):
        acqf = average(model, X_baseline=X)
        told, posterior = model.posterior(X), model.posterior(points)
        incumbent = found_among(told.mean, told.variance)
        expected = log_improvement(posterior.mean, torch.diag_embed(posterior.variance), incumbent).squeeze(-1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The posterior of KroneckerMultiTaskGP has no covariances")
            close(acqf(points), expected, 1e-8)
    with pytest.raises(ValueError, match="X_baseline should be given for a ModelListGP"):
        average(ModelListGP(SingleTaskGP(X, Y[:, :1])))


def test_signs_turn_objectives_and_leave_out_others() -> None:
    X, Y, Z = data(8, 3, 2)
    points, kernel = Z.unsqueeze(-2), icm(3, 2).kernel
    model = ExactMultiTaskGP(X, Y, kernel, eta=0.1)
    turned = average(model, signs=[-1, 0, 1], ref_point=double([1.0, -1.5]))
    part, trusted = (ExactMultiTaskGP(X, Y, kernel, eta=eta).subset_output([0, 2]) for eta in (0.1, 1e-5))
    told, signs = part.posterior(X), double([-1.0, 1.0])
    incumbent = found_among(told.mean * signs, told.variance, double([-1.0, -1.5]))
    covariance = covariance_at(trusted, points) * signs.outer(signs)
    turned_back = log_improvement(part.posterior(points).mean * signs, covariance, incumbent)
    close(turned(points), turned_back.squeeze(-1), 1e-8)


def test_pending_points_shrink_the_variance_and_count_as_found() -> None:
    X, Y, Z = data(8, 2, 2)
    ref_point, kernel, pending = Y.amin(dim=0) - 0.5, icm(2, 2).kernel, Z[:2]
    model = ExactMultiTaskGP(X, Y, kernel, eta=0.1)
    known = ExactMultiTaskGP(torch.cat([X, pending]), torch.cat([Y, Y[:2]]), kernel, eta=1e-5)
    points = Z[2:].unsqueeze(-2)
    told = model.at(X)
    incumbent = found_among(told.mean, told.variance(), ref_point).after(model.mean(pending))
    expected = log_improvement(model.mean(points), known.covariance(points), incumbent).squeeze(-1)
    acqf = average(model, ref_point, X_pending=pending)
    close(acqf(points), expected, 1e-8)
    free = average(model, ref_point)(points)
    assert (acqf(points) < free).all()
    acqf.set_X_pending(None)
    close(acqf(points), free, 1e-12)


def test_after_is_the_larger_of_both() -> None:
    found, mean, _ = scene(2)
    incumbent = incumbent_of(found)
    after = incumbent.after(mean).best
    reached = incumbent.samples.reach((mean - incumbent.ref_point) / incumbent.scale)
    larger = torch.maximum(incumbent.best, reached.amax(dim=-2))
    assert (after >= larger).all()
    assert (after <= larger + GAIN_WIDTH).all()


def test_several_points_are_the_sum_of_the_steps() -> None:
    _, _, Z = data(8, 3, 2)
    acqf = average(fitted())
    joint = acqf(torch.stack([Z[:3], Z[3:6]]))
    for i, triple in enumerate((Z[:3], Z[3:6])):
        steps = 0.0
        for j in range(3):
            acqf.set_X_pending(triple[:j] if j else None)
            steps += acqf(triple[j : j + 1]).exp()
        close(joint[i].exp(), steps.squeeze(), 1e-7)
    acqf.set_X_pending(None)
    assert torch.autograd.gradcheck(acqf, (Z[:2].unsqueeze(0).requires_grad_(),), atol=1e-4, rtol=1e-3)


def test_constraints_add_the_log_of_their_probability() -> None:
    X, Y, Z = data(8, 2, 2)
    model, points = ExactMultiTaskGP(X, Y, icm(2, 2).kernel, eta=0.1), Z.unsqueeze(-2)
    limit, ref_point = Y[:, 0].median(), Y.amin(dim=0) - 1
    acqf = average(model, ref_point, constraints=(double([[1.0, 0.0]]), limit.reshape(1)))
    told, belief = model.at(X), model.at(points)
    trusted = ExactMultiTaskGP(X, Y, icm(2, 2).kernel, eta=1e-5).at(points)
    assert (trusted.variance() < 0.9 * belief.variance()).any()
    allowed = told.mean[:, 0] <= limit
    assert 0 < allowed.sum() < 8
    incumbent = found_among(told.mean, told.variance(), ref_point, allowed)
    chance = norm.logcdf((limit - belief.mean[..., 0]) / belief.variance()[..., 0].sqrt())
    expected = log_improvement(belief.mean, trusted.covariance, incumbent) + torch.tensor(chance)
    close(acqf(points), expected.squeeze(-1), 1e-6)
    suites.check_gradient(acqf, Z)


def test_batches_of_models() -> None:
    sets = [data(6, 2, 2, seed) for seed in (0, 1)]
    X, Y, _ = (torch.stack(parts) for parts in zip(*sets, strict=True))
    kernel = icm(2, 2).kernel
    together = average(ExactMultiTaskGP(X, Y, kernel, eta=0.1))
    points = torch.rand(5, 2, 1, 2, dtype=torch.double)
    values = together(points)
    assert values.shape == (5, 2)
    pairs = together(torch.cat([points, points.flip(-1)], dim=-2))
    for i in range(2):
        alone = average(ExactMultiTaskGP(X[i], Y[i], kernel, eta=0.1))
        close(values[:, i], alone(points[:, i]), 1e-10)
        close(pairs[:, i], alone(torch.cat([points, points.flip(-1)], dim=-2)[:, i]), 1e-8)


@pytest.mark.parametrize("t", [0, 1])
def test_with_hardly_any_data(t: int) -> None:
    acqf = average(fitted(t=t), ref_point=torch.zeros(3, dtype=torch.double))
    value = acqf(torch.rand(4, 1, 2, dtype=torch.double))
    assert torch.isfinite(value).all()
    if t == 0:
        with pytest.raises(ValueError, match="ref_point should be given before the first observation"):
            average(fitted(t=0))
    else:
        assert torch.isfinite(average(fitted(t=1))(torch.rand(4, 1, 2, dtype=torch.double))).all()


def test_single_precision_and_to() -> None:
    X, Y, Z = data(8, 2, 2)
    points = Z.unsqueeze(-2)
    # In single precision more is left of the noise of observations taken for the truth.
    model, trusted = (ExactMultiTaskGP(X, Y, icm(2, 2).kernel, eta=eta) for eta in (0.1, 1e-4))
    single = average(ExactMultiTaskGP(X.float(), Y.float(), icm(2, 2).kernel.float(), eta=0.1))
    close(single(points.float()), by_hand(single.to(torch.double), model, trusted, points), 1e-3)
    moved = average(ExactMultiTaskGP(X, Y, icm(2, 2).kernel, eta=0.1), X_pending=Z[:1]).to(torch.float)
    assert moved(points.float()).dtype == torch.float


def test_several_points_in_single_precision_and_hardly_any_noise() -> None:
    source = torch.Generator().manual_seed(0)
    X = torch.rand(40, 2, generator=source)
    kernel = ICMKernel(rbf(0.7).float(), torch.eye(2))
    acqf = average(ExactMultiTaskGP(X, torch.cat([X.sin(), X.cos()], dim=-1)[:, :2], kernel, eta=1e-4))
    assert acqf(torch.rand(20, 4, 2, generator=source)).isfinite().all()


@pytest.mark.parametrize("kind", [ExactMultiTaskGP, NystromMultiTaskGP])
def test_points_observed_are_not_worth_another_look(kind: type) -> None:
    """The doubt about the best point found is one with the doubt about what is to be improved upon."""
    X, Y, Z = data(8, 2, 2)
    options = {} if kind is ExactMultiTaskGP else {"dictionary": torch.arange(8)}
    model = kind(X, Y, icm(2, 2).kernel, eta=0.1, **options)
    acqf = average(model, Y.amin(dim=0) - 0.5)
    assert (model.covariance_norm(X).sqrt() > 0.1).all()
    assert acqf(X.unsqueeze(-2)).max() < acqf(Z.unsqueeze(-2)).max() - 3


def test_a_changed_model_is_noticed() -> None:
    _, Y, Z = data(8, 3, 2)
    model, other = fitted(), fitted()
    acqf = average(model, X_pending=Z[:2])
    for changed in (model, other):
        changed.covar_module.base_kernel.lengthscale = torch.tensor(0.2, dtype=torch.double)
        changed.set_train_data(changed.train_inputs[0], -Y)
    close(acqf(Z.unsqueeze(-2)), average(other, X_pending=Z[:2])(Z.unsqueeze(-2)), 1e-10)


def test_values_do_not_depend_on_their_neighbours() -> None:
    acqf = average(fitted(t=30))
    points = torch.rand(200, 1, 2, dtype=torch.double)
    close(acqf(points)[:3], acqf(points[:3]), 1e-10)


def test_every_way_botorch_maximizes_it() -> None:
    acqf = average(fitted())
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 41, dtype=torch.double)] * 2).unsqueeze(-2)
    _, value = optimize_acqf(acqf, BOUNDS, q=1, num_restarts=8, raw_samples=64, options={"seed": 0})
    assert value >= acqf(grid).max() - 1e-6
    points, _ = optimize_acqf(acqf, BOUNDS, q=3, num_restarts=4, raw_samples=64, sequential=True)
    assert acqf.X_pending is None
    assert torch.pdist(points).min() > 1e-2
    joint, _ = optimize_acqf(acqf, BOUNDS, q=2, num_restarts=2, raw_samples=16)
    assert joint.shape == (2, 2)
    choices = torch.rand(50, 2, dtype=torch.double)
    found, _ = optimize_acqf_discrete(acqf, q=1, choices=choices)
    assert torch.equal(found[0], choices[acqf(choices.unsqueeze(-2)).argmax()])
    mixed, _ = optimize_acqf_mixed(
        acqf, BOUNDS, q=1, num_restarts=2, raw_samples=16, fixed_features_list=[{0: 0.0}, {0: 1.0}]
    )
    assert mixed[0, 0] in (0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"signs": [1, 2, 1]}, "signs should be 1"),
        ({"scalarization": LinearScalarization}, "scalarization should be the class HypervolumeScalarization"),
        ({"ref_point": torch.zeros(2)}, "ref_point should have one finite entry for each of the 3 objectives"),
        ({"ref_point": double([0.0, math.inf, 0.0])}, "ref_point should have one finite entry"),
        ({"weights": torch.ones(3)}, "weights should be `W x k` with k = 3"),
        ({"weights": -torch.ones(4, 3)}, "weights should be non-negative"),
        ({"seed": -1}, "seed should be an integer"),
        ({"X_baseline": torch.zeros(2)}, "X_baseline should be `t x d`"),
        ({"X_pending": torch.zeros(2)}, "X_pending should be `p x d`"),
        ({"constraints": (torch.ones(1, 2), torch.ones(1))}, "constraints should have one column"),
    ],
)
def test_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        average(fitted(), **options)


def constructed(model: object, **options: Any) -> LogAverageImprovement:
    return LogAverageImprovement(**get_acqf_input_constructor(LogAverageImprovement)(model=model, **options))


def test_what_ax_hands_over() -> None:
    X, Y, Z = data(8, 3, 2)
    model, points = ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=0.1), Z.unsqueeze(-2)
    objective = WeightedMCMultiOutputObjective(double([1.0, -1.0]), outcomes=[2, 0], num_outcomes=3)
    limits = (double([[0.0, 1.0, 0.0]]), double([[0.5]]))
    acqf = constructed(
        model,
        objective=objective,
        ref_point=double([-1.5, -1.0]),
        X_baseline=X,
        X_pending=Z[:1],
        constraints_tuple=limits,
        seed=3,
    )
    direct = average(
        model, double([1.0, -1.5]), X_baseline=X, X_pending=Z[:1], signs=[-1, 0, 1], constraints=limits, seed=3
    )
    close(acqf(points), direct(points), 1e-12)
    close(constructed(model)(points), LogAverageImprovement(model, seed=8)(points), 1e-12)
    with pytest.raises(UnsupportedError, match="constraints should come with constraints_tuple"):
        constructed(model, constraints=[lambda Y: Y[..., 0]])


@pytest.mark.slow
def test_hardly_any_search_ends_abnormally() -> None:
    """Two runs of 25 rounds each, in which points crowd at the front: BoTorch may have to start again once or twice.

    An average over samples has steps where only unlikely ones gain anything, and there a line search may fail.
    """
    problem, failures = BraninCurrin(negate=True), 0
    box, ref_point = problem.bounds.double(), problem.ref_point.double()
    for seed in (0, 1):
        X = draw_sobol_samples(box, 1, 6, seed=seed)[0]
        for i in range(25):
            Y = problem(X)
            model = ExactMultiTaskGP(X, Y, input_transform=Normalize(2, bounds=box), outcome_transform=Standardize(2))
            learn_kernel(model)
            acqf = LogAverageImprovement(model.eval(), ref_point)
            torch.manual_seed(i)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                x, _ = optimize_acqf(acqf, box, q=1, num_restarts=4, raw_samples=128, options={"seed": i})
            failures += any("ABNORMAL" in str(warning.message) for warning in caught)
            X = torch.cat([X, x])
    assert failures <= 2
