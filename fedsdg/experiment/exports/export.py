"""A finished run's models as folders for peft and timm, each with a card."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fedsdg import files
from fedsdg.experiment.chance import chance_of_run
from fedsdg.experiment.exports.client_task import ClientTask
from fedsdg.experiment.exports.model_card import card
from fedsdg.experiment.exports.model_folders import MERGED, write_timm, write_weights
from fedsdg.experiment.exports.saved_models import SavedModels, read_saved
from fedsdg.experiment.starts import FACTS
from fedsdg.experiment.store import MODELS, Address
from fedsdg.files import places
from fedsdg.models import Backbone, Portable, load_backbone, save_peft

#: Raise it when what is written today could not be read any more.
FORMAT = 1
BACKBONE, OWN = "backbone", "own"


@dataclass(frozen=True)
class Exported:
    """``folder`` holds the models ``names``; ``remarks`` say what is not there, and why."""

    folder: Path
    names: list[str]
    remarks: list[str]


def export_run(
    run: Path,
    output: Path | None = None,
    clients: Sequence[int] | None = None,
    backbone_file: Path | None = None,
) -> Exported:
    """Write the models of a run into a new folder, whole or not at all.

    ``clients``: these alone (a client that uses the server's model gets a copy of it), with what
    they are additions to; None: all that there are. ``output``: by default ``models`` in the run's
    folder. ``backbone_file``: by default ``results/backbones/{name}.safetensors``.

    Raises ``FileNotFoundError`` where the run, its models or its backbone are missing, and
    ``ValueError`` where it failed or kept no model, for a client that there is not or whose model
    cannot be put in such terms, for another backbone than the run's, and where ``output`` exists.
    """
    if not (run / "result.json").is_file():
        raise FileNotFoundError(
            f"{run} is no run: it has no result.json; name a folder such as {places.RUN}"
        )
    result = files.read_json(run / "result.json")
    if not isinstance(result, dict) or "status" not in result:
        raise ValueError(f"{run / 'result.json'} is no record of a run; run it again")
    if result["status"] != "ok":
        raise ValueError(f"the run in {run} failed ({result['error']}); run it again")
    if not (run / MODELS).is_file():
        raise ValueError(
            f"the run in {run} kept no model; run it again with --set training.save=last, or "
            "selected"
        )
    for name in (MODELS, "clients.parquet"):
        files.require_unchanged(run / name)
    saved, facts = read_saved(run / MODELS)
    if facts.get("address") != {entry.name: result.get(entry.name) for entry in fields(Address)}:
        raise ValueError(
            f"the models in {run} are of another run than its records; delete that folder, and run "
            "it again"
        )
    target = output or run / "models"
    if target.exists():
        raise ValueError(f"{target} exists already; delete it, or name another with --output")
    chosen = _chosen(saved, clients, run)
    backbone = _backbone(facts["backbone"], backbone_file)
    about = {
        "result": result,
        "facts": facts,
        "provenance": files.read_json(run / "provenance.json"),
        "clients": _client_rows(run, saved.round),
        "chance": chance_of_run(result),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        if backbone is not None:
            own: Any = backbone.model.state_dict()
            write_timm(own, backbone, temporary / BACKBONE, ())
            files.write_json(temporary / BACKBONE / FACTS, _facts(facts, result))
        for name, model in chosen.items():
            _write_model(temporary / name, name, saved, model, backbone, about)
        temporary.chmod(0o755)
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Exported(target, list(chosen), _remarks(saved, clients))


def _chosen(saved: SavedModels, clients: Sequence[int] | None, run: Path) -> dict[str, Portable]:
    if clients is None:
        if not saved.models:
            raise ValueError(f"the run in {run} has no model to export: {_reasons(saved)}")
        return dict(saved.models)
    found: dict[str, Portable] = {}
    for client in clients:
        if not 0 <= client < len(saved.uses):
            raise ValueError(
                f"the run in {run} has no client {client}; its clients are 0 to "
                f"{len(saved.uses) - 1}"
            )
        used, name = saved.uses[client], f"client~{client}"
        if used is None:
            raise ValueError(f"client {client} cannot be exported: {saved.unavailable['clients']}")
        if name in saved.beside:
            found[saved.beside[name]] = saved.models[saved.beside[name]]
        found[name] = saved.models[used]
    return found


def _reasons(saved: SavedModels) -> str:
    return "; ".join(saved.unavailable.values())


def _remarks(saved: SavedModels, clients: Sequence[int] | None) -> list[str]:
    if clients is not None:
        return []
    said = {"server": "no model of the server", "clients": "no models of clients"}
    remarks = [f"{said[kind]}: {why}" for kind, why in saved.unavailable.items()]
    shared = [k for k, used in enumerate(saved.uses) if used and not used.startswith("client~")]
    if shared and len(shared) < len(saved.uses):
        numbers = ", ".join(map(str, shared))
        remarks.append(f"clients {numbers} use a model of the server as it is")
    return remarks


def _backbone(said: Mapping[str, str] | None, file: Path | None) -> Backbone | None:
    if said is None:
        return None
    place = file or places.filled(places.BACKBONE, backbone=said["name"])
    if not place.is_file():
        raise FileNotFoundError(
            f"the run's models are adapters of the backbone {said['name']}, which is not at "
            f"{place}; name its file with --backbone"
        )
    backbone = load_backbone(place)
    if backbone.sha256 != said["sha256"]:
        raise ValueError(
            f"the run's models are adapters of the backbone {said['name']} (SHA-256 "
            f"{said['sha256'][:12]}…), but {place} holds another one ({backbone.sha256[:12]}…); "
            "name the right file with --backbone"
        )
    return backbone


def _client_rows(run: Path, round_: int) -> dict[int, dict[str, Any]]:
    with pq.ParquetFile(run / "clients.parquet") as file:
        rows = file.read().to_pylist()
    return {row["client"]: row for row in rows if row["round"] == round_}


def _facts(
    facts: Mapping[str, Any], result: Mapping[str, Any], task: ClientTask | None = None
) -> dict[str, Any]:
    """Return what stands beside a model: as little as whoever loads it has to know."""
    named = ("experiment", "dataset", "clients", "skew", "method", "label", "seed", "config_hash")
    return {
        "format": FORMAT,
        "backbone": facts["backbone"],
        "images": facts["images"],
        "classes": facts["classes"],
        "client": None if task is None else task.to_plain(),
        "run": {name: result.get(name) for name in named},
    }


def _write_model(
    folder: Path,
    name: str,
    saved: SavedModels,
    model: Portable,
    backbone: Backbone | None,
    about: Mapping[str, Any],
) -> None:
    facts, result = about["facts"], about["result"]
    kind, _, number = name.partition("~")
    task = saved.tasks[int(number)] if kind == "client" else None
    beside = _facts(facts, result, task)
    base = saved.beside.get(name)
    folder.mkdir(parents=True)
    if backbone is None:
        write_weights(model.weights, folder)
    else:
        save_peft(model, folder, base_model=backbone.name)
        state: Any = backbone.model.state_dict()
        write_timm(model.merged(state), backbone, folder / MERGED, facts["classes"])
        files.write_json(folder / MERGED / FACTS, beside)
        if base is not None:
            save_peft(model.own(), folder / OWN, base_model=backbone.name)
            files.write_json(folder / OWN / FACTS, beside)
    files.write_json(folder / FACTS, beside)
    text = card(name, base, saved.round, model, backbone is not None, task=task, **about)
    with files.atomic_path(folder / "README.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
