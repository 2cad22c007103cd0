"""Commands for partitions, backbones, and the models that a run kept."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from fedsdg.cli.command import ConfigFiles, Count, DataSet, File, Folder, Seed
from fedsdg.cli.options import answer, require_writable
from fedsdg.files import hint

if TYPE_CHECKING:
    from fedsdg.experiment.loading import Source


def partition(
    laid: ConfigFiles,
    *,
    dataset: DataSet,
    skew: str,
    output: Sequence[File],
    clients: Count | None = None,
    seed: Sequence[Seed] = (),
) -> None:
    """Divide a data set among clients, once for each seed.

    Args:
        laid: the config that the options describe
        dataset: of the config, or any that the benchmark knows
        skew: such as dirichlet~0.05, classes~2, iid
        output: one file a seed, in their order
        clients: default: the config's
        seed: default: the config's

    Example:
        fedsdg partition --dataset digits --skew dirichlet~0.1 --seed 0 --output shares.parquet
    """
    config = laid.load()
    seeds = seed or config.seeds
    if len(output) != len(seeds):
        raise ValueError(
            f"--output names {len(output)} file(s), but there are {len(seeds)} seeds; "
            "name one file a seed, in their order"
        )
    if twice := [file for file in output if output.count(file) > 1]:
        raise ValueError(f"--output names {twice[0]} twice; name one file a seed")
    require_writable(*output, kind="file")
    from fedsdg.data.partition_files import write_partition
    from fedsdg.experiment.loading import load_images
    from fedsdg.experiment.material import make_partition

    images = load_images(config.source(dataset))
    for one_seed, file in zip(seeds, output, strict=True):
        number = clients or config.federation.clients
        made = make_partition(images, skew, one_seed, number, config.partition)
        write_partition(made, file)
        sizes = made.counts(made.split, 3).sum(1)
        print(
            f"{file}: {made.num_clients} clients with {sizes.min()} to {sizes.max()} "
            f"samples after {made.facts['attempts']} draw(s)"
        )
    for note in images.notes:
        print(f"{images.name}: {note}")
    if untrained := made.untrained_classes():
        print(f"classes that no client trains on: {', '.join(untrained)}")
    if left := made.facts.get("natural"):
        print(
            f"left out: {left['too_small']} clients with fewer than "
            f"{config.partition.min_samples} samples and {left['not_drawn']} that were not drawn, "
            f"{left['samples_left_out']} samples"
        )


def pretrain(
    laid: ConfigFiles, *, output: File, backbone: str | None = None, recorded: bool = False
) -> None:
    """Make a backbone as the config describes it.

    Args:
        laid: the config that the options describe
        output: where it goes; facts on it lie beside it as JSON
        backbone: default: the config's
        recorded: take the record's where it has this one, unless FEDSDG_PRETRAIN=1

    Example:
        fedsdg pretrain --config smoke --output small.safetensors
    """
    config = laid.load()
    name = backbone or config.backbone
    if name not in config.backbones:
        raise ValueError(
            f"backbone {name!r} is not described under backbones{hint(name, config.backbones)}"
        )
    require_writable(output, kind="file")
    from fedsdg.experiment.backbones.made import take_recorded
    from fedsdg.experiment.store import store_folder

    options = config.backbones[name]
    if recorded and take_recorded(name, options, output):
        return
    from fedsdg.experiment.backbones import pretraining

    pretraining.pretrain(
        options,
        output,
        checkpoints=store_folder().parent / "checkpoints",
        checkpoint_seconds=config.checkpoint_seconds,
    )


def export(
    run: Folder,
    *,
    output: Folder | None = None,
    client: Sequence[Annotated[int, "K"]] = (),
    backbone: File | None = None,
) -> None:
    """Write a run's models for peft and timm.

    Each model has a card.

    Args:
        run: folder of a run that kept its models: training.save
        output: default: models, in the run's folder
        client: these alone (default: all there are)
        backbone: default: results/backbones/<backbone>.safetensors

    Example:
        fedsdg run --method fedsdg --skew dirichlet~1.0 --set training.save=last --output mine
        fedsdg export mine
    """
    require_writable(output or run, kind="folder")
    from fedsdg.experiment.exports.export import export_run

    done = export_run(run, output, client or None, backbone)
    for remark in done.remarks:
        print(f"fedsdg: {remark}", file=sys.stderr)
    print(f"{done.folder}: {', '.join(done.names)}")


def evaluate(
    model: Folder,
    *,
    laid: ConfigFiles,
    data: Sequence[DataSet] = (),
    partition: File | None = None,
    backbone: File | None = None,
    json: bool = False,
) -> None:
    """Say how well an exported model does on data sets.

    Args:
        laid: the config that the options describe
        model: folder of a model that `fedsdg export` wrote
        data: data sets, of the benchmark or of --config (default: all of --config)
        partition: only images that no client of this partition holds
        backbone: of adapters: results/backbones/<backbone>.safetensors
        json: print JSON

    Example:
        fedsdg run --method fedsdg --skew dirichlet~1.0 --set training.save=last --output mine
        fedsdg export mine
        fedsdg evaluate mine/models/global --data digits
    """
    sources = _sources(laid, data)
    from fedsdg.experiment.exports.evaluate import evaluate_model
    from fedsdg.experiment.loading import load_images

    results = evaluate_model(model, map(load_images, sources), backbone, partition)
    lines = (
        f"{one.dataset}: accuracy {one.accuracy:.4f}, loss {one.loss:.4f} on {one.images} images "
        f"({one.samples}){f'; {one.chance}' if one.chance else ''}"
        for one in results
    )
    answer(json, map(asdict, results), lines)


def _sources(laid: ConfigFiles, names: Sequence[str]) -> list[Source]:
    """Return the data sets of these names; a config describes further ones, by default all."""
    if not (laid.config or laid.plugin):
        if not names:
            raise ValueError(
                "name data sets with --data, or a config that describes yours with --config"
            )
        return list(names)
    from fedsdg.methods.plugins import offered_datasets

    config = laid.load()
    known = (*config.own, *offered_datasets(config.plugins))
    for name in names:
        if name not in known:
            raise ValueError(f"unknown data set {name!r}{hint(name, known)}")
    return [config.source(name) for name in names or config.datasets]
