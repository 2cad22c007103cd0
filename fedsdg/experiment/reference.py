"""The reference of the config, docs/config.md, from what its sections declare. Never imports torch.

``config/README.md`` explains what goes with what; each key is said here alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence

from fedsdg.data.partition import PartitionSettings
from fedsdg.data.sources import Source
from fedsdg.experiment.backbones.recipe import SOURCES
from fedsdg.experiment.conditions import AttackShare, Conditions
from fedsdg.experiment.config import SECONDS, TRAINABLE
from fedsdg.experiment.method_entries import OVERRIDES
from fedsdg.experiment.sections import (
    AdaptersConfig,
    FederationConfig,
    TrainingConfig,
)
from fedsdg.methods.declared import ChoiceRow
from fedsdg.methods.markdown import allowed, default_of, table
from fedsdg.methods.plugins import CHOICES
from fedsdg.parts import Declared, declared

#: The sections that are parts.
SECTIONS = {
    "federation": FederationConfig,
    "partition": PartitionSettings,
    "training": TrainingConfig,
    "adapters": AdaptersConfig,
    "conditions": Conditions,
}
#: Keys that name a row of a table, and the table.
_CHOSEN = {"type": "attacks", **{key: table for key, (_, table) in CHOICES.items()}}
_HEAD = """\
# The config, key by key

Made by `make documents` from the parts in `fedsdg/`; not to be edited here. A test compares the
two. [config/README.md](../config/README.md) says how configs are laid over one another and what
goes with what, and explains the keys that are not listed here. Defaults are those of a key that no
file gives; every config is laid over `config/config.yaml`. The parameters of each method:
[methods.md](methods.md).

"""
_BACKBONE = """\
## An entry of `backbones`

`source` says where its weights come from; the other keys depend on it.

"""

_DATA = """\
## An entry of `datasets`

A built-in name, or a mapping that describes your own images ([own data](own-data.md)):

"""

_ENTRY = f"""\
## An entry of `methods`

A name, or a mapping: `type` is the method, `name` its label in paths and tables (default: its
type). Besides, it may set the parameters of its method, which [methods.md](methods.md#parameters)
lists, and of `training` for itself {", ".join(f"`{key}`" for key in OVERRIDES)}.

"""


def config_page(
    choices: Mapping[str, Mapping[str, ChoiceRow]],
    pages: Mapping[str, Sequence[str]],
    usual: Mapping[str, Sequence[str]],
) -> str:
    """Markdown: a table for each section, and one for whatever is chosen by a name.

    ``choices``: the rows of "optimisers", "losses" and "attacks"; ``pages``, ``usual``: names of
    all tables and figures, and of those that are made where a config says nothing.
    """
    text = _HEAD
    for name, section in SECTIONS.items():
        text += _section(f"## `{name}`", section, choices)
        if section is TrainingConfig:
            text += "### Optimisers\n\n"
            text += _choices("optimiser", choices["optimisers"])
            text += "### Losses\n\n" + _choices("loss", choices["losses"])
    for name, one in declared(Conditions).items():
        if name == "attack":
            text += _section("### `conditions.attack`", AttackShare, choices)
            text += "The other keys are those of the attack:\n\n"
            text += _choices("attack", choices["attacks"])
        elif one.holds_part:
            text += _section(f"### `conditions.{name}`", one.kind, choices)
    text += _BACKBONE
    for name, entry in SOURCES.items():
        text += _section(f"### `source: {name}`", entry, choices)
    text += _DATA + _keys(declared(Source).values(), choices)
    text += _ENTRY + "## Single keys\n\n" + _keys([TRAINABLE, SECONDS], choices)
    text += "## `tables`, `figures`\n\n" + _pages(pages, usual)
    text += "\nA metric's own name stands for a table of its means, or a figure of them.\n"
    return text.rstrip("\n") + "\n"


def section_keys() -> dict[str, list[str]]:
    """The keys of each section."""
    return {name: list(declared(section)) for name, section in SECTIONS.items()}


def _section(heading: str, section: type, choices: Mapping[str, Mapping[str, ChoiceRow]]) -> str:
    said = inspect.cleandoc(section.__doc__ or "").replace("``", "`")
    return f"{heading}\n\n{said}\n\n{_keys(declared(section).values(), choices)}"


def _keys(fields: Iterable[Declared], choices: Mapping[str, Mapping[str, ChoiceRow]]) -> str:
    rows = [
        (f"`{one.name}`", default_of(one), _allowed(one, choices), one.meaning) for one in fields
    ]
    return table(("key", "default", "values", "meaning"), rows) + "\n"


def _allowed(one: Declared, choices: Mapping[str, Mapping[str, ChoiceRow]]) -> str:
    if one.holds_part:
        return f"[its keys](#conditions{one.name}), or null"
    if one.name in _CHOSEN:
        known = choices[_CHOSEN[one.name]]
        return f"{' or '.join(f'`{name}`' for name in known)}, or one of a plugin"
    return allowed(one)


def _choices(head: str, rows: Mapping[str, ChoiceRow]) -> str:
    """A row for each parameter of each choice; a choice without any has one all the same."""
    lines = []
    for name, row in rows.items():
        own = [
            (f"`{key}`", default_of(one), allowed(one), one.meaning)
            for key, one in row.parameters.items()
        ]
        lines += [
            (
                f"{row.title} (`{name}`)" if not k else f"`{name}`",
                *said,
                row.source if not k else "",
            )
            for k, said in enumerate(own or [("", "", "", "")])
        ]
    return table((head, "parameter", "default", "values", "meaning", "source"), lines) + "\n"


def _pages(pages: Mapping[str, Sequence[str]], usual: Mapping[str, Sequence[str]]) -> str:
    def listed(names: Iterable[str]) -> str:
        return ", ".join(f"`{name}`" for name in names)

    rows = [
        (f"`{key}`", listed(usual[key]), listed(n for n in names if n not in usual[key]))
        for key, names in pages.items()
    ]
    return table(("key", "by default", "others"), rows)
