"""Commands that gather, render, keep, trace and check what was run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedsdg.cli.command import Count, Laid, answer, plain_rows, remark, require_writable
from fedsdg.files.places import CROSS, RECORDS, SUMMARY, filled

if TYPE_CHECKING:
    from fedsdg.analysis.provenance import Trace

CLAIMS = Path("claims.yaml")
OTHERS = ("regret", "claims", "documents", "speed", "page")
"""What can be rendered besides tables, figures and metrics of an experiment."""


def summarise(
    *,
    laid: Laid,
    output: Path,
    runs: Path | None = None,
    search: Path | None = None,
    succeeded: Path | None = None,
) -> int:
    """Gather the records of all runs of an experiment.

    Args:
        laid: the config that the options describe
        output: where the summary goes; with --succeeded a file
        runs: folder of the experiment's runs
        search: what `fedsdg search` wrote
        succeeded: gather nothing: fail, naming them, where runs of this summary failed; else write
            OUTPUT

    Example:
        fedsdg summarise --runs results/runs/smoke --output results/summary/smoke
    """
    require_writable(output, kind="file" if succeeded else "folder")
    if succeeded is not None:
        return _require_success(succeeded, output)
    if runs is None:
        raise ValueError("name the folder of the runs with --runs, such as results/runs/smoke")
    from fedsdg.experiment.summary import write_summary

    described = laid.words() or "FEDSDG_CONFIG" in os.environ
    write_summary(runs, output, laid.load() if described else None, search)
    return 0


def _require_success(summary: Path, flag: Path) -> int:
    from fedsdg.analysis.gather import failed_runs
    from fedsdg.files import write_bytes

    failed = failed_runs(summary)
    for run, error in failed.items():
        remark(f"failed: {run}: {error}")
    if failed:
        remark(f"error: {len(failed)} run(s) failed; mend the cause, and delete these folders")
    else:
        write_bytes(flag, b"all runs succeeded\n")
    return int(bool(failed))


def render(
    name: Sequence[str],
    *,
    summary: Path | None = None,
    output: Path | None = None,
    figures: Path | None = None,
    measured: Path = Path(RECORDS, "performance/measured.json"),
    records: Path = Path(RECORDS),
    experiments: Sequence[str] = (),
    metric: str = "accuracy",
    plugin: Sequence[str] = (),
) -> None:
    """Render tables, figures, claims or pages from what has been recorded.

    A name is a table, a figure or a metric (both a table and a figure, if there are both;
    table:NAME or figure:NAME is one of them). `regret` compares the methods of several experiments;
    `claims` judges claims.yaml and, as `documents`, fills in the numbers in README and docs;
    `speed` shows what `make bench` measured; `page` is the results page, one file for a browser.

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
        plugin: Python files or modules that define further metrics

    Example:
        fedsdg render main progress --summary results/reference/cross-needs --output needs
        fedsdg render page
    """
    folder = output or Path("rendered")
    page = output or Path("results/report/index.html")
    # Beside its table a figure would replace the numbers: both write NAME.csv.
    drawn = figures or folder / "figures"
    documents = {"claims", "documents"} & {*name}
    if "page" in name:
        require_writable(page, kind="file")
    elif {*name} - documents:
        require_writable(folder, drawn)
    if documents and not CLAIMS.is_file():
        raise FileNotFoundError(f"there is no {CLAIMS} here; call this in the repository's root")
    from fedsdg.analysis import render
    from fedsdg.analysis.records import record
    from fedsdg.config import plugins

    for place in plugin:
        plugins.load(place)
    pages = [word for word in name if word not in OTHERS]
    for word in pages:
        render.pages_named(word)
    if bool(pages) != (summary is not None):
        raise ValueError(
            "tables and figures are made from a record or summary, and nothing else is: name both, "
            "as in 'fedsdg render main --summary results/reference/cross-needs'"
        )
    tex = not folder.resolve().is_relative_to(Path(RECORDS).resolve())  # Records have none.
    written: list[Path] = []
    if summary is not None:
        written += render.write_shown(record(summary), folder, drawn, pages, tex=tex)
    if "regret" in name:
        opened = [record(records / one) for one in experiments or CROSS]
        written += render.write_regret(opened, folder, drawn, metric, tex=tex)
    if documents:
        from fedsdg.analysis.slots import render_documents

        written += render_documents()
    if "speed" in name:
        from fedsdg.analysis.speed import write_speed

        written += write_speed(measured, folder, figures or folder)
    if "page" in name:
        from fedsdg.analysis.page import arenas, write_page

        shown = [record(records / one) for one in experiments] or arenas(records)
        written.append(write_page(page, shown, CLAIMS if CLAIMS.is_file() else None))
    for path in written:
        if path.name in ("regret.md", "speed.md"):
            print(path.read_text(encoding="utf-8"))
    print("\n".join(map(str, written)))


def record(experiment: Sequence[str], *, merge: bool = False) -> None:
    """Keep in results/reference what tables and figures are made from.

    Args:
        experiment: as its config names it: label-skew
        merge: keep the runs of the record that are not here

    Example:
        fedsdg record smoke
    """
    require_writable(RECORDS, remedy="call it in another folder")
    from fedsdg.analysis.gather import keep_record

    for name in experiment:
        folder = Path(RECORDS) / name
        keep_record(filled(SUMMARY, experiment=name), folder, merge=merge)
        print(folder)


def trace(
    what: str,
    metric: str = "",
    *,
    at: Literal["selected", "end"] = "selected",
    json: bool = False,
) -> None:
    """From a number to its runs, their hashes, and how to make them again.

    Args:
        what: TABLE.csv:LINE of a record or figure, experiment/cell/method, or the id of a claim
        metric: of a method: a metric, or arithmetic as "gate_b - gate_a"
        at: of a method or claim: at the selected round, or at the end of training
        json: print JSON

    Example:
        fedsdg trace results/reference/cross-needs/main.csv:2
        fedsdg trace cross-needs/iid@half/fedsdg accuracy_b --at end
    """
    from fedsdg.analysis import provenance

    number = provenance.trace(Path(), what, metric, at)
    experiments = number.runs.groupby("experiment", sort=False)
    again = {str(experiment): provenance.command(runs) for experiment, runs in experiments}
    facts = {
        "what": number.what,
        "committed": number.committed,
        "seeds": dict(number.seeds),
        "runs": plain_rows(number.runs.drop(columns="config")),
        "again": again,
    }
    answer(json, facts, (f"{key:12}{text}" for key, text in _traced(number, again)))


def _traced(number: Trace, again: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield names and texts, as a person reads them."""
    mean = f"{sum(number.seeds.values()) / len(number.seeds):.6g}" if number.seeds else ""
    yield "number", f"{number.committed or mean}: {number.what}"
    if number.seeds:
        values = [f"{seed}: {value:.6g}" for seed, value in number.seeds.items()]
        yield "by seed", f"{'  '.join(values)}  (mean {mean})"
    for run in number.runs["run"]:
        yield "run", run
    for name in ("config", "partition", "backbone"):
        hashes = number.runs[f"{name}_hash"].dropna().unique()
        yield name, "  ".join(digest[:12] for digest in hashes) or "(none)"
    for run in number.runs.drop_duplicates(["commit", "day", "machine"]).itertuples():
        changes = " with changes" if run.dirty is True else ""
        yield "made", f"{run.day}, commit {run.commit}{changes}, {run.machine}"
    for experiment, line in again.items():
        yield "again", line or f"no config here names the experiment {experiment!r}"


def verify(*, sample: Count | None = None, whole: bool = False, json: bool = False) -> int:
    """Compare all that is committed with the records, and some runs with the code.

    Tables, captions and numbers of figures, claims, documents, and the hashes of records.

    Args:
        sample: runs of every arena whose first five rounds are done again, drawn by the hash of
            the commit
        whole: of all published runs of the arenas
        json: print JSON

    Example:
        fedsdg verify --sample 1
    """
    from fedsdg.analysis.claims import read_claims, undeclared
    from fedsdg.analysis.verification import verify
    from fedsdg.files import provenance

    root = Path()
    compared: Counter[str] = Counter()
    faults = list(dict.fromkeys(verify(root, lambda file: compared.update([file.suffix[1:]]))))
    claims = read_claims() if CLAIMS.is_file() else []
    late, undatable = undeclared(claims, RECORDS, root)
    runs = []
    if sample or whole:
        from fedsdg.experiment.compare import recheck_record

        salt = str(provenance()["commit"])
        for arena, agreement in recheck_record(root, None if whole else sample, salt):
            remark(f"{arena}: {agreement.sentence}")
            runs.append({"arena": arena, "paired": agreement.paired, "run": agreement.sentence})
    faults += late
    faults += [f"{run['arena']}: {run['run']}" for run in runs if run["paired"] is None]
    made = ", ".join(f"{number} {kind}" for kind, number in sorted(compared.items()))
    lines = [f"made again and compared: {made} (of figures numbers and captions; not drawn)"]
    if undatable:
        commits = ", ".join(commit[:10] for commit in undatable)
        lines.append(f"whether claims stood before the runs cannot be told of commits {commits}")
    if runs:
        exactly = sum(run["paired"] == "exactly" for run in runs)
        lines.append(f"first rounds of {len(runs)} runs: {exactly} exactly as recorded")
    facts = {"compared": compared, "faults": faults, "undatable": undatable, "runs": runs}
    answer(json, facts, lines)
    for fault in faults:
        remark(f"error: {fault}")
    return int(bool(faults))
