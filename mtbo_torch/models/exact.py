"""The exact model."""

from __future__ import annotations

import torch
from botorch import settings as botorch_settings
from torch import Tensor

from mtbo_torch.models.base import MultiTaskGPModel, Problem
from mtbo_torch.regression import CompletedRegression, DenseRegression, KroneckerRegression, PointBelief, Regression


class ExactMultiTaskGP(MultiTaskGPModel):
    r"""Vector-valued kernel ridge regression, or a multi-task GP, as a BoTorch model.

    .. math::

        \mu_t(x) &= G_t(x)^T (G_t + \eta I)^{-1} vec(Y_t) \\
        \Gamma_t(x, x') &= \Gamma(x, x') - G_t(x)^T (G_t + \eta I)^{-1} G_t(x')

    with :math:`G_t = [\Gamma(x_i, x_j)]_{ij}` between the t points observed and :math:`G_t(x) = [\Gamma(x_i, x)]_i`.
    The posterior has all covariances between tasks.

    For kernels ``k B`` (and sums whose task matrices commute, if all tasks have one noise) a fit costs
    :math:`O(r t^3)` with r the number of distinct non-zero eigenvalues of B, conditioning on a point :math:`O(r t^2)`,
    and mean and norm at a point :math:`O(t^2)` whatever the number of tasks (:math:`O(r t^2)` if each has a noise of
    its own); other kernels work on the ``nt x nt`` matrix.

    If u values are missing, a fit for ``k B`` costs :math:`O(u^3)` more, conditioning on a point
    :math:`O(r u t^2 + u^3)`, and mean and norm :math:`O(r t (t + u) + n u^2)`. Other kernels, and all kernels
    if more than half as many values are missing as were seen, work on the ``s x s`` matrix of the s values seen. In a
    batch, a value counts as missing if any data set misses it, and as seen if any has seen it.

    Args:
        train_X: ``(b) x t x d``; t = 0 gives the prior.
        train_Y: ``(b) x t x n``.
        covar_module: The multi-task kernel. By default an :class:`ICMKernel` with an RBF kernel with one lengthscale
            per input and a full-rank B, all learned.
        eta: The regularizer, or the noise variance: a number, ``n`` numbers (one for each task), or either with a
            batch shape, ``(b) x 1`` or ``(b) x n``. It stays fixed. With None the noise of each task
            is learned.
        mean_module: The prior mean; zero by default, as in the paper. A GPyTorch mean for one output (used for
            every task) or a ``MultitaskMean``.
        likelihood: A ``MultitaskGaussianLikelihood`` of rank 0, in place of `eta`.
        train_Yvar: ``(b) x t x n``, known noise variances, in place of `eta`. If a task's differ from one observation
            to the next, everything works on the ``nt x nt`` matrix.
        outcome_transform: A BoTorch outcome transform, such as ``Standardize(n)``. Everything the model says is in
            the units of `train_Y`; if the transform is not affine, only :meth:`posterior` can be.
        input_transform: A BoTorch input transform, such as ``Normalize(d)``.
        allow_missing: Whether values may be NaN, here and in :meth:`condition_on_observations`, for tasks that were not
            observed at a point: the model is then that of the others. Their `train_Yvar` may be NaN, too.

    Example:
        >>> import torch, gpytorch
        >>> from mtbo_torch import ExactMultiTaskGP, ICMKernel
        >>> X = torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1)
        >>> Y = torch.cat([X.sin(), X.cos()], dim=-1)
        >>> kernel = ICMKernel(gpytorch.kernels.RBFKernel(), torch.eye(2, dtype=torch.double))
        >>> model = ExactMultiTaskGP(X, Y, covar_module=kernel, eta=0.1)
        >>> model.mean(X).shape, model.covariance(X).shape, model.covariance_norm(X).shape
        (torch.Size([5, 2]), torch.Size([5, 2, 2]), torch.Size([5]))
        >>> Y[::2, 1] = torch.nan  # the second task was not observed at every other point
        >>> ExactMultiTaskGP(X, Y, covar_module=kernel, eta=0.1, allow_missing=True).mean(X).isfinite().all()
        tensor(True)
    """

    _missing_hint = "Build the model with allow_missing=True if NaN stands for a value that was not seen."

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        r"""Predict the values at each training point from all others, with the same hyperparameters.

        The mean and the covariance of :math:`y_s` given :math:`Y_{-s}`, all n values at a point, with the noise of that
        observation, in closed form: :math:`O(r t^2)` for kernels ``k B`` and sums whose task matrices commute,
        :math:`O(n^3 t^2)` for others. If values are missing, those that were seen at a point are predicted from those
        seen at all others; u missing values cost :math:`O(r t^2 u + n t u (n + u))` more for ``k B``.

        Returns:
            ``(b) x t x n`` and ``(b) x t x n x n``; NaN where a value is missing, in its row and column of the
            covariance too.

        Raises:
            UnsupportedError: If the outcome transform is not affine.

        Example:
            >>> import torch, gpytorch
            >>> from mtbo_torch import ExactMultiTaskGP, ICMKernel
            >>> X = torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1)
            >>> kernel = ICMKernel(gpytorch.kernels.RBFKernel(), torch.eye(2, dtype=torch.double))
            >>> model = ExactMultiTaskGP(X, torch.cat([X.sin(), X.cos()], -1), covar_module=kernel, eta=0.1)
            >>> mean, covariance = model.leave_one_out()
            >>> mean.shape, covariance.shape
            (torch.Size([5, 2]), torch.Size([5, 2, 2]))
        """
        self._require_affine()
        surrogate = self.surrogate
        regression = surrogate.regression
        assert isinstance(regression, KroneckerRegression | CompletedRegression | DenseRegression)
        mean, covariance = regression.leave_one_out()
        if surrogate.prior_mean is not None:
            mean = mean + surrogate.prior_mean(regression.train_X)
        predicted = self.show(surrogate.units.restore(PointBelief(mean, covariance)))
        unseen = regression.train_Y.isnan()
        if self._tasks is not None:
            unseen = unseen[..., self._tasks]
        covariance = predicted.covariance.masked_fill(unseen.unsqueeze(-1) | unseen.unsqueeze(-2), torch.nan)
        return predicted.mean.masked_fill(unseen, torch.nan), covariance

    def log_marginal_likelihood(self) -> Tensor:
        r"""Return ``(b)``, :math:`\log N(vec(Y_t); 0, G_t + \eta I)`, without priors of hyperparameters.

        It is the density of what was seen of `train_Y`, in its units and about its prior mean.

        Example:
            >>> import torch, gpytorch
            >>> from mtbo_torch import ExactMultiTaskGP, ICMKernel
            >>> X = torch.zeros(1, 1, dtype=torch.double)
            >>> kernel = ICMKernel(gpytorch.kernels.RBFKernel(), torch.eye(2, dtype=torch.double))
            >>> model = ExactMultiTaskGP(X, torch.zeros(1, 2).double(), covar_module=kernel, eta=1.0)
            >>> round(model.log_marginal_likelihood().item(), 4)  # minus log(2 pi) minus log(2)
            -2.531
        """
        self._require_affine()
        scale = self.surrogate.units.scale
        with torch.set_grad_enabled(botorch_settings.propagate_grads.on()):
            value = self._log_likelihood(self._problem(self.covar_module, self.mean_module))
        if scale is None:
            return value
        return value - torch.where(self.train_targets.isnan(), 0, scale.abs().log()).sum(dim=(-2, -1))

    def _fit_to(self, problem: Problem) -> Regression:
        return problem.kernel.fit(problem.noise, problem.X, problem.Y)

    def _log_likelihood(self, problem: Problem) -> Tensor:
        return problem.kernel.log_likelihood(problem.noise, problem.X, problem.Y)
