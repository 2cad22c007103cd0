"""The command that renders tables, figures, claims and pages: files in, files out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsdg.cli.command import File, Folder, Page
from fedsdg.cli.options import require_writable
from fedsdg.files import hint
from fedsdg.files.declarations import names as declared
from fedsdg.files.places import CROSS, RECORDS

#: Where the two documents go unless ``--output`` names another file.
DOCUMENTS = {"page": Path("results/report/index.html"), "ledger": Path("docs/claims.md")}
#: What can be rendered besides the tables and figures of an experiment.
OTHERS = ("claims", "across", "kernels", "throughput", *DOCUMENTS)
RECORD = Path(RECORDS)


def render(
    name: Sequence[Page],
    *,
    summary: Folder | None = None,
    output: Folder | None = None,
    figures: Folder | None = None,
    claims: File | None = None,
    partitions: Sequence[File] = (),
    measured: File = RECORD / "performance/measured.json",
    records: Folder = RECORD,
    experiments: Sequence[str] = (),
    reference: Folder = RECORD,
    configs: Folder = Path("config"),
    metric: str = "expected_accuracy",
    freeze: bool = False,
) -> None:
    """Render tables, figures, claims or pages from what has been recorded.

    A name is a table or a figure (both, where both have it; table:NAME or figure:NAME is one of
    them) or `claims`: the primary comparisons of an experiment with their verdicts. `across`
    compares the methods of several experiments; `kernels` and `throughput` show what `make bench`
    measured; `page` is the results page, one file for a browser; `ledger` judges claims.yaml.

    Args:
        name: what to render
        summary: a record or the summary of an experiment, for tables, figures and claims
        output: folder (default: rendered); for page and ledger a file (default:
            results/report/index.html, docs/claims.md)
        figures: folder of figures (default: the tables')
        claims: file of the claims, without suffix (default: OUTPUT/claims)
        partitions: files for the figure partition (default: those of the record)
        measured: measurements for kernels and throughput
        records: folder with a record or summary of each experiment, for across, page and ledger
        experiments: folders of the records, for across (default: the cells of the cross) and for
            page (default: the arenas, as far as they exist)
        reference: the record from which page takes ledger, attacks and speed
        configs: folder of the configs, for page and ledger
        metric: for across, a column of runs.parquet without its prefix (selected_, quarter_, last_)
        freeze: for ledger: keep the origin and the substance of every claim that has an origin in
            RECORDS/origins.json; after its run 'fedsdg verify' names a change

    Example:
        fedsdg render main convergence --summary results/reference/cross-needs --output needs
        fedsdg render page
    """
    pages = [page for one in name for page in _pages(one)]
    folder = output or Path("rendered")
    drawn = figures or folder
    if targets := [output or DOCUMENTS[kind] for kind, _ in pages if kind in DOCUMENTS]:
        require_writable(*targets, kind="file")
    else:
        require_writable(folder, drawn, kind="folder")
    written: list[Path] = []
    for kind, page in pages:
        if kind == "across":
            from fedsdg.analysis.regret import write_across

            arenas = list(experiments or CROSS)
            written += write_across(arenas, records, folder, drawn, metric)
        elif kind == "kernels":
            from fedsdg.analysis.speed import write_kernels

            written += write_kernels(measured, folder / kind, drawn / "roofline")
        elif kind == "throughput":
            from fedsdg.analysis.speed import write_throughput

            written += write_throughput(measured, folder / kind)
        elif kind == "page":
            from fedsdg.analysis.page import write_page

            file = output or DOCUMENTS[kind]
            sources: dict[str, Any] = {"reference": reference, "configs": configs}
            written.append(write_page(records, file, experiments=experiments, **sources))
        elif kind == "ledger":
            written.append(_write_ledger(configs, records, output or DOCUMENTS[kind], freeze))
        else:
            stem = (drawn if kind == "figure" else folder) / page
            stem = claims if kind == "claims" and claims else stem
            written += _write_page(kind, page, summary, stem, partitions)
    for path in written:
        if path.name in ("regret.md", "kernels.md", "throughput.md"):
            print(path.read_text(encoding="utf-8"))
    print("\n".join(map(str, written)))


def _pages(name: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of every page that a word stands for."""
    kinds = {kind: set(declared(f"{kind}s")[f"{kind}s"]) for kind in ("table", "figure")}
    wanted, _, page = name.rpartition(":")
    there = [kind for kind in kinds if page in kinds[kind] and wanted in ("", kind)]
    if not there and name not in OTHERS:
        known = sorted({*kinds["table"], *kinds["figure"], *OTHERS})
        raise ValueError(f"there is no table, figure or page {name!r}{hint(page, known)}")
    yield from [(kind, page) for kind in there] or [(name, name)]


def _write_page(
    kind: str, name: str, summary: Path | None, stem: Path, partitions: Sequence[Path]
) -> list[Path]:
    """Write a table, a figure or the claims of an experiment."""
    if summary is None:
        raise ValueError(
            f"name the record or summary that {name} is made from, such as "
            "--summary results/reference/cross-needs"
        )
    if kind == "table":
        from fedsdg.analysis.tables import write_table

        return write_table(summary, name, stem)
    if kind == "figure":
        from fedsdg.analysis.plots import write_figure

        files = partitions or sorted((summary / "partitions").rglob("*.parquet"))
        return write_figure(summary, name, stem, partitions=files)
    from fedsdg.analysis.claims import write_claims

    return write_claims(summary, stem)


def _write_ledger(configs: Path, records: Path, output: Path, freeze: bool) -> Path:
    """Judge every claim of the specifications by the record, and render the findings."""
    from fedsdg.analysis.findings import (
        primary_comparisons,
        read_findings,
        statements,
        write_findings,
    )
    from fedsdg.analysis.ledger import VERDICTS, read_claims, write_ledger

    if not Path("claims.yaml").is_file():
        raise FileNotFoundError("there is no claims.yaml here; call this in the root of a checkout")
    findings = read_findings("claims.yaml")
    entries = write_ledger("claims.yaml", configs, records, output)
    known = statements(entries, primary_comparisons(records))
    for path in write_findings(Path(), findings, known):
        print(f"{path}: findings rendered")
    counts = {v: sum(entry.verdict == v for entry in entries) for v in VERDICTS}
    print(f"{len(entries)} claims: {', '.join(f'{n} {v}' for v, n in counts.items())}")
    if freeze:
        from fedsdg.analysis.grids import published_grids
        from fedsdg.analysis.ledger.frozen import FROZEN
        from fedsdg.analysis.ledger.frozen import freeze as freeze_origins

        claims = read_claims("claims.yaml", published_grids(configs))
        number = freeze_origins(claims, records)
        print(f"{number} of their origins frozen in {records / FROZEN}")
    return output
