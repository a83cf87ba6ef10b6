"""Why a strategy asks for a point, in numbers that people can check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from mtbo_torch.display import format_html_table, format_text_table, shorten


@dataclass(frozen=True, eq=False)
class Explanation:
    """What is known of one point, from :meth:`ModelStrategy.explain`.

    Attributes:
        point: The inputs, by name, for people to read.
        tasks: The names of the n tasks, with their roles.
        mean: ``n``, what is expected of each task, in the user's units.
        lower: ``n``, the lower end of its interval.
        upper: ``n``, the upper end.
        level: What the intervals are.
        probability: That the constraints are satisfied; None without any.
        gain: The expected gain in hypervolume, as a share of what is dominated so far; None if the strategy has other
            aims.
        nearest: The number of the nearest observation, counted from 0; None before the first.
        distance: How far it is in each input, as a share of the input's range; 1 for another category.
        effects: ``d x n``, by how much the mean of each task changes when one input goes through its range and the
            others stay: which inputs matter here.
        correlation: ``n x n``, how the kernel relates the tasks.
    """

    point: dict[str, str]
    tasks: Sequence[str]
    mean: Tensor
    lower: Tensor
    upper: Tensor
    level: str
    probability: float | None
    gain: float | None
    nearest: int | None
    distance: Tensor
    effects: Tensor
    correlation: Tensor

    def __repr__(self) -> str:
        return "\n\n".join([self._headline(), *map(format_text_table, self._tables())])

    def _repr_html_(self) -> str:
        return f"<p>{self._headline()}</p>{''.join(map(format_html_table, self._tables()))}"

    def _headline(self) -> str:
        parts = [", ".join(f"{name} = {value}" for name, value in self.point.items())]
        if self.gain is not None:
            parts.append(f"expected to enlarge the hypervolume by {100 * self.gain:.2g} %")
        if self.probability is not None:
            parts.append(f"satisfies the constraints with probability {self.probability:.2g}")
        if self.nearest is None:
            parts.append("nothing was tried yet")
        elif self.distance.max() == 0:
            parts.append(f"the same as row {self.nearest}")
        else:
            farthest = int(self.distance.argmax())
            name, share = list(self.point)[farthest], self.distance[farthest].item()
            off = "another value" if share == 1 else f"{100 * share:.2g} % of the range off"
            parts.append(f"nearest to row {self.nearest}, {name} {off}")
        return "; ".join(parts) + "."

    def _tables(self) -> list[list[list[str]]]:
        outlook = [["task", "expected", "from", "to"]]
        for row in zip(self.tasks, self.mean.tolist(), self.lower.tolist(), self.upper.tolist(), strict=True):
            outlook.append([row[0], *map(shorten, row[1:])])
        outlook[0][0] = f"task ({self.level})"
        effects = [["change along", *self.tasks]]
        effects += [[name, *map(shorten, row)] for name, row in zip(self.point, self.effects.tolist(), strict=True)]
        tables = [outlook, effects]
        if len(self.tasks) > 1:
            related = [["correlation", *self.tasks]]
            for name, row in zip(self.tasks, self.correlation.tolist(), strict=True):
                related.append([name, *[f"{value:.2f}" for value in row]])
            tables.append(related)
        return tables
