"""The arenas of a page: one for each cell of each summary that was read, with its methods' looks.

An arena is a federation in which methods are compared: data, who differs from whom, and rounds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedsdg.analysis.names import NOT_RUN, base_method
from fedsdg.analysis.summary import Cell, Summary
from fedsdg.files import hint
from fedsdg.files.declarations import declarations, families
from fedsdg.files.places import ARENAS

#: Columns without which a file is none of a summary.
_NEEDED = {
    "runs": ("experiment", "dataset", "clients", "skew", "method", "seed", "status", "config"),
    "rounds": ("dataset", "clients", "skew", "method", "seed", "round", "evaluated"),
    "clients": ("dataset", "clients", "skew", "method", "seed", "round", "client", "gates"),
}


@dataclass(frozen=True)
class Arena:
    """A cell of a summary, and the labels of the methods that were run in it, in their order."""

    summary: Summary
    cell: Cell
    methods: tuple[str, ...]

    @property
    def id(self) -> str:
        """What names it in the page: cross-needs-digits-20-iid@half."""
        setting = self.cell.setting
        return f"{self.summary.experiment}-{setting.dataset}-{setting.clients}-{self.cell.skew}"

    @property
    def title(self) -> str:
        """Its name in print: "cross-needs: IID, half"."""
        where = self.summary.cell_title(self.cell).replace("\n", ", ")
        return f"{self.summary.experiment}: {where}"

    def asked(self, method: str) -> list[dict[str, Any]]:
        """All runs of the method that the experiment wants, by seed."""
        runs = [run for run in self.summary.at(self.cell) if run["method"] == method]
        return sorted(runs, key=lambda run: run["seed"])

    def runs(self, method: str) -> list[dict[str, Any]]:
        """Those of them that went well."""
        return [run for run in self.asked(method) if run["status"] == "ok"]


def found_experiments(records: Path, names: Sequence[str] = ()) -> list[str]:
    """The experiments to show.

    Args:
        records: A folder with a folder for each experiment.
        names: Those wanted; without any, those of ``ARENAS`` that ``records`` holds.

    Raises:
        FileNotFoundError: A name has no record, or there is none at all.
    """
    there = sorted(file.parent.name for file in records.glob("*/runs.parquet"))
    for name in names:
        if name not in there:
            raise FileNotFoundError(
                f"{records} has no runs of {name!r}, so that a page cannot show them"
                f"{hint(name, there)}"
            )
    found = list(names) or [name for name in ARENAS if name in there]
    if not found:
        raise FileNotFoundError(
            f"{records} has no runs of {', '.join(ARENAS)}, so that a page would be empty; name "
            "their folder with --records, or others of it with --experiments"
        )
    return found


def opened(folder: Path) -> Summary:
    """The summary in a folder; ``ValueError`` names a file that is damaged or of another schema."""
    for name, needed in _NEEDED.items():
        file = folder / f"{name}.parquet"
        try:
            there = pq.read_schema(file).names
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{file} is missing; make it anew with 'fedsdg summarise', or restore it"
            ) from None
        except pa.ArrowException as error:
            raise ValueError(
                f"{file} is no file of records ({str(error).splitlines()[0]}); make it anew with "
                "'fedsdg summarise', or restore it"
            ) from error
        if lacking := [column for column in needed if column not in there]:
            raise ValueError(
                f"{file} has no column {lacking[0]!r}: it is of another schema than this version "
                "of FedSDG Bench reads; make it anew with 'fedsdg summarise'"
            )
    return Summary(folder)


def arenas_of(summary: Summary) -> list[Arena]:
    """The cells in which something was run."""
    found = []
    for cell in summary.cells():
        run = {r["method"] for r in summary.at(cell) if r["status"] != NOT_RUN}
        methods = tuple(m for m in summary.methods(cell.setting) if m in run)
        if methods:
            found.append(Arena(summary, cell, methods))
    return found


def family(method: str) -> str:
    """The title of a method's family; of a variant that of its method; of a plugin's "Plugins"."""
    return families().get(base_method(method) or method, "Plugins")


def about_methods(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What is declared of the methods of these labels, and of those that they vary.

    Args:
        labels: Labels of rows; what a plugin brought is not declared and left out.

    Returns:
        Name → title, family, formula, keeps, source, and parameters (name, default, meaning).
    """
    wanted = {base_method(label) or label for label in labels}
    shown = ("title", "family", "formula", "keeps", "source")
    return {
        row["name"]: {key: row.get(key, "") for key in shown}
        | {
            "parameters": [
                [one["name"], _plain(one.get("default")), one["meaning"].replace("`", "")]
                for one in row.get("parameters", ())
            ]
        }
        for row in declarations()["methods"]
        if row["name"] in wanted
    }


def _plain(default: Any) -> str:
    """A default as a config has it."""
    return default if isinstance(default, str) else json.dumps(default)
