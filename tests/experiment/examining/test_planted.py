"""Every planted bug is seen, once and by its name; the method that it was planted in passes."""

import pytest

from fedsdg.experiment.examining.findings import FAILED, WARNING
from fedsdg.experiment.examining.plugin import examine_plugin
from fedsdg.methods.plugins import find_plugin
from tests.experiment.examining.planted import BUGS, FILES, planted


def wrong(folder, source):
    """The failures and warnings about a plugin."""
    file = folder / "planted.py"
    file.write_text(source)
    found = examine_plugin(find_plugin(str(file)))
    return [one for one in found if one.outcome in (FAILED, WARNING)]


@pytest.mark.parametrize("name", FILES)
def test_a_right_method_passes(tmp_path, name):
    assert not wrong(tmp_path, FILES[name])


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_seen_once(tmp_path, name):
    _, _, _, outcome, property_, words = BUGS[name]
    found = wrong(tmp_path, planted(name))
    assert [one.outcome for one in found] == [outcome], found
    assert property_ in (None, found[0].property)
    assert words in found[0].sentence
