"""Outcome transforms of BoTorch: what they make of the data, and affine ones as units."""

from __future__ import annotations

from copy import deepcopy

import torch
from botorch.exceptions.errors import BotorchError
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from torch import Tensor

from mtbo_torch.checks import require_finite
from mtbo_torch.surrogate import Units


def find_units(transform: OutcomeTransform, like: Tensor) -> Units:
    """Return the units that an affine transform stands for; ``like`` is ``(b) x 1 x n``."""
    zero, one = torch.zeros_like(like), torch.ones_like(like)
    # The variance knows the scale to all digits; a difference of values only knows its sign.
    offset, variance = transform.untransform(zero, Yvar=one)
    sign = (transform.untransform(one)[0] - offset).sign()
    return Units(offset=offset, scale=sign * variance.sqrt())


def learn_transform(
    transform: OutcomeTransform, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Apply a transform that is in training to ``(b) x t x n`` values, NaN for those that are missing.

    A task is standardized by its values that were seen. One without any keeps mean zero and deviation one, where
    BoTorch's would have no mean.
    """
    transformed = transform(Y, Yvar=Yvar, X=X)
    for part in transform.modules():
        if isinstance(part, Standardize) and part.means.isnan().any():
            part.means = part.means.nan_to_num(nan=0.0)
    return transformed


def learn_outcomes(
    given: object, Y: Tensor, Yvar: Tensor | None, X: Tensor
) -> tuple[OutcomeTransform, Tensor, Tensor | None]:
    """Return a copy of an outcome transform that was learned from the data, and these behind it."""
    if not isinstance(given, OutcomeTransform):
        raise ValueError(
            f"outcome_transform should be a BoTorch OutcomeTransform, got {type(given).__name__}. "
            f"Pass for instance Standardize({Y.shape[-1]})."
        )
    # A copy: another model may have one, and a transform belongs to the data that it was learned from.
    transform = deepcopy(given).train()
    try:
        transform.to(Y)
        transformed, variances = learn_transform(transform, Y, Yvar, X)
    except (BotorchError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"outcome_transform should take values of shape {tuple(Y.shape)}, got {error} "
            f"Build it for {Y.shape[-1]} tasks."
        ) from error
    if transformed.shape != Y.shape:
        raise ValueError(
            f"outcome_transform should keep the shape {tuple(Y.shape)} of train_Y, got {tuple(transformed.shape)}. "
            f"Build it for {Y.shape[-1]} tasks and the batch shape {tuple(Y.shape[:-2])}."
        )
    unseen = Y.isnan()
    if not unseen.any():
        require_finite("train_Y behind the outcome_transform", transformed)
    elif not torch.where(unseen, 0, transformed).isfinite().all():
        raise ValueError(
            "outcome_transform should keep observed values finite where others are missing, got NaN or Inf from "
            f"{type(transform).__name__}. Pass one for each task separately, such as Standardize({Y.shape[-1]})."
        )
    if transform._is_linear:
        try:
            find_units(transform, Y.new_zeros(*Y.shape[:-2], 1, Y.shape[-1]))
        except (BotorchError, NotImplementedError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"outcome_transform should be the same map at every point, got {type(transform).__name__} ({error}) "
                f"Pass for instance Standardize({Y.shape[-1]})."
            ) from error
    return transform, torch.where(unseen, torch.nan, transformed), variances
