"""What the columns that every run's records have mean, in words: see docs/records.md.

Other columns are explained by whoever fills them (``files/columns.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Of several tables alike.
_COMMON = {
    "round": "round, from 1",
    "client": "number of the client, 0 … K−1",
    "gate_penalty": "Σ_l m_l of Eq. 5, without λ₁",
    "private_penalty": "‖θ_p‖² of Eq. 5, without λ₂",
}
_EXPECTED = (
    "on the whole global test set as the client sees it (its labels, its view, weighted by its "
    "classes)"
)

ROUNDS: Mapping[str, str] = MappingProxyType(
    {
        "round": _COMMON["round"],
        "train_loss": "training loss, mean over the cohort",
        "gate_penalty": f"{_COMMON['gate_penalty']}; mean over the cohort",
        "private_penalty": f"{_COMMON['private_penalty']}; mean over the cohort",
        "update_norm_mean": "mean of ‖Δ_k‖ over the updates that arrived",
        "update_norm_max": "largest ‖Δ_k‖",
        "drift": "√(mean ‖Δ_k‖² − ‖mean Δ_k‖²): how far clients' parameters are from their mean",
        "weight_mean": "mean of the clients' weights in the rule's step",
        "weight_std": "their standard deviation (divisor M)",
        "weight_min": "smallest weight",
        "weight_max": "largest weight",
        "weight_zeros": "number of weights below 1e-6",
        "weight_entropy": "−Σ w_k ln w_k, in nats",
        "alignment_mean": "mean of the alignment of an update with the rule's reference",
        "alignment_min": "smallest alignment",
        "alignment_max": "largest alignment",
        "degenerate": "1 where the rule fell back on uniform weights",
        "bytes_up": "bytes that all clients of the round sent",
        "bytes_down": "bytes that all clients of the round downloaded",
        "local_steps": "steps of the optimiser, of all clients of the round",
        "samples_processed": "samples in these steps and in a stopping rule's gradients, "
        "repetitions counted",
        "evaluated": "whether this round was evaluated; the columns below are empty otherwise",
        "personal_accuracy": "accuracy of a client's own model on its test samples, mean over "
        "clients",
        "personal_std": "its standard deviation over clients (divisor: their number)",
        "personal_worst_decile": "its mean over the tenth of the clients that are worst off, of "
        "those that were ever drawn",
        "personal_accuracy_weighted": "its mean weighted by the clients' test samples, those "
        "beyond `federation.own_images` counted",
        "global_accuracy": "accuracy of the server's model on the global test set",
        "global_loss": "its mean cross-entropy there",
        "val_accuracy": "accuracy of clients' own models on their validation samples, mean over "
        "clients; picks the round called selected",
        "expected_accuracy": f"accuracy of a client's own model {_EXPECTED}, mean over clients",
        "expected_std": "its standard deviation over clients (divisor: their number)",
        "expected_worst_decile": "its mean over the worst tenth, as above",
        "global_val_accuracy": "accuracy of the server's model on all clients' validation samples",
    }
)

GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "expected_accuracy_a": "expected_accuracy over the clients that agree",
        "expected_accuracy_b": "expected_accuracy over the clients that differ",
        "expected_accuracy_new": "expected_accuracy over the clients that never train, in the "
        "last quarter of the rounds",
    }
)

CLIENTS: Mapping[str, str] = MappingProxyType(
    {
        "round": _COMMON["round"],
        "client": _COMMON["client"],
        "participated": "whether it trained in this round",
        "weight": "its weight in the rule's step",
        "alignment": "alignment of its update with the rule's reference",
        "update_norm": "‖Δ_k‖",
        "train_loss": "its mean training loss",
        "local_steps": "its steps of the optimiser in this round",
        "samples_processed": "samples in these steps and in a stopping rule's gradients, "
        "repetitions counted",
        "val_accuracy": "accuracy of its own model on its validation samples",
        "test_accuracy": "accuracy of its own model on its test samples",
        "n_train": "its training samples",
        "n_val": "its validation samples, of which at most `federation.own_images` are used",
        "n_test": "its test samples, at most `federation.own_images` alike",
        "gates": "its gates m = σ(a), in the order of the blocks; empty before it has trained",
        "expected_accuracy": f"accuracy of its own model {_EXPECTED}",
        "drawn": "whether it has ever trained",
        "steps": "its local steps so far, over all rounds",
    }
)

TRACE: Mapping[str, str] = MappingProxyType(
    {
        **_COMMON,
        "step": "local step of the client",
        "task_loss": "loss without penalties",
        "gate_min": "smallest of its gates",
        "gate_mean": "mean of its gates",
        "gate_max": "largest of its gates",
    }
)

TIMINGS: Mapping[str, str] = MappingProxyType(
    {
        "round": _COMMON["round"],
        "train_seconds": "seconds of local training, all clients of the round",
        "aggregate_seconds": "seconds of the server's step",
        "evaluate_seconds": "seconds of the evaluation",
    }
)
