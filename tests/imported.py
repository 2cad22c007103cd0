"""Processes forked from one that has imported everything, so that they start at once.

A new interpreter for each, as `spawn` gives, takes longer to import than a small grid takes to run.
The tests of processes themselves, those that interrupt a grid, and the smallest real experiment
start new interpreters, as everybody's grid does.
"""

import multiprocessing
import multiprocessing.forkserver
import os
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Context:
    """What `multiprocessing.get_context` gives, as far as it is needed."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.imports", __name__])
        kept = os.environ.get("PYTHONPATH")
        # Whatever folder the test works in, the server finds these modules.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), kept)))
        try:
            multiprocessing.forkserver.ensure_running()
        finally:
            del os.environ["PYTHONPATH"]
            if kept is not None:
                os.environ["PYTHONPATH"] = kept
        self.Pipe = self._context.Pipe

    def Process(
        self, target: Callable[..., object], args: tuple[Any, ...], daemon: bool
    ) -> BaseProcess:
        given = (dict(os.environ), target, *args)
        return self._context.Process(target=_surrounded, args=given, daemon=daemon)


def _surrounded(environment: dict[str, str], target: Callable[..., object], *args: Any) -> None:
    """A new interpreter would have the environment of whoever starts it."""
    os.environ.clear()
    os.environ.update(environment)
    target(*args)
