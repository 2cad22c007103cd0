"""Measured speed: one table and one figure of what `make bench` and its comparisons wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedsdg.analysis.layout import MISSING, SETTING, Table
from fedsdg.files import read_json, sha256_file, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, LIMIT = "ours", "limit"
#: Question → the title of its block.
QUESTIONS = {
    "rules": "Rules: clients × parameters",
    "dictionaries": "Rules on dictionaries of small arrays: clients × arrays × numbers",
    "rounds": "Rounds of a federation",
    "files": "Files: clients × parameters",
    "commits": "Two commits",
}
#: The codes that are compared, in the order of the columns, with what they are called.
CODES = {name: name for name in ("numpy", "byzfl", "Flower", "plain loop")}
CODES |= {"base": "the other commit"}
KEY = ["question", "subject", "setting"]


@dataclass(frozen=True)
class Measurements:
    """What the benchmarks measured on one machine."""

    path: Path
    machine: Mapping[str, Any]
    rows: pd.DataFrame
    """A row for every code of every comparison: question, setting, subject, code, seconds, ratio
    (median of seconds over seconds of ours), busy_cores, peak_bytes."""

    @classmethod
    def read(cls, path: str | Path) -> Measurements:
        """Read a file of measurements.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It has no measurements.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there; make it with: make bench")
        data = read_json(path)
        if not isinstance(data, dict) or not data.get("rows"):
            raise ValueError(f"{path} has no rows; make it again with: make bench")
        order = list(QUESTIONS)
        rows = sorted(data["rows"], key=lambda row: order.index(row["question"]))
        return cls(path, data["machine"], pd.DataFrame(rows))

    @property
    def where(self) -> str:
        """Return one sentence on the machine."""
        machine = self.machine
        return (
            f"{machine.get('gpu') or machine['processor']}, "
            f"{machine['threads']} of {machine['cores']} cores; "
            f"commit {str(machine['commit'])[:8]}{' with changes' if machine['dirty'] else ''}."
        )

    def by_code(self, column: str) -> pd.DataFrame:
        """Return a column of the rows: a line for every comparison, a column for every code."""
        return self.rows.set_index([*KEY, "code"])[column].unstack().reindex(self.comparisons)

    @property
    def comparisons(self) -> pd.MultiIndex:
        """Return question, subject and setting of every comparison, in the order measured."""
        return pd.MultiIndex.from_frame(self.rows[KEY].drop_duplicates())


def speed(measured: Measurements) -> Table:
    """Return what ours took, its share of the limit, and how many times as long others took."""
    ratios = measured.by_code("ratio")
    questions = ratios.index.get_level_values("question")
    columns = {
        SETTING: questions.map(QUESTIONS),
        "size or model": ratios.index.get_level_values("setting"),
        "rule, method or run": ratios.index.get_level_values("subject"),
        "ours": measured.by_code("seconds")[OURS].map(_duration),
    }
    forms = {
        LIMIT: ("of the limit", "{:.2f}"),
        **{code: (title, "{:.2f}×") for code, title in CODES.items()},
    }
    for code, (title, form) in forms.items():
        if code in ratios:
            columns[title] = ratios[code].map(lambda ratio, form=form: _printed(ratio, form))
    if "peak_bytes" in measured.rows:
        peaks = measured.by_code("peak_bytes") / 2**20
        for code, title in ((OURS, "peak, MiB"), ("numpy", "peak of numpy, MiB")):
            columns[title] = peaks[code].map(lambda peak: _printed(peak, "{:.0f}"))
    text = pd.DataFrame(columns, index=ratios.index).reset_index(drop=True)
    busy = (measured.rows["busy_cores"] > 0.1 * measured.machine["cores"]).sum()
    note = f"Beside {busy} of {len(measured.rows)} measurements other programs were at work."
    caption = (
        "Time of ours, best of some turns; of the limit: the time that the hardware alone needs "
        "over ours; ×: how many times as long as ours other codes took, median over the turns. "
        f"{measured.where}"
    )
    return Table("speed", caption, measured.rows, text, (note,) if busy else ())


def draw(measured: Measurements) -> Figure:
    """Draw how many times as long as ours every code took: a panel for each question."""
    from matplotlib.figure import Figure

    from fedsdg.analysis.drawing import INK, WIDTH, styles

    ratios = measured.by_code("ratio").drop(columns=OURS)
    questions = list(ratios.index.unique("question"))
    counts = [len(ratios.loc[question]) for question in questions]
    height = 1.0 + 0.16 * sum(counts) + 0.3 * len(counts)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(
        len(questions), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": counts}
    )
    looks = styles([*ratios.columns])
    for panel, question in zip(panels.flat, questions, strict=True):
        lines = ratios.loc[question]
        names = [", ".join(name) for name in lines.index]
        for code, look in looks.items():
            dots = {"color": look["color"], "marker": look["marker"], "linestyle": ""}
            panel.plot(lines[code], names, label=code, **dots)
        panel.axvline(1, color=INK, linewidth=1)
        panel.set(xscale="log", title=QUESTIONS[question], ylim=(len(names) - 0.5, -0.5))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter("")
    panels.flat[-1].set_xlabel("time of other codes, and of the hardware alone, over ours")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def write_speed(measured: str | Path, table: str | Path, figure: str | Path) -> list[Path]:
    """Write the table and the figure of measured speed.

    Args:
        measured: The file of measurements.
        table: The folder of the table.
        figure: The folder of the figure.

    Returns:
        The files.
    """
    from fedsdg.analysis.drawing import save, styled

    read = Measurements.read(measured)
    stem = Path(figure) / "speed"
    with styled():
        files = save(draw(read), stem)
    facts = {
        "figure": "speed",
        "caption": f"Time of other codes over ours. {read.where}",
        "inputs": {str(measured): sha256_file(Path(measured))},
    }
    write_json(stem.with_suffix(".json"), facts)
    return [*speed(read).write(Path(table)), *files, stem.with_suffix(".json")]


def _duration(seconds: float) -> str:
    """Return seconds as they are printed: in ms below one second."""
    return f"{1e3 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _printed(number: float, form: str) -> str:
    """Return a number in a form of `str.format`, and a dash for none."""
    return MISSING if pd.isna(number) else form.format(number)
