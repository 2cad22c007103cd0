"""Files larger than the memory, in small: measured and judged, or left out with the reason."""

import shutil
from types import SimpleNamespace

import pytest

from benchmarks import bench_files


@pytest.fixture
def rows(monkeypatch, tmp_path):
    monkeypatch.setattr(bench_files.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(bench_files, "CLIENTS", 3)
    monkeypatch.setattr(bench_files, "PARAMETERS", 1000)
    return []


def measure(rows, short=False):
    bench_files.test_memory_stays_small_however_large_the_files(
        lambda table, **row: rows.append((table, row)), short
    )


@pytest.mark.skipif(bench_files.sys.platform != "linux", reason="measured on Linux only")
def test_the_peak_of_a_real_aggregation_is_recorded(rows, tmp_path):
    measure(rows)
    ((table, row),) = rows
    assert table == "files"
    assert row["bytes_of_clients"] == 3 * 4000
    assert 0 < row["peak_bytes"] <= row["limit_bytes"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(bench_files.sys.platform != "linux", reason="measured on Linux only")
def test_a_small_disk_is_a_reason_and_no_failure(rows, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=10))
    with pytest.raises(pytest.skip.Exception, match="too little room: 20400 bytes are needed"):
        measure(rows)
    assert rows[0][1]["skipped"] == "20400 bytes are needed, 10 are free"
