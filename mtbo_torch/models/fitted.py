"""What a model knows of its regression."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from gpytorch.means import Mean, MultitaskMean, ZeroMean
from torch import Tensor

from mtbo_torch import regression as reg


@dataclass(frozen=True)
class OutcomeUnits:
    """The user's units: ``y = offset + scale * y'`` for the values y' behind an affine outcome transform.

    Attributes:
        offset: ``(b) x 1 x n``.
        scale: ``(b) x 1 x n``.
    """

    offset: Tensor
    scale: Tensor

    @classmethod
    def of(cls, transform: OutcomeTransform, like: Tensor) -> OutcomeUnits:
        """Of an affine transform; ``like`` is ``(b) x 1 x n``."""
        zero, one = torch.zeros_like(like), torch.ones_like(like)
        # The variance knows the scale to all digits; a difference of values only knows its sign.
        offset, variance = transform.untransform(zero, Yvar=one)
        sign = (transform.untransform(one)[0] - offset).sign()
        return cls(offset, sign * variance.sqrt())


@dataclass(frozen=True)
class Problem:
    """What a regression is fitted to.

    Attributes:
        gamma: The kernel.
        noise: ``(b) x 1`` or ``(b) x n``.
        X: ``(b) x t x d``; with noise of their own, observations have their standard deviations as n more columns.
        Y: ``(b) x t x n``, with a prior mean of zero.
        deviations: ``(b) x t x n``, by which Y was divided; None if it was not.
    """

    gamma: reg.MatrixKernel
    noise: Tensor
    X: Tensor
    Y: Tensor
    deviations: Tensor | None


@dataclass(frozen=True)
class Fitted:
    """A regression, the prior mean that was subtracted from its data, and the hyper-parameters it belongs to.

    Attributes:
        regression: In the user's units.
        mean_module: The prior mean, behind the outcome transform.
        units: The user's units; None without an affine outcome transform.
        per_point: Whether every observation has a noise of its own.
        width: The number of a point's columns that are inputs.
        hyperparameters: Copies of all that a fit depends on beside the data.
    """

    regression: reg.Regression
    mean_module: Mean
    units: OutcomeUnits | None
    per_point: bool
    width: int
    hyperparameters: tuple[Tensor, ...]

    def is_for(self, hyperparameters: list[Tensor]) -> bool:
        """Whether these are the values of the hyper-parameters it was fitted with."""
        if [value.shape for value in hyperparameters] != [value.shape for value in self.hyperparameters]:
            return False
        pairs = list(zip(hyperparameters, self.hyperparameters, strict=True))
        if any(value.device.type == "cpu" for value in hyperparameters):
            return all(torch.equal(a, b) or bool(_equal(a, b)) for a, b in pairs)
        # Elsewhere all at once, to wait for the device only once.
        return not pairs or bool(torch.stack([_equal(a, b) for a, b in pairs]).all())

    @property
    def has_prior_mean(self) -> bool:
        """Whether anything is to be added to the regression's mean."""
        return self.units is not None or not isinstance(self.mean_module, ZeroMean)

    def prior_mean(self, points: Tensor) -> Tensor:
        """``... x q x n``, at points as the regression takes them."""
        mean = evaluated_mean(self.mean_module, points[..., : self.width], self.regression.num_tasks)
        return mean if self.units is None else self.units.offset + self.units.scale * mean


def evaluated_mean(module: Mean, X: Tensor, num_tasks: int) -> Tensor:
    """``... x q x n``, a prior mean for one output or for all."""
    mean = module(X)
    if not isinstance(module, MultitaskMean):
        mean = mean.unsqueeze(-1)
    return mean.expand(*mean.shape[:-1], num_tasks)


def learned_outcomes(
    transform: OutcomeTransform, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """What an outcome transform that is in training makes of ``(b) x t x n`` values, NaN for those not seen.

    A task is standardised by its values that were seen; one of which none was keeps mean zero and deviation one, where
    BoTorch's would have no mean.
    """
    transformed = transform(Y, Yvar=Yvar, X=X)
    for part in transform.modules():
        if isinstance(part, Standardize) and part.means.isnan().any():
            part.means = part.means.nan_to_num(nan=0.0)
    return transformed


def _equal(a: Tensor, b: Tensor) -> Tensor:
    """Whether two tensors of one shape are the same, NaN being equal to NaN."""
    return ((a == b) | (a.isnan() & b.isnan())).all()
