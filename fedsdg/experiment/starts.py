"""Checkpoints that training starts from, and what is known of them. Never imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsdg.files import read_json, sha256_file, sha256_json
from fedsdg.parts import Declared, shown

#: What a peft checkpoint consists of.
FILES = ("adapter_config.json", "adapter_model.safetensors")
#: Beside an exported model: what the formats of other libraries do not say.
FACTS = "fedsdg.json"


@dataclass(frozen=True)
class Start:
    """A peft checkpoint: where it lies, and the hash of its files, which alone counts in a run."""

    folder: str
    sha256: str


@dataclass(frozen=True)
class StartFolder(Declared):
    """A key that names a folder with a peft checkpoint, or nothing."""

    def check(self, value: Any, where: str) -> Start | None:
        """The checkpoint, or ``ValueError`` where there is none."""
        if value is None or isinstance(value, Start):
            return value
        if not isinstance(value, str) or not value:
            raise ValueError(
                f"{where} is {shown(value)}, but must be a folder with a peft checkpoint"
            )
        return find_start(value)


def find_start(folder: str) -> Start:
    """The checkpoint in a folder; ``ValueError`` where a file of it is missing."""
    for name in FILES:
        if not (Path(folder) / name).is_file():
            raise ValueError(
                f"adapters.start names {folder}, which holds no peft checkpoint: {name} is "
                "missing; name a folder that 'fedsdg export' or peft wrote"
            )
    hashes = {name: sha256_file(Path(folder) / name) for name in FILES}
    return Start(folder, sha256_json(hashes))


def facts_of(folder: str | Path) -> dict[str, Any]:
    """Backbone, images and classes of a model; nothing where another program wrote it.

    Raises ``ValueError`` where they are damaged.
    """
    file = Path(folder) / FACTS
    if not file.is_file():
        return {}
    try:
        said = read_json(file)
        images, backbone = said["images"], said["backbone"]
        if backbone is not None:
            backbone = {key: str(backbone[key]) for key in ("name", "sha256")}
        return {
            "backbone": backbone,
            "images": {
                "size": int(images["size"]),
                "channels": int(images["channels"]),
                "mean": tuple(map(float, images["mean"])),
                "std": tuple(map(float, images["std"])),
            },
            "classes": tuple(map(str, said["classes"])),
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} does not say what the model beside it takes ({error}); export it again"
        ) from error


def require_backbone(folder: str | Path, name: str, sha256: str) -> None:
    """Raise ``ValueError`` where a checkpoint is known to be for another backbone than this."""
    said = facts_of(folder).get("backbone")
    if said is not None and said["sha256"] != sha256:
        raise ValueError(
            f"the checkpoint in {folder} was made for the backbone {said['name']} (SHA-256 "
            f"{said['sha256'][:12]}…), but this is {name} ({sha256[:12]}…); use it with its own "
            "backbone"
        )
