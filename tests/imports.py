"""What a process that trains, pretrains, draws or aggregates imports, late for the most part."""

import importlib

from fedsdg.models import declare_torchvision_operators

declare_torchvision_operators()  # before timm
for module in (
    "fedsdg.aggregation",
    "fedsdg.analysis.drawing",
    "fedsdg.analysis.render",
    "fedsdg.data.partition_files",
    "fedsdg.experiment.backbones",
    "fedsdg.experiment.grid",
    "fedsdg.experiment.execution",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_pdf",
    "matplotlib.backends.backend_svg",
    "scipy.stats",
    "sklearn.datasets",
    "sklearn.linear_model",
    "timm",
    "torch.distributed",
):
    importlib.import_module(module)
