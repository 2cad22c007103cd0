"""Commands that gather, keep, check and trace what was run."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fedsdg.cli.command import ConfigFiles, File, Folder
from fedsdg.cli.options import answer, plain_rows, print_failures, require_writable
from fedsdg.files.places import RECORDS, SUMMARY, filled

if TYPE_CHECKING:
    from fedsdg.analysis.provenance import Trace
    from fedsdg.experiment.again import Again


#: What ``trace --json`` says of every run.
_OF_A_RUN = [
    *("experiment", "cell", "method", "seed", "value", "run"),
    *("config_hash", "partition_hash", "backbone_hash", "source_hash"),
    *("commit", "dirty", "day", "machine"),
]


def summarise(
    laid: ConfigFiles,
    *,
    output: Folder,
    runs: Folder | None = None,
    search: File | None = None,
    succeeded: Folder | None = None,
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
        fedsdg run --grid smoke
        fedsdg summarise --runs results/runs/smoke --output results/summary/smoke
    """
    require_writable(output, kind="file" if succeeded else "folder")
    if succeeded:
        return _require_success(succeeded, output)
    if runs is None:
        raise ValueError("name the folder of the runs with --runs, such as results/runs/smoke")
    from fedsdg.experiment.summary import write_summary

    asked_for = laid.config or laid.set or "FEDSDG_CONFIG" in os.environ
    write_summary(runs, output, laid.load() if asked_for else None, search)
    return 0


def _require_success(summary: Path, flag: Path) -> int:
    from fedsdg.analysis.gather import failed_runs
    from fedsdg.files import write_bytes

    if failed := [f"{run}: {error}" for run, error in failed_runs(summary).items()]:
        remedy = "'snakemake --cores all --forcerun summarise_runs'"
        print_failures(failed, f"mend the cause, delete these folders, and run {remedy}")
        return 1
    write_bytes(flag, b"all runs succeeded\n")
    return 0


def record(experiment: Sequence[str], *, merge: bool = False) -> None:
    """Keep in results/reference what tables and figures are made from.

    Args:
        experiment: as its config names it: label-skew
        merge: keep the runs of the record that are not here

    Example:
        fedsdg run --grid smoke
        fedsdg record smoke
    """
    require_writable(RECORDS, remedy="call it in another folder")
    from fedsdg.analysis.gather import keep_record

    for name in experiment:
        folder = Path(RECORDS) / name
        keep_record(filled(SUMMARY, experiment=name), folder, merge=merge)
        print(folder)


def trace(
    what: Annotated[str, "WHAT"],
    metric: Annotated[str, "METRIC"] = "",
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
    from fedsdg.analysis.provenance import trace as traced
    from fedsdg.experiment.again import again

    number = traced(Path(), what, metric, at)
    # One command for each experiment, with all of its runs behind the number.
    ways = {
        str(experiment): again(str(experiment), plain_rows(runs), Path("config"))
        for experiment, runs in number.runs.groupby("experiment", sort=False)
    }
    commands = {
        experiment: way and {**asdict(way), "command": way.command}
        for experiment, way in ways.items()
    }
    runs = plain_rows(number.runs.reindex(columns=_OF_A_RUN))
    facts = {**vars(number), "seeds": dict(number.seeds), "runs": runs, "again": commands}
    answer(json, facts, (f"{name:12s}{text}" for name, text in _lines(number, ways)))


def _lines(number: Trace, ways: Mapping[str, Again | None]) -> Iterator[tuple[str, str]]:
    """Yield names and texts, as a person reads them."""
    runs, seeds = number.runs, number.seeds
    mean = f"{sum(seeds.values()) / len(seeds):.6g}" if seeds else ""
    yield "number", f"{number.committed or mean}: {number.what}".removeprefix(": ")
    if seeds:
        values = "  ".join(f"{seed}: {value:.6g}" for seed, value in seeds.items())
        yield "by seed", f"{values}  (mean {mean})"
    rows = runs.groupby(runs["run"].str.rpartition("/")[0], sort=False)
    for folder, group in rows:
        yield "runs", f"{folder}/seed~{{{','.join(map(str, group['seed']))}}}"
        if seeds and len(rows) > 1:
            yield "values", "  ".join(f"{run.seed}: {run.value:.6g}" for run in group.itertuples())
        yield "config", _hashes(group, "config_hash")
    yield "partition", _hashes(runs, "partition_hash")
    for name in ("backbone", "source"):
        digests = runs[f"{name}_hash"].dropna().unique()
        yield name, "  ".join(digest[:12] for digest in digests) or "(none)"
    for run in runs.drop_duplicates(["commit", "day", "machine"]).itertuples():
        changes = " with changes" if run.dirty is True else ""
        yield "made", f"{run.day}, commit {run.commit}{changes}, {run.machine}"
    for experiment, way in ways.items():
        if way is None:
            yield "again", f"no config here names the experiment {experiment!r}"
            continue
        yield "again", way.command
        if way.differs:
            first = f"{way.differs[0]} (the first of {len(way.differs)})"
            yield "but", f"{first}: so the very runs need the commit above"


def _hashes(runs: Any, name: str) -> str:
    """Return seeds with the beginning of their hashes: "3: efaf8…  4: …"."""
    pairs = zip(runs["seed"], runs[name], strict=True)
    return "  ".join(dict.fromkeys(f"{seed}: {str(digest)[:12]}" for seed, digest in pairs))


def verify(*, sample: Annotated[int, "N", 0] = 0, whole: bool = False, json: bool = False) -> int:
    """Compare all that is committed with the records, and some runs with the code.

    Tables, captions and numbers of figures, claims, documents, and the hashes of records.

    Args:
        sample: runs of every arena whose first five rounds are done again, drawn by the hash of
            the commit
        whole: of all published runs of the arenas
        json: print JSON

    Example:
        fedsdg verify
        fedsdg verify --sample 1
    """
    from fedsdg.analysis.claims import read_claims, undeclared
    from fedsdg.analysis.verification import verify as verified

    root = Path()
    counts: Counter[str] = Counter()
    folders = set[Path]()

    def count(file: Path) -> None:
        counts[file.suffix.removeprefix(".")] += 1
        if file.parent not in folders:
            _progress(str(file.parent))
        folders.add(file.parent)

    faults = list(dict.fromkeys(verified(root, count)))
    claims = read_claims() if Path("claims.yaml").is_file() else []
    late, unknown = undeclared(claims, RECORDS, root)
    faults += late
    runs = _rechecked(root, None if whole else sample) if whole or sample else []
    faults += [
        f"{RECORDS}/{run['arena']}, {run['run']}: {run['sentence']}"
        for run in runs
        if run["paired"] is None
    ]
    made = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
    lines = [f"made again and compared: {made} (of figures numbers and captions; not drawn)"]
    if unknown:
        commits = ", ".join(commit[:10] for commit in unknown)
        why = "not in this clone, or older than the form of claims.yaml"
        lines.append(f"whether claims stood before the runs cannot be told of {commits}: {why}")
    if runs:
        how = Counter(run["paired"] for run in runs)
        pairs = f"{how['exactly']} exactly, {how['by federation']} by federation"
        lines.append(f"first rounds of {len(runs)} runs: {pairs}")
    facts = {"compared": counts, "faults": faults, "undatable": unknown, "runs": runs}
    answer(json, facts, lines)
    if faults and not json:
        for fault in (*faults, f"{len(faults)} places are not what the records give"):
            print(f"fedsdg: error: {fault}", file=sys.stderr)
    return int(bool(faults))


def _rechecked(root: Path, number: int | None) -> list[dict[str, Any]]:
    """Return how runs of the arenas agree whose first rounds are done again; None: all runs."""
    from fedsdg.experiment.rechecking import rechecked
    from fedsdg.files import provenance

    runs = []
    for arena, agreement in rechecked(root, number, str(provenance()["commit"])):
        _progress(f"{arena}: {agreement.sentence}")
        facts = {"sentence": agreement.sentence, "paired": agreement.paired}
        runs.append({"arena": arena, **facts, **asdict(agreement)})
    return runs


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
