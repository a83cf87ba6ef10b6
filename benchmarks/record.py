"""Keep the tables that benchmarks wrote: ``benchmarks/results/<name>.md``, with where they come from in the first line.

The documentation includes these files, and ``make tables`` copies them into the README, between the lines
``<!-- table: name -->`` and ``<!-- end of table -->``. It also says which tables are older than the code they speak of.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
HEAD = re.compile(r"<!-- command: (.+); commit: (\S+), ([\d-]+); sources: (.+) -->")
PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


@dataclass(frozen=True)
class Table:
    """A table that a benchmark wrote.

    Attributes:
        name: The name of its file, without the ending.
        command: The command that writes it.
        commit: The commit of the code that wrote it.
        date: The day on which it was written.
        sources: The files and folders of which it speaks.
        text: The table in Markdown.
    """

    name: str
    command: str
    commit: str
    date: str
    sources: tuple[str, ...]
    text: str

    @property
    def origin(self) -> str:
        """Where it comes from, for readers."""
        return f"`{self.command}`, {self.date}, commit {self.commit}"


def record(name: str, lines: Iterable[str], command: str, sources: Sequence[str]) -> Path:
    """Write a table and return its file.

    Args:
        name: The name of the table.
        lines: The table in Markdown; :func:`format_rows` makes it from cells.
        command: The command that writes it.
        sources: The files and folders of which it speaks; if one changes, the table is old.
    """
    missing = [source for source in sources if not (ROOT / source).exists()]
    if missing:
        raise ValueError(f"sources should be files or folders of the project, got {', '.join(missing)}.")
    # Tables and pages may have changed meanwhile; it is the code that counts.
    is_dirty = _run_git("status", "--porcelain", "--", *sources, "mtbo_torch", "benchmarks/*.py")
    commit = _run_git("rev-parse", "--short", "HEAD") + ("-dirty" if is_dirty else "")
    today = datetime.now(UTC).date().isoformat()
    path = RESULTS / f"{name}.md"
    path.parent.mkdir(exist_ok=True)
    head = f"<!-- command: {command}; commit: {commit}, {today}; sources: {' '.join(sources)} -->"
    path.write_text("\n".join([head, "", *lines, ""]))
    print(f"Recorded {path.relative_to(ROOT)}.")
    return path


def format_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table: a header, a rule, and the other rows."""
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *body]


@contextmanager
def record_output(name: str, command: str, sources: Sequence[str]) -> Iterator[None]:
    """Write what is printed meanwhile, as it is; see :func:`record`."""
    printed = _Echo(sys.stdout)
    with redirect_stdout(printed):
        yield
    record(name, ["```text", *printed.getvalue().rstrip().splitlines(), "```"], command, sources)


class _Echo(io.StringIO):
    """What is written, kept and passed on."""

    def __init__(self, beyond: IO[str]) -> None:
        super().__init__()
        self.beyond = beyond

    def write(self, text: str) -> int:
        self.beyond.write(text)
        return super().write(text)

    def flush(self) -> None:
        self.beyond.flush()


def load_table(path: Path) -> Table:
    """Load a table.

    Raises:
        ValueError: If its first line does not say where it comes from.
    """
    first, _, text = path.read_text().partition("\n")
    match = HEAD.fullmatch(first)
    if not match:
        raise ValueError(f"The first line of {path} should say command, commit and sources, got {first!r}.")
    command, commit, date, sources = match.groups()
    return Table(path.stem, command, commit, date, tuple(sources.split()), text.strip())


def load_tables() -> dict[str, Table]:
    return {path.stem: load_table(path) for path in sorted(RESULTS.glob("*.md"))}


def fill(text: str) -> str:
    """Return a text with its tables as they are in their files."""
    tables = load_tables()
    return PLACE.sub(lambda place: f"{place[1]}{tables[place[2]].text}\n{place[3]}", text)


def describe_age(table: Table) -> str:
    """Return which of a table's sources changed after it was written; empty if it is up to date."""
    commit = table.commit.removesuffix("-dirty")
    if subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, capture_output=True).returncode:
        return f"its commit, {commit}, is not in this history"
    changed = [source for source in table.sources if _run_git("log", "-1", "--format=%h", f"{commit}..", "--", source)]
    return f"older than {', '.join(changed)}" if changed else ""


def _run_git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if the README is not as the tables are"
    )
    check = parser.parse_args().check
    readme = ROOT / "README.md"
    text = readme.read_text()
    filled = fill(text)
    if check and filled != text:
        sys.exit("README.md is not as the tables are. Run make tables.")
    readme.write_text(filled)
    for table in load_tables().values():
        print(f"{table.name:<24}{table.date:<12}{table.command:<64}{describe_age(table) or 'up to date'}")


if __name__ == "__main__":
    main()
