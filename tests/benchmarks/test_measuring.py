"""The arithmetic of the benchmarks against closed forms."""

import math
import time

import numpy as np
import pytest
import torch

from benchmarks import aims, floor
from benchmarks.bench_accuracy import distances, krum_winner, least_objective, objective
from benchmarks.floor import Memory, paired
from benchmarks.rules import RULES, least_bytes
from benchmarks.timing import in_turns, seconds, turns


def test_floor_is_the_median_over_neighbours_in_time():
    # Rates 10, 30, 20 around two runs: floors 100/20 and 100/25 seconds, of 10 and 8 seconds.
    assert paired(100, [10.0, 8.0], [10.0, 30.0, 20.0]) == pytest.approx(0.5)
    assert paired(100, [10.0, 8.0, 1.0], [10.0, 30.0, 20.0, 20.0]) == pytest.approx(0.5)


def test_bytes_are_reads_of_the_updates_and_three_rows():
    assert least_bytes("fedsdg", 10, 1000) == 4 * 1000 * (2 * 10 + 3)
    assert least_bytes("fedavg", 10, 1000) == 4 * 1000 * (10 + 3)
    assert least_bytes("scaffold", 10, 1000) == 2 * 4 * 1000 * (10 + 3)


def test_every_read_covers_the_whole_buffer():
    memory = Memory(3 * floor._PIECE + 5)
    rate = memory.read()
    assert memory.rates == [rate]
    assert rate > 0
    pieces = [memory.buffer[i : i + floor._PIECE] for i in range(0, len(memory.buffer), 1 << 21)]
    assert sum(len(piece) for piece in pieces) == len(memory.buffer)
    assert floor._sum(np.arange(100, dtype=np.float32)) == 4950


def test_turns_fill_the_budget_within_bounds():
    assert turns(0.1, 1.0) == 10
    assert turns(10.0, 1.0) == 1
    assert turns(10.0, 1.0, least=3) == 3
    assert turns(1e-6, 1.0, most=25) == 25


def test_works_take_turns_equally_often():
    calls: list[str] = []
    a, b = in_turns([lambda: calls.append("a"), lambda: calls.append("b")], budget=0.01)
    assert len(a) == len(b) > 1
    assert "".join(calls) == "ab" * (len(a) + 1)  # Once to warm up.
    assert min(*a, *b) >= 0


def test_slow_work_runs_once_or_twice():
    (spent,) = in_turns([lambda: time.sleep(0.05)], budget=0.005)
    assert len(spent) == 1
    assert spent[0] >= 0.05
    (spent,) = in_turns([lambda: time.sleep(0.05)], budget=0.05)
    assert len(spent) == 2
    assert seconds(lambda: time.sleep(0.01)) >= 0.01


def row(**facts):
    base = {"suite": "sizes", "rule": "fedsdg", "clients": 10, "parameters": 10_000_000}
    base |= {"code": "ours", "seconds": 0.5, "floor": 0.9, "in_cache": False, "refused": None}
    return base | facts


def test_aims_are_looked_up_and_judged():
    timings = [
        row(),
        row(clients=100, parameters=2_000_000, floor=0.7),
        row(rule="krum", code="byzfl", ratio=12.0),
        row(rule="krum", code="byzfl", ratio=4.0, clients=100, parameters=2_000_000),
        row(rule="fedavg", floor=0.9, refused="not judged: …"),
        row(rule="cgsv", parameters=130_000, seconds=0.0009),
        row(rule="scaffold", parameters=130_000, seconds=0.0011),
        row(suite="clients", rule="cgsv", parameters=130_000, seconds=1.0),
    ]
    found = {(a["rule"], a["clients"], a["against"]): a for a in aims.reached(timings)}
    assert {key: aim["met"] for key, aim in found.items()} == {
        ("fedsdg", 10, "floor"): True,
        ("fedsdg", 100, "floor"): False,
        ("krum", 10, "byzfl"): True,
        ("krum", 100, "byzfl"): False,
        ("fedavg", 10, "floor"): None,
        ("cgsv", 10, "milliseconds"): True,
        ("scaffold", 10, "milliseconds"): False,
    }
    assert found["scaffold", 10, "milliseconds"]["value"] == pytest.approx(1.1)


def test_aims_and_rules_know_the_same_names():
    assert {aim.rule for aim in aims.AIMS} <= set(RULES)


def test_the_float64_solutions_are_those_of_geometry():
    """An equilateral triangle's geometric median is its centre, side / sqrt(3) from each corner."""
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])
    between = distances(corners)
    assert between == pytest.approx(1 - np.eye(3), abs=1e-7)
    assert least_objective(between) == pytest.approx(math.sqrt(3), rel=1e-7)
    centre = corners.mean(dim=0)
    assert objective(corners, centre) == pytest.approx(math.sqrt(3), rel=1e-7)


def test_krums_winner_is_the_one_with_near_neighbours():
    points = torch.tensor([[0.0], [1.0], [1.1], [1.3], [9.0]])
    assert krum_winner(distances(points), neighbours=2) == 2  # 0.01 + 0.04
