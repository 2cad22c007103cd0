"""The wheel, which one page is followed with."""

from tests.built import built, installed  # noqa: F401
