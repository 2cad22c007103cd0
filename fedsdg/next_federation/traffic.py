"""How many bytes a round sends, measured on serialised messages.

A message is made of communicated parameters; private factors and gates have no place in it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from safetensors.numpy import save

from fedsdg.next_federation.conditions.condition import Participation
from fedsdg.next_federation.conditions.quantisation import Quantisation
from fedsdg.next_federation.model_names import Layout
from fedsdg.next_federation.probes import Measured
from fedsdg.next_federation.setup import Server, Setup, Updates
from fedsdg.next_federation.store import Counts


def traffic(
    setup: Setup,
    server: Server,
    counts: Counts,
    t: int,
    participation: Participation,
    sent: Updates,
    measured: list[Measured],
) -> dict[str, int]:
    """Return the bytes that all clients of round t upload and download.

    Args:
        setup: The federation.
        server: The server before the round.
        counts: Of all clients, before the round.
        t: The round.
        participation: Who took part.
        sent: What was sent.
        measured: What was measured, for which clients may have downloaded further models.
    """
    if setup.sharing.central:
        return {"bytes_up": 0, "bytes_down": 0}
    down = _bytes_down(setup, server, counts, t, participation, sent, measured)
    return {"bytes_up": _bytes_up(setup, t, sent), "bytes_down": down}


def _bytes_down(
    setup: Setup,
    server: Server,
    counts: Counts,
    t: int,
    participation: Participation,
    sent: Updates,
    measured: list[Measured],
) -> int:
    layout = setup.layout
    senders = sent.clients
    whole = message_bytes(layout, ("",))
    first = message_bytes(layout, ("", *setup.received(server)))
    others = participation.left + len(participation.silent)
    tried = sum(probe.models_down for probe in measured)
    down = (len(senders) + others) * first + len(senders) * tried * whole
    entries = setup.rule.partial(server.state, senders, layout.d)
    if entries is not None:
        for count in entries[entries < layout.d].tolist():
            down -= max(0, whole - _bytes_of_entries(layout.d, count))
    if layout.turns and setup.compute is None and t > 1:
        # Clients of the round before lack only what changed in it.
        present = int((counts.trained[senders] == t - 1).sum())
        down -= present * (whole - message_bytes(layout.of_round(t - 1), ("",)))
    return down


def _bytes_up(setup: Setup, t: int, sent: Updates) -> int:
    layout = setup.layout.of_round(t)
    vectors = []
    numbers = []
    for name, rows in sent.rows.items():
        if name == "update":
            continue
        if rows.shape[1:] == (layout.d,):
            vectors.append(name)
        else:
            numbers.append((name, rows.shape[1]))
    each = message_bytes(layout, ("", *vectors), tuple(numbers))
    up = len(sent) * each
    quantisation = setup.condition(Quantisation)
    if quantisation is not None:
        weak = int(setup.facts["weak"][sent.clients].sum())
        beside = message_bytes(layout, tuple(vectors), tuple(numbers))
        up += weak * (beside + quantisation.message_bytes(layout) - each)
    return up


@lru_cache(maxsize=256)
def message_bytes(
    layout: Layout, vectors: tuple[str, ...], numbers: tuple[tuple[str, int], ...] = ()
) -> int:
    """Return the bytes of a safetensors message; a message of nothing has none.

    Args:
        layout: Of the parameters; those that do not train are not sent.
        vectors: Names of vectors [d] of parameters; the model or its update is called "".
        numbers: Name and count of further numbers in float64.
    """
    tensors = {name: np.zeros(count) for name, count in numbers}
    for vector in vectors:
        for spec in layout.communicated:
            if spec.trainable:
                name = f"{vector}.{spec.name}" if vector else spec.name
                tensors[name] = np.zeros(spec.shape, dtype=np.float32)
    return len(save(tensors)) if tensors else 0


@lru_cache(maxsize=4096)
def _bytes_of_entries(d: int, count: int) -> int:
    """Return the bytes of `count` of d entries: one bit for each entry, and the values."""
    bits = np.zeros(-(-d // 8), dtype=np.uint8)
    return len(save({"entries": bits, "values": np.zeros(count, dtype=np.float32)}))
