"""Commands that go from what is committed to what was run, and back."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsdg.cli.command import Command
from fedsdg.cli.options import add_json_option, say_json

if TYPE_CHECKING:
    from fedsdg.experiment.again import Again


def trace(arguments: argparse.Namespace) -> int:
    """From a committed number to its runs, their hashes, and how to make them again."""
    from fedsdg.analysis.trace import trace as traced
    from fedsdg.experiment.again import again

    number = traced(arguments.file, arguments.row, arguments.column)
    # One command for each experiment, with all of its runs behind the number.
    ways = {
        experiment: again(experiment, runs, Path(arguments.configs))
        for experiment, runs in _grouped(number["runs"], lambda run: run["experiment"]).items()
    }
    if arguments.json:
        again_facts = {
            experiment: way and {**asdict(way), "command": way.command}
            for experiment, way in ways.items()
        }
        say_json({**number, "again": again_facts})
        return 0
    for name, text in _lines(number, ways):
        print(f"{name:12s}{text}")
    return 0


def _grouped(
    runs: Sequence[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], str]
) -> dict[str, list[Mapping[str, Any]]]:
    groups = defaultdict(list)
    for run in runs:
        groups[key(run)].append(run)
    return groups


def _trace_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "file",
        help="a table of a record (.md, .csv, .tex), the sidecar of a figure (.json), the ledger, "
        "README.md or docs/findings.md; FILE:LINE names a line of it",
    )
    sub.add_argument(
        "--row",
        default="",
        help='label or title of the row, as fedsdg or "FedSDG (half)"; id of a claim',
    )
    sub.add_argument(
        "--column", default="", help='heading or csv name, as "IID, half, B"; words in any order'
    )
    sub.add_argument("--configs", default="config", help="their folder (default: %(default)s)")
    add_json_option(sub)


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
    for folder, group in _grouped(runs, lambda run: run["run"].rpartition("/")[0]).items():
        seeds = ",".join(str(run["seed"]) for run in group)
        lines.append(("runs", f"{folder}/seed~{{{seeds}}}"))
        lines.append(("config", _hashes(group, "config_hash")))
    lines += [
        ("partition", _hashes(runs, "partition_hash")),
        ("data", _each(runs, "dataset", "data_hash")),
        ("backbone", _each(runs, "backbone", "backbone_hash")),
        ("code", ", ".join({str(run["source_hash"])[:12]: None for run in runs})),
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


def _hashes(runs: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the beginning of a hash for each seed, each once."""
    return "  ".join({f"{run['seed']}: {str(run[name])[:12]}": None for run in runs})


def _short(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _each(runs: Sequence[Mapping[str, Any]], name: str, digest: str) -> str:
    """Return "digits efaf81ffb1c4" of all runs, each once."""
    pairs = {(run[name], run[digest]): None for run in runs}
    return ", ".join(
        f"{value} {'(hash not kept)' if of is None else of[:12]}" for value, of in pairs
    )


def _made(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return "neither the record nor a run's folder says where and when"
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
    from fedsdg.analysis.verify import verify as verified

    root = Path()
    counts, differences = verified(root, _progress)
    faults = [str(fault) for fault in differences]
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
        listed = [asdict(fault) for fault in differences]
        said = {"compared": counts, "faults": listed, "runs": runs}
        say_json(said)
        return 1 if faults else 0
    print(
        f"recomputed and compared: {counts['tables']} tables, {counts['claims']} pages of claims, "
        f"{counts['sidecars']} sidecars of figures, {counts['verdicts']} verdicts, "
        f"{counts['documents']} documents with findings"
    )
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
