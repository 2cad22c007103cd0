"""Everything that can be wrong with a call of the generic door, and the error it documents.

A fault changes the arguments of a call that is right (`Case`) and returns the pattern of the error;
it is told where by the case's own random generator.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from fedsdg.aggregation.rule_table import make_rule
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.krum import Krum, MultiKrum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.scaffold import Scaffold

from .api_cases import draw, form, needs

JUNK = [None, 3, 2.5, "text", b"bytes", object(), {1, 2}, True, 1j, lambda: None]


@dataclass
class Case:
    """A call: the rule, the global parameters, the clients, and the options."""

    rule: Any
    kind: str
    origin: Any
    ids: list
    clients: list
    options: dict
    listed: bool
    generator: np.random.Generator
    whole: Any = None
    """What is given as client_params instead of the clients, if anything."""

    def pick(self, values):
        """One of the values."""
        return values[self.generator.integers(len(values))]

    def client(self):
        """Position of a client, and the start of an error about it."""
        k = int(self.generator.integers(len(self.ids)))
        return k, f"client {re.escape(str(self.ids[k]))}: "

    def names(self):
        return list(self.origin) if isinstance(self.origin, dict) else range(len(self.origin))

    def leaf(self, params):
        """A tensor of parameters that holds numbers, its name, and how to put another there."""
        if self.kind in ("array", "tensor"):
            raise TypeError("one array is all there is")
        name = self.pick([n for n in self.names() if np.size(as_array(params[n]))])
        return params[name], name

    def replace(self, params, change):
        """Parameters with a tensor changed, and its name as errors write it."""
        if self.kind in ("array", "tensor"):
            return change(params), "parameters"
        value, name = self.leaf(params)
        return self.put(params, name, change(value))

    def put(self, params, name, value):
        if isinstance(params, dict):
            return {**params, name: value}, name
        items = list(params)
        items[name] = value
        return type(params)(items), f"[{name}]"

    def arguments(self):
        if self.whole is not None:
            clients = self.whole[0]
        else:
            clients = (
                self.clients if self.listed else dict(zip(self.ids, self.clients, strict=True))
            )
        return (self.rule, self.origin, clients), self.options


def as_array(value):
    return value.float().numpy() if isinstance(value, torch.Tensor) else value


def make_case(seed, rule, kind, *, listed, size=6):
    """A call that is right. Ids of a mapping are 0 … K-1 in some order."""
    generator = np.random.default_rng(seed)
    theta, rows = draw(seed, size)
    dtype = "float64" if generator.integers(2) else "float32"
    clients = [form(row, kind, dtype) for row in rows]
    ids = list(range(size)) if listed else generator.permutation(size).tolist()
    controls = clients if listed else dict(zip(ids, clients, strict=True))
    options = needs(rule, size, controls=controls)
    return Case(
        rule, kind, form(theta, kind, dtype), ids, list(clients), options, listed, generator
    )


def changed(change, message):
    """A fault of one tensor of one client."""

    def fault(case):
        k, who = case.client()
        case.clients[k], name = case.replace(case.clients[k], change(case))
        return who + message.format(name=re.escape(repr(name)))

    return fault


def bad_value(value):
    def change(case):
        def put(leaf):
            leaf = leaf.copy() if isinstance(leaf, np.ndarray) else leaf.clone()
            leaf.reshape(-1)[case.generator.integers(np.size(as_array(leaf)))] = value
            return leaf

        return put

    return change


def to(numpy_dtype, torch_dtype):
    def change(case):
        def convert(leaf):
            if isinstance(leaf, np.ndarray):
                return leaf.astype(numpy_dtype)
            return leaf.to(torch_dtype)

        return convert

    return change


def other_library(case):
    return lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf.numpy()


def arrays_only(fault):
    return fault, lambda case: "array" in case.kind


def tensors_only(fault):
    return fault, lambda case: "tensor" in case.kind


def option(name, values, message):
    """A fault of an option: any of the values."""

    def fault(case):
        case.options[name] = case.pick(values)
        return message

    return fault


def rule_is(*types):
    return lambda case: isinstance(make_rule(case.rule), types)


def junk_rule(case):
    case.rule = case.pick([None, 3, [], object(), 2.5, (), lambda: None])
    return "rule is a"


def unknown_rule(case):
    case.rule = case.pick(["krumm", "FedSDG", "", "fed avg", "median", "\n"])
    return re.escape(f"there is no rule {case.rule!r}; ") + "(did you mean|known are)"


def bad_row(case, which):
    case.rule, message = (
        [
            ({}, "rule has the type None"),
            ({"type": 3}, "rule has the type 3"),
            ({"type": "krum", "F": 1}, "rule krum: unknown key 'F'"),
            ({"type": "krum", 3: 1}, "rule krum: unknown key 3"),
            ({"type": "fedavg", "f": 1}, "rule fedavg: unknown key 'f'; known are weights"),
            ({"type": "krum", "f": "1"}, "rule krum.f is the text '1', but must be a number"),
            ({"type": "cgsv", "floor": None}, "is None, but must be a number"),
            (
                {"type": "cgsv", "gamma0": float("nan")},
                "rule cgsv.gamma0 is nan, but must be at le",
            ),
            (
                {"type": "fedsdg", "temperature": 0},
                "fedsdg.temperature is 0, but must be at least 1e-06",
            ),
            (
                {"type": "geometric-median", "tolerance": 1},
                "tolerance is 1, but must be at most",
            ),
        ]
    )[which]
    return message


def junk_global(case):
    case.origin = case.pick(JUNK)
    return "global parameters: parameters are a"


def empty_global(case):
    case.origin = case.pick([{}, [], ()])
    return "global_params holds no tensors"


def bad_global(case):
    value = case.pick([np.nan, np.inf, -np.inf])
    case.origin, name = case.replace(case.origin, bad_value(value)(case))
    case.options["on_nonfinite"] = case.pick(["raise", "drop"])
    return rf"global parameters: tensor {re.escape(repr(name))} has 1 non-finite values of \d+"


def whole_number_global(case):
    case.origin, name = case.replace(case.origin, to(np.int32, torch.int32)(case))
    return rf"global parameters: (array|tensor) {re.escape(repr(name))} (is torch|has dtype)"


def junk_client_params(case):
    case.whole = (case.pick([*JUNK, np.float64(1.0), np.array(1.0), torch.tensor(1.0), iter([])]),)
    return "client_params is a"


def junk_client(case):
    k, who = case.client()
    case.clients[k] = case.pick(JUNK)
    return who + "parameters are a"


def junk_tensor(case):
    k, who = case.client()
    junk = case.pick([None, 3, "text", object(), np.float64(2), [1.0, 2.0]])
    if case.kind in ("array", "tensor"):
        case.clients[k] = junk
        return who + "parameters are a"
    case.clients[k], name = case.replace(case.clients[k], lambda leaf: junk)
    return who + re.escape(repr(name)) + " is a"


def missing_tensor(case):
    k, who = case.client()
    if isinstance(case.origin, dict):
        name = case.pick(list(case.origin))
        case.clients[k] = {n: v for n, v in case.clients[k].items() if n != name}
    else:
        name = f"[{len(case.origin) - 1}]"
        case.clients[k] = case.clients[k][:-1]
    return who + re.escape(f"tensor {name!r} is missing")


def extra_tensor(case):
    k, who = case.client()
    if isinstance(case.origin, dict):
        case.clients[k] = {**case.clients[k], "λ": case.clients[k]["scalar"]}
        return who + "tensor 'λ' is not in global_params"
    case.clients[k] = (*case.clients[k], case.clients[k][0])
    case.clients[k] = type(case.origin)(case.clients[k])
    return who + re.escape(f"tensor '[{len(case.origin)}]' is not in global_params")


def other_form(case):
    k, who = case.client()
    client = case.clients[k]
    if isinstance(client, dict):
        case.clients[k] = list(client.values())
    elif isinstance(client, list | tuple):
        case.clients[k] = list(client) if isinstance(client, tuple) else tuple(client)
    else:
        case.clients[k] = [client]
    return who + "parameters are a .*, global_params is a .*; give both in the same form"


def all_bad(case):
    value = case.pick([np.nan, np.inf])
    case.clients = [case.replace(c, bad_value(value)(case))[0] for c in case.clients]
    case.options["on_nonfinite"] = "drop"
    return r"all 6 clients hold non-finite values \(client \d+: tensor .* has 1\)"


def too_large_f(case):
    f = int(case.pick([2, 3, 10, 10**6]))
    case.rule = {"type": case.rule, "f": f}
    return rf"Krum with f={f} needs at least 2f\+3 = {2 * f + 3} clients per round and has 6"


def dropped_below_the_bound(case):
    case.clients[:2] = [case.replace(c, bad_value(np.nan)(case))[0] for c in case.clients[:2]]
    case.options["on_nonfinite"] = "drop"
    return r"needs at least 2f\+3 = 5 clients .* has 4; .*2 of 6 clients were dropped"


def too_small_cap(case):
    case.rule = {"type": "fedsdg", "max_weight": float(case.generator.uniform(1e-9, 0.16))}
    return "max_weight=.* is below 1/6"


def overflowing_update(case):
    case.origin, _ = far(case, case.origin, -1)
    k, who = case.client()
    case.clients[k], name = far(case, case.clients[k], 1)
    return who + f"the update of tensor {re.escape(repr(name))} overflows"


def far(case, params, sign):
    def change(leaf):
        dtype = leaf.dtype if isinstance(leaf, torch.Tensor) else torch.from_numpy(leaf).dtype
        return leaf * 0 + sign * torch.finfo(dtype).max

    if case.kind in ("array", "tensor"):
        return change(params), "parameters"
    name = next(iter(params)) if isinstance(params, dict) else 0
    return case.put(params, name, change(params[name]))


def bad_counts(name):
    def fault(case):
        k, who = case.client()
        given = [5.0] * 6
        given[k] = case.pick([-1, np.nan, np.inf, "3", None, True, 2**60, 1j, [1]])
        case.options[name] = given if case.listed else dict(zip(case.ids, given, strict=True))
        return who + f"the count in {name} is "

    return fault


def incomplete_counts(name):
    def fault(case):
        k, _ = case.client()
        case.options[name] = {n: 1 for n in case.ids if n != case.ids[k]}
        return f"{name} holds no count for client {case.ids[k]}"

    return fault


def strange_ids(case):
    k, _ = case.client()
    if case.listed:
        case.listed = False
    case.ids[k] = case.pick(["ada", None, 2.5, (1,)])
    case.options.pop("uploads", None)
    return f"client {re.escape(str(case.ids[k]))}: the rule keeps a state by client"


def id_out_of_range(case):
    k, _ = case.client()
    case.listed = False
    case.ids[k] = case.pick([-1, 6, 10**18, 10**30])
    case.options.pop("uploads", None)
    return f"client {case.ids[k]}: ids must be in 0 … num_clients - 1 = 5"


def part_of_the_federation_listed(case):
    case.clients = case.clients[:-1]
    case.ids = case.ids[:-1]
    if "uploads" in case.options:
        case.options["uploads"] = dict.fromkeys(case.options["uploads"], case.clients)
    return "a list of 5 does not say which of the 6 they are"


def no_federation(case):
    case.options.pop("client_samples", None)
    case.options.pop("num_clients", None)
    return "(give num_clients or client_samples|CGSV starts from .* give client_samples)"


def bad_state(case, which):
    name = "r" if isinstance(make_rule(case.rule), Cgsv) else "control"
    size = 6 if name == "r" else 9
    good = {"r": torch.full((6,), 1 / 6), "participations": torch.zeros(6, dtype=torch.int64)}
    good = good if name == "r" else {"control": torch.zeros(9)}
    case.options["state"], message = (
        [
            (3, "state is a int"),
            ("text", "state is a str"),
            ({}, r"state holds \[\], expected"),
            ({**good, "more": good[name]}, "state holds .*, expected"),
            ({**good, name: np.zeros(size)}, f"state '{name}' is a ndarray"),
            ({**good, name: torch.zeros(size + 1)}, f"state '{name}' is .* of shape"),
            (
                {**good, name: torch.zeros(size, dtype=torch.int64)},
                f"state '{name}' is torch.int64",
            ),
            ({**good, name: torch.full((size,), np.nan)}, f"state '{name}' holds non-finite"),
        ]
    )[which]
    return message


def bad_control(case):
    k, _ = case.client()
    controls = list(case.clients)
    controls[k], name = case.replace(controls[k], bad_value(np.nan)(case))
    given = controls if case.listed else dict(zip(case.ids, controls, strict=True))
    case.options["uploads"] = {"control": given}
    return f"client {case.ids[k]}, upload 'control': tensor {re.escape(repr(name))} has 1 non-fin"


def bad_out(case, which):
    form_of = case.kind
    other = "tensor" if "array" in form_of else "array"
    case.options["out"], message = (
        [
            (
                form(np.zeros(9), form_of, "float16"),
                "out: tensor .* has dtype torch.float16",
            ),
            (form(np.zeros(9), other), "out: "),
            (form(np.zeros(11), form_of), "out: tensor .* has shape"),
            ({}, "out: "),
            (3, "out: parameters are a int"),
        ]
    )[which]
    return message


def unwritable_out(case):
    def freeze(leaf):
        if isinstance(leaf, np.ndarray):
            leaf = leaf.copy()
            leaf.flags.writeable = False
            return leaf
        return leaf.reshape(-1)[:1].expand(9)

    case.options["out"], name = case.replace(case.origin, freeze)
    return f"out: tensor {re.escape(repr(name))} cannot be written to in place"


def _needs_shape(case):
    return case.kind not in ("array", "tensor")


PLAIN: list[Callable[[Case], str]] = [
    junk_rule,
    unknown_rule,
    *[partial(bad_row, which=k) for k in range(10)],
    junk_global,
    empty_global,
    bad_global,
    whole_number_global,
    junk_client_params,
    junk_client,
    junk_tensor,
    other_form,
    all_bad,
    overflowing_update,
    *[partial(bad_out, which=k) for k in range(5)],
    changed(bad_value(np.nan), r"tensor {name} has 1 non-finite values of \d+"),
    changed(bad_value(-np.inf), r"tensor {name} has 1 non-finite values of \d+"),
    changed(lambda case: lambda leaf: leaf[None], "tensor {name} has shape .*, expected"),
    changed(to(np.float16, torch.float16), "tensor {name} has dtype torch.float16, expected"),
    changed(to(np.int64, torch.int64), "(array|tensor) {name} (is torch.int64|has dtype <i8)"),
    changed(to(bool, torch.bool), r"(array|tensor) {name} (is torch.bool|has dtype \|b1)"),
    changed(to(complex, torch.complex64), "(array|tensor) {name} (is torch.c|has dtype <c16)"),
    changed(other_library, "{name} is a .*, global_params holds a .*; convert"),
    option("on_nonfinite", ["ignore", None, True, 3, "Drop"], "on_nonfinite=.*: use 'raise' or"),
    option("round", [0, -1, 1.5, "1", None, True], "round=.* must be a whole number"),
    option("num_samples", [3, "abc", object(), {1, 2}], "num_samples is a"),
    option("num_samples", [[1] * 5, [1] * 7, [], np.ones(5)], "num_samples holds . counts for 6"),
    option("num_batches", [[1] * 5, torch.ones(7)], "num_batches holds . counts for 6 clients"),
    option("num_batches", [3, torch.tensor(3), np.ones(())], "num_batches is a"),
    option("uploads", [3, [1], "control"], "uploads is a"),
    option("uploads", [{"update": []}], "uploads holds 'update'"),
    option("uploads", [{"control": []}, {"more": {"x": 1}}], "upload '.*' is of the clients"),
    option("uploads", [{"control": 3}], "client_params is a int"),
    bad_counts("num_samples"),
    bad_counts("num_batches"),
    incomplete_counts("num_samples"),
    incomplete_counts("num_batches"),
]

FAULTS: list[tuple[Callable[[Case], str], Callable[[Case], bool]]] = [
    *[(fault, lambda case: True) for fault in PLAIN],
    arrays_only(changed(lambda case: lambda leaf: np.ma.array(leaf), "array {name} is masked")),
    arrays_only(changed(to(">f8", None), "array {name} has dtype >f8")),
    arrays_only(changed(to(object, None), r"array {name} has dtype \|O")),
    arrays_only(changed(to(np.longdouble, None), "array {name} has dtype <f16")),
    tensors_only(changed(lambda case: lambda t: t.to("meta"), "tensor {name} is on the device m")),
    tensors_only(changed(lambda case: lambda t: t.to_sparse(), "tensor {name} is .*sparse")),
    tensors_only(changed(to(None, torch.float8_e4m3fn), "tensor {name} is torch.float8_e4m3fn")),
    (unwritable_out, lambda case: "array" in case.kind or case.kind == "tensor"),
    (missing_tensor, _needs_shape),
    (extra_tensor, _needs_shape),
    (too_large_f, lambda case: case.rule in ("krum", "multikrum")),
    (dropped_below_the_bound, rule_is(Krum, MultiKrum)),
    (too_small_cap, rule_is(Alignment)),
    (
        lambda case: case.options.pop("num_samples") and "weighs clients by samples: give num_s",
        lambda case: case.rule in ("fedavg", "fedcurv"),
    ),
    (
        lambda case: case.options.pop("num_batches") and "weighs clients by batches: give num_b",
        lambda case: case.rule == Mean("batches"),
    ),
    (option("num_samples", [[0] * 6], "cannot weigh by samples"), lambda c: c.rule == "fedavg"),
    (option("client_samples", [[0] * 6], "client_samples must be >= 0 and sum"), rule_is(Cgsv)),
    (option("client_samples", [[1] * 5], "has 6 clients, but the federation 5"), rule_is(Cgsv)),
    (option("client_samples", [3, "abc", object()], "client_samples is a"), rule_is(Cgsv)),
    (option("num_clients", [7, 8], "num_clients=., but client_samples holds 6"), rule_is(Cgsv)),
    (option("num_clients", [0, -3, 6.0, "6", True], "num_clients=.* must be a"), lambda c: True),
    (
        option("num_clients", [1, 5], "has 6 clients, but the fed|but client_s"),
        lambda c: True,
    ),
    (
        lambda case: case.options.pop("uploads") and "upload 'control' is missing",
        rule_is(Scaffold),
    ),
    (bad_control, rule_is(Scaffold)),
    *[(partial(bad_state, which=k), rule_is(Cgsv, Scaffold)) for k in range(8)],
    (no_federation, rule_is(Cgsv, Scaffold)),
    (strange_ids, rule_is(Cgsv)),
    (id_out_of_range, rule_is(Cgsv)),
    (part_of_the_federation_listed, lambda c: c.listed and rule_is(Cgsv, Scaffold)(c)),
    (
        option("state", [{"r": torch.ones(6)}], "state holds .'r'., but the rule keeps none"),
        lambda case: not rule_is(Cgsv, Scaffold, FedCurv)(case),
    ),
]
