"""What holds for every attack: it is its attackers' doing, and nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from fedsdg.experiment.examining.findings import RAISED, Failure, Property, counted, raised
from fedsdg.experiment.examining.situations import Case
from fedsdg.federation.environment.attackers import Attack, AttackView

#: (clients, parameters), from small to large; of each one, half and all of the clients attack.
SIZES = ((2, 1), (3, 2), (5, 4), (9, 40))
CLASSES = 10


class Assault:
    """An attack's arguments; equal cases give equal bytes."""

    def __init__(self, case: Case, attackers: int, dtype: torch.dtype) -> None:
        draw = np.random.default_rng([case.seed, case.size, case.d])
        weights = draw.random(case.size) + 0.1
        self.updates = torch.from_numpy(draw.standard_normal((case.size, case.d))).to(dtype)
        start = torch.from_numpy(draw.standard_normal((case.size, case.d))).to(dtype)
        self.view = AttackView(weights / weights.sum(), start)
        self.flags = np.zeros(case.size, dtype=bool)
        self.flags[draw.permutation(case.size)[:attackers]] = True

    def forged(self, attack: Attack, seed: int = 7) -> Tensor:
        return attack(self.updates, self.flags, self.view, np.random.default_rng(seed))


def _cases() -> Iterator[tuple[Case, int]]:
    for size, d in SIZES:
        for attackers in sorted({1, size // 2, size}):
            yield Case(size, d), attackers


def honest_rows_stay(
    attack: Attack, case: Case, attackers: int, dtype: torch.dtype = torch.float32
) -> None:
    """The rows of clients that do not attack are what they were, bit by bit."""
    one = Assault(case, attackers, dtype)
    honest = Assault(case, attackers, dtype).updates
    forged = one.forged(attack)
    if forged.shape != honest.shape or forged.dtype != dtype:
        raise Failure(
            f"of updates {list(honest.shape)} of {dtype} it makes {list(forged.shape)} of "
            f"{forged.dtype}"
        )
    for client in np.flatnonzero(~one.flags).tolist():
        if forged[client].numpy().tobytes() != honest[client].numpy().tobytes():
            raise Failure(f"client {client} is honest, and its row is changed")


def attacked_inputs_stay(
    attack: Attack, case: Case, attackers: int, dtype: torch.dtype = torch.float32
) -> None:
    """Updates, weights and starts are read and not written."""
    one, before = Assault(case, attackers, dtype), Assault(case, attackers, dtype)
    one.forged(attack)
    for what, now, then in (
        ("updates", one.updates, before.updates),
        ("starts", one.view.start, before.view.start),
        ("weights", torch.from_numpy(one.view.weights), torch.from_numpy(before.view.weights)),
        ("list of attackers", torch.from_numpy(one.flags), torch.from_numpy(before.flags)),
    ):
        if not torch.equal(now, then):
            raise Failure(f"the {what} that came in are changed in place")


def forged_rows_are_finite(attack: Attack, case: Case, attackers: int) -> None:
    """An attack is numbers and no infinity, which every server notices."""
    if not torch.isfinite(Assault(case, attackers, torch.float32).forged(attack)).all():
        raise Failure("of finite updates it makes NaN or infinity")


def attack_repeats(attack: Attack, case: Case, attackers: int) -> None:
    """Equal streams give equal attacks."""
    one, two = (Assault(case, attackers, torch.float32).forged(attack) for _ in range(2))
    if one.numpy().tobytes() != two.numpy().tobytes():
        raise Failure("with the same stream of random numbers it sends something else")


def labels_stay_labels(attack: Attack, case: Case, attackers: int) -> None:
    """Of labels come as many labels of the data set."""
    labels = np.random.default_rng(case.seed).integers(0, CLASSES, case.d)
    given = labels.copy()
    found = np.asarray(attack.labels(given, CLASSES))
    if not np.array_equal(given, labels):
        raise Failure("the labels that came in are changed in place")
    whole = found.shape == labels.shape and np.issubdtype(found.dtype, np.integer)
    if not whole or found.min() < 0 or found.max() >= CLASSES:
        raise Failure(f"of {len(labels)} labels 0 to {CLASSES - 1} it makes {found.tolist()[:5]}")


def _everywhere(holds: Callable[[Attack, Case, int], None]) -> Callable[[Attack], str]:
    def over(attack: Attack) -> str:
        for case, attackers in _cases():
            where = f"{attackers} of {case}"
            try:
                holds(attack, case, attackers)
            except Failure as failure:
                raise Failure(f"{failure} (attackers: {where})") from failure
            except RAISED as error:
                raise Failure(f"{raised(error)} (attackers: {where})") from error
        return f"{counted(len(list(_cases())), 'case')} of up to {SIZES[-1][0]} clients"

    return over


ATTACK = (
    Property(
        "forged updates are finite",
        _everywhere(forged_rows_are_finite),
        "handle any number of attackers, and divide by no length that may be 0",
    ),
    Property(
        "honest clients stay as they are",
        _everywhere(honest_rows_stay),
        "return the attackers' rows alone from `forge` of an UpdateAttack",
    ),
    Property(
        "what came in stays as it is",
        _everywhere(attacked_inputs_stay),
        "write into copies: `scene.own` is one, `scene.updates` is not",
    ),
    Property(
        "the same stream gives the same attack",
        _everywhere(attack_repeats),
        "draw from the generator that is given, `scene.generator`",
    ),
    Property(
        "labels stay labels",
        _everywhere(labels_stay_labels),
        "return whole numbers from 0 to num_classes - 1, in an array of your own",
    ),
)
