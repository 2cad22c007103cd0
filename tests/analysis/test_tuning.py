"""The page of the search: every method's trials and best values, from the search's own file."""

import io
import json

import pandas as pd
import pytest

from fedsdg.analysis.plots import write_figure
from fedsdg.analysis.summarise import search_file, summarise
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import TABLES
from fedsdg.analysis.tables.render import to_csv, to_markdown
from fedsdg.analysis.tuning import curves
from fedsdg.experiment.search_space import expected_best


def method(scores, **more):
    trials = [
        {"number": number, "parameters": {"eta_g": 0.001 * (number + 1)}, "score": score}
        for number, score in enumerate(scores)
    ]
    known = [score for score in scores if score is not None]
    best = max((t for t in trials if t["score"] is not None), key=lambda t: t["score"], default={})
    return {
        "failed": 0,
        "edges": {},
        "best": {key: best[key] for key in ("parameters", "score")} if best else None,
        "expected_best": expected_best(known),
        "trials": trials,
    } | more


@pytest.fixture
def found():
    return {
        "experiment": "synthetic",
        "criterion": "personal validation accuracy",
        "seeds": [100, 101],
        "skews": ["iid"],
        "methods": {
            "local-only": method([0.5, None, 0.25], failed=1),
            "fedsdg": method([0.8125, 0.90625], edges={"eta_g": "high"}),
            "fedavg": method([None, None]),
        },
    }


@pytest.fixture
def summary(written, found, tmp_path):
    file = tmp_path / "made" / "synthetic.json"
    file.parent.mkdir()
    file.write_text(json.dumps(found))
    summarise(written.runs, tmp_path / "summary", None, file)
    return tmp_path / "summary"


def test_curves_are_of_complete_trials_alone_in_the_order_of_methods(summary):
    rows = curves(Summary(summary))
    assert rows.to_dict("list") == {
        "method": ["fedsdg", "fedsdg", "local-only", "local-only"],
        "trials": [1, 2, 1, 2],
        "score": [0.8125, 0.90625, 0.5, 0.25],
        "expected_best": [(0.8125 + 0.90625) / 2, 0.90625, 0.375, 0.5],
    }


def test_the_table_names_best_values_failures_and_edges(summary):
    table = TABLES["tuning"](Summary(summary))
    raw = pd.read_csv(io.StringIO(to_csv(table))).set_index("method")
    assert raw.loc["fedsdg"].to_dict() == {
        "trials": 2,
        "failed": 0,
        "best": "η_g = 0.002",
        "score (share)": 0.90625,
        "mean (share)": 0.859375,
        "edges": "η_g high",
    }
    text = to_markdown(table)
    assert "2 (1 failed)" in text and "Seeds 100, 101" in text


def test_the_figure_depends_on_the_search(summary, tmp_path):
    *_, sidecar = write_figure(summary, "tuning", tmp_path / "tuning")
    facts = json.loads(sidecar.read_text())
    assert any(file.endswith("summary/search.json") for file in facts["inputs"])
    assert [row["method"] for row in facts["numbers"]] == ["fedsdg"] * 2 + ["local-only"] * 2


def test_without_a_search_the_page_says_so(summary, written, tmp_path):
    summarise(written.runs, summary)
    assert not (summary / "search.json").exists(), "that of a former call"
    text = to_markdown(TABLES["tuning"](Summary(summary)))
    assert "No search was made of this experiment's hyper-parameters." in text
    paths = write_figure(summary, "tuning", tmp_path / "tuning")
    assert json.loads(paths[-1].read_text())["numbers"] == []


def test_the_search_made_here_goes_before_the_committed_one(tmp_path):
    committed = tmp_path / "reference" / "needs" / "search.json"
    made = tmp_path / "search" / "needs.json"
    assert search_file("needs", tmp_path) is None
    for file in (committed, made):
        file.parent.mkdir(parents=True)
        file.write_text("{}")
        assert search_file("needs", tmp_path) == file
