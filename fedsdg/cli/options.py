"""Helpers of several commands: printing, and the check of the places that they write to."""

from __future__ import annotations

import errno
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedsdg.files.places import FIGURE, SUMMARY, TABLE

if TYPE_CHECKING:
    import pandas as pd

    from fedsdg.experiment.config import Config


def print_json(content: Any) -> None:
    """Print JSON on standard output, where it stands alone; remarks go to standard error."""
    print(json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False))


def answer(json: bool, facts: Any, lines: Iterable[str]) -> None:
    """Print what a command found: as JSON for a script, or in lines for a person.

    Args:
        json: Whether the command was given ``--json``.
        facts: What the JSON holds; an iterator becomes a list.
        lines: What a person reads.
    """
    if json:
        print_json(list(facts) if isinstance(facts, Iterator) else facts)
        return
    for line in lines:
        print(line)


def plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame in JSON's types; what is missing is null."""
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records"))
    return rows


def leave_out(why: str, **options: object) -> None:
    """Refuse options that mean nothing beside the others.

    Args:
        why: The end of the sentence, which begins with the option.
        options: What was given for each of them; nothing, False and an empty list are not.

    Raises:
        ValueError: names the first that was given.
    """
    for name, value in options.items():
        if value is not None and value is not False and value != () and value != []:
            raise ValueError(f"--{name.replace('_', '-')} {why}")


def print_remarks(config: Config) -> None:
    """Say on standard error how a user's data suit the backbone."""
    from fedsdg.experiment.declared_data import remarks

    if config.trainable == "adapters":
        for line in remarks(config.own, config.backbone, config.backbones[config.backbone]):
            print(f"fedsdg: {line}", file=sys.stderr)


def print_failures(failed: Sequence[object], remedy: str) -> None:
    """Name the runs that failed on standard error, and what to do about them.

    Args:
        failed: The runs, each printed by ``str`` on its own line.
        remedy: What to do, as the last line.
    """
    print(f"fedsdg: error: {len(failed)} run(s) failed:", file=sys.stderr)
    for entry in failed:
        print(f"  {entry}", file=sys.stderr)
    print(remedy, file=sys.stderr)


def require_writable(
    *places: str | Path,
    remedy: str = "name another place with --output",
    kind: Literal["file", "folder"] | None = None,
) -> None:
    """Refuse places that cannot be written to, before anything is imported or computed.

    Args:
        places: files or folders; of those that do not exist the nearest folder above is tried.
        remedy: what names another place.
        kind: what all places have to be, where they exist; None: either.

    Raises:
        OSError: one sentence with the reason and the remedy.
    """
    for place in places:
        if kind == "file" and Path(place).is_dir():
            raise IsADirectoryError(f"{place} is a folder, but a file is written: {remedy}")
        if kind == "folder" and Path(place).is_file():
            raise NotADirectoryError(f"{place} is a file, but a folder is needed: {remedy}")
        folder = Path(place).absolute()
        while not folder.exists():
            folder = folder.parent
        folder = folder.parent if folder == Path(place).absolute() and folder.is_file() else folder
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(4096))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            first = "make room in" if full else "change the permissions of"
            raise OSError(
                f"{place} cannot be written ({error.strerror}): {first} {folder}, or {remedy}"
            ) from error


def where_next(config: Config) -> Iterator[str]:
    """Yield the first table of an experiment, and lines that lead to a figure and to the page."""
    from fedsdg.files.declarations import declarations

    usual, name = declarations()["usual_pages"], config.experiment
    for table in (usual["tables"] if config.tables is None else config.tables)[:1]:
        file = Path(f"{TABLE.format(experiment=name, table=table)}.md")
        if file.is_file():
            yield file.read_text(encoding="utf-8")
        yield f"a table:  {file}"
    for figure in (usual["figures"] if config.figures is None else config.figures)[:1]:
        yield f"a figure: {FIGURE.format(experiment=name, figure=figure)}.svg"
    summaries = Path(SUMMARY.format(experiment=name)).parent
    yield f"the page: fedsdg render page --records {summaries} --experiments {name}"
