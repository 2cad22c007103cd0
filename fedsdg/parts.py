"""Declared parts: frozen pydantic models whose fields are what a config may set.

A rule, a term, an attack, a section of the config are all declared by the same means::

    class Krum(Rule):
        \"\"\"step = the update whose n - f - 2 nearest neighbours are nearest.\"\"\"

        f: Natural = 1
        "Byzantine clients per round tolerated"

A field states its type, default and range, and in the string below it its meaning. Checks, error
sentences, JSON schema and reference tables come from it. Never imports torch.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from fedsdg.errors import ConfigError, closest, error_sentence, require_one_of, shortened

T = TypeVar("T")
P = TypeVar("P", bound="Part")

Several = Annotated[tuple[T, ...], Field(strict=False, min_length=1)]
"""A list in YAML, a tuple here, with at least one entry."""
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0)]


# A field may take the place of a class attribute of the base.
warnings.filterwarnings("ignore", "Field name .* shadows an attribute")


class Part(BaseModel):
    """A frozen model that refuses unknown keys and converts only whole numbers to floats.

    ``class Sgd(Optimiser, name="sgd")`` registers a part, so that configs can name it, under the
    nearest base that is declared with ``kind=True``, here ``class Optimiser(Part, kind=True)``.

    Raises:
        ConfigError: A value is missing, unknown or out of range; one sentence.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        defer_build=True,
        use_attribute_docstrings=True,
    )
    registered_as: ClassVar[str] = ""
    "the name by which configs choose it"
    kind_name: ClassVar[str] = ""
    "what it is, such as optimiser"
    registry: ClassVar[dict[str, type[Part]]] = {}
    "the parts of this kind by name"

    def __init_subclass__(cls, name: str = "", kind: bool = False, **more: Any) -> None:
        """Register the part, or begin a kind."""
        super().__init_subclass__(**more)
        cls._require_no_slip()
        cls.registered_as = name
        if kind:
            cls.kind_name = cls.__name__.lower()
            cls.registry = {}
        if not name:
            return
        known = cls.registry.get(name, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ConfigError(
                f"{cls.__qualname__} takes the name {name!r}, which exists; rename it"
            )
        cls.registry[name] = cls

    @classmethod
    def _require_no_slip(cls) -> None:
        """Refuse a constant under a name that is one of its kind's but for a letter or two."""
        known = set().union(*map(_constants, cls.mro()[1:]))
        for name in _constants(cls) - known:
            if near := closest(name, sorted(known), 0.85):
                raise ConfigError(f"{cls.__qualname__} sets {name!r}, which nothing reads{near}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse changes."""
        raise ConfigError(
            f"{type(self).__name__}.{name} cannot be set: a part is the same in every round; keep "
            "what changes in what its methods return, such as the state of a rule"
        )

    def __init__(self, **values: Any) -> None:
        """Check the values, each by itself and then together."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise error_sentence(error, type(self), values) from None

    # Else pydantic would call it for parts within parts, whose keys need not be texts.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="wrap")
    @classmethod
    def _in_one_sentence(cls, given: Any, validate: Callable[[Any], Self]) -> Self:
        """Raise ConfigError for a part within another: each part knows its own keys."""
        try:
            return validate(given)
        except ValidationError as error:
            raise error_sentence(error, cls, given) from None

    def model_post_init(self, _context: Any, /) -> None:
        """Check the fields together once each is right by itself."""
        self.check_fields()

    def check_fields(self) -> None:
        """Raise ValueError for fields that do not go together; a subclass calls its base's."""

    @classmethod
    def read(cls, given: Any, place: str = "") -> Self:
        """Validate plain values.

        Args:
            given: A mapping of the fields, or an instance.
            place: Where it stands in a config, for the error.

        Returns:
            The instance.

        Raises:
            ConfigError: In one sentence, what is wrong, where, and the closest known name.
        """
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise error_sentence(error, cls, given, place) from None

    def replaced(self, **values: Any) -> Self:
        """Return the part with other values of some fields, checked again."""
        return type(self)(**{**dict(self), **values})

    def overrides(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, in JSON's types, and its name.

        It is what is hashed: a field that is added later changes no older hash.
        """
        values: dict[str, Any] = {"type": self.registered_as} if self.registered_as else {}
        for key, info in type(self).model_fields.items():
            value = getattr(self, key)
            if info.is_required() or value != info.get_default(call_default_factory=True):
                values[key] = plain(value)
        return values


def _constants(cls: type) -> set[str]:
    """Return the names of what a class itself sets, but for fields, functions and properties."""
    types = vars(cls).get("__annotations__", {})
    return {
        name
        for name, value in vars(cls).items()
        if not (name[0] == "_" or hasattr(value, "__get__"))
        and "ClassVar" in str(types.get(name, "ClassVar"))
    }


@dataclass(frozen=True)
class Chosen:
    """Marks a field that holds a registered part: ``sgd``, or ``{type: sgd, momentum: 0.9}``."""

    kind: type[Part]
    key: str = "type"
    "the key that holds the name"
    default: str | None = None
    "the name if the key is left out"

    def read(self, value: Any) -> Part:
        """Return the part that a config names, or raise ConfigError."""
        if isinstance(value, self.kind):
            return value
        if not isinstance(value, str | Mapping):
            wanted = f"the name of one, or a mapping with a {self.key!r}"
            raise ConfigError(f"is {shortened(value)}, but must be {wanted}")
        given = {self.key: value} if isinstance(value, str) else dict(value)
        name = given.pop(self.key, self.default)
        if name is None:
            raise ConfigError(f"is {shortened(value)}, but must name a {self.key!r}")
        known = self.kind.registry
        require_one_of(known, name, f"names no known {self.kind.kind_name}:")
        return known[name].read(given)

    def __get_pydantic_core_schema__(self, *_: Any) -> core_schema.CoreSchema:
        """Validate by ``read``."""
        serializer = core_schema.plain_serializer_function_ser_schema(_shortest)
        return core_schema.no_info_plain_validator_function(self.read, serialization=serializer)

    def __get_pydantic_json_schema__(self, *_: Any) -> dict[str, Any]:
        """Return the names, alone or in a mapping."""
        name = {"enum": list(self.kind.registry)}
        return {"anyOf": [name, {"type": "object", "properties": {self.key: name}}]}


class Ends(Part):
    """Two ends, where a field may hold a list of numbers or ``{low: 0, high: 1}``."""

    low: Share
    "the least value"
    high: Share
    "the greatest value"

    def check_fields(self) -> None:
        """Refuse ends in the wrong order."""
        if self.low > self.high:
            raise ValueError(f"low = {self.low} is above high = {self.high}; exchange them")


def _shortest(part: Part) -> Any:
    """Return the name of a part if all else are defaults, else its overrides."""
    overrides = part.overrides()
    return overrides if len(overrides) > 1 else part.registered_as


def plain(value: Any) -> Any:
    """Return a value of a field in JSON's types, a part as its overrides."""
    if isinstance(value, Part):
        return value.overrides()
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list | tuple) else value


# --- Parameters of parts within parts -------------------------------------------------------------


def parameters(*parts: Part) -> dict[str, FieldInfo]:
    """Return what may be set of parts and of the parts within them.

    Args:
        parts: Such as the rule, the terms and the personalisation of a method.

    Returns:
        A field by name, with the part's value as its default.

    Raises:
        ValueError: Two parts own a parameter of the same name.
    """
    fields: dict[str, FieldInfo] = {}
    owners: dict[str, str] = {}
    for part in parts:
        for owner, key, info in _owned(part):
            if key in fields:
                both = f"both {owners[key]} and {owner} own a parameter {key!r}"
                raise ValueError(f"{both}; rename one of them")
            owners[key] = owner
            fields[key] = info
    return fields


def _owned(part: Part) -> Iterator[tuple[str, str, FieldInfo]]:
    for key, value in part:
        if isinstance(value, Part) and not isinstance(value, Ends):
            yield from _owned(value)
        else:
            info = copy.copy(type(part).model_fields[key])
            info.default = value
            info.default_factory = None
            yield type(part).__name__, key, info


def with_parameters(part: P, values: Mapping[str, Any]) -> P:
    """Return a part with other values of its parameters, and of those of the parts within it.

    Args:
        part: Such as a rule.
        values: Those that neither it nor its parts have are left out.
    """
    changed: dict[str, Any] = {}
    for key, value in part:
        if isinstance(value, Part) and not isinstance(value, Ends):
            inner = with_parameters(value, values)
            if inner is not value:
                changed[key] = inner
        elif key in values:
            changed[key] = values[key]
    return part.replaced(**changed) if changed else part


def model_of(fields: Mapping[str, FieldInfo]) -> type[Part]:
    """Return a model with these fields, which checks values of parameters.

    Args:
        fields: By name, as ``parameters`` returns them.
    """
    types: dict[str, Any] = {key: (info.rebuild_annotation(), info) for key, info in fields.items()}
    # Its fields come with their meanings; pydantic need not look for a source.
    options = {"use_attribute_docstrings": False}
    return create_model("Parameters", __base__=Part, __cls_kwargs__=options, **types)
