"""A server that holds several models."""

from __future__ import annotations

from fedsdg.aggregation.rules.clusters import Clustered
from fedsdg.aggregation.rules.neighbours import Pens
from fedsdg.methods.method import Method

FAMILY = "Several models"

ROWS = {
    "clustered": Method(
        title="Clusters",
        rule=Clustered(),
        heads_apart=True,
        fixed=("beta", "partials", "nearness"),
        formula=(
            "θ_c = Σ_k n_k θ_k / Σ_j n_j over the cohort's clients of cluster c; a client"
            " moves to the cluster whose model has the lowest loss on its data"
        ),
        source="Ghosh et al. 2020; the chapter on personalisation",
    ),
    "semi-global": Method(
        title="Semi-global models",
        rule=Clustered(beta=0.5),
        heads_apart=True,
        formula=(
            "as Clusters, but clients of cluster c start from (1 − β) θ_c + β mean_c θ_c;"
            " with P partial aggregates the mean is over the clusters of c's group, of P "
            "groups of clusters nearest to each other"
        ),
        source="the chapter on personalisation",
    ),
    "pens": Method(
        title="PENS",
        rule=Pens(),
        formula=(
            "a client starts from the mean of its own last model and of others': first of"
            " the m with the lowest loss on its data of l that it tried, later of its "
            "neighbours', those it picked more often than m/l of the times"
        ),
        source="Onoszko et al. 2021",
    ),
}
