"""The page of the committed record, made once, and a browser without a network to open it in."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsdg.analysis.page import write_page

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "results" / "reference"


@pytest.fixture(scope="session")
def reference() -> Path:
    return REFERENCE


def page_of(records: Path, folder: Path, *experiments: str, **more) -> Path:
    """A page of summaries, beside which there is no record of the repository."""
    places = {"reference": folder / "none", "configs": folder}
    output = folder / "report" / "index.html"
    return write_page(records, output, experiments=experiments, **places, **more)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("page") / "report" / "index.html"
    return write_page(REFERENCE, output, reference=REFERENCE, configs=ROOT / "config")


@pytest.fixture(scope="session")
def browser() -> Iterator:
    """Chromium as the machine has it."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no browser")
    playwright = pytest.importorskip("playwright.sync_api", reason="no browser")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()
