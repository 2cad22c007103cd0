"""Adapters to and from the folder format of peft: adapter_config.json, adapter_model.safetensors.

A client's adapters, or those that all clients share, become an ordinary LoRA checkpoint that
`peft.PeftModel.from_pretrained(timm_model, folder)` loads. A private branch is concatenated in the
rank: s·(B_g A_g + m·B_p A_p) = s·[B_g, m·B_p][A_g; A_p] is one LoRA of rank 2r.
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

PEFT_CONFIG = "adapter_config.json"
PEFT_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_LAYER = re.compile(r"blocks\.\d+\.(.+)")

#: Options of peft that do not change what saved adapters compute: they are read here, name layers
#: (so do the tensors), act in training alone, or belong to another option, which must be off. Any
#: other option must be off as well.
UNDERSTOOD = frozenset({
    "auto_mapping", "base_model_name_or_path", "eva_config", "exclude_modules", "inference_mode",
    "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core",
    "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "revision",
    "target_modules", "task_type",
})  # fmt: skip
#: Values that are as good as off. Starts such as PiSSA train beside a changed backbone.
HARMLESS = {
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "eva", "orthogonal"),
}


def save_peft(model: Portable, folder: Path | str, *, base_model: str | None = None) -> None:
    """Write adapters, and their head where there is one, as a peft LoRA checkpoint.

    Args:
        model: with adapters.
        folder: is made where it does not exist.
        base_model: recorded as `base_model_name_or_path`.

    Raises:
        ValueError: the model has no adapters.
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
    targets = dict.fromkeys(re.escape(_LAYER.sub(r"\1", layer)) for layer in model.factors)
    record: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": None,
        "inference_mode": True,
        "base_model_name_or_path": base_model,
        "r": model.rank,
        "lora_alpha": model.scale * model.rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": rf"blocks\.\d+\.({'|'.join(targets)})",
        "modules_to_save": ["head"] if model.weights else None,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / PEFT_WEIGHTS, safetensors.torch.save(state, {"format": "pt"}))
    text = json.dumps(record, indent=2, sort_keys=True) + "\n"
    write_bytes(folder / PEFT_CONFIG, text.encode())


def load_peft(folder: Path | str) -> Portable:
    """Read a peft LoRA checkpoint of a vision transformer, with its head if it has one.

    Args:
        folder: with the two files of the format.

    Returns:
        The adapters in float32.

    Raises:
        FileNotFoundError: a file of the checkpoint is missing.
        ValueError: it is damaged, uses an option outside of `UNDERSTOOD`, or holds anything beside
            adapters and a head.
    """
    folder = Path(folder)
    for needed in (folder / PEFT_CONFIG, folder / PEFT_WEIGHTS):
        if not needed.is_file():
            raise FileNotFoundError(f"peft checkpoint file {needed} is missing")
    try:
        record = json.loads((folder / PEFT_CONFIG).read_text(encoding="utf-8"))
        state = safetensors.torch.load_file(folder / PEFT_WEIGHTS)
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
        model = Portable.of_tensors(named, scale)
        if model.factors and model.rank != record["r"]:
            raise ValueError(
                f"{PEFT_CONFIG} says rank {record['r']}, but the factors have {model.rank}"
            )
    except ValueError as error:
        raise ValueError(f"the peft checkpoint in {folder} is damaged: {error}") from error
    if not model.factors:
        raise ValueError(f"the peft checkpoint in {folder} holds no LoRA factors")
    return model


def start_from(
    model: Portable,
    source: str,
    layout: Layout,
    scale: float,
    communicated: Tensor,
    private: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return first values of both rows with the adapters and the head of a checkpoint in place.

    A head, a B or whatever else of these clients keep also begins with the checkpoint's values.
    Private branches stay as drawn, and so does the head where the checkpoint has none. B is
    rescaled where the checkpoint has another scale, so that the adapters mean the same.

    Args:
        model: the checkpoint.
        source: its origin, for errors.
        layout: of the two rows.
        scale: s of the run's adapters.
        communicated: row [d] as drawn.
        private: row [d_private] as drawn.

    Returns:
        The two rows.

    Raises:
        ValueError: the adapters are of other layers or shapes than the layout's, or the head has
            another number of classes.
    """
    tensors = model.tensors()
    wanted = {spec.name: spec.shape for spec in (*layout.communicated, *layout.private)}
    for name, value in tensors.items():
        here, there = wanted.get(name), tuple(value.shape)
        if here == there:
            continue
        if here is None:
            remedy = "set adapters.targets as it was for the checkpoint"
        elif name in HEAD:
            remedy = "choose one for as many classes, or take the head out of it"
        elif name.endswith("lora_A") and here[1:] == there[1:]:
            remedy = f"set adapters.rank to {there[0]}"
        else:
            remedy = "it is for another backbone"
        raise ValueError(
            f"the checkpoint in {source} does not fit: {name} has shape {there} in it, but "
            f"{here or 'nothing'} in this run; {remedy}"
        )
    adapters = [name for name in wanted if name.endswith((".lora_A", ".lora_B"))]
    if lacking := [name for name in adapters if name not in tensors]:
        raise ValueError(
            f"the checkpoint in {source} does not fit: it has no {lacking[0]}; set "
            "adapters.targets as it was for the checkpoint"
        )
    rows = communicated.clone(), private.clone()
    for row, specs in zip(rows, (layout.communicated, layout.private), strict=True):
        for name, columns in offsets(specs).items():
            if name in tensors:
                factor = model.scale / scale if name.endswith(".lora_B") else 1.0
                row[columns] = (tensors[name] * factor).reshape(-1).to(row)
    return rows


def _check_head(tensors: Mapping[str, Tensor]) -> None:
    shapes = [tuple(tensors[name].shape) for name in HEAD if name in tensors]
    if shapes and (len(shapes) < 2 or len(shapes[0]) != 2 or shapes[1] != shapes[0][:1]):
        raise ValueError(f"weight and bias of its head have the shapes {shapes}")


def _scale(record: Any, folder: Path) -> float:
    """Return s = α / r of a plain LoRA."""
    if not isinstance(record, dict):
        raise ValueError(f"the peft checkpoint in {folder} is damaged: {PEFT_CONFIG} is no mapping")
    if record.get("peft_type") != "LORA":
        raise ValueError(
            f"the peft checkpoint in {folder} is a {record.get('peft_type')}; only plain LoRA can "
            "be loaded"
        )
    changed = [
        f"{option}: {json.dumps(value)}"
        for option, value in record.items()
        if value and option not in UNDERSTOOD and value not in HARMLESS.get(option, ())
    ]
    if changed:
        raise ValueError(
            f"the peft checkpoint in {folder} is not a plain LoRA ({', '.join(changed)}); save it "
            "without these options"
        )
    try:
        scale = float(record["lora_alpha"]) / float(record["r"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        scale = math.nan
    if not 0 < scale < math.inf:
        raise ValueError(
            f"the peft checkpoint in {folder} is damaged: {PEFT_CONFIG} has no r and lora_alpha "
            "above 0"
        )
    return scale
