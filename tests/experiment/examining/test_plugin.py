"""A part that breaks one property fails that one alone, by a sentence that names the case."""

import re

import pytest

from fedsdg.experiment.examining.findings import FAILED, OK, WARNING
from fedsdg.experiment.examining.plugin import examine_method, examine_plugin
from fedsdg.methods.families import METHODS
from fedsdg.methods.plugins import find_plugin
from tests.experiment.examining.broken import CHOICES, TERMS


def failed(folder, source):
    """The sentence of each property that fails, by (part, claim)."""
    file = folder / "broken.py"
    file.write_text(source)
    found = list(examine_plugin(find_plugin(str(file))))
    return {(one.part, one.property): one.sentence for one in found if one.outcome == FAILED}


@pytest.mark.parametrize("name", TERMS)
def test_a_broken_term(tmp_path, name):
    claim, said, source = TERMS[name]
    found = failed(tmp_path, source)
    assert [property_ for _, property_ in found] == [claim]
    assert re.match(said, *found.values()), found


@pytest.mark.parametrize("name", CHOICES)
def test_a_broken_choice(tmp_path, name):
    key, said, source = CHOICES[name]
    found = failed(tmp_path, source)
    assert list(found) == [key]
    assert re.match(said, *found.values()), found


#: Rows of many kinds; the others are examined with the slow tests.
QUICK = ("fedsdg", "scaffold", "focus", "clustered", "ditto")
ROWS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in METHODS]


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_the_package_hold_everything(name):
    found = list(examine_method(name, None))
    assert not [one for one in found if one.outcome in (FAILED, WARNING)]
    assert sum(one.outcome == OK for one in found) >= 12
