"""What the benchmarks measured on one machine, read from their file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsdg.analysis.names import method_title
from fedsdg.files import read_json

#: Rules whose name as a method says more than the rule does, or that no method uses.
_TITLES = {"fedavg": "Weighted mean", "trimmed-mean": "Trimmed mean"}

#: The codes that are compared, in the order of the columns.
CODES = {
    "reference": "torch reference",
    "plain": "formulas, plainly",
    "numpy": "numpy.median",
    "torch": "torch.median",
    "flower": "Flower",
    "byzfl": "byzfl",
}

Row = Mapping[str, Any]


def rule_title(rule: str) -> str:
    """A rule in print: ``fedavg`` → Weighted mean, ``krum`` → Krum."""
    return _TITLES.get(rule) or method_title(rule)


@dataclass(frozen=True)
class Measurements:
    """Rows as the benchmarks wrote them; `machine` says where they come from."""

    path: Path
    machine: Row
    timings: Sequence[Row]
    accuracy: Sequence[Row]
    bars: Sequence[Row]
    aims: Sequence[Row]
    #: Rounds of whole federations, their aims and bars, files larger than the memory, and
    #: dictionaries of small arrays: the short form measures none of them.
    rounds: Sequence[Row] = ()
    round_aims: Sequence[Row] = ()
    round_bars: Sequence[Row] = ()
    files: Sequence[Row] = ()
    dictionaries: Sequence[Row] = ()

    @classmethod
    def read(cls, path: str | Path) -> Measurements:
        """Raises ``ValueError`` naming the file where a part is missing."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there; make it with: make bench")
        data = read_json(path)
        parts = ("machine", "timings", "accuracy", "bars", "aims")
        if lacking := [part for part in parts if not isinstance(data, dict) or part not in data]:
            raise ValueError(
                f"{path} has no {', '.join(lacking)}: it is no file of measurements; make one "
                f"with: make bench"
            )
        later = ("rounds", "round_aims", "round_bars", "files", "dictionaries")
        more = {part: data.get(part, ()) for part in later}
        return cls(path, *(data[part] for part in parts), **more)

    def suite(self, name: str) -> list[Row]:
        """The timings of one suite."""
        return [row for row in self.timings if row["suite"] == name]

    def ours(self, suite: str) -> list[Row]:
        """The timings of our own code in one suite."""
        return [row for row in self.suite(suite) if row["code"] == "ours"]

    def sizes(self) -> list[tuple[int, int]]:
        """(clients, parameters) of the suite of sizes, by the size of all updates."""
        found = {(row["clients"], row["parameters"]) for row in self.suite("sizes")}
        return sorted(found, key=lambda size: (size[0] * size[1], size))

    @property
    def where(self) -> str:
        """One sentence on the machine, its load and its settings."""
        m = self.machine
        read = m["read_gigabytes_per_second"]
        rate = "" if read["median"] is None else f", memory read at {read['median']:.0f} GB/s"
        if read["median"] is not None and read["high"] > 1.2 * read["low"]:
            rate += f" ({read['low']:.0f} to {read['high']:.0f})"
        kept = all(m["allocator"].values())
        memory = "kept by the allocator" if kept else "as the allocator gives it"
        commit = str(m["commit"])[:8] + (" with changes" if m["dirty"] else "")
        cores = f"{m['threads']} of {m['cores']} cores"
        return f"{m['processor']}, {cores}{rate}; memory {memory}; commit {commit}"

    @property
    def refusals(self) -> int:
        """Measurements beside which other programs worked."""
        return sum(row.get("refused") is not None for row in self.timings)
