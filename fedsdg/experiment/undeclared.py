"""Pieces of the config's JSON schema, and the schemas of the keys that no part declares.

Never imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsdg.experiment.config_values import SKEW
from fedsdg.experiment.search_space import TWO_STAGE

Schema = dict[str, Any]

DATA_NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]*$"}
NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._+-]*$"}
SCENARIO: Schema = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._~-]*$"}
TEXT: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 1}
FROM_ZERO: Schema = {"type": "integer", "minimum": 0}
OBJECT: Schema = {"type": "object"}


def closed(properties: Schema, required: Sequence[str] = ()) -> Schema:
    """A mapping of these keys and no others."""
    found = {"type": "object", "additionalProperties": False, "properties": properties}
    return found | ({"required": list(required)} if required else {})


def named(name: Schema, value: Schema) -> Schema:
    """A mapping from any names to values of one kind."""
    return {"type": "object", "propertyNames": name, "additionalProperties": value}


def text_or(text: Schema, other: Schema) -> Schema:
    """A text of one kind, or something else."""
    return {"if": {"type": "string"}, "then": text, "else": other}


def or_null(schema: Schema) -> Schema:
    """The same, or null."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {**schema, "type": [*kinds, *([] if "null" in kinds else ["null"])]}


# --- Keys that no part declares -------------------------------------------------------------------

#: Keys that a config must have.
REQUIRED = ["experiment", "datasets", "backbone", "backbones", "skews", "seeds", "federation"]
REQUIRED += ["partition", "training", "adapters", "methods"]
LIST: Schema = {"type": "array", "minItems": 1, "uniqueItems": True}
SEEDS: Schema = {**LIST, "items": FROM_ZERO}
# Texts, not numbers: 1 and 1.0 would be two jobs, 0.1 and 0.10 one. α = 0 is no concentration.
_SKEW = f"^(?!dirichlet~[0.]*$)({SKEW.pattern})$"
SKEWS: Schema = {**LIST, "items": {"type": "string", "pattern": _SKEW}}

_AXES: Schema = {"type": "object", "minProperties": 1}
# Null takes an axis away that a file before this one gave.
_AXES |= {"additionalProperties": or_null({"type": "array", "minItems": 1})}
SEARCH = closed(
    {
        "seeds": SEEDS,
        "trials": text_or({"const": TWO_STAGE}, {"type": ["integer", "null"], "minimum": 1}),
        "skews": or_null({"type": "array", "uniqueItems": True, "items": {"type": "string"}}),
        # Labels of methods; `fedsdg check` knows them, and what parameters they have.
        "space": named(NAME, _AXES),
    }
)
