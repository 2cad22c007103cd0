"""Every method of the package holds the ten properties; planted faults are found by them."""

import pytest
from pydantic import Field, create_model

from fedsdg.config import plugins
from fedsdg.experiment import conformance
from fedsdg.experiment.conformance import PROPERTIES, check_part, check_plugin, declared_values
from fedsdg.methods.families import METHODS

#: A file as somebody would write it, with a state, a term that keeps a vector, and parameters.
METHOD = '''
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from fedsdg.aggregation.types import Combination, Plan, Rule
from fedsdg.federation.terms import Term
from fedsdg.methods.method import Method


class Momentum(Rule):
    """FedAvgM (Hsu et al. 2019), with updates clipped to the length of the median one."""

    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9
    "share of the last step in the next one"

    def init(self, d, client_samples):
        return {"m": torch.zeros(d)}

    def plan(self, rows, context, state):
        updates = rows["update"]
        norms = updates.measure().norms
        factors = np.minimum(1, np.median(norms) / np.maximum(norms, 1e-300))
        weights = context.num_samples / context.num_samples.sum()
        past = self.beta * state["m"]
        step = Combination(weights * factors, offset=past)
        new = {"m": updates.vector(step)}
        return Plan(step, weights, new)


class Drift(Term):
    """nu ||theta - theta_t - the last drift||^2."""

    keeps = ("last",)

    nu: Annotated[float, Field(ge=0, le=1)] = 1e-3
    "weight of the penalty"

    def value(self, rows):
        return self.nu * (rows.theta - rows.start - rows.kept["last"]).square().sum(1)

    def add_gradient(self, rows):
        rows.theta_grad.add_(rows.theta - rows.start - rows.kept["last"], alpha=2 * self.nu)

    def finish(self, rows, steps, rate):
        return {}, {"last": rows.theta - rows.start}


METHODS = {"broken": Method("Broken", rule=Momentum(), objective=(Drift(),))}
'''
HEAD = """
from typing import ClassVar

import torch

from fedsdg.federation.conditions.attack import Attack
from fedsdg.federation.conditions.condition import Condition
from fedsdg.federation.losses import Loss
from fedsdg.federation.optimisers import Optimiser, descend
"""
ATTACK = f"""{HEAD}

class Flip(Attack, name="broken"):
    def tamper(self, view):
        return -view.own

    def labels(self, labels, num_classes):
        return (labels + 1) % num_classes
"""
LOSS = f"""{HEAD}

class Entropy(Loss, name="broken"):
    def __call__(self, logits, labels, reduction="none"):
        each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        return each
"""
OPTIMISER = f"""{HEAD}
CALLS = [0] * 999


class Descent(Optimiser, name="broken"):
    memory: ClassVar = ()

    def move(self, parameters, gradients, rate, memory, step):
        descend(parameters, gradients, rate)
"""
CONDITION = f"""{HEAD}

class Quiet(Condition, name="broken"):
    def transform_upload(self, setup, t, sent, tasks):
        return sent
"""
FILES = {"method": METHOD, "attack": ATTACK, "loss": LOSS, "optimiser": OPTIMISER}
FILES["condition"] = CONDITION
#: The file; what is replaced by what; the property that fails; words of its sentence.
FAULTS = r"""
method | (weights * f | (-weights * f | it learns | are right on
method | norms = | norms = updates.numbers()[1]; norms = | rounds end with | IndexError
method | np.maximum(norms, 1e-300) | norms | rounds end with | NonFiniteError
method | (step, weights | (step, weights / 2 | rounds end with | sum to 0.5
method | past = | past = exit(0) or | rounds end with | tried to end the program
method | past = self.beta | past = torch.rand(1) | the same seed | a second run has other
method | norms = | object.__setattr__(self, "beta", self.beta / 2); norms = | a resumed | after
method | context.num_samples / | np.roll(context.num_samples, 1) / | any order | the step
method | state["m"]\n | state["m"].mul_(0.5)\n | what comes in | changes state.m in place
method | norms = | context.num_samples[0] += 1; norms = | what comes in | context.num_samples
method | (weights * f | (weights * (updates.dtype.itemsize > 4) * f | float32 gives | in float32
method | alpha=2 * | alpha=-2 * | gradients are | look at signs
method | theta_grad.add_( | theta_grad.zero_().add_( | gradients are | use `add_`
method | rows.start} | rows.theta.mean(0)} | no client | when clients train one by one
method | rows.start} | LAST.setdefault(0, rows.start.mean())}\n\n\nLAST = {} | a resumed | resumed
method | past = self.beta | past = 0.5 | parameters have | beta has no effect
method | past = | past = 1 / self.beta * | parameters have | with {'beta': 0
attack | -view.own | -view.updates | rounds end with | return [1, 516], or one row
attack | return -view.own | view.updates.neg_(); return view.own | what comes in | view.updates
attack | return (labels | labels[:] = 0; return (labels | what comes in | changes labels in place
loss | return each | return -each | it learns | are right on
loss | return each | return each / each.detach().mean() | no client | when clients train one by one
optimiser | gradients, rate) | -gradients, rate) | it learns | are right on
optimiser | gradients, rate) | gradients * len(CALLS), rate) or CALLS.pop() | the same seed | other
condition | return sent | sent.update.mul_(0.9); return sent | what comes in | sent.rows.update
""".strip().splitlines()


@pytest.fixture
def bad(tmp_path, monkeypatch):
    """Check a file, and return the properties that do not hold, with their sentences."""

    def check(source, *claims):
        file = tmp_path / "broken.py"
        file.write_text(source)
        before = {kind: dict(table) for kind, table in plugins.TABLES.items()}
        if claims:
            monkeypatch.setattr(conformance, "PROPERTIES", claims)
        try:
            found = list(check_plugin(str(file)))
        finally:
            plugins._LOADED.pop(str(file), None)
            for kind, table in plugins.TABLES.items():
                table.clear()
                table.update(before[kind])
        return {one.property: one.sentence for one in found if not one.ok}

    return check


@pytest.mark.parametrize("file", FILES)
def test_right_parts_hold_everything(bad, file):
    assert bad(FILES[file]) == {}


def test_a_parameter_may_act_when_means_turn_about_alone(bad):
    state = '"m": torch.zeros(d)'
    method = METHOD.replace("self.beta * state", "(0.5, self.beta)[int(turned)] * state")
    turned = 'turned = (updates.vector(Combination(weights * factors)) * state["last"]).sum() < 0'
    method = method.replace("        past =", f"        {turned}\n        past =")
    last = '"last": updates.vector(Combination(weights * factors))'
    method = method.replace(state, f'{state}, "last": torch.zeros(d)')
    method = method.replace("updates.vector(step)}", f"updates.vector(step), {last}}}")
    assert bad(method) == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(bad, fault):
    file, right, wrong, name, words = fault.replace("\\n", "\n").split(" | ")
    assert right in FILES[file]
    (claim,) = (one for one in PROPERTIES if one.__name__.replace("_", " ").startswith(name))
    found = bad(FILES[file].replace(right, wrong), PROPERTIES[0], claim)
    (sentence,) = found.values()
    assert words in sentence, found


def test_a_parameter_between_limits_that_it_may_not_have_is_tried():
    """Twice 0.9 is not allowed either."""
    (info,) = create_model("P", x=(float, Field(0.9, gt=0, lt=1))).model_fields.values()
    assert declared_values(info) == [0.45]


#: Rows of many kinds; the others are tried with the slow tests.
QUICK = ("fedprox", "scaffold", "krum", "fedrep")
ROWS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in METHODS]


#: What is sent is without a head anyway.
BY_DESIGN = {"fedsdg+head": "scope has no effect in this small federation; read it, or remove it"}


@pytest.mark.parametrize("name", ROWS)
def test_methods_of_the_package_hold_everything(name):
    found = list(check_part("method", name))
    assert len(found) == len(PROPERTIES)
    assert [one for one in found if not one.ok and one.sentence != BY_DESIGN.get(name)] == []
