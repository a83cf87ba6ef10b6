"""Measure how often the confidence bounds hold, and how much slack they leave: ``make bench-guarantees``.

Functions are drawn from the RKHS with their exact norms; all trials of a setting run as one batch. Each run records the
smallest radius that would have covered f at every point in every round. A run is covered if the strategy's radius is
never below that radius. The theorems guarantee this for a share of 1 - delta of the runs.

The intervals of the mixture are measured themselves: a run is covered if no task and no direction at any choice ever
lies outside, in any round. Of the wrong ones, random functions find out half of b, and sigma when it is all but gone;
they rarely lie near the ends in the direction that counts, so they miss half of sigma at delta = 0.5, a delta that is
left out, and an eta0 that the data choose. One point with much noise finds out all of them. An eta0 from a grid of 8
can cost no more than a factor of 8 in delta, and costs far less, so that one takes hundreds of runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from record import record_output
from torch import Tensor
from tqdm import tqdm

from mtbo_torch import (
    MTBKB,
    MTKB,
    ICMKernel,
    Mixture,
    exact_radius,
    mixture_deviation,
    nystrom_radius,
    theory_oversampling,
)
from mtbo_torch.experiments.instances import FiniteInstances
from mtbo_torch.experiments.panels import make_base_kernel
from mtbo_torch.metrics import regret_certificate
from mtbo_torch.models import MultiTaskGPModel
from mtbo_torch.problems import RKHSFunction
from mtbo_torch.strategies.kernelized import KernelStrategy
from mtbo_torch.surrogate import Surrogate

Noise = Callable[..., Tensor]
LENGTHSCALE = 0.2
EPSILON = 0.5
DELTAS = (0.1, 0.5)
PROVED = ("MT-KB", "MT-KB-ellipsoid", "MT-BKB")
ALGORITHMS = (*PROVED, "MT-BKB, q = 3")
WITH_INTERVALS = ("MT-KB-mixture", "MT-BKB-mixture")
SOURCES = ("benchmarks/guarantees.py", "mtbo_torch/confidence.py", "mtbo_torch/intervals.py", "mtbo_torch/strategies")
PARTS = ("radii", "broken_radii", "intervals", "broken_intervals", "doubts")
# A share that is less probable than this is a miss.
RARE = 1e-3
# The relative rounding error where a bound is attained.
SLACK = {torch.float64: 1e-9, torch.float32: 1e-4}


@dataclass(frozen=True)
class Trace:
    r"""The record of b runs of T rounds.

    Attributes:
        radius: ``b x (T + 1)``, the radius of the strategy after t = 0, ..., T observations.
        needed: ``b x (T + 1)``, :math:`\max_x \|f(x) - \mu_t(x)\| / \|\Gamma_t(x, x)\|^{1/2}`.
        needed_along: ``b x (T + 1)``, :math:`\max_{x, e} |e^T (f(x) - \mu_t(x))| / (e^T \Gamma_t(x, x) e)^{1/2}`
            over the tasks and some random directions.
        needed_in_all: The same over all directions, :math:`\max_x (r^T \Gamma_t(x, x)^{-1} r)^{1/2}` with
            :math:`r = f(x) - \mu_t(x)`.
        regret: ``b x T``, the cumulative regret.
        certificate: ``b x T``, the bound on the cumulative regret.
    """

    radius: Tensor
    needed: Tensor
    needed_along: Tensor
    needed_in_all: Tensor
    regret: Tensor
    certificate: Tensor


def compute_share(holds: Tensor) -> float:
    """Return the share of the ``b x T`` runs in which something holds in every round."""
    return holds.all(dim=-1).double().mean().item()


def compute_share_covered(needed: Tensor, radius: Tensor) -> float:
    """Return the share of runs whose radius is never below the needed radius."""
    return compute_share(needed <= radius * (1 + SLACK[radius.dtype]))


def compute_share_certified(trace: Trace) -> float:
    """Return the share of runs whose regret is never above the certificate."""
    return compute_share(trace.regret <= trace.certificate * (1 + SLACK[trace.regret.dtype]))


def add_noise(values: Tensor, instances: FiniteInstances, noise: Noise, generator: torch.Generator) -> Tensor:
    """Return what is observed of ``b x q x n`` values."""
    draws = noise(values.shape, generator=generator, dtype=torch.double)
    return values + instances.noise_scale * draws.to(values)


def play(strategy: KernelStrategy, instances: FiniteInstances, rounds: int, noise: Noise = torch.randn) -> Trace:
    """Run a strategy on a batch of functions, one for each of its trials."""
    f, choices, n = instances.table, instances.choices, instances.num_tasks
    generator = torch.Generator().manual_seed(7)
    directions = torch.cat([torch.eye(n), torch.randn(8, n, generator=generator)]).to(f)
    radii, needed = [strategy.radius], [_compute_needed(strategy, f, choices, directions)]
    choosing, regrets = [], []
    for _ in range(rounds):
        x = strategy.ask()
        scalarization = strategy.goal.scalarization(strategy.asked_weights.squeeze(-2))
        values = instances.evaluate(x)
        regrets.append(scalarization(f).amax(dim=-1) - scalarization(values).squeeze(-1))
        choosing.append((scalarization.lipschitz, strategy.radius, strategy.covariance_norm(x).squeeze(-1)))
        strategy.tell(x, add_noise(values, instances, noise, generator))
        radii.append(strategy.radius)
        needed.append(_compute_needed(strategy, f, choices, directions))
    ball, along, in_all = (torch.stack(column, dim=-1) for column in zip(*needed, strict=True))
    certificate = regret_certificate(*(torch.stack(column, dim=-1) for column in zip(*choosing, strict=True)))
    regret = torch.stack(regrets, dim=-1).cumsum(dim=-1)
    return Trace(torch.stack(radii, dim=-1), ball, along, in_all, regret, certificate)


@torch.no_grad()
def _compute_needed(
    strategy: KernelStrategy, f: Tensor, choices: Tensor, directions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three needed radii, ``b`` each, from the covariances alone."""
    model = strategy.model
    error, covariance = f - model.mean(choices), model.covariance(choices)
    variances, vectors = torch.linalg.eigh(covariance)
    ball = error.norm(dim=-1) / variances[..., -1].sqrt()
    along = (error @ directions.mT).abs() / torch.einsum("ki,...ij,kj->...k", directions, covariance, directions).sqrt()
    turned = (error.unsqueeze(-2) @ vectors).squeeze(-2)
    in_all = (turned.square() / variances).sum(dim=-1).sqrt()
    return ball.amax(dim=-1), along.amax(dim=(-2, -1)), in_all.amax(dim=-1)


@dataclass(frozen=True)
class Fit:
    r"""How the intervals of b runs of T rounds fit f: :math:`|e^T f(x) - m| / h` for an interval :math:`m \pm h`.

    Attributes:
        worst: ``b x (T + 1)``, the largest of all choices and directions: the tasks, some random ones, and the one in
            which f is farthest from the mean for its variance. Above 1, f lies outside.
        typical: ``b x (T + 1)``, the mean of all choices and tasks.
    """

    worst: Tensor
    typical: Tensor

    @property
    def share_inside(self) -> float:
        """The share of the runs in which f never lies outside."""
        return compute_share(self.worst <= 1 + SLACK[self.worst.dtype])


@torch.no_grad()
def follow_intervals(
    strategy: KernelStrategy,
    instances: FiniteInstances,
    rounds: int,
    mixtures: Mapping[str, Mixture],
    noise: Noise = torch.randn,
) -> dict[str, Fit]:
    """Run a strategy on a batch of functions, and compare them with the intervals of some mixtures in every round."""
    f, choices, n = instances.table, instances.choices, instances.num_tasks
    generator = torch.Generator().manual_seed(7)
    fixed = torch.cat([torch.eye(n), torch.randn(8, n, generator=generator)]).to(f).expand(len(f), -1, -1)
    fits: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in mixtures}
    for t in range(rounds + 1):
        if t:
            x = strategy.ask()
            strategy.tell(x, add_noise(instances.evaluate(x), instances, noise, generator))
        model = strategy.model
        directions = torch.cat([fixed, _find_worst_direction(model, f, choices)], dim=-2)
        for name, mixture in mixtures.items():
            lower, upper = model.intervals(choices, mixture, directions)
            half = (upper - lower) / 2
            distance = (f @ directions.mT - (lower + upper) / 2).abs()
            ratio = torch.where(half > 0, distance / half, torch.inf)
            fits[name].append((ratio.amax(dim=(-2, -1)), ratio[..., :n].mean(dim=(-2, -1))))
    columns = {name: zip(*record, strict=True) for name, record in fits.items()}
    return {name: Fit(*(torch.stack(column, dim=-1) for column in pair)) for name, pair in columns.items()}


def _find_worst_direction(model: MultiTaskGPModel, f: Tensor, choices: Tensor) -> Tensor:
    r"""Return :math:`\Gamma_t(x, x)^{-1} (f(x) - \mu_t(x))`, ``b x 1 x n``, at the choice x where f is farthest out."""
    error = (f - model.mean(choices)).unsqueeze(-1)
    solved = torch.linalg.solve(model.covariance(choices), error)
    worst = (error * solved).sum(dim=(-2, -1)).argmax(dim=-1)
    return solved[torch.arange(len(f)), worst].mT


# Among which a constant is chosen after the data, in units of the noise's variance.
CONSTANTS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class ChosenAfterwards(Mixture):
    """A mixture whose constant is the one with the smallest bound, which the data decide: not a valid one."""

    def judge(self, swept: Surrogate) -> tuple[Tensor, Tensor]:
        regression, sigma = swept.regression, float(self.noise_scale)
        radii, needed = super().judge(swept)
        constants = sigma**2 * torch.tensor(CONSTANTS).to(radii).unsqueeze(-1)
        chosen = regression.with_noise(constants.reshape(-1, *[1] * (regression.noise.dim() - 1)))
        deviations = mixture_deviation(chosen.info_gain, chosen.quadratic, sigma, constants, self.delta)
        quadratic = swept.audit().quadratic
        alphas = regression.noise.flatten(1)[:, :1]
        squares = torch.as_tensor(self.norm_bound).square() + deviations.amin(dim=0) / alphas - quadratic
        return torch.minimum(radii, squares.clamp_min(0).sqrt()), needed


RIGHT = "as it should be"
# Intervals that are right, and how a bug would change them: from b, sigma and delta.
MIXTURES: dict[str, Callable[[Tensor, float, float], Mixture]] = {
    RIGHT: Mixture,
    "half of b left out": lambda b, sigma, delta: Mixture(b / 2, sigma, delta),
    "half of sigma left out": lambda b, sigma, delta: Mixture(b, sigma / 2, delta),
    "sigma dropped (to 0.1 %)": lambda b, sigma, delta: Mixture(b, sigma / 1000, delta),
    "delta left out": lambda b, sigma, delta: Mixture(b, sigma, 1.0),
    "eta0 chosen after the data": ChosenAfterwards,
}


def find_rounds_of_doubt(strategy: KernelStrategy, instances: FiniteInstances, rounds: int) -> Tensor:
    """Return the first tenth round, ``b``, after which no function of the strategy's norm bound explains the data.

    It is infinite where there is none.
    """
    generator = torch.Generator().manual_seed(7)
    mixture = Mixture(strategy.norm_bound, strategy.noise_scale, strategy.delta)
    found = torch.full_like(instances.norm_bound, torch.inf)
    for t in range(1, rounds + 1):
        x = strategy.ask()
        strategy.tell(x, add_noise(instances.evaluate(x), instances, torch.randn, generator))
        if t % 10 == 0:
            _, smallest = mixture.judge(mixture.sweep(strategy.model.surrogate))
            found = torch.where((smallest > strategy.norm_bound) & found.isinf(), t, found)
    return found


def draw_signs(shape: torch.Size, *, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw noise that is 1 or -1: sub-Gaussian with constant 1, like standard normal noise."""
    return 2.0 * torch.randint(2, shape, generator=generator).to(dtype) - 1


def draw_functions(
    num_trials: int, num_tasks: int, choices: Tensor, noise_scale: float, num_centers: int, norm: float | None = None
) -> FiniteInstances:
    """Draw random elements of the RKHS, each with a random B = A^T A, and scale them to a norm if one is given."""
    base, generator = make_base_kernel(LENGTHSCALE, choices), torch.Generator().manual_seed(0)
    A = torch.rand(num_trials, num_tasks, num_tasks, generator=generator, dtype=torch.double)
    return _make_instances(ICMKernel(base, (A.mT @ A).to(choices)), num_trials, choices, noise_scale, num_centers, norm)


def make_far_points(
    num_trials: int, num_tasks: int, num_points: int, noise_scale: float, norm: float, like: Tensor
) -> FiniteInstances:
    """Draw functions on uncorrelated points with B = I, for which the bounds are almost attained.

    With one point, f and the noise have no other directions than those in the bound.
    """
    choices = 100.0 * torch.arange(num_points, dtype=torch.double).unsqueeze(-1).to(like)
    kernel = ICMKernel(make_base_kernel(LENGTHSCALE, choices), torch.eye(num_tasks).to(like))
    return _make_instances(kernel, num_trials, choices, noise_scale, 2 * num_points, norm)


@torch.no_grad()
def _make_instances(
    kernel: ICMKernel, num_trials: int, choices: Tensor, noise_scale: float, num_centers: int, norm: float | None
) -> FiniteInstances:
    ((_, B),) = kernel.terms()
    B = B.expand(num_trials, *B.shape[-2:])
    draws = [RKHSFunction.draw(ICMKernel(kernel.base_kernel, b), choices, num_centers, seed=i) for i, b in enumerate(B)]
    drawn = draws if norm is None else [f.scale_to(norm) for f in draws]
    table = torch.stack([f.evaluate_true(choices) for f in drawn])
    norms = torch.tensor([f.norm for f in drawn], dtype=torch.double)
    return FiniteInstances(kernel, norms.to(choices), noise_scale, choices, table)


# How a bug would change the arguments of a radius: information gain, b, sigma, eta, delta, and perhaps epsilon.
BROKEN: dict[str, Callable[..., tuple]] = {
    "half of b left out": lambda gain, b, *rest: (gain, b / 2, *rest),
    "three quarters of b left out": lambda gain, b, *rest: (gain, b / 4, *rest),
    "sigma dropped": lambda gain, b, sigma, *rest: (gain, b, 0.0, *rest),
    "variance for sigma": lambda gain, b, sigma, *rest: (gain, b, sigma**2, *rest),
    "another eta (4 times)": lambda gain, b, sigma, eta, *rest: (gain, b, sigma, 4 * eta, *rest),
    "sigma not over root eta": lambda gain, b, sigma, eta, *rest: (gain, b, sigma, 1.0, *rest),
    "half of the gain": lambda gain, *rest: (gain / 2, *rest),
    "gain left out": lambda gain, *rest: (0 * gain, *rest),
    "delta left out": lambda gain, b, sigma, eta, delta, *rest: (gain, b, sigma, eta, 1.0, *rest),
}


@contextmanager
def break_radii(change: Callable[..., tuple]) -> Iterator[None]:
    """Give MT-KB and MT-BKB radii with wrong arguments."""
    with (
        patch("mtbo_torch.strategies.bandits.exact_radius", lambda *given: exact_radius(*change(*given))),
        patch("mtbo_torch.strategies.bandits.nystrom_radius", lambda *given: nystrom_radius(*change(*given))),
    ):
        yield


def make_strategy(name: str, instances: FiniteInstances, eta: float, delta: float, horizon: int) -> KernelStrategy:
    """Make a strategy that knows the true constants; MT-BKB with the theory's dictionaries."""
    strategy_class, options = {
        "MT-KB": (MTKB, {"bound": "norm"}),
        "MT-KB-ellipsoid": (MTKB, {"bound": "ellipsoid"}),
        "MT-BKB": (
            MTBKB,
            {"bound": "norm", "epsilon": EPSILON, "oversampling": theory_oversampling(horizon, delta, EPSILON)},
        ),
        "MT-BKB, q = 3": (MTBKB, {"bound": "norm", "epsilon": EPSILON, "oversampling": 3.0}),
        "MT-KB-mixture": (MTKB, {"bound": "mixture"}),
        "MT-BKB-mixture": (MTBKB, {"bound": "mixture"}),
    }[name]
    return strategy_class(
        instances.kernel,
        choices=instances.choices,
        norm_bound=instances.norm_bound,
        noise_scale=instances.noise_scale,
        eta=eta,
        delta=delta,
        seed=list(range(len(instances.norm_bound))),
        **options,
    )


def compute_chance(share: float, trials: int, delta: float) -> float:
    """Return the probability of a share as low as this if each run is covered with probability 1 - delta."""
    counts = torch.arange(round(share * trials) + 1, dtype=torch.double)
    chances = torch.distributions.Binomial(trials, torch.tensor(1 - delta, dtype=torch.double)).log_prob(counts)
    return chances.exp().sum().item()


@dataclass(frozen=True)
class Problem:
    """Functions, and the number of rounds to play on them.

    Attributes:
        title: The title of its rows.
        instances: Draws the functions when they are needed.
        eta: The regularizer.
        rounds: T.
        noise: Draws noise of standard deviation one.
    """

    title: str
    instances: Callable[[], FiniteInstances]
    eta: float
    rounds: int
    noise: Noise = torch.randn


def list_problems(trials: int) -> list[Problem]:
    like = torch.empty(0, dtype=torch.double)
    grid = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
    return [
        Problem("RKHS, 2 tasks", lambda: draw_functions(trials, 2, grid[::2], 0.1, 10), 0.1, 100),
        Problem("RKHS, 20 tasks", lambda: draw_functions(trials // 2, 20, grid[::5], 0.1, 10), 0.1, 60),
        Problem("one point, noise", lambda: make_far_points(2 * trials, 4, 1, 0.5, 0.05, like), 0.5, 200),
        Problem("one point, signs", lambda: make_far_points(2 * trials, 4, 1, 0.5, 0.05, like), 0.5, 200, draw_signs),
        Problem("two points, norm", lambda: make_far_points(2 * trials, 1, 2, 0.01, 2.0, like), 0.5, 60),
    ]


def list_interval_problems(trials: int) -> list[Problem]:
    """List problems with eta = sigma^2, for which the worst direction is that of the mixture's own regularizer."""
    like = torch.empty(0, dtype=torch.double)
    grid = torch.linspace(0, 1, 51, dtype=torch.double).unsqueeze(-1)

    def draw_hard() -> FiniteInstances:
        return make_far_points(2 * trials, 20, 1, 20.0, 5.0, like)

    return [
        Problem("RKHS, 2 tasks", lambda: draw_functions(trials, 2, grid, 0.1, 10), 0.01, 100),
        Problem("RKHS, signs", lambda: draw_functions(trials, 2, grid, 0.1, 10), 0.01, 100, draw_signs),
        Problem("RKHS, 6 tasks", lambda: draw_functions(trials, 6, grid, 0.1, 10), 0.01, 100),
        Problem("one point, noise", draw_hard, 400.0, 100),
        Problem("one point, signs", draw_hard, 400.0, 100, draw_signs),
        Problem("two points, norm", lambda: make_far_points(trials, 1, 2, 0.01, 2.0, like), 1e-4, 60),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="which tables to write")
    options = parser.parse_args()
    trials = options.trials
    parts: dict[str, Callable[[], int | None]] = {
        "radii": lambda: print_shares(list_problems(trials)),
        "broken_radii": lambda: print_broken(list_problems(trials)),
        "intervals": lambda: print_intervals(list_interval_problems(trials)),
        "broken_intervals": lambda: print_broken_intervals(list_interval_problems(trials)),
        "doubts": lambda: print_doubts(trials),
    }
    missed = 0
    for name in options.parts:
        with record_output(f"guarantees_{name}", "make bench-guarantees", SOURCES):
            missed += parts[name]() or 0
    sys.exit(1 if missed else 0)


def print_shares(settings: list[Problem]) -> int:
    """Print one line for each problem, algorithm and delta; return the number of lines that miss the guarantee."""
    print(
        f"{'problem':<20}{'algorithm':<17}{'runs':>5}{'T':>5}{'delta':>7}{'covered':>9}{'in all e':>10}"
        f"{'by chance':>11}{'room':>7}{'certified':>11}{'regret/cert.':>14}{'s':>6}"
    )
    missed = 0
    progress = tqdm(total=len(settings) * len(ALGORITHMS) * len(DELTAS), disable=None)
    for problem in settings:
        instances = problem.instances()
        b = len(instances.norm_bound)
        for algorithm in ALGORITHMS:
            for delta in DELTAS:
                start = time.perf_counter()
                trace = play(
                    make_strategy(algorithm, instances, problem.eta, delta, problem.rounds),
                    instances,
                    problem.rounds,
                    problem.noise,
                )
                ball, along = (compute_share_covered(n, trace.radius) for n in (trace.needed, trace.needed_in_all))
                certified, chance = compute_share_certified(trace), compute_chance(min(ball, along), b, delta)
                # With a radius shorter by this factor, the share would still be 1 - delta.
                room = (trace.needed_in_all / trace.radius).amax(dim=-1).quantile(1 - delta).item()
                closest = (trace.regret / trace.certificate).max().item()
                holds = algorithm not in PROVED or (chance >= RARE and compute_chance(certified, b, delta) >= RARE)
                missed += not holds
                progress.update()
                progress.write(
                    f"{problem.title:<20}{algorithm:<17}{b:>5}{problem.rounds:>5}{delta:>7g}{ball:>9.3f}{along:>10.3f}"
                    f"{chance:>11.2g}{room:>7.2f}{certified:>11.3f}{closest:>14.3f}"
                    f"{time.perf_counter() - start:>6.0f}{'' if holds else '  MISSED'}",
                    file=sys.stdout,
                )
    progress.close()
    return missed


def print_broken(settings: list[Problem], delta: float = 0.1) -> None:
    """Print the shares of covered functions and certified regrets with wrong radii."""
    names = ("RKHS, 2 tasks", "one point, noise", "two points, norm")
    shown = [(problem, problem.instances()) for problem in settings if problem.title in names]
    print(f"{'covered / certified':<36}" + "".join(f"{problem.title:>20}" for problem, _ in shown))
    for algorithm in ("MT-KB", "MT-BKB"):
        for name, change in {"as it should be": lambda *given: given, **BROKEN}.items():
            cells = []
            for problem, instances in shown:
                with break_radii(change):
                    strategy = make_strategy(algorithm, instances, problem.eta, delta, 60)
                    trace = play(strategy, instances, 60)
                covered = compute_share_covered(trace.needed_in_all, trace.radius)
                cells.append(f"{covered:.3f} / {compute_share_certified(trace):.3f}")
            print(f"{algorithm + ': ' + name:<36}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def print_intervals(settings: list[Problem]) -> int:
    """Print how often and how closely intervals contain f; return the number of lines that miss the guarantee."""
    print(
        f"{'problem':<18}{'algorithm':<15}{'runs':>5}{'T':>5}{'delta':>7}{'outside':>9}{'by chance':>11}"
        f"{'typical':>9}{'room':>7}{'worst':>7}{'s':>6}"
    )
    missed = 0
    progress = tqdm(total=len(settings) * len(WITH_INTERVALS) * len(DELTAS), disable=None)
    for problem in settings:
        instances = problem.instances()
        b = len(instances.norm_bound)
        for algorithm in WITH_INTERVALS:
            for delta in DELTAS:
                start = time.perf_counter()
                (fit,) = fit_problem(problem, instances, algorithm, delta, problem.rounds, [RIGHT]).values()
                chance = compute_chance(fit.share_inside, b, delta)
                missed += chance < RARE
                typical, worst = fit.typical[:, 1:].mean(), fit.worst[:, 1:].amax(dim=-1)  # once there are data
                # With intervals shorter by this factor, the share would still be 1 - delta.
                room = worst.quantile(1 - delta).item()
                progress.update()
                progress.write(
                    f"{problem.title:<18}{algorithm:<15}{b:>5}{problem.rounds:>5}{delta:>7g}"
                    f"{1 - fit.share_inside:>9.3f}{chance:>11.2g}{typical:>9.3f}{room:>7.2f}{worst.max():>7.2f}"
                    f"{time.perf_counter() - start:>6.0f}{'  MISSED' if chance < RARE else ''}",
                    file=sys.stdout,
                )
    progress.close()
    return missed


def print_broken_intervals(settings: list[Problem], delta: float = 0.5, rounds: int = 100) -> None:
    """Print how often f lies outside wrong intervals, and whether that says they are wrong."""
    names = ("RKHS, 2 tasks", "one point, noise", "two points, norm")
    shown = [problem for problem in settings if problem.title in names]
    print(f"{f'outside, delta = {delta}':<44}" + "".join(f"{problem.title:>20}" for problem in shown))
    for algorithm in WITH_INTERVALS:
        columns = []
        for problem in tqdm(shown, disable=None):
            instances = problem.instances()
            fits = fit_problem(problem, instances, algorithm, delta, rounds, list(MIXTURES))
            shares = [fit.share_inside for fit in fits.values()]
            chances = [compute_chance(share, len(instances.norm_bound), delta) for share in shares]
            found = [" found" if chance < RARE else "" for chance in chances]
            columns.append([f"{1 - share:.3f}{mark:<6}" for share, mark in zip(shares, found, strict=True)])
        for name, *cells in zip(MIXTURES, *columns, strict=True):
            print(f"{algorithm + ': ' + name:<44}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def fit_problem(
    problem: Problem, instances: FiniteInstances, algorithm: str, delta: float, rounds: int, names: Sequence[str]
) -> dict[str, Fit]:
    """Run an algorithm on the functions of a problem, and compare them with right or wrong intervals."""
    mixtures = {name: MIXTURES[name](instances.norm_bound, instances.noise_scale, delta) for name in names}
    strategy = make_strategy(algorithm, instances, problem.eta, delta, rounds)
    return follow_intervals(strategy, instances, rounds, mixtures, problem.noise)


def print_doubts(trials: int, delta: float = 0.1, rounds: int = 200) -> int:
    """Print how soon a wrong norm is found out; return 1 if a true one is accused more often than delta."""
    grid = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
    instances = draw_functions(trials, 2, grid, 0.1, 50)
    print(f"{'RKHS, 2 tasks':<32}{'runs':>5}{'T':>5}{'delta':>7}{'doubted':>9}{'median round':>14}{'last':>6}")
    missed = 0
    for name, factor in {"the true norm": 1.0, "half of it": 0.5}.items():
        presumed = replace(instances, norm_bound=factor * instances.norm_bound)
        for algorithm in WITH_INTERVALS:
            strategy = make_strategy(algorithm, presumed, 0.01, delta, rounds)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it is found out
                first = find_rounds_of_doubt(strategy, presumed, rounds)
            found = first[first.isfinite()]
            when = f"{found.median():>14.0f}{found.max():>6.0f}" if len(found) else ""
            share = len(found) / trials
            missed += factor == 1 and compute_chance(1 - share, trials, delta) < RARE
            print(f"{algorithm + ', ' + name:<32}{trials:>5}{rounds:>5}{delta:>7g}{share:>9.3f}{when}", flush=True)
    return missed


if __name__ == "__main__":
    main()
