"""The command that renders tables, figures, claims and pages: files in, files out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedsdg.cli.command import File, Folder, NamedFile, Page
from fedsdg.cli.options import require_writable
from fedsdg.files import hint
from fedsdg.files.places import CROSS, RECORDS

#: What can be rendered besides the tables and figures of an experiment.
OTHERS = ("regret", "claims", "documents", "speed", "page")
#: Where the page goes unless ``--output`` names another file.
PAGE = Path("results/report/index.html")
CLAIMS = Path("claims.yaml")
RECORD = Path(RECORDS)


def render(
    name: Sequence[Page],
    *,
    summary: Folder | None = None,
    output: Folder | None = None,
    figures: Folder | None = None,
    measured: File = RECORD / "performance/measured.json",
    records: Folder = RECORD,
    experiments: Sequence[str] = (),
    metric: str = "accuracy",
    plugin: Sequence[NamedFile] = (),
) -> None:
    """Render tables, figures, claims or pages from what has been recorded.

    A name is a table, a figure or a metric (both a table and a figure, where there are both;
    table:NAME or figure:NAME is one of them). `regret` compares the methods of several experiments;
    `claims` judges claims.yaml and, as `documents`, fills in the numbers in README and docs;
    `speed` shows what `make bench` measured; `page` is the results page, one file
    for a browser.

    Args:
        name: what to render
        summary: a record or the summary of an experiment, for tables and figures
        output: folder (default: rendered); for page a file (default: results/report/index.html)
        figures: folder of figures (default: figures, in the tables')
        measured: measurements of speed
        records: folder with a record or summary of each experiment, for regret and page
        experiments: folders of the records, for regret (default: the cells of the cross) and for
            page (default: the arenas, as far as they exist)
        metric: for regret: in which methods are compared
        plugin: files that define further metrics, or names of installed plugins

    Example:
        fedsdg render main progress --summary results/reference/cross-needs --output needs
        fedsdg render page
    """
    folder = output or Path("rendered")
    # Beside its table a figure would replace the numbers: both write NAME.csv.
    drawn = figures or folder / "figures"
    if "page" in name:
        require_writable(output or PAGE, kind="file")
    elif {*name} - {"claims", "documents"}:
        require_writable(folder, drawn, kind="folder")
    _load(plugin)
    from fedsdg.analysis.metrics import METRICS
    from fedsdg.analysis.records import record
    from fedsdg.analysis.render import pages_named, write_regret, write_shown

    pages = [word for word in name if word not in OTHERS]
    for word in pages:
        pages_named(word)
    if metric not in METRICS:
        raise ValueError(f"there is no metric {metric!r}{hint(metric, METRICS)}")
    if {"claims", "documents"} & {*name} and not CLAIMS.is_file():
        raise FileNotFoundError(
            f"there is no {CLAIMS} here; call this in the root of the repository"
        )
    if summary is not None and not pages:
        raise ValueError("--summary is for tables and figures; name one of them, such as main")
    # Records have no LaTeX.
    tex = not folder.resolve().is_relative_to(RECORD.resolve())
    written: list[Path] = []
    if pages:
        if summary is None:
            raise ValueError(
                f"name the record or summary that {pages[0]} is made from, such as "
                "--summary results/reference/cross-needs"
            )
        written += write_shown(record(summary), folder, drawn, pages, tex=tex)
    if "regret" in name:
        arenas = [record(records / experiment) for experiment in experiments or CROSS]
        written += write_regret(arenas, folder, drawn, metric, tex=tex)
    if {"claims", "documents"} & {*name}:
        from fedsdg.analysis.slots import render_documents

        written += render_documents()
    if "speed" in name:
        from fedsdg.analysis.speed import write_speed

        written += write_speed(measured, folder, figures or folder)
    if "page" in name:
        written.append(_write_page(output or PAGE, records, experiments))
    for path in written:
        if path.name in ("regret.md", "speed.md"):
            print(path.read_text(encoding="utf-8"))
    print("\n".join(map(str, written)))


def _load(plugins: Sequence[str]) -> None:
    """Enter the metrics of plugins."""
    if plugins:
        from fedsdg.methods.plugins import contents, find_plugin

        for place in plugins:
            contents(find_plugin(place))


def _write_page(output: Path, folder: Path, experiments: Sequence[str]) -> Path:
    from fedsdg.analysis.page import arenas, write_page
    from fedsdg.analysis.records import record

    shown = [record(folder / name) for name in experiments] if experiments else arenas(folder)
    return write_page(output, shown, CLAIMS if CLAIMS.is_file() else None)
