"""Why a point: every number of an explanation, computed in another way."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from botorch.utils.multi_objective.hypervolume import Hypervolume
from suites import close
from torch import Tensor

from mtbo_torch import MTKB, Category, ICMKernel, Inputs, Optimizer, Real
from mtbo_torch.strategies.explanation import Explanation

INPUTS = Inputs({"x": Real(0, 2), "y": Real(-1, 1), "c": Category("a", "b", "z")})


def values(X: Tensor) -> Tensor:
    x, y, c = X.unbind(dim=-1)
    return torch.stack([x + y + 0.2 * c, (x - 1).square() - 0.1 * c, y], dim=-1)


def started(**options: object) -> Optimizer:
    optimizer = Optimizer(3, bounds=INPUTS, signs={"f": "maximize", "g": "minimize", "h": "at most 0.5"}, **options)
    X = optimizer.ask(10)
    optimizer.tell(X, values(X))
    return optimizer


@pytest.fixture(scope="module")
def asked() -> Optimizer:
    """One that waits for the value of a point."""
    optimizer = started()
    optimizer.ask()
    return optimizer


def test_every_number(asked: Optimizer) -> None:
    optimizer, x = asked, asked.pending[10].unsqueeze(0)
    explained = optimizer.explain()
    assert isinstance(explained, Explanation)
    model, X = optimizer.model, optimizer.train_X
    posterior = model.posterior(x)
    close(explained.mean, posterior.mean[0].detach(), 1e-9)
    close(explained.upper - explained.mean, 1.96 * posterior.variance[0].sqrt().detach(), 1e-7)
    close(explained.mean - explained.lower, 1.96 * posterior.variance[0].sqrt().detach(), 1e-7)
    normal = torch.distributions.Normal(0.0, 1.0)
    assert explained.probability == pytest.approx(
        normal.cdf((0.5 - posterior.mean[0, 2]) / posterior.variance[0, 2].sqrt()).item(), abs=1e-4
    )
    apart = torch.stack(
        [(X[:, 0] - x[0, 0]).abs() / 2, (X[:, 1] - x[0, 1]).abs() / 2, (X[:, 2] != x[0, 2]).double()], -1
    )
    nearest = int(apart.amax(dim=-1).argmin())
    assert explained.nearest == nearest
    close(explained.distance, apart[nearest], 1e-12)
    for place, codes in enumerate(([2 * i / 20 for i in range(21)], [i / 10 - 1 for i in range(21)], [0, 1, 2])):
        line = x.repeat(len(codes), 1)
        line[:, place] = torch.tensor(codes, dtype=torch.double)
        mean = model.mean(line).detach()
        close(explained.effects[place], mean.amax(dim=0) - mean.amin(dim=0), 1e-9)
    assert explained.point == {"x": f"{x[0, 0]:.4g}", "y": f"{x[0, 1]:.4g}", "c": "abz"[int(x[0, 2])]}
    close(explained.correlation.diagonal(), torch.ones(3), 1e-9)


def test_the_gain_is_that_of_the_hypervolume() -> None:
    # A point that is certain to be better: its gain is that of the mean.
    optimizer = Optimizer(2, bounds=torch.tensor([[0.0], [1.0]], dtype=torch.double), ref_point=torch.zeros(2))
    X = torch.linspace(0, 1, 12, dtype=torch.double).unsqueeze(-1)
    keep = [i for i in range(12) if i not in (5, 6)]
    f = torch.cat([1 + (2 * X).sin(), 2 - X.square()], dim=-1)
    optimizer.tell(X[keep], f[keep])
    explained = optimizer.explain(X[5])
    assert isinstance(explained, Explanation)
    measure = Hypervolume(torch.zeros(2, dtype=torch.double))
    mean = optimizer.model.mean(X[keep]).detach()
    before, after = measure.compute(mean), measure.compute(torch.cat([mean, explained.mean.unsqueeze(0)]))
    assert explained.gain == pytest.approx(after / before - 1, rel=0.15)


def test_tasks_that_are_related() -> None:
    B = torch.tensor([[4.0, -1.0], [-1.0, 1.0]], dtype=torch.double)
    kernel = ICMKernel(gpytorch.kernels.RBFKernel(), B)
    strategy = MTKB(kernel, bounds=torch.tensor([[0.0], [1.0]], dtype=torch.double), norm_bound=5.0, noise_scale=0.1)
    strategy.tell([[0.2], [0.8]], [[1.0, 0.0], [0.0, 1.0]])
    explained = strategy.explain([0.5])
    assert isinstance(explained, Explanation)
    close(explained.correlation, torch.tensor([[1, -0.5], [-0.5, 1]]), 1e-9)
    lower, upper = strategy.intervals(torch.tensor([[0.5]], dtype=torch.double))
    close(explained.lower, lower[0], 1e-12)
    close(explained.upper, upper[0], 1e-12)
    assert "with probability 0.9" in repr(explained)
    assert explained.gain is None


def test_it_reads_well(asked: Optimizer) -> None:
    optimizer = asked
    text = repr(optimizer.explain())
    assert "expected to enlarge the hypervolume by" in text
    assert "satisfies the constraints with probability" in text
    assert "nearest to row" in text
    assert "g (min)" in text
    html = optimizer.explain()._repr_html_()
    assert html.count("<table>") == 3
    same = optimizer.explain(optimizer.train_X[3])
    assert isinstance(same, Explanation)
    assert "the same as row 3" in repr(same)
    both = optimizer.explain(optimizer.train_X[:2])
    assert isinstance(both, list)
    assert [one.nearest for one in both] == [0, 1]


def test_before_the_first_observation_and_refusals() -> None:
    optimizer = Optimizer(2, bounds=INPUTS)
    with pytest.raises(ValueError, match="x should be given when no point that was asked for is pending"):
        optimizer.explain()
    optimizer.ask()
    assert "nothing was tried yet" in repr(optimizer.explain())
    with pytest.raises(ValueError, match="with d = 3, got shape"):
        optimizer.explain([1.0])
    with pytest.raises(ValueError, match="explain should be asked of a single trial, got a batch of 2"):
        Optimizer(2, bounds=INPUTS, seed=[0, 1]).explain()
