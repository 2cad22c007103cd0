"""Tables and roofline figure of the benchmarks, from measurements made up here."""

import json
import re

import pandas as pd
import pytest

from fedsdg.analysis.plots import roofline
from fedsdg.analysis.plots.style import styled
from fedsdg.analysis.speed import Measurements, write_kernels, write_throughput
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
    cached = 4 * clients * parameters < 1 << 20
    row = {"suite": suite, "rule": rule, "clients": clients, "parameters": parameters}
    return row | {"code": code, "in_cache": cached, "refused": None} | facts


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


def measurements():
    """Of every kind that a table has a block for."""
    of = {"rule": "krum", "clients": 10, "parameters": 1000}
    accuracy = of | {"code": "byzfl", "measure": "right winner", "updates": "independent"}
    accuracy |= {"value": 0.8, "shown": "8 of 10"}
    aim = {"rule": "fedsdg", "clients": 10, "parameters": 1_000_000, "against": "plain"}
    aim |= {"bound": 5, "at_most": False, "value": 4.5, "met": False}
    bar = {"rule": "krum", "clients": 10, "parameters": 1_000_000, "least": 6, "reason": "one pass"}
    bar |= {"ratio": 9.0, "verdict": "cleared"}
    small = {"rule": "krum", "clients": 20, "tensors": 200, "numbers": 1000, "least": 1 / 3}
    small |= {"reason": "joined", "ratio": 0.8, "verdict": "cleared"}
    facts = {"rule": "fedsdg", "clients": 200, "parameters": 50_000_000, "refused": None}
    done = {"bytes_of_clients": 40_000_000_000, "peak_bytes": 700 << 20, "limit_bytes": 1536 << 20}
    done |= {"seconds_of_aggregation": 61.25, "passes": 2, "bytes_read": 80_000_000_000}
    done |= {"bytes_per_second": 1_300_000_000, "bare_bytes_per_second": 1_500_000_000}
    skipped = facts | {"skipped": "9 bytes are needed, 8 are free"}
    parts = {"timings": timings(), "accuracy": [accuracy], "aims": [aim], "bars": [bar]}
    parts |= {"dictionaries": [small], "files": [facts | done, skipped]}
    return {"machine": MACHINE, **parts}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("speed")


@pytest.fixture(scope="module")
def measured(folder):
    write_json(folder / "measured.json", measurements())
    return folder / "measured.json"


@pytest.fixture(scope="module")
def written(measured, folder):
    paths = write_kernels(measured, folder / "kernels", folder / "roofline")
    return {path.name: path for path in paths}


@pytest.fixture(scope="module")
def text(written):
    """The table of kernels, with single spaces."""
    return re.sub(" +", " ", written["kernels.md"].read_text("utf-8"))


def test_seven_files_and_a_truthful_sidecar(measured, written):
    names = {f"kernels.{suffix}" for suffix in ("csv", "md", "tex")}
    assert set(written) == names | {f"roofline.{s}" for s in ("pdf", "svg", "png", "json")}
    facts = json.loads(written["roofline.json"].read_text("utf-8"))
    assert list(facts["inputs"].values()) == [sha256_file(measured)]
    assert facts["caption"].startswith(roofline.CAPTION)
    assert "Abacus 2000, 1 of 2 cores, memory read at 20 GB/s" in facts["caption"]


def test_cells_are_milliseconds_rates_shares_and_ratios(written, text):
    (fedsdg,) = re.findall(r"M = 10, d = 1,000,000 \(40.0 MB\).*?\| FedSDG \|(.*?)\n", text, re.S)
    # 92 MB in 4 ms are 23 GB/s.
    assert fedsdg.startswith(" 4.00 | 23.0 | 0.90 | 5.0× |")
    assert "(0.90)" in text  # In the cache: not judged.
    assert "fails" in text
    assert "byzfl, Krum, M = 10, d = 10,000: fails with “too large: 1e9”" in text
    assert "Flower: not installed (benchmarks/requirements.txt), so not compared" in text
    assert "beside 1 of 24 measurements other programs" in text
    raw = pd.read_csv(written["kernels.csv"])
    assert len(raw) == len(timings())
    assert raw["seconds"].dropna().tolist() == [r["seconds"] for r in timings() if "seconds" in r]


@pytest.mark.parametrize(
    "line",
    [
        "| memory kept by the allocator | 4.00 | 20.00 | 5.0× |",
        "| allocator's defaults | 4.00 | 50.00 | 12.5× |",
        "| Krum: right winner | independent | 10 × 1,000 | byzfl | 8 of 10 |",
        "| FedSDG | 10 × 1,000,000 | ≥ 5× formulas, plainly | 4.50 | not reached |",
        "| Krum | 10 × 1,000,000 | ≥ 6× | 9.0× | cleared |",
        "| Krum | 20 × 200 × 1,000 | ≤ 3× | 1.25× | cleared |",
        "| FedSDG | 200 × 50,000,000 | 40.0 | 700 of 1,536 | 61.2 | 2 | 1.30 | 1.50 |",
        "left out, 9 bytes are needed, 8 are free",
    ],
)
def test_every_kind_of_measurement_has_its_line(text, line):
    assert line in text


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


def test_a_form_with_one_size_and_no_curves_is_still_drawn(tmp_path):
    """Nor has it blocks that only newer measurements have."""
    data = measurements()
    del data["dictionaries"], data["files"]
    data["timings"] = [r for r in data["timings"] if r["parameters"] == 10_000][:2]
    write_json(tmp_path / "measured.json", data)
    paths = write_kernels(tmp_path / "measured.json", tmp_path / "k", tmp_path / "r")
    assert all(path.is_file() for path in paths)


def test_the_command_prints_the_table_and_names_what_is_missing(
    measured, tmp_path, capsys, refused, as_svg
):
    given = ["render", "kernels", "--output", str(tmp_path / "k"), "--measured"]
    assert main([*given, str(measured)]) == 0
    assert "M = 10, d = 1,000,000" in capsys.readouterr().out
    assert "none.json is not there; make it with: make bench" in refused(*given, "none.json")
    write_json(tmp_path / "other.json", {"machine": {}})
    said = refused(*given, tmp_path / "other.json")
    assert "has no timings, accuracy, bars, aims" in said


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


@pytest.fixture(scope="module")
def of_rounds(folder):
    write_json(folder / "rounds.json", parts_of_rounds())
    return folder / "rounds.json"


@pytest.fixture(scope="module")
def rounds_text(of_rounds, folder):
    _, md, _ = write_throughput(of_rounds, folder / "rounds")
    return re.sub(" +", " ", md.read_text("utf-8"))


@pytest.mark.parametrize(
    "line",
    [
        "**digits, FedSDG: 5 clients, batch 16, 400 samples on the cpu**",
        # 400 samples and 4 GFLOP in 0.2 s, where 100 GFLOP/s are possible.
        "| ours | float32 | 5.000 | 2,000 | 10.0 | 20.0 | 0.20 | 1.00× |",
        "| plain loop | float32 | 1.429 | 571 | 10.0 | 5.71 | 0.06 | 3.50× |",
        "| Flower's simulation | float32 | 0.455 | 182 | – | – | – | 11.00× |",
        "| 0.01 | 0.50× | 1.00× |",
        "| plain loop in float32, ours in float32 | ≥ 3× | 3.50× | reached |",
        "| digits, FedSDG | ≥ 2× | 3.40× | cleared |",
        "starting and stopping took 12 s more",
        "- peak in bfloat16: 200 GFLOP/s",
        "beside 1 of 5 measurements other programs",
    ],
)
def test_rounds_have_rates_counts_shares_ratios_aims_bars_and_notes(rounds_text, line):
    assert line in rounds_text


def test_of_installed_programs_nothing_is_said(rounds_text, folder):
    assert "not both installed" not in rounds_text
    assert len(pd.read_csv(folder / "rounds.csv")) == 5


def test_the_command_prints_the_rounds_and_names_a_file_without_rounds(
    of_rounds, tmp_path, capsys, refused
):
    given = ["render", "throughput", "--output", str(tmp_path / "table"), "--measured"]
    assert main([*given, str(of_rounds)]) == 0
    assert "Flower's simulation" in capsys.readouterr().out
    write_json(tmp_path / "rounds.json", parts_of_rounds() | {"rounds": []})
    said = refused(*given, tmp_path / "rounds.json")
    assert "rounds.json holds no rounds of federations" in said
