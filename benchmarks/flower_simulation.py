"""A federation in Flower's simulation engine, in a process of its own (needs flwr and ray).

A client does what a client of the plain loop does. One actor on one core trains them, with as many
threads as the other codes have; Flower's server and ray's processes may use the other cores. Import
this module by its name, so that actors find it too: `simulate` starts that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.federations import federation
from benchmarks.plain_loop import PlainLoop, aligned
from fedsdg.federation.clients import draw_cohort
from fedsdg.files import read_json, write_json

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Reports home, and warnings of processes without a GPU, are not what is measured."""
app = ClientApp()


@cache
def loop(model: str, method: str) -> PlainLoop:
    """Return model and data, loaded once by each process."""
    return PlainLoop(federation(model, method, kernel="torch").setup)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train a client; its private parameters are in the state that Flower keeps for every node."""
    order = message.content["config"]
    plain = loop(str(order["model"]), str(order["method"]))
    received = message.content["arrays"].to_torch_state_dict()
    kept = plain.start
    if "private" in context.state:
        kept = context.state["private"].to_torch_state_dict()
    client, number = int(order["client"]), int(order["round"])
    shared, private, samples = plain.train(client, number, received, kept)
    if private:
        context.state["private"] = ArrayRecord(private)
    metrics = MetricRecord({"num-examples": samples})
    content = RecordDict({"arrays": ArrayRecord(shared), "metrics": metrics})
    return Message(content, reply_to=message)


class Strategy(FedAvg):
    """Flower's FedAvg with our cohorts, and with FedSDG's weights if clients keep a branch.

    Client k is always the node with the k-th number, so that it finds its private parameters.
    """

    def __init__(self, model: str, method: str, same_round: bool) -> None:
        """Time rounds of a federation: all of them the first one, or one after another."""
        super().__init__(fraction_evaluate=0.0)
        self.order = {"model": model, "method": method}
        self.plain = loop(model, method)
        self.same_round = same_round
        self.times: list[float] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message to every client of the cohort."""
        self.times.append(time.perf_counter())
        self.theta = arrays.to_torch_state_dict()
        number = 1 if self.same_round else server_round
        nodes = sorted(grid.get_node_ids())
        messages = []
        for client in draw_cohort(self.plain.setup, number).tolist():
            order = ConfigRecord({**self.order, "round": number, "client": client})
            message = Message(
                RecordDict({"arrays": arrays, "config": order}),
                dst_node_id=nodes[client],
                message_type="train",
            )
            messages.append(message)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return Flower's own mean by samples, or the aligned mean."""
        replies = list(replies)
        if failed := [reply.error.reason for reply in replies if reply.has_error()]:
            raise RuntimeError(f"a client of Flower's failed: {failed[0]}")
        if self.plain.start:
            clients = [reply.content["arrays"].to_torch_state_dict() for reply in replies]
            result = ArrayRecord(aligned(self.theta, clients)), None
        else:
            result = super().aggregate_train(server_round, replies)
        self.times.append(time.perf_counter())
        return result


def run(model: str, method: str, rounds: int, same_round: int, file: str) -> None:
    """Simulate in this process and write seconds of rounds and parameters at the end, as JSON.

    A round begins with the first message and ends when the last parameter is averaged.
    """
    torch.set_num_threads(1)
    plain = loop(model, method)
    strategy = Strategy(model, method, bool(same_round))
    server = ServerApp()
    clients = len(plain.setup.data.train)
    final: dict[str, torch.Tensor] = {}

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < clients:  # They register meanwhile.
            time.sleep(0.1)
        outcome = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(plain.shared),
            num_rounds=rounds,
        )
        final.update(outcome.arrays.to_torch_state_dict())

    one_core = {"num_cpus": 1, "num_gpus": 0}
    run_simulation(
        server_app=server,
        client_app=app,
        num_supernodes=clients,
        backend_config={"client_resources": one_core, "init_args": one_core},
    )
    if len(strategy.times) < 2 * rounds:
        raise RuntimeError(f"Flower did {len(strategy.times) // 2} of {rounds} rounds")
    starts, ends = strategy.times[::2], strategy.times[1::2]
    seconds = [end - start for start, end in zip(starts, ends, strict=True)]
    vector = torch.cat([final[name].flatten() for name in plain.shared])
    write_json(Path(file), {"seconds": seconds, "parameters": vector.tolist()})


def simulate(model: str, method: str, rounds: int, same_round: bool = True) -> dict[str, Any]:
    """Simulate in a new process; return `seconds` of every round and `parameters` at the end.

    Args:
        model: Of the federations.
        method: Of the table of methods.
        rounds: The number of rounds.
        same_round: Whether all rounds have the first one's clients and batches.

    Raises:
        RuntimeError: Flower failed; the message has its last words.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/result.json"
        words = json.dumps([model, method, rounds, int(same_round), file])
        done = subprocess.run(
            [sys.executable, "-c", f"from {__name__} import run; run(*{words})"],
            cwd=Path(__file__).parents[__name__.count(".")],
            env=os.environ | QUIET,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        result: dict[str, Any] = read_json(file)
    return result
