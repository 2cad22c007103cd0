"""What is said to users in one sentence: remarks, and errors in a config with place and remedy.

Never imports torch.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

LONGEST = 100
"""Letters of a value in a sentence."""


class ConfigError(ValueError):
    """One sentence about a value, and the place where it stands.

    Args:
        text: What follows the place: "is 3, but …"; with a colon before it, a whole sentence.
        place: Such as ``training.eta_g``; may be empty.
    """

    def __init__(self, text: str, place: str = "") -> None:
        self.text = text
        self.place = place
        between = "" if text.startswith(":") else " "
        super().__init__(f"{place}{between}{text}" if place else text.removeprefix(": "))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, str]]:
        """Let workers send it to their parent."""
        return type(self), (self.text, self.place)

    def within(self, outer: str) -> ConfigError:
        """Return the error as seen from a place further out."""
        return ConfigError(self.text, joined(outer, self.place))


def remark(sentence: str) -> None:
    """Print a line on standard error, where it is no part of a command's answer."""
    print(f"fedsdg: {sentence}", file=sys.stderr, flush=True)


_FORMS = {
    "missing": "lacks the key {key!r}{meaning}",
    "extra_forbidden": "has an unknown key {key!r}{close}",
    "invalid_key": "has the key {key}, but keys must be texts",
    "literal_error": "is {value}, but must be one of {expected}{close}",
    "greater_than": "is {value}, but must be above {gt:.12g}",
    "greater_than_equal": "is {value}, but must be at least {ge:.12g}",
    "less_than": "is {value}, but must be below {lt:.12g}",
    "less_than_equal": "is {value}, but must be at most {le:.12g}",
    "too_short": "is {value}, but must be a list with at least one entry",
    "int": "is {value}, but must be a whole number",
    "float": "is {value}, but must be a number",
    "finite": "is {value}, but must be a finite number",
    "bool": "is {value}, but must be true or false",
    "string": "is {value}, but must be a text",
    "tuple": "is {value}, but must be a list",
    "model": "is {value}, but must be a mapping of keys to values",
    "dict": "is {value}, but must be a mapping of keys to values",
}


def error_sentence(
    error: ValidationError, model: type[BaseModel], given: Any, place: str = ""
) -> ConfigError:
    """Turn the first error of pydantic into one sentence.

    Args:
        error: The errors of validating values by the model.
        model: It knows the keys that there are, and what they mean.
        given: The values.
        place: Where the values stand in the config.

    Returns:
        The error to raise, with the place of the value within.
    """
    first = error.errors(include_url=False)[0]
    kind = first["type"]
    context = first.get("ctx", {})
    of_a_key = kind in ("missing", "extra_forbidden", "invalid_key")
    location = first["loc"][:-1] if of_a_key else first["loc"]
    place = joined(place, _located(location, given))
    cause = context.get("error")
    if isinstance(cause, ConfigError):
        return cause.within(place)
    if cause is not None:
        return ConfigError(f": {cause}", place)
    key = str(first["loc"][-1]) if first["loc"] else ""
    form = _FORMS.get(kind) or _FORMS.get(kind.partition("_")[0], f"is {{value}}: {first['msg']}")
    fields = model.model_fields
    meaning = getattr(fields.get(key), "description", None)
    close = hint(key, fields) if kind == "extra_forbidden" else ""
    if kind == "literal_error":
        choices = str(context["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
        close = closest(first["input"], choices)
    text = form.format(
        value=shortened(first["input"]),
        key=key,
        close=close,
        meaning=f": {meaning}" if meaning else "",
        **context,
    )
    return ConfigError(text, place)


def _located(location: tuple[Any, ...], given: Any) -> str:
    """Return a place in words.

    A location also names the branches of unions, which are no keys; these are left out.
    """
    place = ""
    for key in location:
        try:
            given = given[key]
        except (KeyError, IndexError, TypeError):
            continue
        place = joined(place, f"[{key}]" if isinstance(key, int) else key)
    return place


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models of a type such as ``dict[str, Model | None]``."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


def joined(outer: str, inner: str) -> str:
    """Return a place within a place.

    Args:
        outer: Such as ``training``; may be empty.
        inner: Such as ``eta_g`` or ``[3]``; may be empty.

    Example:
        >>> joined("training", "eta_g")
        'training.eta_g'
    """
    dot = "." if outer and inner and not inner.startswith("[") else ""
    return f"{outer}{dot}{inner}"


def require_one_of(known: Iterable[str], word: Any, fault: str, place: str = "") -> None:
    """Raise ConfigError with the closest known name for a word that is none of them.

    Args:
        known: The names that exist.
        word: What was written.
        fault: The beginning of the sentence, which ends with the word: "there is no metric".
        place: Where the word stands in a config.
    """
    names = list(known)
    if word not in names:
        raise ConfigError(f"{fault} {shortened(word)}{hint(word, names)}", place)


def hint(word: Any, known: Iterable[str]) -> str:
    """Return the end of a sentence: the closest known name, else all of them.

    Args:
        word: What was written.
        known: The names that exist.

    Example:
        >>> hint("krumm", ["krum", "mean"])
        "; did you mean 'krum'?"
        >>> hint("median", ["trimmed-mean", "coordinate-median", "geometric-median"])
        "; did you mean 'geometric-median' or 'coordinate-median'?"
    """
    names = [str(name) for name in known]
    others = f"; known are {', '.join(names)}" if names else "; there are none"
    return closest(word, names, 0.4) or others


def closest(word: Any, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return the end of a sentence: short names that end with the word, else the closest one.

    Args:
        word: What was written.
        known: The names that exist.
        likeness: That a close name has at least, between 0 and 1.
    """
    names = list(known)
    longer = sorted((name for name in names if name.endswith(f"-{word}")), key=len)
    close = longer[:2] or difflib.get_close_matches(str(word), names, n=1, cutoff=likeness)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def shortened(value: Any) -> str:
    """Return a value as part of a sentence: on one line, and not too long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # A whole number of thousands of digits.
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
