"""Where core-minutes went: what commands note, and what is made of it."""

import os
import subprocess
import sys

import pytest

from fedsdg.files import SPENT, note_spent
from fedsdg.files.spent import PARTS, spent, spent_sentence

#: Snakemake trained for two minutes in all, 30 s of them its own, and made a report.
LINES = """\
training 60
evaluation 12
run 84
render 9
snakemake 120
report 21
"""


def test_parts_add_up_to_all_that_was_spent():
    found = spent(LINES)
    assert set(found) == set(PARTS.values())
    assert sum(found.values()) * 60 == pytest.approx(120 + 21)
    seconds = {part: round(60 * minutes) for part, minutes in found.items() if minutes}
    assert seconds == {
        "training": 60,
        "evaluation": 12,
        "starting the processes that train": 12,
        "tables and figures": 9,
        "reports": 21,
        "Snakemake and the measurement of speed": 27,
    }


def test_the_sentence_has_the_installation_apart(tmp_path):
    file, installed = tmp_path / "spent.txt", tmp_path / "installed"
    file.write_text(LINES)
    assert spent_sentence(file).startswith("2.4 core-minutes: training 1.0, evaluation 0.2, ")
    assert "installation" not in spent_sentence(file, installed)
    installed.write_text("0m0.01s 0m0.02s\n1m3.50s 0m26.50s\n")  # the shell's own, its children's
    assert spent_sentence(file, installed).endswith("; the installation took 1.5 before")
    installed.write_text("")  # from before it said anything
    assert "installation" not in spent_sentence(file, installed)


def test_a_command_notes_what_it_and_its_children_took(tmp_path, monkeypatch):
    note_spent("nothing")  # and needs no place where none is named
    file = tmp_path / "spent.txt"
    busy = "import time\nwhile time.process_time() < 0.3: pass\n"
    code = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {busy!r}])\n{busy}"
        "from fedsdg.files import note_spent\nnote_spent('both')\n"
    )
    environment = {**os.environ, SPENT: str(file)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    name, seconds = file.read_text().split()
    assert name == "both" and 0.6 <= float(seconds) < 10
    monkeypatch.setenv(SPENT, str(file))
    from fedsdg.cli import main

    assert main(["methods"]) == 0
    assert file.read_text().splitlines()[-1].startswith("methods ")
