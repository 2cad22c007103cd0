"""What a plugin may bring beside methods: siblings, attacks, data, samples of the server's.

The example is FLTrust (Cao et al. 2021): the server trains on a few samples of its own, and trusts
a client as far as its update points the same way: TS_k = ReLU(cos(Δ_k, Δ_0)), and the step is
Σ TS_k ‖Δ_0‖ Δ_k / ‖Δ_k‖ / Σ TS_k.
"""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from fedsdg.analysis import tables
from fedsdg.analysis.names import learn_titles, method_title
from fedsdg.analysis.summarise import summarise
from fedsdg.cli import main
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.loading import load_images
from fedsdg.federation.evaluation import losses
from fedsdg.methods.plugins import contents, find_plugin

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"

FLTRUST = """
from typing import Annotated

import numpy as np
import torch

from fedsdg.aggregation.types import Aggregate, StatelessRule
from fedsdg.data.datasets import image_data
from fedsdg.federation.environment.attacks.attack import UpdateAttack
from fedsdg.files.columns import Column
from fedsdg.methods.choice import Choice
from fedsdg.methods.method import Method
from fedsdg.parts import Range, part
from trust import scores


class FLTrust(StatelessRule):
    reads = ("update", "server")
    columns = (Column("diagnostics", "trust", "float64", "ReLU of the cosine with the server's"),)

    def __call__(self, uploads, context, state):
        updates, own = uploads["update"].double(), uploads["server"][0].double()
        trust = scores(updates, own)
        weights = trust / trust.sum()
        rescaled = updates * (own.norm() / updates.norm(dim=1, keepdim=True))
        step = (weights @ rescaled).to(uploads["update"])
        told = {"trust": trust.numpy(), "unsaid": trust.numpy()}
        return Aggregate(step[None], weights.numpy(), dict(state), told)


class ServerAlone(StatelessRule):
    reads = ("update", "server")

    def __call__(self, uploads, context, state):
        return Aggregate(uploads["server"], None, dict(state), {})


@part
class Ones(UpdateAttack):
    scale: Annotated[float, Range(0)] = 1.0
    "times the own update's size"

    def forge(self, scene):
        return -self.scale * scene.own.abs()


def stripes():
    draw = np.random.default_rng(0)
    labels = np.arange(360) % 3
    images = draw.integers(0, 60, (360, 8, 8)).astype(np.uint8)
    for label in range(3):
        images[labels == label, :, label::3] += 150
    return image_data("drawn", images, labels, 3)


METHODS = {
    "fltrust": Method(title="FLTrust", rule=FLTrust()),
    "server-alone": Method(title="Server alone", rule=ServerAlone(), optimiser="sgd"),
}
ATTACKS = {"ones": Choice("Negative ones", Ones())}
DATASETS = {"stripes": stripes}
"""
TRUST = """
def scores(updates, own):
    lengths = updates.norm(dim=1) * own.norm()
    return (updates @ own / lengths).clamp_min(0)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder to work in; the plugin and its sibling in one beside it."""
    (tmp_path / "here").mkdir()
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "fltrust.py").write_text(FLTRUST)
    (tmp_path / "plugins" / "trust.py").write_text(TRUST)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("FEDSDG_CONFIG", raising=False)
    monkeypatch.setenv("FEDSDG_STORE", str(tmp_path / "store"))
    return tmp_path


def raw(**changed):
    given = yaml.safe_load(CONFIG.read_text()) | {"experiment": "trusted", "seeds": [0]}
    given["federation"] |= {"clients": 6, "clients_per_round": 5, "rounds": 1, "evaluate_every": 1}
    given |= {"plugins": ["../plugins/fltrust.py"], "datasets": ["stripes"], "skews": ["iid"]}
    given |= {"methods": ["fltrust"], "tables": ["main"]}
    attack = {"type": "ones", "share": 0.3, "scale": 2}
    return given | {"conditions": {"attack": attack, "benchmark_images": 30}} | changed


def made(config, label, **changed):
    """The federation of one cell of the config on a tiny backbone, before its first round."""
    from fedsdg.experiment.building import build
    from fedsdg.experiment.material import make_partition, prepare_material
    from fedsdg.models.architecture import Architecture
    from fedsdg.models.backbones import build as build_backbone
    from fedsdg.models.backbones import freeze

    architecture = Architecture(8, 4, 1, 16, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    backbone = freeze(build_backbone(architecture), architecture, "tiny", {})
    images = load_images(config.source("stripes"))
    run = config.run("stripes", "iid", config.method(label), 0)
    run = replace(run, training=replace(run.training, **changed))
    material = prepare_material(images, backbone, "cpu")
    shares = make_partition(images, "iid", 0, 6, config.partition)
    return build(run, material, shares), run, material, shares


def test_fltrust_is_its_closed_form(place):
    rule = contents(find_plugin("../plugins/fltrust.py"))["METHODS"]["fltrust"].rule
    updates = torch.tensor([[1.0, 0.0], [0.0, 3.0], [-5.0, 0.0], [3.0, 3.0]])
    found = rule({"update": updates, "server": torch.tensor([[2.0, 0.0]])}, None, {})
    half = 1 / math.sqrt(2)
    np.testing.assert_allclose(found.steps[0], np.array([3, 1]) / (1 + half), rtol=1e-6)
    np.testing.assert_allclose(found.weights, np.array([1, 0, 0, half]) / (1 + half), atol=1e-12)


def test_the_server_trains_on_its_own_samples_as_clients_do(place):
    """One step of SGD on all of them is −η ∇L: along the step, L falls by its slope."""
    config = parse_config(raw(methods=["server-alone"]))
    rate, whole = 1e-3, {"batch_size": None, "epochs": 1, "eta_g": 1e-3, "clip_norm": 1e9}
    federation, *_ = made(config, "server-alone", **whole)
    benchmark = federation.shards.benchmark
    assert len(benchmark) == 30
    assert not set(benchmark) & set(np.concatenate(federation.shards.train).tolist())
    before = federation.theta.clone()
    record = federation.step(1)
    step = federation.theta - before

    def loss(theta):
        shared = (federation.model, federation.layout, federation.samples, [benchmark])
        return float(losses(*shared, theta[None], federation.private[None])[0])

    length = float(step.norm())
    h = 0.05 / length  # Far enough for float32, near enough for the slope.
    slope = (loss(before + h * step) - loss(before - h * step)) / (2 * h)
    assert slope == pytest.approx(-(length**2) / rate, rel=0.02)
    alone = made(parse_config(raw(methods=["fedavg"], conditions={})), "fedavg")[0].step(1)
    assert record["bytes_up"] == alone["bytes_up"], "nobody sends anything for it"


def test_without_samples_of_its_own_the_server_cannot_judge(place):
    config = parse_config(raw(conditions={}))
    with pytest.raises(ValueError, match=r"set conditions\.benchmark_images"):
        made(config, "fltrust")


def test_method_attack_and_data_of_a_plugin_run_and_are_called_by_their_titles(place):
    from fedsdg.experiment.runs import execute

    Path("config.yaml").write_text(yaml.safe_dump(raw()))
    config = load_config(["config.yaml"])
    _, run, material, shares = made(config, "fltrust")
    method = config.method("fltrust")
    folder = Path("results/runs/trusted", config.run_folders()[0])
    identity = config.identity("stripes", "iid", method, 0)
    assert execute(run, material, shares, folder, store=place / "store", identity=identity) is None
    clients = pq.read_table(folder / "clients.parquet").to_pandas()
    there = clients[clients["participated"]]
    assert there["attacker"].any() and not there["attacker"].all()
    # −2 |Δ| against a Δ_0 of both signs: its cosine may have either sign, honest ones have +.
    assert (there.loc[~there["attacker"], "weight"] > 0).all()
    # The rule's own column: its weights are the trust of the cohort, scaled to sum to 1.
    for _, cohort in there.groupby("round"):
        assert np.allclose(cohort["weight"], cohort["trust"] / cohort["trust"].sum())
    assert "unsaid" not in clients, "what no column declares is not recorded"
    assert shares.dataset == "stripes"
    summarise("results/runs/trusted", "summary", config.run_folders())
    tables.write_table(Path("summary"), "main", Path("main"))
    assert "trust" in pq.read_schema("summary/clients.parquet").names
    text = Path("main.md").read_text()
    assert "| FLTrust" in text and "fltrust" not in text
    result = json.loads((folder / "result.json").read_text())
    assert result["attack_title"] == "Negative ones"
    attack = result["config"]["conditions"]["attack"]
    assert attack["plugin"]["name"] == "fltrust.py" and attack["scale"] == 2


def test_titles_are_those_of_the_runs_at_hand():
    own = {"result": json.dumps({"method": "mine", "title": "Mine, of course"}), "config": "{}"}
    learn_titles([own])
    assert method_title("mine") == "Mine, of course"
    assert method_title("mine-softly") == "Mine, of course (softly)"
    assert method_title("krum") == "Krum"
    learn_titles([{"result": json.dumps({"method": "krum", "title": "Not Krum"})}])
    assert method_title("krum") == "Krum" and method_title("mine") == "mine"
    learn_titles([])


def test_siblings_belong_to_the_plugin_and_to_nobody_else(place):
    file = "../plugins/fltrust.py"
    Path(file).write_text(FLTRUST + "\n# that no other test has loaded\n")
    before = find_plugin(file)
    (place / "plugins" / "trust.py").write_text(TRUST + "\n# edited\n")
    assert find_plugin(file).sha256 != before.sha256
    with pytest.raises(ValueError, match="edited while it was in use"):
        contents(before)
    # The same name in another folder is another module, and a library's name is the library's.
    shutil.copytree(place / "plugins", place / "other")
    (place / "other" / "trust.py").write_text("scores = 'others'\n")
    (place / "other" / "random.py").write_text("raise RuntimeError('not the library')\n")
    source = (place / "other" / "fltrust.py").read_text()
    (place / "other" / "fltrust.py").write_text("import random\n" + source)
    rules = [
        contents(find_plugin(f"../{folder}/fltrust.py"))["METHODS"]["fltrust"].rule
        for folder in ("plugins", "other")
    ]
    found = [type(rule).__call__.__globals__["scores"] for rule in rules]
    assert callable(found[0]) and found[1] == "others"


def test_a_broken_sibling_is_named(place, capsys):
    (place / "plugins" / "trust.py").write_text("def scores(:\n")
    assert main(["check", "--plugin", "../plugins/fltrust.py"]) == 2
    error = capsys.readouterr().err
    assert "fltrust.py cannot be imported: SyntaxError" in error and "trust.py" in error
    assert error.count("\n") == 1


CHOICE = """
from fedsdg.federation.environment.attacks.attack import UpdateAttack
from fedsdg.federation.environment.attacks.scaling import Scaling
from fedsdg.federation.optimisers.adam import Adam
from fedsdg.methods.choice import Choice
from fedsdg.parts import part

class Mine(UpdateAttack): pass

@part
class Sharing(UpdateAttack):
    share: bool = True
    "whether"

"""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "ATTACKS = {'x': 3}",
            "has a int under 'x' of ATTACKS, which must map names to Choice(...)",
        ),
        ("DATASETS = {'x': 3}", "has a int under 'x' of DATASETS, which must map names to func"),
        ("DATASETS = {'a/b': dict}", "the data set 'a/b' must have a name of letters, digits"),
        ("DATASETS = {'digits': dict}", "defines 'digits', which the table of data sets has"),
        (
            "from fedsdg.methods.choices import ATTACKS",
            "defines 'gaussian', which the table of attacks has already",
        ),
        (
            f"{CHOICE}ATTACKS = {{'x': Choice('X', Adam())}}",
            "bad.py, attack 'x': X: its part is of type Adam, but must be of type Attack (fedsdg.f",
        ),
        (
            f"{CHOICE}ATTACKS = {{'x': Choice('X', Scaling)}}",
            "bad.py, attack 'x': X: its part is the class Scaling; write Scaling(…)",
        ),
        (
            f"{CHOICE}ATTACKS = {{'x': Choice('X', Sharing())}}",
            "bad.py, attack 'x': X has a parameter 'share', which says something else in a config",
        ),
        (
            f"{CHOICE}ATTACKS = {{'x': Choice('X', Mine())}}",
            "bad.py, attack 'x': X: Mine declares no parameters; declare it by @part of fedsdg.par",
        ),
    ],
)
def test_what_is_no_attack_or_data_set_is_named(place, capsys, source, message):
    Path("bad.py").write_text(source + "\n")
    attack = "conditions={attack: {type: sign-flip, share: 0.2}}"
    assert main(["check", "--plugin", "bad.py", "--set", attack]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_data_set_that_cannot_be_loaded_is_named(place):
    Path("bad.py").write_text("DATASETS = {'none': lambda: 3, 'broken': lambda: 1 / 0}\n")
    config = load_config((), (), ["bad.py"])
    with pytest.raises(ValueError, match="loads a int as 'none'; make what it returns with"):
        load_images(config.source("none"))
    with pytest.raises(ValueError, match=r"bad\.py cannot load 'broken': ZeroDivisionError"):
        load_images(config.source("broken"))


def test_a_run_alone_takes_data_of_a_plugin(place, capsys):
    command = ["run", "--plugin", "../plugins/fltrust.py", "--method", "fltrust"]
    command += ["--dataset", "stripes", "--skew", "iid", "--set", "trainable=full"]
    command += ["methods=[fedavg]", "federation.rounds=1", "conditions.benchmark_images=20"]
    assert main(command) == 0, capsys.readouterr().err
    (result,) = Path("results").rglob("result.json")
    assert json.loads(result.read_text())["title"] == "FLTrust"
