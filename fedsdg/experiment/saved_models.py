"""The models of a run that are kept: those of the server, and those that clients use.

They are written in terms that need nothing of this package: adapters, heads, weights (`Portable`),
as `NAME/TENSOR` in one safetensors file. Names are `global`, or `server~0`, `server~1`, … if there
are several, and `client~0`, ….
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from fedsdg import files
from fedsdg.federation.accuracy import mean_accuracy, validation_counts
from fedsdg.federation.observers.observer import Observer, RoundView
from fedsdg.federation.setup import Setup
from fedsdg.models import Portable, block_specs, block_views


class ModelSaver(Observer):
    """Remembers the server's models [C, d], and what each of K clients uses.

    A client uses row `which` of `models` [U, d], and its row of `private` [K, d_p] if it
    `uses_private`.
    """

    def __init__(self, choice: Literal["selected", "last"]) -> None:
        """Choose the round: the one that validation has `selected`, or the `last`."""
        super().__init__()
        self.choice = choice

    def observe(self, view: RoundView) -> None:
        """Take the models of a round, if they are to be kept so far."""
        models = view.evaluation
        if models is None or not (view.last or self.choice == "selected"):
            return
        right, sizes = validation_counts(view.clients.values())
        if self.state and self.choice == "selected":
            best = mean_accuracy(self.state["right"].numpy(), self.state["sizes"].numpy())
            if mean_accuracy(right, sizes) <= best:
                return
        private = models.kept.read("private", np.arange(view.setup.num_clients))
        self.state = {
            "round": torch.tensor(view.t),
            "right": torch.from_numpy(right),
            "sizes": torch.from_numpy(sizes),
            "server": view.after.models.cpu().clone(),
            "models": models.models.cpu().clone(),
            "which": torch.from_numpy(models.which),
            "uses_private": torch.from_numpy(models.uses_private),
            "private": private.cpu(),
        }


def write_models(
    file: Path, setup: Setup, state: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Write the models that a `ModelSaver` remembers; equal models give equal bytes.

    Args:
        file: The file.
        setup: The federation.
        state: That of the observer.
        facts: What else is to be known of the models, in JSON's types.
    """
    layout = setup.layout
    frozen = {spec.name for spec in block_specs(layout.private) if spec.group == "frozen"}
    initial = block_views(setup.private[None], layout.private)
    common = {name: value for name, value in initial.items() if name in frozen}
    models: dict[str, Portable] = {}
    unavailable: dict[str, str] = {}

    def add(name: str, parameters: Mapping[str, Tensor], private: bool) -> bool:
        try:
            models[name] = setup.model.portable(parameters, private)
        except ValueError as error:
            unavailable["clients" if name.startswith("client") else "the server"] = str(error)
        return name in models

    names = [f"server~{c}" for c in range(len(state["server"]))]
    servers = dict(zip(names if len(names) > 1 else ["global"], state["server"], strict=True))
    for name, row in servers.items():
        add(name, {**block_views(row[None], layout.communicated), **common}, False)
    clients = []
    for client, number in enumerate(state["which"].tolist()):
        row = state["models"][number]
        private = bool(state["uses_private"][client]) and layout.own_parameters > 0
        parameters = block_views(row[None], layout.communicated)
        parameters |= block_views(state["private"][client][None], layout.private)
        # A tuned copy may differ in what is frozen otherwise.
        tuned = any(not torch.equal(parameters[key], x.cpu()) for key, x in common.items())
        server = next((name for name, x in servers.items() if torch.equal(row, x)), None)
        used = server
        if server is None or private or tuned or not layout.global_model:
            used = f"client~{client}"
            used = used if add(used, parameters, private) else None
        added = used in models and models[used].own_rank > 0
        clients.append({"model": used, "beside": server if added else None} | _task(setup, client))
    described = {
        **facts,
        "round": int(state["round"]),
        "test": " ".join(map(str, setup.data.global_test)),
        "test_classes": np.bincount(setup.data.true_labels[setup.data.global_test]).tolist(),
        "clients": clients,
        "unavailable": unavailable,
        "models": {n: {"scale": m.scale, "own_rank": m.own_rank} for n, m in models.items()},
    }
    tensors = {
        f"{name}/{key}": value for name, m in models.items() for key, value in m.tensors().items()
    }
    # One entry alone: safetensors writes several in no fixed order.
    content = safetensors.torch.save(tensors, {"fedsdg": json.dumps(described)})
    files.write_bytes(file, content)


def _task(setup: Setup, client: int) -> dict[str, Any]:
    """Return what a client's accuracy depends on beside its model."""
    held = setup.data.held(client)
    view = setup.data.views.get(client)
    return {
        "labels": setup.data.class_names[client].tolist(),
        "held": None if held is None else held.tolist(),
        "view": None if view is None else asdict(view),
    }


def read_models(file: Path) -> tuple[dict[str, Portable], dict[str, Any]]:
    """Read what `write_models` wrote.

    Returns:
        Models by name, those of the server first, and the facts.

    Raises:
        ValueError: The file is not as it was written.
    """
    files.require_unchanged(file)
    with safetensors.safe_open(file, "pt") as stored:
        facts = json.loads(stored.metadata()["fedsdg"])
        tensors: dict[str, dict[str, Tensor]] = {name: {} for name in facts["models"]}
        for key in stored.keys():  # noqa: SIM118
            name, _, tensor = key.partition("/")
            tensors[name][tensor] = stored.get_tensor(key)
    models = {name: Portable.of_tensors(tensors[name], **facts["models"][name]) for name in tensors}
    return models, facts
