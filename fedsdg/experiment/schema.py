"""The JSON schema of a config, which the workflow checks before it plans anything.

Made of what the parts declare, and of a few pieces for the keys that no part does. A choice is made
by ``if`` and ``then`` rather than ``anyOf``, so that an error names the wrong key and not the whole
entry. ``fedsdg check`` goes deeper: bounds that depend on other keys, and what plugins offer. Never
imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedsdg.data.partition import PartitionSettings
from fedsdg.data.sources import NUM_CLASSES, Source
from fedsdg.experiment.backbones.recipe import LETTERS, SOURCES
from fedsdg.experiment.conditions import AttackShare, Conditions
from fedsdg.experiment.config import SECONDS, TRAINABLE
from fedsdg.experiment.declared_data import ALL
from fedsdg.experiment.method_entries import OVERRIDES
from fedsdg.experiment.sections import (
    AdaptersConfig,
    FederationConfig,
    TrainingConfig,
)
from fedsdg.experiment.undeclared import (
    DATA_NAME,
    LIST,
    NAME,
    OBJECT,
    REQUIRED,
    SCENARIO,
    SEARCH,
    SEEDS,
    SKEWS,
    TEXT,
    Schema,
    closed,
    named,
    or_null,
    text_or,
)
from fedsdg.methods.declared import ChoiceRow, Row
from fedsdg.methods.plugins import CHOICES
from fedsdg.parts import Declared, declared


def config_schema(
    methods: Mapping[str, Row],
    choices: Mapping[str, Mapping[str, ChoiceRow]],
    pages: Mapping[str, Sequence[str]],
    metrics: Iterable[str],
) -> Schema:
    """The schema of the whole config, closed: an unknown key, method or data set is an error.

    ``methods``: the rows of the table; ``choices``: those of "optimisers", "losses" and "attacks";
    ``pages``: the names of all "tables" and "figures"; ``metrics``: those of all metrics.
    """
    federation, training = _section(FederationConfig), _section(TrainingConfig)
    clients = federation["properties"]["clients"]
    federation["properties"]["clients"] = text_or({"const": ALL}, clients)
    for key, (_, table) in CHOICES.items():
        training["properties"][key] = text_or(NAME, _typed(choices[table], {"type": NAME}))
    shown = {key: [*dict.fromkeys([*names, *metrics])] for key, names in pages.items()}
    overrides = {key: training["properties"][key] for key in OVERRIDES}
    entry = text_or(NAME, _typed(methods, {"type": NAME, "name": NAME, **overrides}))
    definitions = {
        "federation": federation,
        "training": training,
        "conditions": _conditions(choices["attacks"]),
    }
    shared: Schema = {name: {"$ref": f"#/$defs/{name}"} for name in definitions}
    properties = {
        "experiment": NAME,
        "about": TEXT,
        "over": {"type": "array", "uniqueItems": True, "items": TEXT},
        "datasets": {**LIST, "items": text_or(DATA_NAME, _own_data())},
        "skews": SKEWS,
        "seeds": SEEDS,
        "trainable": value_of(TRAINABLE),
        "backbone": NAME,
        "backbones": {**named(NAME, _backbone()), "minProperties": 1},
        # The workflow reads the number of clients before the config is parsed.
        "federation": {**shared["federation"], "required": ["clients"]},
        "partition": _section(PartitionSettings),
        "training": shared["training"],
        "conditions": shared["conditions"],
        "scenarios": or_null(named(SCENARIO, or_null(closed({**shared, "parameters": OBJECT})))),
        "adapters": _section(AdaptersConfig),
        "methods": {**LIST, "items": entry},
        "tuned": {"type": ["string", "array", "null"], "items": TEXT},
        "plugins": {"type": "array", "uniqueItems": True, "items": TEXT},
        **{key: {"type": "array", "uniqueItems": True, "items": NAME} for key in pages},
        "checkpoint_seconds": value_of(SECONDS),
        "search": SEARCH,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": definitions,
        **closed(properties, REQUIRED),
        # Where there are plugins, names may be theirs, which `fedsdg` alone knows.
        "if": {"required": ["plugins"], "properties": {"plugins": {"minItems": 1}}},
        "else": _without_plugins(methods, choices["attacks"], shown),
    }


# --- What parts declare ---------------------------------------------------------------------------


def value_of(one: Declared) -> Schema:
    """What a field may hold."""
    if one.choices is not None:
        return {"enum": [*one.choices, *([None] if one.optional else [])]}
    found: Schema = {"type": _KINDS[one.kind]}
    found |= {} if one.range.least is None else {"minimum": one.range.least}
    found |= {} if one.range.most is None else {"maximum": one.range.most}
    if one.several:
        number, found = found, {"type": "array", "minItems": 1, "items": found}
    if one.optional:
        found["type"] = [found["type"], "null"]
    if one.ends:
        ends = {"low": number, "high": number}
        return {"if": OBJECT, "then": closed(ends, list(ends)), "else": found}
    return found


_KINDS = {int: "integer", float: "number", bool: "boolean", str: "string"}


def _section(part: type) -> Schema:
    """A mapping with the fields of a part."""
    fields = declared(part)
    return closed({name: value_of(one) for name, one in fields.items()})


def _own_data() -> Schema:
    """An entry of ``datasets`` that describes one's own images."""
    keys = _section(Source)["properties"]
    return closed({**keys, "name": DATA_NAME}, ["name"])


def _backbone() -> Schema:
    """An entry of ``backbones``; which keys belong to which source is checked with the config."""
    keys: Schema = {}
    for entry in reversed(SOURCES.values()):  # of equal keys, those of a recipe
        keys |= _section(entry)["properties"]
    keys["data"] = {"enum": [LETTERS, *NUM_CLASSES]}
    keys["probe"] = {"enum": list(NUM_CLASSES)}
    return closed({"source": {"enum": list(SOURCES)}, **keys}, ["source"])


def _typed(
    rows: Mapping[str, Row | ChoiceRow], shared: Schema, required: Sequence[str] = ("type",)
) -> Schema:
    """A mapping whose ``type`` is a row: it has the keys that all may have, and its parameters.

    What is of another type may have any keys besides.
    """
    cases = []
    for name, row in rows.items():
        own = {key: value_of(one) for key, one in row.parameters.items()}
        is_it = {**OBJECT, "required": ["type"], "properties": {"type": {"const": name}}}
        # An empty schema and not `true`, which Snakemake cannot read.
        cases.append({"if": is_it, "then": closed({**{key: {} for key in shared}, **own})})
    return {**OBJECT, "required": list(required), "properties": shared, "allOf": cases}


def _conditions(attacks: Mapping[str, ChoiceRow]) -> Schema:
    """All conditions; each may be null, which is as if it were left out."""
    found: Schema = {}
    for name, one in declared(Conditions).items():
        found[name] = _section(one.kind) if one.holds_part else value_of(one)
    who = {key: value_of(one) for key, one in declared(AttackShare).items()}
    found["attack"] = _typed(attacks, {**who, "type": NAME}, list(who))
    return closed({name: or_null(one) for name, one in found.items()})


def _without_plugins(
    methods: Mapping[str, Row],
    attacks: Mapping[str, ChoiceRow],
    shown: Mapping[str, Sequence[str]],
) -> Schema:
    """What names may be where none can be a plugin's; ``shown``: tables and figures."""

    def one_of(names: Iterable[str]) -> Schema:
        return {"enum": list(names)}

    kind = {"properties": {"type": one_of(methods)}}
    attacked = {"properties": {"attack": {"properties": {"type": one_of(attacks)}}}}
    return {
        "properties": {
            "methods": {"items": text_or(one_of(methods), kind)},
            "datasets": {"items": text_or(one_of(NUM_CLASSES), {})},
            **{key: {"items": one_of(names)} for key, names in shown.items()},
            "conditions": attacked,
            "scenarios": {"additionalProperties": {"properties": {"conditions": attacked}}},
        }
    }
