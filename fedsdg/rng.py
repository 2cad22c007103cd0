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

import numpy as np

# The position of a name is part of every result: append, never reorder.
STREAMS = (
    "partition",
    "cohort",
    "init",
    "batches",
    "attack",
    "evaluation",
    "pretraining",
    "search",
    "label-noise",
    "dropout",
    "speed",
    "stopping",
    "probe",
    "contribution",
    "label-conflict",
    "feature-shift",
    "held-out",
    "anchors",
    "refresh",
    "new-clients",
    "test-split",
    "quantisation",
    "server",
    "own-images",
)


def stream(name: str, seed: int, *keys: int) -> np.random.Generator:
    """The generator of one purpose: a child of ``SeedSequence(seed)`` at ``(name, *keys)``.

    ``keys`` address sub-streams, for instance ``stream("batches", seed, round, client, epoch)``.
    Raises ``ValueError`` for an unknown name or a negative seed or key.
    """
    if name not in STREAMS:
        raise ValueError(
            f"no random stream is named {name!r}; the streams are {', '.join(STREAMS)}"
        )
    if seed < 0 or any(key < 0 for key in keys):
        raise ValueError(f"seed {seed} and keys {keys} must be non-negative integers")
    sequence = np.random.SeedSequence(seed, spawn_key=(STREAMS.index(name), *keys))
    return np.random.Generator(np.random.PCG64(sequence))
