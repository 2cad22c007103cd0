"""Adapters to and from the folder format of peft: adapter_config.json, adapter_model.safetensors.

One client's adapters, or θ_g, become an ordinary LoRA checkpoint that
`peft.PeftModel.from_pretrained(timm_model, folder)` loads. With a private branch the two ranks are
concatenated: s·(B_g A_g + m·B_p A_p) = s·[B_g, m·B_p][A_g; A_p] is one LoRA of rank 2r.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedsdg.models.adapters import TARGETS, AdapterConfig, gate_name
from fedsdg.models.parameters import Layout, ParameterSpec, offsets, views

_PREFIX = "base_model.model."
_WEIGHTS = "adapter_model.safetensors"
_CONFIG = "adapter_config.json"


def save_peft(
    vector: Tensor,
    layout: Layout,
    config: AdapterConfig,
    folder: Path | str,
    *,
    private: Tensor | None = None,
    base_model: str | None = None,
) -> None:
    """Write one client's adapters and head as a peft LoRA checkpoint.

    Args:
        vector: communicated row [d]; for a `local` layout empty, everything being in `private`.
        private: private row [d_private] of the client; None exports θ_g alone.
        base_model: recorded as `base_model_name_or_path`.

    Raises:
        ValueError: a row does not fit the layout.
    """
    folder = Path(folder)
    if config.local and private is None:
        raise ValueError("a local layout keeps all its parameters in the private row: give private")
    if config.head == "private" and private is None:
        raise ValueError("the head is in the private row: give private, or export a shared head")
    tensors = _named(vector, layout.communicated)
    if private is not None:
        tensors |= _named(private, layout.private)
    state: dict[str, Tensor] = {}
    rank = config.rank
    for name in [name for name in tensors if name.endswith(".lora_A")]:
        layer = name.removesuffix(".lora_A")
        a, b = tensors[name], tensors[f"{layer}.lora_B"]
        if private is not None and config.branch == "dual":
            a, b = _compose(a, b, layer, tensors, config)
            rank = a.shape[0]
        state[f"{_PREFIX}{layer}.lora_A.weight"] = a.contiguous().clone()
        state[f"{_PREFIX}{layer}.lora_B.weight"] = b.contiguous().clone()
    for name in ("head.weight", "head.bias"):
        state[f"{_PREFIX}{name}"] = tensors[name].contiguous().clone()
    layers = "|".join(re.escape(target) for target in TARGETS[config.targets])
    record: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": None,
        "inference_mode": True,
        "base_model_name_or_path": base_model,
        "r": rank,
        "lora_alpha": config.scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": rf"blocks\.\d+\.({layers})",
        "modules_to_save": ["head"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / _WEIGHTS, safetensors.torch.save(state, {"format": "pt"}))
    _write(folder / _CONFIG, (json.dumps(record, indent=2, sort_keys=True) + "\n").encode())


def load_peft(folder: Path | str, layout: Layout, config: AdapterConfig) -> Tensor:
    """Read a peft LoRA checkpoint of the same layers, rank and head into one row.

    Returns:
        The communicated row [d] (of a `local` layout: the private row). A checkpoint whose scale
        lora_alpha / r differs from `config.scale` is rescaled in B, so that it means the same.

    Raises:
        FileNotFoundError: a file of the checkpoint is missing.
        ValueError: it is damaged, not a plain LoRA, or does not fit the layout.
    """
    if config.head == "private":
        raise ValueError("a checkpoint has one head for all: read it with head: shared")
    folder = Path(folder)
    for needed in (folder / _CONFIG, folder / _WEIGHTS):
        if not needed.is_file():
            raise FileNotFoundError(f"peft checkpoint file {needed} is missing")
    try:
        record = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        state = safetensors.torch.load_file(folder / _WEIGHTS)
    except (ValueError, safetensors.SafetensorError) as error:
        raise ValueError(f"the peft checkpoint in {folder} is damaged: {error}") from error
    factor = _scale(record, folder) / config.scale
    specs = layout.private if config.local else layout.communicated
    row = torch.zeros(sum(spec.size for spec in specs))
    columns = offsets(specs)
    unread = set(state)
    for spec in specs:
        key = _PREFIX + spec.name + (".weight" if spec.name.endswith(("lora_A", "lora_B")) else "")
        if key not in state or tuple(state[key].shape) != spec.shape:
            found = tuple(state[key].shape) if key in state else "nothing"
            raise ValueError(
                f"the peft checkpoint in {folder} does not fit: {key} must have shape "
                f"{spec.shape}, found {found}"
            )
        unread.discard(key)
        value = state[key].float() * (factor if spec.name.endswith("lora_B") else 1.0)
        row[columns[spec.name]] = value.reshape(-1)
    if unread:
        raise ValueError(
            f"the peft checkpoint in {folder} adapts layers the layout lacks: "
            f"{', '.join(sorted(unread)[:4])}"
        )
    return row


def _scale(record: Mapping[str, Any], folder: Path) -> float:
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
    return float(record["lora_alpha"]) / float(record["r"])


def _compose(
    a: Tensor, b: Tensor, layer: str, tensors: Mapping[str, Tensor], config: AdapterConfig
) -> tuple[Tensor, Tensor]:
    """Factors whose product is the gated sum of both branches (Eq. 4)."""
    if config.gate_fixed is None:
        gate = torch.sigmoid(tensors[gate_name(layer, config)])
    else:
        gate = torch.tensor(config.gate_fixed, dtype=a.dtype)
    b_private = gate * tensors[f"{layer}.lora_B_private"]
    if config.composition == "mixture":
        b = (1 - gate) * b
    if config.private_subspace == "shared-a":
        return a, b + b_private
    a_private = tensors[f"{layer}.lora_A_private"]
    if config.composition == "factors":
        return a + gate * a_private, b + b_private
    return torch.cat((a, a_private)), torch.cat((b, b_private), dim=1)


def _named(row: Tensor, specs: tuple[ParameterSpec, ...]) -> dict[str, Tensor]:
    named = views(row.detach().cpu()[None], specs)
    return {name: tensor[0] for name, tensor in named.items()}


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
