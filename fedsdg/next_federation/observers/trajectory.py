"""The paths of models through the plane in which all models of a run differ most."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from fedsdg.files.columns import Column
from fedsdg.next_federation.observers.observer import Observer, RoundView

SERVER = -1
"""The number of the server among clients."""


class Plane(NamedTuple):
    """Points in the plane of their two first principal components."""

    points: np.ndarray
    "[n, 2] coordinates around the mean of all points; the first axis varies most"
    share: float
    "share of the points' variance that lies in the plane"


def principal_plane(vectors: np.ndarray) -> Plane:
    """Project vectors [n, d], n at least 2, onto the plane that keeps most of their variance.

    The longest coordinate of each axis is positive, so equal vectors give equal points.
    """
    centred = np.asarray(vectors, dtype=np.float64) - np.mean(vectors, axis=0, dtype=np.float64)
    left, lengths, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(vectors), 2))
    rank = min(2, len(lengths))
    points[:, :rank] = left[:, :rank] * lengths[:rank]
    longest = points[np.abs(points).argmax(axis=0), [0, 1]]
    points *= np.where(longest < 0, -1.0, 1.0)
    total = float((lengths**2).sum())
    return Plane(points, float((lengths[:2] ** 2).sum()) / total if total else 1.0)


class Trajectory(Observer):
    """Follows where the models of clients begin and end, and where the server's models are.

    The plane is known when the run is over, so all models are kept until then: this is for a few
    clients and a few rounds.
    """

    columns: ClassVar = (
        Column("rounds", "model_x", "float64", "where the aggregate lies in the plane"),
        Column("rounds", "model_y", "float64", "where the aggregate lies in the plane"),
        Column("rounds", "plane_share", "float64", "share of all models' variance in the plane"),
        Column("clients", "path_x", "list of float64", "the client's way in the plane"),
        Column("clients", "path_y", "list of float64", "the client's way in the plane"),
    )

    def observe(self, view: RoundView) -> None:
        """Keep the models of a round."""
        begin = view.tasks.first_values
        points = torch.cat([begin, view.results.theta, view.after.models[:1]]).cpu().float()
        clients = torch.from_numpy(view.tasks.clients)
        who = torch.cat([clients, clients, torch.tensor([SERVER])])
        places = torch.stack([torch.full_like(who, view.t), who], 1)
        if self.state:
            points = torch.cat([self.state["points"], points])
            places = torch.cat([self.state["places"], places])
        self.state = {"points": points, "places": places}

    def complete(self, rounds: list[dict[str, Any]], clients: list[dict[str, Any]]) -> None:
        """Add the coordinates of each path, its start first."""
        plane = principal_plane(self.state["points"].numpy())
        paths: dict[tuple[int, int], list[np.ndarray]] = {}
        for (number, client), point in zip(
            self.state["places"].tolist(), plane.points, strict=True
        ):
            paths.setdefault((number, client), []).append(point)
        for row in clients:
            path = paths.get((row["round"], row["client"]))
            if path is not None:
                row["path_x"], row["path_y"] = np.stack(path, axis=1).tolist()
        for row in rounds:
            row["model_x"], row["model_y"] = paths[row["round"], SERVER][-1].tolist()
            row["plane_share"] = plane.share
