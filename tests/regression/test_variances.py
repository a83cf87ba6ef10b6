"""Rounding makes variances negative where they are nearly zero: whoever asks for a covariance does not see it."""

from __future__ import annotations

import pytest
import torch
from catalogue import Builder, general_sum, icm

from mtbo_torch import ExactMultiTaskGP, NystromMultiTaskGP


@pytest.mark.parametrize("build", [icm, general_sum], ids=lambda build: build.__name__)
def test_variances_at_repeated_points_are_not_negative(build: Builder) -> None:
    raised = 0
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        X = torch.rand(10, 1, generator=generator, dtype=torch.float).repeat(2, 1)
        Y = torch.randn(20, 3, generator=generator, dtype=torch.float)
        model = ExactMultiTaskGP(X, Y, covar_module=build(3, 1).kernel.float(), eta=1e-5)
        joint = model.posterior(X).distribution.covariance_matrix.diagonal(dim1=-2, dim2=-1)
        each = model.covariance(X).diagonal(dim1=-2, dim2=-1)
        assert (joint >= 0).all()
        assert (each >= 0).all()
        raised += int((joint == 0).sum())
    assert raised


def test_nor_are_those_from_a_dictionary() -> None:
    raised = 0
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        X = torch.rand(10, 1, generator=generator, dtype=torch.float).repeat(2, 1)
        Y = torch.randn(20, 3, generator=generator, dtype=torch.float)
        kernel = general_sum(3, 1).kernel.float()
        model = NystromMultiTaskGP(X, Y, covar_module=kernel, eta=1e-6, dictionary=torch.arange(10))
        each = model.covariance(X).diagonal(dim1=-2, dim2=-1)
        assert (each >= 0).all()
        subspace = model.surrogate.regression.subspace
        own = subspace.features(X).unflatten(-2, (-1, 3))
        missed = subspace.rows.blocks(X) - own @ own.mT
        raised += int((missed.diagonal(dim1=-2, dim2=-1) < 0).sum())
    assert raised
