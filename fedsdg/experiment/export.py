"""A finished run's models as folders for peft and timm, each with a card.

- of adapters: `adapter_config.json` and `adapter_model.safetensors` for peft, and `merged`, all
  weights, for `timm.create_model("local-dir:FOLDER")`;
- of a small CNN: `model.safetensors` by the names of `small_cnn`.

`fedsdg.json` beside them says what these formats do not: which backbone, images and classes, and of
a client how its accuracy is measured.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pyarrow.parquet as pq
import safetensors.torch
from torch import Tensor

from fedsdg import files, models
from fedsdg.experiment import chance
from fedsdg.experiment.saved_models import read_models
from fedsdg.experiment.store import MODELS, RESULT
from fedsdg.federation.conditions.difference import View
from fedsdg.files.places import BACKBONE, RUN, filled
from fedsdg.models.portable import HEAD

FACTS = "fedsdg.json"
WEIGHTS = "model.safetensors"
METRICS = {
    "accuracy": "expected_accuracy",
    "accuracy_own_test": "personal_accuracy",
    "worst_decile_own_test": "personal_worst_decile",
    "accuracy_shared": "global_accuracy",
    "loss_shared": "global_loss",
}
"""What cards call the metrics of a round's record."""
WORDS = {
    "accuracy": "all clients, on the global test set as each sees it",
    "accuracy_own_test": "all clients, each on its own test samples",
    "worst_decile_own_test": "the same, mean of the lowest tenth of the clients",
    "accuracy_shared": "the shared model, on the global test set",
    "loss_shared": "its cross-entropy there",
}


@dataclass(frozen=True)
class Exported:
    """Models that were exported."""

    folder: Path
    names: list[str]
    "of the models in it"
    remarks: list[str]
    "which models there are not, and why"


def require_torchvision() -> None:
    """Refuse a torchvision that was built for another torch: peft and timm could not be imported.

    Raises:
        ValueError: It does not match; the sentence has the command that mends it.
    """
    try:
        needs = metadata.requires("torchvision") or []
        version = metadata.version("torchvision")
    except metadata.PackageNotFoundError:
        return
    torch = metadata.version("torch").partition("+")[0]
    wanted = [need.strip("torch ()=") for need in needs if need.startswith("torch ")]
    if wanted and torch not in wanted:
        raise ValueError(
            f"torchvision {version} was built for torch {wanted[0]}, but torch {torch} is "
            "installed, so that peft and timm cannot be imported; mend it with 'pip install "
            f"--upgrade torch=={torch} torchvision'"
        )


def export(
    run: Path,
    output: Path | None = None,
    clients: Sequence[int] | None = None,
    backbone: Path | None = None,
) -> Exported:
    """Write the models of a run into a new folder, whole or not at all.

    Args:
        run: The run's folder.
        output: The new folder; None: `models` in the run's.
        clients: The models of these clients alone, with those to which they are additions; None:
            all that differ from the server's, and the server's.
        backbone: The file of the backbone; None: `results/backbones/NAME.safetensors`.

    Raises:
        FileNotFoundError: The run or its backbone is missing.
        ValueError: The run failed or kept no model, there is no such client, its model cannot be
            put in such terms, the backbone is another one, or `output` exists.
    """
    require_torchvision()
    if not (run / RESULT).is_file():
        raise FileNotFoundError(f"{run} is no run: it has no {RESULT}; name a folder such as {RUN}")
    result = files.read_json(run / RESULT)
    if result["status"] != "ok":
        raise ValueError(f"the run in {run} failed ({result['error']}); run it again")
    if not (run / MODELS).is_file():
        raise ValueError(
            f"the run in {run} kept no model; run it again with --set training.save=last, or "
            "selected"
        )
    target = output or run / "models"
    if target.exists():
        raise ValueError(f"{target} exists already; delete it, or name another with --output")
    saved, facts = read_models(run / MODELS)
    unavailable = facts["unavailable"]
    chosen = saved if clients is None else _of_clients(saved, facts, clients)
    if not chosen:
        raise ValueError(
            f"the run in {run} has no model to export: {'; '.join(unavailable.values())}"
        )
    frozen = None if facts["backbone"] is None else load_backbone(facts["backbone"], backbone)
    rows = pq.read_table(run / "clients.parquet", filters=[("round", "=", facts["round"])])
    about = {
        "result": result,
        "config": result["config"],
        "facts": facts,
        "provenance": files.read_json(run / "provenance.json"),
        "rows": {row["client"]: row for row in rows.to_pylist()},
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        if frozen is not None:
            write_timm(frozen.model.state_dict(), frozen, temporary / "backbone")
        for name, model in chosen.items():
            _write_model(temporary / name, model, frozen, about)
        temporary.chmod(run.stat().st_mode)
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    remarks = [f"no model of the {kind}: {why}" for kind, why in unavailable.items()]
    return Exported(target, list(chosen), [] if clients else remarks)


def _of_clients(
    saved: Mapping[str, models.Portable], facts: Mapping[str, Any], clients: Sequence[int]
) -> dict[str, models.Portable]:
    """Return the models of clients, and those to which they are additions."""
    chosen = {}
    for client in clients:
        if not 0 <= client < len(facts["clients"]):
            raise ValueError(
                f"there is no client {client}; the run's are 0 to {len(facts['clients']) - 1}"
            )
        entry = facts["clients"][client]
        if entry["model"] is None:
            why = facts["unavailable"]["client"]
            raise ValueError(f"client {client} cannot be exported: {why}")
        if entry["beside"] is not None:
            chosen[entry["beside"]] = saved[entry["beside"]]
        chosen[f"client~{client}"] = saved[entry["model"]]
    return chosen


def load_backbone(described: Mapping[str, str], file: Path | None) -> models.Backbone:
    """Load the backbone that adapters are for.

    Args:
        described: Its `name` and `sha256`.
        file: Where it is; None: `results/backbones/NAME.safetensors`.

    Raises:
        FileNotFoundError: It is not there.
        ValueError: It is another one.
    """
    name = described["name"]
    sha256 = described["sha256"]
    file = file or filled(BACKBONE, backbone=name)
    if not file.is_file():
        raise FileNotFoundError(
            f"the models are adapters of the backbone {name}, which is not at {file}; name its "
            "file with --backbone"
        )
    backbone = models.load_backbone(file)
    if backbone.sha256 != sha256:
        raise ValueError(
            f"the models are adapters of the backbone {name} (SHA-256 {sha256[:12]}…), but {file} "
            f"holds another one ({backbone.sha256[:12]}…); name the right file with --backbone"
        )
    return backbone


def write_timm(
    state: Mapping[str, Tensor],
    backbone: models.Backbone,
    folder: Path,
    classes: Sequence[str] = (),
) -> None:
    """Write weights as a folder for `timm.create_model("local-dir:FOLDER", pretrained=True)`.

    Args:
        state: Weights by timm's names; without a head the model gives features.
        backbone: The shape of the model.
        folder: The folder.
        classes: Their names, if they have some.
    """
    shape = backbone.architecture
    arguments = {"img_size": shape.image_size, "in_chans": shape.channels}
    architecture: Any = "vit_tiny_patch16_224"  # any plain one; the numbers say how it differs
    if shape.timm_name is not None:
        architecture = dict(vars(backbone.model)["pretrained_cfg"])["architecture"]
    else:
        arguments |= {
            "patch_size": shape.patch_size,
            "embed_dim": shape.dim,
            "depth": shape.depth,
            "num_heads": shape.heads,
            "mlp_ratio": shape.mlp_ratio,
        }
    outputs = len(state[HEAD[1]]) if HEAD[1] in state else 0
    settings = {
        "input_size": [shape.channels, shape.image_size, shape.image_size],
        "fixed_input_size": True,
        "interpolation": "bilinear",
        "crop_pct": 1.0,
        "mean": list(shape.mean),
        "std": list(shape.std),
        "num_classes": outputs,
        "pool_size": None,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
    record = {
        "architecture": architecture,
        "num_classes": outputs,
        "num_features": shape.dim,
        "model_args": arguments,
        "pretrained_cfg": settings,
        **({"label_names": list(classes)} if classes and outputs else {}),
    }
    _write_weights(state, folder)
    files.write_json(folder / "config.json", record)


def _write_weights(state: Mapping[str, Tensor], folder: Path) -> None:
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    files.write_bytes(folder / WEIGHTS, safetensors.torch.save(tensors, {"format": "pt"}))


def _write_model(
    folder: Path, model: models.Portable, backbone: models.Backbone | None, about: Mapping[str, Any]
) -> None:
    """Write a model with its facts and its card into a folder of its name."""
    facts = about["facts"]
    kind, _, number = folder.name.partition("~")
    client = facts["clients"][int(number)] if kind == "client" else None
    names = ("experiment", "dataset", "clients", "skew", "method", "label", "seed", "address")
    beside = {
        **{key: facts[key] for key in ("backbone", "images", "classes", "data", "test")},
        "client": client,
        "run": {name: about["result"].get(name) for name in names},
    }
    folders = [folder]
    if backbone is None:
        _write_weights(model.weights, folder)
    else:
        models.save_peft(model, folder, base_model=backbone.name)
        merged = model.merged(backbone.model.state_dict())
        write_timm(merged, backbone, folder / "merged", facts["classes"])
        folders.append(folder / "merged")
        if client and client["beside"]:
            models.save_peft(model.own(), folder / "own", base_model=backbone.name)
            folders.append(folder / "own")
    for written in folders:
        files.write_json(written / FACTS, beside)
    card = _card(folder.name, model, client, about)
    files.write_bytes(folder / "README.md", card.encode())


def _card(
    name: str, model: models.Portable, client: Mapping[str, Any] | None, about: Mapping[str, Any]
) -> str:
    """Fill the template of a card."""
    kind, _, number = name.partition("~")
    title = {
        "global": "the model that all clients share",
        "server": f"the server's model {number}",
        "client": f"the model of client {number}",
    }[kind]
    facts = about["facts"]
    labels = np.repeat(np.arange(len(facts["test_classes"])), facts["test_classes"])
    measured = []
    row = about["rows"].get(int(number)) if client else None
    if client and row:
        luck = chance.remark(row["expected_accuracy"], labels, client["held"])
        words = "this client, on the global test set as it sees it"
        measured.append(("accuracy", words, row["expected_accuracy"], luck))
        words = "this client, on its own test samples"
        measured.append(("accuracy_own_test", words, row["test_accuracy"], ""))
    for metric, column in METRICS.items():
        value = about["result"][facts["save"]].get(column)
        if value is not None:
            on_global_test = metric in ("accuracy", "accuracy_shared")
            luck = chance.remark(value, labels) if on_global_test else ""
            measured.append((metric, WORDS[metric], value, luck))
    view = client and client["view"]
    room = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined)
    room.filters["text"] = files.markdown_escape
    room.filters["json"] = lambda value: json.dumps(value, sort_keys=True)
    template = room.from_string(Path(__file__).with_name("model_card.md").read_text("utf-8"))
    return template.render(
        **about,
        name=name,
        title=title,
        model=model,
        backbone=facts["backbone"],
        client=client,
        number=number,
        row=row,
        angle=View(**view).angle() if view and view["kind"] == "rotate" else None,
        beside=client and client["beside"],
        metrics=[entry for entry in measured if entry[2] is not None],
        metric="accuracy" if client else "accuracy_shared",
        meaning=chance.MEANING,
    )
