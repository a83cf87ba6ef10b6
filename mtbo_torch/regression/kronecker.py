r"""Kernels that a rotation of the tasks makes diagonal: :math:`\Gamma = k B`, and sums whose task matrices commute."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from mtbo_torch.linalg import cholesky_logdet, eye_like, operator_norm, safe_cholesky, solve_lower
from mtbo_torch.regression.base import Growth, Regression, Tracked, expand_fields, pick_trials, shared_product
from mtbo_torch.regression.dense import DenseRegression, predict_left_out
from mtbo_torch.regression.factor import InverseCholesky, RowBlocks
from mtbo_torch.regression.missing import Missing, few_are_missing
from mtbo_torch.regression.spectrum import Spectrum

if TYPE_CHECKING:
    from mtbo_torch.regression.structure import IndependentTasks, MatrixKernel, SeparableSum

# With fewer groups, a product with the factor of each is cheaper than one with the eigenvectors.
MANY_GROUPS = 3


@dataclass(frozen=True)
class GroupedKernel:
    r"""The scalar kernel of every group: :math:`k` for all (one term), or :math:`\kappa_g = \sum_j \xi_{jg} k_j`.

    Values have a group dimension of size one when all groups share :math:`k`; their own scales are then in
    `eigvals`, which are all one otherwise.

    Attributes:
        whole: What the groups were made from.
        loadings: ``(b) x J x r`` when there are several terms, else None.
        eigvals: ``(b) x r``.
    """

    whole: SeparableSum
    loadings: Tensor | None
    eigvals: Tensor

    @classmethod
    def of(cls, whole: SeparableSum, spectrum: Spectrum) -> GroupedKernel:
        """Return the kernel of each group of a spectrum."""
        if len(whole.kernels) == 1:
            # An eigenvalue that is zero in one data set but not in all would make its shift infinite.
            tiny = torch.finfo(spectrum.eigvals.dtype).tiny ** 0.5
            return cls(whole, None, spectrum.eigvals.squeeze(-2).clamp_min(tiny))
        return cls(whole, spectrum.eigvals, torch.ones_like(spectrum.eigvals[..., 0, :]))

    @property
    def shared(self) -> bool:
        """True if all groups share one kernel."""
        return self.loadings is None

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return ``(b) x 1 x N1 x N2`` or ``(b) x r x N1 x N2``."""
        return self._combine([k(X1, X2).unsqueeze(-3) for k in self.whole.kernels], (1, 1))

    def diag(self, X: Tensor) -> Tensor:
        """Return ``(b) x 1 x N`` or ``(b) x r x N``."""
        return self._combine([k.diag(X).unsqueeze(-2) for k in self.whole.kernels], (1,))

    def pick(self, trials: Tensor) -> GroupedKernel:
        """Return that of some data sets, ``k`` places."""
        loadings = None if self.loadings is None else pick_trials(self.loadings, trials, 2)
        return GroupedKernel(self.whole.pick(trials), loadings, pick_trials(self.eigvals, trials, 1))

    def _combine(self, terms: list[Tensor], of_points: tuple[int, ...]) -> Tensor:
        if self.loadings is None:
            return terms[0]
        loadings = self.loadings.unflatten(-1, (-1, *of_points)).unbind(dim=-2 - len(of_points))
        return reduce(torch.add, [weight * term for weight, term in zip(loadings, terms, strict=True)])


@dataclass(frozen=True)
class TaskKernels:
    """A scalar kernel for every task, all evaluated at once; it answers whatever :class:`GroupedKernel` does.

    Attributes:
        whole: The tasks.
        eigvals: ``(b) x n``, one over the noise of each.
    """

    whole: IndependentTasks
    eigvals: Tensor
    shared: ClassVar[bool] = False

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return ``(b) x n x N1 x N2``."""
        return self.whole.kernel(X1.unsqueeze(-3), X2.unsqueeze(-3))

    def diag(self, X: Tensor) -> Tensor:
        """Return ``(b) x n x N``."""
        return self.whole.kernel.diag(X.unsqueeze(-3))

    def pick(self, trials: Tensor) -> TaskKernels:
        """Return those of some data sets, ``k`` places."""
        return TaskKernels(self.whole.pick(trials), pick_trials(self.eigvals, trials, 1))


Groups = GroupedKernel | TaskKernels


@dataclass(frozen=True, eq=False)
class KroneckerRegression(Regression):
    r"""Regression with :math:`\Gamma = \sum_j k_j B_j`, the :math:`B_j` commuting; above all :math:`\Gamma = k B`.

    Everything is done in whitened task space, :math:`B' = \Sigma^{-1/2} B \Sigma^{-1/2} = \sum_g \xi_g U_g U_g^T`
    with unit noise, where :math:`\Gamma_t(x, x) = \Sigma^{1/2} (\sum_g v_g(x) U_g U_g^T) \Sigma^{1/2}` and
    :math:`v_g(x) = \xi_g (k(x, x) - k_t(x)^T (K_t + I / \xi_g)^{-1} k_t(x))`.

    One eigenvalue is enough for the norm when :math:`\Gamma = k B` and the noise is the same for all tasks, because
    :math:`v_g` grows with :math:`\xi_g`. All variances together cost r products, or one after
    :meth:`prepare_for_variances`. The mean is one product, :math:`k_t(x)^T A_t`. With r distinct non-zero
    eigenvalues, fitting costs :math:`O(r t^3)`, an append :math:`O(r t^2)`, and mean and norm at a point
    :math:`O(t^2 + nt)` whatever r is (:math:`O(r t^2)` when the tasks have noises of their own).

    Attributes:
        kernel: The scalar kernels of the groups, and :math:`\xi_g`.
        spectrum: The groups.
        noise: ``(b) x 1 x 1`` or ``(b) x 1 x n``.
        factor: ``M_g`` with :math:`M_g^T M_g = (K_t + I / \xi_g)^{-1}`, batch shape ``(b) x r``.
        dual: ``(b) x r x t x m``, :math:`(K_t + I / \xi_g)^{-1} Y' U_g`.
        weights: ``A_t``: ``(b) x 1 x t x n`` for a shared kernel (summed over groups), else ``(b) x r x t x n``.
        rotation: The eigenvectors of :math:`K_t`, ``(b) x t x t``, and its eigenvalues, ``(b) x t x 1``, where these
            were prepared.
    """

    kernel: Groups
    spectrum: Spectrum
    noise: Tensor
    train_X: Tensor
    train_Y: Tensor
    factor: InverseCholesky
    dual: Tensor
    weights: Tensor
    growth: Growth | None = field(default=None, repr=False)
    rotation: tuple[Tensor, Tensor] | None = field(default=None, repr=False)

    @classmethod
    def try_fit(cls, kernel: MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor) -> KroneckerRegression | None:
        """Fit if a rotation of the tasks leaves scalar problems, else return None."""
        groups = kernel.group(noise)
        return None if groups is None else cls.fit(*groups, noise, X, Y)

    @classmethod
    def fit(cls, kernel: Groups, spectrum: Spectrum, noise: Tensor, X: Tensor, Y: Tensor) -> KroneckerRegression:
        """Fit ``(b) x t x d`` points and ``(b) x t x n`` values with noise ``(b) x 1 x 1`` or ``(b) x 1 x n``."""
        shift = kernel.eigvals.reciprocal()
        gram = kernel(X, X)
        gram = gram + shift[..., None, None] * eye_like(gram)
        gram = gram.expand(torch.broadcast_shapes(gram.shape, (*X.shape[:-2], 1, 1, 1)))
        factor = InverseCholesky.of(gram, shift.expand(gram.shape[:-2]))
        dual = _solve(factor, spectrum.rotate(Y / noise.sqrt()))
        return cls(kernel, spectrum, noise, X, Y, factor, dual, _weights(dual, kernel, spectrum))

    @property
    def info_gain(self) -> Tensor:
        return self.spectrum.total(self._logdets).clamp_min(0) / 2

    @property
    def mean_norm(self) -> Tensor:
        # With a = (xi K + I)^-1 y in each direction, the squared norm is a^T xi K a = a^T (y - a).
        target = self.spectrum.rotate(self.train_Y / self.noise.sqrt())
        solved = self.dual / self.kernel.eigvals[..., None, None]
        return (solved * (target - solved)).sum(dim=(-3, -2, -1)).clamp_min(0).sqrt()

    @property
    def quadratic(self) -> Tensor:
        whitened = self.train_Y / self.noise.sqrt()
        target = self.spectrum.rotate(whitened)
        solved = self.dual / self.kernel.eigvals[..., None, None]
        # In directions without a prior variance there is nothing but noise.
        beyond = whitened.square().sum(dim=(-2, -1)) - target.square().sum(dim=(-3, -2, -1))
        return (target * solved).sum(dim=(-3, -2, -1)) + beyond.clamp_min(0)

    def with_noise(self, noise: Tensor) -> Regression:
        return self.kernel.whole.fit(noise, self.train_X, self.train_Y)

    @property
    def largest_gain(self) -> Tensor:
        r"""``(b)``, the largest information gain of one direction; of one task, when the tasks are independent."""
        return self._logdets.amax(dim=-1).clamp_min(0) / 2

    def append(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> Regression:
        if noise is not None:
            return _to_dense(self, self.kernel.whole).append(X, Y, noise)
        if Y.isnan().any():
            if self.noise.dim() > self.train_X.dim():  # several regressions of the same data
                X_all, Y_all = torch.cat([self.train_X, X], dim=-2), torch.cat([self.train_Y, Y], dim=-2)
                return DenseRegression.fit(self.kernel.whole, self.noise, X_all, Y_all)
            return CompletedRegression.extend(self, self.train_Y, X, Y)
        return self.append_complete(X, Y)

    def append_complete(self, X: Tensor, Y: Tensor) -> KroneckerRegression:
        """Condition on ``(b) x q x d`` points and ``(b) x q x n`` values, none of them missing."""
        shift = self.kernel.eigvals.reciprocal()
        cross, corner = self.kernel(X, self.train_X), self.kernel(X, X)
        corner = corner + shift[..., None, None] * eye_like(corner)
        factor, extension = self.factor.append(cross, corner, shift.expand(corner.shape[:-2]))
        target = self.spectrum.rotate(Y / self.noise.sqrt())
        residual = extension.corner @ (target - cross @ self.dual)
        grown = torch.nn.functional.pad(self.dual, (0, 0, 0, X.shape[-2]))
        dual = grown + extension.rows.mT @ residual
        X, Y = torch.cat([self.train_X, X], dim=-2), torch.cat([self.train_Y, Y], dim=-2)
        growth, weights = Growth(extension.rows, residual), _weights(dual, self.kernel, self.spectrum)
        return KroneckerRegression(self.kernel, self.spectrum, self.noise, X, Y, factor, dual, weights, growth)

    def with_values(self, Y: Tensor) -> KroneckerRegression:
        """Return the regression on the same points with other values, in :math:`O(n t^2)`."""
        dual = _solve(self.factor, self.spectrum.rotate(Y / self.noise.sqrt()))
        return replace(self, train_Y=Y, dual=dual, weights=_weights(dual, self.kernel, self.spectrum), growth=None)

    def expand(self, batch_shape: torch.Size) -> KroneckerRegression:
        tensors = expand_fields(self, batch_shape, train_X=2, train_Y=2, dual=3, weights=3)
        factor = self.factor.expand(batch_shape + self.factor.batch_shape[-1:])
        return replace(self, **tensors, factor=factor, growth=None, rotation=None)

    def track(self, points: Tensor, memory: float = math.inf) -> TrackedKronecker:
        return TrackedKronecker.start(self, points, memory)

    def prepare_for_variances(self) -> Self:
        r"""Diagonalize :math:`K_t`, :math:`O(t^3)` once; the variances of all groups are then one product a point."""
        groups = self.factor.batch_shape.numel() // max(1, self.batch_shape.numel())
        if not self.kernel.shared or groups < MANY_GROUPS or self.factor.requires_grad:
            return self
        values, vectors = torch.linalg.eigh(self.kernel(self.train_X, self.train_X).squeeze(-3).double())
        rotation = (vectors.to(self.train_X), values.clamp_min(0).unsqueeze(-1).to(self.train_X))
        return replace(self, rotation=rotation)

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        r"""Predict the values at each training point from all others, their noise included.

        In whitened direction g, with the diagonal :math:`p_{gi}` of :math:`(K_t + I / \xi_g)^{-1}`, mean and variance
        are :math:`y_{gi} - a_{gi} / p_{gi}` (a is `dual`) and :math:`\xi_g / p_{gi}`; where the prior variance is zero
        they are 0 and the noise. From the factors this costs :math:`O(r t^2)`.

        Returns:
            ``(b) x t x n`` and ``(b) x t x n x n``.
        """
        diagonal = self.factor.inverse_blocks(1)[..., 0]  # (b) x r x t x 1
        sd = self.noise.sqrt()
        mean = (self.spectrum.rotate(self.train_Y / sd) - self.dual / diagonal) @ self.spectrum.bases.mT
        variances = (self.kernel.eigvals.unsqueeze(-1) / diagonal.squeeze(-1) - 1).clamp_min(0)
        noise = torch.diag_embed(self.noise.expand(*self.noise.shape[:-1], self.num_tasks))
        return mean.sum(dim=-3) * sd, self.spectrum.spread_diagonal(variances, self.noise) + noise

    @property
    def _logdets(self) -> Tensor:
        # log det(K + I / xi) - t log(1 / xi) = log det(I + xi K), once for each direction of the group.
        return self.factor.logdet + self.num_observations * self.kernel.eigvals.log()

    @property
    def _norm_needs_one_group(self) -> bool:
        return self.kernel.shared and self.noise.shape[-1] == 1

    def _evidence(self, points: Tensor) -> Tensor:
        """Return the scalar kernels with the data, ``(b) x 1 x P x t`` or ``(b) x r x P x t``."""
        return self.kernel(points, self.train_X)

    def _mean(self, evidence: Tensor) -> Tensor:
        return (evidence @ self.weights).sum(dim=-3) * self.noise.sqrt()

    def _covariance(self, points: Tensor, evidence: Tensor) -> Tensor:
        return self.spectrum.spread_diagonal(self._group_variances(points, evidence), self.noise)

    def _variance(self, points: Tensor, evidence: Tensor, directions: Tensor | None) -> Tensor:
        return self.spectrum.spread_variances(self._group_variances(points, evidence), self.noise, directions)

    def _norm(self, points: Tensor, evidence: Tensor) -> Tensor:
        factor = self.factor.leading() if self._norm_needs_one_group else self.factor
        return self._norm_from(self._variances_from(factor, points, evidence))

    def _joint_covariance(self, X: Tensor, evidence: Tensor, unfold: Callable[[Tensor], Tensor]) -> Tensor:
        projected = self.factor.lower(evidence)
        projected = unfold(projected.movedim(-3, -2)).movedim(-2, -3)  # ... x (b) x r x q x t
        per_group = self.kernel.eigvals[..., None, None] * (self.kernel(X, X) - projected @ projected.mT)
        return self.spectrum.spread(per_group, self.noise)

    def _variances_from(self, factor: InverseCholesky, points: Tensor, evidence: Tensor) -> Tensor:
        """Return the whitened variances v_g, ``(b) x r x P``, or v_1 alone for the factor of the first group."""
        eigvals = self.kernel.eigvals[..., : factor.batch_shape[-1], None]
        return (eigvals * (self.kernel.diag(points) - factor.quadratic(evidence))).clamp_min(0)

    def _group_variances(self, points: Tensor, evidence: Tensor) -> Tensor:
        if self.rotation is None:
            return self._variances_from(self.factor, points, evidence)
        (vectors, values), eigvals = self.rotation, self.kernel.eigvals
        shrinkage = (values + eigvals.reciprocal().unsqueeze(-2)).reciprocal()
        explained = (evidence.squeeze(-3) @ vectors).square() @ shrinkage
        return (eigvals.unsqueeze(-1) * (self.kernel.diag(points) - explained.mT)).clamp_min(0)

    def _norm_from(self, variances: Tensor) -> Tensor:
        if self.noise.shape[-1] == 1:
            return variances.amax(dim=-2) * self.noise.squeeze(-1)
        return operator_norm(self.spectrum.spread_diagonal(variances, self.noise))


class TrackedKronecker(Tracked):
    r"""Mean and variances at N fixed points, brought up to date in :math:`O(N t)` by each observation.

    A new row ``a`` of ``M`` changes :math:`\|M k\|^2` at every point by :math:`(a^T k)^2`, and the mean by
    :math:`(a^T k)` times the whitened residual. So only the kernel between data and points is stored, once for all
    groups, and read once a round.

    Args:
        regression: The regression.
        X: ``N x d``.
        cross: ``(b) x 1 x t x N`` (or ``(b) x r x t x N``), the kernel between data and points; None if there is no
            memory for it.
        variances: ``(b) x r x N``, whitened.
        whitened_mean: ``(b) x N x n``.
        memory: As in :meth:`Regression.track`.
    """

    regression: KroneckerRegression

    def __init__(
        self,
        regression: KroneckerRegression,
        X: Tensor,
        cross: RowBlocks | None,
        variances: Tensor,
        whitened_mean: Tensor,
        memory: float = math.inf,
    ) -> None:
        super().__init__(regression, X, memory)
        self.cross = self._keep_if_room(cross, variances, whitened_mean)
        self.variances, self.whitened_mean = variances, whitened_mean

    @classmethod
    def start(cls, regression: KroneckerRegression, points: Tensor, memory: float) -> TrackedKronecker:
        """Track ``N x d`` points from what a regression knows now."""
        cross = regression.kernel(points, regression.train_X)
        variances = regression._variances_from(regression.factor, points, cross)
        variances = variances.expand(torch.broadcast_shapes(variances.shape, (*regression.batch_shape, 1, 1)))
        mean = (cross @ regression.weights).sum(dim=-3)
        return cls(regression, points, RowBlocks.of(cross.mT.contiguous()), variances, mean, memory)

    def advance(self, grown: Regression) -> Tracked:
        if not isinstance(grown, KroneckerRegression) or grown.growth is None:
            return grown.track(self.X, self.memory)
        rows, residuals = grown.growth.rows, grown.growth.residuals
        if self.cross is None:
            cross, blocks = None, [grown.kernel(grown.train_X, self.X)]
        else:
            cross = self.cross.extend(grown.kernel(grown.train_X[..., -rows.shape[-2] :, :], self.X))
            blocks = cross.parts
        change = shared_product(rows, *blocks)
        variances = (self.variances - grown.kernel.eigvals[..., None] * change.square().sum(dim=-2)).clamp_min(0)
        shift = change.mT @ (residuals @ grown.spectrum.bases.mT)
        mean = self.whitened_mean + shift.sum(dim=-3)
        return TrackedKronecker(grown, self.X, cross, variances, mean, self.memory)

    @property
    def mean(self) -> Tensor:
        return self.whitened_mean * self.regression.noise.sqrt()

    @property
    def covariance(self) -> Tensor:
        return self.regression.spectrum.spread_diagonal(self.variances, self.regression.noise)

    @property
    def norm(self) -> Tensor:
        variances = self.variances[..., :1, :] if self.regression._norm_needs_one_group else self.variances
        return self.regression._norm_from(variances)

    def variance(self, directions: Tensor | None = None) -> Tensor:
        return self.regression.spectrum.spread_variances(self.variances, self.regression.noise, directions)


@dataclass(frozen=True, eq=False)
class CompletedRegression(Regression):
    r"""Regression with some values missing (NaN), as a correction of one in which none is.

    With ``A`` the whitened :math:`G_t + I` of all ``nt`` values, and u of them not seen, let :math:`V = (A^{-1})_{uu}`.
    The missing values are completed by those that make :math:`(A^{-1} y)_u = 0`: they say nothing, and the mean is
    that of the completed data. Given what was seen,

    .. math::

        \Gamma_t(x, x') &= \Gamma^{all}_t(x, x') + c_u(x)^T V^{-1} c_u(x'), \quad c(x) = A^{-1} G_t(x) \\
        \log\det A_{ss} &= \log\det A + \log\det V

    Fitting costs :math:`O(r t^3 + u^3)`, an append :math:`O(r u t^2 + u^3)`, a point :math:`O(r t (t + u) + n u^2)`:
    it pays while much more is seen than not.

    Attributes:
        base: The regression on the completed data.
        train_Y: With NaN.
        missing: Where.
        rows: ``(b) x r x u x t``, the columns of ``M_g`` for the points of the missing values.
        root: ``(b) x u x u``, the inverse of the Cholesky factor of ``V``.
        logdet: ``(b)``, :math:`\log\det V`.
    """

    base: KroneckerRegression
    train_Y: Tensor
    missing: Missing
    rows: Tensor
    root: Tensor
    logdet: Tensor

    @classmethod
    def of(cls, base: KroneckerRegression, Y: Tensor) -> CompletedRegression:
        """From the regression on ``(b) x t x n`` values that differ from `Y` only where those are NaN."""
        missing = Missing.of(Y)
        units = torch.eye(Y.shape[-2], dtype=Y.dtype, device=Y.device)[missing.points]
        rows = base.factor.lower(units.expand(*base.factor.batch_shape, *units.shape))
        V = missing.only(_inverse_at(base, rows, missing))
        chol = safe_cholesky(V, V.new_full(V.shape[:-2], torch.finfo(V.dtype).tiny), V)
        root = solve_lower(chol, eye_like(V))
        change = -(missing.pick(_solve_all(base)).unsqueeze(-2) @ root.mT @ root).squeeze(-2)
        completed = base.train_Y + missing.put(change, Y) * base.noise.sqrt()
        return cls(base.with_values(completed), Y, missing, rows, root, cholesky_logdet(chol))

    @classmethod
    def try_fit(cls, kernel: MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor) -> Regression | None:
        """Do as :meth:`KroneckerRegression.try_fit`; where completing does not pay, use what was seen alone."""
        if few_are_missing(Y):
            base = KroneckerRegression.try_fit(kernel, noise, X, _fill_with_zeros(Y))
            return None if base is None else cls.of(base, Y)
        return None if kernel.group(noise) is None else _MostlyMissing.fit(kernel, noise, X, Y)

    @classmethod
    def extend(cls, base: KroneckerRegression, train_Y: Tensor, X: Tensor, Y: Tensor) -> Regression:
        """Append to a regression on completed data, of which `train_Y` were seen."""
        Y_all = torch.cat([train_Y, Y], dim=-2)
        if few_are_missing(Y_all):
            return cls.of(base.append_complete(X, _fill_with_zeros(Y)), Y_all)
        return _MostlyMissing.fit(base.kernel.whole, base.noise, torch.cat([base.train_X, X], dim=-2), Y_all)

    @property
    def noise(self) -> Tensor:
        return self.base.noise

    @property
    def train_X(self) -> Tensor:
        return self.base.train_X

    @property
    def info_gain(self) -> Tensor:
        return (self.base.info_gain + self.logdet / 2).clamp_min(0)

    @property
    def mean_norm(self) -> Tensor:
        return self.base.mean_norm

    @property
    def quadratic(self) -> Tensor:
        return self.base.quadratic  # what was completed adds nothing to it

    def with_noise(self, noise: Tensor) -> Regression:
        whole, is_one = self.base.kernel.whole, noise.dim() == self.train_X.dim()
        fit = whole.fit if is_one else partial(DenseRegression.fit, whole)
        return fit(noise, self.train_X, self.train_Y)

    def append(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> Regression:
        if noise is not None:
            return _to_dense(self, self.base.kernel.whole).append(X, Y, noise)
        return CompletedRegression.extend(self.base, self.train_Y, X, Y)

    def expand(self, batch_shape: torch.Size) -> CompletedRegression:
        tensors = expand_fields(self, batch_shape, train_Y=2, rows=3, root=2, logdet=0)
        return replace(self, **tensors, base=self.base.expand(batch_shape), missing=self.missing.expand(batch_shape))

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        r"""Predict the values at each training point from all others, their noise included.

        As in :class:`DenseRegression`, with the blocks of the inverse of what was seen, those of

        .. math:: (A_{ss})^{-1} = (A^{-1})_{ss} - (A^{-1})_{su} V^{-1} (A^{-1})_{us}

        From the factors this costs :math:`O(r t^2 u + n t u (n + u) + n^3 t)`, and ``n t u`` numbers are stored.

        Returns:
            ``(b) x t x n`` and ``(b) x t x n x n``; zero and the noise for a value that is missing.
        """
        columns = _inverse_columns(self.base, self.rows, self.missing)
        explained = self.missing.mask_out(columns) @ self.root.mT.unsqueeze(-3)
        precision = _inverse_blocks(self.base) - explained @ explained.mT
        sd, unit_noise = self.noise.sqrt(), torch.ones_like(self.noise)
        mean, covariance = predict_left_out(precision, _solve_all(self.base), self.train_Y / sd, unit_noise)
        return mean * sd, sd.unsqueeze(-1) * covariance * sd.unsqueeze(-2)

    def _evidence(self, points: Tensor) -> Tensor:
        return self.base._evidence(points)

    def _mean(self, evidence: Tensor) -> Tensor:
        return self.base._mean(evidence)

    def _covariance(self, points: Tensor, evidence: Tensor) -> Tensor:
        base, projected = self.base, self.base.factor.lower(evidence)
        known = projected.square().sum(dim=-1)
        variances = (base.kernel.eigvals[..., None] * (base.kernel.diag(points) - known)).clamp_min(0)
        correction = self._correction(projected)
        return base.spectrum.spread_diagonal(variances, base.noise) + correction @ correction.mT

    def _joint_covariance(self, X: Tensor, evidence: Tensor, unfold: Callable[[Tensor], Tensor]) -> Tensor:
        correction = unfold(self._correction(self.base.factor.lower(evidence))).flatten(-3, -2)
        return self.base._joint_covariance(X, evidence, unfold) + correction @ correction.mT

    def _correction(self, projected: Tensor) -> Tensor:
        """Return ``(b) x P x n x u`` from ``(b) x r x P x t`` products of ``M_g`` with the kernel."""
        solved = projected @ self.rows.mT
        c = torch.einsum("...gpu,...gub->...pbu", solved, _projectors(self.base)[..., self.missing.tasks, :])
        c = (self.missing.mask_out(c).flatten(-3, -2) @ self.root.mT).unflatten(-2, (-1, self.num_tasks))
        return c * self.noise.sqrt().unsqueeze(-1)


class _MostlyMissing(DenseRegression):
    """Regression on what was seen alone, until so much is seen that completing the rest pays."""

    def append(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> Regression:
        if noise is not None:
            return _to_dense(self, self.kernel).append(X, Y, noise)
        Y_all = torch.cat([self.train_Y, Y], dim=-2)
        if not few_are_missing(Y_all):
            return super().append(X, Y)
        return self.kernel.fit(self.noise, torch.cat([self.train_X, X], dim=-2), Y_all)


def _to_dense(regression: Regression, kernel: MatrixKernel) -> DenseRegression:
    """Return the same regression for observations with noise of their own, which leaves no scalar problems."""
    return DenseRegression.fit(kernel, regression.noise, regression.train_X, regression.train_Y)


def _inverse_at(base: KroneckerRegression, rows: Tensor, missing: Missing) -> Tensor:
    """Return the block ``(b) x u x u`` of :math:`A^{-1}` at some values, from ``M_g``'s columns at their points."""
    projectors, tasks = _projectors(base), missing.tasks
    of_points = (rows @ rows.mT) / base.kernel.eigvals[..., None, None]
    inside = (of_points * projectors[..., tasks, :][..., tasks]).sum(dim=-3)
    # In directions without a prior variance, A is one.
    same_point = missing.points.unsqueeze(-1) == missing.points
    return inside + same_point * _beyond(projectors)[..., tasks, :][..., tasks]


def _inverse_columns(base: KroneckerRegression, rows: Tensor, missing: Missing) -> Tensor:
    """Return the columns ``(b) x t x n x u`` of :math:`A^{-1}` at some values, arguments as in :func:`_inverse_at`."""
    projectors, tasks = _projectors(base), missing.tasks
    of_points = base.factor.upper(rows) / base.kernel.eigvals[..., None, None]
    inside = torch.einsum("...gut,...gau->...tau", of_points, projectors[..., tasks])
    same_point = torch.arange(base.num_observations, device=tasks.device).unsqueeze(-1) == missing.points
    return inside + same_point.unsqueeze(-2) * _beyond(projectors)[..., tasks].unsqueeze(-3)


def _inverse_blocks(base: KroneckerRegression) -> Tensor:
    """Return the blocks ``(b) x t x n x n`` of :math:`A^{-1}` at each point."""
    projectors = _projectors(base)
    of_points = base.factor.inverse_blocks(1)[..., 0, 0] / base.kernel.eigvals.unsqueeze(-1)
    return torch.einsum("...gt,...gab->...tab", of_points, projectors) + _beyond(projectors).unsqueeze(-3)


def _solve_all(base: KroneckerRegression) -> Tensor:
    """Return :math:`A^{-1} y`, ``(b) x t x n``."""
    inside = ((base.dual / base.kernel.eigvals[..., None, None]) @ base.spectrum.bases.mT).sum(dim=-3)
    return inside + (base.train_Y / base.noise.sqrt()) @ _beyond(_projectors(base))


def _projectors(base: KroneckerRegression) -> Tensor:
    """Return the projectors ``(b) x r x n x n`` on the directions of each group."""
    return base.spectrum.bases @ base.spectrum.bases.mT


def _beyond(projectors: Tensor) -> Tensor:
    """Return the projector ``(b) x n x n`` on what no group spans."""
    spanned = projectors.sum(dim=-3)
    return eye_like(spanned) - spanned


def _fill_with_zeros(Y: Tensor) -> Tensor:
    return torch.where(Y.isnan(), 0, Y)


def _solve(factor: InverseCholesky, target: Tensor) -> Tensor:
    return factor.upper(factor.lower(target.mT)).mT


def _weights(dual: Tensor, kernel: Groups, spectrum: Spectrum) -> Tensor:
    per_group = dual @ spectrum.bases.mT
    return per_group.sum(dim=-3, keepdim=True) if kernel.shared else per_group
