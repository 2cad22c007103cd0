"""What clients send to the server in a round, and what they keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.environment.circumstances import Attendance
from fedsdg.federation.probes import Measured, Scene
from fedsdg.federation.traffic import Traffic, traffic

if TYPE_CHECKING:
    from fedsdg.federation.rounds import Federation


def measure(
    one: Federation, round_: int, cohort: np.ndarray, asked: Clients, local: LocalResult
) -> list[Measured]:
    """What the probes found."""
    if not one.probes or not len(cohort):
        return []
    scene = Scene(
        one.model,
        one.layout,
        one.samples,
        one.shards,
        one.seed,
        round_,
        cohort,
        asked.start,
        asked.private,
        one.models,
        one.work.loss,
    )
    found: list[Measured] = []
    stage = one.stages.measuring.start
    for probe in one.probes:
        if probe.gradient_epochs and asked.budget is not None:
            batches = asked.within(stage, asked.batches)
            scene = replace(scene, in_time=[np.sort(np.concatenate(own)) for own in batches])
            stage += 1
        found += [probe.before(scene), probe.after(scene, local)]
    return found


def exchange(
    one: Federation,
    round_: int,
    attendance: Attendance,
    asked: Clients,
    local: LocalResult,
    found: Sequence[Measured],
) -> Traffic:
    """Let the clients keep what is theirs; returns what was sent.

    ``found`` is about the clients that send something; the others keep what they train in private.
    """
    cohort, sent = attendance.present, Traffic()
    sends = ~np.isin(cohort, attendance.out_of_time)
    senders, _, came = only(sends, cohort, asked, local)
    vectors = merged([came.uploads, *(each.vectors for each in found)])
    if not one.pooling.central:
        lossy = one.circumstances.quantisation
        sent = traffic(
            one.layout,
            one.models[0],
            one.received(),
            came.theta,
            vectors,
            merged([each.numbers for each in found]),
            models_tried=sum(each.models_down for each in found),
            partial=one.rule.partial(one.state, senders, one.layout.d),
            lost=len(attendance.dropped) + len(attendance.out_of_time),
            round_=round_,
            in_step=_in_step(one, round_, senders),
            quantised=0 if lossy is None else int(lossy.weak[senders].sum()),
            of_bytes=0 if lossy is None else lossy.length(one.layout.of_round(round_)),
        )
    measured = merged([each.vectors for each in found])
    # What a probe uploads under a name that clients keep, they keep.
    stays = {name: rows for name, rows in measured.items() if name in one.keeps}
    local.measured = local.measured + _measured(one, cohort, asked)
    kept = {**local.state, **_own(one, cohort, asked, local)}
    if sends.all():
        one.bank.scatter(torch.from_numpy(cohort), local.private, stays | kept)
        return sent
    # The server knows nothing of the others' round, so what their terms keep stays as it was.
    terms = {name for term in one.work.terms for name in term.keeps}
    theirs = {name: rows for name, rows in kept.items() if name not in terms}
    for which, more, vectors in ((sends, stays, kept), (~sends, {}, theirs)):
        rows = torch.from_numpy(np.flatnonzero(which))
        some = {name: value[rows.to(value.device)] for name, value in vectors.items()}
        private = local.private[rows.to(local.private.device)]
        one.bank.scatter(torch.from_numpy(cohort[which]), private, {**more, **some})
    return sent


def only(
    chosen: np.ndarray, cohort: np.ndarray, asked: Clients, local: LocalResult
) -> tuple[np.ndarray, Clients, LocalResult]:
    """The clients of a cohort where ``chosen`` (bool [M]) is True, and what is theirs."""
    if chosen.all():
        return cohort, asked, local
    rows = np.flatnonzero(chosen)
    return cohort[rows], asked[rows], local[rows]


def _measured(one: Federation, cohort: np.ndarray, asked: Clients) -> np.ndarray:
    """How many batches the probes took gradients of, [M]."""
    if asked.budget is not None:
        return np.asarray(asked.budget[:, one.stages.measuring].sum(axis=1))
    epochs = sum(probe.gradient_epochs for probe in one.probes)
    return epochs * one.batches_per_epoch(cohort)


def _in_step(one: Federation, round_: int, cohort: np.ndarray) -> int:
    """How many of a cohort took part in the round before, if what it changed is known."""
    # What arrives late may change what had its turn earlier; then everything is sent.
    if not one.layout.turns or one.circumstances.clock is not None:
        return 0
    before: set[int] = set()
    for row in reversed(one.records.clients):
        if row["round"] < round_ - 1:
            break
        if row["participated"]:
            before.add(row["client"])
    return len(before & set(cohort.tolist()))


def _own(
    one: Federation, cohort: np.ndarray, asked: Clients, local: LocalResult
) -> Mapping[str, Tensor]:
    """What the clients keep of their own models; what they train for them counts as theirs."""
    if not one.own.keeps or not len(cohort):
        return {}
    if asked.budget is not None:
        asked = replace(asked, budget=asked.budget[:, one.stages.measuring.stop :])
    kept, more = one.own.keep(
        one.train_on, asked, one.bank.trained[torch.from_numpy(cohort)], local
    )
    if more is not None:
        local.measured = local.measured + more.measured
        local.samples = local.samples + more.samples
        local.steps = local.steps + more.steps
        local.personal = local.personal + more.steps
    return kept


def forget(one: Federation, cohort: np.ndarray, kept: Mapping[str, Tensor]) -> None:
    """Set to 0 what terms let go of when a client sits out a round."""
    names = [name for term in one.work.terms for name in term.fleeting]
    if not names:
        return
    # The last cohort that there was: a round in which everybody dropped out changed nothing.
    was_there: set[int] = set()
    last = 0
    for row in reversed(one.records.clients):
        # A client that was out of time sent nothing that the server could sum up.
        if row["participated"] and not row.get("out_of_time"):
            if row["round"] < last:
                break
            last = row["round"]
            was_there.add(row["client"])
    away = [client not in was_there for client in cohort.tolist()]
    out = torch.tensor(away, dtype=torch.bool)
    for name in names:
        kept[name][out.to(kept[name].device)] = 0


def merged(mappings: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What stands under all names; the last mapping that has one counts."""
    return {name: value for mapping in mappings for name, value in mapping.items()}
