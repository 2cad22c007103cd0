"""The way of a few clients' models through parameter space, to be drawn when the run is over.

The plane in which to draw is known only at the end, so that every model is kept whole until then:
for a few clients and a few rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.plane import principal_plane
from fedsdg.files.columns import Column

_SERVER = -1


class Trajectory:
    """Points in the order in which they come: clients' on their way, and the server's."""

    #: What it adds to the records.
    columns = (
        Column("rounds", "model_x", "float64", "where the aggregate lies in the plane"),
        Column("rounds", "model_y", "float64", "where the aggregate lies in the plane"),
        Column("rounds", "plane_share", "float64", "share of all models' variance in the plane"),
        Column("clients", "path_x", "list of float64", "the client's way in the plane"),
        Column("clients", "path_y", "list of float64", "the client's way in the plane"),
    )

    def __init__(self) -> None:
        self._points: list[Tensor] = []
        #: (round, client) of each point; the server is client −1.
        self._places: list[tuple[int, int]] = []

    def clients(self, round_: int, clients: Iterable[int], models: Tensor) -> None:
        """The next point [M, d] of each client's way: first what it starts from, last its end."""
        for client, model in zip(clients, models, strict=True):
            self._add(round_, int(client), model)

    def aggregate(self, round_: int, model: Tensor) -> None:
        """The server's model [d] after the round."""
        self._add(round_, _SERVER, model)

    def write(self, rounds: Iterable[dict[str, Any]], clients: Iterable[dict[str, Any]]) -> None:
        """Add the coordinates to the rows of the records, by their round and client.

        Rows of clients get the lists ``path_x`` and ``path_y``, start first; rows of rounds get
        ``model_x`` and ``model_y`` of the aggregate, and ``plane_share``, the share of the
        variance of all models that lies in the plane.
        """
        plane = principal_plane(torch.stack(self._points).numpy())
        ways: dict[tuple[int, int], list[np.ndarray]] = {}
        for place, point in zip(self._places, plane.points, strict=True):
            ways.setdefault(place, []).append(point)
        for row in clients:
            if way := ways.get((row["round"], row["client"])):
                row["path_x"], row["path_y"] = np.stack(way, axis=1).tolist()
        for row in rounds:
            if way := ways.get((row["round"], _SERVER)):
                row["model_x"], row["model_y"] = way[-1].tolist()
                row["plane_share"] = plane.share

    @classmethod
    def erase(cls, *tables: Iterable[dict[str, Any]]) -> None:
        """Remove what ``write`` added to the rows of tables."""
        for table in tables:
            for row in table:
                for column in cls.columns:
                    row.pop(column.name, None)

    def tensors(self) -> dict[str, Tensor]:
        """All there is, for a checkpoint; {} before the first point."""
        if not self._points:
            return {}
        return {"points": torch.stack(self._points), "places": torch.tensor(self._places)}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Trajectory:
        """What ``tensors`` returned, as it was."""
        found = cls()
        if tensors:
            found._points = list(tensors["points"])
            found._places = [(int(r), int(c)) for r, c in tensors["places"].tolist()]
        return found

    def _add(self, round_: int, client: int, model: Tensor) -> None:
        self._points.append(model.detach().to("cpu", torch.float32, copy=True))
        self._places.append((round_, client))
