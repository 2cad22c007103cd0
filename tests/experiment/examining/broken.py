"""Plugins whose one part breaks one property, each with what must be said of it."""

HEAD = """
from typing import ClassVar

import torch

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.federation.conditions.attack import Attack
from fedsdg.federation.losses import Loss
from fedsdg.federation.optimisers import RowOptimiser, descend
from fedsdg.federation.terms import ControlVariates, Term
from fedsdg.methods.choice import Choice
from fedsdg.methods.method import Method
from fedsdg.parts import part
"""
ROW = """

METHODS = {"broken": Method("Broken", rule=%s, objective=%s, **%s)}
"""


def term(part: str, beside: str = 'Mean("uniform")', words: str = "{}") -> str:
    """The plugin whose term is this, beside a rule of the package."""
    return HEAD + part + ROW % (beside, "(Broken(),)", words)


def choice(table: str, part: str) -> str:
    """The plugin whose optimiser, loss or attack is this."""
    return HEAD + part + f'\n\n{table} = {{"broken": Choice("Broken", Broken())}}\n'


#: By a name: (the claim that fails, what its sentence says, the plugin).
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
        return ((rows.received["control"] - rows.kept["control"]) * rows.theta).sum(1)

    def correct(self, rows):
        rows.theta_grad.sub_(rows.received["control"] - rows.kept["control"])
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
    "an attacker too many": (
        ("attack broken", "every attacker sends finite numbers"),
        r"it returns \[2, 1\] for 1 attacker with updates \[1\] \(attackers: 1 of 2 clients",
        choice(
            "ATTACKS",
            """

@part
class Broken(Attack):
    def tamper(self, view):
        return -view.updates
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
class Broken(Attack):
    def tamper(self, view):
        view.updates[view.positions] *= 2
        return view.own
""",
        ),
    ),
    "attack to infinity": (
        ("attack broken", "every attacker sends finite numbers"),
        r"of finite updates it makes NaN or infinity \(attackers: 1 of 2 clients, 1 parameter",
        choice(
            "ATTACKS",
            """

@part
class Broken(Attack):
    def tamper(self, view):
        return view.own / (view.own - view.own.mean(0)).norm(dim=1, keepdim=True)
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
class Broken(Attack):
    def tamper(self, view):
        return torch.randn_like(view.own)
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
class Broken(Attack):
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
class Broken(Attack):
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
        ("optimiser broken", "no client depends on another"),
        r"after 7 steps client 0 is elsewhere than alone, by up to .*; work row by row, remember",
        choice(
            "OPTIMISERS",
            """CALLS = []


@part
class Broken(RowOptimiser):
    @property
    def memory(self):
        return ()

    def move(self, parameters, gradients, rate, memory, step):
        CALLS.append(0)
        descend(parameters, gradients / len(CALLS), rate)
""",
        ),
    ),
}
