"""The model on a dictionary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import MultitaskGaussianLikelihood
from gpytorch.means import Mean
from torch import Tensor

from mtbo_torch.checks import require_batch, require_oversampling, require_seed
from mtbo_torch.models.base import MultiTaskGPModel, Problem
from mtbo_torch.regression import NystromRegression, Regression, rows_at
from mtbo_torch.surrogate import Surrogate

DEFAULT_OVERSAMPLING = 3.0


class NystromMultiTaskGP(MultiTaskGPModel):
    r""":class:`ExactMultiTaskGP` for very many observations, from a dictionary of m of the t (Algorithm 2).

    .. math::

        \tilde\mu_t(x) &= \Phi(x)^T (V_t + \eta I)^{-1} \sum_s \Phi(x_s) y_s,
        \quad V_t = \sum_s \Phi(x_s) \Phi(x_s)^T \\
        \tilde\Gamma_t(x, x) &= \Gamma(x, x) - \Phi(x)^T \Phi(x) + \eta \Phi(x)^T (V_t + \eta I)^{-1} \Phi(x)

    with features :math:`\Phi(x) = L^{-1} [\Gamma(x_i, x)]_i` for the dictionary's points :math:`x_i` and
    :math:`L L^T = [\Gamma(x_i, x_j)]_{ij}`. All t observations count; the dictionary says which functions can be
    learned from them. With all points in it, it is the exact model.

    For kernels ``k B``, mean and norm at a point cost :math:`O(m^2)`, conditioning on a point :math:`O(r m^2)`. The
    posterior is as good as the dictionary, whose span is all that new observations can change: draw it anew with
    :meth:`resample` as data come in, or let :class:`MTBKB` do so.

    Args:
        train_X: ``(b) x t x d``; t = 0 gives the prior.
        train_Y: ``(b) x t x n``, none of them missing.
        covar_module: As in :class:`ExactMultiTaskGP`.
        eta: As in :class:`ExactMultiTaskGP`.
        mean_module: As in :class:`ExactMultiTaskGP`.
        likelihood: As in :class:`ExactMultiTaskGP`.
        dictionary: ``m`` indices of rows of `train_X` (or ``(b) x m``). If not given, a dictionary is drawn.
        oversampling: A point is kept with probability :math:`\min(1, q \|\tilde\Gamma(x, x)\| / \eta)` for this q: more
            for accuracy, fewer for speed. See :func:`theory_oversampling` for the paper's.
        seed: For drawing the dictionary.
        train_Yvar: As in :class:`ExactMultiTaskGP`.
        outcome_transform: As in :class:`ExactMultiTaskGP`.
        input_transform: As in :class:`ExactMultiTaskGP`.

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

    _is_exact = False
    _dictionary_of_fit: Tensor | None = None

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
        train_Yvar: Tensor | None = None,
        outcome_transform: OutcomeTransform | None = None,
        input_transform: InputTransform | None = None,
    ) -> None:
        require_oversampling(oversampling)
        require_seed("seed", seed)
        super().__init__(
            train_X, train_Y, covar_module, eta, mean_module, likelihood, train_Yvar, outcome_transform, input_transform
        )
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
        r"""``(b) x t``, :math:`\min(1, q \|\tilde\Gamma(x_s, x_s)\| / \eta)`, with which :meth:`resample` keeps each.

        The norms are those before the last observation, if the dictionary was the same then.
        """
        return self._nystrom.inclusion_probs

    def resample(self, generator: torch.Generator) -> Self:
        """Return a new model of the same data with a dictionary drawn anew; the newest observation is always in it.

        Args:
            generator: The source of randomness.

        Example:
            >>> import torch, gpytorch
            >>> from mtbo_torch import ICMKernel, NystromMultiTaskGP
            >>> X = torch.linspace(0, 1, 40, dtype=torch.double).unsqueeze(-1)
            >>> kernel = ICMKernel(gpytorch.kernels.RBFKernel(), torch.eye(2, dtype=torch.double))
            >>> first = torch.arange(5)  # close to each other
            >>> model = NystromMultiTaskGP(X, torch.cat([X, -X], -1), kernel, eta=0.1, dictionary=first)
            >>> 39 in model.dictionary, 39 in model.resample(torch.Generator().manual_seed(0)).dictionary
            (False, True)
        """
        if not isinstance(generator, torch.Generator):
            raise ValueError(
                f"generator should be a torch.Generator, got {type(generator).__name__}. "
                "Pass for instance torch.Generator().manual_seed(0)."
            )
        return self._copy_around(replace(self.surrogate, regression=self._nystrom.resample(generator)))

    def _grow(self, surrogate: Surrogate, X: Tensor, Y: Tensor, noise: Tensor | None) -> Surrogate:
        def span(grown: Regression) -> Regression:
            assert isinstance(grown, NystromRegression)
            # Before the first observation the dictionary is empty: no span, no learning.
            return grown if grown.dictionary.shape[-1] else grown.extend_dictionary(X.shape[-2])

        return surrogate.append(X, Y, noise, renew=span)

    def _with_data(self, surrogate: Surrogate, new_X: Tensor, targets: Tensor, new_noise: Tensor | None) -> Self:
        return super()._with_data(surrogate, new_X, targets, new_noise)._keep_dictionary(surrogate)

    def _copy_around(self, surrogate: Surrogate) -> Self:
        return super()._copy_around(surrogate)._keep_dictionary(surrogate)

    def _keep_dictionary(self, surrogate: Surrogate) -> Self:
        """Keep what was drawn, also when the model has to be fitted again."""
        assert isinstance(surrogate.regression, NystromRegression)
        if surrogate.regression.dictionary.shape[-1]:
            self._given_dictionary = surrogate.regression.dictionary
        return self

    def __getstate__(self) -> dict[str, Any]:
        # A copy keeps what cannot be fitted again: the gain along the rounds, and the round before.
        fit = self._fit
        is_plain = fit is not None and not self._nystrom.inverse.requires_grad  # asking renews a fit that is not valid
        return super().__getstate__() | ({"_fit": self._fit} if is_plain else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._fit is not None:
            self.adopt(self._fit.surrogate)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # BoTorch's analytic acquisitions move their model in every evaluation, mostly to where it is.
        is_moved = self._fit is not None and fn(self.train_targets) is not self.train_targets
        kept = self._nystrom if is_moved else None
        super()._apply(fn)
        if kept is not None and not kept.inverse.requires_grad:
            moved = {name: fn(value) for name, value in kept.tensors().items()}
            surrogate, fresh = self.surrogate, self._nystrom
            self.adopt(replace(surrogate, regression=fresh.restore(fresh.train_X, fresh.train_Y, moved)))
        return self

    @property
    def _nystrom(self) -> NystromRegression:
        regression = self.surrogate.regression
        assert isinstance(regression, NystromRegression)
        return regression

    def _fit_to(self, problem: Problem) -> NystromRegression:
        kernel, noise, X, Y = problem
        if self._given_dictionary is not None:
            _require_dictionary(self._given_dictionary, X)  # the data may have been exchanged
            return NystromRegression.fit(kernel, noise, X, Y, self._given_dictionary, self.oversampling)
        generator = torch.Generator().manual_seed(self.seed)
        return NystromRegression.sample(kernel, noise, X, Y, self.oversampling, generator)

    def _log_likelihood(self, problem: Problem) -> Tensor:
        # What is learned cannot be what the dictionary is drawn with: it is drawn once, and anew after the fit.
        if self._dictionary_of_fit is None:
            with torch.no_grad():
                self._dictionary_of_fit = self._fit_to(problem).dictionary
        kernel, noise, X, Y = problem
        return kernel.nystrom_log_likelihood(noise, X, Y, rows_at(X, self._dictionary_of_fit))

    def train(self, mode: bool = True) -> Self:
        """Switch as in torch; the dictionary of the next fit is drawn anew."""
        self._dictionary_of_fit = None
        return super().train(mode)

    def set_train_data(self, inputs: Any = None, targets: Any = None, strict: bool = True) -> None:
        self._dictionary_of_fit = None
        super().set_train_data(inputs, targets, strict)


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
