"""A federation put together from its parts."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedsdg import models
from fedsdg.aggregation.rules.compensated import Compensated
from fedsdg.aggregation.types import Rule
from fedsdg.data.benchmark_set import take_benchmark
from fedsdg.data.images import Pictures
from fedsdg.data.partition import TEST, VAL, Partition
from fedsdg.federation import preparation
from fedsdg.federation.conditions.attack import Attackers
from fedsdg.federation.conditions.compute import Compute
from fedsdg.federation.conditions.condition import Condition
from fedsdg.federation.conditions.dropout import Dropout
from fedsdg.federation.conditions.quantisation import Quantisation
from fedsdg.federation.data_sharing import DataSharing
from fedsdg.federation.losses import Loss
from fedsdg.federation.observers.branches import Branches
from fedsdg.federation.observers.observer import Observer
from fedsdg.federation.optimisers import Sgd
from fedsdg.federation.personalisation import Personalisation, Shared
from fedsdg.federation.setup import Schedule, Setup
from fedsdg.federation.stopping import Inexactness
from fedsdg.federation.tasks import Samples, Work
from fedsdg.rng import stream

MOST_PREFIX_BYTES = 2**30
"""Memory for what of images is computed once; runs stand side by side."""


def assemble(
    *,
    seed: int,
    partition: Partition,
    pictures: Pictures,
    images: Tensor,
    model: models.ClientModel,
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
    if personalisation.mixed_weight is not None:
        model = models.MixedModel(model, personalisation.mixed_weight)
        private = first.clone()
    benchmark = np.empty(0, dtype=np.int64)
    if benchmark_images is not None:
        generator = stream("evaluation", seed, 1)
        benchmark, partition = take_benchmark(partition, benchmark_images, generator)
    _require_benchmark(rule, benchmark)
    if sharing.central:
        # They befall what clients send, and none does.
        conditions = [one for one in conditions if not isinstance(one, Quantisation | Dropout)]
    test = preparation.test_set(partition, global_images, seed)
    data = preparation.client_data(partition, test, benchmark, held_out, seed)
    for part in (*conditions, stopping, sharing):
        data = data if part is None else part.prepare(data)
    data = replace(
        data,
        val=preparation.evaluated_samples(partition, VAL, own_images, seed),
        test=preparation.evaluated_samples(partition, TEST, own_images, seed),
    )
    seen, labels, test_views = preparation.as_clients_see(data, images, pictures)
    device = images.device
    for_gates = None
    if personalisation.gate_samples == "held-out":
        for_gates = preparation.samples_for_gates(data.train, labels, seed)
    prefix_bytes = len(seen) * model.bytes_of_a_prefix
    samples = Samples(
        images=model.prefixes(seen) if 0 < prefix_bytes <= MOST_PREFIX_BYTES else seen,
        labels=torch.from_numpy(labels).to(device),
        for_gates=for_gates,
        weights=_weights_of_samples(work.loss, labels, data.num_classes),
    )
    compute = next((one for one in conditions if isinstance(one, Compute)), None)
    if compute is not None and compute.compensates:
        rule = Compensated(inner=rule)
    if compute is not None and compute.local_seconds is not None:
        schedule = replace(schedule, epochs=compute.max_epochs)
    rows = first.repeat(rule.models(data.num_clients), 1)
    if heads_apart:
        rows = _with_heads_apart(rows, model.layout, seed)
    state = rule.init(model.layout.d, np.array([len(shard) for shard in data.train]))
    setup = Setup(
        model=model,
        layout=model.layout,
        samples=samples,
        test_views=test_views,
        rule=rule,
        state=preparation.prior_state(rule, state, data),
        personalisation=personalisation,
        work=replace(
            work,
            terms=(*personalisation.terms, *work.terms),
            private_optimiser=Sgd() if personalisation.own_optimiser == "sgd" else None,
        ),
        schedule=schedule,
        first=rows.to(device),
        private=private.to(device),
        own_starts=own_starts,
        # Attackers see what all others send.
        conditions=tuple(sorted(conditions, key=lambda one: isinstance(one, Attackers))),
        observers=(Branches(), *observers),
        data=data,
        sharing=sharing,
        stopping=stopping,
    )
    if compute is not None:
        compute.require_time(setup)
    return setup


def _weights_of_samples(
    loss: Callable[..., Tensor], labels: np.ndarray, num_classes: int
) -> np.ndarray | None:
    """Return how much each sample counts in a mean of losses; None: all are equal.

    Raises:
        ValueError: The loss does not fit the classes, or returns no number for each sample.
    """
    if isinstance(loss, Loss):
        loss.require_classes(num_classes)
    two = torch.zeros(2, dtype=torch.int64)
    values = loss(torch.zeros(2, num_classes), two, reduction="none")
    if values.shape != two.shape:
        name = getattr(loss, "__name__", type(loss).__name__)
        raise ValueError(
            f"the loss {name} returned {list(values.shape)} for two samples; return a number for "
            "each"
        )
    weights = loss.weigh(torch.from_numpy(labels)) if isinstance(loss, Loss) else None
    return None if weights is None else weights.numpy()


def _require_benchmark(rule: Rule, benchmark: np.ndarray) -> None:
    """Raise ValueError if a rule judges by samples of the server, but there are none."""
    judges = "server" in rule.reads or any(request.kind == "losses" for request in rule.probes)
    if judges and not len(benchmark):
        raise ValueError(
            "the method judges clients on samples that the server holds, but there are none; "
            "set conditions.benchmark_images, for instance to 100"
        )


def _with_heads_apart(rows: Tensor, layout: models.Layout, seed: int) -> Tensor:
    """Draw the heads of the server's models [C, d] one by one; the first keeps its own.

    Of models that start equal no loss could tell which one fits whom.
    """
    place = models.offsets(layout.communicated).get("head.weight", slice(0, 0))
    spread = float(rows[0, place].std())
    for number in range(1, len(rows)):
        drawn = stream("init", seed, number).normal(0.0, spread, place.stop - place.start)
        rows[number, place] = torch.from_numpy(drawn).to(rows)
    return rows
