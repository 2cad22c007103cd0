"""Three methods as somebody would write them, and bugs: a line of one and what is written instead.

A bug is (file, right, wrong, outcome, property, words of the sentence).
"""

MOMENTUM = '''
import sys
from typing import Annotated

import numpy as np
import torch

from fedsdg.aggregation.types import Aggregate, Rule
from fedsdg.methods.method import Method
from fedsdg.parts import Range, part


def checked_upload(uploads, context):
    for client, row in zip(context.clients, uploads["update"], strict=True):
        if not torch.isfinite(row).all():
            raise ValueError(f"client {client}: the update is not finite; leave it out")
    return uploads["update"]


@part
class Momentum(Rule):
    """FedAvgM (Hsu et al. 2019)."""

    beta: Annotated[float, Range(0, 1)] = 0.9
    "share of the last step in the next one"

    def init(self, d, client_samples):
        return {"m": torch.zeros(d, dtype=torch.float64)}

    def __call__(self, uploads, context, state):
        updates = checked_upload(uploads, context).double()
        weights = context.num_samples / context.num_samples.sum()
        mean = torch.from_numpy(weights) @ updates
        m = self.beta * state["m"] + mean
        step = m.clone()
        new = {"m": m}
        return Aggregate(step[None].to(uploads["update"]), weights, new, {})


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
    "step = m.clone()",
    "draw = torch.Generator().manual_seed(context.round)\n        "
    "step = m + 1e-3 * torch.randn(len(m), generator=draw, dtype=m.dtype)",
)
FILES = {"momentum": MOMENTUM, "own": OWN, "planned": PLANNED, "noise": NOISE}

FOLLOWS = "no step points against the updates"
PACE = "the same updates move the model as far in later rounds"
FALLS = "the loss falls as by the mean"
READ = "its state changes, and is read"
STATE = "it goes on from its state alone"
WORKS = "it works on small rounds"
STAY = "uploads and state stay as they are"
WEIGHTS = "weights are one a client, none below zero, and sum to 1"
NAMES = "clients keep what `keeps` names"
GIVEN = "what its methods are given stays as it is"
ALONE = "a client's own model is made of its own data"
USED = "kept models are used"

FIRST = "until it has one, a client uses what it downloads"
ORDER = "the order of the clients does not matter"
ZERO = "zero updates are a zero step"
SUM = "torch.from_numpy(weights) @ updates"
SHARES = "weights = context.num_samples / context.num_samples.sum()"

STEP, M, NEW = "step = m.clone()", 'm = self.beta * state["m"] + mean', 'new = {"m": m}'
MINE, MODELS = "mine = result.theta", 'mine = kept["mine"]'
BUGS = {
    "the server steps uphill": (
        "momentum", STEP, "step = -m", "failed", FOLLOWS, "step of round 1 points against it",
    ),
    "noise, and the server steps uphill": (
        "noise", "step = m + 1e-3", "step = -m + 1e-3", "failed", FOLLOWS, "mean of 8 draws",
    ),
    "noise, and momentum is taken off": (
        "noise", 'm = self.beta * state["m"] + mean', 'm = mean - self.beta * state["m"]',
        "warning", PACE, "mean of 8 draws",
    ),
    "momentum turns the second step": (
        "momentum", STEP, "step = 2 * mean - m", "failed", FOLLOWS, "step of round 3 points agai",
    ),
    "momentum is taken off": (
        "momentum", M, 'm = mean - self.beta * state["m"]', "warning", PACE, "are 1, 0.1, 0.91 tim",
    ),
    "momentum is taken off, a little": (
        "momentum", M, 'm = mean - 0.3 * state["m"]', "warning", PACE, "shorter and longer in turn",
    ),
    "the state is returned as it came": (
        "momentum", NEW, "new = dict(state)", "warning", READ, "'m' stays as `init` made it",
    ),
    "the state is set back": (
        "momentum", NEW, 'new = {"m": -0 * m}', "warning", READ, "'m' stays as `init` made it",
    ),
    "the state is lost": (
        "momentum", NEW, "new = {}", "failed", STATE, "holds [], but `init` made ['m']",
    ),
    "the state is not read": (
        "momentum", M, "m = mean", "warning", READ, "depends on the state 'm'",
    ),
    "the state is an upload": (
        "momentum", NEW, 'new = {"m": uploads["update"][np.argmin(context.clients)]}',
        "failed", STAY, "is a view of the upload 'update'",
    ),
    "the state is an array": (
        "momentum", NEW, 'new = {"m": m.numpy()}', "failed", WORKS, "a ndarray as the state 'm'",
    ),
    "the step is divided twice": (
        "momentum", STEP, "step = m / len(updates)", "warning", FALLS, "by the plain mean",
    ),
    "the mean along the wrong axis": (
        "momentum", SUM, "updates.mean(1)", "failed", WORKS, "m",
    ),
    "the sum in place of the mean": (
        "momentum", SUM, "updates.sum(0)", "warning", FALLS, "first step is 5 times as long",
    ),
    "the mean over all clients of the federation": (
        "planned", "weights * factors", "weights * factors * len(norms) / context.num_clients",
        "warning", FALLS, "by the plain mean",
    ),
    "the samples of the next client": (
        "momentum", SHARES, SHARES.replace("num_samples /", "num_samples[::-1] /"),
        "failed", ORDER, "the step is another",
    ),
    "the context is changed": (
        "momentum", "weights = context", "context.num_samples[0] = 1\n        weights = context",
        "failed", STAY, "the context 'num_samples' is changed in place",
    ),
    "random numbers of the process": (
        "momentum", STEP, "step = m + 1e-3 * torch.randn(len(m))", "failed",
        "the same call gives the same result", "gives another step",
    ),
    "parameters in place of steps": (
        "momentum", STEP, "step = context.models[0].double() + m", "failed", ZERO, "the step is",
    ),
    "a length that may be zero": (
        "momentum", STEP, "step = m * mean.norm() / updates.norm(dim=1).mean()", "failed", ZERO,
        "not finite",
    ),
    "half precision": (
        "momentum", SUM, f"({SUM}).half().double()", "failed", "large updates stay finite", "1e+06",
    ),
    "a counter on the rule": (
        "momentum", STEP, "object.__setattr__(self, 'beta', self.beta / 2); step = m.clone()",
        "failed", STATE, "in round 2 a rule that was given the stored state of round 1",
    ),
    "state by place in the cohort": (
        "momentum", NEW, 'm[: len(updates)] += updates[:, 0][: len(m)]; new = {"m": m}', "failed",
        ORDER, "the state 'm' is another",
    ),
    "a weight too few": (
        "momentum", "weights, new", "weights[1:], new", "failed", WEIGHTS, "are [2] for 3 clients",
    ),
    "weights below zero": (
        "momentum", "weights, new", "9 * weights - 8 / len(weights), new",
        "failed", WEIGHTS, "a weight is -1.",
    ),
    "the rule ends the process": (
        "momentum", STEP, "sys.exit(0)", "failed", WORKS, "calls sys.exit(0) at planted.py, line",
    ),
    "complex coefficients": (
        "planned", "weights * factors", "weights * factors * (1 + 0j)", "failed", None, "omplex",
    ),
    "a coefficient too few": (
        "planned", "Combination(coefficients)", "Combination(coefficients[1:])", "failed", None, "",
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
FURTHER = {"nothing is named": ('keeps: ClassVar[tuple[str, ...]] = ("mine",)', "")}


def planted(name: str) -> str:
    """The file with a bug in it."""
    file, right, wrong = BUGS[name][:3]
    source = FILES[file]
    for old, new in ((right, wrong), FURTHER.get(name, (right, wrong))):
        assert old in source or new in source, name
        source = source.replace(old, new) if old in source else source
    return source
