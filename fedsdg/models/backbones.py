"""Frozen backbones: building, saving, loading, and taking them from timm or a plain checkpoint.

A backbone is two files: `NAME.safetensors` (timm's names, no head) and `NAME.json` (architecture,
SHA-256 of the weights, how they were made). One that cannot be loaded is an error, never silently
random weights.
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
from fedsdg.models.torchvision_schemas import declare_torchvision_operators

_HEADS = ("head.weight", "head.bias")


@dataclass(frozen=True)
class Backbone:
    """A frozen vision transformer: eval mode, nothing requires a gradient, no head.

    Attributes:
        model: timm's VisionTransformer.
        sha256: of names, types, shapes and values of the weights.
        facts: how it was made: recipe, accuracies, source.
    """

    model: nn.Module
    architecture: Architecture
    sha256: str
    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)


def build(architecture: Architecture, *, num_classes: int = 0, **options: Any) -> nn.Module:
    """A VisionTransformer of this shape with timm's random start; `num_classes` 0 means no head."""
    declare_torchvision_operators()
    import timm
    from timm.models.vision_transformer import VisionTransformer

    if architecture.timm_name is not None:
        model: nn.Module = timm.create_model(
            architecture.timm_name,
            pretrained=False,
            num_classes=num_classes,
            img_size=architecture.image_size,
            in_chans=architecture.channels,
            **options,
        )
        return model
    return VisionTransformer(
        img_size=architecture.image_size,
        patch_size=architecture.patch_size,
        in_chans=architecture.channels,
        num_classes=num_classes,
        embed_dim=architecture.dim,
        depth=architecture.depth,
        num_heads=architecture.heads,
        mlp_ratio=architecture.mlp_ratio,
        **options,
    )


def weights_sha256(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of a state dict: names in order, types, shapes, values."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def freeze(
    model: nn.Module, architecture: Architecture, name: str, facts: Mapping[str, Any]
) -> Backbone:
    """Make a Backbone of a model without head, in place.

    Raises:
        ValueError: the model is of a kind the cohort's forward pass does not reproduce.
        FloatingPointError: a weight is not finite.
    """
    _check_supported(model, name)
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
    """Write `path` (.safetensors, without head) and the `.json` beside it; bytes are deterministic.

    `facts` must hold no times: the two files are compared byte by byte between runs.
    """
    path = _weights_path(path)
    state = {
        key: tensor.detach().cpu().contiguous()
        for key, tensor in model.state_dict().items()
        if key not in _HEADS
    }
    sha256 = weights_sha256(state)
    described = {**asdict(architecture), "mean": [*architecture.mean], "std": [*architecture.std]}
    record = {"name": path.stem, "sha256": sha256, "architecture": described, **facts}
    text = json.dumps(record, sort_keys=True, indent=2, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, safetensors.torch.save(state))
    write_bytes(path.with_suffix(".json"), text.encode())
    return load_backbone(path)


def load_backbone(path: Path | str) -> Backbone:
    """Read what `save_backbone` wrote.

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
        expected, _ = record.pop("sha256"), record.pop("name")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{facts_path} does not describe a backbone ({error}); run `fedsdg pretrain` again"
        ) from error
    state = _read_state(path)
    model = _loaded(architecture, state, path)
    backbone = freeze(model, architecture, path.stem, record)
    if backbone.sha256 != expected:
        raise ValueError(
            f"the weights in {path} have SHA-256 {backbone.sha256}, but {facts_path.name} expects "
            f"{expected}: the two files do not belong together; run `fedsdg pretrain` again"
        )
    return backbone


def from_checkpoint(path: Path | str, architecture: Architecture) -> Backbone:
    """A backbone from a plain state dict (.safetensors) of timm's VisionTransformer, less its head.

    Raises:
        FileNotFoundError, ValueError: missing, truncated, or of another architecture.
    """
    path = Path(path)
    state = {key: value for key, value in _read_state(path).items() if key not in _HEADS}
    model = _loaded(architecture, state, path)
    return freeze(model, architecture, path.stem, {"source": "checkpoint", "file": path.name})


def from_timm(
    name: str, local_file: Path | str | None = None, *, image_size: int | None = None
) -> Backbone:
    """A pretrained vision transformer from the hub, or from a file of its weights.

    Args:
        name: timm's name, such as `vit_tiny_patch16_224.augreg_in21k_ft_in1k`.
        local_file: read the weights here instead of asking the hub.
        image_size: resample the position embedding to another side.

    Raises:
        FileNotFoundError: `local_file` is missing.
        ValueError: the name is unknown, the weights cannot be had, or the design is unsupported.
    """
    declare_torchvision_operators()
    import timm

    overlay: dict[str, Any] = {}
    if local_file is not None:
        if not Path(local_file).is_file():
            raise FileNotFoundError(f"backbone weights {local_file} are missing")
        overlay["pretrained_cfg_overlay"] = {"file": str(local_file)}
    if image_size is not None:
        overlay["img_size"] = image_size
    try:
        model: Any = timm.create_model(name, pretrained=True, num_classes=0, **overlay)
    except Exception as error:  # hub, network, file and model errors share no base class
        raise ValueError(
            f"timm's pretrained model {name!r} cannot be loaded ({error}); check the name and the "
            "network, or give a local file of its weights"
        ) from error
    _check_supported(model, name)
    settings = model.pretrained_cfg
    channels = model.patch_embed.proj.weight.shape[1]
    architecture = Architecture(
        image_size=model.patch_embed.img_size[0],
        patch_size=model.patch_embed.patch_size[0],
        channels=channels,
        dim=model.embed_dim,
        depth=len(model.blocks),
        heads=model.blocks[0].attn.num_heads,
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
        timm_name=name,
        mlp_ratio=model.blocks[0].mlp.fc2.weight.shape[1] / model.embed_dim,
    )
    return freeze(model, architecture, name, {"source": "timm", "timm_name": name})


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


def _loaded(architecture: Architecture, state: Mapping[str, Tensor], path: Path) -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # the start that is overwritten must draw nothing
        model = build(architecture)
    own = model.state_dict()
    missing = sorted(own.keys() - state.keys())
    foreign = sorted(state.keys() - own.keys())
    shapes = [
        f"{key} {tuple(state[key].shape)} instead of {tuple(own[key].shape)}"
        for key in sorted(own.keys() & state.keys())
        if own[key].shape != state[key].shape
    ]
    if missing or foreign or shapes:
        wrong = "; ".join(
            f"{what}: {', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
            for what, names in (("missing", missing), ("unknown", foreign), ("shape", shapes))
            if names
        )
        raise ValueError(f"the weights in {path} do not fit the architecture given: {wrong}")
    model.load_state_dict(dict(state))
    return model


def _check_supported(model: Any, name: str) -> None:
    declare_torchvision_operators()
    from timm.models.vision_transformer import Block, VisionTransformer

    problem = None
    if type(model) is not VisionTransformer:
        problem = f"it is a {type(model).__name__}"
    elif model.global_pool != "token" or model.cls_token is None or model.attn_pool is not None:
        problem = "its head does not read the class token"
    elif any(type(block) is not Block for block in model.blocks):
        problem = "its blocks are not plain pre-norm blocks"
    elif any(getattr(block.attn, "gate", None) is not None for block in model.blocks):
        problem = "its attention is gated"
    if problem is not None:
        raise ValueError(
            f"backbone {name} is not supported: {problem}; "
            "use a plain timm VisionTransformer with a class token"
        )
