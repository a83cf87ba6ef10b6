"""The units in which a kernel is learned, and the learning."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize, Standardize
from botorch.utils.sampling import manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from mtbo_torch.models import MultiTaskGPModel
from mtbo_torch.models.fitted import learned_outcomes

# The relative gain in likelihood per value below which learning stops: far less than matters, long before the default.
SMALLEST_GAIN = 1e-5


@dataclass(frozen=True)
class Units:
    """Inputs in the unit cube, values with mean zero and standard deviation one: what kernels expect at the start.

    Attributes:
        inputs: From the search space to the unit cube.
        outcomes: To standardised values.
    """

    inputs: Normalize
    outcomes: Standardize

    @classmethod
    def of(cls, space: Tensor, Y: Tensor) -> Units:
        """From ``2 x d`` bounds or ``N x d`` choices, and ``(b) x t x n`` values, NaN for those not seen."""
        lower, upper = space.amin(dim=-2), space.amax(dim=-2)
        box = torch.stack([lower, torch.where(upper > lower, upper, lower + lower.abs().clamp_min(1))])
        number = torch.finfo(Y.dtype)
        outcomes = Standardize(Y.shape[-1], batch_shape=Y.shape[:-2], min_stdv=number.tiny).to(Y)
        if Y.shape[-2]:
            learned_outcomes(outcomes, Y)
            # Differences that are rounding are none.
            is_constant = outcomes.stdvs <= 10 * number.eps * Y.nan_to_num(nan=0.0).abs().amax(dim=-2, keepdim=True)
            outcomes.stdvs = torch.where(is_constant, 1.0, outcomes.stdvs)
            outcomes._stdvs_sq = outcomes.stdvs.square()
        return cls(Normalize(space.shape[-1], bounds=box).to(space).eval(), outcomes.eval())

    @property
    def has_seen_values(self) -> bool:
        """Whether values are standardised; without any they are left as they are."""
        return bool(self.outcomes._is_trained)

    def x(self, X: Tensor) -> Tensor:
        """Points in the unit cube."""
        return self.inputs(X)

    def original(self, X: Tensor) -> Tensor:
        """Points of the unit cube in the search space; the corners are met to the last digit."""
        lower, upper = self.inputs.bounds
        return self.inputs.untransform(X).clamp(lower, upper)

    def y(self, Y: Tensor) -> Tensor:
        """Standardised values."""
        return self.outcomes(Y)[0] if self.has_seen_values else Y

    @property
    def offset_and_scale(self) -> tuple[Tensor, Tensor]:
        """``(b) x 1 x n`` both: values are the offset plus the scale times the standardised ones."""
        if not self.has_seen_values:
            return torch.zeros_like(self.outcomes.means), torch.ones_like(self.outcomes.stdvs)
        return self.outcomes.means, self.outcomes.stdvs

    def transforms(self) -> dict[str, Any]:
        """Copies for a BoTorch model."""
        own = {"input_transform": self.inputs, "outcome_transform": self.outcomes if self.has_seen_values else None}
        return deepcopy(own)


def learn_kernel(model: MultiTaskGPModel, smallest_gain: float = SMALLEST_GAIN) -> None:
    """Maximise the marginal likelihood; where that fails, BoTorch's ``ModelFittingError`` says so."""
    with torch.enable_grad(), manual_seed(0):  # further attempts start at random
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        # BoTorch's optimiser for batches insists on hearing that the other name of this option is not meant.
        other_name = {"factr": None} if model._aug_batch_shape.numel() > 1 else {}
        rounding = 100 * torch.finfo(model.train_targets.dtype).eps  # gains that small are made up
        fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"ftol": max(smallest_gain, rounding)} | other_name})
