"""Options, the speed of memory, and the file of measurements, for all benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import results, rivals
from benchmarks.floor import memory_work
from benchmarks.timing import Timings, Work

ROWS: pytest.StashKey[list[results.Row]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the benchmarks."""
    group = parser.getgroup("benchmarks of the package")
    group.addoption("--short", action="store_true", help="small sizes, judged by nobody: a minute")
    group.addoption("--device", default="cpu", choices=["cpu", "cuda"], help="of rules and rounds")
    group.addoption("--measured", type=Path, help="write all measurements to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to write timings of processes that disturb each other."""
    config.stash[ROWS] = []
    if config.getoption("--measured") and config.getoption("dist", "no") != "no":
        raise pytest.UsageError(
            "--measured: processes side by side disturb each other's timings; measure without "
            "--numprocesses"
        )
    if config.getoption("--device") == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError("--device cuda: torch sees no GPU; measure with --device cpu")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was measured, to the file of `--measured`."""
    path, rows = session.config.getoption("--measured"), session.config.stash[ROWS]
    if path is None or not rows:
        return
    device = session.config.getoption("--device")
    facts = {"device": device, "form": "short" if session.config.getoption("--short") else "full"}
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
    results.write(path, rows, missing=rivals.missing(), **facts)


@pytest.fixture(scope="session")
def short(request: pytest.FixtureRequest) -> bool:
    """Whether the short form was asked for."""
    return bool(request.config.getoption("--short"))


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """The device of rules and rounds."""
    return str(request.config.getoption("--device"))


@pytest.fixture(scope="session")
def memory(all_threads: None, device: str) -> tuple[Work, int]:
    """Work that moves memory and does nothing else, and the bytes that it moves."""
    return memory_work(device)


@pytest.fixture(scope="session")
def all_threads() -> Iterator[None]:
    """Have torch and the kernels use all allowed threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(results.threads())
    yield
    torch.set_num_threads(before)


@pytest.fixture
def report(request: pytest.FixtureRequest, benchmark: Any, short: bool) -> Callable[..., None]:
    """Keep the rows of a comparison and judge them; the test is skipped if that is impossible.

    The bars are those of a CPU: what a GPU takes is kept, not judged.
    """

    def keep(question: str, setting: str, subject: str, timings: Timings, **facts: Any) -> None:
        rows = results.rows_of(question, setting, subject, timings, **facts)
        request.config.stash[ROWS] += rows
        benchmark.extra_info.update({row["code"]: row["ratio"] for row in rows})
        sentences = results.missed(rows, results.thresholds()["ratios"])
        if short or not sentences or request.config.getoption("--device") == "cuda":
            return
        if reason := results.too_busy(timings.busy_cores):
            pytest.skip(f"not judged, {reason}: {sentences[0]}")
        pytest.fail("; ".join(sentences), pytrace=False)

    return keep
