"""BoTorch models around a regression."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Self

import torch
from botorch import settings as botorch_settings
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import MultitaskGaussianLikelihood
from gpytorch.means import Mean, MultitaskMean, ZeroMean
from gpytorch.models import ExactGP
from linear_operator import to_linear_operator
from torch import Tensor

from mtbo_torch import regression as reg
from mtbo_torch.checks import (
    require_batch,
    require_data,
    require_oversampling,
    require_positive,
    require_same_kind,
    require_tensor,
)
from mtbo_torch.evaluation import as_gamma
from mtbo_torch.kernels import ICMKernel, MultiTaskKernel
from mtbo_torch.noise import likelihood_of, noise_of, require_likelihood

DEFAULT_OVERSAMPLING = 3.0


@dataclass(frozen=True)
class _Fitted:
    """A regression, the prior mean that was subtracted from its data, and the hyper-parameters it belongs to."""

    regression: reg.Regression
    mean_module: Mean
    hyperparameters: tuple[Tensor, ...]

    def is_for(self, hyperparameters: list[Tensor]) -> bool:
        same_number = len(hyperparameters) == len(self.hyperparameters)
        return same_number and all(map(torch.equal, hyperparameters, self.hyperparameters))


class MultiTaskGPModel(ExactGP, BatchedMultiOutputGPyTorchModel, FantasizeMixin, ABC):
    """What the exact and the Nystrom model share: a BoTorch model around a regression."""

    _supports_cache_root = False

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        covar_module: Kernel | None = None,
        eta: float | Tensor | None = None,
        mean_module: Mean | None = None,
        likelihood: MultitaskGaussianLikelihood | None = None,
    ) -> None:
        num_tasks = None if covar_module is None else _num_tasks(covar_module, train_X)
        require_data(train_X, train_Y, num_tasks)
        batch_shape, num_tasks = train_X.shape[:-2], train_Y.shape[-1]
        if covar_module is None:
            base = get_covar_module_with_dim_scaled_prior(ard_num_dims=train_X.shape[-1], batch_shape=batch_shape)
            covar_module = ICMKernel(base, num_tasks=num_tasks)
        require_batch("covar_module", covar_module.batch_shape, batch_shape)
        if likelihood is None:
            likelihood = likelihood_of(eta, num_tasks, train_X)
        elif eta is not None:
            raise ValueError(
                "eta should not be given together with likelihood, got both. The likelihood has the noise."
            )
        else:
            require_likelihood(likelihood, num_tasks)
        require_batch("likelihood", noise_of(likelihood).shape[:-1], batch_shape)
        super().__init__(train_X, train_Y, likelihood)
        self.covar_module = covar_module
        self.mean_module = ZeroMean(batch_shape=batch_shape) if mean_module is None else mean_module
        _require_mean(self.mean_module, num_tasks)
        self._num_outputs = num_tasks
        self._input_batch_shape = batch_shape
        self._aug_batch_shape = torch.Size()
        self._fitted: _Fitted | None = None
        self.to(train_X)

    @property
    def regression(self) -> reg.Regression:
        """The fitted regression. It is fitted anew when a hyper-parameter has changed since."""
        return self._current().regression

    def is_fitted_by(self, regression: reg.Regression) -> bool:
        """Whether this is the regression behind the model's last answer."""
        return self._fitted is not None and self._fitted.regression is regression

    @property
    def info_gain(self) -> Tensor:
        r"""``(b)``, the information gain :math:`\frac12 \log\det(I + \eta^{-1} G_t)`."""
        return self.regression.info_gain

    @property
    def noise(self) -> Tensor:
        r"""``(b) x 1`` or ``(b) x n``: :math:`\eta`, the same for all tasks or one for each."""
        return noise_of(self.likelihood)

    def mean(self, X: Tensor) -> Tensor:
        r"""``... x q x n``, the posterior mean :math:`\mu_t(x)` at ``... x q x d`` points."""
        return self._add_prior_mean(X, self._regression_at(X).mean(X))

    def covariance(self, X: Tensor) -> Tensor:
        r"""``... x q x n x n``, :math:`\Gamma_t(x, x)` at each of ``... x q x d`` points."""
        return self._regression_at(X).covariance(X)

    def covariance_norm(self, X: Tensor) -> Tensor:
        r"""``... x q``, the operator norm :math:`\|\Gamma_t(x, x)\|` at each of ``... x q x d`` points."""
        return self._regression_at(X).covariance_norm(X)

    def mean_and_norm(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and covariance norm together, sharing the kernel evaluation.

        For use inside acquisition functions. Away from the CPU, where comparing them would wait for the device,
        hyper-parameters are taken to be unchanged since the last call of another method.
        """
        mean, norm = self._evaluated(X).mean_and_norm(X)
        return self._add_prior_mean(X, mean), norm

    def mean_and_variance(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of each task together, ``... x q x n`` both; otherwise as :meth:`mean_and_norm`."""
        mean, variance = self._evaluated(X).mean_and_variance(X)
        return self._add_prior_mean(X, mean), variance

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
            observation_noise: Whether to add the noise, or the noise variances to add, ``... x q x n``.
            posterior_transform: Applied to the result.
        """
        self.eval()
        fitted = self._regression_at(X)
        mean = self._add_prior_mean(X, fitted.mean(X))
        covariance = fitted.joint_covariance(X)
        if observation_noise is not False:
            if isinstance(observation_noise, Tensor):
                require_positive("observation_noise", observation_noise, "Pass variances.", allow_zero=True)
            noise = observation_noise if isinstance(observation_noise, Tensor) else self.noise.unsqueeze(-2)
            covariance = covariance + torch.diag_embed(noise.expand(mean.shape).flatten(-2))
        if output_indices is not None:
            mean, covariance = _select_tasks(mean, covariance, output_indices)
        posterior: Posterior = GPyTorchPosterior(_normal(mean, covariance))
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> Self:
        """A new model with more data, without factorising anew; this one keeps its answers.

        Args:
            X: ``... x q x d``.
            Y: ``... x q x n``. Leading dimensions beyond the model's batch shape give a model of that batch shape.
        """
        if kwargs.get("noise") is not None:
            raise ValueError(
                "condition_on_observations takes no noise of its own for the new points: "
                "the model's noise holds for all points. Leave noise out."
            )
        try:
            batch_shape = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2], self.batch_shape)
        except RuntimeError as error:
            raise ValueError(
                f"X and Y should have batch shapes that broadcast with the model's {tuple(self.batch_shape)}, "
                f"got shapes {tuple(X.shape)} and {tuple(Y.shape)}. Add or expand leading dimensions."
            ) from error
        X, Y = X.expand(*batch_shape, *X.shape[-2:]), Y.expand(*batch_shape, *Y.shape[-2:])
        require_data(X, Y, self.num_outputs, names=("X", "Y"))
        self._require_inputs(X)
        fitted = self._current()
        regression = fitted.regression if batch_shape == self.batch_shape else fitted.regression.expand(batch_shape)
        return self.with_regression(regression.append(X, Y - self._prior_mean(X, fitted.mean_module)))

    def hallucinate(self, X: Tensor) -> Self:
        """A new model that has seen its own mean at ``... x q x d``: the variance shrinks, the mean stays."""
        return self.condition_on_observations(X, self.mean(X))

    def with_regression(self, regression: reg.Regression) -> Self:
        """A copy of this model around a regression that grew out of this model's by appending."""
        # Data may hang in a graph, which cannot be copied, and are replaced anyway, as is what was fitted to them.
        replaced = (self.train_inputs, self.train_targets, self._fitted)
        new = deepcopy(self, {id(part): () for part in replaced if part is not None})
        fitted = self._current()
        new.train_inputs = (regression.train_X,)
        new.train_targets = regression.train_Y
        if not isinstance(fitted.mean_module, ZeroMean):
            new.train_targets = regression.train_Y + self._prior_mean(regression.train_X, fitted.mean_module)
        new._input_batch_shape = regression.batch_shape
        new._fitted = _Fitted(regression, fitted.mean_module, fitted.hyperparameters)
        return new

    def forward(self, x: Tensor) -> MultitaskMultivariateNormal:
        """The prior at ``x``, as GPyTorch's marginal likelihood wants it."""
        return MultitaskMultivariateNormal(self._prior_mean(x, self.mean_module), self.covar_module(x))

    @abstractmethod
    def _fit_to(self, gamma: reg.MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor) -> reg.Regression:
        """The regression of values with a prior mean of zero."""

    def _current(self) -> _Fitted:
        """What was fitted last, unless a hyper-parameter has changed since."""
        values = self._hyperparameters()
        if botorch_settings.propagate_grads.on():
            return self._fit(self.covar_module, self.mean_module, values)
        if self._fitted is None or not self._fitted.is_for(values):
            # Copies: whatever happens to the model's own kernel, the parts of what was fitted belong together.
            kernel, mean_module = (deepcopy(m).requires_grad_(False) for m in (self.covar_module, self.mean_module))
            with torch.no_grad():
                self._fitted = self._fit(kernel, mean_module, values)
        return self._fitted

    def _fit(self, kernel: Kernel, mean_module: Mean, hyperparameters: list[Tensor]) -> _Fitted:
        X, Y = self.train_inputs[0], self.train_targets
        gamma = as_gamma(kernel, self.num_outputs)
        regression = self._fit_to(gamma, self.noise, X, Y - self._prior_mean(X, mean_module))
        return _Fitted(regression, mean_module, tuple(value.detach().clone() for value in hyperparameters))

    def _evaluated(self, X: Tensor) -> reg.Regression:
        """What answers inside an acquisition function."""
        self._require_inputs(X)
        comparable = X.device.type == "cpu" or botorch_settings.propagate_grads.on()
        return (self._fitted if self._fitted is not None and not comparable else self._current()).regression

    def _regression_at(self, X: Tensor) -> reg.Regression:
        self._require_inputs(X)
        return self.regression

    def _require_inputs(self, X: Tensor) -> None:
        X = require_tensor("X", X, "Pass one row per point.")
        d = self.train_inputs[0].shape[-1]
        if X.dim() < 2 or X.shape[-1] != d:
            raise ValueError(
                f"X should be `... x q x d` with d = {d} (from train_X), got shape {tuple(X.shape)}. "
                "Pass one row per point and one column per input."
            )
        require_same_kind(("train_X", self.train_inputs[0]), ("X", X))

    def _prior_mean(self, X: Tensor, module: Mean) -> Tensor:
        mean = module(X)
        if not isinstance(module, MultitaskMean):
            mean = mean.unsqueeze(-1)
        return mean.expand(*mean.shape[:-1], self.num_outputs)

    def _add_prior_mean(self, X: Tensor, mean: Tensor) -> Tensor:
        return mean if isinstance(self.mean_module, ZeroMean) else mean + self._prior_mean(X, self.mean_module)

    def _hyperparameters(self) -> list[Tensor]:
        modules = (self.covar_module, self.likelihood, self.mean_module)
        return [value for module in modules for value in (*module.parameters(), *module.buffers())]

    # Caches never outlive what they were computed from.

    def _clear_cache(self) -> None:
        super()._clear_cache()
        self._fitted = None

    def set_train_data(self, *args: Any, **kwargs: Any) -> None:
        super().set_train_data(*args, **kwargs)
        self._fitted = None

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._fitted = None
        return super()._apply(fn)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_fitted": None, "prediction_strategy": None}


class ExactMultiTaskGP(MultiTaskGPModel):
    r"""Vector-valued kernel ridge regression, or a multi-task GP, as a BoTorch model.

    Its posterior is that of the paper's equations for :math:`\mu_t` and :math:`\Gamma_t`, with all covariances
    between tasks. For kernels ``k B`` (and sums whose task matrices commute) a fit costs :math:`O(r t^3)` with r the
    number of distinct non-zero eigenvalues of B, conditioning on a point :math:`O(r t^2)`, and mean and norm at a
    point :math:`O(t^2)` whatever the number of tasks (:math:`O(r t^2)` if each has a noise of its own); other kernels
    work on the ``nt x nt`` matrix.

    Args:
        train_X: ``(b) x t x d``; t = 0 gives the prior.
        train_Y: ``(b) x t x n``.
        covar_module: The multi-task kernel. By default an :class:`ICMKernel` with an RBF kernel with one lengthscale
            per input and a full-rank B, all learned.
        eta: The regulariser, or the noise variance: a number, ``n`` numbers (one for each task), or either with a
            batch shape, ``(b) x 1`` or ``(b) x n``. It stays fixed. With None the noise is learned.
        mean_module: The prior mean; zero by default, as in the paper. A GPyTorch mean for one output (used for
            every task) or a ``MultitaskMean``.
        likelihood: A ``MultitaskGaussianLikelihood`` of rank 0, in place of `eta`.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import ExactMultiTaskGP, ICMKernel
        >>> X = torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1)
        >>> Y = torch.cat([X.sin(), X.cos()], dim=-1)
        >>> kernel = ICMKernel(gpytorch.kernels.RBFKernel(), torch.eye(2, dtype=torch.double))
        >>> model = ExactMultiTaskGP(X, Y, covar_module=kernel, eta=0.1)
        >>> model.mean(X).shape, model.covariance(X).shape, model.covariance_norm(X).shape
        (torch.Size([5, 2]), torch.Size([5, 2, 2]), torch.Size([5]))
    """

    def _fit_to(self, gamma: reg.MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor) -> reg.Regression:
        return reg.fit(gamma, noise, X, Y)


class NystromMultiTaskGP(MultiTaskGPModel):
    r"""The same on a dictionary of m observations in place of all t (Algorithm 2).

    Mean and norm at a point cost :math:`O(m^2)`, conditioning on a point :math:`O(m^2)`. The posterior is a good one as
    long as the dictionary is: draw it anew with :meth:`resample` as data come in, or let :class:`MTBKB` do so.

    Args:
        train_X: ``(b) x t x d``.
        train_Y: ``(b) x t x n``.
        covar_module: As in :class:`ExactMultiTaskGP`.
        eta: As in :class:`ExactMultiTaskGP`.
        mean_module: As in :class:`ExactMultiTaskGP`.
        likelihood: As in :class:`ExactMultiTaskGP`.
        dictionary: ``m`` indices of observations (or ``(b) x m``). If not given, a dictionary is drawn.
        oversampling: A point is kept with probability :math:`\min(1, q \|\tilde\Gamma(x, x)\| / \eta)` for this q: more
            for accuracy, fewer for speed. See :func:`theory_oversampling` for the paper's.
        seed: For drawing the dictionary.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import ICMKernel, NystromMultiTaskGP
        >>> X = torch.linspace(0, 1, 500, dtype=torch.double).unsqueeze(-1)
        >>> Y = torch.cat([X.sin(), X.cos()], dim=-1)
        >>> kernel = ICMKernel(gpytorch.kernels.RBFKernel(), torch.eye(2, dtype=torch.double))
        >>> model = NystromMultiTaskGP(X, Y, covar_module=kernel, eta=0.1)
        >>> model.dictionary_size < 50
        True
        >>> (model.mean(X) - Y).abs().max() < 0.05
        tensor(True)
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        covar_module: Kernel | None = None,
        eta: float | Tensor | None = None,
        mean_module: Mean | None = None,
        likelihood: MultitaskGaussianLikelihood | None = None,
        dictionary: Tensor | None = None,
        oversampling: float = DEFAULT_OVERSAMPLING,
        seed: int = 0,
    ) -> None:
        require_oversampling(oversampling)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ValueError(f"seed should be an integer, got {seed!r}. Pass for instance 0.")
        super().__init__(train_X, train_Y, covar_module, eta, mean_module, likelihood)
        if dictionary is not None:
            _require_dictionary(dictionary, train_X)
            dictionary = dictionary.long()
        self.oversampling = float(oversampling)
        self.seed = seed
        self._given_dictionary = dictionary

    @property
    def dictionary(self) -> Tensor:
        """``(b) x m``, the indices of the observations in it; a batch's shorter ones repeat the newest."""
        return self._nystrom.dictionary

    @property
    def dictionary_size(self) -> int | Tensor:
        """The number of points in the dictionary; ``(b)`` of them for a batch."""
        size = self._nystrom.dictionary_size
        return size if self.batch_shape else int(size)

    @property
    def inclusion_probs(self) -> Tensor:
        """``(b) x t``, the probabilities with which :meth:`resample` keeps each observation."""
        return self._nystrom.inclusion_probs

    def resample(self, generator: torch.Generator) -> Self:
        """A new model of the same data with a dictionary drawn anew; the newest observation is always in it."""
        return self.with_regression(self._nystrom.resample(generator))

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> Self:
        new = super().condition_on_observations(X, Y, **kwargs)
        if self.dictionary.shape[-1] == 0:  # before the first observation; no span, no learning
            return new.with_regression(new._nystrom.extend_dictionary(X.shape[-2]))
        return new

    def with_regression(self, regression: reg.Regression) -> Self:
        new = super().with_regression(regression)
        new._given_dictionary = new.dictionary  # a copy that has to fit again keeps what was drawn
        return new

    def hallucinate(self, X: Tensor) -> Self:
        # In the dictionary as well: a point outside its span would keep its variance.
        hallucinated = super().hallucinate(X)
        if self.dictionary.shape[-1] == 0:  # conditioning has done so already
            return hallucinated
        return hallucinated.with_regression(hallucinated._nystrom.extend_dictionary(X.shape[-2]))

    def __getstate__(self) -> dict[str, Any]:
        # A copy keeps what cannot be fitted again: the gain along the rounds, and the round before.
        regression = None if self._fitted is None else self._fitted.regression
        is_plain = isinstance(regression, reg.NystromRegression) and not regression.inverse.requires_grad
        return super().__getstate__() | ({"_fitted": self._fitted} if is_plain else {})

    @property
    def _nystrom(self) -> reg.NystromRegression:
        fitted = self.regression
        assert isinstance(fitted, reg.NystromRegression)
        return fitted

    def _fit_to(self, gamma: reg.MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor) -> reg.Regression:
        if self._given_dictionary is not None:
            _require_dictionary(self._given_dictionary, X)  # the data may have been exchanged
            return reg.NystromRegression.fit(gamma, noise, X, Y, self._given_dictionary, self.oversampling)
        generator = torch.Generator().manual_seed(self.seed)
        return reg.NystromRegression.sample(gamma, noise, X, Y, self.oversampling, generator)


def _num_tasks(kernel: Kernel, train_X: object) -> int:
    if not isinstance(kernel, Kernel):
        raise ValueError(
            f"covar_module should be a multi-task kernel, got {type(kernel).__name__}. "
            "Pass for instance ICMKernel(gpytorch.kernels.RBFKernel(), task_covar)."
        )
    count = kernel.num_outputs_per_input(train_X, train_X)
    if not isinstance(kernel, MultiTaskKernel) and count == 1 and not hasattr(kernel, "num_tasks"):
        raise ValueError(
            f"covar_module should be a multi-task kernel, got the scalar kernel {type(kernel).__name__}. "
            "Wrap it as ICMKernel(kernel, task_covar)."
        )
    return count


def _require_dictionary(dictionary: object, train_X: Tensor) -> None:
    if not isinstance(dictionary, Tensor) or dictionary.is_floating_point() or dictionary.dtype == torch.bool:
        raise ValueError(
            f"dictionary should be a tensor of integer indices, got {getattr(dictionary, 'dtype', type(dictionary))}. "
            "Pass for instance torch.arange(10)."
        )
    if dictionary.dim() == 0 or dictionary.shape[-1] == 0:
        raise ValueError(
            f"dictionary should have at least one index, got shape {tuple(dictionary.shape)}. "
            "Leave it out to have one drawn."
        )
    t = train_X.shape[-2]
    if ((dictionary < 0) | (dictionary >= t)).any():
        raise ValueError(
            f"dictionary should hold indices of the {t} observations, from 0 to {t - 1}, got values from "
            f"{int(dictionary.min())} to {int(dictionary.max())}. Index rows of train_X."
        )
    require_batch("dictionary", dictionary.shape[:-1], train_X.shape[:-2])


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


def _select_tasks(mean: Tensor, covariance: Tensor, tasks: list[int]) -> tuple[Tensor, Tensor]:
    q, n = mean.shape[-2:]
    index = torch.tensor(tasks, device=mean.device)
    flat = (torch.arange(q, device=mean.device).unsqueeze(-1) * n + index % n).flatten()
    return mean[..., index], covariance[..., flat, :][..., flat]


def _normal(mean: Tensor, covariance: Tensor) -> MultivariateNormal:
    # A LinearOperator: a plain tensor would be factorised at once.
    if mean.shape[-1] == 1:
        return MultivariateNormal(mean.squeeze(-1), to_linear_operator(covariance))
    return MultitaskMultivariateNormal(mean, to_linear_operator(covariance))
