"""What a declared part is: a frozen dataclass whose fields are its parameters.

A rule, a term, a personalisation, an attack, a section of the config are all declared by the same
means::

    @part
    class Krum(Rule):
        \"\"\"step = the update whose n − f − 2 nearest neighbours are nearest.\"\"\"

        f: Annotated[int, Range(0)] = 1
        \"f, Byzantine clients per round tolerated\"

The field *is* the parameter: its type, its default, its range, and as the string below it what it
means. Nothing of it is stated anywhere else. Values are checked when a part is made, in Python or
from a config (:func:`make`), and what is wrong is one sentence. Never imports torch.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import linecache
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from fedsdg.files import hint

T = TypeVar("T")

#: What a field may hold besides other parts.
PLAIN = (int, float, str, bool)
#: Letters of a value in an error.
LONGEST = 100
#: In place of the default of a field that has none.
REQUIRED = type("Required", (), {"__repr__": lambda self: "required"})()


@dataclass(frozen=True)
class Range:
    """From which number to which, both included; None: as far as a float reaches."""

    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Absent:
    """The value that a field had, in effect, before it was added; hashes leave it out."""

    value: Any


class Ends(NamedTuple):
    """Two ends, where a field may hold a list of numbers or these: ``{low: 0, high: 1}``."""

    low: float
    high: float


@dataclass(frozen=True)
class Declared:
    """A field as everybody reads it: what a config may set, a page shows, a schema checks.

    ``kind``: int, float, str or bool, or the type of a part that the field holds. ``choices``: the
    words, or None. ``several``: a list of such values; ``ends``: or a mapping of low and high.
    ``absent``: the value that records without the field stand for, where that is not the default.
    """

    name: str
    kind: Any
    default: Any = REQUIRED
    meaning: str = ""
    range: Range = Range()
    choices: tuple[Any, ...] | None = None
    optional: bool = False
    several: bool = False
    ends: bool = False
    absent: Absent | None = None

    @property
    def holds_part(self) -> bool:
        """Whether the value is itself a part, whose fields count as this part's own."""
        return self.kind not in PLAIN

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is REQUIRED

    def check(self, value: Any, where: str) -> Any:
        """Return ``value`` in its proper type, or raise ``ValueError`` saying what it should be."""
        if value is None and self.optional:
            return None
        if self.several:
            return self._list(value, where)
        if self.choices is not None:
            return self._word(value, where)
        if self.holds_part:
            return value
        if self.kind is bool:
            if not isinstance(value, bool):
                raise ValueError(f"{where} is {shown(value)}, but must be true or false")
            return value
        if self.kind is str:
            if not isinstance(value, str):
                raise ValueError(f"{where} is {shown(value)}, but must be a text")
            return value
        return self._number(value, where)

    def _list(self, value: Any, where: str) -> Any:
        one = dataclasses.replace(self, several=False, optional=False)
        if self.ends and isinstance(value, Mapping) and set(value) == {"low", "high"}:
            value = Ends(value["low"], value["high"])
        if self.ends and isinstance(value, Ends):
            low, high = (one.check(getattr(value, e), f"{where}.{e}") for e in ("low", "high"))
            if low > high:
                raise ValueError(f"{where}: low = {low} is above high = {high}; exchange them")
            return Ends(low, high)
        if not isinstance(value, list | tuple) or not value:
            ends = ", or a mapping of low and high" if self.ends else ""
            kinds = "texts" if self.kind is str else "numbers"
            raise ValueError(f"{where} is {shown(value)}, but must be a list of {kinds}{ends}")
        return tuple(one.check(entry, f"{where}[{k}]") for k, entry in enumerate(value))

    def _word(self, value: Any, where: str) -> Any:
        assert self.choices is not None
        for choice in self.choices:  # 1 == True, but would be another run.
            if type(choice) is type(value) and choice == value:
                return choice
        allowed = ", ".join(map(_said, self.choices))
        raise ValueError(f"{where} is {shown(value)}, but must be one of {allowed}")

    def _number(self, value: Any, where: str) -> int | float:
        if isinstance(value, str):
            raise ValueError(
                f"{where} is the text {shown(value)}, but must be a number "
                "(YAML reads 1e-4 as text: write 0.0001 or 1.0e-4)"
            )
        if type(value).__module__ == "numpy" and not getattr(value, "ndim", 0):
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{where} is {shown(value)}, but must be a number")
        finite = abs(value) <= sys.float_info.max
        if self.kind is int and finite and value != int(value):
            raise ValueError(f"{where} is {value}, but must be a whole number")
        if self.range.least is not None and not value >= self.range.least:
            raise ValueError(f"{where} is {shown(value)}, but must be at least {self.range.least}")
        if self.range.most is not None and value > self.range.most:
            raise ValueError(f"{where} is {shown(value)}, but must be at most {self.range.most}")
        if not finite:
            raise ValueError(f"{where} is {shown(value)}, but must be a finite number")
        return int(value) if self.kind is int else float(value)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def part(cls: type[T]) -> type[T]:
    """Declare a class as a part: a frozen dataclass that checks its fields when it is made.

    Reading the declaration raises ``TypeError`` for a number without a range and for a field
    without a meaning.
    """
    _add_check(cls)
    made = dataclass(frozen=True)(cls)
    frame = sys._getframe(1)
    file, names = frame.f_code.co_filename, frame.f_globals
    # Read when it is first asked for: a field may be of a type that is defined further down.
    made.__declaring__ = staticmethod(lambda: _read(made, file, names))  # type: ignore[attr-defined]
    return made


def is_part(value: Any) -> bool:
    """Whether a value, or a class, is declared by :func:`part`."""
    return hasattr(value, "__declaring__")


def declared(of: Any) -> Mapping[str, Declared]:
    """The fields of a part, or of its class, by name, in their order."""
    cls = of if isinstance(of, type) else type(of)
    found: Mapping[str, Declared] | None = cls.__dict__.get("__declared__")
    if found is None:
        found = types.MappingProxyType(cls.__declaring__())  # type: ignore[attr-defined]
        cls.__declared__ = found  # type: ignore[attr-defined]
    return found


def parameters(*parts: Any) -> dict[str, Declared]:
    """What may be set of parts and of the parts within them, each with its value as the default.

    Raises ``ValueError`` where two parts own a parameter of the same name.
    """
    found: dict[str, Declared] = {}
    owners: dict[str, str] = {}
    for one in parts:
        for owner, entry in _owned(one):
            if entry.name in found:
                raise ValueError(
                    f"both {owners[entry.name]} and {owner} own a parameter {entry.name!r}; "
                    "rename one of them"
                )
            owners[entry.name], found[entry.name] = owner, entry
    return found


def _owned(one: Any) -> Iterator[tuple[str, Declared]]:
    for name, entry in declared(one).items():
        value = getattr(one, name)
        if is_part(value):
            yield from _owned(value)
        elif not entry.holds_part:
            yield type(one).__name__, dataclasses.replace(entry, default=value)


def replaced(one: T, values: Mapping[str, Any]) -> T:
    """A part with other values of its parameters, and of those of the parts within it."""
    changed = {}
    for name, entry in declared(one).items():
        value = getattr(one, name)
        if is_part(value) and (inner := replaced(value, values)) is not value:
            changed[name] = inner
        elif not entry.holds_part and name in values:
            changed[name] = values[name]
    return dataclasses.replace(one, **changed) if changed else one  # type: ignore[type-var]


def checked(given: Mapping[str, Any], known: Mapping[str, Declared], where: str) -> dict[str, Any]:
    """The values of ``given`` in their proper types.

    Raises ``ValueError``, with the place, for an unknown key and for a value out of range.
    """
    for key in given:
        if key not in known:
            raise ValueError(f"{where}: unknown key {shown(key)}{hint(key, known)}")
    return {key: known[key].check(value, f"{where}.{key}") for key, value in given.items()}


def make(cls: type[T], given: Any, where: str) -> T:
    """A part from what a config says of its fields, defaults for the others.

    A field that holds a part takes a mapping. Raises ``ValueError``, with the place, for what is no
    mapping, an unknown or a lacking key, and a value out of range.
    """
    known = declared(cls)
    values = dict(mapping(given, where))
    for key, entry in known.items():
        if entry.holds_part and is_part(entry.kind) and isinstance(values.get(key), Mapping):
            values[key] = make(entry.kind, values[key], f"{where}.{key}")
        if entry.required and key not in values:
            raise ValueError(f"{where} lacks the key {key!r}: {entry.meaning}")
    found = checked(values, known, where)
    try:
        return cls(**found)
    except ValueError as error:  # Of fields that do not go together.
        raise ValueError(f"{where}: {error}") from error


def plain(value: Any) -> Any:
    """A value of a field in JSON's types: ends as a mapping, a tuple as a list."""
    if isinstance(value, Ends):
        return value._asdict()
    return list(value) if isinstance(value, tuple) else value


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """``value`` if it is a mapping, else ``ValueError``."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is {shown(value)}, but must be a mapping of keys to values")
    return value


def shown(value: Any) -> str:
    """A value as part of a sentence: on one line, and not too long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # A whole number of thousands of digits.
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _said(choice: Any) -> str:
    """A choice as YAML writes it."""
    return choice if isinstance(choice, str) else json.dumps(choice)


# --- Reading a declaration ------------------------------------------------------------------------


def _add_check(cls: type) -> None:
    """Let ``__post_init__`` begin with the check of all fields."""
    own = cls.__dict__.get("__post_init__")

    def __post_init__(self: Any) -> None:
        for one in declared(self).values():
            given = getattr(self, one.name)
            value = one.check(given, one.name)
            if value is not given:
                object.__setattr__(self, one.name, value)
        if own is not None:
            own(self)
        elif (inherited := getattr(super(cls, self), "__post_init__", None)) is not None:
            inherited()

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]


def _read(cls: type, file: str, names: Mapping[str, Any]) -> dict[str, Declared]:
    own = vars(cls).get("__annotations__", {})
    inherited: dict[str, Declared] = {}
    for kind in reversed(cls.__mro__[1:]):
        inherited |= declared(kind) if "__declaring__" in vars(kind) else {}
    meanings = meanings_below(file, cls.__name__)
    found = {}
    for entry in dataclasses.fields(cls):  # type: ignore[arg-type]
        if entry.name in own:
            said = own[entry.name]
            said = eval(said, dict(names), dict(vars(cls))) if isinstance(said, str) else said
            one = _field(f"{cls.__name__}.{entry.name}", said, meanings.get(entry.name, ""))
        else:
            one = inherited[entry.name]
        found[entry.name] = dataclasses.replace(one, name=entry.name, default=_default(entry))
    return found


def _field(place: str, annotation: Any, meaning: str) -> Declared:
    """What an annotation says of a field: a kind with a range, or a ``Declared`` of one's own."""
    said: tuple[Any, ...] = ()
    if get_origin(annotation) is Annotated:
        annotation, *rest = get_args(annotation)
        said = tuple(rest)
    special = next((one for one in said if isinstance(one, Declared)), None)
    if special is not None:
        return dataclasses.replace(special, meaning=meaning)
    union = get_origin(annotation) in (Union, types.UnionType)
    kinds = get_args(annotation) if union else (annotation,)
    optional = type(None) in kinds
    ends = Ends in kinds
    (kind,) = (one for one in kinds if one not in (type(None), Ends))
    several = get_origin(kind) is tuple
    kind = get_args(kind)[0] if several else kind
    choices = get_args(kind) if get_origin(kind) is Literal else None
    kind = str if choices is not None else kind
    limits = next((one for one in said if isinstance(one, Range)), None)
    if kind in (int, float) and limits is None:
        raise TypeError(f"{place} has no range; write Annotated[{kind.__name__}, Range(…)]")
    if kind in PLAIN and not meaning:
        raise TypeError(f"{place} has no meaning; write it as a string below the field")
    return Declared(
        name="",
        kind=kind,
        meaning=meaning,
        range=limits or Range(),
        choices=choices,
        optional=optional,
        several=several,
        ends=ends,
        absent=next((one for one in said if isinstance(one, Absent)), None),
    )


def _default(entry: Any) -> Any:
    if entry.default_factory is not dataclasses.MISSING:
        return entry.default_factory()
    return REQUIRED if entry.default is dataclasses.MISSING else entry.default


def meanings_below(file: str, name: str) -> dict[str, str]:
    """Return the strings below the fields and values of a class, by name.

    Args:
        file: the module's file, from which they are read.
        name: the class.
    """
    text = "".join(linecache.getlines(file))
    found = [node for node in _classes(text) if node.name == name]
    return _strings_below(found[-1]) if found else {}


@cache
def _classes(text: str) -> tuple[ast.ClassDef, ...]:
    tree = ast.parse(text)
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _strings_below(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for above, below in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(above, ast.AnnAssign | ast.Assign)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            target = above.targets[0] if isinstance(above, ast.Assign) else above.target
            found[ast.unparse(target)] = " ".join(below.value.value.split())
    return found
