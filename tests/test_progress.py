"""Progress bars: in a terminal and in a notebook, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios

import nbformat
import pytest
from nbclient import NotebookClient

WORK = """
from mtbo_torch.display import progress_bar
with progress_bar(3, "working") as bar:
    bar.update(3)
"""
END = b"that is all"


def test_a_terminal_shows_a_bar() -> None:
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (24, 80))
    subprocess.run([sys.executable, "-c", WORK], stderr=writer, check=True)
    os.write(writer, END)  # so that there is something to read even if there was no bar
    shown = b""
    while not shown.endswith(END):
        shown += os.read(reader, 1000)
    os.close(reader)
    os.close(writer)
    assert b"working" in shown
    assert b"3/3" in shown


@pytest.mark.slow
def test_a_pipe_shows_nothing() -> None:
    run = subprocess.run([sys.executable, "-c", WORK], capture_output=True, check=True)
    assert run.stdout == run.stderr == b""


@pytest.mark.slow
def test_a_notebook_shows_a_widget() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(WORK)])
    NotebookClient(notebook, kernel_name="python3").execute()
    [output] = notebook.cells[0].outputs
    assert "application/vnd.jupyter.widget-view+json" in output.data
