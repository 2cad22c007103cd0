"""Whether a config's rounds suffice: for gates to move, and to see whether training has settled.

Known before anything is run, so that nobody reads a result out of too short an experiment. Never
imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
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
from fedsdg.methods.chosen import name_of
from fedsdg.rng import stream

#: Adam moves a gate's logit by about η_m a step. From m = 1/2 (logit 0) to m = 0.1 or 0.9 it has
#: ln 9 ≈ 2.2 to go, and not every step points the same way.
GATE_STEPS = 3.0
#: Optimisers of which that is so.
RATE_IS_STEP = ("adam", "adamw")

#: Evaluations in the last quarter of the rounds, and in the quarter before, whose means are
#: compared to tell whether training has settled.
EVALUATIONS = 3


def findings(config: Config) -> Iterator[str]:
    """What a person should know of the config's horizon, a line each; warnings say so."""
    if config.untuned:
        labels = ", ".join(one.label for one in config.methods if one.label in config.untuned)
        yield f"warning: {config.tuned[-1]} has no values for {labels}; 'fedsdg search' finds them"
    said = set()
    for setting in config.settings:
        warning = unreachable(config.scenario(setting).federation)
        if warning is not None and warning not in said:
            said.add(warning)
            yield f"warning: {warning}"
    for dataset in config.datasets:
        for setting in config.settings:
            yield from _of_cell(config, dataset, setting)


def _of_cell(config: Config, dataset: str, setting: str) -> Iterator[str]:
    place = f"{dataset}, {setting}"
    case = config.scenario(setting)
    try:
        sizes = training_sizes(config, dataset, setting)
    except (OSError, ValueError) as error:
        yield f"{place}: the local steps of a client are not known here: {error}"
        return
    federation, training = case.federation, case.training
    steps = median_steps(sizes, federation, training.epochs, training.batch_size)
    batches = _batches(sizes, training.batch_size)
    drawn = f"{federation.clients_per_round}/{federation.clients - federation.kept_out}"
    yield (
        f"{place}: a median client takes about {steps:.0f} local steps ({federation.rounds} rounds "
        f"x {drawn} x {training.epochs} epochs x "
        f"{np.median(batches):g} batches)"
    )
    for method in config.methods:
        if not learns_gates(method) or method.label in config.untuned:
            continue
        own = config.run(dataset, setting, method, min(config.seeds)).training
        steps = median_steps(sizes, federation, own.epochs, own.batch_size)
        way = own.eta_m * steps
        line = f"{method.label}: eta_m x steps = {own.eta_m:g} x {steps:.0f} = {way:.2g}"
        mover = name_of(own.optimiser)
        if mover not in RATE_IS_STEP:
            yield f"{place}, {line} (by {mover} the way also depends on the gradient)"
        elif way < GATE_STEPS:
            yield (
                f"warning: {place}, {line}: below {GATE_STEPS:g} gates cannot have moved from 1/2 "
                "to 0.1 or 0.9, whatever the data say; raise eta_m or federation.rounds"
            )
        else:
            yield f"{place}, {line}"


def learns_gates(method: MethodConfig) -> bool:
    """Whether the method has gates that are trained."""
    values = {**method.row.fixed, **method.parameters}
    return "gate_init" in values and values.get("gate_fixed") is None


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


def evaluations(rounds: int, every: int, begin: int = 0) -> tuple[int, int]:
    """Evaluations in the quarter before the last and in the last one (round > 3R/4)."""

    def evaluated(first: int, last: int) -> int:
        """Multiples of ``every`` from the later of ``first`` and ``begin`` to ``last``."""
        return max(0, last // every - (max(first, begin, 1) - 1) // every)

    half, three_quarters = rounds // 2, 3 * rounds // 4
    last = evaluated(three_quarters + 1, rounds) + (rounds % every != 0 or rounds < begin)
    return evaluated(half + 1, three_quarters), last


def _too_few_named(federation: FederationConfig) -> str | None:
    """As ``unreachable``, where the rounds that are evaluated are named one by one."""
    rounds, begin = federation.rounds, federation.evaluate_from
    at = {number for number in federation.evaluate_at or () if number >= begin} | {rounds}
    half, three_quarters = rounds // 2, 3 * rounds // 4
    last = sum(number > three_quarters for number in at)
    before = sum(half < number <= three_quarters for number in at)
    if min(before, last) >= EVALUATIONS:
        return None
    return (
        f"federation.evaluate_at and evaluate_from leave {last} evaluations in rounds "
        f"{three_quarters + 1} to {rounds} and {before} in rounds {half + 1} to {three_quarters}, "
        f"but {EVALUATIONS} in each are needed to tell whether training has settled: name more of "
        "them"
    )


def unreachable(federation: FederationConfig) -> str | None:
    """Why it cannot be told whether training has settled, and what it would take; else None."""
    rounds, every = federation.rounds, federation.evaluate_every
    if federation.evaluate_at is not None:
        return _too_few_named(federation)

    def enough(rounds: int, every: int) -> bool:
        return min(evaluations(rounds, every)) >= EVALUATIONS

    if enough(rounds, every):
        if min(evaluations(rounds, every, federation.evaluate_from)) >= EVALUATIONS:
            return None
        return (
            f"federation.evaluate_from is {federation.evaluate_from}, but whether training has "
            f"settled is told from the second half of the {rounds} rounds: set it to at most "
            f"{rounds // 2 + 1}"
        )
    before, last = evaluations(rounds, every)
    # Both so that the last round is one of the evaluations in their step.
    longer = next(
        m
        for m in range(-(-rounds // every) * every, rounds + 16 * every, every)
        if enough(m, every)
    )
    steps = (less for less in range(min(every, rounds), 0, -1) if rounds % less == 0)
    denser = next((less for less in steps if enough(rounds, less)), None)
    ways = [] if denser is None else [f"federation.evaluate_every to {denser}"]
    ways.append(f"federation.rounds to {longer}")
    return (
        f"{rounds} rounds evaluated every {every} have {last} evaluations in their last quarter "
        f"and {before} in the quarter before, but {EVALUATIONS} in each are needed to tell whether "
        f"training has settled: set {' or '.join(ways)}"
    )
