"""Tables of the benchmarks' measurements on one machine: kernels, training, and the roofline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import MISSING, amount
from fedsdg.analysis.names import method_title
from fedsdg.analysis.tables import save_table
from fedsdg.analysis.tables.layout import Block, Column, Row, Table, block, pivot
from fedsdg.files import read_json

#: Rules whose name as a method says more than the rule does, or that no method uses.
_TITLES = {"fedavg": "Weighted mean", "trimmed-mean": "Trimmed mean"}

#: The codes that aggregation is compared with, in the order of the columns.
CODES = {
    "reference": "torch reference",
    "plain": "formulas, plainly",
    "numpy": "numpy.median",
    "torch": "torch.median",
    "flower": "Flower",
    "byzfl": "byzfl",
}
#: The codes whose rounds of whole federations are compared, and the models that they train.
ROUND_CODES = {
    "ours": "ours",
    "plain": "plain loop",
    "peft": "plain loop, adapters of peft",
    "flower": "Flower's simulation",
    "flower-fresh": "Flower's simulation, a new model for each message",
}
MODELS = {"digits": "digits", "vit-tiny": "ViT-Tiny, 32×32"}

_VERDICTS = {True: "reached", False: "not reached", None: "not judged"}
_KERNELS = (
    "Aggregation of the updates of M clients with d parameters each: best time; the rate at which "
    "the bytes that have to be moved were moved, and its share of a bare read's rate at the same "
    "time (floor; in brackets where the updates fit into the cache); and how many times as long "
    "other code took, alternating with ours, best of each"
)
_THROUGHPUT = (
    "One round of a federation, without evaluation, on one thread: all codes do the same round in "
    "turns, best time of each; operations are those of all products, counted as they are "
    "dispatched, and the peak is the rate of a product of two square matrices of 1,024 in the same "
    "precision, in the same turns; in the last columns how many times as long as ours"
)


@dataclass(frozen=True)
class Measurements:
    """Rows as the benchmarks wrote them; ``machine`` says where they come from.

    The short form measures no rounds of whole federations, no files larger than the memory and no
    dictionaries of small arrays.
    """

    path: Path
    machine: Row
    timings: Sequence[Row]
    accuracy: Sequence[Row]
    bars: Sequence[Row]
    aims: Sequence[Row]
    rounds: Sequence[Row] = ()
    round_aims: Sequence[Row] = ()
    round_bars: Sequence[Row] = ()
    files: Sequence[Row] = ()
    dictionaries: Sequence[Row] = ()

    @classmethod
    def read(cls, path: str | Path) -> Measurements:
        """Raises ``ValueError`` naming the file where a part is missing."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there; make it with: make bench")
        data = read_json(path)
        parts = ("machine", "timings", "accuracy", "bars", "aims")
        if lacking := [part for part in parts if not isinstance(data, dict) or part not in data]:
            raise ValueError(
                f"{path} has no {', '.join(lacking)}: it is no file of measurements; make one "
                f"with: make bench"
            )
        later = ("rounds", "round_aims", "round_bars", "files", "dictionaries")
        return cls(path, **{part: data.get(part, ()) for part in (*parts, *later)})

    def suite(self, name: str) -> list[Row]:
        """The timings of one suite."""
        return [row for row in self.timings if row["suite"] == name]

    def ours(self, suite: str) -> list[Row]:
        """The timings of our own code in one suite."""
        return [row for row in self.suite(suite) if row["code"] == "ours"]

    def sizes(self) -> list[tuple[int, int]]:
        """(clients, parameters) of the suite of sizes, by the size of all updates."""
        sizes = {(row["clients"], row["parameters"]) for row in self.suite("sizes")}
        return sorted(sizes, key=lambda size: (size[0] * size[1], size))

    def times(self, rule: str, clients: int, parameters: int) -> list[tuple[str, float, float]]:
        """One aggregation by every code, ours first, and the memory's "floor".

        Args:
            rule: The rule.
            clients: The number of updates.
            parameters: The length of each.

        Returns:
            (code, milliseconds, times ours); others stand at ours times their ratio, which was
            taken in alternation. Empty where ours was not measured.
        """
        size = (rule, clients, parameters)
        rows = [r for r in self.suite("sizes") if r.get("seconds")]
        here = [r for r in rows if (r["rule"], r["clients"], r["parameters"]) == size]
        ours = next((row for row in here if row["code"] == "ours"), None)
        if ours is None:
            return []
        ratios = [("ours", 1.0), ("floor", ours["floor"])]
        ratios += [(row["code"], row["ratio"]) for row in here if row["code"] in CODES]
        return [(code, 1e3 * ours["seconds"] * ratio, ratio) for code, ratio in ratios]

    @property
    def where(self) -> str:
        """One sentence on the machine, its load and its settings."""
        m = self.machine
        read = m["read_gigabytes_per_second"]
        rate = "" if read["median"] is None else f", memory read at {read['median']:.0f} GB/s"
        if read["median"] is not None and read["high"] > 1.2 * read["low"]:
            rate += f" ({read['low']:.0f} to {read['high']:.0f})"
        kept = all(m["allocator"].values())
        memory = "kept by the allocator" if kept else "as the allocator gives it"
        commit = str(m["commit"])[:8] + (" with changes" if m["dirty"] else "")
        cores = f"{m['threads']} of {m['cores']} cores"
        return f"{m['processor']}, {cores}{rate}; memory {memory}; commit {commit}"


def write_kernels(measured: str | Path, table: str | Path, figure: str | Path) -> list[Path]:
    """Write the table of aggregation and the roofline figure.

    Args:
        measured: The file of measurements.
        table: Path of the table without suffix: .csv, .md and .tex are written.
        figure: Path of the figure without suffix: .pdf, .svg, .png and .json are written.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no measurements.
    """
    from fedsdg.analysis.plots import roofline, save_figure
    from fedsdg.analysis.plots.style import styled

    read = Measurements.read(measured)
    written = save_table(kernels(read), table)
    with styled():
        facts = {"figure": "roofline", "caption": f"{roofline.CAPTION} {read.where}."}
        return written + save_figure(roofline.draw(read), figure, facts, [read.path])


def write_throughput(measured: str | Path, table: str | Path) -> list[Path]:
    """Write the table of training (.csv, .md and .tex) and return the paths.

    Args:
        measured: The file of measurements.
        table: Path of the table without suffix.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no measurements of rounds.
    """
    read = Measurements.read(measured)
    if not read.rounds:
        raise ValueError(
            f"{read.path} holds no rounds of federations; measure them with: "
            "pytest benchmarks/bench_training.py --measured FILE"
        )
    return save_table(throughput(read), table)


def rule_title(rule: str) -> str:
    """A rule in print: ``fedavg`` → Weighted mean, ``krum`` → Krum."""
    return _TITLES.get(rule) or method_title(rule)


def kernels(measured: Measurements) -> Table:
    """One block for each size, then what the allocator is worth, accuracy, aims and bars."""
    blocks = [_size(measured, *size) for size in measured.sizes()]
    blocks += _allocator(measured.suite("allocator"))
    for title, heads, cells, rows in (
        ("Accuracy, against float64", _ACCURACY, _accuracy, measured.accuracy),
        ("Files larger than the memory", _FILES, _file, measured.files),
        ("Aims", ("Rule", "M × d", "aim", "measured", ""), _aim, measured.aims),
        ("Bars, on one thread", _BARS, _bar, measured.bars),
        (
            "Dictionaries of small arrays, processor time on one thread",
            ("Rule", "clients × arrays × numbers", "time of numpy on a stack", "measured", ""),
            _dictionary,
            measured.dictionaries,
        ),
    ):
        blocks += _listed(title, heads, cells, (row for row in rows if "skipped" not in row))
    raw = pd.DataFrame(list(measured.timings))
    caption = f"{_KERNELS}. {measured.where}"
    return Table("kernels", caption, tuple(blocks), tuple(_kernel_notes(measured)), raw)


_ACCURACY = ("", "updates", "M × d", "code", "value")
_FILES = ("Rule", "M × d", "GB", "peak of memory (MiB)", "s", "reads", "GB/s", "bare read, GB/s")
_BARS = ("Rule", "M × d", "kernels against the reference", "measured", "")


def _listed(
    title: str, heads: Sequence[str], cells: Callable[[Row], Sequence[str]], rows: Iterable[Row]
) -> list[Block]:
    """A block with a line for each row; none without rows."""
    lines = [cells(row) for row in rows]
    return [block(title, heads, lines)] if lines else []


def _size(measured: Measurements, clients: int, parameters: int) -> Block:
    view = pd.DataFrame(measured.suite("sizes"))
    view = view[(view["clients"] == clients) & (view["parameters"] == parameters)]
    view = view.assign(rule=view["rule"].map(rule_title))
    texts = {
        "ms": lambda row: f"{1e3 * row['seconds']:.2f}",
        "GB/s": lambda row: f"{row['least_bytes'] / row['seconds'] / 1e9:.1f}",
        "of the floor": lambda row: ("({:.2f})" if row["in_cache"] else "{:.2f}").format(
            row["floor"]
        ),
    }
    columns = [
        Column(heading, text, where={"code": "ours"}, group="ours")
        for heading, text in texts.items()
    ]
    columns += [
        Column(title, _ratio, where={"code": code}, group="time / ours")
        for code, title in CODES.items()
        if (view["code"] == code).any()
    ]
    title = f"M = {clients}, d = {parameters:,} ({amount(4 * clients * parameters, 1e6)} MB)"
    return pivot(title, view, {"rule": "Rule"}, columns)


def _ratio(row: Row) -> str:
    return "fails" if row.get("ratio") is None else f"{row['ratio']:.1f}×"


def _allocator(rows: Sequence[Row]) -> list[Block]:
    """FedSDG against its specification, with either setting of the allocator."""
    ours = {row["allocator"]: row["seconds"] for row in rows if row["code"] == "ours"}
    names = {"kept": "memory kept by the allocator", "default": "allocator's defaults"}

    def cells(row: Row) -> Sequence[str]:
        seconds = (ours[row["allocator"]], row["seconds"])
        return (names[row["allocator"]], *(f"{1e3 * s:.2f}" for s in seconds), _ratio(row))

    plain = [row for row in rows if row["code"] == "plain"]
    if not plain:
        return []
    title = f"FedSDG and its specification, M = {plain[0]['clients']}, d = "
    heads = ("", "ours (ms)", "specification (ms)", "ratio")
    return _listed(f"{title}{plain[0]['parameters']:,}", heads, cells, plain)


def _rule_and_size(row: Row) -> tuple[str, str]:
    return rule_title(row["rule"]), f"{row['clients']} × {row['parameters']:,}"


def _accuracy(row: Row) -> Sequence[str]:
    rule, size = _rule_and_size(row)
    code = "ours" if row["code"] == "ours" else CODES[row["code"]]
    return f"{rule}: {row['measure']}", row["updates"], size, code, row["shown"]


def _file(row: Row) -> Sequence[str]:
    return (
        *_rule_and_size(row),
        amount(row["bytes_of_clients"], 1e9),
        f"{amount(row['peak_bytes'], 2**20)} of {amount(row['limit_bytes'], 2**20)}",
        f"{row['seconds_of_aggregation']:.1f}",
        f"{row['passes']}",
        amount(row["bytes_per_second"], 1e9),
        amount(row["bare_bytes_per_second"], 1e9),
    )


def _aim(row: Row) -> Sequence[str]:
    against = row["against"]
    limit = f"≤ {row['bound']:g} ms" if row["at_most"] else f"≥ {row['bound']:g}"
    unit = {"floor": " of the floor", "milliseconds": ""}
    limit += unit.get(against, f"× {CODES.get(against, against)}")
    return (*_rule_and_size(row), limit, f"{row['value']:.2f}", _VERDICTS[row["met"]])


def _bar(row: Row) -> Sequence[str]:
    ratios = (f"≥ {row['least']:g}×", f"{row['ratio']:.1f}×")
    return (*_rule_and_size(row), *ratios, row["verdict"])


def _dictionary(row: Row) -> Sequence[str]:
    size = f"{row['clients']} × {row['tensors']} × {row['numbers']:,}"
    ratios = (f"≤ {1 / row['least']:g}×", f"{1 / row['ratio']:.2f}×")
    return (rule_title(row["rule"]), size, *ratios, row["verdict"])


def _kernel_notes(measured: Measurements) -> list[str]:
    missing: list[Any] = measured.machine["missing"]
    notes = []
    if missing:
        names = " and ".join(CODES[name] for name in missing)
        notes.append(f"{names}: not installed (benchmarks/requirements.txt), so not compared")
    notes += [
        f"files larger than the memory: left out, {row['skipped']}"
        for row in measured.files
        if "skipped" in row
    ]
    failures = {
        f"{CODES[row['code']]}, {rule_title(row['rule'])}, M = {row['clients']}, "
        f"d = {row['parameters']:,}: fails with “{row['note']}”"
        for row in measured.suite("sizes")
        if row.get("note")
    }
    return [*notes, *sorted(failures), *_busy(measured.timings)]


def _busy(rows: Sequence[Row]) -> list[str]:
    """The note on measurements beside which other programs worked."""
    busy = sum(row.get("refused") is not None for row in rows)
    if not busy:
        return []
    return [
        f"beside {busy} of {len(rows)} measurements other programs were at work: these are "
        "reported and not judged"
    ]


def throughput(measured: Measurements) -> Table:
    """One block for each model and method, then aims and bars."""
    blocks = []
    for _, rows in groupby(measured.rounds, key=lambda row: (row["model"], row["method"])):
        blocks.append(_rounds(list(rows)))
    heads = ["Round", "compared", "aim", "measured", ""]
    blocks += _listed("Aims", heads, _round_aim, measured.round_aims)
    heads = ["Round", "ours against the plain loop", "measured", ""]
    blocks += _listed("Bars", heads, _round_bar, measured.round_bars)
    caption = f"{_THROUGHPUT}. {measured.where}"
    raw = pd.DataFrame(list(measured.rounds))
    return Table("throughput", caption, tuple(blocks), tuple(_round_notes(measured)), raw)


def _round_aim(row: Row) -> Sequence[str]:
    compared = f"{ROUND_CODES[row['code']]} in {row['precision']}, ours in {row['ours']}"
    ratios = (f"≥ {row['bound']:g}×", f"{row['value']:.2f}×")
    return (_model_and_method(row), compared, *ratios, _VERDICTS[row["met"]])


def _round_bar(row: Row) -> Sequence[str]:
    ratios = (f"≥ {row['least']:g}×", f"{row['ratio']:.2f}×")
    return (_model_and_method(row), *ratios, row["verdict"])


def _model_and_method(row: Row) -> str:
    return f"{MODELS[row['model']]}, {method_title(row['method'])}"


def _rounds(rows: Sequence[Row]) -> Block:
    ours = {row["precision"]: row["seconds"] for row in rows if row["code"] == "ours"}
    heads: list[str | tuple[str, str]] = ["Code", "precision", "rounds/s", "samples/s"]
    heads += ["MFLOP per sample", "GFLOP/s", "of the peak"]
    heads += [("time / ours", precision) for precision in ours]
    lines = []
    for row in rows:
        cells = [ROUND_CODES[row["code"]], row["precision"]]
        cells += [f"{1 / row['seconds']:.3f}", f"{row['samples'] / row['seconds']:,.0f}"]
        if (count := row.get("operations")) is None:
            cells += [MISSING] * 3
        else:
            rate = count / row["seconds"]
            cells += [amount(count / row["samples"], 1e6), amount(rate, 1e9)]
            cells += [f"{rate / row['peak']:.2f}"]
        cells += [f"{row['seconds'] / seconds:.2f}×" for seconds in ours.values()]
        lines.append(cells)
    first = rows[0]
    title = f"{_model_and_method(first)}: {first['clients']} clients, batch {first['batch_size']}, "
    title += f"{first['samples']:,} samples on the {first['device']}"
    return block(title, heads, lines)


def _round_notes(measured: Measurements) -> list[str]:
    peaks = {row["precision"]: row["peak"] for row in measured.rounds if row.get("peak")}
    notes = [f"peak in {name}: {amount(rate, 1e9)} GFLOP/s" for name, rate in peaks.items()]
    for row in measured.rounds:
        if "start_seconds" in row:
            notes.append(
                f"{ROUND_CODES[row['code']]}, {method_title(row['method'])}: starting and stopping "
                f"took {row['start_seconds']:.0f} s more, which are not counted"
            )
    if all(row["code"] != "flower" for row in measured.rounds):
        notes.append(
            "Flower's simulation: flwr and ray are not both installed "
            "(benchmarks/requirements.txt), so not compared"
        )
    return [*notes, *_busy(measured.rounds)]
