"""A federation put together from its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.rules.compensated import Compensated
from fedsdg.aggregation.types import Rule
from fedsdg.data.benchmark_set import take_benchmark
from fedsdg.data.images import Pictures
from fedsdg.data.partition_record import TEST, VAL, Partition
from fedsdg.next_federation.client_groups import clients_in
from fedsdg.next_federation.clients import require_time
from fedsdg.next_federation.conditions.attack import Attackers
from fedsdg.next_federation.conditions.compute import Compute
from fedsdg.next_federation.conditions.condition import ClientData, Condition
from fedsdg.next_federation.conditions.quantisation import Quantisation
from fedsdg.next_federation.data_sharing import DataSharing
from fedsdg.next_federation.losses import Loss
from fedsdg.next_federation.model_names import (
    ClientModel,
    Layout,
    MixedModel,
    bytes_of_a_prefix,
    offsets,
    prefixes,
)
from fedsdg.next_federation.observers.branches import Branches
from fedsdg.next_federation.observers.observer import Observer
from fedsdg.next_federation.optimisers import Sgd
from fedsdg.next_federation.personalisation import Personalisation, Shared
from fedsdg.next_federation.preparation import (
    LABEL_SKEWS,
    evaluated_samples,
    images_as_seen,
    prepared_data,
    samples_for_gates,
    test_set,
    with_test_views,
)
from fedsdg.next_federation.server_prior import prior_state
from fedsdg.next_federation.setup import Schedule, Setup, Shards
from fedsdg.next_federation.stopping import Inexactness
from fedsdg.next_federation.tasks import Samples, Work
from fedsdg.next_federation.training import Columns
from fedsdg.rng import stream

MOST_PREFIX_BYTES = 2**30
"""Memory for what of images is computed once; runs stand side by side."""


def assemble(
    *,
    seed: int,
    partition: Partition,
    pictures: Pictures,
    images: Tensor,
    model: ClientModel,
    first: Tensor,
    private: Tensor,
    rule: Rule,
    work: Work,
    schedule: Schedule,
    personalisation: Personalisation | None = None,
    stopping: Inexactness | None = None,
    sharing: DataSharing | None = None,
    conditions: Sequence[Condition] = (),
    observers: Sequence[Observer] = (),
    held_out: float = 0.0,
    global_images: int | None = None,
    own_images: int | None = None,
    benchmark_images: int | None = None,
    heads_apart: bool = False,
    own_starts: Tensor | None = None,
) -> Setup:
    """Put a federation together.

    Args:
        seed: All random streams of the run derive from it.
        partition: Which client holds which sample in which split.
        pictures: The images as they are stored, and how a model takes them.
        images: [n, ...] the images as the model takes them, on the device of the run.
        model: With the layout that the personalisation asks for.
        first: [d] the communicated parameters before the first round.
        private: [d_p] what a client keeps to itself before its first round.
        rule: How the server aggregates.
        work: How clients train; its terms are those of the method, to which those of the
            personalisation are added.
        schedule: Rounds, cohorts and evaluations.
        personalisation: What stays with a client; None: nothing.
        stopping: When a client stops before its epochs are used up; None: never.
        sharing: Which data leave their clients; None: none.
        conditions: In the order in which they change the data: quantisation follows attackers
            and clock.
        observers: What looks at each round.
        held_out: Share of the clients that never train.
        global_images: Number of images of the global test set; None: all.
        own_images: Samples of a client on which it is evaluated at most; None: all.
        benchmark_images: Samples of the server; None: it has none.
        heads_apart: Whether the server's models start with different heads.
        own_starts: [K, d] where each client begins in the first round; None: at the server's model.

    Returns:
        The federation before its first round.

    Raises:
        ValueError: Parts do not fit one another, or could never work.
    """
    personalisation = personalisation or Shared()
    sharing = sharing or DataSharing()
    num_classes = partition.num_classes
    fixed = partition.spec.test == "fixed"
    skew = partition.skew.partition("~")[0]
    if isinstance(work.loss, Loss):
        work.loss.require_classes(num_classes)
    if personalisation.mixed_weight is not None:
        model = MixedModel(model, personalisation.mixed_weight)
        private = first.clone()
    benchmark = np.empty(0, dtype=np.int64)
    if benchmark_images is not None:
        generator = stream("evaluation", seed, 1)
        benchmark, partition = take_benchmark(partition, benchmark_images, generator)
    _require_benchmark(rule, benchmark)
    if sharing.central:
        conditions = [one for one in conditions if not isinstance(one, Quantisation)]
    data = prepared_data(partition, num_classes, conditions, seed)
    data = _with_held_out(data, held_out)
    data = _with_gamma(data, stopping)
    never = data.facts.get("held_out")
    test = test_set(partition, global_images, seed, fixed=fixed)
    seen = images_as_seen(data, images, pictures)
    seen, labels, test_views = with_test_views(
        data, seen, pictures, partition.label, test, by_class=skew in LABEL_SKEWS
    )
    data = _with_disclosed(data, sharing)
    shards = Shards(
        train=_shared_shards(data.train, sharing, never, seed),
        val=evaluated_samples(partition, VAL, own_images, seed),
        test=evaluated_samples(partition, TEST, own_images, seed),
        global_test=test,
        benchmark=benchmark,
        test_sizes=np.array([len(shard) for shard in partition.shards(TEST)]),
    )
    device = images.device
    gates = None
    if personalisation.gate_samples == "held-out":
        gates = torch.from_numpy(samples_for_gates(shards.train, labels, seed)).to(device)
    samples = Samples(_prefixes(model, seen), torch.from_numpy(labels).to(device), gates)
    compute = next((one for one in conditions if isinstance(one, Compute)), None)
    if compute is not None and compute.compensates:
        rule = Compensated(rule)
    if compute is not None and compute.local_seconds is not None:
        schedule = replace(schedule, epochs=compute.max_epochs)
    models = first.repeat(rule.models(data.num_clients), 1)
    if heads_apart:
        models = _with_heads_apart(models, model.layout, seed)
    sizes = np.array([len(shard) for shard in shards.train])
    state = rule.init(model.layout.d, sizes)
    if bool(Columns.from_layout(model.layout).factors.any()):
        observers = (Branches(), *observers)
    setup = Setup(
        seed=seed,
        model=model,
        layout=model.layout,
        samples=samples,
        shards=shards,
        test_views=test_views,
        rule=rule,
        state=prior_state(rule, state, partition.label, data),
        personalisation=personalisation,
        work=replace(
            work,
            terms=(*personalisation.terms, *work.terms),
            private_optimiser=Sgd() if personalisation.own_optimiser == "sgd" else None,
        ),
        schedule=schedule,
        first=models.to(device),
        private=private.to(device),
        own_starts=own_starts,
        # Attackers see what all others send.
        conditions=tuple(sorted(conditions, key=lambda one: isinstance(one, Attackers))),
        observers=tuple(observers),
        facts=data.facts,
        sharing=sharing,
        stopping=stopping,
    )
    require_time(setup)
    return setup


def _require_benchmark(rule: Rule, benchmark: np.ndarray) -> None:
    """Raise ValueError if a rule judges by samples of the server, but there are none."""
    judges = "server" in rule.reads or any(request.kind == "losses" for request in rule.probes)
    if judges and not len(benchmark):
        raise ValueError(
            "the method judges clients on samples that the server holds, but there are none; "
            "set conditions.benchmark_images, for instance to 100"
        )


def _with_held_out(data: ClientData, share: float) -> ClientData:
    """Draw the clients that never train; those of a smaller share are among them."""
    if not share:
        return data
    order = stream("held-out", data.seed).permutation(data.num_clients)
    count = clients_in(share, data.num_clients)
    return data.with_facts(held_out=np.isin(np.arange(data.num_clients), order[:count]))


def _with_gamma(data: ClientData, stopping: Inexactness | None) -> ClientData:
    """Draw how inexactly each client solves."""
    if stopping is None:
        return data
    generator = stream("stopping", data.seed)
    gamma = stopping.draw(data.num_clients, generator, data.facts.get("speed"))
    return data.with_facts(gamma=gamma)


def _with_disclosed(data: ClientData, sharing: DataSharing) -> ClientData:
    """Note the share of its samples that each client gives away."""
    disclosed = sharing.disclosed(np.array([len(shard) for shard in data.train]))
    if disclosed is None:
        return data
    never = data.facts.get("held_out", np.zeros(data.num_clients, dtype=bool))
    return data.with_facts(disclosed=np.where(never, 0.0, disclosed))


def _shared_shards(
    shards: list[np.ndarray], sharing: DataSharing, held_out: np.ndarray | None, seed: int
) -> list[np.ndarray]:
    """Training samples after sharing; held-out clients neither give nor receive."""
    if held_out is None:
        return sharing.train(shards, seed)
    givers = [shard[:0] if out else shard for shard, out in zip(shards, held_out, strict=True)]
    shared = sharing.train(givers, seed)
    return [shards[k] if held_out[k] else shared[k] for k in range(len(shards))]


def _prefixes(model: ClientModel, images: Tensor) -> Tensor:
    """Compute once what of images does not train, if there is memory for it."""
    needed = len(images) * bytes_of_a_prefix(model)
    return prefixes(model, images) if 0 < needed <= MOST_PREFIX_BYTES else images


def _with_heads_apart(models: Tensor, layout: Layout, seed: int) -> Tensor:
    """Draw the heads of models [C, d] one by one; the first keeps its own.

    Of models that start equal no loss could tell which one fits whom.
    """
    place = offsets(layout.communicated).get("head.weight")
    if place is None:
        return models
    models = models.clone()
    spread = float(models[0, place].std())
    for number in range(1, len(models)):
        generator = stream("init", seed, number)
        drawn = generator.normal(0.0, spread, place.stop - place.start)
        models[number, place] = torch.from_numpy(drawn).to(models)
    return models
