"""Does this tree compute what another commit computes, bit for bit, on this machine?

    python -m tests.tools.same_bytes main        (make gate BASE=main; FEW=1: fifteen runs)

Both do the same small grids, three rounds a run, one thread each: the methods of the first arena,
some of them by PyTorch alone, every other method, every condition, every attack, full training,
and runs that are stopped after their first round and go on. Each with its own
configs and its own sources, called with its own command line. A run is known by what it is, not by
its folder. Compared are the tables of rounds and clients, `last`, `selected`
and the bytes of result.json, and the hashes of final models, rule's state and bank. Hashes of
configs and sources may differ.

What commits on the way renamed, added or dropped on purpose, which settings or which call one side
alone needs, and where the sides may differ, stands in same_bytes.yaml.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml

from benchmarks.compare import checked_out

ROOT = Path(__file__).parents[2]
ALLOWED = Path(__file__).with_suffix(".yaml")
TABLES = ("rounds", "clients")
FACTS = ("last", "selected", "bytes_up", "bytes_down", "client_storage_bytes")
#: The most by which the first round of an exception may differ.
FIRST_ROUND = 1e-6
ROUNDS = 3
#: What an entry of same_bytes.yaml says of one side alone.
SIDED = ("over", "call")
#: What makes a run the run it is, in `result.json`.
IDENTITY = ("experiment", "dataset", "skew", "label", "seed")
#: How a grid is done, after `python -m`; a list stands for a word in braces.
CALL = ("fedsdg", "run", "--config", "{files}", "--grid", "{options}", "--set", "{settings}")
#: A backbone in seconds: what it knows matters to nobody here.
BACKBONE = ("images=400", "epochs=1", "held_out=100")
SMALL = (
    f"federation.rounds={ROUNDS}",
    f"federation.evaluate_every={ROUNDS}",
    *(f"backbones.letters.{few}" for few in BACKBONE),
    "tables=[main]",
    "figures=[partition]",
)
ATTACKS = {
    "gaussian": {"scale": 1},
    "sign-flip": {"scale": 3},
    "scaling": {"scale": 10},
    "label-flip": {},
    "alie": {},
    "inner-product": {},
    "replacement": {},
    "replacement-blind": {},
    "corruption": {},
}


class Grid(NamedTuple):
    """Configs of a checkout's own, what is laid over them, and how the command is called.

    ``stopped``: after the first round that is done, and then taken up again.
    """

    name: str
    files: Sequence[str]
    over: Mapping[str, Any] = {}
    options: Sequence[str] = ()
    stopped: bool = False


ONE = {"skews": ["dirichlet~0.3"], "seeds": [0]}
GRIDS = (
    Grid("arena", ["config"], {**ONE, "experiment": "arena"}),
    Grid(
        "torch",
        ["config"],
        {
            **ONE,
            "experiment": "torch",
            "training": {"kernel": "torch"},
            "methods": ["fedsdg", "fedavg", "fine-tune"],
        },
    ),
    Grid("every-method", ["config", "every-method"]),
    Grid("every-condition", ["config", "every-condition"]),
    # Settings that are words and that no other grid has.
    Grid(
        "words",
        ["config"],
        {
            **ONE,
            "experiment": "words",
            "scenarios": {"half": {"conditions": {"label_conflict": {"share": 0.5}}}},
            "methods": [
                {"type": "fedsdg", "name": "fedsdg-keep", "private_optimiser": "keep"},
                {"type": "fedsa-lora", "name": "fedsa-lora-head", "head": "private"},
            ],
        },
    ),
    # Every row of the cross, not tuned.
    Grid("cross", ["config", "cross-needs"], {"experiment": "cross", "seeds": [3], "tuned": None}),
    Grid("full", ["config", "extended/full"], {**ONE, "experiment": "full"}),
    Grid(
        "attacks",
        ["config"],
        {
            **ONE,
            "experiment": "attacks",
            "scenarios": {
                name: {"conditions": {"attack": {"type": name, "share": 0.2, **given}}}
                for name, given in ATTACKS.items()
            },
            "methods": ["fedsdg", "fedavg-uniform", "coordinate-median"],
        },
    ),
    Grid(
        "resumed",
        ["config"],
        {
            **ONE,
            "experiment": "resumed",
            "checkpoint_seconds": 0,
            "methods": ["fedsdg", "scaffold", "ditto", "cgsv"],
        },
        stopped=True,
    ),
)
FEW = Grid(
    "few",
    ["config"],
    {
        **ONE,
        "experiment": "few",
        "scenarios": {
            "none": {},
            "sign-flip": {"conditions": {"attack": {"type": "sign-flip", "share": 0.2}}},
            "conflict": {"conditions": {"label_conflict": {"share": 0.5, "classes": 4}}},
        },
        "methods": ["fedsdg", "fedavg", "fine-tune", "scaffold", "krum"],
    },
)


class Broken(RuntimeError):
    """A checkout cannot do a grid."""


def compute(
    grid: Grid,
    checkout: Path,
    work: Path,
    over: Mapping[str, Any] | None = None,
    call: Sequence[str] = CALL,
    names: Mapping[str, str] | None = None,
) -> None:
    """Do a grid with the sources and configs of a checkout, in a folder that is made anew.

    Args:
        grid: The grid.
        checkout: A working tree.
        work: Where the grid runs and leaves its results.
        over: Settings laid over the grid's own.
        call: As ``CALL``, in the words of the checkout's command line.
        names: What configs are called in the checkout, where not as here.

    Runs that fail leave a result that says so, which ``differences`` names.

    Raises:
        Broken: The checkout cannot do the grid, and no failed run says why.
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    configs = [(names or {}).get(name, name) for name in grid.files]
    files = [checkout / "config" / f"{name}.yaml" for name in configs]
    for name, laid in ((grid.name, grid.over), ("over", over or {})):
        files.append(work / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump(dict(laid)), encoding="utf-8")
    lists = {"{files}": [*map(str, files)], "{options}": grid.options, "{settings}": SMALL}
    command = [sys.executable, "-m", *(word for one in call for word in lists.get(one, [one]))]
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    log = work / f"{grid.name}.log"
    with log.open("w", encoding="utf-8") as said:
        if grid.stopped:
            _stop_after_a_checkpoint(command, work, environment, said)
        done = subprocess.run(command, cwd=work, env=environment, stdout=said, stderr=said)
    if done.returncode and not any(map(_failure, runs_below(work / "results").values())):
        lines = log.read_text(encoding="utf-8").strip().splitlines()
        raise Broken(f"{grid.name} in {checkout}: {lines[-1] if lines else 'no word'}; see {log}")


def _with_checkpoint(folder: Path) -> set[str]:
    """Runs with a checkpoint; none where one vanishes while it is looked at: its run has ended."""
    try:
        return {found.parent.name for found in folder.glob("*/round~*")}
    except FileNotFoundError:
        return set()


def _stop_after_a_checkpoint(
    command: Sequence[str], work: Path, environment: Mapping[str, str], said: Any
) -> None:
    """Each run of the grid once: TERM as soon as it has a checkpoint, and on with the next call."""
    stopped: set[str] = set()
    folder = work / ".fedsdg/checkpoints"
    while True:
        process = subprocess.Popen(command, cwd=work, env=environment, stdout=said, stderr=said)
        while process.poll() is None:
            there = _with_checkpoint(folder) - stopped
            if there:
                stopped |= there
                process.send_signal(signal.SIGTERM)
                process.wait()
            time.sleep(0.02)  # who looks all the time takes a core of those that train
        if process.returncode != 128 + signal.SIGTERM:
            break
    if not stopped:
        raise Broken("no run came to a checkpoint before its end")


def allowed(base: str, file: Path = ALLOWED) -> dict[str, Any]:
    """What same_bytes.yaml allows against a commit: the entries of commits that it lacks.

    Args:
        base: The commit.
        file: A list of entries, the oldest first. Each has ``commit`` and ``reason``, and of these
            what applies:
            ``renamed``: table -> {old column: new}, and ``methods`` -> {old name of a row: new}.
            ``added``, ``dropped``: table -> columns that one side alone has.
            ``files``: config here -> what it is called at the base.
            ``over``, ``call``: ``before`` or ``after`` -> settings laid over the configs of that
            side alone, and how a grid is done there (see ``CALL``).
            ``runs``: a pattern of the names of runs that differ, with ``difference`` (of the first
            round, at most ``FIRST_ROUND``), ``columns`` (those that a mended fault changes, in
            every round; ``all`` where all that follows does), both (these columns, in every round,
            by no more than that) or ``new: true`` (runs of a row that the base lacks, which are
            not compared).

    Returns:
        The same keys, joined, and ``exceptions``, the entries with ``runs``. Of two calls the
        older one counts.

    Raises:
        ValueError: An entry does not say what it has to.
    """
    found: dict[str, Any] = {key: {} for key in ("renamed", "added", "dropped", "files", *SIDED)}
    found["exceptions"] = []
    for entry in yaml.safe_load(file.read_text(encoding="utf-8")) or []:
        _require_sound(entry, file)
        if _has(base, str(entry["commit"])):
            continue
        if "runs" in entry:
            found["exceptions"].append(entry)
        for key in found.keys() & entry.keys() - {"call"}:
            found[key] = _joined(found[key], entry[key])
        found["call"] = {**entry.get("call", {}), **found["call"]}
    return found


def _require_sound(entry: Mapping[str, Any], file: Path) -> None:
    lacks = [key for key in ("commit", "reason") if key not in entry]
    kinds = {"difference", "columns", "new"} & entry.keys()
    both = kinds == {"difference", "columns"} and entry["columns"] != "all"
    if "runs" in entry and len(kinds) != 1 and not both:
        lacks.append("difference, columns or new, and one of them alone")
    if lacks:
        raise ValueError(f"an entry in {file} has no {lacks[0]}; it has to say so")
    for key in SIDED:
        if other := sorted(set(entry.get(key, ())) - {"before", "after"}):
            raise ValueError(f"{key} in {file} has {other[0]!r}; name a side, before or after")
    if not 0 <= entry.get("difference", 0) <= FIRST_ROUND:
        raise ValueError(
            f"an entry in {file} allows the first round to differ by {entry['difference']}, "
            f"but at most {FIRST_ROUND:g} can be allowed"
        )


def _joined(older: Any, newer: Any) -> Any:
    """Maps key by key, and lists one behind the other; of anything else the older."""
    if isinstance(older, Mapping):
        both = {key: _joined(older[key], newer[key]) for key in older.keys() & newer.keys()}
        return {**newer, **older, **both}
    return [*older, *newer] if isinstance(older, list) else older


def _has(base: str, commit: str) -> bool:
    """Whether ``commit`` is ``base`` or one of those before it."""
    asked = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", commit, base]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def runs_below(folder: Path, renamed: Mapping[str, str] | None = None) -> dict[str, Path]:
    """The folders of all runs that ended, failed ones included, by what they are.

    Args:
        folder: Where they lie, however deep.
        renamed: What rows of the table are called elsewhere.

    Returns:
        experiment/data set/skew@scenario/row/seed~N -> folder.
    """
    found = {}
    for file in sorted(folder.rglob("result.json")):
        said = json.loads(file.read_bytes())
        said["label"] = (renamed or {}).get(said.get("label"), said.get("label"))
        words = [str(said[key]) for key in IDENTITY[:-1] if said.get(key)]
        found["/".join([*words, f"seed~{said['seed']}"])] = file.parent
    return found


def _failure(run: Path) -> str | None:
    """The error of a failed run; None for one that went well."""
    said = json.loads((run / "result.json").read_bytes())
    return str(said.get("error")) if said.get("status") == "failed" else None


def differences(before: Path, after: Path, allow: Mapping[str, Any]) -> dict[str, list[str]]:
    """Compare the runs below two folders.

    Args:
        before, after: The folders.
        allow: See ``allowed``.

    Returns:
        By run, what is not the same in it, a sentence each; none where all is. A run that failed
        is never the same, even where both sides fail alike: it shows nothing.
    """
    sides = runs_below(before, allow.get("renamed", {}).get("methods")), runs_below(after)
    found = {}
    for run in sorted({*sides[0], *sides[1]}):
        excused = [one for one in allow["exceptions"] if fnmatch(run, one["runs"])]
        if run not in sides[0] and any("new" in one for one in excused):
            continue
        if run not in sides[0] or run not in sides[1]:
            found[run] = [f"only {'after' if run in sides[1] else 'before'}"]
            continue
        failures = [_failure(side[run]) for side in sides]
        if any(failures):
            pairs = zip(("before", "after"), failures, strict=True)
            found[run] = [f"failed {side}: {error}" for side, error in pairs if error]
            continue
        mended: list[str] = []
        bounds: list[float] = []
        close: dict[str, float] = {}
        for one in excused:
            columns, bound = one.get("columns"), one.get("difference")
            if columns is None and bound is not None:
                bounds.append(bound)
            elif bound is not None:
                close |= dict.fromkeys(columns, bound)
            elif columns is not None:
                mended += ["all"] if columns == "all" else columns
        if "all" in mended:
            found[run] = []
            continue
        here = {**allow, "mended": mended, "close": close}
        most = max(bounds, default=None)
        found[run] = list(_of_a_run(sides[0][run], sides[1][run], here, most))
    return found


def _of_a_run(
    before: Path, after: Path, allow: Mapping[str, Any], most: float | None
) -> Iterable[str]:
    """``most``: the first round may differ by so much, and what comes of it by more."""
    for name in TABLES:
        earlier = allow.get("files", {}).get(name, name)
        files = [before / f"{earlier}.parquet", after / f"{name}.parquet"]
        if files[0].is_file() != files[1].is_file():
            yield f"{name}.parquet is there {'after' if files[1].is_file() else 'before'} alone"
        elif files[0].is_file():
            once, again = map(pd.read_parquet, files)
            once = once.rename(columns=allow["renamed"].get(name, {}))
            aside = [*allow["mended"], *allow.get("dropped", {}).get(name, [])]
            aside += allow.get("added", {}).get(name, [])
            once, again = (t.drop(columns=aside, errors="ignore") for t in (once, again))
            if most is None:
                found = _of_tables(once, again, allow["close"])
                yield from (f"{name}: {it}" for it in found)
            else:
                yield from (f"{name}: {it}" for it in _of_first_rounds(once, again, most))
    if most is not None:
        return
    once, again = (json.loads((place / "result.json").read_bytes()) for place in (before, after))
    for key in FACTS:
        if json.dumps(once.get(key)) != json.dumps(again.get(key)):
            yield f"result.json: {key} was {once.get(key)} and is {again.get(key)}"
    states = [
        json.loads((place / "provenance.json").read_bytes()).get("state", {})
        for place in (before, after)
    ]
    for key in sorted(states[0].keys() | states[1].keys()):
        if states[0].get(key) != states[1].get(key):
            yield f"the hash of its {key} differs"


def _of_tables(
    once: pd.DataFrame, again: pd.DataFrame, close: Mapping[str, float]
) -> Iterable[str]:
    """``close``: columns that may differ, with the most by which they may."""
    for column in sorted(set(once) ^ set(again)):
        yield f"the column {column} is there {'before' if column in once else 'after'} alone"
    if len(once) != len(again):
        yield f"{len(once)} rows before and {len(again)} after"
        return
    for column in once.columns.intersection(again.columns):
        same = _bits(once[column]) == _bits(again[column])
        if column in close:
            same |= (once[column] - again[column]).abs().to_numpy() <= close[column]
        if not same.all():
            row = int(np.argmin(same))
            yield f"{column} in row {row} was {once[column][row]} and is {again[column][row]}"


def _bits(column: pd.Series) -> np.ndarray:
    """What equal means: floats by their bits, so that NaN equals NaN and 0 is not -0."""
    if column.dtype.kind == "f":
        return column.to_numpy(np.float64).view(np.int64)
    return np.array([repr(one) for one in column], dtype=object)


def _of_first_rounds(once: pd.DataFrame, again: pd.DataFrame, most: float) -> Iterable[str]:
    first = [table[table["round"] == table["round"].min()] for table in (once, again)]
    for column in first[0].select_dtypes("number"):
        if column not in first[1] or len(first[0]) != len(first[1]):
            yield f"{column} or a row of the first round is missing"
            continue
        gap = np.abs(first[0][column].to_numpy(float) - first[1][column].to_numpy(float))
        if (gap > most).any():
            yield f"{column} of the first round differs by {np.nanmax(gap):.3g}, allowed {most:g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where all is the same, 1 where something is not, 2 where it could not be compared."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", help="a commit")
    parser.add_argument("--only", nargs="+", choices=[grid.name for grid in GRIDS])
    parser.add_argument("--few", action="store_true", help="five methods, a condition, an attack")
    parser.add_argument("--work", type=Path, default=ROOT / ".fedsdg/gate")
    given = parser.parse_args(arguments)
    grids = [grid for grid in GRIDS if not given.only or grid.name in given.only]
    found: dict[str, list[str]] = {}
    try:
        allow = allowed(given.base)
        with checked_out(given.base) as base:
            for grid in [FEW] if given.few else grids:
                places = [given.work / side / grid.name for side in ("before", "after")]
                overs = [allow["over"].get(side) for side in ("before", "after")]
                calls = [allow["call"].get(side, CALL) for side in ("before", "after")]
                names = [allow["files"], {}]
                with ThreadPoolExecutor(2) as both:
                    list(both.map(compute, [grid] * 2, [base, ROOT], places, overs, calls, names))
                here = differences(*(place / "results" for place in places), allow)
                for run, sentences in here.items():
                    print(f"{run}: {'; '.join(sentences) or 'the same'}", flush=True)
                found |= here
    except (Broken, LookupError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    wrong = sum(map(bool, found.values()))
    print(f"{len(found)} runs, {wrong} of them not the same; see {given.work}")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
