"""Adapters to and from the folder format of peft: adapter_config.json, adapter_model.safetensors.

One client's adapters, or those that all share, become an ordinary LoRA checkpoint that
`peft.PeftModel.from_pretrained(timm_model, folder)` loads. With a private branch the two ranks are
concatenated: s·(B_g A_g + m·B_p A_p) = s·[B_g, m·B_p][A_g; A_p] is one LoRA of rank 2r.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fedsdg.files import write_bytes
from fedsdg.models.parameters import Layout, offsets
from fedsdg.models.portable import HEAD, Portable

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
_LAYER = re.compile(r"blocks\.\d+\.(.+)")


def save_peft(model: Portable, folder: Path | str, *, base_model: str | None = None) -> None:
    """Write adapters, and their head where there is one, as a peft LoRA checkpoint.

    Args:
        base_model: recorded as `base_model_name_or_path`.

    Raises:
        ValueError: the model adapts no backbone.
    """
    folder = Path(folder)
    if not model.factors:
        raise ValueError("a network with weights of its own has no adapters to save for peft")
    state: dict[str, Tensor] = {}
    for layer, (a, b) in model.factors.items():
        state[f"{_PREFIX}{layer}.lora_A.weight"] = a.contiguous().clone()
        state[f"{_PREFIX}{layer}.lora_B.weight"] = b.contiguous().clone()
    for name, value in model.weights.items():
        state[f"{_PREFIX}{name}"] = value.contiguous().clone()
    kinds = dict.fromkeys(re.escape(_LAYER.sub(r"\1", layer)) for layer in model.factors)
    record: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": None,
        "inference_mode": True,
        "base_model_name_or_path": base_model,
        "r": model.rank,
        "lora_alpha": model.scale * model.rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": rf"blocks\.\d+\.({'|'.join(kinds)})",
        "modules_to_save": ["head"] if model.weights else None,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / WEIGHTS, safetensors.torch.save(state, {"format": "pt"}))
    write_bytes(folder / CONFIG, (json.dumps(record, indent=2, sort_keys=True) + "\n").encode())


def load_peft(folder: Path | str) -> Portable:
    """Read a peft LoRA checkpoint of a vision transformer, with its head if it has one.

    Raises:
        FileNotFoundError: a file of the checkpoint is missing.
        ValueError: it is damaged, not a plain LoRA, or holds anything beside adapters and a head.
    """
    folder = Path(folder)
    for needed in (folder / CONFIG, folder / WEIGHTS):
        if not needed.is_file():
            raise FileNotFoundError(f"peft checkpoint file {needed} is missing")
    try:
        record = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        state = safetensors.torch.load_file(folder / WEIGHTS)
    except (ValueError, safetensors.SafetensorError) as error:
        raise ValueError(f"the peft checkpoint in {folder} is damaged: {error}") from error
    scale = _scale(record, folder)
    named: dict[str, Tensor] = {}
    for key, value in state.items():
        name = key.removeprefix(_PREFIX)
        if name.endswith((".lora_A.weight", ".lora_B.weight")):
            name = name.removesuffix(".weight")
        elif name not in HEAD:
            raise ValueError(
                f"the peft checkpoint in {folder} holds {key}, which is neither a LoRA factor nor "
                "the head; save it with these alone"
            )
        if not value.isfinite().all():
            raise ValueError(
                f"the peft checkpoint in {folder} holds values in {key} that are not finite"
            )
        named[name] = value.float()
    try:
        _check_head(named)
        found = Portable.of_tensors(named, scale)
        if found.factors and found.rank != record["r"]:
            raise ValueError(f"{CONFIG} says rank {record['r']}, but the factors have {found.rank}")
    except ValueError as error:
        raise ValueError(f"the peft checkpoint in {folder} is damaged: {error}") from error
    if not found.factors:
        raise ValueError(f"the peft checkpoint in {folder} holds no LoRA factors")
    return found


def start_from(
    model: Portable,
    source: str,
    layout: Layout,
    scale: float,
    communicated: Tensor,
    private: Tensor,
) -> tuple[Tensor, Tensor]:
    """First values of both rows, with the adapters and the head of `model` in their places.

    What clients keep of these (a head, a B, everything) begins as those, too; private branches stay
    as they are drawn, and so does the head where `model` has none. B is rescaled where the scale of
    `model` is not `scale`, so that the adapters mean the same.

    Args:
        source: where the model is from, for errors.
        communicated, private: rows [d] and [d_private] as drawn.

    Raises:
        ValueError: the adapters are of other layers or shapes than the layout's, or the head is for
            another number of classes.
    """
    given = model.tensors()
    wanted = {spec.name: spec.shape for spec in (*layout.communicated, *layout.private)}
    for name, value in given.items():
        here, there = wanted.get(name), tuple(value.shape)
        if here == there:
            continue
        if here is None:
            remedy = "set adapters.targets as it was for the checkpoint"
        elif name in HEAD:
            remedy = "choose one for as many classes, or take the head out of it"
        elif len(here) == 2 and name.endswith("lora_A") and here[1:] == there[1:]:
            remedy = f"set adapters.rank to {there[0]}"
        else:
            remedy = "it is for another backbone"
        found = "nothing" if here is None else str(here)
        raise ValueError(
            f"the checkpoint in {source} does not fit: {name} has shape {there} in it, but {found} "
            f"in this run; {remedy}"
        )
    adapters = [name for name in wanted if name.endswith((".lora_A", ".lora_B"))]
    if lacking := [name for name in adapters if name not in given]:
        raise ValueError(
            f"the checkpoint in {source} does not fit: it has no {lacking[0]}; set "
            "adapters.targets as it was for the checkpoint"
        )
    rows = communicated.clone(), private.clone()
    for row, specs in zip(rows, (layout.communicated, layout.private), strict=True):
        for name, place in offsets(specs).items():
            if name in given:
                factor = model.scale / scale if name.endswith(".lora_B") else 1.0
                row[place] = (given[name] * factor).reshape(-1).to(row)
    return rows


def _check_head(tensors: Mapping[str, Tensor]) -> None:
    shapes = [tuple(tensors[name].shape) for name in HEAD if name in tensors]
    if shapes and (len(shapes) < 2 or len(shapes[0]) != 2 or shapes[1] != shapes[0][:1]):
        raise ValueError(f"weight and bias of its head have the shapes {shapes}")


def _scale(record: Any, folder: Path) -> float:
    if not isinstance(record, dict):
        raise ValueError(f"the peft checkpoint in {folder} is damaged: {CONFIG} is no mapping")
    unsupported = [
        option
        for option in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "fan_in_fan_out")
        if record.get(option)
    ]
    if record.get("peft_type") != "LORA" or unsupported or record.get("bias", "none") != "none":
        raise ValueError(
            f"the peft checkpoint in {folder} is not a plain LoRA "
            f"({', '.join(unsupported) or record.get('peft_type')}); only those can be loaded"
        )
    try:
        scale = float(record["lora_alpha"]) / float(record["r"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        scale = math.nan
    if not 0 < scale < math.inf:
        raise ValueError(
            f"the peft checkpoint in {folder} is damaged: {CONFIG} has no r and lora_alpha above 0"
        )
    return scale
