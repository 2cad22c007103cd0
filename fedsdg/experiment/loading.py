"""Loading a data set by its *source*: a name of the table, or the description of one's own."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from fedsdg.data.datasets import ImageData, load_dataset
from fedsdg.data.own_data import OwnData
from fedsdg.rng import stream

if TYPE_CHECKING:
    from fedsdg.data.own_images import Survey


class Loadable(Protocol):
    """A data set that knows how it is loaded, as plugins offer them."""

    @property
    def name(self) -> str: ...

    def load(self) -> ImageData: ...

    def __hash__(self) -> int: ...


#: A name of the table, the description of one's own, or what loads itself.
Source = str | OwnData | Loadable


def load_images(source: Source) -> ImageData:
    """Load a data set by name, or as it is described.

    A set without a test split gets one from the stream ``test-split``, the same for all seeds.

    Raises FileNotFoundError where there is nothing to load, ValueError where it is not as declared.
    """
    if isinstance(source, str):
        return load_dataset(source)
    if not isinstance(source, OwnData):
        return source.load()
    from fedsdg.data.own_images import load_own

    return load_own(source, stream("test-split", 0))


def survey_of(own: OwnData) -> Survey:
    """What is known of one's own data without decoding an image; raises as ``load_images``."""
    from fedsdg.data.data_files import listing

    return _survey(own, listing(own))


@lru_cache(maxsize=4)
def _survey(own: OwnData, _files: str) -> Survey:
    from fedsdg.data.own_images import survey

    return survey(own, stream("test-split", 0))
