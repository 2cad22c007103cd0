"""What is committed is what the records give, or the place is named: in every kind of file."""

import json
import re
import shutil
from pathlib import Path

import pytest

from fedsdg.analysis.findings import read_findings, statements, write_findings
from fedsdg.analysis.ledger import write_ledger
from fedsdg.analysis.record import write_record_hashes
from fedsdg.analysis.tables import write_table
from fedsdg.analysis.verify import across_faults, json_faults, text_faults, verify
from fedsdg.cli import main
from fedsdg.files.places import ARENAS

ROOT = Path(__file__).parents[2]
NAME = "label-noise"
RECORD = f"results/reference/{NAME}"
SIDECAR = f"paper_figures/{NAME}/label_noise.json"

CLAIMS = """
claims:
- id: weights-follow-noise
  source: "000"
  origin: specification
  section: Summary
  sentence: A client weighs less the more of its labels are wrong.
  experiment: label-noise
  cell: dirichlet~1.0
  method: fedsdg
  measure: credit
  arguments: {of: weight, against: noise_rate}
  threshold: {below: -0.3}

findings:
- id: noise
  blocks: [noise]
  text: Weights follow the noise by {weights-follow-noise}, on 3 seeds.
"""
SAID = "<!-- findings: noise -->\n<!-- /findings -->\n"

#: Of each kind of file a digit, by what stands around it, and what is said of its place.
DIGITS = [
    (f"{RECORD}/main.md", "82.3", "82.5", r"line 7: '82.5' .* '82.3'"),
    (f"{RECORD}/main.csv", "94.0798", "94.0796", r"line \d+, column '.*mean \(%\)': '94.0796'"),
    (f"{RECORD}/main.tex", "82.3", "83.3", r"line \d+: '83.3' .* '82.3'"),
    (f"{RECORD}/claims.md", "−10.9", "−11.1", r"line 15: '−11.1' .* '−10.9'"),
    (SIDECAR, "0.490098", "0.490089", r"numbers\[0\].x: 0.490089 .* 0.490098"),
    ("results/reference/ledger.json", "-0.60489", "-0.60498", r"follow-noise.effect: -0.60498 "),
    ("docs/claims.md", "−0.605", "−0.607", r"line \d+: '−0.607' .* '−0.605'"),
    ("README.md", "by −0.605", "by −0.615", r"line 4: '−0.615' .* '−0.605'"),
    ("docs/findings.md", "3 seeds", "4 seeds", r"line 4: '4' .* '3'"),
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """Everything in it is what its record gives; copy it before you change it."""
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / RECORD, root / RECORD)
    for file in (SIDECAR, "config/config.yaml", f"config/extended/{NAME}.yaml"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, root / file)
    (root / "claims.yaml").write_text(CLAIMS)
    write_table(root / RECORD, "main", root / RECORD / "main")  # In LaTeX, too.
    records = root / "results/reference"
    entries = write_ledger(root / "claims.yaml", root / "config", records, root / "docs/claims.md")
    (root / "README.md").write_text(f"# A title\n\n{SAID}")
    (root / "docs/findings.md").write_text(f"# Findings\n\n{SAID}")
    write_findings(root, read_findings(root / "claims.yaml"), statements(entries, {}))
    return root


@pytest.fixture
def copy(repository, tmp_path, monkeypatch):
    """One that may be changed, as the working folder."""
    root = tmp_path / "repository"
    shutil.copytree(repository, root)
    monkeypatch.chdir(root)
    return root


def changed(root, name, old, new):
    text = (root / name).read_text()
    assert old in text, (name, old)
    (root / name).write_text(text.replace(old, new, 1))


def test_what_is_as_the_record_gives_it_passes(copy, capsys):
    assert main(["verify", "--sample", "0"]) == 0
    said = capsys.readouterr().out
    assert "2 tables, 1 pages of claims, 1 sidecars of figures, 1 verdicts, " in said
    assert "2 documents with findings" in said
    assert main(["verify", "--sample", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["faults"] == []


@pytest.mark.parametrize(("name", "old", "new", "place"), DIGITS)
def test_one_changed_digit_is_named_with_its_place(copy, capsys, name, old, new, place):
    changed(copy, name, old, new)
    assert main(["verify", "--sample", "0"]) == 1
    errors = [e for e in capsys.readouterr().err.splitlines() if "error: " in e]
    assert len(errors) == 2, "the place, and how many there are"
    assert re.search(rf"error: {re.escape(name)}, .*{place}", errors[0]), errors[0]


def other_inputs(root):
    """The bytes of a record are not those that the figure was drawn from."""
    shutil.copyfile(root / RECORD / "clients.parquet", root / RECORD / "spare.parquet")
    facts = json.loads((root / SIDECAR).read_text())
    facts["inputs"] |= {f"{RECORD}/{name}.parquet": "0" * 64 for name in ("spare", "gone")}
    (root / SIDECAR).write_text(json.dumps(facts))


def pages_gone(root):
    for name in (SIDECAR, f"{RECORD}/claims.md", "docs/claims.md"):
        (root / name).unlink()
    for suffix in ("csv", "md"):
        (root / RECORD / f"label_noise.{suffix}").unlink()
    (root / RECORD / "unheard_of.csv").write_text("a,b\n1,2\n")


def other_facts(root):
    """What is kept beside the tables is not of the runs."""
    backbone = root / RECORD / "backbones/letters.json"
    facts = json.loads(backbone.read_text())
    backbone.write_text(json.dumps(facts | {"sha256": "0" * 64}))
    (root / RECORD / "provenance.json").write_text("[]")
    write_record_hashes(root / RECORD)


def other_partition(root):
    """Another experiment's division of as many clients, by another skew."""
    other = "contribution/partitions/digits/clients~10/dirichlet~0.1/seed~0.parquet"
    shutil.copyfile(ROOT / "results/reference" / other, root / RECORD / PARTITION)


PARTITION = "partitions/digits/clients~10/dirichlet~1.0/seed~0.parquet"


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (other_inputs, {SIDECAR: ["gone.parquet: 0000.*no such file", "spare.parquet: 0000"]}),
        (
            pages_gone,
            {SIDECAR: [""], f"{RECORD}/claims.md": [""], f"{RECORD}/label_noise.csv": [""]}
            | {f"{RECORD}/unheard_of": [""], "docs/claims.md": [""]},
        ),
        (
            other_facts,
            {f"{RECORD}/backbones/letters.json": ["sha256: 0000"]}
            | {f"{RECORD}/provenance.json": ["does not say where 12 runs were made"]},
        ),
        (other_partition, {f"{RECORD}/{PARTITION}": ["sha256"]}),
        (lambda root: (root / RECORD / "SHA256SUMS").unlink(), {RECORD: ["has no SHA256SUMS"]}),
        (
            lambda root: changed(root, f"{RECORD}/main.csv", "fedavg,", "fedavg,1\nfedavg,"),
            {f"{RECORD}/main.csv": [r"from line \d+ on.*lines, but the records"]},
        ),
    ],
)
def test_what_is_not_of_the_record_is_named(copy, damage, found):
    damage(copy)
    faults = verify(copy)[1]
    assert {fault.file for fault in faults} == found.keys()
    for file, said in found.items():
        named = sorted(str(fault) for fault in faults if fault.file == file)
        assert len(named) == len(said), named
        assert all(map(re.search, said, named)), named


def test_a_record_that_was_damaged_or_edited_is_named(copy, capsys):
    """Even where no page would print it: the last digits of one client in one round, or a date."""

    def refused():
        assert main(["verify", "--sample", "0"]) == 2
        return capsys.readouterr().err

    file = copy / RECORD / "clients.parquet"
    whole = file.read_bytes()
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    assert f"{RECORD}/clients.parquet is damaged or was edited" in refused()
    file.write_bytes(whole)
    changed(copy, f"{RECORD}/provenance.json", "2026-11-21T21:37:45", "2026-11-22T21:37:45")
    assert f"{RECORD}/provenance.json is damaged or was edited" in refused()


def test_there_must_be_records_and_a_sample_is_not_negative(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match="call this in the root of the repository"):
        verify(tmp_path)
    with pytest.raises(SystemExit):
        main(["verify", "--sample", "-1"])
    said = capsys.readouterr().err
    assert "argument --sample: must be a whole number from 0, not '-1'" in said


def test_an_origin_that_was_changed_after_its_run_is_named(copy, capsys):
    changed(copy, "claims.yaml", "origin: specification", "origin: hypothesis")
    assert main(["render", "ledger", "--freeze"]) == 0
    assert "1 of their origins frozen" in capsys.readouterr().out
    assert main(["verify", "--sample", "0"]) == 0
    capsys.readouterr()
    changed(copy, "claims.yaml", "origin: hypothesis", "origin: specification")
    assert main(["render", "ledger"]) == 0
    assert main(["verify", "--sample", "0"]) == 1
    named = capsys.readouterr().err
    assert "claims.yaml, weights-follow-noise: claim weights-follow-noise: its origin was" in named
    assert "from 'hypothesis' to 'specification'" in named and "1 places" in named


def test_of_words_and_whole_numbers_each_counts_and_of_fractions_all_but_the_last_digit():
    row = "| fedsdg | 12 | 91.2 ± 0.8 | −1.25 | 9f86d081 | dirichlet~0.1 | 1,234 | 2.13.0 |"
    wide = row.replace("| 9", "|  9").replace(" |", "  |", 2)
    assert text_faults("x.md", wide, row) == []
    for given, near in (("91.2", "91.3"), ("0.8", "0.7"), ("−1.25", "−1.26")):
        assert text_faults("x.md", row.replace(given, near), row) == []
    wrongs = ("12", "13"), ("91.2", "91.4"), ("−1.25", "1.25"), ("−1.25", "−1.27"), ("0.8", "0.6")
    wrongs += ("9f86d081", "9f86d082"), ("fedsdg", "fedavg"), ("dirichlet~0.1", "dirichlet~0.2")
    for given, wrong in (*wrongs, ("1,234", "1,235"), ("2.13.0", "2.14.0")):
        (fault,) = text_faults("x.md", row.replace(given, wrong, 1), row)
        assert fault.place == "line 1" and fault.committed == repr(wrong)


def test_a_number_on_the_border_of_rounding_may_be_either():
    """9.995 is printed as 9.99 or as 10.0, and around zero the sign may be another."""
    for one, other in (("9.99", "10.0"), ("+0.1", "0.0"), ("0.0", "−0.1"), ("0.0999", "0.1")):
        assert text_faults("x.md", one, other) == text_faults("x.md", other, one) == []
    for one, other in (("0.5", "0.500001"), ("123456.0", "123457.0"), ("1.00001", "1.0")):
        assert text_faults("x.csv", one, other) == []
        assert json_faults("x.json", float(one), float(other)) == []
    # Trailing zeros are not written: 0.5 stands for 0.500000.
    for one, other in (
        *(("0.5", "0.6"), ("0.5", "0.501"), ("0.5", "0.500002")),
        *(("12345.6", "12345.8"), ("10", "11")),
    ):
        assert text_faults("x.csv", one, other)
        assert json_faults("x.json", json.loads(one), json.loads(other))


@pytest.mark.parametrize(
    ("tree", "places"),
    [
        ({"a": {"b": 1, "c": [1, 2]}, "d": None}, []),
        ({"a": {"b": True, "c": [1, 2]}, "d": None}, ["a.b"]),
        ({"a": {"b": 1, "c": [1]}, "d": None}, ["a.c[1]"]),
        ({"a": {"b": 1, "c": [1, 3]}, "d": None}, ["a.c[1]"]),
        ({"a": {"b": 1, "c": [1, 2]}, "d": 0.0}, ["d"]),
        ({"a": {"b": 1, "c": [1, 2]}}, ["d"]),
        ({"a": 1, "d": None}, ["a", "a.b", "a.c[0]", "a.c[1]"]),
    ],
)
def test_a_value_of_a_tree_is_named_by_its_keys(tree, places):
    faults = json_faults("x.json", tree, {"a": {"b": 1, "c": [1, 2]}, "d": None})
    assert [fault.place for fault in faults] == places


def test_what_spans_arenas_is_compared_with_their_records(tmp_path):
    """Only the pages of the arenas together are there, and the records that they are made from."""
    tables, sidecar = "results/reference/across", "paper_figures/across/regret.json"
    for folder in (tables, "paper_figures/across"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for arena in ARENAS:
        (tmp_path / "results/reference" / arena).symlink_to(ROOT / "results/reference" / arena)
    column = "regret (percentage points)"
    number = repr(json.loads((ROOT / sidecar).read_text())["numbers"][0][column])
    csv, md = (
        (ROOT / f"{tables}/regret.{suffix}").read_text().splitlines() for suffix in ("csv", "md")
    )
    wrong = [
        (sidecar, number, f"numbers[0].{column}"),
        (f"{tables}/regret.csv", csv[1], "line 2"),
        (f"{tables}/regret.md", md[4], "line 5"),
    ]
    for name, text, _ in wrong:  # The first digit before a point.
        changed(tmp_path, name, text, re.sub(r"\d\.", "9.", text, count=1))
    named = [str(fault) for _, faults in across_faults(tmp_path) for fault in faults]
    for (name, _, place), fault in zip(wrong, named, strict=True):
        assert fault.startswith(f"{name}, {place}"), fault
