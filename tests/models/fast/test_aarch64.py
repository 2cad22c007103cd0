"""The compiled pass, translated for ARM, rounds as it does here.

Nothing of it runs. Every operation of IEEE 754 is the same on every processor; only operations that
are reordered or fused by the compiler, and functions of its library, could differ.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

ROOT = Path(__file__).parents[3]
TRIPLE = "aarch64-unknown-linux-gnu"
#: Computes one gradient, takes a step and prints the LLVM code that numba made for them.
PROGRAM = """
import numpy as np
from tests.models.fast.test_model import VARIANTS, Case, backbone
from fedsdg.models.fast import adam, transformer
Case(backbone.__wrapped__(), [3], VARIANTS["gated"]).compiled()
rows = [np.ones((2, 32), np.float32) for _ in range(4)]
adam.step(*rows, np.ones(32, np.float32), *np.ones(5, np.float32))
for kernel in (transformer.run, transformer.embed, adam.step):
    (text,) = kernel.inspect_llvm().values()
    print(text)
    print("; end")
"""
#: Flags and functions that let a compiler fuse or reorder operations.
FREE = re.compile(
    r"\bf(?:add|sub|mul|div|neg) [a-z ]*\b(?:fast|contract|reassoc|arcp|afn)\b|llvm\.fmuladd"
)


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = done.stdout.split("; end\n")[:-1]
    assert len(found) == 3
    return found


def assembler(text):
    """Return the assembly for a generic 64-bit ARM processor."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    text = re.sub(r"target (triple|datalayout) = .*\n", "", text)
    text = re.sub(r'"target-(cpu|features)"="[^"]*"', "", text)
    # How references to arrays are counted was put in x86's terms already.
    text = re.sub(r"(?:tail )?call i8 @llvm\.x86\.atomic\S+\(.*\)", "add i8 0, 0", text)
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(cpu="generic", opt=3)
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    return machine.emit_assembly(module)


@pytest.mark.slow
def test_nothing_may_be_reordered_or_fused(modules):
    for text, products in zip(modules, (100, 100, 1), strict=True):
        assert len(re.findall(r"llvm\.fma\.v\d+f32", text)) > products
        assert not FREE.search(text)


@pytest.mark.slow
def test_arm_fuses_in_one_instruction_and_calls_no_function_of_numbers(modules):
    for text, products in zip(modules, (100, 100, 1), strict=True):
        written = assembler(text)
        assert len(re.findall(r"\bfmla\s+v\d+\.4s", written)) > products
        assert re.search(r"\bfsqrt\s+[sv]\d", written)
        called = set(re.findall(r"^\s+bl\s+(\w+)", written, re.MULTILINE))
        assert not {name for name in called if re.match(r"_*(fma|exp|erf|sqrt|pow|log)\w*$", name)}
