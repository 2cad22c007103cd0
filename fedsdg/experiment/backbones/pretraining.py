"""The frozen backbone: trained from scratch on a source data set, or taken over.

Three sources: "pretrain" trains a vision transformer on rendered letters or a named data set;
"checkpoint" takes a plain state dict of timm's VisionTransformer; "timm" takes a pretrained model
of the hub. All end in the same two files, NAME.safetensors and NAME.json, with a linear probe that
says what the backbone is worth.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedsdg.data.datasets import load_dataset
from fedsdg.experiment.backbones.accuracy import probed
from fedsdg.experiment.backbones.from_scratch import from_scratch
from fedsdg.experiment.backbones.recipe import parse_recipe
from fedsdg.experiment.backbones.taken_over import shape_of, take
from fedsdg.experiment.machine.threads import threads
from fedsdg.models.backbones import Backbone, save_backbone


def pretrain(
    options: Mapping[str, Any],
    output: Path | str,
    *,
    checkpoints: Path | None = None,
    checkpoint_seconds: float = 30.0,
    progress: bool = True,
) -> Backbone:
    """Make the backbone that `options` describe and write it to `output` (.safetensors, .json).

    Args:
        options: `source` "pretrain" (default; the fields of `Recipe`) | "checkpoint" (`file` and
            the architecture) | "timm" (`timm_name`, optionally `file` and `image_size`).
        output: ends in .safetensors. The bytes written depend on `options` only.
        checkpoints: folder of unfinished work, from which the same call goes on; None: none is
            kept. Saved at SIGINT and SIGTERM, and between two steps `checkpoint_seconds` or more
            after the last time. When it is saved changes no byte of the backbone.
        progress: a bar on a terminal, plain lines elsewhere, both on standard error.

    Raises:
        ValueError: unknown, missing or contradicting options; a checkpoint of something else; the
            device's memory is too small.
        FileNotFoundError: a checkpoint file or the images are missing.
        FloatingPointError: the loss became NaN or infinite.
        Stopped: SIGINT or SIGTERM came.
    """
    chosen = dict(options)
    source = chosen.pop("source", "pretrain")
    started = time.perf_counter()
    if source == "pretrain":
        backbone = from_scratch(
            parse_recipe(chosen), output, checkpoints, checkpoint_seconds, progress
        )
    elif source in ("checkpoint", "timm"):
        probe = load_dataset(chosen.get("probe", "digits"))
        taken = take(source, chosen)
        with threads(int(chosen.get("threads", 2))):
            accuracy = probed(taken.model, taken.architecture, probe)
        facts = {"source": source, **taken.facts, "linear_probe": accuracy}
        backbone = save_backbone(taken.model, taken.architecture, output, facts)
    else:
        raise ValueError(f"backbone source {source!r} is not pretrain, checkpoint or timm")
    if progress:
        seconds = time.perf_counter() - started
        summary = f"{backbone.name}: {_summary(backbone.facts)}, {seconds:.1f} s"
        print(summary, file=sys.stderr, flush=True)
    return backbone


def is_made(options: Mapping[str, Any], output: Path | str) -> bool:
    """Whether `output` is there and, by the facts beside it, the backbone that `options` describe.

    That the weights belong to the facts is checked where they are loaded. Where the file that it
    was made from is gone, its name and the architecture decide.
    """
    output = Path(output)
    try:
        facts = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
        source = options.get("source", "pretrain")
        chosen = {key: value for key, value in options.items() if key != "source"}
        if not output.is_file() or facts["source"] != source:
            return False
        if source == "pretrain":
            recipe = json.loads(json.dumps(asdict(parse_recipe(chosen))))
            return bool(facts["recipe"] == recipe)
        if facts["linear_probe"]["data"] != chosen.get("probe", "digits"):
            return False
        if source == "timm" and not Path(chosen.get("file", "")).is_file():
            size = chosen.get("image_size", facts["architecture"]["image_size"])
            found = (facts["timm_name"], facts["architecture"]["image_size"])
            return bool(found == (chosen["timm_name"], size))
        if not Path(chosen["file"]).is_file():
            # Of weights that are not there nothing could be made: what was made of them counts.
            asked = json.loads(json.dumps(asdict(shape_of(chosen))))
            same = facts["file"] == Path(chosen["file"]).name
            return bool(same and facts["architecture"] == asked)
        taken = take(source, chosen)
        shape = json.loads(json.dumps(asdict(taken.architecture)))
        return bool(facts["sha256"] == taken.sha256 and facts["architecture"] == shape)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _summary(facts: Mapping[str, Any]) -> str:
    probe = facts["linear_probe"]
    text = f"linear probe on {probe['data']} {probe['accuracy']:.4f}"
    if "held_out_accuracy" in facts:
        text = f"held-out accuracy {facts['held_out_accuracy']:.4f}, {text}"
    return text
