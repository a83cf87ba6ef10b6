"""The paper's acquisition as a BoTorch acquisition function."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from numbers import Real
from typing import Any, TypeVar

import torch
from botorch.acquisition.multi_objective.base import MultiObjectiveAnalyticAcquisitionFunction
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import BotorchWarning
from botorch.models.model import Model, ModelList
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.utils.transforms import average_over_ensemble_models, match_batch_shape, t_batch_mode_transform
from gpytorch.distributions import MultitaskMultivariateNormal
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from mtbo_torch.checks import require_finite, require_positive, require_tensor
from mtbo_torch.feasibility import OutcomeConstraints
from mtbo_torch.intervals import Mixture, find_both_bounds, find_bounds
from mtbo_torch.linalg import root_of
from mtbo_torch.models import MultiTaskGPModel, NystromMultiTaskGP
from mtbo_torch.regression import Belief, IndependentBeliefs, JointBelief, PointBelief
from mtbo_torch.scalarizations import Scalarization, require_scalarization
from mtbo_torch.surrogate import Surrogate

BOUNDS = ("norm", "ellipsoid")
# Where hardly anything is uncertain, kinks are rounded off as if this share of how much the objectives vary were.
BLUR = 0.03


def scalarized_ucb(
    belief: Belief, scalarization: Scalarization, radius: Tensor, bound: str = "norm", blur: Tensor | None = None
) -> Tensor:
    """Return the values ``... x q`` of :class:`ScalarizedMultiTaskUCB` from what is known of the tasks.

    Args:
        belief: What is known at ``... x q`` points.
        scalarization: With weights ``n`` or ``(b) x n``.
        radius: ``(b)``.
        bound: ``"norm"``, ``"ellipsoid"``, ``"tasks"``, the deviation of each objective alone, or ``"mixture"``, for
            which belief and radius have a dimension of regularizers in front.
        blur: ``(b) x 1 x k``, to round the kinks of the scalarization off as if the deviations of the k objectives were
            that much larger; None leaves them.
    """
    scalarization, belief = scalarization.on_objectives(belief)
    mean, directions = belief.mean, scalarization.directions
    if bound == "norm":
        deviation = radius.to(mean).unsqueeze(-1) * root_of(belief.norm)
        value = scalarization(mean) if blur is None else scalarization.round_off(mean, deviation.unsqueeze(-1) + blur)
        return torch.addcmul(value, scalarization.lipschitz.to(mean).unsqueeze(-1), deviation)
    if bound == "tasks":
        return scalarization(mean + radius.to(mean)[..., None, None] * root_of(belief.variance()))
    if bound == "mixture":
        mean = mean[0]
        center = mean if directions is None else mean @ directions.to(mean).mT
        deviations = find_bounds(belief, radius, directions)[1] - center
    else:
        deviations = radius.to(mean)[..., None, None] * root_of(belief.variance(directions))
    if blur is not None and directions is None:
        return scalarization.round_off(mean + deviations, deviations + blur)
    return scalarization.upper_bound(mean, deviations)


def scalarized_bounds(belief: Belief, scalarization: Scalarization, radii: Tensor) -> tuple[Tensor, ...]:
    """Return a lower and an upper bound of the scalarized tasks, ``... x q`` each, from a mixture.

    Args:
        belief: What is known at ``... x q`` points with each regularizer, ``A x ... x q``.
        scalarization: With weights ``n`` or ``(b) x n``.
        radii: ``A x (b)``.
    """
    scalarization, belief = scalarization.on_objectives(belief)
    directions = scalarization.directions
    bounds = find_both_bounds(belief, radii, directions)
    if directions is None:
        return scalarization(bounds).unbind()
    mean = belief.mean[0]
    center = mean @ directions.to(mean).mT
    return tuple(scalarization.upper_bound(mean, bound - center) for bound in bounds)


def weigh_by_feasibility(
    value: Tensor, belief: Belief, constraints: OutcomeConstraints | None, infeasible_value: Tensor | None
) -> Tensor:
    """Return ``p u + (1 - p) w``, ``... x q``, for the probability p that the constraints are satisfied.

    Args:
        value: ``... x q``, u.
        belief: What is known at these points of the tasks in the units of the constraints.
        constraints: None if there are none.
        infeasible_value: ``(b)``, w.
    """
    if constraints is None:
        return value
    assert infeasible_value is not None
    worst = infeasible_value.to(value).unsqueeze(-1)
    return worst + constraints.probability(belief.mean, belief.covariance) * (value - worst)


class BeliefAcquisition(MultiObjectiveAnalyticAcquisitionFunction, ABC):
    """The base of acquisition functions that need to know mean and covariance of the tasks at one point after another.

    It asks our models by their fast path and any other through its posterior. Pending points shrink the variance and
    leave the mean.

    Args:
        model: A fitted multi-output model.
    """

    X_pending: Tensor | None

    def __init__(self, model: Model) -> None:
        self._require_model(model)
        super().__init__(model=model)
        self._warned = False
        self._known: tuple[Surrogate, Surrogate] | None = None

    def _require_model(self, model: object) -> None:
        if not hasattr(model, "posterior"):
            raise ValueError(
                f"model should be a BoTorch model, got {type(model).__name__}. Pass for instance an ExactMultiTaskGP."
            )

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Take ``p x d`` points that are being evaluated into account; None forgets them."""
        if X_pending is not None:
            X_pending = require_tensor("X_pending", X_pending, "Pass one row per point.").detach()
            if X_pending.dim() < 2:
                raise ValueError(
                    f"X_pending should be `p x d`, got shape {tuple(X_pending.shape)}. Pass one row per point."
                )
        before = getattr(self, "X_pending", None), self._known
        self.X_pending, self._known = X_pending, None
        if isinstance(self.model, MultiTaskGPModel):
            self.model.surrogate  # noqa: B018  (looks at every hyperparameter, which an evaluation does not wait for)
            try:
                self._knowledge(self.model)  # now, not in the first evaluation
            except Exception:
                self.X_pending, self._known = before
                raise

    def forward(self, X: Tensor) -> Tensor:
        """Evaluate ``b x q x d`` points, usually with q = 1, as ``b`` values."""
        X = require_tensor("X", X, "Pass `b x q x d` points.")
        if X.dim() < 2 or X.shape[-2] == 0:
            raise ValueError(
                f"X should be `b x q x d` with q >= 1, got shape {tuple(X.shape)}. Pass at least one point."
            )
        return self._evaluate(X)

    @abstractmethod
    def _evaluate(self, X: Tensor) -> Tensor:
        """Return the values ``b`` of ``b x q x d`` points."""

    @property
    def _looks_at_variances(self) -> bool:
        """Whether it needs more than mean and norm."""
        return True

    def _ask(self, X: Tensor, before: Tensor) -> Belief:
        """Return what is known at ``b x 1 x d`` points once the pending and ``b x p x d`` other ones are observed."""
        if isinstance(self.model, MultiTaskGPModel):
            return _ask(self.model, self._knowledge(self.model), X, before)
        pending = before
        if self.X_pending is not None:
            pending = torch.cat([match_batch_shape(self.X_pending.to(X), X), before], dim=-2)
        return self._ask_any(self.model, X, pending)

    def _knowledge(self, model: MultiTaskGPModel) -> Surrogate:
        """Return what the model has learned, with pending points observed, ready for many points."""
        learned = model.current_surrogate()
        if self._known is None or self._known[0] is not learned:
            self._known = (learned, self._get_ready(model, learned))
        return self._known[1]

    def _get_ready(self, model: MultiTaskGPModel, known: Surrogate) -> Surrogate:
        if self.X_pending is not None:
            with torch.no_grad():
                known = model.imagine(self.X_pending.to(model.train_targets), known)
        return known.prepare_for_variances() if self._looks_at_variances else known

    def _ask_any(self, model: Model, X: Tensor, pending: Tensor) -> Belief:
        """Return what any model knows, through its posterior if it is not one of ours."""
        if isinstance(model, ModelList):
            # The members are independent of each other, but BoTorch would also cut the ties inside them.
            return IndependentBeliefs([self._ask_any(member, X, pending) for member in model.models])
        if isinstance(model, MultiTaskGPModel):
            return _ask(model, model.current_surrogate(), X, pending)
        posterior = model.posterior(torch.cat([X, pending], dim=-2))
        if _is_joint(posterior):
            belief = JointBelief(*_point_major(posterior))
            return belief if pending.shape[-2] == 0 else belief.given(_noise_at(model, pending))
        if pending.shape[-2]:
            raise UnsupportedError(
                f"Pending points need covariances between points, which the posterior of {type(model).__name__} does "
                "not have. Use q=1 without pending points, or another model."
            )
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"The posterior of {type(model).__name__} has no covariances between tasks; it is used as "
                "independent tasks.",
                BotorchWarning,
                stacklevel=5,
            )
        means, variances = posterior.mean.split(1, dim=-1), posterior.variance.split(1, dim=-1)
        return IndependentBeliefs([PointBelief(m, v.unsqueeze(-1)) for m, v in zip(means, variances, strict=True)])


class ScalarizedMultiTaskUCB(BeliefAcquisition):
    r"""The acquisition of MT-KB (Algorithm 1): what the scalarized tasks can be at a point, at best.

    .. math:: u(x) = s_\lambda(\mu_t(x)) + L_\lambda \beta_t \|\Gamma_t(x, x)\|^{1/2}

    With a radius from theory it is never below :math:`s_\lambda(f(x))`, for all x and t with probability
    :math:`1 - \delta`. With ``bound="ellipsoid"``, a bound that holds on the same event and is never above it:

    .. math:: \lambda^T \mu_t(x) + \beta_t (\lambda^T \Gamma_t(x, x) \lambda)^{1/2}, \quad
        s_\lambda(\mu_t(x) + \beta_t (diag \Gamma_t(x, x))^{1/2})

    for the linear and for any other scalarization. (Of a :class:`HypervolumeScalarization`, the value is that of its
    :meth:`~HypervolumeScalarization.chebyshev`, which has the same best points and is not flat where nothing exceeds
    the reference point.) With constraints :math:`A y \le c` that hold with probability p(x)
    under the joint posterior, the value is :math:`p(x) u(x) + (1 - p(x)) w`, where w is what a point that violates
    them is worth.

    With an :class:`ExactMultiTaskGP` a value and its gradient cost about one product with a ``t x t`` matrix. Any
    other BoTorch model works through its posterior: a joint one gives the full norm, one without covariances between
    tasks is taken as independent, with one warning.

    A search that follows gradients would get caught at the kinks of a Chebyshev scalarization. So, where `X` requires a
    gradient, and only there, they are rounded off: the value is up to :math:`0.3 \bar\delta \log n` too large, and
    still an upper bound. :math:`\bar\delta` is the average over the weighted tasks of what the bound adds and, for our
    models, of 3 % of their standard deviation.

    Pending points are hallucinated: they shrink the variance and leave the mean. The value of ``q`` points is the sum
    of their values when each takes those before it as pending, so ``sequential=True`` is the cheap way to optimize it.
    For several points with weights of their own, give ``optimize_acqf_list`` one acquisition function for each.

    Args:
        model: A fitted multi-output model.
        scalarization: :math:`s_\lambda`, such as :class:`ChebyshevScalarization`.
        radius: :math:`\beta_t`, such as from :func:`exact_radius`; a number or of the model's batch shape. (BoTorch's
            ``beta`` is its square.) Or a :class:`Mixture`, whose radii and bound follow from the data.
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
    blur: Tensor
    infeasible_value: Tensor | None

    def __init__(
        self,
        model: Model,
        scalarization: Scalarization,
        radius: float | Tensor | Mixture,
        X_pending: Tensor | None = None,
        bound: str = "norm",
        constraints: tuple[Tensor, Tensor] | OutcomeConstraints | None = None,
        infeasible_value: float | Tensor | None = None,
    ) -> None:
        super().__init__(model)
        require_scalarization(scalarization)
        if scalarization.num_tasks != model.num_outputs:
            raise ValueError(
                f"scalarization should have one weight for each of the model's {model.num_outputs} tasks, "
                f"got {scalarization.num_tasks} weights. Sample the weights with num_tasks={model.num_outputs}."
            )
        mixture = None
        if isinstance(radius, Mixture):
            if not isinstance(model, MultiTaskGPModel) or bound != "norm":
                raise ValueError(
                    f"radius should be a number for a {type(model).__name__} with bound={bound!r}, got a Mixture. It "
                    "has a bound of its own, and is for models of ours."
                )
            mixture, bound, radius = radius, "mixture", 0.0  # known once the data are
        else:
            require_bound(bound)
        require_positive("radius", radius, "Pass for instance exact_radius(...).", allow_zero=True)
        value = radius if isinstance(radius, Tensor) else torch.tensor(radius, dtype=torch.double)
        _require_batch("scalarization", scalarization.weights.shape[:-1], model)
        _require_batch("radius", value.shape, model)
        self.mixture = mixture
        # All on one device from the start, so that no evaluation waits for another.
        device = (model.train_targets if isinstance(model, MultiTaskGPModel) else scalarization.weights).device
        self.scalarization = put_on_device(scalarization if bound == "norm" else scalarization.for_search(), device)
        self.bound = bound
        own = None if constraints is None else as_constraints(constraints, model.num_outputs)
        self.constraints = None if own is None else put_on_device(own, device)
        self.register_buffer("radius", value.to(device))
        self.register_buffer("blur", self._find_blur().to(device), persistent=False)
        if constraints is None and infeasible_value is not None:
            raise ValueError(
                f"infeasible_value should only be given with constraints, got {infeasible_value}. Leave it out."
            )
        worst = None if constraints is None else self._infeasible_value(infeasible_value)
        self.register_buffer("infeasible_value", worst)
        self.set_X_pending(X_pending)

    @t_batch_mode_transform()
    @average_over_ensemble_models
    def _evaluate(self, X: Tensor) -> Tensor:
        values = [self._value(X[..., i : i + 1, :], X[..., :i, :]) for i in range(X.shape[-2])]
        return torch.stack(values).sum(dim=0) if len(values) > 1 else values[0]

    def _value(self, X: Tensor, before: Tensor) -> Tensor:
        if self.mixture is not None and before.shape[-2]:
            raise UnsupportedError("A Mixture takes one point at a time. Use q=1, and X_pending for the others.")
        belief = self._ask(X, before)
        is_followed = torch.is_grad_enabled() and (X.requires_grad or before.requires_grad)
        radius = self.radius if self.mixture is None else self._mixture_radii
        value = scalarized_ucb(belief, self.scalarization, radius, self.bound, blur=self.blur if is_followed else None)
        if self.mixture is not None and self.constraints is not None:
            belief = PointBelief(belief.mean[0], belief.covariance[0])
        return weigh_by_feasibility(value, belief, self.constraints, self.infeasible_value).squeeze(-1)

    @property
    def _looks_at_variances(self) -> bool:
        return self.bound != "norm" or self.constraints is not None or not self.scalarization.keeps_norm

    def _get_ready(self, model: MultiTaskGPModel, known: Surrogate) -> Surrogate:
        if self.mixture is not None:
            with torch.no_grad():
                known = self.mixture.sweep(known)
                self._mixture_radii = self.mixture.judge(known)[0]
        return super()._get_ready(model, known)

    @torch.no_grad()
    def _find_blur(self) -> Tensor:
        """Return a share of how much the objectives vary, ``(b) x 1 x k``, as far as that is known."""
        if not isinstance(self.model, MultiTaskGPModel):
            return torch.zeros(1, 1, dtype=torch.double)
        _, belief = self.scalarization.on_objectives(self.model.at(_observed_or_prior(self.model)))
        total = belief.mean.var(dim=-2, correction=0, keepdim=True) + belief.variance().mean(dim=-2, keepdim=True)
        return BLUR * root_of(total)

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
        with torch.no_grad():
            return self.scalarization(self.model.mean(_observed_or_prior(self.model))).amin(dim=-1)


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

    def _require_model(self, model: object) -> None:
        if not isinstance(model, NystromMultiTaskGP):
            raise ValueError(
                f"model should be a NystromMultiTaskGP, got {type(model).__name__}. "
                "Use ScalarizedMultiTaskUCB for any other model."
            )


def require_bound(bound: object) -> None:
    """Refuse anything but the name of a bound."""
    if not isinstance(bound, str) or bound not in BOUNDS:
        raise ValueError(f"bound should be one of {BOUNDS}, got {bound!r}. The paper's is 'norm'.")


ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)


def put_on_device(module: ModuleT, device: torch.device) -> ModuleT:
    """Return the module itself if its buffers are on the device, else a copy there."""
    is_there = all(buffer.device == device for buffer in module.buffers())
    return module if is_there else deepcopy(module).to(device)


def as_constraints(constraints: object, num_tasks: int) -> OutcomeConstraints:
    """Return the pair of A and c as constraints on this many tasks."""
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
    """Return the mean ``... x q x n`` and the covariance ``... x qn x qn`` of a joint posterior."""
    normal = posterior.distribution
    covariance = normal.lazy_covariance_matrix.to_dense()
    if not isinstance(normal, MultitaskMultivariateNormal):
        return normal.mean.unsqueeze(-1), covariance
    if not normal._interleaved:
        q, n = normal.mean.shape[-2:]
        covariance = covariance.unflatten(-1, (n, q)).unflatten(-3, (n, q))
        covariance = covariance.transpose(-4, -3).transpose(-2, -1).flatten(-2).flatten(-3, -2)
    return normal.mean, covariance


def _observed_or_prior(model: MultiTaskGPModel) -> Tensor:
    """Return the points observed, ``(b) x t x d``; before the first, any one."""
    X = model.observed_X
    return X if X.shape[-2] else X.new_zeros(*X.shape[:-2], 1, X.shape[-1])


def _ask(model: MultiTaskGPModel, surrogate: Surrogate, X: Tensor, pending: Tensor) -> Belief:
    """Return what a surrogate of one of our models knows at ``b x 1 x d`` points, given ``b x p x d`` pending ones."""
    points = model.place(X)
    if pending.shape[-2] == 0:
        return model.show(surrogate.at(points))
    return model.show(surrogate.at_with_pending(points, model.place(pending)))


def _noise_at(model: Model, X: Tensor) -> Tensor:
    """Return the noise ``... x q x n`` that any model expects of observations."""
    return model.posterior(X, observation_noise=True).variance - model.posterior(X).variance
