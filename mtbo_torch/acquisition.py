"""The paper's acquisition as a BoTorch acquisition function."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from botorch.acquisition.multi_objective.base import MultiObjectiveAnalyticAcquisitionFunction
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import BotorchWarning
from botorch.models.model import Model, ModelList
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.utils.transforms import average_over_ensemble_models, match_batch_shape, t_batch_mode_transform
from gpytorch.distributions import MultitaskMultivariateNormal
from linear_operator.operators import DiagLinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from mtbo_torch.checks import require_positive
from mtbo_torch.models import MultiTaskGPModel, NystromMultiTaskGP
from mtbo_torch.regression import Regression, operator_norm
from mtbo_torch.scalarizations import Scalarization


def scalarized_ucb(mean: Tensor, norm: Tensor, scalarization: Scalarization, radius: Tensor) -> Tensor:
    r""":math:`s_\lambda(\mu) + L_\lambda \beta \|\Gamma\|^{1/2}` for ``... x q x n`` means and ``... x q`` norms."""
    # The square root has no finite slope at zero; far below any variance that matters, it is cut off.
    deviation = norm.clamp_min(torch.finfo(norm.dtype).tiny).sqrt()
    return scalarization(mean) + (scalarization.lipschitz.to(mean) * radius.to(mean)).unsqueeze(-1) * deviation


class ScalarizedMultiTaskUCB(MultiObjectiveAnalyticAcquisitionFunction):
    r"""The acquisition of MT-KB (Algorithm 1).

    .. math:: u(x) = s_\lambda(\mu_t(x)) + L_\lambda \beta_t \|\Gamma_t(x, x)\|^{1/2}

    With an :class:`ExactMultiTaskGP` a value and its gradient cost about one product with a ``t x t`` matrix. Any
    other BoTorch model works through its posterior: a joint one gives the full norm, one without covariances between
    tasks is taken as independent, with one warning.

    Pending points are hallucinated: they shrink the variance and leave the mean. The value of ``q`` points is the sum
    of their values when each takes those before it as pending, so ``sequential=True`` is the cheap way to optimise it.

    Args:
        model: A fitted multi-output model.
        scalarization: :math:`s_\lambda`, such as :class:`ChebyshevScalarization`.
        radius: :math:`\beta_t`, such as from :func:`exact_radius`; a number or of the model's batch shape. (BoTorch's
            ``beta`` is its square.)
        X_pending: ``p x d`` points that are being evaluated.

    Example:
        >>> import torch, gpytorch
        >>> from botorch.optim import optimize_acqf
        >>> from mtbo_torch import ChebyshevScalarization, ExactMultiTaskGP, ICMKernel, ScalarizedMultiTaskUCB
        >>> X = torch.rand(5, 1, dtype=torch.double)
        >>> kernel = ICMKernel(gpytorch.kernels.RBFKernel(), torch.eye(2, dtype=torch.double))
        >>> model = ExactMultiTaskGP(X, torch.cat([X.sin(), X.cos()], -1), covar_module=kernel, eta=0.1)
        >>> scalarization = ChebyshevScalarization(torch.tensor([0.5, 0.5], dtype=torch.double))
        >>> acqf = ScalarizedMultiTaskUCB(model, scalarization, radius=2.0)
        >>> acqf(X.unsqueeze(-2)).shape
        torch.Size([5])
    """

    radius: Tensor
    X_pending: Tensor | None

    def __init__(
        self,
        model: Model,
        scalarization: Scalarization,
        radius: float | Tensor,
        X_pending: Tensor | None = None,
    ) -> None:
        if not isinstance(scalarization, Scalarization):
            raise ValueError(
                f"scalarization should be a Scalarization, got {type(scalarization).__name__}. "
                "Pass for instance ChebyshevScalarization(weights)."
            )
        if scalarization.num_tasks != model.num_outputs:
            raise ValueError(
                f"scalarization should have one weight for each of the model's {model.num_outputs} tasks, "
                f"got {scalarization.num_tasks} weights. Sample the weights with num_tasks={model.num_outputs}."
            )
        require_positive("radius", radius, "Pass for instance exact_radius(...).", allow_zero=True)
        value = radius if isinstance(radius, Tensor) else torch.tensor(radius, dtype=torch.double)
        _require_batch("scalarization", scalarization.weights.shape[:-1], model)
        _require_batch("radius", value.shape, model)
        super().__init__(model=model)
        self.scalarization = scalarization
        self.register_buffer("radius", value.to(scalarization.weights.device))
        self._warned = False
        self.set_X_pending(X_pending)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Take points that are being evaluated into account; None forgets them."""
        self.X_pending = None if X_pending is None else X_pending.detach()
        self._hallucinated: tuple[Regression, MultiTaskGPModel] | None = None
        if isinstance(self.model, MultiTaskGPModel):
            fitted = self.model.regression  # fitted here, not in the first evaluation
            if self.X_pending is not None:
                with torch.no_grad():
                    self._hallucinated = (fitted, self.model.hallucinate(self.X_pending.to(self.model.train_targets)))

    @t_batch_mode_transform()
    @average_over_ensemble_models
    def forward(self, X: Tensor) -> Tensor:
        """Evaluate ``b x q x d`` points, usually with q = 1, as ``b`` values."""
        values = [self._value(X[..., i : i + 1, :], X[..., :i, :]) for i in range(X.shape[-2])]
        return torch.stack(values).sum(dim=0) if len(values) > 1 else values[0]

    def _value(self, X: Tensor, before: Tensor) -> Tensor:
        mean, norm = self._mean_and_norm(X, before)
        return scalarized_ucb(mean, norm, self.scalarization, self.radius).squeeze(-1)

    def _mean_and_norm(self, X: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.model, MultiTaskGPModel) and before.shape[-2] == 0:
            mean, norm = self.model.mean_and_norm(X)
            if self.X_pending is None:
                return mean, norm
            if self._hallucinated is None or not self.model.is_fitted_by(self._hallucinated[0]):
                self.set_X_pending(self.X_pending)  # the model has changed since
            assert self._hallucinated is not None
            return mean, self._hallucinated[1].mean_and_norm(X)[1]
        pending = before
        if self.X_pending is not None:
            pending = torch.cat([match_batch_shape(self.X_pending.to(X), X), before], dim=-2)
        return self._of(self.model, X, pending)

    def _of(self, model: Model, X: Tensor, pending: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and norm of any model, through its posterior."""
        if isinstance(model, ModelList):
            # The members are independent of each other, but BoTorch would also cut the ties inside them.
            means, norms = zip(*[self._of(member, X, pending) for member in model.models], strict=True)
            return torch.cat(means, dim=-1), torch.stack(norms).amax(dim=0)
        if pending.shape[-2]:
            return _mean_and_norm_given_pending(model, X, pending)
        if isinstance(model, MultiTaskGPModel):
            return model.mean_and_norm(X)
        posterior = model.posterior(X)
        if _is_joint(posterior):
            mean, covariance = _point_major(posterior)
            return mean, operator_norm(covariance).unsqueeze(-1)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"The posterior of {type(model).__name__} has no covariances between tasks; it is used as "
                "independent tasks, whose norm is the largest variance.",
                BotorchWarning,
                stacklevel=4,
            )
        return posterior.mean, posterior.variance.amax(dim=-1)


class NystromScalarizedMultiTaskUCB(ScalarizedMultiTaskUCB):
    r"""The acquisition of MT-BKB (Algorithm 2).

    .. math:: \tilde u(x) = s_\lambda(\tilde\mu_t(x)) + L_\lambda \tilde\beta_t \|\tilde\Gamma_t(x, x)\|^{1/2}

    A value costs :math:`O(m^2)`, whatever the number of observations.

    Args:
        model: A :class:`NystromMultiTaskGP`.
        scalarization: As in :class:`ScalarizedMultiTaskUCB`.
        radius: :math:`\tilde\beta_t`, such as from :func:`nystrom_radius`.
        X_pending: As in :class:`ScalarizedMultiTaskUCB`.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import ChebyshevScalarization, ICMKernel, NystromMultiTaskGP
        >>> from mtbo_torch import NystromScalarizedMultiTaskUCB
        >>> X = torch.rand(50, 1, dtype=torch.double)
        >>> kernel = ICMKernel(gpytorch.kernels.RBFKernel(), torch.eye(2, dtype=torch.double))
        >>> model = NystromMultiTaskGP(X, torch.cat([X.sin(), X.cos()], -1), covar_module=kernel, eta=0.1)
        >>> scalarization = ChebyshevScalarization(torch.tensor([0.5, 0.5], dtype=torch.double))
        >>> NystromScalarizedMultiTaskUCB(model, scalarization, radius=2.0)(X.unsqueeze(-2)).shape
        torch.Size([50])
    """

    def __init__(
        self,
        model: NystromMultiTaskGP,
        scalarization: Scalarization,
        radius: float | Tensor,
        X_pending: Tensor | None = None,
    ) -> None:
        if not isinstance(model, NystromMultiTaskGP):
            raise ValueError(
                f"model should be a NystromMultiTaskGP, got {type(model).__name__}. "
                "Use ScalarizedMultiTaskUCB for any other model."
            )
        super().__init__(model, scalarization, radius, X_pending)


def _require_batch(name: str, shape: torch.Size, model: Model) -> None:
    try:
        batch_shape = model.batch_shape
    except (AttributeError, NotImplementedError):  # not every model has one
        return
    if len(shape) > len(batch_shape) or any(
        a not in (1, b) for a, b in zip(shape[::-1], batch_shape[::-1], strict=False)
    ):
        raise ValueError(
            f"{name} should be of the model's batch shape {tuple(batch_shape)}, got {tuple(shape)}. "
            "Use one acquisition function for each, or a model with that batch shape."
        )


def _is_joint(posterior: Posterior) -> bool:
    if not isinstance(posterior, GPyTorchPosterior):
        return False
    normal = posterior.distribution
    if not isinstance(normal, MultitaskMultivariateNormal):
        return True
    return not isinstance(normal.lazy_covariance_matrix, DiagLinearOperator)


def _point_major(posterior: Any) -> tuple[Tensor, Tensor]:
    """Mean ``... x q x n`` and covariance ``... x qn x qn`` of a joint posterior."""
    normal = posterior.distribution
    covariance = normal.lazy_covariance_matrix.to_dense()
    if not isinstance(normal, MultitaskMultivariateNormal):
        return normal.mean.unsqueeze(-1), covariance
    if not normal._interleaved:
        q, n = normal.mean.shape[-2:]
        covariance = covariance.unflatten(-1, (n, q)).unflatten(-3, (n, q))
        covariance = covariance.transpose(-4, -3).transpose(-2, -1).flatten(-2).flatten(-3, -2)
    return normal.mean, covariance


def _mean_and_norm_given_pending(model: Model, X: Tensor, pending: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and norm at ``b x 1 x d`` points when ``b x p x d`` pending ones have shrunk the variance."""
    tasks = None
    if isinstance(model, MultiTaskGPModel):  # whose hidden tasks are observed, too
        model, tasks = model.whole(), model.tasks
    posterior = model.posterior(torch.cat([X, pending], dim=-2))
    if not _is_joint(posterior):
        raise UnsupportedError(
            f"Pending points need covariances between points, which the posterior of {type(model).__name__} does not "
            "have. Use q=1 without pending points, or another model."
        )
    mean, covariance = _point_major(posterior)
    n = mean.shape[-1]
    noisy = model.posterior(pending, observation_noise=True).variance
    noise = (noisy - model.posterior(pending).variance).flatten(-2)
    chol = psd_safe_cholesky(covariance[..., n:, n:] + torch.diag_embed(noise))
    explained = torch.linalg.solve_triangular(chol, covariance[..., n:, :n], upper=False)
    conditional = covariance[..., :n, :n] - explained.mT @ explained
    mean = mean[..., :1, :]
    if tasks is not None:
        mean, conditional = mean[..., tasks], conditional[..., tasks, :][..., tasks]
    return mean, operator_norm(conditional).unsqueeze(-1)
