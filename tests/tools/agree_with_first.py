"""Compare the second edition of aggregation with the first on random cases.

Run from the repository's root, where both editions are importable::

    python tests/tools/agree_with_first.py memory 0 500
    python tests/tools/agree_with_first.py files 0 100
    python tests/tools/agree_with_first.py ranks 0 60
    python tests/tools/agree_with_first.py rules 0 20

Prints how many cases differ by more than 1e-6 (relative l2 norm of the parameters), and the worst.
This script goes when the first edition goes.
"""

import argparse
import importlib
import multiprocessing
import os
import tempfile
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

import fedsdg.aggregation as first
import fedsdg.next_aggregation as second

BAR = 1e-6
RULES = [
    {"type": "fedavg"},
    {"type": "fedavg-uniform"},
    {"type": "fedsdg"},
    {"type": "fedsdg", "reference": "leave_one_out"},
    {"type": "fedsdg", "transform": "softmax", "smoothing": 0.1},
    {"type": "fedsdg", "max_weight": 0.6},
    {"type": "krum"},
    {"type": "multikrum"},
    {"type": "coordinate-median"},
    {"type": "trimmed-mean"},
    {"type": "geometric-median"},
    {"type": "cgsv"},
]
DTYPES = {"f4": ["f4"], "f8": ["f8"], "mixed": ["f4", "f8"], "half": ["f2", "f4"]}


def drawn_case(seed):
    """Return (rule, global parameters, clients' parameters, samples, facts) of a random case."""
    g = np.random.default_rng(seed)
    rule = RULES[seed % len(RULES)]
    least = {"krum": 5, "multikrum": 5, "trimmed-mean": 3}.get(rule["type"], 1)
    if "max_weight" in rule:
        least = 2
    size = int(g.integers(least, 14))
    shapes = [tuple(g.integers(1, 9, size=g.integers(1, 4))) for _ in range(g.integers(1, 8))]
    if g.random() < 0.25:
        shapes.append((int(g.integers(200, 400)), 1000))
    kind = str(g.choice(list(DTYPES), p=[0.5, 0.25, 0.15, 0.1]))
    theta = {}
    for number, shape in enumerate(shapes):
        dtype = str(g.choice(DTYPES[kind]))
        theta[f"layer{number}.w"] = g.standard_normal(shape).astype(dtype)
    scale = float(g.choice([1.0, 0.1, 1e-3]))
    common = float(g.choice([0, 0.3, 1.0]))
    updates = [
        {name: scale * (g.standard_normal(v.shape) + common) for name, v in theta.items()}
        for _ in range(size)
    ]
    attack = str(g.choice(["none", "duplicate", "zero", "far", "sign", "equal"]))
    if attack == "duplicate" and size > 2:
        updates[1] = dict(updates[0])
    if attack == "zero":
        updates[0] = {name: 0 * v for name, v in updates[0].items()}
    if attack == "far" and size >= 5:
        factor = 1e3 if kind == "half" else float(g.choice([1e2, 1e4, 1e6]))
        updates[0] = {name: factor * v for name, v in updates[0].items()}
    if attack == "sign":
        updates[0] = {name: -v for name, v in updates[0].items()}
    if attack == "equal":
        updates = [updates[0]] * size
    clients = [
        {name: (theta[name].astype("f8") + u[name]).astype(theta[name].dtype) for name in theta}
        for u in updates
    ]
    samples = g.integers(1, 50, size=size).tolist()
    form = str(g.choice(["numpy", "torch", "list", "transposed"]))
    return rule, theta, clients, samples, form, (attack, kind, size)


def in_form(params, form):
    """Return parameters as arrays, tensors, a list of them, or transposed tensors."""
    if form == "numpy":
        return params
    tensors = {name: torch.from_numpy(v.copy()) for name, v in params.items()}
    if form == "list":
        return list(tensors.values())
    if form == "transposed":
        return {n: t.t().contiguous().t() if t.ndim == 2 else t for n, t in tensors.items()}
    return tensors


def flat(params):
    """Return all numbers as float64."""
    values = params.values() if isinstance(params, dict) else params
    return np.concatenate([np.asarray(v, dtype="f8").ravel() for v in values])


def difference(a, b):
    """Return the relative l2 difference of parameters."""
    x, y = flat(a), flat(b)
    return float(np.linalg.norm(x - y) / max(np.linalg.norm(x), 1e-300))


def exact(seed):
    """Return the second edition's result in float64 for the same numbers."""
    rule, theta, clients, samples, _, _ = drawn_case(seed)
    wide = [{name: v.astype("f8") for name, v in params.items()} for params in (theta, *clients)]
    counts = {"num_samples": samples, "client_samples": samples}
    return second.aggregate(rule, wide[0], wide[1:], **counts).parameters


def from_memory(seed):
    """Return [difference, difference of weights] of a case in memory."""
    rule, theta, clients, samples, form, _ = drawn_case(seed)
    counts = {"num_samples": samples, "client_samples": samples}
    results = []
    for edition in (first, second):
        given = [in_form(client, form) for client in clients]
        results.append(edition.aggregate(rule, in_form(theta, form), given, **counts))
    a, b = results
    weights = 0.0
    if a.weights is not None:
        weights = float(np.abs(np.array(a.weights) - np.array(b.weights)).max())
    return [difference(a.parameters, b.parameters), weights]


def from_files(seed):
    """Return [difference] of a case from files."""
    rule, theta, clients, samples, _, _ = drawn_case(seed)
    counts = {"num_samples": samples, "client_samples": samples}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_file(in_form(theta, "torch"), folder / "global.safetensors")
        files = [folder / f"c{k}.safetensors" for k in range(len(clients))]
        for file, client in zip(files, clients, strict=True):
            save_file(dict(reversed(in_form(client, "torch").items())), file)
        results = []
        for number, edition in enumerate((first, second)):
            out = folder / f"new{number}.safetensors"
            if rule["type"] == "cgsv":
                counts["state_out"] = folder / f"state{number}.safetensors"
            given = (rule, folder / "global.safetensors", files, out)
            edition.aggregate_files(*given, memory=1 << 20, **counts)
            results.append(load_file(out))
        a, b = results
        return [difference({n: a[n] for n in theta}, {n: b[n] for n in theta})]


def over_ranks(rank, place, seeds, queue):
    """Run cases on a rank of two; rank 0 puts (by columns, by client) for each seed."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{place}", rank=rank, world_size=2,
        timeout=timedelta(seconds=120),
    )  # fmt: skip
    ranks = second.Ranks.of()

    def cut(params):
        return {
            name: t.reshape(-1)[t.numel() * rank // 2 : t.numel() * (rank + 1) // 2]
            for name, t in params.items()
        }

    for seed in seeds:
        rule, theta, clients, samples, _, _ = drawn_case(seed)
        theta = in_form(theta, "torch")
        clients = [in_form(client, "torch") for client in clients]
        counts = {"num_samples": samples, "client_samples": samples}
        shards = [cut(client) for client in clients]
        sharded = second.aggregate(rule, cut(theta), shards, ranks=ranks, **counts)
        mine = range(rank * len(clients) // 2, (rank + 1) * len(clients) // 2)
        whole = second.aggregate_by_client(
            rule, theta, {k: clients[k] for k in mine}, ranks=ranks,
            num_samples={k: samples[k] for k in mine}, client_samples=samples,
        )  # fmt: skip
        parts = ranks.gathered(lambda made=sharded: dict(made.parameters))
        if rank == 0:
            joined = {n: torch.cat([p[n] for p in parts]).view(t.shape) for n, t in theta.items()}
            expected = first.aggregate(rule, theta, clients, **counts).parameters
            pair = [difference(expected, joined), difference(expected, whole.parameters)]
            queue.put((seed, pair))
    dist.destroy_process_group()


def on_two_ranks(seeds):
    """Return {seed: (by columns, by client)}."""
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "rendezvous")
        processes = [
            context.Process(target=over_ranks, args=(rank, place, seeds, queue))
            for rank in range(2)
        ]
        for process in processes:
            process.start()
        results = dict(queue.get() for _ in seeds)
        for process in processes:
            process.join()
    return results


RULES_OF_THE_FEDERATION = [
    ("scaffold", "scaffold", "Scaffold", {}),
    ("fedcurv", "fedcurv", "FedCurv", {}),
    ("focus", "focus", "Focus", {}),
    ("no_aggregation", "no_aggregation", "NoAggregation", {}),
    ("cgsv", "cgsv", "Cgsv", {"step_scale": "unit"}),
    ("clusters", "clusters", "Clustered", {}),
    ("clusters", "clusters", "Clustered", {"beta": 0.4}),
    ("clusters", "clusters", "Clustered", {"beta": 0.5, "partials": 2}),
    ("neighbours", "neighbours", "Pens", {"phase_one": 2}),
    ("cgsv_xu", "cgsv_xu", "CgsvXu", {}),
    ("krum", "multikrum", "MultiKrum", {"m": 3}),
    ("trimmed_mean", "trimmed_mean", "TrimmedMean", {"f": 2}),
]
WRAPPED = [("mean", "Mean"), ("krum", "Krum"), ("alignment", "Alignment"),
           ("median", "CoordinateMedian")]  # fmt: skip


def of_both(old, new, name, **values):
    """Return a rule of the first and of the second edition."""
    modules = (f"fedsdg.aggregation.rules.{old}", f"fedsdg.next_aggregation.rules.{new}")
    return [getattr(importlib.import_module(module), name)(**values) for module in modules]


def contexts(g, size, total, everyone, **facts):
    """Return the same context for both editions."""
    from fedsdg.aggregation.types import Context as First
    from fedsdg.next_aggregation.types import Context as Second

    ids = np.arange(total) if everyone else np.sort(g.choice(total, size, replace=False))
    samples = g.integers(1, 30, total).astype(float)
    known = dict(round=1, clients=ids, num_clients=total, num_samples=samples[ids],
                 num_batches=samples[ids], client_samples=samples, **facts)  # fmt: skip
    return First(total_samples=int(samples.sum()), **known), Second(**known)


def largest(a, b):
    """Return the largest relative difference of arrays, NaN being equal to NaN."""
    x, y = (np.asarray(v.double() if isinstance(v, torch.Tensor) else v, float) for v in (a, b))
    if not x.size:
        return 0.0
    scale = max(np.nanmax(np.abs(x), initial=0), 1e-12)
    return float(
        np.nanmax(np.where(np.isnan(x) & np.isnan(y), 0, np.abs(x - y)), initial=0) / scale
    )


def as_the_federation_calls_them(seed):
    """Return the largest differences of steps, weights, state and diagnostics over four rounds."""
    g = np.random.default_rng(seed)
    size, total, d = 7, 12, 50

    def matrix(*shape):
        return torch.from_numpy(g.standard_normal(shape) + 0.3)

    worst = [0.0]
    jobs = [
        (of_both(old, new, name, **v), name, {}) for old, new, name, v in RULES_OF_THE_FEDERATION
    ]
    for module, name in WRAPPED:
        inner = of_both(module, module, name)
        for wrapper, facts in (("screened", {}), ("compensated", {"ages": g.integers(0, 3, size)})):
            if wrapper == "compensated" and name == "CoordinateMedian":
                continue
            pair = [
                getattr(importlib.import_module(f"fedsdg.{p}.rules.{wrapper}"), wrapper.title())(
                    rule
                )
                for p, rule in zip(("aggregation", "next_aggregation"), inner, strict=True)
            ]
            jobs.append((pair, f"{wrapper} {name}", facts))
    for (old, new), name, facts in jobs:
        everyone = name == "CgsvXu"
        count = {"Clustered": 3, "Pens": total, "CgsvXu": total}.get(name, 1)
        rows = total if everyone else size
        sent = {key: matrix(rows, d) for key in ("update", "control", "fisher", "fisher_theta")}
        sent |= {key: matrix(rows, 1).abs() for key in ("benchmark_loss", "global_loss")}
        sent["scores"] = matrix(rows, count).abs()
        if name.startswith("screened"):
            sent["update"][0] *= 50
        a_context, b_context = contexts(g, size, total, everyone, models=matrix(count, d), **facts)
        states = [rule.init(d, a_context.client_samples) for rule in (old, new)]
        for _ in range(4):
            a, b = old(sent, a_context, states[0]), new(sent, b_context, states[1])
            states = [a.state, b.state]
            values = [(a.steps, b.steps)]
            if a.weights is not None:
                values.append((a.weights, b.weights))
            values += [(v, b.state[k.removeprefix("inner.")]) for k, v in a.state.items()]
            skip = ("iterations", "residual", "control_norm")
            values += [(v, b.diagnostics[k]) for k, v in a.diagnostics.items() if k not in skip]
            difference_ = max(largest(x, y) for x, y in values)
            if difference_ > BAR:
                print(seed, name, f"{difference_:.1e}")
            worst.append(difference_)
    return [max(worst)]


def main():
    """Print how well the editions agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", choices=["memory", "files", "ranks", "rules"])
    parser.add_argument("begin", type=int)
    parser.add_argument("end", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = list(range(options.begin, options.end))
    if options.source == "ranks":
        found = on_two_ranks(seeds)
    else:
        compare = {
            "memory": from_memory,
            "files": from_files,
            "rules": as_the_federation_calls_them,
        }[options.source]
        found = {seed: compare(seed) for seed in seeds}
    worst = sorted(seeds, key=lambda seed: -max(found[seed]))
    beyond = [seed for seed in seeds if max(found[seed][:1]) > BAR]
    if options.source == "ranks":
        beyond = [seed for seed in seeds if max(found[seed]) > BAR]
    print(f"{len(seeds)} cases from {options.source}, {len(beyond)} differ by more than {BAR}")
    if options.source == "rules":
        print(f"largest difference: {found[worst[0]][0]:.1e}")
        return
    for seed in worst[:5]:
        rule, theta, clients, samples, form, facts = drawn_case(seed)
        print(seed, [f"{value:.1e}" for value in found[seed]], rule, form, *facts)
    for seed in beyond:
        rule, theta, clients, samples, form, _ = drawn_case(seed)
        counts = {"num_samples": samples, "client_samples": samples}
        truth = exact(seed)
        for name, edition in (("first", first), ("second", second)):
            given = [in_form(client, form) for client in clients]
            made = edition.aggregate(rule, in_form(theta, form), given, **counts)
            error = difference(truth, made.parameters)
            print(seed, name, f"against float64: {error:.1e}")


if __name__ == "__main__":
    main()
