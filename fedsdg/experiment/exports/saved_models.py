"""The models of a run that are kept: those of the server, and those that clients use.

They are written in terms that need nothing of this package: adapters, heads, weights (`Portable`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedsdg.experiment.exports.client_task import ClientTask
from fedsdg.federation.accuracy import mean_accuracy, validation_counts
from fedsdg.federation.observers.observer import Observer, RoundView
from fedsdg.federation.setup import Setup
from fedsdg.files import atomic_path, canonical_json
from fedsdg.models import Portable, block_specs, block_views

_FACTS = "fedsdg"


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


@dataclass(frozen=True)
class SavedModels:
    """Models by name: `global`, or `server~{c}` if there are several, and `client~{k}`."""

    round: int
    "after which they were taken"
    models: Mapping[str, Portable]
    uses: tuple[str | None, ...]
    "[K] the model that each client uses; None: one that cannot be put in such terms"
    beside: Mapping[str, str]
    "for a client's model that is another one and an addition, the name of that"
    unavailable: Mapping[str, str]
    "why there are no models of a kind, `server` or `clients`"
    tasks: tuple[ClientTask, ...]
    "[K] what each client's accuracy depends on beside its model"

    def write(self, file: Path, facts: Mapping[str, Any]) -> None:
        """Write the models with further facts; equal models give equal bytes."""
        described = {
            **facts,
            "round": self.round,
            "uses": list(self.uses),
            "beside": dict(self.beside),
            "unavailable": dict(self.unavailable),
            "tasks": [task.to_plain() for task in self.tasks],
            "models": {
                name: {"scale": model.scale, "own_rank": model.own_rank}
                for name, model in self.models.items()
            },
        }
        tensors = {}
        for name, model in self.models.items():
            for tensor, value in model.tensors().items():
                tensors[f"{name}/{tensor}"] = value
        # One entry alone: safetensors writes several in no fixed order.
        content = safetensors.torch.save(tensors, {_FACTS: canonical_json(described)})
        with atomic_path(file) as temporary:
            temporary.write_bytes(content)


def read_saved(file: Path) -> tuple[SavedModels, dict[str, Any]]:
    """Read what `SavedModels.write` wrote.

    Returns:
        The models, and all facts.

    Raises:
        ValueError: The file is damaged.
    """
    try:
        with safetensors.safe_open(file, "pt") as stored:
            facts = json.loads((stored.metadata() or {})[_FACTS])
            parts: dict[str, dict[str, Tensor]] = {name: {} for name in facts["models"]}
            for key in stored.keys():  # noqa: SIM118
                name, _, tensor = key.partition("/")
                parts[name][tensor] = stored.get_tensor(key)
        models = {}
        for name in sorted(parts, key=_position):
            described = facts["models"][name]
            models[name] = Portable.of_tensors(
                parts[name], described["scale"], described["own_rank"]
            )
        saved = SavedModels(
            round=facts["round"],
            models=models,
            uses=tuple(facts["uses"]),
            beside=facts["beside"],
            unavailable=facts["unavailable"],
            tasks=tuple(ClientTask.of_plain(plain) for plain in facts["tasks"]),
        )
        return saved, facts
    except (safetensors.SafetensorError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"the models in {file} are damaged ({error}); delete the run's folder and run it again"
        ) from error


def _position(name: str) -> tuple[bool, int]:
    """Return the place of a model: the server's first, each kind by its numbers."""
    kind, _, number = name.partition("~")
    return kind == "client", int(number or 0)


def saved_models(setup: Setup, state: Mapping[str, Tensor]) -> SavedModels:
    """Return the models that a `ModelSaver` remembers, put in terms of other libraries.

    Args:
        setup: The federation.
        state: Of the observer.
    """
    layout = setup.layout
    frozen = {spec.name for spec in block_specs(layout.private) if spec.group == "frozen"}
    initial = block_views(setup.private[None], layout.private)
    common = {name: value for name, value in initial.items() if name in frozen}
    models: dict[str, Portable] = {}
    unavailable: dict[str, str] = {}
    several = len(state["server"]) > 1
    servers = {f"server~{c}" if several else "global": row for c, row in enumerate(state["server"])}
    try:
        for name, row in servers.items():
            named = {**block_views(row[None], layout.communicated), **common}
            models[name] = setup.model.portable(named, private=False)
    except ValueError as error:
        unavailable["server"] = str(error)
    uses: list[str | None] = []
    beside: dict[str, str] = {}
    for client, model in enumerate(state["which"].tolist()):
        row = state["models"][model]
        base = next((name for name, its in servers.items() if torch.equal(row, its)), None)
        branch = bool(state["uses_private"][client]) and layout.own_parameters > 0
        named = block_views(row[None], layout.communicated)
        named |= block_views(state["private"][client][None], layout.private)
        # A tuned copy may differ in what is frozen otherwise.
        tuned = any(not torch.equal(named[name], value.cpu()) for name, value in common.items())
        if base is not None and not (branch or tuned) and layout.global_model:
            uses.append(base)
            continue
        name = f"client~{client}"
        try:
            models[name] = setup.model.portable(named, private=branch)
        except ValueError as error:
            unavailable["clients"] = str(error)
            uses.append(None)
            continue
        uses.append(name)
        if base is not None and models[name].own_rank:
            beside[name] = base
    tasks = tuple(ClientTask.of_client(setup.data, k) for k in range(setup.num_clients))
    return SavedModels(int(state["round"]), models, tuple(uses), beside, unavailable, tasks)
