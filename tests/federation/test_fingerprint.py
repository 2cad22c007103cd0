"""The hashes of a federation's end: what changes them, and what must not."""

import copy

import pytest
import torch

from fedsdg.federation import fingerprint as module
from fedsdg.federation.bank import ClientBank
from fedsdg.federation.fingerprint import fingerprint


class Ended:
    """As much of a federation as has a state."""

    def __init__(self, seed=0):
        draw = torch.Generator().manual_seed(seed)
        self.theta = torch.randn(7, generator=draw)
        self.state = {"r": torch.randn(3, generator=draw), "t": torch.tensor(4)}
        self.bank = ClientBank(5, torch.zeros(2), ["control"], 3)
        for clients in ([0, 3], [3, 4]):
            self.bank.scatter(
                torch.tensor(clients),
                torch.randn(2, 2, generator=draw),
                {"control": torch.randn(2, 3, generator=draw)},
            )


def test_equal_states_have_equal_hashes_however_they_are_named_or_read(monkeypatch):
    once, again = Ended(), Ended()
    again.state = {"other": again.state["t"], "names": again.state["r"]}
    assert fingerprint(once) == fingerprint(again)
    monkeypatch.setattr(module, "AT_ONCE", 1)
    assert fingerprint(once) == fingerprint(again), "read client by client"


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("models", lambda one: one.theta.__setitem__(6, one.theta[6] + 2**-20)),
        ("models", lambda one: setattr(one, "theta", one.theta.reshape(1, 7))),
        ("models", lambda one: setattr(one, "theta", one.theta.double())),
        ("rule", lambda one: one.state["t"].add_(1)),
        ("rule", lambda one: one.state.pop("t")),
        ("bank", lambda one: one.bank._rows.__setitem__((4, 4), -1.0)),
        ("bank", lambda one: one.bank.scatter(
            torch.tensor([1]), torch.zeros(1, 2), {"control": torch.zeros(1, 3)})),
    ],
)  # fmt: skip
def test_whatever_changes_in_a_part_changes_its_hash_alone(part, change):
    one = Ended()
    before = fingerprint(one)
    changed = copy.copy(one)
    change(changed)
    after = fingerprint(changed)
    assert {name for name in before if before[name] != after[name]} == {part}


def test_a_zero_and_its_negative_are_told_apart():
    one = Ended()
    one.theta[0] = 0.0
    before = fingerprint(one)["models"]
    one.theta[0] = -0.0
    assert fingerprint(one)["models"] != before
