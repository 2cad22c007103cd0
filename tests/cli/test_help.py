"""The command as it speaks before it works: help, versions, completion; and how fast that is."""

import json
import math
import shlex

import pytest

from fedsdg.cli.command import answer
from fedsdg.cli.main import COMMANDS, app
from tests.cli.conftest import outcome

NAMES = [function.__name__ for function in COMMANDS]
OF_THE_ISSUE = (
    "run grid search check compare methods data arenas partition pretrain summarise render record "
    "trace verify export evaluate aggregate reproduce"
)


def test_json_has_null_for_what_is_no_finite_number(capsys):
    answer(True, {"ratio": [math.inf, math.nan, 1.5]}, [])
    assert json.loads(capsys.readouterr().out) == {"ratio": [None, None, 1.5]}


def test_every_command_stands_in_the_help_in_one_line(said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = said("--help").splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line.split()]
    assert [name for name in listed if name in NAMES] == NAMES
    assert sorted(NAMES) == sorted(OF_THE_ISSUE.split())
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", NAMES)
def test_help_explains_every_option_and_ends_with_an_example(name, said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = said(name, "--help")
    examples = text.partition("Example:\n")[2].replace("\\\n", " ").strip().splitlines()
    assert examples and shlex.split(examples[-1])[:2] == ["fedsdg", name]
    for words in map(shlex.split, examples):
        options = {word for word in words if word.startswith("--")}
        assert options <= set(said(words[1], "--help").replace(",", " ").split())
    import typer

    command = typer.main.get_command(app).commands[name]
    assert all(parameter.help for parameter in command.params)


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["aggregate", "--help"]])
def test_help_is_the_same_without_docstrings(words):
    usual = outcome("-m", "fedsdg", *words)
    assert usual[0] == 0 and outcome("-OO", "-m", "fedsdg", *words) == usual


LIGHT = """
import os, sys
from fedsdg.cli import main
code = main(sys.argv[1:])
spent = os.times()
print(code, spent.user + spent.system, "torch" in sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "seconds"), [(["--help"], 0.25), (["methods"], 0.8), (["arenas"], 1.2)]
)
def test_help_and_lists_start_fast_and_without_torch(words, seconds):
    code, spent, torch = outcome("-c", LIGHT, *words)[2].split()
    assert (code, torch) == ("0", "False")
    # Twice the bar: a loaded machine needs more CPU time for the same work.
    assert float(spent) < 2 * seconds


def test_a_shell_completes_commands():
    words = {"COMP_WORDS": "fedsdg ren", "COMP_CWORD": "1", "_FEDSDG_COMPLETE": "complete_bash"}
    assert outcome("-m", "fedsdg", env=words)[1].split() == ["render"]


def test_the_doors_in_python_open_when_they_are_used():
    source = (
        "import json, sys, fedsdg; light = not {'torch', 'pandas', 'typer'} & {*sys.modules}; "
        "print(json.dumps([light, sorted({'run', 'compare', 'records'} & {*dir(fedsdg)})]))"
    )
    assert json.loads(outcome("-c", source)[1]) == [True, ["compare", "records", "run"]]
