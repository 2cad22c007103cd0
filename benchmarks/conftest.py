"""What the suites share: options, threads, the memory's speed, and the file of measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import machine, rivals
from benchmarks.aims import reached
from benchmarks.floor import Memory
from benchmarks.round_aims import rounds_reached
from fedsdg.files import write_json

MEASURED: pytest.StashKey[dict[str, list[dict[str, Any]]]] = pytest.StashKey()
TABLES = ("timings", "accuracy", "bars", "rounds", "round_bars", "files", "dictionaries")
MEMORY: pytest.StashKey[Memory] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("benchmarks of the package")
    group.addoption("--short", action="store_true", help="small sizes and few rounds: a minute")
    group.addoption("--ours-alone", action="store_true", help="compare with no other code")
    group.addoption("--device", default="cpu", help="where rounds are trained: cpu or cuda")
    group.addoption("--measured", type=Path, help="write all measurements to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MEASURED] = {name: [] for name in TABLES}


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--measured")
    measured = session.config.stash[MEASURED]
    if path is None or not any(measured.values()):
        return
    rates = session.config.stash.get(MEMORY, None)
    reads = np.array(rates.rates if rates and rates.rates else [np.nan]) / 1e9
    facts = machine.facts() | {
        "read_gigabytes_per_second": _quantiles(reads),
        "missing": rivals.missing(),
        "form": "short" if session.config.getoption("--short") else "full",
    }
    aims = {"aims": reached(measured["timings"]), "round_aims": rounds_reached(measured["rounds"])}
    write_json(path, {"machine": facts, **measured, **aims})


def _quantiles(rates: np.ndarray) -> dict[str, float | None]:
    if np.isnan(rates).any():
        return dict.fromkeys(("low", "median", "high"))
    low, median, high = np.quantile(rates, [0.1, 0.5, 0.9]).tolist()
    return {"low": low, "median": median, "high": high}


@pytest.fixture(scope="session")
def short(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--short"))


@pytest.fixture(scope="session")
def ours_alone(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--ours-alone"))


@pytest.fixture(scope="session")
def memory(request: pytest.FixtureRequest) -> Memory:
    made = request.config.stash[MEMORY] = Memory()
    return made


@pytest.fixture(scope="session")
def budget(short: bool) -> float:
    """Seconds for one comparison, beyond which nothing is repeated."""
    return 0.2 if short else 2.0


@pytest.fixture
def all_cores() -> Iterator[int]:
    """Torch works with as many threads as `machine.threads` says."""
    before = torch.get_num_threads()
    torch.set_num_threads(machine.threads())
    yield machine.threads()
    torch.set_num_threads(before)


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Adds a row to a list of the file of measurements: record("timings", rule=…, …)."""
    return lambda table, **row: request.config.stash[MEASURED][table].append(row)
