"""Few bits per number: unbiased, an error below a step, and a message that says it all."""

import numpy as np
import pytest
import torch
from safetensors.torch import load

from fedsdg.federation.environment.quantisation import (
    Quantisation,
    quantise,
    restore,
    serialise,
    trained_columns,
)
from fedsdg.federation.messages import serialise as whole_message
from fedsdg.federation.traffic import traffic
from fedsdg.models.parameters import Layout, ParameterSpec, offsets
from fedsdg.rng import stream

LAYOUT = Layout((ParameterSpec("w", (3, 4), "shared"), ParameterSpec("b", (5,), "shared")), ())


def drawn(size, seed=0):
    return np.random.default_rng(seed).standard_normal(size)


def arrived(values, bits, seed=0):
    levels, low, high = quantise(values, bits, np.random.default_rng(seed))
    return restore(levels, low, high, bits)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_expectation_is_the_number_itself(bits):
    """Of n draws the mean errs by Δ √(f (1 − f) / n), f the place between two levels."""
    values, draws = drawn(12), 4000
    found = np.array([arrived(values, bits, seed) for seed in range(draws)])
    step = (values.max() - values.min()) / (2**bits - 1)
    place = (values - values.min()) / step % 1
    error = step * np.sqrt(place * (1 - place) / draws)
    assert np.all(np.abs(found.mean(0) - values) <= 4.5 * error + 1e-12)
    variance = step**2 * place * (1 - place)
    assert np.allclose(found.var(0), variance, rtol=0.2, atol=2e-3 * step**2)


@pytest.mark.parametrize("bits", [1, 3, 8, 16])
def test_every_number_becomes_one_of_the_two_levels_beside_it(bits):
    values = drawn(500)
    step = (values.max() - values.min()) / (2**bits - 1)
    found = arrived(values, bits)
    assert np.all(np.abs(found - values) < step * (1 + 1e-9))
    levels = (found - values.min()) / step
    assert np.allclose(levels, np.round(levels), atol=1e-6)
    assert len(np.unique(found)) <= 2**bits
    assert (found[values.argmin()], found[values.argmax()]) == (values.min(), values.max())


def test_what_lies_on_a_level_arrives_as_it_is():
    assert np.array_equal(arrived(np.full(4, 0.3), 4), np.full(4, 0.3))
    on_levels = np.array([0.0, 3.0, 1.0, 2.0])
    assert np.array_equal(arrived(on_levels, 2), on_levels)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_does_not_arrive_as_a_number(wrong):
    """So that the server's check names the client."""
    assert np.isnan(arrived(np.array([1.0, wrong, 2.0]), 4)).all()


@pytest.mark.parametrize("bits", [1, 3, 8, 13, 16])
def test_the_message_holds_what_the_server_needs_and_no_more(bits):
    """Read back from the bytes by hand: the bits of one level after another, lowest first."""
    values = drawn(29)
    levels, low, high = quantise(values, bits, np.random.default_rng(1))
    message = serialise(levels, low, high, bits)
    told = load(message)
    places = np.unpackbits(told["levels"].numpy())[: 29 * bits].reshape(29, bits)
    read = (places.astype(np.int64) << np.arange(bits)).sum(1)
    assert np.array_equal(
        restore(read, *told["ends"].tolist(), bits), restore(levels, low, high, bits)
    )
    assert told["levels"].numel() == -(-29 * bits // 8) and told["ends"].numel() == 2
    assert len(message) == len(serialise(np.zeros(29, np.uint16), 0.0, 0.0, bits))


def test_only_weak_clients_are_quantised_each_from_a_stream_of_its_own():
    weak = np.array([True, False, True, False, True])
    one, updates = Quantisation(weak, 4), torch.from_numpy(drawn((5, 17)))
    everybody = one.sent(updates, LAYOUT, 3, 7, np.arange(5))
    assert torch.equal(everybody[[1, 3]], updates[[1, 3]])
    for row in (0, 2, 4):
        levels, low, high = quantise(updates[row].numpy(), 4, stream("quantisation", 3, 7, row))
        assert np.array_equal(everybody[row].numpy(), restore(levels, low, high, 4))
    some = np.array([2, 3])
    assert torch.equal(one.sent(updates[some], LAYOUT, 3, 7, some), everybody[some])
    assert not torch.equal(one.sent(updates, LAYOUT, 3, 8, np.arange(5))[0], everybody[0])


def test_of_parameters_that_rest_nothing_is_sent():
    resting = Layout(
        (ParameterSpec("w", (3, 4), "shared", trainable=False), ParameterSpec("b", (5,), "shared")),
        (),
    )
    columns = trained_columns(resting)
    assert columns.sum() == 5 and columns[offsets(resting.communicated)["b"]].all()
    one, updates = Quantisation(np.array([True]), 2), torch.from_numpy(drawn((1, 17)))
    updates[:, ~columns] = 0
    sent = one.sent(updates, resting, 0, 1, np.array([0]))
    assert (sent[:, ~columns] == 0).all()
    assert one.length(resting) < one.length(LAYOUT)
    assert one.length(Layout((), ())) == 0


def test_bytes_are_those_of_the_messages():
    """Three clients, two of them weak, who send a control variate and numbers beside the update."""
    one, theta = Quantisation(np.array([True, True, False]), 3), torch.zeros(17)
    rows, numbers = {"control": torch.zeros(3, 17)}, {"scores": torch.zeros(3, 2)}
    moved = traffic(
        LAYOUT, theta, {}, torch.zeros(3, 17), rows, numbers,
        quantised=2, of_bytes=one.length(LAYOUT),
    )  # fmt: skip
    told = {"scores": torch.zeros(2)}
    strong = whole_message({"": theta, "control": theta.clone()}, LAYOUT, told)
    beside = whole_message({"control": theta}, LAYOUT, told)
    few = serialise(np.zeros(17, np.uint16), 0.0, 0.0, 3)
    assert moved.up == len(strong) + 2 * (len(beside) + len(few))
    assert moved.down == 3 * len(whole_message({"": theta}, LAYOUT))
