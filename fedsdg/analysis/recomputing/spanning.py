"""What spans several arenas: two tables and a figure, from the records of all of them."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

from fedsdg.analysis.across import across_facts
from fedsdg.analysis.arenas import Arenas, read_arenas
from fedsdg.analysis.overall import Overall, overall
from fedsdg.analysis.recomputing.faults import Fault, json_faults
from fedsdg.analysis.recomputing.nudged import summary_of
from fedsdg.analysis.recomputing.pages import FORMATS, OF_THE_DAY, input_faults, of_files
from fedsdg.analysis.tables.across import across, to_target
from fedsdg.analysis.tables.layout import Table
from fedsdg.files import read_json
from fedsdg.files.places import PAPER_FIGURE, RECORDS, filled

NAME = "across"


def spanning_faults(root: Path) -> tuple[int, list[Fault]]:
    """How many tables there are, and the faults of them and of the figure's sidecar.

    The sidecar says of which arenas they are made. Nothing where there is none.
    """
    sidecar = root / f"{filled(PAPER_FIGURE, experiment=NAME, figure=NAME)}.json"
    if not sidecar.is_file():
        return 0, []
    said, shown = read_json(sidecar), sidecar.relative_to(root).as_posix()

    @cache
    def found(factor: float) -> tuple[Arenas, tuple[Overall, ...]]:
        read = partial(summary_of, factor=factor)
        arenas = read_arenas(root / RECORDS, said["arenas"], said["metric"], read)
        return arenas, overall(arenas)

    def table(name: str, factor: float) -> Table:
        arenas, both = found(factor)
        return across(arenas, both) if name == NAME else to_target(arenas)

    def facts(factor: float) -> dict[str, Any]:
        return across_facts(*found(factor))

    faults = list(input_faults(root, shown, said.pop("inputs", {})))
    for key in OF_THE_DAY:
        said.pop(key, None)
    faults += json_faults(shown, dict(said), facts)
    folder = root / RECORDS / NAME
    names = sorted({file.stem for file in folder.glob("*.csv")})
    for name in names:
        files = [f for ending in FORMATS if (f := folder / f"{name}{ending}").is_file()]
        faults += of_files(root, files, partial(table, name))
    return len(names), faults
