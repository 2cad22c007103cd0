"""The command ``fedsdg``: thin, and lazy, so that help and tables start without torch."""

from fedsdg.cli.main import main

__all__ = ["main"]
