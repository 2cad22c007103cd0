"""The command as it speaks: help in groups, an example each, and what a misspelt word meant."""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedsdg.cli import main
from fedsdg.cli.command import TITLES
from fedsdg.cli.main import commands, parser

ROOT = Path(__file__).parents[2]
COMMANDS = {command.name: (title, command) for title, command in commands()}


def said(capsys, *arguments) -> str:
    """Standard output of a command that ends by itself."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0
    return capsys.readouterr().out


# --- Help -----------------------------------------------------------------------------------------


def test_every_command_stands_in_the_help_once_in_its_group_in_a_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = said(capsys, "--help")
    groups, title = {}, ""
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            title = line[:-1]
        elif line.startswith("  ") and line.split()[0] in COMMANDS:
            groups[line.split()[0]] = title
    assert groups == {name: title for name, (title, _) in COMMANDS.items()}
    assert set(groups.values()) == set(TITLES), "a group without commands, or one without a place"
    for name in COMMANDS:
        assert sum(line.startswith(f"  {name} ") for line in text.splitlines()) == 1
    assert max(map(len, text.splitlines())) < 100


def test_help_starts_without_arrays_parts_or_configs():
    code = (
        "import sys\nfrom fedsdg.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'pandas', 'yaml', 'shtab', 'tqdm'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- Examples -------------------------------------------------------------------------------------


def lines(example: str) -> list[list[str]]:
    """The words of each command of an example, without the program."""
    found = []
    for line in example.replace("\\\n", " ").splitlines():
        words = shlex.split(line.replace('eval "$(', "").replace(')"', ""))
        assert words[0] == "fedsdg", line
        found.append(words[1:])
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_ends_with_an_example_that_holds(name, capsys):
    """Its last line is of this command, its options exist, and so do the files that it reads."""
    example = COMMANDS[name][1].example
    assert example, f"{name} has no example"
    assert said(capsys, name, "--help").rstrip().endswith(example.splitlines()[-1].strip())
    found = lines(example)
    assert found[-1][0] == name
    assert max(map(len, example.splitlines())) < 100
    for words in found:
        parser().parse_args(words)
        for word in words:
            if word.startswith(("config/", "results/reference/")):
                assert (ROOT / word).exists(), word


#: What a newcomer brings.
MY_METHOD = """
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.methods.method import Method

METHODS = {"mine": Method("Mine", rule=Mean())}
"""
#: Those that take no training and write nothing into the record.
QUICK = (
    "check",
    "methods",
    "data",
    "completion",
    "partition",
    "table",
    "claims",
    "succeeded",
    "throughput",
)


@pytest.mark.parametrize("name", QUICK)
def test_an_example_works_in_a_checkout(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSDG_CONFIG", raising=False)
    (tmp_path / "config").symlink_to(ROOT / "config")
    (tmp_path / "results").mkdir()
    (tmp_path / "results/reference").symlink_to(ROOT / "results/reference")
    (tmp_path / "my_method.py").write_text(MY_METHOD)
    for words in lines(COMMANDS[name][1].example):
        assert main(words) == 0, capsys.readouterr().err


# --- Misspelt -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["metods"], "there is no command 'metods'; did you mean 'methods'?"),
        (["methods", "shwo", "krum"], "there is no method 'shwo'; did you mean 'show'?"),
        (["methods", "--markdwon"], "there is no option '--markdwon'; did you mean '--markdown'?"),
        (["check", "--josn=1"], "there is no option '--josn'; did you mean '--json'?"),
        (["aggregate", "--on-nonfinite", "dorp"], "--on-nonfinite cannot be 'dorp'; did you mean"),
        (["completion", "bsh"], "shell cannot be 'bsh'; did you mean 'bash'?"),
        (["arenas", "needs"], "nothing takes 'needs'; see 'fedsdg arenas --help'"),
        (
            ["run", "--jobs", "two"],
            "argument --jobs: invalid int value: 'two'; see 'fedsdg run --h",
        ),
        ([], "the following arguments are required: command; see 'fedsdg --help'"),
        (["methods", "show", "scafold"], "there is no method 'scafold'; did you mean 'scaffold'?"),
        (["run", "--method", "scafold"], "unknown method 'scafold'; did you mean 'scaffold'?"),
        (
            ["run", "--method", "krum", "--skew", "dirchlet~0.1"],
            "'dirchlet~0.1' is not a skew; did you mean 'dirichlet~0.1'?",
        ),
        (["run", "--grid", "--only", "sead~0"], "'sead~0' names nothing of the grid; did you mean"),
        (["pretrain", "--backbone", "lettres", "--output", "x"], "did you mean 'letters'?"),
        (
            ["table", "--summary", "x", "--table", "man", "--output", "x"],
            "there is no table 'man'; did you mean 'main'?",
        ),
        (
            ["figure", "--summary", "x", "--figure", "convergance", "--output", "x"],
            "there is no figure 'convergance'; did you mean 'convergence'?",
        ),
        (["run", "--method", "krum", "--dataset", "mnst"], "unknown data set 'mnst'; did you mean"),
        (["check", "--set", "federation.ronds=3"], "'ronds'; did you mean 'rounds'?"),
    ],
)
def test_a_misspelt_word_is_one_sentence_that_says_what_was_meant(
    arguments, sentence, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSDG_CONFIG", raising=False)
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    (error,) = capsys.readouterr().err.splitlines()
    assert code == 2 and error.startswith("fedsdg: error: ") and sentence in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["agree", "record"])
def test_an_experiment_that_was_not_computed_here(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/summary/needs").mkdir(parents=True)
    assert main([command, "neds"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "neds" in error and "did you mean 'needs'?" in error


@pytest.mark.parametrize("arguments", [["methods"], ["methods", "--json"]])
def test_a_disk_that_is_full_is_one_sentence(arguments):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fedsdg", *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    (error,) = done.stderr.splitlines()
    assert error.startswith("fedsdg: error: ") and "No space left on device" in error


def test_every_option_of_every_command_is_explained_or_speaks_for_itself():
    """An option without a word of help is one whose name says all."""
    plain = {"dataset", "skew", "seed", "method", "output", "summary", "table", "figure"}
    plain |= {"backbone", "partitions", "runs", "shell", "name"}
    known = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    for name, sub in known.choices.items():
        for one in sub._actions:
            assert one.help or one.dest in {*plain, "what"}, f"{name} {one.dest}"


def test_what_main_tells_commands_is_no_option_of_any_of_them():
    """Its own names would otherwise stand in for what was given."""
    taken = {"command_line", "parser", "function"}
    for name in COMMANDS:
        words = lines(COMMANDS[name][1].example)[-1]
        options = {action.dest for action in parser().parse_args(words).parser._actions}
        assert not taken & options, name
