"""Tables and roofline figure of the benchmarks, from measurements made up here."""

import json
import re

import pandas as pd
import pytest

from fedsdg.analysis.plots import roofline
from fedsdg.analysis.plots.style import styled
from fedsdg.analysis.speed import CODES, Measurements, write_kernels, write_throughput
from fedsdg.cli import main
from fedsdg.files import sha256_file, write_json

MACHINE = {
    "processor": "Abacus 2000",
    "threads": 1,
    "cores": 2,
    "commit": "0123456789abcdef",
    "dirty": False,
    "allocator": {"MALLOC_MMAP_MAX_": "0"},
    "read_gigabytes_per_second": {"low": 19.0, "median": 20.0, "high": 21.0},
    "last_level_cache_bytes": 1 << 20,
    "missing": ["flower"],
    "form": "full",
}


def timing(suite, rule, clients, parameters, code="ours", **facts):
    row = {"suite": suite, "rule": rule, "clients": clients, "parameters": parameters}
    row |= {"code": code, "in_cache": 4 * clients * parameters < 1 << 20, "refused": None}
    return row | facts


def timings():
    rows = []
    for clients, parameters in ((10, 1_000_000), (100, 2_000_000), (10, 10_000)):
        for rule in ("fedsdg", "krum"):
            at = ("sizes", rule, clients, parameters)
            rows.append(timing(*at, seconds=0.004, floor=0.9, least_bytes=92_000_000))
            rows.append(timing(*at, "reference", seconds=0.02, ratio=5.0))
        rows.append(timing("sizes", "krum", clients, parameters, "byzfl", note="too large: 1e9"))
    for clients in (2, 10, 1000):
        rows.append(timing("clients", "fedsdg", clients, 10**7 // clients, floor=0.8, seconds=0.1))
    for parameters in (1000, 10**6):
        rows.append(timing("parameters", "fedsdg", 10, parameters, floor=0.5, seconds=0.1))
    for allocator, theirs in (("kept", 0.02), ("default", 0.05)):
        at = ("allocator", "fedsdg", 10, 1_000_000)
        rows.append(timing(*at, seconds=0.004, allocator=allocator))
        rows.append(timing(*at, "plain", seconds=theirs, ratio=theirs / 0.004, allocator=allocator))
    rows[0]["refused"] = "not judged: other programs took 1.0 of 2 cores"
    return rows


@pytest.fixture
def measured(tmp_path):
    accuracy = {
        "rule": "krum",
        "code": "byzfl",
        "measure": "right winner",
        "updates": "independent",
    }
    accuracy |= {"clients": 10, "parameters": 1000, "value": 0.8, "shown": "8 of 10"}
    aim = {"rule": "fedsdg", "clients": 10, "parameters": 1_000_000, "against": "plain"}
    aim |= {"bound": 5, "at_most": False, "value": 4.5, "met": False}
    bar = {"rule": "krum", "clients": 10, "parameters": 1_000_000, "least": 6, "reason": "one pass"}
    bar |= {"ratio": 9.0, "verdict": "cleared"}
    path = tmp_path / "measured.json"
    parts = {"timings": timings(), "accuracy": [accuracy], "aims": [aim], "bars": [bar]}
    write_json(path, {"machine": MACHINE, **parts})
    return path


@pytest.fixture
def written(measured, tmp_path):
    paths = write_kernels(measured, tmp_path / "kernels", tmp_path / "roofline")
    return {path.name: path for path in paths}


def test_seven_files_and_a_truthful_sidecar(measured, written):
    names = {f"kernels.{suffix}" for suffix in ("csv", "md", "tex")}
    assert set(written) == names | {f"roofline.{s}" for s in ("pdf", "svg", "png", "json")}
    facts = json.loads(written["roofline.json"].read_text("utf-8"))
    assert list(facts["inputs"].values()) == [sha256_file(measured)]
    assert facts["caption"].startswith(roofline.CAPTION)
    assert "Abacus 2000, 1 of 2 cores, memory read at 20 GB/s" in facts["caption"]


def test_the_same_measurements_give_the_same_bytes(measured, written, tmp_path):
    again = write_kernels(measured, tmp_path / "b" / "kernels", tmp_path / "b" / "roofline")
    assert [p.read_bytes() for p in again] == [written[p.name].read_bytes() for p in again]


def test_cells_are_milliseconds_rates_shares_and_ratios(written):
    text = written["kernels.md"].read_text("utf-8")
    (fedsdg,) = re.findall(r"M = 10, d = 1,000,000 \(40.0 MB\).*?\| FedSDG +\|(.*?)\n", text, re.S)
    # 92 MB in 4 ms are 23 GB/s.
    assert [cell.strip() for cell in fedsdg.split("|")[:4]] == ["4.00", "23.0", "0.90", "5.0×"]
    assert "(0.90)" in text  # In the cache: not judged.
    assert "fails" in text
    assert "byzfl, Krum, M = 10, d = 10,000: fails with “too large: 1e9”" in text
    assert "Flower: not installed (benchmarks/requirements.txt), so not compared" in text
    assert "beside 1 of 24 measurements other programs" in text


def test_blocks_on_allocator_accuracy_aims_and_bars(written):
    text = re.sub(" +", " ", written["kernels.md"].read_text("utf-8"))
    assert "| memory kept by the allocator | 4.00 | 20.00 | 5.0× |" in text
    assert "| allocator's defaults | 4.00 | 50.00 | 12.5× |" in text
    assert "| Krum: right winner | independent | 10 × 1,000 | byzfl | 8 of 10 |" in text
    aim = "| FedSDG | 10 × 1,000,000 | ≥ 5× formulas, plainly | 4.50 | not reached |"
    assert aim in text
    assert "| Krum | 10 × 1,000,000 | ≥ 6× | 9.0× | cleared |" in text


def test_dictionaries_of_small_arrays_are_a_block(measured, tmp_path):
    row = {"rule": "krum", "clients": 20, "tensors": 200, "numbers": 1000, "least": 1 / 3}
    row |= {"reason": "joined", "ratio": 0.8, "verdict": "cleared"}
    write_json(measured, json.loads(measured.read_text()) | {"dictionaries": [row]})
    write_kernels(measured, tmp_path / "k", tmp_path / "r")
    text = re.sub(" +", " ", (tmp_path / "k.md").read_text("utf-8"))
    assert "| Krum | 20 × 200 × 1,000 | ≤ 3× | 1.25× | cleared |" in text


def test_files_larger_than_the_memory_are_a_block_or_a_note(measured, tmp_path):
    facts = {"rule": "fedsdg", "clients": 200, "parameters": 50_000_000, "refused": None}
    done = {"bytes_of_clients": 40_000_000_000, "peak_bytes": 700 << 20, "limit_bytes": 1536 << 20}
    done |= {"seconds_of_aggregation": 61.25, "passes": 2, "bytes_read": 80_000_000_000}
    done |= {"bytes_per_second": 1_300_000_000, "bare_bytes_per_second": 1_500_000_000}
    data = json.loads(measured.read_text())
    skipped = facts | {"skipped": "9 bytes are needed, 8 are free"}
    write_json(measured, data | {"files": [facts | done, skipped]})
    write_kernels(measured, tmp_path / "k", tmp_path / "r")
    text = re.sub(" +", " ", (tmp_path / "k.md").read_text("utf-8"))
    assert "| FedSDG | 200 × 50,000,000 | 40.0 | 700 of 1,536 | 61.2 | 2 | 1.30 | 1.50 |" in text
    assert "left out, 9 bytes are needed, 8 are free" in text


def test_csv_holds_every_timing(written):
    raw = pd.read_csv(written["kernels.csv"])
    assert len(raw) == len(timings())
    assert raw["seconds"].dropna().tolist() == [r["seconds"] for r in timings() if "seconds" in r]


def test_curves_are_the_shares_and_the_roof_is_at_one(measured):
    with styled():
        figure = roofline.draw(Measurements.read(measured))
    clients, parameters, small, large = figure.axes[:4]
    roof, curve = clients.lines
    assert list(roof.get_ydata()) == [1.0, 1.0]
    assert list(curve.get_xdata()) == [2, 10, 1000]
    assert list(curve.get_ydata()) == [0.8] * 3
    assert list(parameters.lines[1].get_ydata()) == [0.5] * 2
    assert "1,000,000" in small.get_title() and "2,000,000" in large.get_title()
    # Ours at 4 ms, and the reference, five times as slow, at 20.
    drawn = {round(float(line.get_xdata()[0]), 6) for line in large.lines if len(line.get_xdata())}
    assert {4.0, 20.0} <= drawn


def test_a_form_with_one_size_and_no_curves_is_still_drawn(measured, tmp_path):
    data = json.loads(measured.read_text())
    data["timings"] = [r for r in data["timings"] if r["parameters"] == 10_000][:2]
    write_json(measured, data)
    assert all(p.is_file() for p in write_kernels(measured, tmp_path / "k", tmp_path / "r"))


def test_wrong_files_are_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"none.json is not there; make it with: make bench"
    ):
        Measurements.read(tmp_path / "none.json")
    write_json(tmp_path / "other.json", {"machine": {}})
    with pytest.raises(ValueError, match="has no timings, accuracy, bars, aims"):
        Measurements.read(tmp_path / "other.json")


def test_the_command_prints_the_table_and_names_what_is_missing(measured, tmp_path, capsys):
    given = ["--output", str(tmp_path / "k")]
    assert main(["render", "kernels", "--measured", str(measured), *given]) == 0
    assert "M = 10, d = 1,000,000" in capsys.readouterr().out
    assert main(["render", "kernels", "--measured", str(tmp_path / "none.json"), *given]) == 2
    assert "none.json is not there; make it with: make bench" in capsys.readouterr().err


def test_every_code_of_the_columns_has_a_mark():
    assert set(roofline.MARKS) == {"ours", "floor", *CODES}


def measured_round(model, code, precision, seconds, **more):
    row = {"model": model, "method": "fedsdg", "device": "cpu", "clients": 5, "batch_size": 16}
    row |= {"epochs": 2, "samples": 400, "code": code, "precision": precision, "refused": None}
    return row | {"seconds": seconds} | more


def parts_of_rounds():
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
    unread = {"read_gigabytes_per_second": dict.fromkeys(("low", "median", "high"))}
    return {"machine": MACHINE | unread, **empty, "rounds": rounds, **more}


@pytest.fixture
def of_rounds(tmp_path):
    path = tmp_path / "rounds.json"
    write_json(path, parts_of_rounds())
    return path


def lines_of(text, name):
    lines = re.findall(rf"^\| {re.escape(name)} +\|(.*)\|$", text, re.M)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def test_rates_counts_shares_and_ratios(of_rounds, tmp_path):
    csv, md, _ = write_throughput(of_rounds, tmp_path / "table")
    text = md.read_text("utf-8")
    # 400 samples and 4 GFLOP in 0.2 s, where 100 GFLOP/s are possible.
    assert lines_of(text, "ours")[0] == [
        "float32",
        "5.000",
        "2,000",
        "10.0",
        "20.0",
        "0.20",
        "1.00×",
    ]
    assert lines_of(text, "plain loop")[0][-1] == "3.50×"
    assert lines_of(text, "Flower's simulation")[0][1:] == ["0.455", "182", "–", "–", "–", "11.00×"]
    assert lines_of(text, "ours")[2][-3:] == ["0.01", "0.50×", "1.00×"]
    assert "**digits, FedSDG: 5 clients, batch 16, 400 samples on the cpu**" in text
    assert len(pd.read_csv(csv)) == 5


def test_aims_bars_and_notes(of_rounds, tmp_path):
    _, md, _ = write_throughput(of_rounds, tmp_path / "table")
    text = re.sub(" +", " ", md.read_text("utf-8"))
    assert "| plain loop in float32, ours in float32 | ≥ 3× | 3.50× | reached |" in text
    assert "| digits, FedSDG | ≥ 2× | 3.40× | cleared |" in text
    assert "starting and stopping took 12 s more" in text
    assert "- peak in bfloat16: 200 GFLOP/s" in text
    assert "beside 1 of 5 measurements other programs" in text
    assert "not both installed" not in text


def test_the_command_prints_the_rounds_and_names_a_file_without_rounds(of_rounds, tmp_path, capsys):
    given = ["--output", str(tmp_path / "table")]
    assert main(["render", "throughput", "--measured", str(of_rounds), *given]) == 0
    assert "Flower's simulation" in capsys.readouterr().out
    write_json(of_rounds, parts_of_rounds() | {"rounds": []})
    assert main(["render", "throughput", "--measured", str(of_rounds), *given]) == 2
    assert "rounds.json holds no rounds of federations" in capsys.readouterr().err
