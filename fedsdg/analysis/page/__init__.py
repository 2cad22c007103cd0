"""The results page: leaderboards, comparisons, curves and their runs in one file without a network.

Files in, a file out: everything shown is computed here from summaries or committed records.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsdg.analysis.grids import Grid, published_grids
from fedsdg.analysis.ledger import read_ledger
from fedsdg.analysis.ledger.entries import VERDICTS
from fedsdg.analysis.names import Metric
from fedsdg.analysis.page import convergence, gates, rivals, robustness, roofline, tuning
from fedsdg.analysis.page.arenas import Arena, arenas_of, cast_of, found_experiments, opened
from fedsdg.analysis.page.document import document
from fedsdg.analysis.page.leaderboard import Board, board, metrics_of, steps_of, values_of
from fedsdg.analysis.page.ledger import claims
from fedsdg.analysis.page.runs import commands, origins_in, runs_behind, said
from fedsdg.analysis.speed import Measurements
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views.costs import COSTS, progress
from fedsdg.files import atomic_path, sha256_file

#: Measurements of the aggregation, below the folder of results, as they are made here; the record
#: has its own.
_MEASURED = ("performance/full/measured.json", "performance/short/aggregation.json")


@dataclass
class _Parts:
    """What was read so far: boards in the template, the rest in the data."""

    boards: list[Board] = field(default_factory=list)
    arenas: list[dict[str, Any]] = field(default_factory=list)
    tuning: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    inputs: list[Path] = field(default_factory=list)


def write_page(
    records: str | Path,
    output: str | Path,
    *,
    experiments: Sequence[str] = (),
    reference: str | Path = "results/reference",
    configs: str | Path = "config",
) -> Path:
    """Write the page of the experiments below ``records`` to ``output`` and return its path.

    ``records`` holds a folder for each experiment, as results/reference and results/summary do;
    without ``experiments`` the arenas that it has are shown. ``reference``: the record, where the
    ledger, the attacks and the measurements of the aggregation are; sections of what is not there
    say so. ``configs``: the folder of config files, for the commands that make runs again.

    The same files give the same bytes. Raises ``FileNotFoundError`` where there are no runs,
    ``ValueError`` for a record that is damaged or of another schema, and ``OSError`` where
    ``output`` cannot be written, before anything is computed.
    """
    records, output, reference = Path(records), Path(output), Path(reference)
    names = found_experiments(records, experiments)
    if output.is_dir():
        raise IsADirectoryError(f"{output} is a folder; name a file of it with --output")
    with ExitStack() as stack:
        try:
            temporary = stack.enter_context(atomic_path(output))
        except OSError as error:
            raise OSError(
                f"{output} cannot be written ({error.strerror}); name another place with --output"
            ) from error
        page = _page(records, names, output, reference, Path(configs))
        temporary.write_text(page, encoding="utf-8")
    return output


def _page(records: Path, names: Sequence[str], output: Path, reference: Path, configs: Path) -> str:
    grids = published_grids(configs) if (configs / "config.yaml").is_file() else {}
    parts = _Parts()
    for name in names:
        # Each wholly before the next: a summary's titles are those of the last one opened.
        _add(parts, opened(records / name), grids)
    attacked = []
    for name in robustness.EXPERIMENTS:
        if (reference / name / "runs.parquet").is_file():
            summary = opened(reference / name)
            attacked += robustness.attacks(summary)
            parts.inputs += summary.inputs
    ledger = reference / "ledger.json"
    entries = read_ledger(ledger) if ledger.is_file() else []
    parts.inputs += [ledger] if entries else []
    measured = _measured(records, reference)
    parts.inputs += [measured] if measured else []
    most = max(len(m["values"]["seeds"]) for a in parts.arenas for m in a["methods"])
    data = {
        "arenas": parts.arenas,
        "attacks": attacked,
        "tuning": parts.tuning,
        "speeds": roofline.speeds(Measurements.read(measured)) if measured else None,
        "constants": rivals.constants(most),
        "costs": {name: title for name, title, _ in COSTS},
        "measures": gates.MEASURES,
        "specs": _specs(),
    }
    facts = {
        "boards": parts.boards,
        "families": _families(parts.boards),
        "claims": claims(entries),
        "verdicts": VERDICTS,
        "has_gates": any(arena["gates"] for arena in parts.arenas),
        "has_tuning": any(parts.tuning.values()),
        "has_attacks": bool(attacked),
        "has_speeds": measured is not None,
        "reports": _reports(output),
        "inputs": [(file.as_posix(), sha256_file(file)) for file in dict.fromkeys(parts.inputs)],
    }
    return document(facts, data)


def _add(parts: _Parts, summary: Summary, grids: Mapping[str, Grid]) -> None:
    """Everything of one summary."""
    steps, origins, gated = steps_of(summary), origins_in(summary), gates.gated(summary)
    metrics = metrics_of(summary)
    over_time = {metric.key: progress(summary, metric) for metric in metrics}
    for arena in arenas_of(summary):
        values = values_of(arena, steps)
        parts.boards.append(board(arena, values))
        parts.arenas.append(
            {
                "id": arena.id,
                "title": arena.title,
                "experiment": summary.experiment,
                "metrics": [_named(metric) for metric in metrics],
                "methods": _methods(arena, values, runs_behind(arena, origins)),
                "origins": [said(origin) for origin in origins],
                "commands": commands(arena, grids),
                "curves": convergence.curves(arena, over_time),
                "gates": gates.heat_maps(arena, gated),
            }
        )
    parts.tuning[summary.experiment] = tuning.tuned(summary)
    parts.inputs += summary.inputs


def _measured(records: Path, reference: Path) -> Path | None:
    """The measurements that go with ``records``: of the record its own, else those made here."""
    here = (
        [] if records.resolve() == reference.resolve() else [records.parent / p for p in _MEASURED]
    )
    places = [*here, reference / "performance" / "measured.json"]
    return next((file for file in places if file.is_file()), None)


def _named(metric: Metric) -> dict[str, str]:
    return {"key": metric.key, "title": metric.title, "short": metric.short}


def _methods(
    arena: Arena, values: Mapping[str, Any], behind: Mapping[str, Any]
) -> list[dict[str, Any]]:
    return [
        {**one, "values": values[one["label"]], "runs": behind[one["label"]]}
        for one in cast_of(arena)
    ]


def _specs() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for section in (rivals, convergence, gates, robustness, tuning, roofline):
        found |= section.specs()
    return found


def _families(boards: Sequence[Board]) -> list[str]:
    return sorted({row.family for one in boards for row in one.rows})


def _reports(output: Path) -> list[tuple[str, str]]:
    """Snakemake's reports beside the page's folder: (name, link)."""
    files = sorted(output.parent.parent.glob("report*.html"))
    return [(file.name, os.path.relpath(file, output.parent)) for file in files]
