"""The way of a few clients' models through parameter space, to be drawn when the run is over.

The plane in which to draw is known only at the end, so that every model is kept whole until then:
for a few clients and a few rounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from fedsdg.trajectories import principal_plane


class Trajectory:
    """Points in the order in which they come: clients' on their way, and the server's."""

    def __init__(self) -> None:
        self._points: list[np.ndarray] = []
        self._ways: dict[tuple[int, int], list[int]] = {}
        self._models: dict[int, int] = {}

    def clients(self, round_: int, clients: Iterable[int], models: Tensor) -> None:
        """The next point [M, d] of each client's way: first what it starts from, last its end."""
        for client, model in zip(clients, models, strict=True):
            self._ways.setdefault((round_, int(client)), []).append(self._add(model))

    def aggregate(self, round_: int, model: Tensor) -> None:
        """The server's model [d] after the round."""
        self._models[round_] = self._add(model)

    def write(self, rounds: Iterable[dict[str, Any]], clients: Iterable[dict[str, Any]]) -> None:
        """Add the coordinates to the rows of the records, by their round and client.

        Rows of clients get the lists ``path_x`` and ``path_y``, start first; rows of rounds get
        ``model_x`` and ``model_y`` of the aggregate, and ``plane_share``, the share of the
        variance of all models that lies in the plane.
        """
        plane = principal_plane(np.stack(self._points))
        for row in clients:
            if way := self._ways.get((row["round"], row["client"])):
                row["path_x"], row["path_y"] = plane.points[way].T.tolist()
        for row in rounds:
            if (place := self._models.get(row["round"])) is not None:
                row["model_x"], row["model_y"] = plane.points[place].tolist()
                row["plane_share"] = plane.share

    def _add(self, model: Tensor) -> int:
        self._points.append(model.detach().float().cpu().numpy().copy())
        return len(self._points) - 1
