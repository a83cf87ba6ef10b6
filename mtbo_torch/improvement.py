"""How much a point would improve what was found, averaged over trade-offs and over what its values may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, Self

import torch
from botorch.models.model import Model
from botorch.posteriors import Posterior
from botorch.utils.multi_objective.pareto import is_non_dominated
from botorch.utils.transforms import average_over_ensemble_models, t_batch_mode_transform
from scipy.special import betaincinv
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.quasirandom import SobolEngine
from torch.special import ndtri

from mtbo_torch.acquisition import BeliefAcquisition, as_constraints, put_on_device
from mtbo_torch.checks import describe, require_count, require_seed, require_signs, require_tensor
from mtbo_torch.feasibility import OutcomeConstraints
from mtbo_torch.linalg import factor_covariance, root_of
from mtbo_torch.models import MultiTaskGPModel
from mtbo_torch.regression import Belief, PointBelief
from mtbo_torch.scalarizations import ChebyshevScalarization, HypervolumeScalarization, Scalarization, require_weights
from mtbo_torch.surrogate import Surrogate

NUM_SAMPLES = 2048
# A search with time to spare takes four times as many for each objective beyond two, up to so many numbers. On a
# crowded front of four objectives, the average over 2,048 varies by a fifth, and that over 32,768 by a thirtieth.
MOST_NUMBERS = 2**17
# Half of the samples are drawn from a normal distribution that is so many times as wide: a search without these gets
# stuck where the model is wrong.
WIDE = 2.0
# By how much minima and positive parts are rounded off; the former as a share of what the scale itself is worth.
MIN_WIDTH, GAIN_WIDTH = 1e-2, 1e-6
# The smallest best value, below which only rounding tells it from zero.
LEAST_BEST = 1e-8
# An inferred reference point lies below the worst of the front by this share of the front's range. Where nobody knows
# the ends of the front, it lies at the lower whisker of a box plot if that is lower: the worst value that is not below
# the first quartile by more than so many times the distance of the quartiles.
MARGIN, WHISKER = 0.1, 1.5
# Points are processed in chunks of about this many numbers, which fit into a cache.
CHUNK = 2**18


@dataclass(frozen=True, eq=False)
class Samples:
    r"""Pairs of a trade-off :math:`\lambda` and of luck z to average over: a point's values are :math:`\mu + R z`.

    Values y above a reference point count as the smallest multiple :math:`c_\lambda(y) = \min_i a_{\lambda i} y_i`, and
    exceeding b by g is worth :math:`(b + g)^p - b^p`. For the hypervolume a is :math:`1 / \lambda` with p the number of
    objectives; for the Chebyshev scalarization it is :math:`\lambda` with p = 1.

    The minimum is smooth, :math:`-\tau \log \sum_i \exp(-a_i y_i / \tau)` with :math:`\tau = 10^{-2} \min_i a_i`: at
    most :math:`\tau \log k` below the smallest. That is a hundredth, times log k, of what a point is worth that exceeds
    the reference point by the scale in every objective.

    Attributes:
        slopes: ``S x k``, a, for each of S samples and k objectives.
        luck: ``S x k``, z.
        log_mass: ``S``, the logarithms of the samples' weights in the average.
        is_volume: Whether it is the hypervolume.

    Example:
        >>> from mtbo_torch.improvement import Samples
        >>> samples = Samples.draw(num_objectives=3)
        >>> samples.luck.shape, samples.power
        (torch.Size([2048, 3]), 3)
    """

    slopes: Tensor
    luck: Tensor
    log_mass: Tensor
    is_volume: bool

    @classmethod
    def draw(
        cls,
        num_objectives: int,
        scalarization: type[Scalarization] = HypervolumeScalarization,
        weights: Tensor | None = None,
        count: int = NUM_SAMPLES,
        seed: int = 0,
    ) -> Self:
        r"""Draw samples from a scrambled Sobol sequence, trade-offs and luck at once.

        Half of the z are drawn from :math:`N(0, I)`, the others from :math:`N(0, 4 I)`, and all are weighed by the
        density of the former over that of both.

        Args:
            num_objectives: The number of objectives k.
            scalarization: :class:`HypervolumeScalarization` or :class:`ChebyshevScalarization`, whose default
                distribution the trade-offs have.
            weights: ``W x k``, the trade-offs, if they are not to be drawn; few are repeated for as many samples.
            count: The number of samples, or the least if weights are given.
            seed: Determines the scrambling.
        """
        require_count("num_objectives", num_objectives, "Pass the number of objectives.")
        require_count("count", count, "Pass for instance 2048.")
        require_seed("seed", seed)
        k, eps = num_objectives, torch.finfo(torch.float).eps
        if weights is not None:
            # One after the other: every 64th point of a Sobol sequence, say, is not spread evenly.
            weights = weights.repeat_interleave(-(-count // len(weights)), dim=0)
            count = len(weights)
        is_volume = issubclass(scalarization, HypervolumeScalarization)
        # The trade-offs decide most, and the first numbers of a Sobol sequence are the most even. A point on a sphere
        # takes one less than it has coordinates: with one more, the average would vary up to three times as much.
        sizes = [k - 1 if is_volume else k, k, 1]
        uniform = SobolEngine(sum(sizes), scramble=True, seed=seed).draw(count, dtype=torch.double)
        of_weights, of_luck, is_wide = uniform.clamp(eps, 1 - eps).split(sizes, dim=-1)
        luck = ndtri(of_luck) * torch.where(is_wide < 0.5, 1.0, WIDE)
        # The logarithm of 2 p / (p + p_wide).
        apart = luck.square().sum(dim=-1) * (1 - WIDE**-2) / 2 - k * math.log(WIDE)
        log_mass = math.log(2) - torch.nn.functional.softplus(apart)
        if weights is None:
            weights = _place_on_sphere(of_weights) if is_volume else _normalize(of_weights.reciprocal())
        # So much larger than zero that its reciprocal has a square, and a gradient.
        slopes = weights.clamp_min(torch.finfo(weights.dtype).eps ** 0.5).reciprocal() if is_volume else weights
        return cls(slopes, luck, log_mass, is_volume)

    @property
    def power(self) -> int:
        """The power p."""
        return self.slopes.shape[-1] if self.is_volume else 1

    @property
    def widths(self) -> Tensor:
        r"""``S``, :math:`\tau`."""
        return MIN_WIDTH * self.slopes.amin(dim=-1)

    def reach(self, values: Tensor) -> Tensor:
        r"""Return :math:`c_\lambda`, ``... x q x S``, of ``... x q x k`` values above the reference point."""
        parts = values.unsqueeze(-2) * (self.slopes / self.widths.unsqueeze(-1))
        return -self.widths * torch.logsumexp(-parts, dim=-1)

    def _find_range(self, values: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest reach of all values, and the largest of those that count, ``(b) x S``."""
        reached = self.reach(values)
        return reached.amin(dim=-2), reached.masked_fill(~counts.unsqueeze(-1), -torch.inf).amax(dim=-2)

    def to(self, like: Tensor) -> Self:
        """Return them in the dtype and on the device of another tensor, ``...``."""
        return _move(self, like)


@dataclass(frozen=True, eq=False)
class Incumbent:
    r"""The best values found so far, :math:`b_\lambda = \max_s c_\lambda(y_s)`, along the trade-offs of all samples.

    Values y of the k objectives, all maximized, count as :math:`(y - r) / w` above a reference point r.

    Attributes:
        samples: What is averaged over.
        ref_point: ``(b) x 1 x k``, r.
        scale: ``(b) x 1 x k``, w.
        best: ``(b) x S``.

    Example:
        >>> import torch
        >>> from mtbo_torch.improvement import Incumbent, Samples
        >>> found = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.double)
        >>> samples = Samples.draw(num_objectives=2)
        >>> origin = torch.zeros(2, dtype=torch.double)
        >>> Incumbent.among(found, torch.zeros_like(found), samples, ref_point=origin).best.shape
        torch.Size([2048])
    """

    samples: Samples
    ref_point: Tensor
    scale: Tensor
    best: Tensor

    @classmethod
    def among(
        cls,
        mean: Tensor,
        variance: Tensor,
        samples: Samples,
        ref_point: Tensor | None = None,
        feasible: Tensor | None = None,
        ends: Tensor | None = None,
    ) -> Incumbent:
        """Return the best of what is known of ``(b) x t`` observed points.

        The values are scaled by what the best exceeds the reference point, or by their standard deviation if larger.

        Args:
            mean: ``(b) x t x k``, of the objectives, all maximized. Before the first observation, one point of the
                prior, with ``feasible`` False.
            variance: ``(b) x t x k``.
            samples: What to average over.
            ref_point: ``k`` or ``(b) x k``; where it is NaN or None, it follows from the values found.
            feasible: ``(b) x t``, which points count; all by default.
            ends: ``(b) x e x k``, the values expected at the ends of the front, from which a reference point that is
                not given follows; by default they are not known.
        """
        feasible = torch.ones_like(mean[..., 0], dtype=torch.bool) if feasible is None else feasible
        spread = root_of(mean.var(dim=-2, correction=0, keepdim=True) + variance.mean(dim=-2, keepdim=True))
        inferred = _infer_ref_point(mean, feasible, spread, ends)
        origin = inferred if ref_point is None else ref_point.to(mean).unsqueeze(-2)
        origin = torch.where(origin.isnan(), inferred, origin)
        scale = torch.maximum(mean.amax(dim=-2, keepdim=True) - origin, spread)
        samples = samples.to(mean)
        size = max(1, CHUNK // (samples.slopes.numel() * mean.shape[:-2].numel()))
        pieces = zip(((mean - origin) / scale).split(size, dim=-2), feasible.split(size, dim=-1), strict=True)
        lowest, best = reduce(_join_ranges, (samples._find_range(*piece) for piece in pieces))
        # Without any that counts, there is the worst to improve upon; of a volume, nothing.
        least = torch.full_like(lowest, LEAST_BEST) if samples.is_volume else lowest
        best = torch.maximum(best, least)
        return cls(samples, origin, scale, best)

    def after(self, mean: Tensor) -> Incumbent:
        """Return the incumbent once ``... x q x k`` more values are found."""
        reached = self.samples.reach((mean - self.ref_point) / self.scale).amax(dim=-2)
        return replace(self, best=self.best + _positive_part(reached - self.best))

    def to(self, like: Tensor) -> Incumbent:
        """Return it in the dtype and on the device of another tensor, ``...``."""
        return _move(self, like)


def count_samples(num_objectives: int) -> int:
    """Return how many samples tell small gains apart: 2,048 for one or two objectives, 32,768 for four.

    With more objectives there are fewer again, so that a point costs no more.

    Args:
        num_objectives: The number of objectives k.

    Example:
        >>> from mtbo_torch.improvement import count_samples
        >>> [count_samples(k) for k in (1, 2, 3, 4, 5, 8, 9, 20)]
        [2048, 2048, 8192, 32768, 16384, 16384, 8192, 4096]
    """
    wanted = NUM_SAMPLES * 4 ** max(0, num_objectives - 2)
    affordable = 2 ** math.floor(math.log2(MOST_NUMBERS / num_objectives))
    return max(NUM_SAMPLES, min(wanted, affordable))


def log_improvement(mean: Tensor, covariance: Tensor, incumbent: Incumbent) -> Tensor:
    r"""Return the log of the average improvement, ``... x q``, of what is known at ``... x q`` points.

    .. math:: \log \frac1S \sum_s m_s \left[(b_s + g_s)^p - b_s^p\right], \quad
        g_s = \left[c_s(\mu + R z_s) - b_s\right]_+, \quad R R^T = \Gamma

    with the weights m of the samples. The positive part of x is smooth and never zero,
    :math:`(x + \sqrt{x^2 + 4 \tau^2}) / 2` with :math:`\tau = 10^{-6}`: at most :math:`\tau` too large.

    Args:
        mean: ``... x q x k``, :math:`\mu`, of the objectives, all maximized.
        covariance: ``... x q x k x k``, :math:`\Gamma`.
        incumbent: What is to be improved upon.

    Example:
        >>> import torch
        >>> from mtbo_torch.improvement import Incumbent, Samples, log_improvement
        >>> found = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.double)
        >>> samples, origin = Samples.draw(num_objectives=2), torch.zeros(2, dtype=torch.double)
        >>> incumbent = Incumbent.among(found, torch.zeros_like(found), samples, ref_point=origin)
        >>> candidates = torch.tensor([[1.5, 1.5], [2.0, 1.0]], dtype=torch.double)
        >>> covariance = 1e-4 * torch.eye(2, dtype=torch.double).expand(2, 2, 2)
        >>> better, same = log_improvement(candidates, covariance, incumbent)
        >>> bool(better > same)
        True
    """
    scaled = (mean - incumbent.ref_point) / incumbent.scale
    root = factor_covariance(covariance) / incumbent.scale.unsqueeze(-1)
    value: Tensor = _LogAverage.apply(scaled, root, incumbent.best, incumbent.samples)
    return value


def _join_ranges(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return torch.minimum(one[0], other[0]), torch.maximum(one[1], other[1])


def _move(value: Any, like: Tensor) -> Any:
    """Return a dataclass of tensors in the dtype and on the device of another."""
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    return replace(value, **{name: part.to(like) for name, part in parts.items() if hasattr(part, "to")})


def _place_on_sphere(uniform: Tensor) -> Tensor:
    r"""Return ``S x k`` points, spread evenly over the part of the unit sphere where all coordinates are positive.

    The square of coordinate i is a share of what those before it leave of one. These shares are independent, with the
    distributions :math:`Beta(1/2, (k - i)/2)`, because the square of a normal number has a gamma distribution.

    Args:
        uniform: ``S x (k - 1)``, from 0 to 1.
    """
    others = torch.arange(uniform.shape[-1], 0, -1, dtype=uniform.dtype) / 2
    shares = torch.as_tensor(betaincinv(0.5, others.numpy(), uniform.numpy()))
    one = uniform.new_ones(len(uniform), 1)
    left = torch.cat([one, (1 - shares).cumprod(dim=-1)], dim=-1)
    return (left * torch.cat([shares, one], dim=-1)).sqrt()


def _normalize(weights: Tensor) -> Tensor:
    return weights / weights.sum(dim=-1, keepdim=True)


def _root(x: Tensor) -> Tensor:
    return (x.square() + 4 * GAIN_WIDTH**2).sqrt()


def _positive_part(x: Tensor) -> Tensor:
    """Return ``(x + root) / 2`` without any cancellation."""
    return x.clamp_min(0) + 2 * GAIN_WIDTH**2 / (x.abs() + _root(x))


def _infer_ref_point(mean: Tensor, feasible: Tensor, spread: Tensor, ends: Tensor | None) -> Tensor:
    """Return ``(b) x 1 x k``: a tenth of the front's range below its worst values.

    While few points are known the front is narrow, and what lies beyond its ends would not count. So the ends that are
    expected belong to it; where they are not known, the point is not above the lower whisker.
    """
    counts = (feasible | ~feasible.any(dim=-1, keepdim=True)).unsqueeze(-1)
    # Points that do not count are dominated by all that do.
    lowest = mean.amin(dim=-2, keepdim=True) - spread
    on_front = is_non_dominated(torch.where(counts, mean, lowest), deduplicate=False).unsqueeze(-1) & counts
    nadir = mean.masked_fill(~on_front, torch.inf).amin(dim=-2, keepdim=True)
    ideal = mean.masked_fill(~on_front, -torch.inf).amax(dim=-2, keepdim=True)
    if ends is not None:
        nadir = torch.minimum(nadir, ends.amin(dim=-2, keepdim=True))
        ideal = torch.maximum(ideal, ends.amax(dim=-2, keepdim=True))
    below_front = nadir - MARGIN * torch.where(ideal > nadir, ideal - nadir, spread)
    if ends is not None:
        return below_front
    counted = mean.masked_fill(~counts, torch.nan)
    first, third = (counted.nanquantile(share, dim=-2, keepdim=True) for share in (0.25, 0.75))
    worst = mean.masked_fill(~counts, torch.inf).amin(dim=-2, keepdim=True)
    return torch.minimum(below_front, torch.maximum(worst, first - WHISKER * (third - first)))


class _LogAverage(torch.autograd.Function):
    """The log of the average improvement with its gradient, chunk by chunk, so that memory does not grow with points
    times samples.

    Args:
        mean: ``... x q x k``, scaled.
        root: ``... x q x k x k``, scaled.
        best: ``... x S``, for the q points of each.
        samples: What to average over.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, root: Tensor, best: Tensor, samples: Samples) -> Tensor:
        S, k = samples.luck.shape
        size = max(1, CHUNK // (k * S))
        rows = best.reshape(-1, S)
        own = torch.arange(len(rows), device=best.device).reshape(best.shape[:-1])
        own = own.unsqueeze(-1).expand(mean.shape[:-1]).reshape(-1)  # the row of each point
        flat = (mean.reshape(-1, k), root.reshape(-1, k, k), own)
        pieces = zip(*[tensor.split(size) for tensor in flat], strict=True)
        parts = [_average(m, r, rows[i], samples, ctx.needs_input_grad[:3]) for m, r, i in pieces]
        value, *gradients = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(own, *gradients)
        ctx.shapes = mean.shape, root.shape, best.shape
        return value.reshape(mean.shape[:-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        own, of_mean, of_root, of_best = ctx.saved_tensors
        of_mean_shape, of_root_shape, of_best_shape = ctx.shapes
        each = gradient.reshape(-1, 1)
        to_best = None
        if ctx.needs_input_grad[2]:
            rows = of_best.new_zeros(of_best_shape[:-1].numel(), of_best_shape[-1])
            to_best = rows.index_add(0, own, each * of_best).reshape(of_best_shape)
        to_root = (each.unsqueeze(-1) * of_root).reshape(of_root_shape)
        return (each * of_mean).reshape(of_mean_shape), to_root, to_best, None


def _average(
    mean: Tensor, root: Tensor, best: Tensor, samples: Samples, wanted: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the values ``N`` and their gradients by mean, ``N x k``, root, ``N x k x k``, and best, ``N x S``.

    Gradients that nobody wants are empty; those by mean and root come together.
    """
    (N, k), power, slopes, width = mean.shape, samples.power, samples.slopes.mT, samples.widths
    # Objectives first, k x N x S: sums over them run along all others.
    moved = (root.transpose(0, 1).reshape(k * N, k) @ samples.luck.mT).view(k, N, -1)
    exponents = (moved + mean.mT.unsqueeze(-1)).mul_((slopes / -width).unsqueeze(1))
    largest = exponents.amax(dim=0)
    # What is cut off is far below rounding, and numbers close to underflow are slow.
    shares = exponents.sub_(largest).clamp_min_(-50).exp_()
    total = shares.sum(dim=0)
    excess = (largest + total.log()).mul_(-width).sub_(best)
    gain = _positive_part(excess)
    if power == 1:
        log_gain, per_gain = gain.log(), gain.reciprocal()
    else:
        growth = power * torch.log1p(gain / best)
        share = -torch.expm1(-growth)
        log_gain = power * best.log() + growth + share.log()
        per_gain = power / ((best + gain) * share)
    terms = log_gain + samples.log_mass
    value = torch.logsumexp(terms, dim=-1)
    average = value - math.log(len(width))
    if not any(wanted):
        return average, mean[:0], root[:0], best[:0]
    weight = (terms - value.unsqueeze(-1)).exp_()
    of_reach = weight * per_gain * gain / _root(excess)
    by_value = shares.mul_(of_reach / total).mul_(slopes.unsqueeze(1)).view(k * N, -1)
    of_mean, of_root = by_value.sum(dim=-1).view(k, N).mT, (by_value @ samples.luck).view(k, N, k).transpose(0, 1)
    if not wanted[2]:
        return average, of_mean, of_root, best[:0]
    of_best = -of_reach
    if power > 1:
        of_best = of_best + weight * power * (1 / (best + gain) - (1 - share) / best) / share
    return average, of_mean, of_root, of_best


class LogAverageImprovement(BeliefAcquisition):
    r"""The log of how much a point improves what was found, averaged over all trade-offs and what its values may be.

    .. math:: \log E_y E_\lambda \left[ S_\lambda(y) - \max_s S_\lambda(\mu_t(x_s)) \right]_+, \quad
        y \sim N(\mu_t(x), \Gamma_t(x, x))

    With the default :class:`HypervolumeScalarization` it is the log of the expected gain in hypervolume, up to a
    constant; with :class:`ChebyshevScalarization`, of the expected fall of the Bayes regret. Both averages are one,
    over 2,048 pairs of a trade-off and a sample, so that any number of objectives will do. See :func:`log_improvement`
    for how it is smoothed: it has a gradient everywhere, also where nothing exceeds the reference point.

    With constraints :math:`A y \le c` that hold with probability p(x), :math:`\log p(x)` is added, and only points
    whose mean satisfies them count as found.

    The doubt that a point shares with those observed is no chance to improve upon them: with our models, the covariance
    is that given the truth at the points observed, so that these are not asked for again and again. Of other models,
    and for the probability of the constraints, it is the posterior's.

    Pending points shrink the variance, leave the mean, and count as found at the mean. The improvement by ``q`` points
    is the sum of those by each when it takes those before it as pending; ``sequential=True`` is the cheap way to
    optimize it.

    Args:
        model: A fitted multi-output model: ours, or any with a posterior.
        ref_point: ``k``, the value of each objective that has to be exceeded to count, in the units of the tasks, signs
            not turned. Where it is NaN or None, the lower of two: a tenth of the front's range below the front's worst
            value, and the worst value found that is no outlier.
        X_baseline: ``t x d``, the points observed; also ``(b) x t x d``. It can be left out for our models.
        X_pending: ``p x d`` points that are being evaluated; also ``(b) x p x d`` for a model with a batch shape.
        signs: 1 (maximize), -1 (minimize) or 0 (not an objective) for each task; all are maximized by default.
        constraints: The pair of A, ``m x n``, and c, ``m`` or ``m x 1``, as BoTorch's outcome constraints.
        scalarization: :class:`HypervolumeScalarization` or :class:`ChebyshevScalarization`, of values above the
            reference point in units of the range found.
        weights: ``W x k``, the trade-offs to average over; by default 2,048 that are spread evenly.
        seed: Determines the samples; by default the number of points observed, so that every round has others.

    Example:
        >>> import torch
        >>> from botorch.optim import optimize_acqf
        >>> from mtbo_torch import ExactMultiTaskGP, LogAverageImprovement
        >>> X = torch.linspace(0, 1, 6, dtype=torch.double).unsqueeze(-1)
        >>> model = ExactMultiTaskGP(X, torch.cat([(3 * X).sin(), (3 * X).cos()], -1))
        >>> acqf = LogAverageImprovement(model)
        >>> bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
        >>> next_x, value = optimize_acqf(acqf, bounds, q=1, num_restarts=2, raw_samples=16)
        >>> next_x.shape
        torch.Size([1, 1])
    """

    X_baseline: Tensor
    objectives: Tensor
    ref_point: Tensor | None
    _incumbent: Incumbent
    _log = True  # BoTorch averages over an ensemble of models accordingly

    def __init__(
        self,
        model: Model,
        ref_point: Tensor | None = None,
        X_baseline: Tensor | None = None,
        X_pending: Tensor | None = None,
        signs: Sequence[int] | Tensor | None = None,
        constraints: tuple[Tensor, Tensor] | OutcomeConstraints | None = None,
        scalarization: type[Scalarization] = HypervolumeScalarization,
        weights: Tensor | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(model)
        n = model.num_outputs
        turns = torch.tensor([1] * n if signs is None else require_signs(signs, n))
        matrix = torch.diag(turns)[turns != 0]
        _require_aim(scalarization, weights, ref_point, len(matrix))
        X = _find_baseline(model, X_baseline)
        self._samples = Samples.draw(
            len(matrix), scalarization, weights, seed=X.shape[-2] if seed is None else seed
        ).to(X)
        own = None if constraints is None else as_constraints(constraints, n)
        self.constraints = None if own is None else put_on_device(own, X.device)
        self.register_buffer("X_baseline", X, persistent=False)
        self.register_buffer("objectives", matrix.to(X), persistent=False)
        turned = None if ref_point is None else ref_point.detach().to(X) * self.objectives.sum(dim=-1)
        self.register_buffer("ref_point", turned, persistent=False)
        if X.shape[-2] == 0 and (turned is None or turned.isnan().any()):
            raise ValueError(
                "ref_point should be given before the first observation, from which it could be inferred, got "
                f"{'None' if ref_point is None else ref_point.tolist()}. Pass one number per objective."
            )
        self.set_X_pending(X_pending)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Take ``p x d`` points that are being evaluated into account; None forgets them."""
        super().set_X_pending(X_pending)
        if not isinstance(self.model, MultiTaskGPModel):
            self._incumbent = self._find_incumbent(lambda X: _believe(self.model.posterior(X)))

    @t_batch_mode_transform()
    @average_over_ensemble_models
    def _evaluate(self, X: Tensor) -> Tensor:
        values, q = [], X.shape[-2]
        for i in range(q):
            belief = self._ask(X[..., i : i + 1, :], X[..., :i, :])
            aim = belief.mapped(self.objectives)
            if i == 0:
                incumbent = self._incumbent.to(X)  # which asking may have renewed
            value = log_improvement(aim.mean, aim.covariance, incumbent)
            if self.constraints is not None:
                probability = self.constraints.probability(belief.real.mean, belief.real.covariance)
                value = value + probability.clamp_min(torch.finfo(value.dtype).tiny).log()
            values.append(value.squeeze(-1))
            if i + 1 < q:
                incumbent = incumbent.after(aim.mean)
        return torch.logsumexp(torch.stack(values), dim=0) if len(values) > 1 else values[0]

    def _get_ready(self, model: MultiTaskGPModel, known: Surrogate) -> Surrogate:
        ready = super()._get_ready(model, known.trust())
        self._incumbent = self._find_incumbent(lambda X: model.show(known.at(model.place(X.to(model.train_targets)))))
        return ready

    @torch.no_grad()
    def _find_incumbent(self, ask: Callable[[Tensor], Belief]) -> Incumbent:
        X = self.X_baseline
        known = ask(X if X.shape[-2] else X.new_zeros(*X.shape[:-2], 1, X.shape[-1]))
        feasible = torch.full_like(known.mean[..., 0], X.shape[-2] > 0, dtype=torch.bool)
        if self.constraints is not None:
            feasible = feasible & self.constraints.hold(known.mean)
        aim = known.mapped(self.objectives)
        incumbent = Incumbent.among(aim.mean, aim.variance(), self._samples, self.ref_point, feasible)
        if self.X_pending is None:
            return incumbent
        return incumbent.after(ask(self.X_pending.to(aim.mean)).mapped(self.objectives).mean)


def _believe(posterior: Posterior) -> Belief:
    """Return what any posterior says of each task alone."""
    return PointBelief(posterior.mean, torch.diag_embed(posterior.variance))


def _find_baseline(model: Model, X_baseline: object) -> Tensor:
    if X_baseline is not None:
        X_baseline = require_tensor("X_baseline", X_baseline, "Pass one row per point.").detach()
        if X_baseline.dim() < 2:
            raise ValueError(
                f"X_baseline should be `t x d`, got shape {tuple(X_baseline.shape)}. Pass one row per point."
            )
        return X_baseline
    if not isinstance(model, MultiTaskGPModel):
        raise ValueError(
            f"X_baseline should be given for a {type(model).__name__}, got None. Pass the points that were observed."
        )
    return model.observed_X


def _require_aim(scalarization: object, weights: object, ref_point: object, num_objectives: int) -> None:
    aims = (HypervolumeScalarization, ChebyshevScalarization)
    if not (isinstance(scalarization, type) and issubclass(scalarization, aims)):
        raise ValueError(
            "scalarization should be the class HypervolumeScalarization or ChebyshevScalarization, got "
            f"{scalarization!r}. The weights are an argument of their own."
        )
    if weights is not None:
        require_weights(weights)
        assert isinstance(weights, Tensor)
        if weights.dim() != 2 or weights.shape[-1] != num_objectives:
            raise ValueError(
                f"weights should be `W x k` with k = {num_objectives} objectives, got shape {tuple(weights.shape)}. "
                "Pass one row per trade-off."
            )
    if ref_point is not None:
        ref_point = require_tensor("ref_point", ref_point, "Pass one number per objective.")
        if ref_point.shape != (num_objectives,) or ref_point.isinf().any():
            raise ValueError(
                f"ref_point should have one finite entry for each of the {num_objectives} objectives, or NaN, got "
                f"{describe(ref_point)}. Pass values in the units of the tasks, signs not turned."
            )
