"""Give the runs of a record the address that another commit's code has, where both compute alike.

An edit that changes no result changes addresses nevertheless, so that recorded runs would be made
again. Where ``make gate`` finds no difference between two commits, runs that were recorded at the
first are what the second would compute: the new address is kept beside the old one, together with
both commits and what the gate said. A run is covered where the gate ran its method (or another of
the same parts) on the same path, and each condition and each setting that is a word on that path;
rounds, seeds and rates do not matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedsdg.analysis.record import STAMPS, read_origins, read_stamps, write_record_hashes
from fedsdg.analysis.summarise import read_summary
from fedsdg.experiment.conditions import parse_conditions
from fedsdg.experiment.reach import code_hash
from fedsdg.experiment.sections import TrainingConfig
from fedsdg.files import PACKAGE, git, read_json, write_json
from fedsdg.files.places import RECORD, filled
from fedsdg.methods.chosen import name_of
from fedsdg.methods.plugins import CHOICES, find_row, offered_choices
from fedsdg.parts import declared

#: Where the gate leaves what it found.
EVIDENCE = Path(".fedsdg/gate/evidence.json")


@dataclass(frozen=True)
class Kind:
    """What the code behind a run is chosen by.

    ``parts``: rule, terms and personalisation. ``path``: kernel, precision, device, and what of the
    model is trained. ``meets``: conditions, and settings that are words.
    """

    method: str
    parts: tuple[str, ...]
    path: tuple[str, ...]
    meets: frozenset[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain types, ready for JSON; ``kind_from`` reads it back."""
        return {**asdict(self), "meets": sorted(self.meets)}


class Evidence(NamedTuple):
    """What the gate said, a line for each run, and the kinds of those that came out the same."""

    lines: list[str]
    kinds: list[Kind]


def kind_from(said: Mapping[str, Any]) -> Kind:
    """The kind that ``to_dict`` wrote."""
    parts, path = tuple(said["parts"]), tuple(said["path"])
    return Kind(said["method"], parts, path, frozenset(said["meets"]))


def kind_of(config: Mapping[str, Any], seeds: int = 1) -> Kind:
    """The kind of a run.

    Args:
        config: As its ``result.json`` has it.
        seeds: How many were trained in one pass.
    """
    keys = declared(TrainingConfig)
    earlier = {key: one.absent.value for key, one in keys.items() if one.absent is not None}
    training = {**earlier, **config["training"]}
    path = [str(training.pop(key)) for key in ("kernel", "precision", "device")]
    path.append(config.get("trainable", "adapters"))
    meets = set()
    for name, given in config.get("conditions", {}).items():
        meets.add(f"{name} {given['type']}" if name == "attack" else name)
    for given in (training, config.get("adapters", {}), config["parameters"]):
        meets |= {f"{key}: {word}" for key, word in given.items() if isinstance(word, str | bool)}
    if seeds > 1:
        meets.add("seeds together")
    row = None if "plugin" in config else find_row(config["method"], None)
    parts = (row.rule, *row.terms, row.personalisation) if row else ()
    return Kind(config["method"], parts, tuple(path), frozenset(meets))


def lacking(run: Kind, gate: Iterable[Kind]) -> list[str]:
    """What of a run the gate did not run on its path; nothing where it is covered."""
    alike = [kind for kind in gate if kind.path == run.path]
    if not alike:
        return [f"the path {', '.join(run.path)}"]
    methods = {(kind.method, kind.parts) for kind in alike}
    if not any(run.method == method or run.parts == parts for method, parts in methods):
        return [f"the method {run.method!r}"]
    return sorted(run.meets - frozenset().union(*(kind.meets for kind in alike)))


def commits(old: str, new: str) -> tuple[str, str]:
    """The whole names of two commits, of which the second is that of the code at hand.

    Raises:
        ValueError: There is no such commit, or the code at hand is not the second.
    """
    found = [git("rev-parse", "--verify", f"{name}^{{commit}}") for name in (old, new)]
    for name, commit in zip((old, new), found, strict=True):
        if commit is None:
            raise ValueError(f"there is no commit {name!r} here; name two commits of this checkout")
    if git("diff", "--stat", str(found[1]), "--", str(PACKAGE)):
        raise ValueError(f"the code here is not that of {new!r}; check it out, without changes")
    return str(found[0]), str(found[1])


def restamp(
    experiment: str, old: str, new: str, evidence: Path, results: Path = Path("results")
) -> list[str]:
    """Write the addresses that the runs of a record have with the code at hand.

    Args:
        experiment: Whose record.
        old: The commit at which runs were recorded, or to which they were stamped before.
        new: The commit of the code at hand; see ``commits``.
        evidence: What ``make gate`` wrote.
        results: Where the records lie.

    Returns:
        A sentence for each commit whose runs are not stamped, and one for those that are.

    Raises:
        FileNotFoundError: There is no such record, or no evidence.
        ValueError: The evidence is of other commits or shows a difference, or a run is not covered.
    """
    record = results / filled(RECORD, experiment=experiment).relative_to("results")
    if not (record / "runs.parquet").is_file():
        raise FileNotFoundError(f"there is no record of {experiment!r} in {record}")
    gate = _read_evidence(evidence, old, new)
    done = {run.folder: run for run in read_summary(record) if run.row["status"] == "ok"}
    earlier = read_stamps(record, done)
    before = [one["sources"].values() for one in earlier if one["new"] == old]
    stamped = {folder for sources in before for folders in sources for folder in folders}
    sources: dict[str, list[str]] = {}
    sentences = []
    for origin in read_origins(record, done):
        folders = [folder for folder in origin["runs"] if folder in done]
        at_old = origin.get("commit") == old and origin.get("dirty") is False
        chosen = folders if at_old else [folder for folder in folders if folder in stamped]
        if left := len(folders) - len(chosen):
            commit = (origin.get("commit") or "")[:12] or "an unknown commit"
            changed = " with changes" if origin.get("dirty") else ""
            sentences.append(f"{experiment}: {left} runs of {commit}{changed} keep their addresses")
        seeds = len(origin.get("seeds_together", [0]))
        for folder in chosen:
            config = json.loads(done[folder].row["config"])
            _require_covered(f"{experiment}/{folder}", kind_of(config, seeds), gate)
            sources.setdefault(_source_of(config), []).append(folder)
    if sources:
        entry = {"old": old, "new": new, "gate": gate.lines, "sources": sources}
        kept = [one for one in earlier if (one["old"], one["new"]) != (old, new)]
        write_json(record / STAMPS, [*kept, entry])
        write_record_hashes(record)
        count = sum(map(len, sources.values()))
        sentences.append(f"{experiment}: {count} runs have the address of {new[:12]} as well")
    return sentences


def _read_evidence(file: Path, old: str, new: str) -> Evidence:
    """What the gate found of the two commits, if it was no difference."""
    if not file.is_file():
        raise FileNotFoundError(
            f"there is no evidence in {file} that {old[:12]} and {new[:12]} compute alike; run "
            f"'make gate BASE={old[:12]}' first"
        )
    said = read_json(file)
    if (said["old"], said["new"]) != (old, new):
        raise ValueError(
            f"the evidence in {file} is of {said['old'][:12]} and "
            f"{(said['new'] or '')[:12] or 'changed files'}, not of {old[:12]} and {new[:12]}; run "
            f"'make gate BASE={old[:12]}' on {new[:12]} without changes"
        )
    if said["different"]:
        raise ValueError(
            f"by the evidence in {file} {old[:12]} and {new[:12]} do not compute alike: "
            f"{said['different'][0]}"
        )
    return Evidence(said["lines"], [kind_from(kind) for kind in said["same"]])


def _require_covered(run: str, kind: Kind, gate: Evidence) -> None:
    if lacks := lacking(kind, gate.kinds):
        raise ValueError(
            f"{run} is not covered by the gate, which did not run {lacks[0]} on its path; add that "
            "to a grid of the gate, or leave this experiment under its old address"
        )


def _source_of(config: Mapping[str, Any]) -> str:
    """The hash of the code that a recorded run would reach here."""
    given = config.get("conditions", {})
    if "plugin" in config or "borrowed" in config or "plugin" in given.get("attack", {}):
        raise ValueError(
            f"a run of {config['method']!r} takes code from a plugin, of which the gate knows "
            "nothing; leave this experiment under its old address"
        )
    training = [offered_choices(key)[name_of(config["training"][key])] for key in CHOICES]
    return code_hash(find_row(config["method"], None), parse_conditions(given), training)
