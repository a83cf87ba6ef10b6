"""Experiments as people have them: named inputs and tasks, tables in and tables out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from mtbo_torch.checks import name_of
from mtbo_torch.display import format_html_table, format_text_table
from mtbo_torch.inputs import Input, Inputs, restore_inputs
from mtbo_torch.strategies import Optimizer, Strategy, list_strategies

if TYPE_CHECKING:
    import pandas as pd

# The name of the index, or the column, that says which proposal a row is.
ASKED = "asked"
# The end of the name of a column with standard deviations.
SD = " sd"


class Experiment:
    """An experiment: what can be set, what is measured and wanted, and all measurements so far.

    Tables are pandas data frames (``pip install mtbo-torch[table]``) with a column for each input and each task. A
    column such as "yield sd" says how noisy each yield is, where that is known.

    Args:
        inputs: What can be set, by name; or :class:`Inputs`, with limits between them.
        tasks: What is measured, by name, and what is wanted of it: ``"maximize"``, ``"minimize"``, ``"watch"``,
            ``"at least 0.9"``, ``"at most 5"``, or several of these separated by commas.
        choices: A table of the combinations of inputs to choose from, if not all are possible.
        strategy: How to choose: :class:`Optimizer`, or another strategy.
        options: More arguments of the strategy, such as ``seed``; for :class:`MTKB`, ``kernel``.

    Example:
        >>> import pandas as pd
        >>> from mtbo_torch import Category, Experiment, Real
        >>> experiment = Experiment(
        ...     inputs={"temperature": Real(300, 900), "catalyst": Category("Pd", "Ni")},
        ...     tasks={"yield": "maximize", "cost": "minimize"},
        ... )
        >>> experiment.tell(pd.DataFrame({"temperature": [350, 700], "catalyst": ["Pd", "Ni"], "yield": [0.2, 0.6],
        ...                               "cost": [3.0, 1.5]}))
        >>> proposal = experiment.ask(2)
        >>> list(proposal.columns)
        ['temperature', 'catalyst', 'yield', 'cost']
    """

    def __init__(
        self,
        inputs: Inputs | Mapping[str, Input],
        tasks: Mapping[str, str],
        *,
        choices: pd.DataFrame | None = None,
        strategy: type[Strategy] = Optimizer,
        **options: Any,
    ) -> None:
        self.inputs = inputs if isinstance(inputs, Inputs) else Inputs(inputs)
        self.tasks = _check_tasks(tasks, self.inputs)
        if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
            raise ValueError(f"strategy should be a class such as Optimizer, got {strategy!r}. Leave out the brackets.")
        points = None if choices is None else self.inputs.encode(_list_rows("choices", choices, self.inputs.names))
        self._options = options | {"strategy": strategy}
        first = options.pop("kernel", len(self.tasks))
        build: Any = strategy
        self.strategy: Strategy = build(first, bounds=self.inputs, choices=points, signs=self.tasks, **options)
        if self.strategy.batch_shape:
            raise ValueError(f"seed should be one number for an Experiment, got {options['seed']}. Pass one of them.")

    @property
    def table(self) -> pd.DataFrame:
        """All measurements in the order they were told, then the proposals that are still pending, without values.

        To continue in another experiment with the same description, tell it this table.
        """
        pending = self.strategy._pending_points()
        nothing = pending.new_full((len(pending), len(self.tasks)), torch.nan)
        X = torch.cat([self.strategy.train_X, pending])
        return self._frame(X, *(torch.cat([told, nothing]) for told in (self.strategy.train_Y, self.strategy.train_sd)))

    def ask(self, q: int = 1, fixed: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Return a table of q proposals, with empty columns for the tasks to fill in; see :meth:`Strategy.ask`.

        The index, called "asked", has the number of each proposal, by which :meth:`tell` knows it even if its inputs
        were changed. It may become a column, as it does in a file.

        Args:
            q: The number of proposals.
            fixed: Inputs that should have one value this time, such as ``{"catalyst": "Pd"}``.
        """
        X = self.strategy.ask(q, fixed)
        nothing = X.new_full((q, len(self.tasks)), torch.nan)
        frame = self._frame(X, nothing, nothing)
        frame.index = _load_pandas().Index(self.strategy.asked_ids, name=ASKED)
        return frame

    def tell(self, table: pd.DataFrame) -> None:
        """Learn from a table; one that is refused changes nothing.

        Columns may be in any order, other columns are ignored, and cells of tasks may be empty. A row without any value
        is a proposal that waits for its values.

        Args:
            table: A row for each measurement. For a task "yield", a column "yield sd" has the standard deviations of
                the noise, or of the mean of several measurements; where it is empty or missing, the noise is learned.
        """
        if hasattr(table, "columns") and table.index.name == ASKED:
            table = table.reset_index(drop=ASKED in table.columns)
        rows = _list_rows("table", table, [*self.inputs.names, *self.tasks])
        X, Y, sd = self.inputs.encode(rows), self._read_values(rows), self._read_deviations(rows)
        numbers = [self._read_number(row.get(ASKED)) for row in rows]
        done = ~Y.isnan().all(dim=-1)
        missing = bool(Y[done].isnan().any())
        if missing and not self.strategy._can_miss_values:
            raise ValueError(
                f"table should have all values for {type(self.strategy).__name__}, got empty cells. Use Optimizer."
            )
        waiting = [i for i in range(len(rows)) if not done[i] and numbers[i] is None]
        settled = [number for i, number in enumerate(numbers) if number is not None and done[i]]
        if len(set(settled)) < len(settled):
            raise ValueError(f'"{ASKED}" should name each proposal once, got {settled}. Leave it empty for other rows.')
        if done.any():
            others = [i for i in range(len(rows)) if done[i] and numbers[i] is None]
            settled += [n for n in self.strategy._match_pending(X[others])[0] if n not in settled]
            known = None if sd[done].isnan().all() else sd[done]
            self.strategy.tell(X[done], Y[done], allow_missing=missing, instead_of=settled, sd=known)
        if waiting:
            self.strategy.expect(X[waiting])

    def forget(self, asked: int | Sequence[int] | None = None) -> None:
        """Stop waiting for some proposals, by their numbers; with None, for all of them."""
        self.strategy.forget(asked)

    def correct(self, row: int, **values: float) -> None:
        """Replace values of one measurement.

        Args:
            row: Its row in :attr:`table`.
            values: The right values, by task. Pass names that Python does not allow as ``**{"yield (%)": 30.0}``, and
                standard deviations as ``**{"yield sd": 0.5}``.
        """
        unknown = [name for name in values if name.removesuffix(SD) not in self.tasks]
        if unknown or not values:
            raise ValueError(
                f"values should be of the tasks {', '.join(self.tasks)}, got {unknown}. Correct the names."
            )
        (place,) = self.strategy._require_rows(row)
        y, sd = self.strategy.train_Y[place], self.strategy.train_sd[place]
        for i, name in enumerate(self.tasks):
            if name in values:
                y[i] = _read_value(name, values[name], "")
            if name + SD in values:
                sd[i] = _read_deviation(name, values[name + SD], "")
        known = sd if any(name.endswith(SD) for name in values) else None
        self.strategy.correct(row, y, allow_missing=bool(y.isnan().any()), sd=known)

    def remove(self, rows: int | Sequence[int]) -> None:
        """Remove measurements, by their rows in :attr:`table`."""
        self.strategy.remove(rows)

    def pareto(self) -> pd.DataFrame:
        """Return the measurements that no other one dominates; see :meth:`Strategy.pareto`."""
        best = self.strategy._find_pareto(self.strategy.train_Y)
        return self.table.iloc[best.tolist()]

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return what the model expects: for each task its mean, and its standard deviation as a column "... sd".

        The standard deviation is that of the true value; a measurement has noise on top.

        Args:
            table: With a column for each input.
        """
        X = self.inputs.encode(_list_rows("table", table, self.inputs.names)).to(self.strategy.space.points)
        model = getattr(self.strategy, "model", None)
        if model is None or not self.strategy.num_observations:
            raise ValueError(
                f"predict should be asked of a strategy with a model that was told something, got "
                f"{type(self.strategy).__name__} with {self.strategy.num_observations} measurements. Tell it some."
            )
        with torch.no_grad():
            posterior = model.posterior(X)
        columns: dict[str, Any] = {}
        for i, name in enumerate(self.tasks):
            columns[name] = posterior.mean[:, i].numpy()
            columns[name + SD] = posterior.variance[:, i].sqrt().numpy()
        return _load_pandas().DataFrame(columns, index=table.index)

    def explain(self, table: pd.DataFrame | None = None) -> Any:
        """Return why points are worth a measurement; see :meth:`ModelStrategy.explain`.

        Args:
            table: With a column for each input; by default the proposals of the last :meth:`ask`.
        """
        if not hasattr(self.strategy, "explain"):
            raise ValueError(f"explain should be asked of a strategy with a model, got {type(self.strategy).__name__}.")
        if table is None:
            return self.strategy.explain()
        return self.strategy.explain(self.inputs.encode(_list_rows("table", table, self.inputs.names)))

    def save(self, path: str | Path) -> None:
        """Save everything in one file, from which :meth:`load` continues bit for bit.

        Kernels and other objects among the arguments are not in the file: pass them to :meth:`load` again.
        """
        options = {name: value for name, value in self._options.items() if name != "strategy"}
        plain = {name: value for name, value in options.items() if _is_plain(value)}
        state = {
            "description": self.inputs.settings() | {"tasks": self.tasks},
            "strategy": name_of(self._options["strategy"], "strategy"),
            "options": plain,
            "others": sorted(options.keys() - plain.keys()),
            "choices": self.strategy.space.points if self.strategy.space.name == "choices" else None,
            "state": self.strategy.state_dict(),
        }
        target = Path(path)
        partial = target.with_name(f"{target.name}.partial")
        torch.save(state, partial)
        partial.replace(target)  # all of it or nothing

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Self:
        """Return the experiment that was saved.

        Args:
            path: The file.
            options: Arguments that are not in the file, or that should change from now on, such as ``inputs`` with
                wider bounds. If any change, everything is learned again from the measurements.
        """
        try:
            saved = torch.load(path, weights_only=True)
            inputs, tasks = restore_inputs(saved["description"]), saved["description"]["tasks"]
            kind = {name_of(kind, "strategy"): kind for kind in list_strategies()}[saved["strategy"]]
            others, state = set(saved["others"]), saved["state"]
        except OSError:
            raise
        except Exception as error:  # whatever another file makes of it
            raise ValueError(f"path should be a file that save() wrote, got {path}. Pass another one.") from error
        missing = sorted(others - options.keys())
        if missing:
            raise ValueError(
                f"options should have {', '.join(missing)}, which is not in the file, got {sorted(options)}. Pass it."
            )
        arguments: dict[str, Any] = {"inputs": inputs, "tasks": tasks, "strategy": kind, **saved["options"]}
        if saved["choices"] is not None:
            arguments["choices"] = _load_pandas().DataFrame(inputs.decode(saved["choices"]))
        experiment = cls(**(arguments | options))
        experiment.strategy.load_state_dict(state, strict=not options.keys() - others)
        return experiment

    def __repr__(self) -> str:
        rows = [["input", "from"], *self.inputs.describe()]
        wanted = [["task", "wanted"], *[[name, words] for name, words in self.tasks.items()]]
        return f"{self.strategy!r}\n\n{format_text_table(rows)}\n\n{format_text_table(wanted)}"

    def _repr_html_(self) -> str:
        rows = [["input", "from"], *self.inputs.describe()]
        wanted = [["task", "wanted"], *[[name, words] for name, words in self.tasks.items()]]
        return f"{self.strategy._repr_html_()}{format_html_table(rows)}{format_html_table(wanted)}"

    def _frame(self, X: Tensor, Y: Tensor, sd: Tensor) -> pd.DataFrame:
        frame = _load_pandas().DataFrame(self.inputs.decode(X), columns=self.inputs.names)
        for i, name in enumerate(self.tasks):
            frame[name] = Y[:, i].tolist()
            if not sd[:, i].isnan().all():
                frame[name + SD] = sd[:, i].tolist()
        return frame

    def _read_values(self, rows: Sequence[Mapping[str, Any]]) -> Tensor:
        values = [[_read_value(name, row[name], f" in row {i}") for name in self.tasks] for i, row in enumerate(rows)]
        return torch.tensor(values, dtype=torch.double).reshape(len(rows), len(self.tasks))

    def _read_deviations(self, rows: Sequence[Mapping[str, Any]]) -> Tensor:
        """Return the standard deviations of the noise, NaN where they are not known."""
        values = [
            [_read_deviation(name, row.get(name + SD), f" in row {i}") for name in self.tasks]
            for i, row in enumerate(rows)
        ]
        return torch.tensor(values, dtype=torch.double).reshape(len(rows), len(self.tasks))

    def _read_number(self, value: Any) -> int | None:
        """Return the number of the proposal that a row is, if it says so."""
        if value is None or value != value:  # NaN
            return None
        if value not in self.strategy.pending:
            raise ValueError(
                f'"{ASKED}" should be one of the pending proposals {list(self.strategy.pending)}, got {value!r}. Leave '
                "it empty for a row that is none of them."
            )
        return int(value)


def _is_plain(value: object) -> bool:
    """Return whether a file can hold a value without any code."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | Tensor)


def _check_tasks(tasks: object, inputs: Inputs) -> dict[str, str]:
    if not isinstance(tasks, Mapping) or not tasks:
        raise ValueError(
            f"tasks should be a dictionary with at least one task, got {tasks!r}. Pass for instance "
            '{"yield": "maximize"}.'
        )
    both = [name for name in tasks if name in inputs.names or name.removesuffix(SD) in tasks.keys() - {name}]
    both += [name for name in inputs.names if name.removesuffix(SD) in tasks and name not in tasks]
    if both or ASKED in tasks or ASKED in inputs.names:
        raise ValueError(f"tasks should have names of their own, got {both or [ASKED]}. Rename them.")
    return dict(tasks)


def _read_value(name: str, value: Any, where: str) -> float:
    try:
        number = float("nan") if value is None or value is getattr(_load_pandas(), "NA", None) else float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} should be a number or empty, got {value!r}{where}. Correct it.") from None
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{name} should be finite or empty, got {value!r}{where}. Correct it.")
    return number


def _read_deviation(name: str, value: Any, where: str) -> float:
    number = _read_value(name + SD, value, where)
    if number <= 0:
        raise ValueError(f"{name}{SD} should be a positive number or empty, got {value!r}{where}. Correct it.")
    return number


def _list_rows(name: str, table: Any, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return a data frame as rows, with at least these columns."""
    if not hasattr(table, "columns") or not hasattr(table, "to_dict"):
        raise ValueError(
            f"{name} should be a pandas DataFrame, got {type(table).__name__}. Pass one row for each point."
        )
    missing = [column for column in columns if column not in table.columns]
    if missing or not table.columns.is_unique:
        raise ValueError(
            f"{name} should have a column for each of {', '.join(columns)}, got {', '.join(map(str, table.columns))}. "
            + (f"Add {', '.join(missing)}." if missing else "Rename those that are there twice.")
        )
    if not len(table):
        raise ValueError(f"{name} should have at least one row, got none. Leave it out.")
    return table.to_dict("records")


def _load_pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError('Tables need pandas. Run: pip install "mtbo-torch[table]"') from None
    return pandas
