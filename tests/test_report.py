"""The report: what a folder holds reaches the page as text only, and files that were changed are refused."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from test_faults import leaves, tamperings

from mtbo_torch.checks import checksum
from mtbo_torch.cli import main
from mtbo_torch.experiments.panels import PANELS
from mtbo_torch.experiments.results import find_best
from mtbo_torch.report import give_verdicts, write_index

REFUSAL = r"fig1b/panel\.json should .*, got .*\. Delete it; mtbo-torch reproduce fig1b writes it again\."
RUN = "runs/rkhs-2-chebyshev"
SCRIPT = "<script>alert(1)</script>"
COMMAND = ["reproduce", "fig1b", "--trials", "2", "--rounds", "3", "--algorithms", "MT-KB", "random", "--out"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one panel."""
    mpl.use("Agg")
    out = tmp_path_factory.mktemp("finished") / "out"
    main([*COMMAND, str(out)])
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "out"))


def load(out: Path, name: str = "fig1b") -> dict[str, Any]:
    return json.loads((out / name / "panel.json").read_text())


def save(out: Path, facts: Any, name: str = "fig1b") -> None:
    (out / name).mkdir(exist_ok=True)
    (out / name / "panel.json").write_text(json.dumps(facts))


def forge(facts: dict[str, Any]) -> dict[str, Any]:
    facts = {key: value for key, value in facts.items() if key != "checksum"}
    return facts | {"checksum": checksum(facts)}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def poison_labels(facts: dict[str, Any]) -> None:
    for part in ("finals", "seconds"):
        facts[part] = {label + SCRIPT: value for label, value in facts[part].items()}


@pytest.mark.parametrize(
    "poison",
    [
        lambda facts: facts.update(trials=SCRIPT),
        lambda facts: facts.update(versions={SCRIPT: SCRIPT}),
        lambda facts: facts["settings"].update({SCRIPT: SCRIPT}),
        poison_labels,
    ],
    ids=["trials", "versions", "settings", "labels"],
)
def test_a_script_is_only_text_on_the_page(poison: Callable[[dict[str, Any]], None], out: Path) -> None:
    facts = load(out)
    poison(facts)
    save(out, forge(facts))  # whoever writes a script can compute a checksum
    page = write_index(out, [SCRIPT]).read_text()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 1  # the note, and the poison


def test_a_change_anywhere_in_the_facts_of_a_panel_is_refused(out: Path) -> None:
    facts, page = load(out), (out / "index.html").read_bytes()
    cases = [bad for _, bad in tamperings(facts) if bad != facts]
    cases += [facts | {"trials": bad} for bad in (SCRIPT, math.nan, -1, 10**400, [], {})]
    assert len(cases) > len(list(leaves(facts)))
    for bad in cases:
        save(out, bad)
        for read in (lambda: write_index(out), lambda: give_verdicts(out, "fig1b")):
            with pytest.raises(ValueError, match=REFUSAL):
                read()
    assert (out / "index.html").read_bytes() == page


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe\x00", b"[]", b"3", b"null", b'"text"', b"{}", b"[" * 100_000, b"9" * 10_000],
    ids=["empty", "cut", "no text", "list", "number", "null", "string", "other keys", "deep", "long"],
)
def test_facts_that_are_none_are_refused(data: bytes, out: Path) -> None:
    (out / "fig1b" / "panel.json").write_bytes(data)
    with pytest.raises(ValueError, match=REFUSAL):
        write_index(out)


def test_facts_from_before_checksums_are_refused(out: Path) -> None:
    facts = load(out)
    del facts["checksum"]
    save(out, facts)
    with pytest.raises(ValueError, match=r"fig1b/panel\.json should .*, got contents of another version"):
        write_index(out)


@pytest.mark.slow
def test_facts_of_another_panel_or_of_other_runs_are_refused(out: Path, tmp_path: Path) -> None:
    save(out, load(out), "fig3a")
    with pytest.raises(ValueError, match=r"fig3a/panel\.json should .*, got those of 'fig1b'"):
        write_index(out)
    shutil.rmtree(out / "fig3a")
    write_index(out)
    main([*COMMAND, str(tmp_path / "other"), "--seed", "1"])
    shutil.copytree(tmp_path / "other" / RUN, out / RUN, dirs_exist_ok=True)
    with pytest.raises(ValueError, match=r"fig1b/panel\.json should have the settings of .*settings\.json, got others"):
        write_index(out)
    (out / "fig1b" / "panel.json").unlink()
    main([*COMMAND, str(out), "--seed", "1"])


def test_a_panel_that_was_not_reproduced(out: Path) -> None:
    with pytest.raises(ValueError, match=r"fig1c/panel\.json should exist, got none\. Reproduce fig1c"):
        give_verdicts(out, "fig1c")


def test_a_refusal_comes_before_the_work_and_the_same_panel_mends_itself(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(out, {"panel": "fig1b"})
    before = contents(out)
    with pytest.raises(SystemExit) as failure:
        main(["reproduce", "fig1d", *COMMAND[2:], str(out)])
    assert failure.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"mtbo-torch: {out}/fig1b/panel.json should ")
    assert said.count("\n") == 1
    assert contents(out) == before
    main([*COMMAND, str(out)])
    assert load(out)["panel"] == "fig1b"
    assert all(name == "fig1b" or not (out / name).exists() for name in PANELS)


@pytest.mark.slow
def test_panels_that_share_a_deleted_run_stay(out: Path) -> None:
    main(["reproduce", "fig3a", *COMMAND[2:], str(out)])
    table = (out / RUN / "results.csv").read_bytes()
    shutil.rmtree(out / RUN)  # as advised if it is damaged
    main([*COMMAND, str(out)])
    assert (out / RUN / "results.csv").read_bytes() == table
    assert 'id="fig3a"' in (out / "index.html").read_text()


def test_what_a_refusal_advises_helps(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = out / RUN / "settings.json"
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"seed": 0', b'"seed": 1'))
    with pytest.raises(SystemExit):
        main([*COMMAND, str(out)])
    assert f"{path} should show the settings of this run, got others. Delete this file." in capsys.readouterr().err
    path.unlink()
    main([*COMMAND, str(out)])
    assert path.read_bytes() == good


def test_a_changed_number_in_the_table_is_refused(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = out / RUN / "results.csv"
    lines = path.read_text().split("\n")
    cells = lines[1].split(",")
    cells[-3] = repr(float(cells[-3] or 0) + 1)
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]))
    before = contents(out)
    with pytest.raises(SystemExit) as failure:
        main([*COMMAND, str(out)])
    assert failure.value.code == 2
    assert f"{path} should hold" in capsys.readouterr().err
    assert contents(out) == before


def test_the_best_mean_is_marked() -> None:
    finals = {"a": [1.0, 2.0], "b": [1.0, 1.0]}
    names = ("bayes_regret", "front_share", "hypervolume", "certificate")
    assert [find_best(name, finals) for name in names] == ["b", "a", "a", None]
    assert find_best("bayes_regret", {"a": [1.0]}) is None
