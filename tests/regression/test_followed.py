"""Fixed points that are followed while observations arrive."""

from __future__ import annotations

import pytest
import torch
from catalogue import KERNELS, PATHS, Builder, data
from suites import close

from mtbo_torch import ExactMultiTaskGP


@pytest.mark.parametrize("build", PATHS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("eta", [0.1, (0.1, 0.2, 0.3)], ids=["one noise", "noise of each task"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_following_equals_evaluating(build: Builder, eta: object, batch: tuple[int, ...]) -> None:
    n = 3
    X, Y, Z = data(12, n, 2)
    X, Y = (tensor.expand(*batch, *tensor.shape) for tensor in (X, Y))
    model = ExactMultiTaskGP(X[..., :2, :], Y[..., :2, :], build(n, 2).kernel, eta=torch.tensor(eta))
    followed = model.surrogate.regression.track(Z)
    for i, step in ((2, 1), (3, 1), (4, 3), (7, 5)):
        branch = followed.advance(followed.regression.append(X[..., :1, :] + 0.1, Y[..., :1, :]))  # must leave no trace
        followed = followed.advance(followed.regression.append(X[..., i : i + step, :], Y[..., i : i + step, :]))
        for tracked in (followed, branch):
            mean, norm = (tracked.mean, tracked.norm)
            expected_mean, expected_norm = (tracked.regression.at(Z).mean, tracked.regression.at(Z).norm)
            close(mean, expected_mean, 1e-10)
            close(norm, expected_norm, 1e-10)


def test_following_stays_accurate_over_many_rounds() -> None:
    X, Y, Z = data(300, 2, 1)
    followed = ExactMultiTaskGP(X[:0], Y[:0], KERNELS[0](2, 1).kernel, eta=0.01).surrogate.regression.track(Z)
    for i in range(300):
        followed = followed.advance(followed.regression.append(X[i : i + 1], Y[i : i + 1]))
    mean, norm = (followed.mean, followed.norm)
    fitted = ExactMultiTaskGP(X, Y, KERNELS[0](2, 1).kernel, eta=0.01)
    close(mean, fitted.mean(Z), 1e-8)
    close(norm, fitted.covariance_norm(Z), 1e-8)
