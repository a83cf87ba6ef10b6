"""The paper's acquisition as a BoTorch acquisition function."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol, TypeVar

import torch
from botorch.acquisition.multi_objective.base import MultiObjectiveAnalyticAcquisitionFunction
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import BotorchWarning
from botorch.models.model import Model, ModelList
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.utils.transforms import average_over_ensemble_models, match_batch_shape, t_batch_mode_transform
from gpytorch.distributions import MultitaskMultivariateNormal
from linear_operator.operators import DiagLinearOperator
from linear_operator.settings import cholesky_jitter, cholesky_max_tries
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from mtbo_torch.checks import require_finite, require_positive, require_tensor
from mtbo_torch.feasibility import OutcomeConstraints
from mtbo_torch.models import MultiTaskGPModel, NystromMultiTaskGP
from mtbo_torch.regression import Regression, operator_norm, sum_all, variances_along
from mtbo_torch.scalarizations import ObjectiveScalarization, Scalarization

BOUNDS = ("norm", "ellipsoid")


class Beliefs(Protocol):
    """What is known of the tasks at some points, ``... x q`` of them."""

    def mean_and_norm(self) -> tuple[Tensor, Tensor]:
        """``... x q x n`` and ``... x q``."""
        ...

    def mean_and_variance(self, directions: Tensor | None) -> tuple[Tensor, Tensor]:
        """``... x q x n``, and variances along ``(b) x k x n`` directions, ``... x q x k``."""
        ...

    def mean_and_covariance(self) -> tuple[Tensor, Tensor]:
        """``... x q x n`` and ``... x q x n x n``."""
        ...


def scalarized_ucb(
    beliefs: Beliefs,
    scalarization: Scalarization,
    radius: Tensor,
    bound: str = "norm",
    constraints: OutcomeConstraints | None = None,
    infeasible_value: Tensor | None = None,
) -> Tensor:
    """``... x q``, the values of :class:`ScalarizedMultiTaskUCB` from what is known of the tasks.

    Args:
        beliefs: What is known at ``... x q`` points.
        scalarization: With weights ``n`` or ``(b) x n``.
        radius: ``(b)``.
        bound: ``"norm"`` or ``"ellipsoid"``.
        constraints: On the values of the tasks.
        infeasible_value: ``(b)``, with constraints.
    """
    if constraints is not None:
        mean, covariance = beliefs.mean_and_covariance()
        if bound == "ellipsoid" or not _keeps_norm(scalarization):
            beliefs = _Independent(mean, [covariance])
        # Else the norm as the model knows it: that of a matrix takes some sixty products on a device. With this second
        # look at the model, the whole took 0.9 to 1.4 times as long on a CPU.
        value = scalarized_ucb(beliefs, scalarization, radius, bound)
        assert infeasible_value is not None
        worst = infeasible_value.to(value).unsqueeze(-1)
        return worst + constraints.probability(mean, covariance) * (value - worst)
    if bound == "ellipsoid":
        mean, variance = beliefs.mean_and_variance(scalarization.directions)
        return scalarization.upper_bound(mean, radius.to(mean)[..., None, None] * _root(variance))
    if isinstance(scalarization, ObjectiveScalarization) and not _keeps_norm(scalarization):
        # The norm is that of the objectives: of C Gamma C^T.
        mean, covariance = beliefs.mean_and_covariance()
        C = scalarization.objectives.to(mean)
        beliefs = _Independent(mean @ C.mT, [C @ covariance @ C.mT])
        return scalarized_ucb(beliefs, scalarization.scalarization, radius)
    mean, norm = beliefs.mean_and_norm()
    return scalarization(mean) + (scalarization.lipschitz.to(mean) * radius.to(mean)).unsqueeze(-1) * _root(norm)


def _keeps_norm(scalarization: Scalarization) -> bool:
    return not isinstance(scalarization, ObjectiveScalarization) or scalarization.keeps_norm


def _root(variance: Tensor) -> Tensor:
    # The square root has no finite slope at zero; far below any variance that matters, it is cut off.
    return variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()


@dataclass(frozen=True)
class _ModelAt:
    """What one of our models knows at some points; all but the mean from one that has seen pending points, too."""

    model: MultiTaskGPModel
    hallucinated: MultiTaskGPModel | None
    X: Tensor

    def mean_and_norm(self) -> tuple[Tensor, Tensor]:
        return self._with_own_mean(lambda model: model.mean_and_norm(self.X))

    def mean_and_variance(self, directions: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._with_own_mean(lambda model: model.mean_and_variance(self.X, directions))

    def mean_and_covariance(self) -> tuple[Tensor, Tensor]:
        return self._with_own_mean(lambda model: model.mean_and_covariance(self.X))

    def _with_own_mean(self, ask: Callable[[MultiTaskGPModel], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        if self.hallucinated is None:
            return ask(self.model)
        return self.model._mean_in_acquisition(self.X), ask(self.hallucinated)[1]


@dataclass(frozen=True)
class _Independent:
    """Groups of tasks that are independent of each other; of a joint posterior, a single one."""

    mean: Tensor
    blocks: list[Tensor]

    def mean_and_norm(self) -> tuple[Tensor, Tensor]:
        return self.mean, torch.stack([operator_norm(block) for block in self.blocks]).amax(dim=0)

    def mean_and_variance(self, directions: Tensor | None) -> tuple[Tensor, Tensor]:
        if directions is None:
            return self.mean, torch.cat([variances_along(block, None) for block in self.blocks], dim=-1)
        parts = directions.split([block.shape[-1] for block in self.blocks], dim=-1)
        return self.mean, sum_all(map(variances_along, self.blocks, parts))

    def mean_and_covariance(self) -> tuple[Tensor, Tensor]:
        if len(self.blocks) == 1:
            return self.mean, self.blocks[0]
        n, start, rows = self.mean.shape[-1], 0, []
        for block in self.blocks:
            size = block.shape[-1]
            rows.append(torch.nn.functional.pad(block, (start, n - start - size)))
            start += size
        return self.mean, torch.cat(rows, dim=-2)


class ScalarizedMultiTaskUCB(MultiObjectiveAnalyticAcquisitionFunction):
    r"""The acquisition of MT-KB (Algorithm 1): what the scalarised tasks can be at a point, at best.

    .. math:: u(x) = s_\lambda(\mu_t(x)) + L_\lambda \beta_t \|\Gamma_t(x, x)\|^{1/2}

    With a radius from theory it is never below :math:`s_\lambda(f(x))`, for all x and t with probability
    :math:`1 - \delta`. With ``bound="ellipsoid"``, a bound that holds on the same event and is never above it:

    .. math:: \lambda^T \mu_t(x) + \beta_t (\lambda^T \Gamma_t(x, x) \lambda)^{1/2}, \quad
        s_\lambda(\mu_t(x) + \beta_t (diag \Gamma_t(x, x))^{1/2})

    for the linear and for any other scalarisation. With constraints :math:`A y \le c` that hold with probability p(x)
    under the joint posterior, the value is :math:`p(x) u(x) + (1 - p(x)) w`, where w is what a point that violates
    them is worth.

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
        X_pending: ``p x d`` points that are being evaluated; also ``(b) x p x d`` for a model with a batch shape.
        bound: ``"norm"``, the paper's, or ``"ellipsoid"``.
        constraints: The pair of A, ``m x n``, and c, ``m`` or ``m x 1``, as BoTorch's outcome constraints.
        infeasible_value: w; by default the lowest :math:`s_\lambda(\mu_t)` at the observed points, or that of the prior
            mean without any. It has to be given for models that are not ours.

    Example:
        >>> import torch, gpytorch
        >>> from botorch.optim import optimize_acqf
        >>> from mtbo_torch import ChebyshevScalarization, ExactMultiTaskGP, ICMKernel, ScalarizedMultiTaskUCB
        >>> X = torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1)
        >>> kernel = ICMKernel(gpytorch.kernels.RBFKernel(), torch.eye(2, dtype=torch.double))
        >>> model = ExactMultiTaskGP(X, torch.cat([X.sin(), X.cos()], -1), covar_module=kernel, eta=0.1)
        >>> scalarization = ChebyshevScalarization(torch.tensor([0.5, 0.5], dtype=torch.double))
        >>> acqf = ScalarizedMultiTaskUCB(model, scalarization, radius=2.0)
        >>> acqf(X.unsqueeze(-2)).shape
        torch.Size([5])
        >>> bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
        >>> next_x, value = optimize_acqf(acqf, bounds, q=1, num_restarts=2, raw_samples=16)
        >>> next_x.shape
        torch.Size([1, 1])
    """

    radius: Tensor
    infeasible_value: Tensor | None
    X_pending: Tensor | None

    def __init__(
        self,
        model: Model,
        scalarization: Scalarization,
        radius: float | Tensor,
        X_pending: Tensor | None = None,
        bound: str = "norm",
        constraints: tuple[Tensor, Tensor] | OutcomeConstraints | None = None,
        infeasible_value: float | Tensor | None = None,
    ) -> None:
        if not hasattr(model, "posterior"):
            raise ValueError(
                f"model should be a BoTorch model, got {type(model).__name__}. Pass for instance an ExactMultiTaskGP."
            )
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
        require_bound(bound)
        super().__init__(model=model)
        # All on one device from the start, so that no evaluation waits for another.
        device = (model.train_targets if isinstance(model, MultiTaskGPModel) else scalarization.weights).device
        self.scalarization = on_device(scalarization, device)
        self.bound = bound
        own = None if constraints is None else constraints_of(constraints, model.num_outputs)
        self.constraints = None if own is None else on_device(own, device)
        self.register_buffer("radius", value.to(device))
        if constraints is None and infeasible_value is not None:
            raise ValueError(
                f"infeasible_value should only be given with constraints, got {infeasible_value}. Leave it out."
            )
        worst = None if constraints is None else self._infeasible_value(infeasible_value)
        self.register_buffer("infeasible_value", worst)
        self._warned = False
        self.set_X_pending(X_pending)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Take ``p x d`` points that are being evaluated into account; None forgets them."""
        if X_pending is not None:
            X_pending = require_tensor("X_pending", X_pending, "Pass one row per point.").detach()
            if X_pending.dim() < 2:
                raise ValueError(
                    f"X_pending should be `p x d`, got shape {tuple(X_pending.shape)}. Pass one row per point."
                )
        hallucinated: tuple[Regression, MultiTaskGPModel] | None = None
        if isinstance(self.model, MultiTaskGPModel):
            fitted = self.model.regression  # fitted here, not in the first evaluation
            if X_pending is not None:
                with torch.no_grad():
                    hallucinated = (fitted, self.model.hallucinate(X_pending.to(self.model.train_targets)))
            if self.bound == "ellipsoid" or self.constraints is not None or not _keeps_norm(self.scalarization):
                last = fitted if hallucinated is None else hallucinated[1].regression
                last.prepare_variances()
        self.X_pending, self._hallucinated = X_pending, hallucinated

    def forward(self, X: Tensor) -> Tensor:
        """Evaluate ``b x q x d`` points, usually with q = 1, as ``b`` values."""
        X = require_tensor("X", X, "Pass `b x q x d` points.")
        if X.dim() < 2 or X.shape[-2] == 0:
            raise ValueError(
                f"X should be `b x q x d` with q >= 1, got shape {tuple(X.shape)}. Pass at least one point."
            )
        return self._evaluate(X)

    @t_batch_mode_transform()
    @average_over_ensemble_models
    def _evaluate(self, X: Tensor) -> Tensor:
        values = [self._value(X[..., i : i + 1, :], X[..., :i, :]) for i in range(X.shape[-2])]
        return torch.stack(values).sum(dim=0) if len(values) > 1 else values[0]

    def _value(self, X: Tensor, before: Tensor) -> Tensor:
        values = scalarized_ucb(
            self._beliefs(X, before),
            self.scalarization,
            self.radius,
            self.bound,
            self.constraints,
            self.infeasible_value,
        )
        return values.squeeze(-1)

    def _beliefs(self, X: Tensor, before: Tensor) -> Beliefs:
        if isinstance(self.model, MultiTaskGPModel) and before.shape[-2] == 0:
            if self.X_pending is None:
                return _ModelAt(self.model, None, X)
            if self._hallucinated is None or not self.model.is_fitted_by(self._hallucinated[0]):
                self.set_X_pending(self.X_pending)  # the model has changed since
            assert self._hallucinated is not None
            return _ModelAt(self.model, self._hallucinated[1], X)
        pending = before
        if self.X_pending is not None:
            pending = torch.cat([match_batch_shape(self.X_pending.to(X), X), before], dim=-2)
        return self._of(self.model, X, pending)

    def _of(self, model: Model, X: Tensor, pending: Tensor) -> _Independent:
        """What any model knows, through its posterior."""
        if isinstance(model, ModelList):
            # The members are independent of each other, but BoTorch would also cut the ties inside them.
            members = [self._of(member, X, pending) for member in model.models]
            mean = torch.cat([member.mean for member in members], dim=-1)
            return _Independent(mean, [block for member in members for block in member.blocks])
        if pending.shape[-2]:
            return _given_pending(model, X, pending)
        if isinstance(model, MultiTaskGPModel):
            mean, covariance = model.mean_and_covariance(X)
            return _Independent(mean, [covariance])
        posterior = model.posterior(X)
        if _is_joint(posterior):
            mean, covariance = _point_major(posterior)
            return _Independent(mean, [covariance.unsqueeze(-3)])
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"The posterior of {type(model).__name__} has no covariances between tasks; it is used as "
                "independent tasks, whose norm is the largest variance.",
                BotorchWarning,
                stacklevel=4,
            )
        return _Independent(posterior.mean, list(posterior.variance[..., None, None].unbind(dim=-3)))

    def _infeasible_value(self, given: float | Tensor | None) -> Tensor:
        if given is not None:
            if isinstance(given, bool) or not isinstance(given, Real | Tensor):
                raise ValueError(
                    f"infeasible_value should be a number, got {given!r}. Pass a low value of the scalarization."
                )
            value = torch.as_tensor(given, dtype=torch.double, device=self.radius.device)
            require_finite("infeasible_value", value)
            _require_batch("infeasible_value", value.shape, self.model)
            return value
        if not isinstance(self.model, MultiTaskGPModel):
            raise ValueError(
                f"infeasible_value should be given for a {type(self.model).__name__}, got None. "
                "Pass a low value of the scalarization."
            )
        X = self.model.observed_X
        if X.shape[-2] == 0:
            X = X.new_zeros(*X.shape[:-2], 1, X.shape[-1])
        with torch.no_grad():
            return self.scalarization(self.model.mean(X)).amin(dim=-1)


class NystromScalarizedMultiTaskUCB(ScalarizedMultiTaskUCB):
    r"""The acquisition of MT-BKB (Algorithm 2): :class:`ScalarizedMultiTaskUCB` on a dictionary.

    .. math:: \tilde u(x) = s_\lambda(\tilde\mu_t(x)) + L_\lambda \tilde\beta_t \|\tilde\Gamma_t(x, x)\|^{1/2}

    A value costs :math:`O(m^2)`, whatever the number of observations (:math:`O(r m^2)` for the ellipsoid).

    Args:
        model: A :class:`NystromMultiTaskGP`, with m points in its dictionary.
        scalarization: As in :class:`ScalarizedMultiTaskUCB`.
        radius: :math:`\tilde\beta_t`, such as from :func:`nystrom_radius`; a number or ``(b)``.
        X_pending: As in :class:`ScalarizedMultiTaskUCB`.
        bound: As in :class:`ScalarizedMultiTaskUCB`.
        constraints: As in :class:`ScalarizedMultiTaskUCB`.
        infeasible_value: As in :class:`ScalarizedMultiTaskUCB`.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import ChebyshevScalarization, ICMKernel, NystromMultiTaskGP
        >>> from mtbo_torch import NystromScalarizedMultiTaskUCB
        >>> X = torch.linspace(0, 1, 50, dtype=torch.double).unsqueeze(-1)
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
        bound: str = "norm",
        constraints: tuple[Tensor, Tensor] | OutcomeConstraints | None = None,
        infeasible_value: float | Tensor | None = None,
    ) -> None:
        if not isinstance(model, NystromMultiTaskGP):
            raise ValueError(
                f"model should be a NystromMultiTaskGP, got {type(model).__name__}. "
                "Use ScalarizedMultiTaskUCB for any other model."
            )
        super().__init__(model, scalarization, radius, X_pending, bound, constraints, infeasible_value)


def require_bound(bound: object) -> None:
    """Refuse anything but the name of a bound."""
    if not isinstance(bound, str) or bound not in BOUNDS:
        raise ValueError(f"bound should be one of {BOUNDS}, got {bound!r}. The paper's is 'norm'.")


ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)


def on_device(module: ModuleT, device: torch.device) -> ModuleT:
    """The module itself if its buffers are on the device, else a copy there."""
    is_there = all(buffer.device == device for buffer in module.buffers())
    return module if is_there else deepcopy(module).to(device)


def constraints_of(constraints: object, num_tasks: int) -> OutcomeConstraints:
    """The pair of A and c as constraints on this many tasks."""
    if isinstance(constraints, OutcomeConstraints):
        own = constraints
    elif isinstance(constraints, Sequence) and len(constraints) == 2:
        own = OutcomeConstraints(*constraints)
    else:
        raise ValueError(
            f"constraints should be a pair of A, `m x n`, and c, `m`, got {type(constraints).__name__}. "
            "A row a of A and an entry c mean a^T y <= c."
        )
    if own.num_tasks != num_tasks:
        raise ValueError(
            f"constraints should have one column for each of the {num_tasks} tasks, got {own.num_tasks} in A. "
            "Use zeros for tasks that are not constrained."
        )
    return own


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


def _given_pending(model: Model, X: Tensor, pending: Tensor) -> _Independent:
    """What is known at ``b x 1 x d`` points when ``b x p x d`` pending ones have shrunk the variance."""
    if isinstance(model, MultiTaskGPModel):
        mean, own, cross, observed = model.beside(X, pending)
    else:
        mean, own, cross, observed = _beside(model, X, pending)
    explained = torch.linalg.solve_triangular(_cholesky(observed), cross, upper=False)
    return _Independent(mean, [(own - explained.mT @ explained).unsqueeze(-3)])


def _beside(model: Model, X: Tensor, pending: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As :meth:`MultiTaskGPModel.beside`, for any model, through its posterior."""
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
    observed = covariance[..., n:, n:] + torch.diag_embed(noise)
    return mean[..., :1, :], covariance[..., :n, :n], covariance[..., n:, :n], observed


def _cholesky(matrix: Tensor) -> Tensor:
    """GPyTorch's Cholesky factor, off the CPU without waiting to hear whether it needs jitter; NaN if that fails."""
    if matrix.device.type == "cpu":
        return psd_safe_cholesky(matrix)
    first, tries = cholesky_jitter.value(matrix.dtype), cholesky_max_tries.value()
    jitter = torch.zeros_like(matrix[..., 0])
    for i in range(tries):
        failed = torch.linalg.cholesky_ex(matrix.detach() + torch.diag_embed(jitter)).info > 0
        jitter = torch.where(failed.unsqueeze(-1), first * 10**i, jitter)
    chol, info = torch.linalg.cholesky_ex(matrix + torch.diag_embed(jitter))
    return torch.where(info[..., None, None] > 0, torch.nan, chol)
