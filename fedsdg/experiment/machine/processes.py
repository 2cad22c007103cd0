"""Worker processes in which a failing or killed task affects no other.

A task that raises, or whose process is killed, has an outcome like any other, and the tasks after
it are done. A process that is killed between two tasks is replaced.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, TypeVar

from fedsdg.experiment.machine.devices import WORKSPACE

Task = TypeVar("Task")

#: glibc gives large tensors back to the kernel when they are freed and faults them in again at the
#: next step, which costs a training run a large part of its time. With these it keeps the memory;
#: other C libraries ignore them. oneDNN keeps a kernel for each of 1024 shapes of a product; in
#: bfloat16, where clients' last batches have all sizes, these take over half a gigabyte and are
#: seldom met again.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

#: With which a task says something on its way.
Note = Callable[[Any], None]

#: Seconds that a process has to clean up in when it is told to end.
PATIENCE = 30


def surroundings(device: str, threads: int, jobs: int, apart: bool) -> dict[str, str]:
    """Return what the processes that train find in their environment.

    Args:
        device: what they train on.
        threads: how many threads each has.
        jobs: how many runs are done side by side.
        apart: whether each process has its own GPU.
    """
    found = {**ALLOCATOR, **dict.fromkeys(THREADS, str(threads))}
    if device == "cuda":
        found |= WORKSPACE
        if not apart:
            found["FEDSDG_SHARING"] = str(jobs)  # read in federation/passes.py
    return found


@dataclass(frozen=True)
class Failed:
    """A task without a result. ``kind``: the exception's name, or "killed" with its process."""

    kind: str
    message: str

    def __str__(self) -> str:
        return self.message


class Workers:
    """At most ``count`` processes, started when there is something to do.

    ``environment`` is added to theirs: what a library reads when it is loaded (threads, allocator)
    cannot be set later. Used as a context, which ends the processes.
    """

    def __init__(self, count: int, environment: Mapping[str, str]) -> None:
        self._count = count
        self._environment = dict(environment)
        self._context = get_context("spawn")
        self._idle: list[tuple[Connection, BaseProcess]] = []
        self._busy: dict[Connection, BaseProcess] = {}

    def map(
        self,
        function: Callable[[Task, Note], Any],
        tasks: Iterable[Task],
        noted: Callable[[Task, Any], None] = lambda *_: None,
    ) -> Iterator[tuple[Task, Any]]:
        """Yield (task, ``function(task, note)`` or `Failed`) as they come; tasks start in order.

        ``function`` is a module's own, so that the processes find it. What it says with
        ``note(anything)`` on the way reaches ``noted(task, anything)`` here. A task is taken from
        ``tasks`` when a process is free for it.
        """
        left = iter(tasks)
        at_work: dict[Connection, Task] = {}
        while True:
            while len(at_work) < self._count:
                try:
                    task = next(left)
                except StopIteration:
                    break
                at_work[self._hand_over((function, task))] = task
            if not at_work:
                return
            for ready in wait(list(at_work)):
                assert isinstance(ready, Connection)
                task = at_work[ready]
                try:
                    over, content = ready.recv()
                except (EOFError, OSError):
                    over, content = True, self._bury(ready)
                else:
                    if over:
                        self._idle.append((ready, self._busy.pop(ready)))
                if over:
                    del at_work[ready]
                    yield task, content
                else:
                    noted(task, content)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._busy.values():
            process.terminate()
        everyone = [*self._idle, *self._busy.items()]
        self._idle, self._busy = [], {}
        for connection, _ in everyone:
            connection.close()  # whoever waits for a task ends by this
        for _, process in everyone:
            process.join(PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()

    def _hand_over(self, work: tuple[Callable[[Task, Note], Any], Task]) -> Connection:
        """Give work to an idle process that still lives, else to a new one."""
        while self._idle:
            connection, self._busy[connection] = self._idle.pop()
            try:
                connection.send(work)
                return connection
            except OSError:  # It was killed while it was idle.
                self._bury(connection)
        connection, self._busy[connection] = self._start()
        # If it has ended already, that is the outcome of its task.
        with contextlib.suppress(OSError):
            connection.send(work)
        return connection

    def _start(self) -> tuple[Connection, BaseProcess]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        before = dict(os.environ)
        os.environ.update(self._environment)
        try:
            process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()  # so that the end of the process is the end of the line
        return ours, process

    def _bury(self, connection: Connection) -> Failed:
        process = self._busy.pop(connection)
        connection.close()
        process.join()
        code = process.exitcode or 0
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        hint = "; memory may be short: fewer --jobs need less" if code == -signal.SIGKILL else ""
        return Failed("killed", f"its process ended {how}{hint}")


def _follow_parent() -> None:
    """End with the process that started this one, however it ended."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _serve(connection: Connection) -> None:
    # Ctrl-C reaches every process of a terminal; the parent alone decides, and then terminates.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    threading.Thread(target=_follow_parent, daemon=True).start()

    def note(content: Any) -> None:
        try:
            connection.send((False, content))
        except OSError:
            # Nobody listens any more, which is no fault of the task: it ends as by a signal.
            os.kill(os.getpid(), signal.SIGTERM)

    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # no parent, no work
        while True:
            function, task = connection.recv()
            try:
                outcome = function(task, note)
            except KeyboardInterrupt:  # The task was stopped by SIGTERM, and has put its work away.
                sys.exit(128 + signal.SIGTERM)
            except Exception as error:
                traceback.print_exc(file=sys.stderr)
                outcome = Failed(type(error).__name__, str(error))
            connection.send((True, outcome))
