"""What the exact and the Nystrom model share: a BoTorch model around a regression."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from numbers import Integral
from typing import Any, NoReturn, Self

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
from linear_operator.utils.errors import NanError
from torch import Tensor

from mtbo_torch import regression as reg
from mtbo_torch.checks import (
    require_batch,
    require_data,
    require_finite,
    require_positive,
    require_same_kind,
    require_tensor,
    require_values,
)
from mtbo_torch.covariance import JointCovariance
from mtbo_torch.evaluation import ScaledAtPoints, as_gamma, rescaled
from mtbo_torch.kernels import learned_kernel, num_tasks_of, require_takes, shared_parameter
from mtbo_torch.models.fitted import Fitted, OutcomeUnits, Problem, evaluated_mean, learned_outcomes
from mtbo_torch.noise import ObservedNoise, likelihood_of, noise_of, require_likelihood, seen_variances


class MultiTaskGPModel(ExactGP, BatchedMultiOutputGPyTorchModel, FantasizeMixin, ABC):
    """What the exact and the Nystrom model share: a BoTorch model around a regression; see there for the arguments.

    Everything it says is in the units of `train_Y`, and it takes points in those of `train_X`. (The regression works in
    the user's units: an affine outcome transform is a change of units, which scales the task matrices and the noise.
    Inputs are transformed before it sees them.) It is fitted when first asked, and anew when a hyper-parameter has
    changed.

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
    _allow_missing = False
    _missing_hint = ""
    _has_transformed_inputs: bool
    _original_train_inputs: Tensor | None
    _task_index: Tensor | None

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
            train_Yvar = seen_variances("train_Yvar", train_Yvar, train_Y)
        batch_shape, num_tasks = train_X.shape[:-2], train_Y.shape[-1]
        transformed_X = self._first_transformed(train_X, input_transform)
        if outcome_transform is not None:
            train_Y, train_Yvar = _outcomes(outcome_transform, train_Y, train_Yvar, transformed_X)
        if covar_module is None:
            covar_module = learned_kernel(num_tasks, transformed_X.shape[-1], batch_shape)
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
        self.register_buffer("_task_index", None, persistent=False)
        self._input_batch_shape = batch_shape
        self._fitted: Fitted | None = None
        self.to(train_X)
        require_takes("covar_module", covar_module, transformed_X)

    @property
    def num_outputs(self) -> int:
        """The number of tasks, or of those that :meth:`subset_output` left."""
        return self._num_tasks if self._tasks is None else len(self._tasks)

    @property
    def regression(self) -> reg.Regression:
        """The fitted regression. It is fitted anew when a hyper-parameter has changed since."""
        return self._current().regression

    def is_fitted_by(self, regression: reg.Regression) -> bool:
        """Whether this is the regression behind the model's last answer."""
        return self._fitted is not None and self._fitted.regression is regression

    @property
    def info_gain(self) -> Tensor:
        r"""``(b)``, the information gain :math:`\frac12 \log\det(I + \eta^{-1} G_t)`, which a radius needs.

        Of a :class:`NystromMultiTaskGP`, :math:`\frac12 \log\det(I + \eta^{-1} \tilde G_t) + \frac1{2 \eta} tr(G_t -
        \tilde G_t)`, never less, of the data it was built with, and :math:`\frac12 \log\det(I + \eta^{-1}
        \tilde\Gamma_{s-1}(x_s, x_s))` more for every observation since.
        """
        return self.regression.info_gain

    @property
    def noise(self) -> Tensor:
        r"""``(b) x 1`` or ``(b) x n``: :math:`\eta`, the same for all tasks or one for each.

        It is that of values behind the outcome transform, such as standardised ones, and the average if observations
        have their own.
        """
        return noise_of(self.likelihood)

    def mean(self, X: Tensor) -> Tensor:
        r"""``... x q x n``, the posterior mean :math:`\mu_t(x)` at ``... x q x d`` points."""
        fitted, points = self._at(X)
        return self._mean(fitted, points, fitted.regression.mean(points))

    def covariance(self, X: Tensor) -> Tensor:
        r"""``... x q x n x n``, :math:`\Gamma_t(x, x)` at each of ``... x q x d`` points."""
        fitted, points = self._at(X)
        return self._block(fitted.regression.covariance(points))

    def covariance_norm(self, X: Tensor) -> Tensor:
        r"""``... x q``, the operator norm :math:`\|\Gamma_t(x, x)\|` at each of ``... x q x d`` points."""
        fitted, points = self._at(X)
        if self._tasks is not None:
            return reg.operator_norm(self._block(fitted.regression.covariance(points)))
        return fitted.regression.covariance_norm(points)

    def mean_and_norm(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`mean` and :meth:`covariance_norm` at ``... x q x d`` points, sharing the kernel evaluation.

        For use inside acquisition functions. Away from the CPU, where comparing them would wait for the device,
        hyper-parameters are taken to be unchanged since the last call of another method.

        Returns:
            ``... x q x n`` and ``... x q``.
        """
        fitted, points = self._at(X, in_acquisition=True)
        if self._tasks is not None:
            mean, covariance = fitted.regression.mean_and_covariance(points)
            return self._mean(fitted, points, mean), reg.operator_norm(self._block(covariance))
        mean, norm = fitted.regression.mean_and_norm(points)
        return self._mean(fitted, points, mean), norm

    def mean_and_variance(self, X: Tensor, directions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        r""":meth:`mean`, and the variances :math:`e^T \Gamma_t(x, x) e`; otherwise as :meth:`mean_and_norm`.

        Args:
            X: ``... x q x d``.
            directions: ``(b) x k x n``, the directions e; by default the n tasks.

        Returns:
            ``... x q x n`` and ``... x q x k``.
        """
        fitted, points = self._at(X, in_acquisition=True)
        if directions is not None:
            self._require_directions(directions)
        if directions is not None and self._task_index is not None:
            directions = directions.to(self._task_index.device)
            hidden = directions.new_zeros(*directions.shape[:-1], self._num_tasks)
            directions = hidden.index_add(-1, self._task_index, directions)
        mean, variance = fitted.regression.mean_and_variance(points, directions)
        return self._mean(fitted, points, mean), self._select(variance) if directions is None else variance

    def mean_and_covariance(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`mean` and :meth:`covariance` at ``... x q x d`` points; otherwise as :meth:`mean_and_norm`.

        Returns:
            ``... x q x n`` and ``... x q x n x n``.
        """
        fitted, points = self._at(X, in_acquisition=True)
        mean, covariance = fitted.regression.mean_and_covariance(points)
        return self._mean(fitted, points, mean), self._block(covariance)

    def beside(self, X: Tensor, pending: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What is known of a point together with what will be observed elsewhere; otherwise as :meth:`mean_and_norm`.

        Args:
            X: ``... x 1 x d``.
            pending: ``... x p x d``, where all tasks will be observed, also those that are hidden here.

        Returns:
            The mean at X, ``... x 1 x n``, and covariances: of the tasks there, ``... x n x n``, of the observations
            with them, ``... x pn x n``, and of the observations, ``... x pn x pn``.
        """
        mean, n = self._mean_in_acquisition(X), self._num_tasks
        fitted, points = self._at(torch.cat([X, pending], dim=-2), in_acquisition=True)
        covariance = fitted.regression.joint_covariance(points)
        cross, theirs = covariance[..., n:, :n], covariance[..., n:, n:]
        noise = self._in_units(fitted, self.noise.expand(*self.noise.shape[:-1], n).unsqueeze(-2))
        noise = noise.expand(*theirs.shape[:-2], pending.shape[-2], n).flatten(-2)
        return mean, self._block(covariance[..., :n, :n]), self._select(cross), theirs + torch.diag_embed(noise)

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """The joint posterior over ``q`` points and the tasks (see BoTorch's ``Model.posterior``).

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
        fitted, points = self._at(X, in_outcome_units=False)
        tasks = self._kept(output_indices)
        mean = self._mean(fitted, points, fitted.regression.mean(points), tasks)
        noise = None
        if observation_noise is not False:
            noise = self._observation_noise(fitted, observation_noise, mean, tasks)
        covariance = JointCovariance(points, regression=fitted.regression, tasks=tasks, noise=noise)
        posterior: Posterior = GPyTorchPosterior(_normal(mean, covariance))
        if self._is_warped:
            transform = self.outcome_transform if tasks is None else self.outcome_transform.subset_output(tasks)
            posterior = transform.untransform_posterior(posterior, X=X)
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> Self:
        """A new model with more data, without factorising anew; this one keeps its answers.

        Args:
            X: ``... x q x d``.
            Y: ``... x q x n``, NaN for values that were not seen if the model allows missing ones. Leading dimensions
                beyond the model's batch shape give a model of that batch shape.
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
        if noise is not None and not isinstance(self.likelihood, ObservedNoise) and fantasize_flag.off():
            raise ValueError(
                "noise should only be given to a model built with train_Yvar, got it for one whose noise holds for "
                "all points. Leave noise out."
            )
        self._require_inputs(X)
        Y = require_tensor("Y", Y, "Pass one row per point and one column per task.")
        X, Y = self._expanded(X, Y)
        require_data(X, Y, self._num_tasks, ("X", "Y"), self._allow_missing, self._missing_hint)
        if noise is not None:
            noise = require_tensor("noise", noise, "Pass a variance for each observed value.")
        fitted = self._current()
        with torch.set_grad_enabled(X.requires_grad or botorch_settings.propagate_grads.on()):
            points = self._preprocessed(X)
        if self._is_warped:
            with torch.no_grad():
                Y = self.outcome_transform(Y, X=X)[0]
        values = Y - fitted.prior_mean(points) if fitted.has_prior_mean else Y
        variances = None
        if isinstance(self.likelihood, ObservedNoise):
            variances = self.likelihood.average.unsqueeze(-2) if noise is None else noise
            variances = seen_variances("noise", _expanded("noise", variances, Y.shape), Y)
        regression = fitted.regression
        if X.shape[:-2] != self.batch_shape:
            regression = regression.expand(X.shape[:-2])
        if fitted.per_point:
            assert variances is not None
            deviations = self._in_units(fitted, torch.where(variances.isnan(), 1, variances)).sqrt()
            points = torch.cat([points, deviations], dim=-1)
            values = values / deviations
        new = self._with_regression(regression.append(points, values), X)
        if variances is not None:
            mine = self.likelihood.variances
            mine = mine.expand(*X.shape[:-2], *mine.shape[-2:])
            new.likelihood = ObservedNoise(torch.cat([mine, variances], dim=-2))
            if new.likelihood.is_constant == fitted.per_point:
                new._fitted = None  # the noise is of another kind now
        return new

    def hallucinate(self, X: Tensor) -> Self:
        """A new model that has seen its own mean at ``... x q x d``: the variance shrinks, the mean stays."""
        whole = self.whole()
        return whole.condition_on_observations(X, whole.mean(X))._showing(self._tasks)

    def whole(self) -> Self:
        """This model with all its tasks, also those that :meth:`subset_output` hides."""
        if self._tasks is None:
            return self
        return self.with_regression(self.regression)._showing(None)

    @classmethod
    def construct_inputs(cls, training_data: SupervisedDataset, **options: Any) -> dict[str, Any]:
        """The arguments of the model from BoTorch's data set; options go on as they are."""
        return super().construct_inputs(training_data) | options

    def subset_output(self, idcs: Sequence[int]) -> Self:
        """The same model, showing some of its tasks only; what it knows of them still comes from all.

        Args:
            idcs: The indices of the outputs to keep, from 0; negative ones count from the end.
        """
        tasks = self._kept([] if idcs is None else idcs)
        return self.with_regression(self.regression)._showing(tasks)

    def with_regression(self, regression: reg.Regression) -> Self:
        """A copy of this model around a regression that grew out of :attr:`regression`."""
        if not isinstance(regression, reg.Regression):
            raise ValueError(
                f"regression should be a Regression, got {type(regression).__name__}. "
                "Pass model.regression, or what grew out of it."
            )
        return self._with_regression(regression, None)

    def forward(self, x: Tensor) -> MultitaskMultivariateNormal:
        """The prior at ``(b) x q x d`` points, as GPyTorch's marginal likelihood wants it; not the posterior."""
        if self.training:
            x = self.transform_inputs(x)
        mean = evaluated_mean(self.mean_module, x, self._num_tasks)
        return MultitaskMultivariateNormal(mean, self.covar_module(x))

    def compute_custom_loss(self, mll: ExactMarginalLogLikelihood, **kwargs: Any) -> Tensor:
        """``(b)``, minus the log marginal likelihood per observed value: what ``fit_gpytorch_mll`` minimises."""
        if self.train_targets.shape[-2] == 0:
            raise ValueError("train_X should have at least one row to learn from, got none. Tell the model some data.")
        num_values = (~self.train_targets.isnan()).sum(dim=(-2, -1))
        if not num_values.any():
            raise ValueError(
                "train_Y should have at least one value to learn from, got NaN only. Tell the model some data."
            )
        problem = self._problem(self.covar_module, self.mean_module, None)
        try:
            value = self._log_density(problem)
        except (reg.NotPositiveDefiniteError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
            raise NanError(str(error)) from error  # from which BoTorch's optimisers turn back
        return -mll._add_other_terms(value, ()) / num_values.clamp_min(1)

    @property
    def custom_fit(self) -> Any:
        """BoTorch's hook for a fit of our own: there if nothing is to be learned, and then nothing is done."""
        if any(parameter.requires_grad for parameter in self.parameters()):
            raise AttributeError("custom_fit")
        return _leave_alone

    @property
    def _aug_batch_shape(self) -> torch.Size:
        # BoTorch fits the members of a batch one by one; only where they surely share nothing that is learned.
        own = {*self.covar_module.parameters(), *self.likelihood.parameters()}
        others = any(parameter.requires_grad for parameter in self.parameters() if parameter not in own)
        has_own_noise = self.noise.shape[:-1] == self.batch_shape or not self.noise.requires_grad
        has_own_kernel = shared_parameter(self.covar_module, self.batch_shape) is None
        return self.batch_shape if has_own_kernel and has_own_noise and not others else torch.Size()

    @abstractmethod
    def _fit_to(self, problem: Problem) -> reg.Regression:
        """The regression."""

    @abstractmethod
    def _log_likelihood(self, problem: Problem) -> Tensor:
        """``(b)``, of the problem's values."""

    def _log_density(self, problem: Problem) -> Tensor:
        """``(b)``, of the values before they were divided by deviations of their own."""
        value = self._log_likelihood(problem)
        if problem.deviations is None:
            return value
        return value - torch.where(problem.Y.isnan(), 0, problem.deviations.log()).sum(dim=(-2, -1))

    def _problem(self, kernel: Kernel, mean_module: Mean, units: OutcomeUnits | None) -> Problem:
        X = self.transform_inputs(self._train_X) if self.training else self._preprocessed(self._train_X)
        Y = self.train_targets - evaluated_mean(mean_module, X, self._num_tasks)
        gamma, noise = as_gamma(kernel, self._num_tasks), self.noise
        observed = self.likelihood.filled if isinstance(self.likelihood, ObservedNoise) else None
        if units is not None:
            scale = units.scale
            gamma, Y = rescaled(gamma, scale.squeeze(-2)), scale * Y
            noise = noise * scale.squeeze(-2).square()
            observed = None if observed is None else observed * scale.square()
        if observed is None or self.likelihood.is_constant:
            return Problem(gamma, noise, X, Y, None)
        deviations = observed.sqrt()
        gamma = ScaledAtPoints(gamma, self._num_tasks)
        one = noise.new_ones(*noise.shape[:-1], 1)
        return Problem(gamma, one, torch.cat([X, deviations], dim=-1), Y / deviations, deviations)

    def _current(self) -> Fitted:
        """What was fitted last, unless a hyper-parameter has changed since."""
        if self.training:
            self.eval()
        values = self._hyperparameters()
        if botorch_settings.propagate_grads.on():
            return self._fit(self.covar_module, self.mean_module, values)
        if self._fitted is None or not self._fitted.is_for(values):
            # Copies: whatever happens to the model's own kernel, the parts of what was fitted belong together.
            kernel, mean_module = (deepcopy(m).requires_grad_(False) for m in (self.covar_module, self.mean_module))
            with torch.no_grad():
                self._fitted = self._fit(kernel, mean_module, values)
        return self._fitted

    def _fit(self, kernel: Kernel, mean_module: Mean, hyperparameters: list[Tensor]) -> Fitted:
        units = None
        if hasattr(self, "outcome_transform") and not self._is_warped:
            like = self.train_targets.new_zeros(*self.batch_shape, 1, self._num_tasks)
            units = OutcomeUnits.of(self.outcome_transform, like)
        problem = self._problem(kernel, mean_module, units)
        copies = tuple(value.detach().clone() for value in hyperparameters)
        per_point = problem.deviations is not None
        width = problem.X.shape[-1] - (self._num_tasks if per_point else 0)
        return Fitted(self._fit_to(problem), mean_module, units, per_point, width, copies)

    def _at(self, X: Tensor, in_acquisition: bool = False, in_outcome_units: bool = True) -> tuple[Fitted, Tensor]:
        """What answers, and the points as it takes them."""
        self._require_inputs(X)
        if in_outcome_units and self._is_warped:
            self._refuse_warped()
        comparable = X.device.type == "cpu" or botorch_settings.propagate_grads.on() or not in_acquisition
        fitted = self._fitted if self._fitted is not None and not comparable else self._current()
        points = self.transform_inputs(X)
        if fitted.per_point:
            points = torch.nn.functional.pad(points, (0, self._num_tasks), value=1.0)
        return fitted, points

    def _mean_in_acquisition(self, X: Tensor) -> Tensor:
        """:meth:`mean`, otherwise as :meth:`mean_and_norm`."""
        fitted, points = self._at(X, in_acquisition=True)
        return self._mean(fitted, points, fitted.regression.mean(points))

    def _mean(self, fitted: Fitted, points: Tensor, mean: Tensor, tasks: list[int] | None = None) -> Tensor:
        if fitted.has_prior_mean:
            mean = mean + fitted.prior_mean(points)
        return self._select(mean, tasks)

    def _select(self, values: Tensor, tasks: list[int] | None = None) -> Tensor:
        if tasks is not None:
            return values[..., tasks]
        return values if self._task_index is None else values.index_select(-1, self._task_index)

    def _block(self, covariance: Tensor) -> Tensor:
        return self._select(self._select(covariance).mT).mT

    def _showing(self, tasks: list[int] | None) -> Self:
        """Show these tasks only, here and now."""
        self._tasks = tasks
        # On the device from now on, so that no acquisition waits for it to get there.
        self._task_index = None if tasks is None else torch.tensor(tasks, device=self.train_targets.device)
        return self

    def _kept(self, indices: object) -> list[int] | None:
        """The tasks behind some of the outputs."""
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
        """Whether the posterior is not Gaussian in the user's units."""
        return hasattr(self, "outcome_transform") and not self.outcome_transform._is_linear

    def _refuse_warped(self) -> NoReturn:
        raise UnsupportedError(
            f"The outcome_transform {type(self.outcome_transform).__name__} is not affine, so there is no Gaussian "
            "posterior in the units of train_Y. Use posterior(X), or an affine transform such as Standardize."
        )

    def _observation_noise(self, fitted: Fitted, noise: bool | Tensor, mean: Tensor, tasks: list[int] | None) -> Tensor:
        if not isinstance(noise, bool):
            noise = require_tensor("observation_noise", noise, "Pass True, or a tensor of variances.")
            require_positive("observation_noise", noise, "Pass variances.", allow_zero=True)
            is_selected = noise.dim() == 0 or noise.shape[-1] in (1, mean.shape[-1])
            variances = noise if is_selected else self._select(noise, tasks)
            scale = None if fitted.units is None else self._select(fitted.units.scale, tasks)
            variances = variances if scale is None else variances * scale.square()
        else:
            own = self.noise.expand(*self.noise.shape[:-1], self._num_tasks).unsqueeze(-2)
            variances = self._select(self._in_units(fitted, own), tasks)
        return _expanded("observation_noise", variances, mean.shape)

    @staticmethod
    def _in_units(fitted: Fitted, variances: Tensor) -> Tensor:
        return variances if fitted.units is None else variances * fitted.units.scale.square()

    def _expanded(self, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        try:
            batch_shape = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2], self.batch_shape)
        except RuntimeError as error:
            raise ValueError(
                f"X and Y should have batch shapes that broadcast with the model's {tuple(self.batch_shape)}, "
                f"got shapes {tuple(X.shape)} and {tuple(Y.shape)}. Add or expand leading dimensions."
            ) from error
        return X.expand(*batch_shape, *X.shape[-2:]), Y.expand(*batch_shape, *Y.shape[-2:])

    def _with_regression(self, regression: reg.Regression, new_X: Tensor | None) -> Self:
        # Data may hang in a graph, which cannot be copied, and are replaced anyway, as is what was fitted to them.
        replaced = (self.train_inputs, self.train_targets, self._original_train_inputs, self._fitted)
        new = deepcopy(self, {id(part): () for part in replaced if part is not None})
        fitted = self._current()
        points, values = regression.train_X, regression.train_Y
        new.train_inputs = (points[..., : fitted.width],)
        if fitted.per_point:
            values = values * points[..., fitted.width :]
        if fitted.units is not None:
            values = values / fitted.units.scale
        if not isinstance(fitted.mean_module, ZeroMean):
            values = values + evaluated_mean(fitted.mean_module, new.train_inputs[0], self._num_tasks)
        new.train_targets = values
        if self._has_transformed_inputs:
            own = self._train_X.expand(*regression.batch_shape, *self._train_X.shape[-2:])
            new._original_train_inputs = own if new_X is None else torch.cat([own, new_X], dim=-2)
        new._input_batch_shape = regression.batch_shape
        new._fitted = replace(fitted, regression=regression)
        return new

    @property
    def observed_X(self) -> Tensor:
        """``(b) x t x d``, the points observed, before the input transform."""
        return self._train_X

    @property
    def _train_X(self) -> Tensor:
        """``(b) x t x d``, before the input transform."""
        original = self._original_train_inputs
        return self.train_inputs[0] if original is None or not self._has_transformed_inputs else original

    def _preprocessed(self, X: Tensor) -> Tensor:
        """Points that are observed behind the input transform, which may treat them unlike those to predict at."""
        return self.input_transform.preprocess_transform(X) if hasattr(self, "input_transform") else X

    def _first_transformed(self, train_X: Tensor, input_transform: object) -> Tensor:
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
        train_X = self._train_X
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

    def _require_directions(self, directions: Tensor) -> None:
        directions = require_tensor("directions", directions, "Pass one row per direction and one column per task.")
        n = self.num_outputs
        if directions.dim() < 2 or directions.shape[-1] != n:
            raise ValueError(
                f"directions should be `(b) x k x n` with n = {n} tasks, got shape {tuple(directions.shape)}. "
                "Pass one row per direction and one column per task."
            )
        require_batch("directions", directions.shape[:-2], self.batch_shape)

    def _hyperparameters(self) -> list[Tensor]:
        names = ("covar_module", "likelihood", "mean_module", "input_transform", "outcome_transform")
        modules = [getattr(self, name) for name in names if hasattr(self, name)]
        return [value for module in modules for value in (*module.parameters(), *module.buffers())]

    def _extract_targets_and_noise(self) -> tuple[Tensor, Tensor | None]:
        return self.train_targets, self.likelihood.variances if isinstance(self.likelihood, ObservedNoise) else None

    def _restore_targets_and_noise(self, Y: Tensor, Yvar: Tensor | None, strict: bool) -> None:
        self.set_train_data(targets=Y, strict=strict)
        if Yvar is not None:
            self.likelihood = ObservedNoise(Yvar)

    # Caches never outlive what they were computed from.

    def _clear_cache(self) -> None:
        super()._clear_cache()
        self._fitted = None

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
        super().set_train_data(inputs, targets, strict)
        self._fitted = None
        # BoTorch calls this to go back to the original inputs, too.
        if self._has_transformed_inputs and inputs is not None and inputs is not self._original_train_inputs:
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
        self._fitted = None
        if self._original_train_inputs is not None:
            self._original_train_inputs = fn(self._original_train_inputs)
        return super()._apply(fn)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_fitted": None, "prediction_strategy": None}


def _only(inputs: Any) -> Any:
    """The inputs, which GPyTorch also takes as a tuple of one."""
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


def _require_one_noise(**sources: object) -> None:
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{given[0]} should not be given together with {given[1]}, got both. Each says the noise.")


def _outcomes(transform: object, Y: Tensor, Yvar: Tensor | None, X: Tensor) -> tuple[Tensor, Tensor | None]:
    """The data behind an outcome transform."""
    if not isinstance(transform, OutcomeTransform):
        raise ValueError(
            f"outcome_transform should be a BoTorch OutcomeTransform, got {type(transform).__name__}. "
            f"Pass for instance Standardize({Y.shape[-1]})."
        )
    try:
        transform.to(Y)
        transformed, variances = learned_outcomes(transform, Y, Yvar, X)
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
        return transformed, variances
    if not torch.where(unseen, 0, transformed).isfinite().all():
        raise ValueError(
            "outcome_transform should keep the values that were seen finite where others are missing, got NaN or Inf "
            f"from {type(transform).__name__}. Pass one that takes each task for itself, such as "
            f"Standardize({Y.shape[-1]})."
        )
    return torch.where(unseen, torch.nan, transformed), variances


def _expanded(name: str, variances: Tensor, shape: torch.Size) -> Tensor:
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
