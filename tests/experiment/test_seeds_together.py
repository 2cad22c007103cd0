"""Seeds of a cell in one pass: as if run alone but for rounding, resumable, and never mixed up."""

import dataclasses
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fedsdg.data.partition import TRAIN
from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.machine.interruption import Stopped
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.experiment.run_files import Assignment
from fedsdg.experiment.runs import execute, execute_together
from fedsdg.federation import rounds
from fedsdg.federation.local_work import Samples
from fedsdg.federation.together import require_alike, step_together
from fedsdg.methods.families import METHODS
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze
from tests.suited import suited

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
SKEW = "dirichlet~1.0"
SEEDS = (0, 1, 2)
ROUNDS = 3
BYTE_IDENTICAL = ("rounds.parquet", "clients.parquet", "result.json")


@pytest.fixture(scope="module")
def config():
    raw = yaml.safe_load(CONFIG.read_text())
    raw["federation"] |= {"clients": 9, "clients_per_round": 5, "rounds": ROUNDS}
    raw["federation"] |= {"evaluate_every": 2}
    raw["training"] |= {"epochs": 1}
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
    return {n: make_partition("digits", SKEW, n, 9, config.partition) for n in SEEDS}


@pytest.fixture(scope="module")
def fresh(config, material, partitions):
    """(method, seed) -> its federation before the first round, in float64 if told."""

    def make(name, seed, dtype=torch.float32):
        run = suited(config, name).run("digits", SKEW, method_entry(name), seed)
        one = build(run, material, partitions[seed])
        if dtype != torch.float32:
            one = dataclasses.replace(
                one,
                model=one.model.to(dtype),
                samples=material64(material),
                theta=one.theta.to(dtype),
                private=one.private.to(dtype),
            )
        one.start = one.theta.clone()
        return one

    return make


_DOUBLE = {}


def material64(material):
    """The same samples in float64, and the same object for every seed."""
    if id(material) not in _DOUBLE:
        _DOUBLE[id(material)] = Samples(material.samples.images.double(), material.samples.labels)
    return _DOUBLE[id(material)]


@pytest.fixture
def assigned(config, partitions, tmp_path):
    def make(folder, name="fedsdg", seeds=SEEDS, rounds=ROUNDS):
        longer = dataclasses.replace(config.federation, rounds=rounds)
        changed = dataclasses.replace(config, federation=longer)
        return [
            Assignment(
                changed.run("digits", SKEW, method_entry(name), n),
                partitions[n],
                tmp_path / folder / f"seed~{n}",
                {"experiment": "test", "seed": n},
            )
            for n in seeds
        ]

    return make


def kept(one):
    """What all clients keep: private parameters, and the terms' vectors by name."""
    return one.bank.gather(torch.arange(one.num_clients))


def moved(a, b):
    """Distance of two server models and of what clients keep, relative to how far b has moved."""
    (private, rows), (other, others) = kept(a), kept(b)
    far = [(a.theta - b.theta, b.theta - b.start), (private - other, other - b.private)]
    far += [(rows[name] - others[name], others[name]) for name in others]
    return max(float(gap.norm() / way.norm().clamp(min=1e-30)) for gap, way in far if way.numel())


#: Their gates learn on samples that are drawn by seed.
HELD_OUT = [name for name, row in METHODS.items() if row.personalisation.gate_samples != "all"]


@pytest.mark.parametrize("name", HELD_OUT)
def test_seeds_whose_gates_learn_on_other_samples_do_not_train_together(fresh, name):
    with pytest.raises(ValueError, match="differ in their samples; run them one by one"):
        require_alike([fresh(name, seed, torch.float32) for seed in SEEDS[:2]])


@pytest.mark.parametrize("name", [name for name in METHODS if name not in HELD_OUT])
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_seeds_in_one_pass_are_the_seeds_alone(fresh, name, dtype, bound):
    """Two of them, in a round after which nobody is evaluated and in one after which all are."""
    together = [fresh(name, seed, dtype) for seed in SEEDS[:2]]
    require_alike(together)
    for round_ in (1, 2):
        step_together(together, round_)
    for seed, one in zip(SEEDS[:2], together, strict=True):
        alone = fresh(name, seed, dtype)
        for round_ in (1, 2):
            alone.step(round_)
        assert moved(one, alone) < bound
        assert one.bank.trained.tolist() == alone.bank.trained.tolist()
        for mine, other in zip(one.records.rounds, alone.records.rounds, strict=True):
            assert mine.keys() == other.keys()
            for key in ("round", "evaluated", "local_steps", "samples_processed", "bytes_up"):
                assert mine[key] == other[key]
            assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=bound)
        assert [(r["round"], r["client"]) for r in one.records.clients] == [
            (r["round"], r["client"]) for r in alone.records.clients
        ]


def test_one_pass_trains_all_of_them(fresh, monkeypatch):
    from fedsdg.federation import passes

    seen, real = [], passes.train_clients

    def noted(model, layout, samples, clients, work):
        seen.append(len(clients))
        return real(model, layout, samples, clients, work)

    monkeypatch.setattr(passes, "train_clients", noted)
    step_together([fresh("scaffold", seed) for seed in SEEDS], 1)
    assert seen == [3 * 5]


def test_a_round_that_breaks_off_happens_to_none(fresh, monkeypatch):
    group = [fresh("scaffold", seed) for seed in SEEDS]
    step_together(group, 1)
    before = [(one.theta.clone(), kept(one)[1]["control"].clone()) for one in group]
    take_step = rounds.take_step

    def broken(one, *rest):
        return 1 / 0 if one is group[2] else take_step(one, *rest)

    monkeypatch.setattr(rounds, "take_step", broken)
    with pytest.raises(ZeroDivisionError):
        step_together(group, 2)
    for one, (theta, control) in zip(group, before, strict=True):
        assert torch.equal(one.theta, theta) and torch.equal(kept(one)[1]["control"], control)
        assert one.rounds_done == 1


def test_what_is_not_alike_is_refused(fresh):
    with pytest.raises(ValueError, match="seeds 0 and 1 cannot train together: .* their layout"):
        require_alike([fresh("fedsdg", 0), fresh("fedavg", 1)])
    with pytest.raises(ValueError, match="differ in their work"):
        require_alike([fresh("fedavg", 0), fresh("fedprox", 1)])
    with pytest.raises(ValueError, match="differ in their samples"):
        require_alike([fresh("fedavg", 0), fresh("fedavg", 1, torch.float64)])
    one, other = fresh("fedavg", 0), fresh("fedavg", 1)
    images = other.samples.images.clone()
    require_alike([one, dataclasses.replace(other, samples=Samples(images, other.samples.labels))])
    images[0] += 1
    with pytest.raises(ValueError, match="differ in their samples"):
        changed = Samples(images, other.samples.labels)
        require_alike([one, dataclasses.replace(other, samples=changed)])


# --- Whole runs -----------------------------------------------------------------------------------


def provenance(folder):
    return json.loads((folder / "provenance.json").read_text())


def test_records_by_seed_provenance_and_addresses_of_their_own(assigned, material, tmp_path):
    store, seen = tmp_path / "runs", []
    group = assigned("together")
    failures = execute_together(
        group, material, store=store, progress=lambda *what: seen.append(what[:2])
    )
    assert failures == [None] * 3
    assert seen == [(number, round_) for round_ in range(1, ROUNDS + 1) for number in range(3)]
    names = sorted(place.name for place in store.iterdir())
    assert len(names) == 3 and all(name.endswith(".seeds~0-1-2") for name in names)
    for one in group:
        result = json.loads((one.folder / "result.json").read_text())
        assert result["seed"] == one.run.seed and result["config_hash"] == one.run.hash
        assert provenance(one.folder)["seeds_together"] == [0, 1, 2]
        assert provenance(one.folder)["clients_per_pass"] >= 15
        assert provenance(one.folder)["out_of_memory"] == []
    again = assigned("again")
    assert execute_together(again, material, store=store) == [None] * 3
    for one, other in zip(group, again, strict=True):
        assert provenance(one.folder) == provenance(other.folder), "from the store"

    # Alone, a run does not take what was made in company.
    one = assigned("alone")[1]
    execute(one.run, material, one.partition, one.folder, store=store, identity=one.identity)
    assert "seeds_together" not in provenance(one.folder)
    assert len(list(store.iterdir())) == 4
    # In company, what was made alone is not made again.
    shutil.rmtree(store / names[0])
    mixed = assigned("mixed")
    assert execute_together(mixed, material, store=store) == [None] * 3
    company = [provenance(other.folder).get("seeds_together") for other in mixed]
    assert company[1] is None and [0, 2] in company


@pytest.mark.parametrize("lost", [(), (0,), (0, 2), (0, 1, 2)])
def test_broken_off_and_taken_up_the_bytes_are_the_same(assigned, material, tmp_path, capsys, lost):
    """``lost``: runs whose newest checkpoint a kill came before; all go back to the common one."""

    def stop(number, round_, record):
        if round_ == 3:
            raise Stopped(signal.SIGTERM)

    store = tmp_path / "runs"
    with pytest.raises(Stopped, match="goes on after round 3"):
        execute_together(
            assigned("out"), material, store=store, progress=stop, checkpoint_seconds=0
        )
    assert not list(store.iterdir())
    folders = sorted((tmp_path / "checkpoints").iterdir())
    assert len(folders) == 3
    for folder in folders:
        assert sorted(f.name for f in folder.glob("*.json")) == ["round~2.json", "round~3.json"]
    for number in lost:
        (folders[number] / "round~3.json").unlink()
    assert execute_together(assigned("out"), material, store=store) == [None] * 3
    assert not list((tmp_path / "checkpoints").iterdir())
    last = 2 if lost else 3
    assert f"going on after round {last} " in capsys.readouterr().err

    shutil.rmtree(store)
    assert execute_together(assigned("undisturbed"), material, store=store) == [None] * 3
    for seed in SEEDS:
        folder = tmp_path / "out" / f"seed~{seed}"
        assert provenance(folder)["resumed_after"] == [last]
        for file in BYTE_IDENTICAL:
            other = tmp_path / "undisturbed" / f"seed~{seed}" / file
            assert (folder / file).read_bytes() == other.read_bytes(), file


@pytest.mark.parametrize("name", ["fedsdg", "scaffold"])
def test_rounds_that_are_done_again_are_saved_again(assigned, material, tmp_path, capsys, name):
    """Twice killed between the checkpoints of two seeds, with a save of the same round between."""

    def go(folder="out", last=None):
        def stop(number, round_, record):
            if round_ == last:
                raise Stopped(signal.SIGTERM)

        return execute_together(
            assigned(folder, name, rounds=6), material,
            store=tmp_path / "runs", progress=stop, checkpoint_seconds=0,
        )  # fmt: skip

    for last in (4, 5):
        with pytest.raises(Stopped, match=f"goes on after round {last}"):
            go(last=last)
        folder = sorted((tmp_path / "checkpoints").iterdir())[last % 3]
        (folder / f"round~{last}.json").unlink()
    assert go() == [None] * 3
    error = capsys.readouterr().err
    assert "going on after round 3 " in error and "going on after round 4 " in error
    shutil.rmtree(tmp_path / "runs")
    assert go("undisturbed") == [None] * 3
    for seed in SEEDS:
        assert provenance(tmp_path / "out" / f"seed~{seed}")["resumed_after"] == [3, 4]
        for file in BYTE_IDENTICAL:
            mine, other = (tmp_path / n / f"seed~{seed}" / file for n in ("out", "undisturbed"))
            assert mine.read_bytes() == other.read_bytes(), file


def test_killed_while_the_runs_were_being_stored(assigned, material, tmp_path, monkeypatch):
    """One run is in the store and the others are not: they go on together, and the bytes agree."""
    from fedsdg.experiment import runs

    stored = []

    def once(store, key, make):
        if stored:
            raise Stopped(signal.SIGTERM)
        stored.append(real(store, key, make))
        return stored[0]

    real = runs.keep_or_reuse
    store = tmp_path / "runs"
    with monkeypatch.context() as patch:
        patch.setattr(runs, "keep_or_reuse", once)
        with pytest.raises(Stopped):
            execute_together(assigned("out"), material, store=store, checkpoint_seconds=0)
    assert len(list(store.iterdir())) == 1
    assert execute_together(assigned("out"), material, store=store) == [None] * 3
    shutil.rmtree(store)
    assert execute_together(assigned("undisturbed"), material, store=store) == [None] * 3
    for seed in SEEDS:
        assert provenance(tmp_path / "out" / f"seed~{seed}")["seeds_together"] == [0, 1, 2]
        for file in BYTE_IDENTICAL:
            mine, other = (tmp_path / n / f"seed~{seed}" / file for n in ("out", "undisturbed"))
            assert mine.read_bytes() == other.read_bytes(), file


def test_a_seed_that_fails_takes_the_others_out_of_the_pass(
    assigned, material, partitions, tmp_path, capsys
):
    """Seed 1 is given a partition that is not its own."""
    group = assigned("out", "fedavg")
    group[1] = dataclasses.replace(group[1], partition=partitions[0])
    outcomes = execute_together(group, material, store=tmp_path / "runs")
    assert outcomes[0] is None and outcomes[2] is None
    assert "the partition was made for" in outcomes[1]
    assert "its seeds are now done one by one" in capsys.readouterr().err
    assert json.loads((group[1].folder / "result.json").read_text())["status"] == "failed"
    assert "seeds_together" not in provenance(group[0].folder)


def test_a_partition_with_another_test_set_is_refused(assigned, material, partitions, tmp_path):
    group = assigned("out", "fedavg")[:1]
    here = partitions[0].facts["test"]
    there = {"fixed": "by-seed", "by-seed": "fixed"}[here]
    other = dataclasses.replace(partitions[0], facts={**partitions[0].facts, "test": there})
    group[0] = dataclasses.replace(group[0], partition=other)
    (outcome,) = execute_together(group, material, store=tmp_path / "runs")
    assert f"test set is {there}, but the run wants partition.test: {here}; delete it" in outcome


def test_a_loss_that_is_not_finite_in_one_seed_fails_that_seed_alone(
    assigned, material, partitions, tmp_path
):
    """One sample is spoilt: a seed fails if, and only if, a client that it draws trains on it."""
    spoilt = None
    for index in range(len(material.samples.labels)):
        trains = [
            any(index in partitions[n].shards(TRAIN)[k].tolist() for k in drawn(n)) for n in SEEDS
        ]
        if trains == [False, True, False]:
            spoilt = index
            break
    assert spoilt is not None
    images = material.samples.images.clone()
    images[spoilt] = float("nan")
    broken = dataclasses.replace(material, samples=Samples(images, material.samples.labels))
    outcomes = execute_together(assigned("out", "fedavg"), broken, store=tmp_path / "runs")
    assert outcomes[0] is None and outcomes[2] is None
    assert "not finite" in outcomes[1]


def drawn(seed):
    from fedsdg.federation.cohorts import draw_cohort

    clients = {int(k) for r in range(1, ROUNDS + 1) for k in draw_cohort(seed, r, 9, 5)}
    return np.array(sorted(clients))


def test_runs_that_differ_in_more_than_the_seed_are_refused(assigned, material, tmp_path):
    mixed = [assigned("out")[0], assigned("out", "fedavg")[1]]
    with pytest.raises(ValueError, match="may differ in their seed alone"):
        execute_together(mixed, material, store=tmp_path / "runs")


def test_out_of_memory_is_in_the_provenance_and_survives_a_checkpoint(
    assigned, material, tmp_path, monkeypatch, capsys
):
    """A device that holds four clients of fifteen, and a stop after the second round."""
    from fedsdg.models.fast.model import CompiledModel

    real, sizes = CompiledModel.losses, []

    def small(self, images, labels, divisors, counts, *rest):
        sizes.append(len(counts))
        if len(counts) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. 1 MiB is free.")
        return real(self, images, labels, divisors, counts, *rest)

    def stop(number, round_, record):
        if round_ == 2 and number == 2:
            raise Stopped(signal.SIGINT)

    monkeypatch.setattr(CompiledModel, "losses", small)
    store = tmp_path / "runs"
    with pytest.raises(Stopped, match="goes on after round 2"):
        execute_together(
            assigned("out"), material, store=store, progress=stop, checkpoint_seconds=0
        )
    error = capsys.readouterr().err
    assert "clients_per_pass is halved from 15 to 7" in error
    assert "clients_per_pass is halved from 7 to 3" in error
    sizes.clear()
    assert execute_together(assigned("out"), material, store=store) == [None] * 3
    assert max(sizes) <= 3, "it is not tried again"
    for seed in SEEDS:
        found = provenance(tmp_path / "out" / f"seed~{seed}")
        assert found["clients_per_pass"] == 3
        steps = [(event["from"], event["to"]) for event in found["out_of_memory"]]
        assert steps == [(15, 7), (7, 3)]
        assert found["out_of_memory"][0]["at"].startswith("round 1, client ")
