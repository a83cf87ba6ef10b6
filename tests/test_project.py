"""The project itself: the direction of imports, the README's code, the command line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import matplotlib as mpl
import pytest

import mtbo_torch
from mtbo_torch.cli import main
from mtbo_torch.problems.paper import OPEN_CHOICES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mtbo_torch"
ORDER = (
    "checks",
    "progress",
    "tables",
    "kernels",
    "regression",
    "covariance",
    "evaluation",
    "noise",
    "models",
    "learning",
    "comparison",
    "scalarizations",
    "confidence",
    "feasibility",
    "acquisition",
    "constructors",
    "optimization",
    "strategies",
    "problems",
    "metrics",
    "experiments",
    "plotting",
    "report",
    "cli",
)


SHARED_BY_SIBLINGS = {"base", "budgeted", "kernelized", "paper"}


def imported_modules(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    part = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if part == "__init__":
        return
    modules = imported_modules(path)
    ours = {name.split(".")[1] for name in modules if name.startswith("mtbo_torch.")}
    assert part in ORDER
    assert all(ORDER.index(other) <= ORDER.index(part) for other in ours)
    hosts = {name.split(".")[0] for name in modules}
    if part == "regression":
        assert not hosts & {"gpytorch", "botorch", "linear_operator"}
    if part != "plotting":
        assert "matplotlib" not in hosts
    if part in ("strategies", "problems") and path.stem != "__init__":
        siblings = {name.split(".")[2] for name in modules if name.startswith(f"mtbo_torch.{part}.")}
        assert siblings <= SHARED_BY_SIBLINGS


def test_every_public_name_exists_and_is_documented() -> None:
    for name in mtbo_torch.__all__:
        assert "Example:" in getattr(mtbo_torch, name).__doc__, name


def readme_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore:Optimization failed")  # at a kink of a Chebyshev scalarisation, in Ax
@pytest.mark.parametrize("code", readme_blocks(), ids=lambda code: code.splitlines()[0])
def test_readme_code_runs(code: str) -> None:
    exec(compile(code, "README.md", "exec"), {})


def test_the_readme_lists_what_was_chosen() -> None:
    text = (ROOT / "README.md").read_text()
    for what, choice in OPEN_CHOICES:
        assert f"| {what} | {choice} |" in text


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mpl.use("Agg")
    picture = tmp_path / "demo.png"
    main(["demo", "--trials", "2", "--rounds", "12", "--out", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr().out
    assert "MT-KB" in output
    assert re.search(r"^ +12 +\d\.\d+ ± ", output, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--rounds", "0"], "at least 1"),
        (["demo", "--out", "/no/such/folder/x.png"], "existing folder"),
        ([], ""),
    ],
)
def test_bad_arguments_exit_with_two(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as failure:
        main(arguments)
    assert failure.value.code == 2
    assert message in capsys.readouterr().err
