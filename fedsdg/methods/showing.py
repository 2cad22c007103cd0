"""One method on a screen: what it is, what it sends and keeps, its parameters. Without torch."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from fedsdg.methods.declared import Row
from fedsdg.methods.markdown import allowed, default_of, in_words
from fedsdg.methods.page import fixed_of
from fedsdg.parts import plain

_D = "d: the communicated parameters"


def facts(name: str, row: Row) -> dict[str, Any]:
    """All that is declared of a method, in JSON's types.

    ``sends``: up and down, for one client in one round; d is the number of communicated parameters.
    """
    return {
        "name": name,
        "title": row.title,
        "family": row.family,
        "formula": row.formula,
        "sends": {"up": row.up, "down": row.down},
        "keeps": row.keeps,
        "cost": {"client": row.client_cost, "server": row.server_cost},
        "source": row.source,
        "rule": row.rule,
        "terms": list(row.terms),
        "personalisation": row.personalisation,
        "fixed": {key: plain(value) for key, value in fixed_of(row).items()},
        "parameters": [
            {
                "name": key,
                "default": None if one.required else plain(one.default),
                "values": allowed(one).replace("`", ""),
                "meaning": one.meaning.replace("`", ""),
            }
            for key, one in row.parameters.items()
        ],
    }


def lines(name: str, row: Row, columns: int) -> Iterator[str]:
    """The same for a person, in lines of at most ``columns``."""
    said = facts(name, row)
    family = f", of the family {row.family}" if row.family else ""
    yield _wrapped("", f"{row.title} ({name}){family}", columns)
    yield ""
    cost = [f"{who}: {what}" for who, what in said["cost"].items() if what]
    fixed = [f"{key} = {in_words(value)}" for key, value in said["fixed"].items()]
    parts = [f"rule {row.rule}", f"terms {' + '.join(['cross-entropy', *row.terms])}"]
    parts.append(f"personalisation {row.personalisation}")
    told = {
        "formula": row.formula,
        "sends": f"{row.up} up, {row.down} down, for one client in one round ({_D})",
        "keeps": row.keeps,
        "cost": "; ".join(cost),
        "source": row.source,
        "made of": ", ".join(parts),
        "fixed": ", ".join(fixed),
    }
    for title, text in told.items():
        if text:
            yield _wrapped(f"{title:10}", text, columns)
    yield ""
    yield "parameters" if row.parameters else "It has no parameters of its own."
    for key, one in row.parameters.items():
        default = "must be given" if one.required else f"default {default_of(one)}"
        text = f"{one.meaning} ({default}; {allowed(one)})".replace("`", "")
        yield _wrapped(f"  {key}: ", text, columns, hang=4)


def _wrapped(head: str, text: str, columns: int, hang: int = 10) -> str:
    return textwrap.fill(
        text,
        max(columns, 40),
        initial_indent=head,
        subsequent_indent=" " * hang,
        break_on_hyphens=False,
        break_long_words=False,
    )
