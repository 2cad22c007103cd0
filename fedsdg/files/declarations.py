"""What the package declares, as a file says it: for whoever must not import the parts themselves.

``make documents`` writes ``fedsdg/declarations.json`` from the parts. "methods", "optimisers",
"losses" and "attacks" are lists of rows, for the keys of a JSON file are sorted and rows are not;
"rules" has the names that ``aggregate`` takes, "pages" those of all tables and figures,
"usual_pages" of those that are made where a config says nothing, "metrics" those of all metrics,
"keys" has those of each section of the config, and "columns" those of the records that not every
run has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fedsdg.files import PACKAGE, read_json

#: Beside the rooms, as the default config is.
FILE = PACKAGE / "declarations.json"


@cache
def declarations() -> Mapping[str, Any]:
    """All that the file holds; nobody may change it."""
    found: dict[str, Any] = read_json(FILE)
    return found


@cache
def titles(table: str) -> Mapping[str, str]:
    """How the rows of "methods", "attacks", "optimisers" or "losses" are called in print, by name.

    In the order of tables and figures.
    """
    return {row["name"]: row["title"] for row in declarations()[table]}


@cache
def families() -> Mapping[str, str]:
    """The title of each method's family, by the method's name."""
    return {row["name"]: row["family"] for row in declarations()["methods"]}


def names(table: str) -> Mapping[str, Sequence[str]]:
    """The names in a table of the file, by what they are: of "keys" a list for each section.

    >>> names("losses")
    {'losses': ['cross-entropy', 'focal']}
    """
    said = declarations()
    if table == "keys":
        return {f"keys of {section}": keys for section, keys in said["keys"].items()}
    if table in said["pages"]:
        return {table: said["pages"][table]}
    return {table: [one if isinstance(one, str) else one["name"] for one in said[table]]}
