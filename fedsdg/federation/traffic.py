"""How many bytes a round sends, measured on serialised messages.

A message is made of communicated parameters; private factors and gates have no place in it.
"""

from functools import lru_cache

import numpy as np
from safetensors.numpy import save

from fedsdg.federation.conditions.quantisation import Quantisation
from fedsdg.federation.observers.observer import RoundView
from fedsdg.models import Layout


def add_traffic(view: RoundView) -> None:
    """Add the bytes that all clients of a round upload and download to its record."""
    central = view.setup.sharing.central
    view.row["bytes_up"] = 0 if central else _bytes_up(view)
    view.row["bytes_down"] = 0 if central else _bytes_down(view)


def _bytes_down(view: RoundView) -> int:
    setup = view.setup
    layout = setup.layout
    senders = view.sent.clients
    whole = message_bytes(layout, ("",))
    first = message_bytes(layout, ("", *setup.received(view.before)))
    others = view.participation.left + len(view.participation.silent)
    tried = sum(probe.models_down for probe in view.measured)
    down = (len(senders) + others) * first + len(senders) * tried * whole
    entries = setup.rule.partial(view.before.state, senders, layout.d)
    if entries is not None:
        for count in entries[entries < layout.d].tolist():
            down -= max(0, whole - _bytes_of_entries(layout.d, count))
    if layout.turns and setup.compute is None and view.t > 1:
        # Clients of the round before lack only what changed in it.
        present = int((view.store.counts.trained[senders] == view.t - 1).sum())
        down -= present * (whole - message_bytes(layout.of_round(view.t - 1), ("",)))
    return down


def _bytes_up(view: RoundView) -> int:
    layout = view.setup.layout.of_round(view.t)
    widths = {name: x.shape[1] for name, x in view.sent.rows.items() if name != "update"}
    vectors = tuple(name for name, width in widths.items() if width == layout.d)
    numbers = tuple(item for item in widths.items() if item[0] not in vectors)
    each = message_bytes(layout, ("", *vectors), numbers)
    quantisation = view.setup.condition(Quantisation)
    if quantisation is None:
        return len(view.sent) * each
    weak = int(view.setup.data.facts["weak"][view.sent.clients].sum())
    quantised = message_bytes(layout, vectors, numbers) + quantisation.message_bytes(layout)
    return (len(view.sent) - weak) * each + weak * quantised


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
