"""Parts of the first edition's tables as parts of this room. It goes when the tables name these."""

from typing import Any

from fedsdg.next_federation import (
    data_sharing,
    losses,
    optimisers,
    personalisation,
    stopping,
    terms,
)
from fedsdg.next_federation.conditions import (
    attack,
    compute,
    difference,
    dropout,
    label_noise,
    quantisation,
)
from fedsdg.parts import declared, is_part

_NAMES = {
    "Pooling": data_sharing.DataSharing,
    "LabelConflictConfig": difference.LabelConflict,
    "FeatureShiftConfig": difference.FeatureShift,
    "LabelNoiseConfig": label_noise.LabelNoise,
    "ComputeConfig": compute.Compute,
    "QuantisationConfig": quantisation.Quantisation,
    "DropoutConfig": dropout.Dropout,
}
_MODULES = (attack, data_sharing, losses, optimisers, personalisation, stopping, terms)


def new_part(given: Any) -> Any:
    """Return the part of this room with the name and the values of a part of the first edition.

    What is from this room, or from a plugin that derives from it, stays as it is.
    """
    name = type(given).__name__
    kind = _NAMES.get(name) or next(
        (getattr(module, name) for module in _MODULES if hasattr(module, name)), None
    )
    if kind is None or isinstance(given, kind):
        return given
    values = {}
    if is_part(given):
        known = declared(kind)
        values = {key: getattr(given, key) for key in declared(given) if key in known}
    return kind(**values)
