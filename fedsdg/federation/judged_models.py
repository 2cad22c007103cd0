"""The models that clients are judged with at an evaluation; nothing of them is fed back.

Usually what a client has: the model that it would download, its own, its private part. Beside that
some train for the occasion, on streams of their own, and what comes of it is discarded: everybody
in fine-tuning, the private part alone where it is refreshed, and clients that never take part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.cohorts import cohort_batches
from fedsdg.federation.local_work import LocalWork
from fedsdg.models.parameters import Layout
from fedsdg.rng import stream

if TYPE_CHECKING:
    from fedsdg.federation.rounds import Federation

#: Epochs of its own for a client that never takes part, before it is judged.
NEW_EPOCHS = 2


@dataclass(frozen=True)
class JudgedModels:
    """``theta`` [d], one model for all, or [K, d]; ``private(clients)`` rows [n, d_p].

    ``branch`` bool [K]: who has a private part; the others are judged with θ alone. ``steps``: how
    many local steps were taken for the occasion, by all clients together.
    """

    theta: Tensor
    private: Callable[[Tensor], Tensor]
    branch: Tensor
    steps: int = 0


def judged_models(
    federation: Federation, round_: int, judged: np.ndarray, new: np.ndarray
) -> JudgedModels:
    """What clients are judged with after a round.

    ``judged`` (bool [K]) counts in means; ``new`` (bool [K]) never takes part. Of a method with
    anything personal a new client gets ``NEW_EPOCHS`` epochs for that: on its private part alone
    with the shared model fixed, or as if it had taken part once where clients keep models of their
    own. In fine-tuning it trains a copy like everybody. A client that never takes part and is not
    among the ``new`` is not judged, and nothing is trained for it.
    """
    found = _models(federation, round_, judged, new)
    return replace(
        found, private=lambda clients: private_as_judged(federation, clients, found.private)
    )


def _models(
    federation: Federation, round_: int, judged: np.ndarray, new: np.ndarray
) -> JudgedModels:
    one, everyone = federation, np.arange(federation.num_clients)
    theta = one.theta if one.theta.dim() == 1 else one.downloads(everyone)
    found = JudgedModels(theta, one.bank.private, one.bank.trained)
    newcomers = np.flatnonzero(new)
    if one.own.keeps:
        kept = one.bank.gather(torch.from_numpy(everyone))[1]
        downloaded, has = one.downloads(everyone), one.bank.trained
        models = one.own.models(downloaded, kept, has, one.score(everyone))
        if len(newcomers):
            models = models.clone()
            theirs, steps = _taken_part_once(one, round_, newcomers)
            models[torch.from_numpy(newcomers).to(models.device)] = theirs
            found = replace(found, steps=steps)
        found = replace(found, theta=models)
    if one.schedule.personal_epochs:
        work = replace(one.work, trace_every=0)
        epochs, out = one.schedule.personal_epochs, one.circumstances.held_out
        who = everyone if out is None else np.flatnonzero(~out | new)
        models = found.theta if found.theta.dim() == 2 else one.downloads(everyone)
        models = models.clone()
        layout = one.layout.of_copy(one.schedule.head_alone)
        tuned = _train(one, round_, "evaluation", who, epochs, found, work, layout)
        models[torch.from_numpy(who).to(models.device)] = tuned.theta
        private, steps = _with_rows(found.private, who, tuned.private), int(tuned.steps.sum())
        return replace(found, theta=models, private=private, steps=found.steps + steps)
    if not one.layout.trains_private:
        return found
    alone = one.work.private_alone()
    if one.schedule.refresh:
        who = np.flatnonzero(judged & one.bank.trained.numpy())
        found = _personalised(one, round_, "refresh", who, one.schedule.refresh, found, alone)
    if not one.own.keeps:
        found = _personalised(one, round_, "new-clients", newcomers, NEW_EPOCHS, found, alone)
    return found


def private_as_judged(
    federation: Federation, clients: Tensor, private: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """The private rows [n, d_p] of some clients, with the anchors where they have any.

    ``private``: gives the rows without them, by default those that the clients keep.
    """
    one = federation
    rows = (private or one.bank.private)(clients)
    if not one.anchors:
        return rows
    some = []
    for client in clients.tolist():
        own = one.shards.train[client]
        draw = stream("anchors", one.seed, client)
        some.append(draw.choice(own, min(one.anchors, len(own)), replace=False))
    index = torch.from_numpy(np.concatenate(some)).to(one.samples.labels.device)
    model: Any = one.model
    filled: Tensor = model.with_anchors(rows, one.samples.images[index], list(map(len, some)))
    return filled


def _personalised(
    one: Federation,
    round_: int,
    purpose: str,
    clients: np.ndarray,
    epochs: int,
    found: JudgedModels,
    work: LocalWork,
) -> JudgedModels:
    """With the private parts that these clients have after some epochs on them alone."""
    if not len(clients):
        return found
    local = _train(one, round_, purpose, clients, epochs, found, work, one.layout)
    branch = found.branch.clone()
    branch[torch.from_numpy(clients)] = True
    private = _with_rows(found.private, clients, local.private)
    return JudgedModels(found.theta, private, branch, found.steps + int(local.steps.sum()))


def _with_rows(
    private: Callable[[Tensor], Tensor], clients: np.ndarray, trained: Tensor
) -> Callable[[Tensor], Tensor]:
    """``private`` with the rows ``trained`` [n, d_p] for these n clients."""
    place = {client: row for row, client in enumerate(clients.tolist())}

    def rows_of(asked: Tensor) -> Tensor:
        rows = private(asked)
        for k, client in enumerate(asked.tolist()):
            if client in place:
                rows[k] = trained[place[client]]
        return rows

    return rows_of


def _train(
    one: Federation,
    round_: int,
    purpose: str,
    clients: np.ndarray,
    epochs: int,
    found: JudgedModels,
    work: LocalWork,
    layout: Layout,
) -> LocalResult:
    """What becomes of copies of these clients' models."""
    asked = _asked(one, round_, purpose, clients, epochs)
    if found.theta.dim() == 2:
        place = torch.from_numpy(clients).to(found.theta.device)
        asked = replace(asked, start=found.theta[place])
    return one.passes.train(one.model, layout, one.samples, asked, work)


def _asked(one: Federation, round_: int, purpose: str, clients: np.ndarray, epochs: int) -> Clients:
    """These clients as they would train after a round, on the streams of ``purpose``."""
    private, kept = one.bank.gather(torch.from_numpy(clients))
    batches = cohort_batches(
        one.shards.train,
        clients.tolist(),
        purpose=purpose,
        seed=one.seed,
        round_=round_,
        batch_size=one.schedule.batch_size,
        epochs=epochs,
    )
    received = {name: v.expand(len(clients), -1) for name, v in one.received().items()}
    return Clients(
        batches,
        one.downloads(clients),
        private,
        kept,
        received,
        lambda k: f"round {round_}, {purpose} of client {clients[k]}",
    )


def _taken_part_once(one: Federation, round_: int, clients: np.ndarray) -> tuple[Tensor, int]:
    """The models [n, d] that clients would use after a first participation, and all their steps."""
    asked = _asked(one, round_, "new-clients", clients, NEW_EPOCHS)
    never = torch.zeros(len(clients), dtype=torch.bool)
    work = replace(one.work, trace_every=0)
    local = one.passes.train(one.model, one.layout, one.samples, asked, work)
    kept, more = one.own.keep(one.train_on, asked, never, local)
    steps = sum(int(result.steps.sum()) for result in (local, more) if result is not None)
    return one.own.models(asked.start, kept, ~never, one.score(clients)), steps
