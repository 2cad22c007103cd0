"""Where the variance of a result comes from: the partition, the method on it, or training.

In a crossed design each of I methods meets each of J partitions with each of K training seeds:

    y_ijk = μ + m_i + p_j + (mp)_ij + s_k + e_ijk

With balanced data the components have a closed form: mean squares are set equal to their
expectations, and a negative component is 0 (Searle, Casella and McCulloch, *Variance Components*,
1992, chapter 4).
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from fedsdg.analysis.layout import SETTING, Table, decimal
from fedsdg.analysis.metrics import READINGS, values
from fedsdg.analysis.records import RUN, Record
from fedsdg.analysis.statistics import LEVEL

#: Half-width of an interval that is asked for, in points.
HALF_WIDTH = 1.0
_AXES = ["method", "partition", "seed"]


def design(record: Record, at: str = "selected") -> pd.DataFrame:
    """Return the accuracies of an experiment by method, partition and training seed.

    Args:
        record: The experiment.
        at: A reading of the accuracy.

    Returns:
        ``RUN``, ``partition`` (its seed), ``value`` (in percent); no rows unless every method met
        several partitions with the same seeds.
    """
    runs = record.finished
    drawn = [
        json.loads(str(run.config)).get("partition_seed", run.seed) for run in runs.itertuples()
    ]
    frame = values(record, "accuracy", at=at).merge(runs[RUN].assign(partition=drawn))
    sizes = frame[_AXES].nunique()
    crossed = len(frame) == sizes.prod() and (sizes > 1).all()
    return frame if crossed else frame.iloc[:0]


def components(y: np.ndarray) -> dict[str, float]:
    """Return the variance that each source adds.

    Args:
        y: [I, J, K] numbers by method, partition and training seed.

    Returns:
        The variances by source, as it is printed.
    """
    methods, partitions, seeds = y.shape
    by_pair = y.mean(axis=2, keepdims=True)
    partition = y.mean(axis=(0, 2), keepdims=True) - y.mean()
    interaction = by_pair - y.mean(axis=(1, 2), keepdims=True) - partition
    training = y.mean(axis=(0, 1), keepdims=True) - y.mean()
    rest = y - by_pair - training
    of_partition = methods * seeds * np.sum(partition**2) / (partitions - 1)
    of_pair = seeds * np.sum(interaction**2) / ((methods - 1) * (partitions - 1))
    of_training = methods * partitions * np.sum(training**2) / (seeds - 1)
    residual = np.sum(rest**2) / ((methods * partitions - 1) * (seeds - 1))
    found = {
        "partition": (of_partition - of_pair) / (methods * seeds),
        "method × partition": (of_pair - residual) / seeds,
        "training seed": (of_training - residual) / (methods * partitions),
        "residual": residual,
    }
    return {source: max(float(variance), 0.0) for source, variance in found.items()}


def draws_needed(found: dict[str, float]) -> int:
    """Return how many draws tell the difference of two methods to ``HALF_WIDTH``.

    Each draw is a new partition with a new seed, which both methods meet. Partition and seed cancel
    in the difference, whose variance is 2 (σ²_mp + σ²_e); n draws give the half-width
    t_{(1 + level)/2, n−1} · √(variance / n).

    Args:
        found: The variances by source.
    """
    n = np.arange(2, 100_000)
    variance = 2 * (found["method × partition"] + found["residual"])
    half = stdtrit(n - 1, (1 + LEVEL) / 2) * np.sqrt(variance / n)
    return int(n[np.argmax(half <= HALF_WIDTH)])


def variance(record: Record) -> Table:
    """Return the share of each source in the variance of accuracies, at each reading."""
    rows: list[tuple[str, str, int, float, float]] = []
    notes = []
    for at, title in READINGS.items():
        frame = design(record, at).sort_values(_AXES)
        if len(frame):
            found = components(frame["value"].to_numpy().reshape(tuple(frame[_AXES].nunique())))
            total = sum(found.values()) or 1.0
            for source, own in found.items():
                rows.append((at, source, len(frame), own**0.5, 100 * own / total))
            notes.append(
                f"{title}: {draws_needed(found)} draws of partition and seed, the same for both, "
                f"tell the difference of two methods to ±{HALF_WIDTH:g} point (95 %)."
            )
    numbers = pd.DataFrame(rows, columns=["at", "source", "n", "std", "share"])
    columns = {
        SETTING: numbers["at"].map(READINGS),
        "source": numbers["source"],
        "standard deviation (points)": numbers["std"].map(decimal),
        "share of the variance (%)": numbers["share"].map(decimal),
    }
    caption = "Why accuracies of a method differ: components of their variance."
    numbers.insert(0, "experiment", record.name)
    return Table("variance", caption, numbers, pd.DataFrame(columns), tuple(notes))
