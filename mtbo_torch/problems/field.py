"""Measurements at fixed locations: the paper's sensor problem, and heavy metals in soil.

Both follow the paper's protocol. One half of the readings gives f. The other half gives the kernel: a squared
exponential kernel on the locations, and :math:`B = R^T K^{-1} R / m` between the tasks.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from mtbo_torch.checks import require_data, require_same_kind
from mtbo_torch.kernels import ICMKernel, estimate_task_covar
from mtbo_torch.problems.paper import SENSOR_DAYS, SENSOR_TASKS, SPLIT_SEED

SOIL_TASKS = ("Cd", "Co", "Cr", "Cu", "Ni", "Pb", "Zn")
# Readings outside these ranges come from broken sensors: a mote with a failing battery reads 122 degrees.
PLAUSIBLE = {"temperature": (-20.0, 60.0), "humidity": (0.0, 100.0), "light": (0.0, 1e5)}
LENGTHSCALES = torch.logspace(-2.2, 0.3, 51, dtype=torch.double)
NUGGETS = torch.logspace(-4, 1, 16, dtype=torch.double)


@dataclass(frozen=True, eq=False)
class FieldProblem:
    r"""Several variables measured at N places, all maximized, with a kernel estimated from separate readings R.

    .. math:: \Gamma(x, x') = \exp(-\|x - x'\|^2 / (2 \ell^2)) B, \quad B = R^T K^{-1} R / m

    Attributes:
        tasks: The names of the n variables.
        choices: ``N x d``, the places, shifted and scaled into the unit box by one factor.
        values: ``N x n``, f, standardized by the mean and standard deviation of R.
        lengthscale: :math:`\ell`.
        task_covar: ``n x n``, B.
        noise_scale: :math:`\sigma`, the largest standard deviation of a task in the standardized R.
        report: A sentence about what was read and what was left out.

    Example:
        >>> import torch
        >>> from mtbo_torch import MTKB
        >>> from mtbo_torch.problems import FieldProblem
        >>> places = 100 * torch.rand(20, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
        >>> readings = torch.stack([places.sum(-1).sin(), places.prod(-1).cos()], dim=-1)
        >>> halves = (places[:10], readings[:10], places[10:], readings[10:])
        >>> problem = FieldProblem.from_halves(("lead", "zinc"), *halves, report="20 places")
        >>> MTKB(problem.kernel, choices=problem.choices, noise_scale=problem.noise_scale).ask().shape
        torch.Size([1, 2])
    """

    tasks: tuple[str, ...]
    choices: Tensor
    values: Tensor
    lengthscale: float
    task_covar: Tensor
    noise_scale: float
    report: str

    @classmethod
    def from_halves(
        cls,
        tasks: tuple[str, ...],
        places: Tensor,
        values: Tensor,
        kernel_places: Tensor,
        readings: Tensor,
        report: str,
    ) -> FieldProblem:
        """Build a problem with f from one half of the readings and a kernel estimated from the other.

        Args:
            tasks: The names of the n variables.
            places: ``N x d``, all different.
            values: ``N x n``, f, in any units.
            kernel_places: ``m x d``.
            readings: ``m x n``, in the same units; no task may be constant.
            report: A sentence about what was read.
        """
        n = len(tasks)
        for (x_name, X), (y_name, Y) in (
            (("places", places), ("values", values)),
            (("kernel_places", kernel_places), ("readings", readings)),
        ):
            require_data(X, Y, n, (x_name, y_name))
            if X.dim() != 2 or len(X) < 2:
                raise ValueError(
                    f"{x_name} should be `m x d` with m >= 2, got shape {tuple(X.shape)}. Pass more places."
                )
        require_same_kind(("places", places), ("kernel_places", kernel_places))
        if len(places.unique(dim=0)) < len(places):
            raise ValueError("places should all be different, got some twice. Average the readings of each place.")
        for name, column in zip(tasks, readings.T, strict=True):
            if column.max() - column.min() <= 1e-9 * column.abs().max():
                raise ValueError(f"{name} should vary, got {column[0]:g} everywhere. Leave it out of the problem.")
        corner = torch.cat([places, kernel_places]).amin(dim=0)
        extent = (torch.cat([places, kernel_places]) - corner).amax()
        mean, sd = readings.mean(dim=0), readings.std(dim=0)
        R, X = (readings - mean) / sd, (kernel_places - corner) / extent
        lengthscale, nugget = fit_squared_exponential(X, R)
        B = estimate_task_covar(R, _compute_gram(X, lengthscale, nugget))
        noise_scale = R.var(dim=0).max().sqrt().item()
        return cls(tasks, (places - corner) / extent, (values - mean) / sd, lengthscale, B, noise_scale, report)

    @property
    def kernel(self) -> ICMKernel:
        """The estimated multi-task kernel, fixed."""
        base_kernel = RBFKernel().to(self.choices)
        base_kernel.lengthscale = torch.tensor(self.lengthscale).to(self.choices)
        return ICMKernel(base_kernel.requires_grad_(False), self.task_covar)


def fit_squared_exponential(X: Tensor, R: Tensor) -> tuple[float, float]:
    r"""Fit lengthscale and nugget by the likelihood of :math:`R \sim N(0, K \otimes B)`, maximized over B.

    .. math:: -\frac{n}{2} \log\det K - \frac{m}{2} \log\det(R^T K^{-1} R / m), \quad K = k(X, X) + nugget \cdot I

    Returns the best of a grid.

    Args:
        X: ``m x d``, in the unit box.
        R: ``m x n``, standardized.
    """
    lengthscales = LENGTHSCALES[:, None, None, None]
    K = _compute_gram(X, lengthscales, NUGGETS[:, None, None])
    chol = torch.linalg.cholesky(K)
    whitened = torch.linalg.solve_triangular(chol, R.expand(*K.shape[:-2], *R.shape), upper=False)
    m, n = R.shape
    logdet = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    likelihood = -n / 2 * logdet - m / 2 * torch.logdet(whitened.mT @ whitened / m)
    best = divmod(int(likelihood.flatten().argmax()), len(NUGGETS))
    return LENGTHSCALES[best[0]].item(), NUGGETS[best[1]].item()


def load_sensors(path: Path | str) -> FieldProblem:
    r"""Load the Intel lab's sensor motes, from a tidy CSV file or from a folder with `data.txt` and `mote_locs.txt`.

    The CSV file, which may be compressed with gzip, has the columns ``mote, x, y, temperature, humidity, light`` and,
    optionally, ``valid``. Malformed lines, implausible readings and broken motes are left out and counted. A mote's
    readings are split at random with a fixed seed: the mean of one half gives f, the mean of the other the kernel.

    Args:
        path: The file or the folder.

    Returns:
        A :class:`FieldProblem` with 3 tasks, its places in the order of the motes' numbers.

    Raises:
        ValueError: If the file cannot be read or has readings of too few motes.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from mtbo_torch.problems import load_sensors
        >>> head = "mote,x,y,temperature,humidity,light"
        >>> rows = [f"{i},{i},{i * i},{20 + i % 3},{40 + i % 5},{100 + i % 7 + j}" for i in range(9) for j in range(4)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "lab.csv")
        ...     _ = path.write_text("\n".join([head, *rows]))
        ...     problem = load_sensors(path)
        >>> problem.choices.shape, problem.values.shape
        (torch.Size([9, 2]), torch.Size([9, 3]))
    """
    path = _require_path(path)
    counts: dict[str, int] = defaultdict(int)
    readings: Iterable[tuple[str, list[float]]]
    if path.is_dir():
        places = _read_mote_places(path / "mote_locs.txt", counts)
        readings = _read_mote_readings(path / "data.txt", counts)
    else:
        places, readings = _read_tidy_file(path, counts)
    good: dict[str, list[list[float]]] = defaultdict(list)
    for mote, values in readings:
        if mote not in places:
            counts["from motes without a place"] += 1
        elif all(low <= v <= high for v, (low, high) in zip(values, PLAUSIBLE.values(), strict=True)):
            good[mote].append(values)
        else:
            counts["implausible"] += 1
    if not good:
        raise ValueError(f"{path} should hold readings of motes, got none that can be used ({_summarize(counts)}).")
    usual = sorted(len(values) for values in good.values())[len(good) // 2]
    broken = sorted((mote for mote in places if len(good[mote]) < max(2, usual / 2)), key=_make_sort_key)
    used = sorted(places.keys() - set(broken), key=_make_sort_key)
    if len(used) <= len(SENSOR_TASKS):
        raise ValueError(
            f"{path} should hold more than {len(SENSOR_TASKS)} working motes, got {len(used)} ({_summarize(counts)})."
        )
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    halves = []
    for mote in used:
        order = torch.randperm(len(good[mote]), generator=generator)
        shuffled = torch.tensor(good[mote], dtype=torch.double)[order]
        halves.append(torch.stack([half.mean(dim=0) for half in shuffled.tensor_split(2)]))
    first, second = torch.stack(halves, dim=1)
    X = torch.tensor([places[mote] for mote in used], dtype=torch.double)
    left_out = f"broken motes left out: {', '.join(broken)}" if broken else "no mote is broken"
    count = sum(len(good[mote]) for mote in used)
    report = f"{len(used)} motes with {count:,} readings ({_summarize(counts)}; {left_out})"
    return _build_problem(path, SENSOR_TASKS, X, first, X, second, report)


def load_soil(path: Path | str) -> FieldProblem:
    r"""Load the Jura data, heavy metals in soil.

    Rows whose ``split`` is ``pred`` give the kernel, rows whose ``split`` is ``val`` give f.

    Args:
        path: A CSV file, which may be compressed with gzip, with the columns
            ``Xloc, Yloc, split, Cd, Co, Cr, Cu, Ni, Pb, Zn``.

    Returns:
        A :class:`FieldProblem` with 7 tasks.

    Raises:
        ValueError: If the file cannot be read or has too few rows of a split.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from mtbo_torch.problems import load_soil
        >>> head = "Xloc,Yloc,split,Cd,Co,Cr,Cu,Ni,Pb,Zn"
        >>> metals = [",".join(str(i * i % prime) for prime in (5, 7, 11, 13, 17, 19, 23)) for i in range(24)]
        >>> rows = [f"{i},{i * i % 7},{'pred' if i % 2 else 'val'},{metals[i]}" for i in range(24)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "jura.csv")
        ...     _ = path.write_text("\n".join([head, *rows]))
        ...     problem = load_soil(path)
        >>> problem.choices.shape, problem.values.shape
        (torch.Size([12, 2]), torch.Size([12, 7]))
    """
    path = _require_path(path)
    counts: dict[str, int] = defaultdict(int)
    halves: dict[str, list[list[float]]] = {"pred": [], "val": []}
    for row in _read_table(path, ("Xloc", "Yloc", "split", *SOIL_TASKS), counts):
        values = _parse_numbers(row[key] for key in ("Xloc", "Yloc", *SOIL_TASKS))
        if values is None or row["split"] not in halves:
            counts["malformed"] += 1
        else:
            halves[row["split"]].append(values)
    pred, val = (torch.tensor(rows, dtype=torch.double) for rows in halves.values())
    if min(len(pred), len(val)) <= len(SOIL_TASKS):
        raise ValueError(
            f"{path} should hold more than {len(SOIL_TASKS)} rows of each split, got {len(pred)} pred and {len(val)} "
            f"val ({_summarize(counts)})."
        )
    report = f"{len(val)} places for f and {len(pred)} for the kernel ({_summarize(counts)})"
    return _build_problem(path, SOIL_TASKS, val[:, :2], val[:, 2:], pred[:, :2], pred[:, 2:], report)


def _build_problem(path: Path, *halves: Any) -> FieldProblem:
    try:
        return FieldProblem.from_halves(*halves)
    except ValueError as error:
        raise ValueError(f"{path} should make a problem, got: {error}") from error


def _compute_gram(X: Tensor, lengthscale: Tensor | float, nugget: Tensor | float) -> Tensor:
    distance = torch.cdist(X, X).square()
    return torch.exp(-distance / (2 * lengthscale**2)) + nugget * torch.eye(len(X), dtype=X.dtype)


def _read_tidy_file(path: Path, counts: dict[str, int]) -> tuple[dict[str, list[float]], list[tuple[str, list[float]]]]:
    places: dict[str, list[float]] = {}
    readings = []
    for row in _read_table(path, ("mote", "x", "y", *SENSOR_TASKS), counts):
        cells = [row[key] for key in SENSOR_TASKS]
        place = _parse_numbers([row["x"], row["y"]])
        if place is None or not row["mote"]:
            counts["malformed"] += 1
            continue
        if places.setdefault(row["mote"], place) != place:
            counts["of a mote at a second place"] += 1
            continue
        values = _parse_numbers(cells)
        if not all(cells) or row.get("valid", "").lower() in ("false", "0", "no"):
            counts["empty or invalid"] += 1
        elif values is None:
            counts["malformed"] += 1
        else:
            readings.append((row["mote"], values))
    return places, readings


def _read_mote_places(path: Path, counts: dict[str, int]) -> dict[str, list[float]]:
    places = {}
    for fields in _read_lines(path):
        place = _parse_numbers(fields[1:]) if len(fields) == 3 else None
        if place is None:
            counts["malformed"] += 1
        else:
            places[fields[0]] = place
    return places


def _read_mote_readings(path: Path, counts: dict[str, int]) -> Iterator[tuple[str, list[float]]]:
    """Read lines of date, time, epoch, mote, temperature, humidity, light, voltage, on the paper's five days."""
    for fields in _read_lines(path):
        counts["lines"] += 1
        values = _parse_numbers(fields[4:7]) if len(fields) == 8 else None
        if values is None:
            counts["malformed"] += 1
        elif fields[0] not in SENSOR_DAYS:
            counts["of other days"] += 1
        else:
            yield fields[3], values


def _read_table(path: Path, columns: tuple[str, ...], counts: dict[str, int]) -> Iterator[dict[str, str]]:
    rows = csv.DictReader(io.StringIO(_read_text(path), newline=None))
    missing = [name for name in columns if name not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(f"{path} should have the columns {', '.join(columns)}, got none called {', '.join(missing)}.")
    try:
        for row in rows:
            counts["lines"] += 1
            if None in row or None in row.values():
                counts["malformed"] += 1
            else:
                yield row
    except csv.Error as error:
        raise ValueError(f"{path} should be a CSV file, got a malformed line ({error}).") from error


def _read_lines(path: Path) -> Iterator[list[str]]:
    return (line.split() for line in _read_text(path).splitlines() if line.strip())


def _require_path(path: object) -> Path:
    if not isinstance(path, str | Path):
        raise ValueError(f"path should be the path of a file, got {type(path).__name__}. Pass a string or a Path.")
    return Path(path)


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{path} should be a readable text file, got: {reason}. Check the path.") from error


def _parse_numbers(cells: Iterable[str]) -> list[float] | None:
    try:
        values = [float(cell) for cell in cells]
    except ValueError:
        return None
    return values if all(abs(value) < float("inf") for value in values) else None


def _make_sort_key(mote: str) -> tuple[float, str]:
    return (float(mote) if mote.isdigit() else float("inf"), mote)


def _summarize(counts: dict[str, int]) -> str:
    rest = [f"{count:,} {what}" for what, count in counts.items() if what != "lines"]
    return f"{counts['lines']:,} lines: {', '.join(rest) or 'all in order'}"
