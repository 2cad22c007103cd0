"""Many clients: what a round costs does not grow with those that take no part in it."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedsdg.federation import rounds
from tests.experiment.small import setup_of, small_run

FEW, MANY = 100, 10_000


def federation(name, clients):
    """A federation of so many clients that share the samples of digits, 8 each."""
    given = {"rounds": 100, "evaluate_every": 100}
    setup = setup_of(small_run(name, federation=given, training={"batch_size": 8}))
    shards = list(np.random.default_rng(0).integers(0, 1797, (clients, 8)))
    data = dataclasses.replace(setup.data, train=shards, val=shards, test=shards)
    sizes = np.full(clients, 8)
    state = setup.rule.init(setup.layout.d, sizes)
    return dataclasses.replace(setup, data=data, state=state)


class Touched(TorchDispatchMode):
    """Counts the operations on tensors, and the bytes that each reads and writes.

    An index reads the rows it names, whatever lies between; a view touches nothing.
    """

    def __init__(self):
        super().__init__()
        self.calls = self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        if not func.is_view:
            name = func.overloadpacket.__name__
            if name in ("index", "index_select"):
                touched = [result, result]
            elif name in ("index_put_", "index_put", "_index_put_impl_"):
                touched = [args[2], args[2]]
            else:
                touched = tree_leaves((args, kwargs, result))
            self.bytes += sum(t.nbytes for t in touched if isinstance(t, torch.Tensor))
        return result


@pytest.mark.parametrize("name", ["fedsdg", "scaffold", "local-only", "geometric-median"])
def test_a_round_touches_as_much_with_many_clients_as_with_few(name):
    costs = []
    for clients in (FEW, MANY):
        setup = federation(name, clients)
        running = rounds.run(setup, *setup.initial())
        next(running)  # what is made once
        with Touched() as touched:
            next(running)
        costs.append((touched.calls, touched.bytes))
    assert costs[0] == costs[1]


def test_the_counter_sees_an_operation_over_all_clients():
    setup = federation("fedsdg", MANY)
    _, store = setup.initial()
    with Touched() as touched:
        store.read("private", np.arange(MANY))
    assert touched.bytes > MANY * store.bytes_per_client
