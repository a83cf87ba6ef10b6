"""Places of points, found by their inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mtbo_torch.regression import Lookup, sites

DISTINCT = torch.rand(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double) - 0.5
POINTS = torch.cat([DISTINCT, DISTINCT[:11].flip(0), torch.zeros(1, 3)])


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("unlucky", [0, 2])
def test_the_first_equal_point_is_found(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, unlucky: int) -> None:
    encode, attempts = sites._encode, []

    def give_few_codes(X: Tensor, factors: Tensor) -> Tensor:
        attempts.append(factors)
        is_bad = any(torch.equal(factors, bad) for bad in attempts[:unlucky])
        return encode(X, factors) % 4 if is_bad else encode(X, factors)

    monkeypatch.setattr(sites, "_encode", give_few_codes)
    points = POINTS.to(dtype)
    wanted = torch.cat([points.flip(0), points[:5] + 1, torch.tensor([[-0.0, 0.0, -0.0]], dtype=dtype)])
    equal = (points == wanted.unsqueeze(-2)).all(dim=-1)
    expected = torch.where(equal.any(dim=-1), equal.to(torch.uint8).argmax(dim=-1), -1)
    lookup = Lookup(points)
    assert torch.equal(lookup.find(wanted), expected)
    assert torch.equal(lookup.find(wanted.reshape(2, 24, 3)), expected.reshape(2, 24))
    before = (points.unsqueeze(-2) == points).all(dim=-1).tril(diagonal=-1).any(dim=-1)
    assert torch.equal(lookup.repeated, before)
    assert len(attempts) == unlucky + 3  # each try of the index, and two searches


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_points_found_before_are_remembered(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    lookup = Lookup(POINTS.to(dtype))
    some = torch.cat([lookup.points[[3, 40, 41]], torch.tensor([[-0.0, 0.0, -0.0]], dtype=dtype)]).reshape(2, 2, 3)
    strange = lookup.points[:1] + 1
    for _ in range(2):  # a point that is not there is never remembered
        assert lookup.list_places(torch.cat([some[0], strange])) == [3, 0, -1]
    assert lookup.list_places(some) == lookup.find(some).flatten().tolist() == [3, 0, 41, 41]
    monkeypatch.setattr(lookup, "find", None)
    assert lookup.list_places(some) == [3, 0, 41, 41]


def test_one_point() -> None:
    lookup = Lookup(torch.tensor([[0.5]]))
    assert lookup.find(torch.tensor([[0.5], [0.4]])).tolist() == [0, -1]
    assert lookup.repeated.tolist() == [False]
