"""What a strategy is after: which tasks, in which direction, weighed how, within which limits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mtbo_torch.acquisition import as_constraints, put_on_device
from mtbo_torch.checks import name_of, require_ref_point, require_signs
from mtbo_torch.regression import Belief
from mtbo_torch.scalarizations import (
    ObjectiveScalarization,
    Scalarization,
    WeightDistribution,
    require_scalarization_class,
)
from mtbo_torch.surrogate import Units

ROLES = {1: "max", -1: "min", 0: "watched"}


class Goal:
    """The goal of a strategy; see :class:`MTKB` for the arguments.

    Args:
        num_tasks: The number of tasks n.
        like: A tensor of the dtype and on the device of the search space.
        scalarization: The class.
        weights: Where the weights come from.
        ref_point: ``k``, one value for each objective.
        signs: 1, -1 or 0 for each task; or words by the task's name, see :func:`read_aims`.
        constraints: The pair of A and c.
    """

    def __init__(
        self,
        num_tasks: int,
        like: Tensor,
        scalarization: type[Scalarization],
        weights: WeightDistribution | None = None,
        ref_point: Tensor | None = None,
        signs: Sequence[int] | Tensor | Mapping[str, str] | None = None,
        constraints: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        require_scalarization_class(scalarization)
        self.num_tasks = num_tasks
        self.task_names = [f"task {i + 1}" for i in range(num_tasks)]
        if isinstance(signs, Mapping):
            self.task_names = list(signs)
            signs, constraints = read_aims(signs, num_tasks, constraints)
        self.scalarization = scalarization
        self.signs = [1] * num_tasks if signs is None else require_signs(signs, num_tasks)
        self._tasks = [task for task, sign in enumerate(self.signs) if sign]
        self.weights = _check_weights(weights, scalarization, self.num_objectives)
        self.ref_point = _check_ref_point(ref_point, scalarization, self.num_objectives)
        given = None if constraints is None else as_constraints(constraints, num_tasks)
        self.constraints = None if given is None else put_on_device(given, like.device)
        matrix = torch.diag(torch.tensor(self.signs, dtype=torch.double))[self._tasks].to(like)
        self._task_index, self._like = torch.tensor(self._tasks).to(like.device), like[..., :0]
        self._objectives = None if all(sign == 1 for sign in self.signs) else matrix

    @property
    def num_objectives(self) -> int:
        """The number k of tasks that are objectives."""
        return len(self._tasks)

    def orient(self, Y: Tensor) -> Tensor:
        """Turn values of the tasks, ``... x n``, into values of the objectives, ``... x k``, all to be maximized."""
        if self._objectives is None:
            return Y
        # A product with the matrix would spread NaN to other objectives.
        return Y.index_select(-1, self._task_index) * self._objectives.sum(dim=-1)

    def view(self, belief: Belief) -> Belief:
        """Return what is known of the k objectives, all to be maximized, from what is known of the tasks."""
        return belief if self._objectives is None else belief.mapped(self._objectives)

    def allows(self, Y: Tensor) -> Tensor:
        """Return whether ``... x n`` values are complete and satisfy the constraints."""
        complete = ~Y.isnan().any(dim=-1)
        return complete if self.constraints is None else complete & self.constraints.hold(Y)

    def scalarize(self, weights: Tensor, units: Units, Y: Tensor) -> tuple[Scalarization, Tensor | None]:
        """Return the scalarization of a round, and with constraints the worth ``(b)`` of a point that violates them.

        Both are of values of the tasks inside the units, the worth as :meth:`Scalarization.for_search` has them: it is
        the lowest of the values told.

        Args:
            weights: ``(b) x k``.
            units: The units.
            Y: ``(b) x t x n``, the values told.
        """
        inner = self.scalarize_objectives(weights, units, Y)
        worst = None
        if self.constraints is not None:
            worst = _find_lowest(inner.for_search(), self.orient(units.scale_values(Y)))
        return inner if self._objectives is None else ObjectiveScalarization(inner, self._objectives), worst

    def scalarize_objectives(self, weights: Tensor, units: Units, Y: Tensor) -> Scalarization:
        """Return the scalarization of values of the objectives inside the units; see :meth:`scalarize`."""
        ref_point = self.ref_point
        if ref_point is not None:
            ref_point = self.scale_ref_point(units).to(weights)
        elif units.scale is not None and self.scalarization.takes_ref_point():
            # As is usual, from the best values seen: every part of the front is nearest to them for some weights.
            ref_point = _find_best(self.orient(units.scale_values(Y)))
        return self.scalarization.build(weights, ref_point)

    def label_tasks(self) -> list[str]:
        """Return the names of the tasks, with their roles if these differ."""
        if self._objectives is None:
            return self.task_names
        return [f"{name} ({ROLES[sign]})" for name, sign in zip(self.task_names, self.signs, strict=True)]

    def settings(self) -> dict[str, Any]:
        """Return everything that decides what it does, as plain values."""
        return {
            "scalarization": name_of(self.scalarization, "scalarization"),
            "weights": repr(self.weights),
            "ref_point": None if self.ref_point is None else self.ref_point.double().tolist(),
            "signs": None if self._objectives is None else self.signs,
            "tasks": self.task_names,
            "constraints": None if self.constraints is None else repr(self.constraints),
        }

    def scale_ref_point(self, units: Units) -> Tensor:
        """Take the reference point inside the units, ``(b) x k``, all objectives to be maximized."""
        assert self.ref_point is not None
        ref_point = self.ref_point.to(self._like)
        tasks = ref_point if self._objectives is None else ref_point @ self._objectives.abs()
        return self.orient(tasks if units.scale is None else units.scale_values(tasks).squeeze(-2))


WORDS = {"maximize": 1, "minimize": -1, "watch": 0}
LIMIT = re.compile(r"at (most|least)\s+([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)$")


def read_aims(
    aims: Mapping[str, str], num_tasks: int, constraints: tuple[Tensor, Tensor] | None = None
) -> tuple[list[int], tuple[Tensor, Tensor] | None]:
    """Return signs and constraints from what is wanted of each task, in words.

    Args:
        aims: By the task's name, in the order of the values: ``"maximize"``, ``"minimize"``, ``"watch"``,
            ``"at least 0.9"`` or ``"at most 5"``, or several of these separated by commas, such as
            ``"maximize, at least 0.5"``. A task that has a limit only is not an objective.
        num_tasks: The number of tasks n.
        constraints: The pair of A, ``m x n``, and c, ``m``, of others.

    Example:
        >>> from mtbo_torch.strategies.goal import read_aims
        >>> signs, (A, c) = read_aims({"yield": "maximize", "cost": "minimize", "purity": "at least 0.9"}, num_tasks=3)
        >>> signs, A.tolist(), c.tolist()
        ([1, -1, 0], [[0.0, 0.0, -1.0]], [-0.9])
    """
    if len(aims) != num_tasks or not all(isinstance(name, str) and name.strip() for name in aims):
        raise ValueError(f"signs should name each of the {num_tasks} tasks, got {list(aims)}. Name each once.")
    signs, rows, limits = [0] * num_tasks, [], []
    for task, (name, words) in enumerate(aims.items()):
        for word in str(words).split(","):
            found = LIMIT.match(word.strip())
            if found is not None:
                turn = 1.0 if found[1] == "most" else -1.0
                rows.append([turn if i == task else 0.0 for i in range(num_tasks)])
                limits.append(turn * float(found[2]))
            elif word.strip() in WORDS:
                signs[task] = WORDS[word.strip()]
            else:
                raise ValueError(
                    f'{name} should be to "maximize", to "minimize", to "watch", "at least ..." or "at most ...", got '
                    f"{words!r}. Separate several of these by commas."
                )
    if not rows:
        return signs, constraints
    own = (torch.tensor(rows, dtype=torch.double), torch.tensor(limits, dtype=torch.double))
    if constraints is None:
        return signs, own
    as_constraints(constraints, num_tasks)
    pairs = zip(own, constraints, strict=True)
    A, c = (torch.cat([ours, theirs.double().reshape(-1, *ours.shape[1:])]) for ours, theirs in pairs)
    return signs, (A, c)


def _find_best(Y: Tensor) -> Tensor:
    """Return the largest of ``(b) x t x n`` values, ``(b) x n``, NaN being none; zero without any."""
    if Y.shape[-2] == 0:
        return Y.new_zeros(*Y.shape[:-2], Y.shape[-1])
    best = Y.nan_to_num(nan=-torch.inf).amax(dim=-2)
    return torch.where(best.isinf(), 0, best)


def _find_lowest(scalarization: Scalarization, Y: Tensor) -> Tensor:
    """Return the lowest of ``(b) x t x n`` values, scalarized; of each objective alone if no row is complete."""
    of_each = scalarization(-_find_best(-Y).unsqueeze(-2))
    lowest = torch.cat([scalarization(Y).nan_to_num(nan=torch.inf), torch.full_like(of_each, torch.inf)], dim=-1)
    lowest = lowest.amin(dim=-1)
    return torch.where(lowest.isinf(), of_each.squeeze(-1), lowest)


def _check_weights(
    weights: WeightDistribution | None, scalarization: type[Scalarization], num_objectives: int
) -> WeightDistribution:
    if weights is None:
        return scalarization.default_weights(num_objectives)
    if not isinstance(weights, WeightDistribution):
        raise ValueError(
            f"weights should be a distribution such as UniformWeights({num_objectives}), got {weights!r}. "
            "Wrap a fixed vector as FixedWeights(vector)."
        )
    if weights.num_tasks != num_objectives:
        raise ValueError(
            f"weights should be for {num_objectives} tasks (from the kernel, without those that are not objectives), "
            f"got {weights.num_tasks}. Build them with num_tasks={num_objectives}."
        )
    return weights


def _check_ref_point(ref_point: object, scalarization: type[Scalarization], num_objectives: int) -> Tensor | None:
    if ref_point is None:
        if scalarization.needs_ref_point():
            raise ValueError(
                f"ref_point should be given for a {scalarization.__name__}, got None. Pass the values of the "
                "objectives that have to be exceeded to count."
            )
        return None
    if not scalarization.takes_ref_point():
        raise ValueError(
            f"ref_point should only be given for a scalarization that has one, got one for {scalarization.__name__}. "
            "Leave it out, or use ChebyshevScalarization or HypervolumeScalarization."
        )
    remedy = "Pass values in the units of the tasks, signs not turned."
    return require_ref_point(ref_point, num_objectives, "objectives", remedy)
