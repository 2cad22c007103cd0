"""Models that come out of runs: what is exported, what cards and `evaluate` say, and new starts."""

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from fedsdg.cli import main
from fedsdg.data.datasets import ImageData
from fedsdg.data.partition_files import write_partition
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.exports.client_task import ClientTask
from fedsdg.experiment.exports.evaluate import evaluate_model
from fedsdg.experiment.exports.export import export_run
from fedsdg.experiment.exports.model_card import card
from fedsdg.experiment.exports.model_folders import load_model, write_timm
from fedsdg.experiment.initial_model import initial_model
from fedsdg.experiment.loading import load_images
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.experiment.runs import execute
from fedsdg.experiment.starts import find_start
from fedsdg.models import (
    Architecture,
    Portable,
    block_views,
    build_backbone,
    declare_torchvision_operators,
    freeze,
    save_backbone,
)
from tests.suited import suited

declare_torchvision_operators()
import peft  # noqa: E402
import timm  # noqa: E402

CONFIG = Path(__file__).parents[3] / "config" / "config.yaml"
SKEW = "dirichlet~1.0"
CLIENTS = 8
ARCHITECTURE = Architecture(8, 4, 1, 16, 2, 2, (0.5,), (0.5,))
DATA = load_images("digits")
IMAGES = torch.from_numpy(DATA.images[:40, None] / 255 / 0.5 - 1).float()
FACTORS = {"type": "fedsdg", "composition": "factors"}
SHARED_A = {"type": "fedsdg", "private_subspace": "shared-a"}
CONFLICT = {"label_conflict": {"share": 0.5, "classes": 4}}
#: With large rates, so that branches and gates amount to something after two rounds.
LIVELY = {"eta_g": 0.02, "eta_p": 0.05, "eta_m": 0.3}


@pytest.fixture(scope="module")
def raw():
    found = yaml.safe_load(CONFIG.read_text())
    found["federation"] |= {"clients": CLIENTS, "clients_per_round": 4, "rounds": 2}
    found["federation"] |= {"evaluate_every": 1}
    found["training"] |= {"kernel": "torch", "epochs": 1, "save": "last", **LIVELY}
    found["adapters"] |= {"rank": 2, "alpha": 4}
    found["methods"] = ["fedavg"]
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def backbone(place):
    torch.manual_seed(0)
    model = build_backbone(ARCHITECTURE)
    # timm starts biases at zero and norms at one: a mistake with them would not show.
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return save_backbone(model, ARCHITECTURE, place / "letters.safetensors", {})


class Done:
    """A run in its folder."""

    def __init__(self, run, material, place, number):
        self.run, self.material, self.place = run, material, place
        self.folder = place / f"run{number}"
        self.partition = make_partition("digits", run.skew, 0, CLIENTS, run.partition)
        self.shares = place / f"shares{number}.parquet"
        write_partition(self.partition, self.shares)
        assert self.again(self.folder) is None
        rows = pq.ParquetFile(self.folder / "clients.parquet").read().to_pylist()
        self.result = json.loads((self.folder / "result.json").read_text())
        self.rows = {row["client"]: row for row in rows if row["round"] == run.federation.rounds}
        self.trained = sorted(client for client, row in self.rows.items() if row["drawn"])

    def again(self, folder, **changes):
        run = dataclasses.replace(self.run, **changes)
        store = self.place / "store"
        return execute(run, self.material, self.partition, folder, store=store, identity={})

    def export(self, output, **options):
        options.setdefault("backbone_file", self.place / "letters.safetensors")
        return export_run(self.folder, output, **options)

    def accuracy(self, folder):
        letters = self.place / "letters.safetensors"
        (found,) = evaluate_model(folder, [DATA], letters, self.shares)
        return found.accuracy


@pytest.fixture(scope="module")
def done(raw, place, backbone):
    """A method's entry and settings -> its run, done once."""
    cache = {}

    def make(entry, skew=SKEW, **more):
        key = json.dumps([entry, skew, more], sort_keys=True)
        if key not in cache:
            changed = {
                name: {**raw.get(name, {}), **value} if isinstance(value, dict) else value
                for name, value in more.items()
            }
            method = method_entry(entry)
            config = suited(parse_config({**raw, **changed}), method.type)
            run = config.run("digits", skew, method, 0)
            frozen = backbone if run.trainable == "adapters" else None
            material = prepare_material("digits", frozen, "cpu")
            cache[key] = Done(run, material, place, len(cache))
        return cache[key]

    return make


def base_model(folder, classes=10):
    path = f"local-dir:{folder / 'backbone'}"
    return timm.create_model(path, pretrained=True, num_classes=classes)


def with_timm(folder):
    return timm.create_model(f"local-dir:{folder / 'merged'}", pretrained=True).eval()


def assert_same(one, other, images=IMAGES):
    with torch.no_grad():
        torch.testing.assert_close(one(images), other(images), rtol=0, atol=1e-4)


# --- What is exported -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "servers", "own"),
    [
        ("fedavg", ["global"], False),
        ("fedsdg", ["global"], True),
        (FACTORS, ["global"], False),
        (SHARED_A, ["global"], True),
        ("fedsdg+head", ["global"], False),
        ({"type": "fedbabu", "tunes": "all"}, ["global"], False),
        ("ditto", ["global"], False),
        ("fedrep", ["global"], False),
        ("gated-head", ["global"], False),
        ("feddpa", ["global"], False),
        ("apfl", ["global"], False),
        ("clustered", ["server~0", "server~1", "server~2"], False),
        ("local-only", [], False),
    ],
    ids=str,
)
def test_exported_models_have_the_accuracies_of_the_record(done, entry, servers, own, tmp_path):
    """Those of clients, read with peft and with timm, and that of the server's model."""
    one = done(entry)
    found = one.export(tmp_path / "out")
    assert [name for name in found.names if not name.startswith("client~")] == servers
    assert bool([r for r in found.remarks if "keep a part of every adapter" in r]) != bool(servers)
    assert bool(list(found.folder.glob("*/own"))) == own
    if servers == ["global"] and entry not in ("fedrep", "fedsdg+head"):
        expected = one.result["last"]["global_accuracy"]
        assert one.accuracy(found.folder / "global") == pytest.approx(expected, abs=1e-12)
    every = one.export(tmp_path / "all", clients=range(CLIENTS)).folder
    assert sorted(one.rows) == [*range(CLIENTS)]
    for client, row in one.rows.items():
        folder = every / f"client~{client}"
        assert one.accuracy(folder) == pytest.approx(row["expected_accuracy"], abs=1e-12)
    assert_same(load_model(folder, one.material.backbone).scores, with_timm(folder))


@pytest.mark.parametrize("entry", ["fedavg", "fedper", "local-only"])
def test_the_small_cnn_comes_out_with_its_own_weights(done, entry, tmp_path):
    one = done(entry, trainable="full")
    out = one.export(tmp_path / "out", clients=range(CLIENTS)).folder
    assert not (out / "backbone").exists()
    for client, row in one.rows.items():
        accuracy = one.accuracy(out / f"client~{client}")
        assert accuracy == pytest.approx(row["expected_accuracy"], abs=1e-12)


def test_a_private_branch_is_a_second_adapter_beside_the_shared_one(done, tmp_path):
    one = done("fedsdg")
    out = one.export(tmp_path / "out").folder
    assert 0 < len(one.trained) < CLIENTS
    clients = [f"client~{client}" for client in one.trained]
    assert sorted(path.name for path in out.iterdir()) == ["backbone", *clients, "global"]
    folder = out / clients[0]
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 4
    model = peft.PeftModel.from_pretrained(base_model(out), out / "global", adapter_name="shared")
    model.load_adapter(folder / "own", adapter_name="own")
    model.base_model.set_adapter(["shared", "own"])
    assert_same(model.eval(), with_timm(folder))
    model.base_model.set_adapter(["shared"])
    assert_same(model, with_timm(out / "global"))


def test_adapters_without_a_head_where_clients_keep_it(done, tmp_path):
    out = done("fedrep").export(tmp_path / "out").folder
    assert not any("head" in name for name in load_file(out / "global/adapter_model.safetensors"))
    features = peft.PeftModel.from_pretrained(base_model(out, 0), out / "global").eval()
    assert_same(features, with_timm(out / "global"))


def test_a_backbone_from_timm_comes_out_as_what_it_is(tmp_path):
    """By its name there, so that whatever is particular to it is the same."""
    grey = (0.5, 0.5, 0.5)
    name = "vit_tiny_patch16_224.augreg_in21k"
    shape = Architecture(32, 16, 3, 192, 12, 3, grey, grey, timm_name=name)
    backbone = save_backbone(build_backbone(shape), shape, tmp_path / "vit.safetensors", {})
    write_timm(backbone.model.state_dict(), backbone, tmp_path / "backbone", ())
    assert_same(base_model(tmp_path, 0).eval(), backbone.model, torch.randn(2, 3, 32, 32))


# --- One definition of a client's accuracy --------------------------------------------------------


@pytest.mark.parametrize(
    ("skew", "conditions", "kind"),
    [
        ("dirichlet~0.3", {}, "held"),
        ("iid", CONFLICT, "labels"),
        ("dirichlet~1.0", CONFLICT, "labels"),
        ("iid", {"feature_shift": {"kind": "rotate"}}, "view"),
        ("iid", {"feature_shift": {"kind": "noise", "per": "group", "groups": 2}}, "view"),
    ],
    ids=str,
)
def test_rounds_card_and_evaluate_measure_a_client_alike(done, skew, conditions, kind, tmp_path):
    one = done("fedsdg", skew, conditions=conditions)
    out = one.export(tmp_path / "out", clients=range(CLIENTS)).folder
    plain = []
    for client, row in one.rows.items():
        folder = out / f"client~{client}"
        expected = row["expected_accuracy"]
        assert one.accuracy(folder) == pytest.approx(expected, abs=1e-12)
        card_of_client = (folder / "README.md").read_text()
        assert f"on the global test set, as the client sees it | {expected:.4f}" in card_of_client
        facts = json.loads((folder / "fedsdg.json").read_text())
        task = ClientTask.of_plain(facts["client"])
        if getattr(task, kind) not in (None, tuple(range(10))):
            # Without what makes the client's task its own, the same model does otherwise.
            without = {"labels": range(10), "held": None, "view": None}[kind]
            facts["client"][kind] = without if without is None else [*without]
            (folder / "fedsdg.json").write_text(json.dumps(facts))
            plain.append(one.accuracy(folder) != pytest.approx(expected, abs=1e-12))
    assert sum(plain) >= 3


def test_damaged_facts_of_a_client_are_one_sentence(done, tmp_path):
    out = done("fedsdg").export(tmp_path / "out").folder
    file = next(out.glob("client~*")) / "fedsdg.json"
    facts = json.loads(file.read_text())
    for wrong in (3, {}, {**facts["client"], "labels": [0]}, {**facts["client"], "view": {}}):
        file.write_text(json.dumps({**facts, "client": wrong}))
        with pytest.raises(ValueError, match="what the client's accuracy depends on"):
            done("fedsdg").accuracy(file.parent)


@pytest.mark.parametrize("trainable", ["adapters", "full"])
def test_evaluate_prints_the_runs_own_accuracy(done, place, tmp_path, capsys, trainable):
    one = done("fedavg", trainable=trainable)
    out = one.export(tmp_path / "out").folder
    wanted = one.result["last"]
    images = len(one.partition.global_test())
    models = ["global", "global/merged"] if trainable == "adapters" else ["global"]
    for model in models:
        arguments = ["--data", "digits", "--partition", one.shares]
        arguments += ["--backbone", place / "letters.safetensors"]
        assert main(["evaluate", *map(str, [out / model, *arguments])]) == 0
        said = capsys.readouterr().out
        assert f"accuracy {wanted['global_accuracy']:.4f}, loss" in said
        assert f"loss {wanted['global_loss']:.4f} on {images} images" in said
    assert main(["evaluate", str(out / models[-1]), "--data", "digits", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["dataset"], found["images"]) == ("digits", 1797) and found["accuracy"] <= 1
    assert found["samples"] == "all images, for it has no test set of its own"


# --- Cards ----------------------------------------------------------------------------------------


def test_names_of_classes_are_plain_text_in_a_card():
    federation = {"clients": 2, "clients_per_round": 1, "rounds": 1}
    config = {"dataset": "own", "skew": "iid", "seed": 0, "method": "fedavg", "parameters": {}}
    text = card(
        "global",
        None,
        1,
        Portable({}, {}),
        adapters=False,
        task=None,
        result={"config": config | {"federation": federation, "training": {}}, "last": {}},
        facts={
            "classes": ["cat", "[x](javascript:1)\n# <b>"],
            "save": "last",
            "images": dict.fromkeys(("channels", "size", "mean", "std"), 1),
            "stored": {},
        },
        provenance={},
        clients={},
        chance=None,
    )
    assert r"of the scores: cat, [x\](javascript:1) # \<b\>" in text
    assert "\n# <b>" not in text


def test_a_card_says_data_method_metrics_and_provenance(done, tmp_path):
    one = done("fedsdg", training={"precision": "bfloat16"})
    out = one.export(tmp_path / "out").folder
    client = one.trained[0]
    row, result = one.rows[client], one.result
    text = (out / f"client~{client}/README.md").read_text()
    for said in (
        "digits", SKEW, "seed 0", "fedsdg", '"lambda1": 0.0001', f"{row['test_accuracy']:.4f}",
        f"{result['last']['global_accuracy']:.4f}", f"{row['n_train']} training", "after round 2",
        result["config_hash"], result["partition_hash"], result["backbone_hash"], "rank 4",
        f'"client~{client}"', "PeftModel", "weighs the classes", "computed in bfloat16",
    ):  # fmt: skip
        assert said in text, said
    code = text.split("```python\n")[1].split("```")[0]
    scope = {}
    with contextlib.chdir(out):
        exec(code.split("# or")[0], scope)
    assert_same(scope["model"], with_timm(out / f"client~{client}"))


# --- What is saved, and bad input -----------------------------------------------------------------


def test_the_selected_models_are_those_of_the_round_that_the_record_selects(done):
    """A run that ends with that round and keeps the last is another way to the same models."""
    rough = {"eta_g": 1.0}  # so that accuracy goes up and down
    selected = done("fedsdg", federation={"rounds": 6}, training={"save": "selected", **rough})
    round_ = selected.result["selected"]["round"]
    assert 1 < round_ < 6, "neither the first nor the last"
    shorter = done("fedsdg", federation={"rounds": round_}, training=rough)
    one = load_file(selected.folder / "models.safetensors")
    other = load_file(shorter.folder / "models.safetensors")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_models_are_never_those_of_another_run(done, tmp_path):
    """Of a run that kept none, in the folder of one that did; and of a file that was mixed up."""
    kept, plain = done("fedavg"), done("fedavg", training={"save": None})
    folder = tmp_path / "run"
    shutil.copytree(kept.folder, folder)
    assert plain.again(folder) is None
    with pytest.raises(ValueError, match="kept no model; run it again with --set training.save"):
        export_run(folder, tmp_path / "out")
    shutil.copy(done("fedsdg").folder / "models.safetensors", folder)
    with pytest.raises(ValueError, match="are of another run than its records"):
        export_run(folder, tmp_path / "out")
    assert plain.again(folder, seed=1) is not None, "the partition is that of seed 0"
    assert not (folder / "models.safetensors").exists() and not (tmp_path / "out").exists()


def other_backbone(file, **changes):
    shape = dataclasses.replace(ARCHITECTURE, **changes)
    return save_backbone(build_backbone(shape), shape, file, {})


def test_bad_exports_are_one_sentence_and_leave_nothing(done, place, tmp_path, capsys):
    one = done("fedsdg")
    out = ("--output", tmp_path / "out")

    def sentence(*arguments, backbone=place / "letters.safetensors"):
        words = ["export", *arguments, "--backbone", backbone, *out]
        assert main([*map(str, words)]) == 2
        said = capsys.readouterr().err.strip()
        assert said.startswith("fedsdg: error: ") and "\n" not in said
        return said

    assert "no result.json" in sentence(tmp_path)
    assert "no client 8; its clients are 0 to 7" in sentence(one.folder, "--client", 8)
    other_backbone(tmp_path / "other.safetensors")
    assert "another one" in sentence(one.folder, backbone=tmp_path / "other.safetensors")
    assert "name its file with --backbone" in sentence(one.folder, backbone=tmp_path / "none")
    damaged = tmp_path / "damaged"
    shutil.copytree(one.folder, damaged)
    content = (damaged / "models.safetensors").read_bytes()
    (damaged / "models.safetensors").write_bytes(content[:-10])
    assert "is damaged" in sentence(damaged)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    assert "exists already" in sentence(one.folder)


def test_evaluate_refuses_in_a_sentence(done, place, tmp_path, capsys, monkeypatch):
    out = done("fedsdg").export(tmp_path / "out").folder
    other_backbone(tmp_path / "other.safetensors")
    other_backbone(tmp_path / "wide.safetensors", dim=32)

    def sentence(model, backbone=place / "letters.safetensors", data="digits"):
        words = ["evaluate", model, "--data", data, *(["--backbone", backbone] if backbone else [])]
        assert main([*map(str, words)]) == 2
        said = capsys.readouterr().err.strip()
        assert said.startswith("fedsdg: error: ") and "\n" not in said
        return said

    shared = out / "global"
    assert "was made for the backbone" in sentence(shared, tmp_path / "other.safetensors")
    (shared / "fedsdg.json").unlink()  # as of a checkpoint that peft wrote
    wide = sentence(shared, tmp_path / "wide.safetensors")
    assert "another backbone than wide: blocks.0.attn.proj is (16, 16)" in wide
    assert "name its file with --backbone" in sentence(shared, None)
    assert "holds no model" in sentence(tmp_path)
    assert "unknown data set 'digit'" in sentence(shared, data="digit")
    client = next(out.glob("client~*/own"))
    assert "have no head" in sentence(client)
    monkeypatch.chdir(tmp_path)  # where there are no results
    assert "which is not at results/backbones" in sentence(client.parent, None)
    for wrong in ("[]", "{}", '{"backbone": 3, "images": {}, "classes": []}'):
        (client.parent / "fedsdg.json").write_text(wrong)
        assert "does not say what the model beside it takes" in sentence(client.parent)
    cnn = done("fedavg", trainable="full").export(tmp_path / "cnn").folder / "global"
    weights = load_file(cnn / "model.safetensors")
    save_file(weights | {"conv2.bias": torch.zeros(3)}, cnn / "model.safetensors")
    assert "conv2.bias is (3,), but should be (32,)" in sentence(cnn)
    few = ImageData("few", np.zeros((4, 8, 8), np.uint8), np.arange(4), 4)
    monkeypatch.setattr("fedsdg.experiment.loading.load_images", lambda source: few)
    assert "tells 10 classes apart, but few has 4" in sentence(shared, data="few")


# --- Starting from a checkpoint -------------------------------------------------------------------


def begun(raw, material, folder, entry="fedavg", **adapters):
    """Return a run that starts from a checkpoint, and the scores that it starts with."""
    adapters = {**raw["adapters"], "start": str(folder), **adapters}
    run = parse_config({**raw, "adapters": adapters}).run("digits", SKEW, method_entry(entry), 0)
    model, first, private = initial_model(run, material)
    named = block_views(first[None], model.layout.communicated)
    named |= block_views(private[None], model.layout.private)

    def scores(images):
        return model.logits(images, [len(images)], named)

    return run, scores


@pytest.mark.parametrize("entry", ["fedavg", "fedsdg", "fedrep", "local-only"])
def test_training_starts_with_the_exported_models_scores(raw, done, entry, tmp_path):
    source = done("fedsdg")
    folder = source.export(tmp_path / "out").folder / "global"
    run, scores = begun(raw, source.material, folder, entry)
    assert run.to_dict()["adapters"]["start"] == find_start(str(folder)).sha256
    assert_same(scores, with_timm(folder))


def test_a_clients_model_can_be_started_from_with_twice_the_rank(raw, done, tmp_path):
    source = done("fedsdg")
    folder = next(source.export(tmp_path / "out").folder.glob("client~*"))
    with pytest.raises(ValueError, match=r"has shape \(4, 16\).*\(2, 16\).*adapters.rank to 4"):
        begun(raw, source.material, folder)
    # Another alpha is another scale: the checkpoint means the same.
    _, scores = begun(raw, source.material, folder, rank=4, alpha=1)
    assert_same(scores, with_timm(folder))


def test_a_start_that_does_not_fit_is_refused_in_a_sentence(raw, done, tmp_path):
    material = done("fedsdg").material
    folder = done("fedsdg").export(tmp_path / "out").folder / "global"
    with pytest.raises(ValueError, match=r"holds no peft checkpoint: adapter_config.json"):
        begun(raw, material, tmp_path / "none")
    with pytest.raises(ValueError, match="must be a folder"):
        begun(raw, material, folder, start=3)
    other = freeze(build_backbone(ARCHITECTURE), ARCHITECTURE, "other", {})
    with pytest.raises(ValueError, match=r"made for the backbone letters .* but this is letters"):
        begun(raw, prepare_material("digits", other, "cpu"), folder)
    with pytest.raises(ValueError, match=r"blocks.0.attn.proj.lora_A .*set adapters.targets"):
        begun(raw, material, folder, targets="qkv-fc1")
    with pytest.raises(ValueError, match="no adapters that could start"):
        parse_config({**raw, "trainable": "full", "adapters": {"start": str(folder)}})
    run, _ = begun(raw, material, folder)
    config = folder / "adapter_config.json"
    config.write_text(config.read_text() + " ")
    with pytest.raises(ValueError, match="was changed since the config was read"):
        initial_model(run, material)
