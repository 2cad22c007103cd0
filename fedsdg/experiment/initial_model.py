"""The method of a run, and the model with which its federation starts."""

import torch
from torch import Tensor

from fedsdg.experiment.material import Material
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.starts import find_start, require_backbone
from fedsdg.methods.method import Method
from fedsdg.methods.plugins import find_method
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
from fedsdg.parts import declared
from fedsdg.rng import stream


def method_of(run: RunConfig) -> Method:
    """Return the method of a run, with the values of its parameters."""
    return find_method(run.method, run.plugin).with_values(run.parameters)


def initial_model(
    run: RunConfig, material: Material, *number: int
) -> tuple[ClientModel, Tensor, Tensor]:
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
    if (run.trainable == "full") != (backbone is None):
        raise ValueError(
            f"trainable is {run.trainable}, and a backbone was "
            f"{'not ' if backbone is None else ''}given; adapters need one (--backbone), and with "
            "full there is none"
        )
    images = material.samples.images
    options = method_of(run).personalisation.adapters
    generator = stream("init", run.seed, *number)
    if backbone is None:
        shape = CnnArchitecture(images.shape[2], images.shape[1])
        cnn = SmallCnn(shape, material.num_classes, **options)
        return cnn, *cnn.initial_values(generator)
    settings = {name: getattr(run.adapters, name) for name in declared(AdapterSettings)}
    kind = CompiledModel if run.training.kernel == "compiled" else CohortModel
    model = kind(
        backbone,
        AdapterConfig(**settings, **options),
        material.num_classes,
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
    require_backbone(start.folder, run.backbone, backbone.sha256)
    found = load_peft(start.folder)
    rows = start_from(found, start.folder, model.layout, model.config.scale, first, private)
    return model, *rows


def require_start(run: RunConfig, material: Material) -> None:
    """Check that the checkpoint that a run starts from, if there is one, fits it.

    Raises:
        ValueError: It does not.
    """
    if run.adapters.start is not None:
        initial_model(run, material)


def own_starts(run: RunConfig, material: Material) -> Tensor | None:
    """Return an initialisation for every client [K, d], if the run asks for it."""
    if run.federation.trajectory != "own":
        return None
    clients = range(1, run.federation.clients + 1)
    rows = [initial_model(run, material, client)[1] for client in clients]
    return torch.stack(rows).to(material.samples.images.device)
