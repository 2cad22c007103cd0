"""The package's own door."""

import subprocess
import sys

import pytest

import fedsdg.aggregation


def test_importing_the_package_does_not_import_torch():
    code = "import sys, fedsdg.aggregation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_are_exported_lazily():
    from fedsdg.aggregation.engines.memory.state_dicts import fedsdg_server_aggregate

    assert fedsdg.aggregation.fedsdg_server_aggregate is fedsdg_server_aggregate
    assert "weight_summary" in dir(fedsdg.aggregation)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        fedsdg.aggregation.absent  # noqa: B018
