"""A rule that weights clients by their agreement with the server's own update (FLTrust).

Run it with ``conditions: {benchmark_images: 100}``, which gives the server samples of its own.
"""

import numpy as np

from fedsdg.aggregation.types import Combination, Plan, Rule
from fedsdg.methods.method import Method


class FLTrust(Rule):
    """step = sum_k w_k Delta_k ||s|| / ||Delta_k||, w_k ~ max(0, cos(Delta_k, s)).

    s is the update from training the server's model on its own samples (Cao et al. 2021).
    """

    reads = ("update", "server")

    def plan(self, rows, context, state):
        """Return the step and the weights of a round."""
        updates = rows["update"].numbers()
        reference = rows["server"].numbers()[0]
        length = np.linalg.norm(reference)
        norms = np.maximum(np.linalg.norm(updates, axis=1), 1e-300)
        trust = np.maximum(updates @ reference / norms / max(length, 1e-300), 0)
        if not trust.any():  # If nobody is trusted, no step.
            return Plan(Combination(np.zeros(len(trust))), None, state)
        weights = trust / trust.sum()
        return Plan(Combination(weights * length / norms), weights, state)


METHODS = {"fltrust": Method("FLTrust", rule=FLTrust())}
