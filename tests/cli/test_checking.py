"""``fedsdg check`` of files: lines, JSON, exit codes, and what is said of what cannot be read."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from fedsdg.cli import main
from tests.experiment.examining.broken import CHOICES
from tests.experiment.examining.planted import planted

DOCUMENT = Path(__file__).parents[2] / "docs/add-a-method.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
LOSS, ATTACK = (CHOICES[name][2] for name in ("loss of the batch", "attack in place"))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSDG_CONFIG", raising=False)
    return tmp_path


NOT_SEEN = "Not seen: whether the method is the one that its paper describes"


def test_all_parts_of_the_documents_examples_hold(here, capsys):
    (here / "clipped.py").write_text("\n".join(BLOCKS))
    assert main(["check", "clipped.py", "--verbose"]) == 0
    *lines, summary, not_seen = capsys.readouterr().out.splitlines()
    assert {re.split(r"  +", line)[0] for line in lines} == {"ok", "does not apply"}
    parts = Counter(re.split(r"  +", line)[1].split(": ")[0] for line in lines)
    assert {name.split(" ")[-1] for name in parts} == {
        "ClippedMean", "Pull", "Shared", "Momentum", "FLTrust", "sign", "away", "checks",
    }  # fmt: skip
    passed = sum(line.startswith("ok ") for line in lines)
    assert summary == f"clipped.py: {passed} passed, {len(lines) - passed} do not apply"
    assert not_seen.startswith(NOT_SEEN)
    assert list(here.iterdir()) == [here / "clipped.py"], "nothing is left behind"


def test_what_fails_is_the_exit_code_and_a_line(here, capsys):
    (here / "mine.py").write_text(LOSS)
    (here / "his.py").write_text(ATTACK)
    assert main(["check", "mine.py", "his.py"]) == 1
    first, waiting, mine, second, his, not_seen = capsys.readouterr().out.splitlines()
    assert [re.split(r"  +|: ", line)[:4] for line in (first, second)] == [
        ["failed", "mine.py", "loss broken", "it has a finite loss for each sample"],
        ["failed", "his.py", "attack broken", "what came in stays as it is"],
    ]
    assert re.match(r" +not tried until then: no sample depends on another; a right", waiting)
    assert mine == "mine.py: 1 failed (--verbose)"
    assert his == "his.py: 1 failed, 3 passed (--verbose)" and not_seen.startswith(NOT_SEEN)


def test_failures_come_first_and_methods_with_one_bug_share_a_line(here, capsys):
    rule = planted("the sum in place of the mean").replace(
        "METHODS = {", 'METHODS = {"one": M, "two": M}'
    )
    rule = rule.replace('"momentum": Method("FedAvgM", rule=Momentum())}', "")
    rule = rule.replace("METHODS =", 'M = Method("FedAvgM", rule=Momentum())\nMETHODS =')
    (here / "mine.py").write_text(f"{rule}\n{LOSS}")
    assert main(["check", "mine.py"]) == 1
    first, _, second, alike, waiting, summary, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("failed          loss broken: ")
    assert re.match(r"warning +method one, rule Momentum: its steps follow the updates", second)
    assert alike.split() == ["the", "same", "of", "method", "two"]
    assert waiting.endswith("not tried until then: it learns as the plain mean does")
    assert re.fullmatch(r"mine.py: 1 failed, 2 warnings, \d+ passed .--verbose.", summary)


def test_a_rule_that_ends_the_process_fails_once(here, capsys):
    (here / "mine.py").write_text(planted("the rule ends the process"))
    assert main(["check", "mine.py"]) == 1
    first, waiting, summary, _ = capsys.readouterr().out.splitlines()
    assert "it calls sys.exit(0) at mine.py, line 27 (1 client" in first
    assert re.fullmatch(r" +not tried until then: \d\d others", waiting)
    assert summary == "mine.py: 1 failed (--verbose)"


def test_a_warning_is_no_failure(here, capsys):
    (here / "mine.py").write_text(planted("the sum in place of the mean"))
    assert main(["check", "mine.py"]) == 0
    assert capsys.readouterr().out.startswith("warning  ")
    assert main(["check", "--verbose"]) == 2
    assert "--verbose lists the properties of a file" in capsys.readouterr().err


def test_the_same_for_a_script(here, capsys):
    (here / "mine.py").write_text(LOSS)
    assert main(["check", "--json", "mine.py"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {tuple(one) for one in found} == {
        ("part", "property", "outcome", "sentence", "cause"),
    }
    assert Counter(one["outcome"] for one in found) == {"failed": 1, "does not apply": 5}
    assert {one["cause"] for one in found[1:]} == {found[0]["property"]}


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
            "from fedsdg.federation.terms import Term\n"
            "from fedsdg.methods.method import Method\n"
            "class T(Term):\n    pass\n"
            "METHODS = {'a': Method('A', rule=Mean(), objective=(T(),))}\n",
            [],
            "method 'a': its term T declares no parameters; write @part of fedsdg.parts above",
        ),
        (
            planted("the server steps uphill").replace("@part\n", ""),
            [],
            "mine.py, method 'momentum': Momentum has the field 'beta', but lacks @part, so that "
            "no config can set it; write @part of fedsdg.parts above class Momentum",
        ),
        (
            "import sys\n\nsys.exit(0)\n",
            [],
            r"the plugin mine.py cannot be imported: it calls sys.exit\(0\); raise a ValueError "
            r"that says what is wrong \(mine.py, line 3\)",
        ),
        (
            LOSS,
            ["--config", "x.yaml"],
            "--config is for a config, and files are examined without one",
        ),
        (LOSS, ["--brief"], "--brief is for a config, .* name mine.py with --plugin"),
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
