"""Commands that gather, keep, check and trace what was run."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedsdg.cli.command import ConfigFiles, File, Folder, NamedFile
from fedsdg.cli.options import answer, leave_out, print_failures, require_writable

if TYPE_CHECKING:
    from fedsdg.experiment.again import Again


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
    from fedsdg.analysis import summarise as analysis

    require_writable(output, kind="file" if succeeded else "folder")
    if succeeded:
        return _require_success(succeeded, output)
    if runs is None:
        raise ValueError("name the folder of the runs with --runs, such as results/runs/smoke")
    wanted, primary, roles = None, [], None
    if laid.config or laid.set or "FEDSDG_CONFIG" in os.environ:
        config = laid.load()
        wanted = config.run_folders()
        primary = [comparison.to_dict() for comparison in config.primary]
        roles = asdict(config.roles)
    analysis.summarise(runs, output, wanted, search, primary, roles)
    return 0


def _require_success(summary: Path, flag: Path) -> int:
    from fedsdg.analysis.summarise import failed_runs
    from fedsdg.files import write_bytes

    if failed := [f"{run}: {error}" for run, error in failed_runs(summary).items()]:
        remedy = "'snakemake --cores all --forcerun summarise_runs'"
        print_failures(failed, f"mend the cause, delete these folders, and run {remedy}")
        return 1
    write_bytes(flag, b"all runs succeeded\n")
    return 0


def record(
    experiment: Sequence[str],
    *,
    merge: bool = False,
    restamp: Annotated[Sequence[str], ("OLD", "NEW")] = (),
) -> None:
    """Keep in results/reference what tables and figures are made from.

    Args:
        experiment: as its config names it: label-skew
        merge: keep the runs of the record that are not here
        restamp: runs recorded at the commit OLD get the address of NEW, which is checked out,
            where 'make gate BASE=OLD' found no difference

    Example:
        fedsdg run --grid smoke
        fedsdg record smoke
    """
    if restamp:
        from fedsdg.experiment.restamping import EVIDENCE, commits
        from fedsdg.experiment.restamping import restamp as restamped

        leave_out("adds computed runs, and --restamp computes none", merge=merge)
        pair = commits(*restamp)
        for name in experiment:
            print("\n".join(restamped(name, *pair, EVIDENCE)))
        return
    require_writable("results/reference", remedy="call it in another folder")
    from fedsdg.analysis.record import keep_record
    from fedsdg.experiment.method_entries import OVERRIDES
    from fedsdg.methods.declared import methods

    def own_training(kind: str) -> frozenset[str]:
        """A plugin's method, whose row is not at hand, may have prescribed any of them."""
        row = methods().get(kind)
        return frozenset([*OVERRIDES, *(row.training if row else ("epochs", "batch_size"))])

    for name in experiment:
        print(keep_record(name, merge=merge, own_training=own_training))


def agree(experiment: Sequence[str], *, json: bool = False) -> None:
    """Say whether primary comparisons come out here as in the record.

    Args:
        experiment: as its config names it: cross-needs
        json: print JSON

    Example:
        fedsdg run --grid cross-needs --jobs 2
        fedsdg agree cross-needs
    """
    from fedsdg.analysis.agreement import agreement, facts

    lines = chain.from_iterable(map(agreement, experiment))
    answer(json, chain.from_iterable(map(facts, experiment)), lines)


def trace(file: NamedFile, *, row: str = "", column: str = "", json: bool = False) -> None:
    r"""From a committed number to its runs, their hashes, and how to make them again.

    Args:
        file: a table of a record (.md, .csv, .tex), the sidecar of a figure (.json), the ledger,
            README.md or docs/findings.md; FILE:LINE names a line of it
        row: label or title of the row, as fedsdg or "FedSDG (fixed)"; id of a claim
        column: heading or csv name, as "IID, half, B"; words in any order
        json: print JSON

    Example:
        fedsdg trace results/reference/cross-needs/groups.md \
          --row fedsdg --column "half, B"
    """
    from fedsdg.analysis.trace import trace as traced
    from fedsdg.experiment.again import again

    number = traced(file, row, column)
    # One command for each experiment, with all of its runs behind the number.
    ways = {
        experiment: again(experiment, runs, Path("config"))
        for experiment, runs in _by("experiment", number["runs"]).items()
    }
    commands = {
        experiment: way and {**asdict(way), "command": way.command}
        for experiment, way in ways.items()
    }
    lines = (f"{name:12s}{text}" for name, text in _lines(number, ways))
    answer(json, {**number, "again": commands}, lines)


def _by(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the runs by what this field of theirs names."""
    values = dict.fromkeys(run[name] for run in runs)
    return {value: [run for run in runs if run[name] == value] for value in values}


def _lines(number: Mapping[str, Any], ways: Mapping[str, Again | None]) -> list[tuple[str, str]]:
    """Return names and texts, as a person reads them."""
    runs = number["runs"]
    where = ", ".join(f"{name} {value}" for name, value in number["where"].items() if value != "")
    same = number["recomputed"] == number["committed"]
    now = "the same" if same else "ANOTHER; see fedsdg verify"
    lines = [
        ("number", f"{number['committed']}, in {number['file']}, {number['line']}"),
        ("is", f"{number['of']}: {_short(number['unrounded'])} for {where}"),
        ("recomputed", f"{number['recomputed']}: {now}"),
        ("by seed", "  ".join(f"{seed}: {_short(v)}" for seed, v in number["seeds"].items())),
    ]
    cells = [{**run, "cell": run["run"].rpartition("/")[0]} for run in runs]
    for folder, group in _by("cell", cells).items():
        seeds = ",".join(str(run["seed"]) for run in group)
        lines.append(("runs", f"{folder}/seed~{{{seeds}}}"))
        lines.append(("config", _hashes(group, "seed", "config_hash", ": ")))
    lines += [
        ("partition", _hashes(runs, "seed", "partition_hash", ": ")),
        ("data", _hashes(runs, "dataset", "data_hash")),
        ("backbone", _hashes(runs, "backbone", "backbone_hash")),
        ("code", "  ".join(dict.fromkeys(str(run["source_hash"])[:12] for run in runs))),
        *(("made", text) for text in dict.fromkeys(_made(run["made"]) for run in runs)),
    ]
    for experiment, way in ways.items():
        if way is None:
            lines.append(("again", f"no config here names the experiment {experiment!r}"))
            continue
        lines.append(("again", way.command))
        if way.differs:
            first = f"{way.differs[0]} (the first of {len(way.differs)})"
            lines.append(("but", f"{first}: so the very runs need the commit above"))
    return lines


def _hashes(runs: Sequence[Mapping[str, Any]], name: str, digest: str, between: str = " ") -> str:
    """Return names of all runs, each once and with the beginning of its hash: "digits efaf8…"."""
    pairs = ((run[name], str(run[digest] or "")[:12] or "(not kept)") for run in runs)
    return "  ".join(dict.fromkeys(f"{value}{between}{text}" for value, text in pairs))


def _short(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _made(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return "neither the record nor a run's folder says where and when"
    commit = f"{facts.get('commit')}{' with changes' if facts.get('dirty') else ''}"
    torch = facts.get("versions", {}).get("torch")
    days = [str(facts[name])[:16] for name in ("first", "last") if name in facts]
    when = " to ".join(days) or "on a day not recorded"
    machine = f"{facts.get('processor')} ({facts.get('machine')}, {facts.get('device')})"
    return f"{when}, commit {commit}, {machine}, Python {facts.get('python')}, PyTorch {torch}"


def verify(*, sample: Annotated[int, "N", 0] = 1, whole: bool = False, json: bool = False) -> int:
    """Compare all that is committed with the records, and some runs with the code.

    Tables, sidecars of figures, claims, the ledger, and the findings in README and docs.

    Args:
        sample: runs of every arena whose first five rounds are done again, drawn by the hash of
            the commit; 0: none
        whole: of all published runs of the arenas
        json: print JSON

    Example:
        fedsdg verify
    """
    from fedsdg.analysis.verify import verify as verified

    root = Path()
    counts, differences = verified(root, _progress)
    faults = [str(fault) for fault in differences]
    runs: list[dict[str, Any]] = []
    if whole or sample:
        from fedsdg.experiment.rechecking import rechecked
        from fedsdg.files import provenance

        salt = str(provenance()["commit"])
        for arena, agreement in rechecked(root, None if whole else sample, salt):
            _progress(f"{arena}: {agreement.sentence}")
            runs.append({"arena": arena, "paired": agreement.paired, **asdict(agreement)})
            if agreement.paired is None:
                faults.append(f"results/reference/{arena}, {agreement.run}: {agreement.sentence}")
    lines = [
        f"recomputed and compared: {counts['tables']} tables, {counts['claims']} pages of claims, "
        f"{counts['sidecars']} sidecars of figures, {counts['verdicts']} verdicts, "
        f"{counts['documents']} documents with findings",
        "(of figures the numbers, captions and inputs; not drawn)",
    ]
    if runs:
        how = Counter(run["paired"] for run in runs)
        pairs = f"{how['exactly']} exactly, {how['by federation']} by federation"
        lines.append(f"first rounds of {len(runs)} runs: {pairs}")
    listed = [asdict(fault) for fault in differences]
    answer(json, {"compared": counts, "faults": listed, "runs": runs}, lines)
    if faults and not json:
        for fault in (*faults, f"{len(faults)} places are not what the records give"):
            print(f"fedsdg: error: {fault}", file=sys.stderr)
    return int(bool(faults))


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
