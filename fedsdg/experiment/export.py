"""A finished run's models as folders for peft and timm, each with a card.

- of adapters: `adapter_config.json` and `adapter_model.safetensors` for peft, and `merged`, all
  weights, for `timm.create_model("local-dir:FOLDER")`;
- of a small CNN: `model.safetensors` by the names of `small_cnn`.

`fedsdg.json` beside them says what these formats do not: which backbone, images and classes, and of
a client how its accuracy is measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pyarrow.parquet as pq
import safetensors.torch
from torch import Tensor

from fedsdg import files, models
from fedsdg.experiment import chance
from fedsdg.experiment.saved_models import read_models
from fedsdg.experiment.store import EXPORTED, MODELS, RESULT
from fedsdg.federation.conditions.difference import View
from fedsdg.files.places import BACKBONE, RUN, filled
from fedsdg.models.portable import HEAD

FACTS = "fedsdg.json"
WEIGHTS = "model.safetensors"
SIZES = {
    "img_size": "image_size",
    "in_chans": "channels",
    "patch_size": "patch_size",
    "embed_dim": "dim",
    "depth": "depth",
    "num_heads": "heads",
    "mlp_ratio": "mlp_ratio",
}
"""Arguments of timm's models, and what they are in an architecture."""


class Exported(NamedTuple):
    """Models that were exported."""

    folder: Path
    names: list[str]
    "of the models in it"
    remarks: list[str]
    "which models there are not, and why; and whether torchvision is for another torch"


def require_torchvision() -> list[str]:
    """Refuse a torchvision for another torch, with which `peft` and `timm` cannot be imported.

    Returns:
        A remark with the command that mends it, where torchvision is another build than torch.

    Raises:
        ValueError: It is for another version of torch; the sentence has the command that mends it.
    """
    try:
        needs = metadata.requires("torchvision") or []
    except metadata.PackageNotFoundError:
        return []
    build = metadata.version("torch")
    torch = build.partition("+")[0]
    wanted = [need.strip("torch ()=") for need in needs if need.startswith("torch ")]
    remedy = (
        "so that peft and timm cannot be imported; install both from one place, such as with "
        f"'{sys.executable} -m pip install --force-reinstall torch=={torch} torchvision'"
    )
    if wanted and torch not in wanted:
        raise ValueError(
            f"torchvision is for torch {wanted[0]}, but torch {torch} is installed, {remedy}"
        )
    misfit = models.declare_torchvision_operators()
    return [f"torchvision is for another build of torch than {build}, {remedy}"] if misfit else []


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
            the server's, and those of clients that differ from it.
        backbone: The file of the backbone; None: `results/backbones/NAME.safetensors`.

    Raises:
        FileNotFoundError: The run or its backbone is missing.
        ValueError: The run failed or kept no model, there is no such client, its model cannot be
            put in such terms, the backbone is another one, or `output` exists.
    """
    misfits = require_torchvision()
    result = files.read_json(run / RESULT) if (run / RESULT).is_file() else {}
    if "status" not in result:
        raise FileNotFoundError(f"{run} has no {RESULT} of a run; name a folder such as {RUN}")
    if result["status"] != "ok":
        raise ValueError(f"the run in {run} failed ({result['error']}); run it again")
    if not (run / MODELS).is_file():
        remedy = "run it again with --set training.save=last, or selected"
        raise ValueError(f"the run in {run} kept no model; {remedy}")
    target = output or run / EXPORTED
    if target.exists():
        raise ValueError(f"{target} exists already; delete it, or name another with --output")
    saved, facts = read_models(run / MODELS)
    chosen = saved if clients is None else _of_clients(saved, facts, clients)
    remarks = [f"no model of {kind}: {why}" for kind, why in facts["unavailable"].items()]
    if not chosen:
        raise ValueError(f"the run in {run} has no model to export: {'; '.join(remarks)}")
    frozen = load_backbone(facts["backbone"], backbone) if facts["backbone"] else None
    rows = pq.read_table(run / "clients.parquet", filters=[("round", "=", facts["round"])])
    about = {
        "result": result,
        "facts": facts,
        "provenance": files.read_json(run / "provenance.json"),
        "rows": {row["client"]: row for row in rows.to_pylist()},
    }
    with files.appearing(target) as folder:
        if frozen is not None:
            _write_timm(frozen.model.state_dict(), frozen, folder / "backbone", [])
        for name, model in chosen.items():
            _write_model(folder / name, model, frozen, about)
    return Exported(target, list(chosen), misfits + ([] if clients else remarks))


def _of_clients(
    saved: Mapping[str, models.Portable], facts: Mapping[str, Any], clients: Sequence[int]
) -> dict[str, models.Portable]:
    """Return the models of clients, and those to which they are additions."""
    entries = facts["clients"]
    chosen = {}
    for client in clients:
        if not 0 <= client < len(entries):
            raise ValueError(f"there is no client {client}; the run's are 0 to {len(entries) - 1}")
        entry = entries[client]
        if entry["model"] is None:
            reason = facts["unavailable"]["clients"]
            raise ValueError(f"client {client} cannot be exported: {reason}")
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
    what = f"the models are adapters of the backbone {name}"
    if not file.is_file():
        raise FileNotFoundError(f"{what}, which is not at {file}; name its file with --backbone")
    backbone = models.load_backbone(file)
    if backbone.sha256 != sha256:
        raise ValueError(
            f"{what} (SHA-256 {sha256[:12]}…), but {file} holds another one "
            f"({backbone.sha256[:12]}…); name the right file with --backbone"
        )
    return backbone


def _write_model(
    folder: Path, model: models.Portable, backbone: models.Backbone | None, about: Mapping[str, Any]
) -> None:
    """Write a model with its facts and its card into a folder of its name."""
    facts = about["facts"]
    kind, _, number = folder.name.partition("~")
    client = facts["clients"][int(number)] if kind == "client" else None
    counts = facts["test_classes"]
    names = ("experiment", "dataset", "clients", "skew", "method", "label", "seed", "address")
    beside = {
        **{key: facts[key] for key in ("backbone", "images", "classes", "data", "test")},
        "client": client,
        "run": {name: about["result"].get(name) for name in names},
    }
    if backbone is None:
        _write_weights(model.weights, folder)
    else:
        merged = model.merged(backbone.model.state_dict())
        _write_timm(merged, backbone, folder / "merged", facts["classes"])
        models.save_peft(model, folder, base_model=backbone.name)
        if client and client["beside"]:
            models.save_peft(model.own(), folder / "own", base_model=backbone.name)
    files.write_json(folder / FACTS, beside)
    card = _card().render(
        **about,
        name=folder.name,
        kind=kind,
        number=number,
        model=model,
        client=client,
        view=View(**client["view"]) if client and client["view"] else None,
        remark=lambda accuracy, held=None: (
            "" if accuracy is None else chance.remark(accuracy, counts, held)
        ),
        meaning=chance.MEANING,
    )
    files.write_bytes(folder / "README.md", card.encode())


def _write_timm(
    state: Mapping[str, Tensor], backbone: models.Backbone, folder: Path, classes: Sequence[str]
) -> None:
    """Write weights by timm's names; without a head the model gives features."""
    shape = backbone.architecture
    known: Any = vars(backbone.model).get("pretrained_cfg") if shape.timm_name else None
    outputs = len(state.get(HEAD[1], ()))
    settings = {
        "input_size": [shape.channels, shape.image_size, shape.image_size],
        "fixed_input_size": True,
        "interpolation": "bilinear",
        "crop_pct": 1.0,
        "mean": shape.mean,
        "std": shape.std,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
    record = {
        # Any plain one; the arguments say how it differs.
        "architecture": known["architecture"] if known else "vit_tiny_patch16_224",
        "num_classes": outputs,
        "model_args": {argument: getattr(shape, name) for argument, name in SIZES.items()},
        "pretrained_cfg": settings,
        **({"label_names": classes} if classes and outputs else {}),
    }
    _write_weights(state, folder)
    files.write_json(folder / "config.json", record)


def _write_weights(state: Mapping[str, Tensor], folder: Path) -> None:
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    files.write_bytes(folder / WEIGHTS, safetensors.torch.save(tensors, {"format": "pt"}))


def _card() -> jinja2.Template:
    """Return the template of a card."""
    room = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined)
    room.filters["text"] = files.markdown_escape
    room.filters["json"] = json.dumps
    template = Path(__file__).with_name("model_card.md").read_text(encoding="utf-8")
    return room.from_string(template)
