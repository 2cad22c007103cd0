"""What a config may say, but perhaps does not mean."""

from __future__ import annotations

from collections.abc import Iterator

from fedsdg.config.backbones import LETTERS, Pretrained
from fedsdg.config.config import Config
from fedsdg.config.sections import Conditions
from fedsdg.data.sources import Source
from fedsdg.federation.conditions.condition import clients_in


def remarks(config: Config) -> Iterator[str]:
    """Yield a sentence for each thing that is allowed and should be known."""
    found: dict[str, None] = {}
    for case in config.cases.values():
        found |= dict.fromkeys(_of_conditions(case.conditions, int(case.federation.clients)))
    yield from found
    if config.trainable == "adapters":
        yield from _of_data(config)


def _of_conditions(conditions: Conditions, clients: int) -> Iterator[str]:
    """Yield where a share is nobody, and where a difference changes nothing."""
    shares = {name: (one.share, "differs") for name, one in conditions.differences.items()}
    if conditions.quantisation is not None:
        shares["quantisation"] = (conditions.quantisation.share, "is weak")
    for name, (share, nobody) in shares.items():
        if not clients_in(share, clients):
            yield f"conditions.{name}.share is {share}, none of {clients} clients: nobody {nobody}"
    conflict = conditions.label_conflict
    if conflict is not None and not conflict.classes:
        yield "conditions.label_conflict.classes is 0: nobody's labels change"
    if conflict is not None and conditions.label_noise is not None:
        yield "conditions: label noise is drawn on top of the label conflict"


def _of_data(config: Config) -> Iterator[str]:
    """Yield how one's own images suit the backbone."""
    backbone = config.backbones[config.backbone]
    size = getattr(backbone, "image_size", None)
    for own in config.datasets:
        if not isinstance(own, Source):
            continue
        if isinstance(backbone, Pretrained) and backbone.data == LETTERS:
            yield (
                f"the backbone {config.backbone!r} has learned from rendered letters, and images "
                f"of {own.name!r} are brought to its {size}×{size} pixels; for photographs take "
                "one that has learned from photographs: 'Photographs' in docs/own-data.md"
            )
        if size is not None and own.size is not None and own.size < size:
            yield (
                f"images of {own.name!r} are stored at {own.size} pixels and enlarged to the "
                f"{size} of the backbone {config.backbone!r}; a larger size keeps what they show"
            )
