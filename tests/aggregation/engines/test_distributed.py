"""Aggregation over real processes of a torch.distributed group, against the single process."""

import numpy as np
import pytest
import torch

from fedsdg.aggregation import aggregate
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.krum import Krum
from fedsdg.aggregation.rules.trimmed_mean import TrimmedMean
from tests.bad_inputs.outcomes import EVERYTHING

from ..api_cases import EVERY_RULE, beside_a_large_head, draw, flat, needs
from .large_attackers import attacked, true_residual
from .world import World
from .world_cases import Fragile, bounds, mixed, own_clients

pytestmark = pytest.mark.slow  # To start the worlds takes some ten seconds.

RULES = [*EVERY_RULE, TrimmedMean(f=2)]
BY_COLUMN = ("control", "fisher", "fisher_theta")
"""What rules keep that has one number per parameter."""
M, D = 7, 41
THETA, CLIENTS = draw(3, M, D)


@pytest.fixture(scope="module", params=[2, 4])
def world(request, tmp_path_factory):
    made = World(request.param, tmp_path_factory.mktemp("world"))
    yield made
    made.close()


def alone(rule, theta, clients, dtype, rounds=1, **options):
    """The single process: vectors of a dtype, the parameters of each round from the last."""
    rows = [row.astype(dtype) for row in clients]
    given = {**needs(rule, len(rows), controls=rows), **options}
    state, params = None, theta.astype(dtype)
    for round_ in range(1, rounds + 1):
        result = aggregate(rule, params, rows, **given, state=state, round=round_)
        state, params = result.state, result.parameters
    return result


def close(found, expected, dtype):
    """Equal up to 1e-12 (float64) or 1e-6 (float32) of the norm, NaN where NaN is expected."""
    tolerance = {"float64": 1e-12, "float32": 1e-6}[dtype]
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    assert (np.isnan(found) == np.isnan(expected)).all()
    found, expected = np.nan_to_num(found), np.nan_to_num(expected)
    assert np.linalg.norm(found - expected) <= tolerance * max(np.linalg.norm(expected), 1e-3)


def check(outcomes, expected, dtype, *, whole):
    """Numbers that belong to the cohort are the same on all ranks and those of one process."""
    first = outcomes[0]
    for other in outcomes:
        for name in ("weights", "diagnostics", "dropped"):
            assert repr(other[name]) == repr(first[name])
    if expected.weights is None:
        assert first["weights"] is None
    else:
        weights = first["weights"]
        if isinstance(weights, dict):
            weights = [weights[k] for k in range(len(expected.weights))]
        close(weights, expected.weights, dtype)
    assert set(first["diagnostics"]) == set(expected.diagnostics)
    for name, value in expected.diagnostics.items():
        # A residual is what rounding leaves of a difference; the iterations stop by it.
        if name not in ("residual", "iterations"):
            close(first["diagnostics"][name], value, dtype)
    assert first["dropped"] == expected.dropped
    parts = [outcome["parameters"] for outcome in outcomes]
    if whole:
        assert all(np.array_equal(part, parts[0]) for part in parts)
        parts = parts[:1]
    close(np.concatenate(parts), flat(expected.parameters), dtype)
    for name, value in expected.state.items():
        states = [outcome["state"][name] for outcome in outcomes]
        if whole or name not in BY_COLUMN:
            assert all(np.array_equal(state, states[0]) for state in states)
            states = states[:1]
        close(np.concatenate(states), value.numpy(), dtype)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("layout", ["by_columns", "by_client"])
def test_ranks_give_what_one_process_gives(world, layout, rule):
    """Two rounds; uneven shares, of four ranks one empty."""
    for kind, dtype in (("array", "float64"), ("dict", "float32")):
        expected = alone(rule, THETA, CLIENTS, dtype, rounds=2)
        found = world.results(layout, rule, THETA, CLIENTS, kind, dtype, 2)
        check(found, expected, dtype, whole=layout == "by_client")


@pytest.mark.parametrize(("layout", "kind"), [("by_columns", "array"), ("by_client", "dict")])
@pytest.mark.parametrize("scale", [1e14, 1e200])
def test_a_geometric_median_over_ranks_withstands_large_attackers(world, layout, kind, scale):
    x = attacked(M, 2, D, scale, "apart")
    expected = alone("geometric-median", 0 * THETA, x, "float64")
    found = world.results(layout, "geometric-median", 0 * THETA, x, kind, "float64")
    assert len({repr((outcome["weights"], outcome["diagnostics"])) for outcome in found}) == 1
    weights = found[0]["weights"]
    weights = weights if isinstance(weights, list) else [weights[k] for k in range(M)]
    assert true_residual(x, weights) < 1e-6
    parts = [outcome["parameters"] for outcome in found]
    whole = parts[0] if layout == "by_client" else np.concatenate(parts)
    np.testing.assert_allclose(whole, expected.parameters, atol=1e-6)


@pytest.mark.parametrize("rule", ["fedsdg", "krum", "coordinate-median", "cgsv"])
@pytest.mark.parametrize("layout", ["by_columns", "by_client"])
def test_updates_that_are_large_enough_for_the_kernels(world, layout, rule):
    seed, d = 5, 600_000
    expected = alone(rule, *draw(seed, M, d), "float32")
    found = world.results("drawn", layout, rule, seed, M, d)
    check(found, expected, "float32", whole=layout == "by_client")


@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_tensors_whose_numbers_lie_apart_travel_too(world, d):
    ranks = len(world.pipes)
    for found in world.results("strided", d):
        np.testing.assert_allclose(found, np.arange(d) + (ranks - 1) / 2)


@pytest.mark.parametrize("where", ["_pack", "_unpack"])
def test_what_fails_on_one_rank_between_two_exchanges_fails_on_all_at_once(world, where):
    for kind, text, seconds in world.results("failing", where):
        assert kind == "DistributedError"
        assert "MemoryError: no room" in text
        assert seconds < 20


@pytest.mark.parametrize("buffer_bytes", [100, 1 << 25])
def test_columns_travel_as_they_are_stored_whatever_the_buffer(world, buffer_bytes):
    """Tensors of all dtypes, strided and empty ones among them."""
    origin, clients = mixed(THETA), {k: mixed(row) for k, row in enumerate(CLIENTS)}
    expected = aggregate("fedsdg", origin, clients)
    for found in world.results("mixed_columns", THETA, CLIENTS, buffer_bytes):
        assert found["weights"].keys() == expected.weights.keys()
        close(list(found["weights"].values()), list(expected.weights.values()), "float64")
        close(found["parameters"], flat(expected.parameters), "float64")


def test_a_float64_tensor_on_one_rank_makes_all_updates_float64(world):
    """As in one process; a rank of its own would have formed float32."""
    theta, clients = THETA.astype(np.float32), CLIENTS.astype(np.float32)
    wide = {"x": np.float64(theta[:13]), "y": theta[13:]}
    rows = [{"x": np.float64(row[:13]), "y": row[13:]} for row in clients]
    expected = aggregate("fedsdg", wide, rows)
    found = world.results("mixed_dtypes", theta, clients)
    close(found[0]["weights"], expected.weights, "float64")
    assert len({repr(outcome["weights"]) for outcome in found}) == 1
    # The same operations on the same numbers: to the last bit.
    parts = np.concatenate([outcome["parameters"] for outcome in found])
    close(parts, flat(expected.parameters), "float64")


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [("float64", 1.0), ("float64", 1e-200), ("float64", 1e200), ("float32", 1e-20)],
)
def test_rows_over_ranks_answer_as_numpy_does(world, dtype, scale):
    data = np.random.default_rng(1).normal(size=(M, D))
    data[:, 13:] *= 1e-3  # The columns of the ranks differ in scale.
    data[2] = data[4]
    answers = world.results("sharded_rows", data * scale, dtype)
    mean, other = data.mean(0), (np.arange(M) - 1.0) @ data
    expected = {
        "norms": np.linalg.norm(data, axis=1),
        "mean": np.linalg.norm(mean),
        "other norm": np.linalg.norm(other),
        "dots": data @ mean,
        "other dots": data @ other,
        "distances": np.square(data[:, None] - data[None]).sum(-1),
    }
    for answer in answers:
        assert repr(answer) == repr(answers[0])
        assert answer["shape"] == (M, D)
        assert not answer["counts"].any()
        for name, value in expected.items():
            if isinstance(answer[name], tuple):  # Squares, which may be beyond float64, in a unit.
                found, unit = answer[name]
                close(found, value * (scale / unit) ** 2, dtype)
            else:
                close(answer[name] / scale, value, dtype)
        if scale in (1.0, 1e-20):
            close(answer["norm"] / scale, np.linalg.norm(data[0]), dtype)
        assert answer["distances"][0][2, 4] == 0


def test_numbers_that_are_not_finite_are_counted_over_ranks(world):
    data = np.ones((M, D))
    data[1, [0, 40]] = np.nan
    data[3, 20] = np.inf
    for answer in world.results("sharded_rows", data, "float64"):
        assert answer["counts"].tolist() == [0, 2, 0, 1, 0, 0, 0]


def sent(world, layout, rule, size, d, kind="array", dtype="float32"):
    theta, clients = draw(1, size, d)
    answers = world.results(layout, rule, theta, clients, kind, dtype)
    return [answer["sent"] for answer in answers]


def numbers(rule, size):
    """How many numbers a rule has to exchange, each with a flag for every exchange."""
    measure, between = 2 * size + 3, size * (size - 1) // 2 + 2
    return {
        "fedsdg": measure + 2,  # A bound of the parameters' norm.
        "fedsdg-official-aligned": measure + 2,
        "cgsv": 2 * measure,
        "krum": between,
        "multikrum": between,
        "geometric-median": between,
        # Facts about its second upload, whether the control is finite, and its norm.
        "scaffold": 4 + 2 + 2,
        "local-only": size + 1,
        "fedcurv": 2 * (4 + 2),  # Facts about two more uploads, and whether the sums are finite.
    }.get(rule, 0)


@pytest.mark.parametrize("rule", [rule for rule in RULES if isinstance(rule, str)])
def test_what_is_sent_does_not_grow_with_the_parameters(world, rule):
    """8 bytes for digest and checks, and for what the rule asks: to each other rank the same."""
    others = len(world.pipes) - 1
    for size in (5, 12):
        # 12 digests; the dtype; that rows are there; facts about them; that all went well.
        checks = (1 + 12) + (1 + 1) + 1 + (1 + 3) + 1
        for d in (40, 4000):
            expected = 8 * others * (checks + numbers(rule, size))
            assert sent(world, "by_columns", rule, size, d) == [expected] * (others + 1)


@pytest.mark.parametrize("rule", ["fedsdg", "krum", "coordinate-median", "scaffold"])
def test_clients_are_sent_once_and_to_nobody_whole(world, rule):
    """Of every own client each other rank gets its columns, then its own columns of the result."""
    ranks, d = len(world.pipes), 4000
    vectors = 2 if rule == "scaffold" else 1  # The control goes the same way.
    for rank, found in enumerate(sent(world, "by_client", rule, M, d)):
        own = len(own_clients(rank, ranks, M))
        expected = vectors * 4 * d / ranks * (ranks - 1) * (own + 1)
        assert 0 <= found - expected <= 2000 * (ranks - 1)


def bad_rows(client, column, value):
    rows = CLIENTS.copy()
    rows[client, column] = value
    return rows


@pytest.mark.parametrize("layout", ["by_columns", "by_client"])
def test_what_is_not_finite_on_one_rank_is_an_error_on_all(world, layout):
    ranks = len(world.pipes)
    rows = bad_rows(5, [D - 1, D - 2], np.nan)
    kind, text = world.failure(layout, "krum", THETA, rows, "array", "float64")
    assert kind == "NonFiniteError"
    numel = D - bounds(D, ranks)[-2] if layout == "by_columns" else D
    assert text == (
        f"rank {ranks - 1}: client 5: tensor 'parameters' has 2 non-finite values of {numel}; "
        f"leave the client out or restore its last finite parameters"
    )
    world.results(layout, "krum", THETA, CLIENTS, "array", "float64")  # All are in step again.


@pytest.mark.parametrize("rule", ["fedsdg", "coordinate-median", "scaffold", "fedavg", "cgsv"])
@pytest.mark.parametrize("layout", ["by_columns", "by_client"])
def test_clients_are_dropped_on_all_ranks(world, layout, rule):
    rows = bad_rows(5, [0, D - 1], [np.nan, np.inf])
    rows[1, 20] = np.inf
    drop = {"on_nonfinite": "drop"}
    expected = alone(rule, THETA, rows, "float64", **drop)
    found = world.results(layout, rule, THETA, rows, "array", "float64", 1, drop)
    check(found, expected, "float64", whole=layout == "by_client")
    assert set(expected.dropped) == {1, 5}


@pytest.mark.parametrize("layout", ["by_columns", "by_client"])
def test_too_few_clients_are_left(world, layout):
    rows = np.full_like(CLIENTS, np.nan)
    drop = {"on_nonfinite": "drop"}
    kind, text = world.failure(layout, "fedsdg", THETA, rows, "array", "float64", 1, drop)
    assert (kind, "all 7 clients hold non-finite values" in text) == ("NonFiniteError", True)
    rows[:4] = CLIENTS[:4]
    kind, text = world.failure(layout, "krum", THETA, rows, "array", "float64", 1, drop)
    assert kind == "ValueError"
    assert "has 4" in text
    assert text.endswith("(3 of 7 clients were dropped as non-finite)")
    # Together the ranks drop all, though none of them does.
    rows = CLIENTS.copy()
    rows[::2, 0] = rows[1::2, -1] = np.nan
    kind, text = world.failure("by_columns", "fedsdg", THETA, rows, "array", "float64", 1, drop)
    assert "all 7 clients hold non-finite values (client 0: tensor 'parameters' has 1)" in text


DISAGREEMENTS = {
    "rule": ({"rule": Krum(2)}, "the rule"),
    "round": ({"round": 2}, "the round"),
    "drop": ({"on_nonfinite": "drop"}, "on_nonfinite"),
    "counts": ({"num_samples": [1, 2, 3, 4, 5, 6, 7]}, "num_samples"),
    "batches": ({"num_batches": [1, 2, 3, 4, 5, 6, 7]}, "num_batches"),
    "federation": ({"num_clients": 9}, "client_samples or num_clients"),
    "function": ({"instead": True}, "the function called"),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_ranks_that_disagree(world, name):
    override, what = DISAGREEMENTS[name]
    kind, text = world.failure("sharded", "krum", {1: override}, THETA, CLIENTS)
    assert kind == "ValueError"
    assert text == (
        f"the ranks disagree about {what}: rank 1 differs from rank 0; make the same call on every "
        f"rank"
    )


def test_ranks_with_other_clients(world):
    """Fewer of them, or under other ids."""
    shard = {"a": torch.zeros(1, 6).double(), "b": torch.zeros(7).double()}
    for given in ([shard] * 6, dict.fromkeys(range(M), shard), {k + 1: shard for k in range(M)}):
        kind, text = world.failure("sharded", "krum", {0: {"client_shards": given}}, THETA, CLIENTS)
        assert kind == "ValueError"
        assert text.startswith("the ranks disagree about the clients: rank 1 differs from rank 0")


def test_bad_input_on_one_rank(world):
    last = len(world.pipes) - 1
    faults = {
        "client 2: tensor 'b' has shape (3,), expected": {"change": (2, "b", torch.zeros(3))},
        "client 4: tensor 'b' has dtype torch.float32": {"change": (4, "b", None)},
        "there is no rule 'krumm'; did you mean 'krum'?": {"rule": "krumm"},
        "rule is a int; give a name": {"rule": 3},
        "on_nonfinite='skip': use 'raise' or 'drop'": {"on_nonfinite": "skip"},
        "client_params is a int": {"client_shards": 3},
        "round=0 must be a whole number": {"round": 0},
    }
    for message, override in faults.items():
        if "float32" in message:
            width = D - bounds(D, last + 1)[-2]
            override = {"change": (4, "b", torch.zeros(width - width // 2))}
        kind, text = world.failure("sharded", "krum", {last: override}, THETA, CLIENTS)
        assert kind == "ValueError"
        assert text.startswith(f"rank {last}: {message}")
    everywhere = {rank: {"rule": "krumm"} for rank in range(last + 1)}
    _, text = world.failure("sharded", "krum", everywhere, THETA, CLIENTS)
    assert text == "there is no rule 'krumm'; did you mean 'krum'?"
    two = {0: {"round": 0}, 1: {"rule": "krumm"}}
    _, text = world.failure("sharded", "krum", two, THETA, CLIENTS)
    assert text.startswith("rank 0: round=0")
    assert text.endswith(" (there are errors on rank 1 too)")


def test_generated_inputs_are_errors_or_right_on_all_ranks_alike(world):
    """Ten thousand of them in `make everything`, half of them over each number of ranks."""
    wrong, count = {}, 5000 if EVERYTHING else 100
    for first in range(0, count, 50):
        ranks = world.results("bad_inputs", first, 50)
        for number, outcomes in enumerate(zip(*ranks, strict=True), first):
            faults = {fault for _, fault in outcomes if fault}
            if len({short for short, _ in outcomes}) > 1:
                faults.add(f"the ranks differ: {outcomes}")
            if faults:
                wrong[number] = faults
    assert not wrong


def test_rules_that_cannot_plan_are_refused(world):
    """A rule of one's own that wants the updates as tensors."""
    _, text = world.failure("unplanned")
    assert text == (
        "rule is a Whole, which needs whole updates; over ranks only a PlannedRule can run "
        "(fedsdg.aggregation.plans)"
    )


@pytest.mark.parametrize(
    ("where", "kind", "says"),
    [("measure", "DistributedError", "Error: "), ("step", "RuleFault", "coefficients of shape")],
)
def test_a_rank_that_fails_on_its_own_account(world, where, kind, says):
    """Not in the input but in the work: all ranks hear of it at their next meeting."""
    found, text = world.failure("sharded", Fragile(where), {}, THETA, CLIENTS)
    assert found == kind
    assert text.startswith(f"rank {len(world.pipes) - 1}: ")
    assert says in text
    world.results("sharded", "krum", {}, THETA, CLIENTS)


def test_a_result_that_overflows_on_one_rank_leaves_out_as_it_was(world):
    """The sum of two float16 beyond its range; `out` is checked by the case itself."""
    kind, text = world.failure("overflow", len(world.pipes) - 1)
    assert kind == "NonFiniteError"
    assert text.startswith(f"rank {len(world.pipes) - 1}: the aggregated tensor 'w' overflows")


@pytest.mark.parametrize("rule", ["fedsdg", "coordinate-median", "fedavg-uniform", "krum"])
@pytest.mark.parametrize("layout", ["by_columns", "by_client"])
def test_updates_that_overflow_are_named(world, layout, rule):
    theta, clients = THETA.copy(), CLIENTS.copy()
    theta[-1], clients[3, -1] = -3e38, 3e38
    kind, text = world.failure(layout, rule, theta, clients, "array", "float32")
    assert kind == "ValueError"
    assert text.startswith(
        f"rank {len(world.pipes) - 1}: client 3: the update of tensor 'parameters' overflows"
    )


@pytest.mark.parametrize("layout", ["by_columns", "by_client"])
def test_a_mean_that_is_only_rounding_has_no_direction(world, layout):
    """Updates cancel up to the rounding of the parameters of all ranks, not of one alone."""
    moves = np.float32(1e-3) * np.random.default_rng(4).normal(size=(3, D)).astype(np.float32)
    theta = np.float32(THETA)
    clients = np.concatenate([theta + moves, theta - moves])
    expected = alone("fedsdg", theta, clients, "float32")
    assert expected.diagnostics["degenerate"] == 1
    found = world.results(layout, "fedsdg", theta, clients, "array", "float32")
    for answer in found:
        weights = answer["weights"]
        weights = list(weights.values()) if isinstance(weights, dict) else weights
        assert answer["diagnostics"]["degenerate"] == 1
        assert weights == expected.weights == [1 / 6] * 6


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("layout", ["by_columns", "by_client"])
def test_adapters_over_ranks_are_compared_as_in_one_process(world, layout, noise):
    theta, *clients = beside_a_large_head(noise)
    expected = aggregate(Alignment(scope="adapters", epsilon=1e-30), theta, clients)
    found = world.results("headed", layout, theta, clients)
    for weights, degenerate in found:
        assert degenerate == expected.diagnostics["degenerate"] == noise
        assert (weights, degenerate) == found[0]
        assert weights == pytest.approx(expected.weights, rel=1e-6)


def test_the_norm_of_parameters_is_that_of_all_ranks(world):
    norms = np.linalg.norm(CLIENTS, axis=1)
    longest = np.linalg.norm(CLIENTS - THETA, axis=1).max()
    answers = world.results("parameter_norm", THETA, CLIENTS, longest)
    assert len(set(answers)) == 1
    found, bound = answers[0]
    assert found == pytest.approx(norms.max(), rel=1e-9)
    assert norms.max() <= bound <= np.sqrt(len(answers)) * (np.linalg.norm(THETA) + 2 * longest)


def test_results_are_written_into_out(world):
    expected = alone("fedsdg", THETA, CLIENTS, "float64").parameters
    found = world.results("written_in_place", THETA, CLIENTS)
    close(np.concatenate([shard for shard, _ in found]), expected, "float64")
    for _, whole in found:
        close(whole, expected, "float64")


def owned(ranks, ids):
    """Clients 0, 1, … under other ids, spread over the ranks."""
    own = [{} for _ in range(ranks)]
    for k, client in enumerate(ids):
        own[k * ranks // len(ids)][client] = CLIENTS[k]
    return own


def test_clients_by_name_and_empty_ranks(world):
    ranks = len(world.pipes)
    names = ["ada", 7, "bob", "eve", 2, "zoë", "7"]
    expected = aggregate("krum", THETA, dict(zip(names, CLIENTS, strict=True)))
    for found in world.results("clients_here", "krum", {}, THETA, owned(ranks, names)):
        assert found["weights"] == expected.weights
        assert found["diagnostics"]["winner"] == expected.diagnostics["winner"]
        close(found["parameters"], expected.parameters, "float64")
    nobody = [{}] * ranks
    for found in world.results("clients_here", "krum", {}, THETA, nobody):
        assert found["weights"] == {}
        assert np.array_equal(found["parameters"], THETA)
    one = [*nobody[:-1], {3: CLIENTS[0]}]
    for found in world.results("clients_here", "fedsdg", {}, THETA, one):
        assert found["weights"] == {3: 1.0}
        close(found["parameters"], CLIENTS[0], "float64")


def test_bad_clients_of_ranks(world):
    ranks = len(world.pipes)
    twice = [{k: CLIENTS[k]} for k in range(ranks - 1)] + [{0: CLIENTS[4]}]
    kind, text = world.failure("clients_here", "krum", {}, THETA, twice)
    assert (kind, text) == (
        "ValueError",
        f"client 0 is on rank 0 and on rank {ranks - 1}; give every client to one rank",
    )
    _, text = world.failure("clients_here", "krum", {}, THETA, [{(1, 2): CLIENTS[0]}, *twice[1:]])
    assert text.startswith("rank 0: client (1, 2): the id is a tuple; only texts and whole numbers")
    own = owned(ranks, range(M))
    changes = {
        "rank 1: own_params is a list; give a mapping by client id": {"own_params": []},
        "rank 1 gave no num_samples, as others did; give them on all ranks": {},
        "the ranks disagree about the global parameters: rank 1 differs from rank 0": {
            "global_params": {"w": torch.tensor(THETA + (np.arange(D) == 9) * 1e-15)}
        },
        "the ranks disagree about the round: rank 1 differs from rank 0": {"round": 3},
    }
    for message, override in changes.items():
        overrides = {1: override}
        if not override:
            overrides = {r: {"num_samples": dict.fromkeys(own[r], 3)} for r in range(ranks)}
            overrides[1] = {}
        kind, text = world.failure("clients_here", "fedavg", overrides, THETA, own)
        assert kind == "ValueError"
        assert text.startswith(message)


def test_a_state_that_differs_between_ranks(world):
    state = {"r": torch.full((M,), 1 / M), "participations": torch.zeros(M, dtype=torch.int64)}
    other = {**state, "r": torch.linspace(0, 2 / M, M)}
    given = {rank: {"state": state, "num_clients": M} for rank in range(len(world.pipes))}
    given[1] = {**given[1], "state": other}
    _, text = world.failure("sharded", "cgsv", given, THETA, CLIENTS)
    assert text.startswith("the ranks disagree about the state: rank 1 differs from rank 0")


def test_groups_of_some_ranks(world):
    if len(world.pipes) < 4:
        pytest.skip("needs two groups of two")
    expected = aggregate("fedsdg", THETA, CLIENTS)
    answers = world.results("part_of_the_world", THETA, CLIENTS)
    for first, second in ((0, 2), (1, 3)):
        shards = [answers[rank][0]["parameters"] for rank in (first, second)]
        close(np.concatenate(shards), expected.parameters, "float64")
    assert {text for _, text in answers} == {
        "this process is not in the group; call on the ranks of the group"
    }


def test_a_rank_that_does_not_come(world):
    """The others wait as long as they were told, and know who is missing."""
    ranks = len(world.pipes)
    answers = world.results("absent", ranks - 1, 3)
    assert answers[-1] == "away"
    for rank, (kind, text, seconds) in enumerate(answers[:-1]):
        assert kind == "DistributedError"
        assert text.startswith(
            f"rank {ranks - 1} did not answer within 3 s (on rank {rank} of {ranks}); a process"
        )
        assert 2.9 < seconds < 8


def test_ranks_that_ask_different_things(world):
    """They wait for each other in vain, and no process ends because messages do not fit."""
    for rank, (kind, text) in enumerate(world.results("astray", 2)):
        assert kind == "DistributedError"
        assert "did not answer within 2 s" in text or "closed the connection" in text
        assert f"(on rank {rank} of {len(world.pipes)})" in text
    world.results("sharded", "krum", {}, THETA, CLIENTS)


@pytest.mark.parametrize("layout", ["columns", "clients"])
def test_a_rank_that_is_killed(tmp_path, layout):
    """The others know at once, whatever the timeout."""
    world = World(3, tmp_path)
    answers = world.run("killed", 1, 60, layout)
    world.close()
    assert answers[1] == "dead"
    for rank in (0, 2):
        kind, text, seconds = answers[rank]
        assert kind == "DistributedError"
        assert text.startswith(f"rank 1 closed the connection (on rank {rank} of 3); a process")
        assert seconds < 10
