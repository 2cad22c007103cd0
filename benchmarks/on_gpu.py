"""Whatever a GPU has time for, in the order of worth, and on from there when called again.

    make gpu MINUTES=25 OUT=folder       (docs/gpu.md)

Every part is a process of its own with a limit, and says one line. What is complete has a stamp,
which names the hash of the sources, and is not done again; what was broken off goes on. Outputs
are written anew after every part: at most eight files of at most 16 MB.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.carry import joined
from fedsdg.experiment.machine.interruption import Stopped, stopped_by_signals
from fedsdg.files import atomic_path, read_json, write_json
from fedsdg.files.places import ARENAS

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 16_000_000
#: What of an archive may still be on its way through the compressor.
UNDER_WAY = 300_000
#: Seconds that a part has to put its work away in when its time is up, and that packing takes.
PATIENCE, PACKING = 20, 20
SOURCES = ("fedsdg", "benchmarks", "tests", "config")
KINDS = ("runs", "summary", "tables", "figures", "claims")


@dataclass(frozen=True)
class Place:
    """Where things are: ``work`` holds what goes on, ``out`` what is taken away."""

    work: Path
    out: Path
    device: str = "cuda"
    small: bool = False
    data: Path | None = None

    def environment(self) -> dict[str, str]:
        """Of every part: the sources are found without being installed."""
        found = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        if self.data is not None:
            found["FEDSDG_DATA"] = str(self.data)
        return found


#: The words of a part that has so many seconds.
Command = Callable[[Place, float], list[str]]


class Part(NamedTuple):
    """One thing to be done. ``minutes``: at most; ``lacks``: why it cannot be done here, if so."""

    name: str
    minutes: float
    command: Command
    lacks: Callable[[Place], str] = lambda place: ""


def _ours(name: str, writes: str) -> Command:
    def command(place: Place, seconds: float) -> list[str]:
        small = ["--small"] * place.small
        where = ["--device", place.device, "--out", str(place.work / writes)]
        return [sys.executable, "-m", "benchmarks.gpu_parts", name, *where, *small]

    return command


def _tests(place: Place, seconds: float) -> list[str]:
    """All tests of what differs on a GPU."""
    files = ["tests/experiment/machine/test_gpu.py"]
    if not place.small:
        files += ["tests/aggregation/engines/test_cuda_kernels.py", "tests/aggregation/test_api.py"]
        files += [
            "tests/federation/test_passes.py",
            "tests/experiment/test_runs.py",
            "tests/experiment/machine/test_devices.py",
        ]
    chosen = "not real_memory and (gpu or cuda or triton or kernel or device or memory)"
    options = ["-q", "-rfE", "-p", "no:cacheprovider", "-k", chosen]
    return [sys.executable, "-m", "pytest", *options, *(str(ROOT / file) for file in files)]


def _training(model: str) -> Command:
    def command(place: Place, seconds: float) -> list[str]:
        chosen = "digits-fedavg" if place.small else model
        options = ["-q", "-p", "no:cacheprovider", "--device", place.device]
        options += ["--measured", str(place.work / f"training~{model}.json"), "-k", chosen]
        options += ["--short", "--ours-alone"] * place.small
        return [
            sys.executable,
            "-m",
            "pytest",
            str(ROOT / "benchmarks/bench_training.py"),
            *options,
        ]

    return command


def _grid(*names: str, jobs: int) -> Command:
    def command(place: Place, seconds: float) -> list[str]:
        files = [str(ROOT / "config" / f"{name}.yaml") for name in names]
        settings = [f"training.device={place.device}"]
        # Time is left for the tables of what there is by then.
        options = ["--jobs", str(jobs), "--minutes", str(round(0.85 * seconds / 60, 2))]
        if place.small:
            # The same path with the data, the backbone and the methods of the smallest config.
            files = [str(ROOT / "config" / name) for name in ("config.yaml", "smoke.yaml")]
            settings += [f"experiment={names[-1]}", "federation.rounds=1"]
            settings += ["tables=[main]", "figures=[partition]"]
            settings += [f"backbones.letters-small.{few}" for few in ("images=200", "epochs=1")]
            settings += ["backbones.letters-small.held_out=50"]
            options = ["--only", "fedavg"]
        command = [sys.executable, "-m", "fedsdg", "run", "--config", *files, "--grid"]
        return [*command, "--set", *settings, *options]

    return command


def _no_images(place: Place) -> str:
    if place.small or (place.data is not None and (place.data / "cifar100").is_dir()):
        return ""
    return "FEDSDG_DATA (or DATA=) names no folder with cifar100 in it"


PARTS = (
    Part("environment", 1, _ours("environment", "environment.json")),
    Part("tests", 6, _tests),
    Part("twice", 3, _ours("twice", "twice.json")),
    Part("kernels", 3, _ours("kernels", "kernels.json")),
    Part("training vit-tiny", 3, _training("vit-tiny")),
    Part("training digits", 3, _training("digits")),
    Part("needs", 4, _grid("config", "cross-needs", jobs=4)),
    Part("label-skew", 3, _grid("config", "cross-label-skew", jobs=4)),
    Part("views", 3, _grid("config", "views", jobs=4)),
    Part("cifar100", 60, _grid("config", "cifar100", jobs=2), _no_images),
)


# --- One part -------------------------------------------------------------------------------------


def sources_hash(place: Place, root: Path = ROOT) -> str:
    """SHA-256 of everything that decides what a part does: code, tests, configs, the form."""
    digest = hashlib.sha256(f"{place.device} {place.small}".encode())
    for folder in SOURCES:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".py", ".yaml"):
                digest.update(file.relative_to(root).as_posix().encode() + b"\0")
                digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()


def run_part(part: Part, place: Place, seconds: float) -> tuple[bool, str]:
    """(whether it is complete, its line of outcome); it is told to end after so many seconds.

    ``Stopped``, when a signal came: the part has been told so too, and has put its work away.
    """
    if lack := part.lacks(place):
        return False, f"not run: {lack}"
    if seconds <= 0:
        return False, "not run: no time is left; call again"
    log = place.work / "logs" / f"{part.name.replace(' ', '~')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    begun, late = time.monotonic(), False
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            part.command(place, seconds),
            cwd=place.work,
            env=place.environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a signal to us is not one to it, and its group is its own
        )
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            if process.poll() is None:
                _end(process)
    took = f"{time.monotonic() - begun:.0f} s"
    said = _said(log)
    if late:
        return False, f"time was up after {took}, call again to go on: {said}"
    if process.returncode:
        return False, f"failed with exit code {process.returncode} after {took}: {said}"
    if "time is up: " in said:
        return False, f"{took}: {said}"
    return True, f"done in {took}: {said}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """TERM, so that checkpoints are written; KILL for whoever does not end in time."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=PATIENCE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _said(log: Path) -> str:
    """The last line of a log, or that with which a grid ends before its time is over."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line] or ["it said nothing"]
    return next((line for line in reversed(lines) if "time is up: " in line), lines[-1])[:300]


# --- All of them ----------------------------------------------------------------------------------


def run_parts(parts: Iterable[Part], place: Place, minutes: float) -> dict[str, str]:
    """Do what is not done yet until the time is up; returns the line of every part."""
    deadline = time.monotonic() + 60 * minutes - PACKING - PATIENCE
    wanted, lines = sources_hash(place), {}
    for part in parts:
        stamp = place.work / "stamps" / f"{part.name.replace(' ', '~')}.json"
        kept = read_json(stamp) if stamp.is_file() else {}
        if kept.get("sources") == wanted:
            lines[part.name] = f"complete before: {kept['line']}"
        else:
            left = min(60 * part.minutes, deadline - time.monotonic())
            try:
                complete, lines[part.name] = run_part(part, place, left)
            except Stopped:
                lines[part.name] = "stopped by a signal; call again to go on"
                write_outputs(parts, place, lines)
                raise
            if complete:
                write_json(stamp, {"sources": wanted, "line": lines[part.name]})
        print(f"{part.name}: {lines[part.name]}", flush=True)
        write_outputs(parts, place, lines)
    return lines


def write_outputs(parts: Iterable[Part], place: Place, lines: dict[str, str]) -> None:
    """What is taken away, as it is now."""
    place.out.mkdir(parents=True, exist_ok=True)
    work, results, left = place.work, place.work / "results", []
    facts = {name: _json(work / f"{name}.json") for name in ("environment", "twice")}
    write_json(place.out / "environment.json", facts)
    if (work / "kernels.json").is_file():
        shutil.copyfile(work / "kernels.json", place.out / "kernels.json")
    measured = {f.stem.partition("~")[2]: read_json(f) for f in sorted(work.glob("training~*"))}
    if measured:
        write_json(place.out / "training.json", measured)
    with atomic_path(place.out / "tests.log") as temporary:
        logs = [(f.stem, f.read_bytes()) for f in sorted((work / "logs").glob("*.log"))]
        most = MOST_BYTES // (len(logs) + 1)
        temporary.write_bytes(b"".join(b"== %s\n%s" % (n.encode(), t[-most:]) for n, t in logs))
    experiments = {"arenas": tuple(ARENAS), "cifar100": ("cifar100",)}
    for name, own in experiments.items():
        folders = [results / kind / experiment for experiment in own for kind in KINDS[1:]]
        folders += [results / "runs" / experiment for experiment in own]
        left += _pack(place.out / f"{name}.tar.gz", work, folders)
    left += _pack(place.out / "store.tar.gz", work, [work / "stamps", work / ".fedsdg"])
    said = [f"{part.name}: {lines.get(part.name, 'not run yet')}" for part in parts]
    said += [f"left out, for want of room: {file}" for file in left[:20]]
    with atomic_path(place.out / "summary.md") as temporary:
        temporary.write_text("\n".join(f"- {line}" for line in said) + "\n", encoding="utf-8")


def _json(file: Path) -> object:
    return read_json(file) if file.is_file() else None


def _pack(target: Path, work: Path, folders: Iterable[Path]) -> list[str]:
    """The files of some folders as one archive below ``MOST_BYTES``; returns those left out."""
    files = [file for folder in folders for file in sorted(folder.rglob("*")) if file.is_file()]
    if not files:
        return []
    left: list[str] = []
    with (
        atomic_path(target) as temporary,
        temporary.open("wb") as raw,
        tarfile.open(fileobj=raw, mode="w:gz") as archive,
    ):
        for file in files:
            name = file.relative_to(work).as_posix()
            if raw.tell() + UNDER_WAY + file.stat().st_size > MOST_BYTES:
                left.append(name)
            else:
                archive.add(file, name)
    return left


def begin(place: Place, backbones: Path | None, earlier: Path | None) -> None:
    """Make the folder of work; take up what an earlier call has left, and backbones made before."""
    place.work.mkdir(parents=True, exist_ok=True)
    store = earlier / "store.tar.gz" if earlier else None
    if store is not None and store.is_file() and not (place.work / "stamps").is_dir():
        with tarfile.open(store) as archive:
            # As extractall(filter="data"), which Python has from 3.11.4 on.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(place.work)
    if backbones is not None:
        joined(backbones, place.work / "results" / "backbones")


def main(arguments: list[str] | None = None) -> int:
    """The command; exit code 1 where a part failed, 143 (130) after a signal."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--out", type=Path, required=True, help="where the outputs go")
    parser.add_argument("--work", type=Path, default=ROOT / ".fedsdg/gpu", help="what goes on")
    parser.add_argument("--earlier", type=Path, help="outputs of an earlier call, to go on from")
    parser.add_argument("--data", type=Path, help="default: FEDSDG_DATA")
    parser.add_argument("--backbones", type=Path, help="folder of backbones that are made")
    parser.add_argument("--only", nargs="+", metavar="PART", help="parts, by their names")
    parser.add_argument("--small", action="store_true", help="the same path in small on a CPU")
    given = parser.parse_args(arguments)
    known = [part.name for part in PARTS]
    if unknown := sorted(set(given.only or ()) - set(known)):
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(known)}")
    data = given.data or os.environ.get("FEDSDG_DATA")
    place = Place(
        given.work.resolve(),
        given.out.resolve(),
        "cpu" if given.small else "cuda",
        given.small,
        Path(data).resolve() if data else None,
    )
    begin(place, given.backbones, given.earlier)
    parts = [part for part in PARTS if not given.only or part.name in given.only]
    try:
        with stopped_by_signals():
            lines = run_parts(parts, place, given.minutes)
    except Stopped as stop:
        return stop.exit_code
    return int(any(line.startswith("failed") for line in lines.values()))


if __name__ == "__main__":
    raise SystemExit(main())
