"""What is compared does the same: every code gives ours, up to rounding and its own definition."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import rivals, stacked
from benchmarks.cohorts import TENSORS, Cohort
from benchmarks.rules import RULES, ours
from fedsdg.aggregation.rule_table import rules
from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.no_aggregation import NoAggregation
from fedsdg.aggregation.rules.screened import Screened

ROOT = Path(__file__).parents[2]

# What others define differently: byzfl's Krum counts one neighbour more, three steps of Weiszfeld
# are no geometric median, and torch.median is the lower of two middle values.
DIFFERENT = {("krum", "byzfl"), ("multikrum", "byzfl"), ("geometric-median", "byzfl")}
DIFFERENT |= {("coordinate-median", "torch")}


def vector(result) -> torch.Tensor:
    if isinstance(result, dict):
        return torch.cat(list(result.values()))
    if isinstance(result, tuple):
        return result[0]
    if isinstance(result, list):
        return torch.from_numpy(np.concatenate(result))
    return torch.as_tensor(result)


@pytest.mark.parametrize("clients", [10, 11])
@pytest.mark.parametrize("rule", RULES)
def test_other_codes_give_our_result(rule, clients):
    cohort = Cohort.draw(clients, 2000)
    expected = ours(rule, cohort)().steps[0]
    for code, work in rivals.works(rule, cohort).items():
        if (rule, code) in DIFFERENT and not (code == "torch" and clients % 2):
            continue
        torch.testing.assert_close(vector(work()).float(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", stacked.names())
def test_numpy_on_a_stack_gives_our_result(rule):
    origin, clients = stacked.draw(9, 7, 40)
    found, expected = (code(rule, origin, clients)() for code in (stacked.plainly, stacked.ours))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=5e-5)


def test_every_rule_of_the_package_is_measured_but_no_aggregation_and_plain_sums():
    """FedCurv's server is the mean and two more sums, that of Screened the geometric median and a
    mean: no kernel that others do not run."""
    measured = {type(rules()[name].rule) for name in RULES}
    others = {type(named.rule) for named in rules().values()} - measured
    assert others == {NoAggregation, FedCurv, Screened}


def test_a_model_is_cut_into_tensors_that_share_its_memory():
    cohort = Cohort.draw(3, 1000)
    tensors = cohort.dictionaries[1]
    assert len(tensors) == TENSORS
    assert torch.equal(torch.cat(list(tensors.values())), cohort.updates[1])
    assert tensors["layer0"].data_ptr() == cohort.updates[1].data_ptr()


def test_pins_of_the_rivals_are_those_of_the_extra_and_change_no_locked_package():
    pins = re.findall(r"^(\S+)==(\S+)$", (ROOT / "benchmarks/requirements.txt").read_text(), re.M)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = [pin.split("==") for pin in extras["optional-dependencies"]["bench"]]
    assert [list(pin) for pin in pins[: len(extra)]] == extra
    locked = dict(
        re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements.lock").read_text(), re.M)
    )
    both = {name: version for name, version in pins if name in locked}
    assert both == {name: locked[name] for name in both}
