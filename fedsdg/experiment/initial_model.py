"""The model with which a run's federation starts."""

from pathlib import Path

import torch
from torch import Tensor

from fedsdg.config.run import Run
from fedsdg.config.sections import find_start
from fedsdg.experiment.material import Material
from fedsdg.files import read_json
from fedsdg.models import (
    AdapterConfig,
    AdapterSettings,
    ClientModel,
    CnnArchitecture,
    CohortModel,
    CompiledModel,
    SmallCnn,
    load_peft,
    start_from,
)
from fedsdg.rng import stream


def initial_model(run: Run, material: Material, *number: int) -> tuple[ClientModel, Tensor, Tensor]:
    """Return the model of a run and its first values.

    A mixture of models, such as Ditto's, is made of it later.

    Args:
        run: The run.
        material: Images and backbone.
        *number: That of a further initialisation, beside the one that all methods share.

    Returns:
        The model, the first communicated row [d], and the first private row [d_p].

    Raises:
        ValueError: The backbone, or the checkpoint to start from, does not fit the run.
    """
    backbone = material.backbone
    images = material.samples.images
    options = run.method.method.personalisation.adapters
    generator = stream("init", run.seed, *number)
    if backbone is None:
        shape = CnnArchitecture(images.shape[2], images.shape[1])
        cnn = SmallCnn(shape, material.data.num_classes, **options)
        return cnn, *cnn.initial_values(generator)
    settings = {name: getattr(run.adapters, name) for name in AdapterSettings.model_fields}
    kind = CompiledModel if run.training.kernel == "compiled" else CohortModel
    model = kind(
        backbone,
        AdapterConfig(**settings, **options),
        material.data.num_classes,
        device=images.device,
        bfloat16=run.training.precision == "bfloat16",
    )
    first, private = model.initial_values(generator)
    start = run.adapters.start
    if start is None:
        return model, first, private
    if find_start(start.folder) != start:
        raise ValueError(
            f"the checkpoint in {start.folder} was changed since the config was read; start again"
        )
    _require_backbone(start.folder, run.backbone, backbone.sha256)
    loaded = load_peft(start.folder)
    rows = start_from(loaded, start.folder, model.layout, model.config.scale, first, private)
    return model, *rows


def initial_models_of_clients(run: Run, material: Material) -> Tensor | None:
    """Return an initialisation for every client [K, d], if the run asks for it.

    Args:
        run: The run.
        material: Images and backbone.
    """
    if run.federation.trajectory != "own":
        return None
    clients = range(1, int(run.federation.clients) + 1)
    rows = [initial_model(run, material, client)[1] for client in clients]
    return torch.stack(rows).to(material.samples.images.device)


def _require_backbone(folder: str, name: str, sha256: str) -> None:
    """Raise ValueError if a checkpoint is known to be for another backbone."""
    file = Path(folder) / "fedsdg.json"  # `fedsdg export` writes it; other programs do not.
    backbone = read_json(file).get("backbone") if file.is_file() else None
    if backbone is not None and backbone["sha256"] != sha256:
        raise ValueError(
            f"the checkpoint in {folder} was made for the backbone {backbone['name']} (SHA-256 "
            f"{backbone['sha256'][:12]}…), but this is {name} ({sha256[:12]}…); use it with its "
            "own backbone"
        )
