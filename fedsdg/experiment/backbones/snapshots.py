"""Unfinished work as one file of tensors, from which it goes on.

The file is written beside its place, flushed to the disk and renamed, so a kill at any moment
leaves the state before. It says what it was made for; safetensors and JSON, nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fedsdg.files import atomic_path, canonical_json, differences
from fedsdg.models import weights_sha256

#: Raise it when a snapshot of today could not be read any more.
FORMAT = "1"


class Snapshot:
    """The state of one piece of work; ``made_for`` (plain JSON) says all that the work depends on.

    Two processes at the same work do each other no harm: each file that takes the name is whole.
    """

    def __init__(self, file: Path, made_for: Mapping[str, Any]) -> None:
        self.file = file
        self._made_for = json.loads(canonical_json(made_for))

    def save(self, state: Mapping[str, Tensor]) -> None:
        """Keep ``state`` instead of an earlier one, which stays where this raises ``OSError``."""
        tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
        facts = {
            "format": FORMAT,
            "made_for": canonical_json(self._made_for),
            "sha256": weights_sha256(tensors),
        }
        content = safetensors.torch.save(tensors, metadata=facts)
        with atomic_path(self.file) as temporary, open(temporary, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())

    def restore(self) -> dict[str, Tensor] | None:
        """The state that was kept, or None.

        Raises ``ValueError`` when the file is damaged, was made for something else (with the
        difference) or by a version with another format.
        """
        self._sweep()
        if not self.file.is_file():
            return None
        try:
            with safetensors.safe_open(self.file, "pt") as stored:
                facts = stored.metadata() or {}
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except safetensors.SafetensorError as error:
            raise self._damaged(str(error)) from error
        if facts.get("format") != FORMAT:
            raise ValueError(
                f"the checkpoint {self.file} has format {facts.get('format')}, but this version "
                f"reads format {FORMAT}; use the version that wrote it, or delete it to start anew"
            )
        if found := list(differences(json.loads(facts["made_for"]), self._made_for)):
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise ValueError(
                f"the checkpoint {self.file} was made for something else: {found[0]}{more}; run "
                "what it was made for, or delete it to start anew"
            )
        if weights_sha256(tensors) != facts["sha256"]:
            raise self._damaged("other contents than were written")
        return tensors

    def remove(self) -> None:
        """Delete the file: the work is finished."""
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)
        self._sweep()

    def _sweep(self) -> None:
        """What killed processes left half-written."""
        for left in self.file.parent.glob(f".{self.file.name}.*"):
            with contextlib.suppress(OSError):
                left.unlink()

    def _damaged(self, why: str) -> ValueError:
        return ValueError(f"the checkpoint {self.file} is damaged ({why}); delete it to start anew")
