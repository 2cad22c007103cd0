"""Whether a file is the backbone that a recipe describes, and taking it from the record.

Pretraining rounds differently on another processor, and other weights mean other runs. The record
therefore has the weights that its runs began with.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedsdg import files
from fedsdg.experiment.backbones.recipe import Checkpoint, Recipe, Timm, parse_backbone
from fedsdg.files.places import RECORDS, root


def is_made(options: Mapping[str, Any], output: Path | str) -> bool:
    """Whether `output` is there and, by the facts beside it, the backbone that `options` describe.

    That the weights belong to the facts is checked where they are loaded. Where the file that it
    was made from is gone, its name and the architecture decide.
    """
    output = Path(output)
    try:
        facts = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
        entry = parse_backbone(options)
        if not output.is_file() or facts["source"] != options.get("source", "pretrain"):
            return False
        if isinstance(entry, Recipe):
            return bool(facts["recipe"] == json.loads(json.dumps(asdict(entry))))
        # It imports torch, which recipes do not need here.
        from fedsdg.experiment.backbones.taken_over import shape_of, take

        if facts["linear_probe"]["data"] != entry.probe:
            return False
        if isinstance(entry, Timm) and not Path(entry.file or "").is_file():
            size = entry.image_size or facts["architecture"]["image_size"]
            found = (facts["timm_name"], facts["architecture"]["image_size"])
            return bool(found == (entry.timm_name, size))
        if isinstance(entry, Checkpoint) and not Path(entry.file).is_file():
            # Of weights that are not there nothing could be made: what was made of them counts.
            asked = json.loads(json.dumps(asdict(shape_of(entry))))
            same = facts["file"] == Path(entry.file).name
            return bool(same and facts["architecture"] == asked)
        taken = take(entry)
        shape = json.loads(json.dumps(asdict(taken.architecture)))
        return bool(facts["sha256"] == taken.sha256 and facts["architecture"] == shape)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def takes_recorded() -> bool:
    """Whether backbones are taken from the record: unless the environment has FEDSDG_PRETRAIN=1."""
    return os.environ.get("FEDSDG_PRETRAIN", "") in ("", "0")


def take_recorded(name: str, options: Mapping[str, Any], output: Path | str) -> bool:
    """Copy the backbone of the record to `output`, if it is the one that `options` describe.

    Args:
        name: of the recipe under `backbones` of the config.
        options: the recipe.
        output: ends in .safetensors; the facts beside it say where it was `taken_from`.

    Returns:
        Whether it was copied: not where the record has none of this name or of another recipe, and
        not where `takes_recorded` says no.
    """
    place, output = f"{RECORDS}/backbones/{name}.safetensors", Path(output)
    file = root() / place
    if not (takes_recorded() and file.is_file() and is_made(options, file)):
        return False
    facts = files.read_json(file.with_suffix(".json"))
    files.write_bytes(output, file.read_bytes())
    files.write_json(output.with_suffix(".json"), {**facts, "taken_from": place})
    print(f"backbone {name}: taken from {place}", file=sys.stderr, flush=True)
    return True


def require_made(name: str, options: Mapping[str, Any], output: Path) -> None:
    """Raise an error unless `output` is the backbone that `options` describe.

    Args:
        name: of the recipe under `backbones` of the config.
        options: the recipe.
        output: the file of the backbone.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file was made by another recipe.
    """
    command = f"'fedsdg pretrain --backbone {name} --output {output}'"
    if not output.is_file():
        raise FileNotFoundError(f"there is no backbone {output}; make it with {command}")
    if not is_made(options, output):
        raise ValueError(
            f"the backbone {output} was made by another recipe than backbones.{name} of this "
            f"config; make it anew with {command}, with the same --config and --set"
        )
