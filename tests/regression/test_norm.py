"""The operator norm as devices have it, beside the CPU's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mtbo_torch.linalg import LargestEigenvalue, operator_norm


def with_eigenvalues(values: Tensor, seed: int = 0) -> Tensor:
    n = values.shape[-1]
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.linalg.qr(torch.randn(*values.shape, n, dtype=torch.double, generator=generator)).Q
    matrix = (vectors * values.unsqueeze(-2)) @ vectors.mT
    return (matrix + matrix.mT) / 2


def value_and_gradient(matrix: Tensor) -> tuple[Tensor, Tensor]:
    matrix = matrix.clone().requires_grad_()
    value = LargestEigenvalue.apply(matrix)
    return value.detach(), torch.autograd.grad(value.sum(), matrix)[0]


def spread(n: int, gap: float) -> Tensor:
    """Eigenvalues from zero to two, the largest apart from the next by `gap`."""
    values = torch.rand(20, n, dtype=torch.double) * (1 - gap)
    values[:, 0], values[:, 1] = 1, 1 - gap
    if n > 3:
        values[:, 2], values[:, 3] = 1 - 1.5 * gap, 0
    return 2 * values


@pytest.mark.parametrize("n", [2, 3, 10, 50])
@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 0.5])
def test_it_is_the_largest_eigenvalue(n: int, gap: float) -> None:
    matrix = with_eigenvalues(spread(n, gap)).unflatten(0, (4, 5))
    for dtype, tolerance in ((torch.double, 1e-14), (torch.float, 1e-6)):
        value, gradient = value_and_gradient(matrix.to(dtype))
        expected, vectors = torch.linalg.eigh(matrix.to(dtype).double())
        torch.testing.assert_close(value.double(), expected[..., -1], rtol=tolerance, atol=0)
        assert (value >= matrix.diagonal(dim1=-2, dim2=-1).amax(dim=-1) * (1 - tolerance)).all()
        # A convex combination of projectors on eigenvectors of (nearly) the largest eigenvalue ...
        torch.testing.assert_close(gradient, gradient.mT)
        inside = vectors.mT @ gradient.double() @ vectors
        shares = inside.diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(shares.sum(dim=-1), torch.ones_like(shares[..., 0]), rtol=tolerance, atol=0)
        assert (shares > -tolerance).all()
        assert (shares * (expected[..., -1:] - expected) <= 2 * tolerance).all()
        # ... and on a single one, known as well as it can be, where there is a gap.
        if gap > 10 * tolerance:
            leading = vectors[..., -1:] @ vectors[..., -1:].mT
            torch.testing.assert_close(gradient.double(), leading, rtol=0, atol=5 * tolerance / gap)


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_any_size(size: float) -> None:
    matrix = with_eigenvalues(torch.rand(10, 4, dtype=torch.double))
    value, gradient = value_and_gradient(size * matrix)
    expected, same = value_and_gradient(matrix)
    torch.testing.assert_close(value, size * expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(gradient, same, rtol=1e-10, atol=1e-10)


def test_zero_and_equal_eigenvalues() -> None:
    n = 3
    for size in (0.0, 1e-310, 1.0):
        value, gradient = value_and_gradient(size * torch.eye(n, dtype=torch.double))
        assert value.item() == pytest.approx(size, rel=1e-12, abs=0)
        torch.testing.assert_close(gradient, torch.eye(n, dtype=torch.double) / n)


def test_rounding_may_have_made_eigenvalues_negative() -> None:
    values = torch.tensor([[-2.0, 1.0, 1.0], [-1.0, 0.5, 1.0], [-5.0, 0.0, 0.0], [-3.0, -2.0, -1.0]]).double()
    matrix = 1e-16 * with_eigenvalues(values)
    value, gradient = value_and_gradient(matrix)
    torch.testing.assert_close(value, 1e-16 * values.amax(dim=-1), rtol=0, atol=1e-30)
    assert gradient.isfinite().all()
    value, gradient = value_and_gradient(-torch.eye(2, dtype=torch.double))  # below zero, where it is clamped
    assert value <= 0
    assert gradient.isfinite().all()


def test_gradients_are_those_of_the_cpus_way() -> None:
    parameters = torch.rand(5, 3, 4, dtype=torch.double, requires_grad=True)
    answers = []
    for norm in (operator_norm, LargestEigenvalue.apply):
        value = norm(parameters @ parameters.mT)
        answers.append((value, *torch.autograd.grad(value.sin().sum(), parameters)))
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_second_derivatives_are_refused() -> None:
    matrix = torch.eye(2, dtype=torch.double).requires_grad_()
    (slope,) = torch.autograd.grad(LargestEigenvalue.apply(matrix).square(), matrix, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
