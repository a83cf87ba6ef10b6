r"""A dictionary of m points in place of the t observed ones (Algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mtbo_torch.linalg import (
    cholesky_logdet,
    cholesky_plus_one,
    eye_like,
    plus_product,
    safe_cholesky,
    solve_lower,
    trace,
)
from mtbo_torch.regression.base import (
    Audit,
    Border,
    Growth,
    Regression,
    Tracked,
    expand_fields,
    pick_fields,
    put_fields,
    put_trials,
    shared_product,
)
from mtbo_torch.regression.draws import (
    Generators,
    compare_sites,
    draw_luck,
    find_places,
    find_trials,
    keep_last,
    keep_unless_many,
    list_indices,
)
from mtbo_torch.regression.factor import GrowingRows, RowBlocks
from mtbo_torch.regression.sites import Distinct, Sites, rows_at
from mtbo_torch.regression.structure import MatrixKernel
from mtbo_torch.regression.subspace import BLOCK_NUMBERS, Subspace, outer_by_point, take_rows
from mtbo_torch.regression.whitened import GroupedRows, RowKernel

# Data that are there at once begin with a dictionary of this many points.
FIRST_DICTIONARY = 64
# With more steps since the last fit, a draw is a fit again: these steps are repeated where a saved state is loaded.
MOST_STEPS = 500

# An append of so many observations; or the indices that dictionaries were widened by or fitted with, by data set.
Step = int | tuple[str, dict[int, list[int]]]
# The tensors that are stored, and how many dimensions each has of its own for every data set.
OWN_DIMS = {
    "dictionary": 1,
    "dictionary_size": 0,
    "inverse": 3,
    "previous_inverse": 3,
    "coefficients": 3,
    "logdets": 1,
    "information": 0,
    "drift": 0,
}


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
        dictionary: ``(b) x m``, indices of observations, of those at equal points one alone, which spans what all of
            them do; a shorter dictionary of a batch repeats its last one.
        dictionary_size: ``(b)``.
        inverse: ``(b) x r x mp x mp``, H.
        previous_inverse: H of the round before, if the dictionary was the same then, else that of this round.
        coefficients: ``(b) x r x mp x k``, :math:`H \sum_s \phi(x_s) (y_s \cdot u)`.
        logdets: ``(b) x r``, :math:`\log\det(I + \xi v)`, of what the span sees.
        information: ``(b)``, see :attr:`info_gain`.
        drift: ``(b)``, the sum of :math:`\|\tilde\Gamma(x_s, x_s)\| / \eta` over what was observed since the
            dictionary was drawn. Of several noises, the first is the one that dictionaries are drawn for.
        luck: ``(b) x s`` on the CPU, the random numbers of the first observations in draws that change as little as
            possible; NaN for those that have none yet.
        deviations: ``(b) x t x n``, of the noise, where observations have their own; rows are then whitened by them.
        origin: The regression as it was fitted, if it has changed since; the steps lead from there to here.
        steps: The appends, and what was done to dictionaries in between.
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
    luck: Tensor
    deviations: Tensor | None = None
    growth: Growth | None = field(default=None, repr=False)
    origin: NystromRegression | None = field(default=None, repr=False)
    steps: tuple[Step, ...] = ()

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
    def batch_shape(self) -> torch.Size:
        return self.observed_X.batch_shape

    @property
    def num_observations(self) -> int:
        return self.observed_X.length

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
        return self._squared_norm.sqrt()

    @property
    def _squared_norm(self) -> Tensor:
        # The features are orthonormal in the RKHS of k, and the kernel of a group is xi k.
        return (self.coefficients.square().sum(dim=(-2, -1)) / self.rows.eigvals).sum(dim=-1)

    @property
    def quadratic(self) -> Tensor:
        # The least that a function of the span leaves of the values, plus its norm.
        left = torch.zeros_like(self.mean_norm)
        for place, _, features in self.subspace.in_blocks(self.train_X):
            noise = self.noise if self.noise.shape[-2] == 1 else self.noise[..., place, :]
            apart = self.train_Y[..., place, :] - self._mean(features)
            left = left + (apart.square() / noise).sum(dim=(-2, -1))
        return left + self._squared_norm

    def with_noise(self, noise: Tensor) -> NystromRegression:
        kernel = self.rows.kernel.whole if isinstance(self.rows, GroupedRows) else self.rows.kernel
        return NystromRegression.fit(kernel, noise, self.train_X, self.train_Y, self.dictionary, self.oversampling)

    def audit(self) -> Audit:
        distinct = self._distinct()
        pieces = self.subspace.in_blocks(distinct.points)
        known = ((p, self._mean(phi), self.subspace.residual(X, phi)) for p, X, phi in pieces)
        return self.audit_at(Sites.of(distinct, self.train_Y), known)

    def audit_at(self, sites: Sites, pieces: Iterable[tuple[slice | Tensor, Tensor, Tensor]]) -> Audit:
        r"""Do so from pieces of the sites: where these are, and there the means and :math:`k - \phi^T \phi`.

        With D for :math:`k - \phi^T \phi`, c the counts and r the residuals at each site, the largest eigenvalue is
        at most the trace, :math:`\xi \sum c\, tr(D)`, and as D is positive, :math:`r^T D r` of all sites is at most
        the square of the sum of the sites' own roots.
        """
        rows, parts = self.rows, []
        for place, mean, residual in pieces:
            counts, apart = sites.counts[..., place], sites.means[..., place, :] - mean
            weighted = counts.unsqueeze(-1) * apart
            left = rows.targets(weighted)  # (b) x r x up x k
            if rows.rows_per_point == 1:
                own = residual[..., 0].sqrt() * left.abs()
            else:
                left = left.unflatten(-2, (-1, rows.rows_per_point))
                own = (left * (residual @ left)).sum(dim=-2).clamp_min(0).sqrt()
            parts.append(((weighted * apart).sum(dim=(-2, -1)), _sum_traces(residual, counts), own.sum(dim=-2)))
        squares, trace, roots = (reduce(torch.add, part) for part in zip(*parts, strict=True))
        quadratic = (sites.scatter + squares) / self.noise[..., 0, 0] + self._squared_norm
        missed = (rows.eigvals * trace).amax(dim=-1)
        unexplained = torch.linalg.vecdot(rows.eigvals, roots.square().sum(dim=-1)).sqrt()
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
            where: ``b``, the data sets to draw for; the others stay as they are, cost nothing and take no random
                number.
            keep: Whether to change as little as possible. Each observation then has the same luck in all draws, and
                the dictionary keeps what it has besides what is drawn, as long as that is most of it and rounding
                allows: mostly it has only to be widened, which is far cheaper than a fit.
        """
        if self.num_observations == 0:
            raise ValueError("A dictionary can only be drawn from observations, got none. Condition on some first.")
        if where is not None:
            trials = find_trials(where)
            sources = generator if isinstance(generator, torch.Generator) else [generator[i] for i in trials.tolist()]
            return self.put(trials, self.pick(trials).resample(sources, keep=keep))
        distinct = self._distinct()
        luck = draw_luck(self.luck if keep else self.luck[..., :0], self.num_observations, generator)
        drawn = luck.to(self.train_X.device) < self._probs(distinct)
        drawn[..., -1] = True
        regression, before = replace(self, luck=luck) if keep else self, self._is_in_dictionary()
        if not keep or not self.dictionary.shape[-1]:
            return regression._with_dictionary(drawn, distinct)
        many = keep_unless_many(drawn, before, distinct.sites)
        wanted = torch.where(self.subspace.could_widen().unsqueeze(-1), many, drawn)
        return regression._change_dictionary(wanted, before, distinct)

    def extend_dictionary(self, count: int) -> NystromRegression:
        """Take the newest observations into the dictionary and leave the rest of it as it is."""
        before = self._is_in_dictionary()
        wanted = before.clone()
        wanted[..., self.num_observations - count :] = True
        return self._change_dictionary(wanted, before, self._distinct())

    def refit(self) -> NystromRegression:
        """Fit the same dictionary anew."""
        return self._with_dictionary(self._is_in_dictionary(), self._distinct())

    def _change_dictionary(self, wanted: Tensor, before: Tensor, distinct: Distinct) -> NystromRegression:
        """Return the regression with the observations wanted, ``(b) x t``, in place of those before.

        A dictionary that has only to be widened is, where rounding allows; the others are fitted. In a batch with
        several dimensions all are fitted if one has to be.
        """
        new, is_wider = compare_sites(wanted, before, distinct.sites)
        least = is_wider.all() if len(self.batch_shape) > 1 else is_wider.any()
        if self.deviations is not None or not self.dictionary.shape[-1] or not least:
            return self._with_dictionary(wanted, distinct)
        if is_wider.all():
            changed, is_done = self.widen(new, distinct)
        else:
            trials = find_trials(is_wider)
            widened, fine = self.pick(trials).widen(new[trials])
            changed, is_done = self.put(trials, widened), is_wider.index_copy(0, trials, fine)
        if is_done.all():
            return changed
        if not is_done.any() or len(self.batch_shape) > 1:
            return self._with_dictionary(wanted, distinct)
        return changed._fit_some(find_trials(~is_done), wanted)

    def _fit_some(self, trials: Tensor, wanted: Tensor) -> NystromRegression:
        """Fit some data sets, ``k`` places, with the observations wanted, ``b x t``."""
        part = self.pick(trials)
        return self.put(trials, part._with_dictionary(wanted[trials], part._distinct()))

    def widen(self, new: Tensor, distinct: Distinct | None = None) -> tuple[NystromRegression, Tensor]:
        r"""Take more observations into the dictionary, where rounding allows; drift starts anew.

        With c the new features at the data, v gains the rows :math:`w = \sum_s \phi(x_s) c(x_s)^T` and
        :math:`a = \sum_s c(x_s) c(x_s)^T`. With :math:`a + I / \xi - w^T H w = L_s L_s^T`, H gains :math:`E^T E` for
        :math:`E = L_s^{-1} [-w^T H, I]`.

        Args:
            new: ``(b) x t``, which observations, at points that the dictionary does not have.
            distinct: The observations grouped by point, if they are known.

        Returns:
            The regression, and for which data sets, ``(b)``, rounding allows it; the others keep their dictionary.
        """
        index, added = find_places(new)
        step = self._step(("widen", list_indices(index, added)))
        if not index.shape[-1]:
            return replace(self, drift=torch.zeros_like(self.drift), **step), torch.ones_like(added, dtype=torch.bool)
        atoms = rows_at(self.train_X, index)
        is_new = torch.arange(index.shape[-1], device=added.device) < added.unsqueeze(-1)
        subspace, own, root, fine = self.subspace.widen(atoms, is_new)
        if not fine.any():
            return self, fine
        rows, size, distinct = self.rows, self.inverse.shape[-1], distinct or self._distinct()
        moment, response = self.information.new_zeros(()), self.information.new_zeros(())
        for place, _, features in subspace.in_blocks(distinct.points):
            counts = distinct.counts[..., place].repeat_interleave(rows.rows_per_point, dim=-1)
            last = features[..., size:]
            moment = moment + (last * counts[..., None, :, None]).mT @ features
            response = response + shared_product(rows.targets(distinct.sums[..., place, :]).mT, last).mT
        product = moment[..., :size] @ self.inverse
        shift, border = rows.eigvals.reciprocal(), moment[..., size:] - product @ moment[..., :size].mT
        border = border + shift[..., None, None] * eye_like(border)
        chol = safe_cholesky(border, shift.expand(border.shape[:-2]), border, "Use a larger eta or float64.")
        change = solve_lower(chol, torch.cat([-product, eye_like(chol)], dim=-1))
        residuals = solve_lower(chol, response - moment[..., :size] @ self.coefficients)
        more = chol.shape[-1]
        inverse, before = (pad(x, (0, more, 0, more)) for x in (self.inverse, self.previous_inverse))
        inverse = inverse + change.mT @ change
        gains = (added * fine > 0)[..., None, None, None]
        growth = None if self.growth is None or self.growth.is_changed else self.growth
        widened = replace(
            self,
            subspace=subspace,
            dictionary=torch.cat([self.dictionary, index], dim=-1),
            inverse=inverse,
            previous_inverse=torch.where(gains, inverse, before),
            coefficients=pad(self.coefficients, (0, 0, 0, more)) + change.mT @ residuals,
            logdets=self.logdets + more * rows.eigvals.log() + cholesky_logdet(chol),
            drift=torch.zeros_like(self.drift),
            growth=growth and replace(growth, border=Border(atoms, own, root, change, residuals)),
            **step,
        )
        return widened._close_gaps(index.shape[-1], added * fine), fine

    def _close_gaps(self, last: int, added: Tensor) -> NystromRegression:
        """Move the last points of the dictionaries, of which ``(b)`` count, to where the padding of shorter ones is."""
        sizes = self.dictionary_size + added
        if not self.batch_shape:
            return replace(self, dictionary_size=sizes)
        place = torch.arange(int(sizes.max()), device=sizes.device)
        behind, first = place - self.dictionary_size.unsqueeze(-1), self.dictionary.shape[-1] - last
        order = torch.where(behind < 0, place, torch.where(behind < last, first + behind, place - last))
        points = order.gather(-1, place.minimum(sizes.unsqueeze(-1) - 1))
        per_point = self.rows.rows_per_point
        order = (order.unsqueeze(-1) * per_point + torch.arange(per_point, device=order.device)).flatten(-2)
        both = (self.inverse, self.previous_inverse)
        inverse, before = (take_rows(take_rows(matrix, order).mT, order).mT for matrix in both)
        growth = self.growth
        if growth is not None and growth.border is not None:
            growth = replace(growth, border=replace(growth.border, order=order))
        return replace(
            self,
            subspace=self.subspace.arrange(points, order),
            dictionary=self.dictionary.gather(-1, points),
            dictionary_size=sizes,
            inverse=inverse,
            previous_inverse=before,
            coefficients=take_rows(self.coefficients, order),
            growth=growth,
        )

    def pick(self, trials: Tensor) -> NystromRegression:
        """Return the regression of some data sets alone, ``k`` places in a batch with one dimension."""
        size, growth = int(self.dictionary_size[trials].max()), None
        if self.growth is not None and not self.growth.is_changed:
            growth = Growth(**pick_fields(self.growth, trials, rows=3, residuals=3))
            growth = replace(growth, rows=growth.rows[..., : size * self.rows.rows_per_point])
        picked = replace(
            self,
            **pick_fields(self, trials, **OWN_DIMS),
            subspace=self.subspace.pick(trials),
            observed_X=GrowingRows.of(self.train_X[trials]),
            observed_Y=GrowingRows.of(self.train_Y[trials]),
            luck=self.luck[trials.cpu()],
            deviations=None if self.deviations is None else self.deviations[trials],
            growth=growth,
            origin=None,
            steps=(),
        )
        return picked._resize(size)

    def put(self, trials: Tensor, part: NystromRegression) -> NystromRegression:
        """Return the batch with other dictionaries of some data sets.

        Args:
            trials: ``k``, their places.
            part: What :meth:`pick` gave, with dictionaries drawn anew.
        """
        size = int(self.dictionary_size.index_copy(0, trials, part.dictionary_size).max())
        whole, new = self._resize(size), part._resize(size)
        length = max(self.luck.shape[-1], part.luck.shape[-1])
        luck, new_luck = (pad(x, (0, length - x.shape[-1]), value=torch.nan) for x in (self.luck, part.luck))
        fitted = ("fit", list_indices(part.dictionary, part.dictionary_size))
        steps = [_rename(step, trials.tolist()) for step in part.steps or (fitted,)]
        return replace(
            whole,
            **put_fields(whole, trials, new, **OWN_DIMS),
            subspace=whole.subspace.put(trials, new.subspace),
            luck=luck.index_copy(0, trials.cpu(), new_luck),
            growth=self.growth and replace(self.growth, parts=(*self.growth.parts, (trials, part))),
            origin=self.origin or self,
            steps=(*self.steps, *steps),
        )

    def redo(self, kind: str, indices: dict[int, list[int]]) -> NystromRegression:
        """Repeat a step that was no append: widen or fit the dictionaries of these data sets in the same way."""
        marked = torch.zeros(len(indices), self.num_observations, dtype=torch.bool, device=self.train_X.device)
        for row, own in zip(marked, indices.values(), strict=True):
            row[own] = True
        trials = torch.tensor(list(indices), device=marked.device)
        if kind == "fit":
            nowhere = torch.zeros(self.train_X.shape[:-1], dtype=torch.bool, device=marked.device)
            return self._fit_some(trials, nowhere.index_copy(0, trials, marked))
        if len(trials) == self.batch_shape.numel():
            return self.widen(marked.reshape(self.train_X.shape[:-1]))[0]
        return self.put(trials, self.pick(trials).widen(marked)[0])

    def _resize(self, size: int) -> NystromRegression:
        """Return the same with dictionaries padded, or cut where all that are wanted are padded, to so many points."""
        more = size - self.dictionary.shape[-1]
        if not more:
            return self
        place = torch.arange(size, device=self.dictionary.device)
        place = place.minimum((self.dictionary_size - 1).clamp_min(0).unsqueeze(-1))
        rows = more * self.rows.rows_per_point
        return replace(
            self,
            subspace=self.subspace.resize(place),
            dictionary=pad(self.dictionary, (0, max(0, more))).gather(-1, place),
            inverse=pad(self.inverse, (0, rows, 0, rows)),
            previous_inverse=pad(self.previous_inverse, (0, rows, 0, rows)),
            coefficients=pad(self.coefficients, (0, 0, 0, rows)),
        )

    def _step(self, step: Step) -> dict[str, Any]:
        return {"origin": self.origin or self, "steps": (*self.steps, step)}

    def append(
        self,
        X: Tensor,
        Y: Tensor,
        noise: Tensor | None = None,
        features: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> NystromRegression:
        r"""Condition on ``(b) x q x d`` points and ``(b) x q x n`` values, on the same dictionary.

        With :math:`I + \phi H \phi^T = L_c L_c^T`, H loses :math:`D^T D` for the directions
        :math:`D = L_c^{-1} \phi H`, and the coefficients w gain :math:`D^T e` for the residuals
        :math:`e = L_c^{-1} (y - \phi w)`.

        Args:
            X: The points.
            Y: The values.
            noise: ``(b) x q x n`` variances, where observations have their own.
            features: ``(b) x G x qp x mp``, :math:`\phi` of the points, if they are known.
            residual: ``(b) x G x qp x qp``, what the span misses of them, if that is known, too.
        """
        rows, deviations = self.rows, self._deviations_of_new(noise, Y)
        features = self.subspace.features(X) if features is None else features
        residual = self.subspace.joint_residual(X, features) if residual is None else residual
        residual, features = _whiten_both(residual, deviations), _whiten_rows(features, deviations)
        product = features @ self.inverse
        seen = outer_by_point(product, features)
        joint = torch.addcmul(seen, rows.scales, residual)
        both = cholesky_plus_one(torch.stack([seen, joint]))
        chol, (logdets, gain) = both[0], cholesky_logdet(both).unbind()
        directions = solve_lower(chol, product)
        columns = directions.mT
        error = _whiten_rows(rows.targets(Y), deviations) - outer_by_point(features, self.coefficients.mT)
        residuals = solve_lower(chol, error)
        variances = _diagonal_blocks(joint[..., : rows.leading_groups, :, :], rows.rows_per_point)
        return replace(
            self,
            observed_X=self.observed_X.extend(X),
            observed_Y=self.observed_Y.extend(Y),
            inverse=plus_product(self.inverse, columns, directions, -1),
            previous_inverse=self.inverse,
            coefficients=plus_product(self.coefficients, columns, residuals),
            logdets=self.logdets + logdets,
            information=torch.add(self.information, rows.logdet(gain).clamp_min(0), alpha=0.5),
            drift=self.drift + self._of_first(rows.whitened_norm(variances).clamp_min(0).sum(dim=-1)),
            deviations=_join(self.deviations, deviations),
            growth=Growth(directions, residuals),
            **self._step(X.shape[-2]),
        )

    def imagine(self, X: Tensor) -> NystromRegression:
        """Observe the mean at ``(b) x q x d`` points, which enter the dictionary."""
        # Outside its span a point would keep its variance.
        mean = self.at(X).mean
        return self.append(X, self._of_first(mean)).extend_dictionary(X.shape[-2])

    def expand(self, batch_shape: torch.Size) -> NystromRegression:
        own_dims = {"luck": 1} if self.deviations is None else {"luck": 1, "deviations": 2}
        tensors = expand_fields(self, batch_shape, **OWN_DIMS, **own_dims)
        X, Y = self.observed_X.expand(batch_shape), self.observed_Y.expand(batch_shape)
        subspace = self.subspace.expand(batch_shape)
        return replace(
            self, **tensors, subspace=subspace, observed_X=X, observed_Y=Y, growth=None, origin=None, steps=()
        )

    def with_oversampling(self, oversampling: float) -> NystromRegression:
        """Return the same regression, which draws its next dictionary with another q."""
        return replace(self, oversampling=oversampling)

    def without_data(self) -> NystromRegression:
        """Return what those who track points need of it, and nothing more: it is sent to them."""
        no_X, no_Y = (GrowingRows.of(rows[..., :0, :].clone()) for rows in (self.train_X, self.train_Y))
        no_luck = self.luck[..., :0].clone()
        light = replace(self, observed_X=no_X, observed_Y=no_Y, luck=no_luck, origin=None, steps=())
        if self.growth is None:
            return replace(light, previous_inverse=_hollow(self.inverse))
        parts = [(trials, p.without_data()) for trials, p in self.growth.parts if isinstance(p, NystromRegression)]
        light = replace(light, growth=replace(self.growth, parts=tuple(parts)))
        subspace = replace(self.subspace, root=_hollow(self.subspace.root))
        inverse, coefficients = _hollow(self.inverse), _hollow(self.coefficients)
        return replace(light, subspace=subspace, inverse=inverse, previous_inverse=inverse, coefficients=coefficients)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything but the observations and the kernel, by name; :meth:`restore` takes it back."""
        return {name: getattr(self, name).clone() for name in OWN_DIMS} | {"root": self.subspace.root.clone()}

    def restore(self, X: Tensor, Y: Tensor, tensors: dict[str, Tensor]) -> NystromRegression:
        """Return the regression with this kernel that :meth:`tensors` was made from, to the last bit."""
        atoms = rows_at(X, tensors["dictionary"])
        subspace = Subspace(self.rows, atoms, tensors["root"])
        stored: dict[str, Any] = {name: tensors[name] for name in OWN_DIMS}
        groups = tensors["inverse"].shape[:-2]
        if tensors["logdets"].shape != groups or tensors["information"].shape != groups[:-1]:
            raise ValueError(f"logdets and information of {groups} groups of other shapes")
        return replace(self, subspace=subspace, observed_X=GrowingRows.of(X), observed_Y=GrowingRows.of(Y), **stored)

    def track(self, points: Tensor, memory: float = math.inf) -> TrackedNystrom:
        columns = self.subspace.columns(points)
        features = columns.mT
        residual = self.subspace.residual(points, features)
        # Some points at a time: there is a product with the features for each group and each noise.
        size = max(1, BLOCK_NUMBERS // max(1, self.inverse.shape[:-1].numel()))
        some = zip(points.split(size, dim=-2), features.split(size * self.rows.rows_per_point, dim=-2), strict=True)
        blocks = torch.cat([self.subspace.covariance(X, phi, self.inverse) for X, phi in some], dim=-3)
        mean = self._mean(features).mT.contiguous().mT  # with the points next to each other, as what is added to it
        return TrackedNystrom(self, points, RowBlocks.of(columns), residual, blocks, mean, memory)

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
        return replace(fitted, information=self.information, deviations=self.deviations, luck=self.luck)

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
        return self.rows.logdet(torch.addcmul(self.logdets, self.rows.eigvals, missed)).clamp_min(0) / 2


OWN_TRACKED_DIMS = {"residual": 4, "blocks": 4, "mean": 2}


class TrackedNystrom(Tracked):
    r"""Mean and covariances at N fixed points, brought up to date in :math:`O(r N m)` by each observation.

    Points that enter the dictionary cost as much: each is one more feature.

    Args:
        regression: The regression.
        X: ``N x d``.
        columns: ``(b) x G x mp x Np``, the features; None if there is no memory for them.
        residual: ``(b) x G x N x p x p``, what the span misses of each point.
        blocks: ``(b) x r x N x p x p``, the whitened covariances.
        mean: ``(b) x N x n``.
        memory: As in :meth:`Regression.track`.
    """

    regression: NystromRegression
    mean: Tensor

    def __init__(
        self,
        regression: NystromRegression,
        X: Tensor,
        columns: RowBlocks | None,
        residual: Tensor,
        blocks: Tensor,
        mean: Tensor,
        memory: float = math.inf,
    ) -> None:
        super().__init__(regression, X, memory)
        self.columns = self._keep_if_room(columns, residual, blocks, mean)
        self.residual, self.blocks, self.mean = residual, blocks, mean

    def advance(self, grown: Regression) -> Tracked:
        if not isinstance(grown, NystromRegression) or grown.growth is None:
            return grown.track(self.X, self.memory)
        tracked = self._advance_all(grown, grown.growth)
        for trials, part in grown.growth.parts:
            tracked = tracked._put(trials, self._pick(trials).advance(part))
        return tracked

    def _advance_all(self, grown: NystromRegression, growth: Growth) -> TrackedNystrom:
        """Return what is known but for the data sets that have other dictionaries than the rest of a batch."""
        rows = grown.rows
        border, m = growth.border, self.regression.inverse.shape[-1]
        if border is None:
            [change] = self._project(growth.rows)
            mean = rows.add_to_mean(self.mean, change, growth.residuals)
            blocks = _add_squares(self.blocks, change, -1)
            return TrackedNystrom(grown, self.X, self.columns, self.residual, blocks, mean, self.memory)
        change, gain, known = self._project(growth.rows, border.rows[..., :m], border.own)
        new = border.root @ (rows(border.atoms, self.X) - known)  # (b) x G x jp x Np
        gain = gain + shared_product(border.rows[..., m:], new)
        both, residuals = torch.cat([change, gain], dim=-2), torch.cat([growth.residuals, border.residuals], dim=-2)
        mean = rows.add_to_mean(self.mean, both, residuals)
        left = _add_squares(self.residual, new, -1)
        blocks = _add_squares(_add_squares(self.blocks, change, -1), gain, 1)
        blocks = torch.addcmul(blocks, rows.eigvals[..., None, None, None], left - self.residual)
        residual = grown.subspace.clear_rounding(left, rows.blocks(self.X))
        columns = None if self.columns is None else self.columns.extend(new)
        if columns is not None and border.order is not None:
            columns = RowBlocks.of(take_rows(columns.join(), border.order))
        return TrackedNystrom(grown, self.X, columns, residual, blocks, mean, self.memory)

    def _pick(self, trials: Tensor) -> TrackedNystrom:
        """Return what is known of some data sets, ``k`` places."""
        regression, columns = self.regression.pick(trials), None
        if self.columns is not None:
            columns = RowBlocks.of(self.columns.join()[..., : regression.inverse.shape[-1], :].index_select(-4, trials))
        tensors = pick_fields(self, trials, **OWN_TRACKED_DIMS)
        return TrackedNystrom(regression, self.X, columns, **tensors, memory=self.memory)

    def _put(self, trials: Tensor, part: Tracked) -> TrackedNystrom:
        """Return what is known with what is known of some data sets, ``k`` places, exchanged."""
        assert isinstance(part, TrackedNystrom)
        columns, width = None, self.regression.inverse.shape[-1]
        if self.columns is not None and part.columns is not None:
            whole, new = (pad(x.join(), (0, 0, 0, width - x.length)) for x in (self.columns, part.columns))
            columns = RowBlocks.of(put_trials(whole, trials, new, 3))
        tensors = put_fields(self, trials, part, **OWN_TRACKED_DIMS)
        return TrackedNystrom(self.regression, self.X, columns, **tensors, memory=self.memory)

    def recall(self, place: int) -> dict[str, Tensor]:
        """Return features and residual of one of the points, as :meth:`NystromRegression.append` takes them."""
        if self.columns is None or self.regression.batch_shape:
            return {}
        p = self.residual.shape[-1]
        own = torch.cat([part.narrow(-1, place * p, p) for part in self.columns.parts], dim=-2)  # G x mp x p
        return {"features": own.mT.contiguous(), "residual": self.residual.select(-3, place)}

    def _project(self, *directions: Tensor) -> list[Tensor]:
        """Multiply directions ``(b) x r x q x mp`` by the features, to ``(b) x r x q x Np``, all in one pass."""
        if self.columns is not None:
            blocks = self.columns.parts
        else:
            subspace = self.regression.subspace
            directions = tuple(rows @ subspace.root for rows in directions)
            blocks = [subspace.rows(subspace.atoms, self.X)]
        if len(directions) == 1 or blocks[0].dim() > 3 or blocks[0].shape[-3] > 1:
            return [shared_product(rows, *blocks) for rows in directions]
        together = torch.cat([rows.flatten(end_dim=-2) for rows in directions]).unsqueeze(0)
        parts = shared_product(together, *blocks).squeeze(0).split([rows.shape[:-1].numel() for rows in directions])
        return [part.unflatten(0, rows.shape[:-1]) for part, rows in zip(parts, directions, strict=True)]

    @property
    def covariance(self) -> Tensor:
        return self.regression.rows.covariance_blocks(self.blocks)

    @property
    def norm(self) -> Tensor:
        rows = self.regression.rows
        return rows.norm(self.blocks[..., : rows.groups_in_norm, :, :, :]).clamp_min(0)

    def variance(self, directions: Tensor | None = None) -> Tensor:
        return self.regression.rows.variances(self.blocks, directions).clamp_min_(0)


def _add_squares(blocks: Tensor, rows: Tensor, sign: int) -> Tensor:
    r"""Return ``... x N x p x p`` blocks with those of :math:`\pm R^T R` added, for rows R, ``... x q x Np``."""
    if blocks.shape[-1] > 1:
        left = torch.unflatten(rows.mT, -2, (-1, blocks.shape[-1]))
        return plus_product(blocks, left, left.mT, sign)
    if rows.shape[-2] > 1:
        return torch.add(blocks, rows.square().sum(dim=-2)[..., None, None], alpha=sign)
    column = rows.mT.unsqueeze(-1)
    return torch.addcmul(blocks, column, column, value=sign)


def _fit(
    rows: RowKernel,
    oversampling: float,
    observed_X: GrowingRows,
    observed_Y: GrowingRows,
    drawn: Tensor,
    distinct: Distinct,
) -> NystromRegression:
    X = observed_X.rows
    indices, sizes = find_places(keep_last(drawn, distinct.sites))
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
    zero, no_luck = X.new_zeros(X.shape[:-2]), torch.empty(*X.shape[:-2], 0, dtype=torch.double)
    solved = (inverse, inverse, inverse @ response, logdets, zero, zero, no_luck)
    return NystromRegression(subspace, oversampling, observed_X, observed_Y, indices, sizes, *solved)


def _sum_traces(residual: Tensor, counts: Tensor) -> Tensor:
    """Return the sum of ``(b) x G x N x p x p`` blocks' traces, each counted so often, ``(b) x G``."""
    return torch.linalg.vecdot(trace(residual), counts.unsqueeze(-2))


def _hollow(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape that takes no memory."""
    return tensor.new_zeros(()).expand(tensor.shape)


def _join(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    return None if old is None or new is None else torch.cat([old, new], dim=-2)


def _whiten_rows(rows: Tensor, deviations: Tensor | None) -> Tensor:
    """Divide ``(b) x G x Nn x k`` rows by the ``(b) x N x n`` deviations of their own noise, if they have such."""
    return rows if deviations is None else rows / deviations.flatten(-2)[..., None, :, None]


def _whiten_both(matrix: Tensor, deviations: Tensor | None) -> Tensor:
    """Divide rows and columns of ``(b) x G x Nn x Nn`` in the same way."""
    return matrix if deviations is None else _whiten_rows(_whiten_rows(matrix, deviations).mT, deviations).mT


def _diagonal_blocks(matrix: Tensor, size: int) -> Tensor:
    """Return the ``... x N x p x p`` blocks on the diagonal of ``... x Np x Np``."""
    if matrix.shape[-1] == size:
        return matrix.unsqueeze(-3)
    blocks = matrix.unflatten(-1, (-1, size)).unflatten(-3, (-1, size))  # ... x N x p x N x p
    return blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def _rename(step: Step, trials: list[int]) -> Step:
    """Return a step of some data sets as one of the batch that they are from."""
    return step if isinstance(step, int) else (step[0], {trials[own]: indices for own, indices in step[1].items()})
