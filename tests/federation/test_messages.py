"""What is sent holds the communicated tensors, all of them and nothing else."""

import pytest
import torch
from safetensors.torch import load

from fedsdg.federation.messages import serialise
from fedsdg.federation.traffic import traffic
from fedsdg.models.parameters import views
from tests.pretended_cuda import pretended_cuda


def test_round_trip_and_no_private_or_gate_tensor(setting):
    s = setting(torch.float32, branch="dual")
    sent = load(serialise({"": s.theta, "control": s.theta * 2}, s.layout))
    names = [spec.name for spec in s.layout.communicated]
    assert set(sent) == {*names, *(f"control.{name}" for name in names)}
    assert not [name for name in sent if "_private" in name or "lambda_k_logit" in name]
    assert [spec.name for spec in s.layout.private], "there is something private to leak"
    for name, tensor in views(s.theta[None], s.layout.communicated).items():
        assert torch.equal(sent[name], tensor[0])
        assert torch.equal(sent[f"control.{name}"], 2 * tensor[0])


def test_a_message_is_fetched_in_one_copy_of_each_vector(setting):
    """Not one of each tensor, of which there are ten; its bytes are the same."""
    s = setting(torch.float32, branch="dual")
    assert len(s.layout.communicated) == 10
    with pretended_cuda() as machine:
        theta = s.theta.cuda()
        vectors, before = {"": theta, "control": theta * 2}, machine.waits.total()
        message = serialise(vectors, s.layout)
        assert machine.waits.total() - before == 2
    assert message == serialise({"": s.theta, "control": s.theta * 2}, s.layout)


def test_private_values_are_nowhere_in_the_bytes(setting):
    """Even by value: a marker put into every private entry does not turn up in the message."""
    s = setting(torch.float32, branch="dual")
    marker = torch.full_like(s.private, 1.2345678e33)
    message = serialise({"": s.theta}, s.layout)
    assert marker[:1].numpy().tobytes() not in message
    assert len(message) < 4 * s.layout.d + 80 * 64


def test_nothing_to_say_is_no_message(setting):
    s = setting(torch.float32, local=True)
    assert serialise({"": s.theta}, s.layout) == b""


def test_a_private_row_is_refused(setting):
    s = setting(torch.float32, branch="dual")
    with pytest.raises(ValueError):
        serialise({"": s.private}, s.layout)


def test_traffic_is_the_length_of_the_messages_themselves(setting):
    """Whatever the numbers in them, and also when a message of the kind was counted before."""
    s = setting()
    rows = torch.randn(3, len(s.theta))
    for dtype in (torch.float64, torch.float32, torch.float64):
        theta = s.theta.to(dtype)
        received = {"control": torch.randn_like(theta)}
        vectors = {"step": 2 * rows.to(dtype)}
        numbers = {"loss": torch.randn(3), "counts": torch.arange(12).view(3, 4)}
        moved = traffic(s.layout, theta, received, rows.to(dtype), vectors, numbers, models_tried=2)
        down = serialise({"": theta, **received}, s.layout), serialise({"": theta}, s.layout)
        assert moved.down == 3 * len(down[0]) + 3 * 2 * len(down[1])
        told = [{name: x[k] for name, x in numbers.items()} for k in range(3)]
        up = [
            serialise({"": rows[k].to(dtype), "step": vectors["step"][k]}, s.layout, told[k])
            for k in range(3)
        ]
        assert moved.up == sum(map(len, up))
    none = traffic(s.layout, s.theta, {}, s.theta[None][:0], {}, {}, lost=2)
    assert none == (2 * len(serialise({"": s.theta}, s.layout)), 0)
