"""Tables of two commits, cell by cell."""

import pytest

from benchmarks.same_tables import differences, main, rows_of

ALLOW = {"renamed": {}, "added": {}, "dropped": {}}
BEFORE = "method,mean,n\nfedsdg,0.93,5\nkrum,0.90,5\n"


def found(before, after, suffix=".csv", **allow):
    tables = rows_of(before, suffix), rows_of(after, suffix)
    return list(differences(*tables, {**ALLOW, **allow}))


def test_a_cell_a_row_and_a_column_are_named():
    assert found(BEFORE, BEFORE) == []
    assert found(BEFORE, BEFORE.replace("0.90", "0.91")) == [
        "mean in row 2 was '0.90' and is '0.91'"
    ]
    assert found(BEFORE, BEFORE + "cgsv,0.8,5\n") == ["2 rows before and 3 after"]
    after = "method,n,low\nfedsdg,5,0.9\nkrum,6,0.8\n"
    assert found(BEFORE, after) == [
        "the column 'mean' is there before alone",
        "the column 'low' is there after alone",
        "n in row 2 was '5' and is '6'",
    ]


def test_what_is_called_otherwise_or_is_there_on_purpose_is_no_difference():
    after = "method,n,average,low\nfedsdg,5,0.93,0\nkrum,5,0.90,0\n"
    renamed = {"tables": {"mean": "average"}}
    assert found(BEFORE, after, renamed=renamed, added={"tables": ["low"]}) == []


def test_markdown_is_compared_cell_by_cell_and_line_by_line():
    before = "Accuracy\n\n| method | a |\n|---|---|\n| krum | 0.9 |\n"
    assert found(before, before, ".md") == []
    (sentence,) = found(before, before.replace("0.9", "0.8"), ".md")
    assert sentence.endswith("was '0.9' and is '0.8'")
    assert found(before, before.replace("Accuracy", "Loss"), ".md")


@pytest.mark.slow
def test_the_tables_of_a_commit_are_those_of_the_commit(capsys):
    assert main(["HEAD"]) in (0, 1)  # this tree may be ahead of its commit
    assert "tables," in capsys.readouterr().out
