"""Streams are reproducible, different from one another, and refuse unknown names."""

import itertools

import pytest

from fedsdg.rng import STREAMS, stream


def test_same_address_same_numbers():
    a, b = stream("batches", 3, 1, 2), stream("batches", 3, 1, 2)
    assert a.random(8).tolist() == b.random(8).tolist()


def test_every_address_has_numbers_of_its_own():
    addresses = [(n, s, *k) for n in STREAMS for s in (0, 1) for k in ((), (0,), (1,), (0, 1))]
    draws = {tuple(stream(*address).random(4)) for address in addresses}
    assert len(draws) == len(addresses)


def test_streams_do_not_touch_each_other():
    alone = stream("cohort", 0, 1).random(5).tolist()
    for name in STREAMS:
        stream(name, 0, 1).random(100)
    assert stream("cohort", 0, 1).random(5).tolist() == alone


def test_bad_addresses():
    with pytest.raises(ValueError, match="no random stream is named 'cohorts'"):
        stream("cohorts", 0)
    for arguments in itertools.permutations((-1, 0), 2):
        with pytest.raises(ValueError, match="non-negative"):
            stream("cohort", *arguments)
