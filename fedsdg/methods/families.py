"""All methods, by family and in the order of tables and figures. Imports every part, and torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedsdg.methods import (
    averaging,
    clustered,
    contribution,
    fedsdg,
    lora,
    personalised,
    references,
    robust,
)
from fedsdg.methods.method import Method

#: Title of a family -> its rows.
FAMILIES: Mapping[str, Mapping[str, Method]] = MappingProxyType(
    {
        family.FAMILY: family.ROWS
        for family in (
            fedsdg,
            averaging,
            robust,
            personalised,
            lora,
            clustered,
            contribution,
            references,
        )
    }
)

#: Whose places in the record's tables and figures are settled; others follow by family, and what
#: is no federation ends every list.
_FIRST = (
    "fedsdg",
    "fedavg",
    "fedavg-uniform",
    "fedavg-sgd",
    "fine-tune",
    "fedprox",
    "scaffold",
    "krum",
    "multikrum",
    "geometric-median",
    "coordinate-median",
    "trimmed-mean",
    "cgsv",
    "fedsgd",
    "fedprox-inexact",
    "fedcurv",
    "fedrep",
    "ditto",
    "interpolate",
    "fedper",
    "fedsdg+head",
    "ffa-lora",
    "fedsa-lora",
    "rolora",
    "apfl",
    "feddpa",
    "fedsdg-official",
    "fedsdg-official-aligned",
    "cgsv-xu",
    "focus",
    "clustered",
    "semi-global",
    "pens",
    "screened",
    "fedsdg+screened",
    "fedsdg+geometric-median",
    "fedsdg+multikrum",
)


def _ordered() -> dict[str, Method]:
    known = {name: row for rows in FAMILIES.values() for name, row in rows.items()}
    last = references.ROWS
    names = dict.fromkeys([*_FIRST, *(name for name in known if name not in last), *last])
    return {name: known[name] for name in names}


METHODS: Mapping[str, Method] = MappingProxyType(_ordered())
