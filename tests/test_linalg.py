"""Small linear algebra that takes another way where there is a single row."""

from __future__ import annotations

import pytest
import torch

from mtbo_torch.linalg import cholesky_logdet, plus_product, thin_product, trace
from mtbo_torch.regression.base import shared_product
from mtbo_torch.regression.subspace import outer_by_point


def draw(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.double)


@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_products_of_one_row_are_products(q: int, batch: tuple[int, ...]) -> None:
    left, right, matrix = draw(*batch, 5, q), draw(*batch, q, 4), draw(*batch, 5, 4)
    torch.testing.assert_close(thin_product(left, right), left @ right)
    torch.testing.assert_close(plus_product(matrix, left, right), matrix + left @ right)
    for first in (left, left[(0,) * len(batch)]):
        torch.testing.assert_close(plus_product(matrix, first, right, -1), matrix - first @ right)
    rows, others = draw(*batch, q, 6), draw(*batch, 3 if q == 1 else q, 6)
    torch.testing.assert_close(outer_by_point(rows, others), rows @ others.mT)


@pytest.mark.parametrize("groups", [1, 3])
def test_products_with_shared_features(groups: int) -> None:
    for left, right in ((draw(2, groups, 2, 5), draw(1, 5, 4)), (draw(groups, 2, 5), draw(groups, 5, 4))):
        torch.testing.assert_close(shared_product(left, right), left @ right)


@pytest.mark.parametrize("q", [1, 3])
def test_traces_and_determinants(q: int) -> None:
    matrix = draw(2, q, q) @ draw(2, q, q).mT + torch.eye(q, dtype=torch.double)
    torch.testing.assert_close(trace(matrix), torch.stack([one.trace() for one in matrix]))
    torch.testing.assert_close(cholesky_logdet(torch.linalg.cholesky(matrix)), torch.logdet(matrix))
