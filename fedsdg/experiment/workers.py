"""Worker pool in which a failing or killed task affects no other.

A task that raises, or whose process is killed, has an outcome like any other, and the tasks after
it are done by a new process. No worker outlives the process that started it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, TypeVar

from fedsdg.config.plugins import load
from fedsdg.errors import ConfigError
from fedsdg.experiment.interruption import Stopped

Task = TypeVar("Task")
Note = Callable[[Any], None]
"""With which a task reports on its way."""

ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
}
"""Memory that is freed is kept for the next step: glibc would give large tensors back to the kernel
and fault them in again, which costs a training run a large part of its time. oneDNN keeps kernels
for 256 shapes rather than 1024, which in bfloat16 take over half a gigabyte."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""cuBLAS reads it when it starts: with a workspace of a fixed size its sums repeat."""
PATIENCE = 30
"""Seconds in which a worker that is told to end can save its state."""


def environments(device: str, threads: int, jobs: int) -> list[dict[str, str]]:
    """Return what each worker finds in its environment besides that of this process.

    Workers take the visible GPUs in turn; each sees its own alone. Libraries read these variables
    when they are loaded, so they cannot be set later.

    Args:
        device: The device of the runs, `cpu` or `cuda`.
        threads: The number of threads of each worker.
        jobs: The number of workers.
    """
    common = {**ALLOCATOR, **dict.fromkeys(THREADS, str(threads))}
    if device != "cuda":
        return [common] * jobs
    gpus = visible_gpus() or [""]  # Without a GPU runs say so.
    common |= {**WORKSPACE, "FEDSDG_SHARING": str(-(-jobs // len(gpus)))}
    return [{**common, "CUDA_VISIBLE_DEVICES": gpus[k % len(gpus)]} for k in range(jobs)]


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use; CUDA is not started."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    with contextlib.suppress(FileNotFoundError):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
        return [str(k) for k in range(f"\n{listed.stdout}".count("\nGPU "))]
    return []


def run_tasks(
    function: Callable[[Task, Note], Any],
    tasks: Iterable[Task],
    workers: Iterable[Mapping[str, str]],
    plugins: tuple[str, ...] = (),
    on_note: Callable[[Task, Any], None] = lambda *_: None,
    deadline: float | None = None,
) -> Generator[tuple[Task, Any], None, None]:
    """Yield tasks as they end, each with ``function(task, note)`` or a ``RuntimeError``.

    The workers end with the generator, however it ends; a task that is then at work is terminated.

    Args:
        function: A function of a module, so that workers find it. What it reports with
            ``note(value)`` reaches ``on_note(task, value)`` here.
        tasks: They start in order; one is taken when a worker is free for it.
        workers: What each finds in its environment; as many tasks run side by side.
        plugins: Files or modules that workers load before their first task.
        on_note: Called with what tasks report.
        deadline: The time of the monotonic clock after which no task is started.
    """
    processes = [_Worker(environment, plugins) for environment in workers]
    in_time = (task for task in tasks if deadline is None or time.monotonic() < deadline)
    try:
        while True:
            free = [worker for worker in processes if worker.task is None]
            # In this order no task is taken for which no worker is free.
            for worker, task in zip(free, in_time):  # noqa: B905
                worker.start(function, task)
            busy = {w.connection: w for w in processes if w.task is not None}
            if not busy:
                return
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                task = worker.task
                finished, value = worker.receive()
                if finished:
                    worker.task = None
                    yield task, value
                else:
                    on_note(task, value)
    finally:
        for worker in processes:
            worker.ask_to_end()
        for worker in processes:
            worker.end()


class _Worker:
    """A process that does one task after another, and is replaced when it was killed."""

    task: Any = None
    "what the process is doing; None: it is idle"
    connection: Connection
    "on which the process answers"
    _process: BaseProcess | None = None

    def __init__(self, environment: Mapping[str, str], plugins: tuple[str, ...]) -> None:
        self._environment = environment
        self._plugins = plugins

    def start(self, function: Callable[..., Any], task: Any) -> None:
        """Give the process a task."""
        self.task = task
        if self._process is None or not self._process.is_alive():
            self._process = self._new_process()
        # If the process has just ended, that is the outcome of the task.
        with contextlib.suppress(OSError):
            self.connection.send((function, task))

    def _new_process(self) -> BaseProcess:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._plugins), daemon=True)
        before = dict(os.environ)
        os.environ.update(self._environment)
        try:
            process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()  # so that the connection ends with the process
        return process

    def receive(self) -> tuple[bool, Any]:
        """Return whether the task is finished, and its result or what it reports."""
        assert self._process is not None
        with contextlib.suppress(EOFError, OSError):
            finished, value = self.connection.recv()
            return finished, value
        self._process.join()
        code = self._process.exitcode or 0
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        hint = "; memory may be short: fewer --jobs need less" if code == -signal.SIGKILL else ""
        return True, RuntimeError(f"its process ended {how}{hint}")

    def ask_to_end(self) -> None:
        """Let the process end; one that is at work saves its state."""
        if self._process is not None:
            if self.task is not None:
                self._process.terminate()
            self.connection.close()

    def end(self) -> None:
        """Wait for the end of the process, and kill it if that takes too long."""
        if self._process is not None:
            self._process.join(PATIENCE)
            self._process.kill()
            self._process.join()


def _serve(connection: Connection, plugins: tuple[str, ...]) -> None:
    """Do tasks until the connection ends."""
    # Ctrl-C reaches every process of a terminal; the parent decides, and then terminates.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_follow_parent, daemon=True).start()

    def note(value: Any) -> None:
        try:
            connection.send((False, value))
        except OSError:
            # The parent is gone, which is no fault of the task: it ends as by a signal.
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        try:
            for place in plugins:
                load(place)
        except ConfigError as error:
            while True:  # What a task is made of may be the plugin's.
                connection.recv_bytes()
                connection.send((True, RuntimeError(str(error))))
        while True:
            function, task = connection.recv()
            try:
                outcome = function(task, note)
            except Exception as error:
                # Missing or wrong data are one sentence.
                if not isinstance(error, ValueError | OSError):
                    traceback.print_exc(file=sys.stderr)
                outcome = RuntimeError(str(error))
            connection.send((True, outcome))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Stopped:  # A task has saved its state.
        sys.exit(128 + signal.SIGTERM)


def _stop(number: int, _frame: FrameType | None) -> None:
    """End what is done as by a signal; later signals change nothing."""
    signal.signal(number, signal.SIG_IGN)
    raise Stopped(number)


def _follow_parent() -> None:
    """End as by a signal, and so with a checkpoint, when the parent has ended, however it did."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
