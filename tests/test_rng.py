"""Streams are reproducible, different from one another, and have numbers that never change."""

import ast
import itertools
from pathlib import Path

import pytest

from fedsdg.rng import NUMBERS, number_of, stream

ROOT = Path(__file__).parents[1]
#: Streams that came after those with a number of their own.
LATER = {"gate-samples"}


def test_same_address_same_numbers():
    a, b = stream("batches", 3, 1, 2), stream("batches", 3, 1, 2)
    assert a.random(8).tolist() == b.random(8).tolist()


def test_every_address_has_numbers_of_its_own():
    addresses = [
        (n, s, *k) for n in [*NUMBERS, "later"] for s in (0, 1) for k in ((), (0,), (1,), (0, 1))
    ]
    draws = {tuple(stream(*address).random(4)) for address in addresses}
    assert len(draws) == len(addresses)


def test_streams_do_not_touch_each_other():
    alone = stream("cohort", 0, 1).random(5).tolist()
    for name in NUMBERS:
        stream(name, 0, 1).random(100)
    assert stream("cohort", 0, 1).random(5).tolist() == alone


def test_bad_addresses():
    for arguments in itertools.permutations((-1, 0), 2):
        with pytest.raises(ValueError, match="non-negative"):
            stream("cohort", *arguments)


def test_a_stream_is_addressed_by_its_name_alone():
    """Another stream, or another order of them, moves no number."""
    # As recorded runs have drawn; never to be edited.
    names = (
        "partition cohort init batches attack evaluation pretraining search label-noise dropout "
        "speed stopping probe contribution label-conflict feature-shift held-out anchors refresh "
        "new-clients test-split quantisation server own-images"
    )
    assert {name: number for number, name in enumerate(names.split())} == NUMBERS
    # The first four bytes of its SHA-256, the highest bit set.
    assert number_of("later") == 0x80000000 | int.from_bytes(bytes.fromhex("1d9283d8"), "little")


def test_every_stream_of_the_package_is_one_that_is_known():
    """A name that is written wrong would be another stream."""
    drawn = set()
    for file in (ROOT / "fedsdg").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("stream", "rng.stream"):
                drawn |= {one.value for one in node.args[:1] if isinstance(one, ast.Constant)}
    assert drawn <= {*NUMBERS, *LATER}
    assert len(drawn) > 15
    numbers = {number_of(name) for name in {*NUMBERS, *LATER}}
    assert len(numbers) == len({*NUMBERS, *LATER})
