"""Results on disk: a growing tidy table, and a state from which a killed run continues."""

from __future__ import annotations

import fcntl
import io
import json
import os
import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mtbo_torch.checks import checksum
from mtbo_torch.experiments.runner import Benchmark

KEYS = ("algorithm", "trial", "round")
STATE = {"settings", "rounds", "rows", "seconds", "active"}


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


def seal(value: dict[str, Any]) -> dict[str, Any]:
    """Return a dict with its checksum, to be written."""
    return value | {"checksum": checksum(value)}


def read_sealed(path: Path, load: Callable[[Path], Any], keys: set[str], remedy: str) -> dict[str, Any]:
    """Return the dict that was sealed and written.

    Raises:
        ValueError: If the file is not as it was written.
    """
    try:
        value = load(path)
        if value.keys() != keys | {"checksum"}:
            found = "contents of another version"
        elif value.pop("checksum") != checksum(value):
            found = "contents that were changed"
        else:
            return dict(value)
    except OSError:
        raise
    except Exception as error:  # torch.load may raise anything on a foreign file, and advise anything
        raise ValueError(f"{path} should be as it was written, got damaged or foreign contents. {remedy}") from error
    raise ValueError(f"{path} should be as it was written, got {found}. {remedy}")


def format_settings(settings: dict[str, Any]) -> bytes:
    """Return the contents of ``settings.json``."""
    return json.dumps(settings, indent=2).encode()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes; the system releases the lock when the process ends.

    Raises:
        ValueError: If another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{folder} should be free, got another run that uses it. Wait for it to end.") from error
        yield


class Store:
    """The folder of one benchmark.

    ``results.csv`` is the table, with one line for each algorithm, trial and round. ``state.pt`` stores the settings,
    how many lines count, their checksum and how to continue; ``settings.json`` shows the settings to people. Lines are
    written before the state, so a killed run may leave more lines at the end, which do not count. The checksum does not
    depend on the order of the lines, so a sorted table needs no new state.

    Args:
        folder: The folder.
        benchmark: What runs there.

    Raises:
        ValueError: If the folder holds results of other settings or damaged files.
    """

    def __init__(self, folder: Path, benchmark: Benchmark) -> None:
        self._remedy = f"Choose another folder, or delete {folder}."
        self.folder, self.benchmark = folder, benchmark
        self.settings = json.loads(json.dumps(benchmark.settings))
        wide = [f"{name}_{i + 1}" for name, size in benchmark.sizes.items() for i in range(size)]
        self.header = ",".join([*KEYS, *wide, *benchmark.measures]).encode()
        self.rounds: dict[str, dict[int, int]] = {}
        self.rows = 0
        self.seconds: dict[str, float] = {}
        self.active: dict[str, Any] | None = None
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
        if not self._path("state.pt").exists():
            self._commit()
        if not self._path("settings.json").exists():
            write_atomically(self._path("settings.json"), format_settings(self.settings))
        self._write_table(self._read_lines())

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
        count = columns["x"].shape[1]
        lines = self._format_lines(algorithm, trials, first_round, columns)
        with self._path("results.csv").open("ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        self.rows += _add_up(lines)
        self.rounds.setdefault(algorithm, {}).update(dict.fromkeys(trials, first_round + count - 1))
        self.seconds[algorithm] = self.seconds.get(algorithm, 0.0) + seconds
        self.active = active
        self._commit()

    def finish(self) -> None:
        """Sort the table, so that it does not depend on the order of its parts; other algorithms last."""
        known = self.benchmark.algorithms
        order = {name: i for i, name in enumerate([*known, *sorted(self.rounds.keys() - set(known))])}
        rows = [line.decode().split(",") for line in self._read_lines()]
        rows.sort(key=lambda row: (order[row[0]], int(row[1]), int(row[2])))
        self._write_table([",".join(row).encode() for row in rows])

    def load_curves(self, algorithms: Sequence[str], trials: Sequence[int]) -> dict[str, dict[str, Tensor]]:
        """Return ``trials x rounds`` numbers for each algorithm and measure, NaN if missing."""
        order = {str(trial): i for i, trial in enumerate(trials)}
        places: dict[str, list[list[int]]] = {name: [] for name in algorithms}
        numbers: dict[str, list[list[float]]] = {name: [] for name in algorithms}
        for line in self._read_lines():
            row = line.decode().split(",")
            if row[0] in places and row[1] in order:
                places[row[0]].append([order[row[1]], int(row[2]) - 1])
                numbers[row[0]].append([float(cell or "nan") for cell in row[-len(self.benchmark.measures) :]])
        curves = {}
        for name in algorithms:
            shape = (len(trials), self.settings["rounds"], len(self.benchmark.measures))
            table = torch.full(shape, torch.nan, dtype=torch.double)
            table[tuple(torch.tensor(places[name]).T)] = torch.tensor(numbers[name], dtype=torch.double)
            curves[name] = dict(zip(self.benchmark.measures, table.unbind(dim=-1), strict=True))
        return curves

    def _format_lines(
        self, algorithm: str, trials: Sequence[int], first_round: int, columns: dict[str, Tensor]
    ) -> list[bytes]:
        wide = torch.cat([columns[name] for name in self.benchmark.sizes], dim=-1).tolist()
        absent = torch.full_like(columns["x"][..., 0], torch.nan)
        measured = torch.stack([columns.get(name, absent) for name in self.benchmark.measures], dim=-1).tolist()
        lines = []
        for i, trial in enumerate(trials):
            for j, (cells, scores) in enumerate(zip(wide[i], measured[i], strict=True)):
                numbers = ["" if value != value else repr(value) for value in (*cells, *scores)]
                lines.append(",".join([algorithm, str(trial), str(first_round + j), *numbers]).encode())
        return lines

    def _commit(self) -> None:
        buffer = io.BytesIO()
        torch.save(seal({name: getattr(self, name) for name in sorted(STATE)}), buffer)
        write_atomically(self._path("state.pt"), buffer.getvalue())

    def _write_table(self, lines: Sequence[bytes]) -> None:
        path, data = self._path("results.csv"), b"\n".join([self.header, *lines, b""])
        if not path.exists() or path.read_bytes() != data:
            write_atomically(path, data)

    def _read_lines(self) -> list[bytes]:
        """Return the lines of the table that count, after checking them."""
        path, count = self._path("results.csv"), sum(sum(trials.values()) for trials in self.rounds.values())
        data = path.read_bytes() if path.exists() else self.header + b"\n"
        header, *lines = data.split(b"\n")
        if header != self.header:
            raise ValueError(f"{path} should have the columns of this version, got different ones. {self._remedy}")
        counted = lines[:-1][:count]  # the last line is empty or was cut short
        if _add_up(counted) != self.rows:
            raise ValueError(
                f"{path} should hold the {count:,} rows that state.pt counts, got rows that were cut or changed. "
                f"{self._remedy}"
            )
        return counted

    def _read(self) -> None:
        state_file, settings_file = self._path("state.pt"), self._path("settings.json")
        if state_file.exists():
            state = read_sealed(state_file, lambda path: torch.load(path, weights_only=True), STATE, self._remedy)
            different = _find_differences(state["settings"], self.settings)
            if different:
                raise ValueError(
                    f"{self.folder} should hold results of the same settings, got different ones: "
                    f"{'; '.join(different)}. {self._remedy}"
                )
            vars(self).update(state)
        elif self._path("results.csv").exists():
            raise ValueError(f"{self.folder} should hold state.pt next to results.csv, got none. {self._remedy}")
        if settings_file.exists() and settings_file.read_bytes() != format_settings(self.settings):
            raise ValueError(f"{settings_file} should show the settings of this run, got others. Delete this file.")
        self._read_lines()


def _add_up(lines: Sequence[bytes]) -> int:
    """Return a checksum of lines that adds up: that of more lines is the sum."""
    return sum(int.from_bytes(sha256(line).digest(), "big") for line in lines)


def _find_differences(theirs: Any, ours: Any, name: str = "") -> list[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted(theirs.keys() | ours.keys())
        found = [_find_differences(theirs.get(key), ours.get(key), f"{name} {key}".strip()) for key in keys]
        return [difference for part in found for difference in part]
    return [] if theirs == ours else [f"{name} is {reprlib.repr(theirs)} there and {reprlib.repr(ours)} here"]
