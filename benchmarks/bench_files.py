"""`fedsdg aggregate` on files larger than the memory: 200 clients of 50 million parameters, 40 GB.

    pytest benchmarks/bench_files.py -rs        (minutes; files go where temporary files go: TMPDIR)

Left out, with the reason, where the disk has too little room. The peak of memory is judged, time
is reported beside that of a bare read.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import pytest

from benchmarks.files_memory import measure
from benchmarks.quiet import Watch, refusal

CLIENTS, PARAMETERS = 200, 50_000_000
MEMORY, LIMIT = 256, 1536
"""MiB that the command is given for blocks, and that the whole process may take."""


def test_memory_stays_small_however_large_the_files(record, short):
    if short or sys.platform != "linux":
        pytest.skip("not part of the short form, and Linux only")
    watch = Watch()
    wanted = {"clients": CLIENTS, "parameters": PARAMETERS, "rule": "fedsdg"}
    wanted |= {"memory": MEMORY, "limit": LIMIT, "folder": tempfile.gettempdir()}
    found = measure(argparse.Namespace(**wanted))
    record("files", **found, refused=refusal(watch.others()))
    if "skipped" in found:
        pytest.skip(f"the disk has too little room: {found['skipped']}")
    assert found["within_limit"], f"{found['peak_bytes']} bytes, but {LIMIT} MiB are allowed"
