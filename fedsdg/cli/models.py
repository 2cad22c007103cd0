"""Commands for partitions, backbones, the models that a run kept, and files of clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedsdg.cli.command import Count, File, Laid, Number, Words, answer
from fedsdg.errors import remark
from fedsdg.experiment.store import require_writable

if TYPE_CHECKING:
    from fedsdg.config.config import Config
    from fedsdg.data.sources import Source


def partition(
    *,
    laid: Laid,
    dataset: str,
    skew: str,
    output: Sequence[Path],
    clients: Number = None,
    seed: Sequence[int] = (),
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
    fixed = config.partition_seed
    seeds = seed or (config.seeds if fixed is None else (fixed,))
    if not len({*output}) == len(output) == len(seeds):
        raise ValueError(f"there are {len(seeds)} seeds; name one --output a seed, in their order")
    require_writable(*output)
    from fedsdg.data.partition import partition_clients
    from fedsdg.data.partition_files import write_partition
    from fedsdg.data.skew import parse_skew
    from fedsdg.experiment.material import load_images

    (images,) = map(load_images, _sources(config, [dataset]))
    count = clients or int(config.federation.clients)
    settings = config.partition_of(skew)
    for number, file in zip(seeds, output, strict=True):
        made = partition_clients(images, count, parse_skew(skew), number, settings)
        write_partition(made, file)
        sizes = made.counts(made.split, 3).sum(1)
        draws = f"{made.facts['attempts']} draw(s)"
        print(f"{file}: {len(sizes)} clients with {sizes.min()} to {sizes.max()} samples, {draws}")
    for note in images.notes:
        print(f"{images.name}: {note}")
    if untrained := made.untrained_classes():
        print(f"classes that no client trains on: {', '.join(untrained)}")
    natural = dict(made.facts.get("natural") or {})
    if natural:
        print(f"clients, from 0 on: {', '.join(natural.pop('names'))}")
    for reason, number in natural.items():
        print(f"left out, {reason.replace('_', ' ')}: {number}")


def pretrain(
    *, laid: Laid, output: Path, backbone: str | None = None, recorded: bool = False
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
    config = laid.load(backbone=backbone)
    require_writable(output)
    if output.suffix != ".safetensors":
        raise ValueError(f"--output {output}: a backbone's file name must end in .safetensors")
    from fedsdg.experiment import backbones

    name = config.backbone
    seconds = config.checkpoint_seconds
    recipe = config.backbones[name]
    backbones.backbone(name, recipe, output, checkpoint_seconds=seconds, recorded=recorded)


def export(
    run: Path, *, output: File = None, client: Sequence[int] = (), backbone: File = None
) -> None:
    """Write a run's models for peft and timm, each with a card.

    Args:
        run: folder of a run that kept its models: training.save
        output: default: models, in the run's folder
        client: these alone (default: all there are)
        backbone: default: results/backbones/<backbone>.safetensors

    Example:
        fedsdg run --method fedsdg --skew dirichlet~1.0 --set training.save=last --output mine
        fedsdg export mine
    """
    require_writable(output or run)
    from fedsdg.experiment import export

    done = export.export(run, output, client or None, backbone)
    for text in done.remarks:
        remark(text)
    print(f"{done.folder}: {', '.join(done.names)}")


def evaluate(
    model: Path,
    *,
    laid: Laid,
    data: Words = (),
    partition: File = None,
    backbone: File = None,
    json: bool = False,
) -> None:
    """Say how well an exported model does on data sets.

    Args:
        model: folder of a model that `fedsdg export` wrote
        laid: the config that the options describe
        data: data sets, of the benchmark or of --config (default: all of --config)
        partition: only images that no client of this partition holds
        backbone: of adapters: results/backbones/<backbone>.safetensors
        json: print JSON

    Example:
        fedsdg evaluate mine/models/global --data digits
    """
    if not (data or laid.words()):
        raise ValueError(
            "name data sets with --data, or a config that describes yours with --config"
        )
    sources = _sources(laid.load(), data)
    from fedsdg.experiment.evaluate import evaluate
    from fedsdg.experiment.material import load_images

    results = list(evaluate(model, map(load_images, sources), backbone, partition))
    lines = [
        f"{one.dataset}: {one.metric} {one.accuracy:.4f}, loss {one.loss:.4f} on {one.images} "
        f"images ({one.samples}){f'; {one.chance}' if one.chance else ''}"
        for one in results
    ]
    answer(json, [vars(one) for one in results], lines)


def _sources(config: Config, names: Words) -> list[str | Source]:
    """Return the data sets of these names, of the config or beyond it; by default the config's."""
    for name in names:
        config = config.including(None, name, None)
    return [source for name, source in config.sources.items() if not names or name in names]


def aggregate(
    *,
    rule: str,
    global_: Path,
    clients: Words,
    out: Path,
    overwrite: bool = False,
    report: File = None,
    num_samples: File = None,
    num_batches: File = None,
    on_nonfinite: Literal["raise", "drop"] = "raise",
    buffers: Literal["largest", "global", "refuse"] = "largest",
    memory: int = 256,
    client_samples: File = None,
    num_clients: int | None = None,
    upload: Words = (),
    state: File = None,
    state_out: File = None,
    round: Count = 1,
) -> None:
    r"""Aggregate clients' safetensors files into one, in little memory.

    Args:
        rule: a name (fedsdg, fedavg, krum, …) or a row of a config: '{type: krum, f: 2}'
        global_: the global parameters
        clients: the clients' parameters, a file each, with the tensors of the global file
        out: where the result goes
        overwrite: replace files that exist
        report: write weights and diagnostics here, as JSON, and not to standard output
        num_samples: JSON: samples by client file ({"a.safetensors": 120, …}; by folder if files
            have equal names) or in their order; default: num_samples of the files' metadata
        num_batches: JSON: as --num-samples, local steps per epoch ('{type: fedavg, weights:
            batches}'); default: num_batches of the files' metadata
        on_nonfinite: whether a client with NaN or infinity is an error or left out
        buffers: integer and boolean tensors: the largest client value, the global one, or an error
        memory: MiB for the blocks read at a time
        client_samples: JSON: the list of the samples of all clients of the federation (for cgsv in
            its first round)
        num_clients: of the federation (for scaffold, and for later rounds)
        upload: NAME=FOLDER: further uploads, in files named as the clients' (control=FOLDER for
            scaffold)
        state: what --state-out wrote in the last round
        state_out: where the state for the next round goes
        round: the number of this round

    Example:
        fedsdg aggregate --rule fedavg --global global.safetensors \
          --clients clients/*.safetensors --out new.safetensors
    """
    from fedsdg.aggregation import files
    from fedsdg.aggregation.file_clients import upload_files
    from fedsdg.experiment.interruption import stopped_by_signals
    from fedsdg.files import write_json
    from fedsdg.files.yaml_text import read_yaml

    given = {"num_samples": num_samples, "num_batches": num_batches}
    given |= {"client_samples": client_samples}
    counts = {name: file for name, file in given.items() if file is not None}
    folders = [text.partition("=") for text in upload]
    for name, _, folder in folders:
        if not (name and folder):
            raise ValueError(f"--upload {name!r} is not of the form NAME=FOLDER")
    targets = [file for file in (out, state_out) if file is not None]
    for target in targets:
        files.check_not_read(target, [*counts.values()])
    if report is not None:
        files.check_target(report, overwrite=overwrite)
        files.check_not_read(report, [*targets, global_, *clients, *counts.values()])
    with stopped_by_signals():
        result = files.aggregate_files(
            read_yaml(rule, "--rule"),
            global_,
            clients,
            out,
            **{name: files.read_counts(file) for name, file in counts.items()},
            num_clients=num_clients,
            uploads={name: upload_files(folder, clients) for name, _, folder in folders},
            round=round,
            state=files.read_state(state) if state is not None else None,
            state_out=state_out,
            on_nonfinite=on_nonfinite,
            buffers=buffers,
            overwrite=overwrite,
            memory=memory << 20,
        )
    facts = {"global": str(global_), "out": str(out), **result.report()}
    if report is not None:
        write_json(report, facts)
    else:
        answer(True, facts, [])
