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
OWN = '''
from dataclasses import replace
from typing import Annotated, ClassVar

import torch

from fedsdg.federation.objectives.proximal import Proximal
from fedsdg.federation.own_models.own_model import OwnModel
from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.methods.method import Method
from fedsdg.parts import Range, part

LAST = {}


@part
class Near(OwnModel):
    """Ditto's model (Li et al. 2021)."""

    strength: Annotated[float, Range(0)] = 0.1
    "pull to the global model"

    keeps: ClassVar[tuple[str, ...]] = ("mine",)

    def begin(self, downloaded, kept, has, score):
        return downloaded

    def keep(self, train, clients, has, local):
        begin = torch.where(has[:, None], clients.state["mine"], clients.start)
        result = train(replace(clients, begin=begin), (Proximal(self.strength),))
        mine = result.theta
        return {"mine": mine}, result

    def models(self, downloaded, kept, has, score):
        mine = kept["mine"]
        return torch.where(has[:, None], mine, downloaded)


@part
class Keeping(Personalisation):
    """A second model, trained beside the one that is sent."""

    strength: Annotated[float, Range(0)] = 0.1
    "pull to the global model"

    @property
    def own(self):
        return Near(self.strength)


METHODS = {"keeping": Method("Keeping", personalisation=Keeping())}
'''
PLANNED = """
import numpy as np
import torch

from fedsdg.aggregation.types import Combination, Plan, Rule
from fedsdg.federation.objectives.term import Term
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
        return 1e-3 * (rows.theta - rows.start - rows.state["last"]).square().sum(1)

    def add_gradient(self, rows):
        rows.theta_grad.add_(rows.theta - rows.start - rows.state["last"], alpha=2e-3)

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
FILES = {"momentum": MOMENTUM, "own": OWN, "planned": PLANNED, "noise": NOISE}

WORKS = "it works on small rounds"
REPEATS = "the same call gives the same result"
PURE = "uploads, state and context stay as they are"
WEIGHTS = "weights sum to 1"
ORDER = "the order of the clients does not matter"
STATE = "it goes on from its state alone"
FOLLOWS = "its steps follow the updates"
DOORS = "memory, files and ranks give the same"
NAMES = "clients keep what `keeps` names"
GIVEN = "what its methods are given stays as it is"
ALONE = "a client's own model is made of its own data"
USED = "kept models are used"

FIRST = "until it has one, a client uses what it downloads"
SHARES = "weights = context.num_samples / context.num_samples.sum()"
PAST, STEP = 'past = self.beta * state["m"]', "step = Combination(weights, offset=past)"
NEW, PLAN = 'new = {"m": updates.vector(step)}', "return Plan(step, weights, new)"
MINE, MODELS = "mine = result.theta", 'mine = kept["mine"]'
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
        "planned", ' - rows.state["last"]', "", "warning", "kept vectors are read", "keep 'last'",
    ),
    "the next client's model": (
        "own", MODELS, 'mine = kept["mine"].roll(1, 0)', "failed", ALONE, "`models`",
    ),
    "the next client's model is kept": (
        "own", MINE, "mine = result.theta.roll(1, 0)", "failed", ALONE, "`keep`, 'mine': client 0",
    ),
    "the next client's model to begin with": (
        "own", "return downloaded\n", 'return torch.where(has[:, None], kept["mine"], downloaded)'
        ".roll(1, 0)\n", "failed", ALONE, "`begin`",
    ),
    "clients that never took part use zeros": (
        "own", "torch.where(has[:, None], mine, downloaded)", "mine", "failed", FIRST, "`models`",
    ),
    "the cohort's mean": (
        "own", MODELS, 'mine = kept["mine"].mean(0, keepdim=True)', "failed", ALONE, "`models`",
    ),
    "a model through a global": (
        "own", MODELS, 'mine = LAST.setdefault("mine", kept["mine"][:1])',
        "failed", "clients see their own data alone", "when the other clients have other labels",
    ),
    "the newest model through a global": (
        "own", MINE, 'mine = LAST["mine"] = 0.5 * (result.theta + LAST.get("mine", result.theta)'
        ".mean(0))", "failed", ALONE, "`keep`, 'mine'",
    ),
    "the own model is not used": (
        "own", "return torch.where(has[:, None], mine, downloaded)", "return downloaded", "failed",
        USED, "clients keep 'mine', but",
    ),
    "keep returns another name": (
        "own", '{"mine": mine}', '{"mine": mine, "old": begin}', "failed", NAMES, "'old', but `",
    ),
    "keep lacks a name": (
        "own", '("mine",)', '("mine", "old")', "failed", NAMES, "`keeps` names 'old', but `keep`",
    ),
    "nothing is named": (
        "own", 'clients.state["mine"]', 'clients.state.get("mine", clients.start)', "failed", NAMES,
        "'mine', but `keeps` names nothing",
    ),
    "local.theta is changed in place": (
        "own", MINE, "mine = local.theta.mul_(0.5)", "failed", GIVEN, "changes `local.theta` in",
    ),
    "what is kept is changed in place": (
        "own", MODELS, 'mine = kept["mine"].mul_(0.9)', "failed", GIVEN, "`clients.state['mine']`",
    ),
    "the own model climbs": (
        "own", MINE, "mine = 2 * clients.start - result.theta", "warning",
        "it learns as the plain mean does", "the loss of the clients' own models",
    ),
}  # fmt: skip
#: Other lines that a bug needs as well.
FURTHER = {"nothing is named": [('keeps: ClassVar[tuple[str, ...]] = ("mine",)', "")]}


def planted(name: str) -> str:
    """The file with a bug in it."""
    file, *replacement = BUGS[name][:3]
    source = FILES[file]
    for right, wrong in (replacement, *FURTHER.get(name, ())):
        assert right in source, name
        source = source.replace(right, wrong)
    return source
