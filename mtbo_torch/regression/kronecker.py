r"""Kernels that a rotation of the tasks makes diagonal: :math:`\Gamma = k B`, and sums whose task matrices commute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mtbo_torch.regression.base import (
    SINGULAR_REMEDY,
    Folded,
    Followed,
    Regression,
    ScalarKernel,
    SeparableSum,
    shared_product,
    sum_all,
)
from mtbo_torch.regression.dense import DenseRegression
from mtbo_torch.regression.growing import GrowingRows, InverseCholesky, safe_cholesky, solve_lower
from mtbo_torch.regression.norm import operator_norm
from mtbo_torch.regression.seen import Missing, few_are_missing
from mtbo_torch.regression.spectrum import Spectrum, whiten

# With fewer groups, a product with the factor of each is cheaper than one with the eigenvectors.
MANY_GROUPS = 3


@dataclass(frozen=True)
class GroupedKernel:
    r"""The scalar kernel of every group: :math:`k` for all (one term), or :math:`\kappa_g = \sum_j \xi_{jg} k_j`.

    Values have a group dimension of size one when all groups share :math:`k`; their own scales are then in
    `eigvals`, which are all one otherwise.

    Attributes:
        gamma: What the groups were made from.
        loadings: ``(b) x J x r`` when there are several terms, else None.
        eigvals: ``(b) x r``.
    """

    gamma: SeparableSum
    loadings: Tensor | None
    eigvals: Tensor

    @classmethod
    def of(cls, gamma: SeparableSum, spectrum: Spectrum) -> GroupedKernel:
        """The kernel of each group of a spectrum."""
        if len(gamma.kernels) == 1:
            # An eigenvalue that is zero in one data set but not in all would make its shift infinite.
            tiny = torch.finfo(spectrum.eigvals.dtype).tiny ** 0.5
            return cls(gamma, None, spectrum.eigvals.squeeze(-2).clamp_min(tiny))
        return cls(gamma, spectrum.eigvals, torch.ones_like(spectrum.eigvals[..., 0, :]))

    @property
    def kernels(self) -> tuple[ScalarKernel, ...]:
        """The scalar kernels of the terms."""
        return self.gamma.kernels

    @property
    def shared(self) -> bool:
        """Whether all groups share one kernel."""
        return self.loadings is None

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        """``(b) x 1 x N1 x N2`` or ``(b) x r x N1 x N2``."""
        if self.loadings is None:
            return self.kernels[0](X1, X2).unsqueeze(-3)
        return sum_all(
            self.loadings[..., j, :, None, None] * k(X1, X2).unsqueeze(-3) for j, k in enumerate(self.kernels)
        )

    def diag(self, X: Tensor) -> Tensor:
        """``(b) x 1 x N`` or ``(b) x r x N``."""
        if self.loadings is None:
            return self.kernels[0].diag(X).unsqueeze(-2)
        return sum_all(self.loadings[..., j, :, None] * k.diag(X).unsqueeze(-2) for j, k in enumerate(self.kernels))


@dataclass(frozen=True, eq=False)
class KroneckerRegression(Regression):
    r"""Regression with :math:`\Gamma = \sum_j k_j B_j`, the :math:`B_j` commuting; above all :math:`\Gamma = k B`.

    Everything is done in whitened task space, :math:`B' = \Sigma^{-1/2} B \Sigma^{-1/2} = \sum_g \xi_g U_g U_g^T`
    with unit noise, where :math:`\Gamma_t(x, x) = \Sigma^{1/2} (\sum_g v_g(x) U_g U_g^T) \Sigma^{1/2}` and
    :math:`v_g(x) = \xi_g (k(x, x) - k_t(x)^T (K_t + I / \xi_g)^{-1} k_t(x))`.

    One eigenvalue is enough for the norm when :math:`\Gamma = k B` and the noise is the same for all tasks, because
    :math:`v_g` grows with :math:`\xi_g`. All variances together cost r products, or one after
    :meth:`prepare_variances`. The mean is one product, :math:`k_t(x)^T A_t`. With r distinct non-zero
    eigenvalues, fitting costs :math:`O(r t^3)`, an append :math:`O(r t^2)`, and mean and norm at a point
    :math:`O(t^2 + nt)` whatever r is (:math:`O(r t^2)` when the tasks have noises of their own).

    Attributes:
        kernel: The scalar kernels of the groups, and :math:`\xi_g`.
        spectrum: The groups.
        factor: ``M_g`` with :math:`M_g^T M_g = (K_t + I / \xi_g)^{-1}`, batch shape ``(b) x r``.
        dual: ``(b) x r x t x m``, :math:`(K_t + I / \xi_g)^{-1} Y' U_g`.
        weights: ``A_t``: ``(b) x 1 x t x n`` for a shared kernel (summed over groups), else ``(b) x r x t x n``.
    """

    kernel: GroupedKernel
    spectrum: Spectrum
    noise: Tensor
    train_X: Tensor
    train_Y: Tensor
    factor: InverseCholesky
    dual: Tensor
    weights: Tensor

    @classmethod
    def try_fit(cls, gamma: SeparableSum, noise: Tensor, X: Tensor, Y: Tensor) -> KroneckerRegression | None:
        """Fit if the whitened task matrices commute, else return None."""
        spectrum = Spectrum.of(whiten(gamma.task_covars, noise))
        return None if spectrum is None else cls.fit(GroupedKernel.of(gamma, spectrum), spectrum, noise, X, Y)

    @classmethod
    def fit(cls, kernel: GroupedKernel, spectrum: Spectrum, noise: Tensor, X: Tensor, Y: Tensor) -> KroneckerRegression:
        """Fit ``(b) x t x d`` points and ``(b) x t x n`` values with noise ``(b) x 1`` or ``(b) x n``."""
        shift = kernel.eigvals.reciprocal()
        gram = kernel(X, X) + shift[..., None, None] * torch.eye(X.shape[-2], dtype=X.dtype, device=X.device)
        gram = gram.expand(*X.shape[:-2], *gram.shape[-3:])
        factor = InverseCholesky.of(gram, shift.expand(gram.shape[:-2]), SINGULAR_REMEDY)
        target = spectrum.rotate(Y / noise.sqrt().unsqueeze(-2))
        dual = factor.upper(factor.lower(target.mT)).mT
        return cls(kernel, spectrum, noise, X, Y, factor, dual, _weights(dual, kernel, spectrum))

    @property
    def info_gain(self) -> Tensor:
        return self.spectrum.total(self._logdets).clamp_min(0) / 2

    @property
    def mean_norm(self) -> Tensor:
        # With a = (xi K + I)^-1 y in each direction, the squared norm is a^T xi K a = a^T (y - a).
        target = self.spectrum.rotate(self.train_Y / self.noise.sqrt().unsqueeze(-2))
        solved = self.dual / self.kernel.eigvals[..., None, None]
        return (solved * (target - solved)).sum(dim=(-3, -2, -1)).clamp_min(0).sqrt()

    @property
    def largest_gain(self) -> Tensor:
        r"""``(b)``, the largest information gain of one direction; of one task, when the tasks are independent."""
        return self._logdets.amax(dim=-1).clamp_min(0) / 2

    def append(self, X: Tensor, Y: Tensor) -> Regression:
        return CompletedRegression.extended(self, self.train_Y, X, Y) if Y.isnan().any() else self._append(X, Y)[0]

    def _append(self, X: Tensor, Y: Tensor) -> tuple[KroneckerRegression, Tensor, Tensor]:
        """Append; also return the new rows of ``M`` and the whitened residuals, which followers need."""
        shift = self.kernel.eigvals.reciprocal()
        cross = self.kernel(X, self.train_X)
        corner = self.kernel(X, X) + shift[..., None, None] * torch.eye(X.shape[-2], dtype=X.dtype, device=X.device)
        floor = shift.expand(corner.shape[:-2])
        factor, extension = self.factor.append(cross, corner, floor, SINGULAR_REMEDY)
        target = self.spectrum.rotate(Y / self.noise.sqrt().unsqueeze(-2))
        residual = extension.corner @ (target - cross @ self.dual)
        grown = torch.nn.functional.pad(self.dual, (0, 0, 0, X.shape[-2]))
        dual = grown + extension.rows.mT @ residual
        appended = KroneckerRegression(
            self.kernel,
            self.spectrum,
            self.noise,
            torch.cat([self.train_X, X], dim=-2),
            torch.cat([self.train_Y, Y], dim=-2),
            factor,
            dual,
            _weights(dual, self.kernel, self.spectrum),
        )
        return appended, extension.rows, residual

    def with_values(self, Y: Tensor) -> KroneckerRegression:
        """The same points with other values, in :math:`O(n t^2)`."""
        target = self.spectrum.rotate(Y / self.noise.sqrt().unsqueeze(-2))
        dual = self.factor.upper(self.factor.lower(target.mT)).mT
        return replace(self, train_Y=Y, dual=dual, weights=_weights(dual, self.kernel, self.spectrum))

    def expand(self, batch_shape: torch.Size) -> KroneckerRegression:
        def grow(tensor: Tensor, own: int) -> Tensor:
            return tensor.expand(*batch_shape, *tensor.shape[tensor.dim() - own :])

        return KroneckerRegression(
            self.kernel,
            self.spectrum,
            self.noise,
            grow(self.train_X, 2),
            grow(self.train_Y, 2),
            self.factor.expand(batch_shape + self.factor.batch_shape[-1:]),
            grow(self.dual, 3),
            grow(self.weights, 3),
        )

    def mean(self, X: Tensor) -> Tensor:
        folded = Folded.of(X, self.batch_shape)
        return folded.unfold(self._mean(self.kernel(folded.points, self.train_X)))

    def covariance(self, X: Tensor) -> Tensor:
        return self.mean_and_covariance(X)[1]

    def mean_and_covariance(self, X: Tensor) -> tuple[Tensor, Tensor]:
        folded = Folded.of(X, self.batch_shape)
        cross = self.kernel(folded.points, self.train_X)
        covariance = self.spectrum.spread_diagonal(self._variances_of_all(folded.points, cross), self.noise)
        return folded.unfold(self._mean(cross)), folded.unfold(covariance)

    def mean_and_variance(self, X: Tensor, directions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        folded = Folded.of(X, self.batch_shape)
        cross = self.kernel(folded.points, self.train_X)
        variances = self._variances_of_all(folded.points, cross)
        variances = self.spectrum.spread_variances(variances, self.noise, directions)
        return folded.unfold(self._mean(cross)), folded.unfold(variances)

    def prepare_variances(self) -> None:
        r"""Diagonalise :math:`K_t`, :math:`O(t^3)` once; the variances of all groups are then one product a point."""
        if self.kernel.shared and self.kernel.eigvals.shape[-1] >= MANY_GROUPS and not self.factor.requires_grad:
            self._rotation  # noqa: B018

    def mean_and_norm(self, X: Tensor) -> tuple[Tensor, Tensor]:
        folded = Folded.of(X, self.batch_shape)
        cross = self.kernel(folded.points, self.train_X)
        return folded.unfold(self._mean(cross)), folded.unfold(self._norm(folded.points, cross))

    def joint_covariance(self, X: Tensor) -> Tensor:
        folded = Folded.of(X, self.batch_shape)
        projected = self.factor.lower(self.kernel(folded.points, self.train_X))
        projected = folded.unfold(projected.movedim(-3, -2)).movedim(-2, -3)  # ... x (b) x r x q x t
        per_group = self.kernel.eigvals[..., None, None] * (self.kernel(X, X) - projected @ projected.mT)
        return self.spectrum.spread(per_group, self.noise)

    def leave_one_out(self) -> tuple[Tensor, Tensor]:
        r"""Mean and covariance of the values at each training point given all others, their noise included.

        In whitened direction g, with the diagonal :math:`p_{gi}` of :math:`(K_t + I / \xi_g)^{-1}`, they are
        :math:`y_{gi} - a_{gi} / p_{gi}` (a is `dual`) and :math:`\xi_g / p_{gi}`; where the prior variance is zero
        they are 0 and the noise. From the factors this costs :math:`O(r t^2)`.

        Returns:
            ``(b) x t x n`` and ``(b) x t x n x n``.
        """
        diagonal = self.factor.inverse_blocks(1)[..., 0]  # (b) x r x t x 1
        sd = self.noise.sqrt().unsqueeze(-2)
        mean = (self.spectrum.rotate(self.train_Y / sd) - self.dual / diagonal) @ self.spectrum.bases.mT
        variances = (self.kernel.eigvals.unsqueeze(-1) / diagonal.squeeze(-1) - 1).clamp_min(0)
        noise = self.noise.expand(*self.noise.shape[:-1], self.num_tasks)
        covariance = self.spectrum.spread_diagonal(variances, self.noise) + torch.diag_embed(noise).unsqueeze(-3)
        return mean.sum(dim=-3) * sd, covariance

    def follow(self, points: Tensor) -> FollowedKronecker:
        return FollowedKronecker.start(self, points)

    @property
    def _logdets(self) -> Tensor:
        # log det(K + I / xi) - t log(1 / xi) = log det(I + xi K), once for each direction of the group.
        return self.factor.logdet + self.num_observations * self.kernel.eigvals.log()

    @property
    def _norm_needs_one_group(self) -> bool:
        return self.kernel.shared and self.noise.shape[-1] == 1

    def _mean(self, cross: Tensor) -> Tensor:
        return (cross @ self.weights).sum(dim=-3) * self.noise.sqrt().unsqueeze(-2)

    def _variances(self, points: Tensor, cross: Tensor, factor: InverseCholesky) -> Tensor:
        """``(b) x r x P``, the whitened variances v_g (or v_1 alone, for the factor of the first group)."""
        eigvals = self.kernel.eigvals[..., : factor.batch_shape[-1], None]
        return (eigvals * (self.kernel.diag(points) - factor.quadratic(cross))).clamp_min(0)

    @cached_property
    def _rotation(self) -> tuple[Tensor, Tensor]:
        r"""The eigenvectors of :math:`K_t`, ``(b) x t x t``, and its eigenvalues, ``(b) x t x 1``."""
        values, vectors = torch.linalg.eigh(self.kernel(self.train_X, self.train_X).squeeze(-3).double())
        return vectors.to(self.train_X), values.clamp_min(0).unsqueeze(-1).to(self.train_X)

    def _variances_of_all(self, points: Tensor, cross: Tensor) -> Tensor:
        if "_rotation" not in self.__dict__:
            return self._variances(points, cross, self.factor)
        vectors, values = self._rotation
        eigvals = self.kernel.eigvals
        explained = (cross.squeeze(-3) @ vectors).square() @ (values + eigvals.reciprocal().unsqueeze(-2)).reciprocal()
        return (eigvals.unsqueeze(-1) * (self.kernel.diag(points) - explained.mT)).clamp_min(0)

    def _norm(self, points: Tensor, cross: Tensor) -> Tensor:
        factor = self.factor.leading() if self._norm_needs_one_group else self.factor
        return self._norm_of(self._variances(points, cross, factor))

    def _norm_of(self, variances: Tensor) -> Tensor:
        if self.noise.shape[-1] == 1:
            return variances.amax(dim=-2) * self.noise
        return operator_norm(self.spectrum.spread_diagonal(variances, self.noise))


@dataclass(frozen=True, eq=False)
class FollowedKronecker(Followed):
    r"""Mean and variances at N fixed points, brought up to date in :math:`O(N t)` by each observation.

    A new row ``a`` of ``M`` changes :math:`\|M k\|^2` at every point by :math:`(a^T k)^2`, and the mean by
    :math:`(a^T k)` times the whitened residual. So only the kernel between data and points is stored, once for all
    groups, and read once a round.

    Attributes:
        regression: The regression that is followed.
        points: ``N x d``.
        cross: ``(b) x 1 x t x N`` (or ``(b) x r x t x N``), the kernel between data and points.
        variances: ``(b) x r x N``, whitened.
        whitened_mean: ``(b) x N x n``.
    """

    regression: KroneckerRegression
    points: Tensor
    cross: GrowingRows
    variances: Tensor
    whitened_mean: Tensor

    @classmethod
    def start(cls, regression: KroneckerRegression, points: Tensor) -> FollowedKronecker:
        """Follow a regression from where it is, at ``N x d`` points."""
        cross = regression.kernel(points, regression.train_X)
        variances = regression._variances(points, cross, regression.factor)
        variances = variances.expand(*regression.batch_shape, *variances.shape[-2:])
        mean = (cross @ regression.weights).sum(dim=-3)
        return cls(regression, points, GrowingRows.of(cross.mT.contiguous()), variances, mean)

    def append(self, X: Tensor, Y: Tensor) -> Followed:
        if Y.isnan().any():
            return Followed(self.regression.append(X, Y), self.points)
        grown, rows, residual = self.regression._append(X, Y)
        cross = self.cross.extend(grown.kernel(X, self.points))
        change = shared_product(rows, cross.rows)
        eigvals = grown.kernel.eigvals[..., None]
        variances = (self.variances - eigvals * change.square().sum(dim=-2)).clamp_min(0)
        shift = change.mT @ (residual @ grown.spectrum.bases.mT)
        return FollowedKronecker(grown, self.points, cross, variances, self.whitened_mean + shift.sum(dim=-3))

    def mean_and_norm(self) -> tuple[Tensor, Tensor]:
        variances = self.variances[..., :1, :] if self.regression._norm_needs_one_group else self.variances
        return self._mean, self.regression._norm_of(variances)

    def mean_and_variance(self, directions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        regression = self.regression
        return self._mean, regression.spectrum.spread_variances(self.variances, regression.noise, directions)

    def mean_and_covariance(self) -> tuple[Tensor, Tensor]:
        return self._mean, self.regression.spectrum.spread_diagonal(self.variances, self.regression.noise)

    @property
    def _mean(self) -> Tensor:
        return self.whitened_mean * self.regression.noise.sqrt().unsqueeze(-2)


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
        chol = safe_cholesky(V, V.new_full(V.shape[:-2], torch.finfo(V.dtype).tiny), V, SINGULAR_REMEDY)
        root = solve_lower(chol, torch.eye(V.shape[-1], dtype=V.dtype, device=V.device).expand_as(V))
        logdet = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        change = -(missing.pick(_solved(base)).unsqueeze(-2) @ root.mT @ root).squeeze(-2)
        completed = base.train_Y + missing.put(change, Y) * base.noise.sqrt().unsqueeze(-2)
        return cls(base.with_values(completed), Y, missing, rows, root, logdet)

    @classmethod
    def try_fit(cls, gamma: SeparableSum, noise: Tensor, X: Tensor, Y: Tensor) -> Regression | None:
        """Fit if the whitened task matrices commute, else return None; where it does not pay, what was seen alone."""
        if not few_are_missing(Y):
            return (
                None
                if Spectrum.of(whiten(gamma.task_covars, noise)) is None
                else _MostlyMissing.fit(gamma, noise, X, Y)
            )
        base = KroneckerRegression.try_fit(gamma, noise, X, _without_nan(Y))
        return None if base is None else cls.of(base, Y)

    @classmethod
    def extended(cls, base: KroneckerRegression, train_Y: Tensor, X: Tensor, Y: Tensor) -> Regression:
        """Append to a regression on completed data, of which `train_Y` were seen."""
        Y_all = torch.cat([train_Y, Y], dim=-2)
        if few_are_missing(Y_all):
            return cls.of(base._append(X, _without_nan(Y))[0], Y_all)
        return _MostlyMissing.fit(base.kernel.gamma, base.noise, torch.cat([base.train_X, X], dim=-2), Y_all)

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

    def append(self, X: Tensor, Y: Tensor) -> Regression:
        return CompletedRegression.extended(self.base, self.train_Y, X, Y)

    def expand(self, batch_shape: torch.Size) -> CompletedRegression:
        def grow(tensor: Tensor, own: int) -> Tensor:
            return tensor.expand(*batch_shape, *tensor.shape[tensor.dim() - own :])

        return CompletedRegression(
            self.base.expand(batch_shape),
            grow(self.train_Y, 2),
            self.missing.expand(batch_shape),
            grow(self.rows, 3),
            grow(self.root, 2),
            grow(self.logdet, 0),
        )

    def mean(self, X: Tensor) -> Tensor:
        return self.base.mean(X)

    def covariance(self, X: Tensor) -> Tensor:
        return self.mean_and_covariance(X)[1]

    def mean_and_covariance(self, X: Tensor) -> tuple[Tensor, Tensor]:
        folded = Folded.of(X, self.batch_shape)
        cross = self.base.kernel(folded.points, self.train_X)
        return folded.unfold(self.base._mean(cross)), folded.unfold(self._covariance(folded.points, cross))

    def mean_and_norm(self, X: Tensor) -> tuple[Tensor, Tensor]:
        mean, covariance = self.mean_and_covariance(X)
        return mean, operator_norm(covariance)

    def joint_covariance(self, X: Tensor) -> Tensor:
        folded = Folded.of(X, self.batch_shape)
        projected = self.base.factor.lower(self.base.kernel(folded.points, self.train_X))
        correction = folded.unfold(self._correction(projected)).flatten(-3, -2)
        return self.base.joint_covariance(X) + correction @ correction.mT

    def _covariance(self, points: Tensor, cross: Tensor) -> Tensor:
        base, projected = self.base, self.base.factor.lower(cross)
        known = projected.square().sum(dim=-1)
        variances = (base.kernel.eigvals[..., None] * (base.kernel.diag(points) - known)).clamp_min(0)
        correction = self._correction(projected)
        return base.spectrum.spread_diagonal(variances, base.noise) + correction @ correction.mT

    def _correction(self, projected: Tensor) -> Tensor:
        """``(b) x P x n x u``, from ``(b) x r x P x t`` products of ``M_g`` with the kernel."""
        solved = projected @ self.rows.mT
        c = torch.einsum("...gpu,...gub->...pbu", solved, _projectors(self.base)[..., self.missing.tasks, :])
        c = (self.missing.masked(c).flatten(-3, -2) @ self.root.mT).unflatten(-2, (-1, self.num_tasks))
        return c * self.noise.sqrt()[..., None, :, None]


class _MostlyMissing(DenseRegression):
    """What was seen alone, until so much is seen that completing the rest pays."""

    def append(self, X: Tensor, Y: Tensor) -> Regression:
        Y_all = torch.cat([self.train_Y, Y], dim=-2)
        if not few_are_missing(Y_all):
            return super().append(X, Y)
        assert isinstance(self.kernel, SeparableSum)
        completed = CompletedRegression.try_fit(self.kernel, self.noise, torch.cat([self.train_X, X], dim=-2), Y_all)
        assert completed is not None
        return completed


def _inverse_at(base: KroneckerRegression, rows: Tensor, missing: Missing) -> Tensor:
    """``(b) x u x u``, the block of :math:`A^{-1}` at some values, from the columns of ``M_g`` for their points."""
    projectors, tasks = _projectors(base), missing.tasks
    of_points = (rows @ rows.mT) / base.kernel.eigvals[..., None, None]
    inside = (of_points * projectors[..., tasks, :][..., tasks]).sum(dim=-3)
    # In directions without a prior variance, A is one.
    same_point = missing.points.unsqueeze(-1) == missing.points
    return inside + same_point * _beyond(projectors)[..., tasks, :][..., tasks]


def _solved(base: KroneckerRegression) -> Tensor:
    """``(b) x t x n``, :math:`A^{-1} y`."""
    inside = ((base.dual / base.kernel.eigvals[..., None, None]) @ base.spectrum.bases.mT).sum(dim=-3)
    return inside + (base.train_Y / base.noise.sqrt().unsqueeze(-2)) @ _beyond(_projectors(base))


def _projectors(base: KroneckerRegression) -> Tensor:
    """``(b) x r x n x n``, on the directions of each group."""
    return base.spectrum.bases @ base.spectrum.bases.mT


def _beyond(projectors: Tensor) -> Tensor:
    """``(b) x n x n``, the projector on what no group spans."""
    n = projectors.shape[-1]
    return torch.eye(n, dtype=projectors.dtype, device=projectors.device) - projectors.sum(dim=-3)


def _without_nan(Y: Tensor) -> Tensor:
    return torch.where(Y.isnan(), 0, Y)


def _weights(dual: Tensor, kernel: GroupedKernel, spectrum: Spectrum) -> Tensor:
    per_group = dual @ spectrum.bases.mT
    return per_group.sum(dim=-3, keepdim=True) if kernel.shared else per_group
