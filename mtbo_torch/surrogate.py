"""What was learned from observations, in the user's units: the one object that models and strategies hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mtbo_torch.regression import Audit, Belief, Lookup, Regression, Renewal, TrackedPieces

PriorMean = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Units:
    r"""The user's units: points :math:`x = l + w \cdot x'` and values :math:`y = o + s \cdot y'` of x' and y' inside.

    By default an identity.

    Attributes:
        low: ``d``, l.
        width: ``d``, w.
        offset: ``(b) x 1 x n``, o.
        scale: ``(b) x 1 x n``, s.
    """

    low: Tensor | None = None
    width: Tensor | None = None
    offset: Tensor | None = None
    scale: Tensor | None = None

    @property
    def are_same(self) -> bool:
        """Whether they are the same inside."""
        return self.low is None and self.scale is None

    def scale_points(self, X: Tensor) -> Tensor:
        """Take ``... x d`` points inside."""
        return X if self.low is None or self.width is None else (X - self.low) / self.width

    def scale_values(self, Y: Tensor) -> Tensor:
        """Take ``... x (b) x q x n`` values inside."""
        return Y if self.offset is None or self.scale is None else (Y - self.offset) / self.scale

    def scale_variances(self, variances: Tensor) -> Tensor:
        """Take variances of ``... x (b) x q x n`` values inside."""
        return variances if self.scale is None else variances / self.scale.square()

    def restore(self, belief: Belief) -> Belief:
        """Take what is known inside outside."""
        return belief if self.scale is None else belief.mapped(self._matrix, self.offset)

    def restore_variances(self, variances: Tensor) -> Tensor:
        """Take variances of ``... x (b) x q x n`` values outside."""
        return variances if self.scale is None else variances * self.scale.square()

    @cached_property
    def _matrix(self) -> Tensor:
        assert self.scale is not None
        return torch.diag_embed(self.scale.squeeze(-2))


IDENTITY = Units()
# The share of the noise that is left when observations are taken for the truth; in single precision, at least that much
# of what standardized values vary.
TRUSTED = 1e-4


@dataclass(frozen=True, eq=False)
class Surrogate:
    r"""A regression, its prior mean, and the units it works in. Immutable: new observations give a new surrogate.

    Points come as ``... x (b) x q x d`` and values as ``... x (b) x q x n``, both in the user's units, and so are the
    answers; :meth:`inside` has them in the regression's.

    Attributes:
        regression: Of scaled values at scaled points, with a prior mean of zero.
        units: The user's units.
        prior_mean: Takes scaled points to the prior mean of scaled values; None for zero.
        tracking: What the regression knows at the points that are tracked, if any are.
        real: For a surrogate with observations that are imagined, or taken for the truth, the one before: the mean
            stays its mean.
    """

    regression: Regression
    units: Units = IDENTITY
    prior_mean: PriorMean | None = None
    tracking: TrackedPieces | None = None
    real: Surrogate | None = None

    @property
    def info_gain(self) -> Tensor:
        r"""``(b)``, the information gain :math:`\frac12 \log\det(I + \eta^{-1} G_t)`."""
        return self.regression.info_gain

    @property
    def tracked(self) -> list[Belief]:
        """The beliefs at the pieces of the points that are tracked, in the regression's units."""
        assert self.tracking is not None
        beliefs = [self._add_prior_mean(part, part.X) for part in self.tracking.parts]
        if self.real is None:
            return beliefs
        return [belief.with_mean_of(real) for belief, real in zip(beliefs, self.real.tracked, strict=True)]

    def at(self, X: Tensor) -> Belief:
        """Return what is known at ``... x (b) x q x d`` points."""
        return self.units.restore(self.inside(X))

    def inside(self, X: Tensor) -> Belief:
        """Return what is known at ``... x (b) x q x d`` points, of values in the regression's units."""
        points = self.units.scale_points(X)
        belief = self._add_prior_mean(self.regression.at(points), points)
        return belief if self.real is None else belief.with_mean_of(self.real.inside(X))

    def at_with_pending(self, X: Tensor, pending: Tensor) -> Belief:
        """Return what is known at ``... x (b) x 1 x d`` points once other ones, ``... x (b) x p x d``, are observed.

        This is for pending points that differ from one batch entry to the next; where they are the same for all, it is
        cheaper to :meth:`imagine` them.
        """
        both = torch.cat([X, pending], dim=-2)
        return self.units.restore(self.inside(both).given(self.regression.expected_noise).with_mean_of(self.inside(X)))

    def audit(self) -> Audit:
        """Return what intervals need to know of the regression."""
        return (self.regression if self.tracking is None else self.tracking).audit()

    def append(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, renew: Renewal | None = None) -> Surrogate:
        """Learn from more observations, without factorizing the kernel matrix anew.

        Args:
            X: ``(b) x q x d``.
            Y: ``(b) x q x n``, NaN for values that are missing.
            noise: ``(b) x q x n`` variances, where observations have their own.
            renew: What to do with the regression before points are tracked by it, such as drawing a dictionary.
        """
        points, values = self.units.scale_points(X), self.units.scale_values(Y)
        if self.prior_mean is not None:
            values = values - self.prior_mean(points)
        noise = None if noise is None else self.units.scale_variances(noise)
        if self.tracking is not None:
            return self._tracked_by(self.tracking.append(points, values, noise, renew))
        grown = self.regression.append(points, values, noise)
        return replace(self, regression=grown if renew is None else renew(grown))

    def imagine(self, X: Tensor) -> Surrogate:
        """Take ``(b) x q x d`` points as observed, at the mean: the variance shrinks there, the mean stays."""
        grown = self.regression.imagine(self.units.scale_points(X))
        imagined = replace(self, regression=grown, real=self if self.real is None else self.real)
        return imagined if self.tracking is None else imagined._tracked_by(self.tracking.advance(grown))

    def trust(self) -> Surrogate:
        """Take the mean at the points observed for the truth: the variance all but vanishes there, the mean stays.

        What is left is the doubt that a point does not share with those observed.
        """
        noise, is_double = self.regression.noise, self.regression.train_X.dtype == torch.double
        little = TRUSTED * noise if is_double else (TRUSTED * noise).clamp_min(TRUSTED).minimum(noise)
        regression = self.regression.with_noise(little)
        tracking = None if self.tracking is None else self.tracking.restart(regression)
        return replace(self, regression=regression, tracking=tracking, real=self if self.real is None else self.real)

    def track(self, pieces: Sequence[Tensor], memory: float = math.inf, lookup: Lookup | None = None) -> Surrogate:
        """Keep what is known at pieces of ``N x d`` points up to date while observations arrive.

        Args:
            pieces: The points.
            memory: As in :meth:`Regression.track`, for all of them.
            lookup: The places of the points in the regression's units, if audits are wanted.
        """
        inside = [self.units.scale_points(piece) for piece in pieces]
        return replace(self, tracking=TrackedPieces.start(self.regression, inside, memory, lookup))

    def expand(self, batch_shape: torch.Size) -> Surrogate:
        """Return the same surrogate under a larger batch shape."""
        return replace(self, regression=self.regression.expand(batch_shape), tracking=None)

    def prepare_for_variances(self) -> Surrogate:
        """Return a surrogate with the same answers, to rounding, that has cheap variances at very many points."""
        return replace(self, regression=self.regression.prepare_for_variances())

    def _tracked_by(self, tracking: TrackedPieces) -> Surrogate:
        return replace(self, regression=tracking.regression, tracking=tracking)

    def _add_prior_mean(self, belief: Belief, points: Tensor) -> Belief:
        return belief if self.prior_mean is None else belief.mapped(None, self.prior_mean(points))
