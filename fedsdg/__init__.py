"""FedSDG Bench: a benchmark and reproducibility suite for federated fine-tuning.

In Python: ``fedsdg.run``, ``fedsdg.compare`` and ``fedsdg.records``, imported when they are first
used; ``fedsdg.aggregation`` alone aggregates what you have.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_DOORS = {
    "compare": "fedsdg.experiment.compare",
    "records": "fedsdg.experiment.notebook",
    "run": "fedsdg.experiment.notebook",
}


def __getattr__(name: str) -> Any:
    if name in _DOORS:
        return getattr(import_module(_DOORS[name]), name)
    raise AttributeError(f"module 'fedsdg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_DOORS])
