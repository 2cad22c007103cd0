"""Table and figure of measured speed, from measurements made up here."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from fedsdg.analysis.speed import Measurements, speed, write_speed

ROOT = Path(__file__).parents[2]
MACHINE = {
    "processor": "Abacus 2000",
    "threads": 1,
    "cores": 2,
    "commit": "0123456789abcdef",
    "dirty": True,
}


def row(code, seconds, ratio, question="rules", subject="krum", setting="10 × 1,000", **facts):
    key = {"question": question, "subject": subject, "setting": setting, "code": code}
    return key | {"seconds": seconds, "ratio": ratio, "busy_cores": 0.0} | facts


ROWS = [
    row("ours", 30.0, 1.0, "files", "fedsdg", peak_bytes=600 << 20),
    row("numpy", 20.0, 0.7, "files", "fedsdg", peak_bytes=5 << 30),
    row("ours", 0.004, 1.0),
    row("byzfl", 0.02, 5.0),
    row("limit", 0.0036, 0.9),
    row("ours", 0.005, 1.0, setting="100 × 1,000", busy_cores=1.5),
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "measured.json"
    path.write_text(json.dumps({"machine": MACHINE, "rows": ROWS}))
    return path


def lines(text, title):
    """Return the cells of the lines of a block of a table in Markdown."""
    block = text.split(f"**{title}**")[1].split("**")[0]
    rows = [line for line in block.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in rows[2:]]


def test_table_and_figure_are_written(file, tmp_path):
    files = write_speed(file, tmp_path / "table", tmp_path / "figure")
    names = [path.name for path in files]
    assert {f"speed.{suffix}" for suffix in ("csv", "md", "svg", "png", "json")} <= {*names}
    assert all(path.is_file() for path in files)
    assert len(pd.read_csv(tmp_path / "table/speed.csv")) == len(ROWS)
    assert json.loads((tmp_path / "figure/speed.json").read_text())["inputs"]


def test_a_question_is_a_block_and_a_comparison_a_line(file):
    text = speed(Measurements.read(file)).markdown()
    assert lines(text, "Rules: clients × parameters") == [
        ["10 × 1,000", "krum", "4.00 ms", "0.90", "5.00×"],
        ["100 × 1,000", "krum", "5.00 ms", "–", "–"],
    ]
    assert lines(text, "Files: clients × parameters") == [
        ["10 × 1,000", "fedsdg", "30.0 s", "0.70×", "600", "5120"]
    ]
    assert "Abacus 2000, 1 of 2 cores; commit 01234567 with changes." in text
    assert "Beside 1 of 6 measurements other programs were at work." in text


def test_files_without_measurements_are_named(file, tmp_path):
    with pytest.raises(FileNotFoundError, match="make bench"):
        Measurements.read(tmp_path / "none.json")
    file.write_text(json.dumps({"machine": MACHINE, "rows": []}))
    with pytest.raises(ValueError, match="has no rows"):
        Measurements.read(file)


def test_the_numbers_of_the_page_are_those_of_the_committed_table():
    results = (
        (ROOT / "docs/maintainers/benchmarks.md")
        .read_text()
        .split("## Results")[1]
        .split("\n## ")[0]
    )
    table = (ROOT / "results/reference/performance/speed.md").read_text()
    numbers = re.findall(r"[\d,.]+(?:×| ms| s)(?! \d)|\b\d\.\d+\b", results)
    assert len(numbers) > 8
    assert [number for number in numbers if number not in table] == []
