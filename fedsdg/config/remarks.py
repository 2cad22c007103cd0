"""What a config may say, but perhaps does not mean."""

from __future__ import annotations

from fedsdg.config.backbones import LETTERS
from fedsdg.config.config import Config
from fedsdg.data.sources import Source
from fedsdg.errors import remark


def print_remarks(config: Config) -> None:
    """Print a line for each data set that the backbone, which knows letters, may not suit."""
    data = getattr(config.backbones[config.backbone], "data", None)
    for dataset in config.datasets:
        if isinstance(dataset, Source) and data == LETTERS and config.trainable == "adapters":
            remark(
                f"the backbone {config.backbone!r} has learned from rendered letters; if images of "
                f"{dataset.name!r} are photographs, take one that has learned from photographs: "
                "'Photographs' in docs/own-data.md"
            )
