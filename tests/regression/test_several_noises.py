"""Several regressions of the same data at once: each says what it would say alone."""

from __future__ import annotations

import pytest
import torch
from catalogue import KERNELS, PATHS, Builder, data, icm, identical_tasks
from suites import close
from torch import Tensor

from mtbo_torch.kernels import adapt_kernel
from mtbo_torch.regression import KroneckerRegression, NystromRegression, Regression, SpectralRegression

NOISES = torch.tensor([0.01, 0.1, 1.0], dtype=torch.double)
batched = pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])


def make_data(batch: tuple[int, ...], is_complete: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    X, Y, Z = data(7, 3, 2)
    X, Y = X.expand(*batch, 7, 2).clone(), Y.expand(*batch, 7, 3).clone()
    if batch:
        Y[1] += 1
    if not is_complete:
        Y[..., 2, 1] = Y[..., 4, 0] = torch.nan
    directions = torch.tensor([[0.5, -0.2, 1.0], [0.0, 1.0, 0.0]], dtype=torch.double).expand(*batch, 2, 3)
    return X, Y, Z[:4].expand(5, *batch, 4, 2), directions


def in_front(batch: tuple[int, ...]) -> Tensor:
    return NOISES.reshape(3, *[1] * len(batch), 1, 1)


def compare(together: Regression, alone: list[Regression], Z: Tensor, directions: Tensor) -> None:
    for regression in (together, together.prepare_for_variances()):
        belief = regression.at(Z)
        for i, other in enumerate(alone):
            expected = other.at(Z)
            close(belief.mean[i], expected.mean, 1e-9)
            close(belief.norm[i], expected.norm, 1e-9)
            close(belief.covariance[i], expected.covariance, 1e-9)
            close(belief.variance()[i], expected.variance(), 1e-9)
            close(belief.variance(directions)[i], expected.variance(directions), 1e-9)
    for i, other in enumerate(alone):
        close(together.info_gain[i], other.info_gain, 1e-9)
        close(together.quadratic[i], other.quadratic, 1e-9)
        close(together.mean_norm[i], other.mean_norm, 1e-8)


@pytest.mark.parametrize("is_complete", [True, False], ids=["complete", "missing"])
@batched
@pytest.mark.parametrize("build", PATHS, ids=lambda build: build.__name__)
def test_each_is_as_if_it_were_alone(build: Builder, batch: tuple[int, ...], is_complete: bool) -> None:
    X, Y, Z, directions = make_data(batch, is_complete)
    with torch.no_grad():
        first = adapt_kernel(build(3, 2).kernel, 3).fit(torch.full((1, 1), 0.3).double(), X[..., :6, :], Y[..., :6, :])
        together = first.with_noise(in_front(batch))
        alone = [first.with_noise(noise.reshape(1, 1)) for noise in NOISES]
        compare(together, alone, Z, directions)
        tracked = together.track(Z[0] if not batch else Z[0, 0])
        new = X[..., 6:, :], Y[..., 6:, :]
        grown = together.append(*new)
        alone = [regression.append(*new) for regression in alone]
        compare(grown, alone, Z, directions)
        tracked = tracked.advance(grown)
        for i, regression in enumerate(alone):
            expected = regression.track(tracked.X)
            close(tracked.mean[i], expected.mean, 1e-9)
            close(tracked.variance(directions)[i], expected.variance(directions), 1e-9)


@batched
@pytest.mark.parametrize("build", [icm, identical_tasks], ids=lambda build: build.__name__)
def test_from_one_diagonalization(build: Builder, batch: tuple[int, ...]) -> None:
    X, Y, Z, directions = make_data(batch)
    with torch.no_grad():
        kernel = adapt_kernel(build(3, 2).kernel, 3)
        spectral = SpectralRegression.fit(kernel, in_front(batch), X[..., :6, :], Y[..., :6, :])
        alone = [kernel.fit(noise.reshape(1, 1), X[..., :6, :], Y[..., :6, :]) for noise in NOISES]
        assert all(isinstance(regression, KroneckerRegression) for regression in alone)
        compare(spectral, alone, Z, directions)
        one = SpectralRegression.fit(kernel, NOISES[:1, None], X, Y)
        other = kernel.fit(NOISES[:1, None], X, Y)
        close(one.at(Z).joint_covariance, other.at(Z).joint_covariance, 1e-9)
        grown = spectral.append(X[..., 6:, :], Y[..., 6:, :])
        compare(grown, [regression.append(X[..., 6:, :], Y[..., 6:, :]) for regression in alone], Z, directions)


@pytest.mark.parametrize("build", KERNELS, ids=lambda build: build.__name__)
def test_the_quadratic_form(build: Builder) -> None:
    X, Y, _, _ = make_data(())
    kernel = adapt_kernel(build(3, 2).kernel, 3)
    with torch.no_grad():
        G, y = kernel(X, X), Y.reshape(-1)
        for noise in NOISES:
            expected = y @ torch.linalg.solve(G + noise * torch.eye(21, dtype=torch.double), y)
            close(kernel.fit(noise.reshape(1, 1), X, Y).quadratic, expected, 1e-8)


@pytest.mark.parametrize("build", KERNELS, ids=lambda build: build.__name__)
def test_on_a_dictionary(build: Builder) -> None:
    X, Y, Z, _ = make_data(())
    kernel = adapt_kernel(build(3, 2).kernel, 3)
    with torch.no_grad():
        first = NystromRegression.fit(kernel, torch.full((1, 1), 0.3).double(), X, Y, torch.arange(7), 3.0)
        together = first.with_noise(in_front(()))
        for i, noise in enumerate(NOISES):
            alone, exact = first.with_noise(noise.reshape(1, 1)), kernel.fit(noise.reshape(1, 1), X, Y)
            close(together.at(Z).mean[i], alone.at(Z).mean, 1e-9)
            close(together.quadratic[i], alone.quadratic, 1e-8)
            close(alone.quadratic, exact.quadratic, 1e-7)
