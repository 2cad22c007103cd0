"""An experiment about another method than FedSDG: its pages are about that one."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedsdg.analysis.claims import write_claims
from fedsdg.analysis.plots import write_figure
from fedsdg.analysis.summarise import summarise
from fedsdg.analysis.summary import Summary, usual_roles
from fedsdg.cli import main

from .conftest import Plan, markdown, write_runs

METHODS = ("fedsdg", "krum", "fedavg", "scaffold", "local-only")
ROLES = {"subject": "krum", "baselines": ["scaffold", "fedavg"], "ceiling": "local-only"}


@pytest.fixture(scope="module")
def module_runs(tmp_path_factory):
    return write_runs(tmp_path_factory.mktemp("runs") / "tried", Plan(methods=METHODS))


@pytest.fixture(scope="module")
def about_krum(module_runs, tmp_path_factory):
    """The summary of an experiment whose subject is Krum."""
    folder = tmp_path_factory.mktemp("about") / "summary"
    summarise(module_runs.runs, folder, roles=ROLES)
    return folder


def test_differences_are_the_subjects(about_krum, module_runs):
    rows = pq.read_table(about_krum / "differences.parquet").to_pylist()
    assert {row["subject"] for row in rows} == {"krum"}
    assert {row["rival"] for row in rows} == {*METHODS} - {"krum"}
    for row in rows:
        if row["metric"] == "personal_accuracy":
            mine, other = (
                module_runs.values(row["skew"], method, row["metric"], row["at"])
                for method in ("krum", row["rival"])
            )
            assert row["mean"] == pytest.approx(np.mean(mine - other))


@pytest.mark.usefixtures("as_svg")
def test_table_figure_and_claims_say_whose_they_are(about_krum, tmp_path):
    text = markdown(about_krum, "differences")
    assert text.startswith("Krum minus each other method") and "| Krum minus |" in text
    assert "FedSDG minus" not in text and "| FedSDG " in text
    facts, claims = write_claims(about_krum, tmp_path / "claims")
    others = json.loads(facts.read_text("utf-8"))["described"]
    rivals = [*ROLES["baselines"], "local-only"]
    assert list(dict.fromkeys(one["rival"] for one in others)) == rivals
    assert {one["subject"] for one in others} == {"krum"}
    assert "- Krum minus SCAFFOLD in personal accuracy: " in claims.read_text("utf-8")
    for figure, phrases in (
        ("differences", ["Krum minus each other method", "Right of zero Krum is better"]),
        ("convergence", ["in colour: Krum, SCAFFOLD, fine-tuning, local only, and"]),
        ("weights", ["Aggregation weights of Krum by round"]),
    ):
        *_, sidecar = write_figure(about_krum, figure, tmp_path / figure)
        facts = json.loads(sidecar.read_text("utf-8"))
        assert all(phrase in facts["caption"] for phrase in phrases)
        assert any(file.endswith("/roles.json") for file in facts["inputs"])


def test_a_record_that_says_nothing_has_the_usual_roles(module_runs, tmp_path):
    summarise(module_runs.runs, tmp_path)
    before = markdown(tmp_path, "differences")
    assert usual_roles().subject == "fedsdg" and usual_roles().ceiling == "centralised"
    for _ in range(2):
        assert Summary(tmp_path).roles == usual_roles()
        assert markdown(tmp_path, "differences") == before
        (tmp_path / "roles.json").unlink(missing_ok=True)
    assert "| FedSDG minus " in before


def test_the_config_says_who_is_who_and_the_record_keeps_it(
    module_runs, tmp_path, monkeypatch, capsys, refused
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(module_runs.runs, "results/runs/tried")
    given = "roles={subject: krum, baselines: [fedavg, scaffold], ceiling: null}"
    grid = ["experiment=tried", "skews=[dirichlet~0.1]", "seeds=[0,1]", "federation.clients=12"]
    call = ["summarise", "--runs", "results/runs/tried", "--output", "results/summary/tried"]
    assert main([*call, "--set", given, *grid]) == 0
    shared = {"subject": "krum", "baselines": ["fedavg", "scaffold"], "ceiling": None}
    assert json.loads((tmp_path / "results/summary/tried/roles.json").read_text()) == shared
    assert not Summary("results/summary/tried").roles.is_ceiling("centralised")
    write_claims("results/summary/tried", "results/claims/tried")
    for again in ((), ("--merge",)):
        assert main(["record", "tried", *again]) == 0, capsys.readouterr().err
        kept = Summary("results/reference/tried")
        assert kept.roles.subject == "krum"
        assert {row["subject"] for row in kept.rows("differences")} == {"krum"}
    said = refused(*call, "--set", "roles.subject=krumm")
    assert "roles.subject: the config has no method 'krumm'; did you mean 'krum'" in said
