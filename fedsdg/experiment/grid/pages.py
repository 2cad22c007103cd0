"""What is written of a grid's runs: summary, tables, figures, claims."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from pathlib import Path

from fedsdg import files
from fedsdg.experiment.config import Config
from fedsdg.experiment.grid.outcomes import needed
from fedsdg.experiment.machine.processes import Note, Workers
from fedsdg.experiment.machine.progress import GridProgress
from fedsdg.files.places import CLAIMS, FIGURE, RUNS, SUMMARY, TABLE, VERIFIED, filled, partition_of


@dataclass(frozen=True)
class Page:
    """One table, figure or the claims, made from the summary."""

    kind: str
    name: str
    summary: Path
    stem: Path
    partitions: tuple[Path, ...] = ()


def shown_pages(config: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the tables and figures to be made; ``ValueError`` where there is none such."""
    from fedsdg.analysis.plots import USUAL_FIGURES, known_figure
    from fedsdg.analysis.tables import USUAL_TABLES, known_table

    tables = USUAL_TABLES if config.tables is None else config.tables
    figures = USUAL_FIGURES if config.figures is None else config.figures
    for name in tables:
        known_table(name)
    for name in figures:
        known_figure(name)
    return tables, figures


def write_pages(config: Config, workers: Workers, progress: GridProgress) -> list[str]:
    """Summary, tables, figures, claims; the failed runs."""
    from fedsdg.analysis.names import NOT_RUN
    from fedsdg.analysis.plots import known_figure
    from fedsdg.analysis.summarise import failed_runs, search_file, summarise

    name, root = config.experiment, config.root
    summary, verified = (root / filled(place, experiment=name) for place in (SUMMARY, VERIFIED))
    verified.unlink(missing_ok=True)
    runs = root / filled(RUNS, experiment=name)
    primary = [comparison.to_dict() for comparison in config.primary]
    roles = asdict(config.roles)
    search = search_file(name, root / "results")
    summarise(runs, summary, config.run_folders(), search, primary, roles)
    first = min(config.seeds)
    places = itertools.product(config.datasets, config.skews)
    clients = config.federation.clients
    shares = [root / partition_of(dataset, clients, skew, first) for dataset, skew in places]
    shares = [file for file in shares if file.is_file()]
    tables, figures = shown_pages(config)
    tables_in = root / filled(TABLE, experiment=name, table="")
    figures_in = root / filled(FIGURE, experiment=name, figure="")
    pages = [Page("table", table, summary, tables_in / table) for table in tables]
    pages += [
        Page("figure", figure, summary, figures_in / figure, (*shares,))
        for figure in figures
        if shares or not known_figure(figure).needs_partitions
    ]
    pages.append(Page("claims", name, summary, root / filled(CLAIMS, experiment=name)))
    for page, outcome in workers.map(_page, pages):
        needed(outcome, f"{page.kind} {page.name}")
    missing = failed_runs(summary)
    failed = [f"{run}: {error}" for run, error in missing.items() if error != NOT_RUN]
    if not missing:
        with files.atomic_path(verified) as temporary:
            temporary.write_text("all runs succeeded\n")
    progress.say(f"tables in {tables_in.as_posix()}, figures in {figures_in.as_posix()}")
    if len(missing) > len(failed):
        progress.say(f"{len(missing) - len(failed)} runs of the grid were not run")
    return failed


def _page(page: Page, note: Note) -> None:
    from fedsdg.analysis import plots, tables
    from fedsdg.analysis.claims import write_claims

    if page.kind == "table":
        tables.write_table(page.summary, page.name, page.stem)
    elif page.kind == "figure":
        plots.write_figure(page.summary, page.name, page.stem, page.partitions)
    else:
        write_claims(page.summary, page.stem)
