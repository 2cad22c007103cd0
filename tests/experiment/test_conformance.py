"""Every method of the package holds the ten properties; planted faults are found by them."""

import pytest

from fedsdg.config import plugins
from fedsdg.experiment import conformance
from fedsdg.experiment.conformance import PROPERTIES, check_part, check_plugin
from fedsdg.methods.families import METHODS

WORKS, REPEATS, RESUMES, ALONE, ORDER, INPUTS, LEARNS, FLOAT32, GRADIENT, PARAMETERS = PROPERTIES

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

    beta: Annotated[float, Field(ge=0, le=1)] = 0.5
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
CALLS = []


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
PAST = 'past = self.beta * state["m"]'
STEP = "step = Combination(weights * factors, offset=past)"
KEPT = '{"last": rows.theta - rows.start}'
DRAW = "past = past + 1e-3 * torch.randn(updates.d)"
#: By name: the file, what is replaced by what, the property that fails, words of its sentence.
FAULTS = {
    "steps uphill": (
        "method", STEP, STEP.replace("weights *", "-weights *"), LEARNS, "are right on",
    ),
    "one client fails": (
        "method", STEP, f"updates.numbers()[1]; {STEP}", WORKS, "IndexError",
    ),
    "a length that may be zero": (
        "method", "np.maximum(norms, 1e-300)", "norms", WORKS, "NonFiniteError",
    ),
    "the state is lost": ("method", '{"m": updates.vector(step)}', "{}", WORKS, "'m'"),
    "weights of a half": (
        "method", "Plan(step, weights,", "Plan(step, weights / 2,", WORKS, "sum to 0.5",
    ),
    "the rule ends the process": ("method", PAST, "raise SystemExit(0)", WORKS, "end the program"),
    "random numbers of the process": (
        "method", PAST, f"{PAST}; {DRAW}", REPEATS, "a second run has other",
    ),
    "a counter on the rule": (
        "method", PAST, f"{PAST}; object.__setattr__(self, 'beta', self.beta / 2)", RESUMES, "after",
    ),
    "the samples of the next client": (
        "method", "context.num_samples /", "np.roll(context.num_samples, 1) /", ORDER, "the step",
    ),
    "the state is changed in place": (
        "method", PAST, "past = state['m'].mul_(self.beta)", INPUTS, "changes state.m in place",
    ),
    "the context is changed": (
        "method", PAST, f"{PAST}; context.num_samples[0] += 1", INPUTS, "context.num_samples",
    ),
    "float64 alone": (
        "method",
        PAST,
        f"{PAST}; weights = weights * (0.5 if rows['update'].dtype == torch.float32 else 1)",
        FLOAT32,
        "in float32",
    ),
    "the gradient's sign": ("method", "alpha=2 *", "alpha=-2 *", GRADIENT, "signs"),
    "the gradient's factor": ("method", "alpha=2 * self.nu", "alpha=self.nu", GRADIENT, "factors"),
    "the gradient of the loss is lost": (
        "method", "theta_grad.add_(", "theta_grad.zero_().add_(", GRADIENT, "use `add_`",
    ),
    "the mean of the clients": (
        "method", KEPT, KEPT.replace("rows.start", "rows.start - rows.theta.mean(0)"), ALONE, "last",
    ),
    "a term moves clients": (
        "method", "def add_gradient(self, rows):", "def add_gradient(self, rows):\n        "
        "rows.theta.mul_(0.999)", INPUTS, "rows.theta in place",
    ),
    "a vector through a global": (
        "method", KEPT, '{"last": LAST.setdefault(0, rows.start.mean()) * torch.ones_like('
        "rows.theta)}\n\n\nLAST = {}", RESUMES, "resumed",
    ),
    "a parameter that does nothing": (
        "method", "past = self.beta", "past = 0.5", PARAMETERS, "beta has no effect",
    ),
    "a parameter's end": (
        "method", PAST, f"{PAST} / (1 / self.beta * self.beta)", PARAMETERS, "beta",
    ),
    "an attacker too many": ("attack", "-view.own", "-view.updates", WORKS, "attackers"),
    "an attack in place": (
        "attack", "return -view.own", "view.updates.neg_(); return view.own", INPUTS, "view.updates",
    ),
    "labels in place": (
        "attack", "return (labels + 1) % num_classes", "labels[:] = 0; return labels", INPUTS, "label",
    ),
    "a loss of the whole batch": ("loss", "return each", "return each.mean()", WORKS, ""),
    "a loss upside down": ("loss", "return each", "return -each", LEARNS, "are right on"),
    "a loss by the batch": (
        "loss", "return each", "return each / each.detach().mean()", ALONE, "one by one",
    ),
    "an optimiser uphill": ("optimiser", "gradients, rate)", "-gradients, rate)", LEARNS, "right on"),
    "an optimiser on itself": (
        "optimiser", "descend(parameters, gradients,", "CALLS.append(0); descend(parameters, gradients "
        "/ len(CALLS),", REPEATS, "second run",
    ),
    "a condition in place": (
        "condition", "return sent", "sent.update.mul_(0.9); return sent", INPUTS, "sent.rows.update",
    ),
}  # fmt: skip


@pytest.fixture
def bad(tmp_path, monkeypatch):
    """Check a file, and return the properties that do not hold, with their sentences."""

    def check(source, *claims):
        file = tmp_path / "broken.py"
        file.write_text(source)
        before = {kind: dict(kind.registry) for kind in plugins.KINDS}
        methods = dict(plugins.METHODS)
        if claims:
            monkeypatch.setattr(conformance, "PROPERTIES", claims)
        try:
            found = list(check_plugin(str(file)))
        finally:
            plugins._LOADED.pop(str(file), None)
            plugins.METHODS.clear()
            plugins.METHODS.update(methods)
            for kind, registry in before.items():
                kind.registry.clear()
                kind.registry.update(registry)
        return {one.property: one.sentence for one in found if not one.ok}

    return check


@pytest.mark.parametrize("file", FILES)
def test_right_parts_hold_everything(bad, file):
    assert bad(FILES[file]) == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(bad, fault):
    file, right, wrong, property_, words = FAULTS[fault]
    source = FILES[file]
    assert right in source
    found = bad(source.replace(right, wrong), *dict.fromkeys([WORKS, property_]))
    assert words in found.get(property_.__name__.replace("_", " "), "nothing"), found


#: Rows of many kinds; the others are tried with the slow tests.
QUICK = ("fedprox", "scaffold", "krum", "fedrep")
ROWS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in METHODS]


#: What is sent is without a head anyway.
BY_DESIGN = {"fedsdg+head": "scope has no effect; read it, or remove it"}


@pytest.mark.parametrize("name", ROWS)
def test_methods_of_the_package_hold_everything(name):
    found = list(check_part("method", name))
    assert len(found) == len(PROPERTIES)
    assert [one for one in found if not one.ok and one.sentence != BY_DESIGN.get(name)] == []
