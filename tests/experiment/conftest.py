"""What several tests of experiments need."""

import pytest

from fedsdg.experiment.machine import processes
from tests.imported import Context


@pytest.fixture
def forked(monkeypatch) -> None:
    """The workers of a grid or a search start at once."""
    monkeypatch.setattr(processes, "get_context", lambda _: Context())
