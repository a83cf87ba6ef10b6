"""The settings of the documentation: ``make docs``."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import shutil
import sys
import tempfile
import textwrap
import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from docutils import nodes
from docutils.nodes import Element
from pygments.lexers.special import TextLexer
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.highlighting import lexers
from sphinx.util.nodes import make_refnode

import mtbo_torch

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.append(str(ROOT / "benchmarks"))

from record import RESULTS, load_table  # noqa: E402

project = "mtbo_torch"
author = "the mtbo_torch developers"
release = version = mtbo_torch.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx-mathjax-offline"]
exclude_patterns = ["_build"]

html_theme = "furo"
pygments_dark_style = "monokai"
html_title = f"mtbo_torch {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False

# Notebooks are shown as they are stored.
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["mystnb.unknown_mime_type"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_inherit_docstrings = False
napoleon_use_ivar = True

# Graphs stay as their text: drawing them would load a script from elsewhere.
lexers["mermaid"] = TextLexer()

# Sphinx wants its sources in one place.
shutil.copytree(
    ROOT / "notebooks",
    HERE / "notebooks",
    ignore=shutil.ignore_patterns("*.py", "*.pyc", "results", "__pycache__", ".*"),
    dirs_exist_ok=True,
)

# What the hosts define is not here; their documentation is online, and the build is not.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|gpytorch|botorch|linear_operator|pandas|pd|matplotlib|collections|abc|typing)\b.*"),
    ("py:.*", r"Tensor|UnsupportedError|ModelFittingError"),
    # Parts of the regressions that are not public.
    (
        "py:.*",
        r"(mtbo_torch\.regression\.)?(\w+\.)?(Growth|GroupedKernel|InverseCholesky|Missing|Seen|Spectrum|Subspace)",
    ),
    ("py:.*", r"mtbo_torch\.regression\.kronecker\.TaskKernels|regression|restore_inputs"),
]


def find_by_last_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: Element) -> Element | None:
    """Return the link for a name that a docstring gives as its own module knows it, such as ``exact_radius``."""
    if node.get("refdomain") != "py":
        return None
    objects = env.domains.python_domain.objects
    for ending in (node["reftarget"], node["reftarget"].rpartition(".")[2]):
        for name, entry in objects.items():
            if name.endswith(f".{ending}"):
                return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, name)
    return None


def show_origins(app: Sphinx, docname: str, source: list[str]) -> None:
    """Say below each table of results where it comes from."""

    def add(found: re.Match[str]) -> str:
        table = load_table(RESULTS / f"{found[1]}.md")
        return f"{found[0]}\n\n<p class='origin'>{table.origin.replace('`', '')}</p>\n"

    source[0] = re.sub(r"```\{include\} \S*/results/(\w+)\.md\n```", add, source[0])


def wrap(line: str) -> str:
    """Return a line as wide as a page, if it is prose and not the row of a table."""
    return line if "  " in line.strip() else textwrap.fill(line, 96, break_long_words=False, break_on_hyphens=False)


def show_outputs(app: Sphinx, docname: str, source: list[str]) -> None:
    """Run the Python of a page, from top to bottom, and show below each block what it prints."""
    if app.env.doc2path(docname).suffix != ".md":  # notebooks have their outputs
        return
    names: dict[str, Any] = {}

    def add(found: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(found[1], docname, "exec"), names)
        text = "\n".join(map(wrap, printed.getvalue().rstrip().splitlines()))
        return f"{found[0]}\n\n```{{code-block}} text\n:class: output\n\n{text}\n```" if text else found[0]

    mpl.use("Agg")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float)  # which the page before may have changed
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source[0] = re.sub(r"^```python\n(.*?)^```$", add, source[0], flags=re.DOTALL | re.MULTILINE)
    finally:
        logging.disable(logging.NOTSET)  # which a page may have changed


def keep_numbers_whole(app: Sphinx, doctree: nodes.document) -> None:
    """Mark the cells of tables with a mean and its spread, which should stay on one line."""
    for cell in doctree.findall(nodes.entry):
        if " ± " in cell.astext():
            cell["classes"].append("number")


def setup(app: Sphinx) -> None:
    app.connect("missing-reference", find_by_last_name)
    app.connect("source-read", show_origins)
    app.connect("source-read", show_outputs)
    app.connect("doctree-read", keep_numbers_whole)
