"""`fedsdg aggregate`: files in, a file and a report out."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsdg.aggregation import aggregate
from fedsdg.cli import main


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """theta_g, theta_k of seven clients, and their files in the working folder."""
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    theta = {"w": torch.randn(50, 20, generator=generator), "b": torch.ones(20)}
    clients = [
        {
            name: t + 0.1 + 0.1 * torch.randn(t.shape, generator=generator)
            for name, t in theta.items()
        }
        for _ in range(7)
    ]
    for folder in ("clients", "controls"):
        (tmp_path / folder).mkdir()
    save_file(theta, "g.safetensors")
    for k, params in enumerate(clients):
        save_file(params, f"clients/c{k}.safetensors", metadata={"num_samples": str(10 * k + 10)})
        save_file(params, f"controls/c{k}.safetensors")
    return theta, clients


FILES = [f"clients/c{k}.safetensors" for k in range(7)]


def command(*arguments, rule="fedsdg", out="new.safetensors"):
    return main(
        ["aggregate", "--rule", rule, "--global", "g.safetensors", "--out", out,
         "--clients", *FILES, *arguments]
    )  # fmt: skip


RULES = {
    "fedsdg": "fedsdg",
    "fedavg": "fedavg",
    "{type: krum, f: 2}": {"type": "krum", "f": 2},
    "{type: fedsdg, max_weight: 0.2}": {"type": "fedsdg", "max_weight": 0.2},
}


@pytest.mark.parametrize("rule", RULES)
def test_it_does_what_the_door_does(rule, federation, capsys):
    theta, clients = federation
    assert command(rule=rule) == 0
    report = json.loads(capsys.readouterr().out)
    samples = [10 * k + 10 for k in range(7)]
    expected = aggregate(RULES[rule], theta, clients, num_samples=samples)
    for name, tensor in load_file("new.safetensors").items():
        torch.testing.assert_close(tensor, expected.parameters[name], rtol=1e-6, atol=1e-6)
    assert list(report["clients"]) == FILES
    weights = [facts["weight"] for facts in report["clients"].values()]
    assert weights == pytest.approx(expected.weights, abs=1e-6)
    assert report["global"] == "g.safetensors" and report["out"] == "new.safetensors"


@pytest.mark.parametrize(
    ("option", "rule"),
    [("--num-samples", "fedavg"), ("--num-batches", "{type: fedavg, weights: batches}")],
)
def test_counts_and_report_are_files(federation, capsys, tmp_path, option, rule):
    counts = {f"c{k}": k + 1 for k in range(7)}
    (tmp_path / "n.json").write_text(json.dumps(counts))
    assert command(option, "n.json", "--report", "new.json", rule=rule) == 0
    assert capsys.readouterr().out == ""
    report = json.loads((tmp_path / "new.json").read_text())
    weights = [facts["weight"] for facts in report["clients"].values()]
    assert weights == pytest.approx([(k + 1) / 28 for k in range(7)])


def test_rounds_of_a_rule_with_state(federation, capsys, tmp_path):
    (tmp_path / "all.json").write_text(json.dumps([10] * 9))
    first = ["--client-samples", "all.json", "--state-out", "s1"]
    assert command(*first, rule="cgsv", out="g1.safetensors") == 0
    second = ["--num-clients", "9", "--round", "2", "--state", "s1", "--state-out", "s2"]
    assert command(*second, rule="cgsv", out="g2.safetensors") == 0
    assert load_file("s2")["participations"].tolist() == [2] * 7 + [0] * 2
    uploads = ["--num-clients", "9", "--upload", "control=controls", "--state-out", "s3"]
    assert command(*uploads, rule="scaffold", out="g3.safetensors") == 0
    assert load_file("s3")["control"].shape == (1020,)


@pytest.mark.parametrize(
    ("arguments", "rule", "sentence"),
    [
        ([], "krun", "the package has no rule 'krun'; did you mean 'krum'?"),
        ([], "{type: krum, g: 2}", "unknown key 'g'; known are f"),
        ([], "[krum]", "rule is a list; give a name"),
        ([], "{type: krum", "--rule"),
        (["--report", "g.safetensors"], "fedsdg", "g.safetensors exists; choose another name, or"),
        (["--num-samples", "g.safetensors"], "fedavg", "g.safetensors is not JSON"),
        (["--state", "none"], "cgsv", "none: there is no such file"),
        (["--upload", "control=clients"], "fedsdg", "is given twice"),
        ([], "cgsv", "give client_samples"),
    ],
)
def test_wrong_files_are_one_sentence(arguments, rule, sentence, federation, capsys, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    assert command(*arguments, rule=rule) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("fedsdg: error: ") and sentence in said[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_arguments_that_are_none(federation, refused):
    words = ["aggregate", "--rule", "krum", "--global", "g.safetensors", "--out", "new"]
    sentence = refused(*words, "--clients", *FILES, "--on-nonfinite", "skip")
    assert "'raise', 'drop'" in sentence
    assert "'--clients'" in refused(*words, "--clients")
    assert "NAME=FOLDER" in refused(*words, "--clients", *FILES, "--upload", "control")


SLOWLY = """
import sys, time
from fedsdg.aggregation import files
from fedsdg.cli import main

def slowly(*given):
    print("writing", flush=True)
    for _ in range(600):  # A signal that comes just before a sleep does not end it.
        time.sleep(0.1)

files._write_result = slowly
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_job_that_is_ended_removes_what_it_has_begun(how, code, federation, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    arguments = ["aggregate", "--rule", "krum", "--global", "g.safetensors", "--out", "new"]
    with subprocess.Popen(
        [sys.executable, "-c", SLOWLY, *arguments, "--clients", *FILES],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(how)
        assert process.wait(timeout=60) == code
        (said,) = process.stderr.read().decode().splitlines()
    assert said.startswith("fedsdg: interrupted")
    assert sorted(tmp_path.rglob("*")) == before
