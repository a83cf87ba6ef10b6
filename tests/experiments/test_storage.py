"""Results on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mtbo_torch.experiments import storage
from mtbo_torch.experiments.algorithms import ALGORITHMS
from mtbo_torch.experiments.reproduce import REGRETS
from mtbo_torch.experiments.runner import Benchmark, Trials
from mtbo_torch.experiments.storage import Store, lock_folder

SIZES = {"weights": 2, "x": 1, "y": 2}
SETTINGS = {"rounds": 6, "seed": 0, "paper": {"eta": 0.1}}


def store(folder: Path, **changes: object) -> Store:
    return Store(folder, Benchmark("here", SETTINGS | changes, SIZES, REGRETS, tuple(ALGORITHMS), forbid))


def forbid(*arguments: object) -> Trials:
    raise AssertionError("nothing is run")


def block(trials: int, rounds: int, start: float = 0.0) -> dict[str, torch.Tensor]:
    numbers = start + torch.arange(trials * rounds, dtype=torch.double).reshape(trials, rounds) / 3
    wide = numbers.unsqueeze(-1)
    columns = {name: numbers + i for i, name in enumerate(REGRETS[:-1])}
    return columns | {"weights": wide.expand(-1, -1, 2), "x": wide, "y": wide.expand(-1, -1, 2)}


def filled(folder: Path) -> Store:
    first = store(folder)
    first.begin()
    first.append("MT-KB", [0, 1], 1, block(2, 6), 1.5, None)
    return first


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    filled(tmp_path)
    again = store(tmp_path)
    assert again.find_complete("MT-KB") == {0, 1}
    assert again.find_complete("MOBO") == set()
    assert again.seconds == {"MT-KB": 1.5}
    curves = again.load_curves(["MT-KB"], range(2))["MT-KB"]
    assert torch.equal(curves["simple_regret"], block(2, 6)["simple_regret"])
    assert curves["certificate"].isnan().all()
    header = (tmp_path / "results.csv").read_text().split("\n")[0]
    assert header == ",".join(["algorithm,trial,round,weights_1,weights_2,x_1,y_1,y_2", *REGRETS])


def test_the_order_of_arrival_does_not_matter(tmp_path: Path) -> None:
    tables = []
    for order in ((0, 1, 2), (2, 0, 1)):
        folder = tmp_path / str(order)
        one = store(folder)
        one.begin()
        parts = [("MT-KB", [0], 0.0), ("MT-KB", [1], 5.0), ("random", [0], 9.0)]
        for i in order:
            name, trials, start = parts[i]
            one.append(name, trials, 1, block(1, 6, start), 1.0, None)
        one.finish()
        tables.append((folder / "results.csv").read_bytes())
    assert tables[0] == tables[1]


def test_what_a_killed_run_left_behind_is_forgotten(tmp_path: Path) -> None:
    first = filled(tmp_path)
    first.append("MOBO", [0, 1], 1, block(2, 3), 0.5, {"algorithm": "MOBO", "trials": [0, 1], "run": {}})
    counted = (tmp_path / "results.csv").read_bytes()
    doubled = counted.splitlines(keepends=True)[-1]
    whole = b"MOBO,0,4,1,1,1,1,1,0,0,0,0,0,0,\n"
    for rest in (whole, b"MOBO,0,4,1,1", b"MOBO", bytes(300), b"\0\n\0\n", b"\xff\n", doubled, whole + b"MOBO,1"):
        (tmp_path / "results.csv").write_bytes(counted + rest)
        again = store(tmp_path)
        assert again.active is not None
        assert again.find_complete("MOBO") == set()
        assert (tmp_path / "results.csv").read_bytes() == counted + rest  # looking changes nothing
        again.begin()
        assert (tmp_path / "results.csv").read_bytes() == counted
    again.append("MOBO", [0, 1], 4, block(2, 3, 7.0), 0.5, None)
    assert store(tmp_path).find_complete("MOBO") == {0, 1}
    assert store(tmp_path).seconds["MOBO"] == 1.0


@pytest.mark.parametrize("count", range(4))
def test_killed_before_the_first_row(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes, write = [], storage.write_atomically

    def killed(path: Path, data: bytes) -> None:
        if len(writes) == count:
            raise KeyboardInterrupt
        writes.append(path)
        write(path, data)

    monkeypatch.setattr(storage, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        filled(tmp_path)
    monkeypatch.undo()
    filled(tmp_path)
    assert store(tmp_path).find_complete("MT-KB") == {0, 1}
    assert store(tmp_path).load_curves(["MT-KB"], range(2))["MT-KB"]["regret"].isfinite().all()


def test_killed_while_sorting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("random", "MT-KB"):
        one = store(tmp_path)
        one.begin()
        one.append(name, [0], 1, block(1, 6), 1.0, None)
    unsorted = (tmp_path / "results.csv").read_bytes()
    replace = Path.replace

    def killed(draft: Path, path: Path) -> None:
        replace(draft, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        one.finish()
    monkeypatch.undo()
    assert (tmp_path / "results.csv").read_bytes() != unsorted
    assert store(tmp_path).find_complete("random") == {0}


def test_other_settings_are_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="rounds is 6 there and 7 here"):
        store(tmp_path, rounds=7)
    with pytest.raises(ValueError, match=r"paper eta is 0\.1 there and 0\.2 here"):
        store(tmp_path, paper={"eta": 0.2})
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def cut_rows(folder: Path) -> None:
    lines = (folder / "results.csv").read_text().splitlines(keepends=True)
    (folder / "results.csv").write_text("".join(lines[:-2]))


def cut_bytes(folder: Path) -> None:
    data = (folder / "results.csv").read_bytes()
    (folder / "results.csv").write_bytes(data[:-5])


def drop_a_cell(folder: Path) -> None:
    text = (folder / "results.csv").read_text()
    (folder / "results.csv").write_text(text.replace("MT-KB,0,3,", "MT-KB,0,", 1))


def double_a_row(folder: Path) -> None:
    lines = (folder / "results.csv").read_text().splitlines(keepends=True)
    (folder / "results.csv").write_text("".join([*lines[:3], *lines[2:]]))


def exchange_two_cells(folder: Path) -> None:
    lines = (folder / "results.csv").read_text().splitlines(keepends=True)
    first, second = lines[1].split(","), lines[2].split(",")
    first[3], second[3] = second[3], first[3]
    (folder / "results.csv").write_text("".join([lines[0], ",".join(first), ",".join(second), *lines[3:]]))


def change_a_number(folder: Path) -> None:
    text = (folder / "results.csv").read_text()
    (folder / "results.csv").write_text(text.replace(",1.0,", ",1.1,", 1))


def take(name: str) -> Callable[[Path], None]:
    """Takes a file from an intact folder of other settings or results."""

    def damage(folder: Path) -> None:
        other = folder / "other"
        one = store(other, seed=1)
        one.begin()
        one.append("MT-KB", [0, 1], 1, block(2, 6, 5.0), 1.5, None)
        (other / name).replace(folder / name)
        shutil.rmtree(other)

    return damage


def copy_a_row(folder: Path) -> None:
    lines = (folder / "results.csv").read_text().splitlines(keepends=True)
    (folder / "results.csv").write_text("".join([*lines[:-1], lines[-2]]))


def spoil_a_number(folder: Path) -> None:
    text = (folder / "results.csv").read_text()
    (folder / "results.csv").write_text(text.replace(",1.0,", ",abc,", 1))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (copy_a_row, "cut or changed"),
        (change_a_number, r"results\.csv should hold the 12 rows .* got rows that were cut or changed"),
        (exchange_two_cells, "cut or changed"),
        (spoil_a_number, "cut or changed"),
        (take("results.csv"), "cut or changed"),
        (take("state.pt"), "seed is 1 there and 0 here"),
        (take("settings.json"), r"settings\.json should .*, got others\. Delete this file"),
        (lambda folder: (folder / "settings.json").write_text(json.dumps(SETTINGS | {"seed": 1})), "settings.json"),
        (lambda folder: (folder / "results.csv").write_bytes(b"\xff\xfe"), "columns"),
        (lambda folder: (folder / "state.pt").unlink(), r"state\.pt"),
        (cut_rows, "cut or changed"),
        (cut_bytes, "cut or changed"),
        (double_a_row, "cut or changed"),
        (drop_a_cell, r"results\.csv should"),
        (lambda folder: (folder / "results.csv").write_text(""), "columns"),
        (lambda folder: (folder / "results.csv").unlink(), "should hold"),
        (lambda folder: (folder / "settings.json").write_bytes(b"\xff"), "settings.json"),
        (lambda folder: (folder / "state.pt").write_bytes(b"junk"), "state.pt"),
        (lambda folder: (folder / "state.pt").write_bytes((folder / "state.pt").read_bytes()[:100]), "state.pt"),
        (lambda folder: (folder / "state.pt").write_bytes(b""), "state.pt should be as it was written, got damaged"),
        (lambda folder: torch.save({"rounds": {}}, folder / "state.pt"), "another version. Choose another folder"),
    ],
)
def test_damage_is_refused_in_a_sentence(damage: object, message: str, tmp_path: Path) -> None:
    filled(tmp_path)
    damage(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=message):
        store(tmp_path)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_settings_are_written_again(tmp_path: Path) -> None:
    filled(tmp_path)
    data = (tmp_path / "settings.json").read_bytes()
    (tmp_path / "settings.json").unlink()
    store(tmp_path).begin()
    assert (tmp_path / "settings.json").read_bytes() == data


def test_a_lock_changes_no_file_that_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").symlink_to(tmp_path / "precious")
    with lock_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "precious").read_text() == "text"


def test_a_state_cannot_run_code(tmp_path: Path) -> None:
    filled(tmp_path)

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "sprung",))

    torch.save({"rounds": Trap(), "seconds": {}, "active": None}, tmp_path / "state.pt")
    with pytest.raises(ValueError, match=r"state\.pt"):
        store(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "out"), pytest.raises(ValueError, match="another run"), lock_folder(tmp_path / "out"):
        pass
    with lock_folder(tmp_path / "out"):
        pass
