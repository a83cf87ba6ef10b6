"""Numbers in tables."""

from __future__ import annotations

import math
from statistics import fmean, stdev

from mtbo_torch.display import format_html_table, format_mean_and_sd, format_text_table


def test_mean_and_standard_deviation() -> None:
    values = [0.3, 1.7, -2.0, 5.5]
    assert format_mean_and_sd(values) == f"{fmean(values):.3g} ± {stdev(values):.3g}"
    assert format_mean_and_sd([0.25]) == "0.25"


def test_numbers_that_are_none() -> None:
    assert format_mean_and_sd([1.0, math.nan]) == "nan ± nan"
    assert format_mean_and_sd([1.0, math.inf]) == "inf ± nan"
    assert format_mean_and_sd([math.inf, -math.inf]) == "nan ± nan"


def test_columns_are_aligned() -> None:
    rows = [["name", "value"], ["a", "1"], ["longer", "12.25"]]
    assert format_text_table(rows).splitlines() == ["name    value", "-------------", "a           1", "longer  12.25"]


def test_cells_are_escaped() -> None:
    assert "<b>" not in format_html_table([["<b>"], ["a & b"]])
    assert "a &amp; b" in format_html_table([["<b>"], ["a & b"]])
