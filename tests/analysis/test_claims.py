"""Sentences: verdicts for what was named beforehand, and none for what is described."""

import json
import re
from dataclasses import asdict, replace

import pandas as pd
import pytest

from fedsdg.analysis.claims import described, write_claims
from fedsdg.analysis.summarise import summarise
from fedsdg.analysis.summary import Summary, usual_roles

from .conftest import Run
from .test_comparisons import named, of, runs, spread

VERDICTS = re.compile(
    r"\b(holds?|higher|lower|better|worse|equivalent|undecided|significant\w*|leads?|ahead)\b"
)


def test_described_are_the_rows_of_the_differences(summary_dir) -> None:
    keys = ["skew", "rival", "metric", "at"]
    rows = pd.read_parquet(summary_dir / "differences.parquet").set_index(keys)
    found = described(Summary(summary_dir))
    assert {row["at"] for row in found} == {"selected"}
    assert {row["rival"] for row in found} == {"fedavg", "fedavg-uniform", "local-only"}
    assert len(found) == 2 * (2 * 3 + 2)  # local only has no global accuracy
    for one in found:
        row = rows.loc[tuple(one[key] for key in keys)]
        assert [one["mean"], one["low"]] == pytest.approx([100 * row["mean"], 100 * row["low"]])


def test_what_is_described_has_no_word_of_judgement(summary_dir, tmp_path) -> None:
    _, markdown = write_claims(summary_dir, tmp_path / "claims")
    text = markdown.read_text("utf-8")
    assert "This experiment names none, so it has no verdicts." in text
    assert VERDICTS.findall(text.partition("## Primary comparisons")[2]) == []
    assert "FedSDG minus FedAvg (uniform) in personal accuracy: +" in text
    assert "Not known to be steady at round 6." in text


def test_every_fedavg_is_described_and_none_is_chosen(quarters_dir) -> None:
    found = described(Summary(quarters_dir))
    rivals = ["fedavg", "fedavg-uniform", "fedavg-sgd", "local-only"]
    assert list(dict.fromkeys(row["rival"] for row in found)) == rivals
    assert {row["metric"] for row in found} >= {"expected_accuracy_a", "expected_accuracy_b"}


def test_primary_comparisons_begin_with_their_verdict(summary_of, tmp_path) -> None:
    differences = {"fedavg": spread(0.06, 0.01), "fedavg-sgd": spread(0.04, 0.01, key=2)}
    wanted = [named("ahead", list(differences)), named("sgd", ["fedavg-sgd"])]
    folder = summary_of(runs(of(differences)), wanted)
    json_path, markdown = write_claims(folder, tmp_path / "claims")
    text = markdown.read_text("utf-8")
    assert "- **ahead: higher**. FedSDG minus each of FedAvg (samples) +6.0 [" in text
    assert "- **sgd: higher**. FedSDG minus FedAvg (SGD) +4.0 [" in text
    facts = json.loads(json_path.read_text("utf-8"))
    assert [one["verdict"] for one in facts["primary"]] == ["higher", "higher"]
    assert facts["primary"][0]["decisive"] == "fedavg-sgd"


def test_few_seeds_have_points_alone_and_without_fedsdg_there_is_nothing(make_runs, tmp_path):
    for name, changes, said in (
        ("few", {"seeds": (0, 1)}, "points, n = 2"),
        ("none", {"seeds": (0,), "methods": ("krum",)}, "the experiment lacks 'fedsdg'"),
    ):
        summarise(make_runs(name, **changes).runs, tmp_path / name)
        _, markdown = write_claims(tmp_path / name, tmp_path / "claims")
        text = markdown.read_text("utf-8")
        assert said in text and "[" not in text


def test_titles_of_plugins_are_plain_text(summary_of, tmp_path) -> None:
    """No link, no formula and no heading comes of the name that a plugin gives a method."""
    title = "[x](javascript:alert(1))\n# `<b>|"
    runs = [
        Run(method, seed, last={"personal_accuracy": value}, result={"title": title})
        for method, value in (("mine", 0.9), ("fedavg", 0.5))
        for seed in (0, 1)
    ]
    folder = summary_of(runs, roles=asdict(replace(usual_roles(), subject="mine")))
    write_claims(folder, tmp_path / "claims")
    text = (tmp_path / "claims.md").read_text("utf-8")
    assert r"- [x\](javascript:alert(1)) # \`\<b\>\| minus" in text
    assert "\n# `" not in text
