"""What trains for an evaluation alone, and what of an optimiser outlives a round."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.experiment.runs import execute
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.cohorts import cohort_batches
from fedsdg.federation.judged_models import judged_models
from fedsdg.federation.optimisers.adam import Adam
from fedsdg.federation.optimisers.mover import kept_widths
from fedsdg.federation.together import step_together
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze
from tests.federation.cohort import train_cohort

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
SKEW = "dirichlet~1.0"
CLIENTS = 6
NOBODY = np.zeros(CLIENTS, dtype=bool)
#: What Adam remembers of a client.
MOMENTS = tuple(f"private.{name}" for name in kept_widths(Adam(), 1))
KEEP = {"type": "fedsdg", "private_optimiser": "keep"}
REFRESH = {"type": "fedsdg", "refresh": 2}


@pytest.fixture(scope="module")
def config():
    raw = yaml.safe_load(CONFIG.read_text())
    raw["federation"] |= {
        "clients": CLIENTS, "clients_per_round": 3, "rounds": 4, "evaluate_every": 2,
    }  # fmt: skip
    raw["training"] |= {"epochs": 1}
    raw["methods"] = ["fedsdg"]
    raw["adapters"] |= {"rank": 2, "alpha": 4}
    return parse_config(raw)


@pytest.fixture(scope="module")
def material():
    architecture = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    backbone = freeze(build_backbone(architecture), architecture, "tiny", {})
    return prepare_material("digits", backbone, "cpu")


@pytest.fixture(scope="module")
def partitions(config):
    return {n: make_partition("digits", SKEW, n, CLIENTS, config.partition) for n in (0, 1)}


@pytest.fixture(scope="module")
def fresh(config, material, partitions):
    def make(entry, seed=0, **federation):
        changed = dataclasses.replace(
            config, federation=dataclasses.replace(config.federation, **federation)
        )
        run = changed.run("digits", SKEW, method_entry(entry), seed)
        return build(run, material, partitions[seed])

    return make


def trained_bits(one):
    private, kept = one.bank.gather(torch.arange(CLIENTS))
    return {"theta": one.theta, "private": private, **kept, **one.state}


def assert_same_bits(one, two):
    here, there = trained_bits(one), trained_bits(two)
    assert here.keys() == there.keys()
    for name, value in here.items():
        assert torch.equal(value, there[name]), name


@pytest.mark.parametrize(("entry", "same"), [(KEEP, True), ("fedsdg", False)], ids=["keep", "not"])
def test_kept_moments_make_of_many_rounds_one_long_training(fresh, entry, same):
    """One client in every round and η_g = 0: rounds differ from one training by restarts alone."""
    entry = {**(entry if isinstance(entry, dict) else {"type": entry}), "eta_g": 0.0}
    one = fresh(entry, clients_per_round=1, rounds=3)
    one.attendance = lambda round_, real=one.attendance: dataclasses.replace(
        real(round_), present=np.array([2])
    )
    first = one.bank.private(torch.tensor([2]))
    batches = [
        batch
        for round_ in (1, 2, 3)
        for batch in cohort_batches(
            one.shards.train, [2], purpose="batches", seed=0, round_=round_,
            batch_size=one.schedule.batch_size, epochs=1,
        )[0]
    ]  # fmt: skip
    start = one.theta.clone()
    one.run()
    assert torch.equal(one.theta, start)
    long = train_cohort(one.model, one.layout, one.samples, [batches], start[None], first, one.work)
    there = one.bank.private(torch.tensor([2]))
    assert not torch.equal(there, first)
    assert torch.equal(there, long.private) == same
    if same:
        steps = one.bank.kept(MOMENTS[2], torch.tensor([2, 0]))
        assert steps.flatten().tolist() == [len(batches), 0]


def test_moments_of_the_shared_row_and_of_sgd_are_not_kept(fresh):
    assert set(fresh(KEEP).bank.widths()) == {"private", *(f"kept.{name}" for name in MOMENTS)}
    for entry in (
        {"type": "fedavg", "private_optimiser": "keep"},
        {**KEEP, "optimiser": "sgd"},
        "fedsdg",
    ):
        assert set(fresh(entry).bank.widths()) == {"private"}
    sgd = {"type": "fedsdg", "optimiser": "sgd"}
    kept, restarted = fresh({**sgd, "private_optimiser": "keep"}), fresh(sgd)
    kept.run()
    restarted.run()
    assert_same_bits(kept, restarted)


def test_ditto_may_keep_the_state_of_the_clients_own_models(fresh):
    """The state is another vector of each client; the model for the server is trained as ever."""
    kept = fresh({"type": "ditto", "private_optimiser": "keep"})
    restarted = fresh("ditto")
    own = {"kept.own.mean", "kept.own.square", "kept.own.steps"}
    assert set(kept.bank.widths()) - set(restarted.bank.widths()) == own
    kept.run()
    restarted.run()
    assert torch.equal(kept.theta, restarted.theta)
    everyone = torch.arange(kept.num_clients)
    ours, theirs = kept.bank.kept("own", everyone), restarted.bank.kept("own", everyone)
    again = (
        kept.bank.kept("own.steps", everyone).flatten()
        > 2 * kept.batches_per_epoch(everyone.numpy()).max()
    )
    assert not torch.equal(ours, theirs)
    assert bool((ours != theirs).any(dim=1)[again].all())


def test_in_passes_of_one_client_the_same_moments_are_kept(fresh):
    whole, divided = fresh(KEEP), fresh(KEEP)
    divided.passes.clients_per_pass = 1
    whole.run()
    divided.run()
    here, there = trained_bits(whole), trained_bits(divided)
    for name, value in here.items():
        apart = float((value - there[name]).norm())
        assert apart <= 1e-3 * float(value.norm()), name
    assert torch.equal(here[MOMENTS[2]], there[MOMENTS[2]])
    assert len(set(here[MOMENTS[2]].flatten().tolist())) > 2  # counts differ between clients


@pytest.mark.parametrize("entry", [KEEP, REFRESH], ids=["keep", "refresh"])
def test_from_a_checkpoint_on_the_rest_is_the_same(fresh, tmp_path, entry):
    whole, half, rest = fresh(entry), fresh(entry), fresh(entry)
    whole.run()
    for round_ in (1, 2):
        half.step(round_)
    kept = Checkpoints(tmp_path / "kept", {})
    kept.save(half, {})
    kept.restore(rest)
    kept.close()
    rest.run()
    assert_same_bits(whole, rest)
    assert whole.records.rounds == rest.records.rounds
    assert whole.records.clients == rest.records.clients


@pytest.mark.parametrize("entry", [KEEP, REFRESH], ids=["keep", "refresh"])
def test_a_resumed_run_has_the_bytes_of_an_undisturbed_one(
    config, material, partitions, tmp_path, entry
):
    """The files too, with all their columns."""
    run = config.run("digits", SKEW, method_entry(entry), 0)

    def go(name, progress=lambda *_: None):
        execute(
            run, material, partitions[0], tmp_path / name, store=tmp_path / f"store-{name}",
            identity={}, progress=progress, checkpoint_seconds=0,
        )  # fmt: skip

    def stop(round_, _):
        if round_ == 3:
            raise KeyboardInterrupt

    go("whole")
    with pytest.raises(KeyboardInterrupt):
        go("broken", stop)
    go("broken")
    for file in ("rounds.parquet", "clients.parquet", "result.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "broken" / file).read_bytes()


@pytest.mark.parametrize("entry", [KEEP, REFRESH], ids=["keep", "refresh"])
def test_seeds_together_are_the_seeds_alone(fresh, entry):
    together, alone = ([fresh(entry, seed) for seed in (0, 1)] for _ in range(2))
    for round_ in (1, 2):
        step_together(together, round_)
        for one in alone:
            one.step(round_)
    for one, two in zip(together, alone, strict=True):
        here, there = trained_bits(one), trained_bits(two)
        for name, value in there.items():
            assert float((value - here[name]).norm()) <= 1e-3 * float(value.norm()), name
        for mine, theirs in zip(one.records.rounds, two.records.rounds, strict=True):
            assert mine.keys() == theirs.keys()
            if mine["evaluated"]:
                close = pytest.approx(theirs["expected_accuracy"], abs=0.02)
                assert mine["expected_accuracy"] == close


@pytest.mark.parametrize("entry", [REFRESH, {**KEEP, "refresh": 1}], ids=["restart", "keep"])
def test_refreshing_changes_what_is_judged_and_nothing_that_is_trained(fresh, entry):
    plain = fresh({key: value for key, value in entry.items() if key != "refresh"})
    often, rarely = fresh(entry, evaluate_every=1), fresh(entry, evaluate_every=4)
    for one in (plain, often, rarely):
        one.run()
    assert_same_bits(plain, often)
    assert_same_bits(often, rarely)
    last, usual = often.records.rounds[-1], plain.records.rounds[-1]
    assert last["expected_accuracy"] != usual["expected_accuracy"]
    assert last["global_accuracy"] == usual["global_accuracy"]
    assert last == rarely.records.rounds[-1]


def test_a_refreshed_client_is_its_private_part_trained_on_the_current_model(fresh):
    """By hand: two epochs of what is private, on θ_g as it is; who never trained stays as it is."""
    one = fresh(REFRESH)
    one.step(1)
    judged = ~NOBODY
    who = np.flatnonzero(one.bank.trained.numpy())
    assert 0 < len(who) < CLIENTS
    batches = cohort_batches(
        one.shards.train, who.tolist(), purpose="refresh", seed=0, round_=1,
        batch_size=one.schedule.batch_size, epochs=2,
    )  # fmt: skip
    # With η_g = 0 the shared model stays where it is; but its gradient is clipped with the others.
    unclipped = dataclasses.replace(one.work, eta_g=0.0, clip_norm=1e9)
    one.work = dataclasses.replace(one.work, clip_norm=1e9)
    found = judged_models(one, 1, judged, NOBODY)
    by_hand = train_cohort(
        one.model, one.layout, one.samples, batches, one.theta.expand(len(who), -1),
        one.bank.private(torch.from_numpy(who)), unclipped,
    )  # fmt: skip
    everyone = torch.arange(CLIENTS)
    rows, kept = found.private(everyone), one.bank.private(everyone)
    assert torch.allclose(rows[who], by_hand.private, atol=1e-6)
    others = np.setdiff1d(np.arange(CLIENTS), who)
    assert torch.equal(rows[others], kept[others]) and not torch.equal(rows[who], kept[who])
    assert torch.equal(found.theta, one.theta) and torch.equal(found.branch, one.bank.trained)


#: Methods by what of a client that never takes part trains before it is judged.
NEW = np.arange(CLIENTS) == 4


def with_a_new_client(fresh, entry):
    """After a round in which client 4 took no part."""
    one = fresh(entry)
    one.circumstances = dataclasses.replace(one.circumstances, facts={"held_out": NEW})
    real = one.attendance
    one.attendance = lambda round_: dataclasses.replace(
        real(round_), present=np.setdiff1d(real(round_).present, [4])
    )
    one.step(1)
    return one


@pytest.mark.parametrize(
    "entry", ["fedsdg", "fedrep", "fedsa-lora", "apfl", "local-only", KEEP], ids=str
)
def test_a_new_client_trains_its_private_part_for_two_epochs(fresh, entry):
    one = with_a_new_client(fresh, entry)
    usual, found = judged_models(one, 1, ~NEW, NOBODY), judged_models(one, 1, ~NEW, NEW)
    batches = cohort_batches(
        one.shards.train, [4], purpose="new-clients", seed=0, round_=1,
        batch_size=one.schedule.batch_size, epochs=2,
    )  # fmt: skip
    by_hand = train_cohort(
        one.model, one.layout, one.samples, batches, one.downloads(np.array([4])),
        one.private[None], one.work.private_alone(),
    )  # fmt: skip
    everyone = torch.arange(CLIENTS)
    assert torch.equal(found.private(everyone)[4], by_hand.private[0])
    assert not torch.equal(by_hand.private[0], one.private)
    others = torch.arange(CLIENTS) != 4
    assert torch.equal(found.private(everyone)[others], usual.private(everyone)[others])
    assert bool(found.branch[4]) and not bool(usual.branch[4])
    assert not bool(one.bank.trained[4])


@pytest.mark.parametrize("entry", ["ditto", "interpolate"])
def test_a_new_client_with_a_model_of_its_own_takes_part_once(fresh, entry):
    one = with_a_new_client(fresh, entry)
    before = trained_bits(one)
    usual, found = judged_models(one, 1, ~NEW, NOBODY), judged_models(one, 1, ~NEW, NEW)
    others = torch.arange(CLIENTS) != 4
    assert torch.equal(usual.theta[others], found.theta[others])
    assert torch.equal(usual.theta[4], one.theta)
    assert not torch.equal(found.theta[4], one.theta)
    for name, value in trained_bits(one).items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("entry", ["fedavg", "ffa-lora", "fine-tune"])
def test_other_methods_treat_a_new_client_like_everybody(fresh, entry):
    one = with_a_new_client(fresh, entry)
    usual, found = judged_models(one, 1, ~NEW, NOBODY), judged_models(one, 1, ~NEW, NEW)
    assert torch.equal(usual.theta, found.theta)
    assert torch.equal(usual.branch, found.branch)
    assert (
        "expected_accuracy_new" in one.records.rounds[-1] or not one.records.rounds[-1]["evaluated"]
    )


@pytest.mark.parametrize("entry", ["fedsdg", "fine-tune", "ditto"])
def test_nothing_is_trained_for_a_new_client_before_the_last_quarter(fresh, entry):
    one = with_a_new_client(fresh, entry)
    one.circumstances = dataclasses.replace(one.circumstances, held_out=NEW)
    trained = []
    real = one.passes.train

    def train(model, layout, samples, clients, work):
        trained.extend(clients.name(k) for k in range(len(clients)))
        return real(model, layout, samples, clients, work)

    one.passes.train = train
    one.step(2)
    assert "new-clients" not in " ".join(trained)
    assert not any(name.endswith("of client 4") for name in trained)
    one.step(3), one.step(4)
    assert any(name.endswith("of client 4") for name in trained)
    rows = {(row["round"], row["client"]): row for row in one.records.clients}
    assert "test_accuracy" not in rows.get((2, 4), {}) and "test_accuracy" in rows[4, 4]
    assert "expected_accuracy_new" not in one.records.rounds[1]
    assert "expected_accuracy_new" in one.records.rounds[3]


def test_the_keys_at_their_defaults_are_those_left_out(config):
    def plain(entry):
        return config.run("digits", SKEW, method_entry(entry), 0).to_dict()["training"]

    assert plain({"type": "fedsdg", "private_optimiser": "restart", "refresh": 0}) == plain(
        "fedsdg"
    )
    usual = plain("fedsdg")
    assert (usual["private_optimiser"], usual["refresh"]) == ("restart", 0)
    changed = plain({**KEEP, "refresh": 3})
    assert (changed["private_optimiser"], changed["refresh"]) == ("keep", 3)
    for wrong in ({"private_optimiser": "forget"}, {"refresh": -1}, {"refresh": 1.5}):
        with pytest.raises(ValueError, match=f"methods: fedsdg.{next(iter(wrong))} is"):
            method_entry({"type": "fedsdg", **wrong})


def test_the_files_of_a_run_say_the_same_of_those_who_agree_conflict_and_are_new(
    tmp_path, material
):
    """With real conditions: means over groups in rounds.parquet are those of clients.parquet."""
    raw = yaml.safe_load(CONFIG.read_text())
    raw["federation"] |= {
        "clients": 8, "clients_per_round": 3, "rounds": 4, "evaluate_every": 2, "held_out": 0.25,
    }  # fmt: skip
    raw["adapters"] |= {"rank": 2, "alpha": 4}
    raw |= {"methods": ["fedsdg"], "conditions": {"label_conflict": {"share": 0.5, "classes": 4}}}
    config = parse_config(raw)
    run = config.run("digits", "iid", method_entry("fedsdg"), 0)
    partition = make_partition("digits", "iid", 0, 8, config.partition)
    folder = tmp_path / "run"
    assert execute(run, material, partition, folder, store=tmp_path / "s", identity={}) is None
    rounds = pq.read_table(folder / "rounds.parquet").to_pandas().set_index("round")
    clients = pq.read_table(folder / "clients.parquet").to_pandas()
    evaluated = rounds[rounds.evaluated]
    assert evaluated.index.tolist() == [2, 4]
    for number, row in evaluated.iterrows():
        mine = clients[clients["round"] == number]
        # In the last quarter of the rounds alone.
        assert mine.held_out.sum() == (2 if number == 4 else 0)
        assert not mine.drawn[mine.held_out].astype(bool).any()
        judged = mine[~mine.held_out]
        agree, conflict = judged[~judged.conflicts], judged[judged.conflicts]
        assert len(agree) and len(conflict)
        for name, some in (("", judged), ("_a", agree), ("_b", conflict)):
            mean = some.expected_accuracy.mean()
            assert row[f"expected_accuracy{name}"] == pytest.approx(mean, abs=1e-15)
        new = mine[mine.held_out].expected_accuracy.mean()
        assert row["expected_accuracy_new"] == pytest.approx(new, abs=1e-15, nan_ok=True)
        assert row["personal_accuracy"] == pytest.approx(judged.test_accuracy.mean(), abs=1e-15)
        worst = judged[judged.drawn]
        assert row["expected_worst_decile"] == worst.expected_accuracy.min()
    result = json.loads((folder / "result.json").read_text())
    for at in ("last", "quarter"):  # of four rounds the fourth alone
        assert result[at]["expected_accuracy_b"] == rounds.expected_accuracy_b[4]
    assert result["quarter"]["evaluations"] == 1
