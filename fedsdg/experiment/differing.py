"""Clients that name the classes otherwise, or see other images: who, in which way, in a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedsdg.data.images import Pictures
from fedsdg.experiment.conditions import own_code
from fedsdg.experiment.run_config import RunConfig
from fedsdg.federation.client_shares import clients_in
from fedsdg.next_federation.client_groups import client_groups
from fedsdg.rng import stream

if TYPE_CHECKING:
    from fedsdg.next_federation.transforms import View

# Addresses below a condition's stream: who differs is drawn at the stream itself.
_OF_CLIENT, _OF_GROUP = 1, 2


def groups_of(run: RunConfig) -> np.ndarray | None:
    """The group [K] of every client: −1 where it agrees with the others; None: nobody is to differ.

    Who differs depends on the seed, the condition and its share, and on nothing else.
    """
    clients = run.federation.clients
    for name, one in run.conditions.differences().items():
        groups = one.groups if one.per == "group" else None
        generator = stream(name.replace("_", "-"), run.seed)
        return client_groups(clients, clients_in(one.share, clients), groups, generator)
    return None


def label_tables(run: RunConfig, num_classes: int) -> np.ndarray:
    """What each client calls each class, [K, C] int64; itself where they agree.

    Raises ``ValueError`` for a cycle over more labels than there are.
    """
    tables = np.tile(np.arange(num_classes), (run.federation.clients, 1))
    conflict, group = run.conditions.label_conflict, groups_of(run)
    if conflict is None or group is None:
        return tables
    conflict.require_classes(num_classes, run.dataset)
    for client in np.flatnonzero(group >= 0).tolist():
        address = _address(conflict.per, client, group)
        generator = stream("label-conflict", run.seed, *address)
        tables[client] = own_code(conflict, "label_cycle")(num_classes, conflict.classes, generator)
    return tables


def views_of(run: RunConfig) -> list[View | None]:
    """How each of the K clients sees images; None: as they are. Equal ones are one object."""
    clients, shift, group = run.federation.clients, run.conditions.feature_shift, groups_of(run)
    if shift is None or group is None:
        return [None] * clients
    made: dict[tuple[int, ...], View] = {}
    views: list[View | None] = []
    for client in range(clients):
        if group[client] < 0:
            views.append(None)
            continue
        # Inverted images, and those turned by one angle, are the same to everybody.
        same = shift.kind == "invert" or shift.angle is not None
        address = () if same else _address(shift.per, client, group)

        def draw(*keys: int, below: tuple[int, ...] = address) -> np.random.Generator:
            return stream("feature-shift", run.seed, *below, *keys)

        view = own_code(shift, "View")(shift.kind, draw, shift.angle)
        views.append(made.setdefault(address, view))
    return views


def as_seen(view: View, pictures: Pictures, numbers: np.ndarray, device: torch.device) -> Tensor:
    """The images [n, C, H, W] with these sample numbers, seen so, as a model takes them."""
    return torch.from_numpy(pictures.prepared(view(pictures.stored[numbers], numbers))).to(device)


def _address(per: str, client: int, group: np.ndarray) -> tuple[int, int]:
    return (_OF_CLIENT, client) if per == "client" else (_OF_GROUP, int(group[client]))
