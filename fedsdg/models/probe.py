"""The linear probe: what frozen features are worth for a task the backbone has not seen."""

from __future__ import annotations

import numpy as np


def linear_probe(features: np.ndarray, labels: np.ndarray, order: np.ndarray) -> float:
    """Accuracy of a logistic regression fitted on every other sample, tested on the rest.

    Args:
        features: [n, dim]; standardised with the mean and deviation of the fitted half.
        labels: [n].
        order: a permutation of the n samples.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits

    fit, test = order[::2], order[1::2]
    with threadpool_limits(1, user_api="blas"):  # the figure must not depend on the machine's cores
        probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        probe.fit(features[fit], labels[fit])
        return float(probe.score(features[test], labels[test]))
