"""Local steps of a client, and the rates of gates with which they suffice. Never imports torch."""

from __future__ import annotations

import numpy as np

from fedsdg.data.datasets import Column, ImageData
from fedsdg.data.files import FOLDER_VARIABLE, find_folder
from fedsdg.data.partition import FRACTIONS, TRAIN, large_enough, partition_clients
from fedsdg.data.skew import parse_skew
from fedsdg.data.sources import Source, built_in
from fedsdg.experiment.config import Config
from fedsdg.experiment.loading import load_images, survey_of
from fedsdg.experiment.method_entries import MethodConfig
from fedsdg.experiment.sections import FederationConfig
from fedsdg.files.places import split_setting

#: Adam moves a gate's logit by about η_m a step. From m = 1/2 (logit 0) to m = 0.1 or 0.9 it has
#: ln 9 ≈ 2.2 to go, and not every step points the same way.
GATE_STEPS = 3.0


def least_gate_rate(
    config: Config, method: MethodConfig, dataset: str, setting: str, sizes: np.ndarray
) -> float:
    """Return the η_m with which η_m × steps is ``GATE_STEPS`` for a median client of a cell.

    ``sizes``: training samples of every client, as ``training_sizes`` gives them.
    """
    run = config.run(dataset, setting, method, min(config.seeds))
    training = run.training
    return GATE_STEPS / median_steps(sizes, run.federation, training.epochs, training.batch_size)


def median_steps(
    sizes: np.ndarray, federation: FederationConfig, epochs: int, batch_size: int | None
) -> float:
    """Expected local steps of a median client over the whole run: R · M/K · E · ⌈n_k/B⌉.

    K counts the clients that ever train, who alone are drawn. ``sizes``: training samples n_k of
    every client; ``batch_size`` None takes all at once.
    """
    training = federation.clients - federation.kept_out
    drawn = federation.rounds * federation.clients_per_round / training
    return drawn * epochs * float(np.median(_batches(sizes, batch_size)))


def _batches(sizes: np.ndarray, batch_size: int | None) -> np.ndarray:
    return np.ceil(sizes / (batch_size or sizes))


def training_sizes(config: Config, dataset: str, setting: str) -> np.ndarray:
    """Training samples of every client [K], for the lowest seed where that costs nothing.

    That is for a set which comes with the package. Of others every client counts with an equal
    share of what the files hold (medians under label skew are lower), and clients that are the
    values of a column with what they hold.

    Raises ``ValueError`` where clients cannot all get enough samples, ``FileNotFoundError`` where
    there are no files to count.
    """
    clients, skew = config.federation.clients, split_setting(setting)[0]
    source = config.source(dataset)
    if isinstance(source, str) and source != "digits":
        source = built_in(source)
        if find_folder(source) is None:
            raise FileNotFoundError(
                f"there are no files of {dataset!r} to count; set {FOLDER_VARIABLE} to the folder "
                f"above {dataset!r}"
            )
    if isinstance(source, Source):
        held = _samples(survey_of(source), skew, clients, config.partition.min_samples)
        return np.maximum(held * FRACTIONS[TRAIN], 1.0)
    data, seed = load_images(source), min(config.seeds)
    made = partition_clients(data, clients, parse_skew(skew), seed, config.partition)
    return made.counts(made.split, 3)[:, TRAIN]


def _samples(data: ImageData, skew: str, clients: int, least: int) -> np.ndarray:
    """Samples that clients hold: values of a column their own, else equal shares."""
    kind, _, name = skew.partition("~")
    if kind != "column" or name not in data.columns:
        return np.full(clients, (~data.test).sum() / clients)
    codes, names = data.columns[name]
    column = Column(codes[~data.test], names)
    held: np.ndarray = np.bincount(column.codes[column.codes >= 0], minlength=len(names))
    return held[large_enough(column, least)]
