"""Inputs in the user's words, and the points they stand for."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from mtbo_torch import Category, Inputs, Integer, Ordered, Real
from mtbo_torch.inputs import restore_inputs

KINDS = {
    "T (K)": Real(300, 900),
    "loading": Real(1e-3, 10, log=True),
    "steps": Integer(-2, 5),
    "rpm": Ordered(100, 200, 500),
    "stirring": Ordered("slow", "medium", "fast"),
    "catalyst": Category("Pd", "Ni", "Cu"),
    "a": Real(0, 1),
    "b": Real(0, 1),
}
ROW: dict[str, Any] = {
    "T (K)": 450.0, "loading": 0.1, "steps": 3, "rpm": 200, "stirring": "fast", "catalyst": "Ni", "a": 0.25, "b": 0.5
}  # fmt: skip


def test_rows_become_points_and_back() -> None:
    inputs = Inputs(KINDS)
    X = inputs.encode([ROW])
    assert X.dtype == torch.double
    assert X.tolist() == [[450.0, -1.0, 3.0, 200.0, 2.0, 1.0, 0.25, 0.5]]
    assert inputs.decode(X) == [ROW]
    assert inputs.bounds.T.tolist() == [
        [300, 900], [-3, 1], [-2, 5], [100, 500], [0, 2], [0, 2], [0, 1], [0, 1]
    ]  # fmt: skip
    assert inputs.categories == [5]
    assert inputs.codes == {2: [-2, -1, 0, 1, 2, 3, 4, 5], 3: [100, 200, 500], 4: [0, 1, 2], 5: [0, 1, 2]}


def test_bounds_come_back_without_rounding() -> None:
    inputs = Inputs(KINDS)
    for code in inputs.bounds:
        for name, value in inputs.decode(code.unsqueeze(0))[0].items():
            kind = KINDS[name]
            if isinstance(kind, Real):
                assert kind.low <= value <= kind.high
    assert inputs.encode(inputs.decode(inputs.bounds)).allclose(inputs.bounds, rtol=1e-12)


def test_numbers_and_words_as_files_have_them() -> None:
    inputs = Inputs({"T": Real(0, 10), "n": Integer(1, 3), "kind": Category("1", "2", "a")})
    assert inputs.encode([{"T": "2.5", "n": "2", "kind": 2.0}, {"T": 1, "n": 3.0, "kind": " a "}]).tolist() == [
        [2.5, 2.0, 1.0],
        [1.0, 3.0, 2.0],
    ]


@pytest.mark.parametrize(
    "text", ["a + b <= 1", "a+b>=0.2", "2*a - b <= 0.5", "- a + 1e-3 * T (K) >= .1", "a <= b", "0.5 >= 2 * b - 1 + a"]
)
def test_limits_mean_what_they_say(text: str) -> None:
    limit = Inputs(KINDS, [text]).limits[0]
    points = torch.rand(200, len(KINDS), generator=torch.Generator().manual_seed(0), dtype=torch.double)
    points[:, 0] = 300 + 600 * points[:, 0]
    said = text.replace("T (K)", "T")
    expected = [eval(said, {"T": row[0], "a": row[6], "b": row[7]}) for row in points.tolist()]
    ours = points[:, limit.indices] @ torch.tensor(limit.coefficients, dtype=torch.double) >= limit.bound
    assert not limit.is_equality
    assert ours.tolist() == expected
    assert 0 < sum(expected) < 200


def test_equalities() -> None:
    for text in ("a + b == 1", "a = 1 - b"):
        limit = Inputs(KINDS, [text]).limits[0]
        assert (limit.indices, limit.coefficients, limit.bound, limit.is_equality) == ([6, 7], [1.0, 1.0], 1.0, True)


def test_a_description_can_be_stored() -> None:
    inputs = Inputs(KINDS, ["a + b <= 1"])
    again = restore_inputs(inputs.settings())
    assert again.kinds == inputs.kinds
    assert again.limits == inputs.limits
    assert repr(again) == repr(inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"T (K)": 1350}, "T (K) should be from 300 to 900, got 1350 in row 1"),
        ({"T (K)": float("nan")}, "T (K) should be a finite number, got nan in row 1"),
        ({"T (K)": "warm"}, "T (K) should be a number, got 'warm' in row 1"),
        ({"loading": 0}, "loading should be from 0.001 to 10, got 0 in row 1"),
        ({"steps": 2.5}, "steps should be a whole number, got 2.5 in row 1"),
        ({"steps": 6}, "steps should be from -2 to 5, got 6 in row 1"),
        ({"rpm": 300}, "rpm should be one of 100, 200, 500, got 300 in row 1"),
        ({"catalyst": "Pt"}, "catalyst should be one of Pd, Ni, Cu, got 'Pt' in row 1"),
        ({"catalyst": None}, "catalyst should be one of Pd, Ni, Cu, got None in row 1"),
    ],
)
def test_what_is_outside_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Inputs(KINDS).encode([ROW, ROW | change])


def test_a_row_without_an_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Row 0 should have a value for each input .*, got none for a, b\. Add it\."):
        Inputs(KINDS).encode([{name: value for name, value in ROW.items() if name not in "ab"}])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Real(1, 1), "Real should have low < high, got 1 and 1"),
        (lambda: Real(0, float("inf")), "Real should have low < high"),
        (lambda: Real("0", 1), "Real should have low < high"),
        (lambda: Real(0, 1, log=True), "Real should have low > 0 on a logarithmic scale, got 0"),
        (lambda: Integer(0.5, 2), "Integer should have a whole number as low, got 0.5"),
        (lambda: Integer(3, 2), "Integer should have low < high, got 3 and 2"),
        (lambda: Category("a"), "Category should have at least two values, all different, got ['a']"),
        (lambda: Category("a", "a "), "Category should have at least two values, all different"),
        (lambda: Ordered(2, 1), "Ordered should have numbers in ascending order, or words, got [2, 1]"),
        (lambda: Ordered(1, "b"), "Ordered should have numbers in ascending order, or words"),
        (lambda: Inputs({}), "inputs should be a dictionary with at least one input, got {}"),
        (lambda: Inputs({"a": (0, 1)}), "inputs should be of the kinds Real, Integer, Ordered and Category"),
        (lambda: Inputs({1: Real(0, 1)}), "inputs should have names, got 1"),
        (lambda: Inputs(KINDS, "a <= 1"), "limits should be a list of texts, got 'a <= 1'"),
        (lambda: Inputs(KINDS, ["a + b"]), "limits should be texts with one of <=, >= and ==, got 'a + b'"),
        (lambda: Inputs(KINDS, ["a <= b <= 1"]), "limits should be texts with one of <=, >= and =="),
        (lambda: Inputs(KINDS, ["a + c <= 1"]), "limits should be sums of inputs with numbers in front of them"),
        (lambda: Inputs(KINDS, ["a b <= 1"]), "limits should be sums of inputs"),
        (lambda: Inputs(KINDS, ["a * 2 <= 1"]), "limits should be sums of inputs"),
        (lambda: Inputs(KINDS, ["<= 1"]), "limits should be sums of inputs"),
        (lambda: Inputs(KINDS, ["1 <= 2"]), "limits should be between inputs, got '1 <= 2'"),
        (lambda: Inputs(KINDS, ["loading <= a"]), "limits should be between numbers on a linear scale, got 'loading'"),
        (lambda: Inputs(KINDS, ["stirring <= 1"]), "limits should be between numbers on a linear scale"),
        (lambda: Inputs(KINDS, ["steps == a"]), "limits should be between real inputs on a linear scale, got 'steps'"),
    ],
)  # fmt: skip
def test_bad_descriptions_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build()
