"""The results page: findings, tables, charts and their runs in one file without a network.

Files in, a file out: everything shown is computed here from summaries or committed records.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedsdg.analysis.findings import primary_comparisons, read_findings, statements
from fedsdg.analysis.grids import Grid, published_grids
from fedsdg.analysis.ledger import read_ledger
from fedsdg.analysis.ledger.entries import VERDICTS, Entry
from fedsdg.analysis.ledger.page import SOURCES
from fedsdg.analysis.page import sections, tables
from fedsdg.analysis.page.arenas import (
    about_methods,
    arenas_of,
    family,
    found_experiments,
    opened,
)
from fedsdg.analysis.page.charts import specifications
from fedsdg.analysis.page.document import document
from fedsdg.analysis.page.runs import (
    commands,
    methods_of,
    metrics_of,
    origins_in,
    said,
    steps_of,
)
from fedsdg.analysis.speed import Measurements
from fedsdg.analysis.standing import Standing
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views.costs import progress
from fedsdg.files import atomic_path, sha256_file

#: Measurements of the aggregation, below the folder of results, as they are made here; the record
#: has its own.
_MEASURED = ("performance/full/measured.json", "performance/short/aggregation.json")
#: The experiments whose records have attacks by their share.
_ATTACKED = ("byzantine", "breakdown")
#: Section → its name in the bar. What has nothing to show is left out, and that is said below.
_SECTIONS = {
    "standing": "Standing",
    "findings": "Findings",
    "regret": "Regret",
    "leaderboard": "Leaderboard",
    "rivals": "Two methods",
    "curves": "Curves",
    "gates": "Gates",
    "robustness": "Robustness",
    "ledger": "Ledger",
    "tuning": "Tuning",
    "speed": "Speed",
    "sources": "Sources",
}


def write_page(
    records: str | Path,
    output: str | Path,
    *,
    experiments: Sequence[str] = (),
    reference: str | Path = "results/reference",
    configs: str | Path = "config",
    compared: Sequence[Standing] = (),
    checked: str = "",
) -> Path:
    """Write the page of experiments; the same files give the same bytes.

    Args:
        records: Holds a folder for each experiment, as results/reference and results/summary do.
        output: The file.
        experiments: Those to show; without any, the arenas that ``records`` has.
        reference: The record, where the ledger, the attacks and the measurements of the aggregation
            are; beside its results folder claims.yaml, which holds the findings.
        configs: The folder of config files, for the commands that make runs again.
        compared: Newcomers, of whom the page then says first where they stand.
        checked: How their runs are paired with the record's, in a sentence.

    Returns:
        The path of the page.

    Raises:
        FileNotFoundError: There are no runs.
        ValueError: A record is damaged or of another schema.
        OSError: ``output`` cannot be written; before anything is computed.
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
        summaries = [opened(records / name) for name in names]
        page = _page(summaries, records, output, reference, Path(configs), compared, checked)
        temporary.write_text(page, encoding="utf-8")
    return output


def _page(
    summaries: Sequence[Summary],
    records: Path,
    output: Path,
    reference: Path,
    configs: Path,
    compared: Sequence[Standing],
    checked: str,
) -> str:
    grids = published_grids(configs) if (configs / "config.yaml").is_file() else {}
    shown = [pair for summary in summaries for pair in _arenas(summary, grids)]
    boards, arenas = [board for board, _ in shown], [arena for _, arena in shown]
    attacked = [
        opened(reference / name)
        for name in _ATTACKED
        if (reference / name / "runs.parquet").is_file()
    ]
    entries, findings, ledger_files = _ledger(reference)
    measured = _measured(records, reference)
    labels = [method["label"] for arena in arenas for method in arena["methods"]]
    most = max(len(m["values"]["seeds"]) for arena in arenas for m in arena["methods"])
    newcomers = [(one, cell) for one in compared for cell in one.cells]
    data: dict[str, Any] = {
        "arenas": arenas,
        "standing": [sections.gaps(*newcomer) for newcomer in newcomers],
        "tuning": {summary.experiment: sections.tuned(summary) for summary in summaries},
        "speeds": sections.speeds(Measurements.read(measured)) if measured else None,
        "constants": sections.constants(most),
        "measures": sections.MEASURES,
        "about": about_methods(labels),
        "specs": specifications(),
    }
    read = [file for summary in (*summaries, *attacked) for file in summary.inputs]
    inputs = dict.fromkeys([*read, *ledger_files, *filter(None, [measured])])
    files = [(file.as_posix(), sha256_file(file)) for file in inputs]
    of_word = Counter(entry.verdict for entry in entries)
    facts: dict[str, Any] = {
        "boards": boards,
        "families": [(name, name) for name in sorted({*map(family, labels)})],
        "checked": checked,
        "said": [sentence for one in compared for sentence in sections.said_of(one)],
        "standing": [tables.standing_sheet(*newcomer) for newcomer in newcomers],
        "findings": findings,
        "regret": tables.regret_map(summaries) if len(arenas) > 1 else None,
        "robustness": [one for summary in attacked for one in tables.attack_maps(summary)],
        "ledger": tables.ledger(entries),
        "verdicts": [(word, f"{word} ({of_word[word]})") for word in VERDICTS],
        "claimed_by": {e.source: SOURCES.get(e.source, e.source) for e in entries},
        "reports": _reports(output),
        "files": tables.sheet("Files", ["File", "SHA-256"], files),
    }
    content = facts | {
        "gates": any(arena["gates"] for arena in arenas),
        "tuning": any(data["tuning"].values()),
        "speed": measured,
        "ledger": entries,
    }
    empty = [name for name in _SECTIONS if not content.get(name, True)]
    facts["shown"] = {key: name for key, name in _SECTIONS.items() if key not in empty}
    facts["left_out"] = [_SECTIONS[name] for name in empty if name != "standing"]
    return document(facts, data)


def _arenas(summary: Summary, grids: Mapping[str, Grid]) -> list[tuple[Any, dict[str, Any]]]:
    """What the template and what the script shows of every arena of a summary."""
    steps, origins, gated = steps_of(summary), origins_in(summary), sections.gated(summary)
    metrics = metrics_of(summary)
    over_time = {metric.key: progress(summary, metric) for metric in metrics}
    found = []
    for arena in arenas_of(summary):
        methods = methods_of(arena, origins, steps)
        values = {method["label"]: method["values"] for method in methods}
        shown = {
            "id": arena.id,
            "title": arena.title,
            "experiment": summary.experiment,
            "metrics": [{"key": m.key, "title": m.title} for m in metrics],
            "methods": methods,
            "origins": [said(origin) for origin in origins],
            "commands": commands(arena, grids),
            "curves": sections.curves(arena, over_time),
            "gates": sections.gate_maps(arena, gated),
        }
        board = (arena, tables.leaderboard(arena, values), tables.how_made(arena))
        found.append((board, shown))
    return found


def _ledger(reference: Path) -> tuple[list[Entry], list[Any], list[Path]]:
    """The entries of the ledger, the findings that cite it, and the files of both."""
    ledger, claims = reference / "ledger.json", reference.parent.parent / "claims.yaml"
    if not ledger.is_file():
        return [], [], []
    entries = read_ledger(ledger)
    if not claims.is_file():
        return entries, [], [ledger]
    known = statements(entries, primary_comparisons(reference))
    return entries, sections.findings(read_findings(claims), known), [ledger, claims]


def _measured(records: Path, reference: Path) -> Path | None:
    """The measurements that go with ``records``: of the record its own, else those made here."""
    here = (
        [] if records.resolve() == reference.resolve() else [records.parent / p for p in _MEASURED]
    )
    places = [*here, reference / "performance" / "measured.json"]
    return next((file for file in places if file.is_file()), None)


def _reports(output: Path) -> list[tuple[str, str]]:
    """Snakemake's reports beside the page's folder: (name, link)."""
    files = sorted(output.parent.parent.glob("report*.html"))
    return [(file.name, os.path.relpath(file, output.parent)) for file in files]
