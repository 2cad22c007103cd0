"""docs/plugins.md: of each pair of blocks the first is refused, and the second is the plugin."""

import re
from pathlib import Path

import pytest

from fedsdg.methods.plugins import contents, described, find_plugin
from fedsdg.parts import Range

PAGE = Path(__file__).parents[2] / "docs/plugins.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
OLD, NEW = BLOCKS[::2], BLOCKS[1::2]


def plugin(folder, source):
    (folder / "page.py").write_text(source)
    return find_plugin(str(folder / "page.py"))


@pytest.mark.parametrize("number", range(len(OLD)))
def test_what_was_is_refused_with_a_reference_to_the_page(tmp_path, number):
    with pytest.raises(ValueError, match=r"version 0\.1: it imports .*; docs/plugins\.md says"):
        contents(plugin(tmp_path, OLD[number]))


@pytest.mark.parametrize(
    ("number", "table", "name", "parameters"),
    [
        (0, "METHODS", "clipped-mean", {"bound": (1.0, Range(0)), "mu": (0.01, Range(0))}),
        (1, "ATTACKS", "away", {"scale": (1.0, Range(0))}),
        (2, "OPTIMISERS", "sign", {"share": (0.9, Range(0, 1))}),
    ],
)
def test_what_is_has_the_same_row_with_the_same_parameters(
    tmp_path, number, table, name, parameters
):
    found = described(plugin(tmp_path, NEW[number]))
    assert {key: list(rows) for key, rows in found.items() if rows} == {table: [name]}
    known = found[table][name].parameters
    assert {key: (one.default, one.range) for key, one in known.items()} == parameters
    old = {key for key in parameters if f'"{key}": Parameter({parameters[key][0]}' in OLD[number]}
    assert old == set(parameters)


def test_both_compute_the_same():
    """What stands in the bodies of the functions is word for word the same."""
    for old, new in zip(OLD, NEW, strict=True):
        bodies = [re.findall(r"^( {8}.*)$", s.partition("= {\n")[0], re.M) for s in (old, new)]
        kept = [line.replace("scene.known", "view.honest") for line in bodies[0]]
        assert [line for line in kept if "self.scale = scale" not in line] == bodies[1]
