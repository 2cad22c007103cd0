"""What the room may import: never torch, and matplotlib only to draw."""

import subprocess
import sys

import pytest

_MODULES = ["summarise", "tables", "plots", "claims", "differences", "inference"]
_PROBE = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*(name for name in ("torch", "torchvision", "timm", "matplotlib") if name in sys.modules))
"""


def imported(module: str) -> list[str]:
    command = [sys.executable, "-c", _PROBE, module]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize("module", _MODULES)
def test_no_torch_and_no_matplotlib(module: str) -> None:
    assert imported(f"fedsdg.analysis.{module}") == []


def test_drawing_needs_matplotlib_and_no_torch() -> None:
    assert imported("fedsdg.analysis.plots.drawing") == ["matplotlib"]
