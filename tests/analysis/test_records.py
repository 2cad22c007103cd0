"""Reading records: cells, rows of runs, and damage in one sentence."""

import json
import shutil

import pytest

from fedsdg.analysis.names import (
    cell_title,
    is_oracle,
    method_order,
    method_title,
    natural_order,
)
from fedsdg.analysis.records import Record, record, records
from fedsdg.files import write_json
from tests.analysis.conftest import record_of, rewrite


@pytest.fixture
def copy(made, tmp_path):
    """The record without its hashes, which may be damaged."""
    folder = shutil.copytree(record_of(made), tmp_path / "made")
    (folder / "SHA256SUMS").unlink()
    return folder


def test_runs_and_rows(record):
    assert record.name == "made"
    assert set(record.runs["cell"]) == {"iid@half"}
    assert record.methods["fedavg"]["title"] == "FEDAVG"
    some = record.runs[(record.runs["method"] == "fedsdg") & (record.runs["seed"] > 2)]
    rows = record.rows("clients", ["round", "gates", "blocked"], some)
    assert len(rows) == 2 * 8 * 2
    assert set(rows["run"]) == set(some.index)
    assert (record.runs.loc[rows["run"], "seed"].to_numpy() == rows["seed"]).all()
    assert rows["blocked"].isna().all()


def test_rows_of_one_seed_alone(made):
    single = Record(record_of(made))
    single.runs = single.runs[single.runs["seed"] == 3]
    rows = single.rows("rounds", ["accuracy"])
    assert set(rows["seed"]) == {3}
    assert len(rows) == 3 * 8


def test_several_data_sets_make_cells_of_their_own(copy):
    rewrite(copy / "runs.parquet", dataset=["digits"] * 5 + ["mnist"] * 10)
    cells = Record(copy).runs["cell"].unique().tolist()
    assert cells == ["digits:iid@half", "mnist:iid@half"]


def test_every_committed_record_can_be_read(reference):
    opened = list(records(reference))
    assert len(opened) >= 10
    for one in opened:
        runs = one.finished
        assert set(runs["method"]) <= one.methods.keys()
        readings = ("selected_accuracy", "selected_accuracy_own_test", "end_accuracy_shared")
        assert runs[[name for name in readings if name in runs]].notna().any(axis=1).all()
        assert len(one.rows("rounds", ["round"]).drop_duplicates("run")) == len(runs)
    assert record(opened[0].folder) is opened[0]


def test_printed_names(record):
    assert method_title("fedsdg") == "FEDSDG"
    assert method_title("of nobody") == "of nobody"
    assert sorted(["fedavg", "of nobody", "fedsdg-fast", "fedsdg"], key=method_order) == [
        *("fedsdg", "fedsdg-fast", "fedavg", "of nobody")
    ]
    assert not is_oracle("fedavg")
    assert cell_title("dirichlet~0.1@late") == "α = 0.1, late"
    assert cell_title("mnist:classes~2") == "mnist, 2 classes per client"
    assert sorted(["late-10", "late-2"], key=natural_order) == ["late-2", "late-10"]


def cut(file):
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "runs.parquet").unlink(), r"runs\.parquet is missing; run 'fedsdg summ"),
        (lambda f: (f / "methods.json").unlink(), r"methods\.json is missing"),
        (lambda f: (f / "methods.json").write_text("{"), r"methods\.json is not valid JSON"),
        (lambda f: cut(f / "runs.parquet"), r"runs\.parquet is damaged \(.*\); restore it"),
        (lambda f: cut(f / "rounds.parquet"), r"rounds\.parquet is damaged"),
        (lambda f: rewrite(f / "rounds.parquet", seed=77), r"its run digits/.*seed~77 is none of"),
        (lambda f: rewrite(f / "rounds.parquet", seed=3), r"no rows of the run digits/.*seed~0"),
    ],
)
def test_damage_is_one_sentence(copy, damage, message):
    damage(copy)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as raised:
        Record(copy).rows("rounds", ["round"])
    assert "\n" not in str(raised.value)


def test_a_changed_file_is_refused(made, tmp_path):
    folder = shutil.copytree(record_of(made), tmp_path / "made")
    facts = json.loads((folder / "methods.json").read_text())
    write_json(folder / "methods.json", facts | {"fedavg": {}})
    with pytest.raises(ValueError, match=r"methods\.json is damaged or was edited"):
        Record(folder)
