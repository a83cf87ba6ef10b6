"""The notebooks run, in their small mode, and have their outputs stored."""

from __future__ import annotations

from pathlib import Path

import matplotlib.font_manager  # noqa: F401  (builds its cache, of which a notebook would tell)
import nbformat
import pytest
from execute import HERE, METADATA, execute

NOTEBOOKS = sorted(HERE.glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{i:02}" for i in range(1, len(NOTEBOOKS) + 1)]
    assert len(NOTEBOOKS) == 8


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTBO_SMALL", "1")
    notebook = execute(path, tmp_path, timeout=300)
    streams = [o for cell in notebook.cells for o in cell.get("outputs", ()) if o.output_type == "stream"]
    assert not [o.text for o in streams if o.name == "stderr"]
    assert "image/png" in str(notebook)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_with_its_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata == METADATA
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    pictures = [o for cell in code for o in cell.outputs if "image/png" in o.get("data", {})]
    assert pictures
    assert not [o for cell in code for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert "minute" in notebook.cells[0].source or "second" in notebook.cells[0].source  # says how long it takes
