"""On a GPU: a round of five methods as on a CPU, and twice the same bytes."""

import pytest
import torch

from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.federation.optimisers import Adam, Sgd
from fedsdg.federation.personalisation import Apfl, Ditto, DualPath, Shared
from fedsdg.federation.terms import ControlVariates
from tests.federation.small import federation, run, vit

METHODS = {
    "fedavg": (Mean(), Shared(), ()),
    "fedsdg": (Alignment(), DualPath(), ()),
    "ditto": (Mean(), Ditto(), ()),
    "apfl": (Mean(), Apfl(), ()),
    "scaffold": (Scaffold(), Shared(), (ControlVariates(),)),
}


def finished(name, device):
    rule, personalisation, terms = METHODS[name]
    model, first, private = vit(torch.float32, device=device, **personalisation.adapters)
    optimiser = Sgd() if terms else Adam(epsilon=1e-3)
    parts = {"rule": rule, "personalisation": personalisation, "terms": terms, "rounds": 2}
    where = {"device": device, "optimiser": optimiser, "eta": 0.01}
    return run(federation(model, first, private, **parts, **where))


@pytest.mark.cuda
@pytest.mark.parametrize("name", METHODS)
def test_rounds_on_a_gpu(name):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    here, there, again = (finished(name, device) for device in ("cpu", "cuda", "cuda"))
    assert there.server.models.is_cuda
    for own in ("theta", "private"):
        values = [getattr(one, own).cpu() for one in (here, there, again)]
        torch.testing.assert_close(values[1], values[0], rtol=1e-3, atol=1e-3)
        assert torch.equal(values[1], values[2])
    assert here.rounds[-1]["bytes_up"] == there.rounds[-1]["bytes_up"]
