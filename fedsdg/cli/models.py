"""Commands that take a run's models out of the benchmark and evaluate them."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fedsdg.cli.command import MODELS, Command
from fedsdg.cli.options import add_config_options, add_json_option, load, say_json

if TYPE_CHECKING:
    from fedsdg.experiment.loading import Source


def export(arguments: argparse.Namespace) -> int:
    """Write a run's models for peft and timm, or its metrics.

    Each model has a card. With --tensorboard no models are written, but every recorded metric, as
    a file of events that TensorBoard shows.
    """
    if arguments.tensorboard:
        from fedsdg.analysis.events import write_events

        for option in ("output", "client", "backbone"):
            if getattr(arguments, option) is not None:
                raise ValueError(f"--{option} is for models; --tensorboard writes none")
        print(write_events(Path(arguments.run), Path(arguments.tensorboard)))
        return 0
    from fedsdg.experiment.exports.export import export_run

    done = export_run(
        Path(arguments.run),
        Path(arguments.output) if arguments.output else None,
        arguments.client,
        Path(arguments.backbone) if arguments.backbone else None,
    )
    for remark in done.remarks:
        print(f"fedsdg: {remark}", file=sys.stderr)
    print(f"{done.folder}: {', '.join(done.names)}")
    return 0


def _export_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("run", help="folder of a run; for models one that kept them: training.save")
    sub.add_argument(
        "--tensorboard", metavar="FOLDER", help="write events with all recorded metrics here"
    )
    sub.add_argument("--output", metavar="FOLDER", help="default: models, in the run's folder")
    sub.add_argument(
        "--client", nargs="+", type=int, metavar="K", help="these alone (default: all there are)"
    )
    sub.add_argument(
        "--backbone", metavar="FILE", help="default: results/backbones/<backbone>.safetensors"
    )


def evaluate(arguments: argparse.Namespace) -> int:
    """Say how well an exported model does on data sets."""
    from fedsdg.experiment.exports.evaluate import evaluate_model
    from fedsdg.experiment.loading import load_images

    found = evaluate_model(
        Path(arguments.model),
        map(load_images, _sources_to_evaluate(arguments)),
        Path(arguments.backbone) if arguments.backbone else None,
        Path(arguments.partition) if arguments.partition else None,
    )
    if arguments.json:
        say_json([asdict(one) for one in found])
        return 0
    for one in found:
        print(
            f"{one.dataset}: accuracy {one.accuracy:.4f}, loss {one.loss:.4f} on {one.images} "
            f"images ({one.samples}){f'; {one.chance}' if one.chance else ''}"
        )
    return 0


def _evaluate_options(sub: argparse.ArgumentParser) -> None:
    add_config_options(sub)
    sub.add_argument("model", help="folder of a model that `fedsdg export` wrote")
    sub.add_argument(
        "--data",
        nargs="+",
        metavar="NAME",
        help="data sets, of the benchmark or of --config (default: all of --config)",
    )
    sub.add_argument(
        "--partition", metavar="FILE", help="only images that no client of this partition holds"
    )
    sub.add_argument(
        "--backbone", metavar="FILE", help="of adapters: results/backbones/<backbone>.safetensors"
    )
    add_json_option(sub)


def _sources_to_evaluate(arguments: argparse.Namespace) -> list[Source]:
    """Data sets by name; one's own, which a config describes, and by default all of a config."""
    from fedsdg.files import hint
    from fedsdg.methods.plugins import offered_datasets

    if not (arguments.config or arguments.plugin):
        if not arguments.data:
            raise ValueError(
                "name data sets with --data, or a config that describes yours with --config"
            )
        return list(arguments.data)
    config = load(arguments)
    names = arguments.data or config.datasets
    known = (*config.own, *offered_datasets(config.plugins))
    for name in names:
        if name not in known:
            raise ValueError(f"unknown data set {name!r}{hint(name, known)}")
    return [config.source(name) for name in names]


_KEPT = "fedsdg run --method fedsdg --skew dirichlet~1.0 --set training.save=last --output mine"
_EXPORT = f"""\
{_KEPT}
fedsdg export mine
fedsdg export mine --tensorboard events"""
_EVALUATE = f"""\
{_KEPT}
fedsdg export mine
fedsdg evaluate mine/models/global --data digits"""

GROUP = MODELS
COMMANDS = (
    Command(export, _export_options, (), _EXPORT),
    Command(evaluate, _evaluate_options, (), _EVALUATE),
)
