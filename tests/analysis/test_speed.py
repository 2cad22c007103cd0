"""Tables and figure of measured speed, from measurements made up here."""

import json
from pathlib import Path

import pandas as pd
import pytest

from fedsdg.analysis.speed import Measurements, write_kernels, write_throughput

MACHINE = {
    "processor": "Abacus 2000",
    "threads": 1,
    "cores": 2,
    "commit": "0123456789abcdef",
    "dirty": True,
}


def timing(suite, rule, clients, parameters, code="ours", **facts):
    row = {"suite": suite, "rule": rule, "clients": clients, "parameters": parameters}
    return row | {"code": code, "refused": None} | facts


@pytest.fixture
def file(tmp_path):
    rows = []
    for clients, parameters in ((100, 2_000_000), (10, 1_000_000)):
        at = ("sizes", "krum", clients, parameters)
        rows.append(timing(*at, seconds=0.004, floor=0.9, least_bytes=92_000_000))
        rows.append(timing(*at, "reference", seconds=0.02, ratio=5.0))
        rows.append(timing(*at, "byzfl", note="too large"))
    rows += [timing("clients", "krum", n, 10**6, floor=0.8, seconds=0.1) for n in (2, 10)]
    rows += [timing("parameters", "krum", 10, n, floor=0.5, seconds=0.1) for n in (10, 10**6)]
    ours = {"model": "digits", "method": "fedsdg", "code": "ours", "precision": "float32"}
    ours |= {"seconds": 0.25, "samples": 500, "clients": 5, "refused": None}
    plain = ours | {"code": "plain", "seconds": 0.5}
    parts = {
        "machine": MACHINE,
        "timings": rows,
        "accuracy": [],
        "aims": [],
        "rounds": [ours, plain],
    }
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(parts))
    return path


def test_kernels_have_a_block_per_size_and_the_measurements(file, tmp_path):
    files = write_kernels(file, tmp_path / "kernels", tmp_path / "roofline")
    suffixes = ["csv", "md", "tex", "pdf", "svg", "png", "json"]
    assert [f.suffix[1:] for f in files] == suffixes
    assert all(f.is_file() for f in files)
    text = files[1].read_text()
    assert text.index("M = 10, d = 1,000,000") < text.index("M = 100, d = 2,000,000")
    assert [c.strip() for c in text.splitlines()[6].split("|")[1:-1]] == [
        *("krum", "4.00", "23.0", "0.90", "5.0×"),
    ]
    assert "Abacus 2000, 1 of 2 cores; commit 01234567 with changes." in text
    assert len(pd.read_csv(files[0])) == 10
    assert json.loads(files[-1].read_text())["inputs"]


def test_throughput_compares_codes_in_the_same_precision(file, tmp_path):
    text = write_throughput(file, tmp_path / "throughput")[1].read_text()
    lines = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()[6:]]
    assert lines[0] == ["ours, float32", "4.000", "2,000", "1.00×"]
    assert lines[1] == ["plain loop, float32", "2.000", "1,000", "2.00×"]


def test_files_without_measurements_are_named(file, tmp_path):
    with pytest.raises(FileNotFoundError, match="make bench"):
        Measurements.read(tmp_path / "none.json")
    parts = json.loads(file.read_text())
    file.write_text(json.dumps(parts | {"rounds": []}))
    with pytest.raises(ValueError, match="holds no rounds"):
        write_throughput(file, tmp_path / "throughput")
    del parts["machine"]
    file.write_text(json.dumps(parts))
    with pytest.raises(ValueError, match="has no 'machine'"):
        write_kernels(file, tmp_path / "kernels", tmp_path / "roofline")


def test_the_committed_tables_are_made_of_the_committed_measurements():
    from fedsdg.analysis.speed import kernels, throughput

    folder = Path(__file__).parents[2] / "results/reference/performance"
    measured = Measurements.read(folder / "measured.json")
    assert len(kernels(measured).numbers) == len(measured.timings)
    assert len(throughput(measured).numbers) == len(measured.rounds)
