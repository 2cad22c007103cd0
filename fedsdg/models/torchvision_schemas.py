"""Lets timm and peft be imported where torchvision's compiled operators do not load.

timm imports torchvision, and a torchvision wheel linked against CUDA loads no operators beside a
CPU build of torch: `import torchvision` then raises "operator torchvision::nms does not exist",
because it registers a shape function for an operator nobody declared. Declaring the operators'
schemas is enough: nothing here ever calls them.
"""

from __future__ import annotations

import torch

_library: torch.library.Library | None = None  # the declarations live as long as this object


def declare_torchvision_operators() -> bool:
    """Make `import torchvision` work; does nothing where the plain import works.

    Call it before every import of timm or peft.

    Returns:
        Whether the plain import fails.
    """
    global _library
    if _library is not None:
        return True
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        _library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            _library.define(
                f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
    except ImportError:
        pass  # timm's own import will say what is missing
    return _library is not None
