"""Commands that make what training begins with: partitions and backbones."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedsdg.cli.command import DATA, Command
from fedsdg.cli.options import add_config_options, load, whole_number

GROUP = DATA


def partition(arguments: argparse.Namespace) -> int:
    """Divide a data set among clients, once for each seed."""
    from fedsdg.data.partition_files import write_partition
    from fedsdg.data.splits import listed
    from fedsdg.experiment.loading import load_images
    from fedsdg.experiment.material import make_partition

    config = load(arguments)
    seeds = arguments.seed or config.seeds
    if len(arguments.output) != len(seeds):
        raise ValueError(
            f"--output names {len(arguments.output)} file(s), but there are {len(seeds)} seeds; "
            "name one file a seed, in their order"
        )
    clients = arguments.clients or config.federation.clients
    images = load_images(config.source(arguments.dataset))
    for seed, output in zip(seeds, arguments.output, strict=True):
        made = make_partition(images, arguments.skew, seed, clients, config.partition)
        write_partition(made, output)
        sizes = made.sizes().sum(1)
        print(
            f"{output}: {made.num_clients} clients with {sizes.min()} to {sizes.max()} "
            f"samples after {made.attempts} draw(s)"
        )
    if "left_out" in images.facts:
        print(f"left out, since in no split: {listed(images.facts['left_out'])}")
    duplicates = images.facts.get("duplicates")
    if duplicates is not None:
        pairs = "".join(f", {test} is {train}" for test, train in duplicates["pairs"])
        print(f"test images that are training images too: {duplicates['images']}{pairs}")
    if made.natural is not None:
        left = made.natural
        print(
            f"left out: {left.too_small} clients with fewer than {config.partition.min_samples} "
            f"samples and {left.not_drawn} that were not drawn, {left.samples_left_out} samples"
        )
    return 0


def _partition_options(sub: argparse.ArgumentParser) -> None:
    add_config_options(sub)
    sub.add_argument("--dataset", required=True)
    sub.add_argument("--clients", type=int, help="default: the config's")
    sub.add_argument("--skew", required=True)
    sub.add_argument("--seed", type=whole_number, nargs="+", help="default: the config's")
    sub.add_argument("--output", nargs="+", required=True, help="one file a seed, in their order")


def pretrain(arguments: argparse.Namespace) -> int:
    """Make a backbone as the config describes it."""
    from fedsdg.experiment.backbones.made import take_recorded
    from fedsdg.experiment.store import store_folder

    config = load(arguments)
    name = arguments.backbone or config.backbone
    if name not in config.backbones:
        from fedsdg.files import hint

        raise ValueError(
            f"backbone {name!r} is not described under backbones{hint(name, config.backbones)}"
        )
    options = config.backbones[name]
    if arguments.recorded and take_recorded(name, options, arguments.output):
        return 0
    from fedsdg.experiment.backbones import pretraining

    pretraining.pretrain(
        options,
        Path(arguments.output),
        checkpoints=store_folder().parent / "checkpoints",
        checkpoint_seconds=config.checkpoint_seconds,
    )
    return 0


def _pretrain_options(sub: argparse.ArgumentParser) -> None:
    add_config_options(sub)
    sub.add_argument("--backbone", help="default: the config's")
    sub.add_argument("--output", required=True)
    sub.add_argument(
        "--recorded",
        action="store_true",
        help="take the record's where it has this one, unless FEDSDG_PRETRAIN=1",
    )


_PARTITION = (
    "fedsdg partition --dataset digits --skew dirichlet~0.1 --seed 0 --output shares.parquet"
)
_PRETRAIN = "fedsdg pretrain --config smoke --output small.safetensors"

COMMANDS = (
    Command(partition, _partition_options, example=_PARTITION),
    Command(pretrain, _pretrain_options, example=_PRETRAIN),
)
