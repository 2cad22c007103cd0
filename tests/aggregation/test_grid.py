"""Every rule × source × dtype × layout against one oracle in float64."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsdg.aggregation import aggregate, aggregate_files
from fedsdg.aggregation.rule_table import make_rule
from fedsdg.aggregation.types import Context

from . import cohorts, oracle
from .cohorts import backend

SAMPLES = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]
DTYPES = ("float16", "bfloat16", "float32", "float64")
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-9}
COUNTS = {"num_samples": SAMPLES, "client_samples": SAMPLES}


def from_dicts(layout):
    def source(rule, theta, clients, dtype, folder):
        made = aggregate(rule, layout(theta, dtype), [layout(c, dtype) for c in clients], **COUNTS)
        return made.parameters, made.weights

    return source


def from_files(rule, theta, clients, dtype, folder):
    save_file(cohorts.tensors(theta, dtype), folder / "g")
    for k, client in enumerate(clients):
        reordered = dict(reversed(cohorts.tensors(client, dtype).items()))
        save_file(reordered, folder / f"client-{k}.safetensors")
    files = [folder / f"client-{k}.safetensors" for k in range(len(clients))]
    made = aggregate_files(
        rule, folder / "g", files, folder / "new", state_out=folder / "state", memory=1 << 20,
        **COUNTS,
    )  # fmt: skip
    new = load_file(folder / "new")
    return {name: new[name] for name in theta}, made.weights


def from_matrix(rule, theta, clients, dtype, folder):
    kind = getattr(torch, dtype)
    rows = torch.tensor(np.array([cohorts.flat(c) for c in clients])).to(kind)
    base = torch.tensor(cohorts.flat(theta)).to(kind)
    made = aggregate(rule, base, rows, **COUNTS)
    return [made.parameters], made.weights


def from_rule(rule, theta, clients, dtype, folder):
    """The rule itself on updates [M, d], as the federation calls it."""
    given = torch.tensor(cohorts.updates(theta, clients))
    samples = np.array(SAMPLES)
    size = len(clients)
    context = Context(1, np.arange(size), size, samples, samples, samples)
    made = make_rule(rule)
    result = made({"update": given}, context, made.init(given.shape[1], samples))
    weights = None if result.weights is None else result.weights.tolist()
    return [torch.tensor(cohorts.flat(theta)) + result.steps[0]], weights


def with_numba(rule, theta, clients, dtype, folder):
    with backend("numba"):
        return from_dicts(cohorts.tensors)(rule, theta, clients, dtype, folder)


SOURCES = {
    "tensors": from_dicts(cohorts.tensors),
    "transposed": from_dicts(lambda p, d: cohorts.transposed(cohorts.tensors(p, d))),
    "strided": from_dicts(lambda p, d: cohorts.expanded(cohorts.tensors(p, d))),
    "list": from_dicts(lambda p, d: list(cohorts.tensors(p, d).values())),
    "arrays": from_dicts(lambda p, d: p),
    "read-only arrays": from_dicts(lambda p, d: cohorts.read_only(p)),
    "matrix": from_matrix,
    "rule": from_rule,
    "numba": with_numba,
    "files": from_files,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("rule", oracle.RULES)
def test_every_rule_from_every_source_is_what_its_definition_says(rule, source, dtype, tmp_path):
    theta, clients = cohorts.drawn(seed=3, dtype=dtype)
    step, weights = oracle.RULES[rule](cohorts.updates(theta, clients), SAMPLES)
    parameters, found = SOURCES[source](rule, theta, clients, dtype, tmp_path)
    expected = cohorts.flat(theta) + step
    scale = np.linalg.norm(expected)
    close = 1e-5 if rule == "geometric-median" else 1e-9
    tolerance = max(TOLERANCE[dtype], close)
    assert np.linalg.norm(cohorts.flat(parameters) - expected) <= tolerance * scale
    if weights is not None:
        assert found == pytest.approx(weights.tolist(), abs=2e-6)


@pytest.mark.parametrize("source", ["tensors", "numba", "files"])
@pytest.mark.parametrize("rule", oracle.RULES)
def test_tensors_of_several_dtypes_are_one_vector(rule, source, tmp_path):
    theta, clients = cohorts.drawn(seed=5, dtype="float64")
    kinds = dict(zip(theta, ("float32", "float64", "float16", "float32"), strict=True))
    theta, *clients = (
        {n: np.asarray(v, dtype=kinds[n]) for n, v in params.items()}
        for params in (theta, *clients)
    )
    step, _ = oracle.RULES[rule](cohorts.updates(theta, clients), SAMPLES)
    parameters, _ = SOURCES[source](rule, theta, clients, None, tmp_path)
    for name, value in parameters.items():
        assert str(value.dtype) == f"torch.{kinds[name]}"
    expected = cohorts.flat(theta) + step
    error = np.linalg.norm(cohorts.flat(parameters) - expected) / np.linalg.norm(expected)
    assert error <= 1e-3  # The result is rounded to float16 in one tensor.


@pytest.mark.parametrize("rule", oracle.RULES)
@pytest.mark.parametrize("size", [1, 2, 5, 6, 18, 40])
def test_any_number_of_clients(rule, size):
    least = {"krum": 5, "multikrum": 5, "trimmed-mean": 3}
    if size < least.get(rule, 1):
        pytest.skip("too few clients for f = 1")
    theta, clients = cohorts.drawn(seed=size, size=size, dtype="float64")
    samples = np.arange(1.0, size + 1)
    step, _ = oracle.RULES[rule](cohorts.updates(theta, clients), samples)
    expected = cohorts.flat(theta) + step
    for name in ("torch", "numba"):
        with backend(name):
            made = aggregate(rule, theta, clients, num_samples=samples, client_samples=samples)
        assert cohorts.flat(made.parameters) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("rule", [*oracle.RULES, "scaffold"])
def test_the_result_may_take_the_place_of_what_is_read(rule):
    theta, clients = cohorts.drawn(seed=1)
    given = {"uploads": {"control": clients}} if rule == "scaffold" else {}
    for target in (0, len(clients)):  # theta_g, and the last client.
        params = [cohorts.tensors(p) for p in (theta, *clients)]
        fresh = aggregate(rule, params[0], params[1:], **COUNTS, **_tensors(given))
        out = params[target]
        made = aggregate(rule, params[0], params[1:], out=out, **COUNTS, **_tensors(given))
        assert made.parameters is out
        for name in theta:
            assert torch.equal(out[name], fresh.parameters[name])


def _tensors(given):
    if not given:
        return given
    return {"uploads": {"control": [cohorts.tensors(c) for c in given["uploads"]["control"]]}}
