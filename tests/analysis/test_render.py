"""Which pages a record shows, how they are written, and which committed files records give."""

import json
import shutil
from pathlib import Path

import pytest

from fedsdg.analysis.records import Record, record
from fedsdg.analysis.render import (
    USUAL,
    add_pages,
    committed,
    pages_named,
    require_known,
    shown,
    write_regret,
    write_shown,
)
from fedsdg.files import write_bytes, write_hashes
from tests.analysis.small import write_record

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results/reference"


@pytest.fixture
def small(tmp_path):
    return write_record(tmp_path / "small")


def test_a_record_without_pages_shows_the_usual_ones(small):
    assert shown(small) == (USUAL["tables"], USUAL["figures"])
    add_pages(small.folder, ["groups"], [])
    assert shown(Record(small.folder)) == (("groups",), ())


@pytest.mark.parametrize(
    ("word", "pages"),
    [
        ("main", [("table", "main")]),
        ("groups", [("table", "groups"), ("figure", "groups")]),
        ("figure:groups", [("figure", "groups")]),
        ("private_share", [("table", "private_share"), ("figure", "private_share")]),
    ],
)
def test_a_word_names_a_table_a_figure_or_both(word, pages):
    assert pages_named(word) == pages


@pytest.mark.parametrize("word", ["mian", "table:progress", "figure:main"])
def test_an_unknown_word_is_an_error_with_the_nearest(word):
    with pytest.raises(
        ValueError, match=f"metric '{word.partition(':')[2] or word}'; did you mean"
    ):
        pages_named(word)


def test_pages_are_checked_before_they_are_written(small):
    with pytest.raises(ValueError, match="there is no figure or metric 'grops'"):
        add_pages(small.folder, ["main"], ["grops"])
    assert not (small.folder / "pages.json").exists()
    require_known(["main", "accuracy"], ["progress", "gate"])


def test_all_that_a_record_shows_is_written(small, tmp_path):
    add_pages(small.folder, ["main", "attacks"], ["groups", "gates"])
    files = write_shown(small, tmp_path / "tables", tmp_path / "figures")
    names = [f"main.{suffix}" for suffix in ("csv", "md", "tex")]
    names += [f"groups.{suffix}" for suffix in ("pdf", "svg", "png", "csv", "json")]
    assert sorted(file.name for file in files) == sorted(names)
    assert all(file.is_file() for file in files)


def test_older_files_of_what_has_no_data_are_removed(small, tmp_path, capsys):
    add_pages(small.folder, ["main", "attacks", "gate"], ["attacks"])
    for name in ("attacks.csv", "attacks.tex", "figures/attacks.pdf", "other.csv"):
        write_bytes(tmp_path / "out" / name, b"older")
    write_shown(small, tmp_path / "out", tmp_path / "out/figures")
    left = sorted(file.name for file in tmp_path.glob("out/**/*.*"))
    assert left == ["main.csv", "main.md", "main.tex", "other.csv"]
    assert capsys.readouterr().err.startswith("gate is not shown: no run has all that it reads (")


def test_named_pages_are_written_without_latex(small, tmp_path):
    files = write_shown(small, tmp_path, None, ["groups", "attacks"], tex=False)
    assert [file.name for file in files] == ["groups.csv", "groups.md", "attacks.csv", "attacks.md"]
    assert "no finished run has these numbers" in (tmp_path / "attacks.md").read_text()


def test_regret_has_a_table_and_a_figure_of_accuracy_alone(small, tmp_path):
    assert len(write_regret([small], tmp_path, tmp_path, tex=False)) == 7
    files = write_regret([small], tmp_path, tmp_path, "accuracy_b", tex=False)
    assert [file.suffix for file in files] == [".csv", ".md"]


def test_committed_files_are_made_when_asked_for(tmp_path):
    folder = tmp_path / "results/reference/label-noise"
    shutil.copytree(RECORDS / "label-noise", folder)
    shutil.copytree(RECORDS / "performance", folder.with_name("performance"))
    add_pages(folder, ["main"], ["label_noise", "attacks"])
    write_hashes(folder, [file.name for file in folder.iterdir() if file.suffix == ".json"])
    (tmp_path / "docs").mkdir()
    (tmp_path / "claims.yaml").write_text("{}\n")
    made = {file.relative_to(tmp_path).as_posix(): make for file, make in committed(tmp_path)}
    below = "results/reference"
    assert set(made) >= {f"{below}/label-noise/main.csv", f"{below}/label-noise/main.md"}
    assert set(made) >= {f"{below}/performance/speed.md"}
    assert "paper_figures/label-noise/label_noise.json" in made
    assert made[f"{below}/label-noise/main.csv"]().startswith("experiment,cell,method,metric,at,n")
    facts = json.loads(made["paper_figures/label-noise/label_noise.json"]())
    assert facts["figure"] == "label_noise"
    with pytest.raises(ValueError, match=r"attacks.* no data .*pages\.json"):
        made["paper_figures/label-noise/attacks.csv"]()


def test_every_committed_file_is_named_once():
    files = [file for file, _ in committed(ROOT)]
    assert len(files) == len(set(files)) > 60
    assert ROOT / "results/reference/across/regret.md" in files
    assert record(RECORDS / "needs").folder / "main.csv" in files
