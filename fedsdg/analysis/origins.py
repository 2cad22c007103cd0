"""Where and with what the runs of a record were made: one entry for each machine and commit.

A grid may be completed in pieces, on several days and machines. ``provenance.json`` of a record is
a list of entries, each with the ``runs`` that it covers: their folders below
``results/runs/{experiment}``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedsdg.files import canonical_json, read_json

FILE = "provenance.json"
#: The addresses that runs of a record were given later (``fedsdg.experiment.restamping``).
STAMPS = "restamped.json"

#: What tells entries apart; the rest of a run's provenance is of that run alone.
_FACTS = (
    "commit",
    "dirty",
    "python",
    "versions",
    "platform",
    "machine",
    "processor",
    "host",
    "cpu_count",
    "device",
    "threads",
    "seeds_together",
)

Origin = dict[str, Any]


def origins_of(folders: Iterable[str], runs_dir: Path) -> list[Origin]:
    """The entries of the runs in these folders of ``runs_dir``, as far as they say anything."""
    found = []
    for folder in folders:
        file = runs_dir / folder / FILE
        if file.is_file():
            facts = read_json(file)
            days = {"first": facts.get("started"), "last": facts.get("finished")}
            days = {name: day for name, day in days.items() if day is not None}
            found.append({**_facts(facts), **days, "runs": [folder]})
    return joined(found)


def read_origins(record: Path, folders: Iterable[str]) -> list[Origin]:
    """The entries of a record, for those of its runs that are in ``folders``.

    A record from before had one entry, of its first run, which stands for all of them.
    """
    file, wanted = record / FILE, sorted(folders)
    if not file.is_file():
        return []
    content = read_json(file)
    if isinstance(content, Mapping):
        return joined([{**_facts(content), "runs": wanted}])
    entries = [
        entry | {"runs": [run for run in entry["runs"] if run in wanted]} for entry in content
    ]
    return [entry for entry in entries if entry["runs"]]


def read_stamps(record: Path, folders: Collection[str]) -> list[dict[str, Any]]:
    """The addresses that runs of a record were given later, for those that are in ``folders``.

    Returns:
        Entries of ``old`` and ``new``, the commits; ``gate``, what shows that both compute alike;
        ``sources``: hash of the code that a run can reach at ``new`` -> folders of runs.
    """
    file = record / STAMPS
    entries: list[dict[str, Any]] = read_json(file) if file.is_file() else []
    for entry in entries:
        staying = {
            source: [run for run in runs if run in folders]
            for source, runs in entry["sources"].items()
        }
        entry["sources"] = {source: runs for source, runs in staying.items() if runs}
    return [entry for entry in entries if entry["sources"]]


def _facts(content: Mapping[str, Any]) -> Origin:
    return {name: content[name] for name in _FACTS if name in content}


def joined(origins: Iterable[Origin]) -> list[Origin]:
    """One entry where all facts are equal, in the order in which they come."""
    found: dict[str, Origin] = {}
    for origin in origins:
        facts = _facts(origin)
        entry = found.setdefault(canonical_json(facts), {**facts, "runs": []})
        entry["runs"] = [*entry["runs"], *origin["runs"]]
        for name, choose in (("first", min), ("last", max)):
            days = [each[name] for each in (entry, origin) if name in each]
            if days:
                entry[name] = choose(days)
    return list(found.values())
