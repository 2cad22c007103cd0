"""Claims are read, judged by one rule, declared before their runs, and filled into documents."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from fedsdg.analysis import claims, records, slots
from fedsdg.analysis.claims import (
    Claim,
    by_seed,
    declared_before,
    judge,
    numbers,
    read_claims,
    undeclared,
)
from tests.analysis.conftest import write_frame

ROOT = Path(__file__).parents[2]
#: Deviations of five seeds: mean 0, standard deviation 1.
FIVE = np.array([-1.2, -0.6, 0.0, 0.5, 1.3])
FIVE = (FIVE - FIVE.mean()) / FIVE.std(ddof=1)
#: Half of the 99 % interval of such seeds.
HALF = stats.t.ppf(0.995, 4) / np.sqrt(5)


def write_record(folder, rows, cell="iid@half", sent=1):
    """Write a record of accuracies in percent: method → seeds' numbers, or (selected, end)."""
    runs = []
    for method, given in rows.items():
        selected, end = given if isinstance(given, tuple) else (given, given)
        for seed, (first, last) in enumerate(zip(selected, end, strict=True)):
            identity = {"experiment": folder.name, "dataset": "digits", "clients": 4}
            identity |= {"skew": cell, "method": method, "seed": seed, "status": "ok"}
            readings = {"selected_accuracy": first / 100, "end_accuracy": last / 100}
            sizes = {"bytes_up": 10**6 * sent, "bytes_down": 10**6, "end_round": 9}
            runs.append({**identity, **readings, **sizes})
    folder.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(runs)
    write_frame(folder / "runs.parquet", frame)
    rounds = frame.iloc[:, :6].merge(pd.DataFrame({"round": [1, 2, 3, 4]}), how="cross")
    write_frame(folder / "rounds.parquet", rounds.assign(accuracy=0.5))
    facts = {"family": "f", "personal": True, "oracle": False, "order": 0}
    methods = {name: {"title": name, **facts} for name in rows}
    (folder / "methods.json").write_text(json.dumps(methods))
    records._opened.cache_clear()


def claim(holds, of="e/iid@half/a", **given):
    """Return a claim about accuracy."""
    sides = {key: (value,) if isinstance(value, str) else value for key, value in given.items()}
    sides |= {key: given[key] for key in ("origin", "metric", "id") if key in given}
    plain = {"id": "c", "claim": "A sentence.", "origin": "hypothesis", "metric": "accuracy"}
    return Claim(**{**plain, "of": (of,) if isinstance(of, str) else of, "holds": holds, **sides})


@pytest.mark.parametrize(
    ("selected", "end", "holds", "word"),
    [
        (HALF + 0.1, HALF + 0.1, "> 0", "supported"),
        (HALF - 0.1, HALF - 0.1, "> 0", "undecided"),
        (-HALF - 0.1, -HALF - 0.1, "> 0", "refuted"),
        (-HALF - 0.1, -HALF - 0.1, "< 0", "supported"),
        (HALF + 0.1, HALF - 0.1, "> 0", "undecided"),
        (HALF - 0.1, HALF + 0.1, "> 0", "undecided"),
        (HALF + 0.1, -HALF - 0.1, "> 0", "undecided"),
        (0.0, 0.5, "0 ± 3", "supported"),
        (0.0, 1.5, "-3..3", "undecided"),
        (9.0, -9.0, "-3..3", "refuted"),
        (-FIVE, -FIVE, "> 0", "refuted"),
        (-FIVE, -FIVE, "< 0", "refuted"),
        (-FIVE, -FIVE, "0 ± 0", "supported"),
    ],
)
def test_the_99_percent_interval_of_both_readings_decides(tmp_path, selected, end, holds, word):
    write_record(tmp_path / "e", {"a": (FIVE + selected, FIVE + end)})
    assert judge(claim(holds), tmp_path).word == word


def test_intervals_and_pairs_are_those_of_scipy(tmp_path):
    rng = np.random.default_rng(0)
    common = rng.normal(80, 5, 7)
    a, b = common + rng.normal(3, 1, 7), common + rng.normal(0, 1, 7)
    write_record(tmp_path / "e", {"a": a, "b": b[:6]})
    verdict = judge(claim("> 0", minus="b"), tmp_path)
    test = stats.ttest_rel(a[:6], b[:6])
    assert verdict.n == 6 and verdict.mean == pytest.approx((a - b)[:6].mean())
    assert (verdict.low, verdict.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    row = verdict.tests.iloc[1]
    assert row["at"] == "end"
    assert (row["low_99"], row["high_99"]) == pytest.approx(tuple(test.confidence_interval(0.99)))
    assert list(verdict.by_seed) == [*range(6)]
    assert verdict.number.startswith(f"+{verdict.mean:.1f} points [")


def test_a_true_bound_is_decided_as_rarely_as_promised(monkeypatch):
    draws = np.random.default_rng(0).normal(0, 2, (4000, 5))
    long = pd.DataFrame(draws).melt(ignore_index=False, var_name="seed").rename_axis("of")
    long = long.reset_index().assign(against="", at="selected")
    monkeypatch.setattr(claims, "numbers", lambda claim, root: long)
    tests = judge(claim("> 0"), "").tests
    assert len(tests) == 4000
    assert 0.002 < tests["inside"].mean() < 0.008  # 0.005 are expected on each side
    assert 0.002 < tests["outside"].mean() < 0.008


@pytest.mark.parametrize(
    ("rivals", "word", "shown"),
    [
        ({"b": -9, "d": -9.5}, "supported", "b"),
        ({"b": -9, "d": 0}, "undecided", "d"),
        ({"b": 9, "d": 0}, "refuted", "b"),
        ({"b": -9, "d": 9}, "refuted", "d"),
    ],
)
def test_several_rivals_support_together_and_refute_alone(tmp_path, rivals, word, shown):
    others = {name: level - FIVE for name, level in rivals.items()}
    write_record(tmp_path / "e", {"a": FIVE, **others})
    verdict = judge(claim("> 0", minus=("b", "d")), tmp_path)
    assert verdict.word == word
    assert verdict.mean == pytest.approx(-rivals[shown])


def test_one_reading_is_judged_by_it_and_counted_numbers_by_any_seed(tmp_path):
    write_record(tmp_path / "e", {"a": [80.0], "b": [70.0]})
    write_record(tmp_path / "f", {"a": [80.0, 81.0]}, sent=2)
    sends = {"metric": "megabytes", "over": "b"}
    same = judge(claim("1 ± 0", **sends), tmp_path)
    assert (same.word, same.n, same.number) == ("supported", 1, "1 times")
    assert list(same.tests["at"]) == ["selected"]
    more = judge(claim("1 ± 0", metric="megabytes", over="f/iid@half/a"), tmp_path)
    assert (more.word, more.mean) == ("refuted", pytest.approx(2 / 3))
    assert judge(claim("> 0"), tmp_path).word == "no verdict"
    ratio = judge(claim("> 1", over="b"), tmp_path)
    assert ratio.number == "1.14 times"


def test_arithmetic_and_sums_are_of_the_same_seeds(tmp_path):
    write_record(tmp_path / "e", {"a": FIVE + 80, "b": FIVE + 82})
    write_record(tmp_path / "f", {"a": FIVE + 70, "b": [90.0, 91.0, 92.0]})
    total = by_seed(tmp_path, "e/iid@half/a + f/iid@half/a", "accuracy - megabytes")
    assert total.to_list() == pytest.approx([*(2 * FIVE + 146)])
    of = "e/iid@half/b + f/iid@half/b"
    less = numbers(claim("< 0", of, metric="regret", minus="a"), tmp_path)
    expected = -(2 + np.array([90, 91, 92]) - 70 - FIVE[:3])
    assert less[less["at"] == "end"]["value"].to_list() == pytest.approx([*expected])


def test_without_a_record_or_a_row_a_claim_is_open(tmp_path):
    write_record(tmp_path / "e", {"a": FIVE})
    for lacking in (claim("> 0", "f/iid/a"), claim("> 0", minus="b"), claim("> 0", "e/iid/a")):
        verdict = judge(lacking, tmp_path)
        assert (verdict.word, verdict.number, verdict.by_seed) == ("open", "–", {})


def test_what_was_looked_for_afterwards_has_an_interval_and_no_verdict(tmp_path):
    write_record(tmp_path / "e", {"a": FIVE + 9})
    verdict = judge(claim("> 0", origin="post hoc"), tmp_path)
    assert verdict.word == "no verdict" and verdict.number == "9.0 % [7.8, 10.2] †"


ENTRY = {
    "claim": "A sentence.",
    "origin": "specification 002",
    "metric": "accuracy_b - accuracy_a",
    "of": ["e/iid@half/a", "e/iid@none/a"],
    "minus": "b",
    "holds": "0 ± 1",
}


def test_a_claim_has_six_fields(tmp_path):
    (tmp_path / "claims.yaml").write_text(json.dumps({"one": ENTRY}))
    (read,) = read_claims(tmp_path / "claims.yaml")
    assert read == Claim("one", **{**ENTRY, "of": tuple(ENTRY["of"]), "minus": ("b",)})
    assert read.range == (-1, 1) and read.metrics == ["accuracy_b", "accuracy_a"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hold": "> 0"}, "one: there is no field 'hold'; did you mean 'holds'"),
        ({"holds": "about 3"}, "one: holds is 'about 3'; write '> x'"),
        ({"holds": 3}, "one: holds is 3"),
        ({"holds": None}, "one: holds is None"),
        ({"metric": "acuracy"}, "one: there is no metric 'acuracy'; did you mean 'accuracy'"),
        ({"metric": "accuracy."}, "one: metric is 'accuracy.'; write a metric"),
        ({"metric": "__import__('os')"}, "one: metric is"),
        ({"metric": "3"}, "one: metric is '3'"),
        ({"origin": "specification"}, "one: origin is 'specification'; write specification NNN"),
        ({"of": "e/a"}, "one: of is 'e/a'; write experiment/cell/method"),
        ({"of": []}, r"one: of is \[\]"),
        ({"minus": "e/c/a/b"}, "one: minus is 'e/c/a/b'; write what differs"),
        ({"over": "b"}, "one: minus and over exclude each other"),
        ({"claim": ""}, "one: claim is ''; write a sentence"),
    ],
)
def test_wrong_claims_are_refused(tmp_path, change, message):
    (tmp_path / "claims.yaml").write_text(json.dumps({"one": {**ENTRY, **change}}))
    with pytest.raises(ValueError, match=message):
        read_claims(tmp_path / "claims.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no claims"),
        ("one: a sentence", "claim one: claim is None; write a sentence"),
        ("a: {claim: x}\na: {claim: y}", "the key 'a' stands in line 1 and again"),
        (
            "one: {claim: x, origin: primary, of: e/c/a, holds: < 1}",
            "metric is None; write a metric",
        ),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, message):
    (tmp_path / "claims.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_claims(tmp_path / "claims.yaml")


@pytest.fixture
def repository(tmp_path):
    """A repository with claims of the first edition, then of today's form."""

    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        call = ["git", "-C", tmp_path, *identity, *arguments]
        return subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    commits = []
    for text in ("claims: [{id: one}]\n", json.dumps({"one": ENTRY})):
        (tmp_path / "claims.yaml").write_text(text)
        git("add", "claims.yaml")
        git("commit", "-qm", "claims")
        commits.append(git("rev-parse", "HEAD"))
    return tmp_path, *commits


def test_a_claim_stood_before_its_runs_or_not(repository, monkeypatch):
    folder, first, today = repository
    (one,) = read_claims(folder / "claims.yaml")
    reworded = Claim(**{**vars(one), "claim": "In other words."})
    changed = Claim(**{**vars(one), "holds": "0 ± 5"})
    later = Claim(**{**vars(one), "id": "two"})
    afterwards = Claim(**{**vars(later), "origin": "post hoc"})
    told = [declared_before(each, today, folder) for each in (one, reworded, changed, later)]
    assert told == [True, True, False, False]
    monkeypatch.chdir(folder)
    assert declared_before(one, today, ".") is True, "it is that of the working directory"
    assert declared_before(one, first, folder) is None
    assert declared_before(one, "0" * 40, folder) is None

    root = folder / "records"
    write_record(root / "e", {"a": FIVE, "b": FIVE})
    made = [
        {"commit": today, "runs": ["digits/clients~4/iid@half/b/seed~0"]},
        {"commit": first, "runs": ["digits/clients~4/iid@none/a/seed~0"]},
        {"commit": "0" * 40, "runs": ["digits/clients~4/iid@half/another/seed~0"]},
        {"commit": None, "runs": ["digits/clients~4/iid@half/b/seed~1"]},
    ]
    (root / "e/provenance.json").write_text(json.dumps(made))
    faults, unknown = undeclared([one, changed, afterwards], root, folder)
    assert len(faults) == 1 and f"claim c: at {today[:10]}".replace(" c:", " one:") in faults[0]
    assert unknown == sorted([first, "unknown"])


@pytest.fixture
def root(tmp_path):
    """A repository with a claim that is supported, one looked for afterwards, and an arena."""
    rows = {"fedsdg": FIVE + 93, "fedavg": FIVE * 2 + 80}
    write_record(tmp_path / slots.RECORDS / "needs", rows)
    text = """
better: {claim: A is better., origin: primary, metric: accuracy, of: needs/iid@half/fedsdg,
  minus: fedavg, holds: "> 0"}
seen: {claim: A is high., origin: post hoc, metric: accuracy, of: needs/iid@half/fedsdg,
  holds: "> 90"}
"""
    (tmp_path / "claims.yaml").write_text(text)
    (tmp_path / "docs").mkdir()
    slots.judged.cache_clear()
    return tmp_path


def test_slots_are_filled_in_place(root):
    better = "Better by <!-- better supported -->?<!-- / -->"
    (root / "README.md").write_text(
        f"<!-- run by: x -->\n{better}, `<!-- id word -->…<!-- / -->`\n"
    )
    (root / "docs/findings.md").write_text("High: <!-- seen no verdict --><!-- / -->.\n")
    (root / "docs/other.md").write_text("Nothing.\n")
    slots.render_documents(root)
    number = "[+13.0 points [+11.8, +14.2]](docs/claims.md#better)"
    readme = (root / "README.md").read_text()
    assert f"<!-- better supported -->{number}<!-- / -->" in readme
    assert readme.endswith(", `<!-- id word -->…<!-- / -->`\n")
    assert "[93.0 % [91.8, 94.2] †](claims.md#seen)" in (root / "docs/findings.md").read_text()
    assert "**supported**" in (root / "docs/claims.md").read_text()
    assert slots.intervals([judge(claim("> 0", "f/iid/a"), root)]).csv().count("\n") == 1
    rows = pd.read_csv(root / slots.NUMBERS)
    assert list(rows["claim"]) == ["better", "better", "seen", "seen"]
    assert rows["mean"].to_list() == pytest.approx([13, 13, 93, 93])
    before = {file: file.read_text() for file in root.rglob("*.md")}
    slots.render_documents(root)
    assert before == {file: file.read_text() for file in root.rglob("*.md")}


def test_lines_of_a_table_are_filled_in(root):
    slot = "<!-- table needs/iid@half:accuracy:all fedavg,fedsdg --><!-- / -->\n"
    (root / "README.md").write_text(slot)
    slots.render_documents(root)
    lines = (root / "README.md").read_text().splitlines()
    cells = [line.split("|")[1].strip() for line in lines if line.startswith("|")]
    assert cells[2:] == ["fedsdg", "fedavg"] and "93.0" in lines[3]
    (root / "README.md").write_text(slot.replace(":accuracy:", ":megabytes:"))
    slots.render_documents(root)
    assert "| fedavg" in (root / "README.md").read_text(), "a metric with one reading"


@pytest.mark.parametrize(
    ("slot", "message"),
    [
        ("better refuted --><!-- / -->", r"better is presumed 'refuted' and is supported \(\+13"),
        ("bettr supported --><!-- / -->", "no claim 'bettr'; did you mean 'better'"),
        ("better supported -->, ", "the slot lacks its beginning or its end"),
        ("/ -->", "the slot lacks its beginning"),
        ("table need/iid:accuracy:all fedavg --><!-- / -->", "need/methods.json is missing"),
        ("table needs/iid:accuracy:all fedavg --><!-- / -->", "no run of needs/iid has the metric"),
        ("table needs/iid@half:acuracy:all fedavg --><!-- / -->", "did you mean 'accuracy'"),
        ("table needs/iid@half:accuracy:all fedavgg --><!-- / -->", "did you mean 'fedavg'"),
        ("table main --><!-- / -->", "write <!-- table ARENA/CELL"),
    ],
)
def test_a_wrong_slot_is_named_with_file_and_line(root, slot, message):
    good = "<!-- better supported -->?<!-- / -->"
    (root / "README.md").write_text(good)
    (root / "docs/findings.md").write_text(f"One.\n\nTwo {good} <!-- {slot}\n")
    with pytest.raises(ValueError, match=message) as error:
        slots.render_documents(root)
    assert str(error.value).startswith("docs/findings.md:3: ")
    assert (root / "README.md").read_text() == good  # nothing is written by half
    assert not (root / "docs/claims.md").exists()


def test_claims_of_the_repository_name_experiments_that_exist():
    claims = read_claims(ROOT / "claims.yaml")
    assert 0 < len(claims) <= 40
    configs = [yaml.safe_load(file.read_text()) for file in ROOT.glob("config/**/*.yaml")]
    experiments = {config["experiment"] for config in configs if "experiment" in config}
    keys = [key for claim in claims for of in claim.of for key in of.split(" + ")]
    assert {key.split("/")[0] for key in keys} <= experiments


def test_documents_link_to_claims_that_exist():
    known = {claim.id for claim in read_claims(ROOT / "claims.yaml")}
    documents = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    text = "\n".join(file.read_text() for file in documents)
    linked = set(re.findall(r"claims\.md#([\w-]+)\)", text))
    assert linked and linked <= known
