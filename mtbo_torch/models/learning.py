"""The units in which a kernel is learned, and the learning."""

from __future__ import annotations

import warnings
from typing import Any, Self

import torch
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize, Standardize
from botorch.utils.sampling import manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from mtbo_torch.models import ExactMultiTaskGP, MultiTaskGPModel
from mtbo_torch.models.noise import make_learned_noise, set_noise
from mtbo_torch.models.objective import expect_variances
from mtbo_torch.models.outcomes import learn_transform
from mtbo_torch.surrogate import Units

# The relative gain in likelihood per value below which learning stops: far less than matters, long before the default.
SMALLEST_GAIN = 1e-5


def standardize(points: Tensor, Y: Tensor) -> Units:
    """Return units with inputs in the unit cube, and values with mean zero and standard deviation one.

    Kernels expect such numbers at the start. Without values, these stay as they are.

    Args:
        points: ``N x d``, which span the search space, such as the corners of a box.
        Y: ``(b) x t x n`` values, NaN for those that are missing.
    """
    low, high = points.amin(dim=-2), points.amax(dim=-2)
    width = torch.where(high > low, high - low, low.abs().clamp_min(1))
    if Y.shape[-2] == 0:
        return Units(low, width)
    number = torch.finfo(Y.dtype)
    outcomes = Standardize(Y.shape[-1], batch_shape=Y.shape[:-2], min_stdv=number.tiny).to(Y)
    learn_transform(outcomes, Y)
    # Differences that are rounding are none. Of a task that does not vary yet, the size of its value is all there is.
    smallest, largest = _find_range(Y)
    size = Y.nan_to_num(nan=0.0).abs().amax(dim=-2, keepdim=True)
    is_constant = largest - smallest <= 10 * number.eps * size
    return Units(low, width, outcomes.means, torch.where(is_constant, torch.where(size > 0, size, 1), outcomes.stdvs))


def count_facts(Y: Tensor) -> int:
    """Return how much ``(b) x t x n`` values say about the units: of each task whether it was seen, and varies."""
    if Y.shape[-2] == 0:
        return 0
    smallest, largest = _find_range(Y)
    return int((largest >= smallest).sum() + (largest > smallest).sum())


def _find_range(Y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest of each task's values, ``(b) x 1 x n``; infinite for one without any."""
    smallest = torch.where(Y.isnan(), torch.inf, Y).amin(dim=-2, keepdim=True)
    return smallest, torch.where(Y.isnan(), -torch.inf, Y).amax(dim=-2, keepdim=True)


class FixedStandardize(Standardize):
    """Standardization by given numbers, which is never learned from data."""

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation."""
        return super().train(False)


def make_transforms(units: Units) -> dict[str, Any]:
    """Return the units as the ``input_transform`` and the ``outcome_transform`` of a BoTorch model."""
    assert units.low is not None
    assert units.width is not None
    box = torch.stack([units.low, units.low + units.width])
    inputs = Normalize(box.shape[-1], bounds=box).to(box).eval()
    if units.scale is None or units.offset is None:
        return {"input_transform": inputs, "outcome_transform": None}
    outcomes = FixedStandardize(units.scale.shape[-1], batch_shape=units.scale.shape[:-2]).to(units.scale)
    outcomes.means, outcomes.stdvs = units.offset, units.scale
    outcomes._stdvs_sq, outcomes._is_trained = units.scale.square(), torch.tensor(True)
    return {"input_transform": inputs, "outcome_transform": outcomes.eval()}


def learn_kernel(model: MultiTaskGPModel, smallest_gain: float = SMALLEST_GAIN, is_careful: bool = False) -> None:
    """Maximize the marginal likelihood; where that fails, BoTorch's ``ModelFittingError`` says so.

    Args:
        model: The model.
        smallest_gain: The relative gain per value below which learning stops.
        is_careful: Whether one noise for all tasks is learned before that of each. Otherwise learning ends now and then
            with short lengthscales and hardly any noise; but where one task fits badly, the others are better off.
    """
    expect_variances(model)
    own = model.likelihood
    noises = getattr(own, "raw_task_noises", None)
    if is_careful and model.num_outputs > 1 and noises is not None and noises.requires_grad:
        model.likelihood = make_learned_noise(model.num_outputs, model.batch_shape, is_shared=True).to(own.task_noises)
        try:
            _maximize_likelihood(model, smallest_gain)
            set_noise(own, model.noise)
        finally:
            model.likelihood = own
    _maximize_likelihood(model, smallest_gain)


def _maximize_likelihood(model: MultiTaskGPModel, smallest_gain: float) -> None:
    with torch.enable_grad(), manual_seed(0):  # further attempts start at random
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        # BoTorch's optimizer for batches insists on hearing that the other name of this option is not meant.
        other_name = {"factr": None} if model._aug_batch_shape.numel() > 1 else {}
        rounding = 100 * torch.finfo(model.train_targets.dtype).eps  # gains that small are made up
        with warnings.catch_warnings():
            # Attempts that fail are made again, and the error comes if all do.
            warnings.simplefilter("ignore", OptimizationWarning)
            fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"ftol": max(smallest_gain, rounding)} | other_name})


def score_kernel(model: ExactMultiTaskGP) -> Tensor:
    """Return ``(b)``, how well a kernel suits the data: its log marginal likelihood, less the parameters learned.

    Each parameter costs one: by so much does learning it flatter the kernel (Akaike 1974).
    """
    with torch.no_grad():
        return model.log_marginal_likelihood() - count_parameters(model)


def count_parameters(model: MultiTaskGPModel) -> int:
    """Return the number of parameters learned for each data set, without rotations of W, which do not change W W^T."""
    count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    factors = [kernel.task_factor for kernel in model.modules() if hasattr(kernel, "task_factor")]
    rotations = sum(W.shape[-1] * (W.shape[-1] - 1) // 2 for W in factors if W.requires_grad)
    return count // max(1, model.batch_shape.numel()) - rotations
