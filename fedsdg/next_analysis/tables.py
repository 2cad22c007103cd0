"""Tables: tidy numbers arranged as methods by columns, written as CSV, Markdown and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from fedsdg.next_analysis.metrics import METRICS, READINGS, SUMS, values
from fedsdg.next_analysis.names import base_method, cell_title, method_order, method_title, natural_order
from fedsdg.next_analysis.records import KEY, Record
from fedsdg.next_analysis.statistics import LEAST_SEEDS, differences, interval, regret

MISSING = "–"


@dataclass(frozen=True)
class Table:
    """``numbers`` is tidy, its key columns first; ``text`` is what is printed of it."""

    name: str
    caption: str
    numbers: pd.DataFrame
    text: pd.DataFrame
    notes: tuple[str, ...] = ()

    def csv(self) -> str:
        """Return the numbers, six significant digits."""
        return self.numbers.to_csv(index=False, float_format="%.6g", lineterminator="\n")

    def markdown(self) -> str:
        """Return caption, text and notes."""
        notes = "".join(f"\n- {note}" for note in self.notes)
        return f"{self.caption}.\n\n{self.text.to_markdown(index=False, disable_numparse=True)}\n{notes}\n"

    def latex(self) -> str:
        """Return a table with booktabs."""
        plain = self.text.map(
            lambda text: text.replace("**", "").replace("%", r"\%").replace("−", "$-$")
        )
        caption = ". ".join([self.caption, *self.notes]).replace("%", r"\%")
        return plain.to_latex(index=False, caption=caption, label=f"tab:{self.name}", escape=False)

    def write(self, folder: str | Path) -> list[Path]:
        """Write all formats and return the files."""
        files = {"csv": self.csv(), "md": self.markdown(), "tex": self.latex()}
        paths = [Path(folder) / f"{self.name}.{suffix}" for suffix in files]
        for path, text in zip(paths, files.values(), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return paths


def minus(text: str) -> str:
    """Return a number with a minus sign instead of a hyphen."""
    return text.replace("-", "−")


def with_half_width(row: Mapping[str, Any]) -> str:
    """Return "92.5 ± 0.7"; the mean alone below ``LEAST_SEEDS``."""
    half = "" if pd.isna(row["low"]) else f" ± {row['mean'] - row['low']:.1f}"
    return minus(f"{row['mean']:.1f}{half}")


def with_ends(row: Mapping[str, Any], sign: str = "+") -> str:
    """Return "+1.2 [−0.3, +2.7]"."""
    if pd.isna(row["low"]):
        return minus(f"{row['mean']:{sign}.1f} (n = {row['n']})")
    return minus(f"{row['mean']:{sign}.1f} [{row['low']:{sign}.1f}, {row['high']:{sign}.1f}]")


def plain(row: Mapping[str, Any]) -> str:
    """Return three significant digits."""
    return f"{row['mean']:,.3g}" if row["mean"] < 1000 else f"{row['mean']:,.0f}"


def arranged(
    frame: pd.DataFrame,
    show: Callable[[Mapping[str, Any]], str],
    *,
    lines: str = "method",
    columns: Sequence[str] = ("cell", "metric"),
    best: Callable[[pd.DataFrame], pd.Series] | None = None,
    titles: Mapping[str, Callable[[str], str]] | None = None,
    order: Callable[[str], Any] = method_order,
) -> pd.DataFrame:
    """Return printed cells: a line per value of ``lines``, a column per combination of ``columns``.

    Args:
        frame: Tidy numbers, one row per cell.
        show: Prints a row.
        lines: The column whose values are the lines.
        columns: The columns whose combinations are the columns, in order of appearance.
        best: Marks rows whose cell is bold.
        titles: Column → how its values are printed.
        order: Sorting key of the lines.
    """
    if frame.empty:
        return pd.DataFrame({"": ["no run of this experiment has these numbers"]})
    titles = {"cell": cell_title, "metric": lambda m: METRICS[m].title, **(titles or {})}
    text = pd.Series([show(row) for row in frame.to_dict("records")], frame.index)
    if best is not None:
        text = text.mask(best(frame), "**" + text + "**")
    told = [c for c in columns if frame[c].nunique() > 1] or [*columns[-1:]]
    heads = frame[told].apply(lambda r: ", ".join(titles.get(c, str)(r[c]) for c in told), axis=1)
    wide = frame.assign(text=text, head=heads).pivot(index=lines, columns="head", values="text")
    wide = wide[[*dict.fromkeys(heads)]].loc[sorted(wide.index, key=order)].fillna(MISSING)
    names = [method_title(name) if lines in ("method", "rival") else name for name in wide.index]
    wide.insert(0, {"method": "Method", "rival": "minus"}.get(lines, lines), names)
    return wide.reset_index(drop=True)


def oracles(record: Record) -> set[str]:
    """Return the methods that know the groups or have all data in one place."""
    configs = (
        record.finished.drop_duplicates("method").set_index("method")["config"].map(json.loads)
    )
    known = {m for m, c in configs.items() if c.get("parameters", {}).get("assignment") == "known"}
    return known | {method for method in configs.index if base_method(method) == "centralised"}


def _best(record: Record, frame: pd.DataFrame) -> pd.Series:
    """Mark the highest printed mean of every column, oracles left out."""
    shown = frame["mean"].round(1).mask(frame["method"].isin(oracles(record)))
    return shown == shown.groupby([frame["cell"], frame["metric"]]).transform("max")


def tidy(record: Record, metrics: Sequence[str], at: str = "selected") -> pd.DataFrame:
    """Return every metric of every run, in the order of cells and metrics."""
    frame = pd.concat([values(record, metric, at=at) for metric in metrics], ignore_index=True)
    cells = sorted(frame["cell"].unique(), key=natural_order)
    return frame.assign(
        cell=pd.Categorical(frame["cell"], cells), metric=pd.Categorical(frame["metric"], metrics)
    ).sort_values(["cell", "metric"], kind="stable")


def failures(record: Record) -> tuple[str, ...]:
    """Return a note per method and cell with failed or missing runs."""
    lost = record.runs[record.runs["status"] != "ok"]
    return tuple(
        f"{method_title(method)}, {cell_title(cell)}: {len(own)} runs {own['status'].iloc[0]}"
        for (cell, method), own in lost.groupby(["cell", "method"])
    )


def not_settled(record: Record) -> tuple[str, ...]:
    """Return the note on rows whose accuracy still changed by a point in the last half."""
    change = interval(values(record, "trend"), [*KEY, "metric"])
    moving = change[(change["low"] < -1) | (change["high"] > 1)]
    names = ", ".join(map(method_title, sorted(set(moving["method"]), key=method_order)))
    return (f"Accuracy may still change by a point: {names}",) if names else ()


def accuracy(record: Record, name: str, metrics: Sequence[str]) -> Table:
    """Return means with intervals of some metrics; the CSV has both readings."""
    parts = [interval(tidy(record, metrics, at), [*KEY, "metric"]).assign(at=at) for at in READINGS]
    numbers = pd.concat(parts, ignore_index=True)
    shown = numbers[numbers["at"] == "selected"]
    text = arranged(shown, with_half_width, best=partial(_best, record))
    caption = (
        f"Accuracy (%), {READINGS['selected']}: mean ± half-width of the 95 % Student-t interval "
        f"over seeds, from {LEAST_SEEDS} seeds on; bold: highest mean of a column"
    )
    return Table(name, caption, numbers, text, (*failures(record), *not_settled(record)))


def difference(record: Record, subject: str = "fedsdg") -> Table:
    """Return the subject minus every other method, paired by seed."""
    metrics = ["expected_accuracy", "expected_accuracy_a", "expected_accuracy_b", "global_accuracy"]
    frame = tidy(record, metrics)
    numbers = differences(frame, subject, ["experiment", "cell", "metric"])
    text = arranged(numbers, with_ends, lines="rival")
    caption = (
        f"{method_title(subject)} minus others, points, paired by seed [95 % interval]; not tests"
    )
    return Table("differences", caption, numbers, text)


def trend(record: Record) -> Table:
    """Return the change of accuracy from the third to the last quarter of the rounds."""
    numbers = interval(values(record, "trend"), [*KEY, "metric"])
    caption = "Change of personal accuracy from the third to the last quarter of the rounds, points"
    return Table("trend", caption, numbers, arranged(numbers, with_ends, columns=("cell",)))


def costs(record: Record) -> Table:
    """Return bytes, sizes and seconds of a run."""
    names = ["megabytes", "private_size", "aggregation_ms", "wall_seconds"]
    numbers = interval(tidy(record, names), [*KEY, "metric"])
    return Table("costs", "Costs of a run, means", numbers, arranged(numbers, plain))


def regrets(records: Sequence[Record], metric: str = "expected_accuracy") -> Table:
    """Return points below the best method of every cell of some experiments."""
    parts = []
    for record in records:
        for cell, own in values(record, metric).groupby("cell"):
            gaps = regret(own, oracles(record)).assign(experiment=record.name, cell=cell)
            parts.append(interval(gaps, [*KEY, "tied"]))
    numbers = pd.concat(parts, ignore_index=True)
    worst = numbers.groupby("method")["mean"].max()
    text = arranged(
        numbers,
        partial(with_ends, sign=""),
        columns=("experiment", "cell"),
        best=lambda frame: frame["tied"],
        order=lambda method: worst[method],
    )
    caption = (
        "Regret: points below the best method of a cell, which is chosen on the other seeds [95 % "
        "interval]; bold: cannot be told from the best (paired t-tests, Holm, 5 %)"
    )
    return Table("regret", caption, numbers, text)


def means(
    record: Record, name: str, metrics: Sequence[str], caption: str, show: Callable = plain
) -> Table:
    """Return means of some metrics, as any table that has no more to say."""
    numbers = interval(tidy(record, metrics), [*KEY, "metric"])
    return Table(name, f"{caption}: means over seeds", numbers, arranged(numbers, show))


def rounds_to_target(record: Record, yardstick: str = "fedavg-uniform") -> Table:
    """Return rounds, steps and bytes until the smoothed mean accuracy reaches the yardstick's."""
    read = ["round", "expected_accuracy", "local_steps", "bytes_up", "bytes_down"]
    rows = record.rows("rounds", read, record.finished).sort_values("round")
    runs = rows.groupby([*KEY, "seed"])
    sent = rows["bytes_up"] + rows["bytes_down"]
    rows = rows.assign(
        steps=runs["local_steps"].cumsum() / 1e3,
        MB=sent.groupby([rows[k] for k in [*KEY, "seed"]]).cumsum() / 1e6,
    )
    curve = (
        rows.dropna(subset=["expected_accuracy"])
        .groupby([*KEY, "round"], as_index=False)[["expected_accuracy", "steps", "MB"]]
        .mean()
    )
    curve["smooth"] = curve.groupby(KEY)["expected_accuracy"].transform(
        lambda a: a.rolling(3, 1).mean()
    )
    final = (
        tidy(record, ["expected_accuracy"])
        .groupby(["cell", "method"], observed=True)["value"]
        .mean()
        / 100
    )
    parts = []
    for share in (0.90, 0.95, 0.99):
        target = share * final[:, yardstick].reindex(curve["cell"]).to_numpy(float)
        there = curve[curve["smooth"] >= target].groupby(KEY, as_index=False).first()
        long = there.melt(KEY, ["round", "steps", "MB"], "cost", "mean")
        parts.append(long.assign(target=f"{100 * share:.0f} %"))
    numbers = pd.concat(parts, ignore_index=True)
    text = arranged(numbers, plain, columns=("cell", "target", "cost"))
    caption = (
        f"Rounds, thousand steps and MB until a share of the accuracy of {method_title(yardstick)}"
    )
    return Table("rounds_to_target", caption, numbers, text)


def losses(record: Record, clean: str = "clean", metric: str = "global_accuracy") -> Table:
    """Return the accuracy that every scenario costs, paired by seed with the scenario ``clean``."""
    frame = values(record, metric)
    parts = frame["cell"].str.partition("@")
    base = frame.assign(skew=parts[0])[parts[2] == clean]
    pairs = frame.assign(skew=parts[0]).merge(
        base, on=["skew", "method", "seed"], suffixes=("", " clean")
    )
    numbers = interval(pairs.assign(value=pairs["value clean"] - pairs["value"]), [*KEY, "metric"])
    numbers = numbers[~numbers["cell"].str.endswith(f"@{clean}")]
    return Table("losses", "Points lost", numbers, arranged(numbers, with_ends, columns=("cell",)))


def tuning(record: Record) -> Table:
    """Return the result of the search for every method's hyper-parameters."""
    search = json.loads((record.folder / "search.json").read_text())["methods"]
    rows = [
        {
            "method": method,
            "trials": len(own["trials"]),
            "score": own["best"]["score"],
            "mean": own["expected_best"][0],
            "edges": ", ".join(f"{k} {side}" for k, side in own["edges"].items()),
            **{f"best {k}": v for k, v in own["best"]["parameters"].items()},
        }
        for method, own in search.items()
        if own["best"]
    ]
    numbers = pd.DataFrame(sorted(rows, key=lambda row: method_order(row["method"])))
    text = numbers.assign(method=numbers["method"].map(method_title)).map(
        lambda v: MISSING if v != v or v == "" else f"{v:g}" if isinstance(v, float) else str(v)
    )
    return Table(
        "tuning", "Search of hyper-parameters: validation accuracy of the best trial", numbers, text
    )


def settings(record: Record) -> Table:
    """Return the values of the config in which methods differ, and in the caption those they share."""
    runs = record.finished.drop_duplicates(["cell", "method"])
    flat = pd.json_normalize([json.loads(text) for text in runs["config"]])
    flat = flat.drop(columns=["seed", "method"]).set_axis(runs["method"].to_numpy())
    flat = flat.groupby(level=0).agg(lambda c: "/".join(sorted({str(v) for v in c})))
    differ = [column for column in flat if flat[column].nunique() > 1]
    shared = ", ".join(f"{name} = {flat[name].iloc[0]}" for name in flat if name not in differ)
    numbers = flat[differ].rename_axis("method").reset_index()
    return Table(
        "settings", f"Settings of methods. All: {shared}", numbers, numbers.replace("nan", MISSING)
    )


_PERSONAL = ("expected_accuracy", "expected_worst_decile", "global_accuracy")
_SHARDS = ("personal_accuracy", "personal_worst_decile")
#: Name → the function that makes the table of an experiment.
TABLES: Mapping[str, Callable[[Record], Table]] = {
    "main": partial(accuracy, name="main", metrics=_PERSONAL),
    "groups": partial(
        accuracy, name="groups", metrics=("expected_accuracy_a", "expected_accuracy_b")
    ),
    "own_shard": partial(accuracy, name="own_shard", metrics=_SHARDS),
    "differences": difference,
    "trend": trend,
    "costs": costs,
    "rounds_to_target": rounds_to_target,
    "losses": losses,
    "tuning": tuning,
    "settings": settings,
    "detection": partial(
        means,
        name="detection",
        metrics=("precision", "recall", "delay"),
        caption="Blocked attackers",
    ),
    "stragglers": partial(
        means,
        name="stragglers",
        metrics=("simulated_seconds", *(f"{name}_sum" for name in SUMS), "global_accuracy"),
        caption="Simulated time and what became of uploads",
    ),
    "label_noise": partial(
        means,
        name="label_noise",
        metrics=("weight_by_noise_rate", "weight_by_shapley", "credibility_by_noise_rate"),
        caption="Spearman's ρ over clients",
        show=lambda row: with_ends(row, "+"),
    ),
}
