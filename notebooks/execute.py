"""Run the notebooks and store what they show: ``python notebooks/execute.py [NOTEBOOK ...]``, or ``make notebooks``.

With ``MTBO_SMALL=1`` in the environment they take seconds, which is how the tests run them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(path: Path, folder: Path = HERE, timeout: int | None = None) -> nbformat.NotebookNode:
    """The notebook with fresh outputs, run inside a folder; without progress bars, which die with the kernel."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=timeout, record_timing=False, coalesce_streams=True, resources=resources)
    client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [
                o for o in cell.outputs if "application/vnd.jupyter.widget-view+json" not in o.get("data", {})
            ]
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:] or sorted(HERE.glob("*.ipynb"))):
        print(path.name, flush=True)
        nbformat.write(execute(path), path)
