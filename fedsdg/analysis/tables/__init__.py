"""The tables of an experiment, each written as CSV, Markdown and LaTeX.

``TABLES`` maps a name to the function that makes it from a summary. All but ``seconds`` are
byte-identical from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.accuracy import (
    differences,
    global_accuracy,
    groups,
    main,
    personal_accuracy,
    worst_decile,
)
from fedsdg.analysis.tables.attacks import byzantine, detection, label_noise
from fedsdg.analysis.tables.costs import bytes_sent, rounds_to_target, seconds, stragglers
from fedsdg.analysis.tables.horizon import horizon
from fedsdg.analysis.tables.layout import Table
from fedsdg.analysis.tables.primary import primary
from fedsdg.analysis.tables.render import to_csv, to_latex, to_markdown
from fedsdg.analysis.tables.sweeps import sensitivity, tuning
from fedsdg.analysis.tables.verification import verification
from fedsdg.files import atomic_path, hint

TABLES: Mapping[str, Callable[[Summary], Table]] = MappingProxyType(
    {
        "main": main,
        "personal_accuracy": personal_accuracy,
        "worst_decile": worst_decile,
        "global_accuracy": global_accuracy,
        "differences": differences,
        "bytes": bytes_sent,
        "seconds": seconds,
        "byzantine": byzantine,
        "detection": detection,
        "stragglers": stragglers,
        "label_noise": label_noise,
        "sensitivity": sensitivity,
        "verification": verification,
        "tuning": tuning,
        "rounds_to_target": rounds_to_target,
        "groups": groups,
        "horizon": horizon,
        "primary": primary,
    }
)

#: The tables of an experiment whose config names none.
USUAL_TABLES = (
    "main",
    "personal_accuracy",
    "worst_decile",
    "global_accuracy",
    "differences",
    "bytes",
    "seconds",
)


def write_table(summary_dir: str | Path, name: str, output_stem: str | Path) -> list[Path]:
    """Write one table of an experiment as CSV, Markdown and LaTeX.

    Args:
        summary_dir: The folder of the summary.
        name: One of ``TABLES``.
        output_stem: The path of the files without ``.csv``, ``.md`` and ``.tex``.

    Returns:
        The paths of the files.

    Raises:
        ValueError: There is no such table.
    """
    return save_table(known_table(name)(Summary(summary_dir)), output_stem)


def known_table(name: str) -> Callable[[Summary], Table]:
    """The function that makes this table, or a ``ValueError`` that says which was meant."""
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r}{hint(name, TABLES)}")
    return TABLES[name]


def save_table(table: Table, output_stem: str | Path) -> list[Path]:
    """Write a table as CSV, Markdown and LaTeX.

    Args:
        table: Any table.
        output_stem: The path of the files without ``.csv``, ``.md`` and ``.tex``.

    Returns:
        The paths of the files.
    """
    written = []
    for suffix, render in ((".csv", to_csv), (".md", to_markdown), (".tex", to_latex)):
        path = Path(f"{output_stem}{suffix}")
        with atomic_path(path) as temporary:
            temporary.write_text(render(table), encoding="utf-8")
        written.append(path)
    return written
