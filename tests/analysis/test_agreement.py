"""One line for each primary comparison: here, in the record, and whether they agree."""

import shutil

import pytest

from fedsdg.analysis.agreement import agrees
from fedsdg.analysis.judge import Threshold, judge
from fedsdg.analysis.summarise import summarise
from fedsdg.cli import main

from .conftest import write_run
from .test_comparisons import named, of, runs, spread


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Ten seeds in the record and as many as asked for here, with a difference of its own."""
    monkeypatch.chdir(tmp_path)

    def make(here, record=0.05, seeds=10, ids=("one",), recorded=("one",)):
        wanted = [named(name, ["ditto"]) for name in ids]
        kept = [named(name, ["ditto"]) for name in recorded]
        for place, mean, n, which in (
            ("summary", here, seeds, wanted),
            ("reference", record, 10, kept),
        ):
            values = of({"ditto": spread(mean, 0.01, n)})
            shutil.rmtree(tmp_path / "runs", ignore_errors=True)
            for run in runs(values):
                write_run(tmp_path / "runs" / "needs", run)
            summarise(
                tmp_path / "runs/needs", tmp_path / "results" / place / "needs", primary=which
            )

    return make


def test_a_line_says_here_record_verdict_and_agreement(results, capsys) -> None:
    results(here=0.052, seeds=5)
    assert main(["agree", "needs"]) == 0
    assert capsys.readouterr().out == (
        "needs, one: here +5.2 points (n = 5), the record +5.0 points (n = 10): higher; "
        "they agree\n"
    )


@pytest.mark.parametrize(("here", "outcome"), [(0.06, "they agree"), (0.09, "they do not agree")])
def test_intervals_that_overlap_agree(results, capsys, here, outcome) -> None:
    results(here=here)
    assert main(["agree", "needs"]) == 0
    assert capsys.readouterr().out.endswith(f"; {outcome}\n")


def test_few_seeds_are_compared_without_a_verdict(results, capsys) -> None:
    results(here=0.052, seeds=4)
    assert main(["agree", "needs"]) == 0
    assert capsys.readouterr().out.endswith("; they agree; fewer than 5 seeds give no verdict\n")
    results(here=0.2, seeds=4)
    assert main(["agree", "needs"]) == 0
    assert "; they do not agree; fewer than 5 seeds give" in capsys.readouterr().out


@pytest.mark.parametrize(("here", "sign"), [(0.01, "the same sign"), (-0.01, "another sign")])
def test_one_seed_has_a_sign(results, capsys, here, sign) -> None:
    results(here=here, seeds=1)
    assert main(["agree", "needs"]) == 0
    text = capsys.readouterr().out
    assert f"(n = 1), the record +5.0 points (n = 10): higher; {sign}" in text


def test_what_the_record_lacks_is_said(results, capsys, tmp_path) -> None:
    results(here=0.05, ids=("one", "two"))
    assert main(["agree", "needs"]) == 0
    assert "needs, two: here +5.0 points (n = 10); the record does not have it" in (
        capsys.readouterr().out
    )
    shutil.rmtree(tmp_path / "results/reference")
    assert main(["agree", "needs"]) == 0
    assert capsys.readouterr().out.count("the record does not have it") == 2
    results(here=0.05, ids=())
    assert main(["agree", "needs"]) == 0
    assert "names no primary comparisons" in capsys.readouterr().out


def test_an_experiment_that_was_not_computed_is_named(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["agree", "needs"]) != 0
    assert "there is no results/summary/needs; run the experiment first" in capsys.readouterr().err


def test_agreement_is_symmetric_and_holds_the_mean_of_the_other() -> None:
    def judged(mean, key=0):
        return judge(spread(mean, 0.01, key=key).tolist(), Threshold(0.0, None))

    for shift in (0.0, 0.004, 0.01, 0.03):
        a, b = judged(0.0), judged(shift, key=1)
        assert agrees(a, b) == agrees(b, a)
        if a.low <= b.effect <= a.high:
            assert agrees(a, b) == "they agree"
    assert agrees(judged(0.03), judged(0.0)) == "they do not agree"
