"""Attacks: what the attackers of a cohort send in place of their updates, or train on.

An attack is called as ``attack(updates [M, d], attackers bool [M], view, generator)`` and returns
updates [M, d] in which the honest rows are those that came in, bit for bit. Attackers have trained
like everybody else, so their own rows are honest updates on their data. One that poisons data
changes ``labels`` and leaves updates alone.

The table of names and parameters is in ``fedsdg.methods.conditions``, which needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.environment.attackers import AttackView


@dataclass(frozen=True, eq=False)
class Scene:
    """The arguments of an attack together, and what of them most attacks need."""

    updates: Tensor
    attackers: np.ndarray
    view: AttackView
    generator: np.random.Generator

    @property
    def rows(self) -> Tensor:
        """bool [M] where the updates are: which of them are the attackers'."""
        return torch.from_numpy(self.attackers).to(self.updates.device)

    @property
    def own(self) -> Tensor:
        """The attackers' own honest updates, float64 [A, d]."""
        return self.updates[self.rows].double()

    @property
    def known(self) -> Tensor:
        """The honest updates, float64; where all attack their own stand for them."""
        return self.own if self.attackers.all() else self.updates[~self.rows].double()

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, float64."""
        return torch.from_numpy(self.generator.standard_normal(shape)).to(self.updates.device)


class UpdateAttack:
    """An attack on updates: subclasses say by ``forge`` what the attackers send."""

    def __call__(
        self,
        updates: Tensor,
        attackers: np.ndarray,
        view: AttackView,
        generator: np.random.Generator,
    ) -> Tensor:
        _check(updates, attackers, view)
        if not attackers.any():
            return updates
        scene = Scene(updates, attackers, view, generator)
        forged = updates.clone()
        forged[scene.rows] = self.forge(scene).to(updates.dtype)
        return forged

    def forge(self, scene: Scene) -> Tensor:
        """The attackers' rows [A, d], or one row [d] for all of them."""
        raise NotImplementedError

    def labels(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        return labels


@dataclass(frozen=True)
class Gaussian(UpdateAttack):
    """Noise in place of the update, in a uniform direction (Blanchard et al. 2017).

    ‖Δ_k‖ = ``scale`` · median ‖honest updates‖: about 1 is the chapter's noise that costs in
    proportion to the attackers' share, much more the noise that makes the mean random.
    """

    scale: float

    def forge(self, scene: Scene) -> Tensor:
        norms = torch.linalg.vector_norm(scene.known, dim=1)
        noise = scene.normal(*scene.own.shape)
        noise /= torch.linalg.vector_norm(noise, dim=1, keepdim=True).clamp_min(1e-300)
        return noise * (self.scale * torch.quantile(norms, 0.5))


@dataclass(frozen=True)
class SignFlip(UpdateAttack):
    """−``scale`` · Δ_k (Li et al. 2019)."""

    scale: float

    def forge(self, scene: Scene) -> Tensor:
        return -self.scale * scene.own


@dataclass(frozen=True)
class Scaling(UpdateAttack):
    """``scale`` · Δ_k: an honest direction, a length that outweighs the others."""

    scale: float

    def forge(self, scene: Scene) -> Tensor:
        return self.scale * scene.own


@dataclass(frozen=True)
class LittleIsEnough(UpdateAttack):
    """A little is enough (Baruch et al. 2019): μ + z σ per coordinate, within the honest spread.

    μ and σ (population) are those of the honest updates, which the attackers are taken to know.
    Of M clients A attack; s = ⌊M/2 + 1⌋ − A honest ones more make a majority, and z is the largest
    for which so many are expected beyond it: z_max = Φ⁻¹((M − A − s) / (M − A)). Where the
    attackers are a majority already s counts as 1, and z_max is never below 0. ``z`` replaces it.
    """

    z: float | None = None

    def forge(self, scene: Scene) -> Tensor:
        known, attackers = scene.known, scene.attackers
        z = z_max(len(attackers), int(attackers.sum())) if self.z is None else self.z
        mean = known.mean(0)
        return mean + z * (known - mean).square().mean(0).sqrt()


def z_max(clients: int, attackers: int) -> float:
    """The z of ALIE for a cohort; see :class:`LittleIsEnough`."""
    honest = clients - attackers
    supporters = max(1, clients // 2 + 1 - attackers)
    if honest <= supporters:
        return 0.0
    return max(0.0, NormalDist().inv_cdf((honest - supporters) / honest))


@dataclass(frozen=True)
class InnerProduct(UpdateAttack):
    """−``epsilon`` · mean of the honest updates (Xie et al. 2019)."""

    epsilon: float

    def forge(self, scene: Scene) -> Tensor:
        return -self.epsilon * scene.known.mean(0)


@dataclass(frozen=True)
class Replacement(UpdateAttack):
    """Any desired model, knowing the others' updates and weights.

    With m = Σ_honest w_k Δ_k / W_h (W_h, W_a: total weights of honest clients and attackers), the
    wanted step is T = −``scale`` · m; every attacker sends x = (T − W_h m) / W_a, so that the
    server's Σ w_k Δ_k is T.
    """

    scale: float

    def forge(self, scene: Scene) -> Tensor:
        weights, theirs = scene.view.weights, scene.attackers
        if theirs.all():
            return -self.scale * scene.known.mean(0)
        attacking, honest = float(weights[theirs].sum()), float(weights[~theirs].sum())
        if not attacking > 0:
            raise ValueError("model replacement: the server gives the attackers no weight at all")
        neglected = torch.from_numpy(weights[~theirs]).to(scene.known) @ scene.known
        wanted = -self.scale * (neglected / honest if honest > 0 else scene.known.mean(0))
        return (wanted - neglected) / attacking


@dataclass(frozen=True)
class BlindReplacement(UpdateAttack):
    """Any desired model, knowing nothing of the others but the last aggregate.

    Late in training a client's model differs little from the model that it downloaded, which
    therefore stands for the others' models: their updates count as 0, and their weights as equal.
    The wanted step is T = −``scale`` · mean of the attackers' own updates, and every attacker sends
    T · M / A. The server then takes T plus the honest part that was neglected.
    """

    scale: float

    def forge(self, scene: Scene) -> Tensor:
        wanted = -self.scale * scene.own.mean(0)
        return wanted * (len(scene.attackers) / int(scene.attackers.sum()))


@dataclass(frozen=True)
class Corruption(UpdateAttack):
    """Damage on the way: exactly round(``entries`` · d) of what each attacker sends (θ_k).

    ``noise``: the entries become N(0, (``scale`` · rms(θ_k))²); always finite.
    ``bits``: one uniformly drawn bit of each is flipped; of an exponent it may make a number huge,
    or no number at all, which only a server that checks what arrives survives.
    """

    entries: float
    damage: str = "noise"
    scale: float = 1.0

    def forge(self, scene: Scene) -> Tensor:
        forged = scene.updates[scene.rows]
        starts = scene.view.start.to(forged)[scene.rows]
        d = forged.shape[1]
        for update, start in zip(forged, starts, strict=True):
            chosen = scene.generator.permutation(d)[: round(self.entries * d)]
            places = torch.from_numpy(chosen).to(forged.device)
            sent = start + update
            arrives = _DAMAGES[self.damage](sent, places, self.scale, scene)
            update[places] = arrives - start[places]
        return forged


def _noise(sent: Tensor, places: Tensor, scale: float, scene: Scene) -> Tensor:
    size = scale * sent.double().square().mean().sqrt()
    return (size * scene.normal(len(places))).to(sent.dtype)


def _flipped_bits(sent: Tensor, places: Tensor, scale: float, scene: Scene) -> Tensor:
    words = sent[places].cpu().numpy()
    kind = np.dtype(f"u{words.itemsize}")
    bits = scene.generator.integers(8 * words.itemsize, size=len(words)).astype(kind)
    flipped = words.view(kind) ^ (np.ones_like(bits) << bits)
    return torch.from_numpy(flipped.view(words.dtype)).to(sent.device)


_DAMAGES = {"noise": _noise, "bits": _flipped_bits}


@dataclass(frozen=True)
class LabelFlip:
    """Poisoned data: attackers train on wrong labels and send what comes of it.

    ``to``: ``opposite`` y → C − 1 − y (the middle one of an odd number of classes stays);
    ``next`` y → (y + 1) mod C.
    """

    to: str = "opposite"

    def __call__(
        self,
        updates: Tensor,
        attackers: np.ndarray,
        view: AttackView,
        generator: np.random.Generator,
    ) -> Tensor:
        _check(updates, attackers, view)
        return updates

    def labels(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """The flipped labels [n]."""
        return _FLIPS[self.to](labels, num_classes)


def _opposite(labels: np.ndarray, num_classes: int) -> np.ndarray:
    return num_classes - 1 - labels


def _next(labels: np.ndarray, num_classes: int) -> np.ndarray:
    return (labels + 1) % num_classes


_FLIPS = {"opposite": _opposite, "next": _next}


def _check(updates: Tensor, attackers: np.ndarray, view: AttackView) -> None:
    rows = (len(updates),)
    if attackers.dtype != bool or attackers.shape != rows:
        raise ValueError(
            f"attackers must be bool [{rows[0]}], one per update, not {attackers.dtype} "
            f"{list(attackers.shape)}"
        )
    if view.weights.shape != rows or view.start.shape != updates.shape:
        raise ValueError(
            f"an attack on updates {list(updates.shape)} sees weights {list(view.weights.shape)} "
            f"and starts {list(view.start.shape)}; they must be [M] and [M, d] of the same clients"
        )
