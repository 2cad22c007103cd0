"""What methods were set to and how that was found: settings, the search, and swept values."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from fedsdg.next_analysis import statistics
from fedsdg.next_analysis.layout import METHOD, MISSING, Table, arranged, line_title, percent
from fedsdg.next_analysis.means import HEADS, INTERVAL, WHERE, failures, personal, seeds, tidy
from fedsdg.next_analysis.names import cell_title, method_order
from fedsdg.next_analysis.records import KEY, RUN, Record

#: Last part of a config's key → its symbol.
SYMBOLS = {
    **{"eta_g": "η_g", "eta_p": "η_p", "eta_m": "η_m", "lambda1": "λ₁", "lambda2": "λ₂"},
    **{"mu": "μ", "gamma": "γ", "gamma0": "γ₀", "epsilon": "ε", "temperature": "τ"},
    **{"beta": "β", "strength": "λ", "epochs": "e", "skew": "clients' data"},
}
#: What identifies a run and is no setting of it.
_IDENTITY = ["experiment", "dataset", "seed", "method", "skew", "backbone", "federation.clients"]


def symbol(key: str) -> str:
    """Return a dotted key of a config in print: parameters.lambda1 → λ₁."""
    name = key.rpartition(".")[2]
    return SYMBOLS.get(name, name.replace("_", " "))


def value_text(value: Any) -> str:
    """Return a value of a config in few characters: 1e-4 → 0.0001."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def config_values(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the configs of some runs as text, one column per dotted key; "none" where unset.

    ``skew`` is how the clients' data differ, without the scenario.
    """
    flat = pd.json_normalize([json.loads(text) for text in runs["config"]]).set_axis(runs.index)
    plain = flat.drop(columns=_IDENTITY, errors="ignore").astype(object)
    texts = plain.map(value_text).mask(plain.isna(), "none")
    return texts.assign(skew=runs["cell"].str.partition("@")[0].map(cell_title))


def settings(record: Record) -> Table:
    """Parameters and rates of every method with their origin.

    *searched*: found by the search of this experiment; *set*: another value than a method of the
    same kind has, or, of training, than another method has; *fixed*: all others, in the CSV alone.
    """
    runs = record.finished.drop_duplicates(["cell", "method"])
    flat = config_values(runs).filter(regex=r"^(parameters|training)\.")
    long = flat.join(runs[["experiment", "method", "type"]])
    long = long.melt(["experiment", "method", "type"], var_name="key").query("value != 'none'")
    rows = long.groupby(["experiment", "method", "type", "key"], sort=False)["value"]
    numbers = rows.agg(lambda own: " / ".join(dict.fromkeys(own))).reset_index()
    kind = numbers["type"].where(numbers["key"].str.startswith("parameters."), "")
    numbers["origin"] = "fixed"
    numbers.loc[numbers.groupby([kind, "key"])["value"].transform("nunique") > 1, "origin"] = "set"
    best = {label: found["best"]["parameters"] for label, found in search(record).items()}
    for label, values in best.items():
        searched = numbers["key"].str.rpartition(".")[2].isin([*values])
        numbers.loc[searched & (numbers["method"] == label), "origin"] = "searched"
    numbers = numbers.drop(columns="type")
    texts = numbers["key"].map(symbol) + " = " + numbers["value"]
    wide = texts.groupby([numbers["method"], numbers["origin"]]).agg(", ".join).unstack()
    wide = wide.reindex(sorted(wide.index, key=method_order), columns=["searched", "set"])
    wide.insert(0, METHOD, [line_title(label) for label in wide.index])
    caption = (
        "Parameters and rates of every method; searched: found by this experiment's search; set: "
        "by its config or the method's definition, where methods differ."
    )
    text = wide.astype(object).fillna(MISSING).rename_axis(None).rename_axis(columns=None)
    return Table("settings", caption, numbers, text)


def search(record: Record) -> dict[str, Any]:
    """Return the methods of search.json with a complete trial, in order; none without search."""
    if not (record.folder / "search.json").is_file():
        return {}
    found = record.json("search.json")["methods"]
    return {
        label: found[label] for label in sorted(found, key=method_order) if found[label]["best"]
    }


def tuning(record: Record) -> Table:
    """Return trials, best values and validation accuracy of the search of every method."""
    rows = []
    for label, found in search(record).items():
        best = found["best"]["parameters"].items()
        row = {"experiment": record.name, "method": label, "trials": len(found["expected_best"])}
        row |= {"failed": found["failed"]}
        row["best"] = ", ".join(f"{symbol(key)} = {value_text(value)}" for key, value in best)
        row |= {"score": 100 * found["best"]["score"], "mean": 100 * found["expected_best"][0]}
        row["edges"] = ", ".join(f"{symbol(key)} {side}" for key, side in found["edges"].items())
        rows.append(row)
    columns = ["experiment", "method", "trials", "failed", "best", "score", "mean", "edges"]
    numbers = pd.DataFrame(rows, columns=columns)
    shown = numbers[["trials", "best", "score", "mean", "edges"]]
    text = shown.map(lambda value: f"{value:.1f}" if isinstance(value, float) else str(value))
    text = text.replace("", MISSING)
    text.columns = ["trials", "best values", "best trial", "mean trial", "at an edge"]
    text.insert(0, METHOD, numbers["method"].map(line_title))
    caption = (
        "Search of hyper-parameters: validation accuracy (%) of clients' own models, mean of the "
        "last quarter of the rounds."
    )
    return Table("tuning", caption, numbers, text.set_axis(numbers["method"], axis=0))


def swept(record: Record) -> pd.DataFrame:
    """Return the runs of every sweep: where runs of a kind differ in one value alone.

    A run stands in as many rows as values of it are swept.

    Returns:
        ``RUN``, ``key``, ``setting``, ``others`` (the other swept values) and ``line`` (the kind of
        method with them).
    """
    runs = record.finished
    parts = [pd.DataFrame(columns=["key", "setting", "others", "line"])]
    for kind, flat in config_values(runs).groupby(runs["type"], sort=False):
        parts += [_sweep(flat, str(kind), key) for key in _varying(flat)]
    rows = pd.concat(parts)
    # One run may stand under two labels: a grid and a single sweep meet in the default.
    found = runs[RUN].loc[rows.index].assign(**rows)
    return found.drop_duplicates(["key", "line", "setting", "seed"])


def _numbers(column: pd.Series) -> pd.Series:
    return pd.to_numeric(column, errors="coerce")


def _varying(flat: pd.DataFrame) -> list[str]:
    return [str(key) for key in flat if flat[key].nunique() > 1]


def _sweep(flat: pd.DataFrame, kind: str, key: str) -> pd.DataFrame:
    """Return the runs of a kind that have another value of a key and agree in the others."""
    rest = [other for other in _varying(flat) if other != key]
    alike = flat[rest].agg("|".join, axis=1) if rest else pd.Series("", flat.index)
    tried = flat[flat[key].groupby(alike).transform("nunique") > 1]
    others = pd.Series("", tried.index)
    for other in _varying(tried[rest]):
        others = (others + f", {symbol(other)} = " + tried[other]).str.removeprefix(", ")
    lines = (line_title(kind) + ", " + others).str.removesuffix(", ")
    return pd.DataFrame({"key": key, "setting": tried[key], "others": others, "line": lines})


def sweeps(record: Record) -> Table:
    """Return the accuracies at each value of each swept setting."""
    wanted = [personal(record), "accuracy_shared"]
    frame = swept(record).merge(tidy(record, wanted), on=RUN)
    frame = frame.sort_values("setting", key=_numbers, kind="stable")
    frame = frame.sort_values("key", kind="stable")
    numbers = statistics.interval(frame, [*KEY, "metric", "at", "key", "setting", "others", "line"])
    shown = numbers[numbers["at"] == "selected"]
    blocks = shown["key"].map(symbol) + ": " + shown["metric"].map(HEADS)
    first = shown.drop_duplicates("line").set_index("line")["method"]
    text = arranged(
        shown.assign(head=shown["setting"], block=blocks),
        percent,
        setting="block",
        line="line",
        order=lambda name: method_order(first[name]),
    )
    caption = (
        f"Accuracy (%) at each value of a setting, {WHERE}: {INTERVAL} {seeds(numbers)}; a block "
        "per setting and accuracy."
    )
    return Table("sweeps", caption, numbers.drop(columns="line"), text, failures(record))
