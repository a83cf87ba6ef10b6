"""The method to pick by default: nothing to set, from the first evaluation on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor

from mtbo_torch.arrays import ArrayLike
from mtbo_torch.checks import require_count
from mtbo_torch.improvement import Incumbent, Samples, count_samples, log_improvement
from mtbo_torch.inputs import Inputs
from mtbo_torch.optimization import draw_sobol
from mtbo_torch.regression import Belief
from mtbo_torch.scalarizations import ChebyshevScalarization
from mtbo_torch.space import Search, make_space
from mtbo_torch.strategies.base import Observations
from mtbo_torch.strategies.goal import Goal
from mtbo_torch.strategies.modeling import ExactModelStrategy
from mtbo_torch.surrogate import Surrogate

# Kernels are learned anew once this share of the observations is new.
NEW_SHARE = 1 / 32
# How much the mean of all objectives counts where the best of one is looked for: enough to decide between equals.
SHARE_OF_ALL = 0.05
# How many starts of a search lie around the present front, and how far from it in shares of the space.
STARTS_NEAR, DISTANCE_NEAR = 64, 0.05


@dataclass(frozen=True, eq=False)
class Opinion:
    """What one kernel makes of the data.

    Attributes:
        surrogate: What is known, what was observed being taken for the truth.
        incumbent: What is to be improved upon.
        log_weight: ``(b) x 1``, the logarithm of the kernel's weight among all, in each trial.
    """

    surrogate: Surrogate
    incumbent: Incumbent
    log_weight: Tensor


class Optimizer(ExactModelStrategy):
    r"""Find the best trade-offs between several objectives from few, noisy evaluations: no kernel, no radius, no prior.

    It begins with a design of :math:`2 (d + 1)` points that fill the space, counting those you tell it. Then it learns
    several kernels, weighs them by how well they suit the tasks (:attr:`kernel_scores`), and asks for the point that
    promises the largest gain in hypervolume, on average over these kernels (:class:`LogAverageImprovement`). There is
    no regret bound: if you know the kernel and a bound on the objective's norm, and need one, use :class:`MTKB`.

    The weight of a kernel is in proportion to the exponential of its score (Akaike's weights), and kernels below 2 %
    are left out: while few points leave open which kernel is right, a wrong one cannot lead the search astray alone.
    Each trial has weights of its own. :attr:`model` is that of the one kernel that leads.

    Args:
        num_tasks: The number of tasks n that are evaluated together.
        bounds: ``2 x d``, a box to search, or :class:`Inputs` that describe it; or
        choices: ``N x d``, the points that may be chosen.
        signs: 1, -1 or 0 for each task: to be maximized, to be minimized, or no objective (but perhaps constrained).
            By default all tasks are maximized. Or names with words, such as
            ``{"yield": "maximize", "cost": "minimize", "purity": "at least 0.9", "color": "watch"}``.
        constraints: The pair of A, ``m x n``, and c, ``m``: the values of all n tasks should satisfy :math:`A y \le c`.
        ref_point: ``k``, the value of each objective that has to be exceeded to count, in the units of the values told
            and with their signs. By default it lies a tenth of the front's range below the worst values of the front,
            to which the points found belong and those where the best of each objective is expected.
        repeat: Whether a choice may be asked for again.
        seed: All randomness follows from it. A list of b seeds gives b independent trials side by side: points are
            then ``b x q x d`` and values ``b x q x n``.

    Example:
        >>> import torch
        >>> from mtbo_torch import Optimizer
        >>> optimizer = Optimizer(num_tasks=2, bounds=torch.tensor([[0.0], [1.0]]))
        >>> for _ in range(6):
        ...     x = optimizer.ask()
        ...     optimizer.tell(x, torch.cat([(3 * x).sin(), (3 * x).cos()], dim=-1))
        >>> x, y = optimizer.pareto()
    """

    _can_miss_values = True
    _chooses_kernel = True

    def __init__(
        self,
        num_tasks: int,
        *,
        bounds: Tensor | Inputs | None = None,
        choices: ArrayLike | None = None,
        signs: Sequence[int] | Tensor | Mapping[str, str] | None = None,
        constraints: tuple[Tensor, Tensor] | None = None,
        ref_point: Tensor | None = None,
        repeat: bool = True,
        seed: int | Sequence[int] = 0,
    ) -> None:
        require_count("num_tasks", num_tasks, "Pass the number of tasks.")
        space = make_space(type(self).__name__, bounds, choices, repeat)
        goal = Goal(num_tasks, space.points, ChebyshevScalarization, None, ref_point, signs, constraints)
        super().__init__(space, goal, seed, num_tasks, eta=None, refit_every=1)
        self._scrambles = [int(torch.randint(2**31, (1,), generator=source)) for source in self._generators]

    @property
    def design_size(self) -> int:
        """The number of first points that fill the space, :math:`2 (d + 1)`."""
        return 2 * (self.space.num_inputs + 1)

    def _must_refit(self, now: int, count: int, renewed_at: int) -> bool:
        return now >= self.design_size and now - renewed_at >= max(1, NEW_SHARE * now)

    def _describe_guarantee(self) -> str:
        missing = self.design_size - self.num_observations
        return (
            f"{missing} more points of its first design"
            if missing > 0
            else "the largest expected gain, without a guarantee"
        )

    def _propose(self, weights: Tensor, fixed: Mapping[int, float]) -> Tensor:
        q, count = weights.shape[-2], self.num_observations + len(self._pending)
        of_design = min(q, max(0, self.design_size - count))
        # Without values there is nothing to improve upon, whatever is pending.
        of_design = of_design if self.num_observations else q
        used = torch.cat([self._observed_X.rows, self._pending_points()], dim=-2)
        self.space.require_room(used, q, fixed)
        if of_design:
            used = torch.cat([used, self._fill(used, of_design, fixed)], dim=-2)
        if of_design < q:
            used = self._improve(used, q - of_design, fixed)
        return used[..., -q:, :]

    def _fill(self, used: Tensor, count: int, fixed: Mapping[int, float]) -> Tensor:
        """Return the next points of the design, ``(b) x count x d``."""
        start = used.shape[-2]
        draws = [draw_sobol(self.space.num_inputs, count, seed, start) for seed in self._scrambles]
        return self.space.find_nearest(torch.stack(draws).reshape(*self.batch_shape, count, -1), used, fixed)

    def _improve(self, used: Tensor, count: int, fixed: Mapping[int, float]) -> Tensor:
        """Return ``(b) x t x d`` points told, pending and chosen, and `count` more behind them."""
        told = self.num_observations
        with torch.no_grad():
            opinions = self._form_opinions()
            if used.shape[-2] > told:
                opinions = self._expect(opinions, used[..., told:, :])
        for i in range(count):
            if i:
                with torch.no_grad():
                    opinions = self._expect(opinions, used[..., -1:, :])
            surrogates = [opinion.surrogate for opinion in opinions]
            acquire, starts = self._acquire(opinions), self._starts(self._surrogate)
            search = Search(surrogates, acquire, used, self._generators, True, starts, fixed)
            point, _ = self.space.search(search)
            used = torch.cat([used, point], dim=-2)
        return used

    def _form_opinions(self) -> list[Opinion]:
        """Return what each kernel that may be right makes of what was told."""
        like, ends = self.space.points, self._find_ends()
        return [
            Opinion(one.trust(), self._find_incumbent(one, ends), weight.log().to(like).unsqueeze(-1))
            for one, weight in self._learner.weigh(self._known, self._observations)
        ]

    def _expect(self, opinions: Sequence[Opinion], X: Tensor) -> list[Opinion]:
        """Return them once ``(b) x q x d`` points are observed, at the mean."""
        means = [self.goal.view(one.surrogate.inside(X)).mean for one in opinions]
        return [
            replace(one, surrogate=one.surrogate.imagine(X), incumbent=one.incumbent.after(mean))
            for one, mean in zip(opinions, means, strict=True)
        ]

    def _find_ends(self) -> Tensor | None:
        """Return where the best of each objective is expected, ``(b) x k x d``, if a reference point depends on it."""
        if self.goal.ref_point is not None and not self.goal.ref_point.isnan().any():
            return None
        known, used = self._surrogate, self._observed_X.rows
        ends = []
        for objective in range(self.goal.num_objectives):

            def acquire(belief: Belief, place: int = objective) -> Tensor:
                mean = self.goal.view(belief).mean
                best = mean[..., place] + SHARE_OF_ALL * mean.mean(dim=-1)
                return (best + self._log_feasibility(known, belief)).unsqueeze(-1)

            # Whoever only wants to know what is expected leaves the strategy as it is.
            sources = [torch.Generator().manual_seed(seed) for seed in self._scrambles]
            with torch.enable_grad():
                point, _ = self.space.search(Search([known], acquire, used, sources, self.goal.constraints is not None))
            ends.append(point)
        return torch.cat(ends, dim=-2)

    def _find_incumbent(self, surrogate: Surrogate, end_points: Tensor | None) -> Incumbent:
        units, goal = surrogate.units, self.goal
        belief = surrogate.inside(self._observed_X.rows)
        feasible = None if goal.constraints is None else goal.constraints.hold(units.restore(belief).mean)
        ref_point = None if goal.ref_point is None else goal.scale_ref_point(units)
        k, aim = goal.num_objectives, goal.view(belief)
        samples = Samples.draw(k, count=count_samples(k), seed=self.num_observations)
        ends = None if end_points is None else goal.view(surrogate.inside(end_points)).mean
        return Incumbent.among(aim.mean, aim.variance(), samples, ref_point, feasible, ends)

    def _expect_gain(self, X: Tensor) -> float | None:
        if self.num_observations < self.design_size:
            return None
        gains = []
        for one in self._form_opinions():
            best, power = one.incumbent.best, one.incumbent.samples.power
            so_far = torch.logsumexp(power * best.log(), dim=-1) - math.log(len(best))
            aim = self.goal.view(one.surrogate.inside(X))
            gain = log_improvement(aim.mean, aim.covariance, one.incumbent) - so_far
            gains.append(float((gain + one.log_weight).exp()))
        return sum(gains)

    def _acquire(self, opinions: Sequence[Opinion]) -> Callable[..., Tensor]:
        """Return the log of the improvement, averaged over the kernels."""

        def acquire(*beliefs: Belief) -> Tensor:
            values = [self._assess(*both) for both in zip(opinions, beliefs, strict=True)]
            return torch.logsumexp(torch.stack(values), dim=0).unsqueeze(-1)

        return acquire

    def _assess(self, opinion: Opinion, belief: Belief) -> Tensor:
        """Return the weighed log of the improvement that one kernel expects, ``... x q``."""
        aim = self.goal.view(belief)
        value = log_improvement(aim.mean, aim.covariance, opinion.incumbent) + opinion.log_weight
        return value + self._log_feasibility(opinion.surrogate, belief)

    def _log_feasibility(self, surrogate: Surrogate, belief: Belief) -> Tensor | float:
        """Return the log of the probability that the constraints hold, ``... x q``."""
        if self.goal.constraints is None:
            return 0.0
        outside = surrogate.units.restore(belief.real)
        probability = self.goal.constraints.probability(outside.mean, outside.covariance)
        return probability.clamp_min(torch.finfo(probability.dtype).tiny).log()

    def _starts(self, surrogate: Surrogate) -> Tensor | None:
        """Return points around the present front, ``(b) x S x d`` in the unit cube, each moved in a few inputs."""
        X, d = self._observed_X.rows, self.space.num_inputs
        low, width = self.space.hull[0], self.space.span
        mean = self.goal.view(surrogate.inside(X)).mean.detach()
        front = is_non_dominated(mean, deduplicate=False).to(mean).reshape(-1, X.shape[-2])
        starts = []
        for source, weights, x in zip(self._generators, front, X.reshape(-1, *X.shape[-2:]), strict=True):
            places = torch.multinomial(weights.cpu(), STARTS_NEAR, replacement=True, generator=source)
            steps = torch.randn(STARTS_NEAR, d, generator=source, dtype=torch.double) * DISTANCE_NEAR
            moves = torch.rand(STARTS_NEAR, d, generator=source) < max(0.5, 1 / d)
            starts.append((x[places.to(x.device)] - low) / width + (steps * moves).to(x))
        return torch.stack(starts).clamp(0, 1).reshape(*self.batch_shape, STARTS_NEAR, d)

    def _memory(self) -> dict[str, Any]:
        return super()._memory() | {"scrambles": list(self._scrambles)}

    def _recall(self, told: Observations, portions: list[int], memory: dict[str, Any]) -> None:
        scrambles = [int(seed) for seed in memory["scrambles"]]
        if len(scrambles) != len(self._scrambles):
            raise ValueError(f"{len(scrambles)} scrambles")
        super()._recall(told, portions, memory)
        self._scrambles = scrambles
