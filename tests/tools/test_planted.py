"""The faults of planted.yaml lie where they are said to lie; each is found or known to survive."""

import ast
import re
from collections import Counter

import pytest

from tests.tools.planted import ROOT, faults, finds, planted, room_tests

FAULT = {"file": "part.py", "room": "models", "old": "return a + b", "new": "return a - b"}
TEXT = "def add(a, b):\n    return a + b\n"
#: Those of the workflow lie beside the package.
ROOMS = {
    ".",
    *(
        room.name
        for room in (ROOT / "fedsdg").iterdir()
        if (room / "__init__.py").exists() and not room.name.startswith("next_")
    ),
}


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
    assert ("test" in fault) != ("survives" in fault)
    if "test" in fault:
        place, _, name = fault["test"].partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / place).read_text(), re.MULTILINE)


def test_the_line_is_replaced_where_it_stands():
    assert planted(TEXT, FAULT) == "def add(a, b):\n    return a - b\n"


@pytest.mark.parametrize("text", [TEXT + TEXT, TEXT.replace("+", "*")])
def test_a_line_that_is_gone_or_there_twice_is_named(text):
    with pytest.raises(ValueError, match=r"part.py has [02] lines 'return a \+ b'; anchor"):
        planted(text, FAULT)


@pytest.mark.slow
def test_a_fault_is_found_by_its_test_else_by_the_room_s_and_the_file_is_whole_again(tmp_path):
    (tmp_path / "part.py").write_text(TEXT)
    (tmp_path / "tests/models").mkdir(parents=True)
    begin = "from part import add\n\n\ndef test_it():\n    assert "
    (tmp_path / "tests/models/test_one.py").write_text(begin + "add(1, 0) == 1\n")
    (tmp_path / "tests/models/test_two.py").write_text(begin + "add(1, 2) == 3\n")
    one, two = (f"tests/models/test_{name}.py::test_it" for name in ("one", "two"))
    assert finds(tmp_path, {**FAULT, "test": two}) == two
    assert finds(tmp_path, {**FAULT, "test": one}) == "tests of models"
    assert finds(tmp_path, {**FAULT, "survives": "nobody looks"}) == "tests of models"
    (tmp_path / "tests/models/test_two.py").unlink()
    assert finds(tmp_path, {**FAULT, "test": one}) is None
    with pytest.raises(RuntimeError, match="no test tests/models/test_one.py::test_gone"):
        finds(tmp_path, {**FAULT, "test": one.replace("it", "gone")})
    assert (tmp_path / "part.py").read_text() == TEXT
