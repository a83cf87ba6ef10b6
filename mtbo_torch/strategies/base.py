"""What all ask-and-tell strategies share: the space, the goal, the observations, saving and continuing."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from numbers import Integral
from typing import Any, NamedTuple

import torch
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor

from mtbo_torch.checks import checksum, require_count, require_data, require_finite, require_positive, require_same_kind
from mtbo_torch.display import format_html_table, format_text_table
from mtbo_torch.regression import GrowingRows
from mtbo_torch.scalarizations import WeightDistribution
from mtbo_torch.space import Space
from mtbo_torch.strategies.goal import Goal

WEIGHTS_STREAM = 0x5CA1AB1E

# Of the best observations, in what a strategy shows of itself; columns of inputs, and of tasks.
MOST_ROWS, MOST_COLUMNS = 10, 6
# Of a setting, in an error.
LONGEST_SETTING = 300


class Observations(NamedTuple):
    """What was told.

    Attributes:
        X: ``(b) x t x d``, the points.
        Y: ``(b) x t x n``, the values, NaN for those that are missing.
        sd: ``(b) x t x n``, the standard deviations of their noise, NaN for those that are not known.
    """

    X: Tensor
    Y: Tensor
    sd: Tensor

    @property
    def size(self) -> int:
        """The number of points t."""
        return self.X.shape[-2]

    def pick(self, rows: slice | list[int]) -> Observations:
        """Return some of the rows."""
        return Observations(*(part[..., rows, :].contiguous() for part in self))


class Strategy(ABC):
    """The base of all strategies: ask for points, evaluate them, tell the values; see :class:`MTKB` for the arguments.

    Strategies with the same seed draw the same weights, whatever else they do: runs can be compared round by round.

    Args:
        space: Where to search.
        goal: What to search for.
        seed: A number, or b of them for as many trials side by side.

    Example:
        >>> import torch
        >>> from mtbo_torch.strategies import RandomSearch, Strategy
        >>> def run(strategy: Strategy, num_rounds: int) -> torch.Tensor:
        ...     for _ in range(num_rounds):
        ...         x = strategy.ask()
        ...         strategy.tell(x, torch.cat([x, -x], dim=-1))
        ...     return strategy.train_Y
        >>> run(RandomSearch(num_tasks=2, bounds=torch.tensor([[0.0], [1.0]])), num_rounds=5).shape
        torch.Size([5, 2])
    """

    _can_miss_values = False
    # Whether values may have a noise of their own, and whether anybody has tried to say it: until then, nobody looks.
    _can_know_noise = False
    _may_know_noise = False

    def __init__(self, space: Space, goal: Goal, seed: int | Sequence[int]) -> None:
        self.space, self.goal = space, goal
        seeds = _check_seeds(seed)
        self.batch_shape = torch.Size([len(seeds)]) if isinstance(seed, Sequence) else torch.Size()
        self._generators = [torch.Generator().manual_seed(number) for number in seeds]
        self._weight_generators = [torch.Generator().manual_seed(number ^ WEIGHTS_STREAM) for number in seeds]
        self._observed_X = GrowingRows.of(space.points.new_empty(*self.batch_shape, 0, space.num_inputs))
        self._observed_Y = GrowingRows.of(space.points.new_empty(*self.batch_shape, 0, goal.num_tasks))
        self._observed_sd: GrowingRows | None = None  # as long as nobody knows any
        self._unknown = space.points.new_full((), torch.nan)
        self._portions: list[int] = []
        self._asked_weights = space.points.new_empty(*self.batch_shape, 0, goal.num_objectives)
        self._asked_ids: list[int] = []
        self._pending: dict[int, Tensor] = {}
        self._num_asked = 0

    @property
    def num_tasks(self) -> int:
        """The number of tasks n."""
        return self.goal.num_tasks

    @property
    def weights(self) -> WeightDistribution:
        """The distribution that weights are drawn from."""
        return self.goal.weights

    @property
    def train_X(self) -> Tensor:
        """``(b) x t x d``, the points told so far."""
        return self._observed_X.rows.clone()

    @property
    def train_Y(self) -> Tensor:
        """``(b) x t x n``, the values told so far."""
        return self._observed_Y.rows.clone()

    @property
    def train_sd(self) -> Tensor:
        """``(b) x t x n``, the standard deviations of the values' noise told so far; NaN for those that were not."""
        return self._observations.sd.clone()

    @property
    def num_observations(self) -> int:
        """The number of points told so far."""
        return self._observed_X.length

    @property
    def asked_weights(self) -> Tensor:
        """``(b) x q x k``, the objectives' weights behind the points of the last :meth:`ask`; none before the first."""
        return self._asked_weights.clone()

    @property
    def asked_ids(self) -> list[int]:
        """The numbers of the points of the last :meth:`ask`, by which :meth:`tell` knows them."""
        return list(self._asked_ids)

    @property
    def pending(self) -> dict[int, Tensor]:
        """The points that were asked for and not yet told, ``(b) x d`` each, by number."""
        return {number: point.clone() for number, point in self._pending.items()}

    @abstractmethod
    def _propose(self, weights: Tensor, fixed: Mapping[int, float]) -> Tensor:
        """Return ``(b) x q x d`` points, one for each of ``(b) x q x k`` weights, with some inputs fixed."""

    def _learn(self, told: Observations, count: int) -> None:  # noqa: B027  (not every strategy does)
        """Learn from all observations, the last `count` of them new."""

    def _memory(self) -> dict[str, Any]:
        """Return what :meth:`_recall` needs besides the observations and the portions they came in."""
        return {}

    def _recall(self, told: Observations, portions: list[int], memory: dict[str, Any]) -> None:  # noqa: B027
        """Take up what was known after the observations had been told in these portions, bit for bit."""

    def ask(self, q: int = 1, fixed: Mapping[Any, Any] | None = None) -> Tensor:
        """Return the next ``(b) x q x d`` points to evaluate, which are pending until they are told or forgotten.

        Every point has weights of its own. Strategies with a kernel take points that are pending, and those before it
        in the same call, as if their values had been the mean: the variance shrinks there, so points spread.

        Args:
            q: The number of points.
            fixed: Inputs that should have one value this time, by name or place, such as ``{"catalyst": "Pd"}``.

        Example:
            >>> import torch
            >>> from mtbo_torch import MTKB
            >>> strategy = MTKB(2, bounds=torch.tensor([[0.0], [1.0]]), refit_every=4)
            >>> strategy.ask(3).shape, strategy.asked_ids  # for three workers
            (torch.Size([3, 1]), [0, 1, 2])
            >>> strategy.tell(1, torch.tensor([0.3, 0.1]))  # the second is the first to be done
            >>> list(strategy.pending)
            [0, 2]
        """
        require_count("q", q, "Ask for at least one point.")
        numbers = self.space.read_fixed(fixed)
        like, k = self.space.points, self.goal.num_objectives
        with self._nothing_drawn_if_refused():
            draws = [self.weights.sample(q, generator=source, dtype=like.dtype) for source in self._weight_generators]
            weights = torch.stack(draws).reshape(*self.batch_shape, q, k).to(like)
            points = self._propose(weights, numbers)
        self._asked_weights = weights
        self._asked_ids = list(range(self._num_asked, self._num_asked + q))
        self._num_asked += q
        self._pending.update(zip(self._asked_ids, points.clone().unbind(dim=-2), strict=True))
        return points

    def tell(
        self, x: Any, y: Any, allow_missing: bool = False, instead_of: int | Sequence[int] | None = None, sd: Any = None
    ) -> None:
        """Learn the values at some points, in any order, asked for or not; a refused call changes nothing.

        A point that differs from what was asked for by more than rounding is another point: the one asked for stays
        pending until it is forgotten, or until something is told instead of it. A point that differs from a choice by
        rounding is taken for that choice. Values are those of the tasks as they are, signs not turned.

        Args:
            x: ``(b) x q x d``, or ``d`` for one point; or the numbers of q pending points, see :attr:`asked_ids`.
                Tensors, arrays and lists will do, for `y` too.
            y: ``(b) x q x n``, or ``n`` for one point.
            allow_missing: Whether values may be NaN, for tasks that were not observed; :class:`MTKB` learns from the
                others. Each point needs a value, of some task in some trial: forget a point that has none.
            instead_of: The numbers of the pending points that these stand for, as when a set point was rounded.
            sd: The standard deviations of the noise in `y`, of the same shape, or one for each task, or one number; NaN
                where it is not known. By default it is not, and learned. For :class:`Optimizer`, and for :class:`MTKB`
                with `refit_every`: where the kernel is known, the theory has one noise for all.

        Example:
            >>> import torch
            >>> from mtbo_torch import Optimizer
            >>> optimizer = Optimizer(num_tasks=2, bounds=torch.tensor([[300.0], [900.0]], dtype=torch.double))
            >>> x = optimizer.ask()
            >>> optimizer.tell([600.0], [0.3, 0.1], instead_of=optimizer.asked_ids)
            >>> optimizer.pending
            {}
        """
        if allow_missing and not self._can_miss_values:
            raise ValueError(
                f"allow_missing should be False for {type(self).__name__}, which needs the values of all tasks, got "
                "True. Use MTKB, or leave incomplete rows out."
            )
        ids = None if _is_point(x) else self._require_pending("x", x)
        points = x if ids is None else torch.stack([self._pending[number] for number in ids], dim=-2)
        points, y = self._check(points, y, allow_missing)
        sd = self._check_sd(sd, y)
        settled, are_pending = self._match_pending(points)
        if not are_pending:  # to the last bit, so they have not been taken in before
            points = self._take_in(points)
            settled, _ = self._match_pending(points)
        settled = settled if ids is None else ids
        if instead_of is not None:
            settled = [] if instead_of == [] else self._require_pending("instead_of", instead_of)
        elif self._pending and not settled:
            warnings.warn(
                f"The point told is none of the {len(self._pending)} pending ones, which stay pending. If it stands "
                "for one of them, say so with instead_of, or forget that one.",
                stacklevel=2,
            )
        X, Y = self._observed_X.extend(points), self._observed_Y.extend(y)
        noise = self._extend_sd(sd, y)
        with torch.no_grad(), self._nothing_drawn_if_refused():
            self._learn(self._observe(X, Y, noise), points.shape[-2])
        self._observed_X, self._observed_Y, self._observed_sd = X, Y, noise
        self._portions.append(points.shape[-2])
        for number in settled:
            del self._pending[number]

    def correct(self, rows: int | Sequence[int], y: Any, allow_missing: bool = False, sd: Any = None) -> None:
        """Exchange values that were told, and learn all anew.

        Args:
            rows: Which observations, counted from 0 in the order they were told.
            y: ``(b) x q x n``, or ``n`` for one row: the right values.
            allow_missing: As in :meth:`tell`.
            sd: As in :meth:`tell`; by default, the noise stays what it was.

        Example:
            >>> import torch
            >>> from mtbo_torch import Optimizer
            >>> optimizer = Optimizer(num_tasks=2, bounds=torch.tensor([[0.0], [1.0]], dtype=torch.double))
            >>> optimizer.tell([[0.2], [0.7]], [[1.0, 2.0], [10.0, 3.0]])
            >>> optimizer.correct(1, [1.0, 3.0])
            >>> optimizer.remove(0)
            >>> optimizer.train_Y
            tensor([[1., 3.]], dtype=torch.float64)
        """
        places = self._require_rows(rows)
        told = Observations(self.train_X, self.train_Y, self.train_sd)
        _, y = self._check(told.X[..., places, :], y, allow_missing)
        deviations = self._check_sd(sd, y)
        if deviations is not None:
            told.sd[..., places, :] = deviations
        told.Y[..., places, :] = y
        self._learn_anew(told)

    def remove(self, rows: int | Sequence[int]) -> None:
        """Forget observations that were told, and learn all anew.

        Args:
            rows: Which ones, counted from 0 in the order they were told.
        """
        places = self._require_rows(rows)
        keep = [row for row in range(self.num_observations) if row not in places]
        self._learn_anew(self._observations.pick(keep))

    def _require_rows(self, rows: object) -> list[int]:
        numbers: list[Any] = list(rows) if isinstance(rows, Sequence) else [rows]
        known = range(self.num_observations)
        if not numbers or not all(_is_whole(n) and n in known for n in numbers) or len(set(numbers)) < len(numbers):
            raise ValueError(
                f"rows should be different numbers from 0 to {self.num_observations - 1}, got {rows!r}. They count the "
                "observations in the order they were told."
            )
        return [int(number) for number in numbers]

    def _learn_anew(self, told: Observations) -> None:
        """Take these observations for all that was told, at once."""
        with torch.no_grad(), self._nothing_drawn_if_refused():
            self._start_over(told)
        self._observations = told
        self._portions = [told.size] if told.size else []

    @property
    def _observations(self) -> Observations:
        return self._observe(self._observed_X, self._observed_Y, self._observed_sd)

    @_observations.setter
    def _observations(self, told: Observations) -> None:
        self._observed_X, self._observed_Y, self._observed_sd = map(GrowingRows.of, told)
        if told.sd.isnan().all():
            self._observed_sd = None

    def _observe(self, X: GrowingRows, Y: GrowingRows, sd: GrowingRows | None) -> Observations:
        return Observations(X.rows, Y.rows, self._unknown.expand_as(Y.rows) if sd is None else sd.rows)

    def _start_over(self, told: Observations) -> None:  # noqa: B027  (not every strategy learns)
        """Forget what was learned, and learn from these observations."""

    def expect(self, x: Any) -> None:
        """Take points as asked for, as when somebody else chose them: they are pending until they are told.

        Args:
            x: ``(b) x q x d``, or ``d`` for one point.
        """
        x = self._convert("x", x)
        nothing = self.space.points.new_zeros(*x.shape[:-1], self.num_tasks) if isinstance(x, Tensor) else x
        points = self._take_in(self._check(x, nothing, allow_missing=False)[0])
        numbers = range(self._num_asked, self._num_asked + points.shape[-2])
        self._num_asked += points.shape[-2]
        self._pending.update(zip(numbers, points.clone().unbind(dim=-2), strict=True))

    def forget(self, ids: int | Sequence[int] | None = None) -> None:
        """Wait no longer for some pending points, or for any of them with None.

        Args:
            ids: Their numbers, see :attr:`asked_ids`.
        """
        for number in list(self._pending) if ids is None else self._require_pending("ids", ids):
            del self._pending[number]

    def pareto(self) -> tuple[Tensor, Tensor] | list[tuple[Tensor, Tensor]]:
        """Return the observations that no other one dominates: points ``p x d`` and values ``p x n``, as told.

        With noise, values that look best were lucky; the model's mean at these points is the better estimate. Rows with
        missing values do not count, nor those that violate the constraints, nor tasks that are not objectives.

        Returns:
            The points and their values; for a batch of trials a list of such pairs, one for each trial.

        Example:
            >>> import torch
            >>> from mtbo_torch import MTKB
            >>> strategy = MTKB(2, bounds=torch.tensor([[0.0], [1.0]]), refit_every=4)
            >>> strategy.tell(torch.tensor([[0.1], [0.5], [0.9]]), torch.tensor([[1.0, 2.0], [0.5, 0.5], [2.0, 1.0]]))
            >>> strategy.pareto()[1]
            tensor([[1., 2.],
                    [2., 1.]])
        """
        X, Y = self.train_X, self.train_Y
        if self.batch_shape:
            found = [self._find_pareto(values) for values in Y]
            return [(points[best], values[best]) for points, values, best in zip(X, Y, found, strict=True)]
        best = self._find_pareto(Y)
        return X[best], Y[best]

    def _find_pareto(self, Y: Tensor) -> Tensor:
        candidates = self.goal.allows(Y).nonzero().squeeze(-1)
        if not len(candidates):
            return candidates
        return candidates[is_non_dominated(self.goal.orient(Y[candidates]), deduplicate=False)]

    def __repr__(self) -> str:
        headline, rows = self._summarize()
        return f"{headline}\n{format_text_table(rows)}" if rows else headline

    def _repr_html_(self) -> str:
        headline, rows = self._summarize()
        return f"<p>{headline}</p>{format_html_table(rows) if rows else ''}"

    def _summarize(self) -> tuple[str, list[list[str]]]:
        """Return a sentence, and a table of the best observations."""
        trials = f"{_count(self.batch_shape.numel(), 'trial')} with " if self.batch_shape else ""
        told = f"{trials}{_count(self.num_observations, 'observation')} of {_count(self.num_tasks, 'task')}"
        d, X, Y = self.space.num_inputs, self._observed_X.rows, self._observed_Y.rows
        headline = f"{type(self).__name__}: {told}, {_count(d, 'input')} {self.space.describe()}"
        if self._pending:
            headline += f", {len(self._pending)} pending"
        if self.goal.constraints is not None and self.num_observations:
            satisfied = int(self.goal.constraints.hold(Y).sum())
            headline += f"; {satisfied} of {Y[..., 0].numel()} satisfy the constraints"
        best = X.new_empty(0) if self.batch_shape else self._find_pareto(Y)
        if not len(best):
            return headline, []
        inputs, tasks = (min(size, MOST_COLUMNS) for size in (d, self.num_tasks))
        rows = [["Pareto-optimal", *self.space.input_names[:inputs], *self.goal.label_tasks()[:tasks]]]
        shown = best[:MOST_ROWS]
        for i, x, y in zip(shown.tolist(), self.space.format_points(X[shown]), Y[shown].tolist(), strict=True):
            rows.append([f"row {i}", *x[:inputs], *[f"{value:.4g}" for value in y[:tasks]]])
        if len(best) > MOST_ROWS:
            rows.append([f"and {len(best) - MOST_ROWS} more", *[""] * (inputs + tasks)])
        return headline, rows

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit, for ``torch.save`` and ``torch.load(weights_only=True)``.

        Example:
            >>> import torch
            >>> from mtbo_torch import MTKB
            >>> def build() -> MTKB:
            ...     return MTKB(2, bounds=torch.tensor([[0.0], [1.0]]), refit_every=1, seed=0)
            >>> first, second = build(), build()
            >>> first.tell(torch.tensor([0.5]), torch.tensor([1.0, 2.0]))
            >>> second.load_state_dict(first.state_dict())
            >>> torch.equal(first.ask(), second.ask())
            True
        """
        state = {
            "settings": self._settings(),
            "space": self.space.fingerprint,
            "train_X": self.train_X,
            "train_Y": self.train_Y,
            "train_sd": self.train_sd,
            "portions": list(self._portions),
            "asked_weights": self._asked_weights.clone(),
            "asked_ids": list(self._asked_ids),
            "pending": {number: point.clone() for number, point in self._pending.items()},
            "num_asked": self._num_asked,
            "generators": [generator.get_state() for generator in self._all_generators()],
            "memory": self._memory(),
        }
        return state | {"checksum": checksum(state)}

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Continue from :meth:`state_dict` of a strategy built with the same arguments; the seed may differ.

        Args:
            state_dict: What :meth:`state_dict` returned.
            strict: Whether the arguments have to be the same. With False another radius, refit interval or wider
                bounds will do: observations and pending points are taken over, and all is learned anew.

        Raises:
            ValueError: If the state is of another strategy, damaged, or was changed after saving. The strategy then
                stays as it was.
        """
        expected = f"state_dict should come from {type(self).__name__}.state_dict()"
        parts = self.state_dict().keys()
        missing = parts - state_dict.keys() if isinstance(state_dict, dict) else {"everything"}
        if missing:
            raise ValueError(f"{expected}, got one without {sorted(missing)}. Pass what state_dict() returned.")
        if strict:
            self._require_same_settings(state_dict)
        try:
            state_dict = deepcopy(state_dict)  # whatever becomes of the caller's
            X, Y, sd = (state_dict[f"train_{part}"].to(self.space.points) for part in ("X", "Y", "sd"))
            require_data(X, Y, self.num_tasks, allow_missing=self._can_miss_values)
            told = Observations(X, Y, _require_deviations(sd, Y))
            self._may_know_noise = self._can_know_noise
            d = self.space.num_inputs
            if X.shape[:-2] != self.batch_shape or X.shape[-1] != d:
                raise ValueError(f"train_X of shape {tuple(X.shape)}")
            generators = [torch.Generator() for _ in self._all_generators()]
            for generator, state in zip(generators, state_dict["generators"], strict=True):
                generator.set_state(state)
            portions, asked_weights = list(state_dict["portions"]), state_dict["asked_weights"].to(self.space.points)
            pending = {int(number): point.to(self.space.points) for number, point in state_dict["pending"].items()}
            asked_ids, num_asked = list(state_dict["asked_ids"]), int(state_dict["num_asked"])
            numbers = [*portions, *asked_ids, *state_dict["pending"], state_dict["num_asked"]]
            if not all(isinstance(number, int) for number in numbers):
                raise ValueError("numbers of points that are no integers")
            if sum(portions) != X.shape[-2] or not all(size > 0 for size in portions):
                raise ValueError(f"{X.shape[-2]} observations in portions of {portions}")
            if asked_weights.shape != (*self.batch_shape, len(asked_ids), self.goal.num_objectives):
                raise ValueError(f"asked_weights of shape {tuple(asked_weights.shape)}")
            if any(point.shape != (*self.batch_shape, d) for point in pending.values()):
                raise ValueError(f"pending points that are not of d = {d} inputs")
            for name, value in (("asked_weights", asked_weights), *((f"pending[{n}]", x) for n, x in pending.items())):
                require_finite(name, value)
            if checksum({key: state_dict[key] for key in parts - {"checksum"}}) != state_dict["checksum"]:
                raise ValueError("it was changed after it was saved")
            if strict:
                with torch.no_grad():
                    self._recall(told, portions, state_dict["memory"])
        except Exception as error:  # whatever a foreign state makes of it
            reason = str(error).split("\n", 1)[0].rstrip(".")
            raise ValueError(f"{expected}, got one that does not fit together ({reason}). Save it again.") from error
        if not strict:
            self._learn_anew(told)
            self._pending, self._asked_ids, self._num_asked = pending, asked_ids, num_asked
            return
        count = len(self._generators)
        self._generators, self._weight_generators = generators[:count], generators[count:]
        self._observations = told
        self._portions, self._asked_weights = portions, asked_weights
        self._pending, self._asked_ids, self._num_asked = pending, asked_ids, num_asked

    def _pending_points(self) -> Tensor:
        """Return ``(b) x p x d``."""
        if not self._pending:
            return self._observed_X.rows[..., :0, :]
        return torch.stack(list(self._pending.values()), dim=-2)

    def _require_pending(self, name: str, ids: object) -> list[int]:
        numbers: list[Any] = list(ids) if isinstance(ids, Sequence) else [ids]
        is_known = bool(numbers) and all(_is_whole(n) and n in self._pending for n in numbers)
        if not is_known or len(set(numbers)) < len(numbers):
            known = list(self._pending)
            shown = ", ".join(map(str, known[:10])) + (", ..." if len(known) > 10 else "")
            raise ValueError(
                f"{name} should be numbers of pending points ({shown or 'none is pending'}), got {ids!r}. "
                "A point itself is a torch.Tensor, an array, or a list with a decimal point such as [600.0]."
            )
        return [int(number) for number in numbers]

    def _match_pending(self, x: Tensor) -> tuple[list[int], bool]:
        """Return the numbers of the pending points that ``(b) x q x d`` points are, the nearest and then the oldest.

        And whether all of them are such points, to the last bit.
        """
        if not self._pending:
            return [], False
        pending = self._pending_points()
        if torch.equal(x, pending):  # as in most rounds
            return list(self._pending), True
        apart = (x.unsqueeze(-2) - pending.unsqueeze(-3)) / self.space.span
        farthest = apart.abs().amax(dim=(*range(x.dim() - 2), -1)).tolist()  # q x p
        matching: list[int] = []
        for row in farthest:
            rest = [(distance, n) for distance, n in zip(row, self._pending, strict=True) if n not in matching]
            matching += [n for distance, n in sorted(rest)[:1] if distance <= self.space.tolerance]
        return matching, all(0 in row for row in farthest)

    @contextmanager
    def _nothing_drawn_if_refused(self) -> Iterator[None]:
        states = [generator.get_state() for generator in self._all_generators()]
        try:
            yield
        except BaseException:
            for generator, state in zip(self._all_generators(), states, strict=True):
                generator.set_state(state)
            raise

    def _all_generators(self) -> list[torch.Generator]:
        return [*self._generators, *self._weight_generators]

    def _check(self, x: Any, y: Any, allow_missing: bool) -> tuple[Tensor, Tensor]:
        x, y = self._convert("x", x), self._convert("y", y)
        if not self.batch_shape:
            x = x.unsqueeze(0) if isinstance(x, Tensor) and x.dim() == 1 else x
            y = y.unsqueeze(0) if isinstance(y, Tensor) and y.dim() == 1 else y
        hint = "Pass allow_missing=True if NaN stands for a missing value." if self._can_miss_values else ""
        require_data(x, y, self.num_tasks, ("x", "y"), allow_missing, hint)
        self.space.require_points(x, self.batch_shape)
        unseen = y.isnan().all(dim=-1).reshape(-1, y.shape[-2]).all(dim=0) if allow_missing else None
        if unseen is not None and unseen.any():
            raise ValueError(
                "y should have a value of at least one task for each point, got NaN only in the rows "
                f"{unseen.nonzero().flatten().tolist()}. Leave these points out, and forget them if they are pending."
            )
        return x.detach(), y.detach()

    def _take_in(self, x: Tensor) -> Tensor:
        """Return points told without rounding, and warn of those that lie outside the space."""
        x, outside = self.space.take_in(x)
        if outside:
            warnings.warn(f"{outside} It is used all the same.", stacklevel=3)
        return x

    def _extend_sd(self, sd: Tensor | None, y: Tensor) -> GrowingRows | None:
        """Return the standard deviations told so far and ``(b) x q x n`` more, or None if none is known at all."""
        if sd is None and self._observed_sd is None:
            return None
        known = GrowingRows.of(self._observations.sd) if self._observed_sd is None else self._observed_sd
        return known.extend(torch.full_like(y, torch.nan) if sd is None else sd)

    def _check_sd(self, sd: Any, y: Tensor) -> Tensor | None:
        """Return the standard deviations of the noise in ``(b) x q x n`` values, None if they are not known."""
        if sd is None:
            return None
        if not self._can_know_noise:
            raise ValueError(
                f"sd should be left out for this {type(self).__name__}, which has one noise for all values, got some. "
                "Use Optimizer, or MTKB with refit_every."
            )
        sd = self._convert("sd", sd)
        try:
            sd = sd.expand_as(y)
        except (AttributeError, RuntimeError):
            got = tuple(sd.shape) if isinstance(sd, Tensor) else type(sd).__name__
            raise ValueError(
                f"sd should have the shape {tuple(y.shape)} of the values, or one number for each task, got {got}. "
                "Pass the standard deviation of each value's noise."
            ) from None
        require_same_kind(("y", y), ("sd", sd))
        self._may_know_noise = True
        return _require_deviations(sd, y).detach()

    def _convert(self, name: str, values: Any) -> Any:
        """Return numbers as a tensor of the search space's kind; tensors as they are, unless in single precision."""
        if hasattr(values, "columns"):
            raise ValueError(
                f"{name} should be a tensor, an array or a list of numbers, got a {type(values).__name__}. Describe "
                "your experiment as an Experiment, which takes tables."
            )
        like = self.space.points
        if isinstance(values, Tensor):
            return values.to(like.dtype) if (values.dtype, like.dtype) == (torch.float, torch.double) else values
        try:
            return torch.as_tensor(values, dtype=like.dtype, device=like.device)
        except (TypeError, ValueError, RuntimeError):
            return values  # refused in its turn

    def _settings(self) -> dict[str, Any]:
        """Return everything that decides what the strategy does, as plain values."""
        return {
            "strategy": type(self).__name__,
            "num_tasks": self.num_tasks,
            "batch_shape": list(self.batch_shape),
            "space": self.space.name,
            "dtype": str(self.space.points.dtype),
            **self.goal.settings(),
        }

    def _require_same_settings(self, state_dict: dict[str, Any]) -> None:
        ours, theirs, space = self._settings(), state_dict["settings"], state_dict["space"]
        if not isinstance(theirs, dict) or not isinstance(space, str):
            raise ValueError(
                f"state_dict should hold its settings and space, got {type(theirs).__name__} and "
                f"{type(space).__name__}. Pass what state_dict() returned."
            )
        different = sorted(
            (key for key in ours.keys() | theirs.keys() if checksum(ours.get(key)) != checksum(theirs.get(key))),
            key=str,
        )
        parts = [f"{key} ({_shorten(theirs.get(key))} there, {_shorten(ours.get(key))} here)" for key in different]
        if not different and space != self.space.fingerprint:
            parts = [f"{ours['space']} (other points)"]
        if parts:
            raise ValueError(
                f"state_dict should come from a strategy with the same settings, got others: {', '.join(parts)}. "
                "Build the strategy with the arguments it was saved with."
            )


def _require_deviations(sd: Tensor, Y: Tensor) -> Tensor:
    """Refuse standard deviations that cannot be those of the values' noise; NaN stands for one that is not known."""
    if sd.shape != Y.shape:
        raise ValueError(f"sd should have the shape {tuple(Y.shape)} of the values, got {tuple(sd.shape)}.")
    remedy = "Pass standard deviations, and NaN for those that are not known."
    require_positive("sd", sd.nan_to_num(nan=1.0, posinf=torch.inf), remedy)
    return sd


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_point(x: object) -> bool:
    """Return whether points are given by their inputs, and not by their numbers."""
    if _is_whole(x) or isinstance(x, str):
        return False
    if isinstance(x, Sequence):
        return any(isinstance(part, float | Sequence) and not isinstance(part, str) for part in x)
    return hasattr(x, "__array__")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _shorten(value: object) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_SETTING else f"{text[:LONGEST_SETTING]}..."


def _check_seeds(seed: int | Sequence[int]) -> list[int]:
    seeds = list(seed) if isinstance(seed, Sequence) else [seed]
    if not seeds or not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63 for n in seeds):
        raise ValueError(
            f"seed should be an integer from 0 to 2^63 - 1, or a non-empty list of such, got {seed!r}. Pass one."
        )
    return seeds
