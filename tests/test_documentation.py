"""The documentation: its code runs, its tables are those that benchmarks wrote, and it has every public name."""

from __future__ import annotations

import re
import subprocess
from importlib import import_module
from pathlib import Path

import matplotlib as mpl
import paper
import pytest
import record
from record import describe_age, fill, format_rows, load_table, load_tables, record_output

from mtbo_torch.problems.paper import OPEN_CHOICES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)]
INCLUDE = re.compile(r"```\{include\} (\S+)\n```")
PACKAGES = ("", ".kernels", ".models", ".problems", ".strategies", ".plotting", ".regression")


def find_code(page: Path) -> str:
    """The Python of a page; what is left out of it keeps its lines, so that errors name the right ones."""
    lines, inside = [], False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            inside = line == "```python"
        lines.append(line if inside and not line.startswith("```") else "")
    return "\n".join(lines)


WITH_CODE = [page for page in PAGES if find_code(page).strip()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Optimization failed")  # at a kink of a Chebyshev scalarization, in Ax
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_code_runs(
    page: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    exec(compile(find_code(page), str(page), "exec"), {})
    assert capsys.readouterr().out  # a reader sees something


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_links_between_files_lead_somewhere() -> None:
    for page in PAGES:
        targets = re.findall(r"\]\(([^)#\s]+)", page.read_text())
        for target in (target for target in targets if not target.startswith("http")):
            # Sphinx has the notebooks among its pages.
            place = ROOT / "notebooks" / Path(target).name if target.endswith(".ipynb") else page.parent / target
            assert place.exists(), (page, target)


def test_the_readme_has_the_tables_that_were_recorded() -> None:
    text = (ROOT / "README.md").read_text()
    assert "<!-- table: " in text
    assert fill(text) == text, "Run make tables."


def test_the_pages_show_tables_that_were_recorded() -> None:
    shown = {(page.parent / target).resolve() for page in PAGES for target in INCLUDE.findall(page.read_text())}
    tables = {path.stem for path in shown if path.parent == record.RESULTS}
    assert tables
    assert tables <= load_tables().keys()
    assert all(path.exists() for path in shown)


@pytest.mark.parametrize("table", load_tables().values(), ids=lambda table: table.name)
def test_a_table_says_where_it_comes_from(table: record.Table) -> None:
    assert all((ROOT / source).exists() for source in table.sources)
    target = table.command.removeprefix("make ").split()[0]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert table.text.startswith(("|", "```text"))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of one file under version control, in which tables are recorded."""
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    run_git(tmp_path, "init", "--quiet")
    commit(tmp_path, "one")
    return tmp_path


def run_git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, text: str) -> None:
    (folder / "code.py").write_text(text)
    run_git(folder, "add", "code.py")
    run_git(folder, "commit", "--quiet", "--message", text)


def test_a_table_is_old_once_its_sources_change(elsewhere: Path) -> None:
    rows = format_rows([("a", "b"), ("1", "2")])
    path = record.record("numbers", rows, "make numbers", ["code.py"])
    table = load_table(path)
    assert (table.command, table.sources, table.text) == (
        "make numbers",
        ("code.py",),
        "| a | b |\n|---|---|\n| 1 | 2 |",
    )
    assert describe_age(table) == ""
    assert table.origin == f"`make numbers`, {table.date}, commit {table.commit}"
    commit(elsewhere, "two")
    assert describe_age(table) == "older than code.py"
    record.record("numbers", rows, "make numbers", ["code.py"])
    assert describe_age(load_table(path)) == ""
    assert "not in this history" in describe_age(record.Table("x", "c", "0" * 40, "", ("code.py",), ""))


def test_a_table_says_whether_its_code_was_committed(elsewhere: Path) -> None:
    for name in ("first", "second"):  # which the first one, not committed yet, does not disturb
        assert "-dirty" not in load_table(record.record(name, ["| a |"], "make numbers", ["code.py"])).commit
    (elsewhere / "code.py").write_text("changed")
    changed = load_table(record.record("third", ["| a |"], "make numbers", ["code.py"]))
    assert changed.commit.endswith("-dirty")
    assert describe_age(changed) == ""


def test_a_table_fills_its_place(elsewhere: Path) -> None:
    record.record("numbers", ["| new |"], "make numbers", ["code.py"])
    text = "before\n<!-- table: numbers -->\n| old |\n<!-- end of table -->\nafter"
    assert fill(text) == text.replace("old", "new")


def test_what_is_printed_is_recorded(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with record_output("said", "make said", ["code.py"]):
        print("hello")
    assert load_tables()["said"].text == "```text\nhello\n```"
    assert capsys.readouterr().out.startswith("hello")


def test_a_table_of_unknown_origin_is_refused(elsewhere: Path) -> None:
    with pytest.raises(ValueError, match=r"sources should be files .* got no\.py"):
        record.record("numbers", [], "make numbers", ["no.py"])
    (elsewhere / "plain.md").write_text("| a |")
    with pytest.raises(ValueError, match="should say command, commit and sources"):
        load_table(elsewhere / "plain.md")


def test_the_documentation_lists_what_was_chosen() -> None:
    text = (DOCS / "paper.md").read_text()
    for what, choice in OPEN_CHOICES:
        assert f"| {what} | {choice} |" in text


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_has_every_public_name(package: str) -> None:
    text = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    shown = {name.rpartition(".")[2] for name in re.findall(r"^\.\. auto\w+:: (\S+)", text, flags=re.MULTILINE)}
    assert set(import_module(f"mtbo_torch{package}").__all__) <= shown


def test_the_tables_of_the_paper() -> None:
    regrets = {"average_regret": [0.1, 0.3], "certificate": [0.4, 0.4]}
    facts = {"fig1b": {"finals": dict.fromkeys((*paper.MIXTURE, "MOBO"), regrets)}}
    *_, row = paper.tabulate_regrets(facts, ["fig1b"], ["MT-KB"])
    assert row.split(" | ")[1] == "0.2 ± 0.141 |"
    *_, row = paper.tabulate_certificates(facts, ["fig1b"])
    assert row.split(" | ")[1:] == [*["0.2 ± 0.141"] * 4, "2", "2", "2 |"]
    assert paper.find_missing(facts, dict.fromkeys(["fig1b", "soil"], paper.MIXTURE)) == ["soil"]
    assert paper.find_missing(facts, {"fig1b": paper.ELLIPSOID}) == ["fig1b"]
