"""Models that come out of runs, read with peft and timm alone, and training that starts from them.

What a client's scores are is asked of the federation itself, which goes another way: it merges
each client's own weights into a cohort's forward pass.
"""

import contextlib
import dataclasses
import json
import shutil
from contextlib import closing
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
from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.exports.export import export_run
from fedsdg.experiment.exports.model_card import card
from fedsdg.experiment.exports.model_folders import write_timm
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.experiment.runs import execute
from fedsdg.experiment.starts import find_start
from fedsdg.federation import rounds
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.judged_models import judged_models
from fedsdg.federation.saved_models import read_saved
from fedsdg.files import sha256_json
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze, save_backbone
from fedsdg.models.parameters import views
from fedsdg.models.portable import Portable
from fedsdg.models.small_cnn import scores_of_one
from fedsdg.models.torchvision_schemas import declare_torchvision_operators
from tests.suited import suited

declare_torchvision_operators()
import peft  # noqa: E402
import timm  # noqa: E402

CONFIG = Path(__file__).parents[3] / "config" / "config.yaml"
RECORD = CONFIG.parents[1] / "results/reference/label-skew/runs.parquet"
SKEW = "dirichlet~1.0"
CLIENTS = 8
ARCHITECTURE = Architecture(8, 4, 1, 16, 2, 2, (0.5,), (0.5,))
NOBODY = np.zeros(CLIENTS, dtype=bool)
FACTORS = {"type": "fedsdg", "composition": "factors"}
SHARED_A = {"type": "fedsdg", "private_subspace": "shared-a"}
PER_SAMPLE = {"type": "feddpa", "mixture": "per-sample"}
#: With large rates, so that branches and gates amount to something after two rounds.
LIVELY = {"eta_g": 0.02, "eta_p": 0.05, "eta_m": 0.3}


@pytest.fixture(scope="module")
def raw():
    found = yaml.safe_load(CONFIG.read_text())
    found["training"]["kernel"] = "torch"
    found["federation"] |= {"clients": CLIENTS, "clients_per_round": 4, "rounds": 2}
    found["federation"] |= {"evaluate_every": 1}
    found["training"] |= {"epochs": 1, "save": "last", **LIVELY}
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


@pytest.fixture(scope="module")
def partition(raw):
    return make_partition("digits", SKEW, 0, CLIENTS, parse_config(raw).partition)


class Done:
    """A run in its folder, and the federation as it was at its end."""

    def __init__(self, run, material, partition, folder):
        failure = execute(
            run, material, partition, folder, store=folder.parent / "store", identity={}
        )
        assert failure is None, failure
        self.folder, self.material = folder, material
        self.run, self.partition = run, partition
        self.one = build(run, material, partition)
        self.one.run()
        self.judged = judged_models(self.one, self.one.schedule.rounds, NOBODY, NOBODY)
        self.images = material.samples.images[:40]

    def export(self, **options):
        options.setdefault("backbone_file", self.folder.parent / "letters.safetensors")
        return export_run(self.folder, **options)

    def scores_of(self, client):
        """As the run itself evaluates the client."""
        theta = self.judged.theta
        row = theta if theta.dim() == 1 else theta[client]
        return self._scores(
            row, self.judged.private(torch.tensor([client])), bool(self.judged.branch[client])
        )

    def scores_of_server(self, number=0):
        return self._scores(self.one.models[number], self.one.private[None], False)

    def _scores(self, row, private, branch):
        one = self.one
        named = {**views(row[None], one.layout.communicated), **views(private, one.layout.private)}
        with torch.no_grad():
            return one.model.logits(self.images, [len(self.images)], named, private=branch)


@pytest.fixture(scope="module")
def done(raw, place, backbone, partition):
    """A method's entry -> its run, done once."""
    cache = {}

    def make(entry, **more):
        key = json.dumps([entry, more], sort_keys=True)
        if key not in cache:
            changed = {
                name: {**raw[name], **value} if isinstance(value, dict) else value
                for name, value in more.items()
            }
            method = method_entry(entry)
            config = suited(parse_config({**raw, **changed}), method.type)
            run = config.run("digits", SKEW, method, 0)
            material = prepare_material(
                "digits", backbone if run.trainable == "adapters" else None, "cpu"
            )
            cache[key] = Done(run, material, partition, place / f"run{len(cache)}")
        return cache[key]

    return make


def base_model(folder, classes=10):
    return timm.create_model(
        f"local-dir:{folder / 'backbone'}", pretrained=True, num_classes=classes
    )


def with_peft(folder, name):
    return peft.PeftModel.from_pretrained(base_model(folder), folder / name).eval()


def with_timm(folder, name):
    return timm.create_model(f"local-dir:{folder / name / 'merged'}", pretrained=True).eval()


def assert_same(model, done, expected):
    with torch.no_grad():
        found = model(done.images)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def close(one, other):
    return torch.allclose(one, other, rtol=0, atol=1e-3)


ENTRIES = [
    "fedavg",
    "fedsdg",
    FACTORS,
    SHARED_A,
    "fedsdg-official",
    "fedsdg+head",
    "fine-tune",
    "fedbabu",
    {"type": "fedbabu", "tunes": "all"},
    "ditto",
    {"type": "interpolate", "weight": None},
    "fedrep",
    "gated-head",
    "fed-rod",
    "ffa-lora",
    "fedsa-lora",
    "rolora",
    "apfl",
    "feddpa",
    "clustered",
    "semi-global",
    "cgsv-xu",
    "local-only",
]


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_clients_give_the_runs_scores_with_peft_and_with_timm(done, entry, tmp_path):
    """Two that have taken part, and one that has not if there is one."""
    one = done(entry)
    drawn = one.one.bank.trained.numpy()
    some = [*np.flatnonzero(drawn)[:2].tolist(), *np.flatnonzero(~drawn)[:1].tolist()]
    assert one.export(output=tmp_path / "out", clients=some).folder == tmp_path / "out"
    expected = [one.scores_of(client) for client in some]
    for client, scores in zip(some, expected, strict=True):
        assert_same(with_peft(tmp_path / "out", f"client~{client}"), one, scores)
        assert_same(with_timm(tmp_path / "out", f"client~{client}"), one, scores)
    # Where clients differ, one's model in the place of another's would show.
    if entry not in ("fedavg", "ffa-lora", "rolora", "clustered"):
        assert not close(expected[0], expected[1])


@pytest.mark.parametrize(
    "entry",
    ["fedavg", "fedsdg", "fedbabu", "ffa-lora", "ditto", "feddpa", PER_SAMPLE, "apfl"],
    ids=str,
)
def test_the_model_of_all_is_exported_where_there_is_one(done, entry, tmp_path):
    one = done(entry)
    found = one.export(output=tmp_path / "out")
    assert found.names[0] == "global"
    assert_same(with_peft(tmp_path / "out", "global"), one, one.scores_of_server())
    assert_same(with_timm(tmp_path / "out", "global"), one, one.scores_of_server())


def test_a_run_in_bfloat16_differs_by_its_rounding_alone(done, tmp_path):
    """By about 2⁻⁸ of the size of the scores, and more than float32 would."""
    one = done("fedsdg", training={"precision": "bfloat16"})
    out = one.export(output=tmp_path / "out").folder
    expected = one.scores_of_server()
    with torch.no_grad():
        gap = (with_timm(out, "global")(one.images) - expected).abs().max()
    assert 1e-5 < gap < 0.02 * expected.abs().max()
    assert "computed in bfloat16" in (out / "global/README.md").read_text()


def test_several_models_of_the_server_one_by_one(done, tmp_path):
    one = done("clustered")
    found = one.export(output=tmp_path / "out")
    assert found.names == ["server~0", "server~1", "server~2"]
    scores = [one.scores_of_server(c) for c in range(3)]
    assert not close(scores[0], scores[1])
    for c in range(3):
        assert_same(with_peft(tmp_path / "out", f"server~{c}"), one, scores[c])


def test_a_private_branch_is_a_second_adapter_beside_the_shared_one(done, tmp_path):
    one = done("fedsdg")
    out = one.export(output=tmp_path / "out").folder
    assert json.loads((out / "global/adapter_config.json").read_text())["r"] == 2
    trained = np.flatnonzero(one.one.bank.trained.numpy()).tolist()
    assert 0 < len(trained) < CLIENTS
    assert {p.name for p in out.iterdir()} == {
        "backbone",
        "global",
        *(f"client~{k}" for k in trained),
    }
    for client in trained:
        said = json.loads((out / f"client~{client}/adapter_config.json").read_text())
        assert said["r"] == 4 and said["lora_alpha"] == 8
        model = peft.PeftModel.from_pretrained(
            base_model(out), out / "global", adapter_name="shared"
        )
        model.load_adapter(out / f"client~{client}/own", adapter_name="own")
        model.base_model.set_adapter(["shared", "own"])
        assert_same(model.eval(), one, one.scores_of(client))
        model.base_model.set_adapter(["shared"])
        assert_same(model, one, one.scores_of_server())


@pytest.mark.parametrize("entry", ["fedsdg+head", FACTORS, SHARED_A, "feddpa", "ditto"], ids=str)
def test_no_second_adapter_where_the_client_is_no_sum_with_a_shared_head(done, entry, tmp_path):
    out = done(entry).export(output=tmp_path / "out").folder
    assert list(out.glob("client~*/adapter_config.json")) and not list(out.glob("*/own"))


def test_adapters_without_a_head_where_clients_keep_it(done, tmp_path):
    out = done("fedrep").export(output=tmp_path / "out").folder
    assert not any("head" in name for name in load_file(out / "global/adapter_model.safetensors"))
    features = peft.PeftModel.from_pretrained(base_model(out, 0), out / "global").eval()
    merged = timm.create_model(f"local-dir:{out / 'global/merged'}", pretrained=True).eval()
    with torch.no_grad():
        images = done("fedrep").images
        torch.testing.assert_close(features(images), merged(images), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("entry", "kind", "why"),
    [
        ("local-only", "server", "keep a part of every adapter"),
        ("fedsa-lora", "server", "keep a part of every adapter"),
        (PER_SAMPLE, "clients", "anew for every image"),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_said(done, entry, kind, why, tmp_path):
    one = done(entry)
    remarks = one.export(output=tmp_path / "out").remarks
    assert len([r for r in remarks if why in r]) == 1
    if kind == "clients":
        client = int(np.flatnonzero(one.one.bank.trained.numpy())[0])
        with pytest.raises(ValueError, match=f"client {client} cannot be.*{why}.*can be had"):
            one.export(output=tmp_path / "more", clients=[client])
        assert not (tmp_path / "more").exists()


def test_a_backbone_from_timm_comes_out_as_what_it_is(tmp_path):
    """By its name there, so that whatever is particular to it is the same."""
    torch.manual_seed(0)
    grey = (0.5, 0.5, 0.5)
    name = "vit_tiny_patch16_224.augreg_in21k"
    shape = Architecture(32, 16, 3, 192, 12, 3, grey, grey, timm_name=name)
    backbone = save_backbone(build_backbone(shape), shape, tmp_path / "vit.safetensors", {})
    write_timm(backbone.model.state_dict(), backbone, tmp_path / "backbone", ())
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        found = base_model(tmp_path, 0).eval()(images)
        torch.testing.assert_close(found, backbone.model(images))


# --- The small CNN --------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["fedavg", "fedper", "local-only"])
def test_the_small_cnn_comes_out_with_its_own_weights(done, entry, tmp_path):
    one = done(entry, trainable="full")
    found = one.export(output=tmp_path / "out", clients=range(CLIENTS))
    assert not (tmp_path / "out/backbone").exists()
    for client, name in enumerate(found.names):
        weights = load_file(tmp_path / "out" / name / "model.safetensors")
        torch.testing.assert_close(
            scores_of_one(weights, one.images), one.scores_of(client), rtol=0, atol=1e-4
        )


# --- What is saved, and when ----------------------------------------------------------------------


def test_nothing_is_saved_unless_it_is_asked_for(done, place, tmp_path, capsys):
    one = done("fedavg", training={"save": None})
    out = ["--output", str(tmp_path / "out")]
    assert main(["export", str(one.folder), *out]) == 2
    said = capsys.readouterr().err
    assert "kept no model; run it again with --set training.save=last" in said
    assert said.startswith("fedsdg: error: ") and said.count("\n") == 1
    assert not (tmp_path / "out").exists() and not (one.folder / "models").exists()


def test_models_are_never_those_of_another_run(done, tmp_path):
    """Of a run that kept none, in the folder of one that did; and of a file that was mixed up."""
    kept, plain = done("fedavg"), done("fedavg", training={"save": None})
    folder = tmp_path / "run"
    shutil.copytree(kept.folder, folder)
    again = {"store": kept.folder.parent / "store", "identity": {}}
    assert execute(plain.run, plain.material, plain.partition, folder, **again) is None
    with pytest.raises(ValueError, match="kept no model"):
        export_run(folder, tmp_path / "out")
    shutil.copy(done("fedsdg").folder / "models.safetensors", folder)
    with pytest.raises(ValueError, match="are of another run than its records"):
        export_run(folder, tmp_path / "out")
    broken = dataclasses.replace(plain.run, seed=1)  # the partition is that of seed 0
    assert execute(broken, plain.material, plain.partition, folder, **again) is not None
    assert not (folder / "models.safetensors").exists() and not (tmp_path / "out").exists()


def test_a_run_says_that_it_keeps_models_and_nothing_where_it_does_not():
    config = parse_config(yaml.safe_load(CONFIG.read_text()))
    made = config.run("digits", config.skews[0], config.methods[0], 0)
    assert "save" not in made.to_dict()["training"] and "start" not in made.to_dict()["adapters"]
    assert made.hash == sha256_json(made.to_dict())
    asked = dataclasses.replace(made, training=dataclasses.replace(made.training, save="last"))
    assert asked.hash != made.hash and asked.to_dict()["training"]["save"] == "last"


def test_the_selected_models_are_those_of_the_round_that_the_record_selects(done):
    """A run that ends with that round and keeps the last is another way to the same models."""
    rough = {"eta_g": 0.5}  # so that accuracy goes up and down
    selected = done("fedsdg", federation={"rounds": 6}, training={"save": "selected", **rough})
    result = json.loads((selected.folder / "result.json").read_text())
    round_ = result["selected"]["round"]
    assert 1 < round_ < 6, "neither the first nor the last"
    shorter = done("fedsdg", federation={"rounds": round_}, training=rough)
    one = load_file(selected.folder / "models.safetensors")
    other = load_file(shorter.folder / "models.safetensors")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("entry", "save"), [("fedsdg", "last"), ("fedsdg", "selected"), ("fine-tune", "selected")]
)
def test_a_run_taken_up_from_any_round_writes_the_same_bytes(done, entry, save, tmp_path):
    one = done(entry, federation={"rounds": 3}, training={"save": save})
    file = one.folder / "models.safetensors"
    for round_ in range(1, 4):
        first, second = (build(one.run, one.material, one.partition) for _ in range(2))
        for number in range(1, round_ + 1):
            first.step(number)
        with closing(Checkpoints(tmp_path / str(round_), {})) as checkpoints:
            checkpoints.save(first, {})
            checkpoints.restore(second)
        second.run()
        _, facts = read_saved(file)
        more = {k: v for k, v in facts.items() if k not in second.saved.facts()}
        second.saved.write(tmp_path / "again.safetensors", more)
        assert (tmp_path / "again.safetensors").read_bytes() == file.read_bytes()


def test_a_round_that_is_broken_off_leaves_the_models_as_they_were(done, monkeypatch):
    one = done("fedsdg", training={"save": "selected"})
    fresh = build(one.run, one.material, one.partition)
    fresh.step(1)
    before = fresh.saved

    class Broken(Exception):
        pass

    def evaluate(*args):
        fresh.saved = None
        raise Broken

    monkeypatch.setattr(rounds, "evaluate", evaluate)
    with pytest.raises(Broken):
        fresh.step(2)
    assert fresh.saved is before and before is not None


# --- Bad input ------------------------------------------------------------------------------------


def test_bad_exports_are_one_sentence_and_leave_nothing(done, place, tmp_path, capsys):
    one = done("fedsdg")

    def sentence(*arguments):
        assert main(["export", *map(str, arguments)]) == 2
        said = capsys.readouterr().err.strip()
        assert said.startswith("fedsdg: error: ") and "\n" not in said
        assert not (tmp_path / "out").exists()
        return said

    own = ("--backbone", place / "letters.safetensors", "--output", tmp_path / "out")
    assert "no result.json" in sentence(tmp_path, *own)
    assert "no client 8; its clients are 0 to 7" in sentence(one.folder, "--client", 8, *own)
    torch.manual_seed(5)
    save_backbone(build_backbone(ARCHITECTURE), ARCHITECTURE, tmp_path / "other.safetensors", {})
    other = ("--backbone", tmp_path / "other.safetensors", "--output", tmp_path / "out")
    assert "holds another one" in sentence(one.folder, *other)
    missing = ("--backbone", tmp_path / "none.safetensors", "--output", tmp_path / "out")
    assert "name its file with --backbone" in sentence(one.folder, *missing)
    assert main(["export", str(one.folder), *map(str, own)]) == 0
    capsys.readouterr()
    assert main(["export", str(one.folder), *map(str, own)]) == 2
    assert "exists already" in capsys.readouterr().err
    damaged = tmp_path / "damaged"
    shutil.copytree(one.folder, damaged)
    content = (damaged / "models.safetensors").read_bytes()
    (damaged / "models.safetensors").write_bytes(content[:-10])
    assert main(["export", str(damaged), *map(str, own)]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_names_of_classes_are_plain_text_in_a_card():
    federation = {"clients": 2, "clients_per_round": 1, "rounds": 1}
    config = {"dataset": "own", "skew": "iid", "seed": 0, "method": "fedavg", "parameters": {}}
    text = card(
        "global",
        None,
        1,
        Portable({}, {}),
        adapters=False,
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
    one = done("fedsdg")
    out = one.export(output=tmp_path / "out").folder
    result = json.loads((one.folder / "result.json").read_text())
    client = int(np.flatnonzero(one.one.bank.trained.numpy())[0])
    text = (out / f"client~{client}/README.md").read_text()
    rows = pq.ParquetFile(one.folder / "clients.parquet").read().to_pylist()
    (row,) = (r for r in rows if r["round"] == 2 and r["client"] == client)
    for said in (
        "digits", SKEW, "seed 0", "fedsdg", '"lambda1": 0.0001', f"{row['test_accuracy']:.4f}",
        f"{result['last']['global_accuracy']:.4f}", f"{row['n_train']} training", "after round 2",
        result["config_hash"], result["partition_hash"], result["backbone_hash"], "rank 4",
        f'"client~{client}"', "PeftModel",
    ):  # fmt: skip
        assert said in text, said
    code = text.split("```python\n")[1].split("```")[0]
    scope = {}
    with contextlib.chdir(out):
        exec(code.split("# or")[0], scope)
    assert_same(scope["model"], one, one.scores_of(client))


# --- Evaluating -----------------------------------------------------------------------------------


@pytest.mark.parametrize("trainable", ["adapters", "full"])
def test_evaluate_finds_the_runs_own_accuracy(done, place, tmp_path, capsys, trainable):
    one = done("fedavg", trainable=trainable)
    out = one.export(output=tmp_path / "out").folder
    write_partition(one.partition, tmp_path / "shares.parquet")
    wanted = json.loads((one.folder / "result.json").read_text())["last"]
    models = ["global", "global/merged"] if trainable == "adapters" else ["global"]
    for model in models:
        arguments = ["--data", "digits", "--partition", tmp_path / "shares.parquet"]
        arguments += ["--backbone", place / "letters.safetensors"]
        assert main(["evaluate", *map(str, [out / model, *arguments])]) == 0
        said = capsys.readouterr().out
        images = len(one.partition.global_test())
        assert f"accuracy {wanted['global_accuracy']:.4f}, loss" in said
        assert f"loss {wanted['global_loss']:.4f} on {images} images" in said
    assert main(["evaluate", str(out / models[-1]), "--data", "digits"]) == 0
    assert "1797 images (all images, for it has no test set" in capsys.readouterr().out
    assert main(["evaluate", str(out / models[-1]), "--data", "digits", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["dataset"], found["images"]) == ("digits", 1797) and found["accuracy"] <= 1


def test_evaluate_refuses_in_a_sentence(done, place, tmp_path, capsys, monkeypatch):
    out = done("fedsdg").export(output=tmp_path / "out").folder
    torch.manual_seed(5)
    save_backbone(build_backbone(ARCHITECTURE), ARCHITECTURE, tmp_path / "other.safetensors", {})
    wide = dataclasses.replace(ARCHITECTURE, dim=32)
    save_backbone(build_backbone(wide), wide, tmp_path / "wide.safetensors", {})

    def sentence(model, *arguments, data="digits"):
        assert main(["evaluate", str(model), "--data", data, *map(str, arguments)]) == 2
        said = capsys.readouterr().err.strip()
        assert said.startswith("fedsdg: error: ") and "\n" not in said
        return said

    own = ("--backbone", place / "letters.safetensors")
    assert "was made for the backbone" in sentence(
        out / "global", "--backbone", tmp_path / "other.safetensors"
    )
    (out / "global/fedsdg.json").unlink()  # as of a checkpoint that peft wrote
    assert "another backbone than wide: blocks.0.attn.proj is (16, 16)" in sentence(
        out / "global", "--backbone", tmp_path / "wide.safetensors"
    )
    assert "name its file with --backbone" in sentence(out / "global")
    assert "holds no model" in sentence(tmp_path)
    assert "unknown data set 'digit'" in sentence(out / "global", *own, data="digit")
    client = next(out.glob("client~*/own"))
    assert "have no head" in sentence(client, *own)
    assert "which is not at results/backbones" in sentence(client.parent)
    facts = client.parent / "fedsdg.json"
    for wrong in ("[]", "{}", '{"backbone": 3, "images": {}, "classes": []}'):
        facts.write_text(wrong)
        assert "does not say what the model beside it takes" in sentence(client.parent, *own)
    cnn = done("fedavg", trainable="full").export(output=tmp_path / "cnn").folder / "global"
    weights = load_file(cnn / "model.safetensors")
    save_file(weights | {"conv2.bias": torch.zeros(3)}, cnn / "model.safetensors")
    assert "conv2.bias is (3,), but should be (32,)" in sentence(cnn)
    few = ImageData("few", np.zeros((4, 8, 8), np.uint8), np.arange(4), 4)
    monkeypatch.setattr("fedsdg.experiment.loading.load_images", lambda source: few)
    assert "tells 10 classes apart, but few has 4" in sentence(out / "global", *own, data="few")


# --- Starting from a checkpoint -------------------------------------------------------------------


def begun(raw, material, partition, folder, entry="fedavg", **adapters):
    config = parse_config(
        {**raw, "adapters": {**raw["adapters"], "start": str(folder), **adapters}}
    )
    run = config.run("digits", SKEW, method_entry(entry), 0)
    return run, build(run, material, partition)


@pytest.mark.parametrize("entry", ["fedavg", "fedsdg", "fedrep", "local-only", "apfl", "ffa-lora"])
def test_training_starts_with_the_exported_models_scores(raw, done, partition, entry, tmp_path):
    source = done("fedsdg")
    out = source.export(output=tmp_path / "out").folder
    run, one = begun(raw, source.material, partition, out / "global", entry)
    assert run.to_dict()["adapters"]["start"] == find_start(str(out / "global")).sha256
    named = {
        **views(one.theta[None], one.layout.communicated),
        **views(one.private[None], one.layout.private),
    }
    with torch.no_grad():
        found = one.model.logits(source.images, [40], named)
    expected = source.scores_of_server()
    if entry == "fedsdg":  # its branch starts near zero, and B_p at zero
        assert torch.equal(found, one.model.logits(source.images, [40], named, private=False))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_clients_model_can_be_started_from_with_twice_the_rank(raw, done, partition, tmp_path):
    source = done("fedsdg")
    out = source.export(output=tmp_path / "out").folder
    client = int(next(out.glob("client~*")).name.partition("~")[2])
    place = out / f"client~{client}"
    with pytest.raises(ValueError, match=r"has shape \(4, 16\).*\(2, 16\).*adapters.rank to 4"):
        begun(raw, source.material, partition, place)
    # Another alpha is another scale: the checkpoint means the same.
    _, one = begun(raw, source.material, partition, place, rank=4, alpha=1)
    named = views(one.theta[None], one.layout.communicated)
    found = one.model.logits(source.images, [40], named)
    torch.testing.assert_close(found, source.scores_of(client), rtol=0, atol=1e-4)


def test_adapters_without_a_head_leave_the_head_as_it_is_drawn(raw, done, partition, tmp_path):
    out = done("fedrep").export(output=tmp_path / "out").folder
    _, one = begun(raw, done("fedrep").material, partition, out / "global")
    drawn = build(
        parse_config(raw).run("digits", SKEW, method_entry("fedavg"), 0),
        done("fedrep").material, partition,
    )  # fmt: skip
    head = one.layout.before_head
    assert torch.equal(one.theta[head:], drawn.theta[head:])
    assert not torch.equal(one.theta[:head], drawn.theta[:head])


def test_a_start_that_does_not_fit_is_refused_in_a_sentence(raw, done, partition, tmp_path):
    source = done("fedsdg")
    out = source.export(output=tmp_path / "out").folder
    with pytest.raises(ValueError, match=r"holds no peft checkpoint: adapter_config.json"):
        begun(raw, source.material, partition, tmp_path / "none")
    with pytest.raises(ValueError, match="must be a folder"):
        begun(raw, source.material, partition, out, start=3)
    torch.manual_seed(5)
    other = freeze(build_backbone(ARCHITECTURE), ARCHITECTURE, "other", {})
    with pytest.raises(ValueError, match=r"made for the backbone letters .* but this is letters"):
        begun(raw, prepare_material("digits", other, "cpu"), partition, out / "global")
    with pytest.raises(ValueError, match=r"blocks.0.attn.proj.lora_A .*set adapters.targets"):
        begun(raw, source.material, partition, out / "global", targets="qkv-fc1")
    weights = out / "global/adapter_model.safetensors"
    state = load_file(weights)
    state |= {"base_model.model.head.bias": torch.zeros(7)}
    state |= {"base_model.model.head.weight": torch.zeros(7, 16)}
    save_file(state, weights, {"format": "pt"})
    with pytest.raises(ValueError, match=r"head.bias has shape \(7,\).*as many classes"):
        begun(raw, source.material, partition, out / "global")
    with pytest.raises(ValueError, match="no adapters that could start"):
        parse_config({**raw, "trainable": "full", "adapters": {"start": str(out / "global")}})


def test_a_checkpoint_that_is_edited_meanwhile_is_refused(raw, done, partition, tmp_path):
    source = done("fedsdg")
    out = source.export(output=tmp_path / "out").folder
    run, _ = begun(raw, source.material, partition, out / "global")
    config = out / "global/adapter_config.json"
    config.write_text(config.read_text() + " ")
    with pytest.raises(ValueError, match="was changed since the config was read"):
        build(run, source.material, partition)
