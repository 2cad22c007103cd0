"""Commands that go from what is committed to what was run, and back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsdg.cli.command import Command
from fedsdg.cli.options import add_json_option, say_json

if TYPE_CHECKING:
    from fedsdg.analysis.tracing import Trace
    from fedsdg.experiment.again import Again


def trace(arguments: argparse.Namespace) -> int:
    """From a number in a table to its runs, their hashes, and how to make them again."""
    from fedsdg.analysis.tracing import trace as traced
    from fedsdg.experiment.again import again

    found = traced(arguments.file, arguments.row, arguments.column)
    ways = {
        experiment: again(experiment, [*runs], Path(arguments.configs))
        for experiment, runs in groupby(found.runs, key=lambda run: run["experiment"])
    }
    if arguments.json:
        facts = asdict(found)
        facts["again"] = {
            experiment: way and {**asdict(way), "command": way.command}
            for experiment, way in ways.items()
        }
        say_json(facts)
        return 0
    for name, text in _lines(found, ways):
        print(f"{name:12s}{text}")
    return 0


def _trace_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "file", help="a table of a record (.md, .csv, .tex), or the sidecar of a figure (.json)"
    )
    sub.add_argument(
        "--row", default="", help='label or title of the row, as fedsdg or "FedSDG (half)"'
    )
    sub.add_argument(
        "--column", default="", help='heading or csv name, as "IID, half, B"; words in any order'
    )
    sub.add_argument("--configs", default="config", help="their folder (default: %(default)s)")
    add_json_option(sub)


def _lines(found: Trace, ways: Mapping[str, Again | None]) -> list[tuple[str, str]]:
    """Names and texts, as a person reads them."""
    where = ", ".join(f"{name} {value}" for name, value in found.where.items() if value != "")
    same = "the same" if found.recomputed == found.committed else "ANOTHER; see fedsdg verify"
    alone = [f"{seed}: {_short(value)}" for seed, value in found.seeds.items()]
    lines = [
        ("number", f"{found.committed}, in {found.file}, {found.line}"),
        ("is", f"{found.of}: {_short(found.unrounded)} for {where}"),
        ("recomputed", f"{found.recomputed}: {same}"),
        ("by seed", "  ".join(alone)),
    ]
    for folder, group in groupby(found.runs, key=lambda run: run["run"].rpartition("/")[0]):
        mine = [*group]
        seeds = ",".join(str(run["seed"]) for run in mine)
        lines.append(("runs", f"{folder}/seed~{{{seeds}}}"))
        lines.append(("config", _hashes(mine, "config_hash")))
    lines += [
        ("partition", _hashes(found.runs, "partition_hash")),
        ("data", _each(found.runs, "dataset", "data_hash")),
        ("backbone", _each(found.runs, "backbone", "backbone_hash")),
        ("code", ", ".join({str(run["source_hash"])[:12]: None for run in found.runs})),
        *(("made", text) for text in dict.fromkeys(_made(run["made"]) for run in found.runs)),
    ]
    for experiment, way in ways.items():
        if way is None:
            lines.append(("again", f"no config here names the experiment {experiment!r}"))
            continue
        lines.append(("again", way.command))
        if way.differs:
            lines.append(
                (
                    "but",
                    f"{way.differs[0]} (the first of {len(way.differs)}): so the very runs "
                    "need the commit above",
                )
            )
    return lines


def _hashes(runs: Sequence[Mapping[str, Any]], name: str) -> str:
    """The beginning of a hash for each seed, each once."""
    return "  ".join({f"{run['seed']}: {str(run[name])[:12]}": None for run in runs})


def _short(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _each(runs: Sequence[Mapping[str, Any]], name: str, digest: str) -> str:
    """ "digits efaf81ffb1c4" of all runs, each once."""
    pairs = {(run[name], run[digest]): None for run in runs}
    return ", ".join(f"{one} {str(of)[:12]}" for one, of in pairs)


def _made(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return "the record does not say where and when"
    commit = f"{facts.get('commit')}{' with changes' if facts.get('dirty') else ''}"
    torch = facts.get("versions", {}).get("torch")
    days = [str(facts[name])[:16] for name in ("first", "last") if name in facts]
    when = " to ".join(days) or "on a day not recorded"
    machine = f"{facts.get('processor')} ({facts.get('machine')}, {facts.get('device')})"
    return f"{when}, commit {commit}, {machine}, Python {facts.get('python')}, PyTorch {torch}"


def verify(arguments: argparse.Namespace) -> int:
    """Compare all that is committed with the records, and some runs with the code.

    Tables, sidecars of figures, claims, the ledger, and the numbers in README and findings.
    """
    if arguments.sample < 0:
        raise ValueError(f"--sample is {arguments.sample}, but must be 0 or more")
    from fedsdg.analysis.recomputing import recompute

    root = Path()
    found = recompute(root, _progress)
    faults = [str(fault) for fault in found.faults]
    runs: list[dict[str, Any]] = []
    if arguments.whole or arguments.sample:
        from fedsdg.experiment.rechecking import rechecked
        from fedsdg.files import provenance

        salt = str(provenance()["commit"])
        number = None if arguments.whole else arguments.sample
        for arena, agreement in rechecked(root, number, salt):
            _progress(f"{arena}: {agreement.sentence}")
            runs.append({"arena": arena, "paired": agreement.paired, **asdict(agreement)})
            if agreement.paired is None:
                faults.append(f"results/reference/{arena}, {agreement.run}: {agreement.sentence}")
    if arguments.json:
        counts = {name: n for name, n in asdict(found).items() if name != "faults"}
        listed = [asdict(fault) for fault in found.faults]
        said = {"compared": counts, "faults": listed, "runs": runs}
        say_json(said)
        return 1 if faults else 0
    print(f"recomputed and compared: {found.counts}")
    print("(of figures the numbers, captions and inputs; not drawn)")
    if runs:
        exactly = sum(run["paired"] == "exactly" for run in runs)
        paired = sum(run["paired"] == "by federation" for run in runs)
        print(f"first rounds of {len(runs)} runs: {exactly} exactly, {paired} by federation")
    for fault in faults:
        print(f"fedsdg: error: {fault}", file=sys.stderr)
    if faults:
        print(f"fedsdg: error: {len(faults)} places are not what the records give", file=sys.stderr)
    return 1 if faults else 0


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _verify_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--sample",
        type=int,
        default=1,
        metavar="N",
        help="runs of every arena whose first five rounds are done again, drawn by the hash of the "
        "commit (default: %(default)s; 0: none)",
    )
    sub.add_argument("--whole", action="store_true", help="of all published runs of the arenas")
    add_json_option(sub)


_TRACE = """\
fedsdg trace results/reference/needs/groups.md \\
  --row fedsdg --column "needs, B"
"""
COMMANDS = (
    Command(trace, _trace_options, example=_TRACE.rstrip()),
    Command(verify, _verify_options, example="fedsdg verify"),
)
