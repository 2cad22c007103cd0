"""SIGINT and SIGTERM as an exception, so that a run can save its state before it ends."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end; the arguments are its number and a sentence.

    Like ``KeyboardInterrupt`` it passes through ``except Exception``.
    """

    @property
    def exit_code(self) -> int:
        """The status that a shell reports for a process that the signal ended: 130 or 143."""
        return 128 + int(self.args[0])

    def __str__(self) -> str:
        """Return the sentence."""
        return str(self.args[1]) if len(self.args) > 1 else "interrupted"


@contextlib.contextmanager
def stopped_by_signals(*, at_once: bool = True) -> Iterator[Callable[[], None]]:
    """Raise ``Stopped`` at the first SIGINT or SIGTERM within the block; ignore later ones.

    Terminals and schedulers send several signals at once, while the state is being saved. A signal
    that the process was started to ignore stays ignored. Outside the main thread nothing changes.

    Args:
        at_once: Raise it wherever the block then is; else in ``check`` and at the end of the block,
            for work that must not be broken off in the middle of a step.

    Yields:
        ``check``, to be called between steps. It also raises what Python drops: an exception of a
        signal handler that was called inside a finaliser.
    """
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        if received:
            return
        received.append(number)
        if at_once:
            raise Stopped(number)
        os.write(2, b"fedsdg: stopping after this step\n")

    def check() -> None:
        if received:
            raise Stopped(received[0])

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    heeded = [n for n in SIGNALS if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, handle) for number in heeded}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not at_once:
        check()
