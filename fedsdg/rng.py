"""Named random streams, so that no part of an experiment can disturb another.

Every random decision draws from the stream of its purpose. Evaluating twice as often, adding a
method or attacking a round therefore changes neither the partition nor the cohorts nor the
order of anybody's batches.

    >>> float(stream("cohort", 0, 3).random()) == float(stream("cohort", 0, 3).random())
    True
    >>> float(stream("cohort", 0, 3).random()) == float(stream("batches", 0, 3).random())
    False
"""

from __future__ import annotations

import hashlib

import numpy as np

#: The numbers of the streams that recorded runs draw from. They are part of every result, and stay;
#: any other name has a number of its own, from 2³¹ on, whatever else there is.
NUMBERS = {
    "partition": 0,
    "cohort": 1,
    "init": 2,
    "batches": 3,
    "attack": 4,
    "evaluation": 5,
    "pretraining": 6,
    "search": 7,
    "label-noise": 8,
    "dropout": 9,
    "speed": 10,
    "stopping": 11,
    "probe": 12,
    "contribution": 13,
    "label-conflict": 14,
    "feature-shift": 15,
    "held-out": 16,
    "anchors": 17,
    "refresh": 18,
    "new-clients": 19,
    "test-split": 20,
    "quantisation": 21,
    "server": 22,
    "own-images": 23,
}


def stream(name: str, seed: int, *keys: int) -> np.random.Generator:
    """The generator of one purpose: a child of ``SeedSequence(seed)`` at ``(number, *keys)``.

    The number is that of the name.

    Args:
        name: The purpose, in any words.
        seed: That of the run.
        keys: They address sub-streams, for instance ``stream("batches", seed, round, client)``.

    Raises:
        ValueError: A negative seed or key.
    """
    if seed < 0 or any(key < 0 for key in keys):
        raise ValueError(f"seed {seed} and keys {keys} must be non-negative integers")
    sequence = np.random.SeedSequence(seed, spawn_key=(number_of(name), *keys))
    return np.random.Generator(np.random.PCG64(sequence))


def number_of(name: str) -> int:
    """The number of a stream, below 2³²."""
    drawn = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return NUMBERS.get(name, drawn | 2**31)
