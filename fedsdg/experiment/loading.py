"""Loading a data set by its *source*: a built-in name, a declaration, or a plugin's function."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from fedsdg.data import sources
from fedsdg.data.datasets import ImageData
from fedsdg.data.files import listing
from fedsdg.data.reading import load, survey


class Loadable(Protocol):
    """A data set that knows how it is loaded, as plugins offer them."""

    @property
    def name(self) -> str: ...

    def load(self) -> ImageData: ...

    def __hash__(self) -> int: ...


#: A built-in name, the declaration of one's own, or what loads itself.
Source = str | sources.Source | Loadable


def load_images(source: Source) -> ImageData:
    """Load a data set by name, or as it is declared.

    Raises FileNotFoundError where there is nothing to load, ValueError where it is not as declared.
    """
    if isinstance(source, str):
        return load(sources.built_in(source))
    return load(source) if isinstance(source, sources.Source) else source.load()


def survey_of(own: sources.Source) -> ImageData:
    """Return a data set without decoding an image; raises as ``load_images``."""
    return _survey(own, listing(own))


@lru_cache(maxsize=4)
def _survey(own: sources.Source, _files: str) -> ImageData:
    return survey(own)
