"""The results page: one HTML file that needs no network, made of records, claims and figures.

Numbers are embedded as JSON with their seeds; ``assets/page.js`` draws the regret map, the
leaderboard and the charts from them, so that each number can show what it is the mean of.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from fedsdg.analysis.claims import OPEN, RULE, Verdict, judge, read_claims
from fedsdg.analysis.drawing import GREY, colour
from fedsdg.analysis.metrics import METRICS, READINGS, values
from fedsdg.analysis.names import METHODS, cell_title, is_oracle, method_order, method_title
from fedsdg.analysis.provenance import command, with_origins
from fedsdg.analysis.records import Record, record
from fedsdg.analysis.statistics import LEAST_SEEDS, interval, regret
from fedsdg.analysis.tables import Table
from fedsdg.files import atomic_path, read_json
from fedsdg.files.places import ARENAS, RECORDS

_ASSETS = Path(__file__).parent / "assets"
#: Experiment → its name on the page, and how clients differ there.
_SETTINGS = {
    "needs": (
        "needs",
        "Half of the clients (B) permute four of the ten labels, each in its own way; the others "
        "(A) agree.",
    ),
    "label-skew": (
        "label skew",
        "Clients hold different shares of the classes (Dirichlet, α = 0.1).",
    ),
    "views": ("views", "Half of the clients (B) see other images, inverted or rotated."),
}
#: Metrics whose course over the rounds is shown.
_CURVES = ("accuracy", "accuracy_a", "accuracy_b", "accuracy_shared")
#: Rows whose curves are shown before anybody chooses, beside the best four of the first cell.
_DRAWN = ("fedsdg", "fedavg-uniform")
_PUBLISHED = "In each setting, methods were tuned by one rule and met the same clients and rounds."
_MAP = (
    "Regret: points below the best method of a setting, the best chosen on the other seeds. "
    "Bold, from five seeds on: a paired test cannot tell it from the best. ‡: an oracle, told what "
    "others must find out; never the best."
)


@dataclass(frozen=True)
class _Column:
    """A column of the leaderboard."""

    metric: str
    short: str
    digits: int = 1
    at: str = "selected"
    title: str = ""

    def facts(self) -> dict[str, Any]:
        """Return what the script shows of it."""
        metric = METRICS[self.metric]
        reading = f", {READINGS[self.at]}" if len(metric.readings) > 1 else ""
        traced = self.metric if self.at == "selected" else f"{self.metric} --at {self.at}"
        return {
            "short": self.short,
            "title": self.title or metric.title + reading,
            "unit": metric.unit,
            "digits": self.digits,
            "trace": traced,
        }


_COLUMNS = {
    "accuracy": _Column("accuracy", "All clients"),
    "accuracy_a": _Column("accuracy_a", "A (agree)"),
    "accuracy_b": _Column("accuracy_b", "B (differ)"),
    "worst_decile": _Column("worst_decile", "Worst decile"),
    "accuracy_own_test": _Column("accuracy_own_test", "Own test set"),
    "accuracy_shared": _Column("accuracy_shared", "Shared model"),
    "accuracy_end": _Column("accuracy", "All, at the end", at="end"),
    "doubled": _Column(
        "doubled", "Change, half to all rounds", title="change from half to all rounds"
    ),
    "megabytes": _Column("megabytes", "MB", digits=0),
    "regret": _Column("regret", "Regret"),
}


def arenas(folder: str | Path) -> list[Record]:
    """Return the records that a page of a folder shows: its arenas, or all if it has none.

    Args:
        folder: Has a folder per experiment, as results/reference and results/summary do.

    Raises:
        FileNotFoundError: There is no record.
    """
    names = [file.parent.name for file in sorted(Path(folder).glob("[!.]*/runs.parquet"))]
    if not names:
        raise FileNotFoundError(f"{folder} has no record; run 'fedsdg summarise' first")
    chosen = [name for name in ARENAS if name in names] or names
    return [record(Path(folder, name)) for name in chosen]


def write_page(
    output: str | Path,
    records: Sequence[Record],
    claims_file: str | Path | None = None,
    root: str | Path = ".",
    compared: Sequence[Table] = (),
    remark: str = "",
) -> Path:
    """Write the page; the same files give the same bytes.

    Args:
        output: The file.
        records: The experiments; every cell of each is an arena of the page.
        claims_file: The claims, judged by the records beside ``records``; those that are open there
            are shown for results/reference only.
        root: The repository: README.md, whose numbered lines that cite claims are the findings, and
            figures.
        compared: Rankings of newcomers, shown first.
        remark: A paragraph below them.

    Returns:
        ``output``.

    Raises:
        ValueError: A record is damaged, or a claim is wrong.
    """
    root = Path(root)
    folder = records[0].folder.parent
    published = folder.resolve() == (root / RECORDS).resolve()
    boards = [
        _board(opened, cell, root / "config") for opened in records for cell in _cells(opened)
    ]
    if not boards:
        raise ValueError(f"no run below {folder} has finished; run 'fedsdg run' again")
    claims = [] if claims_file is None else read_claims(claims_file)
    verdicts = [judge(claim, folder) for claim in claims]
    verdicts = [verdict for verdict in verdicts if published or verdict.word != OPEN]
    data = _data(boards, verdicts)
    methods = data["methods"].values()
    finished = sum(len(opened.finished) for opened in records)
    facts = {
        "title": "FedSDG Bench",
        "headline": f"{_count(len(methods), 'method')}, {_count(len(boards), 'setting')}, "
        f"{_count(finished, 'run')}",
        "about": _PUBLISHED if published else f"Made from {folder.as_posix()}.",
        "findings": _findings(root / "README.md", data["claims"]) if published else [],
        "map_caption": _MAP,
        "families": sorted({method["family"] for method in methods}),
        "compared": [_ranking(table, remark) for table in compared],
        "rule": _inline(RULE),
        "claims": [_claim(verdict) for verdict in verdicts],
        "figures": _figures(records, root / ("paper_figures" if published else "results/figures")),
        "source": "Records: " + ", ".join(opened.folder.as_posix() for opened in records) + ".",
    }
    with atomic_path(output) as temporary:
        temporary.write_text(_rendered(facts, data), encoding="utf-8")
    return Path(output)


def _data(boards: Sequence[Mapping[str, Any]], verdicts: Iterable[Verdict]) -> dict[str, Any]:
    """Return what the script draws."""
    labels = sorted({label for board in boards for label in board["rows"]}, key=method_order)
    return {
        "arenas": boards,
        "metrics": {key: column.facts() for key, column in _COLUMNS.items()},
        "methods": {label: _method(label) for label in labels},
        "map": _by_worst_regret(boards),
        "drawn": _drawn(boards[0]["rows"]),
        "claims": {verdict.claim.id: _traced(verdict) for verdict in verdicts if verdict.by_seed},
    }


def _rendered(facts: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Fill the template; text is escaped, and JSON cannot end its element."""
    parts = ["leaderboard", "bytes", "curves"]
    parts += [key for key in ("claims", "figures") if facts[key]]
    embedded = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    files = {name: (_ASSETS / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    room = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return room.get_template("page.html").render(
        facts,
        sections=parts,
        style=Markup(files["css"]),
        script=Markup(files["js"]),
        data=Markup(embedded.replace("<", "\\u003c")),
    )


# --- numbers -------------------------------------------------------------------------------------


def _cells(opened: Record) -> list[str]:
    return [*dict.fromkeys(opened.finished["cell"])]


def _board(opened: Record, cell: str, configs: Path) -> dict[str, Any]:
    """Return a cell of an experiment: its methods with their numbers, seeds, runs and curves."""
    runs = opened.finished[opened.finished["cell"] == cell]
    seeds = runs["seed"].nunique()
    name, about = _SETTINGS.get(opened.name, (opened.name, ""))
    setting = cell_title(cell).removeprefix("IID, ")
    by_method = with_origins(opened, runs).groupby("method")
    rows = {str(label): _row(row, configs) for label, row in by_method}
    for key, column in _COLUMNS.items():
        _add_numbers(rows, key, _values(opened, column, runs))
    counted = [key for key in _COLUMNS if any(key in row["numbers"] for row in rows.values())]
    ends = " ± half of the 95 % interval" if seeds >= LEAST_SEEDS else ""
    count = f"Means over {seeds} seeds{ends}" if seeds > 1 else "One seed"
    return {
        "key": f"{opened.name}/{cell}",
        "title": name if len(_cells(opened)) == 1 else f"{name}, {setting}",
        "about": f"{about} {count}, in the round selected on validation data.",
        "columns": [key for key in counted if key != "regret"],
        "rows": rows,
        **_courses(opened, runs),
    }


def _row(runs: pd.DataFrame, configs: Path) -> dict[str, Any]:
    """Return the seeds of a row, its runs' folders and origins, and what makes the first again."""
    made = runs["commit"].astype(str).str[:10] + ", " + runs["day"]
    return {
        "seeds": runs["seed"].tolist(),
        "runs": runs["run"].tolist(),
        "made": made.tolist(),
        "command": command(runs.head(1), configs),
        "numbers": {},
    }


def _values(opened: Record, column: _Column, runs: pd.DataFrame) -> pd.DataFrame:
    """Return a column's numbers by seed; of regret, whether a test cannot tell it from the best."""
    if column.metric != "regret":
        return values(opened, column.metric, runs, column.at).assign(tied=False)
    oracles = [label for label in opened.methods if is_oracle(label)]
    return regret(values(opened, "accuracy", runs), oracles)


def _add_numbers(rows: Mapping[str, dict[str, Any]], key: str, numbers: pd.DataFrame) -> None:
    """Add to rows the mean, half of the 95 % interval, and the value of every seed."""
    by_seed = numbers.set_index(["method", "seed"])["value"].to_dict()
    for mean in interval(numbers, ["method", "tied"]).to_dict("records"):
        row = rows[mean["method"]]
        row["numbers"][key] = {
            "mean": _plain(mean["mean"]),
            "half": _plain(mean["mean"] - mean["low"]),
            "tied": mean["tied"],
            "seeds": [_plain(by_seed.get((mean["method"], seed))) for seed in row["seeds"]],
        }


def _courses(opened: Record, runs: pd.DataFrame) -> dict[str, Any]:
    """Return accuracy and MB at every evaluation, and the methods that spend bytes best."""
    columns = ["round", "bytes_up", "bytes_down", *_CURVES]
    rows = opened.rows("rounds", columns, runs).sort_values(["run", "round"])
    rows["megabytes"] = (rows["bytes_up"] + rows["bytes_down"]).groupby(rows["run"]).cumsum() / 1e6
    means = {metric: _course(rows, metric) for metric in _CURVES}
    return {
        "curves": {metric: _points(course) for metric, course in means.items() if len(course)},
        "front": _front(means["accuracy"]),
    }


def _course(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a metric's means over seeds, and those of the MB sent until then, by round."""
    rows = rows.dropna(subset=[metric])
    means = interval(rows.assign(value=100 * rows[metric]), ["method", "round"])
    spent = rows.groupby(["method", "round"])["megabytes"].mean().rename("spent")
    return means.join(spent, on=["method", "round"]).sort_values(["method", "round"])


def _points(means: pd.DataFrame) -> dict[str, list[Any]]:
    """Return round, MB, mean and both ends of the interval at every evaluation, by method."""
    points: dict[str, list[Any]] = {label: [] for label in means["method"].unique()}
    shown = ["round", "spent", "mean", "low", "high"]
    for label, *numbers in means[["method", *shown]].itertuples(index=False):
        points[label].append([_plain(number) for number in numbers])
    return points


def _front(means: pd.DataFrame) -> list[str]:
    """Return the methods that at some evaluation are the most accurate for their bytes or fewer."""
    rivals = means[~means["method"].map(is_oracle).astype(bool)].sort_values(
        ["spent", "mean"], ascending=[True, False]
    )
    best = rivals["mean"].cummax()
    ahead = rivals[rivals["mean"] > best.shift(fill_value=-np.inf)]
    return sorted(set(ahead["method"]), key=method_order)


def _plain(number: Any) -> float | None:
    """Return six significant digits, or None."""
    return None if number is None or pd.isna(number) else float(f"{number:.6g}")


def _method(label: str) -> dict[str, Any]:
    """Return what the page says of a method, with its colour if it has one in the figures."""
    shade = colour(label)
    return {
        "title": method_title(label) + (" ‡" if is_oracle(label) else ""),
        "family": METHODS[label]["family"],
        "personal": METHODS[label]["personal"],
        "colour": shade if shade != GREY else None,
    }


def _by_worst_regret(boards: Iterable[Mapping[str, Any]]) -> list[str]:
    """Sort the methods that have a regret: least regret in their worst cell first, oracles last."""
    worst: dict[str, float] = {}
    for board in boards:
        for label, row in board["rows"].items():
            regrets = row["numbers"].get("regret", {"mean": -np.inf})
            worst[label] = max(worst.get(label, -np.inf), regrets["mean"])
    measured = [label for label in worst if worst[label] > -np.inf]
    return sorted(measured, key=lambda label: (is_oracle(label), worst[label]))


def _drawn(rows: Mapping[str, Any]) -> list[str]:
    """Return the rows whose curves are shown before anybody chooses: some, and the best four."""
    measured = [label for label in rows if "accuracy" in rows[label]["numbers"]]
    measured.sort(key=lambda label: -rows[label]["numbers"]["accuracy"]["mean"])
    best = [label for label in measured if not is_oracle(label)][:4]
    return [label for label in rows if label in (*_DRAWN, *best)]


# --- text ----------------------------------------------------------------------------------------


def _findings(readme: Path, shown: Mapping[str, Any]) -> list[Markup]:
    """Return README's numbered lines that cite claims; their links lead to those of the page."""
    if not readme.is_file():
        return []
    lines = readme.read_text(encoding="utf-8").splitlines()
    cited = [line for line in lines if re.match(r"\d\. .*docs/claims\.md#", line)]
    return [_inline(line[3:], shown) for line in cited]


def _inline(text: str, anchors: Iterable[str] = ()) -> Markup:
    """Return a line of Markdown as HTML, without comments; links lead to what the page has."""

    def link(match: re.Match[str]) -> str:
        anchor = match["address"].rpartition("#")[2]
        return f'<a href="#{anchor}">{match["text"]}</a>' if anchor in anchors else match["text"]

    plain = str(escape(re.sub(r"<!--.*?-->", "", text)))
    plain = re.sub(r"\[(?P<text>(?:[^][]|\[[^]]*\])+)\]\((?P<address>[^)]*)\)", link, plain)
    plain = re.sub(r"`(.+?)`", r"<code>\1</code>", _bold(plain))
    return Markup(re.sub(r"\*(.+?)\*", r"<em>\1</em>", plain))


def _ranking(table: Table, remark: str) -> dict[str, Any]:
    """Return a table as HTML, with the first sentence of its caption as title."""
    title, _, explanation = table.caption.partition(". ")
    html = _bold(table.text.to_html(index=False, border=0))
    notes = [note for note in (explanation, remark, *table.notes) if note]
    return {"title": title, "html": Markup(html), "notes": notes}


def _bold(html: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html)


def _claim(verdict: Verdict) -> dict[str, Any]:
    return {
        "id": verdict.claim.id,
        "word": verdict.word,
        "text": verdict.claim.claim,
        "origin": verdict.claim.origin,
        "number": verdict.number if verdict.by_seed else "",
    }


def _traced(verdict: Verdict) -> dict[str, Any]:
    claim = verdict.claim
    seeds = [[seed, _plain(value)] for seed, value in verdict.by_seed.items()]
    return {
        "title": claim.claim,
        "text": f"{verdict.word}: {verdict.number}. Test: {claim.test.replace('`', '')}",
        "seeds": seeds,
        "commands": [f"fedsdg trace {claim.id}"],
    }


def _figures(records: Sequence[Record], folder: Path) -> list[tuple[str, list[Any]]]:
    """Return the figures of every experiment: its name, and data URI and caption of each."""
    sections = []
    for opened in records:
        files = sorted((folder / opened.name).glob("*.png"))
        images = [
            (
                "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode(),
                read_json(file.with_suffix(".json"))["caption"],
            )
            for file in files
        ]
        if images:
            name, _ = _SETTINGS.get(opened.name, (opened.name, ""))
            sections.append((f"{name}, {_count(len(images), 'figure')}", images))
    return sections


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
