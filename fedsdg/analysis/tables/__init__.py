"""The tables of an experiment, each written as CSV, Markdown and LaTeX.

``TABLES`` maps a name to the function that makes it from a summary. All but ``seconds`` are
byte-identical from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import accuracy, attacks, costs, horizon, primary, sweeps, verification
from fedsdg.analysis.tables.layout import Table
from fedsdg.analysis.tables.render import to_csv, to_latex, to_markdown
from fedsdg.files import atomic_path, hint

TABLES: Mapping[str, Callable[[Summary], Table]] = MappingProxyType(
    {
        "main": accuracy.main,
        "personal_accuracy": accuracy.personal_accuracy,
        "worst_decile": accuracy.worst_decile,
        "global_accuracy": accuracy.global_accuracy,
        "differences": accuracy.differences,
        "bytes": costs.bytes_sent,
        "seconds": costs.seconds,
        "byzantine": attacks.byzantine,
        "detection": attacks.detection,
        "stragglers": costs.stragglers,
        "label_noise": attacks.label_noise,
        "sensitivity": sweeps.sensitivity,
        "verification": verification.verification,
        "tuning": sweeps.tuning,
        "rounds_to_target": costs.rounds_to_target,
        "groups": accuracy.groups,
        "horizon": horizon.horizon,
        "primary": primary.primary,
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
