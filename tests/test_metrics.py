"""Regret against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import oracles
import pytest
import torch
from botorch.utils.multi_objective.pareto import is_non_dominated
from catalogue import icm
from suites import close
from torch import Tensor

from mtbo_torch import MTBKB, MTKB, ChebyshevScalarization, LinearScalarization, UniformWeights
from mtbo_torch.metrics import RegretTracker, average_regret, hypervolume, regret_certificate, scalarized_regret
from mtbo_torch.problems import RKHSFunction
from mtbo_torch.scalarizations import Scalarization


def test_regret_against_brute_force() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = UniformWeights(3).sample(4, generator=generator, dtype=torch.double)
    attainable = torch.randn(20, 3, generator=generator, dtype=torch.double)
    achieved = attainable[:4]
    regret = scalarized_regret(ChebyshevScalarization(weights), achieved, attainable)
    s = [[oracles.chebyshev(w, y, np.zeros(3)) for y in attainable.numpy()] for w in weights.numpy()]
    expected = [max(s[t]) - s[t][t] for t in range(4)]
    close(regret, np.array(expected), 1e-12)
    close(average_regret(regret), np.array([sum(expected[: t + 1]) / (t + 1) for t in range(4)]), 1e-12)


def scalarized(kind: type[Scalarization], w: np.ndarray, y: np.ndarray) -> float:
    return oracles.linear(w, y) if kind is LinearScalarization else oracles.chebyshev(w, y, np.zeros(len(y)))


def example(n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two trials: f on 20 points, the points chosen in 7 rounds, the weights, and fixed weights."""
    generator = torch.Generator().manual_seed(n)
    attainable = torch.randn(2, 20, n, generator=generator, dtype=torch.double)
    chosen = torch.randint(20, (2, 7), generator=generator)
    weights = UniformWeights(n).sample((2, 7), generator=generator, dtype=torch.double)
    return attainable, chosen, weights, UniformWeights(n).sample(30, generator=generator, dtype=torch.double)


def tracker(kind: type[Scalarization], attainable: Tensor, fixed: Tensor) -> RegretTracker:
    def best(weights: Tensor) -> Tensor:
        return kind(weights)(attainable.unsqueeze(1)).amax(dim=-1)

    return RegretTracker(kind, best, fixed, attainable)


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("kind", [ChebyshevScalarization, LinearScalarization])
def test_all_regrets_against_brute_force(n: int, kind: type[Scalarization]) -> None:
    attainable, chosen, weights, fixed = example(n)
    values = torch.stack([f[c] for f, c in zip(attainable, chosen, strict=True)])
    columns = tracker(kind, attainable, fixed).update(weights, values)
    for trial in range(2):
        f, total = attainable[trial].numpy(), 0.0
        front = {i for i, y in enumerate(f) if not any((z >= y).all() and (z > y).any() for z in f)}
        for t in range(7):
            w, so_far = weights[trial, t].numpy(), chosen[trial, : t + 1].tolist()
            best = max(scalarized(kind, w, y) for y in f)
            regret = best - scalarized(kind, w, f[so_far[-1]])
            total += regret
            simple = best - max(scalarized(kind, w, f[i]) for i in so_far)
            bayes = np.mean(
                [
                    max(scalarized(kind, v, y) for y in f) - max(scalarized(kind, v, f[i]) for i in so_far)
                    for v in fixed.numpy()
                ]
            )
            expected = [regret, total / (t + 1), simple, bayes, len(front & set(so_far)) / len(front)]
            names = ("regret", "average_regret", "simple_regret", "bayes_regret", "front_share")
            close(torch.stack([columns[name][trial, t] for name in names]), np.array(expected), 1e-12)
        if 1 < n <= 4:
            everything, found = (hypervolume(torch.tensor(y), torch.tensor(f.min(axis=0))) for y in (f, f[so_far]))
            close(columns["hypervolume_share"][trial, -1], found / everything, 1e-12)
    assert ("hypervolume_share" in columns) == (1 < n <= 4)


@pytest.mark.parametrize("kind", [ChebyshevScalarization, LinearScalarization])
def test_blocks_of_rounds_add_up(kind: type[Scalarization]) -> None:
    attainable, chosen, weights, fixed = example(3)
    values = torch.stack([f[c] for f, c in zip(attainable, chosen, strict=True)])
    at_once = tracker(kind, attainable, fixed).update(weights, values)
    piecewise, pieces = tracker(kind, attainable, fixed), []
    for first, last in ((0, 3), (3, 4), (4, 7)):
        pieces.append(piecewise.update(weights[:, first:last], values[:, first:last]))
    for name, column in at_once.items():
        joined = torch.cat([piece[name] for piece in pieces], dim=1)
        if name == "hypervolume_share":
            joined, column = joined[:, -1], column[:, -1]
        close(joined, column, 1e-12)


def test_the_hypervolume_of_two_boxes() -> None:
    Y = torch.tensor([[3.0, 1.0], [1.0, 2.0], [0.5, 0.5]], dtype=torch.double)
    assert is_non_dominated(Y).tolist() == [True, True, False]
    assert hypervolume(Y, torch.zeros(2, dtype=torch.double)).item() == pytest.approx(3 * 1 + 1 * 1)


def volume_by_inclusion_and_exclusion(Y: Tensor, z: Tensor) -> float:
    """The boxes, minus those of pairs, plus those of triples, and so on."""
    total = 0.0
    for size in range(1, len(Y) + 1):
        for chosen in itertools.combinations(Y.tolist(), size):
            sides = [min(column) - low for column, low in zip(zip(*chosen, strict=True), z.tolist(), strict=True)]
            total -= (-1) ** size * math.prod(max(0.0, side) for side in sides)
    return total


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("t", [0, 1, 6])
def test_hypervolumes_of_a_batch(n: int, batch: tuple[int, ...], t: int) -> None:
    generator = torch.Generator().manual_seed(n)
    Y = torch.randn(*batch, t, n, generator=generator, dtype=torch.double)
    Y[..., :1, :] = -9  # below every reference point
    for z in (torch.full((n,), -0.5).double(), torch.rand(*batch, n, generator=generator, dtype=torch.double) - 1):
        volumes = hypervolume(Y, z)
        assert volumes.shape == batch
        assert volumes.dtype == torch.double
        for i in np.ndindex(batch):
            expected = volume_by_inclusion_and_exclusion(Y[i], z.expand(*batch, n)[i])
            assert volumes[i].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "scalarization"), [(MTKB, ChebyshevScalarization), (MTBKB, LinearScalarization)])
def test_the_certificate_holds_and_is_below_the_printed_theorem(kind: type, scalarization: type[Scalarization]) -> None:
    case = icm(3, 1)
    domain = torch.linspace(0, 1, 51, dtype=torch.double).unsqueeze(-1)
    for seed in range(5):
        f = RKHSFunction.draw(case.kernel, domain, num_centers=10, seed=seed)
        strategy = kind(
            case.kernel, choices=domain, norm_bound=f.norm, noise_scale=0.1, scalarization=scalarization, seed=seed
        )
        generator = torch.Generator().manual_seed(seed)
        rows, regrets, after = [], [], []
        for _ in range(40):
            radius, x = strategy.radius, strategy.ask()
            s = scalarization(strategy.asked_weights[0])
            rows.append(torch.stack([s.lipschitz, radius, strategy.covariance_norm(x)[0]]))
            regrets.append(scalarized_regret(s, f(x), f(domain))[0])
            strategy.tell(x, f(x) + 0.1 * torch.randn(1, 3, generator=generator, dtype=torch.double))
            after.append(strategy.covariance_norm(x).item())
        certificate = regret_certificate(*torch.stack(rows, dim=-1))
        assert (torch.stack(regrets).cumsum(dim=-1) <= certificate).all()
        L, beta, norms = (column.tolist() for column in torch.stack(rows, dim=-1))
        naive = [2 * max(L[: t + 1]) * max(beta[: t + 1]) * np.sqrt((t + 1) * sum(norms[: t + 1])) for t in range(40)]
        close(certificate, np.array(naive), 1e-10)
        if kind is MTKB:
            X = strategy.train_X.numpy()
            kappa = np.linalg.eigvalsh(case.gamma(X[0], X[0])).max()
            gain = oracles.info_gain(case.gamma, X, 0.1, 3)
            printed = oracles.theorem_2(1.0, f.norm, 0.1, 0.1, 0.1, kappa, gain, after)
            assert certificate[-1] <= printed
