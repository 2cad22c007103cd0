"""One line for each primary comparison: here, in the record, and whether they agree."""

import shutil

import pytest

from fedsdg.analysis.agreement import agrees
from fedsdg.analysis.judge import Threshold, judge
from fedsdg.cli import main

from .conftest import make_record
from .test_comparisons import named, of, runs, spread


@pytest.fixture
def agree(tmp_path, monkeypatch, capsys):
    """What the command says of ten seeds in the record and as many as asked for here."""
    monkeypatch.chdir(tmp_path)

    def said(here, seeds=10, ids=("one",)):
        for place, mean, n, names in (
            ("summary", here, seeds, ids),
            ("reference", 0.05, 10, ["one"]),
        ):
            made = runs(of({"ditto": spread(mean, 0.01, n)}))
            wanted = [named(name, ["ditto"]) for name in names]
            shutil.rmtree(tmp_path / "made", ignore_errors=True)
            record = make_record(tmp_path / "made", "arena", made, primary=wanted)
            shutil.copytree(record, tmp_path / "results" / place / "arena", dirs_exist_ok=True)
        assert main(["agree", "arena"]) == 0
        return capsys.readouterr().out

    return said


SHORT = "; fewer than 5 seeds give no verdict"
ONE = f", and one seed has no interval{SHORT}"


@pytest.mark.parametrize(
    ("here", "seeds", "end"),
    [
        (0.052, 5, "here +5.2 points (n = 5), the record +5.0 points (n = 10): higher; they agree"),
        (0.06, 10, "; they agree"),
        (0.09, 10, "; they do not agree"),
        (0.052, 4, f"; they agree{SHORT}"),
        (0.2, 4, f"; they do not agree{SHORT}"),
        (0.01, 1, f"(n = 1), the record +5.0 points (n = 10): higher; the same sign{ONE}"),
        (-0.01, 1, f"(n = 1), the record +5.0 points (n = 10): higher; another sign{ONE}"),
    ],
)
def test_a_line_says_here_record_verdict_and_agreement(agree, here, seeds, end) -> None:
    """Intervals that overlap agree; few seeds give no verdict, and one seed has a sign."""
    line = agree(here, seeds)
    assert line.startswith("arena, one: here ") and line.endswith(f"{end}\n"), line


def test_what_the_record_or_the_experiment_lacks_is_said(agree, refused, capsys, tmp_path) -> None:
    said = "arena, two: here +5.0 points (n = 10); the record does not have it"
    assert said in agree(0.05, ids=("one", "two"))
    shutil.rmtree(tmp_path / "results/reference")
    assert main(["agree", "arena"]) == 0
    assert capsys.readouterr().out.count("the record does not have it") == 2
    assert "names no primary comparisons" in agree(0.05, ids=())
    shutil.rmtree(tmp_path / "results/summary")
    missing = refused("agree", "arena")
    assert "there is no results/summary/arena; run the experiment first" in missing


def test_agreement_is_symmetric_and_holds_the_mean_of_the_other() -> None:
    def judged(mean, key=0):
        return judge(spread(mean, 0.01, key=key).tolist(), Threshold(0.0, None))

    for shift in (0.0, 0.004, 0.01, 0.03):
        a, b = judged(0.0), judged(shift, key=1)
        assert agrees(a, b) == agrees(b, a)
        if a.low <= b.effect <= a.high:
            assert agrees(a, b) == "they agree"
    assert agrees(judged(0.03), judged(0.0)) == "they do not agree"
