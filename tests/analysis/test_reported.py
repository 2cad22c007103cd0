"""Which value of a run is reported."""

from fedsdg.analysis.names import PERSONAL
from fedsdg.analysis.reported import EXPECTED, personal_metric, reported


def run(method, seed, **values):
    return {"method": method, "seed": seed, "status": "ok", **values}


def test_the_last_quarter_stands_before_the_last_round() -> None:
    runs = [
        run("a", 0, quarter_x=0.5, last_x=0.9),
        run("a", 1, quarter_x=0.7, last_x=0.1),
        run("b", 0, quarter_x=None, last_x=0.2),
    ]
    assert reported(runs, "x") == {"a": {0: 0.5, 1: 0.7}}, "never a mixture of both"


def test_an_old_record_is_read_by_its_last_round() -> None:
    assert reported([run("a", 0, last_x=0.9)], "x") == {"a": {0: 0.9}}
    assert reported([run("a", 0, quarter_x=None, last_x=0.9)], "x") == {"a": {0: 0.9}}
    assert reported([run("a", 0, last_x=0.9) | {"status": "failed"}], "x") == {}


def test_expected_accuracy_is_the_personal_one_where_it_is_known() -> None:
    assert personal_metric(["round", "quarter_expected_accuracy"]) == EXPECTED
    assert personal_metric(["quarter_expected_accuracy_a", "last_personal_accuracy"]) == PERSONAL
