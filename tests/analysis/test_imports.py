"""What the room may import: never torch, and matplotlib only to draw."""

import subprocess
import sys

import pytest

_MODULES = ["summarise", "tables", "plots", "claims", "differences", "inference"]
_PROBE = """
import importlib, sys
[importlib.import_module(name) for name in sys.argv[1:]]
print(*(name for name in ("torch", "torchvision", "timm", "matplotlib") if name in sys.modules))
"""


@pytest.mark.parametrize(
    ("modules", "expected"), [(_MODULES, []), (["plots.drawing"], ["matplotlib"])]
)
def test_analysis_needs_no_torch_and_matplotlib_only_to_draw(modules, expected) -> None:
    command = [sys.executable, "-c", _PROBE, *(f"fedsdg.analysis.{name}" for name in modules)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == expected
