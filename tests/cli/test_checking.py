"""``fedsdg check`` of files: lines, JSON, exit codes, and what is said of what cannot be read."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from fedsdg.cli import main
from tests.experiment.examining.broken import CHOICES

DOCUMENT = Path(__file__).parents[2] / "docs/add-a-method.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
LOSS, ATTACK = (CHOICES[name][2] for name in ("loss of the batch", "attack on the honest"))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSDG_CONFIG", raising=False)
    return tmp_path


def test_all_parts_of_the_documents_examples_hold(here, capsys):
    """Also the rule that stands there without a row."""
    rows = 'METHODS["fltrust"] = Method("FLTrust", rule=FLTrust())\n'
    (here / "clipped.py").write_text("\n".join([*BLOCKS, rows]))
    assert main(["check", "clipped.py"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert {re.split(r"  +", line)[0] for line in lines} == {"ok", "does not apply"}
    parts = Counter(re.split(r"  +", line)[1].split(": ")[0] for line in lines)
    assert {name.split(" ")[-1] for name in parts} == {
        "ClippedMean", "Pull", "Shared", "FLTrust", "sign", "away", "checks",
    }  # fmt: skip
    assert last == f"clipped.py: {len(lines) - 5} ok, 5 does not apply"
    assert list(here.iterdir()) == [here / "clipped.py"], "nothing is left behind"


def test_what_fails_is_the_exit_code_and_a_line(here, capsys):
    (here / "mine.py").write_text(LOSS)
    (here / "his.py").write_text(ATTACK)
    assert main(["check", "mine.py", "his.py"]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = [line for line in lines if line.startswith("failed")]
    assert [re.split(r"  +|: ", line)[1:4] for line in failed] == [
        ["mine.py", "loss broken", "it has a finite loss for each sample"],
        ["his.py", "attack broken", "honest clients stay as they are"],
    ]
    assert "mine.py: 1 failed, 4 does not apply" in lines


def test_the_same_for_a_script(here, capsys):
    (here / "mine.py").write_text(LOSS)
    assert main(["check", "--json", "mine.py"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {tuple(one) for one in found} == {("part", "property", "outcome", "sentence")}
    assert Counter(one["outcome"] for one in found) == {"failed": 1, "does not apply": 4}


@pytest.mark.parametrize(
    ("source", "arguments", "said"),
    [
        (
            "import nothing_like_it",
            [],
            "mine.py cannot be imported: ModuleNotFoundError: .* line 1",
        ),
        ("METHODS = {}", [], "mine.py defines no methods; write METHODS"),
        (
            "from fedsdg.methods.method import Method\n\nMETHODS = {\n"
            "    'a': Method('A', rule=None),\n}\n",
            [],
            "mine.py, method 'a': A: its rule is of type NoneType, but must be of type Rule",
        ),
        (
            "from fedsdg.aggregation.rules.mean import Mean\n"
            "from fedsdg.federation.objectives.term import Term\n"
            "from fedsdg.methods.method import Method\n"
            "class T(Term):\n    pass\n"
            "METHODS = {'a': Method('A', rule=Mean(), objective=(T(),))}\n",
            [],
            "method 'a': its term T declares no parameters; write @part of fedsdg.parts above",
        ),
        (LOSS, ["--config", "x.yaml"], "files are examined by themselves, .* leave out --config"),
        (LOSS, ["--brief"], "leave out --brief, or name mine.py with --plugin"),
        (LOSS, ["other.yaml"], "other.yaml is a config: give `fedsdg check --config other.yaml`"),
        (LOSS, ["none.py"], "there is no plugin none.py"),
    ],
)
def test_what_cannot_be_examined_is_one_sentence(here, capsys, source, arguments, said):
    (here / "mine.py").write_text(source)
    assert main(["check", "mine.py", *arguments]) == 2
    printed = capsys.readouterr()
    assert re.search(said, printed.err) and printed.err.count("\n") == 1
    assert not printed.out, "no file is examined before all are read"
