"""Where a newcomer stands among rows whose differences are known."""

import numpy as np
import pytest
from scipy import stats

from fedsdg.analysis.compare import ranking, sentences, standing
from tests.analysis.small import rows_of, run_row, write_record

#: Five seeds; what is added is the same at each, or varies.
BASE = np.array([80.0, 82.0, 81.0, 83.0, 84.0])
NOISE = np.array([-2.0, 2.0, -1.0, 1.0, 0.5])


@pytest.fixture
def needs(tmp_path):
    """``mine`` is surely above ``low``, surely below ``high``, and not told apart from ``like``."""
    accuracy = {"high": BASE + 5 + NOISE / 50, "like": BASE + NOISE, "mine": BASE, "low": BASE - 9}
    rows = rows_of({**accuracy, "known": BASE + 12})
    rows += [run_row("high", 7, 1.0)]  # a seed that the newcomer lacks
    rows += [run_row("part", seed, 90.0) for seed in range(3)]
    rows = [row | {"experiment": "needs"} for row in rows]
    return write_record(tmp_path / "needs", rows)


def test_rows_are_ranked_on_the_seeds_of_the_newcomer(needs):
    rows = standing(needs, "mine").query("metric == 'accuracy' and at == 'selected'")
    places = rows.set_index("method")["place"]
    assert places[["high", "like", "mine", "low"]].tolist() == [1, 2, 3, 4]
    # An oracle, and a row that lacks two seeds, have no place.
    assert places[["known", "part"]].isna().all()
    assert rows.set_index("method")["mean"]["high"] == pytest.approx(87, abs=0.1)


def test_leads_are_paired_and_judged_at_99_percent(needs):
    rows = standing(needs, "mine").query("metric == 'accuracy' and at == 'selected'")
    rows = rows.set_index("method")
    expected = stats.t.interval(0.95, 4, -NOISE.mean(), stats.sem(NOISE))
    ends = rows.loc["like", ["lead_low", "lead_high"]].astype(float)
    assert ends.tolist() == pytest.approx(list(expected))
    verdicts = rows["verdict"]
    assert verdicts[["high", "like", "low"]].tolist() == ["below", "undecided", "above"]
    assert verdicts["part"] == "–"


def test_a_lead_at_one_reading_alone_is_undecided(tmp_path):
    rows = rows_of({"mine": BASE, "other": BASE - 5 + NOISE / 50})
    for row in rows:
        if row["method"] == "other":
            row["end_accuracy"] += 0.05
    verdicts = standing(write_record(tmp_path / "small", rows), "mine").set_index("method")
    assert set(verdicts.query("metric == 'accuracy'")["verdict"].dropna()) == {"undecided"}
    assert set(verdicts.query("metric == 'accuracy_b'")["verdict"].dropna()) == {"above"}


def test_the_table_shows_places_leads_and_costs(needs):
    made = ranking(needs, "mine")
    assert made.text.index.tolist()[:4] == ["high", "like", "mine", "low"]
    own, other = made.text.loc["mine"], made.text.loc["low"]
    assert (own["place"], own["seconds"], own["mine minus it"]) == ("3", "7", "–")
    assert own["all clients"] == "**82.0 ± 2.0**"
    assert (other["mine minus it"], other["verdict"]) == ("+9.0 [+9.0, +9.0]", "above")
    assert other["MB"] == "3"
    assert other["seconds"] == "–"
    assert "10 seeds" not in made.caption
    assert made.csv().startswith("experiment,cell,method,metric,at,n,mean")


def test_sentences_say_the_place_and_what_one_model_for_all_can_reach(needs):
    first, second = sentences(needs, "mine")
    assert first.startswith("mine: 3 of 4 by the accuracy of clients, 82.0 ± 2.0 %, in IID, half")
    assert first.endswith("it is above 1 and below 2 of the others.")
    assert second.endswith("such methods end near 87 here.")


def test_below_five_seeds_there_is_no_verdict(tmp_path):
    rows = rows_of({"fedsdg": BASE[:4], "other": BASE[:4] - 9})
    (told, *_) = sentences(write_record(tmp_path / "few", rows), "fedsdg")
    assert told.endswith("(4 seeds); there is no verdict below 5 seeds.")


def test_an_oracle_has_no_place(needs):
    assert sentences(needs, "known")[0].startswith(
        "Known clusters: an oracle, without a place, 94.0 ± 2.0 %"
    )


def test_personal_and_untuned_newcomers(tmp_path):
    best = {"parameters": {"eta_g": 0.1}, "score": 0.9}
    found = {"best": best, "expected_best": [0.9], "failed": 0, "edges": {}}
    rows = rows_of({"fedsdg": BASE, "other": BASE + NOISE})
    rows = [row | {"experiment": "needs"} for row in rows]
    search = {"methods": {"other": found}, "seeds": [100], "skews": ["iid@half"]}
    told = sentences(write_record(tmp_path / "needs", rows, search), "fedsdg")
    assert len(told) == 2
    assert "was not tuned" in told[1]
