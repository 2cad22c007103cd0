"""A number is traced to its runs; a committed text that its records do not give is named."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from fedsdg.analysis import tables
from fedsdg.analysis.claims import judge, read_claims
from fedsdg.analysis.figures import figure_named
from fedsdg.analysis.metrics import METRICS
from fedsdg.analysis.provenance import command, trace
from fedsdg.analysis.records import record
from fedsdg.analysis.render import add_pages, committed
from fedsdg.analysis.slots import render_documents
from fedsdg.analysis.verification import same, verify
from fedsdg.files import write_hashes

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results/reference"
FOLDER = "results/reference/label-noise"
KEY = "needs/iid@half/fedsdg"
CLAIMS = """
weights-follow-noise:
  claim: A client weighs less the more of its labels are wrong.
  origin: hypothesis
  metric: accuracy_shared
  of: label-noise/dirichlet~1.0/fedsdg
  minus: fedavg
  holds: "> 0"
"""
SLOT = "Better by <!-- weights-follow-noise undecided --><!-- / -->.\n"


def write_everything(root):
    """Write all that is made of the records of a repository."""
    render_documents(root)
    for file, make in committed(root):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(make())


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Everything in it is what its record gives; copy it before you change it."""
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(RECORDS / "label-noise", root / FOLDER)
    for file in (root / FOLDER).iterdir():
        if file.suffix in (".csv", ".md"):
            file.unlink()
    add_pages(root / FOLDER, ["main"], ["label_noise"])
    data = [f.name for f in (root / FOLDER).iterdir() if f.suffix in (".parquet", ".json")]
    write_hashes(root / FOLDER, data)
    (root / "claims.yaml").write_text(CLAIMS)
    (root / "README.md").write_text(f"# A title\n\n{SLOT}")
    (root / "docs").mkdir()
    write_everything(root)
    return root


@pytest.fixture
def copy(repository, tmp_path):
    """A repository that may be changed."""
    return shutil.copytree(repository, tmp_path / "repository")


def changed(file, pattern, units):
    """Add units of its last digit to the first number that a pattern finds; return its line."""
    text = file.read_text()
    found = next(re.finditer(pattern, text))
    number = found[1]
    decimals = len(number.partition(".")[2])
    other = f"{float(number) + units * 10.0**-decimals:.{decimals}f}"
    file.write_text(text[: found.start(1)] + other + text[found.end(1) :])
    return text.count("\n", 0, found.start(1)) + 1


#: Of each kind of text a number with its last digit.
NUMBERS = [
    (f"{FOLDER}/main.csv", r",(\d\d\.\d{4}),"),
    (f"{FOLDER}/main.md", r"(\d\d\.\d)"),
    ("paper_figures/label-noise/label_noise.csv", r",(0\.\d{6})\b"),
    ("results/reference/across/claims.csv", r",(-?\d\.\d{5}),"),
    ("docs/claims.md", r"(\d\.\d) points"),
    ("README.md", r"(\d\.\d) points"),
]


@pytest.mark.parametrize(("name", "pattern"), NUMBERS)
def test_a_digit_changed_by_two_units_is_named_and_by_one_is_not(copy, name, pattern):
    assert list(verify(copy)) == []
    whole = (copy / name).read_text()
    changed(copy / name, pattern, 1)
    assert list(verify(copy)) == []
    (copy / name).write_text(whole)
    line = changed(copy / name, pattern, 2)
    (fault,) = verify(copy)
    assert fault.startswith(f"{copy / name}:{line}: ") and "the records give" in fault


def test_a_changed_hash_or_word_of_a_caption_is_named(copy):
    file = copy / "paper_figures/label-noise/label_noise.json"
    text = file.read_text()
    for old in (json.loads(text)["caption"].split()[0], *json.loads(text)["inputs"].values()):
        new = old[:-1] + ("1" if old[-1] == "0" else "0")
        file.write_text(text.replace(old, new, 1))
        (fault,) = verify(copy)
        assert fault.startswith(f"{file}:") and new in fault and old in fault


def test_one_flipped_byte_of_parquet_is_named(copy):
    file = copy / FOLDER / "rounds.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert [*verify(copy)] == [f"{file} has changed (its SHA-256 is not the one in SHA256SUMS)"]


def cut(root):
    file = root / FOLDER / "clients.parquet"
    file.write_bytes(file.read_bytes()[:5000])
    write_hashes(root / FOLDER, re.findall(r"  (\S+)", (root / FOLDER / "SHA256SUMS").read_text()))


def other_verdict(root):
    text = (root / "README.md").read_text()
    (root / "README.md").write_text(text.replace("undecided", "supported"))


#: What was done, and what is said of it.
DAMAGES = [
    (cut, r"clients\.parquet is damaged \(.*\); restore it"),
    (other_verdict, r"README\.md:3: .*'supported' and is undecided"),
    (lambda root: (root / FOLDER / "main.md").unlink(), r"main\.md: it is missing"),
    (lambda root: (root / FOLDER / "timings.parquet").unlink(), r"label-noise lacks timings"),
    (lambda root: (root / FOLDER / "cost.csv").touch(), r"cost\.csv: nothing makes it"),
    (lambda root: (root / "paper_figures/x.svg").touch(), r"x\.svg: nothing makes it"),
    (lambda root: (root / FOLDER / "new.json").touch(), r"new\.json: .* no SHA256SUMS lists it"),
    (
        lambda root: (root / FOLDER / "main.csv").write_text("experiment\n"),
        r"main\.csv:1: '' is committed.* 36 more lines differ",
    ),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES)
def test_what_is_damaged_missing_or_of_no_use_is_one_sentence(copy, damage, sentence):
    damage(copy)
    (fault,) = dict.fromkeys(verify(copy))
    assert re.search(sentence, fault)


def test_a_folder_without_records_is_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="no record in .*; call this in the root"):
        list(verify(tmp_path))


@pytest.mark.parametrize(
    ("one", "other", "digits", "alike"),
    [
        ("93.0417", "93.0418", 6, True),
        ("93.0417", "93.0423", 6, False),
        ("93.04", "93.0401", 6, True),
        ("93.04", "93.05", 6, False),
        ("9.99999", "10", 6, True),
        ("9.99998", "10", 6, False),
        ("1.23457e+06", "1.23458e+06", 6, True),
        ("1.23457e+06", "1.23459e+06", 6, False),
        ("1.5e-09", "1.50001e-09", 6, True),
        ("10", "11", 6, False),
        ("92.5 ± 0.7", "92.6 ± 0.7", 0, True),
        ("92.5 ± 0.7", "92.5 ± 0.9", 0, False),
        ("(n = 10)", "(n = 11)", 0, False),
        ("1,234.5", "1,234.6", 0, True),
        ("−0.1", "0.1", 0, False),
        ("dirichlet~0.1", "dirichlet~0.2", 0, False),
        ("2.5.1", "2.5.2", 0, False),
        ("3fa1", "3fa2", 0, False),
        ("[+31.1, +33.4]", "[+31.2, +33.3]", 0, True),
    ],
)
def test_numbers_may_differ_by_one_unit_of_their_last_digit(one, other, digits, alike):
    assert same(one, other, digits) is alike


def test_a_row_is_traced_to_its_runs_with_hashes_commit_day_and_machine():
    traced = trace(ROOT, KEY, "accuracy_b", "end")
    runs = record(RECORDS / "needs").runs
    own = runs[(runs["cell"] == "iid@half") & (runs["method"] == "fedsdg")]
    wanted = dict(zip(own["seed"], 100 * own["end_accuracy_b"], strict=True))
    assert traced.seeds == pytest.approx(wanted)
    rows = traced.runs.to_dict("records")
    assert [row["partition_hash"] for row in rows] == list(own["partition_hash"])
    assert rows[0]["run"] == f"results/runs/needs/digits/clients~20/iid@half/fedsdg/seed~{3}"
    assert re.fullmatch(r"[0-9a-f]{40}", rows[0]["commit"]) and rows[0]["day"].startswith("20")
    assert "PyTorch" in rows[0]["machine"]
    again = f"fedsdg grid {ROOT}/config/needs.yaml --only iid@half fedsdg seed~3"
    assert command(own[own["seed"] == 3], ROOT / "config").startswith(again)


def test_a_claim_is_traced_to_the_runs_of_both_sides():
    claim = next(c for c in read_claims(ROOT / "claims.yaml") if c.id == "private-branch-helps")
    traced = trace(ROOT, claim.id)
    verdict = judge(claim, RECORDS)
    assert traced.seeds == pytest.approx(dict(verdict.by_seed))
    assert traced.committed == f"{verdict.number}, {verdict.word}"
    by_method = traced.runs.groupby("method")["value"].mean()
    assert len(by_method) == 2 and set(traced.runs["seed"]) == set(traced.seeds)
    assert by_method["fedsdg"] - by_method.drop("fedsdg").iloc[0] == pytest.approx(verdict.mean)


#: Further tables, each of a record that has numbers for it.
KINDS = {
    "byzantine": ["attacks"],
    "contribution": ["gates"],
    "label-skew-levels": ["sweeps"],
    "needs-controls": ["groups"],
}


def traced_line(folder, name, numbers, place):
    """Write a CSV where it would be committed, and trace one of its rows."""
    file = folder / f"{name}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    numbers.to_csv(file, index=False, float_format="%.6g")
    return trace(ROOT, f"{file}:{place + 2}")


@pytest.mark.parametrize(
    "name", sorted(file.parent.name for file in RECORDS.glob("*/runs.parquet"))
)
def test_the_mean_of_the_runs_behind_a_line_is_the_number(name, tmp_path):
    of = record(RECORDS / name)
    for table in ("main", "differences", *KINDS.get(name, ())):
        numbers = tables.table(table, of).numbers.reset_index(drop=True)
        if numbers.empty:
            continue
        place = 7 * len(numbers) // 11
        traced = traced_line(tmp_path / name, table, numbers, place)
        seeds = pd.Series(traced.seeds)
        assert len(seeds) == numbers["n"][place]
        assert same(traced.committed, f"{seeds.mean():.6g}", 6), (table, traced)
        behind = traced.runs["run"].map(lambda run: run.startswith(f"results/runs/{name}/"))
        assert behind.all() and set(traced.runs["seed"]) == set(seeds.index)
        assert traced.runs["commit"].str.len().eq(40).all()


def test_of_a_line_that_is_no_metric_the_runs_are_named(tmp_path):
    numbers = figure_named("progress").frame(record(RECORDS / "contribution")).reset_index()
    traced = traced_line(tmp_path / "paper_figures/contribution", "progress", numbers, 5)
    assert set(traced.runs["method"]) == {numbers["method"][5]} and not traced.seeds
    assert len(traced.runs) == numbers["n"][5]
    regret = tables.regret([record(RECORDS / "needs")]).numbers
    traced = traced_line(tmp_path / "across", "regret", regret, 5)
    assert same(traced.committed, f"{pd.Series(traced.seeds).mean():.6g}", 6)


#: What is asked for, and what is wrong with it.
WRONG = [
    ((f"{RECORDS}/nothing.csv:2",), "nothing.csv"),
    ((f"{KEY}",), "name a metric of needs/iid@half/fedsdg as well"),
    ((KEY, "acuracy"), "no metric 'acuracy'; did you mean 'accuracy'"),
    (
        ("neds/iid@half/fedsdg", "accuracy"),
        "no record of 'neds'; did you mean 'needs'",
    ),
    (("needs/iid@halb/fedsdg", "accuracy"), "no cell 'iid@halb'; did you mean 'iid@half'"),
    (("needs/iid@half/fedsgd", "accuracy"), "no method 'fedsgd'; did you mean 'fedsdg'"),
    (("needs/iid@half/fedsdg", "accuracy_new"), "has a value of accuracy_new"),
    (("gates-follow-neds",), "no claim; did you mean 'gates-follow-need'"),
]


@pytest.mark.parametrize(("asked", "sentence"), WRONG)
def test_what_does_not_exist_is_one_sentence_with_the_nearest_name(asked, sentence):
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(sentence)) as error:
        trace(ROOT, *asked)
    assert "\n" not in str(error.value)


def test_a_point_of_a_study_has_the_runs_of_all_cells():
    traced = trace(ROOT, "paper_figures/variance-needs/variance.csv:2")
    assert len(traced.runs) == 30 and not traced.seeds


def test_a_line_of_runs_made_elsewhere_is_not_taken_for_the_record(tmp_path):
    numbers = tables.table("main", record(RECORDS / "needs")).numbers
    with pytest.raises(ValueError, match=r"main.csv:2 has another number than results/reference"):
        traced_line(tmp_path / "needs", "main", numbers.assign(mean=12.3), 0)


@pytest.mark.parametrize("written", ["a+b", '"a+b"  # of mine', "'a+b'"])
def test_the_config_of_an_experiment_is_found_however_it_is_written(written, tmp_path):
    runs = pd.DataFrame({"experiment": ["a+b"], "skew": ["iid"], "method": ["fedavg"], "seed": [3]})
    (tmp_path / "one.yaml").write_text("experiment: aab\n")
    (tmp_path / "two.yaml").write_text(f"experiment: {written}\nseeds: [3]\n")
    words = f"fedsdg grid {tmp_path}/two.yaml --only iid fedavg seed~3"
    assert command(runs, tmp_path) == words


def test_a_line_without_runs_says_what_stands_behind_it(tmp_path):
    rows = pd.DataFrame({"experiment": ["needs"], "method": ["fedsdg"], "score": [92.1]})
    with pytest.raises(
        ValueError, match=r"tuning.csv:2: no run .* the trials of fedsdg in search.json of"
    ):
        traced_line(tmp_path, "tuning", rows, 0)
    with pytest.raises(ValueError, match="rows in lines 2 to 2, and none in line 4"):
        traced_line(tmp_path, "main", rows, 2)


def test_every_metric_that_a_line_can_have_is_known():
    assert {"regret", "doubled", "gate_b"} <= METRICS.keys()
