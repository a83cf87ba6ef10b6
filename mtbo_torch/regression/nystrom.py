r"""A dictionary of m points in place of the t observed ones (Algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mtbo_torch.linalg import cholesky_logdet, cholesky_plus_one, eye_like, safe_cholesky, solve_lower
from mtbo_torch.regression.base import Audit, Growth, Regression, Renewal, Tracked, expand_fields, shared_product
from mtbo_torch.regression.factor import GrowingRows
from mtbo_torch.regression.sites import Distinct, Sites, rows_at
from mtbo_torch.regression.structure import MatrixKernel
from mtbo_torch.regression.subspace import Subspace, minus_outer, outer_by_point
from mtbo_torch.regression.whitened import GroupedRows, RowKernel

# Data that are there at once begin with a dictionary of this many points.
FIRST_DICTIONARY = 64
# A dictionary that only grows is at most so many times as large as what was drawn: then what was not drawn is dropped.
LARGEST_SURPLUS = 1.5

Generators = torch.Generator | Sequence[torch.Generator]
STORED = (
    "dictionary",
    "dictionary_size",
    "inverse",
    "previous_inverse",
    "coefficients",
    "logdets",
    "information",
    "drift",
)


@dataclass(frozen=True)
class Border(Growth):
    """The change that more points in the dictionary made to a regression, for points that are tracked.

    Attributes:
        atoms: ``(b) x j x d``, the new points.
        own: ``(b) x G x jp x mp``, the features that they had before.
        root: ``(b) x G x jp x jp``, that of the inverse of what the span missed of them.
    """

    atoms: Tensor
    own: Tensor
    root: Tensor

    def new_columns(self, rows: RowKernel, X: Tensor, columns: Tensor) -> Tensor:
        """Return the new features of ``N x d`` points, ``(b) x G x jp x Np``, from ``(b) x G x mp x Np`` old ones."""
        return self.root @ (rows(self.atoms, X) - self.own @ columns)


@dataclass(frozen=True, eq=False)
class NystromRegression(Regression):
    r"""Regression on the span of a dictionary, with the variance outside that span kept.

    With :math:`v = \sum_s \phi(x_s) \phi(x_s)^T` and :math:`H = (v + I / \xi)^{-1}`, in whitened task space and for
    each group with eigenvalue :math:`\xi`:

    .. math::

        \tilde\mu(x) &= \phi^T H \sum_s \phi(x_s) (y_s \cdot u) \\
        \tilde v(x) &= \xi (k(x, x) - \phi^T \phi) + \phi^T H \phi

    Fitting costs :math:`O(t m^2 + r m^3)`, an append :math:`O(r m^2 + m n)`, mean and norm at a point :math:`O(m^2)`;
    memory is :math:`O(t (d + n) + r m^2)`. For kernels whose task matrices do not commute read ``nm`` for m.

    Attributes:
        subspace: The dictionary's span.
        oversampling: q, on variances in units of the noise: a point is kept with probability
            :math:`\min(1, q \|\tilde\Gamma(x, x)\| / \eta)`.
        observed_X: The points.
        observed_Y: The values.
        dictionary: ``(b) x m``, indices of observations, of those at equal points the last alone, which spans what all
            of them do; a shorter dictionary of a batch repeats its last one.
        dictionary_size: ``(b)``.
        inverse: ``(b) x r x mp x mp``, H.
        previous_inverse: H of the round before, if the dictionary was the same then, else that of this round.
        coefficients: ``(b) x r x mp x k``, :math:`H \sum_s \phi(x_s) (y_s \cdot u)`.
        logdets: ``(b) x r``, :math:`\log\det(I + \xi v)`, of what the span sees.
        information: ``(b)``, see :attr:`info_gain`.
        drift: ``(b)``, the sum of :math:`\|\tilde\Gamma(x_s, x_s)\| / \eta` over what was observed since the
            dictionary was drawn. Of several noises, the first is the one that dictionaries are drawn for.
        deviations: ``(b) x t x n``, of the noise, where observations have their own; rows are then whitened by them.
        border: What the dictionary gained after the last append; None if it did not grow.
    """

    subspace: Subspace
    oversampling: float
    observed_X: GrowingRows
    observed_Y: GrowingRows
    dictionary: Tensor
    dictionary_size: Tensor
    inverse: Tensor
    previous_inverse: Tensor
    coefficients: Tensor
    logdets: Tensor
    information: Tensor
    drift: Tensor
    deviations: Tensor | None = None
    growth: Growth | None = field(default=None, repr=False)
    border: Border | None = field(default=None, repr=False)

    @classmethod
    def fit(
        cls, kernel: MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor, dictionary: Tensor, oversampling: float
    ) -> NystromRegression:
        """Fit with given indices, ``m`` for all data sets or ``(b) x m``."""
        indices = dictionary.to(X.device).expand(*X.shape[:-2], dictionary.shape[-1])
        drawn = torch.zeros(X.shape[:-1], dtype=torch.bool, device=X.device).scatter(-1, indices, True)
        deviations = None if noise.shape[-2] == 1 else noise.sqrt().expand(Y.shape)
        distinct = Distinct.of(X, Y, deviations)
        rows = kernel.rows(noise, Y.shape[-1])
        fitted = _fit(rows, oversampling, GrowingRows.of(X), GrowingRows.of(Y), drawn, distinct)
        fitted = replace(fitted, deviations=deviations)
        return replace(fitted, information=fitted._bound_information(fitted._sum_missed()))

    @classmethod
    def sample(
        cls, kernel: MatrixKernel, noise: Tensor, X: Tensor, Y: Tensor, oversampling: float, generator: Generators
    ) -> NystromRegression:
        """Fit with a dictionary drawn for data that are there at once.

        The variances behind the draw come from half as many observations, whose dictionary was drawn in the same way;
        they are the larger for it, so nothing is missed. A last draw uses all the data.
        """
        size = min(X.shape[-2], FIRST_DICTIONARY)
        is_shared = noise.shape[-2] == 1
        deviations = None if is_shared else noise.sqrt().expand(Y.shape)
        first = noise if is_shared else noise[..., :size, :]
        fitted = cls.fit(kernel, first, X[..., :size, :], Y[..., :size, :], torch.arange(size), oversampling)
        while size < X.shape[-2]:
            size = min(X.shape[-2], 2 * size)
            fitted = replace(
                fitted,
                observed_X=GrowingRows.of(X[..., :size, :]),
                observed_Y=GrowingRows.of(Y[..., :size, :]),
                deviations=None if deviations is None else deviations[..., :size, :],
            ).resample(generator)
        if size:
            fitted = fitted.resample(generator)
        return replace(fitted, information=fitted._bound_information(fitted._sum_missed()))

    @property
    def train_X(self) -> Tensor:
        return self.observed_X.rows

    @property
    def train_Y(self) -> Tensor:
        return self.observed_Y.rows

    @property
    def noise(self) -> Tensor:
        return self.rows.noise if self.deviations is None else self.deviations.square()

    @property
    def rows(self) -> RowKernel:
        """The whitened kernel between rows."""
        return self.subspace.rows

    @property
    def info_gain(self) -> Tensor:
        r"""``(b)``, :math:`\frac12 \sum_s \log\det(I + \tilde\Gamma_{s-1}(x_s, x_s) / \eta)` over what was appended.

        Observations appended together count with the log-determinant of their joint covariance, and those of the fit
        with :math:`\frac12 \log\det(I + \tilde G / \eta) + \frac1{2 \eta} tr(G - \tilde G)`, which is never below the
        exact gain and equals it when every point is in the dictionary.
        """
        return self.information

    @property
    def mean_norm(self) -> Tensor:
        # The features are orthonormal in the RKHS of k, and the kernel of a group is xi k.
        squares = self.coefficients.square().sum(dim=(-2, -1)) / self.rows.eigvals
        return squares.sum(dim=-1).sqrt()

    @property
    def quadratic(self) -> Tensor:
        # The least that a function of the span leaves of the values, plus its norm.
        left = torch.zeros_like(self.mean_norm)
        for place, _, features in self.subspace.in_blocks(self.train_X):
            noise = self.noise if self.noise.shape[-2] == 1 else self.noise[..., place, :]
            apart = self.train_Y[..., place, :] - self._mean(features)
            left = left + (apart.square() / noise).sum(dim=(-2, -1))
        return left + self.mean_norm.square()

    def with_noise(self, noise: Tensor) -> NystromRegression:
        kernel = self.rows.kernel.whole if isinstance(self.rows, GroupedRows) else self.rows.kernel
        return NystromRegression.fit(kernel, noise, self.train_X, self.train_Y, self.dictionary, self.oversampling)

    def audit(self) -> Audit:
        sites = Sites.of(self.train_X, self.train_Y)
        pieces = self.subspace.in_blocks(sites.points)
        return self.audit_at(sites, ((p, self._mean(phi), self.subspace.residual(X, phi)) for p, X, phi in pieces))

    def audit_at(self, sites: Sites, pieces: Iterable[tuple[slice, Tensor, Tensor]]) -> Audit:
        r"""Do so from pieces of the sites: where these are, and there the means and :math:`k - \phi^T \phi`.

        With D for :math:`k - \phi^T \phi`, c the counts and r the residuals at each site, the largest eigenvalue is
        at most the trace, :math:`\xi \sum c\, tr(D)`, and as D is positive, :math:`r^T D r` of all sites is at most
        the square of the sum of the sites' own roots.
        """
        rows, squares, trace, roots = self.rows, *[self.train_X.new_zeros(())] * 3
        for place, mean, residual in pieces:
            counts, apart = sites.counts[..., place], sites.means[..., place, :] - mean
            weighted = counts.unsqueeze(-1) * apart
            squares = squares + (weighted * apart).sum(dim=(-2, -1))
            trace = trace + _sum_traces(residual, counts)
            left = rows.targets(weighted)  # (b) x r x up x k
            if rows.rows_per_point == 1:
                along = residual.squeeze(-1) * left.square()
            else:
                left = left.unflatten(-2, (-1, rows.rows_per_point))
                along = (left * (residual @ left)).sum(dim=-2)  # (b) x r x u x k
            roots = roots + along.clamp_min(0).sqrt().sum(dim=-2)
        quadratic = (sites.scatter + squares) / self.noise.flatten(-2)[..., 0] + self.mean_norm.square()
        missed = (rows.eigvals * trace).amax(dim=-1)
        unexplained = (rows.eigvals.unsqueeze(-1) * roots.square()).sum(dim=(-2, -1)).sqrt()
        gain = self._bound_information(trace)[0]
        return Audit(gain, quadratic, missed.expand_as(quadratic), unexplained)

    @property
    def inclusion_probs(self) -> Tensor:
        """``(b) x t``, with which :meth:`resample` draws: from the variances of the round before (Algorithm 2)."""
        return self._probs(self._distinct())

    def resample(self, generator: Generators, where: Tensor | None = None, keep: bool = False) -> NystromRegression:
        """Draw a new dictionary (Algorithm 2); the newest observation is always in it.

        Args:
            generator: The source of randomness, or one for each data set.
            where: ``(b)``, the data sets to draw for; the others keep their dictionary and take no random number.
            keep: Whether to keep what is in the dictionary besides what is drawn, which is never less accurate and
                mostly cheaper, as long as not too much of it would be dropped.
        """
        if self.num_observations == 0:
            raise ValueError("A dictionary can only be drawn from observations, got none. Condition on some first.")
        distinct = self._distinct()
        drawn = _draw(self._probs(distinct), generator, where)
        drawn[..., -1] = True
        before = self._is_in_dictionary()
        if keep:
            drawn = _keep_unless_many(drawn, before, distinct.sites)
        if where is not None:
            drawn = torch.where(where.unsqueeze(-1), drawn, before)
        resampled = self._grow_dictionary(drawn, distinct) if keep else self._with_dictionary(drawn, distinct)
        return resampled if where is None else replace(resampled, drift=self.drift.where(~where, resampled.drift))

    def extend_dictionary(self, count: int) -> NystromRegression:
        """Take the newest observations into the dictionary and leave the rest of it as it is."""
        wanted = self._is_in_dictionary()
        wanted[..., self.num_observations - count :] = True
        return self._grow_dictionary(wanted, self._distinct())

    def append(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, known: tuple[Tensor, Tensor] | None = None
    ) -> NystromRegression:
        r"""Condition on ``(b) x q x d`` points and ``(b) x q x n`` values, on the same dictionary.

        With :math:`I + \phi H \phi^T = L_c L_c^T`, H loses :math:`D^T D` for the directions
        :math:`D = L_c^{-1} \phi H`, and the coefficients w gain :math:`D^T e` for the residuals
        :math:`e = L_c^{-1} (y - \phi w)`.

        Args:
            X: The points.
            Y: The values.
            noise: ``(b) x q x n`` variances, where observations have their own.
            known: ``(b) x G x qp x mp``, :math:`\phi` of the points, and ``(b) x G x qp x qp``, what the span misses of
                them together, if these are known.
        """
        rows, deviations = self.rows, self._deviations_of_new(noise, Y)
        if known is None:
            features = self.subspace.features(X)
            known = features, self.subspace.joint_residual(X, features)
        features, residual = known[0], _whiten_both(known[1], deviations)
        features = _whiten_rows(features, deviations)
        product = features @ self.inverse
        seen = product @ features.mT
        chol = cholesky_plus_one(seen)
        directions = solve_lower(chol, product)
        error = _whiten_rows(rows.targets(Y), deviations) - features @ self.coefficients
        residuals = solve_lower(chol, error)
        joint = seen + rows.eigvals[..., None, None] * residual
        gain = cholesky_logdet(cholesky_plus_one(joint)) / 2
        variances = _diagonal_blocks(joint[..., : rows.leading_groups, :, :], rows.rows_per_point)
        return replace(
            self,
            observed_X=self.observed_X.extend(X),
            observed_Y=self.observed_Y.extend(Y),
            inverse=minus_outer(self.inverse, directions.mT),
            previous_inverse=self.inverse,
            coefficients=self.coefficients + directions.mT @ residuals,
            logdets=self.logdets + cholesky_logdet(chol),
            information=self.information + rows.logdet(gain).clamp_min(0),
            drift=self.drift + self._of_first(rows.whitened_norm(variances).clamp_min(0).sum(dim=-1)),
            deviations=_join(self.deviations, deviations),
            growth=Growth(directions, residuals),
            border=None,
        )

    def imagine(self, X: Tensor) -> NystromRegression:
        """Observe the mean at ``(b) x q x d`` points, which enter the dictionary."""
        # Outside its span a point would keep its variance.
        mean = self.at(X).mean
        return self.append(X, self._of_first(mean)).extend_dictionary(X.shape[-2])

    def expand(self, batch_shape: torch.Size) -> NystromRegression:
        own_dims = {"dictionary": 1, "dictionary_size": 0, "information": 0, "drift": 0}
        own_dims |= {"inverse": 3, "previous_inverse": 3, "coefficients": 3, "logdets": 1}
        own_dims |= {} if self.deviations is None else {"deviations": 2}
        tensors = expand_fields(self, batch_shape, **own_dims)
        X, Y = self.observed_X.expand(batch_shape), self.observed_Y.expand(batch_shape)
        subspace = self.subspace.expand(batch_shape)
        return replace(self, **tensors, subspace=subspace, observed_X=X, observed_Y=Y, growth=None, border=None)

    def with_oversampling(self, oversampling: float) -> NystromRegression:
        """Return the same regression, which draws its next dictionary with another q."""
        return replace(self, oversampling=oversampling)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything but the observations and the kernel, by name; :meth:`restore` takes it back."""
        return {name: getattr(self, name).clone() for name in STORED} | {"root": self.subspace.root.clone()}

    def restore(self, X: Tensor, Y: Tensor, tensors: dict[str, Tensor]) -> NystromRegression:
        """Return the regression with this kernel that :meth:`tensors` was made from, to the last bit."""
        atoms = rows_at(X, tensors["dictionary"])
        subspace = Subspace(self.rows, atoms, tensors["root"])
        stored: dict[str, Any] = {name: tensors[name] for name in STORED}
        groups = tensors["inverse"].shape[:-2]
        if tensors["logdets"].shape != groups or tensors["information"].shape != groups[:-1]:
            raise ValueError(f"logdets and information of {groups} groups of other shapes")
        return replace(self, subspace=subspace, observed_X=GrowingRows.of(X), observed_Y=GrowingRows.of(Y), **stored)

    def track(self, points: Tensor) -> TrackedNystrom:
        columns = self.subspace.columns(points)
        features = columns.mT
        residual = self.subspace.residual(points, features)
        blocks = self.subspace.covariance(points, features, self.inverse)
        sites = None if self.num_observations else Sites.at(points, self.train_Y)
        mean = self._mean(features).mT.contiguous().mT  # with the points next to each other, as what is added to it
        return TrackedNystrom(self, points, GrowingRows.of(columns), residual, blocks, mean, sites)

    def _evidence(self, points: Tensor) -> Tensor:
        """Return the features, ``(b) x G x Pp x mp``."""
        return self.subspace.features(points)

    def _mean(self, evidence: Tensor) -> Tensor:
        return self.rows.mean(evidence, self.coefficients)

    def _covariance(self, points: Tensor, evidence: Tensor) -> Tensor:
        return self.rows.covariance_blocks(self.subspace.covariance(points, evidence, self.inverse))

    def _variance(self, points: Tensor, evidence: Tensor, directions: Tensor | None) -> Tensor:
        return self.rows.variances(self.subspace.covariance(points, evidence, self.inverse), directions)

    def _norm(self, points: Tensor, evidence: Tensor) -> Tensor:
        inverse = self.inverse[..., : self.rows.groups_in_norm, :, :]
        return self.rows.norm(self.subspace.covariance(points, evidence, inverse))

    def _joint_covariance(self, X: Tensor, evidence: Tensor, unfold: Callable[[Tensor], Tensor]) -> Tensor:
        features = evidence.unflatten(-2, (-1, self.rows.rows_per_point))
        features = unfold(features.movedim(-4, -3)).movedim(-3, -4).flatten(-3, -2)  # ... x (b) x G x qp x mp
        residual = self.subspace.joint_residual(X, features)
        seen = features @ self.inverse @ features.mT
        return self.rows.covariance(self.rows.eigvals[..., None, None] * residual + seen)

    def _distinct(self) -> Distinct:
        return Distinct.of(self.train_X, self.train_Y, self.deviations)

    def _deviations_of_new(self, noise: Tensor | None, Y: Tensor) -> Tensor | None:
        if self.deviations is None:
            assert noise is None
            return None
        return (self.expected_noise if noise is None else noise).sqrt().expand(Y.shape)

    def _probs(self, distinct: Distinct) -> Tensor:
        inverse = self.previous_inverse[..., : self.rows.leading_groups, :, :]
        norms = []
        for place, points, features in self.subspace.in_blocks(distinct.points):
            blocks = self.subspace.covariance(points, features, inverse)
            if distinct.deviations is not None:
                sd = distinct.deviations[..., None, place, :]
                blocks = blocks / (sd.unsqueeze(-1) * sd.unsqueeze(-2))
            norms.append(self.rows.whitened_norm(blocks))
        probs = (self.oversampling * self._of_first(torch.cat(norms, dim=-1))).clamp(0, 1)
        return probs.gather(-1, distinct.index)

    def _of_first(self, values: Tensor) -> Tensor:
        """Return the values of the first noise, if there are several."""
        return values[0] if self.is_swept else values

    def _is_in_dictionary(self) -> Tensor:
        nowhere = torch.zeros(self.train_X.shape[:-1], dtype=torch.bool, device=self.dictionary.device)
        return nowhere.scatter(-1, self.dictionary, True)

    def _with_dictionary(self, drawn: Tensor, distinct: Distinct) -> NystromRegression:
        fitted = _fit(self.rows, self.oversampling, self.observed_X, self.observed_Y, drawn, distinct)
        return replace(fitted, information=self.information, deviations=self.deviations)

    def _grow_dictionary(self, drawn: Tensor, distinct: Distinct) -> NystromRegression:
        """Take another dictionary; one that has all of the present one by adding to it, which is cheaper."""
        if not self.batch_shape and self.deviations is None and self.dictionary.shape[-1]:
            sites, kept = distinct.sites, _keep_last(drawn, distinct.sites).nonzero().squeeze(-1)
            is_known = torch.zeros_like(drawn).index_fill(0, sites[self.dictionary], True)[sites[kept]]
            known, new = kept[is_known], kept[~is_known]
            if len(known) == self.dictionary.shape[-1]:
                at_site = torch.zeros_like(sites).index_copy(0, sites[known], known)
                return self._add_atoms(at_site[sites[self.dictionary]], new, distinct)
        return self._with_dictionary(drawn, distinct)

    def _add_atoms(self, known: Tensor, new: Tensor, distinct: Distinct) -> NystromRegression:
        r"""Add those observations to the dictionary that its span does not have already.

        With v's new rows :math:`[c, a]`, the Cholesky factor :math:`L_s` of :math:`a + I / \xi - c H c^T` and
        :math:`D = L_s^{-1} [-c H, I]`, H gains :math:`D^T D`, and the coefficients w gain :math:`D^T e` for
        :math:`e = L_s^{-1} (s - c w)`, where s are the new features' sums over the values.

        Args:
            known: ``m``, the observations that are in the dictionary, in its order.
            new: ``j``, others.
            distinct: All observations.
        """
        rows, size = self.rows, self.subspace.root.shape[-1]
        new, own, root = self.subspace.find_novel(self.train_X, new)
        zero = torch.zeros_like(self.drift)
        if not len(new):
            return replace(self, dictionary=known, drift=zero)
        atoms = self.train_X[new]
        dictionary, order = torch.cat([known, new]).sort()
        subspace = self.subspace.border(atoms, own, root)
        moment, response = atoms.new_zeros(()), atoms.new_zeros(())
        for place, _, features in subspace.in_blocks(distinct.points):
            counts = distinct.counts[..., place].repeat_interleave(rows.rows_per_point, dim=-1)
            latest = features[..., size:]
            moment = moment + (latest * counts[..., None, :, None]).mT @ features
            response = response + shared_product(rows.targets(distinct.sums[..., place, :]).mT, latest).mT
        shift = rows.eigvals.reciprocal()
        cross, own_moment = moment[..., :size], moment[..., size:]
        raised = own_moment + shift[..., None, None] * eye_like(own_moment)
        solved = cross @ self.inverse
        chol = safe_cholesky(raised - solved @ cross.mT, shift.expand(raised.shape[:-2]), raised)
        directions = solve_lower(chol, torch.cat([-solved, eye_like(chol)], dim=-1))
        residuals = solve_lower(chol, response - cross @ self.coefficients)
        count = chol.shape[-1]
        pad = torch.nn.functional.pad
        inverse = pad(self.inverse, (0, count, 0, count)) + directions.mT @ directions
        return replace(
            self,
            subspace=subspace.reorder(order),
            dictionary=dictionary,
            dictionary_size=self.dictionary_size + len(new),
            inverse=inverse,
            previous_inverse=inverse,
            coefficients=pad(self.coefficients, (0, 0, 0, count)) + directions.mT @ residuals,
            logdets=self.logdets + count * rows.eigvals.log() + cholesky_logdet(chol),
            drift=zero,
            border=Border(directions, residuals, atoms, own, root),
        )

    def _sum_missed(self) -> Tensor:
        """Return ``(b) x G``, what the span misses of all observations."""
        missed = self.information.new_zeros(())
        for place, X, features in self.subspace.in_blocks(self.train_X):
            residual = self.subspace.residual(X, features).diagonal(dim1=-2, dim2=-1)
            if self.deviations is not None:
                residual = residual / self.deviations[..., None, place, :].square()
            missed = missed + residual.sum(dim=(-2, -1))
        return missed

    def _bound_information(self, missed: Tensor) -> Tensor:
        return self.rows.logdet(self.logdets + self.rows.eigvals * missed).clamp_min(0) / 2


class TrackedNystrom(Tracked):
    r"""Mean and covariances at N fixed points, brought up to date in :math:`O(r N m)` by each observation.

    Args:
        regression: The regression.
        X: ``N x d``.
        columns: ``(b) x G x mp x Np``, the features, a row for each.
        residual: ``(b) x G x N x p x p``, what the span misses of each point.
        blocks: ``(b) x r x N x p x p``, the whitened covariances.
        mean: ``(b) x N x n``.
        sites: All observations, if they are known to be at these points.
    """

    regression: NystromRegression
    mean: Tensor

    def __init__(
        self,
        regression: NystromRegression,
        X: Tensor,
        columns: GrowingRows,
        residual: Tensor,
        blocks: Tensor,
        mean: Tensor,
        sites: Sites | None = None,
    ) -> None:
        super().__init__(regression, X)
        self.columns, self.residual, self.blocks = columns, residual, blocks
        self.mean, self.sites = mean, sites

    def append(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, renew: Renewal | None = None) -> Tracked:
        places = None if self.sites is None else self.sites.find(X)
        if self.sites is None or places is None:
            return super().append(X, Y, noise, renew)
        tracked = self._follow(self.regression.append(X, Y, noise, self._known_at(X, places)), renew)
        assert isinstance(tracked, TrackedNystrom)
        tracked.sites = self.sites.add(places, Y)
        return tracked

    def advance(self, grown: Regression) -> Tracked:
        if not isinstance(grown, NystromRegression) or grown.growth is None:
            return grown.track(self.X)
        growth, border = grown.growth, grown.border
        if border is None:
            columns, (mean, change) = self.columns, self._move(grown, self.mean, growth, self.columns.rows)
            blocks = minus_outer(self.blocks, change)
            return TrackedNystrom(grown, self.X, columns, self.residual, blocks, mean)
        new = border.new_columns(grown.rows, self.X, self.columns.rows)
        columns = self.columns.extend(new)
        # Both at once: the columns are read a single time.
        pad = torch.nn.functional.pad(growth.rows, (0, new.shape[-2]))
        both = Growth(torch.cat([pad, border.rows], dim=-2), torch.cat([growth.residuals, border.residuals], dim=-2))
        mean, change = self._move(grown, self.mean, both, columns.rows)
        lost, gained = change.split([growth.rows.shape[-2], border.rows.shape[-2]], dim=-1)
        own = new.mT.unflatten(-2, (-1, grown.rows.rows_per_point))
        found = outer_by_point(own, own)
        residual = grown.subspace.clear_rounding(self.residual - found, grown.rows.blocks(self.X))
        blocks = minus_outer(self.blocks, lost) + outer_by_point(gained, gained)
        blocks = blocks - grown.rows.eigvals[..., None, None, None] * found
        return TrackedNystrom(grown, self.X, columns, residual, blocks, mean)

    @staticmethod
    def _move(grown: NystromRegression, mean: Tensor, growth: Growth, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean after a growth, and the change along its rows at each point, ``(b) x r x N x p x q``."""
        change = shared_product(growth.rows, columns).mT  # (b) x r x Np x q
        moved = mean + grown.rows.mean_of_groups(change, growth.residuals)
        return moved, change.unflatten(-2, (-1, grown.rows.rows_per_point))

    def audit(self) -> Audit:
        if self.sites is None:
            return super().audit()
        seen, here = self.sites.occupied()
        return self.regression.audit_at(seen, [(slice(None), self.mean[..., here, :], self.residual[..., here, :, :])])

    @property
    def covariance(self) -> Tensor:
        return self.regression.rows.covariance_blocks(self.blocks)

    @property
    def norm(self) -> Tensor:
        rows = self.regression.rows
        return rows.norm(self.blocks[..., : rows.groups_in_norm, :, :, :]).clamp_min(0)

    def variance(self, directions: Tensor | None = None) -> Tensor:
        return self.regression.rows.variances(self.blocks, directions).clamp_min(0)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything but the regression and the points; :meth:`restore` takes it back."""
        sites = {} if self.sites is None else self.sites.tensors()
        return {name: value.clone() for name, value in self._kept.items()} | sites

    def restore(self, tensors: dict[str, Tensor]) -> TrackedNystrom:
        """Return what :meth:`tensors` was made from, to the last bit."""
        for name, value in self._kept.items():
            if tensors[name].shape != value.shape:
                raise ValueError(f"{name} should have shape {tuple(value.shape)}. Save the state again.")
        columns, residual, blocks, mean = (tensors[name] for name in self._kept)
        rest = {name: value for name, value in tensors.items() if name not in self._kept}
        sites = Sites.at(self.X, self.regression.train_Y).restore(rest) if rest else None
        return TrackedNystrom(self.regression, self.X, GrowingRows.of(columns), residual, blocks, mean, sites)

    @property
    def _kept(self) -> dict[str, Tensor]:
        # Features that came one by one have other last bits than those of a fit, and so has what follows from them.
        names = ("columns", "residual", "blocks", "mean")
        return dict(zip(names, (self.columns.rows, self.residual, self.blocks, self.mean), strict=True))

    def _known_at(self, X: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and residual, as :meth:`NystromRegression.append` takes them, at the ``(b) x q`` places."""
        by_point = self.columns.rows.unflatten(-1, (len(self.X), -1))  # (b) x G x mp x N x p
        index = places[..., None, None, :, None].expand(*by_point.shape[:-2], -1, by_point.shape[-1])
        features = by_point.gather(-2, index).flatten(-2).mT
        if places.shape[-1] > 1:
            return features, self.regression.subspace.joint_residual(X, features)
        index = places[..., None, :, None, None].expand(*self.residual.shape[:-3], -1, *self.residual.shape[-2:])
        return features, self.residual.gather(-3, index).squeeze(-3)


def _fit(
    rows: RowKernel,
    oversampling: float,
    observed_X: GrowingRows,
    observed_Y: GrowingRows,
    drawn: Tensor,
    distinct: Distinct,
) -> NystromRegression:
    X = observed_X.rows
    indices, sizes = _find_places(_keep_last(drawn, distinct.sites))
    subspace = Subspace.spanned_by(rows, rows_at(X, indices))
    moment, response = X.new_zeros(()), X.new_zeros(())
    for place, _, features in subspace.in_blocks(distinct.points):
        deviations = None if distinct.deviations is None else distinct.deviations[..., place, :]
        features = _whiten_rows(features, deviations)
        targets = _whiten_rows(rows.targets(distinct.sums[..., place, :]), deviations)
        counts = distinct.counts[..., place].repeat_interleave(rows.rows_per_point, dim=-1)
        moment = moment + features.mT @ (features * counts[..., None, :, None])
        response = response + shared_product(targets.mT, features).mT
    shift = rows.eigvals.reciprocal()
    precision = moment + shift[..., None, None] * torch.eye(subspace.root.shape[-1], dtype=X.dtype, device=X.device)
    chol = safe_cholesky(precision, shift.expand(precision.shape[:-2]), precision, "Use a larger eta or float64.")
    inverse = torch.cholesky_inverse(chol)
    # log det(I + xi v) = size * log(xi) + log det(v + I / xi)
    logdets = precision.shape[-1] * rows.eigvals.log() + cholesky_logdet(chol)
    zero = X.new_zeros(X.shape[:-2])
    solved = (inverse, inverse, inverse @ response, logdets)
    return NystromRegression(subspace, oversampling, observed_X, observed_Y, indices, sizes, *solved, zero, zero)


def _sum_traces(residual: Tensor, counts: Tensor) -> Tensor:
    """Return the sum of ``(b) x G x N x p x p`` blocks' traces, each counted so often, ``(b) x G``."""
    return (residual.diagonal(dim1=-2, dim2=-1).sum(dim=-1).clamp_min(0) * counts.unsqueeze(-2)).sum(dim=-1)


def _join(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    return None if old is None or new is None else torch.cat([old, new], dim=-2)


def _whiten_rows(rows: Tensor, deviations: Tensor | None) -> Tensor:
    """Divide ``(b) x G x Nn x k`` rows by the ``(b) x N x n`` deviations of their own noise, if they have such."""
    return rows if deviations is None else rows / deviations.flatten(-2)[..., None, :, None]


def _whiten_both(matrix: Tensor, deviations: Tensor | None) -> Tensor:
    """Divide rows and columns of ``(b) x G x Nn x Nn`` in the same way."""
    return _whiten_rows(_whiten_rows(matrix, deviations).mT, deviations).mT


def _diagonal_blocks(matrix: Tensor, size: int) -> Tensor:
    """Return the ``... x N x p x p`` blocks on the diagonal of ``... x Np x Np``."""
    if matrix.shape[-1] == size:
        return matrix.unsqueeze(-3)
    blocks = matrix.unflatten(-1, (-1, size)).unflatten(-3, (-1, size))  # ... x N x p x N x p
    return blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def _draw(probs: Tensor, generator: Generators, where: Tensor | None) -> Tensor:
    """Draw independently; each data set from a generator of its own if there are several."""
    if isinstance(generator, torch.Generator):
        return torch.rand(probs.shape, generator=generator, dtype=probs.dtype).to(probs.device) < probs
    uniform = torch.ones(probs.shape, dtype=probs.dtype)
    wanted = [True] * len(generator) if where is None else where.tolist()
    for row, source, draw in zip(uniform, generator, wanted, strict=True):
        if draw:
            row.copy_(torch.rand(row.shape, generator=source, dtype=row.dtype))
    return uniform.to(probs.device) < probs


def _keep_last(drawn: Tensor, sites: Tensor) -> Tensor:
    """Return ``(b) x t`` without those for which a later one at the same site is drawn too."""
    everything = torch.arange(drawn.shape[-1], device=drawn.device).expand_as(sites)
    last = torch.zeros_like(sites).scatter_reduce(-1, sites, everything.where(drawn, 0), "amax")
    return drawn & (everything == last.gather(-1, sites))


def _keep_unless_many(drawn: Tensor, before: Tensor, sites: Tensor) -> Tensor:
    """Return ``(b) x t``, what was drawn and what was there before, or in data sets with too much of that the first."""
    together = drawn | before
    sizes = [_keep_last(mask, sites).sum(dim=-1, keepdim=True) for mask in (drawn, together)]
    return torch.where(sizes[1] <= LARGEST_SURPLUS * sizes[0], together, drawn)


def _find_places(drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Return where ``(b) x t`` is True, each row padded with its last place to the longest, and how many these are."""
    sizes = drawn.sum(dim=-1)
    longest = int(sizes.max())
    order = torch.argsort((~drawn).to(torch.uint8), dim=-1, stable=True)[..., :longest]
    own = torch.arange(longest, device=drawn.device).minimum(sizes.unsqueeze(-1) - 1)
    return order.gather(-1, own), sizes
