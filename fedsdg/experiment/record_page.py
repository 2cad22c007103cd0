"""The page of the record formats, docs/records.md, from the schemas. Never imports torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from fedsdg.files import records
from fedsdg.methods.markdown import table
from fedsdg.parts import meanings_below

_HEAD = f"""\
# The record formats

Made by `make documents` from the schemas in `fedsdg/files/records.py`; not to be edited here. The
format is number {records.FORMAT}, and stands in the metadata of every file of records.

A run leaves a folder, `results/runs/EXPERIMENT/DATA/clients~K/SKEW/METHOD/seed~S/`:

| file | what it is |
| --- | --- |
| `rounds.parquet` | a row for every round |
| `clients.parquet` | a row for every client that trained, arrived or was evaluated |
| `result.json` | evaluations, bytes, the whole config and its hashes |
| `provenance.json` | commit, machine, versions, times: what may differ between equal runs |
| `timings.parquet` | seconds of every round |
| `models.safetensors` | the models, where `training.save` asks for them ([models.md](models.md)) |

`fedsdg summarise` puts the runs of an experiment into four files in `results/summary/EXPERIMENT/`,
with the columns `experiment`, `dataset`, `clients`, `skew`, `method` and `seed` in front: `rounds`,
`clients` and `timings` as below, and `runs` (a row a run: the metrics of the last round, of the one
selected by validation and of the last quarter, with `last`, `selected` and `quarter` before their
names). Beside them, `methods.json` has title and family of each method, and whether it leaves every
client with a model of its own; `provenance.json` says where and when the runs were made. Tables and
figures call `expected_accuracy` `accuracy`, `personal_accuracy` `accuracy_own_test`,
`global_accuracy` `accuracy_shared`, and the last quarter `end`. Newer runs add to `runs` the sum of
`personal_steps`; `gate_travel`, η_m × the local steps of a median client, where gates are learned;
and `gates_a` and `gates_b`, the mean gates at the last evaluation of the clients that agree (all,
where nobody differs) and that differ. The committed records in `results/reference/EXPERIMENT/` are
these files.

```python
import pandas as pd

from fedsdg.files.records import read_parquet

rounds = read_parquet("results/reference/cross-needs/rounds.parquet").to_pandas()
rounds[rounds["evaluated"]].groupby(["method", "round"])["expected_accuracy"].mean()
```

`read_parquet` refuses a file whose format is younger than the package. Accuracies and shares are
between 0 and 1, θ is the server's model, Δ_k = θ_k − θ the update of client k, M the clients of a
round and K all clients.
"""
_MORE = "Where they say something."
#: Table -> the classes of ``fedsdg.files.records`` that its rows are made of.
_ROWS: Mapping[str, Sequence[type]] = {
    "rounds": (records.Round, records.Evaluation),
    "clients": (records.Client,),
    "timings": (records.Seconds,),
}


def record_page(declared: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """Markdown: every column of the records with its type and meaning, in the files' order.

    Args:
        declared: the columns that parts, conditions and observers fill, as the declarations have
            them.

    Raises:
        KeyError: a column of every run is not explained.
    """
    others = {
        table: [(one["name"], one["kind"], one["meaning"]) for one in columns]
        for table, columns in declared.items()
    }
    further = {
        "rounds": [*others["rounds"], *_explained(records.GroupEvaluation)],
        "clients": [*others["clients"], *others["diagnostics"]],
    }
    parts = [_HEAD]
    for name, rows in _ROWS.items():
        parts += [f"## `{name}.parquet`\n", _columns(itertools.chain(*map(_explained, rows)))]
        if name in further:
            parts += [f"## Further columns of {name}\n", f"{_MORE}\n", _columns(further[name])]
    return "\n".join(parts)


def _columns(entries: Iterable[tuple[str, str, str]]) -> str:
    rows = ((f"`{name}`", kind, meaning) for name, kind, meaning in entries)
    return table(("column", "type", "meaning"), rows)


def _explained(row: type) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and meaning of the columns of a class."""
    meanings = meanings_below(str(records.__file__), row.__name__)
    for name, kind in records.columns_in(row):
        yield name, _kind(kind), meanings[name]


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_kind(kind.value_type)}"
    return "float64" if pa.types.is_float64(kind) else str(kind)
