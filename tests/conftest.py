"""One thread for every test: results depend on no core count, and tests can run side by side."""

import os
import signal
from collections import Counter

# Before numpy and torch start their pools, here and in every process that a test starts.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# A shell's background job ignores it, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

from fedsdg.config import plugins  # noqa: E402

# The same examples each time; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("same", derandomize=True, print_blob=True, deadline=None)
settings.register_profile("explore", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# Without a GPU triton interprets kernels on the CPU. It looks when it is imported, and others may.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files with most slow tests first: at the end no process waits long for the others."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture(autouse=True, scope="module")
def _plugins_are_forgotten():
    """What the tests of a file load as plugins is unknown to those of the next."""
    tables = [plugins._LOADED, *plugins.TABLES.values()]
    before = [dict(table) for table in tables]
    yield
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)
