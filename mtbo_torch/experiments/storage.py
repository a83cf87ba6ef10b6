"""Results on disk: a tidy table that grows, and a state from which a killed run continues."""

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
    """Put a file in place at once: whoever looks sees the old one or the new one."""
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
    with suppress(OSError):  # whatever keeps a file from being written may keep it from being removed
        draft.unlink(missing_ok=True)


@contextmanager
def sole_use(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; the system ends this with the process, however that ends.

    Raises:
        ValueError: If another process is at work there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{folder} should be free, got another run at work in it. Wait for it to end.") from error
        yield


class Store:
    """The folder of one experiment.

    ``results.csv`` is the table, one line for each algorithm, trial and round. ``state.pt`` says how much of it counts
    and how to go on; lines beyond that are what a killed run left behind. Rows are written first and the state last, so
    a table with fewer lines than the state counts has been cut by somebody else.

    Args:
        folder: Where the experiment's files are.
        settings: Everything that decides its numbers.
        sizes: The number of columns of weights, x and y.

    Raises:
        ValueError: If the folder holds results of other settings, or files that are damaged.
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

    def done(self, algorithm: str) -> set[int]:
        """The trials of an algorithm that are complete."""
        wanted = self.settings["rounds"]
        return {trial for trial, count in self.rounds.get(algorithm, {}).items() if count == wanted}

    def begin(self) -> None:
        """Make the folder ready for more rows; forget what a killed run left behind."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._path("settings.json").exists():
            write_atomically(self._path("settings.json"), json.dumps(self.settings, indent=2).encode())
        if not self._path("results.csv").exists():
            self._write_table([])
        if not self._path("state.pt").exists():
            self._commit()
        elif not self._is_clean:
            self._write_table(self._counted(self._rows()))
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
        """Add the rounds of some trials, and how to go on from there if the run is not at its end."""
        count = columns["regret"].shape[1]
        lines = self._lines(algorithm, trials, first_round, columns)
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
        """Put the table in order: the same one, in whatever order its parts came."""
        order = {name: i for i, name in enumerate(ALGORITHMS)}
        rows = self._rows()
        in_order = sorted(self._counted(rows), key=lambda row: (order[row[0]], int(row[1]), int(row[2])))
        if in_order != rows:
            self._write_table(in_order)

    def curves(self, algorithms: Sequence[str], trials: int) -> dict[str, dict[str, Tensor]]:
        """For each algorithm and column of regrets ``trials x rounds`` numbers, NaN where there are none."""
        places: dict[str, list[list[int]]] = {name: [] for name in algorithms}
        numbers: dict[str, list[list[float]]] = {name: [] for name in algorithms}
        for row in self._counted(self._rows()):
            if row[0] in places and int(row[1]) < trials:
                places[row[0]].append([int(row[1]), int(row[2]) - 1])
                numbers[row[0]].append([float(cell or "nan") for cell in row[-len(REGRETS) :]])
        curves = {}
        for name in algorithms:
            table = torch.full((trials, self.settings["rounds"], len(REGRETS)), torch.nan, dtype=torch.double)
            table[tuple(torch.tensor(places[name]).T)] = torch.tensor(numbers[name], dtype=torch.double)
            curves[name] = dict(zip(REGRETS, table.unbind(dim=-1), strict=True))
        return curves

    def _lines(
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

    def _rows(self) -> list[list[str]]:
        """All lines of the table but the header; a last line without its end is not one."""
        text = self._path("results.csv").read_text()
        lines = text.split("\n")
        self._is_clean &= lines[-1] == ""
        return [line.split(",") for line in lines[1:-1]]

    def _counted(self, rows: list[list[str]]) -> list[list[str]]:
        return [row for row in rows if int(row[2]) <= self.rounds.get(row[0], {}).get(int(row[1]), 0)]

    def _read(self) -> None:
        table, state_file = self._path("results.csv"), self._path("state.pt")
        if not self._path("settings.json").exists() or (state_file.exists() and not table.exists()):
            raise ValueError(f"{self.folder} should hold settings.json and results.csv, got one of them. {ELSEWHERE}")
        if not state_file.exists() and table.exists() and table.read_bytes().count(b"\n") > 1:
            raise ValueError(f"{self.folder} should hold state.pt beside results.csv, got none. {ELSEWHERE}")
        try:
            theirs = json.loads(self._path("settings.json").read_text())
        except ValueError as error:
            raise ValueError(f"{self.folder}/settings.json should be JSON, got: {error}. {ELSEWHERE}") from error
        different = _differences(theirs, self.settings)
        if different:
            raise ValueError(
                f"{self.folder} should hold results of the same settings, got others: {'; '.join(different)}. "
                f"{ELSEWHERE}"
            )
        if state_file.exists():
            try:
                state = torch.load(state_file, weights_only=True)
                if state.pop("checksum") != checksum(state):
                    raise ValueError("contents that were changed")
                self.rounds, self.seconds, self.active = state["rounds"], state["seconds"], state["active"]
            except Exception as error:  # whatever a foreign file makes of torch.load
                reason = str(error).split("\n", 1)[0]
                raise ValueError(f"{state_file} should be readable, got: {reason}. {ELSEWHERE}") from error
        if table.exists():
            self._check_table(table)

    def _check_table(self, table: Path) -> None:
        try:
            header = table.read_text().split("\n", 1)[0]
            rows = self._rows()
            counted = self._counted(rows)
            widths = {len(row) for row in counted}
            for row in counted:
                for cell in row[len(KEYS) :]:
                    float(cell or "nan")
        except (IndexError, ValueError) as error:
            raise ValueError(f"{table} should be a table as it was written, got a damaged line. {ELSEWHERE}") from error
        if header != ",".join(self.header) or not widths <= {len(self.header)}:
            raise ValueError(f"{table} should have the columns of this version, got others. {ELSEWHERE}")
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


def _differences(theirs: Any, ours: Any, name: str = "") -> list[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted(theirs.keys() | ours.keys())
        return [part for key in keys for part in _differences(theirs.get(key), ours.get(key), f"{name} {key}".strip())]
    return [] if theirs == ours else [f"{name} is {theirs} there and {ours} here"]
