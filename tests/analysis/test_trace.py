"""From a number to its runs: the runs that are named are those that give it."""

import json
import shutil
import statistics
from itertools import product
from pathlib import Path

import pytest

from fedsdg.analysis.frames import records
from fedsdg.analysis.plots import FIGURES, write_figure
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import TABLES, write_table
from fedsdg.analysis.trace import runs_behind, trace
from fedsdg.files import read_json, write_json

from .conftest import Run, make_record

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results/reference"


#: Of pages of the record: a column, and of what of its runs it is the mean.
MEANS = [
    ("every-method", "main", "last quarter mean (%)", "{reported}_{metric}"),
    ("every-method", "bytes", "bytes up per run (bytes)", "bytes_up"),
    ("byzantine", "byzantine", "mean (share)", "{reported}_global_accuracy"),
    ("sensitivity", "sensitivity", "mean (share)", "{reported}_{metric}"),
    ("stragglers", "stragglers", "global_accuracy", "{reported}_global_accuracy"),
]


@pytest.mark.parametrize(("experiment", "table", "column", "of_run"), MEANS)
def test_a_number_is_the_mean_of_what_its_runs_give(experiment, table, column, of_run):
    summary = Summary(RECORDS / experiment)
    rows = [row for row in records(TABLES[table](summary).raw) if row[column] is not None]
    assert len(rows) > 3
    scale = 100 if column.endswith("(%)") else 1
    for row in rows[:: max(1, len(rows) // 5)]:
        key = of_run.format(reported=summary.reported, metric=row.get("metric"))
        values = [scale * run[key] for run in runs_behind(summary, row)]
        assert statistics.fmean(values) == pytest.approx(row[column], rel=1e-9), row


def test_a_difference_stands_on_both_methods_at_the_seeds_that_they_share():
    summary = Summary(RECORDS / "cross-needs")
    rows = records(TABLES["differences"](summary).raw)
    assert {row["n"] for row in rows} <= {5, 10}
    for row in rows[:: len(rows) // 8]:
        runs, key = runs_behind(summary, row), f"{row['at']}_{row['metric']}"
        ours, theirs = (
            statistics.fmean(run[key] for run in runs if run["method"] == name)
            for name in ("fedsdg", row["rival"])
        )
        assert len(runs) == 2 * row["n"]
        mean = row["mean (percentage points)"]
        assert 100 * (ours - theirs) == pytest.approx(mean, abs=1e-9)


@pytest.mark.parametrize(
    ("experiment", "table", "count"),
    [("label-noise", "label_noise", "runs"), ("verification", "verification", "n")],
)
def test_runs_are_as_many_as_the_row_says(experiment, table, count):
    summary = Summary(RECORDS / experiment)
    for row in records(TABLES[table](summary).raw):
        assert len(runs_behind(summary, row)) == row[count], row


def test_a_row_of_one_run_names_that_run():
    summary = Summary(RECORDS / "byzantine")
    for row in records(TABLES["detection"](summary).raw):
        (run,) = runs_behind(summary, row)
        assert run["skew"] == f"{row['skew']}@{row['scenario']}"
        assert (run["method"], run["seed"]) == (row["method"], row["seed"])


def test_what_took_so_long_to_a_target_stands_on_the_yardstick_too(quarters_dir):
    summary = Summary(quarters_dir)
    row = records(TABLES["rounds_to_target"](summary).raw)[0]
    assert {run["method"] for run in runs_behind(summary, row)} == {"fedsdg", "fedavg-uniform"}


@pytest.fixture(scope="module")
def pages(quarters_dir, tmp_path_factory):
    """Tables in every format and sidecars of figures, with the summary that they are made from."""
    folder = tmp_path_factory.mktemp("pages") / "results" / "reference" / "quarters"
    shutil.copytree(quarters_dir, folder)
    for name in ("main", "groups", "personal_accuracy", "tuning"):
        write_table(folder, name, folder / name)
    figures = folder.parents[2] / "paper_figures" / "quarters"
    write_figure(folder, "groups", figures / "groups")
    (figures / "partition.json").write_text("{}")
    (folder / "other.md").write_text("| a |\n")
    return folder


@pytest.mark.parametrize("suffix", ["md", "tex"])
def test_a_printed_number_is_found_by_what_people_call_it(pages, with_quarters, suffix):
    """Its seeds are what was put into the runs."""
    page = pages / f"groups.{suffix}"
    found = trace(page, "FedSDG", "IID, B")
    assert found == trace(page, "fedsdg", "iid, expected_accuracy_b")
    line = int(found["line"].removeprefix("line "))
    assert "FedSDG" in page.read_text().splitlines()[line - 1]
    assert found == trace(f"{page}:{line}", column="IID, B")
    truth = with_quarters.values("iid", "fedsdg", "expected_accuracy_b", "selected")
    assert [*found["seeds"].values()] == pytest.approx(list(100 * truth))
    assert found["unrounded"] == pytest.approx(100 * truth.mean())
    assert found["committed"] == found["recomputed"]
    assert found["committed"].startswith(f"{100 * truth.mean():.1f}")
    seeds = [run["seed"] for run in found["runs"]]
    assert seeds == [*found["seeds"]] == list(with_quarters.plan.seeds)


def test_a_number_of_a_csv_or_a_sidecar_is_found_by_its_names(pages, with_quarters):
    truth = with_quarters.values("iid", "fedavg", "expected_accuracy_a", "selected")
    found = trace(pages / "groups.csv", "fedavg, expected_accuracy_a", "selected round mean")
    assert float(found["committed"]) == pytest.approx(100 * truth.mean(), rel=1e-5)
    assert [*found["seeds"].values()] == pytest.approx(list(100 * truth))
    sidecar = pages.parents[2] / "paper_figures/quarters/groups.json"
    drawn = trace(sidecar, "fedavg, expected_accuracy_a", "mean")
    assert drawn["unrounded"] == pytest.approx(truth.mean())
    assert [*drawn["seeds"].values()] == pytest.approx(list(truth))
    assert [run["run"] for run in drawn["runs"]] == [run["run"] for run in found["runs"]]
    place = int(drawn["line"].removeprefix("numbers[").removesuffix("]"))
    assert read_json(sidecar)["numbers"][place]["method"] == "fedavg"


def test_a_committed_number_that_is_another_one_is_shown_and_a_lost_row_is_to_be_verified(pages):
    page, before = pages / "groups.md", (pages / "groups.md").read_text()
    line = next(line for line in before.splitlines() if line.startswith("| FedSDG"))
    number = line.split("|")[2].split()[0]
    page.write_text(before.replace(line, line.replace(number, "1.0")))
    found = trace(page, "FedSDG", "IID, A")
    page.write_text(before.replace(f"{line}\n", ""))
    with pytest.raises(ValueError, match="other rows or columns .* run fedsdg verify"):
        trace(page, "FedSDG", "IID, A")
    page.write_text(before)
    assert "1.0" in found["committed"] != found["recomputed"]


def test_what_is_known_of_a_run_is_what_its_record_says(pages):
    (first, *_) = trace(pages / "main.md", "fedsdg", "personal")["runs"]
    row = next(r for r in Summary(pages).runs if (r["method"], r["seed"]) == ("fedsdg", 0))
    assert first["run"] == "results/runs/quarters/digits/clients~12/iid/fedsdg/seed~0"
    for name in ("config_hash", "partition_hash", "backbone_hash", "source_hash"):
        assert first[name] == row[name]
    assert first["config"] == json.loads(row["config"])
    runs = trace(RECORDS / "cross-needs/groups.md", "fedsdg", "cross-needs, B")["runs"]
    stated = read_json(RECORDS / "cross-needs/provenance.json")
    for run in runs:
        below = run["run"].removeprefix("results/runs/cross-needs/")
        (entry,) = [entry for entry in stated if below in entry["runs"]]
        assert run["made"]["commit"] == entry["commit"] and "runs" not in run["made"]
        assert run["data_hash"].startswith("efaf81ffb1c4")


def test_of_a_summary_made_here_data_and_origin_come_from_beside_it(pages, tmp_path):
    """Runs in their folders, the others from the record that they were joined with."""
    results = tmp_path / "results"
    shutil.copytree(pages, results / "summary/quarters")
    table = results / "tables/quarters/groups.md"
    table.parent.mkdir(parents=True)
    shutil.copy(pages / "groups.md", table)
    below = "digits/clients~12/iid/fedsdg"
    origin = {"commit": "c0ffee", "runs": [f"{below}/seed~0"]}
    write_json(results / "reference/quarters/provenance.json", [origin])
    write_json(results / f"runs/quarters/{below}/seed~1/provenance.json", {"commit": "decade"})
    partition = "partitions/digits/clients~10/dirichlet~1.0/seed~0.parquet"
    (results / partition).parent.mkdir(parents=True)
    shutil.copy(RECORDS / "label-noise" / partition, results / partition)
    runs = {run["seed"]: run for run in trace(table, "FedSDG", "IID, B")["runs"]}
    assert [runs[seed]["made"]["commit"] for seed in (0, 1)] == ["c0ffee", "decade"]
    assert runs[0]["data_hash"].startswith("efaf81ffb1c4")


@pytest.mark.parametrize(
    ("name", "row", "column", "said"),
    [
        ("main.md", "fedsgd", "personal", "no number called 'fedsgd'; did you mean 'fedsdg'"),
        ("main.md", "fedsdg", "persnal", "no number called 'persnal'; did you mean 'personal'"),
        ("personal_accuracy.md", "fedsdg", "IID", "4 numbers are called .*add a word"),
        ("main.md", "local-only", "global", "no number stands there, but '–"),
        ("main.md", "fedsdg", "Method", "no number called 'method'"),
        ("runs.parquet", "a", "b", "is no table or figure's sidecar of a single record"),
        ("mian.md", "a", "b", "there is no .*mian.md: name a table"),
        ("other.md", "a", "b", "a record has no such page; "),
        ("partition.json", "a", "b", "holds no numbers, for the figure is drawn"),
    ],
)
def test_what_cannot_be_traced_is_one_sentence(pages, name, row, column, said):
    place = pages.parents[2] / "paper_figures/quarters" if name.endswith("json") else pages
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        trace(place / name, row, column)


def test_no_run_stands_behind_trials_and_measurements():
    summary = Summary(RECORDS / "cross-needs")
    assert runs_behind(summary, records(TABLES["tuning"](summary).raw)[0]) == []
    assert runs_behind(summary, records(FIGURES["tuning"].frame(summary))[0]) == []
    with pytest.raises(ValueError, match=r"no run stands behind '[\d.]+'; the trials of a search"):
        trace(RECORDS / "cross-needs/tuning.md", "fedsdg", "Validation (%)")
    for page in ("performance/kernels.md", "across/regret.md"):
        with pytest.raises(ValueError, match=f"{page} is no table .* of a single record"):
            trace(RECORDS / page, "Krum", "ms")


def test_a_claim_leads_to_the_runs_of_both_sides():
    found = trace(ROOT / "docs/claims.md", "private-head-suffices")
    fedper, fedsdg = (
        {
            run["seed"]: 100 * run["selected_expected_accuracy_b"]
            for run in Summary(RECORDS / "cross-needs").runs
            if run["method"] == name and run["status"] == "ok"
        }
        for name in ("fedper", "fedsdg")
    )
    gaps = {seed: fedper[seed] - fedsdg[seed] for seed in found["seeds"]}
    assert found["seeds"] == pytest.approx(gaps, rel=1e-4)
    assert found["committed"] == found["recomputed"]
    assert len(found["runs"]) == 2 * len(found["seeds"]) >= 10


def test_a_number_of_a_sentence_is_that_of_the_claim_which_its_line_links_to(tmp_path):
    page = (ROOT / "README.md").read_text().splitlines()
    found = trace(ROOT / "README.md", "gated-b")
    assert found["where"] == {"id": "gated-b", "rival": "fedsdg"}
    assert found["line"] in (f"line {n}" for n in range(2, 99)) and len(found["seeds"]) >= 5
    assert {run["method"] for run in found["runs"]} == {"gated-head", "fedsdg"}
    (both,) = [n for n, text in enumerate(page, start=1) if "#gated-b)" in text]
    with pytest.raises(ValueError, match=f"line {both}: .*gated-b, gated-fedper-b cited; name one"):
        trace(f"{ROOT / 'README.md'}:{both}")
    with pytest.raises(ValueError, match="line 1: no claim cited"):
        trace(ROOT / "README.md", "line 1")


def test_every_primary_comparison_that_a_document_cites_can_be_traced():
    """Also those of a record without a table of them."""
    page = RECORDS / "cross-needs/claims.md"
    for name in ("gated-fedper-b", "gated-b"):
        lines = page.read_text().splitlines()
        (line,) = [n for n, text in enumerate(lines, start=1) if text.startswith(f"- **{name}: ")]
        found = trace(f"{page}:{line}")
        assert found["committed"] == found["recomputed"] and found["committed"] in lines[line - 1]
        assert statistics.fmean(found["seeds"].values()) == pytest.approx(found["unrounded"])
    assert trace(ROOT / "docs/findings.md", "gated-b") == found
    with pytest.raises(ValueError, match="no primary comparison 'gated-c'; did you mean 'gated-b'"):
        trace(page, "gated-c")
    with pytest.raises(ValueError, match="line 1: no claim stands there"):
        trace(f"{page}:1")


def test_a_regret_stands_on_the_runs_of_all_its_cells_at_the_seeds_that_they_share(tmp_path):
    claim = {"id": "regret", "subject": "fedsdg", "rivals": ["krum"], "kind": "regret"}
    claim |= {"metric": "expected_accuracy", "cells": ["one:iid", "two:iid"]}
    for name, seeds in (("one", 6), ("two", 5)):
        made = []
        for seed, method in product(range(seeds), ("fedsdg", "krum")):
            value = 0.8 - (method == "krum") * 0.01 * seed
            made.append(Run(method, seed, skew="iid", last={"expected_accuracy": value}))
        record = make_record(tmp_path, name, made, primary=[claim])
    page = record / "claims.md"
    page.write_text("- **regret: 5 seeds, no verdict**.\n")
    found = trace(page, "regret")
    assert found["seeds"] == pytest.approx({seed: 2.0 * seed for seed in range(5)})
    assert found["unrounded"] == pytest.approx(4.0)
    cells = [(run["experiment"], run["method"], run["seed"]) for run in found["runs"]]
    assert sorted(cells) == [*product(("one", "two"), ("fedsdg", "krum"), range(5))]
    shutil.rmtree(tmp_path / "records/one")
    with pytest.raises(ValueError, match="line 1: no number stands there, but"):
        trace(page, "regret")


def test_a_claim_about_two_groups_of_clients_names_each_run_once():
    page = ROOT / "docs/claims.md"
    lines = page.read_text().splitlines()
    (line,) = [n for n, text in enumerate(lines, start=1) if '"gates-follow-need"' in text]
    found = trace(f"{page}:{line}")
    assert [run["seed"] for run in found["runs"]] == [*found["seeds"]]
    assert len(found["seeds"]) >= 5


def test_a_claim_that_no_run_decides_or_that_is_not_there_is_one_sentence():
    with pytest.raises(ValueError, match="no claim 'private-head-sufices'; did you mean"):
        trace(ROOT / "docs/claims.md", "private-head-sufices")
    proofs = [e["id"] for e in read_json(RECORDS / "ledger.json") if "by the test" in e["reason"]]
    with pytest.raises(ValueError, match="no run stands behind .*by the test"):
        trace(RECORDS / "ledger.json", proofs[0], "effect")
