"""Values of a config that do not go together, though each would be right by itself."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from fedsdg.config.backbones import Shape
from fedsdg.config.sections import Training
from fedsdg.errors import ConfigError

if TYPE_CHECKING:
    from fedsdg.config.config import Config

LANES = 16
"""Numbers in a vector of the compiled pass."""


def compiled(config: Config, training: Training) -> bool:
    """Return whether ``kernel: auto`` trains a run by the compiled pass.

    The pass itself refuses what it cannot compute. Models of timm, whose widths are known from the
    weights alone, are left to PyTorch unless the pass is asked for by name.

    Args:
        config: The config of the run, for its backbone and adapters.
        training: Of the run, for its device and precision.
    """
    backbone = config.backbones[config.backbone]
    if not isinstance(backbone, Shape):
        return False
    widths = (backbone.dim, backbone.dim // backbone.heads, int(backbone.dim * backbone.mlp_ratio))
    values = (config.trainable, config.adapters.targets, training.device, training.precision)
    return (
        values == ("adapters", "outputs", "cpu", "float32")
        and not any(width % LANES for width in widths)
        and _fuses()
    )


def _fuses() -> bool:
    """Return whether this processor multiplies and adds in one instruction."""
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686"):
        return True
    import llvmlite.binding as llvm

    features: Any = llvm.get_host_cpu_features()
    return bool(features.get("fma"))


def require_without_backbone(config: Config) -> None:
    """Raise ConfigError for what needs a backbone, with ``trainable: full``."""
    for place, value, possible in (
        ("training.precision", config.training.precision, ("float32",)),
        ("training.kernel", config.training.kernel, ("auto", "torch")),
        ("adapters.start", config.adapters.start, (None,)),
    ):
        if value not in possible:
            raise ConfigError(
                ": it needs a backbone, which trainable: full has not; remove it", place
            )
    for entry in config.methods:
        if entry.row.needs_adapters:
            raise ConfigError(
                "works on adapters, but with trainable: full there are none; remove the "
                "method, or set trainable to adapters",
                f"methods.{entry.label}",
            )


def require_consistent(config: Config) -> None:
    """Raise ConfigError for sections that do not go together, under one scenario."""
    _ = config.space
    federation = config.federation
    if config.adapters.start is not None and federation.trajectory == "own":
        raise ConfigError(
            ": own gives every client a start of its own, and adapters.start the same to all; "
            "remove one of them",
            "federation.trajectory",
        )
    try:
        config.conditions.require_possible(federation.clients, federation.clients_per_round)
    except ValueError as error:
        raise ConfigError(f": {error}", "conditions") from error
    for entry in config.methods:
        method = entry.method
        if federation.trajectory == "own" and any(term.plain for term in method.terms):
            raise ConfigError(
                "takes its gradients from how far a client has moved from the server's model, but "
                "with federation.trajectory: own clients start elsewhere; remove one of them",
                f"methods.{entry.label}",
            )
        try:
            method.rule.require(federation.clients_per_round, federation.clients)
            if method.stopping is not None:
                method.stopping.require(config.conditions.differ_in_speed)
        except ValueError as error:
            raise ConfigError(f": {error}", f"methods.{entry.label}") from error
