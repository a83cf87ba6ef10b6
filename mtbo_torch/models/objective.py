"""What a kernel is learned by: the marginal likelihood, an objective of the user's, and what is expected before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from botorch.exceptions.errors import UnsupportedError
from gpytorch.mlls import ExactMarginalLogLikelihood, LeaveOneOutPseudoLikelihood
from gpytorch.priors import NormalPrior
from linear_operator.utils.errors import NanError
from torch import Tensor

from mtbo_torch.kernels import shared_parameter
from mtbo_torch.linalg import NotPositiveDefiniteError

if TYPE_CHECKING:
    from mtbo_torch.models.base import MultiTaskGPModel

# So many points say what the prior variances are like.
ENOUGH_POINTS = 1000


def compute_loss(model: MultiTaskGPModel, mll: ExactMarginalLogLikelihood) -> Tensor:
    """Return ``(b)``, minus the log marginal likelihood per observed value, with the priors.

    Another objective than GPyTorch's own is asked itself, on the matrix of all values.
    """
    if model.train_targets.shape[-2] == 0:
        raise ValueError("train_X should have at least one row to learn from, got none. Tell the model some data.")
    num_values = (~model.train_targets.isnan()).sum(dim=(-2, -1))
    if not num_values.any():
        raise ValueError(
            "train_Y should have at least one value to learn from, got NaN only. Tell the model some data."
        )
    if type(mll).forward is not ExactMarginalLogLikelihood.forward:
        return _evaluate(model, mll)
    try:
        value = model._log_likelihood(model._problem(model.covar_module, model.mean_module))
    except (NotPositiveDefiniteError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
        raise NanError(str(error)) from error  # from which BoTorch's optimizers turn back
    return -mll._add_other_terms(value, ()) / num_values.clamp_min(1)


def find_own_batch(model: MultiTaskGPModel) -> torch.Size:
    """Return ``(b)`` if the data sets of a batch share nothing that is learned, so that BoTorch may fit each alone."""
    own = {*model.covar_module.parameters(), *model.likelihood.parameters()}
    others = any(parameter.requires_grad for parameter in model.parameters() if parameter not in own)
    has_own_noise = model.noise.shape[:-1] == model.batch_shape or not model.noise.requires_grad
    has_own_kernel = shared_parameter(model.covar_module, model.batch_shape) is None
    return model.batch_shape if has_own_kernel and has_own_noise and not others else torch.Size()


def expect_variances(model: MultiTaskGPModel) -> None:
    """Expect prior variances of the size of the values, within a factor of e, when a kernel is learned.

    A single value, standardized, is zero, and maximum likelihood would believe that the task is always zero.
    """
    if "variance_prior" not in model._priors:
        model.register_prior("variance_prior", NormalPrior(0.0, 1.0), _compare_variances, _leave_as_it_is)


def _compare_variances(model: MultiTaskGPModel) -> Tensor:
    """Return the logarithms of the tasks' prior variances, ``(b) x n``, over the mean squares of their values."""
    kernel, _, X, Y = model._problem(model.covar_module, model.mean_module)
    squares = torch.where(Y.isnan(), 0, Y).square().sum(dim=-2) / (~Y.isnan()).sum(dim=-2).clamp_min(1)
    expected = torch.where(squares > 0, squares, 1)
    variances = kernel.blocks(X[..., :ENOUGH_POINTS, :]).diagonal(dim1=-2, dim2=-1).mean(dim=-2)
    return (variances / expected).clamp_min(torch.finfo(Y.dtype).tiny).log()


def _leave_as_it_is(model: MultiTaskGPModel, value: Tensor) -> None:
    """Draw nothing: the variances follow from the parameters, which are drawn from priors of their own."""


def _evaluate(model: MultiTaskGPModel, mll: ExactMarginalLogLikelihood) -> Tensor:
    has_all = not model.train_targets.isnan().any()
    if isinstance(mll, LeaveOneOutPseudoLikelihood) or not (has_all and model._is_exact):
        raise UnsupportedError(
            f"mll should be an ExactMarginalLogLikelihood for a {type(model).__name__}"
            f"{'' if has_all else ' with missing values'}, got {type(mll).__name__}. Objectives of your own are for an "
            "ExactMultiTaskGP that has seen all values; compare_kernels compares by leave-one-out."
        )
    return -mll(model(*model.train_inputs), model.train_targets)
