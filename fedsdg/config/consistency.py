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


def not_compiled(config: Config, training: Training) -> str | None:
    """Return why the compiled pass cannot train a run, as far as its config says; else None.

    Args:
        config: Its layers and widths count; the widths of timm are known from the weights alone.
        training: Of the run; its device and precision count.
    """
    for key, value, needed in (
        ("trainable", config.trainable, "adapters"),
        ("training.device", training.device, "cpu"),
        ("training.precision", training.precision, "float32"),
        ("adapters.targets", config.adapters.targets, "outputs"),
    ):
        if value != needed:
            return f"it needs {key}: {needed}, not {value}"
    backbone = config.backbones[config.backbone]
    if isinstance(backbone, Shape):
        head = backbone.dim // backbone.heads
        widths = (backbone.dim, head, int(backbone.dim * backbone.mlp_ratio))
        if any(width % LANES for width in widths):
            return (
                f"it needs tokens, heads and hidden layers of multiples of {LANES} numbers, and "
                f"those of the backbone have {widths[0]}, {widths[1]} and {widths[2]}"
            )
    if not _fuses():
        return "it needs a processor with fused multiply-add instructions, which this one has not"
    return None


def _fuses() -> bool:
    """Return whether this processor multiplies and adds in one instruction."""
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686"):
        return True
    import llvmlite.binding as llvm

    features: Any = llvm.get_host_cpu_features()
    return bool(features.get("fma"))


def require_without_backbone(config: Config) -> None:
    """Raise ConfigError for what needs a backbone, with ``trainable: full``."""
    if config.training.precision != "float32":
        text = f"is {config.training.precision}, but trainable: full computes in float32 alone"
        raise ConfigError(f"{text}; remove it", "training.precision")
    if config.adapters.start is not None:
        raise ConfigError(
            ": with trainable: full there are no adapters that could start from a checkpoint; "
            "remove it, or set trainable to adapters",
            "adapters.start",
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
    compiled = config.training.kernel == "compiled"
    if compiled and (reason := not_compiled(config, config.training)):
        text = f"is compiled, but {reason}; change that, or set it to torch or auto"
        raise ConfigError(text, "training.kernel")
    if federation.shapley is True:
        from fedsdg.federation.observers.shapley import MOST_PLAYERS  # Imports torch.

        if federation.clients_per_round > MOST_PLAYERS:
            raise ConfigError(
                f"is true, but exact Shapley values are enumerated for at most {MOST_PLAYERS} "
                f"clients, and a round has {federation.clients_per_round}; lower "
                "federation.clients_per_round, or write shapley: estimated",
                "federation.shapley",
            )
    try:
        config.conditions.require_possible(int(federation.clients), federation.clients_per_round)
    except ValueError as error:
        raise ConfigError(f": {error}", "conditions") from error
    for entry in config.methods:
        method = entry.method
        try:
            method.rule.require(federation.clients_per_round, int(federation.clients))
            if method.stopping is not None:
                method.stopping.require(config.conditions.differ_in_speed)
        except ValueError as error:
            raise ConfigError(f": {error}", f"methods.{entry.label}") from error
