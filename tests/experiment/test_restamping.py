"""Recorded runs get the address of other code where the gate has shown that it computes alike."""

import dataclasses
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedsdg.analysis.record import STAMPS, write_record_hashes
from fedsdg.cli import main
from fedsdg.experiment.continuing import take_from_record
from fedsdg.experiment.restamping import Kind, commits, kind_of, lacking, restamp
from fedsdg.files import git, read_json, write_json

from .test_continuing import CASES, computed, here  # noqa: F401

OLD, NEW, LATER = "a" * 40, "b" * 40, "c" * 40
RECORD = Path("results/reference/tried")


def configs():
    rows = pq.read_table(RECORD / "runs.parquet").to_pylist()
    return [json.loads(row["config"]) for row in rows]


def origins(**facts):
    """All runs of the record were made there."""
    entries = json.loads((RECORD / "provenance.json").read_text())
    write_json(RECORD / "provenance.json", [{**one, "dirty": False, **facts} for one in entries])
    write_record_hashes(RECORD)


def evidence(old=OLD, new=NEW, kinds=None, different=()):
    file = Path("evidence.json")
    kinds = map(kind_of, configs()) if kinds is None else kinds
    said = {"old": old, "new": new, "lines": ["tried: the same"], "different": list(different)}
    write_json(file, {**said, "same": [kind.to_dict() for kind in kinds]})
    return file


@pytest.fixture
def older(computed, here):  # noqa: F811
    """A record of code that is no longer there; the addresses that its runs have today."""
    file = RECORD / "runs.parquet"
    table = pq.read_table(file)
    rows = [row | {"source_hash": "0" * 64} for row in table.to_pylist()]
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), file)
    origins(commit=OLD)
    wanted = computed[1].addresses()
    assert take_from_record("tried", wanted, here / "runs") == 0
    return wanted


def test_runs_are_taken_by_either_address_once_they_are_stamped(older, here):  # noqa: F811
    (line,) = restamp("tried", OLD, NEW, evidence())
    assert line == f"tried: {len(CASES)} runs have the address of {NEW[:12]} as well"
    assert take_from_record("tried", older, here / "runs") == len(CASES)
    recorded = [dataclasses.replace(one, source_hash="0" * 64) for one in older]
    assert take_from_record("tried", recorded, here / "others") == len(CASES)
    (entry,) = read_json(RECORD / STAMPS)
    assert (entry["old"], entry["new"], entry["gate"]) == (OLD, NEW, ["tried: the same"])
    hashes = (RECORD / "SHA256SUMS").read_text()
    assert STAMPS in hashes
    # Once more is the same, and stamps follow one another.
    restamp("tried", OLD, NEW, evidence())
    assert len(read_json(RECORD / STAMPS)) == 1
    restamp("tried", NEW, LATER, evidence(NEW, LATER))
    assert [one["new"] for one in read_json(RECORD / STAMPS)] == [NEW, LATER]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"commit": OLD, "dirty": True}, f"{len(CASES)} runs of {OLD[:12]} with changes keep"),
        ({"commit": None}, f"{len(CASES)} runs of an unknown commit keep"),
        ({"commit": LATER}, f"{len(CASES)} runs of {LATER[:12]} keep"),
    ],
)
def test_runs_of_unknown_changed_or_other_commits_are_listed(older, here, facts, words):  # noqa: F811
    origins(**facts)
    (line,) = restamp("tried", OLD, NEW, evidence())
    assert words in line
    assert not (RECORD / STAMPS).exists()
    assert take_from_record("tried", older, here / "runs") == 0


def test_without_evidence_of_this_pair_and_of_every_run_nothing_is_stamped(older):
    with pytest.raises(FileNotFoundError, match=f"no evidence in none.json.*BASE={OLD[:12]}"):
        restamp("tried", OLD, NEW, Path("none.json"))
    with pytest.raises(ValueError, match=f"is of {NEW[:12]} and {LATER[:12]}, not of {OLD[:12]}"):
        restamp("tried", OLD, NEW, evidence(NEW, LATER))
    with pytest.raises(ValueError, match="and changed files, not of"):
        restamp("tried", OLD, NEW, evidence(new=None))
    with pytest.raises(ValueError, match="do not compute alike: arena/x: the hash of its models"):
        restamp("tried", OLD, NEW, evidence(different=["arena/x: the hash of its models differs"]))
    kinds = [kind for kind in map(kind_of, configs()) if kind.method != "cgsv"]
    with pytest.raises(ValueError, match="cgsv/seed~1 is not covered .*the method 'cgsv'"):
        restamp("tried", OLD, NEW, evidence(kinds=kinds))
    with pytest.raises(FileNotFoundError, match="no record of 'untried'"):
        restamp("untried", OLD, NEW, evidence())
    assert not (RECORD / STAMPS).exists()


def test_a_run_is_covered_by_method_or_parts_on_its_path_and_by_what_it_meets():
    path = ("compiled", "float32", "cpu", "adapters")
    krum = Kind("krum", ("Krum",), path, frozenset({"dropout", "optimiser: adam"}))
    mean = Kind("fedavg", ("Mean",), path, frozenset({"attack alie", "optimiser: sgd"}))
    run = Kind("krum", ("Krum",), path, frozenset({"attack alie", "optimiser: adam"}))
    assert lacking(run, [krum, mean]) == []
    assert lacking(dataclasses.replace(run, method="my-krum"), [krum, mean]) == []
    other = dataclasses.replace(run, method="cgsv", parts=("Cgsv",))
    assert lacking(other, [krum, mean]) == ["the method 'cgsv'"]
    noisy = dataclasses.replace(run, meets=run.meets | {"label_noise"})
    assert lacking(noisy, [krum, mean]) == ["label_noise"]
    torch = dataclasses.replace(run, path=("torch", *path[1:]))
    assert lacking(torch, [krum, mean]) == ["the path torch, float32, cpu, adapters"]
    # What another path met says nothing of this one.
    on_torch = dataclasses.replace(mean, path=torch.path)
    assert lacking(run, [krum, on_torch]) == ["attack alie"]


def test_a_kind_names_conditions_and_words_and_no_numbers(computed, here):  # noqa: F811
    kinds = {kind.method: kind for kind in map(kind_of, configs())}
    attacked = kinds["fedavg"].meets
    assert {"attack sign-flip", "dropout", "optimiser: adam"} <= attacked
    assert not any("0." in word for word in attacked)
    assert "gate: block" in kinds["fedsdg"].meets
    config = next(one for one in configs() if one["method"] == "fedavg")
    del config["training"]["kernel"]
    assert kind_of(config).path[0] == "torch"  # as runs were before the key
    assert "seeds together" in kind_of(config, seeds=2).meets


def test_a_plugin_s_run_keeps_its_address(older):
    file = RECORD / "runs.parquet"
    table = pq.read_table(file)
    rows = table.to_pylist()
    config = json.loads(rows[0]["config"]) | {"plugin": {"place": "mine.py"}}
    rows[0]["config"] = json.dumps(config)
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), file)
    write_record_hashes(RECORD)
    kinds = evidence(kinds=[kind_of(one) for one in configs()])
    with pytest.raises(ValueError, match="takes code from a plugin, of which the gate knows"):
        restamp("tried", OLD, NEW, kinds)


@pytest.mark.skipif(git("rev-parse", "HEAD") is None, reason="needs the history")
def test_the_code_at_hand_is_that_of_the_second_commit(monkeypatch, here, capsys):  # noqa: F811
    head, before = (git("rev-parse", name) for name in ("HEAD", "HEAD^"))
    if not git("diff", "--stat", "HEAD", "--", "."):
        assert commits("HEAD^", "HEAD") == (before, head)
    with pytest.raises(ValueError, match="there is no commit 'nowhere' here"):
        commits("nowhere", "HEAD")
    first = git("rev-list", "--max-parents=0", "HEAD").splitlines()[0]
    with pytest.raises(ValueError, match=f"the code here is not that of '{first}'"):
        commits("HEAD", first)
    assert main(["record", "tried", "--merge", "--restamp", "HEAD^", "HEAD"]) == 2
    assert "--merge adds computed runs, and --restamp computes none" in capsys.readouterr().err
