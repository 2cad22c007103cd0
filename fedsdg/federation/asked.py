"""What clients measure and what the server is told, where a rule asks for it.

A rule says in words what it asks (``UploadRequest``, ``Prior``), for it knows no data. Here is who
provides it; imported by name, so that a run reaches what its own rule asks for alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType

import numpy as np
from torch import Tensor

from fedsdg.aggregation.types import Rule, UploadRequest
from fedsdg.data.partition import Partition
from fedsdg.federation.probes import Probe
from fedsdg.parts import declared, is_part

#: Kind of measurement -> module and class of the probe.
PROBES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "scores": ("fedsdg.federation.probes", "ModelScores"),
        "losses": ("fedsdg.federation.probes", "CrossLosses"),
        "fisher": ("fedsdg.federation.fisher", "FisherInformation"),
    }
)
#: Where it is found out what a rule is told of all clients.
KNOWLEDGE = "fedsdg.federation.knowledge"


def probes_of(rule: Rule) -> tuple[Probe, ...]:
    """The probes that provide what a rule asks clients to measure, in its order."""
    return tuple(map(_probe, rule.probes))


def _probe(ask: UploadRequest) -> Probe:
    module, name = PROBES[ask.kind]
    settings = {"sample": ask.sample, "rounds": ask.rounds} if ask.kind == "scores" else {}
    made: Probe = getattr(import_module(module), name)(**settings)
    return made


def told(
    rule: Rule, state: Mapping[str, Tensor], partition: Partition, group: np.ndarray | None
) -> dict[str, Tensor]:
    """A rule's state before the first round, with what it is to be told of all clients.

    ``group`` [K]: of clients that differ, -1 of the others; None where there is no such condition.
    """
    if not rule.server_prior:
        return dict(state)
    return import_module(KNOWLEDGE).tell(rule, state, partition, group)  # type: ignore[no-any-return]


def modules_asked(rule: Rule) -> tuple[str, ...]:
    """The modules that a run imports for what its rule asks, by whichever of its choices."""
    ways = [rule, *_other_choices(rule)]
    probes = (PROBES[ask.kind][0] for way in ways for ask in way.probes)
    known = [KNOWLEDGE] if any(way.server_prior for way in ways) else []
    return tuple(sorted({*probes, *known}))


def _other_choices(rule: Rule) -> Iterator[Rule]:
    for name, one in (declared(rule) if is_part(rule) else {}).items():
        for choice in one.choices or ():
            yield dataclasses.replace(rule, **{name: choice})  # type: ignore[type-var]
