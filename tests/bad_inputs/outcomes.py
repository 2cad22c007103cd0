"""What a case may end in, and how many of them there are."""

import os
import signal
from contextlib import contextmanager

import numpy as np

SEED = 20260
PATIENCE = 300
"""Seconds that no case ever needs, however busy the machine."""

#: Set by `make everything`: all cases of the doors that need files and processes, and all kills.
EVERYTHING = os.environ.get("FEDSDG_TESTS") == "everything"


class Hangs(BaseException):
    """Not an Exception, so that nothing takes it for an error of its own."""


def generator(door, number):
    """The numbers that a case is made of."""
    return np.random.default_rng([SEED, *door.encode(), number])


def pick(rng, values):
    return values[int(rng.integers(len(values)))]


def damaged(rng, raw, head=None):
    """Bytes that are others: cut off, longer, random, none, or a few bits flipped.

    Most of the bits are flipped in the first ``head`` bytes, where that is given.
    """
    how = pick(rng, ["cut", "longer", "random", "empty", "flip", "flip", "flip"])
    if how == "cut":
        return raw[: int(rng.integers(len(raw)))]
    if how == "longer":
        return raw + rng.bytes(int(rng.integers(1, 20)))
    if how == "random":
        return rng.bytes(int(rng.integers(200)))
    if how == "empty":
        return b""
    content = bytearray(raw)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(head if head and rng.random() < 0.7 else len(raw)))
        content[at] ^= 1 << int(rng.integers(8))
    return bytes(content)


@contextmanager
def in_time():
    """Hangs for what takes longer than anything may."""

    def late(*_):
        raise Hangs

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def documented(error, *, kinds=(ValueError,)):
    """What is wrong with an error, if anything: it has to be of these kinds, and one sentence."""
    if not isinstance(error, kinds):
        return f"{type(error).__name__}: {error}"
    text = str(error)
    if "\n" in text or not 10 < len(text) < 2000:
        return f"no sentence: {text[:300]!r} ({len(text)} letters)"
    return None


def judged(door, numbers, check):
    """What is wrong, by number, with the cases that `check(rng)` finds fault with (a text)."""
    wrong = {}
    with in_time():
        for number in numbers:
            if fault := check(generator(door, number)):
                wrong[number] = fault
                if len(wrong) == 20:
                    break
    return wrong
