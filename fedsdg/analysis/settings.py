"""What methods were set to, and the search that found it."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from fedsdg.analysis.layout import METHOD, MISSING, Table, line_title
from fedsdg.analysis.names import method_order
from fedsdg.analysis.records import Record

#: Last part of a config's key → its symbol.
SYMBOLS = {
    **{"eta_g": "η_g", "eta_p": "η_p", "eta_m": "η_m", "lambda1": "λ₁", "lambda2": "λ₂"},
    **{"mu": "μ", "gamma": "γ", "gamma0": "γ₀", "epsilon": "ε", "temperature": "τ"},
    **{"beta": "β", "strength": "λ", "epochs": "e"},
}


def symbol(key: str) -> str:
    """Return a dotted key of a config in print: parameters.lambda1 → λ₁."""
    name = key.rpartition(".")[2]
    return SYMBOLS.get(name, name.replace("_", " "))


def value_text(value: Any) -> str:
    """Return a value of a config in few characters: 1e-4 → 0.0001."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings(record: Record) -> Table:
    """Parameters and rates of every method with their origin.

    *searched*: found by the search of this experiment; *set*: another value than a method of the
    same kind has, or, of training, than another method has; *fixed*: all others, in the CSV alone.
    """
    runs = record.finished.drop_duplicates(["cell", "method"])
    flat = pd.json_normalize([json.loads(text) for text in runs["config"]]).set_axis(runs.index)
    flat = flat.filter(regex=r"^(parameters|training)\.").astype(object)
    long = flat.join(runs[["experiment", "method", "type"]])
    long = long.melt(["experiment", "method", "type"], var_name="key")
    long["value"] = long["value"].map(value_text, na_action="ignore").fillna(MISSING)
    rows = long.groupby(["experiment", "method", "type", "key"], sort=False)["value"]
    numbers = rows.agg(lambda own: " / ".join(dict.fromkeys(own))).reset_index()
    kind = numbers["type"].where(numbers["key"].str.startswith("parameters."), "")
    numbers["origin"] = "fixed"
    numbers.loc[numbers.groupby([kind, "key"])["value"].transform("nunique") > 1, "origin"] = "set"
    for label, found in search(record).items():
        searched = numbers["key"].str.rpartition(".")[2].isin([*found["best"]["parameters"]])
        numbers.loc[searched & (numbers["method"] == label), "origin"] = "searched"
    numbers = numbers[numbers["value"] != MISSING].drop(columns="type")
    pairs = zip(numbers["key"], numbers["value"], strict=True)
    lines = numbers.assign(text=[f"{symbol(key)} = {value}" for key, value in pairs])
    wide = lines.groupby(["method", "origin"])["text"].agg(", ".join).unstack()
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
    rows = [
        {
            "experiment": record.name,
            "method": label,
            "trials": len(found["expected_best"]),
            "failed": found["failed"],
            "best": _listed(found["best"]["parameters"], " = "),
            "score": 100 * found["best"]["score"],
            "mean": 100 * found["expected_best"][0],
            "edges": _listed(found["edges"], " "),
        }
        for label, found in search(record).items()
    ]
    columns = ["experiment", "method", "trials", "failed", "best", "score", "mean", "edges"]
    numbers = pd.DataFrame(rows, columns=columns)
    shown = numbers[["trials", "best", "score", "mean", "edges"]]
    text = shown.map(lambda value: f"{value:.1f}" if isinstance(value, float) else str(value))
    heads = ["trials", "best values", "best trial", "mean trial", "at an edge"]
    text = text.replace("", MISSING).set_axis(heads, axis=1)
    text.insert(0, METHOD, numbers["method"].map(line_title))
    caption = (
        "Search of hyper-parameters: validation accuracy (%) of clients' own models, mean of the "
        "last quarter of the rounds. Mean trial: all trials, on one seed for half of the rounds; "
        "best trial: the winner, on the other seeds, if there are any, for all rounds."
    )
    return Table("tuning", caption, numbers, text.set_axis(numbers["method"], axis=0))


def _listed(values: dict[str, Any], between: str) -> str:
    return ", ".join(f"{symbol(key)}{between}{value_text(value)}" for key, value in values.items())
