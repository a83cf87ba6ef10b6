"""The growing inverse Cholesky factor against plain linear algebra."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mtbo_torch.linalg import posterior_cholesky, safe_cholesky
from mtbo_torch.regression import factor as growing
from mtbo_torch.regression.factor import GrowingRows, InverseCholesky, RowBlocks

BATCHES = [(), (2,), (2, 3)]


def matrix(size: int, batch: tuple[int, ...] = ()) -> Tensor:
    A = torch.randn(*batch, size, size, generator=torch.Generator().manual_seed(size), dtype=torch.double)
    return A @ A.mT / size + torch.eye(size, dtype=torch.double)


def floor(A: Tensor) -> Tensor:
    return torch.ones(A.shape[:-2], dtype=A.dtype)


def grow(A: Tensor, step: int, start: int = 0) -> InverseCholesky:
    factor = InverseCholesky.of(A[..., :start, :start], floor(A))
    for i in range(start, A.shape[-1], step):
        stop = min(i + step, A.shape[-1])
        factor, _ = factor.append(A[..., i:stop, :i], A[..., i:stop, i:stop], floor(A))
    return factor


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("start", "step"), [(0, 1), (0, 7), (5, 3), (70, 70), (300, 1), (0, 600)])
def test_products_quadratic_forms_inverse_and_determinant(batch: tuple[int, ...], start: int, step: int) -> None:
    size = 330 if start == 300 or step == 600 else 70
    A = matrix(size, batch)
    factor = grow(A, step, start)
    M = torch.linalg.inv(torch.linalg.cholesky(A))
    v = torch.randn(*batch, 5, size, dtype=torch.double)
    torch.testing.assert_close(factor.lower(v), v @ M.mT, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(factor.upper(v), v @ M, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(factor.inverse(), torch.linalg.inv(A), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(factor.quadratic(v), (v @ M.mT).square().sum(-1), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(factor.logdet, torch.logdet(A), atol=1e-10, rtol=1e-10)


def test_the_inverse_follows_appends() -> None:
    A = matrix(60)
    factor = grow(A[:40, :40], 1)
    factor.inverse()
    for i in range(40, 60):
        factor, _ = factor.append(A[i : i + 1, :i], A[i : i + 1, i : i + 1], floor(A))
        if i in (45, 46, 59):
            torch.testing.assert_close(factor.inverse(), torch.linalg.inv(A[: i + 1, : i + 1]), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("rows", [3, growing.MANY_ROWS])
def test_first_and_second_derivatives(rows: int) -> None:
    factor = grow(matrix(6), 2)
    v = torch.randn(rows, 6, dtype=torch.double, requires_grad=True)
    for function in (factor.lower, factor.upper, factor.quadratic):
        assert torch.autograd.gradcheck(function, (v,))
        if rows < growing.MANY_ROWS:
            assert torch.autograd.gradgradcheck(function, (v,))


def test_ways_of_the_quadratic_form_agree() -> None:
    factor = grow(matrix(50), 50)
    v = torch.randn(growing.MANY_ROWS, 50, dtype=torch.double, requires_grad=True)
    assert factor.prefers_inverse(len(v))
    assert not factor.prefers_inverse(len(v) - 1)
    through_inverse = factor.quadratic(v)
    (gradient,) = torch.autograd.grad(through_inverse.sum(), v)
    few = v[:5]
    through_factor = factor.quadratic(few)
    (gradient_of_few,) = torch.autograd.grad(through_factor.sum(), few)
    torch.testing.assert_close(through_inverse[:5], through_factor, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(gradient[:5], gradient_of_few, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("start", [0, 1, 50])
def test_an_ill_conditioned_matrix_does_not_use_its_inverse(start: int) -> None:
    A, smallest = 1e-8 * torch.eye(50, dtype=torch.double), torch.tensor(1e-8, dtype=torch.double)
    A[1:, 1:] += 1
    factor = InverseCholesky.of(A[:start, :start], smallest)
    assert factor.prefers_inverse(1000) == (start < 50)
    factor, _ = factor.append(A[start:, :start], A[start:, start:], smallest)
    assert not factor.prefers_inverse(1000)


def test_appending_twice_from_one_parent() -> None:
    A, B = matrix(40), matrix(40) + 1
    parent = grow(A[:30, :30], 1)
    first = parent
    for i in range(30, 40):
        first, _ = first.append(A[i : i + 1, :i], A[i : i + 1, i : i + 1], floor(A))
    cross, corner = B[30:33, :30] * 0.1, B[30:33, 30:33]
    second, _ = parent.append(cross, corner, floor(B))
    v = torch.randn(2, 40, dtype=torch.double)
    M = torch.linalg.inv(torch.linalg.cholesky(A))
    torch.testing.assert_close(first.lower(v), v @ M.T, atol=1e-10, rtol=1e-10)
    other = torch.cat([torch.cat([A[:30, :30], cross.T], 1), torch.cat([cross, corner], 1)])
    torch.testing.assert_close(second.inverse(), torch.linalg.inv(other), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(parent.inverse(), torch.linalg.inv(A[:30, :30]), atol=1e-10, rtol=1e-10)


def test_rows_are_shared_until_somebody_branches() -> None:
    start = GrowingRows.of(torch.zeros(1, 2)).extend(torch.ones(1, 2))
    longer = start.extend(torch.full((1, 2), 2.0))
    assert longer.rows.data_ptr() == start.rows.data_ptr()
    branch = start.extend(torch.full((1, 2), 3.0))
    assert branch.rows.data_ptr() != start.rows.data_ptr()
    assert longer.rows[:, 0].tolist() == [0, 1, 2]
    assert branch.rows[:, 0].tolist() == [0, 1, 3]
    assert start.rows[:, 0].tolist() == [0, 1]


def test_large_blocks_of_rows_are_never_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "LARGE_BLOCK", 6)  # three rows of two numbers
    rows = torch.arange(24.0).reshape(12, 2)
    grown, places, lengths = RowBlocks.of(rows[:2]), [], []
    for row in rows[2:].split(1):
        before, grown = grown, grown.extend(row)
        places.append([part.data_ptr() for part in grown.parts])
        lengths.append([part.shape[0] for part in grown.parts])
        assert torch.equal(before.join(), rows[: before.length])
    assert lengths == [[3], [4], [5], [6], [6, 1], [6, 2], [6, 3], [6, 4], [6, 5], [6, 6]]
    # The first block was moved as long as it was small, and each has stayed at its place since.
    assert len({first for first, *_ in places}) == len({second for _, *others in places for second in others}) == 1
    assert torch.equal(grown.join(), rows)
    assert grown.nbytes == rows.nbytes
    branch = before.extend(rows[:1])
    assert torch.equal(branch.join(), torch.cat([rows[:11], rows[:1]]))
    assert branch.parts[0].data_ptr() == grown.parts[0].data_ptr()
    assert torch.equal(grown.join(), rows)


def test_appending_nothing_changes_nothing() -> None:
    A = matrix(5)
    factor = grow(A, 5)
    same, _ = factor.append(A[:0, :], A[:0, :0], floor(A))
    assert torch.equal(same.inverse(), factor.inverse())


@pytest.mark.parametrize(
    ("factorize", "raises"),
    [(lambda A: safe_cholesky(A, floor(A), A), (8.9e-16, 8.9e-14, 8.9e-12)), (posterior_cholesky, (1e-8, 1e-7, 1e-6))],
    ids=["safe", "posterior"],
)
def test_in_a_batch_each_matrix_is_raised_as_if_it_were_alone(
    factorize: Callable[[Tensor], Tensor], raises: tuple[float, ...]
) -> None:
    matrices = torch.eye(4, dtype=torch.double).repeat(4, 1, 1)
    matrices[1:, 0, 0] = -torch.tensor(raises, dtype=torch.double) / 2
    together = factorize(matrices)
    for A, chol in zip(matrices, together, strict=True):
        assert torch.equal(factorize(A), chol)
    assert torch.equal(together[0], matrices[0])
    # Each by the first step that is enough for it.
    torch.testing.assert_close(together[1:, 0, 0].square(), -matrices[1:, 0, 0], rtol=0.01, atol=0)


def test_an_indefinite_matrix_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"not positive definite in torch\.float64\. Use a larger eta"):
        InverseCholesky.of(-torch.eye(3, dtype=torch.double), torch.tensor(1.0, dtype=torch.double))
