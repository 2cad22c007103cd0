"""The faults of planted.yaml lie where they are said to lie."""

import ast
import re
from collections import Counter

import pytest

from tests.tools.planted import ROOT, faults, planted, room_tests

#: Those of the workflow lie beside the package.
ROOMS = {".", *(init.parent.name for init in ROOT.glob("fedsdg/*/__init__.py"))}


def test_there_are_eighty_and_five_in_every_room():
    rooms = Counter(fault["room"] for fault in faults())
    assert rooms.total() >= 80
    assert rooms.keys() == ROOMS | {"workflow"}
    assert min(rooms.values()) >= 5
    assert all((ROOT / place).exists() for room in rooms for place in room_tests(room))


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: f"{fault['file']}: {fault['new']}")
def test_a_fault_lies_in_its_room_and_its_test_is_there(fault):
    file = ROOT / fault["file"]
    parts = file.relative_to(ROOT).parts
    room = parts[0] if parts[0] == "workflow" else parts[1] if len(parts) > 2 else "."
    assert room == fault["room"]
    text = file.read_text()
    wrong = planted(text, fault)
    if file.suffix == ".py":
        assert ast.dump(ast.parse(wrong)) != ast.dump(ast.parse(text))
    assert "test" in fault
    if "test" in fault:
        place, _, name = fault["test"].partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / place).read_text(), re.MULTILINE)


def test_a_line_that_is_gone_or_there_twice_is_named():
    fault = {"file": "part.py", "old": "return a + b", "new": "return a - b"}
    text = "def add(a, b):\n    return a + b\n"
    assert planted(text, fault) == "def add(a, b):\n    return a - b\n"
    for wrong in (text + text, text.replace("+", "*")):
        with pytest.raises(ValueError, match=r"part.py has [02] lines 'return a \+ b'; anchor"):
            planted(wrong, fault)
