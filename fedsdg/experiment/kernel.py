"""Which code trains and judges a run's models: the compiled pass, or PyTorch.

A rule says it, not a measurement: a run's address holds the code that was taken.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from fedsdg.experiment.backbones.recipe import Timm, parse_backbone

if TYPE_CHECKING:
    from fedsdg.experiment.sections import AdaptersConfig, TrainingConfig

#: Numbers in a vector of the compiled pass.
LANES = 16


def fuses() -> bool:
    """Whether this processor multiplies and adds in one instruction, as the compiled pass does."""
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686"):
        return True
    import llvmlite.binding as llvm

    return bool(llvm.get_host_cpu_features().get("fma"))


def not_compiled(
    trainable: str, training: TrainingConfig, adapters: AdaptersConfig, backbone: Mapping[str, Any]
) -> str | None:
    """Return why the compiled pass cannot train a run, as far as its config says; else None.

    ``backbone``: the entry of ``backbones``. Of a model of timm's only its weights tell.
    """
    for key, value, needed in (
        ("trainable", trainable, "adapters"),
        ("training.device", training.device, "cpu"),
        ("training.precision", training.precision, "float32"),
        ("adapters.targets", adapters.targets, "outputs"),
    ):
        if value != needed:
            return f"it needs {key}: {needed}, not {value}"
    made = parse_backbone(backbone)
    if not isinstance(made, Timm):
        widths = (made.dim, made.dim // made.heads)
        hidden = int(made.dim * made.mlp_ratio)
        if any(width % LANES for width in (*widths, hidden)):
            return (
                f"it needs tokens, heads and hidden layers of multiples of {LANES} numbers, and "
                f"those of the backbone have {widths[0]}, {widths[1]} and {hidden}"
            )
    if not fuses():
        return "it needs a processor with fused multiply-add instructions, which this one has not"
    return None


def kernel_of(
    trainable: str, training: TrainingConfig, adapters: AdaptersConfig, backbone: Mapping[str, Any]
) -> Literal["compiled", "torch"]:
    """Return what a run is trained with; ``auto`` is compiled where that is known to be possible.

    Models of timm's are left to PyTorch unless ``compiled`` is asked for by name.
    """
    if training.kernel != "auto":
        return training.kernel
    known = not isinstance(parse_backbone(backbone), Timm)
    possible = known and not not_compiled(trainable, training, adapters, backbone)
    return "compiled" if possible else "torch"
