"""The frozen backbone: trained from scratch on a source data set, or taken over.

Three sources: "pretrain" trains a vision transformer on rendered letters or a named data set;
"checkpoint" takes a plain state dict of timm's VisionTransformer; "timm" takes a pretrained model
of the hub. All end in the same two files, NAME.safetensors and NAME.json, with a linear probe that
says what the backbone is worth.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsdg.data.reading import load
from fedsdg.data.sources import built_in
from fedsdg.experiment.backbones.accuracy import probed
from fedsdg.experiment.backbones.from_scratch import from_scratch
from fedsdg.experiment.backbones.recipe import Recipe, parse_backbone
from fedsdg.experiment.backbones.taken_over import take
from fedsdg.experiment.machine.threads import threads
from fedsdg.models import Backbone, save_backbone


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
    entry = parse_backbone(options)
    started = time.perf_counter()
    if isinstance(entry, Recipe):
        backbone = from_scratch(entry, output, checkpoints, checkpoint_seconds, progress)
    else:
        probe = load(built_in(entry.probe))
        taken = take(entry)
        with threads(entry.threads):
            accuracy = probed(taken.model, taken.architecture, probe)
        facts = {"source": options["source"], **taken.facts, "linear_probe": accuracy}
        backbone = save_backbone(taken.model, taken.architecture, output, facts)
    if progress:
        seconds = time.perf_counter() - started
        summary = f"{backbone.name}: {_summary(backbone.facts)}, {seconds:.1f} s"
        print(summary, file=sys.stderr, flush=True)
    return backbone


def _summary(facts: Mapping[str, Any]) -> str:
    probe = facts["linear_probe"]
    text = f"linear probe on {probe['data']} {probe['accuracy']:.4f}"
    if "held_out_accuracy" in facts:
        text = f"held-out accuracy {facts['held_out_accuracy']:.4f}, {text}"
    return text
