"""What is written of a grid's runs: summary, tables and figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedsdg import files
from fedsdg.experiment.config import Config
from fedsdg.experiment.grid.outcomes import needed
from fedsdg.experiment.machine.processes import Note, Workers
from fedsdg.experiment.machine.progress import GridProgress
from fedsdg.files.places import FIGURE, RUNS, SUMMARY, TABLE, VERIFIED, filled
from fedsdg.methods.plugins import Plugin, contents


@dataclass(frozen=True)
class Page:
    """A table or a figure to be made of a summary; ``plugins`` may define its metric."""

    name: str
    summary: Path
    tables: Path
    figures: Path
    plugins: tuple[Plugin, ...]


def require_pages(config: Config) -> None:
    """Raise ``ValueError`` for a table or figure that there is not."""
    from fedsdg.analysis.render import require_known
    from fedsdg.experiment.summary import shown_pages

    for plugin in config.plugins:
        contents(plugin)
    require_known(*shown_pages(config))


def write_pages(config: Config, workers: Workers, progress: GridProgress) -> list[str]:
    """Write summary, tables and figures; return the failed runs."""
    from fedsdg.analysis.gather import NOT_RUN, failed_runs
    from fedsdg.experiment.summary import search_file, shown_pages, write_summary

    name, root = config.experiment, config.root
    summary, verified = (root / filled(place, experiment=name) for place in (SUMMARY, VERIFIED))
    verified.unlink(missing_ok=True)
    runs = root / filled(RUNS, experiment=name)
    write_summary(runs, summary, config, search_file(name, root / "results"))
    tables_in = root / filled(TABLE, experiment=name, table="")
    figures_in = root / filled(FIGURE, experiment=name, figure="")
    tables, figures = shown_pages(config)
    names = [f"table:{one}" for one in tables] + [f"figure:{one}" for one in figures]
    pages = [Page(one, summary, tables_in, figures_in, config.plugins) for one in names]
    for page, outcome in workers.map(_page, pages):
        needed(outcome, page.name)
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
    from fedsdg.analysis.records import Record
    from fedsdg.analysis.render import write_shown

    for plugin in page.plugins:
        contents(plugin)
    write_shown(Record(page.summary), page.tables, page.figures, [page.name])
