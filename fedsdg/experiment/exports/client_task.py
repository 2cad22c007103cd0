"""What a client's accuracy depends on beside its model: how it sees, names and weighs images."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from fedsdg.experiment.chance import Chance
from fedsdg.federation.accuracy import ClientTestView, class_weights
from fedsdg.federation.conditions.condition import ClientData
from fedsdg.federation.conditions.difference import View


@dataclass(frozen=True)
class ClientTask:
    """The task of one client, by which rounds measure its accuracy on the global test set."""

    labels: tuple[int, ...]
    "[C] the label by which it calls each class"
    held: tuple[int, ...] | None = None
    "[C] its samples of each class, by which test images weigh; None: all weigh the same"
    view: View | None = None
    "how it sees images; None: as they are"

    @classmethod
    def of_client(cls, data: ClientData, client: int) -> Self:
        """Return the task of a client of a federation."""
        held = data.held(client)
        return cls(
            labels=tuple(data.class_names[client].tolist()),
            held=None if held is None else tuple(held.tolist()),
            view=data.views.get(client),
        )

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Invert `to_plain`.

        Raises:
            LookupError, TypeError, ValueError: The values are damaged.
        """
        labels = tuple(map(int, plain["labels"]))
        held = plain["held"]
        view = plain["view"]
        if held is not None and len(held) != len(labels):
            raise ValueError(f"{len(held)} numbers of samples for {len(labels)} classes")
        return cls(
            labels=labels,
            held=None if held is None else tuple(map(int, held)),
            view=None if view is None else View(**{**view, "source": tuple(view["source"])}),
        )

    def to_plain(self) -> dict[str, Any]:
        """Return it as values of JSON."""
        return asdict(self)

    def words(self) -> list[str]:
        """Return how the client differs from others, in words for a card."""
        words = []
        renamed = [f"{label} for class {c}" for c, label in enumerate(self.labels) if c != label]
        if renamed:
            words.append(f"uses other labels, counted from 0: {', '.join(renamed)}")
        if self.view is not None:
            angle = f" by {self.view.angle():.1f}°" if self.view.kind == "rotate" else ""
            words.append(f"sees images through `{self.view.kind}`{angle}")
        if self.held is not None:
            words.append(
                "weighs the classes of the global test set by its samples of each: "
                f"{', '.join(map(str, self.held))}"
            )
        return words

    def test_view(self, numbers: np.ndarray, classes: np.ndarray) -> ClientTestView:
        """Return test images as the client sees them, as those of the one client 0.

        Args:
            numbers: int64 [G] sample numbers.
            classes: int64 [G] their true classes.

        Raises:
            ValueError: No image is of a class that the client holds.
        """
        held = None if self.held is None else np.array(self.held)
        weights = class_weights(held, classes)
        return ClientTestView([numbers], [np.array(self.labels)[classes]], [weights])

    def images(self, stored: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return stored images, uint8 [n, …] of these sample numbers, as the client sees them."""
        return stored if self.view is None else self.view(stored, numbers)

    def chance(self, chance: Chance) -> Chance:
        """Return the chance on the global test set, with classes weighed as the client holds them.

        Args:
            chance: On the same images, all of which weigh the same.
        """
        if self.held is None:
            return chance
        share = max(self.held) / sum(self.held)
        return Chance(chance.images, round(share * chance.images))
