"""The doors for arrays, tensors and dictionaries: calls that are odd but right, or wrong."""

import math
from collections import OrderedDict, UserDict
from fractions import Fraction
from types import MappingProxyType, SimpleNamespace

import numpy as np
import torch

from fedsdg.aggregation import aggregate, fedsdg_server_aggregate

from . import references
from .outcomes import documented, pick

SHAPES = [(), (1,), (3,), (5,), (2, 3), (4, 1), (1, 1), (0,), (0, 3), (2, 1, 2), (7,)]
DTYPES = {
    "float16": torch.float16, "bfloat16": torch.bfloat16,
    "float32": torch.float32, "float64": torch.float64,
}  # fmt: skip
LARGE = {"float16": 100.0, "bfloat16": 1e30, "float32": 1e30, "float64": 1e100}
RULES = (
    "fedavg", "fedavg-uniform", "coordinate-median", "trimmed-mean", "krum", "multikrum",
    "fedsdg", "fedsdg of the others", "fedsdg by softmax", "geometric-median", "cgsv",
)  # fmt: skip
JUNK = [
    None, True, 3, -1, 2.5, math.nan, math.inf, 1j, "text", "", b"bytes", object(), [], {}, (),
    [1.0, 2.0], {"w": 1}, {1, 2}, lambda: None, np.float64(2), np.array(["a", "b"]),
    np.array([[1, 2], [3, 4]]), np.array([[None], ["x"]]), torch.ones(2, 2), torch.ones(2).bool(),
    torch.tensor([1, 2]), torch.eye(2).to_sparse(), torch.ones(2, device="meta"), 10**400,
    Fraction(1, 3), "x" * 300, np.ma.array([1.0, 2.0], mask=[0, 1]), range(2), iter([]), Exception,
    [[]], {"type": "k"}, np.datetime64("2026-01-01"), torch.float32, slice(None), ...,
]  # fmt: skip


# --- a call that is right ---


def drawn_call(rng):
    """A rule, and numbers for it; every part can still be changed."""
    kind = pick(rng, ["array", "tensor", "list", "tuple", "dict"])
    tensors = kind == "tensor" or (kind != "array" and rng.integers(2) == 1)
    known = list(DTYPES) if tensors else [name for name in DTYPES if name != "bfloat16"]
    count = 1 if kind in ("array", "tensor") else int(rng.integers(1, 4))
    shapes = [pick(rng, SHAPES) for _ in range(count)]
    if not any(math.prod(shape) for shape in shapes):
        shapes[0] = (3,)
    dtypes = [pick(rng, known)] * count
    if rng.random() < 0.3:
        dtypes = [pick(rng, known) for _ in range(count)]
    size = pick(rng, [1, 2, 3, 4, 5, 5, 6, 6, 7, 7])
    scale = 10.0 ** pick(rng, [0, 0, -3, 2])

    def leaf(values, dtype):
        if tensors:
            return torch.tensor(values).to(DTYPES[dtype])
        return np.array(values, dtype=dtype)

    def pieces(*, spread, about=None):
        drawn = [rng.normal(size=shape) for shape in shapes]
        if about is not None:
            together = zip(about, drawn, shared, strict=True)
            drawn = [np.asarray(a + spread * (d + s)) for a, d, s in together]
        return drawn

    shared = [rng.normal(size=shape) for shape in shapes]
    middle = [scale * values for values in pieces(spread=1)]
    origin = [leaf(values, d) for values, d in zip(middle, dtypes, strict=True)]
    clients = [
        [leaf(v, d) for v, d in zip(pieces(spread=0.3 * scale, about=middle), dtypes, strict=True)]
        for _ in range(size)
    ]
    rule = pick(rng, RULES)
    ids = pick(rng, [range(size), range(size)[::-1], [f"c{k}" for k in range(size)],
                     [(k,) for k in range(size)], [k - 0.5 for k in range(size)]])  # fmt: skip
    listed = bool(rng.integers(2)) or rule == "cgsv"
    counts = rng.integers(0, 9, size=size)
    counts[int(rng.integers(size))] = 3
    names = [f"layer.{k}" for k in range(count)]
    if rng.random() < 0.1:
        names = [pick(rng, ["", "λ", "a b", "[0]", "parameters"]), *names[1:]]
    return SimpleNamespace(
        rng=rng, kind=kind, tensors=tensors, dtypes=dtypes, shapes=shapes, names=names, rule=rule,
        f=int(rng.integers(0, 3)), origin=origin, clients=clients, counts=counts, listed=listed,
        ids=list(range(size)) if listed else list(ids), options={}, large=False, whole=False,
        out=None, gaps=[], edits=[],
    )  # fmt: skip


def assembled(call, pieces, *, shuffled=False):
    if call.kind in ("array", "tensor"):
        return pieces[0]
    if call.kind == "list":
        return list(pieces)
    if call.kind == "tuple":
        return tuple(pieces)
    order = call.rng.permutation(len(pieces)) if shuffled else range(len(pieces))
    made = {call.names[k]: pieces[k] for k in order}
    return pick(call.rng, [dict, dict, OrderedDict, UserDict, MappingProxyType])(made)


# --- odd, but right ---


def _odd_leaf(call, value):
    """The same numbers, lying elsewhere or otherwise."""
    rng = call.rng
    if isinstance(value, torch.Tensor):
        how = pick(rng, ["spread", "turned", "offset", "parameter", "same"])
        if how == "spread":
            room = torch.full((*value.shape, 3), 9.0, dtype=value.dtype)
            room[..., 1] = value
            return room[..., 1]
        if how == "turned" and value.ndim > 1:
            return value.transpose(0, -1).contiguous().transpose(0, -1)
        if how == "offset":
            room = torch.full((value.numel() + 2,), 9.0, dtype=value.dtype)
            room[1:-1] = value.reshape(-1)
            return room[1:-1].view(value.shape)
        return torch.nn.Parameter(value.clone()) if how == "parameter" else value
    how = pick(rng, ["spread", "turned", "backwards", "frozen", "unaligned", "same"])
    if how == "spread":
        room = np.full((*value.shape, 3), 9.0, dtype=value.dtype)
        room[..., 1] = value
        return room[..., 1]
    if how == "turned":
        return value.copy(order="F")
    if how == "backwards" and value.ndim:
        return np.ascontiguousarray(value[::-1])[::-1]
    if how == "unaligned":
        raw = np.zeros(value.nbytes + 1, dtype=np.uint8)
        found = raw[1:].view(value.dtype).reshape(value.shape)
        found[...] = value
        return found
    if how == "frozen":
        value = value.copy()
        value.flags.writeable = False
    return value


def odd_client(call):
    k = int(call.rng.integers(len(call.clients)))
    call.clients[k] = [_odd_leaf(call, value) for value in call.clients[k]]


def odd_origin(call):
    call.origin = [_odd_leaf(call, value) for value in call.origin]


def same_twice(call):
    """Two clients are one object, or a client is the server's own."""
    a, b = (int(call.rng.integers(len(call.clients))) for _ in range(2))
    call.clients[a] = pick(call.rng, [call.clients[b], call.origin])


def far_away(call):
    """An attacker, so far as its dtype goes."""
    if call.rule == "fedsdg of the others" or call.large:
        return  # Where what is left of a sum cancels, there is no direction by definition.
    call.large = True
    k = int(call.rng.integers(len(call.clients)))
    call.clients[k] = [
        value * LARGE[dtype] for value, dtype in zip(call.clients[k], call.dtypes, strict=True)
    ]
    call.clients[k] = [
        v if isinstance(v, torch.Tensor) else np.asarray(v, dtype=d)
        for v, d in zip(call.clients[k], call.dtypes, strict=True)
    ]


def broadcast_client(call):
    """Every number of a tensor is the same place in memory."""
    k = int(call.rng.integers(len(call.clients)))
    call.clients[k] = [
        value.reshape(-1)[:1].sum().expand(value.shape)
        if isinstance(value, torch.Tensor)
        else np.broadcast_to(value.reshape(-1)[:1].sum(dtype=value.dtype), value.shape)
        for value in call.clients[k]
    ]


def some_dropped(call):
    """A client that is not finite, and is to be left out."""
    if len(call.clients) < 2 or call.rule == "cgsv":
        return
    k = int(call.rng.integers(len(call.clients)))
    place = next(n for n, shape in enumerate(call.shapes) if math.prod(shape))
    call.clients[k] = list(call.clients[k])
    call.clients[k][place] = _poisoned(call, call.clients[k][place])
    call.options["on_nonfinite"] = "drop"


def _poisoned(call, value):
    value = value.detach().clone() if isinstance(value, torch.Tensor) else np.array(value)
    where = int(call.rng.integers(max(1, math.prod(value.shape))))
    # Not by reshape(-1), which copies what does not lie in a row.
    value[np.unravel_index(where, value.shape)] = pick(call.rng, [math.nan, math.inf, -math.inf])
    return value


def other_counts(call):
    """Counts of other kinds: as arrays, tensors, tuples, fractions, whole or not."""
    counts = [int(c) for c in call.counts]
    call.counts = pick(call.rng, [
        np.array(counts, np.int16), np.array(counts, np.float32), torch.tensor(counts),
        tuple(counts), [Fraction(c, 7) for c in counts], [np.float64(c) / 3 for c in counts],
    ])  # fmt: skip


def more_options(call):
    call.options["num_batches"] = [1] * len(call.clients)
    call.options["round"] = pick(call.rng, [1, 2, 10**6, np.int64(3)])


def odd_out(call):
    """A place for the result: of its own, the server's or a client's, with gaps."""
    how = pick(call.rng, ["fresh", "spread", "origin", "client"])
    if how == "fresh":
        call.out = [_fresh(value) for value in call.origin]
    elif how == "spread":
        rooms = [_fresh(value, 3) for value in call.origin]
        call.out = [room[..., 1] for room in rooms]
        call.gaps = rooms
    elif all(_writable(value) for value in call.origin) and how == "origin":
        call.out = call.origin
    elif how == "client":
        k = int(call.rng.integers(len(call.clients)))
        if all(_writable(value) for value in call.clients[k]):
            call.out = call.clients[k]


def _fresh(value, *more):
    if isinstance(value, torch.Tensor):
        return torch.full((*value.shape, *more), 9.0, dtype=value.dtype)
    return np.full((*value.shape, *more), 9.0, dtype=value.dtype)


def _writable(value):
    if isinstance(value, torch.Tensor):
        strides = zip(value.shape, value.stride(), strict=True)
        return not value.requires_grad and all(n < 2 or stride for n, stride in strides)
    strides = zip(value.shape, value.strides, strict=True)
    steps = all(n < 2 or s > 0 for n, s in strides)
    return steps and value.flags.writeable and value.flags.aligned


def rows_of_one_array(call):
    """All clients in one array, [M, …]."""
    if call.kind in ("array", "tensor"):
        call.whole, call.listed, call.ids = True, True, list(range(len(call.clients)))


ODD = [
    odd_client, odd_client, odd_origin, same_twice, far_away, broadcast_client, some_dropped,
    other_counts, more_options, odd_out, odd_out, rows_of_one_array,
]  # fmt: skip


# --- wrong ---


def _changed_tensor(change):
    """A tensor of a client becomes another; it is wrong where `change` returns one."""

    def apply(call, clients):
        k = int(call.rng.integers(len(clients)))
        place = int(call.rng.integers(len(call.shapes)))
        pieces = list(call.clients[k])
        found = change(call, pieces[place])
        if found is None:
            return False
        pieces[place] = found
        clients[k] = assembled(call, pieces)
        return True

    return apply


def _as(dtype, torch_dtype):
    def convert(call, value):
        if isinstance(value, torch.Tensor):
            return None if torch_dtype in (None, value.dtype) else value.detach().to(torch_dtype)
        same = dtype is None or np.dtype(dtype) == value.dtype
        return None if same else value.astype(dtype)

    return convert


def _other_shape(call, value):
    shape = pick(call.rng, [s for s in [*SHAPES, (3, 2), (1, 3), (9,), (6,)] if s != value.shape])
    return torch.ones(shape).to(value) if isinstance(value, torch.Tensor) else np.ones(
        shape, value.dtype
    )  # fmt: skip


def _not_finite(call, value):
    call.options.pop("on_nonfinite", None)
    return _poisoned(call, value) if math.prod(value.shape) else None


def _of_tensors(change):
    return lambda call, value: change(value.detach()) if isinstance(value, torch.Tensor) else None


def _of_arrays(change):
    return lambda call, value: change(value) if isinstance(value, np.ndarray) else None


def _other_library(call, value):
    if isinstance(value, torch.Tensor):
        return None if value.dtype == torch.bfloat16 else value.detach().numpy()
    return torch.tensor(value.copy())


def junk_tensor(call, clients):
    k = int(call.rng.integers(len(clients)))
    pieces = list(call.clients[k])
    junk = [j for j in JUNK if not isinstance(j, np.ndarray | torch.Tensor)]
    pieces[int(call.rng.integers(len(pieces)))] = pick(call.rng, junk)
    clients[k] = assembled(call, pieces)
    return True


def junk_client(call, clients):
    clients[int(call.rng.integers(len(clients)))] = pick(
        call.rng, [j for j in JUNK if not isinstance(j, np.ndarray | torch.Tensor)]
    )
    return True


def missing_tensor(call, clients):
    if call.kind not in ("list", "tuple", "dict"):
        return False
    k = int(call.rng.integers(len(clients)))
    client = clients[k]
    if call.kind == "dict":
        gone = pick(call.rng, call.names)
        clients[k] = {name: value for name, value in client.items() if name != gone}
        if call.rng.integers(2):
            clients[k]["another"] = client[gone]
    else:
        clients[k] = pick(call.rng, [client[:-1], (*client, client[0]), [*client, client[0]]])
    return True


def other_form(call, clients):
    k = int(call.rng.integers(len(clients)))
    pieces = call.clients[k]
    others = {"list": list(pieces), "tuple": tuple(pieces), "dict": {"layer.0": pieces[0]},
              "array": pieces[0]}  # fmt: skip
    kind = "array" if call.kind == "tensor" else call.kind
    clients[k] = pick(call.rng, [form for name, form in others.items() if name != kind])
    return True


BAD_CLIENTS = [
    *[_changed_tensor(_as(*pair)) for pair in [
        (np.int32, torch.int32), (bool, torch.bool), (complex, torch.complex64),
        (np.float16, torch.float16), (np.float64, torch.float64), (">f4", None), (object, None),
        (np.longdouble, None), ("U8", torch.float8_e4m3fn), (np.uint8, torch.uint8),
    ]],
    _changed_tensor(_other_shape), _changed_tensor(_other_shape), _changed_tensor(_not_finite),
    _changed_tensor(_not_finite), _changed_tensor(_other_library),
    _changed_tensor(_of_tensors(lambda t: t.to_sparse() if t.ndim else None)),
    _changed_tensor(_of_tensors(lambda t: t.to("meta"))),
    _changed_tensor(_of_tensors(lambda t: torch.nested.nested_tensor([torch.ones(2).to(t)]))),
    _changed_tensor(_of_arrays(lambda a: np.ma.array(a))),
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
    value = pick(call.rng, ["junk", "not finite", "dtype"])
    if value == "junk":
        arguments["global_params"] = pick(
            call.rng, [j for j in JUNK if not isinstance(j, np.ndarray | torch.Tensor)]
        )
        return True
    pieces = list(call.origin)
    place = next(n for n, shape in enumerate(call.shapes) if math.prod(shape))
    if value == "dtype":
        pieces[place] = _as(np.int64, torch.int64)(call, pieces[place])
    else:
        pieces[place] = _poisoned(call, pieces[place])
    arguments["global_params"] = assembled(call, pieces)
    return True


def bad_clients(call, arguments):
    arguments["client_params"] = pick(
        call.rng,
        [j for j in JUNK if not isinstance(j, list | dict | tuple | np.ndarray | torch.Tensor)],
    )
    return True


def bad_option(call, arguments):
    size = len(call.clients)
    counts = [1] * size
    k = int(call.rng.integers(size))
    spoilt = list(counts)
    spoilt[k] = pick(
        call.rng, [-1, math.nan, math.inf, "3", None, True, 2**60, 10**400, 1j, [1], np.ones(2)]
    )
    not_lists = [j for j in JUNK if j is not None and not isinstance(j, list | dict | tuple | range)
                 and not isinstance(j, np.ndarray | torch.Tensor)]  # fmt: skip
    name, value = pick(call.rng, [
        ("num_samples", spoilt), ("num_batches", spoilt), ("num_samples", counts[1:]),
        ("num_batches", [*counts, 1]), ("client_samples", spoilt), ("num_samples", {}),
        ("num_samples", pick(call.rng, not_lists)), ("num_batches", pick(call.rng, not_lists)),
        ("client_samples", pick(call.rng, not_lists)), ("num_samples", np.ones((size, 2))),
        ("num_samples", torch.ones(size, device="meta")), ("num_samples", torch.eye(size)),
        ("num_samples", torch.ones(size).to_sparse()), ("num_batches", np.full(size, "a")),
        ("num_clients", pick(call.rng, [0, -1, 1.5, "3", size - 1 or 0, math.nan, 10**400, [1]])),
        ("round", pick(call.rng, [0, -1, 1.5, "1", math.nan, math.inf, None, [1], np.ones((2, 2)),
                                  10**400, torch.ones(2)])),
        ("on_nonfinite", pick(call.rng, JUNK)),
        ("uploads", pick(call.rng, not_lists)), ("uploads", {"update": arguments["client_params"]}),
        ("uploads", {"control": pick(call.rng, not_lists)}),
        ("state", pick(call.rng, not_lists)),
        ("state", {"r": pick(call.rng, not_lists)}),
        ("out", pick(call.rng, [j for j in JUNK if j is not None])),
        ("out", _overlapping(call)), ("out", _elsewhere(call)),
    ])  # fmt: skip
    arguments[name] = value
    return True


def _overlapping(call):
    """Room for one where there have to be two, or none of its own for a number."""
    if len(call.shapes) > 1:
        place = pick(call.rng, [n for n, s in enumerate(call.shapes) if math.prod(s)])
        value = call.origin[place]
        pieces = [
            value if shape == call.shapes[place] and dtype == call.dtypes[place] else _fresh(other)
            for other, shape, dtype in zip(call.origin, call.shapes, call.dtypes, strict=True)
        ]
        if sum(piece is value for piece in pieces) > 1:
            return assembled(call, [_fresh(value)] * len(pieces))
    return {"nothing": "of the kind"}


def _elsewhere(call):
    """Of another shape or dtype, or not to be written to."""
    pieces = [_fresh(value) for value in call.origin]
    place = next(n for n, shape in enumerate(call.shapes) if math.prod(shape))
    value = pieces[place]
    if isinstance(value, torch.Tensor):
        options = [value[None], value.to(torch.complex64), value.to("meta")]
        if value.numel() > 1:
            options.append(value.reshape(-1)[0].expand(value.shape))
    else:
        frozen = value.copy()
        frozen.flags.writeable = False
        options = [value[None], value.astype(complex), frozen]
        if value.size > 1:
            options.append(np.broadcast_to(value.reshape(-1)[0], value.shape))
    pieces[place] = pick(call.rng, options)
    return assembled(call, pieces)


# --- what comes of it ---


def numbers(value):
    if isinstance(value, torch.Tensor):
        return value.detach().double().numpy().reshape(-1)
    return np.asarray(value, np.float64).reshape(-1)


def flat(pieces):
    return np.concatenate([numbers(value) for value in pieces])


def leaves(value, found=None):
    """All arrays and tensors anywhere in arguments."""
    found = [] if found is None else found
    if isinstance(value, np.ndarray | torch.Tensor):
        found.append(value)
    elif isinstance(value, dict | UserDict | MappingProxyType):
        for entry in value.values():
            leaves(entry, found)
    elif isinstance(value, list | tuple):
        for entry in value:
            leaves(entry, found)
    return found


def marks(values):
    """The bytes of arrays and tensors."""
    found = []
    for value in values:
        if isinstance(value, np.ndarray):
            found.append(value.tobytes() if value.dtype != object else repr(value))
        elif value.is_nested or value.layout != torch.strided or value.device.type == "meta":
            found.append(None)
        else:
            plain = value.detach()
            plain = torch.view_as_real(plain) if plain.is_complex() else plain
            copied = torch.empty(plain.shape, dtype=plain.dtype).copy_(plain).reshape(-1)
            found.append((copied.view(torch.uint8).numpy().tobytes(), value.requires_grad))
    return found


def names_in(call):
    return {"fedsdg of the others": {"type": "fedsdg", "reference": "leave_one_out"},
            "fedsdg by softmax": {"type": "fedsdg", "transform": "softmax"},
            "krum": {"type": "krum", "f": call.f}, "multikrum": {"type": "multikrum", "f": call.f},
            "trimmed-mean": {"type": "trimmed-mean", "f": call.f},
            }.get(call.rule, call.rule)  # fmt: skip


def arguments_of(call):
    clients = [
        assembled(call, pieces, shuffled=bool(call.rng.integers(4) == 0)) for pieces in call.clients
    ]
    return clients, {
        "rule": names_in(call),
        "global_params": assembled(call, call.origin),
        **call.options,
    }


def with_clients(call, clients, arguments):
    if call.whole:
        rows = [pieces[0] for pieces in call.clients]
        together = torch.stack(rows).detach() if call.tensors else np.stack(rows)
        arguments["client_params"] = together
    elif call.listed:
        arguments["client_params"] = pick(call.rng, [list, tuple])(clients)
    else:
        arguments["client_params"] = dict(zip(call.ids, clients, strict=True))
    if call.rule == "cgsv":
        arguments.setdefault("client_samples", call.counts)
    elif call.rule == "fedavg":
        arguments.setdefault("num_samples", call.counts)
    return arguments


def accepted(call, theta, rows, kept):
    """All results that the rule may have, as vectors; none where it must refuse the call."""
    x = rows[kept] - theta
    size, f = len(x), call.f
    counts = np.array([float(c) for c in np.asarray(call.counts).tolist()])[kept]
    coarsest = max(torch.finfo(DTYPES[dtype]).eps for dtype in call.dtypes)
    noise = 0.5 * coarsest * np.sqrt((rows[kept] ** 2).sum(1)).max()
    if call.rule == "fedavg":
        return references.mean(x, counts) if counts.sum() > 0 else []
    if call.rule == "fedavg-uniform":
        return references.mean(x, np.ones(size))
    if call.rule == "coordinate-median":
        return references.median(x)
    if call.rule == "trimmed-mean":
        return references.trimmed_mean(x, f) if size > 2 * f else []
    if call.rule in ("krum", "multikrum"):
        if size < 2 * f + 3:
            return []
        return references.multikrum(x, f, 1 if call.rule == "krum" else size - f)
    if call.rule == "cgsv":
        return references.cgsv(x, counts) if counts.sum() > 0 else []
    reference = "leave_one_out" if call.rule == "fedsdg of the others" else "mean"
    transform = "softmax" if call.rule == "fedsdg by softmax" else "relu"
    return references.fedsdg(x, reference, transform, 0.05, noise)


def allowed(call, rows, theta):
    """[d] how far a result may be off: rounding of the parameters, of updates, of weights."""
    eps = np.concatenate([
        np.full(math.prod(shape), torch.finfo(DTYPES[dtype]).eps)
        for shape, dtype in zip(call.shapes, call.dtypes, strict=True)
    ])  # fmt: skip
    of_updates = torch.finfo(torch.float64 if "float64" in call.dtypes else torch.float32).eps
    largest = max(np.abs(rows).max(), np.abs(theta).max())
    return 4 * eps * largest + 1e3 * of_updates * largest


def check_result(call, found):
    """What is wrong with the result of a call that is right."""
    theta = call.before[0]
    rows = np.array(call.before[1:]).reshape(len(call.clients), -1)
    kept = np.isfinite(rows).all(1)
    with np.errstate(all="ignore"):
        results = accepted(call, theta, rows, kept) if kept.any() else []
        if not results and call.rule != "geometric-median":
            return "a result where an error was due"
        if call.given_out is not None and found.parameters is not call.given_out:
            return "the result is not out"
        values = flat(leaves(found.parameters))
        slack = allowed(call, rows[kept], theta)
        if call.rule == "geometric-median":
            x = rows[kept] - theta
            room = len(x) * np.sqrt((slack**2).sum())
            if references.far_from_median(x, values - theta, 1e-6, room):
                return f"{values - theta} is no geometric median of {x.tolist()}"
            return None
        if not any((np.abs(values - (theta + step)) <= slack).all() for step in results):
            return f"{values - theta} instead of {results[0]}"
    if len(found.dropped) != (~kept).sum():
        return f"dropped {found.dropped}"
    weights = found.weights
    if weights is not None:
        each = list(weights.values()) if isinstance(weights, dict) else weights
        if len(each) != len(kept) or abs(sum(each) - 1) > 1e-9 or min(each) < 0:
            return f"weights {weights}"
    return None


def check(rng):
    """One call of `aggregate`; what is wrong with its outcome, or None."""
    call = drawn_call(rng)
    for _ in range(pick(rng, [0, 1, 1, 2, 3])):
        change = pick(rng, ODD)
        change(call)
        call.edits.append(change.__name__)
    clients, arguments = arguments_of(call)
    wrong = False
    if rng.random() < 0.6:
        group = int(rng.integers(3))
        if group == 0:
            call.whole = False
            change = pick(rng, BAD_CLIENTS)
            wrong = change(call, clients)
            arguments.update({k: v for k, v in call.options.items() if k == "on_nonfinite"})
            if "on_nonfinite" not in call.options:
                arguments.pop("on_nonfinite", None)
            arguments = with_clients(call, clients, arguments)
        else:
            arguments = with_clients(call, clients, arguments)
            change = bad_option if group == 1 else pick(rng, [bad_rule, bad_global, bad_clients])
            wrong = change(call, arguments)
        call.edits.append(getattr(change, "__name__", "change"))
    else:
        arguments = with_clients(call, clients, arguments)
    if call.out is not None and "out" not in arguments:
        arguments["out"] = assembled(call, call.out)
    return outcome(call, arguments, wrong)


def outcome(call, arguments, wrong):
    call.before = [flat(pieces) for pieces in (call.origin, *call.clients)]
    call.given_out = arguments.get("out")
    given = leaves(list(arguments.values()))
    before, rooms = marks(given), [room.clone() if isinstance(room, torch.Tensor) else room.copy()
                                   for room in call.gaps]  # fmt: skip
    fault = None
    try:
        found = aggregate(**arguments)
    except Exception as error:
        fault = documented(error)
        if fault is None and not wrong and due(call) is None:
            fault = f"refused: {error}"
        targets = []
    else:
        targets = leaves(arguments.get("out"))
        fault = "accepted" if wrong else check_result(call, found)
    after = marks(given)
    for value, old, new in zip(given, before, after, strict=True):
        mine = isinstance(value, np.ndarray | torch.Tensor) and any(
            _same_place(value, target) for target in targets
        )
        if old != new and not mine and fault is None:
            fault = "an input was altered"
    for room, old in zip(call.gaps, rooms, strict=True):
        if not (room[..., ::2] == old[..., ::2]).all():
            fault = fault or "something beside the result was altered"
    return fault and f"{fault} [{call.rule}, {call.kind}, {call.dtypes}, {call.edits}]"


def _same_place(value, target):
    def start(one):
        one = one.detach() if isinstance(one, torch.Tensor) else one
        return one.data_ptr() if isinstance(one, torch.Tensor) else one.ctypes.data

    odd = [one for one in (value, target) if isinstance(one, torch.Tensor)]
    if any(one.is_nested or one.layout != torch.strided for one in odd):
        return False
    return value is target or start(value) == start(target)


def due(call):
    """Why a call without a mistake has to be refused all the same, if it has to."""
    theta = call.before[0]
    rows = np.array(call.before[1:]).reshape(len(call.clients), -1)
    kept = np.isfinite(rows).all(1)
    if not kept.any():
        return "nobody is left"
    if call.rule == "geometric-median":
        return None
    with np.errstate(all="ignore"):
        results = accepted(call, theta, rows, kept)
    if not results:
        return "too few"
    most = np.concatenate([
        np.full(math.prod(shape), torch.finfo(DTYPES[dtype]).max)
        for shape, dtype in zip(call.shapes, call.dtypes, strict=True)
    ])  # fmt: skip
    return "it overflows" if any((np.abs(theta + r) > most).any() for r in results) else None


# --- FedSDG's own door ---


def check_dictionaries(rng):
    """One call of `fedsdg_server_aggregate`; what is wrong with its outcome, or None."""
    call = drawn_call(rng)
    while not call.tensors:
        call = drawn_call(rng)
    call.kind, call.rule = "dict", "fedsdg"
    for _ in range(int(rng.integers(3))):
        change = pick(rng, [odd_client, odd_origin, same_twice, far_away, broadcast_client])
        change(call)
        call.edits.append(change.__name__)
    options, wrong = {}, False
    if rng.random() < 0.3 and not call.large:
        options["clip_norm"] = float(10.0 ** rng.uniform(-3, 1))
    if rng.random() < 0.3:
        options["max_weight"] = min(1.0, float(rng.uniform(1, 2)) / len(call.clients))
    if rng.random() < 0.3:
        options["debug"] = True
    if rng.random() < 0.3:
        options["reference"] = "leave_one_out" if not call.large else "mean"
    clients = [assembled(call, pieces) for pieces in call.clients]
    origin = assembled(call, call.origin)
    if rng.random() < 0.5:
        wrong, change = True, pick(rng, [*BAD_CLIENTS, None, None, None, None])
        if change is None:
            name, value = pick(rng, [
                ("epsilon", pick(rng, [0, -1, 1, math.nan, "x", None, [], 10**400])),
                ("max_weight", pick(rng, ["x", 0, 2, math.nan, 1e-9, [1], 1j, 10**400])),
                ("clip_norm", pick(rng, ["x", 0, -1, math.nan, math.inf, [1], 10**400])),
                ("reference", pick(rng, ["", None, 3, ["mean"], np.ones((2, 2))])),
                ("transform", pick(rng, ["", None, 3, np.ones(2)])),
                ("temperature", pick(rng, [0, -1, math.nan, "x", None, 10**400])),
                ("smoothing", pick(rng, [-1, 2, math.nan, "x", None])),
                ("global_params", pick(rng, JUNK)), ("client_params", pick(rng, [
                    j for j in JUNK if not isinstance(j, list | dict | tuple | range)])),
            ])  # fmt: skip
            options[name] = value
        else:
            wrong = change(call, clients)
            # Here clients may have other dtypes than the server.
            wrong = wrong and not _of_dtypes(call, clients)
        call.edits.append(getattr(change, "__name__", f"{options}"))
    given_clients = clients if call.listed else dict(zip(call.ids, clients, strict=True))
    arguments = {"global_params": origin, "client_params": given_clients, **options}
    call.before = [flat(pieces) for pieces in (call.origin, *call.clients)]
    given = leaves(list(arguments.values()))
    before = marks(given)
    try:
        aggregated, weights, *_ = fedsdg_server_aggregate(**arguments)
    except Exception as error:
        fault = documented(error)
        if fault is None and not wrong:
            fault = f"refused: {error}"
    else:
        each = list(weights.values()) if isinstance(weights, dict) else weights
        fault = "accepted" if wrong else _check_server(call, clients, options, aggregated, each)
    if marks(given) != before:
        fault = fault or "an input was altered"
    return fault and f"{fault} [{call.dtypes}, {call.edits}]"


def _of_dtypes(call, clients):
    """Whether all that was changed is the floating dtype of some tensors."""
    for client in clients:
        if not isinstance(client, dict | UserDict | MappingProxyType):
            return False
        for name, shape in zip(call.names, call.shapes, strict=True):
            value = client.get(name)
            plain = isinstance(value, torch.Tensor) and not value.is_nested
            if not plain or value.dtype not in DTYPES.values() or tuple(value.shape) != shape:
                return False
            if value.layout != torch.strided or value.device.type == "meta":
                return False
            if not torch.isfinite(value).all():
                return False
        if len(client) != len(call.names):
            return False
    return True


def _check_server(call, clients, options, aggregated, weights):
    theta = call.before[0]
    rows = np.array([flat([client[name] for name in call.names]) for client in clients])
    x = rows - theta
    clip = options.get("clip_norm")
    with np.errstate(all="ignore"):
        if clip is not None:
            lengths = np.linalg.norm(x, axis=1)
            x = x * (clip / np.maximum(lengths, clip))[:, None]
        used = {c.dtype for client in clients for c in client.values()}
        coarsest = max(torch.finfo(dtype).eps for dtype in used | {DTYPES[d] for d in call.dtypes})
        noise = 0.5 * coarsest * np.sqrt((rows**2).sum(1)).max()
        cap = options.get("max_weight")
        reference = options.get("reference", "mean")
        candidates = references.fedsdg_weights(x, reference, noise)
        values = flat([aggregated[name] for name in call.names])
        slack = allowed(call, rows, theta) + 4 * coarsest * np.abs(rows).max()
        for expected in candidates:
            if cap is not None:
                expected = references.capped(expected, cap)
            step = np.asarray(expected) @ x
            if (np.abs(values - (theta + step)) <= slack).all():
                break
        else:
            return f"{values - theta} with weights {weights} instead of {candidates[0]}"
    if abs(sum(weights) - 1) > 1e-9 or min(weights) < 0 or (cap and max(weights) > cap * 1.000001):
        return f"weights {weights}"
    return None
