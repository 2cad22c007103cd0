"""From runs to records, tables, figures, claims and the page.

``from fedsdg.analysis import metric`` enters a metric of one's own; see its docstring.
"""

from fedsdg.lazy import at_first_use

# Pandas takes half a second.
__getattr__ = at_first_use(__name__, {"metric": "metrics"})
