"""The doors for arrays, tensors and dictionaries: calls that are odd but right, or wrong."""

import math
from collections import OrderedDict, UserDict
from types import MappingProxyType, SimpleNamespace

import numpy as np
import torch

from fedsdg.aggregation import aggregate, fedsdg_server_aggregate

from . import references
from .outcomes import documented, pick

SHAPES = [(), (1,), (3,), (5,), (2, 3), (4, 1), (1, 1), (0,), (0, 3), (2, 1, 2), (7,)]
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
LARGE = {"float16": 100.0, "bfloat16": 1e30, "float32": 1e30, "float64": 1e100}
RULES = {
    "fedavg": "fedavg",
    "fedavg-uniform": "fedavg-uniform",
    "coordinate-median": "coordinate-median",
    "trimmed-mean": {"type": "trimmed-mean"},
    "krum": {"type": "krum"},
    "multikrum": {"type": "multikrum"},
    "fedsdg": "fedsdg",
    "fedsdg of the others": {"type": "fedsdg", "reference": "leave_one_out"},
    "fedsdg by softmax": {"type": "fedsdg", "transform": "softmax"},
    "geometric-median": "geometric-median",
    "cgsv": "cgsv",
}
JUNK = [
    None, True, 3, -1, 2.5, math.nan, math.inf, 1j, "text", "", b"bytes", object(), [1.0, 2.0],
    {"w": 1}, {1, 2}, lambda: None, np.float64(2), 10**400, "x" * 300, range(2), iter([]),
    Exception, [[]], np.datetime64("2026-01-01"), torch.float32, slice(None), ...,
]  # fmt: skip
NO_TENSORS = [*JUNK, np.array(["a", "b"]), np.array([[None], ["x"]]), np.ma.array([1.0, 2.0]),
              torch.eye(2).to_sparse(), torch.ones(2, device="meta")]  # fmt: skip
NO_LISTS = [junk for junk in JUNK if not isinstance(junk, list | dict | range | None)]
WHOLE = {"steps": np.array(3), "mask": np.array([True, False])}
"""Buffers of the server, which some dictionaries hold."""


# --- a call that is right ---


def drawn_call(rng):
    """A rule and numbers for it; every part can still be changed."""
    kind = pick(rng, ["array", "tensor", "list", "tuple", "dict"])
    tensors = kind == "tensor" or (kind != "array" and rng.integers(2) == 1)
    names = list(DTYPES) if tensors else [name for name in DTYPES if name != "bfloat16"]
    count = 1 if kind in ("array", "tensor") else int(rng.integers(1, 4))
    shapes = [pick(rng, SHAPES) for _ in range(count)]
    if not any(math.prod(shape) for shape in shapes):
        shapes[0] = (3,)
    dtypes = [pick(rng, names)] * count
    if rng.random() < 0.3:
        dtypes = [pick(rng, names) for _ in range(count)]
    size = pick(rng, [1, 2, 3, 4, 5, 5, 6, 6, 7, 7])
    scale = 10.0 ** pick(rng, [0, 0, -3, 2])
    middle = [scale * rng.normal(size=shape) for shape in shapes]
    shared = [0.3 * scale * rng.normal(size=shape) for shape in shapes]

    def parameters(*, trained):
        values = []
        for centre, common, dtype in zip(middle, shared, dtypes, strict=True):
            update = common + 0.3 * scale * rng.normal(size=centre.shape)
            number = np.asarray(centre + trained * update)
            values.append(
                torch.tensor(number).to(DTYPES[dtype]) if tensors else number.astype(dtype)
            )
        return values

    rule = pick(rng, list(RULES))
    counts = rng.integers(0, 9, size=size)
    counts[int(rng.integers(size))] = 3
    listed = bool(rng.integers(2)) or rule == "cgsv"
    ids = pick(
        rng, [range(size)[::-1], [f"c{k}" for k in range(size)], [(k,) for k in range(size)]]
    )
    return SimpleNamespace(
        rng=rng, kind=kind, dtypes=dtypes, shapes=shapes, rule=rule, f=int(rng.integers(0, 3)),
        names=[f"layer.{k}" for k in range(count)], origin=parameters(trained=False),
        clients=[parameters(trained=True) for _ in range(size)], counts=counts, listed=listed,
        ids=list(range(size) if listed else ids), options={}, matrix=False, large=False, out=None,
        whole=None, edits=[],
    )  # fmt: skip


def assembled(call, values, whole=None):
    """Return values by position in the form of the call, with the buffers of a client."""
    if call.kind in ("array", "tensor"):
        return values[0]
    if call.kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[call.kind](values)
    by_name = dict(zip(call.names, values, strict=True)) | (whole or {})
    shuffled = {name: by_name[name] for name in call.rng.permutation(list(by_name))}
    return pick(call.rng, [dict, OrderedDict, UserDict, MappingProxyType])(shuffled)


def some_client(call):
    return int(call.rng.integers(len(call.clients)))


# --- odd, but right ---


def _odd_value(call, value):
    """Return the same numbers, lying elsewhere or otherwise."""
    if isinstance(value, np.ndarray):
        return _odd_array(call, value)
    how = pick(call.rng, ["spread", "turned", "offset", "parameter", "array"])
    if how == "array" and value.dtype != torch.bfloat16:
        return value.detach().numpy()
    if how == "spread":
        return torch.stack([value, value], dim=-1)[..., 1]
    if how == "turned" and value.ndim > 1:
        return value.transpose(0, -1).contiguous().transpose(0, -1)
    if how == "offset":
        return torch.cat([value.reshape(-1)[:1], value.reshape(-1)])[value.numel() > 0 :].view(
            value.shape
        )
    return torch.nn.Parameter(value.clone()) if how == "parameter" else value


def _odd_array(call, value):
    how = pick(call.rng, ["spread", "turned", "backwards", "frozen", "unaligned", "tensor"])
    if how == "spread":
        return np.stack([value, value], axis=-1)[..., 1]
    if how == "backwards" and value.ndim:
        return np.ascontiguousarray(value[::-1])[::-1]
    if how == "unaligned":
        raw = np.zeros(value.nbytes + 1, dtype=np.uint8)
        moved = raw[1:].view(value.dtype).reshape(value.shape)
        moved[...] = value
        return moved
    if how == "tensor":
        return torch.tensor(value.copy())
    copied = value.copy(order="F")
    copied.flags.writeable = how != "frozen"
    return copied


def odd_client(call):
    k = some_client(call)
    call.clients[k] = [_odd_value(call, value) for value in call.clients[k]]


def odd_origin(call):
    call.origin = [_odd_value(call, value) for value in call.origin]


def same_twice(call):
    """Two clients are one object, or a client is the server's own."""
    call.clients[some_client(call)] = pick(call.rng, [call.clients[some_client(call)], call.origin])


def far_away(call):
    """An attacker, as far away as its dtype goes."""
    if call.rule == "fedsdg of the others" or call.large:
        return  # Where what is left of a sum cancels, there is no direction by definition.
    call.large, k = True, some_client(call)
    for place, dtype in enumerate(call.dtypes):
        value = call.clients[k][place] * LARGE[dtype]
        plain = isinstance(value, torch.Tensor)
        call.clients[k][place] = value if plain else np.asarray(value, dtype=dtype)


def broadcast_client(call):
    """Every number of a tensor is the same place in memory."""
    k = some_client(call)
    for place, value in enumerate(call.clients[k]):
        first = value.reshape(-1)[:1]
        plain = isinstance(value, torch.Tensor)
        call.clients[k][place] = (
            first.sum().expand(value.shape)
            if plain
            else np.broadcast_to(first.sum(dtype=value.dtype), value.shape)
        )


def some_dropped(call):
    """A client that is not finite, and is to be left out."""
    if len(call.clients) > 1 and call.rule != "cgsv":
        k, place = some_client(call), _filled(call)
        call.clients[k] = list(call.clients[k])
        call.clients[k][place] = _poisoned(call, call.clients[k][place])
        call.options["on_nonfinite"] = "drop"


def _filled(call):
    return next(place for place, shape in enumerate(call.shapes) if math.prod(shape))


def _poisoned(call, value):
    value = value.detach().clone() if isinstance(value, torch.Tensor) else np.array(value)
    where = np.unravel_index(int(call.rng.integers(math.prod(value.shape))), value.shape)
    value[where] = pick(call.rng, [math.nan, math.inf, -math.inf])
    return value


def other_counts(call):
    counts = [int(count) for count in call.counts]
    call.counts = pick(
        call.rng, [np.array(counts, np.float32), torch.tensor(counts), tuple(counts)]
    )


def odd_out(call):
    """Room for the result: of its own, the server's or a client's, or with gaps."""
    rooms = [[_fresh(value) for value in call.origin], call.origin, call.clients[some_client(call)]]
    rooms.append([_fresh(value, 3)[..., 1] for value in call.origin])
    room = pick(call.rng, rooms)
    if all(_writable(value) for value in room):
        call.out = room


def _fresh(value, *more):
    if isinstance(value, torch.Tensor):
        return torch.full((*value.shape, *more), 9.0, dtype=value.dtype)
    return np.full((*value.shape, *more), 9.0, dtype=value.dtype)


def _writable(value):
    if isinstance(value, torch.Tensor):
        steps = value.stride()
        return not value.requires_grad and all(
            n < 2 or step for n, step in zip(value.shape, steps, strict=True)
        )
    forwards = all(n < 2 or s > 0 for n, s in zip(value.shape, value.strides, strict=True))
    return forwards and value.flags.writeable and value.flags.aligned


def one_matrix(call):
    """All clients in one array [M, …]."""
    if call.kind in ("array", "tensor"):
        call.matrix, call.listed, call.ids = True, True, list(range(len(call.clients)))


def with_buffers(call):
    """Integers and booleans, which are not averaged."""
    if call.kind == "dict":
        call.whole = [
            {"steps": np.array(int(call.rng.integers(9))), "mask": call.rng.integers(2, size=2) > 0}
            for _ in call.clients
        ]


ODD = [
    odd_client, odd_client, odd_origin, same_twice, far_away, broadcast_client, some_dropped,
    other_counts, odd_out, odd_out, one_matrix, with_buffers,
]  # fmt: skip


# --- wrong: each returns whether there was anything to make wrong ---


def _changed_tensor(change):
    """A tensor of a client becomes another, unless `change` returns None."""

    def apply(call, clients):
        k, place = some_client(call), int(call.rng.integers(len(call.shapes)))
        changed = change(call, call.clients[k][place])
        if changed is None:
            return False
        values = [*call.clients[k][:place], changed, *call.clients[k][place + 1 :]]
        clients[k] = assembled(call, values, call.whole and call.whole[k])
        return True

    return apply


def _as(dtype, torch_dtype):
    def convert(call, value):
        if isinstance(value, torch.Tensor):
            return None if torch_dtype in (None, value.dtype) else value.detach().to(torch_dtype)
        if np.dtype(dtype) == value.dtype:
            return None
        with np.errstate(invalid="ignore"):
            return value.astype(dtype)

    return convert


def _other_shape(call, value):
    others = [shape for shape in [*SHAPES, (3, 2), (1, 3), (9,)] if shape != tuple(value.shape)]
    made = np.ones(pick(call.rng, others))
    return torch.tensor(made).to(value) if isinstance(value, torch.Tensor) else made.astype(
        value.dtype
    )  # fmt: skip


def _not_finite(call, value):
    if not math.prod(value.shape):
        return None
    call.options.pop("on_nonfinite", None)
    return _poisoned(call, value)


def _of_tensors(change):
    return lambda call, value: change(value.detach()) if isinstance(value, torch.Tensor) else None


def junk_tensor(call, clients):
    return _changed_tensor(lambda call, value: pick(call.rng, [*NO_TENSORS[1:]]))(call, clients)


def junk_client(call, clients):
    clients[some_client(call)] = pick(call.rng, NO_TENSORS)
    return True


def missing_tensor(call, clients):
    if call.kind not in ("list", "tuple", "dict"):
        return False
    k = some_client(call)
    if call.kind == "dict":
        gone = pick(call.rng, call.names)
        clients[k] = {name: value for name, value in clients[k].items() if name != gone}
        if call.rng.integers(2):
            clients[k]["another"] = call.clients[k][0]
    else:
        clients[k] = pick(call.rng, [clients[k][:-1], type(clients[k])([*clients[k], np.ones(1)])])
    return True


def other_form(call, clients):
    k = some_client(call)
    values = call.clients[k]
    forms = {"list": list(values), "tuple": tuple(values), "dict": {"layer.0": values[0]}}
    kind = call.kind
    clients[k] = pick(call.rng, [form for name, form in forms.items() if name != kind])
    return True


DTYPES_REFUSED = [
    (np.int32, torch.int32), (bool, torch.bool), (complex, torch.complex64),
    (np.float16, torch.float16), (np.float64, torch.float64), (">f4", None), (object, None),
    (np.longdouble, None), ("U8", torch.float8_e4m3fn), (np.uint16, torch.uint16),
]  # fmt: skip
BAD_CLIENTS = [
    *(_changed_tensor(_as(*pair)) for pair in DTYPES_REFUSED),
    *(_changed_tensor(change) for change in [_other_shape, _not_finite] * 2),
    _changed_tensor(_of_tensors(lambda tensor: tensor.to_sparse() if tensor.ndim else None)),
    _changed_tensor(_of_tensors(lambda tensor: tensor.to("meta"))),
    junk_tensor, junk_client, missing_tensor, other_form,
]  # fmt: skip

BAD_RULES = [
    "krumm", "", "FedSDG", "mean\n", {}, {"type": None}, {"type": "krum", "f": -1},
    {"type": "krum", "f": 1.5}, {"type": "krum", "f": "1"}, {"type": "krum", "g": 1},
    {"type": "krum", "f": math.nan}, {"type": "krum", "f": math.inf}, {"type": "krum", "f": 10**30},
    {"type": "krum", "f": np.ones((2, 2))}, {"type": "fedsdg", "reference": np.ones((2, 2))},
    {"type": "fedsdg", "reference": "others"}, {"type": "fedsdg", "epsilon": 0},
    {"type": "fedsdg", "max_weight": 2}, {"type": "fedsdg", "max_weight": "x"},
    {"type": "fedsdg", "temperature": math.inf}, {"type": "fedsdg", "smoothing": 1.5},
    {"type": "fedsdg", "smoothing": 10**400}, {"type": "cgsv", "floor": 1},
    {"type": "cgsv", "step_scale": ["unit"]}, {"type": "geometric-median", "tolerance": 0},
    {"type": "trimmed-mean", "f": None}, {"type": ["krum"]}, {"type": "focus"}, "clustered",
    {"type": "screened", "strikes": 0}, {"type": "screened", "threshold": "far"},
    {1: 2}, {"type": "krum", ("f",): 1}, "cgsv-xu", {"type": "fedavg", "weights": "all"},
]  # fmt: skip


def bad_rule(call, arguments):
    arguments["rule"] = pick(call.rng, [*BAD_RULES, *JUNK])
    return True


def bad_global(call, arguments):
    """Junk, a dtype, or NaN for a rule whose step reads the server's parameters."""
    how = pick(call.rng, ["junk", "dtype", "nan"])
    values, place = list(call.origin), _filled(call)
    if how == "junk":
        arguments["global_params"] = pick(call.rng, NO_TENSORS)
        return True
    if how == "nan" and not call.rule.startswith("fedsdg"):
        return False
    change = _poisoned if how == "nan" else _as(np.int64, torch.int64)
    values[place] = change(call, values[place])
    arguments["global_params"] = assembled(call, values, call.whole and WHOLE)
    return True


def bad_clients(call, arguments):
    arguments["client_params"] = pick(call.rng, NO_LISTS)
    return True


def bad_option(call, arguments):
    size = len(call.clients)
    spoilt = [1] * size
    spoilt[some_client(call)] = pick(
        call.rng, [-1, math.nan, math.inf, "3", None, True, 2**60, 10**400, 1j, [1], np.ones(2)]
    )
    junk = pick(call.rng, NO_LISTS)
    choices = [
        *((name, pick(call.rng, [spoilt, junk, [1] * (size + 1), np.ones((size, 2))]))
          for name in ("num_samples", "num_batches")),
        ("client_samples", pick(call.rng, [spoilt, junk])),
        ("num_clients", pick(call.rng, [0, -1, 1.5, "3", size - 1, math.nan, 10**400, [1]])),
        ("round", pick(call.rng, [0, -1, 1.5, "1", math.nan, None, [1], np.ones((2, 2)), 10**400])),
        ("on_nonfinite", pick(call.rng, NO_TENSORS)), ("buffers", pick(call.rng, NO_TENSORS)),
        ("uploads", pick(call.rng, NO_LISTS)), ("uploads", {"control": junk}),
        ("uploads", {"update": arguments["client_params"]}),
        ("state", pick(call.rng, [{"r": junk}, junk or 3])), ("out", _bad_room(call)),
        ("out", pick(call.rng, NO_TENSORS[1:])),
    ]  # fmt: skip
    name, arguments[name] = pick(call.rng, choices)
    return True


def _bad_room(call):
    """Room of another shape or dtype, for two tensors, or not to be written to."""
    values, place = [_fresh(value) for value in call.origin], _filled(call)
    value = values[place]
    if isinstance(value, torch.Tensor):
        options = [value[None], value.to(torch.complex64), value.to("meta")]
        broadcast = value.reshape(-1)[0].expand(value.shape)
    else:
        frozen = value.copy()
        frozen.flags.writeable = False
        options = [value[None], value.astype(complex), frozen]
        broadcast = np.broadcast_to(value.reshape(-1)[0], value.shape)
    values[place] = pick(call.rng, [*options, broadcast] if math.prod(value.shape) > 1 else options)
    return assembled(call, values, call.whole and WHOLE)


# --- what comes of it ---


def flat(values):
    """Return all numbers as float64."""
    numbers = [v.detach().double().numpy() if isinstance(v, torch.Tensor) else v for v in values]
    return np.concatenate([np.asarray(value, np.float64).reshape(-1) for value in numbers])


def marks(call):
    """Return the numbers of the server's and all clients' parameters, as bytes."""
    return [flat(values).tobytes() for values in (call.origin, *call.clients)]


def arguments_of(call, clients):
    row = RULES[call.rule]
    arguments = {
        "rule": {**row, "f": call.f} if row in RULES_WITH_F else row,
        "global_params": assembled(call, call.origin, call.whole and WHOLE),
        "client_params": clients if call.listed else dict(zip(call.ids, clients, strict=True)),
        **call.options,
    }
    if call.matrix:
        rows = [np.asarray(v) if call.kind == "array" else torch.as_tensor(v).detach()
                for v, *_ in call.clients]  # fmt: skip
        arguments["client_params"] = np.stack(rows) if call.kind == "array" else torch.stack(rows)
    counted = {"cgsv": "client_samples", "fedavg": "num_samples"}.get(call.rule)
    if counted:
        arguments[counted] = call.counts
    if call.out is not None:
        arguments["out"] = assembled(call, call.out, call.whole and dict(WHOLE))
    return arguments


RULES_WITH_F = [RULES[name] for name in ("trimmed-mean", "krum", "multikrum")]


def accepted(call, theta, rows):
    """Return all steps that the rule may take; none where it must refuse the call."""
    x, size = rows - theta, len(rows)
    counts = np.array([float(count) for count in np.asarray(call.counts).tolist()])[call.kept]
    coarsest = max(torch.finfo(DTYPES[dtype]).eps for dtype in call.dtypes)
    noise = 0.5 * coarsest * np.sqrt((rows**2).sum(1)).max()
    if call.rule == "fedavg":
        return references.mean(x, counts) if counts.sum() > 0 else []
    if call.rule == "fedavg-uniform":
        return references.mean(x, np.ones(size))
    if call.rule == "coordinate-median":
        return references.median(x)
    if call.rule == "trimmed-mean":
        return references.trimmed_mean(x, call.f) if size > 2 * call.f else []
    if call.rule in ("krum", "multikrum"):
        chosen = 1 if call.rule == "krum" else size - call.f
        return references.multikrum(x, call.f, chosen) if size >= 2 * call.f + 3 else []
    if call.rule == "cgsv":
        return references.cgsv(x, counts) if counts.sum() > 0 else []
    reference = "leave_one_out" if call.rule == "fedsdg of the others" else "mean"
    transform = "softmax" if call.rule == "fedsdg by softmax" else "relu"
    return references.fedsdg(x, reference, transform, 0.05, noise)


def _by_dtype(call, facts):
    """Return [d] a fact of the dtype of each number."""
    return np.concatenate([
        np.full(math.prod(shape), facts(DTYPES[dtype]))
        for shape, dtype in zip(call.shapes, call.dtypes, strict=True)
    ])  # fmt: skip


def allowed(call, rows, theta):
    """Return [d] how far a result may be off: rounding of parameters, of updates, of weights."""
    of_updates = torch.finfo(torch.float64 if "float64" in call.dtypes else torch.float32).eps
    largest = max(np.abs(rows).max(), np.abs(theta).max())
    return (4 * _by_dtype(call, lambda dtype: torch.finfo(dtype).eps) + 1e3 * of_updates) * largest


def wrong_step(call, theta, rows, step):
    """Return what is wrong with a step, or None."""
    slack = allowed(call, rows, theta)
    if call.rule == "geometric-median":
        room = len(rows) * np.sqrt((slack**2).sum())
        far = references.far_from_median(rows - theta, step, 1e-6, room)
        return f"{step} is no geometric median" if far else None
    steps = accepted(call, theta, rows)
    near = any((np.abs(step - right) <= slack).all() for right in steps)
    return None if near else f"{step} instead of {steps}"


def must_refuse(call, theta, rows):
    """Return whether a call without a mistake has to be refused all the same."""
    if not len(rows) or call.rule == "geometric-median":
        return not len(rows)
    steps = accepted(call, theta, rows)
    most = _by_dtype(call, lambda dtype: torch.finfo(dtype).max)
    return not steps or any((np.abs(theta + step) > most).any() for step in steps)


def check(rng):
    """One call of `aggregate`; what is wrong with its outcome, or None."""
    call = drawn_call(rng)
    for _ in range(pick(rng, [0, 1, 1, 2, 3])):
        change = pick(rng, ODD)
        change(call)
        call.edits.append(change.__name__)
    clients = [
        assembled(call, values, call.whole and call.whole[k])
        for k, values in enumerate(call.clients)
    ]
    wrong, group = False, pick(rng, ["right", "right", "clients", "option", "argument"])
    if group == "clients":
        call.matrix = False
        wrong = pick(rng, BAD_CLIENTS)(call, clients)
    arguments = arguments_of(call, clients)
    if group == "option":
        wrong = bad_option(call, arguments)
    if group == "argument":
        wrong = pick(rng, [bad_rule, bad_global, bad_clients])(call, arguments)
    fault = outcome(call, arguments, wrong)
    return fault and f"{fault} [{call.rule}, {call.kind}, {call.dtypes}, {call.edits}, {group}]"


def outcome(call, arguments, wrong):
    theta, *rows = [flat(values) for values in (call.origin, *call.clients)]
    rows = np.array(rows).reshape(len(call.clients), -1)
    call.kept = np.isfinite(rows).all(1)
    before = marks(call)
    with np.errstate(all="ignore"):
        try:
            made = aggregate(**arguments)
        except Exception as error:
            fault = documented(error)
            if fault is None and not wrong and not must_refuse(call, theta, rows[call.kept]):
                fault = f"refused: {error}"
        else:
            fault = "accepted" if wrong else check_result(call, arguments, made, theta, rows)
            if call.out is not None:
                return fault  # It may be the server's, or a client's.
    return fault or (None if marks(call) == before else "an input was altered")


def check_result(call, arguments, made, theta, rows):
    """Return what is wrong with the result of a call that is right, or None."""
    if call.rule != "geometric-median" and not accepted(call, theta, rows[call.kept]):
        return "a result where an error was due"
    if "out" in arguments and made.parameters is not arguments["out"]:
        return "the result is not out"
    found = made.parameters
    values = [found[name] for name in call.names] if call.kind == "dict" else found
    numbers = flat(values if call.kind in ("list", "tuple", "dict") else [values])
    fault = wrong_step(call, theta, rows[call.kept], numbers - theta)
    whole = [call.whole[k] for k in np.flatnonzero(call.kept)] if call.whole else []
    for name in WHOLE if whole else ():
        if not np.array_equal(found[name], np.max([buffers[name] for buffers in whole], axis=0)):
            return f"the buffer {name} is {found[name]}"
    if len(made.dropped) != (~call.kept).sum():
        return f"dropped {made.dropped}"
    weights = made.weights.values() if isinstance(made.weights, dict) else made.weights or [1.0]
    share = abs(sum(weights) - 1) > 1e-9 or min(weights) < 0
    return fault or (f"weights {weights}" if share else None)


# --- FedSDG's own door ---


def check_dictionaries(rng):
    """One call of `fedsdg_server_aggregate`; what is wrong with its outcome, or None."""
    call = drawn_call(rng)
    call.kind, call.rule, call.listed = "dict", "fedsdg", True
    for _ in range(int(rng.integers(3))):
        pick(rng, [odd_client, odd_origin, same_twice, broadcast_client])(call)
    options = {"debug": True} if rng.random() < 0.5 else {}
    if rng.random() < 0.3:
        options["clip_norm"] = float(10.0 ** rng.uniform(-3, 1))
    if rng.random() < 0.3:
        options["max_weight"] = min(1.0, float(rng.uniform(1, 2)) / len(call.clients))
    clients = [assembled(call, values) for values in call.clients]
    wrong = rng.random() < 0.5
    if wrong and rng.random() < 0.5:
        name, options[name] = pick(rng, [
            ("epsilon", pick(rng, [0, -1, 1, math.nan, "x", None, [], 10**400])),
            ("max_weight", pick(rng, ["x", 0, 2, math.nan, 1e-9, [1], 1j, 10**400])),
            ("clip_norm", pick(rng, ["x", 0, -1, math.nan, math.inf, [1], 10**400])),
            ("reference", pick(rng, ["", None, 3, ["mean"], np.ones((2, 2))])),
            ("transform", pick(rng, ["", None, 3, np.ones(2)])),
            ("temperature", pick(rng, [0, -1, math.nan, "x", None, 10**400])),
            ("smoothing", pick(rng, [-1, 2, math.nan, "x", None])),
        ])  # fmt: skip
    elif wrong:
        wrong = pick(rng, BAD_CLIENTS)(call, clients)
    before = marks(call)
    try:
        made, weights, *facts = fedsdg_server_aggregate(
            assembled(call, call.origin), clients, **options
        )
    except Exception as error:
        fault = documented(error) or (None if wrong else f"refused: {error}")
    else:
        made = flat([made[name] for name in call.names])
        fault = "accepted" if wrong else _wrong_server(call, made, weights, options)
        if not fault and facts and len(facts[0]) != 10:
            fault = f"facts {list(facts[0])}"
    if marks(call) != before:
        fault = fault or "an input was altered"
    return fault and f"{fault} [{call.dtypes}, {options}]"


def _wrong_server(call, made, weights, options):
    theta, *rows = [flat(values) for values in (call.origin, *call.clients)]
    rows = np.array(rows).reshape(len(call.clients), -1)
    x, cap = rows - theta, options.get("max_weight")
    lengths = np.linalg.norm(x, axis=1)
    clip = options.get("clip_norm", np.inf)
    with np.errstate(all="ignore"):
        x = x * np.where(lengths > clip, clip / lengths, 1.0)[:, None]
        coarsest = max(torch.finfo(DTYPES[dtype]).eps for dtype in call.dtypes)
        noise = 0.5 * coarsest * np.sqrt((rows**2).sum(1)).max()
        steps = [
            (references.capped(expected, cap) if cap else expected) @ x
            for expected in references.fedsdg_weights(x, "mean", noise)
        ]
    slack = 2 * allowed(call, rows, theta)
    if not any((np.abs(made - theta - step) <= slack).all() for step in steps):
        return f"{made - theta} with weights {weights} instead of {steps}"
    share = abs(sum(weights) - 1) > 1e-9 or min(weights) < 0 or max(weights) > (cap or 1) + 1e-6
    return f"weights {weights}" if share else None
