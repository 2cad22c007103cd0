"""Attackers: what a share of the clients sends in place of its updates, or trains on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from fedsdg.federation.conditions.condition import (
    LARGEST,
    ClientData,
    Condition,
    attackers_in,
)
from fedsdg.files.columns import Column
from fedsdg.lazy import Tensor, torch
from fedsdg.parts import Chosen, Part, Share
from fedsdg.rng import stream

if TYPE_CHECKING:
    from fedsdg.federation.setup import Setup, Updates
    from fedsdg.federation.tasks import Tasks

Scale = Annotated[float, Field(ge=0, le=LARGEST)]


@dataclass(frozen=True)
class AttackView:
    """What the attackers of a round see."""

    updates: Tensor
    "[M, d] all updates"
    attackers: np.ndarray
    "bool [M], whose updates are the attackers'"
    weights: np.ndarray
    "[M] the weights that the server is expected to use, of sum 1"
    start: Tensor
    "[M, d] what each client downloaded"
    generator: np.random.Generator
    "source of randomness"

    @property
    def positions(self) -> Tensor:
        """The attackers, bool [M], on the device of the updates."""
        return torch.from_numpy(self.attackers).to(self.updates.device)

    @property
    def own(self) -> Tensor:
        """The attackers' honest updates, float64 [A, d]."""
        return self.updates[self.positions].double()

    @property
    def honest(self) -> Tensor:
        """The honest clients' updates, float64; if all clients attack, their own stand for them."""
        if self.attackers.all():
            return self.own
        return self.updates[~self.positions].double()

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal numbers, float64."""
        return torch.from_numpy(self.generator.standard_normal(shape)).to(self.updates.device)


class Attack(Part, kind=True):
    """Base of attacks; with this one attackers are honest."""

    def tamper(self, view: AttackView) -> Tensor:
        """Return what the attackers send, [A, d], or one row [d] for all of them."""
        return view.own

    def labels(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Return the labels [n] on which attackers train, given the right ones."""
        return labels


class SignFlip(Attack, name="sign-flip"):
    """-scale * Delta_k (Li et al. 2019, RSA)."""

    scale: Scale = 1.0
    "−scale · own update"

    def tamper(self, view: AttackView) -> Tensor:
        """Return the updates with the other sign."""
        return -self.scale * view.own


class Scaling(Attack, name="scaling"):
    """scale * Delta_k: an honest direction out of proportion (Bagdasaryan et al. 2020)."""

    scale: Scale = 10.0
    "scale · own update"

    def tamper(self, view: AttackView) -> Tensor:
        """Return scaled updates."""
        return self.scale * view.own


class Gaussian(Attack, name="gaussian"):
    """Noise of length scale * median ||Delta_k|| of the honest clients (Blanchard et al. 2017)."""

    scale: Scale = 1.0
    "length of the noise, in median lengths of the honest updates"

    def tamper(self, view: AttackView) -> Tensor:
        """Return noise of uniform direction."""
        lengths = torch.linalg.vector_norm(view.honest, dim=1)
        noise = view.normal(*view.own.shape)
        noise /= torch.linalg.vector_norm(noise, dim=1, keepdim=True).clamp_min(1e-300)
        return noise * (self.scale * torch.quantile(lengths, 0.5))


class InnerProduct(Attack, name="inner-product"):
    """-epsilon * mean of the honest updates (Xie et al. 2019)."""

    epsilon: Scale = 0.5
    "−ε · mean of the honest updates"

    def tamper(self, view: AttackView) -> Tensor:
        """Return the mean with the other sign."""
        return -self.epsilon * view.honest.mean(0)


class LittleIsEnough(Attack, name="alie"):
    """mu + z sigma of the honest updates (Baruch et al. 2019).

    By default z is the largest with which the attackers are not conspicuous: Phi^-1((H - s) / H),
    at least 0, for H honest clients, of whom s = floor(M/2 + 1) - A, at least 1, make a majority
    together with the A attackers.
    """

    z: Annotated[float, Field(ge=-LARGEST, le=LARGEST)] | None = None
    "standard deviations from the mean; null: the largest that the cohort's numbers permit"

    def tamper(self, view: AttackView) -> Tensor:
        """Return mu + z sigma."""
        mean = view.honest.mean(0)
        deviation = (view.honest - mean).square().mean(0).sqrt()
        return mean + self._z(view.attackers) * deviation

    def _z(self, attackers: np.ndarray) -> float:
        if self.z is not None:
            return self.z
        count = int(attackers.sum())
        honest = len(attackers) - count
        supporters = max(1, len(attackers) // 2 + 1 - count)
        if honest <= supporters:
            return 0.0
        return max(0.0, NormalDist().inv_cdf((honest - supporters) / honest))


class Replacement(Attack, name="replacement"):
    """(T - W_h m) / W_a, by which the weighted mean becomes T = -scale * m.

    m = sum over honest clients of w_k Delta_k / W_h; W_h and W_a are the weights of honest clients
    and of attackers (Bagdasaryan et al. 2020).
    """

    scale: Scale = 1.0
    "the weighted mean becomes −scale · mean of the honest updates"

    def tamper(self, view: AttackView) -> Tensor:
        """Return what replaces the mean."""
        if view.attackers.all():
            return -self.scale * view.honest.mean(0)
        attacking = float(view.weights[view.attackers].sum())
        honest = float(view.weights[~view.attackers].sum())
        if not attacking > 0:
            raise ValueError(
                "model replacement: the server gives the attackers no weight at all; choose "
                "another attack, or a rule that weighs by counts"
            )
        weights = torch.from_numpy(view.weights[~view.attackers]).to(view.honest)
        weighted = weights @ view.honest
        mean = weighted / honest if honest > 0 else view.honest.mean(0)
        return (-self.scale * mean - weighted) / attacking


class BlindReplacement(Attack, name="replacement-blind"):
    """T * M / A with T = -scale * mean of the attackers' own updates, as if the others' were 0."""

    scale: Scale = 1.0
    "the weighted mean is to become −scale · mean of the attackers' own updates"

    def tamper(self, view: AttackView) -> Tensor:
        """Return what would replace the mean."""
        return -self.scale * view.own.mean(0) * (len(view.attackers) / int(view.attackers.sum()))


class Corruption(Attack, name="corruption"):
    """round(entries * d) numbers of theta_k arrive damaged.

    They become noise N(0, (scale * rms(theta_k))^2), or one of their bits is flipped.
    """

    entries: Share = 0.01
    "share of the parameters that are damaged on the way"
    damage: Literal["noise", "bits"] = "noise"
    "`noise`, or `bits`: one flipped bit each, which may make a number huge or no number at all"
    scale: Scale = 1.0
    "size of the noise, in root mean squares of the parameters"

    def tamper(self, view: AttackView) -> Tensor:
        """Return the updates of the damaged parameters."""
        tampered = view.updates[view.positions]
        starts = view.start.to(tampered)[view.positions]
        for update, start in zip(tampered, starts, strict=True):
            places = view.generator.permutation(len(update))[: round(self.entries * len(update))]
            place = torch.from_numpy(places).to(update.device)
            sent = start + update
            damaged = self._with_noise if self.damage == "noise" else self._with_flipped_bits
            update[place] = damaged(sent, place, view) - start[place]
        return tampered

    def _with_noise(self, sent: Tensor, place: Tensor, view: AttackView) -> Tensor:
        size = self.scale * sent.double().square().mean().sqrt()
        return (size * view.normal(len(place))).to(sent.dtype)

    def _with_flipped_bits(self, sent: Tensor, place: Tensor, view: AttackView) -> Tensor:
        words = sent[place].cpu().numpy()
        kind = np.dtype(f"u{words.itemsize}")
        bits = view.generator.integers(8 * words.itemsize, size=len(words)).astype(kind)
        flipped = words.view(kind) ^ (np.ones_like(bits) << bits)
        return torch.from_numpy(flipped.view(words.dtype)).to(sent.device)


class LabelFlip(Attack, name="label-flip"):
    """Attackers train on the labels C - 1 - y, or (y + 1) mod C (Biggio et al. 2012)."""

    to: Literal["opposite", "next"] = "opposite"
    "`opposite` y → C − 1 − y, or `next` y → y + 1"

    def labels(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Return wrong labels."""
        if self.to == "opposite":
            return num_classes - 1 - labels
        return (labels + 1) % num_classes


class Attackers(Condition):
    """A share of the clients attacks: the same in every round, and part of every larger share."""

    attack: Annotated[Attack, Chosen(Attack)]
    "what attackers send, or train on"
    share: Share
    "share of the clients, rounded to whole clients (halves up)"

    columns: ClassVar[tuple[Column, ...]] = (
        Column("rounds", "attackers", "int32", "attackers among the updates that arrived"),
        Column(
            "rounds",
            "honest_distance",
            "float64",
            "L2 distance from the server's step to the mean of the honest updates",
        ),
        Column("clients", "attacker", "bool", "whether it attacks"),
    )

    @model_validator(mode="before")
    @classmethod
    def _of_a_config(cls, given: Any) -> Any:
        """Let a config write {type: sign-flip, share: 0.2, scale: 3}."""
        if not isinstance(given, Mapping) or "attack" in given:
            return given
        attack = {key: value for key, value in given.items() if key != "share"}
        shares = {key: value for key, value in given.items() if key == "share"}
        return {"attack": Chosen(Attack).read(attack), **shares}

    def prepare(self, data: ClientData) -> ClientData:
        """Choose the attackers, and change the labels on which they train."""
        count = attackers_in(self.share, data.num_clients)
        chosen = stream("attack", data.seed).permutation(data.num_clients)[:count]
        labels = data.labels.copy()
        for client in chosen.tolist():
            shard = data.train[client]
            labels[shard] = self.attack.labels(labels[shard], data.num_classes)
        attacker = np.isin(np.arange(data.num_clients), chosen)
        if (attacker | data.flags("held_out")).all():
            raise ValueError("no honest client trains; lower conditions.attack.share")
        return replace(data, labels=labels).with_facts(attacker=attacker)

    def transform_upload(self, setup: Setup, t: int, sent: Updates, tasks: Tasks) -> Updates:
        """Replace the updates of attackers, who see what all others send."""
        attackers = setup.data.facts["attacker"][sent.clients]
        if setup.sharing.central or not attackers.any():
            return sent
        view = AttackView(
            updates=sent.update,
            attackers=attackers,
            weights=_expected_weights(setup, sent.clients),
            start=tasks.start,
            generator=stream("attack", setup.data.seed, t),
        )
        tampered = self.attack.tamper(view)
        shape = [int(attackers.sum()), sent.update.shape[1]]
        if list(tampered.shape) not in (shape, shape[1:]):
            raise ValueError(
                f"the attack {type(self.attack).__name__} returned {list(tampered.shape)} for "
                f"{shape[0]} attackers; return {shape}, or one row {shape[1:]}"
            )
        update = sent.update.clone()
        update[view.positions] = tampered.to(update)
        return replace(sent, rows={**sent.rows, "update": update})


def _expected_weights(setup: Setup, clients: np.ndarray) -> np.ndarray:
    """Return the weights [M] that attackers expect: by the counts that the rule needs, or equal."""
    counts = {"num_samples": setup.sizes[clients], "num_batches": setup.batches_per_epoch(clients)}
    shares = counts.get(setup.rule.needs or "", np.ones(len(clients)))
    return np.asarray(shares / shares.sum())
