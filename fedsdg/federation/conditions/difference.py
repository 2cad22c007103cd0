"""Clients that differ from the others: by the names of classes, or by how they see images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsdg.federation.conditions.condition import ClientData, Condition, clients_in
from fedsdg.files.columns import Column
from fedsdg.parts import Count, Natural, Share
from fedsdg.rng import stream

ROTATION = (15.0, 60.0)
"""Degrees of rotation; below 90, so that no digit becomes another one."""
NOISE = 0.25
"""Standard deviation of the noise, in units of 255."""
Source = tuple[Any, ...]
"""The address of a random stream: its name and numbers."""
# Addresses of what clients and groups draw, below the stream that draws who differs.
_CLIENT = 1
_GROUP = 2


class Difference(Condition):
    """A share of the clients differ from the others."""

    stream_name: ClassVar[str] = ""
    "the random stream that draws who differs, and how"

    share: Share = 0.5
    """share of the clients that differ, rounded to whole clients (halves up); those of a smaller
    share are among those of a larger one, and 0, which is nobody, is allowed as a control"""
    per: Literal["client", "group"] = "client"
    "each differs in its own way (`client`), or in the way of its `group`"
    groups: Count = 1
    "how many groups there are, as equal in size as can be"

    columns: ClassVar[tuple[Column, ...]] = (
        Column("clients", "conflicts", "bool", "whether it differs from the others"),
        Column("clients", "group", "int32", "who differ in the same way; −1: who do not differ"),
    )

    def check_fields(self) -> None:
        """Refuse a number of groups where each client is a group."""
        if self.per == "client" and self.groups != 1:
            raise ValueError(
                f"groups is {self.groups}, but per: client makes every client a group of its own; "
                "write per: group, or remove groups"
            )

    def count(self, num_clients: int) -> int:
        """Return how many of K clients differ, share * K with halves rounded up.

        Raises:
            ValueError: There are more groups than clients that differ.
        """
        count = clients_in(self.share, num_clients)
        if count and self.groups > count:
            raise ValueError(
                f"groups is {self.groups}, but only {count} of {num_clients} clients differ; "
                "lower it, or raise share"
            )
        return count

    def with_groups(self, data: ClientData) -> ClientData:
        """Draw which clients differ: add the columns `conflicts` and `group`."""
        count = self.count(data.num_clients)
        groups = self.groups if self.per == "group" else None
        generator = stream(self.stream_name, data.seed)
        group = client_groups(data.num_clients, count, groups, generator)
        return data.with_facts(conflicts=group >= 0, group=group)

    def source(self, data: ClientData, client: int) -> Source:
        """Return the address at which a client draws how it differs, the same within a group."""
        if self.per == "group":
            return (self.stream_name, data.seed, _GROUP, int(data.facts["group"][client]))
        return (self.stream_name, data.seed, _CLIENT, client)


class LabelConflict(Difference):
    """A share of the clients permute the names of some classes in a cycle.

    Their training, validation and test labels follow; the global test set keeps its labels.
    """

    stream_name: ClassVar[str] = "label-conflict"

    classes: Natural = 2
    """number of labels, drawn at random, that are permuted cyclically in random order; 0, as a
    control: both groups are there, and all labels stay as they are"""

    columns: ClassVar[tuple[Column, ...]] = (
        *Difference.columns,
        Column("clients", "relabelled", "float64", "share of its samples that it names otherwise"),
    )

    def check_fields(self) -> None:
        """Refuse a cycle of one label."""
        super().check_fields()
        if self.classes == 1:
            raise ValueError(
                "classes is 1, but a cycle needs 2 labels or more; write 0 for none, or at least 2"
            )

    def require_classes(self, num_classes: int, dataset: str = "the data set") -> None:
        """Raise ValueError for a cycle over more labels than a data set has."""
        if self.classes > num_classes:
            raise ValueError(
                f"conditions.label_conflict.classes is {self.classes}, but {dataset} has only "
                f"{num_classes} classes; lower it"
            )

    def prepare(self, data: ClientData) -> ClientData:
        """Rename the labels of clients that differ."""
        self.require_classes(data.num_classes)
        data = self.with_groups(data)
        names = data.class_names.copy()
        for client in np.flatnonzero(data.facts["conflicts"]).tolist():
            order = stream(*self.source(data, client)).permutation(data.num_classes)
            cycle = order[: self.classes]
            names[client, cycle] = np.roll(cycle, -1)
        held = data.owner >= 0
        owner = data.owner[held]
        labels = data.labels.copy()
        labels[held] = names[owner, labels[held]]
        changed = np.bincount(owner, labels[held] != data.labels[held], data.num_clients)
        relabelled = changed / np.bincount(owner, minlength=data.num_clients)
        return replace(data, labels=labels, class_names=names).with_facts(relabelled=relabelled)


@dataclass(frozen=True)
class View:
    """How a client sees images, uint8 [n, H, W] grey or [n, H, W, 3] colour, taken as x / 255."""

    kind: str
    "invert (255 − x), rotate (bilinear, corners become 0) or noise (cut off at 0 and 255)"
    source: Source
    "address of the random stream of this view, to which further numbers are added"
    degrees: float | None = None
    "angle of rotate, counter-clockwise; None: drawn at address 0, uniform in ±[15, 60] degrees"

    def angle(self) -> float:
        """Return the angle by which images are rotated, in degrees."""
        if self.degrees is not None:
            return self.degrees
        generator = stream(*self.source, 0)
        size = generator.uniform(*ROTATION)
        return float(generator.choice((-1.0, 1.0)) * size)

    def __call__(self, images: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return images as the client sees them.

        Args:
            images: uint8 [n, …].
            numbers: int64 [n], their sample numbers. The noise of sample i is drawn at address
                (1, i), so that it is the same whenever the image is seen.
        """
        if self.kind == "invert":
            return 255 - images
        if self.kind == "rotate":
            from scipy.ndimage import rotate

            values = rotate(
                images / 255.0,
                self.angle(),
                axes=(2, 1),
                reshape=False,
                order=1,
            )
        else:
            noise = [
                stream(*self.source, 1, int(i)).standard_normal(images.shape[1:]) for i in numbers
            ]
            values = images / 255.0 + NOISE * np.array(noise).reshape(images.shape)
        return np.rint(np.clip(values, 0.0, 1.0) * 255.0).astype(np.uint8)


class FeatureShift(Difference):
    """A share of the clients see other images; the global test set stays as it is."""

    stream_name: ClassVar[str] = "feature-shift"

    kind: Literal["invert", "rotate", "noise"] = "invert"
    """`invert` (255 − x, the same for everybody), `rotate` (by `angle`, or else by one between 15°
    and 60° either way; bilinear), or `noise` (of standard deviation 0.25 of full ink, drawn once
    for an image and whoever sees it)"""
    angle: Annotated[float, Field(ge=-180, le=180)] | None = None
    """with `kind: rotate`: degrees, counter-clockwise, by which all who differ see images turned;
    null: drawn for each client, or for each group"""

    def check_fields(self) -> None:
        """Refuse an angle for what does not rotate."""
        super().check_fields()
        if self.angle is not None and self.kind != "rotate":
            raise ValueError(
                f"angle is {self.angle:g}, but kind is {self.kind}; write kind: rotate, or remove "
                "angle"
            )

    def prepare(self, data: ClientData) -> ClientData:
        """Give the clients that differ their views."""
        data = self.with_groups(data)
        same = self.kind == "invert" or self.angle is not None
        views: dict[int, View] = {}
        for client in np.flatnonzero(data.facts["conflicts"]).tolist():
            source = (self.stream_name, data.seed) if same else self.source(data, client)
            views[client] = View(self.kind, source, self.angle)
        return replace(data, views=views)


def client_groups(
    num_clients: int, count: int, groups: int | None, generator: np.random.Generator
) -> np.ndarray:
    """Draw which clients differ from the others, and which of them differ in the same way.

    Clients are assigned to groups in turn, so that sizes differ by at most 1. With equal generators
    the clients of a smaller ``count`` are among those of a larger one.

    Args:
        num_clients: Number of clients K.
        count: Number of clients that differ.
        groups: Number of groups; None: every client that differs is a group.
        generator: Source of randomness.

    Returns:
        int64 [K], the group of every client from 0; −1: it does not differ.
    """
    chosen = generator.permutation(num_clients)[:count]
    group = np.full(num_clients, -1, dtype=np.int64)
    if groups is None:
        group[np.sort(chosen)] = np.arange(count)
    else:
        group[chosen] = np.arange(count) % groups
    return group
