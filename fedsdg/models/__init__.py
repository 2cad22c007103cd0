"""Models with a client axis: adapted backbones, a small CNN, and their exchange with peft and timm.

Import names from here. They are loaded on first use, so that importing this package imports neither
torch nor numba. `ClientModel` is the interface of all models; parameters come from matrices by
`leaves` and `block_views`.
"""

from typing import TYPE_CHECKING

from fedsdg.lazy import at_first_use

if TYPE_CHECKING:
    from fedsdg.models.adapter_config import *  # noqa: F403
    from fedsdg.models.adapters import *  # noqa: F403
    from fedsdg.models.architecture import *  # noqa: F403
    from fedsdg.models.backbones import *  # noqa: F403
    from fedsdg.models.client_model import *  # noqa: F403
    from fedsdg.models.cohort import *  # noqa: F403
    from fedsdg.models.fast.adam import *  # noqa: F403
    from fedsdg.models.fast.model import *  # noqa: F403
    from fedsdg.models.forward import *  # noqa: F403
    from fedsdg.models.mixture import *  # noqa: F403
    from fedsdg.models.parameters import *  # noqa: F403
    from fedsdg.models.peft_exchange import *  # noqa: F403
    from fedsdg.models.portable import *  # noqa: F403
    from fedsdg.models.pretraining import *  # noqa: F403
    from fedsdg.models.products import *  # noqa: F403
    from fedsdg.models.rounding import *  # noqa: F403
    from fedsdg.models.small_cnn import *  # noqa: F403
    from fedsdg.models.torchvision_schemas import *  # noqa: F403

#: Module -> the public names in it.
_NAMES = {
    "adapter_config": "AdapterConfig AdapterSettings",
    "adapters": "GATE HEAD_GATE adapted_layers client_heads gate_name low_rank_factors "
    "separate_gates",
    "architecture": "Architecture CnnArchitecture",
    "backbones": "Backbone build_backbone freeze from_checkpoint from_timm load_backbone "
    "save_backbone weights_sha256",
    "client_model": "ClientModel",
    "cohort": "CohortModel",
    "fast.adam": "adam_step",
    "fast.model": "CompiledModel",
    "forward": "class_tokens",
    "mixture": "MixedModel",
    "parameters": "Layout ParameterSpec block_specs block_views leaves offsets only_trained views",
    "peft_exchange": "PEFT_CONFIG load_peft save_peft start_from",
    "portable": "HEAD Portable",
    "pretraining": "Training linear_probe progress_report shift_and_mirror",
    "products": "even_pays",
    "rounding": "root sigmoid",
    "small_cnn": "SmallCnn cnn_layout cnn_scores",
    "torchvision_schemas": "declare_torchvision_operators",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__getattr__ = at_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
