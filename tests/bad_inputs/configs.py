"""The door for configs: mappings of every kind, texts that are no YAML, values of `--set`."""

import copy
import datetime
import json
import math

import numpy as np
import torch

from fedsdg.aggregation import aggregate
from fedsdg.aggregation.rule_table import rules
from fedsdg.data.skew import parse_skew
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.method_entries import OVERRIDES
from fedsdg.experiment.possible import require_possible
from fedsdg.files import canonical_json
from fedsdg.methods.declared import choices, methods
from fedsdg.methods.plugins import find_method

from .outcomes import documented, pick

METHODS, ATTACKS = methods(), choices("attacks")

DOCUMENTED = (ValueError, FileNotFoundError)
JUNK = [
    None, True, False, 0, 1, -1, 3, 10**9, 10**400, -(10**400), 0.5, -0.5, 1.5, 1e-300, 1e300,
    math.nan, math.inf, -math.inf, "", "text", "1e-4", "all", "~", "a/b", "../x", "x" * 300, "λ",
    "a\nb", [], [1], ["text"], [[]], [None], [{}], {}, {"a": 1}, {1: 2}, {None: None}, {"type": 3},
    {"type": "fedsdg"}, {"name": "x"}, datetime.date(2026, 1, 1), b"bytes", (1, 2), {1, 2},
    [1, 1], [math.nan], [0, 1, "log"], [1, 0, "log"], ["a", "b", "linear"], {"mu": [1]}, 2**63,
]  # fmt: skip
BACKBONE = {
    "source": "pretrain", "data": "letters", "image_size": 8, "patch_size": 4, "channels": 1,
    "dim": 64, "depth": 6, "heads": 4, "images": 60000, "epochs": 6, "batch_size": 256,
    "learning_rate": 0.002, "weight_decay": 0.05, "seed": 0, "threads": 1,
}  # fmt: skip
SKEWS = [
    "dirichlet~0.1", "dirichlet~1.0", "iid", "classes~2", "quantity~0.5", "dirichlet~30.0",
]  # fmt: skip
ODD_SKEWS = [
    "dirichlet~" + "9" * 400, "dirichlet~0." + "0" * 400 + "1", "classes~" + "9" * 30, "mixed~0.5",
    "dirichlet~.5", "dirichlet~0.10", "dirichlet~1", "quantity~0", "mixed~1.0~1.0", "column~", "",
    "classes~02", "mixed~0.50~1.0", "dirichlet~٣", "classes~5000000000000", "iid\n",
]  # fmt: skip


def value_of(rng, parameter):
    """Something that the parameter says it takes: an end of its range, or a value within."""
    if parameter.optional and rng.random() < 0.2:
        return None
    if parameter.several:
        return list(parameter.default or [1.0, 2.0])
    if parameter.choices:
        return pick(rng, parameter.choices)
    if parameter.kind is bool:
        return bool(rng.integers(2))
    low, high = parameter.range.least, parameter.range.most
    low = -3 if low is None else low
    high = max(low, 0) * 2 + 5 if high is None else high
    value = pick(rng, [low, high, low + (high - low) * rng.random(), parameter.default])
    if value is None:
        return None
    return math.ceil(value) if parameter.kind is int else float(value)


def method(rng):
    kind = pick(rng, list(METHODS))
    known = METHODS[kind].parameters
    entry = {"type": kind}
    for key in known:
        if rng.random() < 0.5:
            value = value_of(rng, known[key])
            if value is not None or known[key].optional:
                entry[key] = value
    for key in OVERRIDES:
        if rng.random() < 0.05:
            entry[key] = {"optimiser": pick(rng, ["adam", "sgd"]), "refresh": 1,
                          "private_optimiser": "keep"}.get(key, 0.01)  # fmt: skip
    if rng.random() < 0.3:
        entry["name"] = f"label-{rng.integers(100)}"
    return entry if len(entry) > 1 else kind


def condition(rng):
    kind = pick(rng, list(ATTACKS))
    return pick(rng, [
        {"attack": {"type": kind, "share": pick(rng, [0, 0.2, 0.5]), **{
            key: value_of(rng, known) for key, known in ATTACKS[kind].parameters.items()}}},
        {"dropout": {"probability": float(rng.random()), "lasting": bool(rng.integers(2))}},
        {"label_noise": {"low": 0.1, "high": pick(rng, [0.1, 0.4, 1])}},
        {"label_conflict": {"share": 0.5, "classes": 4, "per": "client"}},
        {"feature_shift": {"share": 0.5, "per": "group", "groups": int(rng.integers(1, 5))}},
        {"compute": {"fastest": 4, "deadline": pick(rng, [None, 60])}},
        {"benchmark_images": 100},
    ])  # fmt: skip


def drawn(rng):
    """A config that is, but for what parameters forbid together, right."""
    clients = int(rng.integers(5, 30))
    raw = {
        "experiment": pick(rng, ["label-skew", "a", "x.y+z"]),
        "datasets": [pick(rng, ["digits", "mnist", "usps"])],
        "skews": [SKEWS[k] for k in rng.choice(len(SKEWS), int(rng.integers(1, 4)), replace=False)],
        "seeds": rng.choice(50, int(rng.integers(1, 4)), replace=False).tolist(),
        "backbone": "letters",
        "backbones": {"letters": dict(BACKBONE)},
        "federation": {
            "clients": clients, "clients_per_round": int(rng.integers(1, clients + 1)),
            "rounds": int(rng.integers(1, 50)), "evaluate_every": int(rng.integers(1, 9)),
        },
        "partition": {"min_samples": int(rng.integers(3, 20))},
        "training": {"epochs": 1, "batch_size": pick(rng, [16, None]), "eta_g": 0.01},
        "adapters": {"rank": int(rng.integers(1, 9)), "alpha": 16},
        "methods": [method(rng) for _ in range(int(rng.integers(1, 4)))],
        "checkpoint_seconds": pick(rng, [0, 30, 0.2]),
    }  # fmt: skip
    if rng.random() < 0.4:
        raw["conditions"] = {**condition(rng), **condition(rng)}
    if rng.random() < 0.3:
        raw["scenarios"] = {"a": {"conditions": condition(rng)}, "b": {"training": {"epochs": 2}}}
    if rng.random() < 0.3:
        raw["search"] = {
            "seeds": [100], "trials": 4, "space": {"fedsdg": {"eta_g": [0.001, 0.1, "log"]}},
        }  # fmt: skip
    if rng.random() < 0.1:
        raw["datasets"] = [{"name": "pets", "folder": "pets", "label": "kind", "size": 32}]
    return raw


def places(tree, path=()):
    """Every path into nested mappings and lists."""
    found = []
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in entries:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += places(value, (*path, key))
    return found


def spoil(rng, raw):
    """Something else at a place: junk, a misspelt or a further key, a value twice, nothing."""
    path = pick(rng, places(raw))
    parent = raw
    for key in path[:-1]:
        parent = parent[key]
    how = pick(rng, ["junk", "junk", "junk", "gone", "misspelt", "more", "twice", "skew", "cycle"])
    last = path[-1]
    if how == "junk":
        parent[last] = copy.deepcopy(pick(rng, JUNK))
    elif how == "gone":
        del parent[last]
    elif how == "misspelt" and isinstance(parent, dict):
        parent[pick(rng, [f"{last}s", str(last).upper(), 3, None, "", (1, 2)])] = parent.pop(last)
    elif how == "more" and isinstance(parent, dict):
        parent[pick(rng, ["more", "clientss", 7, None, "type", "name"])] = pick(rng, JUNK)
    elif how == "twice" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[last]))
    elif how == "skew":
        raw["skews"] = [pick(rng, ODD_SKEWS)]
    elif how == "cycle":
        parent[last] = pick(rng, [{}, []])
        if isinstance(parent[last], dict):
            parent[last]["again"] = parent[last]
        else:
            parent[last].append(parent[last])
    return f"{how} at {path}"


def check(rng):
    """One config; what is wrong with its outcome, or None."""
    raw, edits = drawn(rng), []
    for _ in range(pick(rng, [0, 0, 1, 1, 1, 2])):
        try:
            edits.append(spoil(rng, raw))
        except (KeyError, IndexError, RecursionError):
            break
    before = _marks(raw)
    try:
        config = parse_config(raw)
    except Exception as error:
        fault = documented(error, kinds=DOCUMENTED)
    else:
        fault = wrong_config(rng, raw, config)
    if _marks(raw) != before:
        fault = fault or "the mapping was altered"
    return fault and f"{fault} [{edits}]"


def _marks(raw):
    try:
        return repr(raw)
    except ValueError:  # Of integers of many digits.
        return None


def wrong_config(rng, raw, config):
    """What is wrong with a config that was taken: every value stands where it belongs, every run
    has its hash, and every part that a method names can be built and does its work."""
    for name in ("federation", "partition", "training", "adapters"):
        for key, value in raw.get(name, {}).items():
            found = getattr(getattr(config, name), key)
            if found != value:
                return f"{name}.{key} is {found!r}, given as {value!r}"
    for skew in config.skews:
        try:
            parse_skew(skew)
        except ValueError as error:
            return f"the skew {skew[:40]!r} was taken, but {error}"
    entry = pick(rng, config.methods)
    run = config.run(config.datasets[0], pick(rng, config.settings), entry, config.seeds[0])
    try:
        canonical_json(run.to_dict())
        assert len(run.hash) == 64
    except (ValueError, TypeError, OverflowError) as error:
        return f"a run without a hash: {error}"
    given = next(m for m in raw["methods"] if m == entry.type or (
        isinstance(m, dict) and m.get("name", m["type"]) == entry.label))  # fmt: skip
    for key, value in given.items() if isinstance(given, dict) else ():
        if key in entry.parameters and key not in ("type", "name"):
            found = entry.parameters[key]
            if found != (tuple(value) if isinstance(value, list) else value):
                return f"{entry.label}.{key} is {found!r}, given as {value!r}"
    try:
        require_possible(config, entry.label)
    except ValueError:  # As a command would say before it does anything.
        return None
    try:
        built = find_method(entry.type, entry.plugin).with_values(run.parameters)
        if run.conditions.attack is not None:
            run.conditions.attack.build()
    except Exception as error:
        return f"taken, but {entry.label} cannot be built: {type(error).__name__}: {error}"
    return _wrong_rule(rng, built.rule, entry.type, run)


def _wrong_rule(rng, rule, name, run):
    """The rule does its work for as many clients as the config has in a round."""
    size = run.federation.clients_per_round
    if name not in rules() or size > 30 or getattr(rule, "reads", ("update",)) != ("update",):
        return None
    shared = torch.full((5,), 0.5)
    clients = shared + torch.tensor(rng.normal(size=(size, 5))).float()
    counts = dict.fromkeys(("num_samples", "num_batches", "client_samples"), [3] * size)
    try:
        found = aggregate(rule, torch.zeros(5), clients, **counts)
    except ValueError as error:
        return f"taken, but {name} fails with {size} clients: {error}"
    return None if np.isfinite(found.parameters.numpy()).all() else f"{name} gives no numbers"


TEXTS = [
    b"", b"\xff\xfe", b"[", b"{", b"a: b: c", b"- 1\n- 2", b"3", b"null", b"a: &x [*x]", b"\t",
    b"&a [*a]", b"[" * 3000, b"a: !!python/object:os.system x", b"? [1]\n: 2", b"%YAML 9.9\n---\n1",
    b"a: *b", b"1: 2", b"seeds: [1, 2", b"'", b"a:\n\t- 1", b"\x00", b"a: !!int x", b"<<: 3",
    b"a: 2026-99-99", b"---\na: 1\n---\nb: 2", b"!!set {a, b}", b"a: !!binary x", b"0o9", b"=",
]  # fmt: skip
SETTINGS = [
    "", "=", "a", "a=", "=1", "a..b=1", ".a=1", "a.=1", "federation=3", "federation.rounds=",
    "federation.rounds=[", "federation.rounds=.inf", "federation.rounds=.nan", "seeds=3",
    "federation.rounds=1e400", "methods.0=fedavg", "methods=[fedsdg, [", "seeds=&a [*a]",
    "training.eta_g=1e-4", "training=null", "backbones.letters=3", "skews=[dirichlet~1]",
    "federation.rounds=" + "9" * 5000, "federation.rounds=" + "[" * 900, "conditions=3",
    "federation.rounds=!!python/name:os", "federation.rounds=\x00", "=".join("ab" * 50),
]  # fmt: skip


def check_text(rng, folder):
    """A file that may be no YAML, and values laid over it; what is wrong, or None."""
    raw = {key: value for key, value in drawn(rng).items() if key not in ("search", "scenarios")}
    text = json.dumps(raw).encode()
    file, settings = folder / "config.yaml", []
    how = int(rng.integers(5))
    if how == 0:
        text = pick(rng, TEXTS)
    elif how == 1:
        text = text[: int(rng.integers(len(text)))]
    elif how == 2:
        at = int(rng.integers(len(text)))
        text = text[:at] + rng.bytes(int(rng.integers(1, 4))) + text[at + 1 :]
    else:
        settings = [pick(rng, SETTINGS)]
    file.write_bytes(text)
    paths = [pick(rng, [file, file, file, file, folder, folder / "none", "x" * 300, "a\0b"])]
    try:
        config = load_config(paths, settings)
    except Exception as error:
        fault = documented(error, kinds=DOCUMENTED)
        return fault and f"{fault} [{text[:60]!r}, {settings}, {paths}]"
    return wrong_config(rng, {"methods": [m.type for m in config.methods]}, config)
