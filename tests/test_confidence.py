"""The radius of Theorem 2."""

from __future__ import annotations

from fractions import Fraction

import oracles
import pytest
import torch
from catalogue import data, icm
from suites import close

from mtbo_torch import ExactMultiTaskGP, exact_radius
from mtbo_torch.confidence import mixture_radius


@pytest.mark.parametrize("gain", [0.0, 0.3, 12.0])
@pytest.mark.parametrize("delta", [1.0, 0.1, 1e-6])
def test_against_the_formula(gain: float, delta: float) -> None:
    actual = exact_radius(info_gain=gain, norm_bound=1.7, noise_scale=0.3, eta=0.2, delta=delta)
    close(actual, oracles.exact_radius(gain, 1.7, 0.3, 0.2, delta), 1e-6)


def test_whole_numbers_are_numbers() -> None:
    close(
        exact_radius(0, norm_bound=1, noise_scale=0.5, eta=1, delta=0.5), oracles.exact_radius(0, 1, 0.5, 1, 0.5), 1e-6
    )


def test_batches_keep_shape_and_dtype() -> None:
    gains = torch.tensor([0.0, 1.0, 5.0], dtype=torch.double)
    radii = exact_radius(gains, norm_bound=1.0, noise_scale=0.1, eta=0.1, delta=0.1)
    assert radii.dtype == torch.double
    for radius, gain in zip(radii, gains, strict=True):
        close(radius, oracles.exact_radius(gain.item(), 1.0, 0.1, 0.1, 0.1), 1e-12)


def test_from_a_model() -> None:
    X, Y, _ = data(9, 3, 2)
    case = icm(3, 2)
    model = ExactMultiTaskGP(X, Y, case.kernel, eta=0.1)
    gain = oracles.info_gain(case.gamma, X.numpy(), 0.1, 3)
    radius = exact_radius(model.info_gain, norm_bound=2.0, noise_scale=0.1, eta=0.1, delta=0.1)
    close(radius, oracles.exact_radius(gain, 2.0, 0.1, 0.1, 0.1), 1e-8)


def test_any_real_number_will_do_and_large_ones_have_a_large_radius() -> None:
    gain = torch.tensor(3.0, dtype=torch.double)
    assert exact_radius(gain, Fraction(1, 2), 1, 0.1, 0.1) == exact_radius(gain, 0.5, 1.0, 0.1, 0.1)
    assert mixture_radius(gain, 1e200, 1.0, 1.0, 0.1) == torch.inf
    eta = torch.tensor(0.1, dtype=torch.double, requires_grad=True)
    assert exact_radius(gain, 1.0, 1.0, eta, 0.1).requires_grad
