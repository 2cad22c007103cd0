"""What is read without the parts is what the parts say, and comes back from the file as it was."""

import subprocess
import sys
from importlib import import_module

from fedsdg.methods import choices, declared, describing
from fedsdg.methods.families import FAMILIES, METHODS


def test_rows_come_back_as_they_were():
    rows = describing.rows()
    assert list(declared.methods()) == list(METHODS)
    for name, row in rows.items():
        assert name in FAMILIES[row.family]
        back = declared.methods()[name]
        assert dict(back.parameters) == dict(row.parameters)
        assert {**vars(back), "parameters": 0} == {**vars(row), "parameters": 0}
    for table in ("optimisers", "losses", "attacks"):
        rows = getattr(choices, table.upper())
        assert list(declared.choices(table)) == list(rows)
        for name, choice in rows.items():
            back, row = declared.choices(table)[name], describing.choice_row_of(choice)
            assert dict(back.parameters) == dict(row.parameters)
            assert {**vars(back), "parameters": 0} == {**vars(row), "parameters": 0}


def test_it_is_read_without_the_parts():
    code = (
        "import sys\n"
        "from fedsdg.methods.declared import choices, methods\n"
        "assert methods()['fedsdg'].parameters['lambda1'].range.least == 0\n"
        "assert choices('attacks')['alie'].parameters['z'].optional\n"
        "print({'torch', 'numpy', 'pyarrow'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stderr


def test_every_part_that_a_row_names_is_there():
    for row in (*declared.methods().values(), *declared.choices("attacks").values()):
        assert row.modules
        for part in row.modules:
            module, _, name = part.partition(":")
            assert hasattr(import_module(module), name)
