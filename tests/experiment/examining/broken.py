"""Plugins whose one part breaks one property, each with what must be said of it."""

HEAD = """
from typing import ClassVar

import numpy as np
import torch

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.aggregation.types import Aggregate, Combination, Plan, Rule
from fedsdg.federation.environment.attacks.attack import UpdateAttack
from fedsdg.federation.losses.loss import Loss
from fedsdg.federation.objectives.control_variates import ControlVariates
from fedsdg.federation.objectives.term import Term
from fedsdg.federation.optimisers.optimiser import RowOptimiser, descend
from fedsdg.methods.choice import Choice
from fedsdg.methods.method import Method
from fedsdg.parts import part


def checked_upload(uploads, context):
    for client, row in zip(context.clients, uploads["update"], strict=True):
        if not torch.isfinite(row).all():
            raise ValueError(f"client {client}: the update is not finite; leave it out")
    return uploads["update"]


def mean(uploads, context, state, times=1.0):
    updates = checked_upload(uploads, context)
    step = times * updates.double().mean(0)
    weights = np.full(len(updates), 1 / len(updates))
    return Aggregate(step[None].to(updates), weights, dict(state), {})
"""
ROW = """

METHODS = {"broken": Method("Broken", rule=%s, objective=%s, **%s)}
"""


def rule(part: str) -> str:
    """The plugin whose rule is this."""
    return HEAD + part + ROW % ("Broken()", "()", "{}")


def term(part: str, beside: str = 'Mean("uniform")', words: str = "{}") -> str:
    """The plugin whose term is this, beside a rule of the package."""
    return HEAD + part + ROW % (beside, "(Broken(),)", words)


def choice(table: str, part: str) -> str:
    """The plugin whose optimiser, loss or attack is this."""
    return HEAD + part + f'\n\n{table} = {{"broken": Choice("Broken", Broken())}}\n'


#: A rule that reads an upload of the method's term, and has no `reads`.
GOOD = (
    HEAD
    + """

class Half(Rule):
    def broadcast(self, state):
        return {"control": state["control"]}

    def init(self, d, samples):
        return {"control": torch.zeros(d)}

    def __call__(self, uploads, context, state):
        found = mean(uploads, context, state)
        return found._replace(state={"control": uploads["control"].mean(0)})


METHODS = {
    "good": Method("Good", rule=Half(), objective=(ControlVariates(),), up="2d", down="2d"),
}
"""
)
#: By a name: (the claim that fails, what its sentence says, the plugin).
RULES = {
    "position": (
        "the order of the clients does not matter",
        r"with the clients in the order \[.*\] the step is another \(by up to .*\) \(3 "
        r"clients, 1 parameter, seed 0\); treat the rows of an upload alike",
        rule("""

class Broken(Rule):
    def plan(self, rows, context, state):
        shares = np.arange(1.0, 1 + len(context.clients))
        shares /= shares.sum()
        return Plan(Combination(shares), shares, dict(state))
"""),
    ),
    "raises": (
        "it works on small rounds",
        r"it raises KeyError: 'updates' at broken\.py, line \d+ \(3 clients, 1 parameter, "
        r"seed 0\); a rule must work on rounds as small as this",
        rule("""

class Broken(Rule):
    def __call__(self, uploads, context, state):
        return mean({"update": uploads["updates"]}, context, state)
"""),
    ),
    "no models": (
        "it works on small rounds",
        r"it returns steps of shape \[1\], but \[1, 1\] are asked for, a row for each model .* "
        r"\(3 clients, 1 parameter, seed 0\)",
        rule("""

class Broken(Rule):
    def __call__(self, uploads, context, state):
        found = mean(uploads, context, state)
        return found._replace(steps=found.steps[0])
"""),
    ),
    "writes": (
        "uploads and state stay as they are",
        r"the upload 'update' is changed in place \(3 clients, 1 parameter, seed 0\); "
        r"write into",
        rule("""

class Broken(Rule):
    def __call__(self, uploads, context, state):
        uploads["update"].clamp_(-0.5, 0.5)
        return mean(uploads, context, state)
"""),
    ),
    "remembers": (
        "the same call gives the same result",
        r"the same call gives another step the second time .* keep nothing in the rule, "
        r"its class",
        rule("""

CALLS = []


class Broken(Rule):
    def __call__(self, uploads, context, state):
        CALLS.append(context.round)
        return mean(uploads, context, state, 1 + 1e-3 * len(CALLS))
"""),
    ),
    "on itself": (
        "it goes on from its state alone",
        r"in round 2 a rule that was given the stored state of round 1 gives another step "
        r"than the one that has run since round 1 .* let `init` make all that it remembers",
        rule("""

class Broken(Rule):
    def __init__(self):
        self.past = {}

    def __call__(self, uploads, context, state):
        found = mean(uploads, context, state)
        self.past[context.round] = found.steps
        return found._replace(steps=found.steps + self.past.get(context.round - 1, 0))
"""),
    ),
    "new names": (
        "it goes on from its state alone",
        r"after round 1 the state holds \['past'\], but `init` made \[\]",
        rule("""

class Broken(Rule):
    def __call__(self, uploads, context, state):
        found = mean(uploads, context, state)
        return found._replace(state={"past": found.steps})
"""),
    ),
    "overflows": (
        "large updates stay finite",
        r"of updates of size 1e\+18 in float32 the step has numbers that are not finite "
        r"\(5 clients, 1000 parameters, seed 0\); compute in float64",
        rule("""

class Broken(Rule):
    def __call__(self, uploads, context, state):
        updates = checked_upload(uploads, context)
        lengths = updates.square().sum(1) + 1e-12
        weights = lengths / lengths.sum()
        shares = weights.double() / weights.double().sum()
        return Aggregate((weights @ updates)[None], shares.numpy(), {}, {})
"""),
    ),
    "does not look": (
        "who sends NaN or infinity is named",
        r"client \d sends nan, and the rule goes on: the step has numbers that are not "
        r"finite",
        rule("""

class Broken(Rule):
    def __call__(self, uploads, context, state):
        updates = uploads["update"]
        return Aggregate(updates.double().mean(0)[None].to(updates), None, dict(state), {})
"""),
    ),
    "half": (
        "weights are one a client, none below zero, and sum to 1",
        r"the weights sum to 0\.5 \(3 clients",
        rule("""

class Broken(Rule):
    def __call__(self, uploads, context, state):
        found = mean(uploads, context, state)
        return found._replace(weights=found.weights / 2)
"""),
    ),
    "alone": (
        "one client is a cohort",
        r"`require` accepts one client, but then it raises IndexError: .* at "
        r"broken\.py, line \d+ \(1 client, 3 parameters, seed 0\); handle one client, or "
        r"let `require`",
        rule("""

class Broken(Rule):
    def __call__(self, uploads, context, state):
        uploads["update"][1]
        return mean(uploads, context, state)
"""),
    ),
    "drifts": (
        "zero updates are a zero step",
        r"updates are all zero, and the step is 0\.01",
        rule("""

class Broken(Rule):
    def __call__(self, uploads, context, state):
        found = mean(uploads, context, state)
        return found._replace(steps=found.steps + 0.01)
"""),
    ),
    "short": (
        "float32 is float64 but for rounding",
        r"steps in float32 and in float64 differ by .*e-\d\d of their size",
        rule("""

class Broken(Rule):
    def __call__(self, uploads, context, state):
        rounded = 1.01 if uploads["update"].dtype == torch.float32 else 1.0
        return mean(uploads, context, state, rounded)
"""),
    ),
    "looks at blocks": (
        "memory, pieces and files give the same",
        r"through columns in blocks of 7 the step differs by .* \(5 clients, 33 parameters",
        rule("""

class Broken(Rule):
    def plan(self, rows, context, state):
        times = 1.0 if hasattr(rows["update"], "tensor") else 1.001
        shares = np.full(len(context.clients), times / len(context.clients))
        return Plan(Combination(shares), None, dict(state))
"""),
    ),
}
TERMS = {
    "flipped sign": (
        "its gradient is the derivative of its value",
        r"along a direction the value of client \d rises by (\S+), but its gradient in the shared "
        r"parameters says -\1 \(seed 0\); look at signs",
        term(
            """

@part
class Broken(ControlVariates):
    def value(self, rows):
        return ((rows.received["control"] - rows.state["control"]) * rows.theta).sum(1)

    def correct(self, rows):
        rows.theta_grad.sub_(rows.received["control"] - rows.state["control"])
""",
            "Scaffold()",
            '{"up": "2d", "down": "2d"}',
        ),
    ),
    "factor": (
        "its gradient is the derivative of its value",
        r"along a direction the value of client \d rises by .*, but its gradient in the shared "
        r"parameters says",
        term("""

@part
class Broken(Term):
    def value(self, rows):
        return (rows.theta - rows.start).square().sum(1)

    def add_gradient(self, rows):
        rows.theta_grad.add_(rows.theta - rows.start)
"""),
    ),
    "one entry": (
        "its gradient is the derivative of its value",
        r"the gradient of client \d in shared parameter 0 is .*, but the derivative of the value",
        term("""

@part
class Broken(Term):
    def value(self, rows):
        return (rows.theta - rows.start).square().sum(1)

    def add_gradient(self, rows):
        slope = 2 * (rows.theta - rows.start)
        slope[:, 0] *= 1 + 1e-6
        rows.theta_grad.add_(slope)
"""),
    ),
    "overwrites": (
        "it adds to the gradient",
        r"theta_grad loses what stood in it, the gradient of the loss: where that is .* write "
        r"`rows\.theta_grad\.add_",
        term("""

@part
class Broken(Term):
    def value(self, rows):
        return (rows.theta - rows.start).square().sum(1)

    def add_gradient(self, rows):
        rows.theta_grad.copy_(2 * (rows.theta - rows.start))
"""),
    ),
    "moves clients": (
        "parameters and vectors stay as they are",
        r"theta is changed in place \(seed 0\)",
        term("""

@part
class Broken(Term):
    def value(self, rows):
        return rows.theta.new_zeros(len(rows.theta))

    def add_gradient(self, rows):
        rows.theta.mul_(0.999)
"""),
    ),
    "undeclared": (
        "bytes are as declared",
        r"a client sends 2\.\d\d d in round 4, but the row says up='d'; say in the row's `up`",
        HEAD
        + """

METHODS = {"broken": Method("Broken", rule=Scaffold(), objective=(ControlVariates(),))}
""",
    ),
}
CHOICES = {
    "loss of the batch": (
        ("loss broken", "it has a finite loss for each sample"),
        r"the loss of 6 samples has the shape \[\]; return \[B\]",
        choice(
            "LOSSES",
            """

@part
class Broken(Loss):
    def __call__(self, logits, labels, reduction="none"):
        return torch.nn.functional.cross_entropy(logits, labels)
""",
        ),
    ),
    "loss by the batch": (
        ("loss broken", "no sample depends on another"),
        r"sample 0 alone has the loss .*, but .* among others; samples of several clients stand",
        choice(
            "LOSSES",
            """

@part
class Broken(Loss):
    def __call__(self, logits, labels, reduction="none"):
        each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        return each / each.detach().mean()
""",
        ),
    ),
    "attack on the honest": (
        ("attack broken", "honest clients stay as they are"),
        r"client \d is honest, and its row is changed \(attackers: 1 of 2 clients, 1 parameter",
        choice(
            "ATTACKS",
            """

@part
class Broken(UpdateAttack):
    def __call__(self, updates, attackers, view, generator):
        return -updates
""",
        ),
    ),
    "attack in place": (
        ("attack broken", "what came in stays as it is"),
        r"the updates that came in are changed in place \(attackers: 1 of 2 clients",
        choice(
            "ATTACKS",
            """

@part
class Broken(UpdateAttack):
    def forge(self, scene):
        scene.updates[scene.rows] *= 2
        return scene.own
""",
        ),
    ),
    "attack to infinity": (
        ("attack broken", "forged updates are finite"),
        r"of finite updates it makes NaN or infinity \(attackers: 1 of 2 clients, 1 parameter",
        choice(
            "ATTACKS",
            """

@part
class Broken(UpdateAttack):
    def forge(self, scene):
        return scene.own / (scene.own - scene.own.mean(0)).norm(dim=1, keepdim=True)
""",
        ),
    ),
    "attack of its own draws": (
        ("attack broken", "the same stream gives the same attack"),
        r"with the same stream of random numbers it sends something else",
        choice(
            "ATTACKS",
            """

@part
class Broken(UpdateAttack):
    def forge(self, scene):
        return torch.randn_like(scene.own)
""",
        ),
    ),
    "labels in place": (
        ("attack broken", "labels stay labels"),
        r"the labels that came in are changed in place",
        choice(
            "ATTACKS",
            """

@part
class Broken(UpdateAttack):
    def forge(self, scene):
        return scene.own

    def labels(self, labels, num_classes):
        labels[:] = (labels + 1) % num_classes
        return labels
""",
        ),
    ),
    "labels beyond": (
        ("attack broken", "labels stay labels"),
        r"of 1 labels 0 to 9 it makes \[\d+\]",
        choice(
            "ATTACKS",
            """

@part
class Broken(UpdateAttack):
    def forge(self, scene):
        return scene.own

    def labels(self, labels, num_classes):
        return labels + num_classes
""",
        ),
    ),
    "loss upside down": (
        ("loss broken", "a right answer costs less"),
        r"the mean loss rises by .* when the score of each sample's class rises to 0\.5, .*; look",
        choice(
            "LOSSES",
            """

@part
class Broken(Loss):
    def __call__(self, logits, labels, reduction="none"):
        return -torch.nn.functional.cross_entropy(logits, labels, reduction="none")
""",
        ),
    ),
    "optimiser uphill": (
        ("optimiser broken", "it goes downhill"),
        r"after 6 steps along the gradients of ½‖x‖² a client is 1\.\d+ times as far from the min",
        choice(
            "OPTIMISERS",
            """

@part
class Broken(RowOptimiser):
    @property
    def memory(self):
        return ()

    def move(self, parameters, gradients, rate, memory, step):
        descend(parameters, -gradients, rate)
""",
        ),
    ),
    "optimiser on itself": (
        ("optimiser broken", "what it remembers can be put down and taken up"),
        r"taken up again after step 1, it moves clients elsewhere; remember in `memory` alone",
        choice(
            "OPTIMISERS",
            """

@part
class Broken(RowOptimiser):
    @property
    def memory(self):
        return ()

    def move(self, parameters, gradients, rate, memory, step):
        descend(parameters, gradients / step, rate)
""",
        ),
    ),
}
