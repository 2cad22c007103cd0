"""What holds for every attack: it is its attackers' doing, and nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from fedsdg.experiment.examining.findings import (
    RAISED,
    Failure,
    Property,
    bytes_of,
    counted,
    raised,
)
from fedsdg.experiment.examining.situations import Case
from fedsdg.federation.conditions.attack import Attack, AttackView

#: (clients, parameters), from small to large; of each one, half and all of the clients attack.
SIZES = ((2, 1), (3, 2), (5, 4), (9, 40))
CLASSES = 10


def _view(case: Case, attackers: int) -> AttackView:
    """What attackers see; equal cases give equal bytes."""
    draw = np.random.default_rng([case.seed, case.size, case.d])
    weights = draw.random(case.size) + 0.1
    flags = np.zeros(case.size, dtype=bool)
    flags[draw.permutation(case.size)[:attackers]] = True
    return AttackView(
        updates=torch.from_numpy(draw.standard_normal((case.size, case.d))).float(),
        attackers=flags,
        weights=weights / weights.sum(),
        start=torch.from_numpy(draw.standard_normal((case.size, case.d))).float(),
        generator=np.random.default_rng(7),
    )


def _cases() -> Iterator[tuple[Case, int]]:
    for size, d in SIZES:
        for attackers in sorted({1, size // 2, size}):
            yield Case(size, d), attackers


def every_attacker_sends(attack: Attack, case: Case, attackers: int) -> None:
    """It returns finite numbers: a row for each attacker, or one row for all of them."""
    sent = attack.tamper(_view(case, attackers))
    shape = list(sent.shape) if isinstance(sent, Tensor) else type(sent).__name__
    if shape not in ([attackers, case.d], [case.d]):
        raise Failure(
            f"it returns {shape} for {counted(attackers, 'attacker')} with updates [{case.d}]"
        )
    if not torch.isfinite(sent).all():
        raise Failure("of finite updates it makes NaN or infinity")


def attacked_inputs_stay(attack: Attack, case: Case, attackers: int) -> None:
    """Updates, weights and starts are read and not written."""
    view, before = _view(case, attackers), _view(case, attackers)
    attack.tamper(view)
    for name in ("updates", "start", "weights", "attackers"):
        if bytes_of(getattr(view, name)) != bytes_of(getattr(before, name)):
            raise Failure(f"the {name} that came in are changed in place")


def attack_repeats(attack: Attack, case: Case, attackers: int) -> None:
    """Equal streams give equal attacks."""
    one, two = (attack.tamper(_view(case, attackers)) for _ in range(2))
    if bytes_of(one) != bytes_of(two):
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
        "every attacker sends finite numbers",
        _everywhere(every_attacker_sends),
        "return [A, d] or [d] from `tamper`; handle any number of attackers, and divide by no "
        "length that may be 0",
    ),
    Property(
        "what came in stays as it is",
        _everywhere(attacked_inputs_stay),
        "write into copies: `view.own` is one, `view.updates` is not",
    ),
    Property(
        "the same stream gives the same attack",
        _everywhere(attack_repeats),
        "draw from the generator that is given, `view.generator`",
    ),
    Property(
        "labels stay labels",
        _everywhere(labels_stay_labels),
        "return whole numbers from 0 to num_classes - 1, in an array of your own",
    ),
)
