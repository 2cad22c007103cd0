"""The global test set as each client sees it: which images, which labels it expects, what weights.

A client that names the classes otherwise, or that sees other images, has a test of its own on
the same images as everybody: the whole global test set with its labels and its view, weighted by
its own distribution. That is measured on many more images than its own small shard holds.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Seen:
    """For each of K clients the images of the global test set as it sees them.

    A client's expected accuracy is sum_i weights[k][i] * [model_k(images[index[k][i]]) ==
    labels[k][i]]: its accuracy under its own distribution, if its images of a class are drawn
    as those of the global test set are. How many images G there are may differ between clients
    (a client of one domain is judged by the images of its domain).

    Attributes:
        index: K arrays [G] of sample numbers into `Samples.images`, where transformed copies of
            the global test images are appended for clients that see other images.
        labels: K arrays [G] of int64 labels: what the client calls those images.
        weights: K arrays [G] of float64, at least 0, with sum 1.
    """

    index: list[np.ndarray]
    labels: list[np.ndarray]
    weights: list[np.ndarray]


def class_weights(held: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Weights [G] float64 of images with true classes ``labels`` for a client that holds ``held``.

    An image of class c gets p(c) / G_c, where p(c) is the client's share of class c among its
    samples (``held`` [C] are their counts), and G_c how many of the G images are of class c. The
    weighted sum of right answers is then Σ_c p(c) · (accuracy on class c). Classes that are not
    among the images are left out, and p is renormalised over the others.

    Raises ValueError where none of the client's classes is among the images.
    """
    there = np.bincount(labels, minlength=len(held))
    shares = np.where(there > 0, held, 0).astype(np.float64)
    if not shares.sum() > 0:
        raise ValueError(
            "the global test set has no image of a class that the client holds; raise "
            "federation.global_images"
        )
    weights: np.ndarray = (shares / shares.sum() / np.maximum(there, 1))[labels]
    return weights
