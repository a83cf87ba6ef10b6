"""What the exact and the Nystrom model share: a BoTorch model around a surrogate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple, Self

import torch
from botorch import settings as botorch_settings
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import BotorchError, UnsupportedError
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils.assorted import fantasize as fantasize_flag
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.utils.datasets import SupervisedDataset
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import MultitaskGaussianLikelihood
from gpytorch.means import Mean, MultitaskMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.models import ExactGP
from gpytorch.settings import prior_mode
from torch import Tensor
from torch.nn import Module

from mtbo_torch.checks import (
    require_batch,
    require_data,
    require_finite,
    require_positive,
    require_same_kind,
    require_tensor,
    require_values,
)
from mtbo_torch.intervals import Mixture, find_bounds
from mtbo_torch.kernels import adapt_kernel, default_kernel, num_tasks_of, require_takes
from mtbo_torch.models.fit import Fit, Stamp, evaluate_mean
from mtbo_torch.models.joint_covariance import JointCovariance
from mtbo_torch.models.noise import ObservedNoise, likelihood_of, noise_of, require_likelihood, seen_variances
from mtbo_torch.models.objective import compute_loss, expect_variances, find_own_batch
from mtbo_torch.models.outcomes import find_units, learn_outcomes
from mtbo_torch.regression import Belief, MatrixKernel, Regression
from mtbo_torch.regression.belief import require_directions
from mtbo_torch.surrogate import IDENTITY, Surrogate


class Problem(NamedTuple):
    """The data and the kernel of a regression.

    Attributes:
        kernel: The kernel.
        noise: ``(b) x t x n`` variances, with 1 in place of t or n where all observations or tasks share them.
        X: ``(b) x t x d``, behind the input transform.
        Y: ``(b) x t x n``, behind the outcome transform, about the prior mean.
    """

    kernel: MatrixKernel
    noise: Tensor
    X: Tensor
    Y: Tensor


class MultiTaskGPModel(ExactGP, BatchedMultiOutputGPyTorchModel, FantasizeMixin, ABC):
    """The base of the exact and the Nystrom model: a BoTorch model around a surrogate; see there for the arguments.

    Everything it says is in the units of `train_Y`, and it takes points in those of `train_X`. It is fitted when first
    asked, and anew when its data or a hyperparameter have changed.

    Args:
        train_X: ``(b) x t x d``.
        train_Y: ``(b) x t x n``.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import ExactMultiTaskGP, ICMKernel
        >>> from mtbo_torch.models import MultiTaskGPModel
        >>> X = torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1)
        >>> kernel = ICMKernel(gpytorch.kernels.RBFKernel(), torch.eye(2, dtype=torch.double))
        >>> model = ExactMultiTaskGP(X, torch.cat([X.sin(), X.cos()], dim=-1), covar_module=kernel, eta=0.1)
        >>> isinstance(model, MultiTaskGPModel)
        True
        >>> more = model.condition_on_observations(X[:1] + 2, torch.ones(1, 2, dtype=torch.double))
        >>> bool((more.covariance_norm(X) <= model.covariance_norm(X)).all())
        True
    """

    _supports_cache_root = False
    _is_exact = True
    _allow_missing = False
    _missing_hint = ""
    _has_transformed_inputs: bool
    _original_train_inputs: Tensor | None
    _shown: Tensor | None

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        covar_module: Kernel | None = None,
        eta: float | Tensor | None = None,
        mean_module: Mean | None = None,
        likelihood: MultitaskGaussianLikelihood | None = None,
        train_Yvar: Tensor | None = None,
        outcome_transform: OutcomeTransform | None = None,
        input_transform: InputTransform | None = None,
        allow_missing: bool = False,
    ) -> None:
        num_tasks = None if covar_module is None else num_tasks_of("covar_module", covar_module)
        require_data(train_X, train_Y, num_tasks, allow_missing=allow_missing, hint=self._missing_hint)
        if train_Yvar is not None:
            _require_rows("train_Yvar", train_Yvar)
            train_Yvar = seen_variances("train_Yvar", train_Yvar, train_Y).clone()
        # Copies, so that nobody changes the data of a model by changing their own.
        train_X, train_Y = train_X.clone(), train_Y.clone()
        batch_shape, num_tasks = train_X.shape[:-2], train_Y.shape[-1]
        transformed_X = self._first_transform(train_X, input_transform)
        if outcome_transform is not None:
            outcome_transform, train_Y, train_Yvar = learn_outcomes(
                outcome_transform, train_Y, train_Yvar, transformed_X
            )
        is_ours = covar_module is None
        if covar_module is None:
            covar_module = default_kernel(num_tasks, transformed_X.shape[-1], batch_shape)
        require_batch("covar_module", covar_module.batch_shape, batch_shape)
        _require_one_noise(eta=eta, likelihood=likelihood, train_Yvar=train_Yvar)
        if train_Yvar is not None:
            likelihood = ObservedNoise(train_Yvar)
        elif likelihood is None:
            likelihood = likelihood_of(eta, num_tasks, train_X)
        else:
            require_likelihood(likelihood, num_tasks)
        require_batch("likelihood", noise_of(likelihood).shape[:-1], batch_shape)
        super().__init__(train_X, train_Y, likelihood)
        self.covar_module = covar_module
        self.mean_module = ZeroMean(batch_shape=batch_shape) if mean_module is None else mean_module
        _require_mean(self.mean_module, num_tasks)
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform
        if input_transform is not None:
            self.input_transform = input_transform
        self._allow_missing = allow_missing
        self._num_tasks = num_tasks
        self._tasks: list[int] | None = None
        self.register_buffer("_shown", None, persistent=False)
        self._input_batch_shape = batch_shape
        self._fit: Fit | None = None
        if is_ours:
            expect_variances(self)
        self.to(train_X)
        require_takes("covar_module", covar_module, transformed_X)

    @property
    def num_outputs(self) -> int:
        """The number of tasks, or of those that :meth:`subset_output` left."""
        return self._num_tasks if self._tasks is None else len(self._tasks)

    @property
    def surrogate(self) -> Surrogate:
        """Everything learned, of all tasks, at points behind the input transform.

        It is fitted anew when the data or a hyperparameter have changed since.
        """
        return self._current(may_wait=True)

    @property
    def info_gain(self) -> Tensor:
        r"""``(b)``, the information gain :math:`\frac12 \log\det(I + \eta^{-1} G_t)`, which a radius needs.

        Of a :class:`NystromMultiTaskGP`, :math:`\frac12 \log\det(I + \eta^{-1} \tilde G_t) + \frac1{2 \eta} tr(G_t -
        \tilde G_t)`, never less, of the data it was built with, and :math:`\frac12 \log\det(I + \eta^{-1}
        \tilde\Gamma_{s-1}(x_s, x_s))` more for every observation since.
        """
        return self.surrogate.info_gain

    @property
    def noise(self) -> Tensor:
        r"""``(b) x 1`` or ``(b) x n``: :math:`\eta`, the same for all tasks or one for each.

        It is the variance of values behind the outcome transform, such as standardized ones, and the average if
        observations have their own.
        """
        return noise_of(self.likelihood)

    @property
    def observed_X(self) -> Tensor:
        """``(b) x t x d``, the points observed, before the input transform."""
        original = self._original_train_inputs
        return self.train_inputs[0] if original is None or not self._has_transformed_inputs else original

    def at(self, X: Tensor) -> Belief:
        r"""Return what is known at ``... x q x d`` points: :math:`\mu_t(x)`, :math:`\Gamma_t(x, x)` and its norm.

        The answer is lazy, and what its parts have in common is computed once.
        """
        return self.show(self.surrogate.at(self.place(X)))

    def mean(self, X: Tensor) -> Tensor:
        r"""Return the posterior mean :math:`\mu_t(x)`, ``... x q x n``, at ``... x q x d`` points."""
        return self.at(X).mean

    def covariance(self, X: Tensor) -> Tensor:
        r"""Return :math:`\Gamma_t(x, x)`, ``... x q x n x n``, at each of ``... x q x d`` points."""
        return self.at(X).covariance

    def covariance_norm(self, X: Tensor) -> Tensor:
        r"""Return the operator norm :math:`\|\Gamma_t(x, x)\|`, ``... x q``, at each of ``... x q x d`` points."""
        return self.at(X).norm

    def intervals(self, X: Tensor, mixture: Mixture, directions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r"""Return a lower and an upper bound of every task at ``... x q x d`` points, ``... x q x n`` each.

        They hold for all points, tasks and rounds at once with probability :math:`1 - \delta`, for models whose noise
        is the same for all tasks and observations. The model's own `eta` plays no part.

        Args:
            X: ``... x q x d``.
            mixture: What is presumed of the objective and the noise.
            directions: ``(b) x k x n``, to bound these combinations :math:`e^T f(x)` of the tasks instead,
                ``... x q x k``.
        """
        if not isinstance(mixture, Mixture):
            raise ValueError(
                f"mixture should be a Mixture, got {type(mixture).__name__}. Pass Mixture(norm_bound, noise_scale)."
            )
        points = self.place(X)
        require_directions(directions, self.num_outputs, self.batch_shape)
        if self._shown is not None:
            directions = self._shown if directions is None else directions @ self._shown.to(directions)
        swept = mixture.sweep(self.surrogate)
        return find_bounds(swept.at(points), mixture.judge(swept)[0], directions)

    def place(self, X: Tensor) -> Tensor:
        """Take ``... x q x d`` points behind the input transform, where :attr:`surrogate` takes them."""
        self._require_inputs(X)
        self._require_affine()
        return self.transform_inputs(X)

    def show(self, belief: Belief) -> Belief:
        """Reduce what is known of all tasks to those that :meth:`subset_output` left."""
        return belief if self._shown is None else belief.mapped(self._shown)

    def current_surrogate(self) -> Surrogate:
        """Return :attr:`surrogate` without waiting for a device, for acquisition functions.

        Away from the CPU, a change is noticed by torch's counter of changes, which GPyTorch's setters (such as
        ``kernel.lengthscale = 1.0``) write past: after these, ask the model something or build the acquisition anew.
        """
        return self._current(may_wait=False)

    def imagine(self, X: Tensor, surrogate: Surrogate | None = None) -> Surrogate:
        """Return what is known once ``... x q x d`` points are observed: the variance shrinks, the mean stays.

        Args:
            X: ``... x q x d``.
            surrogate: What is known now; what the model has learned by default.
        """
        self._require_inputs(X)
        require_finite("X", X)
        self._require_affine()
        surrogate, (X, _) = surrogate or self.current_surrogate(), self._expand(X, X)
        if X.shape[:-2] != self.batch_shape:
            surrogate = surrogate.expand(X.shape[:-2])
        return surrogate.imagine(self._preprocess(X))

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """Return the joint posterior over ``q`` points and the tasks (see BoTorch's ``Model.posterior``).

        Args:
            X: ``... x q x d``.
            output_indices: The tasks to keep; all by default.
            observation_noise: Whether to add the noise, or the noise variances to add, ``... x q x n`` (or
                ``... x 1 x n``), of values behind the outcome transform.
            posterior_transform: Applied to the result.

        Returns:
            A posterior with mean and variance ``... x q x n``. Its joint covariance, ``... x qn x qn``, is only
            evaluated when it is needed, as for samples.
        """
        if posterior_transform is not None and not callable(posterior_transform):
            raise ValueError(
                "posterior_transform should be a BoTorch PosteriorTransform, got "
                f"{type(posterior_transform).__name__}. Leave it out for the posterior as it is."
            )
        self._require_inputs(X)
        # A list hands its own indices to members of one output, and expects them to be ignored.
        tasks = self._find_tasks(None if self.num_outputs == 1 else output_indices)
        surrogate = self.surrogate
        belief = surrogate.at(self.transform_inputs(X))
        if tasks is not None:
            belief = belief.mapped(self._selection(tasks))
        mean, noise = belief.mean, None
        if observation_noise is not False:
            noise = self._observation_noise(surrogate, observation_noise, mean, tasks)
        posterior: Posterior = GPyTorchPosterior(_normal(mean, JointCovariance(mean, belief=belief, noise=noise)))
        if self._is_warped:
            transform = self.outcome_transform if tasks is None else self.outcome_transform.subset_output(tasks)
            posterior = transform.untransform_posterior(posterior, X=X)
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> Self:
        """Return a new model with more data, without factorizing anew; this one keeps its answers.

        Args:
            X: ``... x q x d``.
            Y: ``... x q x n``, NaN for missing values if the model allows them. Leading dimensions beyond the model's
                batch shape give a model of that batch shape.
            noise: ``... x q x n`` noise variances, behind the outcome transform, for a model that was built with
                `train_Yvar`; by default the average of those it has.
            kwargs: Ignored, for BoTorch.

        Raises:
            UnsupportedError: For a model that :meth:`subset_output` gave.
        """
        if self._tasks is not None:
            raise UnsupportedError(
                f"This model shows {self.num_outputs} of its {self._num_tasks} tasks and cannot learn from values of "
                "some tasks only. Condition the model that subset_output was called on."
            )
        if noise is not None and not isinstance(self.likelihood, ObservedNoise):
            if fantasize_flag.off():
                raise ValueError(
                    "noise should only be given to a model built with train_Yvar, got it for one whose noise holds for "
                    "all points. Leave noise out."
                )
            return self._observe_noise().condition_on_observations(X, Y, noise)
        self._require_inputs(X)
        Y = require_tensor("Y", Y, "Pass one row per point and one column per task.")
        X, Y = self._expand(X, Y)
        require_data(X, Y, self._num_tasks, ("X", "Y"), self._allow_missing, self._missing_hint)
        if noise is not None:
            noise = require_tensor("noise", noise, "Pass a variance for each observed value.")
        surrogate = self.surrogate
        has_graph = X.requires_grad or botorch_settings.propagate_grads.on()
        with torch.set_grad_enabled(has_graph):
            points = self._preprocess(X)
        if fantasize_flag.on() and not has_graph:
            Y = Y.detach()  # what was drawn hangs in the graph of the hyperparameters
        if self._is_warped:
            Y = self.outcome_transform(Y, X=X)[0]
        variances = None
        if isinstance(self.likelihood, ObservedNoise):
            variances = self.likelihood.average.unsqueeze(-2) if noise is None else noise
            variances = seen_variances("noise", _expand_variances("noise", variances, Y.shape), Y)
        if X.shape[:-2] != self.batch_shape:
            surrogate = surrogate.expand(X.shape[:-2])
        own = None
        if variances is not None and not self.likelihood.is_constant:
            own = surrogate.units.restore_variances(torch.where(variances.isnan(), 1, variances))
        grown = self._grow(surrogate, points, Y, own)
        targets = self.train_targets.expand(*X.shape[:-2], *self.train_targets.shape[-2:])
        targets = torch.cat([targets, surrogate.units.scale_values(Y)], dim=-2)
        return self._with_data(grown, X, targets, variances)

    def get_fantasy_model(self, inputs: Any, targets: Tensor, **kwargs: Any) -> Self:
        """Do as :meth:`condition_on_observations`, as GPyTorch and BoTorch's ``ModelListGP`` call it.

        Args:
            inputs: ``... x q x d``.
            targets: ``... x q x n``, behind the outcome transform; ``... x q`` for one task. Or, as from a
                ``ModelListGP``, ``... x nq``, one task after the other, with the q points repeated for each.
            kwargs: Passed on.

        Raises:
            UnsupportedError: With an input transform, of which the callers disagree whether it was applied.
        """
        if hasattr(self, "input_transform"):
            raise UnsupportedError(
                "get_fantasy_model and ModelListGP.condition_on_observations do not say whether inputs are transformed "
                f"already, and this model has a {type(self.input_transform).__name__}. Use condition_on_observations "
                "of the model itself."
            )
        X = require_tensor("inputs", _only(inputs), "Pass one row per point.")
        Y = require_tensor("targets", targets, "Pass one value per point and task.")
        X, Y, noise = _undo_long_format(X, Y, kwargs.pop("noise", None), self._num_tasks)
        if hasattr(self, "outcome_transform"):
            Y = self.outcome_transform.untransform(Y, X=X)[0]
        return self.condition_on_observations(X, Y, noise=noise, **kwargs)

    def _observe_noise(self) -> Self:
        """Return the same model with its noise as that of each observation."""
        new = self._copy_around(self.surrogate)
        variances = self.noise.detach().unsqueeze(-2).expand(self.train_targets.shape)
        new.likelihood, new._fit = ObservedNoise(torch.where(self.train_targets.isnan(), torch.nan, variances)), None
        return new

    def _grow(self, surrogate: Surrogate, X: Tensor, Y: Tensor, noise: Tensor | None) -> Surrogate:
        """Return what is known after more observations."""
        return surrogate.append(X, Y, noise)

    def _with_data(self, surrogate: Surrogate, new_X: Tensor, targets: Tensor, new_noise: Tensor | None) -> Self:
        """Return a copy of this model with more data, and what is known from them."""
        # Data may hang in a graph, which cannot be copied, and are replaced anyway, as is what was fitted to them.
        replaced = (self.train_inputs, self.train_targets, self._original_train_inputs, self._fit)
        new = deepcopy(self, {id(part): None for part in replaced if part is not None})
        regression = surrogate.regression
        new.train_inputs, new.train_targets = (regression.train_X,), targets
        if self._has_transformed_inputs:
            own = self.observed_X.expand(*regression.batch_shape, *self.observed_X.shape[-2:])
            new._original_train_inputs = torch.cat([own, new_X], dim=-2)
        new._input_batch_shape = regression.batch_shape
        if new_noise is not None:
            mine = self.likelihood.variances
            mine = mine.expand(*new_X.shape[:-2], *mine.shape[-2:])
            new.likelihood = ObservedNoise(torch.cat([mine, new_noise], dim=-2))
            if new.likelihood.is_constant != self.likelihood.is_constant:
                return new  # to be fitted anew: the noise is of another kind now
        return new.adopt(surrogate)

    def adopt(self, surrogate: Surrogate) -> Self:
        """Take this surrogate for what is learned from the data and the hyperparameters there are.

        Its points are those behind the input transform.
        """
        self._fit = Fit(surrogate, Stamp.of(self._data(), self._parts()))
        return self

    @classmethod
    def construct_inputs(cls, training_data: SupervisedDataset, **options: Any) -> dict[str, Any]:
        """Return the model's arguments from BoTorch's data set; options go on as they are."""
        return super().construct_inputs(training_data) | options

    def subset_output(self, idcs: Sequence[int]) -> Self:
        """Return the same model, showing some of its tasks only; what it knows of them still comes from all.

        Args:
            idcs: The indices of the outputs to keep, from 0; negative ones count from the end.
        """
        tasks = self._find_tasks([] if idcs is None else idcs)
        new = self._copy_around(self.surrogate)
        new._tasks, new._shown = tasks, None if tasks is None else self._selection(tasks)
        return new

    def _copy_around(self, surrogate: Surrogate) -> Self:
        """Return a copy of this model around another surrogate of the same data."""
        shared = (self.train_inputs, self.train_targets, self._original_train_inputs)
        memo: dict[int, object] = {id(part): part for part in shared if part is not None}
        new = deepcopy(self, memo | {id(self._fit): None})
        return new.adopt(surrogate)

    def __call__(self, *args: Any, **kwargs: Any) -> MultivariateNormal:
        """Return the prior in training, at the points observed; else the posterior behind the transforms."""
        if self.training or prior_mode.on():
            return super().__call__(*args, **kwargs)
        X = require_tensor("X", _only(args), "Pass one row per point.")
        belief = self.show(self.surrogate.inside(X))
        return MultitaskMultivariateNormal(belief.mean, JointCovariance(belief.mean, belief=belief, noise=None))

    def forward(self, x: Tensor) -> MultitaskMultivariateNormal:
        """Return the prior at ``(b) x q x d`` points, as GPyTorch's marginal likelihood wants it; not the posterior."""
        if self.training:
            x = self.transform_inputs(x)
        return MultitaskMultivariateNormal(evaluate_mean(self.mean_module, x, self._num_tasks), self.covar_module(x))

    def compute_custom_loss(self, mll: ExactMarginalLogLikelihood, **kwargs: Any) -> Tensor:
        """Return ``(b)``, what ``fit_gpytorch_mll`` minimizes: minus the objective per observed value."""
        return compute_loss(self, mll)

    @property
    def custom_fit(self) -> Any:
        """Leave a model alone in which nothing is to be learned; BoTorch's hook for fits."""
        if any(parameter.requires_grad for parameter in self.parameters()):
            raise AttributeError("custom_fit")
        return _leave_alone

    @property
    def _aug_batch_shape(self) -> torch.Size:
        return find_own_batch(self)

    @abstractmethod
    def _fit_to(self, problem: Problem) -> Regression:
        """Return the regression."""

    @abstractmethod
    def _log_likelihood(self, problem: Problem) -> Tensor:
        """Return the log density ``(b)`` of the problem's values."""

    def _problem(self, kernel: Kernel, mean_module: Mean) -> Problem:
        X = self.transform_inputs(self.observed_X) if self.training else self._preprocess(self.observed_X)
        Y = self.train_targets
        if not isinstance(mean_module, ZeroMean):
            Y = Y - evaluate_mean(mean_module, X, self._num_tasks)
        observed = isinstance(self.likelihood, ObservedNoise) and not self.likelihood.is_constant
        noise = self.likelihood.filled if observed else self.noise.unsqueeze(-2)
        return Problem(adapt_kernel(kernel, self._num_tasks), noise, X, Y)

    def _current(self, may_wait: bool) -> Surrogate:
        """Return what was fitted last, unless something has changed since."""
        if self.training:
            self.eval()
        if botorch_settings.propagate_grads.on():
            return self._learn(self.covar_module, self.mean_module)
        if self._fit is None or not self._fit.stamp.matches(self._data(), self._parts(), may_wait):
            # Copies: whatever happens to the model's own kernel, the parts of what was fitted belong together.
            kernel, mean_module = (deepcopy(m).requires_grad_(False) for m in (self.covar_module, self.mean_module))
            with torch.no_grad():
                self.adopt(self._learn(kernel, mean_module))
        assert self._fit is not None
        return self._fit.surrogate

    def _learn(self, kernel: Kernel, mean_module: Mean) -> Surrogate:
        units, prior_mean = IDENTITY, None
        if hasattr(self, "outcome_transform") and not self._is_warped:
            units = find_units(
                self.outcome_transform, self.train_targets.new_zeros(*self.batch_shape, 1, self._num_tasks)
            )
        if not isinstance(mean_module, ZeroMean):
            prior_mean = partial(evaluate_mean, mean_module, num_tasks=self._num_tasks)
        return Surrogate(self._fit_to(self._problem(kernel, mean_module)), units, prior_mean)

    def _data(self) -> list[Tensor]:
        return [self.observed_X, self.train_targets]

    def _parts(self) -> list[Module]:
        names = ("covar_module", "likelihood", "mean_module", "input_transform", "outcome_transform")
        return [self._modules[name] for name in names if self._modules.get(name) is not None]

    def _selection(self, tasks: list[int]) -> Tensor:
        """Return the matrix ``k x n`` that picks these tasks."""
        # On the device from now on, so that no acquisition waits for it to get there.
        return torch.eye(self._num_tasks, dtype=self.train_targets.dtype)[tasks].to(self.train_targets.device)

    def _find_tasks(self, indices: object) -> list[int] | None:
        """Return the tasks behind some of the outputs."""
        if indices is None:
            return self._tasks
        given: Sequence[Any] = indices if isinstance(indices, Sequence) else [None]
        m = self.num_outputs
        is_index = [isinstance(i, Integral) and not isinstance(i, bool) and -m <= int(i) < m for i in given]
        if not given or not all(is_index):
            raise ValueError(
                f"The indices of outputs should be a list of at least one, each from 0 to {m - 1}, got {indices!r}. "
                "Count the tasks from zero."
            )
        tasks = list(range(self._num_tasks)) if self._tasks is None else self._tasks
        return [tasks[index] for index in given]

    @property
    def _is_warped(self) -> bool:
        """True if the posterior is not Gaussian in the user's units."""
        return hasattr(self, "outcome_transform") and not self.outcome_transform._is_linear

    def _require_affine(self) -> None:
        if self._is_warped:
            raise UnsupportedError(
                f"The outcome_transform {type(self.outcome_transform).__name__} is not affine, so there is no Gaussian "
                "posterior in the units of train_Y. Use posterior(X), or an affine transform such as Standardize."
            )

    def _observation_noise(
        self, surrogate: Surrogate, noise: bool | Tensor, mean: Tensor, tasks: list[int] | None
    ) -> Tensor:
        selected = slice(None) if tasks is None else tasks
        if isinstance(noise, bool):
            own = self.noise if botorch_settings.propagate_grads.on() else self.noise.detach()
            own = own.expand(*own.shape[:-1], self._num_tasks).unsqueeze(-2)
            variances = surrogate.units.restore_variances(own)[..., selected]
        else:
            noise = require_tensor("observation_noise", noise, "Pass True, or a tensor of variances.")
            require_positive("observation_noise", noise, "Pass variances.", allow_zero=True)
            is_selected = noise.dim() == 0 or noise.shape[-1] in (1, mean.shape[-1])
            variances, scale = noise if is_selected else noise[..., selected], surrogate.units.scale
            variances = variances if scale is None else variances * scale[..., selected].square()
        return _expand_variances("observation_noise", variances, mean.shape)

    def _expand(self, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        try:
            batch_shape = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2], self.batch_shape)
        except RuntimeError as error:
            raise ValueError(
                f"X and Y should have batch shapes that broadcast with the model's {tuple(self.batch_shape)}, "
                f"got shapes {tuple(X.shape)} and {tuple(Y.shape)}. Add or expand leading dimensions."
            ) from error
        return X.expand(*batch_shape, *X.shape[-2:]), Y.expand(*batch_shape, *Y.shape[-2:])

    def _preprocess(self, X: Tensor) -> Tensor:
        """Take observed points behind the input transform, which may treat them unlike those to predict at."""
        return self.input_transform.preprocess_transform(X) if hasattr(self, "input_transform") else X

    def _first_transform(self, train_X: Tensor, input_transform: object) -> Tensor:
        if input_transform is None:
            return train_X
        if not isinstance(input_transform, InputTransform):
            raise ValueError(
                f"input_transform should be a BoTorch InputTransform, got {type(input_transform).__name__}. "
                "Pass for instance Normalize(d)."
            )
        try:
            with torch.no_grad():
                transformed = self.transform_inputs(train_X, input_transform)
        except (BotorchError, IndexError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"input_transform should take train_X of shape {tuple(train_X.shape)}, got {error} "
                f"Build it for d = {train_X.shape[-1]}."
            ) from error
        require_finite("train_X behind the input_transform", transformed)
        return transformed

    def _require_inputs(self, X: Tensor) -> None:
        X = require_tensor("X", X, "Pass one row per point.")
        train_X = self.observed_X
        d = train_X.shape[-1]
        if X.dim() < 2 or X.shape[-1] != d:
            raise ValueError(
                f"X should be `... x q x d` with d = {d} (from train_X), got shape {tuple(X.shape)}. "
                "Pass one row per point and one column per input."
            )
        if 0 in X.shape[:-2]:
            raise ValueError(
                f"X should have no empty batch, got shape {tuple(X.shape)}. Pass at least one set of points."
            )
        require_same_kind(("train_X", train_X), ("X", X))

    def _extract_targets_and_noise(self) -> tuple[Tensor, Tensor | None]:
        return self.train_targets, self.likelihood.variances if isinstance(self.likelihood, ObservedNoise) else None

    def _restore_targets_and_noise(self, Y: Tensor, Yvar: Tensor | None, strict: bool) -> None:
        self.set_train_data(targets=Y, strict=strict)
        if Yvar is not None:
            self.likelihood = ObservedNoise(Yvar)

    def set_train_data(self, inputs: Any = None, targets: Any = None, strict: bool = True) -> None:
        """Exchange the data: inputs before the input transform, targets behind the outcome transform."""
        if inputs is not None:
            self._require_data_to_exchange("inputs", _only(inputs), self.train_inputs[0], strict)
        if targets is not None:
            self._require_data_to_exchange("targets", targets, self.train_targets, strict)
        X = self.train_inputs[0] if inputs is None else _only(inputs)
        Y = self.train_targets if targets is None else targets
        if X.shape[:-1] != Y.shape[:-1]:
            raise ValueError(
                f"inputs and targets should have the same leading shape, got shapes {tuple(X.shape)} and "
                f"{tuple(Y.shape)}. Exchange both at once."
            )
        is_new = inputs is not None and inputs is not self._original_train_inputs  # to which BoTorch goes back
        inputs = _only(inputs).clone() if is_new else inputs
        super().set_train_data(inputs, None if targets is None else targets.clone(), strict)
        if self._has_transformed_inputs and is_new:
            self._has_transformed_inputs = False
            self._set_transformed_inputs()

    def _require_data_to_exchange(self, name: str, value: object, own: Tensor, strict: bool) -> None:
        value = require_tensor(name, value, "Pass one row per point.")
        if strict and value.shape != own.shape:
            raise ValueError(
                f"{name} should keep the shape {tuple(own.shape)}, got {tuple(value.shape)}. "
                "Pass strict=False to exchange it for another."
            )
        is_changed = not hasattr(self, "input_transform") and value.shape[-1:] != own.shape[-1:]
        if value.dim() < 2 or is_changed or (name == "targets" and value.shape[-1] != self._num_tasks):
            raise ValueError(
                f"{name} should have {own.shape[-1]} columns as before, got shape {tuple(value.shape)}. "
                "Build another model for other inputs or tasks."
            )
        if strict:
            require_same_kind((f"the model's {name}", own), (name, value))
        if name == "inputs":
            require_finite(name, value)
        else:
            require_values(name, value, self._allow_missing, self._missing_hint)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        if self._original_train_inputs is not None:
            self._original_train_inputs = fn(self._original_train_inputs)
        return super()._apply(fn)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_fit": None, "prediction_strategy": None}


def _undo_long_format(
    X: Tensor, Y: Tensor, noise: Tensor | None, num_tasks: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return points, values ``... x q x n`` and noise from ``... x nq`` ones, the points repeated for each task."""
    is_long = X.shape[-2:-1] == Y.shape[-1:] and (num_tasks == 1 or Y.shape[-2:] != (X.shape[-2], num_tasks))
    if not is_long:
        return X, Y, noise
    blocks = X.unflatten(-2, (num_tasks, -1))
    if not (blocks == blocks[..., :1, :, :]).all():
        raise UnsupportedError("A model of several tasks takes values of all of them at the same points only.")
    rows = [None if values is None else values.unflatten(-1, (num_tasks, -1)).mT for values in (Y, noise)]
    assert rows[0] is not None
    return blocks[..., 0, :, :], rows[0], rows[1]


def _only(inputs: Any) -> Any:
    """Return the inputs, which GPyTorch also takes as a tuple of one."""
    return inputs[0] if isinstance(inputs, tuple | list) and len(inputs) == 1 else inputs


def _require_mean(mean_module: object, num_tasks: int) -> None:
    if not isinstance(mean_module, Mean):
        raise ValueError(
            f"mean_module should be a gpytorch.means.Mean, got {type(mean_module).__name__}. "
            "Leave it out for a prior mean of zero."
        )
    if isinstance(mean_module, MultitaskMean) and mean_module.num_tasks != num_tasks:
        raise ValueError(
            f"mean_module should be for {num_tasks} tasks (from train_Y), got {mean_module.num_tasks}. "
            f"Build it with num_tasks={num_tasks}."
        )


def _require_rows(name: str, variances: object) -> None:
    if isinstance(variances, Tensor) and variances.dim() > 1 and variances.shape[-2] == 0:
        raise ValueError(f"{name} should have at least one row, got none. Pass eta= for a prior without data.")


def _require_one_noise(**sources: object) -> None:
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{given[0]} should not be given together with {given[1]}, got both. Each says the noise.")


def _expand_variances(name: str, variances: Tensor, shape: torch.Size) -> Tensor:
    try:
        return variances.expand(shape)
    except RuntimeError as error:
        raise ValueError(
            f"{name} should broadcast to the shape {tuple(shape)} of the values, got {tuple(variances.shape)}. "
            "Pass one column per task, and one row per point or one for all."
        ) from error


def _leave_alone(mll: ExactMarginalLogLikelihood, **kwargs: Any) -> ExactMarginalLogLikelihood:
    return mll.eval()


def _normal(mean: Tensor, covariance: JointCovariance) -> MultivariateNormal:
    if mean.shape[-1] == 1:
        return MultivariateNormal(mean.squeeze(-1), covariance)
    return MultitaskMultivariateNormal(mean, covariance)
