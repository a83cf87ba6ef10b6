"""Small tables, for terminals and for Jupyter."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

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
