"""What spans arenas is recomputed from their records: a changed digit has its place."""

import shutil
from pathlib import Path

import pytest

from fedsdg.analysis.recomputing.spanning import spanning_faults

ROOT = Path(__file__).parents[3]
TABLES = "results/reference/across"


@pytest.fixture
def copy(tmp_path):
    """The pages of the arenas together, with the records beside them."""
    for folder in (TABLES, "paper_figures/across"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for arena in ("label-skew", "needs", "views"):
        (tmp_path / "results/reference" / arena).symlink_to(ROOT / "results/reference" / arena)
    return tmp_path


def test_what_is_committed_is_what_the_records_give(copy):
    assert spanning_faults(copy) == (2, [])


@pytest.mark.parametrize("name", [f"{TABLES}/across.md", f"{TABLES}/to_target.csv"])
def test_a_changed_digit_is_named(copy, name):
    file = copy / name
    text = file.read_text()
    place = max(i for i, letter in enumerate(text) if letter in "12345678" and text[i - 1] == ".")
    file.write_text(text[:place] + str(int(text[place]) + 1) + text[place + 1 :])
    _, (fault,) = spanning_faults(copy)
    assert str(fault).startswith(name)


def test_a_changed_number_of_the_sidecar_is_named(copy):
    sidecar = copy / "paper_figures/across/across.json"
    sidecar.write_text(sidecar.read_text().replace('"seeds": 5', '"seeds": 6'))
    _, (fault,) = spanning_faults(copy)
    assert "seeds: 6" in str(fault)


def test_without_such_pages_there_is_nothing_to_compare(tmp_path):
    assert spanning_faults(tmp_path) == (0, [])
