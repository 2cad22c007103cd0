"""What a test loads as a plugin is forgotten after it."""

import pytest

from fedsdg.config import plugins


@pytest.fixture(autouse=True, scope="module")
def _plugins_are_forgotten():
    tables = [plugins.METHODS, plugins.DATASETS, plugins._LOADED]
    tables += [kind.registry for kind in plugins.KINDS]
    before = [dict(table) for table in tables]
    yield
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)
