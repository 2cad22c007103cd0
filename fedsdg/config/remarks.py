"""What a config may say, but perhaps does not mean."""

from __future__ import annotations

from collections.abc import Iterator

from fedsdg.config.backbones import LETTERS
from fedsdg.config.config import Config
from fedsdg.data.sources import Source
from fedsdg.federation.conditions.condition import clients_in


def remarks(config: Config) -> Iterator[str]:
    """Yield a sentence for each thing that is allowed and should be known.

    A share of the clients may be nobody, and a backbone that knows letters may meet photographs.
    """
    for key in ("label_conflict", "feature_shift", "quantisation"):
        for case in config.cases.values():
            condition = getattr(case.conditions, key)
            clients = case.federation.clients
            if condition is not None and not clients_in(condition.share, clients):
                yield f"conditions.{key}.share is {condition.share}, none of {clients} clients"
                break
    backbone = config.backbones[config.backbone]
    if config.trainable == "full" or getattr(backbone, "data", None) != LETTERS:
        return
    for dataset in config.datasets:
        if isinstance(dataset, Source):
            yield (
                f"the backbone {config.backbone!r} has learned from rendered letters; if images of "
                f"{dataset.name!r} are photographs, take one that has learned from photographs: "
                "'Photographs' in docs/own-data.md"
            )
