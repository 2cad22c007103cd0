"""Bad input is one sentence with exit code 2; streams that are closed, full or narrow."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedsdg.cli import main
from tests.cli.conftest import TINY, outcome, python

WRONG = [
    ("", "Missing command; see 'fedsdg --help'"),
    ("metods", "Did you mean 'methods'?"),
    (
        "methods scafold",
        "neither the package nor --plugin has a method 'scafold'; did you mean 'scaffold'?",
    ),
    ("arenas needs", "needs"),
    ("aggregate --rule fedavg", "'--global'"),
    ("grid --only", "'--only'"),
    ("grid smoke --only sead~0", "the grid has nothing called 'sead~0'; did you mean 'seed~0'?"),
    ("grid smoke --set tables=['mian']", "no table or metric 'mian'; did you mean 'main'?"),
    ("check --set figures=['progess']", "did you mean 'progress'?"),
    ("grid no.yaml", "there is no config file no.yaml"),
    ("run --method krum --skew dirchlet~0.1", "did you mean 'dirichlet"),
    ("run --method fedsdg", "name one skew with --skew: dirichlet~0.1, dirichlet~0.3"),
    ("run --method fedsdg --skew iid@slow", "--skew is 'iid@slow', but must be one of iid"),
    ("run --method cgsv-xu --skew iid", "10 of the 20 take part"),
    ("check --set federation.ronds=3", "'ronds'; did you mean 'rounds'?"),
    ("check mine.py --config smoke", "leave out --config smoke"),
    ("check mine.py", "there is no plugin file mine.py"),
    ("pretrain --backbone lettres --output x", "did you mean 'letters'?"),
    ("partition --dataset digits --skew iid --seed 0 1 --output x x", "name one --output a seed"),
    ("evaluate mine", "name data sets with --data"),
    ("render man", "there is no table, figure or metric 'man'; did you mean 'main'?"),
    ("render claims", "there is no claims.yaml here"),
    ("render page", ""),
    ("summarise --output y", "--runs"),
    ("summarise --output y --runs x --succeeded z", "give one of them"),
    ("pretrain --output y.txt", "must end in .safetensors"),
    ("partition --dataset digits --skew iid --seed 0 --output .", "is a folder; name a file"),
    ("render regret --metric acuracy", "did you mean 'accuracy'?"),
    ("render regret --metric gate", "there is no regret in 'gate'"),
    ("search --config smoke --show", "results/search/smoke.json"),
    ("compare mine.py --arena neads", "did you mean 'needs'?"),
]
"""A command, and what it says; "" where others test the sentence."""


@pytest.mark.parametrize(("words", "part"), WRONG)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(words, part, empty, refused):
    sentence = refused(*words.split())
    assert part in sentence and len(sentence.split()) > 5
    assert not [file for file in empty.rglob("*") if file.is_file()]


UNWRITABLE = [
    "run --config smoke --method krum",
    "grid smoke",
    "record smoke",
    "pretrain --output x",
]


@pytest.mark.parametrize("words", UNWRITABLE)
def test_a_read_only_folder_is_named_before_anything_is_computed(
    words, empty, refused, monkeypatch
):
    monkeypatch.setattr("os.access", lambda *_: False)  # Root may write everywhere.
    assert "cannot be written: change the permissions of" in refused(*words.split())


UNUSABLE = [
    ("run --config smoke --method krum --output taken", "/taken is a file; rename one"),
    ("pretrain --output taken/x", "/taken is a file; rename one"),
    ("search --config tiny.yaml --output .", "--output . is a folder; name a file"),
    ("grid tiny.yaml --set datasets=[{name:\xa0x,folder:\xa0gone}]", "error: data set 'x': there"),
]


@pytest.mark.parametrize(("words", "part"), UNUSABLE)
def test_a_place_of_another_kind_is_named_before_anything_is_computed(words, part, empty, refused):
    Path("taken").touch()
    Path("tiny.yaml").write_text(yaml.safe_dump(TINY))
    assert part in refused(*(word.replace("\xa0", " ") for word in words.split(" ")))
    assert not Path(".fedsdg").exists()


def test_the_place_of_an_error_is_shown_on_demand(empty):
    with pytest.raises(ValueError, match="has a method 'scafold'"):
        main(["--traceback", "methods", "scafold"])


def test_a_closed_standard_output_is_no_error():
    closed = "import os, sys; os.close(1); os.execv(sys.executable, sys.argv[1:])"
    words = [sys.executable, "-m", "fedsdg", "methods"]
    assert outcome("-c", closed, *words) == (0, "", "")


def test_a_reader_that_has_gone_ends_a_command_without_a_word():
    reading, writing = os.pipe()
    os.close(reading)
    with python("-m", "fedsdg", "methods", stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        assert (process.wait(), process.stderr.read()) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_standard_output_is_named():
    full = open("/dev/full", "w")  # noqa: SIM115 - the process has it
    with full, python("-m", "fedsdg", "methods", stdout=full, stderr=subprocess.PIPE) as process:
        assert process.wait() == 2
        (sentence,) = process.stderr.read().splitlines()
    assert "standard output cannot be written to (No space left on device)" in sentence


def test_letters_that_the_output_lacks_are_replaced():
    words = ["-m", "fedsdg", "methods", "show", "fedsdg"]
    code, printed, errors = outcome(*words, env={"PYTHONIOENCODING": "ascii"})
    assert (code, errors) == (0, "") and "?_k w_k" in printed and "lambda2" in printed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_with_a_sentence(number, code, here, tmp_path):
    endless = TINY | {"federation": TINY["federation"] | {"rounds": 100_000}}
    (tmp_path / "endless.yaml").write_text(yaml.safe_dump(endless))
    words = ["run", "--config", str(tmp_path / "endless.yaml"), "--method", "fedavg"]
    words += ["--output", str(tmp_path / "run")]
    with python("-m", "fedsdg", *words, stderr=subprocess.PIPE) as process:
        for line in process.stderr:
            if "fedavg seed 0: round" in line:
                break
        process.send_signal(number)
        *_, sentence = process.stderr
        assert process.wait(timeout=30) == code
    assert "the same command" in sentence


def test_a_full_disk_is_said_without_the_number_of_the_error(refused, monkeypatch):
    def fail(*_):
        raise OSError(28, "x cannot be written (No space left on device); make room")

    monkeypatch.setattr("fedsdg.config.layers.load", fail)
    assert refused("check").endswith(
        "error: x cannot be written (No space left on device); make room"
    )


def test_a_failing_run_exits_with_one_and_its_records_say_why(here, capsys):
    words = ["run", "--config", "tiny.yaml", "--method", "fedavg", "--output", "failed"]
    words += ["--set", "training.optimiser=sgd", "training.eta_g=1.0e+38"]
    words += ["training.clip_norm=1.0e+30", "training.kernel=torch"]
    assert main(words) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "fedavg seed 0 failed: " in error and "not finite" in error
    assert '"status": "failed"' in Path("failed/result.json").read_text()
