"""A sample of published runs is drawn by the commit, and its first rounds are done again."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fedsdg.experiment.rechecking import rechecked, sampled
from fedsdg.experiment.replay import recorded_runs
from fedsdg.files import write_hashes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def alone(tmp_path):
    """A repository that has the record of one arena alone."""
    for place in ("results/reference/cross-label-skew", "results/reference/backbones", "config"):
        shutil.copytree(ROOT / place, tmp_path / place)
    return tmp_path


def test_the_commit_alone_says_which_runs_are_done_again():
    runs = recorded_runs(ROOT / "results/reference/cross-label-skew")
    one, other = sampled(runs, 5, "a1b2"), sampled(runs, 5, "c3d4")
    assert [run.folder for run in sampled(runs[::-1], 5, "a1b2")] == [run.folder for run in one]
    assert {run.folder for run in one} != {run.folder for run in other}
    assert sampled(runs, 3, "a1b2") == one[:3] and sampled(runs, 0, "a1b2") == []


@pytest.mark.slow
def test_a_published_run_is_paired_and_a_changed_record_is_not(alone):
    ((arena, found),) = rechecked(alone, 1, "a1b2")
    assert arena == "cross-label-skew" and found.paired is not None, found.sentence
    file = alone / "results/reference/cross-label-skew/clients.parquet"
    table = pq.read_table(file)
    moved = pc.add(table["train_loss"], pa.scalar(0.01))
    at = table.column_names.index("train_loss")
    pq.write_table(table.set_column(at, table.schema.field(at), moved), file)
    write_hashes(file.parent, [one.name for one in file.parent.glob("*.parquet")])
    ((_, changed),) = rechecked(alone, 1, "a1b2")
    assert changed.run == found.run and changed.paired is None
    assert "the training losses differ by 1.0e-02" in changed.sentence
    assert [*rechecked(alone, 0, "a1b2")] == []
