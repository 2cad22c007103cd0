"""The paths of models through the plane in which all models of a run differ most."""

from typing import Any, ClassVar

import numpy as np
import torch

from fedsdg.federation.observers.observer import Observer, RoundView
from fedsdg.files.columns import Column

SERVER = -1
"""The number of the server among clients."""


class Trajectory(Observer):
    """Follows where the models of clients begin and end, and where the server's models are.

    The plane is known when the run is over, so all models are kept until then: this is for a few
    clients and a few rounds.
    """

    columns: ClassVar = (
        Column("rounds", "model_x", "float64", "where the aggregate lies in the plane"),
        Column("rounds", "model_y", "float64", "where the aggregate lies in the plane"),
        Column("rounds", "plane_share", "float64", "share of all models' variance in the plane"),
        Column("clients", "path_x", "list of float32", "the client's way in the plane"),
        Column("clients", "path_y", "list of float32", "the client's way in the plane"),
    )

    def observe(self, view: RoundView) -> None:
        """Keep the models of a round."""
        models = (view.tasks.begin, view.results.theta, view.after.models[:1])
        clients = torch.from_numpy(view.tasks.clients)
        who = torch.cat([clients, clients, torch.tensor([SERVER])])
        new = {
            "points": torch.cat(models).cpu().float(),
            "places": torch.stack([torch.full_like(who, view.t), who], 1),
        }
        before = self.state or {name: value[:0] for name, value in new.items()}
        self.state = {name: torch.cat([before[name], value]) for name, value in new.items()}

    def complete(self, rounds: list[dict[str, Any]], clients: list[dict[str, Any]]) -> None:
        """Add the coordinates of each path, its start first."""
        points, share = principal_plane(self.state["points"].numpy())
        paths: dict[tuple[int, int], list[np.ndarray]] = {}
        for place, point in zip(self.state["places"].tolist(), points, strict=True):
            paths.setdefault(tuple(place), []).append(point)
        for row in clients:
            if path := paths.get((row["round"], row["client"])):
                row["path_x"], row["path_y"] = np.stack(path, axis=1).tolist()
        for row in rounds:
            row["model_x"], row["model_y"] = paths[row["round"], SERVER][-1].tolist()
            row["plane_share"] = share


def principal_plane(vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """Project vectors [n, d], n at least 2, onto the plane of their two principal components.

    Returns:
        Coordinates [n, 2] around the mean, the first axis that of the largest variance, and the
        share of the variance that lies in the plane. The longest coordinate of an axis is positive,
        so equal vectors give equal points.
    """
    x = vectors.astype(np.float64)
    left, lengths, _ = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    points = np.zeros((len(x), 2))
    rank = min(2, len(lengths))
    points[:, :rank] = left[:, :rank] * lengths[:rank]
    longest = points[np.abs(points).argmax(axis=0), [0, 1]]
    total = float((lengths**2).sum())
    share = float((lengths[:2] ** 2).sum()) / total if total else 1.0
    return points * np.where(longest < 0, -1.0, 1.0), share
