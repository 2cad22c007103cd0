"""The table of the benchmarks of training, from measurements made up here."""

import re

import pandas as pd
import pytest

from fedsdg.analysis.throughput import write_throughput
from fedsdg.cli import main
from fedsdg.files import write_json

MACHINE = {
    "processor": "Abacus 2000",
    "threads": 1,
    "cores": 2,
    "commit": "0123456789abcdef",
    "dirty": False,
    "allocator": {"MALLOC_MMAP_MAX_": "0"},
    "read_gigabytes_per_second": {"low": None, "median": None, "high": None},
}


def measured_round(model, code, precision, seconds, **more):
    row = {"model": model, "method": "fedsdg", "device": "cpu", "clients": 5, "batch_size": 16}
    row |= {"epochs": 2, "samples": 400, "code": code, "precision": precision, "refused": None}
    return row | {"seconds": seconds} | more


def parts():
    counted = {"operations": 4e9, "peak": 1e11}
    rounds = [
        measured_round("digits", "ours", "float32", 0.2, **counted),
        measured_round("digits", "plain", "float32", 0.7, **counted),
        measured_round("digits", "flower", "float32", 2.2, start_seconds=12.4, refused="busy"),
        measured_round("vit-tiny", "ours", "float32", 8.0, **counted),
        measured_round("vit-tiny", "ours", "bfloat16", 4.0, operations=4e9, peak=2e11),
    ]
    aim = {"device": "cpu", "model": "digits", "method": "fedsdg", "code": "plain", "met": True}
    aim |= {"precision": "float32", "ours": "float32", "bound": 3, "value": 3.5}
    bar = {"method": "fedsdg", "model": "digits", "least": 2, "reason": "one pass", "ratio": 3.4}
    empty = {name: [] for name in ("timings", "accuracy", "bars", "aims")}
    more = {"round_aims": [aim], "round_bars": [bar | {"verdict": "cleared"}]}
    return {"machine": MACHINE, **empty, "rounds": rounds, **more}


@pytest.fixture
def measured(tmp_path):
    path = tmp_path / "measured.json"
    write_json(path, parts())
    return path


def rows(text, name):
    lines = re.findall(rf"^\| {re.escape(name)} +\|(.*)\|$", text, re.M)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def test_rates_counts_shares_and_ratios(measured, tmp_path):
    csv, md, tex = write_throughput(measured, tmp_path / "table")
    text = md.read_text("utf-8")
    # 400 samples and 4 GFLOP in 0.2 s, where 100 GFLOP/s are possible.
    assert rows(text, "ours")[0] == ["float32", "5.000", "2,000", "10.0", "20.0", "0.20", "1.00×"]
    assert rows(text, "plain loop")[0][-1] == "3.50×"
    assert rows(text, "Flower's simulation")[0][1:] == ["0.455", "182", "–", "–", "–", "11.00×"]
    assert rows(text, "ours")[2][-3:] == ["0.01", "0.50×", "1.00×"]
    assert "**digits, FedSDG: 5 clients, batch 16, 400 samples on the cpu**" in text
    assert len(pd.read_csv(csv)) == 5
    assert tex.read_text("utf-8").isascii()


def test_aims_bars_and_notes(measured, tmp_path):
    _, md, _ = write_throughput(measured, tmp_path / "table")
    text = re.sub(" +", " ", md.read_text("utf-8"))
    assert "| plain loop in float32, ours in float32 | ≥ 3× | 3.50× | reached |" in text
    assert "| digits, FedSDG | ≥ 2× | 3.40× | cleared |" in text
    assert "starting and stopping took 12 s more" in text
    assert "- peak in bfloat16: 200 GFLOP/s" in text
    assert "beside 1 of 5 measurements other programs" in text
    assert "not both installed" not in text


def test_the_command_prints_the_table_and_names_a_file_without_rounds(measured, tmp_path, capsys):
    given = ["--output", str(tmp_path / "tables")]
    assert main(["render", "throughput", "--measured", str(measured), *given]) == 0
    assert "Flower's simulation" in capsys.readouterr().out
    write_json(measured, parts() | {"rounds": []})
    assert main(["render", "throughput", "--measured", str(measured), *given]) == 2
    assert "measured.json holds no rounds of federations" in capsys.readouterr().err
