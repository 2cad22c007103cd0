"""Whether the files of a call belong together, and what is known of the clients they come from."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsdg.aggregation.engines.files.tensor_files import TensorFile
from fedsdg.aggregation.engines.memory.checks import check_storage, check_structure, kind
from fedsdg.aggregation.engines.memory.screening import who
from fedsdg.aggregation.uploads import ADAPTERS
from fedsdg.parts import shown


def further_files(uploads: Any, size: int) -> dict[str, list[TensorFile]]:
    """The files of the uploads beside the parameters, opened."""
    if uploads is None:
        return {}
    if not isinstance(uploads, Mapping):
        raise ValueError(f"uploads is {kind(uploads)}; give a mapping such as {{'control': […]}}")
    ordered = {}
    for name, given in uploads.items():
        if name in ("update", ADAPTERS):
            raise ValueError(
                f"uploads holds {name!r}, which is formed from the client files; leave it out"
            )
        paths = check_paths(f"upload {name!r}", given)
        if len(paths) != size:
            raise ValueError(
                f"upload {name!r} has {len(paths)} files for {size} clients; give one per client"
            )
        ordered[name] = [TensorFile(path) for path in paths]
    return ordered


def check_paths(what: str, given: Any) -> Sequence[str | Path]:
    """What was given, if it is a list of paths, else ValueError."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise ValueError(f"{what} is {kind(given)}; give a list of paths")
    for path in given:
        check_path(what, path)
    return given


def check_path(what: str, path: Any) -> None:
    """ValueError unless it is a path: a text or a Path."""
    if not isinstance(path, str | Path):
        raise ValueError(
            f"{what}: {shown(path)} is {kind(path)} and no path; give a text or a Path"
        )


def check_alike(
    labels: list[str], upload: str, files: list[TensorFile], origin: TensorFile
) -> None:
    """ValueError unless every file has the tensors of the global one: names, shapes, dtypes."""
    expected = origin.stand_ins()
    for label, file in zip(labels, files, strict=True):
        if file.places == origin.places:
            continue
        tensors = file.stand_ins()
        check_structure(who(label, upload), tensors, expected)
        check_storage(who(label, upload), tensors, expected)


def check_distinct(
    origin: TensorFile,
    sent: Mapping[str, list[TensorFile]],
    out: str | Path,
    state_out: str | Path | None,
) -> None:
    """ValueError unless a file has one part to play; but the result may replace the global file."""
    seen = {origin.identity: "the global file"}
    for upload, files in sent.items():
        for file in files:
            if file.identity in seen:
                raise ValueError(
                    f"{file.path} is given twice, also as {seen[file.identity]}; every client "
                    f"counts once"
                )
            seen[file.identity] = "a client's" if upload == "update" else f"upload {upload!r}"
    for target, free in ((out, True), (state_out, False)):
        if target is None or not os.path.exists(target):
            continue
        status = os.stat(target)
        part = seen.get((status.st_dev, status.st_ino))
        if part and not (free and part == "the global file"):
            raise ValueError(f"{target} is to be written, but is {part}; choose another name")
    if state_out is not None and os.path.realpath(out) == os.path.realpath(state_out):
        raise ValueError(f"{out} cannot hold both parameters and state; choose another name")


def check_no_input(target: str | Path, inputs: Iterable[str | Path]) -> None:
    """ValueError when a file that is to be written is one of those that are read."""
    for path in inputs:
        there = os.path.exists(target) and os.path.exists(path)
        same = os.path.realpath(target) == os.path.realpath(path)
        if same or (there and os.path.samefile(target, path)):  # Also by another link.
            raise ValueError(f"{target} is to be written, but is also read; choose another name")


def number_of(label: str) -> int:
    """The whole number at the end of a file's name: the client's id in its federation."""
    stem = Path(label).stem
    digits = stem[len(stem.rstrip("0123456789")) :]
    if not digits:
        raise ValueError(
            f"{label}: with num_clients or client_samples, a client is known by the number at the "
            f"end of its file's name; rename it, as in client-12.safetensors"
        )
    return int(digits)


def check_ids(ids: list[Any], labels: list[str]) -> None:
    """ValueError when two files are of one client."""
    seen: dict[Any, str] = {}
    for id_, label in zip(ids, labels, strict=True):
        if id_ in seen:
            raise ValueError(f"{seen[id_]} and {label} are both of client {id_}; give one of them")
        seen[id_] = label


def counts_of(
    name: str, given: Any, labels: list[str], ids: list[Any], files: list[TensorFile]
) -> Any:
    """Return the counts `name` as a `Cohort` takes them.

    Args:
        name: "num_samples" or "num_batches".
        given: A mapping by any of a file's names; None for the counts of the files' metadata,
            where they have some; anything else is returned as it is.
        labels: Paths of the files, as they were given.
        ids: The clients' ids.
        files: The clients' files.

    Raises:
        ValueError: A file has no count where others have one, or a count that is no number.
    """
    if isinstance(given, Mapping):
        found = {}
        for id_, label in zip(ids, labels, strict=True):
            names = (label, Path(label).name, Path(label).stem)
            key = next((name for name in names if name in given), None)
            if key is None:
                raise ValueError(
                    f"{name} holds no count for {label}; add it, as {names[1]!r} or {names[2]!r}"
                )
            found[id_] = given[key]
        return found
    if given is not None or not any(name in file.metadata for file in files):
        return given
    counts = {}
    for id_, file in zip(ids, files, strict=True):
        text = file.metadata.get(name, "")
        try:
            counts[id_] = float(text)
        except ValueError as error:
            raise ValueError(
                f"{file.path}: its metadata has {name} {text!r}, where other files have a count; "
                f"give {name} for all"
            ) from error
    return counts
