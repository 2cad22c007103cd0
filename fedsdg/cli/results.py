"""Commands that gather, render, keep, trace and check what was run."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Literal

from fedsdg.cli.command import CORES, Count, File, Laid, Minutes, Words, answer
from fedsdg.errors import remark, require_one_of
from fedsdg.experiment.store import require_writable
from fedsdg.files import provenance, write_bytes
from fedsdg.files.places import ARENAS, RECORDS, SUMMARY, filled

CLAIMS = Path("claims.yaml")
OTHERS = ("regret", "claims", "documents", "speed", "page")
"""What can be rendered besides tables, figures and metrics of an experiment."""


def summarise(
    *, laid: Laid, output: Path, runs: File = None, search: File = None, succeeded: File = None
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
        fedsdg summarise --config smoke --runs results/runs/smoke --output results/summary/smoke
    """
    require_writable(output)
    from fedsdg.analysis.gather import failed_runs
    from fedsdg.experiment.summary import write_summary

    if runs is not None and succeeded is not None:
        raise ValueError("--runs gathers runs and --succeeded gathers nothing: give one of them")
    if runs is not None:
        write_summary(runs, output, laid.load(), search)
        return 0
    if succeeded is None:
        raise ValueError("name the folder of the runs with --runs, such as results/runs/smoke")
    failed = failed_runs(succeeded)
    for run, error in failed.items():
        remark(f"failed: {run}: {error}")
    if failed:
        remark("error: runs failed; mend the cause and give the command again")
    else:
        write_bytes(output, b"all runs succeeded\n")
    return int(bool(failed))


def render(
    name: Words = (),
    *,
    summary: File = None,
    output: File = None,
    figures: File = None,
    measured: Path = Path(RECORDS, "performance/measured.json"),
    records: Path = Path(RECORDS),
    experiments: Words = (),
    metric: str = "accuracy",
    plugin: Words = (),
) -> None:
    """Render tables, figures, claims or pages from what has been recorded.

    A name is a table, a figure or a metric (both a table and a figure, if there are both;
    table:NAME or figure:NAME is one of them). `regret` compares the methods of several experiments;
    `claims` judges claims.yaml and, as `documents`, fills in the numbers in README and docs;
    `speed` shows what `make bench` measured; `page` is the results page, one file for a browser.

    Args:
        name: what to render (default: all tables and figures that the summary shows)
        summary: a record or the summary of an experiment, for tables and figures
        output: folder (default: rendered); for page a file (default: results/report/index.html)
        figures: folder of figures (default: figures, in the tables')
        measured: measurements of speed
        records: folder with a record or summary of each experiment, for regret and page
        experiments: folders of the records, for regret (default: the arenas) and for page
            (default: those of them that exist)
        metric: for regret: in which methods are compared
        plugin: Python files or modules that define further metrics

    Example:
        fedsdg render main progress --summary results/reference/needs --output needs
        fedsdg render page
    """
    folder = output or Path("rendered")
    # Beside its table a figure would replace the numbers: both write NAME.csv.
    drawn = figures or folder / "figures"
    require_writable(folder, *([] if [*name] == ["page"] else [drawn]))
    documents = {"claims", "documents"} & {*name}
    if documents and not CLAIMS.is_file():
        raise FileNotFoundError(f"there is no {CLAIMS} here; call this in the repository's root")
    from fedsdg.analysis import page, render, slots, speed
    from fedsdg.analysis.metrics import METRICS
    from fedsdg.analysis.records import record
    from fedsdg.config import plugins

    for place in plugin:
        plugins.load(place)
    compared = [name for name, one in METRICS.items() if len(one.readings) > 1]
    require_one_of(compared, metric, "--metric: there is no regret in")
    pages = [word for word in name if word not in OTHERS]
    for word in pages:
        render.pages_named(word)
    if bool(pages or not name) != (summary is not None):
        raise ValueError(
            "--summary names the record or summary that tables and figures are made from, and "
            "nothing else is: 'fedsdg render main --summary results/reference/needs'"
        )
    tex = not folder.resolve().is_relative_to(Path(RECORDS).resolve())  # Records have none.
    written: list[Path] = []
    if summary is not None:
        written += render.write_shown(record(summary), folder, drawn, pages or None, tex=tex)
    if "regret" in name:
        opened = [record(records / one) for one in experiments or ARENAS]
        written += render.write_regret(opened, folder, drawn, metric, tex=tex)
    if documents:
        written += slots.render_documents()
    if "speed" in name:
        written += speed.write_speed(measured, folder, figures or folder)
    if "page" in name:
        shown = [record(records / one) for one in experiments] or page.arenas(records)
        target = output or Path("results/report/index.html")
        written.append(page.write_page(target, shown, CLAIMS if CLAIMS.is_file() else None))
    for path in written:
        print(path.read_text(encoding="utf-8") if path.name in ("regret.md", "speed.md") else path)


def record(
    experiment: Words = (),
    *,
    merge: bool = False,
    jobs: Count = CORES,
    minutes: Minutes = None,
) -> None:
    """Keep in results/reference what tables and figures are made from.

    Without an experiment: search, run and keep what is left of config/record.yaml, the list of what
    is published. The same command goes on where it was.

    Args:
        experiment: as its config names it: label-skew
        merge: keep the runs of the record that are not here
        jobs: runs side by side, without an experiment
        minutes: start no run after so many, without an experiment

    Example:
        fedsdg record smoke
        fedsdg record --minutes 50
    """
    require_writable(RECORDS)
    from fedsdg.analysis.gather import keep_record

    for name in experiment:
        folder = Path(RECORDS) / name
        keep_record(filled(SUMMARY, experiment=name), folder, merge=merge)
        print(folder)
    if not experiment:
        from fedsdg.experiment.record import make_record

        time = math.inf if minutes is None else minutes
        for line in make_record(jobs, time):
            print(line, flush=True)


def trace(
    what: str, metric: str = "", *, at: Literal["selected", "end"] = "selected", json: bool = False
) -> None:
    """From a number to its runs, their hashes, and how to make them again.

    Args:
        what: TABLE.csv:LINE of a record or figure, experiment/cell/method, or the id of a claim
        metric: of a method: a metric, or arithmetic as "gate_b - gate_a"
        at: of a method or claim: at the selected round, or at the end of training
        json: print JSON

    Example:
        fedsdg trace results/reference/needs/main.csv:2
        fedsdg trace needs/iid@half/fedsdg accuracy_b --at end
    """
    from fedsdg.analysis import provenance

    number = provenance.trace(Path(), what, metric, at)
    seeds = dict(number.seeds)
    mean = f"{sum(seeds.values()) / len(seeds):.6g}" if seeds else ""
    lines = [f"{number.committed or mean}: {number.what}"]
    lines += [f"seed {seed}: {value:.6g}" for seed, value in seeds.items()]
    columns = ["run", "value", "address", "config_hash", "partition_hash", "backbone_hash"]
    columns += ["commit", "dirty", "day", "machine"]
    runs = number.runs.reindex(columns=columns).dropna(axis="columns", how="all")
    rows = runs.astype(object).where(runs.notna(), None).to_dict("records")
    for row in rows:
        lines.append(str(row["run"]))
        hashes = [f"{key} {str(row[key])[:12]}" for key in columns[2:6] if row.get(key)]
        changes = " with changes" if row.get("dirty") is True else ""
        made = f"made {row['day']} at commit {row['commit']}{changes} on {row['machine']}"
        lines.append("  " + "; ".join([*hashes, made]))
    experiments = number.runs.groupby("experiment", sort=False)
    again = [provenance.command(one) or f"no config names {name!r}" for name, one in experiments]
    facts = {"what": number.what, "committed": number.committed, "seeds": seeds, "runs": rows}
    answer(json, {**facts, "again": again}, [*lines, *again])


def verify(*, sample: int = 0, whole: bool = False, json: bool = False) -> int:
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

    root = Path()
    compared: Counter[str] = Counter()
    faults = list(dict.fromkeys(verify(root, lambda file: compared.update([file.suffix[1:]]))))
    claims = read_claims() if CLAIMS.is_file() else []
    late, undatable = undeclared(claims, RECORDS, root)
    faults += late
    lines = [f"made again and compared: {', '.join(f'{n} {kind}' for kind, n in compared.items())}"]
    lines += [f"whether claims stood before the runs is unknown of {one}" for one in undatable]
    if sample or whole:
        from fedsdg.experiment.recheck import recheck_record

        salt = str(provenance()["commit"])
        for arena, agreement in recheck_record(root, None if whole else sample, salt):
            lines.append(f"{arena}: {agreement.sentence}")
            faults += [lines[-1]] if agreement.paired is None else []
    answer(json, {"compared": compared, "faults": faults, "undatable": undatable}, lines)
    for fault in faults:
        remark(f"error: {fault}")
    return int(bool(faults))
