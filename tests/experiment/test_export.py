"""Models that come out of runs: peft and timm open them, and cards and `evaluate` agree."""

import contextlib
import json
import shutil
from dataclasses import replace
from importlib import metadata
from math import comb
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from fedsdg import models
from fedsdg.config.layers import load
from fedsdg.data.datasets import ImageData
from fedsdg.experiment import chance
from fedsdg.experiment.evaluate import evaluate
from fedsdg.experiment.execution import execute
from fedsdg.experiment.export import export
from fedsdg.experiment.material import get_or_make, load_images
from fedsdg.experiment.runs import task_of
from fedsdg.files import read_json
from fedsdg.models import Architecture, build_backbone, save_backbone

models.declare_torchvision_operators()
import peft  # noqa: E402
import timm  # noqa: E402

CLIENTS = 8
ARCHITECTURE = Architecture(8, 4, 1, 16, 2, 2, (0.5,), (0.5,))
DATA = load_images("digits")
IMAGES = torch.from_numpy(DATA.images[:40, None] / 255 / 0.5 - 1).float()
CONFLICT = "conditions={label_conflict: {share: 0.5, classes: 4}}"
# With large rates, so that branches and gates amount to something after two rounds.
SETTINGS = [
    f"federation={{clients: {CLIENTS}, clients_per_round: 4, rounds: 2, evaluate_every: 1}}",
    "training={kernel: torch, epochs: 1, save: last, eta_g: 0.02, eta_p: 0.05, eta_m: 0.3}",
    "adapters={rank: 2, alpha: 4}",
]


class Done:
    """A run in its folder."""

    def __init__(self, task):
        self.task = task
        self.folder = task.folder
        self.result = read_json(self.folder / "result.json")
        rows = pq.read_table(self.folder / "clients.parquet").to_pylist()
        last = self.result["last"]["round"]
        self.rows = {row["client"]: row for row in rows if row["round"] == last}
        self.trained = sorted(client for client, row in self.rows.items() if row["drawn"])

    def export(self, output, **options):
        return export(self.folder, output, backbone=self.task.backbone, **options)

    def measured(self, folder, **options):
        (found,) = evaluate(folder, [DATA], self.task.backbone, **options)
        return found


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A method, a skew and settings -> its run, done once."""
    place = tmp_path_factory.mktemp("export")
    torch.manual_seed(0)
    model = build_backbone(ARCHITECTURE)
    # timm starts biases at zero and norms at one: a mistake with them would not show.
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    save_backbone(model, ARCHITECTURE, place / "results/backbones/letters.safetensors", {})
    runs = {}

    def make(method, skew="dirichlet~1.0", *settings):
        key = (method, skew, *settings)
        if key not in runs:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("FEDSDG_STORE", str(place / "store"))
                patch.delenv("FEDSDG_CONFIG", raising=False)
                config = load((), [*SETTINGS, f"methods=[{method}]", *settings])
                run = config.run("digits", skew, config.methods[0], 0)
                task = task_of(config, run, place / "results")
                task = replace(task, folder=place / f"run{len(runs)}")
                get_or_make(task)
                assert execute(task) is None
                runs[key] = Done(task)
        return runs[key]

    return make


def base_model(folder, classes=10):
    path = f"local-dir:{folder / 'backbone'}"
    return timm.create_model(path, pretrained=True, num_classes=classes)


def with_timm(folder):
    return timm.create_model(f"local-dir:{folder / 'merged'}", pretrained=True).eval()


def with_peft(folder, classes=10):
    return peft.PeftModel.from_pretrained(base_model(folder.parent, classes), folder).eval()


def assert_same(one, other):
    with torch.no_grad():
        torch.testing.assert_close(one(IMAGES), other(IMAGES), rtol=0, atol=1e-4)


# --- What is exported -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        *("fedavg", "fedsdg", "fedsdg+head", "ditto", "fedrep", "gated-head", "apfl", "clustered"),
        *("local-only", "{type: fedsdg, composition: factors}", "{type: fedbabu, tunes: all}"),
    ],
)
def test_exported_models_have_the_accuracies_of_the_record(done, method, tmp_path):
    """Those of clients, read with peft and with timm, and that of the server's model."""
    run = done(method)
    others = {"clustered": ["server~0", "server~1", "server~2"], "local-only": []}
    servers = others.get(method, ["global"])
    exported = run.export(tmp_path / "out")
    assert [name for name in exported.names if not name.startswith("client~")] == servers
    assert any("no model of the server" in said for said in exported.remarks) == (not servers)
    assert bool(list(exported.folder.glob("*/own"))) == (method == "fedsdg")
    if servers == ["global"] and method not in ("fedrep", "fedsdg+head"):
        found = run.measured(exported.folder / "global")
        last = run.result["last"]
        assert found.metric == "accuracy_shared"
        assert found.accuracy == pytest.approx(last["accuracy_shared"], abs=1e-12)
        assert found.loss == pytest.approx(last["loss_shared"], rel=1e-5)
    everything = run.export(tmp_path / "all", clients=range(CLIENTS)).folder
    for client, row in run.rows.items():
        folder = everything / f"client~{client}"
        found = run.measured(folder)
        assert found.metric == "accuracy"
        assert found.accuracy == row["accuracy"]
    assert_same(with_peft(folder), with_timm(folder))


@pytest.mark.parametrize("method", ["fedavg", "local-only"])
def test_fully_trained_models_come_out_with_their_weights(done, method, tmp_path):
    run = done(method, "dirichlet~1.0", "trainable=full")
    out = run.export(tmp_path / "out", clients=range(CLIENTS)).folder
    assert not (out / "backbone").exists()
    for client, row in run.rows.items():
        accuracy = run.measured(out / f"client~{client}").accuracy
        assert accuracy == row["accuracy"]


def test_a_private_branch_is_a_second_adapter_beside_the_shared_one(done, tmp_path):
    run = done("fedsdg")
    out = run.export(tmp_path / "out").folder
    clients = [f"client~{client}" for client in run.trained]
    assert sorted(path.name for path in out.iterdir()) == ["backbone", *clients, "global"]
    folder = out / clients[0]
    assert read_json(folder / "adapter_config.json")["r"] == 4
    model = peft.PeftModel.from_pretrained(base_model(out), out / "global", adapter_name="shared")
    model.load_adapter(folder / "own", adapter_name="own")
    model.base_model.set_adapter(["shared", "own"])
    assert_same(model.eval(), with_timm(folder))


def test_adapters_without_a_head_where_clients_keep_it(done, tmp_path):
    run = done("fedrep")
    out = run.export(tmp_path / "out").folder
    assert not any("head" in name for name in load_file(out / "global/adapter_model.safetensors"))
    assert_same(with_peft(out / "global", 0), with_timm(out / "global"))
    with pytest.raises(ValueError, match="has no head, so that it gives no classes"):
        run.measured(out / "global")


# --- One definition of accuracy -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("skew", "setting", "kind"),
    [
        ("dirichlet~0.3", "about=held", "held"),
        ("iid", CONFLICT, "labels"),
        ("dirichlet~1.0", CONFLICT, "labels"),
        ("iid", "conditions={feature_shift: {kind: rotate}}", "view"),
        ("iid", "conditions={feature_shift: {kind: noise, per: group, groups: 2}}", "view"),
        ("dirichlet~1.0", "federation.global_images=100", "held"),
    ],
)
def test_rounds_cards_and_evaluate_measure_a_client_alike(done, skew, setting, kind, tmp_path):
    run = done("fedsdg", skew, setting)
    out = run.export(tmp_path / "out", clients=range(CLIENTS)).folder
    changed = 0
    for client, row in run.rows.items():
        folder = out / f"client~{client}"
        expected = row["accuracy"]
        found = run.measured(folder)
        assert found.accuracy == expected
        card = (folder / "README.md").read_text()
        line = f"| `{found.metric}` | this client, on the global test set as it sees it | "
        assert f"{line}{found.accuracy:.4f}{', ' * bool(found.chance)}{found.chance} |" in card
        assert f"measures `{found.metric}` of this model" in card
        if "global_images" not in setting:
            named = run.measured(folder, partition=run.task.partition)
            assert named == replace(found, samples=named.samples)
        # Without what makes the client's task its own, the same model does otherwise.
        facts = read_json(folder / "fedsdg.json")
        facts["client"][kind] = {"labels": [*range(10)], "held": None, "view": None}[kind]
        (folder / "fedsdg.json").write_text(json.dumps(facts))
        changed += run.measured(folder).accuracy != expected
    assert changed >= 3


def test_a_card_says_data_method_metrics_and_provenance(done, tmp_path):
    run = done("fedsdg", "dirichlet~1.0", "training.precision=bfloat16")
    out = run.export(tmp_path / "out").folder
    client = run.trained[0]
    row = run.rows[client]
    text = (out / f"client~{client}/README.md").read_text()
    result = run.result
    words = ["digits", "dirichlet~1.0", "seed 0", "fedsdg", '"lambda1": 0.0001', "rank 4"]
    words += [f"{row['accuracy_own_test']:.4f}", f"{result['last']['accuracy_shared']:.4f}"]
    words += [f"{row['n_train']} training", "after round 2", "computed in bfloat16"]
    words += [result[key] for key in ("address", "partition_hash", "backbone_hash")]
    assert [word for word in words if word not in text] == []
    code = text.split("```python\n")[1].split("```")[0]
    scope = {}
    with contextlib.chdir(out):
        exec(code.split("# or")[0], scope)
    assert_same(scope["model"], with_timm(out / f"client~{client}"))


@pytest.mark.parametrize(
    "setting",
    ["federation.evaluate=validation", "conditions.attack={type: sign-flip, share: 0.6}"],
)
def test_a_card_leaves_out_what_was_not_measured(done, setting, tmp_path):
    run = done("fedper", "dirichlet~1.0", setting)
    out = run.export(tmp_path / "out").folder
    clients = [int(path.name.removeprefix("client~")) for path in out.glob("client~*")]
    unmeasured = [k for k in clients if k in run.rows and run.rows[k]["accuracy"] is None]
    card = out / f"client~{unmeasured[0]}/README.md"
    assert "this client, on the global test set" not in card.read_text()


@pytest.mark.parametrize(("images", "largest"), [(56, 8), (359, 37), (10, 9), (20, 10)])
def test_at_chance_is_what_a_guess_reaches_in_one_of_twenty_draws(images, largest):
    counts = [largest, *[1] * (images - largest)]
    share = largest / images
    binomial = [comb(images, k) * share**k * (1 - share) ** (images - k) for k in range(images + 1)]
    for right in range(images + 1):
        luck = sum(binomial[right:]) > 0.05
        assert bool(chance.remark(right / images, counts)) == luck
    assert chance.remark(0.1429, [8] * 7) == "at chance (1/7)"
    assert chance.remark(0.1, [50, 50], [9, 1]) == "at chance (0.90)"


# --- What is saved, and bad input -----------------------------------------------------------------


def test_the_selected_models_are_those_of_the_round_that_the_record_selects(done):
    """A run that ends with that round and keeps the last is another way to the same models."""
    rough = "training.eta_g=1.0"  # so that accuracy goes up and down
    longer = ["federation.rounds=6", "training.save=selected", rough]
    selected = done("fedsdg", "dirichlet~1.0", *longer)
    round_ = selected.result["selected"]["round"]
    assert 1 < round_ < 6, "neither the first nor the last"
    shorter = done("fedsdg", "dirichlet~1.0", f"federation.rounds={round_}", rough)
    one = load_file(selected.folder / "models.safetensors")
    other = load_file(shorter.folder / "models.safetensors")
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def other_backbone(file, **changes):
    shape = replace(ARCHITECTURE, **changes)
    return save_backbone(build_backbone(shape), shape, file, {})


def test_bad_exports_are_one_sentence_and_leave_nothing(done, tmp_path, monkeypatch):
    run = done("fedsdg")
    out = tmp_path / "out"

    def sentence(folder=run.folder, backbone=run.task.backbone, **options):
        with pytest.raises((ValueError, OSError)) as error:
            export(folder, out, backbone=backbone, **options)
        assert not out.exists() and "\n" not in str(error.value)
        return str(error.value)

    assert "no result.json" in sentence(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    assert "no result.json of a run; name a folder such as" in sentence(tmp_path)
    assert "no client 8; the run's are 0 to 7" in sentence(clients=[8])
    plain = done("fedavg", "iid", "training.save=null", "training.epochs=1")
    assert "kept no model; run it again" in sentence(plain.folder)
    other_backbone(tmp_path / "other.safetensors")
    assert "another one" in sentence(backbone=tmp_path / "other.safetensors")
    assert "name its file with --backbone" in sentence(backbone=tmp_path / "none")
    damaged = tmp_path / "damaged"
    shutil.copytree(run.folder, damaged)
    content = (damaged / "models.safetensors").read_bytes()
    (damaged / "models.safetensors").write_bytes(content[:-10])
    assert "is damaged" in sentence(damaged)
    monkeypatch.setattr(models, "declare_torchvision_operators", lambda: True)
    (remark,) = run.export(tmp_path / "mended", clients=[0]).remarks
    assert "for another build of torch than " in remark and "-m pip install" in remark
    monkeypatch.setattr(metadata, "requires", lambda _: ["numpy", "torch (==2.0.1)"])
    assert "torchvision is for torch 2.0.1" in sentence()
    assert "-m pip install --force-reinstall torch==" in sentence()


def test_evaluate_refuses_in_a_sentence(done, tmp_path):
    run = done("fedsdg")
    out = run.export(tmp_path / "out").folder
    other_backbone(tmp_path / "other.safetensors")
    other_backbone(tmp_path / "wide.safetensors", dim=32)

    def sentence(model, backbone=run.task.backbone, data=DATA):
        with pytest.raises((ValueError, OSError)) as error:
            list(evaluate(model, [data], backbone))
        return str(error.value)

    shared = out / "global"
    few = ImageData("few", np.zeros((4, 8, 8), np.uint8), np.arange(4), 4)
    assert "tells 10 classes apart, but few has 4" in sentence(shared, data=few)
    assert "holds another one" in sentence(shared, tmp_path / "other.safetensors")
    (shared / "fedsdg.json").unlink()  # as of a checkpoint that peft wrote
    (found,) = evaluate(shared, [DATA], run.task.backbone)
    assert (found.images, found.metric) == (1797, "accuracy_shared")
    assert found.samples == "all images, for it has no test set of its own"
    wide = sentence(shared, tmp_path / "wide.safetensors")
    assert "another backbone than wide" in wide
    assert "name its file with --backbone" in sentence(shared, None)
    assert "holds no model" in sentence(tmp_path)
    named = next(Path(out).glob("client~*"))
    facts = read_json(named / "fedsdg.json")
    (named / "fedsdg.json").write_text(json.dumps(facts | {"classes": ["cat", "dog"]}))
    assert "class 1 of the model" in sentence(named, data=replace(DATA, classes=("cat", "cow")))
