"""A run's federation, put together from its config: model, samples, rule, training."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsdg.data.partition import TEST, TRAIN, VAL, Partition
from fedsdg.experiment.conditioned import (
    circumstances,
    conditioned_rule,
    conditioned_samples,
    epochs,
    evaluated_samples,
    judged_samples,
    require_time,
    seen_samples,
    server_samples,
)
from fedsdg.experiment.differing import groups_of
from fedsdg.experiment.material import Material, require_test_set
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.starts import find_start, require_backbone
from fedsdg.federation.asked import probes_of, told
from fedsdg.federation.cohorts import Shards, samples_for_gates
from fedsdg.federation.local_training import LocalWork, Samples
from fedsdg.federation.losses.loss import Loss
from fedsdg.federation.memory import trim
from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.federation.pooling import Pooling
from fedsdg.federation.rounds import Federation, Schedule
from fedsdg.methods.method import Method
from fedsdg.methods.plugins import build_choice, find_method
from fedsdg.models import small_cnn
from fedsdg.models.adapter_config import AdapterConfig, AdapterSettings
from fedsdg.models.adapters import initial_values, make_layout
from fedsdg.models.cohort import CohortModel
from fedsdg.models.fast.model import CompiledModel
from fedsdg.models.instance_mixture import InstanceMixture
from fedsdg.models.interface import ClientModel
from fedsdg.models.mixture import MixedModel
from fedsdg.models.parameters import Layout, offsets
from fedsdg.models.peft_exchange import load_peft, start_from
from fedsdg.models.small_cnn import CnnArchitecture, SmallCnn
from fedsdg.parts import declared
from fedsdg.rng import stream

#: Bytes that may be taken by what of images is computed once; runs stand side by side.
MOST_KEPT = 2**30


def _model(
    run: RunConfig, material: Material, personalisation: Personalisation, *number: int
) -> tuple[ClientModel, torch.Tensor, torch.Tensor]:
    """The model, and the first values of its communicated [d] and its private row [d_p].

    ``number``: of a further initialisation, beside the one that all methods share.
    """
    model, theta, private = _plain_model(run, material, personalisation, *number)
    if personalisation.mixed_weight is not None:
        return MixedModel(model, personalisation.mixed_weight), theta, theta.clone()
    if personalisation.anchors and isinstance(model, CohortModel):
        whole = InstanceMixture(model)
        missing = whole.layout.d_private - model.layout.d_private
        return whole, theta, torch.cat([private, private.new_zeros(missing)])
    return model, theta, private


def _plain_model(
    run: RunConfig, material: Material, personalisation: Personalisation, *number: int
) -> tuple[ClientModel, torch.Tensor, torch.Tensor]:
    """As ``_model``, without a mixture."""
    generator, samples = stream("init", run.seed, *number), material.samples
    if (run.trainable == "full") != (material.backbone is None):
        raise ValueError(
            f"trainable is {run.trainable}, and a backbone was "
            f"{'not ' if material.backbone is None else ''}given; adapters need one (--backbone), "
            "and with full there is none"
        )
    if material.backbone is None:
        shape = CnnArchitecture(samples.images.shape[2], samples.images.shape[1])
        layout = small_cnn.make_layout(shape, material.num_classes, **personalisation.adapters)
        return SmallCnn(layout), *small_cnn.initial_values(layout, generator)
    numbers = {name: getattr(run.adapters, name) for name in declared(AdapterSettings)}
    adapters = AdapterConfig(**numbers, **personalisation.adapters)
    layout = make_layout(material.backbone.architecture, material.num_classes, adapters)
    kind = CompiledModel if run.training.kernel == "compiled" else CohortModel
    model = kind(
        material.backbone,
        layout,
        adapters,
        material.num_classes,
        device=samples.images.device,
        bfloat16=run.training.precision == "bfloat16",
    )
    theta, private = initial_values(layout, adapters, generator)
    if run.adapters.start is not None:
        start = run.adapters.start
        if find_start(start.folder) != start:
            raise ValueError(
                f"the checkpoint in {start.folder} was changed since the config was read; "
                "start again"
            )
        require_backbone(start.folder, run.backbone, material.backbone.sha256)
        found = load_peft(start.folder)
        theta, private = start_from(found, start.folder, layout, adapters.scale, theta, private)
    return model, theta, private


def require_start(run: RunConfig, material: Material) -> None:
    """Raise ``ValueError`` where the checkpoint that a run starts from does not fit it."""
    if run.adapters.start is not None:
        _plain_model(run, material, method_of(run).personalisation)


def build(
    run: RunConfig, material: Material, partition: Partition, scratch: Path | None = None
) -> Federation:
    """Put a method together from its row of the table, ready to run.

    ``scratch``: the folder for what many clients keep, if it is too much for the memory.
    """
    require_test_set(partition, material)
    method = method_of(run)
    personalisation, pooling = method.personalisation, method.pooling
    model, theta, private = _model(run, material, personalisation)
    device = material.samples.images.device
    training = run.training
    benchmark, partition = server_samples(run, partition)
    samples, facts = conditioned_samples(
        run, material.samples, partition, material.num_classes, material.pictures
    )
    shards = Shards(
        train=partition.shards(TRAIN),
        val=judged_samples(run, partition, VAL),
        test=judged_samples(run, partition, TEST),
        test_sizes=partition.counts(partition.split, 3)[:, TEST],
        global_test=evaluated_samples(run, partition),
        benchmark=benchmark,
    )
    samples, seen = seen_samples(
        run,
        samples,
        partition,
        shards.global_test,
        material.num_classes,
        material.pictures,
    )
    samples = _frozen_parts(model, samples)
    if personalisation.gate_samples == "held-out":
        held = samples_for_gates(shards.train, samples.labels.cpu().numpy(), run.seed)
        samples = replace(samples, for_gates=torch.from_numpy(held).to(device))
    rule = conditioned_rule(run, method.rule)
    if method.heads_apart:
        theta = _heads_apart(run, model.layout, theta, rule.models(run.federation.clients))
    loss = _chosen(run, "loss")
    if isinstance(loss, Loss):
        loss.require_classes(material.num_classes)
    around = circumstances(run, facts, central=pooling.central)
    disclosed = pooling.disclosed(np.array([len(own) for own in shards.train]))
    if disclosed is not None:
        out = around.held_out
        given = disclosed if out is None else np.where(out, 0.0, disclosed)
        around = replace(around, facts={**around.facts, "disclosed": given})
    made = Federation(
        model=model,
        layout=model.layout,
        samples=samples,
        shards=_pooled(pooling, shards, around.held_out, stream("partition", run.seed, 1)),
        rule=rule,
        work=LocalWork(
            optimiser=_chosen(run, "optimiser"),
            eta_g=training.eta_g,
            eta_p=training.eta_p,
            eta_m=training.eta_m,
            clip_norm=training.clip_norm,
            # In this order: sums of gradients depend on it in rounding.
            terms=method.terms,
            trace_every=run.federation.trace_every,
            loss=loss,
            private_first=personalisation.private_first,
            private_optimiser=training.private_optimiser,
            interleaved=personalisation.interleaved,
            shared_alone=personalisation.shared_alone,
            balanced=personalisation.balanced,
            stopping=method.stopping,
        ),
        schedule=Schedule(
            rounds=run.federation.rounds,
            clients_per_round=run.federation.clients_per_round,
            epochs=epochs(run),
            batch_size=training.batch_size,
            evaluate_every=run.federation.evaluate_every,
            evaluate_from=run.federation.evaluate_from,
            evaluate_at=run.federation.evaluate_at,
            personal_epochs=personalisation.epochs,
            head_alone=personalisation.head_alone,
            refresh=training.refresh,
            shapley=run.federation.shapley,
            trajectory=run.federation.trajectory,
            save=training.save,
            gates_of_every_round=run.federation.record_gates == "every-round",
        ),
        seed=run.seed,
        theta=theta.to(device),
        private=private.to(device),
        probes=probes_of(rule),
        circumstances=around,
        own=personalisation.own,
        anchors=personalisation.anchors,
        pooling=pooling,
        first=_own_starts(run, material, personalisation, device),
        seen=seen,
        scratch=scratch,
    )
    require_time(made)
    trim()
    made.state = told(rule, made.state, partition, groups_of(run))
    return made


def _frozen_parts(model: ClientModel, samples: Samples) -> Samples:
    """The samples as a model takes them: images, or what of them is computed once, if it fits."""
    inner = getattr(model, "inner", model)
    if not isinstance(inner, CompiledModel):
        return samples
    need = len(samples.images) * inner.bytes_of_a_prefix
    if need > MOST_KEPT:
        _say_once(
            f"what of {len(samples.images):,} images is frozen would take {need / 2**30:.1f} GiB; "
            "it is computed anew for every batch"
        )
        return samples
    return replace(samples, images=inner.prefixes(samples.images))


@cache
def _say_once(sentence: str) -> None:
    print(f"fedsdg: {sentence}", file=sys.stderr, flush=True)


def method_of(run: RunConfig) -> Method:
    """The method of a run, with the values of its parameters."""
    return find_method(run.method, run.plugin).with_values(run.parameters)


def _chosen(run: RunConfig, key: str) -> Any:
    """The optimiser or the loss that a run trains with."""
    return build_choice(key, getattr(run.training, key), run.borrowed.get(key))


def _pooled(
    pooling: Pooling, shards: Shards, held_out: np.ndarray | None, generator: np.random.Generator
) -> Shards:
    """What each client trains on where nobody gives data away that never trains itself."""
    if held_out is None:
        return pooling.shards(shards, generator)
    own = [mine[:0] if out else mine for mine, out in zip(shards.train, held_out, strict=True)]
    pooled = pooling.shards(replace(shards, train=own), generator)
    both = zip(shards.train, pooled.train, held_out, strict=True)
    return replace(pooled, train=[mine if out else more for mine, more, out in both])


def _own_starts(
    run: RunConfig, material: Material, personalisation: Personalisation, device: torch.device
) -> torch.Tensor | None:
    """[K, d]: an initialisation for every client, where a run asks for them."""
    if run.federation.trajectory != "own":
        return None
    seeds = range(1, run.federation.clients + 1)
    models = [_model(run, material, personalisation, number)[1] for number in seeds]
    return torch.stack(models).to(device)


def _heads_apart(run: RunConfig, layout: Layout, theta: torch.Tensor, count: int) -> torch.Tensor:
    """``count`` copies of a communicated row, [count, d], whose heads are drawn one by one.

    The first keeps its head. Of models that start equal no loss could tell which fits whom.
    """
    models = theta.repeat(count, 1)
    for name, place in offsets(layout.communicated).items():
        if name == "head.weight":
            spread = float(theta[place].std())
            for number in range(1, count):
                draw = stream("init", run.seed, number).normal(
                    0.0, spread, place.stop - place.start
                )
                models[number, place] = torch.from_numpy(draw).to(models)
    return models
