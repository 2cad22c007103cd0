"""What the ledger can ask of a record: one number per seed, for one row in one cell.

Every measure is a function of a record, a cell, a row and its own options; ``MEASURES`` maps names
to them. A record from before a column was written cannot answer, and says so (``LackingError``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fedsdg.analysis.measures import accuracies, costs, gates, weights
from fedsdg.analysis.measures.records import Case, Record, Values


@dataclass(frozen=True)
class Measure:
    """A measure and how its number is read.

    unit: what stands behind the number in print. options: the names it takes, with their choices
    where these are few. exact: the number is counted, so that any number of seeds decides.
    correlation: it is one, in [−1, 1]. bounds: where it can lie (a difference of two has none).
    needs: options that must be given. learned: it depends on how far training has come.
    """

    function: Callable[[Record, Case], Values]
    unit: str
    meaning: str
    options: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    exact: bool = False
    correlation: bool = False
    bounds: tuple[float, float] | None = None
    needs: tuple[str, ...] = ()
    learned: bool = True


_PERCENT = (0.0, 100.0)
_CLIENTS = MappingProxyType({"clients": ("all", "agree", "conflict")})
_ACCURACIES = (
    "personal_accuracy",
    "personal_worst_decile",
    "personal_accuracy_weighted",
    "val_accuracy",
    "expected_accuracy",
    "expected_worst_decile",
    "expected_accuracy_a",
    "expected_accuracy_b",
    "expected_accuracy_new",
    "global_accuracy",
    "global_val_accuracy",
)
_CREDITS = ("weight", "alignment", "credibility", "contribution", "shapley_estimate")

MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "accuracy": Measure(
            accuracies.accuracy,
            "%",
            "an accuracy as reported: the mean over the last quarter's evaluations",
            {"metric": _ACCURACIES},
            bounds=_PERCENT,
            needs=("metric",),
        ),
        "swing": Measure(
            accuracies.swing,
            "points",
            "mean change, without its sign, of global accuracy between evaluations in the second "
            "half of a run",
        ),
        "penalty": Measure(
            gates.penalty,
            "",
            "Σ of the gates, or Σ of squares of the private parameters, mean over a cohort: after "
            "the first round, in the last quarter of the rounds, or the largest of all rounds",
            {"of": ("gate", "private"), "at": ("first", "quarter", "largest")},
            needs=("of",),
        ),
        "gate share": Measure(
            gates.gate_share,
            "%",
            "share of a client's gates in a range, mean over clients",
            {"above": None, "below": None, **_CLIENTS},
            bounds=_PERCENT,
        ),
        "gate extremes": Measure(
            gates.gate_extremes,
            "%",
            "share of a client's gates below 0.1 or above 0.9, mean over clients",
            _CLIENTS,
            bounds=_PERCENT,
        ),
        "gate": Measure(gates.gate_mean, "", "mean gate of a client, mean over clients", _CLIENTS),
        "spread over blocks": Measure(
            gates.within_client,
            "",
            "largest minus smallest gate, or private share, of a client's blocks, mean over "
            "clients",
            {"of": ("gates", "private_shares"), **_CLIENTS},
        ),
        "private share": Measure(
            gates.private_share,
            "",
            "‖m B_p A_p‖ / (‖m B_p A_p‖ + ‖B_g A_g‖), mean over blocks and clients",
            _CLIENTS,
        ),
        "private ratio": Measure(
            gates.private_ratio, "", "‖θ_p‖ / ‖θ_g‖ of the adapters, mean over clients", _CLIENTS
        ),
        "gates and steps": Measure(
            gates.gates_and_steps,
            "",
            "Spearman's ρ over clients between mean gate and local steps taken",
            _CLIENTS,
            correlation=True,
        ),
        "relative weight": Measure(
            weights.relative_weight,
            "",
            "mean weight of these clients in units of an equal share 1/M",
            _CLIENTS,
        ),
        "effective clients": Measure(
            weights.effective_clients,
            "%",
            "exp(entropy of the weights) / M, mean over rounds",
            bounds=_PERCENT,
        ),
        "credit": Measure(
            weights.credit,
            "",
            "Spearman's ρ over clients between what a method says of them and a yardstick",
            {"of": _CREDITS, "against": ("noise_rate", "shapley")},
            correlation=True,
            needs=("of", "against"),
        ),
        "bytes": Measure(
            costs.bytes_sent, "MB", "all bytes sent, both ways", exact=True, learned=False
        ),
        "scalars": Measure(
            costs.scalars,
            "",
            "bytes sent both ways over 4 bytes · 2 M d_g · rounds",
            exact=True,
            learned=False,
        ),
        "share of the model": Measure(
            costs.share_of_model,
            "%",
            "parameters sent over the weights of the backbone's blocks",
            exact=True,
            learned=False,
        ),
        "private size": Measure(
            costs.private_size,
            "",
            "parameters kept by a client over parameters sent",
            exact=True,
            learned=False,
        ),
        "degenerate rounds": Measure(
            weights.degenerate,
            "rounds",
            "rounds in which all alignments were zero",
            exact=True,
            learned=False,
        ),
        "aggregation time": Measure(
            costs.aggregation_time,
            "ms",
            "an aggregation on the machine of the record, mean over rounds",
            learned=False,
        ),
        "aggregation share": Measure(
            costs.aggregation_share,
            "%",
            "seconds of aggregation over seconds of training on the machine of the record",
            learned=False,
        ),
        "simulated time": Measure(
            costs.simulated_seconds, "s", "the simulated clock at the end of a run", learned=False
        ),
    }
)
