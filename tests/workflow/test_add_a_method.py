"""docs/add-a-method.md, followed to the letter: its file, its config, its commands."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from fedsdg.aggregation import aggregate
from fedsdg.analysis.metrics import METRICS
from fedsdg.experiment.method_entries import method_entry
from fedsdg.methods.plugins import OfferedData, contents, described, find_plugin
from fedsdg.parts import Range

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/add-a-method.md"
TABLE = "results/tables/clipped/main.md"
CELLS = "results/runs/clipped/digits/clients~20/dirichlet~0.3"


def blocks(language: str) -> list[str]:
    """The code blocks of a language, in the order of the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The METHODS of the document's file."""
    file = tmp_path_factory.mktemp("plugin") / "clipped.py"
    file.write_text(blocks("python")[0], encoding="utf-8")
    return contents(find_plugin(str(file)))["METHODS"]


def test_rule_and_term_take_under_forty_lines():
    assert blocks("python")[0].count("\n") < 40


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """All files of the document in one."""
    file = tmp_path_factory.mktemp("plugin") / "examples.py"
    file.write_text("\n".join(blocks("python")), encoding="utf-8")
    return find_plugin(str(file))


def test_all_examples_together_are_one_plugin(examples):
    plugin = examples
    found = {table: list(rows) for table, rows in contents(plugin).items() if rows}
    assert found == {
        "METHODS": ["clipped-mean", "fedavgm", "fltrust"],
        "OPTIMISERS": ["sign"],
        "ATTACKS": ["away"],
        "DATASETS": ["checks"],
    }
    assert OfferedData("checks", plugin).load().images.shape == (400, 8, 8)
    assert METRICS["largest_update"].columns == ("round", "update_norm_max")
    stated = {
        name: {key: (one.default, one.range, bool(one.meaning)) for key, one in known.items()}
        for table in ("METHODS", "OPTIMISERS", "ATTACKS")
        for name, known in ((n, row.parameters) for n, row in described(plugin)[table].items())
    }
    assert stated == {
        "clipped-mean": {"bound": (1.0, Range(0), True), "nu": (1e-4, Range(0), True)},
        "fedavgm": {"beta": (0.9, Range(0, 0.999), True)},
        "fltrust": {},
        "sign": {"share": (0.9, Range(0, 1), True)},
        "away": {"scale": (1.0, Range(0, 1e6), True)},
    }


def test_the_entries_of_the_documents_config_are_as_it_says(tmp_path):
    file = tmp_path / "clipped.py"
    file.write_text(blocks("python")[0], encoding="utf-8")
    plugins = [find_plugin(str(file))]
    entries = yaml.safe_load(blocks("yaml")[0])["methods"]
    found = {one.label: one.parameters for one in (method_entry(e, plugins) for e in entries)}
    assert found == {
        "fedavg": {"weights": "samples"},
        "clipped-mean": {"bound": 1.0, "nu": 1e-4},
        "clipped-half": {"bound": 0.5, "nu": 0.001},
    }
    bad = {"type": "clipped-mean", "bound": -1}
    with pytest.raises(ValueError, match="clipped-mean.bound is -1, but must be at least 0"):
        method_entry(bad, plugins)


@pytest.mark.parametrize("bound", [0.5, 1.0, 3.0])
def test_the_rule_is_the_mean_of_updates_cut_to_the_bound(rows, bound):
    updates = np.random.default_rng(0).normal(size=(5, 7))
    updates[0] = 0
    updates[1] *= 1e6
    rule = rows["clipped-mean"].with_values({"bound": bound}).rule
    step = aggregate(rule, np.zeros(7), list(updates)).parameters
    norms = np.linalg.norm(updates, axis=1)
    limit = bound * np.median(norms)
    cut = updates * np.minimum(1, limit / np.maximum(norms, 1e-300))[:, None]
    assert step == pytest.approx(cut.mean(axis=0))
    assert np.linalg.norm(step) <= limit


def test_the_rule_with_state_is_momentum_of_the_server(examples):
    """v ← β v + mean: after updates of 1 in each of three rounds 1, 1.9 and 2.71."""
    rule, theta, state = contents(examples)["METHODS"]["fedavgm"].rule, np.zeros(4), None
    for t in (1, 2, 3):
        result = aggregate(rule, theta, [theta + 1] * 3, num_clients=3, round=t, state=state)
        theta, state = result.parameters, result.state
        assert theta == pytest.approx([1.0, 2.9, 5.61][t - 1])


def test_the_term_adds_the_gradient_of_its_value(rows):
    (term,) = rows["clipped-mean"].with_values({"nu": 0.3}).objective
    generator = torch.Generator().manual_seed(0)
    theta, start, before = (torch.randn(3, 5, generator=generator) for _ in range(3))
    theta.requires_grad_()
    seen = SimpleNamespace(theta=theta, start=start, theta_grad=before.clone())
    value = term.value(seen)
    assert value.shape == (3,)
    (slope,) = torch.autograd.grad(value.sum(), theta)
    with torch.no_grad():
        term.add_gradient(seen)
    torch.testing.assert_close(seen.theta_grad, before + slope)


@pytest.fixture(scope="module")
def followed(check_out, tmp_path_factory):
    """A checkout in which the document was followed: its folder, and what each command printed.

    ``run(command)`` gives a further command there.
    """
    folder = tmp_path_factory.mktemp("followed")
    script = f'#!/bin/sh\nPYTHONPATH="{folder}/project" exec "{sys.executable}" -m fedsdg "$@"\n'
    project = check_out(folder / "project", script)
    (project.folder / "clipped.py").write_text(blocks("python")[0], encoding="utf-8")
    (project.folder / "clipped.yaml").write_text(*blocks("yaml"), encoding="utf-8")
    # Smaller still than it is: what comes of it is not looked at here.
    smoke = project.folder / "config/smoke.yaml"
    raw = yaml.safe_load(smoke.read_text())
    raw["backbones"]["letters-small"] |= {"images": 400, "held_out": 100, "epochs": 1}
    raw["federation"]["rounds"] = 2
    smoke.write_text(yaml.safe_dump(raw | {"tables": ["main"], "figures": ["partition"]}))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FEDSDG_")}
    places = (project.commands, Path(sys.executable).parent, environment["PATH"])
    environment["PATH"] = os.pathsep.join(map(str, places))

    def run(command: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", command],
            cwd=project.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return SimpleNamespace(folder=project.folder, printed=[*map(run, blocks("sh"))], run=run)


@pytest.mark.slow
def test_the_method_is_listed_below_those_of_the_package(followed):
    last = followed.printed[0].splitlines()[-1]
    # As wide as the terminal, here 80 columns.
    assert re.match(r"  clipped-mean +Clipped mean, pulled +ClippedMean \+ Pul", last)


@pytest.mark.slow
def test_all_that_is_asked_of_its_parts_holds(followed):
    summary, not_seen = followed.printed[1].splitlines()
    assert re.fullmatch(r"clipped.py: \d\d passed, \d do(es)? not apply .--verbose.", summary)
    assert not_seen.startswith("Not seen: ")


@pytest.mark.slow
def test_the_table_has_a_row_for_every_entry(followed):
    table = (followed.folder / TABLE).read_text(encoding="utf-8")
    first = re.findall(r"^\| \**([^|*]+?)\** +\|", table, re.MULTILINE)
    assert first[-3:] == ["FedAvg (samples)", "Clipped mean, pulled", "clipped-half"]
    assert (followed.folder / "results/summary/clipped/verified.txt").exists()


@pytest.mark.slow
def test_snakemake_finds_all_made_and_takes_what_is_lost_from_the_store(followed):
    assert "Nothing to be done" in followed.printed[3]
    cell = followed.folder / CELLS / "clipped-half"
    before = (cell / "seed~0/provenance.json").read_bytes()
    shutil.rmtree(cell)
    followed.run(blocks("sh")[3].replace("snakemake --cores 2", "snakemake runs --cores 1"))
    assert (cell / "seed~0/provenance.json").read_bytes() == before, "the run was trained again"


@pytest.mark.slow
def test_the_runs_know_the_file_that_their_method_is_from(followed):
    results = {
        label: json.loads((followed.folder / CELLS / label / "seed~0/result.json").read_text())
        for label in ("fedavg", "clipped-half", "clipped-mean")
    }
    file = find_plugin(str(followed.folder / "clipped.py"))
    assert "plugin" not in results["fedavg"]["config"]
    for label in ("clipped-half", "clipped-mean"):
        assert results[label]["config"]["plugin"] == {"name": "clipped.py", "sha256": file.sha256}
    half, whole = (results[label]["last"] for label in ("clipped-half", "clipped-mean"))
    assert half["global_loss"] != whole["global_loss"] != results["fedavg"]["last"]["global_loss"]
