"""What people look at: small tables, for terminals and for Jupyter, and progress bars."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Row = Sequence[str]


def format_mean_and_sd(values: Sequence[float]) -> str:
    """Format the mean of some trials and, if there are several, their standard deviation."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return shorten(mean)
    # Without the standard library, which fails for NaN.
    sd = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return f"{shorten(mean)} ± {shorten(sd)}"


def shorten(value: float) -> str:
    """Format a number with three digits."""
    return f"{value:.3g}"


def format_text_table(rows: Sequence[Row]) -> str:
    """Format a header and rows in aligned columns, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def format_html_table(rows: Sequence[Row]) -> str:
    """Format a header and rows as an HTML table."""
    head, *body = rows
    lines = [_format_html_row(head, "th"), "</thead><tbody>", *[_format_html_row(row, "td") for row in body]]
    return "\n".join(["<table><thead>", *lines, "</tbody></table>"])


def _format_html_row(cells: Row, tag: str) -> str:
    sides = ["left", *["right"] * (len(cells) - 1)]
    styled = [
        f'<{tag} style="text-align: {side}">{html.escape(cell)}</{tag}>'
        for side, cell in zip(sides, cells, strict=True)
    ]
    return f"<tr>{''.join(styled)}</tr>"


class _Silent:
    def update(self, count: int) -> None: ...
    def set_description(self, text: str) -> None: ...


def progress_bar(total: int, description: str, unit: str = "round") -> AbstractContextManager[Any]:
    """Return a progress bar for a ``with`` statement; silent without a terminal or a notebook, or anything to do."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return nullcontext(_Silent())
    return tqdm(total=total, desc=description, unit=f" {unit}", disable=None if total else True, dynamic_ncols=True)
