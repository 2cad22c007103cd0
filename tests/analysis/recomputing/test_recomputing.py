"""What is committed is what the records give, or the place is named: in every kind of file."""

import json
import re
import shutil

import pytest

from fedsdg.analysis.recomputing import recompute
from fedsdg.analysis.record import write_record_hashes
from fedsdg.cli import main
from tests.analysis.recomputing.conftest import RECORD, ROOT, SIDECAR

#: Of each kind of file a digit, by what stands around it, and what is said of its place.
DIGITS = {
    f"{RECORD}/main.md": ("70.1", "70.2", r"line 7 \(FedSDG\): '70.2' .* '70.1'"),
    f"{RECORD}/main.csv": (
        "94.0798",
        "94.0799",
        r"line \d+, column '.*round mean \(%\)': '94.0799'",
    ),
    f"{RECORD}/main.tex": ("70.1", "71.1", r"line \d+: '71.1' .* '70.1'"),
    f"{RECORD}/claims.md": ("−39.1", "−39.2", r"line 16: '−39.2' .* '−39.1'"),
    SIDECAR: ("0.305396", "0.305397", r"numbers\[14\].alignment: 0.305397 .* 0.305396"),
    "results/reference/ledger.json": (
        "-0.60489",
        "-0.60488",
        r"weights-follow-noise.effect: -0.60488 .* -0.60489",
    ),
    "docs/claims.md": ("−0.605", "−0.606", r"line \d+ .*'−0.606' .* '−0.605'"),
    "README.md": ("−0.605 on", "−0.615 on", r"the paragraph from line \d+ on .* −0.615 stands in"),
    "docs/findings.md": ("3 seeds", "4 seeds", r"the paragraph from line 4 on .* 4 stands in none"),
}


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
    assert "3 tables, 1 pages of claims, 1 sidecars of figures, 1 verdicts, 4 numbers" in said
    assert main(["verify", "--sample", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["faults"] == []


@pytest.mark.parametrize("name", DIGITS)
def test_one_changed_digit_is_named_with_its_place(copy, capsys, name):
    old, new, place = DIGITS[name]
    changed(copy, name, old, new)
    assert main(["verify", "--sample", "0"]) == 1
    errors = [e for e in capsys.readouterr().err.splitlines() if "error: " in e]
    assert len(errors) == 2, "the place, and how many there are"
    assert re.search(rf"error: {re.escape(name)}, {place}", errors[0]), errors[0]


def test_a_digit_of_the_table_in_the_readme_is_named_by_its_line_there(copy):
    changed(copy, "README.md", "70.1", "70.7")
    (fault,) = recompute(copy).faults
    line = int(re.search(r"line (\d+)", fault.place)[1])
    assert "70.7" in (copy / "README.md").read_text().splitlines()[line - 1]


def test_a_record_that_is_another_one_is_named(copy):
    """Its bytes are not those that the figure was drawn from, whatever it says now."""
    shutil.copyfile(copy / RECORD / "clients.parquet", copy / RECORD / "spare.parquet")
    facts = json.loads((copy / SIDECAR).read_text())
    facts["inputs"][f"{RECORD}/spare.parquet"] = "0" * 64
    facts["inputs"][f"{RECORD}/gone.parquet"] = "0" * 64
    (copy / SIDECAR).write_text(json.dumps(facts))
    found = [str(fault) for fault in recompute(copy).faults]
    assert len(found) == 2
    assert any(
        "gone.parquet: the figure was drawn from this file, which is not" in f for f in found
    )
    assert any("spare.parquet: 0000" in fault for fault in found)


def test_pages_that_are_named_but_not_there_are_faults(copy):
    for name in (SIDECAR, f"{RECORD}/claims.md", "docs/claims.md"):
        (copy / name).unlink()
    for suffix in ("csv", "md"):
        (copy / RECORD / f"label_noise.{suffix}").unlink()
    (copy / RECORD / "unheard_of.csv").write_text("a,b\n1,2\n")
    files = {fault.file for fault in recompute(copy).faults}
    assert files == {
        SIDECAR,
        f"{RECORD}/claims.md",
        f"{RECORD}/pages.json",
        f"{RECORD}/unheard_of.csv",
        "docs/claims.md",
    }


def test_what_is_kept_beside_the_tables_must_be_of_the_runs(copy):
    backbone, origins = f"{RECORD}/backbones/letters.json", f"{RECORD}/provenance.json"
    digest = json.loads((copy / backbone).read_text())["sha256"]
    changed(copy, backbone, digest, "0" * 64)
    (copy / origins).write_text("[]")
    write_record_hashes(copy / RECORD)
    found = {fault.file: str(fault) for fault in recompute(copy).faults}
    assert found.keys() == {backbone, origins}
    assert "sha256: 0000" in found[backbone] and digest in found[backbone]
    assert "does not say where 12 runs were made" in found[origins]


def test_a_partition_that_is_kept_must_be_that_of_the_runs(copy):
    """Another experiment's division of as many clients, by another skew."""
    other = "contribution/partitions/digits/clients~10/dirichlet~0.1/seed~0.parquet"
    place = f"{RECORD}/partitions/digits/clients~10/dirichlet~1.0/seed~0.parquet"
    shutil.copyfile(ROOT / "results/reference" / other, copy / place)
    (fault,) = recompute(copy).faults
    assert (fault.file, fault.place) == (place, "sha256")


def test_a_flipped_bit_of_a_record_is_named(copy, capsys):
    """Even where no page would print it: the last digits of one client in one round."""
    file = copy / RECORD / "clients.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert main(["verify", "--sample", "0"]) == 2
    assert f"{RECORD}/clients.parquet is damaged or was edited" in capsys.readouterr().err


def test_a_record_without_hashes_is_named_and_can_be_read(copy):
    (copy / RECORD / "SHA256SUMS").unlink()
    (fault,) = recompute(copy).faults
    assert str(fault).endswith("has no SHA256SUMS")


def test_lines_that_are_too_many_or_too_few_are_named(copy):
    changed(copy, f"{RECORD}/main.csv", "fedavg,", "fedavg,1\nfedavg,")
    (fault,) = recompute(copy).faults
    assert re.match(r"from line \d+ on", fault.place) and "lines, but the records" in fault.because


def test_without_records_there_is_nothing_to_compare_with(tmp_path):
    with pytest.raises(FileNotFoundError, match="call this in the root of the repository"):
        recompute(tmp_path)


def test_the_sample_cannot_be_negative(copy, capsys):
    assert main(["verify", "--sample", "-1"]) == 2
    assert "--sample is -1" in capsys.readouterr().err


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
