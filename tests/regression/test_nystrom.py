"""The Nystrom path against Algorithm 2 written out, against the exact path, and at its draws."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from typing import Any

import mpmath
import numpy as np
import oracles
import pytest
import torch
from catalogue import KERNELS, PATHS, Builder, data, icm, matern, rbf, similarity, task_matrix
from gpytorch.kernels import Kernel, MaternKernel, MultitaskKernel, RBFKernel
from suites import close
from torch import Tensor

from mtbo_torch import (
    ExactMultiTaskGP,
    ICMKernel,
    NystromMultiTaskGP,
    SumOfSeparableKernel,
    TaskSimilarityKernel,
    nystrom_radius,
    theory_oversampling,
)
from mtbo_torch.kernels import TaskwiseKernel, adapt_kernel
from mtbo_torch.regression import MatrixKernel, NystromRegression, sites, subspace
from mtbo_torch.regression.draws import draw_luck
from mtbo_torch.regression.whitened import GroupedRows, MatrixRows

every_kernel = pytest.mark.parametrize("build", KERNELS, ids=lambda build: build.__name__)
every_path = pytest.mark.parametrize("build", PATHS, ids=lambda build: build.__name__)
DICTIONARY = [0, 3, 4, 9, 11]


def fitted(build: Builder = icm, n: int = 3, t: int = 12, dictionary: object = DICTIONARY, **kwargs: object):
    X, Y, _ = data(t, n, 2)
    indices = None if dictionary is None else torch.tensor(dictionary)
    return NystromMultiTaskGP(X, Y, build(n, 2).kernel, **({"eta": 0.1, "dictionary": indices} | kwargs))


@every_kernel
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_agrees_with_algorithm_2_and_the_weights_cancel(build: Builder, n: int, weighted: bool) -> None:
    case = build(n, 2)
    X, Y, Z = data(12, n, 2)
    probs = np.linspace(0.1, 1, 12) if weighted else np.ones(12)
    mean, covariance = oracles.nystrom_posterior(case.gamma, X.numpy(), Y.numpy(), 0.1, DICTIONARY, probs, Z.numpy())
    model = fitted(build, n)
    close(model.mean(Z), mean, 1e-8)
    close(model.covariance(Z), oracles.blocks(covariance, n), 1e-8)
    close(model.covariance_norm(Z), oracles.operator_norm(oracles.blocks(covariance, n)), 1e-8)
    close(model.posterior(Z).distribution.covariance_matrix, covariance, 1e-8)
    assert model.dictionary_size == 5
    assert model.dictionary.tolist() == DICTIONARY


def test_structured_kernels_take_the_scalar_embedding() -> None:
    for build in KERNELS:
        rows = fitted(build).surrogate.regression.rows
        assert isinstance(rows, MatrixRows if build.__name__ == "general_sum" else GroupedRows)


@every_path
@pytest.mark.parametrize("eta", [0.1, (0.05, 0.1, 0.3)], ids=["one noise", "noise of each task"])
def test_a_dictionary_of_all_points_is_the_exact_model(build: Builder, eta: object) -> None:
    X, Y, Z = data(12, 3, 2)
    eta = torch.tensor(eta, dtype=torch.double)
    exact = ExactMultiTaskGP(X, Y, build(3, 2).kernel, eta=eta)
    model = fitted(build, dictionary=list(range(12)), eta=eta)
    close(model.mean(Z), exact.mean(Z), 1e-8)
    close(model.covariance(Z), exact.covariance(Z), 1e-8)
    close(model.covariance_norm(Z), exact.covariance_norm(Z), 1e-8)
    close(model.info_gain, exact.info_gain, 1e-8)


def in_forty_digits(
    is_rbf: bool, lengthscale: float, B: Tensor, eta: float, X: Tensor, Y: Tensor, Z: Tensor
) -> tuple[Tensor, Tensor, float]:
    """Mean, variances and information gain by the paper's formulae and Gaussian elimination."""

    def scalar(x: list[float], y: list[float]) -> mpmath.mpf:
        square = mpmath.fsum((mpmath.mpf(a) - b) ** 2 for a, b in zip(x, y, strict=True)) / mpmath.mpf(lengthscale) ** 2
        r = mpmath.sqrt(5 * square)
        return mpmath.exp(-square / 2) if is_rbf else (1 + r + r**2 / 3) * mpmath.exp(-r)

    def gram(first: Tensor, second: Tensor) -> mpmath.matrix:
        n, result = len(B), mpmath.matrix(len(B) * len(first), len(B) * len(second))
        for i, x in enumerate(first.tolist()):
            for j, y in enumerate(second.tolist()):
                value = scalar(x, y)
                for a in range(n):
                    for b in range(n):
                        result[n * i + a, n * j + b] = value * B[a, b].item()
        return result

    with mpmath.workdps(40):
        noisy = gram(X, X) + mpmath.mpf(eta) * mpmath.eye(Y.numel())
        inverse, cross = noisy**-1, gram(X, Z)
        mean = cross.T * (inverse * mpmath.matrix(Y.flatten().tolist()))
        solved = inverse * cross
        explained = [mpmath.fsum(cross[i, j] * solved[i, j] for i in range(Y.numel())) for j in range(len(mean))]
        variances = [B[j % len(B), j % len(B)].item() - explained[j] for j in range(len(mean))]
        gain = mpmath.log(mpmath.det(noisy / mpmath.mpf(eta))) / 2
        mean, variances = (torch.tensor([float(v) for v in all_], dtype=torch.double) for all_ in (mean, variances))
    return mean.view(len(Z), -1), variances.view(len(Z), -1), float(gain)


@pytest.mark.parametrize(
    ("is_rbf", "lengthscale", "d", "is_smooth"),
    [(True, 0.2, 1, True), (True, 0.2, 1, False), (False, 0.3, 2, True)],
    ids=["worst, smooth", "worst, rough", "good, smooth"],
)
def test_a_dictionary_of_all_points_is_the_exact_model_at_a_tiny_noise(
    is_rbf: bool, lengthscale: float, d: int, is_smooth: bool
) -> None:
    """The condition number of the kernel matrix is above 1e16 for the worst."""
    X, Y, Z = data(16, 2, d)
    if is_smooth:
        Y = torch.sin(3 * X.sum(dim=-1, keepdim=True) + torch.arange(2)) + 1e-4 * Y
    B, eta, noise = task_matrix(2), 1e-8, torch.full((1, 1), 1e-8, dtype=torch.double)
    mean, variance, gain = in_forty_digits(is_rbf, lengthscale, B, eta, X, Y, Z)
    grouped = adapt_kernel(ICMKernel((rbf if is_rbf else matern)(lengthscale), B), 2)
    for kernel in (grouped, AnyKernel(grouped)):
        belief = (fitted := NystromRegression.fit(kernel, noise, X, Y, torch.arange(16), 3.0)).at(Z)
        # Values that no smooth function has are 1e4 deviations of the noise from it, and so is what rounding does.
        assert ((belief.mean - mean).abs() / variance.sqrt()).max() <= (1e-4 if is_smooth else 0.5)
        # Rounding moves a feature by that of the kernel over the root of its eigenvalue, in units of the noise. How
        # much of that the worst variance has depends on the processor.
        rows, root = fitted.rows, fitted.subspace.root
        rounding = math.sqrt(root.shape[-1]) * torch.finfo(torch.double).eps * rows.blocks(X).max()
        largest_error = rounding * root.norm(dim=-1).max() * rows.eigvals.max().sqrt()
        error = (belief.variance() / variance - 1).abs()
        assert error.median() <= 2e-5
        assert error.max() <= largest_error
        close(fitted.info_gain, torch.tensor(gain), 1e-4)


class AnyKernel(MatrixKernel):
    """A kernel whose structure is not known."""

    def __init__(self, kernel: MatrixKernel) -> None:
        self.kernel = kernel

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        return self.kernel(X1, X2)

    def blocks(self, X: Tensor) -> Tensor:
        return self.kernel.blocks(X)


@pytest.mark.parametrize("eta", [0.1, 1.7])
def test_one_task_is_bkb(eta: float) -> None:
    X, Y, Z = data(12, 1, 2)
    model = NystromMultiTaskGP(
        X, Y, ICMKernel(rbf(0.5), torch.ones(1, 1, dtype=torch.double)), eta=eta, dictionary=torch.tensor(DICTIONARY)
    )
    mean, variance = oracles.bkb_posterior(oracles.rbf(0.5), X.numpy(), Y[:, 0].numpy(), eta, DICTIONARY, Z.numpy())
    close(model.mean(Z)[:, 0], mean, 1e-8)
    close(model.covariance_norm(Z), variance, 1e-8)


@every_path
def test_duplicates_in_the_dictionary_add_nothing(build: Builder) -> None:
    _, _, Z = data(12, 3, 2)
    plain, doubled = fitted(build), fitted(build, dictionary=[*DICTIONARY, 3, 3, 0])
    close(doubled.mean(Z), plain.mean(Z), 1e-9)
    close(doubled.covariance(Z), plain.covariance(Z), 1e-9)


REPEATED = [0, 1, 2, 0, 0, 1, 3, 4, 4, 2, 0, 3]


@every_path
@pytest.mark.parametrize("own_noise", [False, True], ids=["one noise", "noise of each observation"])
def test_a_point_is_in_the_dictionary_once(build: Builder, own_noise: bool) -> None:
    case, (X, Y, Z) = build(3, 2), data(12, 3, 2)
    X = X[REPEATED]
    noise = {"train_Yvar": 0.05 + 0.1 * Y.abs()} if own_noise else {"eta": 0.1}
    once, often = (
        NystromMultiTaskGP(X, Y, case.kernel, dictionary=torch.tensor(indices), **noise)
        for indices in ([5, 9, 10], [0, 1, 2, 3, 4, 5, 9, 10])
    )
    assert often.dictionary.tolist() == once.dictionary.tolist() == [5, 9, 10]  # the last observation of each
    assert often.dictionary_size == 3
    for model in (once, often):
        regression = model.surrogate.regression
        assert regression.subspace.atoms.shape == (3, 2)
        assert regression.extend_dictionary(2).dictionary.tolist() == [5, 9, 10, 11]
        assert regression.imagine(X[:2]).dictionary_size == 3
    if not own_noise:
        mean, covariance = oracles.nystrom_posterior(
            case.gamma, X.numpy(), Y.numpy(), 0.1, [0, 1, 2], np.ones(12), Z.numpy()
        )
        close(often.mean(Z), mean, 1e-8)
        close(often.covariance(Z), oracles.blocks(covariance, 3), 1e-8)


def test_each_observation_of_a_point_is_drawn_for_itself() -> None:
    X, Y, _ = data(12, 3, 2)
    X, Y = torch.stack([X[REPEATED], X]), torch.stack([Y, Y])  # the second data set has no copies
    model = NystromMultiTaskGP(X, Y, icm(3, 2).kernel, eta=0.1, oversampling=0.8, dictionary=torch.arange(12))
    regression, probs = model.surrogate.regression, model.inclusion_probs
    merged = 0
    for seed in range(20):
        drawn = regression.resample([torch.Generator().manual_seed(seed + i) for i in range(2)])
        for i in range(2):
            uniform = torch.rand(12, generator=torch.Generator().manual_seed(seed + i), dtype=torch.double)
            chosen = [s for s in range(12) if uniform[s] < probs[i, s] or s == 11]
            last = {tuple(X[i, s].tolist()): s for s in chosen}
            merged += len(chosen) - len(last)
            assert drawn.dictionary_size[i] == len(last)
            assert drawn.dictionary[i, : len(last)].tolist() == sorted(last.values())
            assert (drawn.dictionary[i, len(last) :] == 11).all()
    assert merged > 10


@every_path
@pytest.mark.parametrize("step", [1, 3])
def test_appending_keeps_the_dictionary_and_equals_fitting(build: Builder, step: int) -> None:
    X, Y, Z = data(12, 3, 2)
    dictionary = torch.tensor([0, 2, 5])
    model = NystromMultiTaskGP(X[:6], Y[:6], build(3, 2).kernel, eta=0.1, dictionary=dictionary)
    parent, before = model, model.mean(Z)
    for i in range(6, 12, step):
        model = model.condition_on_observations(X[i : i + step], Y[i : i + step])
        model.condition_on_observations(X[:1], Y[:1])  # a branch that must leave no trace
    expected = NystromMultiTaskGP(X, Y, build(3, 2).kernel, eta=0.1, dictionary=dictionary)
    close(model.mean(Z), expected.mean(Z), 1e-9)
    close(model.covariance(Z), expected.covariance(Z), 1e-9)
    close(model.covariance_norm(Z), expected.covariance_norm(Z), 1e-9)
    assert torch.equal(parent.mean(Z), before)


@every_path
def test_the_gain_is_the_sum_over_rounds(build: Builder) -> None:
    X, Y, _ = data(12, 3, 2)
    model = NystromMultiTaskGP(X[:6], Y[:6], build(3, 2).kernel, eta=0.1, dictionary=torch.tensor([0, 2, 5]))
    expected = model.info_gain.item()
    for i in range(6, 12):
        covariance = model.covariance(X[i : i + 1])[0].numpy()
        expected += 0.5 * np.linalg.slogdet(np.eye(3) + covariance / 0.1)[1]
        model = model.condition_on_observations(X[i : i + 1], Y[i : i + 1])
    close(model.info_gain, expected, 1e-9)


@every_path
def test_the_gain_of_a_fit_is_never_below_the_exact_one(build: Builder) -> None:
    X, Y, _ = data(12, 3, 2)
    exact = ExactMultiTaskGP(X, Y, build(3, 2).kernel, eta=0.1).info_gain
    for dictionary in ([0], DICTIONARY):
        assert fitted(build, dictionary=dictionary).info_gain >= exact - 1e-9


@every_path
@pytest.mark.parametrize("eta", [0.1, (0.1, 0.2, 0.3)], ids=["one noise", "noise of each task"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_following_equals_evaluating(build: Builder, eta: object, batch: tuple[int, ...]) -> None:
    X, Y, Z = data(12, 3, 2)
    X, Y = (tensor.expand(*batch, *tensor.shape) for tensor in (X, Y))
    eta = torch.tensor(eta, dtype=torch.double)
    dictionary = torch.tensor([0, 2])
    model = NystromMultiTaskGP(X[..., :4, :], Y[..., :4, :], build(3, 2).kernel, eta=eta, dictionary=dictionary)
    followed = model.surrogate.regression.track(Z)
    for i, step in ((4, 1), (5, 1), (6, 6)):
        followed = followed.advance(followed.regression.append(X[..., i : i + step, :], Y[..., i : i + step, :]))
        mean, norm = (followed.mean, followed.norm)
        expected_mean, expected_norm = (followed.regression.at(Z).mean, followed.regression.at(Z).norm)
        close(mean, expected_mean, 1e-10)
        close(norm, expected_norm, 1e-10)


def test_batches_with_dictionaries_of_different_sizes() -> None:
    sets = [data(40, 3, 2, seed) for seed in (0, 1, 2)]
    X, Y, Z = (torch.stack(parts) for parts in zip(*sets, strict=True))
    X[1] *= 0.05  # close together: few points are enough
    kernel, generators = icm(3, 2).kernel, [torch.Generator().manual_seed(seed) for seed in range(3)]
    together = NystromMultiTaskGP(X, Y, kernel, eta=0.1, dictionary=torch.arange(40)).surrogate.regression.resample(
        generators
    )
    sizes = together.dictionary_size.tolist()
    assert sizes[1] < min(sizes[0], sizes[2])
    for i in range(3):
        alone = NystromMultiTaskGP(X[i], Y[i], kernel, eta=0.1, dictionary=torch.arange(40)).surrogate.regression
        alone = alone.resample(torch.Generator().manual_seed(i))
        assert alone.dictionary_size == sizes[i]
        assert together.dictionary[i, : sizes[i]].tolist() == alone.dictionary.tolist()
        close(together.at(Z).mean[i], alone.at(Z[i]).mean, 1e-9)
        close(together.at(Z).norm[i], alone.at(Z[i]).norm, 1e-9)
    kept = together.resample(generators, where=torch.tensor([True, False, False]))
    assert kept.dictionary_size.tolist()[1:] == sizes[1:]
    close(kept.at(Z).mean[1:], together.at(Z).mean[1:], 1e-9)
    far = torch.full((3, 1, 2), 5.0, dtype=torch.double)
    grown = together.append(far, Y[:, :1])
    kept = grown.resample(generators, where=torch.tensor([True, False, False]))
    close(kept.at(far).norm[1:], grown.at(far).norm[1:], 1e-9)  # the far point is not in theirs
    assert kept.at(far).norm[0] < 0.5 * grown.at(far).norm[0]
    for i in (1, 2):
        assert sorted(set(kept.dictionary[i].tolist())) == sorted(set(together.dictionary[i].tolist()))


def own_lengthscales(shape: tuple[int, ...]) -> MaternKernel:
    kernel = MaternKernel(nu=1.5, batch_shape=torch.Size(shape)).double()
    scales = torch.linspace(0.3, 0.5, kernel.batch_shape.numel(), dtype=torch.double)
    kernel.lengthscale = scales.reshape(*shape, 1, 1)
    return kernel


# With what differs from one data set to the next: nothing, the tasks, or the lengthscales.
BATCHES = {
    "grouped": lambda: ICMKernel(matern(0.4), task_matrix(3)),
    "matrix": lambda: SumOfSeparableKernel(
        [ICMKernel(matern(0.4), task_matrix(3)), ICMKernel(own_lengthscales(()), task_matrix(3, seed=1))]
    ),
    "own tasks": lambda: ICMKernel(matern(0.4), torch.stack([task_matrix(3, seed=i) for i in range(5)])),
    "own lengthscales": lambda: ICMKernel(own_lengthscales((5,)), task_matrix(3)),
    "own lengthscales, commuting": lambda: SumOfSeparableKernel(
        [ICMKernel(own_lengthscales((5,)), task_matrix(3)), ICMKernel(matern(0.3), torch.eye(3, dtype=torch.double))]
    ),
    "own lengthscales of each task": lambda: TaskwiseKernel(own_lengthscales((5, 3))),
    "own lengthscales, any kernel": lambda: MultitaskKernel(own_lengthscales((5,)), num_tasks=3, rank=1).double(),
}
DUE = torch.tensor([True, False, True, True, False])


def grown_batch(kernel: Kernel, swept: bool) -> tuple[NystromRegression, Tensor]:
    """Five data sets with dictionaries of different sizes, and one more observation; and where to look."""
    X, Y, Z = (torch.stack(parts) for parts in zip(*[data(30, 3, 2, seed) for seed in range(5)], strict=True))
    X[:3] = torch.cat([X[:3, :20], X[:3, :10]], dim=-2)  # some points twice
    X[3] *= 0.05  # close together: fewer points are enough
    noise = torch.tensor([0.1, 0.01, 1.0] if swept else [0.1], dtype=torch.double).reshape(-1, 1, 1, 1)
    lists = [[0, 1, 2, 3], [0, 5], [4, 7, 9], [3, 8, 11, 14, 17, 20], [25]]
    dictionary = torch.tensor([own + own[-1:] * (6 - len(own)) for own in lists])
    of_regression = adapt_kernel(kernel, 3), noise if swept else noise[0, 0], X[:, :29], Y[:, :29]
    regression = NystromRegression.fit(*of_regression, dictionary, 2.0)
    assert regression.dictionary_size.tolist() == list(map(len, lists))
    return regression, torch.cat([X[:, 29:], Y[:, 29:]], dim=-1), Z[0]


def grow(kernel: Kernel, swept: bool = False) -> tuple[NystromRegression, Any, Tensor]:
    """Return the batch, what it knew at some points before the last observation, and these points."""
    regression, last, Z = grown_batch(kernel, swept)
    tracked = regression.track(Z)
    return regression.append(last[..., :2], last[..., 2:]), tracked, Z


def sources(count: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in range(count)]


def kinds_of_steps(regression: NystromRegression) -> list[str]:
    return [step[0] for step in regression.steps if not isinstance(step, int)]


@pytest.mark.parametrize("swept", [False, True], ids=["one noise", "several"])
@pytest.mark.parametrize("batch", BATCHES)
def test_a_draw_is_for_the_data_sets_that_are_due(batch: str, swept: bool) -> None:
    """Theirs is a fit of the same dictionary, by which points are tracked; the others stay as they are, bit for bit."""
    kernel = BATCHES[batch]()
    grown, before, Z = grow(kernel, swept)
    drawn = grown.resample(sources(5), where=DUE, keep=True)
    assert kinds_of_steps(drawn) == ["widen", "fit"]  # the fourth data set has points that are not drawn again
    assert (drawn.dictionary_size[DUE] > grown.dictionary_size[DUE]).any()
    fresh = drawn.refit()
    tracked, appended = before.advance(drawn), before.advance(grown)
    for name in ("mean", "norm", "covariance"):
        known = getattr(tracked, name)
        close(known, getattr(drawn.at(Z), name), 1e-9)
        close(known, getattr(fresh.at(Z), name), 1e-9)
        dim = 1 if swept else 0
        assert torch.equal(known.movedim(dim, 0)[~DUE], getattr(appended, name).movedim(dim, 0)[~DUE])
    close(drawn.logdets, fresh.logdets, 1e-9)
    close(drawn.mean_norm, fresh.mean_norm, 1e-9)
    assert (drawn.drift[DUE] == 0).all()
    for trial in (~DUE).nonzero().flatten().tolist():
        size = int(grown.dictionary_size[trial])
        assert drawn.dictionary_size[trial] == size
        assert (drawn.dictionary[trial, size:] == grown.dictionary[trial, size - 1]).all()
        assert torch.equal(drawn.dictionary[trial, :size], grown.dictionary[trial, :size])
        assert drawn.drift[trial] == grown.drift[trial]
        features = slice(size * grown.rows.rows_per_point)
        for name, own in (("inverse", (features, features)), ("coefficients", (features, slice(None)))):
            one, other = (getattr(x, name).select(-4, trial)[..., *own] for x in (grown, drawn))
            assert torch.equal(one, other)


@pytest.mark.parametrize("batch", ["grouped", "matrix"])
def test_a_data_set_is_drawn_for_in_a_batch_as_it_would_be_alone(batch: str) -> None:
    kernel = BATCHES[batch]()
    grown, _, Z = grow(kernel)
    drawn = grown.resample(sources(5), where=DUE, keep=True)
    again = drawn.append(grown.train_X[:, :2] + 0.3, grown.train_Y[:, :2]).resample(sources(5), where=~DUE, keep=True)
    for trial in range(5):
        size = int(grown.dictionary_size[trial])
        X, Y = grown.train_X[trial], grown.train_Y[trial]
        alone = NystromRegression.fit(
            adapt_kernel(kernel, 3), grown.noise, X[:29], Y[:29], grown.dictionary[trial, :size], 2.0
        ).append(X[29:], Y[29:])
        source = sources(5)[trial]
        alone = alone.resample(source, keep=True) if DUE[trial] else alone
        alone = alone.append(X[:2] + 0.3, Y[:2])
        alone = alone if DUE[trial] else alone.resample(source, keep=True)
        size = int(alone.dictionary_size)
        assert again.dictionary_size[trial] == size
        assert again.dictionary[trial, :size].tolist() == alone.dictionary.tolist()
        close(again.at(Z).mean[trial], alone.at(Z).mean, 1e-9)
        close(again.at(Z).norm[trial], alone.at(Z).norm, 1e-9)
        close(again.inclusion_probs[trial], alone.inclusion_probs, 1e-9)


@pytest.mark.parametrize("batch", ["grouped", "matrix", "own lengthscales"])
def test_workers_without_data_track_a_draw_for_some_data_sets(batch: str) -> None:
    grown, before, Z = grow(BATCHES[batch](), swept=True)
    drawn = grown.resample(sources(5), where=DUE, keep=True)
    assert kinds_of_steps(drawn) == ["widen", "fit"]
    far = before.regression.without_data().track(Z)
    expected, answer = before.advance(drawn), far.advance(pickle.loads(pickle.dumps(drawn.without_data())))
    for name in ("mean", "norm", "covariance"):
        assert torch.equal(getattr(answer, name), getattr(expected, name))


def test_dictionaries_of_a_batch_are_widened_without_gaps() -> None:
    """And the longest one may become shorter."""
    grown, before, Z = grow(BATCHES["grouped"]())
    new = torch.zeros(5, 30, dtype=torch.bool)
    new[0, 15], new[1, [12, 17, 19]], new[4, 26] = True, True, True
    widened, fine = grown.widen(new)
    assert fine.all()
    assert widened.dictionary.tolist() == [
        [0, 1, 2, 3, 15, 15],
        [0, 5, 12, 17, 19, 19],
        [4, 7, 9, 9, 9, 9],
        [3, 8, 11, 14, 17, 20],
        [25, 26, 26, 26, 26, 26],
    ]
    close(widened.at(Z).mean, widened.refit().at(Z).mean, 1e-9)
    close(before.advance(widened).norm, widened.refit().at(Z).norm, 1e-9)
    trials = torch.tensor([0, 1, 3])
    short = torch.zeros(3, 30, dtype=torch.bool).index_fill(1, torch.tensor([2]), True)
    part = grown.pick(trials)
    shorter = grown.put(trials, part._with_dictionary(short, part._distinct()))
    assert shorter.dictionary.tolist() == [[2, 2, 2], [2, 2, 2], [4, 7, 9], [2, 2, 2], [25, 25, 25]]
    close(shorter.at(Z).mean, shorter.refit().at(Z).mean, 1e-9)
    close(before.advance(shorter).norm, shorter.refit().at(Z).norm, 1e-9)


def test_too_close_points_of_one_data_set_do_not_keep_others_from_being_widened() -> None:
    grown, _, Z = grow(BATCHES["grouped"]())
    near = grown.train_X[:, :1].clone()
    near[2] = grown.train_X[2, 4] + 1e-9  # in the dictionary, but for rounding
    grown = grown.append(near + torch.tensor([0.7, 0.7, 0.0, 0.7, 0.7]).reshape(5, 1, 1), grown.train_Y[:, :1])
    newest = torch.zeros(5, 31, dtype=torch.bool).index_fill(1, torch.tensor([30]), True)
    widened, fine = grown.widen(newest)
    assert fine.tolist() == [True, True, False, True, True]
    close(widened.at(Z).norm[2], grown.at(Z).norm[2], 1e-12)
    extended = grown.extend_dictionary(1)
    assert kinds_of_steps(extended) == ["widen", "fit"]
    assert extended.steps[-1][1].keys() == {2}
    assert (extended.dictionary_size == grown.dictionary_size + 1).all()
    close(extended.at(Z).mean, extended.refit().at(Z).mean, 1e-8)


@pytest.mark.parametrize("build", [icm, KERNELS[7]], ids=["grouped", "matrix"])
def test_the_past_is_processed_in_blocks(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, Z = data(12, 3, 2)
    whole = fitted(build)
    probs, mean = whole.inclusion_probs, whole.mean(Z)
    monkeypatch.setattr(subspace, "BLOCK_NUMBERS", 20)
    pieces = fitted(build)
    assert len(list(pieces.surrogate.regression.subspace.in_blocks(data(12, 3, 2)[0]))) > 1
    close(pieces.mean(Z), mean, 1e-10)
    close(pieces.inclusion_probs, probs, 1e-10)


def test_inclusion_probabilities_are_those_of_the_round_before() -> None:
    X, Y, _ = data(12, 3, 2)
    before = fitted(t=11, oversampling=2.0, dictionary=[0, 3, 4])
    after = before.condition_on_observations(X[11:], Y[11:])
    expected = (2.0 * before.covariance_norm(X) / 0.1).clamp_max(1)
    close(after.inclusion_probs, expected, 1e-10)
    drawn = after.resample(torch.Generator().manual_seed(3))
    uniform = torch.rand(12, generator=torch.Generator().manual_seed(3), dtype=torch.double)
    kept = (uniform < expected) | (torch.arange(12) == 11)
    assert drawn.dictionary.tolist() == kept.nonzero().flatten().tolist()


def test_copies_keep_a_drawn_dictionary() -> None:
    X, Y, Z = data(30, 3, 2)
    model = fitted(t=30, dictionary=None, oversampling=0.3)
    model = model.condition_on_observations(X[:1] + 0.5, Y[:1]).resample(torch.Generator().manual_seed(8))
    twin = copy.deepcopy(model)
    assert torch.equal(twin.dictionary, model.dictionary)
    assert twin.dictionary_size == model.dictionary_size
    close(twin.mean(Z), model.mean(Z), 1e-10)
    grown = model.condition_on_observations(X[:2] + 0.3, Y[:2])
    for twin in (copy.deepcopy(grown), pickle.loads(pickle.dumps(grown))):
        assert torch.equal(twin.info_gain, grown.info_gain)
        assert torch.equal(twin.inclusion_probs, grown.inclusion_probs)
    close(grown.to(torch.float).mean(Z.float()), model.condition_on_observations(X[:2] + 0.3, Y[:2]).mean(Z), 1e-2)


def test_a_model_that_starts_without_data_learns() -> None:
    X, Y, Z = data(3, 3, 2)
    grown = fitted(t=0, dictionary=None).condition_on_observations(X, Y)
    assert grown.dictionary_size == 3
    close(grown.at(Z).mean, ExactMultiTaskGP(X, Y, icm(3, 2).kernel, eta=0.1).mean(Z), 1e-9)
    with pytest.raises(ValueError, match="only be drawn from observations"):
        fitted(t=0, dictionary=None).resample(torch.Generator())


def test_exchanged_data_must_fit_the_dictionary() -> None:
    model = fitted()
    X, Y, Z = data(5, 3, 2)
    model.set_train_data(X, Y, strict=False)
    with pytest.raises(ValueError, match="dictionary should hold indices of the 5 observations"):
        model.mean(Z)


def test_gradients_pass_through_hallucinated_fantasies() -> None:
    _, Y, Z = data(6, 3, 2)

    def answer(x: torch.Tensor) -> torch.Tensor:
        model = fitted(t=6, dictionary=[0, 2, 5]).condition_on_observations(x, Y[:2])
        return model.imagine(x + 0.1).at(Z).norm

    assert torch.autograd.gradcheck(answer, (Z[:2].clone().requires_grad_(),), eps=1e-6, atol=1e-4)


def test_draws_have_the_promised_frequencies() -> None:
    model = fitted(t=30, oversampling=0.5, dictionary=list(range(10)))
    probs, counts = model.inclusion_probs, torch.zeros(30)
    assert ((probs > 0.05) & (probs < 0.95)).any()
    generator, draws = torch.Generator().manual_seed(0), 2000
    for _ in range(draws):
        counts += draw_luck(torch.empty(0), 30, generator) < probs
    deviation = (probs * (1 - probs) / draws).sqrt()
    assert ((counts / draws - probs).abs() <= 4.5 * deviation + 1e-12).all()


def test_the_newest_point_is_always_in() -> None:
    model = fitted(oversampling=1e-9)
    drawn = model.resample(torch.Generator())
    assert drawn.dictionary.tolist() == [11]
    assert drawn.dictionary_size == 1


def test_a_dictionary_is_drawn_for_data_at_once() -> None:
    X = torch.rand(1000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    Y = torch.cat([torch.sin(6 * X), torch.cos(6 * X)], dim=-1)
    kernel = ICMKernel(rbf(0.2), torch.eye(2, dtype=torch.double))
    model, again = (NystromMultiTaskGP(X, Y, kernel, eta=0.1, seed=1) for _ in range(2))
    assert torch.equal(model.dictionary, again.dictionary)
    assert 5 < model.dictionary_size < 60
    exact = ExactMultiTaskGP(X, Y, kernel, eta=0.1)
    Z = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
    close(model.mean(Z), exact.mean(Z), 1e-2)
    ratio = model.covariance_norm(Z) / exact.covariance_norm(Z)
    assert ratio.min() > 0.9
    assert ratio.max() < 3
    finer = NystromMultiTaskGP(X, Y, kernel, eta=0.1, oversampling=30.0, seed=1)
    assert finer.dictionary_size > model.dictionary_size


@every_path
def test_without_data_it_is_the_prior(build: Builder) -> None:
    case = build(3, 2)
    X, Y, Z = data(4, 3, 2)
    model = NystromMultiTaskGP(X[:0], Y[:0], case.kernel, eta=0.1)
    close(model.covariance(Z), np.stack([case.gamma(z, z) for z in Z.numpy()]), 1e-12)
    assert model.info_gain == 0
    grown = model.condition_on_observations(X, Y).resample(torch.Generator().manual_seed(0))
    exact = ExactMultiTaskGP(X, Y, case.kernel, eta=0.1)
    close(grown.info_gain, exact.info_gain, 1e-8)  # the first observations' joint covariance is the prior's


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_many_duplicates_stay_finite_and_non_negative(dtype: torch.dtype) -> None:
    X = torch.cat([torch.zeros(30, 1), torch.rand(5, 1, generator=torch.Generator().manual_seed(0))]).to(dtype)
    Y = torch.ones(35, 2, dtype=dtype)
    model = NystromMultiTaskGP(X, Y, similarity(2, 1).kernel, eta=1e-3, dictionary=torch.arange(35))
    for _ in range(3):
        model = model.condition_on_observations(X[:5], Y[:5])
    Z = torch.linspace(0, 1, 50, dtype=dtype).unsqueeze(-1)
    assert torch.isfinite(model.mean(Z)).all()
    assert (model.covariance_norm(Z) >= 0).all()
    close(model.mean(Z)[0], torch.ones(2), 1e-2)


def test_single_precision_with_a_large_dictionary() -> None:
    X = torch.rand(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    Y = torch.sin(5 * X @ torch.rand(2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.double))
    kernel, dictionary = TaskSimilarityKernel(rbf(0.1), 2, 0.4), torch.arange(200)
    double = NystromMultiTaskGP(X, Y, kernel, eta=0.1, dictionary=dictionary)
    mean, norm = double.mean(X), double.covariance_norm(X)
    single = NystromMultiTaskGP(X.float(), Y.float(), kernel, eta=0.1, dictionary=dictionary)
    close(single.mean(X.float()), mean, 1e-2)
    ratio = single.covariance_norm(X.float()).double() / norm
    assert ratio.min() > 0.9
    assert ratio.max() < 1.2


def test_single_precision() -> None:
    _, _, Z = data(12, 3, 2)
    double, single = fitted(), fitted().to(torch.float)
    close(single.mean(Z.float()), double.mean(Z), 1e-3)
    close(single.covariance(Z.float()), double.covariance(Z), 1e-3)


def test_hallucinated_points_lose_their_variance() -> None:
    _, _, Z = data(12, 3, 2)
    model = fitted(dictionary=[0])
    hallucinated = model.imagine(Z[:2])
    exact = ExactMultiTaskGP(Z[:2], torch.zeros(2, 3, dtype=torch.double), icm(3, 2).kernel, eta=0.1)
    assert (hallucinated.at(Z[:2]).norm <= exact.covariance_norm(Z[:2]) + 1e-9).all()
    assert (hallucinated.at(Z).norm <= model.covariance_norm(Z) + 1e-9).all()
    assert hallucinated.regression.dictionary_size == 3
    assert torch.equal(hallucinated.at(Z).mean, model.mean(Z))
    assert fitted(t=0, dictionary=None).imagine(Z[:2]).regression.dictionary_size == 2


@pytest.mark.parametrize("runs", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_the_sandwich_holds_at_the_promised_rate(runs: int) -> None:
    """Gamma / rho <= Gamma~ <= rho Gamma along many runs of Algorithm 2 with the theory's oversampling."""
    epsilon, delta, rounds = 0.5, 0.1, 25
    rho, q = (1 + epsilon) / (1 - epsilon), theory_oversampling(rounds, delta, epsilon)
    kernel = TaskSimilarityKernel(rbf(0.3), 2, 0.4)
    Z = torch.linspace(0, 1, 15, dtype=torch.double).unsqueeze(-1)
    failures, largest = 0, 0.0
    for seed in range(runs):
        X, Y, _ = data(rounds, 2, 1, seed)
        generator = torch.Generator().manual_seed(seed)
        regression = NystromMultiTaskGP(X[:0], Y[:0], kernel, eta=0.1, oversampling=q).surrogate.regression
        assert isinstance(regression, NystromRegression)
        for t in range(rounds):
            regression = regression.append(X[t : t + 1], Y[t : t + 1]).resample(generator)
        exact = ExactMultiTaskGP(X, Y, kernel, eta=0.1)
        approximate, truth = regression.at(Z).covariance, exact.covariance(Z)
        gaps = torch.cat([rho * approximate - truth, rho * truth - approximate])
        failures += bool((torch.linalg.eigvalsh(gaps) < -1e-9).any())
        spent = 0.0  # the sum in Theorem 3's bound of the dictionary
        exact_so_far = ExactMultiTaskGP(X[:0], Y[:0], kernel, eta=0.1).surrogate.regression
        for s in range(rounds):
            exact_so_far = exact_so_far.append(X[s : s + 1], Y[s : s + 1])
            spent += exact_so_far.at(X[s : s + 1]).norm.item()
        largest = max(largest, regression.dictionary_size.item() / (6 * rho * q * (1 + 1 / 0.1) * spent))
    assert failures <= delta * runs
    assert largest <= 1


def test_grouping_by_point() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.randint(3, (2, 20, 2), generator=generator).double()
    X[1] = X[1].clamp_max(1)  # fewer distinct points in the second data set
    Y = torch.randn(2, 20, 3, generator=generator, dtype=torch.double)
    distinct = sites.Distinct.of(X, Y)
    for b in range(2):
        groups: dict[tuple[float, ...], list[int]] = {}
        for i, x in enumerate(X[b].tolist()):
            groups.setdefault(tuple(x), []).append(i)
        assert int((distinct.counts[b] > 0).sum()) == len(groups)
        for point, members in groups.items():
            place = distinct.index[b, members[0]]
            assert distinct.points[b, place].tolist() == list(point)
            assert distinct.counts[b, place] == len(members)
            assert (distinct.index[b, members] == place).all()
            close(distinct.sums[b, place], Y[b, members].sum(dim=0), 1e-12)


@every_path
def test_repeated_points_count_as_often_as_they_were_observed(build: Builder) -> None:
    case = build(3, 2)
    X, Y, Z = data(12, 3, 2)
    X = X[[0, 1, 2, 0, 0, 1, 3, 4, 4, 2, 0, 3]]
    mean, covariance = oracles.nystrom_posterior(
        case.gamma, X.numpy(), Y.numpy(), 0.1, [0, 1, 7], np.ones(12), Z.numpy()
    )
    model = NystromMultiTaskGP(X, Y, case.kernel, eta=0.1, dictionary=torch.tensor([0, 1, 7]))
    close(model.mean(Z), mean, 1e-8)
    close(model.covariance(Z), oracles.blocks(covariance, 3), 1e-8)


def test_a_small_dictionary_breaks_the_sandwich() -> None:
    """The test above can fail: a dictionary of the newest point alone violates it."""
    kernel = TaskSimilarityKernel(rbf(0.3), 2, 0.4)
    X, Y, _ = data(25, 2, 1)
    Z = torch.linspace(0, 1, 15, dtype=torch.double).unsqueeze(-1)
    truth = ExactMultiTaskGP(X, Y, kernel, eta=0.1).covariance(Z)
    poor = NystromMultiTaskGP(X, Y, kernel, eta=0.1, dictionary=torch.tensor([24])).covariance(Z)
    assert (torch.linalg.eigvalsh(3 * truth - poor) < -1e-9).any()


@pytest.mark.parametrize("gain", [0.0, 0.3, 12.0])
def test_radius_against_the_formula(gain: float) -> None:
    actual = nystrom_radius(torch.tensor(gain, dtype=torch.double), 1.7, 0.3, 0.2, 0.05, 0.4)
    close(actual, oracles.nystrom_radius(gain, 1.7, 0.3, 0.2, 0.05, 0.4), 1e-10)


def test_theory_oversampling_against_the_formula() -> None:
    assert theory_oversampling(2000, 0.1, 0.5) == pytest.approx(6 * 3 * np.log(4 * 2000 / 0.1) / 0.25)


def test_task_matrix_of_each_batch_entry() -> None:
    X, Y, Z = data(12, 3, 2)
    matrices = torch.stack([task_matrix(3), task_matrix(3, rank=1, seed=3)])
    batch = NystromMultiTaskGP(
        torch.stack([X, X]),
        torch.stack([Y, Y]),
        ICMKernel(rbf(0.5), matrices),
        eta=0.1,
        dictionary=torch.tensor(DICTIONARY),
    )
    for i in range(2):
        alone = NystromMultiTaskGP(X, Y, ICMKernel(rbf(0.5), matrices[i]), eta=0.1, dictionary=torch.tensor(DICTIONARY))
        close(batch.mean(Z)[i], alone.at(Z).mean, 1e-9)
        close(batch.covariance_norm(Z)[i], alone.at(Z).norm, 1e-9)
        close(batch.info_gain[i], alone.info_gain, 1e-9)


def test_a_point_too_close_in_a_batch_of_batches_does_not_hinder_the_others() -> None:
    X, Y = torch.rand(6, 1, dtype=torch.double) * 4, torch.randn(6, 2, dtype=torch.double)
    task_covar = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.double)
    kernel = ICMKernel(RBFKernel().double(), task_covar)
    model = NystromMultiTaskGP(X, Y, kernel, eta=0.1, oversampling=1e6)
    pending = torch.rand(2, 2, 1, 1, dtype=torch.double) * 4 + 5
    pending[0, 1, 0] = X[2] + 1e-9
    imagined, grid = model.imagine(pending), torch.linspace(0, 9, 7, dtype=torch.double).unsqueeze(-1)
    for i, j in itertools.product(range(2), repeat=2):
        alone = model.imagine(pending[i, j])
        close(imagined.at(grid).norm[i, j], alone.at(grid).norm, 1e-6)


def test_a_data_set_that_gains_nothing_beside_others_that_do_keeps_its_probabilities() -> None:
    X, Y = torch.rand(2, 8, 1, dtype=torch.double) * 9, torch.randn(2, 8, 2, dtype=torch.double)
    kernel = adapt_kernel(ICMKernel(RBFKernel().double(), torch.eye(2, dtype=torch.double)), 2)
    noise = torch.full((1, 2), 0.1, dtype=torch.double)
    fitted = NystromRegression.fit(kernel, noise, X[:, :6], Y[:, :6], torch.arange(3), 3.0)
    grown = fitted.append(X[:, 6:7], Y[:, 6:7])
    new = torch.zeros(2, 7, dtype=torch.bool)
    new[1, 6] = True
    widened, fine = grown.widen(new)
    assert fine.all()
    close(widened.inclusion_probs[0], grown.inclusion_probs[0], 1e-12)
