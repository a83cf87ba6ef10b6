"""Small tables, for terminals and for Jupyter."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

Row = Sequence[str]


def mean_and_sd(values: Sequence[float]) -> str:
    """The mean of some trials and, of more than one, their standard deviation."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return short(mean)
    # Not by the standard library, which fails for NaN.
    return f"{short(mean)} ± {short(math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)))}"


def short(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}"


def text_table(rows: Sequence[Row]) -> str:
    """A head and a body in aligned columns, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def html_table(rows: Sequence[Row]) -> str:
    """The same as an HTML table."""
    head, *body = rows
    lines = [_html_row(head, "th"), "</thead><tbody>", *[_html_row(row, "td") for row in body]]
    return "\n".join(["<table><thead>", *lines, "</tbody></table>"])


def _html_row(cells: Row, tag: str) -> str:
    sides = ["left", *["right"] * (len(cells) - 1)]
    styled = [
        f'<{tag} style="text-align: {side}">{html.escape(cell)}</{tag}>'
        for side, cell in zip(sides, cells, strict=True)
    ]
    return f"<tr>{''.join(styled)}</tr>"
