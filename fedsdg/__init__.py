"""FedSDG Bench: a benchmark and reproducibility suite for federated fine-tuning.

In Python: ``fedsdg.run``, ``fedsdg.compare`` and ``fedsdg.records``, imported when they are first
used; ``fedsdg.aggregation`` alone aggregates what you have.
"""

from fedsdg.lazy import at_first_use

__version__ = "0.3.0"

_DOORS = {
    "compare": "experiment.compare",
    "records": "experiment.notebook",
    "run": "experiment.notebook",
}

__getattr__ = at_first_use(__name__, _DOORS)


def __dir__() -> list[str]:
    return sorted([*globals(), *_DOORS])
