"""Cases for the door's tests: parameters of every kind, and calls that every rule accepts."""

import numpy as np
import torch

from fedsdg.aggregation.api import aggregate
from fedsdg.aggregation.plans import PlannedRule
from fedsdg.aggregation.rule_table import make_rule, rules
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.krum import MultiKrum
from fedsdg.aggregation.rules.mean import Mean

# Of names that mean the same rule the first; many methods differ in what clients do alone.
_NAMED = {make_rule(name): name for name in reversed(rules())}
EVERY_RULE = [
    *(name for rule, name in _NAMED.items() if isinstance(rule, PlannedRule)),
    Mean("batches"),
    MultiKrum(f=1, m=2),
    Alignment(reference="leave_one_out"),
    Alignment(transform="softmax", max_weight=0.4, smoothing=0.1),
    Cgsv(step_scale="unit"),
]
KINDS = ["array", "tensor", "arrays", "tensors", "dict of arrays", "dict of tensors"]
SHAPES = {"blocks.0.lora_A": (2, 3), "scalar": (), "empty": (0, 2), "head.bias": (-1,)}
"""Of a vector of at least 8 numbers, cut into named pieces; the last takes the rest."""


def form(vector, kind, dtype="float64"):
    """A vector [d] as parameters of a kind."""
    if kind == "array":
        return np.array(vector, dtype=dtype)
    if kind == "tensor":
        return torch.tensor(np.asarray(vector)).to(getattr(torch, dtype))
    pieces, start = {}, 0
    single = "array" if "array" in kind else "tensor"
    for name, shape in SHAPES.items():
        rest = len(vector) - start
        size = rest if shape == (-1,) else int(np.prod(shape))
        pieces[name] = form(vector[start : start + size], single, dtype).reshape(shape)
        start += size
    if kind.startswith("dict"):
        return pieces
    return list(pieces.values()) if kind == "arrays" else tuple(pieces.values())


def leaves(params):
    """The arrays or tensors of parameters, in order."""
    if isinstance(params, dict):
        return list(params.values())
    return list(params) if isinstance(params, list | tuple) else [params]


def flat(params):
    """Parameters of any kind as one float64 vector."""
    parts = [
        leaf.double().numpy() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves(params)
    ]
    return np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in parts])


def draw(seed, size, d=9):
    """theta_g [d] and theta_k [M, d] of order one, with updates that have something in common."""
    generator = np.random.default_rng(seed)
    theta = generator.normal(size=d)
    return theta, theta + 0.3 * generator.normal(size=(size, d)) + 0.2 * generator.normal(size=d)


def needs(rule, size, controls=None):
    """The keyword arguments that the rule asks for, for a cohort of all `size` clients in order."""
    rule = make_rule(rule)
    counts = [10 + 7 * k for k in range(size)]
    if isinstance(rule, Mean):
        return {"num_samples": counts, "num_batches": [3 + k * k for k in range(size)]}
    if isinstance(rule, Cgsv):
        return {"client_samples": counts}
    if further := rule.reads[1:]:
        given = {"num_clients": size, "uploads": dict.fromkeys(further, controls)}
        return given | ({"num_samples": counts} if isinstance(rule, FedCurv) else {})
    return {}


def call(rule, theta, clients, *, kind="array", dtype="float64", **options):
    """`aggregate` on vectors as parameters of a kind; SCAFFOLD's controls are the parameters."""
    rows = [form(row, kind, dtype) for row in clients]
    given = {**needs(rule, len(rows), controls=rows), **options}
    return aggregate(rule, form(theta, kind, dtype), rows, **given)


def beside_a_large_head(noise=False):
    """(theta_g, theta_k) in float32: small adapters `w`, and a head a million times as large.

    The head's rounding is far larger than the updates of the adapters. With `noise`, these are
    opposite up to rounding, while all heads move the same way.
    """
    generator = np.random.default_rng(5)
    theta = {"w": generator.normal(size=30), "head.w": 1e6 * generator.normal(size=20)}
    moves = 1e-3 * (generator.normal(size=(4, 30)) + generator.normal(size=30))
    if noise:
        moves[2:] = -moves[:2]
    clients = [
        {"w": theta["w"] + move, "head.w": theta["head.w"] + 1e4 * np.ones(20)} for move in moves
    ]
    return [{n: v.astype(np.float32) for n, v in params.items()} for params in (theta, *clients)]


def without_head(params):
    """The adapters alone."""
    return {"w": params["w"]}
