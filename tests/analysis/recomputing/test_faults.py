"""Texts and trees of JSON are compared word by word; rounding alone is no fault."""

import numpy as np
import pytest

from fedsdg.analysis.recomputing.faults import json_faults, text_faults
from fedsdg.analysis.recomputing.nudged import nudged

ROW = "| fedsdg | 12 | 91.2 ± 0.8 | −1.25 | 9f86d081 |"


def alike(text):
    return lambda factor: text


def test_columns_may_be_wider_and_nothing_else():
    wide = "| a   |  b |\n| --- | ---: |\n| 1   |  2 |"
    assert text_faults("x.md", "| a | b |\n| ---- | -----: |\n| 1 | 2 |", alike(wide)) == []
    for right, wrong in (
        ("12", "13"),
        ("91.2", "91.3"),
        ("−1.25", "1.25"),
        ("9f86d081", "9f86d082"),
        ("0.8", "0.9"),
        ("fedsdg", "fedavg"),
    ):
        (fault,) = text_faults("x.md", ROW.replace(right, wrong), alike(ROW), first=7)
        assert fault.place.startswith("line 7 (fed")
        assert (fault.committed, fault.recomputed) == (repr(wrong), repr(right))


def test_a_number_on_the_border_of_rounding_may_be_either():
    """12.45 prints as 12.4 or 12.5, by how sums were rounded; 12.3 and 12.6 are neither."""

    def border(factor):
        return f"so {12.45 * factor:.1f} %"

    def tree(factor):
        return {"a": [round(12.45 * factor, 1), {"b": 2}], "t": border(factor)}

    assert {border(1 - 1e-9), border(1 + 1e-9)} == {"so 12.4 %", "so 12.5 %"}
    assert (
        text_faults("x.md", "so 12.4 %", border) == text_faults("x.md", "so 12.5 %", border) == []
    )
    for wrong in ("12.3", "12.6"):
        assert text_faults("x.md", f"so {wrong} %", border)
    assert json_faults("x.json", {"a": [12.5, {"b": 2}], "t": "so 12.4 %"}, tree) == []
    (fault,) = json_faults("x.json", {"a": [12.6, {"b": 2}], "t": "so 12.4 %"}, tree)
    assert fault.place == "a[0]"


def test_two_numbers_of_a_line_may_be_rounded_each_its_own_way():
    def both(factor):
        return f"{12.45 * factor:.1f} {12.45 / factor:.1f}"

    assert text_faults("x.md", "12.4 12.4", both) == text_faults("x.md", "12.5 12.5", both) == []


@pytest.mark.parametrize(
    ("tree", "place"),
    [
        ({"a": {"b": 1, "c": [1, 2]}, "d": None}, None),
        ({"a": {"b": True, "c": [1, 2]}, "d": None}, "a.b"),
        ({"a": {"b": 1, "c": [1]}, "d": None}, "a.c"),
        ({"a": {"b": 1, "c": [1, 3]}, "d": None}, "a.c[1]"),
        ({"a": {"b": 1, "c": [1, 2]}, "d": 0.0}, "d"),
        ({"a": {"b": 1, "c": [1, 2]}}, "d"),
        ({"a": 1, "d": None}, "a"),
    ],
)
def test_a_value_of_a_tree_is_named_by_its_keys(tree, place):
    found = json_faults("x.json", tree, alike({"a": {"b": 1, "c": [1, 2]}, "d": None}))
    assert [fault.place for fault in found] == ([] if place is None else [place])


def test_fractions_are_nudged_and_whole_numbers_are_not():
    rows = [{"a": 2, "b": 0.5, "c": 3.0, "d": None, "e": [0.25], "f": "0.5", "g": True}]
    (row,) = nudged(rows, 1.5)
    assert row == {"a": 2, "b": 0.75, "c": 3.0, "d": None, "e": [0.375], "f": "0.5", "g": True}
    assert nudged(np.array([0.5, 1.0]), 2.0).tolist() == [1.0, 2.0]
