"""Sensors and soil: what is read, what is left out, and what the kernel is."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from suites import close

from mtbo_torch.kernels import estimate_task_covar
from mtbo_torch.problems import load_sensors, load_soil
from mtbo_torch.problems.field import LENGTHSCALES, NUGGETS, SOIL_TASKS, fit_squared_exponential

SHARED = Path(__file__).parents[3] / "shared" / "data"
HEADER = "mote,x,y,step,time,temperature,humidity,light,voltage,valid"


def readings(mote: int, step: int) -> list[float]:
    wave = np.sin(1.7 * mote + np.arange(3)) + 0.01 * np.cos(5 * step + mote)
    return list(np.array([20, 40, 300]) + np.array([2, 5, 80]) * wave)


def tidy(path: Path, motes: int = 9, steps: int = 8) -> Path:
    lines = [HEADER]
    for mote in range(1, motes + 1):
        for step in range(steps):
            cells = ",".join(f"{v:.6f}" for v in readings(mote, step))
            lines.append(f"{mote},{mote * 3.0},{mote**2 % 7},{step},2004-03-01 00:00,{cells},2.6,True")
    path.write_text("\n".join(lines) + "\n")
    return path


def original(folder: Path, motes: int = 9, steps: int = 8) -> Path:
    places = [f"{mote} {mote * 3.0} {mote**2 % 7}" for mote in range(1, motes + 1)]
    (folder / "mote_locs.txt").write_text("\n".join(places))
    lines = [
        f"2004-02-28 00:{step:02d}:16.5 {step} {mote} {' '.join(f'{v:.6f}' for v in readings(mote, step))} 2.69"
        for mote in range(1, motes + 1)
        for step in range(steps)
    ]
    (folder / "data.txt").write_text("\n".join(lines))
    return folder


def test_both_layouts_say_the_same(tmp_path: Path) -> None:
    first, second = load_sensors(tidy(tmp_path / "a.csv")), load_sensors(original(tmp_path))
    for name in ("choices", "values", "task_covar"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert first.choices.shape == (9, 2)
    assert first.values.shape == (9, 3)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    assert torch.equal(load_sensors(tmp_path / "a.csv.gz").values, first.values)


def test_the_halves_are_means_of_different_readings(tmp_path: Path) -> None:
    problem = load_sensors(tidy(tmp_path / "a.csv"))
    everything = np.array([np.mean([readings(mote, step) for step in range(8)], axis=0) for mote in range(1, 10)])
    correlation = [np.corrcoef(problem.values[:, j].numpy(), everything[:, j])[0, 1] for j in range(3)]
    assert min(correlation) > 0.999
    assert problem.noise_scale == pytest.approx(1.0)
    assert problem.choices.min() == 0
    assert problem.choices.max() == 1
    assert problem.kernel.num_tasks == 3


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    path = tidy(tmp_path / "a.csv")
    good = load_sensors(path)
    rows = path.read_text().splitlines()
    extra = [
        "3,9.0,2,9,2004-03-01 00:00,20",  # cut
        "3,9.0,2,9,2004-03-01 00:00,twenty,40,300,2.6,True",
        "3,nowhere,2,9,2004-03-01 00:00,20,40,300,2.6,True",
        "3,9.0,2,9,2004-03-01 00:00,,,,,False",
        "4,12.0,2,9,2004-03-01 00:00,122.153,40,300,2.6,True",
        "99,1.0,1.0,9,2004-03-01 00:00,20,40,300,2.6,True",  # a mote with a single reading
    ]
    path.write_text("\n".join([*rows, *extra]) + "\n")
    problem = load_sensors(path)
    assert "3 malformed" in problem.report
    assert "1 empty or invalid" in problem.report
    assert "1 implausible" in problem.report
    assert "broken motes left out: 99" in problem.report
    assert "78 lines" in problem.report
    assert torch.equal(problem.values, good.values)


def test_the_original_layout_counts_too(tmp_path: Path) -> None:
    original(tmp_path)
    data = tmp_path / "data.txt"
    extra = ["2004-02-28 00:00:00 1 77 20 40 300 2.7", "2004-04-01 00:00:00 1 1 20 40 300 2.7", "2004-02-28 00:00 1 1"]
    data.write_text("\n".join([data.read_text(), *extra]))
    report = load_sensors(tmp_path).report
    assert all(text in report for text in ("1 from motes without a place", "1 of other days", "1 malformed"))


def test_the_estimator_is_the_papers() -> None:
    generator = torch.Generator().manual_seed(0)
    R = torch.randn(12, 3, generator=generator, dtype=torch.double)
    A = torch.randn(12, 12, generator=generator, dtype=torch.double)
    K = A @ A.T + torch.eye(12)
    close(estimate_task_covar(R, K), R.numpy().T @ np.linalg.inv(K.numpy()) @ R.numpy() / 12, 1e-10)
    with pytest.raises(ValueError, match="positive definite"):
        estimate_task_covar(R, torch.zeros(12, 12, dtype=torch.double))
    with pytest.raises(ValueError, match="readings and gram"):
        estimate_task_covar(R, K[:5])


def test_the_kernel_maximizes_the_likelihood() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(20, 2, generator=generator, dtype=torch.double)
    R = torch.randn(20, 3, generator=generator, dtype=torch.double).cumsum(dim=0)
    squared = ((X.numpy()[:, None] - X.numpy()[None]) ** 2).sum(axis=-1)

    def likelihood(lengthscale: float, nugget: float) -> float:
        K = np.exp(-squared / (2 * lengthscale**2)) + nugget * np.eye(20)
        B = R.numpy().T @ np.linalg.inv(K) @ R.numpy() / 20
        # log N(vec R; 0, K kron B) with its maximizer in place of B, without constants
        G = np.kron(K, B)
        return -0.5 * np.linalg.slogdet(G)[1] - 0.5 * R.numpy().reshape(-1) @ np.linalg.solve(G, R.numpy().reshape(-1))

    best = max((likelihood(ell, tau), ell, tau) for ell in LENGTHSCALES.tolist()[::5] for tau in NUGGETS.tolist()[::3])
    assert likelihood(*fit_squared_exponential(X, R)) >= best[0] - 1e-6


def soil(path: Path, rows: int = 40) -> Path:
    generator = np.random.default_rng(0)
    lines = [",".join(["Xloc", "Yloc", "Landuse", *SOIL_TASKS, "split"])]
    for i in range(rows):
        cells = ",".join(f"{v:.5f}" for v in generator.normal(size=7))
        lines.append(f"{generator.random():.5f},{generator.random():.5f},2,{cells},{'val' if i % 3 == 0 else 'pred'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_soil(tmp_path: Path) -> None:
    problem = load_soil(soil(tmp_path / "jura.csv"))
    assert problem.choices.shape == (14, 2)
    assert problem.values.shape == (14, 7)
    assert "26 for the kernel" in problem.report


@pytest.mark.parametrize("load", [load_sensors, load_soil])
def test_unreadable_files_are_refused_in_a_sentence(load: object, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)))
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"x" * 1000)[:20])
    (tmp_path / "torn.csv.gz").write_bytes(gzip.compress(b"x,y" * 1000)[:15] + b"torn" * 20)
    header = f"{HEADER},Xloc,Yloc,split,{','.join(SOIL_TASKS)}\n"
    (tmp_path / "few.csv").write_text(header)
    (tmp_path / "long.csv").write_text(header + "x" * 200_000)
    for name in ("absent.csv", "empty.csv", "binary.csv", "cut.csv.gz", "torn.csv.gz", "few.csv", "long.csv"):
        with pytest.raises(ValueError, match=f"{name} should"):
            load(tmp_path / name)


def test_places_twice_and_constant_tasks_are_refused(tmp_path: Path) -> None:
    path = tidy(tmp_path / "a.csv")
    text = path.read_text()
    path.write_text(text.replace(",6.0,4,", ",3.0,1,"))
    with pytest.raises(ValueError, match=r"a\.csv should make a problem, got: places should all be different"):
        load_sensors(path)
    rows = [line.split(",") for line in text.splitlines()]
    path.write_text(
        "\n".join(",".join([*row[:5], "20", *row[6:]]) if i else ",".join(row) for i, row in enumerate(rows))
    )
    with pytest.raises(ValueError, match="temperature should vary, got 20 everywhere"):
        load_sensors(path)
    tidy(path, motes=3)
    with pytest.raises(ValueError, match="more than 3 working motes, got 3"):
        load_sensors(path)


def test_marks_of_other_programs(tmp_path: Path) -> None:
    path = tidy(tmp_path / "a.csv")
    good = load_sensors(path)
    lines = [*path.read_text().splitlines(), "3,9.0,2,9,,20,40,300,2.6,false", "3,5.0,5,9,,20,40,300,2.6,True"]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    again = load_sensors(path)
    assert torch.equal(again.values, good.values)
    assert "1 empty or invalid" in again.report
    assert "1 of a mote at a second place" in again.report


def test_a_folder_without_the_two_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mote_locs\.txt should"):
        load_sensors(tmp_path)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not here")
@pytest.mark.slow
def test_the_real_files() -> None:
    sensors = load_sensors(SHARED / "intel_lab_10min_5days.csv.gz")
    assert sensors.choices.shape == (51, 2)
    assert "broken motes left out: 15" in sensors.report
    assert sensors.task_covar[0, 1] < 0  # warm air is dry
    soils = load_soil(SHARED / "jura.csv")
    assert soils.choices.shape == (100, 2)
    assert soils.task_covar[3, 5] > 0  # copper and lead
