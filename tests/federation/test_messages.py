"""What is sent holds the communicated tensors, all of them and nothing else."""

import pytest
import torch
from safetensors.torch import load

from fedsdg.federation.messages import serialise
from fedsdg.models.parameters import views


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
