"""The noise as a GPyTorch likelihood: fixed, learned, or known for each observation."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.constraints import GreaterThan, Positive
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood, MultitaskGaussianLikelihood
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.priors import LogNormalPrior
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from mtbo_torch.checks import require_batch, require_finite, require_positive, require_same_kind, require_tensor

# As in BoTorch's own models, for values of order one.
MIN_LEARNED_NOISE = 1e-4


class ObservedNoise(_GaussianLikelihoodBase):
    """Noise variances that are known for each observation; new ones are expected to have the average of their task.

    Args:
        variances: ``(b) x t x n``; NaN for values that were not seen, infinite for those whose noise is not known.
        others: The noise of the latter, fixed or learned.
    """

    variances: Tensor

    def __init__(self, variances: Tensor, others: MultitaskGaussianLikelihood | None = None) -> None:
        super().__init__(noise_covar=None)
        self.register_buffer("variances", variances.detach(), persistent=False)
        self.others = others

    @property
    def is_constant(self) -> bool:
        """True if every task has one noise for all its observations."""
        return bool(self._is_constant)

    @property
    def average(self) -> Tensor:
        """``(b) x n``; the average of all tasks for one of which nothing was seen."""
        variances = self._all
        average = torch.where(self._is_constant, self._largest.squeeze(-2), variances.nanmean(dim=-2))
        of_all = variances.nanmean(dim=(-2, -1)).nan_to_num(nan=1.0)
        return torch.where(average.isfinite(), average, of_all.unsqueeze(-1))

    @property
    def filled(self) -> Tensor:
        """``(b) x t x n``, with the average of its task for a value that was not seen."""
        return torch.where(self.variances.isnan(), self.average.unsqueeze(-2), self._all)

    @property
    def _all(self) -> Tensor:
        if self.others is None:
            return self.variances
        return torch.where(self.variances.isinf(), noise_of(self.others).unsqueeze(-2), self.variances)

    @property
    def _is_constant(self) -> Tensor:
        return ((self._all == self._largest) | self.variances.isnan()).all()

    @property
    def _largest(self) -> Tensor:
        return self._all.nan_to_num(nan=-torch.inf).amax(dim=-2, keepdim=True)

    def marginal(self, function_dist: MultivariateNormal, *params: Any, **kwargs: Any) -> MultivariateNormal:
        """Return the distribution of noisy values: at the data with their own noise, elsewhere with the average."""
        mean, covariance = function_dist.mean, function_dist.lazy_covariance_matrix
        if isinstance(function_dist, MultitaskMultivariateNormal):
            noise = self._shaped_noise_covar(mean.shape)
            return MultitaskMultivariateNormal(mean, covariance + noise, interleaved=function_dist._interleaved)
        return MultivariateNormal(mean, covariance + self._shaped_noise_covar(torch.Size([*mean.shape, 1])))

    def _shaped_noise_covar(self, base_shape: torch.Size, *params: Any, **kwargs: Any) -> DiagLinearOperator:
        is_for_the_data = base_shape[-2] == self.variances.shape[-2]
        variances = self.filled if is_for_the_data else self.average.unsqueeze(-2)
        return DiagLinearOperator(variances.expand(base_shape).flatten(-2))


def likelihood_of(eta: float | Tensor | None, num_tasks: int, train_X: Tensor) -> MultitaskGaussianLikelihood:
    """Return the likelihood of a fixed noise variance, for all tasks or each; of one learned for each with None."""
    batch_shape = train_X.shape[:-2]
    if eta is None:
        return make_learned_noise(num_tasks, batch_shape)
    require_positive("eta", eta, "Pass a positive number, for instance 0.1, or None to learn the noise.")
    value = torch.as_tensor(eta, dtype=train_X.dtype, device=train_X.device)
    value = value if value.dim() else value.unsqueeze(-1)
    if value.shape[-1] not in (1, num_tasks):
        raise ValueError(
            f"eta should be a number or have one entry for each of the {num_tasks} tasks, got shape "
            f"{tuple(value.shape)}. Pass one noise variance per task."
        )
    require_batch("eta", value.shape[:-1], batch_shape)
    per_task = value.shape[-1] > 1
    # Without a transform the parameter is eta itself, to the last digit.
    likelihood = MultitaskGaussianLikelihood(
        num_tasks,
        batch_shape=value.shape[:-1],
        noise_constraint=Positive(transform=None, inv_transform=None),
        has_global_noise=not per_task,
        has_task_noise=per_task,
    ).to(train_X)
    with torch.no_grad():
        (likelihood.raw_task_noises if per_task else likelihood.raw_noise).copy_(value)
    return likelihood.requires_grad_(False)


def make_learned_noise(num_tasks: int, batch_shape: torch.Size, is_shared: bool = False) -> MultitaskGaussianLikelihood:
    """Return the likelihood of a noise that is learned, for each of n tasks or one for all."""
    prior = LogNormalPrior(loc=-4.0, scale=1.0)
    likelihood = MultitaskGaussianLikelihood(
        num_tasks,
        batch_shape=batch_shape,
        noise_constraint=GreaterThan(MIN_LEARNED_NOISE, initial_value=prior.mode),
        has_global_noise=is_shared,
        has_task_noise=not is_shared,
    )
    # GPyTorch's own registration cannot set what was drawn, and so BoTorch could not start a fit once more.
    likelihood.register_prior("learned_noise_prior", prior, noise_of, set_noise)
    return likelihood


def noise_of(likelihood: Likelihood) -> Tensor:
    """Return the noise, ``(b) x 1`` (the same for all tasks) or ``(b) x n``."""
    if isinstance(likelihood, ObservedNoise):
        return likelihood.average
    noise = likelihood.noise if likelihood.has_global_noise else None
    if likelihood.has_task_noise:
        task_noise = likelihood.task_noises
        noise = task_noise if noise is None else noise + task_noise
    assert noise is not None
    return noise


def usual_noise_of(likelihood: Likelihood) -> Tensor:
    """Return what is presumed of a value whose noise is not known, ``(b) x 1`` or ``(b) x n``."""
    is_partly_known = isinstance(likelihood, ObservedNoise) and likelihood.others is not None
    return noise_of(likelihood.others if is_partly_known and not likelihood.is_constant else likelihood)


def set_noise(likelihood: MultitaskGaussianLikelihood, noise: Tensor) -> None:
    """Start learning from this noise, ``(b) x 1`` or ``(b) x n``."""
    start = noise.detach().to(noise_of(likelihood)).clamp_min(1.001 * MIN_LEARNED_NOISE)
    if likelihood.has_task_noise:
        likelihood.task_noises = start.expand_as(likelihood.task_noises)
    else:
        likelihood.noise = start


def observe_noise(likelihood: MultitaskGaussianLikelihood, variances: Tensor, Y: Tensor) -> ObservedNoise:
    """Return the likelihood of ``(b) x t x n`` variances; where they are NaN, the noise is that of another likelihood.

    Args:
        likelihood: The other one.
        variances: The variances of the noise that are known.
        Y: ``(b) x t x n``, the values, NaN for those that were not seen.
    """
    seen = torch.where(Y.isnan(), torch.nan, variances.nan_to_num(nan=torch.inf))
    return ObservedNoise(seen, likelihood if seen.isinf().any() else None)


def require_likelihood(likelihood: object, num_tasks: int) -> None:
    """Refuse likelihoods whose noise is not one number for each task."""
    if not isinstance(likelihood, MultitaskGaussianLikelihood) or likelihood.rank != 0:
        raise ValueError(
            f"likelihood should be a MultitaskGaussianLikelihood with rank=0, got {type(likelihood).__name__}. "
            "Pass eta= for a fixed noise, or leave both out to learn it."
        )
    if likelihood.num_tasks != num_tasks:
        raise ValueError(
            f"likelihood should be for {num_tasks} tasks (from train_Y), got num_tasks={likelihood.num_tasks}. "
            f"Build it with num_tasks={num_tasks}."
        )


def seen_variances(name: str, variances: object, Y: Tensor) -> Tensor:
    """Refuse noise variances that do not fit the values; return them, NaN where the value is."""
    variances = require_tensor(name, variances, "Pass a variance for each observed value.")
    if variances.shape != Y.shape:
        raise ValueError(
            f"{name} should have the shape {tuple(Y.shape)} of the values, got {tuple(variances.shape)}. "
            "Pass a variance for each of them."
        )
    require_same_kind(("train_Y", Y), (name, variances))
    unseen = Y.isnan()
    known = torch.where(unseen, 1, variances)
    require_finite(name, known)
    require_positive(name, known, "Pass variances, not standard deviations; leave them out if not known.")
    return torch.where(unseen, torch.nan, variances) if unseen.any() else variances
