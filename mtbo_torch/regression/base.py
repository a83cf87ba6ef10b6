"""The contract of vector-valued kernel ridge regression, and how points of any batch shape reach it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from mtbo_torch.linalg import operator_norm, variances_along
from mtbo_torch.regression.belief import Belief, require_directions
from mtbo_torch.regression.factor import RowBlocks


class ScalarKernel(Protocol):
    """A scalar kernel ``k`` as plain tensors, with leading batch dimensions broadcast."""

    def __call__(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Return ``(b) x N1 x N2``."""
        ...

    def diag(self, X: Tensor) -> Tensor:
        """Return the values ``k(x, x)``, ``(b) x N``."""
        ...

    def pick(self, trials: Tensor, own_dims: int) -> ScalarKernel:
        """Return the kernel of some data sets, ``k`` places, where it has `own_dims` more dimensions for each."""
        ...


def shared_product(left: Tensor, right: Tensor, *others: Tensor) -> Tensor:
    """Return ``left @ right`` for ``(b) x r x q x m`` and ``(b) x G x m x N``; with G = 1 read `right` only once.

    The rows of `right` may come in several blocks.
    """
    if others:
        blocks = (right, *others)
        parts = left.split([block.shape[-2] for block in blocks], dim=-1)
        return reduce(torch.add, map(shared_product, parts, blocks))
    groups, q = left.shape[-3:-1]
    if right.shape[-3] > 1:
        return left @ right
    return torch.unflatten(left.flatten(-3, -2) @ right.squeeze(-3), -2, (groups, q))


@dataclass(frozen=True)
class Growth:
    """The change that one append made to a regression, for points that are tracked.

    Attributes:
        rows: The new rows of its factor, in each group.
        residuals: The whitened residuals of the new values.
        border: The change that more points in its dictionary made afterwards, if there are any.
        parts: Some data sets of a batch, ``k`` places, and the regression of these alone, which has replaced theirs.
    """

    rows: Tensor
    residuals: Tensor
    border: Border | None = None
    parts: tuple[tuple[Tensor, Regression], ...] = ()

    @property
    def is_changed(self) -> bool:
        """Whether dictionaries have changed since the append."""
        return self.border is not None or bool(self.parts)


@dataclass(frozen=True)
class Border:
    """The change that more points in the dictionary made to a regression, for points that are tracked.

    Attributes:
        atoms: ``(b) x j x d``, the new points.
        own: ``(b) x G x jp x mp``, the features that they had before.
        root: ``(b) x G x jp x jp``, that of the inverse of what the span missed of them.
        rows: ``(b) x r x jp x (m + j)p``, E: the inverse H gains :math:`E^T E`.
        residuals: ``(b) x r x jp x k``, E times the responses.
        order: ``(b) x m'p``, the features that were kept, in their new order; None for all as they are.
    """

    atoms: Tensor
    own: Tensor
    root: Tensor
    rows: Tensor
    residuals: Tensor
    order: Tensor | None = None


def expand_fields(regression: Regression, batch_shape: torch.Size, **own_dims: int) -> dict[str, Any]:
    """Return some tensors of a regression under a larger batch shape; each has so many dimensions of its own."""
    tensors = {name: getattr(regression, name) for name in own_dims}
    return {name: x.expand(*batch_shape, *x.shape[x.dim() - own_dims[name] :]) for name, x in tensors.items()}


def pick_trials(tensor: Tensor, trials: Tensor, own_dims: int) -> Tensor:
    """Return some data sets, ``k`` places, of a tensor with so many dimensions of its own; all if it has none."""
    dim = -1 - own_dims
    return tensor if tensor.dim() <= own_dims or tensor.shape[dim] == 1 else tensor.index_select(dim, trials)


def pick_fields(owner: object, trials: Tensor, **own_dims: int) -> dict[str, Any]:
    """Do so for some tensors of an object, by name."""
    return {name: pick_trials(getattr(owner, name), trials, dims) for name, dims in own_dims.items()}


def put_trials(tensor: Tensor, trials: Tensor, part: Tensor, own_dims: int) -> Tensor:
    """Return a tensor with some data sets, ``k`` places, exchanged; it has so many dimensions of its own for each."""
    return tensor.index_copy(-1 - own_dims, trials, part)


def put_fields(owner: object, trials: Tensor, part: object, **own_dims: int) -> dict[str, Any]:
    """Do so for some tensors of an object, by name, with those of another."""
    pairs = {name: (getattr(owner, name), getattr(part, name)) for name in own_dims}
    return {name: put_trials(whole, trials, new, own_dims[name]) for name, (whole, new) in pairs.items()}


class Audit(NamedTuple):
    r"""What regressions of the same data with other noise, ``A`` of them, make of these data.

    With :math:`\tilde G` the part of the Gram matrix G that a regression sees, all of it unless it has a dictionary,
    and r what its mean leaves of the values:

    Attributes:
        gain: ``(b)``, at least :math:`\frac12 \log\det(I + G / \eta)` for the first noise.
        quadratic: ``A x (b)``, :math:`Y^T (\tilde G + \eta I)^{-1} Y`.
        missed: ``A x (b)``, at least :math:`\lambda_{max}(G - \tilde G) / \eta`.
        unexplained: ``A x (b)``, at least :math:`(r^T (G - \tilde G) r)^{1/2} / \eta`.
    """

    gain: Tensor
    quadratic: Tensor
    missed: Tensor
    unexplained: Tensor


class Regression(ABC):
    r"""Vector-valued kernel ridge regression on ``t`` observations of ``n`` tasks, ``b`` data sets at once.

    .. math::

        \mu_t(x) &= G_t(x)^T (G_t + \eta I)^{-1} vec(Y_t) \\
        \Gamma_t(x, x') &= \Gamma(x, x') - G_t(x)^T (G_t + \eta I)^{-1} G_t(x')

    with :math:`\eta I` replaced by the variances of the noise when tasks or observations have their own. Points come
    as ``... x (b) x q x d``. Objects are immutable.

    A regression answers with a :class:`Belief`. What its answers at some points have in common, such as the kernel
    between these and the data, is its evidence; a subclass says how that becomes a mean, a covariance and so on.

    Attributes:
        train_X: ``(b) x t x d``.
        train_Y: ``(b) x t x n``; NaN for a value that is missing, which all but the Nystrom regression allow.
        noise: ``(b) x t x n`` variances, with 1 in place of t or n where all observations or tasks share them. With a
            dimension in front, ``A x (b) x 1 x 1``, there are as many regressions of the same data, and so are their
            answers: see :meth:`with_noise`.
        growth: What the last append added; None for a fresh fit, and where points are not tracked by it.
    """

    growth: Growth | None = None

    if TYPE_CHECKING:  # fields or properties, as each subclass pleases

        @property
        def train_X(self) -> Tensor: ...
        @property
        def train_Y(self) -> Tensor: ...
        @property
        def noise(self) -> Tensor: ...

    @property
    def batch_shape(self) -> torch.Size:
        """``(b)``, of the data sets."""
        return self.train_X.shape[:-2]

    @property
    def num_observations(self) -> int:
        """The number of points t."""
        return self.train_X.shape[-2]

    @property
    def num_tasks(self) -> int:
        """The number of tasks n."""
        return self.train_Y.shape[-1]

    @property
    def is_swept(self) -> bool:
        """Whether there are several regressions of the same data, one for each noise in front."""
        return self.noise.dim() > len(self.batch_shape) + 2

    @property
    def expected_noise(self) -> Tensor:
        """The noise of new observations, ``(b) x 1 x n`` or ``(b) x 1 x 1``; the average where they have their own."""
        return self.noise if self.noise.shape[-2] == 1 else self.noise.mean(dim=-2, keepdim=True)

    @property
    @abstractmethod
    def info_gain(self) -> Tensor:
        r"""``(b)``, the information gain :math:`\frac12 \log\det(I + \eta^{-1} G_t)`."""

    @property
    @abstractmethod
    def mean_norm(self) -> Tensor:
        r"""``(b)``, the RKHS norm :math:`\|\mu_t\|_\Gamma` of the mean."""

    @property
    @abstractmethod
    def quadratic(self) -> Tensor:
        r"""``(b)``, :math:`vec(Y_t)^T (G_t + \eta I)^{-1} vec(Y_t)`."""

    @abstractmethod
    def with_noise(self, noise: Tensor) -> Regression:
        """Return the regression of the same data with another noise, or with ``A x (b) x 1 x 1`` of them."""

    def audit(self) -> Audit:
        """Return what intervals need to know of regressions with several noises, in a dimension in front."""
        quadratic = self.quadratic
        nothing = torch.zeros_like(quadratic)
        return Audit(self.info_gain[0], quadratic, nothing, nothing)

    @abstractmethod
    def append(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> Regression:
        """Condition on more observations, without factorizing the kernel matrix anew.

        Args:
            X: ``(b) x q x d``.
            Y: ``(b) x q x n``.
            noise: ``(b) x q x n`` variances, where observations have their own.
        """

    @abstractmethod
    def expand(self, batch_shape: torch.Size) -> Self:
        """Return the same regression under a larger batch shape, as views."""

    def at(self, X: Tensor) -> Belief:
        """Return what is known at ``... x (b) x q x d`` points."""
        return RegressionBelief(self, X)

    def imagine(self, X: Tensor) -> Regression:
        """Observe the mean at ``(b) x q x d`` points: the variance shrinks there, the mean stays everywhere."""
        mean = self.at(X).mean
        return self.append(X, mean[0] if self.is_swept else mean)  # the variance does not look at the values

    def track(self, points: Tensor, memory: float = math.inf) -> Tracked:
        """Keep what is known at ``N x d`` points up to date while observations arrive.

        Args:
            points: ``N x d``.
            memory: The bytes that it may take. Mean and variances are always kept; what else would save time is
                computed anew by every observation once there is no room for it.
        """
        return Tracked(self, points, memory)

    def prepare_for_variances(self) -> Self:
        """Return a regression with the same answers, to rounding, that has cheap variances at very many points."""
        return self

    @abstractmethod
    def _evidence(self, points: Tensor) -> Tensor:
        """Return what the answers at ``(b) x P x d`` points have in common."""

    @abstractmethod
    def _mean(self, evidence: Tensor) -> Tensor:
        """Return ``(b) x P x n``."""

    @abstractmethod
    def _covariance(self, points: Tensor, evidence: Tensor) -> Tensor:
        """Return ``(b) x P x n x n``."""

    @abstractmethod
    def _joint_covariance(self, X: Tensor, evidence: Tensor, unfold: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``... x (b) x qn x qn`` for ``... x (b) x q x d`` points; `unfold` as in :class:`Folded`."""

    def _norm(self, points: Tensor, evidence: Tensor) -> Tensor:
        """Return ``(b) x P``."""
        return operator_norm(self._covariance(points, evidence))

    def _variance(self, points: Tensor, evidence: Tensor, directions: Tensor | None) -> Tensor:
        """Return ``(b) x P x k``."""
        return variances_along(self._covariance(points, evidence), directions)


Renewal = Callable[[Regression], Regression]


class RegressionBelief(Belief):
    """The belief of a regression at ``... x (b) x q x d`` points."""

    def __init__(self, regression: Regression, X: Tensor) -> None:
        self.regression = regression
        self.X = X

    @cached_property
    def _folded(self) -> Folded:
        return Folded(self.X, self.regression.batch_shape)

    @cached_property
    def _evidence(self) -> Tensor:
        return self.regression._evidence(self._folded.points)

    @cached_property
    def mean(self) -> Tensor:
        return self._unfold(self.regression._mean(self._evidence), 1)

    @cached_property
    def covariance(self) -> Tensor:
        return self._unfold(self.regression._covariance(self._folded.points, self._evidence), 2)

    @cached_property
    def joint_covariance(self) -> Tensor:
        return self.regression._joint_covariance(self.X, self._evidence, self._folded.unfold)

    @cached_property
    def norm(self) -> Tensor:
        return self._unfold(self.regression._norm(self._folded.points, self._evidence), 0)

    def variance(self, directions: Tensor | None = None) -> Tensor:
        require_directions(directions, self.regression.num_tasks, self.regression.batch_shape)
        return self._unfold(self.regression._variance(self._folded.points, self._evidence, directions), 1)

    def _unfold(self, values: Tensor, tail: int) -> Tensor:
        """Unfold ``(b) x P x *tail`` values, or ``A x (b) x P x *tail`` of several regressions of the same data."""
        if values.dim() == len(self.regression.batch_shape) + 1 + tail:
            return self._folded.unfold(values)
        return self._folded.unfold(values.movedim(0, -1)).movedim(-1, 0)


class Tracked(RegressionBelief):
    """The belief at fixed points while observations arrive; this general version asks the regression anew.

    Args:
        regression: The regression.
        X: ``N x d``.
        memory: As in :meth:`Regression.track`.
    """

    # Whether what is known is in this process.
    is_here = True

    def __init__(self, regression: Regression, X: Tensor, memory: float = math.inf) -> None:
        super().__init__(regression, X)
        self.memory = memory

    def advance(self, grown: Regression) -> Tracked:
        """Return what is known once :attr:`regression` has grown by an append, and perhaps by more points after it."""
        return grown.track(self.X, self.memory)

    def _keep_if_room(self, rows: RowBlocks | None, *known: Tensor) -> RowBlocks | None:
        """Return rows if there is room for them beside what is known, which exists twice while it is updated."""
        taken = 2 * sum(tensor.nbytes for tensor in known)
        return None if rows is None or rows.nbytes + taken > self.memory else rows


class Folded:
    """Points of shape ``... x (b) x q x d`` folded into ``(b) x P x d``, one long list for each data set.

    One long list turns many small products into a single large one. Data sets of batch size one also take the
    points' batch dimension at their place into the list.

    Args:
        X: ``... x (b) x q x d``.
        batch_shape: ``(b)``, of the data sets.

    Attributes:
        points: ``(b) x P x d``.
    """

    def __init__(self, X: Tensor, batch_shape: torch.Size) -> None:
        full = torch.broadcast_shapes(X.shape[:-2], batch_shape)
        X = X.expand(*full, *X.shape[-2:])
        first = len(full) - len(batch_shape)
        mine = [first + i for i, size in enumerate(batch_shape) if size == full[first + i]]
        extra = [i for i in range(len(full)) if i not in mine]
        order = [*mine, *extra, len(full)]
        moved = X.permute(*order, len(full) + 1)
        self.points = moved.reshape(*batch_shape, -1, X.shape[-1])
        self._num_own = len(batch_shape) + 1
        self._shape = moved.shape[:-1]
        self._inverse = sorted(range(len(order)), key=order.__getitem__)

    def unfold(self, values: Tensor) -> Tensor:
        """Take ``(b) x P x *tail`` back to ``... x (b) x q x *tail``."""
        values = values.reshape(*self._shape, *values.shape[self._num_own :])
        return values.permute(*self._inverse, *range(len(self._inverse), values.dim()))
