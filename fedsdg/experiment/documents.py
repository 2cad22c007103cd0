"""All documents that are generated from the parts, so that nothing they declare is written twice.

``make documents`` writes them; a test, and ``python -m fedsdg.experiment.documents --check``, say
which of them is stale. Imports every part, and torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsdg.aggregation.rule_table import rules as aggregation_rules
from fedsdg.analysis.figures import FIGURES
from fedsdg.analysis.metrics import METRICS, OWN
from fedsdg.analysis.render import USUAL
from fedsdg.analysis.tables import TABLES
from fedsdg.experiment.columns import declared_columns
from fedsdg.experiment.record_page import record_page
from fedsdg.experiment.reference import config_page, section_keys
from fedsdg.experiment.schema import config_schema
from fedsdg.files import PACKAGE, write_bytes
from fedsdg.methods.describing import choice_rows, listed, rows
from fedsdg.methods.page import method_page

#: The checkout in which the package lies.
ROOT = PACKAGE.parent


def documents() -> dict[str, str]:
    """The texts of all generated documents, by their places in a checkout."""
    methods, choices = rows(), choice_rows()
    pages = {
        "tables": tuple(TABLES),
        "figures": tuple(name for name in FIGURES if name != "regret"),  # of several experiments
    }
    # Those of plugins that were loaded in this process are none of the package's.
    metrics = [name for name in METRICS if name in OWN]
    declarations = {
        "methods": listed(methods),
        **{table: listed(known) for table, known in choices.items()},
        "rules": list(aggregation_rules()),
        "pages": pages,
        "usual_pages": USUAL,
        "metrics": metrics,
        "keys": section_keys(),
        "columns": declared_columns(),
    }
    return {
        "fedsdg/declarations.json": _json(declarations),
        "workflow/schemas/config.schema.json": _json(
            config_schema(methods, choices, pages, metrics)
        ),
        "docs/methods.md": method_page(methods),
        "docs/config.md": config_page(choices, pages, USUAL),
        "docs/records.md": record_page(declared_columns()),
    }


def _json(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False)
    return f"{text}\n"


def write_documents(folder: Path = ROOT) -> list[Path]:
    """Write all that differ from what is there; returns their paths."""
    made = documents()
    changed = stale(folder, made)
    for place in changed:
        write_bytes(folder / place, made[place].encode())
    return [folder / place for place in changed]


def stale(folder: Path = ROOT, made: dict[str, str] | None = None) -> list[str]:
    """The places of the documents that are missing or differ from what the parts say."""
    found = documents() if made is None else made
    return [place for place, text in found.items() if not _holds(folder / place, text)]


def _holds(file: Path, text: str) -> bool:
    return file.is_file() and file.read_bytes() == text.encode()


def main(arguments: Sequence[str]) -> int:
    """Write the documents of this checkout, or with ``--check`` name those that are stale."""
    if not (ROOT / "pyproject.toml").is_file():
        print(f"fedsdg: error: {ROOT} is no checkout of the sources", file=sys.stderr)
        return 2
    if "--check" not in arguments:
        for path in write_documents(ROOT):
            print(path)
        return 0
    due = stale(ROOT)
    if due:
        named = ", ".join(due)
        print(
            f"fedsdg: error: not what the parts say: {named}; give `make documents`",
            file=sys.stderr,
        )
    return 2 if due else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
