"""What K clients cost: a round without evaluation, a checkpoint, and memory, for growing K.

    pytest benchmarks/bench_scale.py [--short] [-s]        (-s prints the table)

Real federations of the default experiment's model and cohort on scikit-learn's digits; clients
share the samples, 24 each. All K take turns in one process, so that whatever else the machine does
meets them alike. A round must not take longer with more clients; that it touches no more bytes is
counted in tests/experiment/test_scale.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
import torch

from fedsdg.experiment.building import build
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.federation import bank
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.cohorts import Shards
from fedsdg.federation.records import Records
from fedsdg.federation.rounds import Federation
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze

CONFIG = Path(__file__).parents[1] / "config" / "config.yaml"
ARCHITECTURE = Architecture(8, 4, 1, 64, 6, 4, (0.5,), (0.5,))
CLIENTS = (100, 1_000, 10_000)
SAMPLES = 24
NEVER = 10**9
LIMIT = 256 << 20
"""Bytes of a bank in memory: lower than the package's, so that 10,000 clients lie in a file."""
ROUNDS = {"short": 5, "full": 20}
ALLOWED = 1.25
"""Times the fewest clients' seconds per round: more is a cost that grows with K."""


def federations(name: str, scratch: Path) -> dict[int, Federation]:
    config = load_config(
        [CONFIG], [f"federation.{name}={NEVER}" for name in ("rounds", "evaluate_every")]
    )
    skew = config.skews[0]
    torch.manual_seed(0)
    backbone = freeze(build_backbone(ARCHITECTURE), ARCHITECTURE, "benchmark", {})
    material = prepare_material("digits", backbone, "cpu")
    partition = make_partition("digits", skew, 0, config.federation.clients, config.partition)
    one = build(config.run("digits", skew, method_entry(name), 0), material, partition, scratch)
    draw = np.random.default_rng(0)
    made = {}
    for clients in CLIENTS:
        own = list(draw.integers(0, len(material.samples.labels), (clients, SAMPLES)))
        shards = Shards(own, own, own, one.shards.global_test)
        made[clients] = replace(one, shards=shards, records=Records())
    return made


def resident() -> dict[str, int]:
    """Bytes of this process in memory: of its own, and of files mapped into it. Linux only."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    facts = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    return {name: int(facts.get(name, 0)) << 10 for name in ("RssAnon", "RssFile")}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["fedsdg", "scaffold", "cgsv"])
def test_round_and_checkpoint(benchmark, short, tmp_path, monkeypatch, name):
    monkeypatch.setattr(bank, "MEMORY_LIMIT", LIMIT)
    made = federations(name, tmp_path)
    rounds: dict[int, list[float]] = {clients: [] for clients in made}
    saves: dict[int, list[float]] = {clients: [] for clients in made}
    grown = dict.fromkeys(made, 0)
    checkpoints = {clients: Checkpoints(tmp_path / str(clients), {}) for clients in made}

    def turn() -> None:
        for clients, one in made.items():
            before, begun = resident(), perf_counter()
            one.step(one.rounds_done + 1)
            rounds[clients].append(perf_counter() - begun)
            begun = perf_counter()
            checkpoints[clients].save(one, {})
            saves[clients].append(perf_counter() - begun)
            grown[clients] += resident()["RssAnon"] - before["RssAnon"]

    benchmark.pedantic(turn, rounds=ROUNDS["short" if short else "full"], warmup_rounds=2)
    rows = []
    for clients, one in made.items():
        checkpoints[clients].close()
        rows.append(
            {
                "clients": clients,
                "seconds_per_round": min(rounds[clients][2:]),
                "seconds_per_checkpoint": min(saves[clients][2:]),
                "bank_bytes": clients * one.bank.bytes_per_client(),
                "anonymous_bytes_grown": grown[clients],
            }
        )
    benchmark.extra_info |= {"method": name, "rows": rows, **resident()}
    print(f"\n{name}: clients, ms a round, ms a checkpoint, MB of the bank, MB the process grew by")
    for row in rows:
        print(
            f"{row['clients']:>8,} {1e3 * row['seconds_per_round']:8.1f}"
            f" {1e3 * row['seconds_per_checkpoint']:8.1f} {row['bank_bytes'] / 1e6:10.1f}"
            f" {row['anonymous_bytes_grown'] / 1e6:8.1f}"
        )
    least, most = rows[0]["seconds_per_round"], rows[-1]["seconds_per_round"]
    assert most <= ALLOWED * least, f"{name}: {CLIENTS[-1]} clients take {most / least:.2f} times"
