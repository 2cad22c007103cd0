"""Local steps of a client, and the rates of gates with which they suffice. Never imports torch."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import numpy as np

from fedsdg.data.datasets import FOLDER_VARIABLE, dataset_spec
from fedsdg.data.natural import large_enough
from fedsdg.data.own_data import OwnData
from fedsdg.data.partition import parse_skew, partition_clients
from fedsdg.data.partition_record import TRAIN
from fedsdg.data.partition_spec import PartitionSpec
from fedsdg.experiment.config import Config
from fedsdg.experiment.loading import load_images, survey_of
from fedsdg.experiment.method_entries import MethodConfig
from fedsdg.experiment.sections import FederationConfig
from fedsdg.files.places import split_setting
from fedsdg.rng import stream

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
    spec = PartitionSpec(**asdict(config.partition))
    source = config.source(dataset)
    if isinstance(source, OwnData):
        held = _own_samples(source, skew, clients, spec.min_samples)
        return np.maximum(held * spec.fractions[TRAIN], 1.0)
    facts = dataset_spec(source) if isinstance(source, str) else None
    if facts is None or (facts.hub_id is None and not facts.official_test):
        seed = min(config.seeds)
        made = partition_clients(
            load_images(source),
            num_clients=clients,
            skew=parse_skew(skew),
            seed=seed,
            spec=spec,
            generator=stream("partition", seed),
        )
        sizes: np.ndarray = made.sizes()[:, TRAIN]
        return sizes
    share = _stored_samples(dataset) / clients * spec.fractions[TRAIN]
    return np.full(clients, max(share, 1.0))


def _own_samples(source: OwnData, skew: str, clients: int, least: int) -> np.ndarray:
    """Samples that clients of one's own data hold: of a column its own, else equal shares."""
    known = survey_of(source)
    shared = ~known.official_test
    kind, _, name = skew.partition("~")
    if kind != "column" or name not in known.columns:
        return np.full(clients, shared.sum() / clients)
    column = known.columns[name]
    column = column._replace(codes=column.codes[shared])
    held: np.ndarray = np.bincount(column.codes[column.codes >= 0], minlength=len(column.names))
    return held[large_enough(column, least)]


def _stored_samples(dataset: str) -> int:
    """How many training samples lie in the data set's folder, by the files' own word."""
    import pyarrow.parquet as pq

    from fedsdg.data.stored_images import split_files

    root = os.environ.get(FOLDER_VARIABLE)
    if not root or not Path(root, dataset).is_dir():
        raise FileNotFoundError(
            f"there is no train.parquet of {dataset!r} to count; set {FOLDER_VARIABLE} to the "
            f"folder above {dataset!r}"
        )
    files, _ = split_files(dataset_spec(dataset), Path(root, dataset))
    return sum(pq.read_metadata(file).num_rows for file in files["train"])
