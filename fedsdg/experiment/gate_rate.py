"""`bound` in a search space: the least rate with which gates can move within a run.

Adam moves a gate's logit by about η_m a step. From m = 1/2 (logit 0) to m = 0.1 or 0.9 it has
ln 9 ≈ 2.2 to go, and not every step points the same way, so η_m · steps must be at least 3.
"""

import math
from dataclasses import replace

import numpy as np

from fedsdg.config.config import Config
from fedsdg.config.data_sets import dataset_name
from fedsdg.config.entries import Entry
from fedsdg.config.run import Run
from fedsdg.config.search import Axis, Interval
from fedsdg.data.datasets import Column, ImageData
from fedsdg.data.partition import FRACTIONS, TRAIN, large_enough, partition_clients
from fedsdg.data.reading import load, survey
from fedsdg.data.skew import parse_skew
from fedsdg.data.sources import Source, built_in
from fedsdg.errors import hint

GATE_STEPS = 3.0
DIGITS = 4
"""Significant digits of a bound, which is rounded up."""


def searched_settings(config: Config) -> list[str]:
    """Return the settings that count in the search of a config.

    Raises:
        ValueError: The search names a skew that the config does not have.
    """
    chosen = config.search.skews or config.settings
    for name in chosen:
        if name not in (*config.skews, *config.settings):
            raise ValueError(
                f"search.skews: {name!r} is no skew of the experiment{hint(name, config.settings)}"
            )
    return [
        setting
        for setting in config.settings
        if setting in chosen or setting.partition("@")[0] in chosen
    ]


def bounded_space(config: Config, entry: Entry) -> dict[str, Axis]:
    """Return the search space of a row, with `bound` as a number.

    The bound is the largest over the cells that are searched.

    Args:
        config: The config.
        entry: The row.

    Raises:
        ValueError: A range ends below its bound.
        FileNotFoundError: There are no files from which to count a client's samples.
    """
    space = dict(config.space.get(entry.label, {}))
    for name, axis in space.items():
        if not isinstance(axis, Interval) or axis.low is not None:
            continue
        rates = {}
        for dataset in config.datasets:
            for setting in searched_settings(config):
                # On the search's seeds, not on those of the grid.
                seed = min(config.search.seeds)
                run = config.run(dataset_name(dataset), setting, entry.with_values({}), seed)
                sizes = training_sizes(dataset, run)
                rates[run.dataset, setting] = GATE_STEPS / median_steps(sizes, run)
        cell = max(rates, key=rates.__getitem__)
        least = rounded_up(rates[cell])
        if least >= axis.high:
            raise ValueError(
                f"search.space.{entry.label}.{name} ends at {axis.high:g}, but gates need "
                f"{least:g} to move by {GATE_STEPS:g} in the steps of a median client "
                f"({', '.join(cell)}); raise the end, or federation.rounds"
            )
        space[name] = replace(axis, low=least)
    return space


def median_steps(sizes: np.ndarray, run: Run) -> float:
    """Return the expected local steps of a median client in a run: R · M/K · E · ⌈n_k/B⌉.

    Args:
        sizes: Training samples n_k [K] of every client.
        run: Its rounds R, clients per round M, epochs E and batch size B count (null: all samples
            at once). K are the clients that train, who alone are drawn.
    """
    federation = run.federation
    clients = int(federation.clients) - federation.kept_out
    drawn = federation.rounds * federation.clients_per_round / clients
    batches = np.ceil(sizes / (run.training.batch_size or sizes))
    return drawn * run.training.epochs * float(np.median(batches))


def training_sizes(source: str | Source, run: Run) -> np.ndarray:
    """Return the training samples [K] of every client, from files without decoding an image.

    Clients of `digits` hold what a partition gives them. Of other data every client counts with an
    equal share (medians under label skew are lower), and clients that are the values of a column
    with what they hold.

    Args:
        source: The data set.
        run: Its clients, skew and partition count.

    Raises:
        FileNotFoundError: There are no files to count.
        ValueError: Clients cannot all get enough samples.
    """
    clients = int(run.federation.clients)
    if source == "digits":
        data = load(built_in(source))
        skew = parse_skew(run.skew)
        partition = partition_clients(data, clients, skew, run.partition_seed, run.partition)
        return partition.counts(partition.split, 3)[:, TRAIN]
    data = survey(built_in(source) if isinstance(source, str) else source)
    held = _samples(data, run.skew, clients, run.partition.min_samples)
    return np.maximum(held * FRACTIONS[TRAIN], 1.0)


def _samples(data: ImageData, skew: str, clients: int, least: int) -> np.ndarray:
    """Return the samples of clients: values of a column hold theirs, others equal shares."""
    kind, _, name = skew.partition("~")
    if kind != "column" or name not in data.columns:
        return np.full(clients, (~data.test).sum() / clients)
    codes, names = data.columns[name]
    column = Column(codes[~data.test], names)
    held: np.ndarray = np.bincount(column.codes[column.codes >= 0], minlength=len(names))
    return held[large_enough(column, least)]


def rounded_up(value: float) -> float:
    """Return the least number of ``DIGITS`` significant digits that is not below a value."""
    unit = 10.0 ** (math.floor(math.log10(value)) - DIGITS + 1)
    return float(f"{math.ceil(value / unit) * unit:.{DIGITS}g}")
