"""From runs to records, tables, figures, claims and the page.

``from fedsdg.analysis import metric`` enters a metric of one's own; see its docstring.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import ``metric`` when it is asked for, since pandas takes half a second."""
    if name == "metric":
        from fedsdg.analysis.metrics import metric

        return metric
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
