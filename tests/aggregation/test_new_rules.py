"""A rule of one's own, in about 30 lines, works in every door at once; so does one with a state."""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import pytest
import torch
from pydantic import Field
from safetensors.torch import load_file, save_file

from fedsdg.aggregation import aggregate, aggregate_by_client, aggregate_files
from fedsdg.aggregation.ranks import Ranks
from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.rules.screened import Screened
from fedsdg.aggregation.types import Combination, Context, Plan, Rule, State

from . import cohorts
from .cohorts import backend
from .test_ranks import cut, run


class Clipped(Rule):
    """step = (1/M) sum_k min(1, f m / ||Delta_k||) Delta_k, m the median norm of the cohort."""

    factor: Annotated[float, Field(ge=1e-06)] = 1.0
    "f, longest update in median norms"

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        norms = rows["update"].measure().norms
        limit = self.factor * float(np.median(norms))
        shares = np.minimum(1.0, limit / np.maximum(norms, 1e-300)) / len(norms)
        return Plan(Combination(shares), None, state, {"update_norm": norms})


class Momentum(Rule):
    """v <- beta v + (1/M) sum_k Delta_k, step = v: the server's momentum (Hsu et al. 2019)."""

    beta: Annotated[float, Field(ge=0, le=0.999)] = 0.9
    "β of the momentum"

    def init(self, d: int, client_samples: np.ndarray) -> State:
        return {"velocity": torch.zeros(d)}

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        size = rows["update"].size
        step = Combination(np.full(size, 1 / size), offset=self.beta * state["velocity"])
        return Plan(step, None, {"velocity": rows["update"].vector(step)})


THETA, CLIENTS = cohorts.drawn(seed=13, size=6)


def clipped_by_hand(factor=1.0):
    updates = cohorts.updates(THETA, CLIENTS)
    norms = np.linalg.norm(updates, axis=1)
    scaled = updates * np.minimum(1, factor * np.median(norms) / norms)[:, None]
    return cohorts.flat(THETA) + scaled.mean(axis=0)


def on_a_rank(rank, ranks):
    theta = cohorts.tensors(THETA)
    shards = [cut(cohorts.tensors(client), rank, 2) for client in CLIENTS]
    made = aggregate(Clipped(), cut(theta, rank, 2), shards, ranks=ranks)
    return {name: tensor.numpy() for name, tensor in made.parameters.items()}


def test_a_new_rule_works_in_memory_from_files_and_over_ranks(tmp_path, context):
    expected = clipped_by_hand()
    for name in ("torch", "numba"):
        with backend(name):
            made = aggregate(Clipped(), THETA, CLIENTS)
        assert cohorts.flat(made.parameters) == pytest.approx(expected, abs=1e-6)
    updates = torch.tensor(cohorts.updates(THETA, CLIENTS))
    step = Clipped()({"update": updates}, context(6), {}).steps[0].numpy()
    assert cohorts.flat(THETA) + step == pytest.approx(expected)
    files = [tmp_path / f"{k}" for k in range(6)]
    for file, params in zip((tmp_path / "g", *files), (THETA, *CLIENTS), strict=True):
        save_file(cohorts.tensors(params), file)
    report = aggregate_files(Clipped(factor=2.0), tmp_path / "g", files, tmp_path / "new").report()
    assert report["rule"] == {"type": "Clipped", "factor": 2.0}
    new = load_file(tmp_path / "new")
    found = cohorts.flat({name: new[name] for name in THETA})
    assert found == pytest.approx(clipped_by_hand(2.0), abs=1e-6)
    by_rank = run(on_a_rank, tmp_path)
    joined = [np.concatenate([made[name] for made in by_rank]) for name in THETA]
    assert np.concatenate(joined) == pytest.approx(expected, abs=1e-6)


def test_a_new_rule_has_checks_and_can_be_screened():
    with pytest.raises(ValueError, match="factor is -1"):
        Clipped(factor=-1)
    assert Ranks().rows  # The rule knows nothing of any of this.
    broken = [*CLIENTS[:5], {name: v * np.nan for name, v in CLIENTS[5].items()}]
    broken[5] = {name: np.asarray(v, dtype="float32") for name, v in broken[5].items()}
    made = aggregate(Screened(inner=Clipped()), THETA, broken, num_clients=6)
    alone = aggregate(Clipped(), THETA, CLIENTS[:5])
    assert cohorts.flat(made.parameters) == pytest.approx(cohorts.flat(alone.parameters), abs=1e-6)


def velocities(rounds=3, beta=0.9):
    """theta after each round by hand, with the same updates in each round."""
    mean = cohorts.updates(THETA, CLIENTS).mean(axis=0)
    theta, velocity, results = cohorts.flat(THETA), 0.0, []
    for _ in range(rounds):
        velocity = beta * velocity + mean
        theta = theta + velocity
        results.append(theta)
    return results


def moved(theta):
    """Clients that make the same updates from another theta."""
    return [{n: np.asarray(theta[n] + c[n] - THETA[n], "f4") for n in theta} for c in CLIENTS]


def momentum_on_a_rank(rank, ranks):
    theta, states, results = THETA, {"sharded": None, "by client": None}, []
    for _ in range(3):
        given, clients = cohorts.tensors(theta), [cohorts.tensors(c) for c in moved(theta)]
        sharded = aggregate(
            Momentum(), cut(given, rank, 2), [cut(c, rank, 2) for c in clients], ranks=ranks,
            num_clients=6, state=states["sharded"],
        )  # fmt: skip
        own = {k: clients[k] for k in range(rank, 6, 2)}
        whole = aggregate_by_client(
            Momentum(), given, own, num_clients=6, state=states["by client"]
        )
        states = {"sharded": sharded.state, "by client": whole.state}
        theta = {name: tensor.numpy() for name, tensor in whole.parameters.items()}
        results.append((cohorts.flat(theta), {n: t.numpy() for n, t in sharded.parameters.items()}))
    return results


def test_a_rule_with_a_state_works_from_round_to_round_in_every_door(tmp_path, context):
    expected = velocities()
    theta, state = THETA, None
    for round_, result in enumerate(expected, 1):
        made = aggregate(Momentum(), theta, moved(theta), num_clients=6, state=state, round=round_)
        theta, state = made.parameters, made.state
        assert cohorts.flat(theta) == pytest.approx(result, abs=2e-6)
    updates = torch.tensor(cohorts.updates(THETA, CLIENTS))
    rule, known = Momentum(), Momentum().init(updates.shape[1], np.ones(6))
    for before, after in zip([cohorts.flat(THETA), *expected], expected, strict=False):
        outcome = rule({"update": updates}, context(6), known)
        known = outcome.state
        assert outcome.steps[0].numpy() == pytest.approx(after - before, abs=2e-6)
    theta, state = THETA, None
    for number, result in enumerate(expected):
        paths = [tmp_path / f"{number}-{name}" for name in ("g", *range(6))]
        for path, params in zip(paths, (theta, *moved(theta)), strict=True):
            save_file(cohorts.tensors(params), path)
        made = aggregate_files(
            Momentum(), paths[0], paths[1:], tmp_path / f"new{number}", num_clients=6, state=state,
            state_out=tmp_path / f"state{number}",
        )  # fmt: skip
        new = load_file(tmp_path / f"new{number}")
        theta, state = {name: new[name].numpy() for name in THETA}, made.state
        assert cohorts.flat(theta) == pytest.approx(result, abs=2e-6)
    first, second = run(momentum_on_a_rank, tmp_path)
    for (whole, one), (same, other), result in zip(first, second, expected, strict=True):
        assert whole == pytest.approx(result, abs=2e-6) and np.array_equal(whole, same)
        joined = np.concatenate([np.concatenate([one[name], other[name]]) for name in THETA])
        assert joined == pytest.approx(result, abs=2e-6)
