"""What spans several arenas: the table and figure of regret, from the records of all of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from fedsdg.analysis.recomputing.faults import Fault, json_faults
from fedsdg.analysis.recomputing.nudged import summary_of
from fedsdg.analysis.recomputing.pages import FORMATS, OF_THE_DAY, input_faults, of_files
from fedsdg.analysis.regret import across_facts, regret_table
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.layout import Table
from fedsdg.files import read_json
from fedsdg.files.places import PAPER_FIGURE, RECORDS, filled

NAME, FIGURE = "across", "regret"


def spanning_faults(root: Path) -> tuple[int, list[Fault]]:
    """How many tables there are, and the faults of them and of the figure's sidecar.

    The sidecar says of which arenas they are made. Nothing where there is none.
    """
    sidecar = root / f"{filled(PAPER_FIGURE, experiment=NAME, figure=FIGURE)}.json"
    if not sidecar.is_file():
        return 0, []
    said, shown = read_json(sidecar), sidecar.relative_to(root).as_posix()

    def summaries(factor: float) -> list[Summary]:
        return [summary_of(root / RECORDS / name, factor) for name in said["arenas"]]

    def table(factor: float) -> Table:
        return regret_table(summaries(factor), said["metric"])

    def facts(factor: float) -> dict[str, Any]:
        return across_facts(summaries(factor), said["metric"])

    faults = list(input_faults(root, shown, said.pop("inputs", {})))
    for key in OF_THE_DAY:
        said.pop(key, None)
    faults += json_faults(shown, dict(said), facts)
    folder = root / RECORDS / NAME
    files = [f for ending in FORMATS if (f := folder / f"{FIGURE}{ending}").is_file()]
    faults += of_files(root, files, partial(table))
    return 1, faults
