"""The command as it speaks: help in groups, an example each, and what a misspelt word meant."""

import argparse
import errno
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedsdg.cli import main
from fedsdg.cli.command import describe
from fedsdg.cli.main import COMMANDS, parser
from tests.built import ONE_BY_ONE

ROOT = Path(__file__).parents[2]
GROUPS = {one.__name__: title for title, several in COMMANDS.items() for one in several}
EXAMPLES = {one.__name__: describe(one).example for several in COMMANDS.values() for one in several}


def said(capsys, *arguments) -> str:
    """Standard output of a command that ends by itself."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0
    return capsys.readouterr().out


# --- Help -----------------------------------------------------------------------------------------


def test_every_command_stands_in_the_help_once_in_its_group_in_a_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = said(capsys, "--help").splitlines()
    groups, title = {}, ""
    for line in lines:
        if line.endswith(":") and not line.startswith(" "):
            title = line[:-1]
        elif line.startswith("  ") and line.split()[0] in GROUPS:
            assert groups.setdefault(line.split()[0], title) == title
    assert groups == GROUPS and len(GROUPS) <= 20
    assert max(map(len, lines)) < 100


@pytest.mark.parametrize(
    ("lines", "heavy"),
    [
        (["--help"], {"torch", "numpy", "pandas", "yaml", "shtab", "tqdm"}),
        (
            ["methods", "render --help", "check --help"],
            {"torch", "timm", "peft", "matplotlib", "snakemake"},
        ),
    ],
    ids=["help", "light commands"],
)
def test_help_and_light_commands_start_without_what_they_do_not_need(lines, heavy):
    told = f"\nprint(json.dumps([name for name in {sorted(heavy)} if name in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE + told, *lines],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    *said, loaded = map(json.loads, done.stdout.splitlines())
    assert [code for code, *_ in said] == [0] * len(lines) and loaded == []


# --- Examples -------------------------------------------------------------------------------------


def lines(example: str) -> list[list[str]]:
    """The words of each command of an example, without the program."""
    found = []
    for line in example.replace("\\\n", " ").splitlines():
        words = shlex.split(line.replace('eval "$(', "").replace(')"', ""))
        assert words[0] == "fedsdg", line
        found.append(words[1:])
    return found


@pytest.mark.parametrize("name", GROUPS)
def test_the_help_of_a_command_ends_with_an_example_that_holds(name, capsys):
    """Its last line is of this command, its options exist, and so do the files that it reads."""
    example = EXAMPLES[name]
    assert example, f"{name} has no example"
    assert said(capsys, name, "--help").rstrip().endswith(example.splitlines()[-1].strip())
    found = lines(example)
    assert found[-1][0] == name
    assert max(map(len, example.splitlines())) < 100
    for words in found:
        parser().parse_args(words)
        for word in words:
            if word.startswith(("config/", "results/reference/")):
                assert (ROOT / word.partition(":")[0]).exists(), word


#: What a newcomer brings.
MY_METHOD = """
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.methods.method import Method

METHODS = {"mine": Method("Mine", rule=Mean())}
"""
#: Those that take no training and write nothing into the record.
QUICK = ("check", "methods", "data", "completion", "partition", "render")


@pytest.mark.parametrize("name", QUICK)
def test_an_example_works_in_a_checkout(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSDG_CONFIG", raising=False)
    (tmp_path / "config").symlink_to(ROOT / "config")
    (tmp_path / "results").mkdir()
    (tmp_path / "results/reference").symlink_to(ROOT / "results/reference")
    (tmp_path / "my_method.py").write_text(MY_METHOD)
    for words in lines(EXAMPLES[name]):
        if words != ["render", "page"]:  # Others make one.
            assert main(words) == 0, capsys.readouterr().err


# --- Wrong ----------------------------------------------------------------------------------------

#: A command, and what it says; of those that read what an empty folder lacks, any sentence.
WRONG = [
    ("table main", "there is no command 'table'; 'fedsdg render' does it now"),
    ("train", "there is no command 'train'; 'fedsdg run' does it now"),
    ("metods", "there is no command 'metods'; did you mean 'methods'?"),
    ("methods shwo krum", "there is no method 'shwo'; did you mean 'show'?"),
    ("methods --plugn", "there is no option '--plugn'; did you mean '--plugin'?"),
    ("check --josn=1", "there is no option '--josn'; did you mean '--json'?"),
    ("aggregate --on-nonfinite dorp", "--on-nonfinite cannot be 'dorp'; did you mean"),
    ("completion bsh", "shell cannot be 'bsh'; did you mean 'bash'?"),
    ("arenas cross-needs", "nothing takes 'cross-needs'; see 'fedsdg arenas --help'"),
    ("run --jobs two", "--jobs: must be a whole number from 1, not 'two'; see 'fedsdg"),
    ("run --minutes -1", "argument --minutes: must be a number from 0, not '-1'"),
    ("", "the following arguments are required: command; see 'fedsdg --help'"),
    ("methods show scafold", "there is no method 'scafold'; did you mean 'scaffold'?"),
    ("run --method scafold", "unknown method 'scafold'; did you mean 'scaffold'?"),
    (
        "run --method krum --skew dirchlet~0.1",
        "'dirchlet~0.1' is not a skew; did you mean 'dirichlet~0.1'?",
    ),
    ("run --grid --only sead~0", "'sead~0' names nothing of the grid; did you mean"),
    (
        "run --config extended/label-noise --grid smoke --only seed~9",
        "'seed~9' names nothing of the grid; did you mean 'seed~0'?",
    ),
    ("pretrain --backbone lettres --output x", "did you mean 'letters'?"),
    ("render man", "there is no table, figure or metric 'man'; did you mean 'main'?"),
    ("render figure:main", "there is no figure or metric 'main'; did you mean"),
    ("render progres", "did you mean 'progress'?"),
    ("run --method krum --dataset mnst", "unknown data set 'mnst'; did you mean"),
    ("check --set federation.ronds=3", "'ronds'; did you mean 'rounds'?"),
    ("run --method fedsdg --jobs 3", "--jobs is for a whole grid: add --grid"),
    ("run --method fedsdg --runs-only", "--runs-only is for a whole grid"),
    ("run --grid --skew iid", "--skew is for one run; choose runs of a grid with"),
    ("pretrain --output .", ". is a folder, but a file is written"),
    (f"run --method fedsdg --output {__file__}", "is a file, but a folder is needed"),
    (
        "partition --dataset digits --skew iid --seed 0 1 --output x x",
        "--output names x twice; name one file a seed",
    ),
    ("render ledger", "there is no table, figure or metric 'ledger'"),
    ("run --method fedsdg", "name one skew with --skew: dirichlet~0.1, dirichlet~0.3"),
    ("run --method fedsdg --skew iid@slow", "--skew is 'iid@slow', but must be one of iid\n"),
    (
        "run --method cgsv-xu --skew iid",
        "cgsv-xu weighs all clients in every round, but 10 of the 20 take part",
    ),
    (
        "run --method fedsdg --skew classes~1 --set partition.retries=0 partition.min_samples=72",
        "too few for 20 clients of at least 72",
    ),
    ("partition --dataset digitz --skew iid --seed 0 --output x", "did you mean 'digits'?"),
    ("partition --dataset digits --skew dirichlet~0 --seed 0 --output x", "dirichlet~0"),
    ("partition --dataset digits --clients 500 --skew iid --seed 0 --output x", "500"),
    ("agree cross-needs", "there is no command 'agree'; 'make reproduce' does it now"),
    ("record cross-needs", ""),
    ("summarise --succeeded x --output y", ""),
    ("verify", ""),
    ("search --show", ""),
    ("trace x.csv:2", ""),
    ("trace x/iid/fedsdg accuracy", ""),
    ("render claims", ""),
    ("render page", ""),
    ("render main progress --summary x --output y", ""),
    ("run --grid no.yaml", ""),
    ("render speed --measured x --output y", ""),
    ("summarise --runs x --output y", ""),
]


@pytest.mark.parametrize(("command", "sentence"), WRONG)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(
    command, sentence, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for variable in ("FEDSDG_CONFIG", "FEDSDG_STORE"):
        monkeypatch.delenv(variable, raising=False)
    try:
        code = main(command.split())
    except SystemExit as end:
        code = end.code
    error = capsys.readouterr().err
    assert code == 2 and error.startswith("fedsdg: error: ") and sentence in error
    assert error.count("\n") == 1 and len(error.split()) > 6
    assert not list(tmp_path.iterdir())


def test_an_experiment_that_was_not_computed_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/summary/cross-needs").mkdir(parents=True)
    assert main(["record", "cros-needs"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "cros-needs" in error and "did you mean 'cross-needs'?" in error


def test_every_option_of_every_command_is_explained():
    known = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    for name, sub in known.choices.items():
        for one in sub._actions:
            assert one.help, f"{name} {one.dest}"


# --- Places to write to ---------------------------------------------------------------------------


UNWRITABLE = [
    "run --method krum --skew iid --output /dev/null/here",
    "partition --dataset digits --skew iid --seed 0 --output /dev/null/here",
    "pretrain --output /dev/null/here",
    "render main --summary results/reference/cross-needs --output /dev/null/here",
    "summarise --runs results/runs/x --output /dev/null/here",
]


def test_a_place_that_cannot_be_written_is_one_sentence_before_anything_is_imported():
    """In a process of its own, in which torch would be seen."""
    seen = "\nassert not {'torch', 'matplotlib'} & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE + seen, *UNWRITABLE],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == len(UNWRITABLE)
    sentence = "/dev/null/here cannot be written (Not a directory): change the permissions of /dev/"
    for code, _, errors in said:
        assert code == 2 and errors.count("\n") == 1 and sentence in errors


def test_a_full_folder_is_named_with_the_remedy(monkeypatch, tmp_path, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    assert main(["pretrain", "--output", "weights.safetensors"]) == 2
    assert capsys.readouterr().err == (
        "fedsdg: error: weights.safetensors cannot be written (No space left on device): make room "
        f"in {tmp_path}, or name another place with --output\n"
    )
