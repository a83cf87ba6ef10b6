"""Results on disk: a growing tidy table, and a state from which a killed run continues."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mtbo_torch.checks import checksum
from mtbo_torch.experiments.algorithms import ALGORITHMS

REGRETS = (
    "regret",
    "average_regret",
    "simple_regret",
    "bayes_regret",
    "front_share",
    "hypervolume_share",
    "certificate",
)
KEYS = ("algorithm", "trial", "round")
ELSEWHERE = "Choose another folder with --out, or delete this one."


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically: readers see either the old file or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        _remove(draft)
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    except BaseException:
        _remove(draft)
        raise


def _remove(draft: Path) -> None:
    with suppress(OSError):  # if writing failed, removing may fail too
        draft.unlink(missing_ok=True)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes; the system releases the lock when the process ends.

    Raises:
        ValueError: If another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{folder} should be free, got another run that uses it. Wait for it to end.") from error
        yield


class Store:
    """The folder of one experiment.

    ``results.csv`` is the table, with one line for each algorithm, trial and round. ``state.pt`` stores how many lines
    count and how to continue; a killed run may leave more lines. Rows are written before the state, so a table with
    fewer lines than the state counts was changed from outside.

    Args:
        folder: The folder of the experiment.
        settings: Everything that determines its numbers.
        sizes: The numbers of columns of weights, x and y.

    Raises:
        ValueError: If the folder holds results of other settings or damaged files.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], sizes: tuple[int, int, int]) -> None:
        self.folder, self.settings = folder, json.loads(json.dumps(settings))
        wide = [f"{name}_{i + 1}" for name, size in zip(("weights", "x", "y"), sizes, strict=True) for i in range(size)]
        self.header = [*KEYS, *wide, *REGRETS]
        self.rounds: dict[str, dict[int, int]] = {}
        self.seconds: dict[str, float] = {}
        self.active: dict[str, Any] | None = None
        self._is_clean = True
        if self._path("settings.json").exists() or self._path("results.csv").exists():
            self._read()

    def _path(self, name: str) -> Path:
        return self.folder / name

    def find_complete(self, algorithm: str) -> set[int]:
        """Return the complete trials of an algorithm."""
        wanted = self.settings["rounds"]
        return {trial for trial, count in self.rounds.get(algorithm, {}).items() if count == wanted}

    def begin(self) -> None:
        """Prepare the folder for more rows; drop the surplus lines of a killed run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._path("settings.json").exists():
            write_atomically(self._path("settings.json"), json.dumps(self.settings, indent=2).encode())
        if not self._path("results.csv").exists():
            self._write_table([])
        if not self._path("state.pt").exists():
            self._commit()
        elif not self._is_clean:
            self._write_table(self._select_counted(self._read_rows()))
        self._is_clean = True

    def append(
        self,
        algorithm: str,
        trials: Sequence[int],
        first_round: int,
        columns: dict[str, Tensor],
        seconds: float,
        active: dict[str, Any] | None,
    ) -> None:
        """Add rounds of some trials and, unless the run is complete, the state from which it continues."""
        count = columns["regret"].shape[1]
        lines = self._format_lines(algorithm, trials, first_round, columns)
        self._is_clean = False
        with self._path("results.csv").open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)
            file.flush()
            os.fsync(file.fileno())
        self.rounds.setdefault(algorithm, {}).update(dict.fromkeys(trials, first_round + count - 1))
        self.seconds[algorithm] = self.seconds.get(algorithm, 0.0) + seconds
        self.active = active
        self._commit()
        self._is_clean = True

    def finish(self) -> None:
        """Sort the table, so that it does not depend on the order of its parts."""
        order = {name: i for i, name in enumerate(ALGORITHMS)}
        rows = self._read_rows()
        in_order = sorted(self._select_counted(rows), key=lambda row: (order[row[0]], int(row[1]), int(row[2])))
        if in_order != rows:
            self._write_table(in_order)

    def load_curves(self, algorithms: Sequence[str], trials: int) -> dict[str, dict[str, Tensor]]:
        """Return ``trials x rounds`` numbers for each algorithm and regret, NaN if missing."""
        places: dict[str, list[list[int]]] = {name: [] for name in algorithms}
        numbers: dict[str, list[list[float]]] = {name: [] for name in algorithms}
        for row in self._select_counted(self._read_rows()):
            if row[0] in places and int(row[1]) < trials:
                places[row[0]].append([int(row[1]), int(row[2]) - 1])
                numbers[row[0]].append([float(cell or "nan") for cell in row[-len(REGRETS) :]])
        curves = {}
        for name in algorithms:
            table = torch.full((trials, self.settings["rounds"], len(REGRETS)), torch.nan, dtype=torch.double)
            table[tuple(torch.tensor(places[name]).T)] = torch.tensor(numbers[name], dtype=torch.double)
            curves[name] = dict(zip(REGRETS, table.unbind(dim=-1), strict=True))
        return curves

    def _format_lines(
        self, algorithm: str, trials: Sequence[int], first_round: int, columns: dict[str, Tensor]
    ) -> Iterable[list[str]]:
        wide = torch.cat([columns[name] for name in ("weights", "x", "y")], dim=-1).tolist()
        absent = torch.full_like(columns["regret"], torch.nan)
        regrets = torch.stack([columns.get(name, absent) for name in REGRETS], dim=-1).tolist()
        for i, trial in enumerate(trials):
            for j, (cells, scores) in enumerate(zip(wide[i], regrets[i], strict=True)):
                numbers = ["" if value != value else repr(value) for value in (*cells, *scores)]
                yield [algorithm, str(trial), str(first_round + j), *numbers]

    def _commit(self) -> None:
        state: dict[str, Any] = {"rounds": self.rounds, "seconds": self.seconds, "active": self.active}
        state["checksum"] = checksum(state)
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_atomically(self._path("state.pt"), buffer.getvalue())

    def _write_table(self, rows: list[list[str]]) -> None:
        text = "\n".join(",".join(row) for row in [self.header, *rows]) + "\n"
        write_atomically(self._path("results.csv"), text.encode())

    def _read_rows(self) -> list[list[str]]:
        """Return all complete lines of the table but the header."""
        text = self._path("results.csv").read_text()
        lines = text.split("\n")
        self._is_clean &= lines[-1] == ""
        return [line.split(",") for line in lines[1:-1]]

    def _select_counted(self, rows: list[list[str]]) -> list[list[str]]:
        return [row for row in rows if int(row[2]) <= self.rounds.get(row[0], {}).get(int(row[1]), 0)]

    def _read(self) -> None:
        table, state_file = self._path("results.csv"), self._path("state.pt")
        if not self._path("settings.json").exists() or (state_file.exists() and not table.exists()):
            raise ValueError(f"{self.folder} should hold settings.json and results.csv, got one of them. {ELSEWHERE}")
        if not state_file.exists() and table.exists() and table.read_bytes().count(b"\n") > 1:
            raise ValueError(f"{self.folder} should hold state.pt next to results.csv, got none. {ELSEWHERE}")
        try:
            theirs = json.loads(self._path("settings.json").read_text())
        except ValueError as error:
            raise ValueError(f"{self.folder}/settings.json should be JSON, got: {error}. {ELSEWHERE}") from error
        different = _find_differences(theirs, self.settings)
        if different:
            raise ValueError(
                f"{self.folder} should hold results of the same settings, got different ones: {'; '.join(different)}. "
                f"{ELSEWHERE}"
            )
        if state_file.exists():
            try:
                state = torch.load(state_file, weights_only=True)
                if state.pop("checksum") != checksum(state):
                    raise ValueError("contents that were changed")
                self.rounds, self.seconds, self.active = state["rounds"], state["seconds"], state["active"]
            except Exception as error:  # torch.load may raise anything on a foreign file
                reason = str(error).split("\n", 1)[0]
                raise ValueError(f"{state_file} should be readable, got: {reason}. {ELSEWHERE}") from error
        if table.exists():
            self._check_table(table)

    def _check_table(self, table: Path) -> None:
        try:
            header = table.read_text().split("\n", 1)[0]
            rows = self._read_rows()
            counted = self._select_counted(rows)
            widths = {len(row) for row in counted}
            for row in counted:
                for cell in row[len(KEYS) :]:
                    float(cell or "nan")
        except (IndexError, ValueError) as error:
            raise ValueError(f"{table} should be an intact table, got a damaged line. {ELSEWHERE}") from error
        if header != ",".join(self.header) or not widths <= {len(self.header)}:
            raise ValueError(f"{table} should have the columns of this version, got different ones. {ELSEWHERE}")
        seen = Counter((row[0], int(row[1]), int(row[2])) for row in counted)
        expected = {
            (name, trial, number)
            for name, trials in self.rounds.items()
            for trial, count in trials.items()
            for number in range(1, count + 1)
        }
        if seen.keys() != expected or len(counted) != len(expected):
            raise ValueError(
                f"{table} should have {len(expected):,} different rows, got {len(seen):,} in {len(counted):,}: "
                f"it was cut or changed. {ELSEWHERE}"
            )
        self._is_clean &= len(counted) == len(rows)


def _find_differences(theirs: Any, ours: Any, name: str = "") -> list[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted(theirs.keys() | ours.keys())
        found = [_find_differences(theirs.get(key), ours.get(key), f"{name} {key}".strip()) for key in keys]
        return [difference for part in found for difference in part]
    return [] if theirs == ours else [f"{name} is {theirs} there and {ours} here"]
