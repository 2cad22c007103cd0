"""Three methods as somebody would write them, and bugs: a line of one and what is written instead.

A bug is (file, right, wrong, outcome, property, words of the sentence).
"""

MOMENTUM = '''
import sys
from typing import Annotated

import numpy as np
import torch

from fedsdg.aggregation.types import Combination, Plan, Rule
from fedsdg.methods.method import Method
from fedsdg.parts import Range, part


@part
class Momentum(Rule):
    """FedAvgM (Hsu et al. 2019)."""

    beta: Annotated[float, Range(0, 1)] = 0.9
    "share of the last step in the next one"

    def init(self, d, client_samples):
        return {"m": torch.zeros(d)}

    def plan(self, rows, context, state):
        updates = rows["update"]
        weights = context.num_samples / context.num_samples.sum()
        past = self.beta * state["m"]
        step = Combination(weights, offset=past)
        new = {"m": updates.vector(step)}
        return Plan(step, weights, new)


METHODS = {"momentum": Method("FedAvgM", rule=Momentum())}
'''
PLANNED = """
import numpy as np
import torch

from fedsdg.aggregation.types import Combination, Plan, Rule
from fedsdg.federation.terms import Term
from fedsdg.methods.method import Method
from fedsdg.parts import part


@part
class Clipped(Rule):
    def plan(self, rows, context, state):
        norms = rows["update"].measure().norms
        factors = np.minimum(1, np.median(norms) / np.maximum(norms, 1e-300))
        weights = context.num_samples / context.num_samples.sum()
        coefficients = weights * factors
        return Plan(Combination(coefficients), weights, dict(state), {"factor": factors})


@part
class Drift(Term):
    keeps = ("last",)

    def value(self, rows):
        return 1e-3 * (rows.theta - rows.start - rows.kept["last"]).square().sum(1)

    def add_gradient(self, rows):
        rows.theta_grad.add_(rows.theta - rows.start - rows.kept["last"], alpha=2e-3)

    def finish(self, rows, steps, rate):
        return {}, {"last": rows.theta - rows.start}


METHODS = {"clipped": Method("Clipped", rule=Clipped(), objective=(Drift(),))}
"""
#: A rule that draws noise from the round's own stream is right, too.
NOISE = MOMENTUM.replace(
    'past = self.beta * state["m"]',
    "draw = torch.Generator().manual_seed(context.round)\n        "
    "past = 1e-3 * torch.randn(updates.d, generator=draw) + self.beta * state['m']",
)
FILES = {"momentum": MOMENTUM, "planned": PLANNED, "noise": NOISE}

WORKS = "it works on small rounds"
REPEATS = "the same call gives the same result"
PURE = "uploads, state and context stay as they are"
WEIGHTS = "weights sum to 1"
ORDER = "the order of the clients does not matter"
STATE = "it goes on from its state alone"
FOLLOWS = "its steps follow the updates"
DOORS = "memory, files and ranks give the same"
SHARES = "weights = context.num_samples / context.num_samples.sum()"
PAST, STEP = 'past = self.beta * state["m"]', "step = Combination(weights, offset=past)"
KEPT = "rows.theta - rows.start}"
NEW, PLAN = 'new = {"m": updates.vector(step)}', "return Plan(step, weights, new)"
BUGS = {
    "the server steps uphill": (
        "momentum", STEP, "step = Combination(-weights, offset=past)", "failed", FOLLOWS,
        "all clients send the same update in 8 rounds, and the steps are -3.6 times as long",
    ),
    "noise, and the server steps uphill": (
        "noise", STEP, "step = Combination(-weights, offset=past)", "failed", FOLLOWS, "are -3.6",
    ),
    "momentum turns later steps": (
        "momentum", PLAN, "other = Combination(2 * weights, offset=-new['m'])\n        "
        "return Plan(other, weights, new)", "failed", FOLLOWS, "are -1.6 times as long along it",
    ),
    "the step is divided twice": (
        "planned", "weights * factors", "weights * factors / len(norms)", "warning", FOLLOWS,
        "the first step is 0.2 times as long, the mean of all 0.2 (5 clients",
    ),
    "the sum in place of the mean": (
        "momentum", STEP, STEP.replace("weights", "0 * weights + 1"), "warning", FOLLOWS,
        "the first step is 5 times as long",
    ),
    "a length that may be zero": (
        "planned", "weights * factors", "norms / norms.sum()", "failed", FOLLOWS,
        "returned the coefficients [nan nan",
    ),
    "a step of its own": (
        "momentum", PAST, "past = state['m'] * 0 + 0.01", "failed", FOLLOWS,
        "updates are all zero, and the step is 0.01",
    ),
    "the state is lost": (
        "momentum", NEW, "new = {}", "failed", WORKS, "the state [], but `init` made ['m']",
    ),
    "the state is an array": (
        "momentum", NEW, 'new = {"m": updates.vector(step).numpy()}', "failed", WORKS,
        "the state 'm' as ndarray [3], but `init` made Tensor [3]",
    ),
    "the state is changed in place": (
        "momentum", PAST, 'past = state["m"].add_(1)', "failed", PURE,
        "the state 'm' is changed in place",
    ),
    "the context is changed": (
        "momentum", SHARES, "context.num_samples[0] = 1\n        " + SHARES, "failed", PURE,
        "the context 'num_samples' is changed in place",
    ),
    "the samples of the next client": (
        "momentum", SHARES, SHARES.replace("num_samples /", "num_samples[::-1] /"),
        "failed", ORDER, "the step is another (by up to",
    ),
    "state by place in the cohort": (
        "momentum", NEW, "new = {'m': updates.vector(step) + updates.numbers()[0, 0]}", "failed",
        ORDER, "the state 'm' is another",
    ),
    "random numbers of the process": (
        "momentum", PAST, "past = 1e-3 * torch.randn(updates.d)", "failed", REPEATS,
        "gives another step the second time",
    ),
    "a counter on the rule": (
        "momentum", PAST, PAST + "\n        object.__setattr__(self, 'beta', self.beta / 2)",
        "failed", STATE, "in round 2 a rule that was given the stored state of round 1",
    ),
    "weights of a half": (
        "momentum", PLAN, "return Plan(step, weights / 2, new)", "failed", WEIGHTS, "sum to 0.5",
    ),
    "a weight too few": (
        "momentum", PLAN, "return Plan(step, weights[1:], new)", "failed", WORKS, "the weights []",
    ),
    "weights below zero": (
        "momentum", PLAN, "return Plan(step, 9 * weights - 8 / len(weights), new)", "failed", WORKS,
        "a weight below 0",
    ),
    "complex coefficients": (
        "planned", "weights * factors", "weights * factors * (1 + 0j)", "failed", WORKS, "finite n",
    ),
    "a coefficient too few": (
        "planned", "Combination(coefficients)", "Combination(coefficients[1:])", "failed", WORKS,
        "the coefficients []; return 1 finite numbers",
    ),
    "no part": (
        "planned", "@part\nclass Clipped", "class Clipped", "failed", WORKS,
        "its class has no @part of fedsdg.parts above it (1 client, 3 parameters, seed 0); return",
    ),
    "an unknown upload": (
        "momentum", 'rows["update"]', 'rows["updates"]', "failed", WORKS,
        "it raises KeyError: 'updates' at planted.py, line 24 (1 client",
    ),
    "two clients at least": (
        "momentum", STEP, "updates.numbers()[1]\n        " + STEP, "failed", WORKS, "IndexError",
    ),
    "the rule ends the process": (
        "momentum", STEP, "sys.exit(0)", "failed", WORKS, "calls sys.exit(0) at planted.py, line",
    ),
    "how columns are cut": (
        "momentum", STEP, "step = Combination(weights * len(updates.columns), offset=past)",
        "failed", DOORS, "through parameters in memory the step is another",
    ),
    "the length of a rank's columns": (
        "momentum", STEP, "length = float(updates.vector(Combination(weights)).norm())\n        "
        "step = Combination(weights * max(1, length / 2), offset=past)", "failed", DOORS,
        "through ranks the step is another",
    ),
    "the server's model": (
        "momentum", PAST, "past = 0 * context.models[0]", "failed", DOORS, "raises TypeError",
    ),
    "a term does not read what it keeps": (
        "planned", ' - rows.kept["last"]', "", "warning", "kept vectors are read", "keep 'last'",
    ),
    "the mean of the clients": (
        "planned", KEPT, "rows.theta - rows.start.mean(0)}", "failed",
        "no client depends on another", "client 0 alone has another kept vector 'last'",
    ),
    "a vector through a global": (
        "planned", KEPT, 'rows.theta - LAST.setdefault("start", rows.start[:1])}', "failed",
        "resumed, it is the whole run bit for bit", "a run taken up after round 1 has another",
    ),
    "another name is kept": (
        "planned", '{"last": ', '{"old": rows.theta, "last": ', "failed",
        "it keeps and sends what it declares", "`finish` keeps old, but",
    ),
}  # fmt: skip
#: Other lines that a bug needs as well.
FURTHER = {
    "a vector through a global": [("@part\nclass Drift", "LAST = {}\n\n\n@part\nclass Drift")]
}


def planted(name: str) -> str:
    """The file with a bug in it."""
    file, *replacement = BUGS[name][:3]
    source = FILES[file]
    for right, wrong in (replacement, *FURTHER.get(name, ())):
        assert right in source, name
        source = source.replace(right, wrong)
    return source
