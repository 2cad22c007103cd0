"""Frozen backbones: building, saving, loading, and taking them from timm or a plain state dict.

A backbone is two files: `NAME.safetensors` (timm's names, no head) and `NAME.json` (architecture,
SHA-256 of the weights, how they were made). Weights are compared with the model tensor by tensor:
a file that does not fit is an error, never a backbone with random weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from fedsdg.files import write_bytes
from fedsdg.models.architecture import Architecture
from fedsdg.models.portable import HEAD
from fedsdg.models.torchvision_schemas import declare_torchvision_operators

#: Names that an error lists of each kind.
LISTED = 4


@dataclass(frozen=True)
class Backbone:
    """A frozen vision transformer: in eval mode, without gradients, without a head."""

    model: nn.Module
    "timm's VisionTransformer"
    architecture: Architecture
    sha256: str
    "of names, types, shapes and values of the weights"
    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    "how it was made: recipe, accuracies, source"


def build_backbone(
    architecture: Architecture, *, num_classes: int = 0, **options: Any
) -> nn.Module:
    """Return a VisionTransformer of this shape with timm's random start.

    Args:
        architecture: its shape.
        num_classes: outputs of the head; 0 for no head.
        **options: of timm's constructor.

    Returns:
        The model, trainable.
    """
    declare_torchvision_operators()
    import timm
    from timm.models.vision_transformer import VisionTransformer

    shape: dict[str, Any] = {"img_size": architecture.image_size, "in_chans": architecture.channels}
    if architecture.timm_name is not None:
        model: nn.Module = timm.create_model(
            architecture.timm_name, pretrained=False, num_classes=num_classes, **shape, **options
        )
        return model
    return VisionTransformer(
        **shape,
        patch_size=architecture.patch_size,
        num_classes=num_classes,
        embed_dim=architecture.dim,
        depth=architecture.depth,
        num_heads=architecture.heads,
        mlp_ratio=architecture.mlp_ratio,
        **options,
    )


def weights_sha256(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a state dict: names in order, types, shapes, values."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def freeze(
    model: nn.Module, architecture: Architecture, name: str, facts: Mapping[str, Any]
) -> Backbone:
    """Make a backbone of a model without head, in place.

    Args:
        model: timm's VisionTransformer.
        architecture: its shape.
        name: for errors and records.
        facts: how it was made.

    Returns:
        The backbone.

    Raises:
        ValueError: the model is of a kind that the forward pass here does not reproduce.
        FloatingPointError: a weight is not finite.
    """
    _require_supported(model, name)
    state = model.state_dict()
    for key, tensor in state.items():
        if not torch.isfinite(tensor).all():
            raise FloatingPointError(
                f"backbone {name}: weight {key} is not finite; pretrain it again"
            )
    model.eval().requires_grad_(False)
    return Backbone(model, architecture, weights_sha256(state), name, dict(facts))


def save_backbone(
    model: nn.Module, architecture: Architecture, path: Path | str, facts: Mapping[str, Any]
) -> Backbone:
    """Write the two files of a backbone; equal weights and facts give equal bytes.

    Args:
        model: timm's VisionTransformer; a head is left out.
        architecture: its shape.
        path: of the weights, ending in .safetensors; the .json stands beside it.
        facts: how it was made, without times, since files of two runs are compared by their bytes.

    Returns:
        The backbone, as read from the files.
    """
    path = _weights_path(path)
    state = {
        key: tensor.detach().cpu().contiguous()
        for key, tensor in model.state_dict().items()
        if key not in HEAD
    }
    shape = {**asdict(architecture), "mean": [*architecture.mean], "std": [*architecture.std]}
    sha256 = weights_sha256(state)
    record = {"name": path.stem, "sha256": sha256, "architecture": shape, **facts}
    text = json.dumps(record, sort_keys=True, indent=2, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, safetensors.torch.save(state))
    write_bytes(path.with_suffix(".json"), text.encode())
    return load_backbone(path)


def load_backbone(path: Path | str) -> Backbone:
    """Read the two files that `save_backbone` wrote.

    Args:
        path: of the weights.

    Returns:
        The backbone.

    Raises:
        FileNotFoundError: one of the two files is missing.
        ValueError: a file is truncated, or the two do not belong together.
    """
    path = _weights_path(path)
    facts_path = path.with_suffix(".json")
    for needed in (path, facts_path):
        if not needed.is_file():
            raise FileNotFoundError(
                f"backbone file {needed} is missing; make it with `fedsdg pretrain`"
            )
    try:
        record = json.loads(facts_path.read_text(encoding="utf-8"))
        architecture = Architecture(**record.pop("architecture"))
        expected = record.pop("sha256")
        record.pop("name")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{facts_path} does not describe a backbone ({error}); run `fedsdg pretrain` again"
        ) from error
    model = _with_weights(architecture, _read_state(path), path)
    backbone = freeze(model, architecture, path.stem, record)
    if backbone.sha256 != expected:
        raise ValueError(
            f"the weights in {path} have SHA-256 {backbone.sha256}, but {facts_path.name} expects "
            f"{expected}: the two files do not belong together; run `fedsdg pretrain` again"
        )
    return backbone


def from_checkpoint(path: Path | str, architecture: Architecture) -> Backbone:
    """Take a backbone from a plain state dict of timm's VisionTransformer, less its head.

    Args:
        path: of a .safetensors file.
        architecture: its shape.

    Returns:
        The backbone.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it is truncated, or its weights are of another architecture.
    """
    path = Path(path)
    model = _with_weights(architecture, _read_state(path), path)
    return freeze(model, architecture, path.stem, {"source": "checkpoint", "file": path.name})


def from_timm(
    name: str, local_file: Path | str | None = None, *, image_size: int | None = None
) -> Backbone:
    """Take a pretrained vision transformer from the hub, or from a file of its weights.

    Args:
        name: timm's name, such as `vit_tiny_patch16_224.augreg_in21k_ft_in1k`.
        local_file: read the weights here instead of asking the hub; timm's own conversions apply.
        image_size: resample the position embedding to another side.

    Returns:
        The backbone.

    Raises:
        FileNotFoundError: `local_file` is missing.
        ValueError: the name is unknown, the weights cannot be had or do not fit the model, or its
            design is not supported.
    """
    declare_torchvision_operators()
    import timm

    options: dict[str, Any] = {"num_classes": 0}
    if image_size is not None:
        options["img_size"] = image_size
    if local_file is not None and not Path(local_file).is_file():
        raise FileNotFoundError(f"backbone weights {local_file} are missing")
    try:
        model: Any = timm.create_model(name, pretrained=local_file is None, **options)
    except Exception as error:  # hub, network and model errors share no base class
        raise ValueError(
            f"timm's pretrained model {name!r} cannot be loaded ({error}); check the name and the "
            "network, or give a local file of its weights"
        ) from error
    _require_supported(model, name)
    if local_file is not None:
        _load_timm_file(model, Path(local_file), name)
    settings = model.pretrained_cfg
    architecture = Architecture(
        image_size=model.patch_embed.img_size[0],
        patch_size=model.patch_embed.patch_size[0],
        channels=model.patch_embed.proj.weight.shape[1],
        dim=model.embed_dim,
        depth=len(model.blocks),
        heads=model.blocks[0].attn.num_heads,
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
        timm_name=name,
        mlp_ratio=model.blocks[0].mlp.fc2.weight.shape[1] / model.embed_dim,
    )
    return freeze(model, architecture, name, {"source": "timm", "timm_name": name})


def _load_timm_file(model: Any, file: Path, name: str) -> None:
    """Load a file of timm's model, converted as timm converts its files."""
    from timm.models import load_state_dict
    from timm.models.vision_transformer import checkpoint_filter_fn

    try:
        if file.suffix == ".npz":
            # The format of the original authors; timm refuses one that lacks a name.
            model.load_pretrained(str(file))
            return
        state: Mapping[str, Tensor] = checkpoint_filter_fn(load_state_dict(str(file)), model)
    except Exception as error:  # those of safetensors, torch and timm share no base class
        raise ValueError(
            f"the weights in {file} cannot be loaded into timm's {name} ({error}); give the file "
            "of this very model"
        ) from error
    _load_all(model, state, f"the weights in {file}", f"timm's {name}")


def _weights_path(path: Path | str) -> Path:
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"a backbone's file name must end in .safetensors: {path}")
    return path


def _read_state(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"backbone weights {path} are missing")
    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path} is not a complete safetensors file ({error}); make or fetch it again"
        ) from error


def _with_weights(architecture: Architecture, state: Mapping[str, Tensor], path: Path) -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # the random start, overwritten here, must draw nothing
        model = build_backbone(architecture)
    _load_all(model, state, f"the weights in {path}", "the architecture given")
    return model


def _load_all(model: nn.Module, state: Mapping[str, Tensor], source: str, target: str) -> None:
    """Load a state dict less its head, after every tensor has been compared with the model's.

    Raises ``ValueError`` that says how many tensors fit, and which are missing, foreign or of
    another shape.
    """
    given = {name: value for name, value in state.items() if name not in HEAD}
    wanted = model.state_dict()
    shared = wanted.keys() & given.keys()
    reshaped = sorted(name for name in shared if wanted[name].shape != given[name].shape)
    faults = {
        "missing": sorted(wanted.keys() - given.keys()),
        "unknown": sorted(given.keys() - wanted.keys()),
        "of another shape": [
            f"{name} {tuple(given[name].shape)} instead of {tuple(wanted[name].shape)}"
            for name in reshaped
        ],
    }
    if any(faults.values()):
        listed = "; ".join(
            f"{fault}: {', '.join(names[:LISTED])}{' …' if len(names) > LISTED else ''}"
            for fault, names in faults.items()
            if names
        )
        raise ValueError(
            f"{source} do not fit {target}: {len(shared) - len(reshaped)} of {len(wanted)} tensors "
            f"were found; {listed}; give the file of this very model, with timm's names"
        )
    model.load_state_dict(given)


def _require_supported(model: Any, name: str) -> None:
    declare_torchvision_operators()
    from timm.layers import Mlp, PatchEmbed
    from timm.models.vision_transformer import Block, VisionTransformer

    problem = None
    if type(model) is not VisionTransformer:
        problem = f"it is a {type(model).__name__}"
    elif model.global_pool != "token" or model.cls_token is None or model.attn_pool is not None:
        problem = "its head does not read the class token"
    elif type(model.patch_embed) is not PatchEmbed:
        problem = "its patches are not embedded by one convolution"
    elif any((type(block), type(block.mlp)) != (Block, Mlp) for block in model.blocks):
        problem = "its blocks are not plain pre-norm blocks"
    elif any(getattr(block.attn, "gate", None) is not None for block in model.blocks):
        problem = "its attention is gated"
    if problem is not None:
        raise ValueError(
            f"backbone {name} is not supported: {problem}; "
            "use a plain timm VisionTransformer with a class token"
        )
