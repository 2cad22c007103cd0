"""The accuracy of a client's model: on which images, by which labels, with which weights."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fedsdg.federation.client_axis import ClientAxis


@dataclass(frozen=True)
class ClientTestView(ClientAxis):
    """The global test set as each of K clients sees it.

    The accuracy of client k is the sum of the weights of the images that its model gets right.
    Images appear as the client sees them, under the labels that it uses. Under label skew the
    images of class c weigh p_k(c) / G_c, for the client's share p_k(c) of the class and the G_c
    images of the class; otherwise all images weigh the same.
    """

    index: list[np.ndarray]
    "[G] sample numbers"
    labels: list[np.ndarray]
    "int64 [G]"
    weights: list[np.ndarray]
    "[G] of sum 1"

    def images(self, client: int) -> np.ndarray:
        """Return the sample numbers of the images that count for a client."""
        return self.index[client][self.weights[client] > 0]

    def accuracy(self, client: int, classes: np.ndarray) -> float:
        """Return the accuracy of a client whose model gives these classes to its `images`."""
        counts = self.weights[client] > 0
        right = classes == self.labels[client][counts]
        return math.fsum(self.weights[client][counts][right])


def class_weights(held: np.ndarray | None, labels: np.ndarray) -> np.ndarray:
    """Return the weights of test images for a client, of sum 1.

    Classes that are not among the images are left out, and the shares of the others scaled up.

    Args:
        held: [C] the client's samples of each class; None: images weigh the same.
        labels: int64 [G] true classes of the images.

    Returns:
        float64 [G].

    Raises:
        ValueError: There is no image of any class that the client holds.
    """
    if held is None:
        return np.full(len(labels), 1 / len(labels))
    images = np.bincount(labels, minlength=len(held))
    shares = np.where(images > 0, held, 0).astype(np.float64)
    if not shares.sum() > 0:
        raise ValueError(
            "the global test set has no image of a class that the client holds; raise "
            "federation.global_images"
        )
    by_class = shares / shares.sum() / np.maximum(images, 1)
    return np.asarray(by_class[labels])


def mean_accuracy(right: np.ndarray, counts: np.ndarray) -> Fraction:
    """Return the mean over clients of right_k / n_k, exactly.

    Args:
        right: int64 [n] samples that each client's model gets right.
        counts: int64 [n] samples of each client, at least 1.
    """
    sizes = np.unique(counts).tolist()
    sums = (Fraction(int(right[counts == size].sum()), size) for size in sizes)
    return sum(sums, Fraction(0)) / len(counts)


def validation_counts(clients: Iterable[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Return right answers and validation samples, int64 [n] each, of the clients that count.

    Args:
        clients: Rows of the clients' record. Those with a `val_accuracy` count, except of clients
            that never train; it is the share of `n_val` samples.
    """
    rows = [
        row for row in clients if row.get("val_accuracy") is not None and not row.get("held_out")
    ]
    counts = np.array([row["n_val"] for row in rows], dtype=np.int64)
    accuracies = np.array([row["val_accuracy"] for row in rows])
    return np.rint(accuracies * counts).astype(np.int64), counts


def selected_round(clients: Iterable[Mapping[str, Any]]) -> int:
    """Return the round that validation selects: the earliest with the largest mean accuracy.

    The mean is exact, so that no rounding of a sum decides.

    Args:
        clients: Rows of the clients' record, as for `validation_counts`.

    Raises:
        ValueError: No client was evaluated.
    """
    by_round: dict[int, list[Mapping[str, Any]]] = {}
    for row in clients:
        by_round.setdefault(row["round"], []).append(row)
    counts = {number: validation_counts(rows) for number, rows in by_round.items()}
    scores = {number: mean_accuracy(*both) for number, both in counts.items() if len(both[1])}
    if not scores:
        raise ValueError("no client was evaluated; let the run evaluate its last round")
    return min(scores, key=lambda number: (-scores[number], number))
