"""The models of a run that are kept: those of the server and those that clients are judged with.

They are kept in terms that need nothing of this package: adapters, heads, weights (``Portable``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedsdg.federation.judged_models import JudgedModels
from fedsdg.files import atomic_path, canonical_json
from fedsdg.models.parameters import views
from fedsdg.models.portable import Portable

if TYPE_CHECKING:
    from fedsdg.federation.rounds import Federation

#: The server's one model; where it has several they are server~0, server~1, …
GLOBAL = "global"
_FACTS = "fedsdg"


@dataclass(frozen=True)
class SavedModels:
    """Models by name: ``global`` or ``server~{c}``, and ``client~{k}``.

    ``round``: after which they were taken, at the mean validation accuracy ``score``.
    ``uses`` [K]: the name of what each client is judged with; many may use one, and None has no
    name. ``beside``: for a client's model that is another one and an addition, the name of that.
    ``unavailable``: why there are no models of a kind, "server" or "clients".
    """

    round: int
    score: float
    models: Mapping[str, Portable]
    uses: tuple[str | None, ...]
    beside: Mapping[str, str]
    unavailable: Mapping[str, str]

    def facts(self) -> dict[str, Any]:
        """All but the tensors, as plain JSON."""
        return {
            "round": self.round,
            "score": self.score,
            "uses": list(self.uses),
            "beside": dict(self.beside),
            "unavailable": dict(self.unavailable),
            "models": {
                name: {"scale": model.scale, "own_rank": model.own_rank}
                for name, model in self.models.items()
            },
        }

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of all models, under ``{model}/{tensor}``."""
        return {
            f"{name}/{tensor}": value
            for name, model in self.models.items()
            for tensor, value in model.tensors().items()
        }

    @classmethod
    def of(cls, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> SavedModels:
        """From what ``facts`` and ``tensors`` returned."""
        inside: dict[str, dict[str, Tensor]] = {name: {} for name in facts["models"]}
        for name, value in tensors.items():
            model, _, tensor = name.partition("/")
            inside[model][tensor] = value
        models = {
            name: Portable.of_tensors(inside[name], said["scale"], said["own_rank"])
            for name, said in sorted(facts["models"].items(), key=lambda entry: _place(entry[0]))
        }
        told = {name: facts[name] for name in ("round", "score", "beside", "unavailable")}
        return cls(models=models, uses=tuple(facts["uses"]), **told)

    def memory(self) -> dict[str, Tensor]:
        """All of it as tensors, for a checkpoint."""
        text = np.frombuffer(canonical_json(self.facts()).encode(), dtype=np.uint8)
        return {_FACTS: torch.from_numpy(text.copy()), **self.tensors()}

    @classmethod
    def of_memory(cls, memory: Mapping[str, Tensor]) -> SavedModels:
        """From what ``memory`` returned."""
        tensors = dict(memory)
        return cls.of(json.loads(bytes(tensors.pop(_FACTS).tolist())), tensors)

    def write(self, file: Path, more: Mapping[str, Any]) -> None:
        """Write them with their facts, and ``more`` facts; equal models give equal bytes."""
        # One entry alone: safetensors writes several in no fixed order.
        facts = {_FACTS: canonical_json({**self.facts(), **more})}
        content = safetensors.torch.save(self.tensors(), metadata=facts)
        with atomic_path(file) as temporary:
            temporary.write_bytes(content)


def _place(name: str) -> tuple[bool, int]:
    """The server's models first, each kind by its numbers."""
    kind, _, number = name.partition("~")
    return kind == "client", int(number or 0)


def read_saved(file: Path) -> tuple[SavedModels, dict[str, Any]]:
    """What ``SavedModels.write`` wrote: the models, and all facts.

    Raises ``ValueError`` for a file that is damaged.
    """
    try:
        with safetensors.safe_open(file, "pt") as stored:
            facts = json.loads((stored.metadata() or {})[_FACTS])
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        return SavedModels.of(facts, tensors), facts
    except (safetensors.SafetensorError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"the models in {file} are damaged ({error}); delete the run's folder and run it again"
        ) from error


def take_models(
    federation: Federation, judged: JudgedModels, round_: int, score: float
) -> SavedModels:
    """The server's models, and those of clients that are judged with something of their own."""
    one, layout = federation, federation.layout
    models: dict[str, Portable] = {}
    unavailable: dict[str, str] = {}
    fixed = {spec.name for spec in layout.private if spec.group == "frozen"}
    drawn = views(one.private[None], layout.private)
    common = {name: value for name, value in drawn.items() if name in fixed}
    many = len(one.models) > 1
    servers = {f"server~{c}" if many else GLOBAL: row for c, row in enumerate(one.models)}
    try:
        for name, row in servers.items():
            named = {**views(row[None], layout.communicated), **common}
            models[name] = one.model.portable(named, private=False)
    except ValueError as error:
        unavailable["server"] = str(error)
    uses: list[str | None] = []
    beside: dict[str, str] = {}
    for client in range(one.num_clients):
        row = judged.theta if judged.theta.dim() == 1 else judged.theta[client]
        base = next((name for name, its in servers.items() if torch.equal(row, its)), None)
        branch = bool(judged.branch[client]) and layout.own_parameters > 0
        private = judged.private(torch.tensor([client]))
        named = {**views(row[None], layout.communicated), **views(private, layout.private)}
        # Copies that were tuned may differ in what is frozen otherwise.
        tuned = any(not torch.equal(named[key], value) for key, value in common.items())
        if base is not None and not (branch or tuned) and layout.global_model:
            uses.append(base)
            continue
        name = f"client~{client}"
        try:
            models[name] = one.model.portable(named, private=branch)
        except ValueError as error:
            unavailable["clients"] = str(error)
            uses.append(None)
            continue
        uses.append(name)
        if base is not None and models[name].own_rank:
            beside[name] = base
    return SavedModels(round_, score, models, tuple(uses), beside, unavailable)
