"""Many functions maximized at once."""

from __future__ import annotations

import torch
from suites import close
from torch import Tensor

from mtbo_torch.optimization import maximize

BOUNDS = torch.tensor([[0.0, -1.0], [1.0, 1.0]], dtype=torch.double)
CENTERS = torch.tensor([[0.2, 0.5], [0.9, -0.7], [1.5, 0.0], [0.5, 0.1]], dtype=torch.double)


def bumpy(X: Tensor, centers: Tensor) -> Tensor:
    return -(X - centers).square().sum(dim=-1) + 0.05 * torch.sin(25 * X).sum(dim=-1)


def test_every_function_gets_its_own_maximum() -> None:
    points, values = maximize(lambda X: bumpy(X, CENTERS), BOUNDS, [1, 2, 3, 4], num_restarts=20, raw_samples=256)
    axes = (torch.linspace(lower, upper, 401, dtype=torch.double) for lower, upper in BOUNDS.T)
    grid = torch.cartesian_prod(*axes).unsqueeze(1)
    best = bumpy(grid, CENTERS).amax(dim=0)
    assert ((points >= BOUNDS[0]) & (points <= BOUNDS[1])).all()
    assert (values >= best - 1e-9).all()
    close(values, bumpy(points, CENTERS), 1e-12)


def test_an_answer_does_not_depend_on_the_company() -> None:
    together, _ = maximize(lambda X: bumpy(X, CENTERS), BOUNDS, [1, 2, 3, 4], num_restarts=5, raw_samples=64)
    for i, seed in enumerate([1, 2, 3, 4]):
        alone, _ = maximize(lambda X, i=i: bumpy(X, CENTERS[i]), BOUNDS, [seed], num_restarts=5, raw_samples=64)
        close(together[i], alone[0], 1e-9)


def test_a_flat_function_is_maximized_anywhere() -> None:
    points, values = maximize(lambda X: 0 * X.sum(dim=-1), BOUNDS, [0, 1], num_restarts=2, raw_samples=8)
    assert points.shape == (2, 2)
    assert (values == 0).all()
