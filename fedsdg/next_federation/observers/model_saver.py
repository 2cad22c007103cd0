"""The models of the round that validation selects, or of the last one."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from fedsdg.next_federation.accuracy import mean_accuracy
from fedsdg.next_federation.observers.observer import Observer, RoundView


class ModelSaver(Observer):
    """Remembers the server's models [C, d], and what each of K clients uses.

    A client uses row `which` of `models` [U, d], and its row of `private` [K, d_p] if it
    `uses_private`.
    """

    def __init__(self, choice: Literal["selected", "last"]) -> None:
        """Choose the round: the one that validation has `selected`, or the `last`."""
        super().__init__()
        self.choice = choice

    def observe(self, view: RoundView) -> None:
        """Take the models of a round, if they are to be kept so far."""
        evaluation = view.evaluation
        if evaluation is None or not (view.last or self.choice == "selected"):
            return
        sizes = np.array([len(view.setup.shards.val[client]) for client in evaluation.clients])
        if self.state and self.choice == "selected":
            best = mean_accuracy(self.state["right"].numpy(), self.state["sizes"].numpy())
            if mean_accuracy(evaluation.right, sizes) <= best:
                return
        models = evaluation.models
        private = models.kept.read("private", np.arange(view.setup.num_clients))
        self.state = {
            "round": torch.tensor(view.t),
            "right": torch.from_numpy(evaluation.right),
            "sizes": torch.from_numpy(sizes),
            "server": view.after.models.cpu().clone(),
            "models": models.models.cpu().clone(),
            "which": torch.from_numpy(models.which),
            "uses_private": torch.from_numpy(models.uses_private),
            "private": private.cpu(),
        }
