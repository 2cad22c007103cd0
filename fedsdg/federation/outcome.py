"""What a federation asks of a rule's outcome beside what `Rule.checked_plan` does."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from fedsdg.aggregation.errors import RuleFault
from fedsdg.aggregation.types import Aggregate


def check_aggregate(
    rule: Any, outcome: Aggregate, models: int, clients: int, by_client: Collection[str]
) -> None:
    """Check the outcome of a rule.

    A diagnostic of clients may hold NaN, for clients that the rule did not look at.

    Args:
        rule: The rule, for its name.
        outcome: What it returned.
        models: C, the server's models.
        clients: M, the clients whose updates have arrived.
        by_client: The diagnostics that are recorded for each client.

    Raises:
        RuleFault: There are not C steps, a diagnostic of clients is not M numbers, or one of the
            round is not finite.
    """
    who = f"the rule {type(rule).__name__} returned"
    if len(outcome.steps) != models:
        raise RuleFault(
            f"{who} {len(outcome.steps)} steps; return {models}, one for each model of the server"
        )
    for name, given in outcome.diagnostics.items():
        value = np.asarray(given)
        if name in by_client and value.shape != (clients,):
            raise RuleFault(
                f"{who} the diagnostic {name!r} of shape {list(value.shape)}; it is recorded with "
                f"the clients: return {[clients]}"
            )
        if value.ndim == 0 and not np.isfinite(value):
            raise RuleFault(f"{who} {value} as its diagnostic {name!r}; return a finite number")
