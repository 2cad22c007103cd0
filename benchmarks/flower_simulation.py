"""A federation in Flower's simulation engine, in a process of its own (needs flwr and ray).

    python -m benchmarks.flower_simulation digits fedsdg --rounds 5

One actor on one core, as many threads as the other codes have: Flower's server and ray's own
processes may use the other cores. Prints JSON: the seconds of every round, from the first message
to the last parameter averaged, without what starting took, and with --check how far the result is
from that of the plain loop.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable
from typing import Any

# Neither is what is measured: reports home, and a warning for each process that is no GPU's.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.federations import federation
from benchmarks.flower_client import app, loop
from benchmarks.plain_loop import PlainLoop, aligned
from fedsdg.federation.cohorts import draw_cohort


class Strategy(FedAvg):
    """Flower's FedAvg with our cohorts, and with FedSDG's weights where clients keep a branch.

    Client k is always the node with the k-th number, so that it finds what it has kept.
    """

    def __init__(self, model: str, method: str, *, same_round: bool, fresh: bool) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.model, self.method = model, method
        self.same_round, self.fresh = same_round, fresh
        self.theta: ArrayRecord | None = None
        self.begun: list[float] = []
        self.ended: list[float] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message to every client of the cohort."""
        self.begun.append(time.perf_counter())
        self.theta = arrays
        number = 1 if self.same_round else server_round
        made = loop(self.model, self.method).federation
        nodes = sorted(grid.get_node_ids())
        cohort = draw_cohort(made.seed, number, len(nodes), made.schedule.clients_per_round)
        order = {"model": self.model, "method": self.method, "fresh": self.fresh, "round": number}
        return [
            Message(
                RecordDict({"arrays": arrays, "config": ConfigRecord({**order, "client": client})}),
                dst_node_id=nodes[client],
                message_type="train",
            )
            for client in cohort.tolist()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Flower's own mean by samples, or alignment."""
        replies = list(replies)
        if failed := [reply.error.reason for reply in replies if reply.has_error()]:
            raise RuntimeError(f"a client of Flower's failed: {failed[0]}")
        result: tuple[ArrayRecord | None, MetricRecord | None]
        if loop(self.model, self.method).start:
            assert self.theta is not None
            clients = [reply.content["arrays"].to_torch_state_dict() for reply in replies]
            result = ArrayRecord(aligned(self.theta.to_torch_state_dict(), clients)), None
        else:
            result = super().aggregate_train(server_round, replies)
        self.ended.append(time.perf_counter())
        return result


def simulate(model: str, method: str, rounds: int, **how: bool) -> dict[str, Any]:
    """Seconds of every round and of the start, and the parameters at the end."""
    work = loop(model, method)
    strategy, final = Strategy(model, method, **how), {}
    server, clients = ServerApp(), len(work.federation.shards.train)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < clients:  # They are registered meanwhile.
            time.sleep(0.1)
        first = ArrayRecord(work.shared)
        outcome = strategy.start(grid=grid, initial_arrays=first, num_rounds=rounds)
        final.update(outcome.arrays.to_torch_state_dict())

    began = time.perf_counter()
    run_simulation(
        server_app=server,
        client_app=app,
        num_supernodes=clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
            "init_args": {"num_cpus": 1, "num_gpus": 0},
        },
    )
    spent = [end - start for start, end in zip(strategy.begun, strategy.ended, strict=True)]
    if len(spent) < rounds:
        raise RuntimeError(f"Flower did {len(spent)} of {rounds} rounds")
    return {
        "seconds": spent,
        "other_seconds": time.perf_counter() - began - sum(spent),
        "arrays": final,
    }


def difference(model: str, method: str, rounds: int, arrays: dict[str, torch.Tensor]) -> float:
    """Distance of `arrays` from the plain loop after as many rounds, over the way it went."""
    plain = PlainLoop(federation(model, method, kernel="torch"))
    start = torch.cat([value.flatten() for value in plain.shared.values()])
    for number in range(1, rounds + 1):
        plain.round(number)
    expected = torch.cat([value.flatten() for value in plain.shared.values()])
    found = torch.cat([arrays[name].flatten() for name in plain.shared])
    return float((found - expected).norm() / (expected - start).norm())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("method")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="compare with the plain loop")
    parser.add_argument("--fresh", action="store_true", help="a new model for every message")
    given = parser.parse_args()
    torch.set_num_threads(1)
    how = {"same_round": not given.check, "fresh": given.fresh}
    found = simulate(given.model, given.method, given.rounds, **how)
    end = found.pop("arrays")
    if given.check:
        found["difference"] = difference(given.model, given.method, given.rounds, end)
    print(json.dumps(found))
