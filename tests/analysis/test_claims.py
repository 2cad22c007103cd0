"""Claims: a verdict follows the interval, and nothing else."""

import json

import pyarrow.parquet as pq
import pytest

from fedsdg.analysis.claims import claims, write_claims
from fedsdg.analysis.summarise import summarise


def test_a_claim_holds_if_its_whole_interval_is_above_zero(summary_dir) -> None:
    found = claims(summary_dir)
    rows = {
        (row["skew"], row["rival"], row["metric"], row["at"]): row
        for row in pq.read_table(summary_dir / "differences.parquet").to_pylist()
    }
    assert found
    for claim in found:
        row = rows[claim.skew, claim.rival, claim.metric, claim.at]
        assert claim.mean == pytest.approx(100 * row["mean"])
        assert claim.low == pytest.approx(100 * row["low"])
        assert claim.verdict == ("holds" if row["low"] > 0 else "does not hold")
        assert claim.text.split(": ")[-1].startswith(claim.verdict)
    assert {claim.verdict for claim in found} == {"holds", "does not hold"}


def test_the_lead_is_claimed_over_the_better_fedavg(summary_dir) -> None:
    first = claims(summary_dir)[0]
    assert (first.rival, first.metric, first.at) == ("better-fedavg", "personal_accuracy", "last")
    assert first.rival_method in ("fedavg", "fedavg-uniform")
    assert "At Dirichlet α = 0.1" in first.text and "the better of FedAvg" in first.text


def test_one_seed_decides_nothing(make_runs, tmp_path) -> None:
    summarise(make_runs(seeds=(0,)).runs, tmp_path / "s")
    assert {claim.verdict for claim in claims(tmp_path / "s")} == {"undecided"}


def test_both_files_say_the_same_twice(summary_dir, tmp_path) -> None:
    first = write_claims(summary_dir, tmp_path / "a")
    second = write_claims(summary_dir, tmp_path / "b")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    listed = json.loads(first[0].read_text("utf-8"))
    text = first[1].read_text("utf-8")
    assert len(listed) == len(claims(summary_dir))
    assert all(claim["text"] in text for claim in listed)


def test_without_fedsdg_the_file_says_so(make_runs, tmp_path) -> None:
    summarise(make_runs(methods=("krum",)).runs, tmp_path / "s")
    _, markdown = write_claims(tmp_path / "s", tmp_path / "claims")
    assert "No claim can be tested" in markdown.read_text("utf-8")
