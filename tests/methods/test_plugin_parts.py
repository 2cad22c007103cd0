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
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from fedsdg.aggregation.types import Context
from fedsdg.analysis.records import Record
from fedsdg.analysis.tables import TABLES
from fedsdg.cli import main
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.loading import load_images
from fedsdg.experiment.method_facts import method_facts
from fedsdg.experiment.summary import write_summary
from fedsdg.federation.scoring import mean_losses
from fedsdg.methods.declared import Row
from fedsdg.methods.plugins import contents, find_plugin

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"

FLTRUST = """
from typing import Annotated

import numpy as np
import torch

from fedsdg.aggregation.types import Combination, Plan, Rule
from fedsdg.data.datasets import ImageData
from fedsdg.federation.conditions.attack import Attack
from fedsdg.files.columns import Column
from fedsdg.methods.choice import Choice
from fedsdg.methods.method import Method
from fedsdg.parts import Range, part
from trust import scores


class FLTrust(Rule):
    reads = ("update", "server")
    columns = (Column("diagnostics", "trust", "float64", "ReLU of the cosine with the server's"),)

    def plan(self, rows, context, state):
        updates, own = rows["update"].numbers(), rows["server"].numbers()[0]
        trust = scores(updates, own)
        weights = trust / trust.sum()
        scales = np.linalg.norm(own) / np.linalg.norm(updates, axis=1)
        facts = {"trust": trust, "unsaid": trust}
        return Plan(Combination(weights * scales), weights, state, facts)


class ServerAlone(Rule):
    reads = ("update", "server")

    def plan(self, rows, context, state):
        own = torch.from_numpy(rows["server"].numbers()[0])
        return Plan(Combination(np.zeros(len(context.clients)), offset=own), None, state)


@part
class Ones(Attack):
    scale: Annotated[float, Range(0)] = 1.0
    "times the own update's size"

    def tamper(self, view):
        return -self.scale * view.own.abs()


def stripes():
    draw = np.random.default_rng(0)
    labels = np.arange(360) % 3
    images = draw.integers(0, 60, (360, 8, 8)).astype(np.uint8)
    for label in range(3):
        images[labels == label, :, label::3] += 150
    return ImageData("drawn", images, labels, 3)


METHODS = {
    "fltrust": Method(title="FLTrust", rule=FLTrust()),
    "server-alone": Method(title="Server alone", rule=ServerAlone(), optimiser="sgd"),
}
ATTACKS = {"ones": Choice("Negative ones", Ones())}
DATASETS = {"stripes": stripes}
"""
TRUST = """
import numpy as np


def scores(updates, own):
    lengths = np.linalg.norm(updates, axis=1) * np.linalg.norm(own)
    return np.maximum(updates @ own / lengths, 0)
"""

#: A plugin with nothing but a metric, and a config of the default's own parts that shows it.
SPREAD = """
from fedsdg.analysis import metric


@metric("largest update", table="rounds", reads="update_norm_max")
def spread(rows):
    return rows["update_norm_max"].mean()
"""
PLAIN = {"datasets": ["digits"], "methods": ["fedavg"], "conditions": {}}
PLAIN |= {"trainable": "full", "tables": ["spread"], "figures": ["spread"], "search": {}}


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


def recipe(config, label, **changed):
    """The run, material and partition of one cell of the config on a tiny backbone."""
    from fedsdg.experiment.material import make_partition, prepare_material
    from fedsdg.models import Architecture, build_backbone, freeze

    architecture = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    backbone = freeze(build_backbone(architecture), architecture, "tiny", {})
    images = load_images(config.source("stripes"))
    run = config.run("stripes", "iid", config.method(label), 0)
    run = replace(run, training=replace(run.training, **changed))
    material = prepare_material(images, backbone, "cpu")
    shares = make_partition(images, "iid", 0, 6, config.partition)
    return run, material, shares


def made(config, label, **changed):
    """The federation of one cell, before its first round."""
    from fedsdg.experiment.building import build
    from fedsdg.experiment.examining.federations import Federation

    return Federation(build(*recipe(config, label, **changed)))


def test_fltrust_is_its_closed_form(place):
    rule = contents(find_plugin("../plugins/fltrust.py"))["METHODS"]["fltrust"].rule
    updates = torch.tensor([[1.0, 0.0], [0.0, 3.0], [-5.0, 0.0], [3.0, 3.0]])
    ones = np.ones(4)
    context = Context(1, np.arange(4), 4, ones, ones, ones)
    found = rule({"update": updates, "server": torch.tensor([[2.0, 0.0]])}, context, {})
    half = 1 / math.sqrt(2)
    np.testing.assert_allclose(found.steps[0], np.array([3, 1]) / (1 + half), rtol=1e-6)
    np.testing.assert_allclose(found.weights, np.array([1, 0, 0, half]) / (1 + half), atol=1e-12)


def test_the_server_trains_on_its_own_samples_as_clients_do(place):
    """One step of SGD on all of them is −η ∇L: along the step, L falls by its slope."""
    config = parse_config(raw(methods=["server-alone"]))
    rate, whole = 1e-3, {"batch_size": None, "epochs": 1, "eta_g": 1e-3, "clip_norm": 1e9}
    federation = made(config, "server-alone", **whole)
    setup = federation.setup
    benchmark = setup.data.benchmark
    assert len(benchmark) == 30
    assert not set(benchmark) & set(np.concatenate(setup.data.train).tolist())
    (before,) = federation.server.models
    (after,) = federation.run(1).server.models
    step = after - before

    def loss(theta):
        return float(mean_losses(setup, [benchmark], theta[None], setup.private[None])[0])

    length = float(step.norm())
    h = 0.05 / length  # Far enough for float32, near enough for the slope.
    slope = (loss(before + h * step) - loss(before - h * step)) / (2 * h)
    assert slope == pytest.approx(-(length**2) / rate, rel=0.02)
    alone = made(parse_config(raw(methods=["fedavg"], conditions={})), "fedavg").run(1)
    sent = [one.rounds[0]["bytes_up"] for one in (federation, alone)]
    assert sent[0] == sent[1], "nobody sends anything for it"


def test_without_samples_of_its_own_the_server_cannot_judge(place):
    config = parse_config(raw(conditions={}))
    with pytest.raises(ValueError, match=r"set conditions\.benchmark_images"):
        made(config, "fltrust")


def test_method_attack_and_data_of_a_plugin_run_and_are_called_by_their_titles(place):
    from fedsdg.experiment.runs import execute

    Path("config.yaml").write_text(yaml.safe_dump(raw()))
    config = load_config(["config.yaml"])
    run, material, shares = recipe(config, "fltrust")
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
    assert shares.facts["dataset"] == "stripes"
    write_summary(Path("results/runs/trusted"), Path("summary"), config)
    assert "trust" in pq.read_schema("summary/clients.parquet").names
    text = TABLES["main"](Record("summary")).markdown()
    assert "| FLTrust" in text and "fltrust" not in text
    result = json.loads((folder / "result.json").read_text())
    assert result["attack_title"] == "Negative ones"
    attack = result["config"]["conditions"]["attack"]
    assert attack["plugin"]["name"] == "fltrust.py" and attack["scale"] == 2


def test_a_method_of_a_plugin_has_its_own_title_and_stands_last():
    row = Row("Mine,\n of course", personalisation="Own")
    facts = [method_facts(label, "mine", row, {}) for label in ("mine", "mine-softly", "other")]
    titles = [one["title"] for one in facts]
    assert titles == ["Mine, of course", "Mine, of course (softly)", "other"]
    assert all(one["personal"] and not one["oracle"] for one in facts)
    krum = method_facts("krum-2", "krum", Row("Krum", rule="Krum"), {})
    assert krum["title"] == "Krum (2)" and not krum["personal"]
    assert krum["order"] < facts[0]["order"] < facts[1]["order"]


@pytest.mark.slow
def test_a_metric_of_ones_own_gets_a_table_and_a_figure(place):
    """A plugin that brings a metric alone, and a config that names it among tables and figures."""
    Path("spread.py").write_text(SPREAD)
    Path("tiny.yaml").write_text(yaml.safe_dump(raw(plugins=["spread.py"], **PLAIN)))
    assert main(["run", "--grid", "tiny.yaml"]) == 0
    experiment = raw()["experiment"]
    table = pd.read_csv(f"results/tables/{experiment}/spread.csv")
    assert set(table["metric"]) == {"spread"} and set(table["method"]) == {"fedavg"}
    rounds = pd.read_parquet(f"results/summary/{experiment}/rounds.parquet")
    assert table["mean"][0] == pytest.approx(rounds["update_norm_max"].mean(), rel=1e-5)
    assert Path(f"results/figures/{experiment}/spread.svg").is_file()


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
    found = [type(rule).plan.__globals__["scores"] for rule in rules]
    assert callable(found[0]) and found[1] == "others"


def test_a_broken_sibling_is_named(place, capsys):
    (place / "plugins" / "trust.py").write_text("def scores(:\n")
    assert main(["check", "--plugin", "../plugins/fltrust.py"]) == 2
    error = capsys.readouterr().err
    assert "fltrust.py cannot be imported: SyntaxError" in error and "trust.py" in error
    assert error.count("\n") == 1


CHOICE = """
from fedsdg.federation.conditions.attack import Attack, Scaling
from fedsdg.federation.optimisers import Adam
from fedsdg.methods.choice import Choice
from fedsdg.parts import part

class Mine(Attack): pass

@part
class Sharing(Attack):
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
    source = "DATASETS = {'none': lambda: 3, 'broken': lambda: 1 / 0, 'ends': lambda: exit(0)}\n"
    Path("bad.py").write_text(source)
    config = load_config((), (), ["bad.py"])
    with pytest.raises(ValueError, match="loads a int as 'none'; make what it returns with"):
        load_images(config.source("none"))
    with pytest.raises(ValueError, match=r"bad\.py cannot load 'broken': ZeroDivisionError"):
        load_images(config.source("broken"))
    with pytest.raises(ValueError, match=r"bad\.py cannot load 'ends': it calls sys\.exit\(0\)"):
        load_images(config.source("ends"))


def test_a_run_alone_takes_data_of_a_plugin(place, capsys):
    command = ["run", "--plugin", "../plugins/fltrust.py", "--method", "fltrust"]
    command += ["--dataset", "stripes", "--skew", "iid", "--set", "trainable=full"]
    command += ["methods=[fedavg]", "federation.rounds=1", "conditions.benchmark_images=20"]
    assert main(command) == 0, capsys.readouterr().err
    (result,) = Path("results").rglob("result.json")
    assert json.loads(result.read_text())["title"] == "FLTrust"


FAULTY = """
import sys

import numpy as np
import torch

from fedsdg.aggregation.types import Combination, Plan, Rule
from fedsdg.federation.conditions.attack import Attack
from fedsdg.federation.terms import Term
from fedsdg.files.columns import Column
from fedsdg.methods.choice import Choice
from fedsdg.methods.method import Method
from fedsdg.parts import part


def mean(context, diagnostics=None, offset=None):
    size = len(context.clients)
    return Plan(Combination(np.full(size, 1 / size), offset), None, {}, diagnostics or {})


class Planned(Rule):
    def plan(self, rows, context, state):
        size = len(context.clients)
        coefficients, shares = self.of(np.full(size, 1 / size))
        return Plan(Combination(coefficients), shares, {})


class Complex(Planned):
    def of(self, w):
        return w + 1j, None


class Broken(Planned):
    def of(self, w):
        return np.where(np.arange(len(w)) == 1, np.inf, np.nan), None


class Long(Planned):
    def of(self, w):
        return w, np.append(w, 0)


class Below(Planned):
    def of(self, w):
        return w, w - np.eye(len(w))[2]


class Late(Rule):
    def plan(self, rows, context, state):
        return mean(context, offset=torch.full((rows["update"].d,), [0, 0, np.nan][context.round]))


class Shape(Rule):
    def models(self, num_clients):
        return 2

    def mixing(self, state, clients):
        return np.full((len(clients), 2), 0.5)

    def plan(self, rows, context, state):
        return mean(context)


class Nothing(Rule):
    def plan(self, rows, context, state):
        return 3


class Degenerate(Rule):
    def plan(self, rows, context, state):
        return mean(context, {"degenerate": np.nan})


class Few(Rule):
    columns = (Column("diagnostics", "trust", "float64", "trust"),)

    def plan(self, rows, context, state):
        return mean(context, {"trust": np.ones(2)})


class Huge(Rule):
    def plan(self, rows, context, state):
        return mean(context, offset=torch.full((rows["update"].d,), 3e38))


class Quits(Rule):
    def plan(self, rows, context, state):
        if context.round == 2:
            sys.exit(0)
        return mean(context)


class QuitsEarly(Quits):
    def init(self, d, client_samples):
        sys.exit(0)


@part
class QuittingTerm(Term):
    def add_gradient(self, rows):
        sys.exit()


@part
class QuittingAttack(Attack):
    def tamper(self, view):
        raise SystemExit


RULES = [Complex, Broken, Long, Below, Late, Shape, Nothing, Degenerate, Few]
RULES += [Huge, Quits, QuitsEarly]
METHODS = {rule.__name__.lower(): Method(title=rule.__name__, rule=rule()) for rule in RULES}
METHODS["term"] = Method(title="Term", rule=Late(), objective=(QuittingTerm(),))
ATTACKS = {"quitting": Choice("Quitting", QuittingAttack())}
"""


def failed(place, label, rounds=2, **changed):
    """The sentence of a run that fails, and how many rounds it recorded."""
    from fedsdg.experiment.runs import execute

    (place / "plugins" / "faulty.py").write_text(FAULTY)
    both = ["../plugins/fltrust.py", "../plugins/faulty.py"]
    given = {"plugins": both, "methods": [label], "conditions": {}} | changed
    federation = raw()["federation"] | {"rounds": rounds}
    config = parse_config(raw(federation=federation, **given))
    run, material, shares = recipe(config, label)
    folder = place / "run"
    sentence = execute(run, material, shares, folder, store=place / "store", identity={})
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "failed" and result["error"] == sentence
    return sentence, pq.read_table(folder / "rounds.parquet").num_rows


@pytest.mark.parametrize(
    ("rule", "after", "sentence"),
    [
        ("complex", 0, "the rule Complex returned the coefficients [0.2+1.j"),
        ("broken", 0, "the rule Broken returned the coefficients [nan inf nan nan nan]; return 5"),
        ("long", 0, "the rule Long returned the weights [0.2 0.2 0.2 0.2 0.2 0. ]; return 5"),
        ("below", 0, "the rule Below returned a weight below 0"),
        ("shape", 0, "the rule Shape returned steps [1, 3683]; return finite numbers [2, 3683]"),
        ("nothing", 0, "the rule Nothing returned 3; return a Plan with a Step"),
        ("degenerate", 0, "the rule Degenerate returned nan as its diagnostic 'degenerate'"),
        (
            "few",
            0,
            "the rule Few returned the diagnostic 'trust' of shape [2]; it is recorded with",
        ),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_what_a_rule_returned_wrong_is_named_with_rule_and_round(
    place, rule, after, sentence, last
):
    """In the last round as in an earlier one, and what was recorded before stays."""
    said, recorded = failed(place, rule, after + (1 if last else 2))
    assert said.startswith(f"RuleFault: round {after + 1}: {sentence}")
    assert recorded == after


def test_a_step_that_is_not_finite_fails_in_its_round(place):
    said, recorded = failed(place, "late", 3)
    assert said.startswith("NonFiniteError: ") and "overflows torch.float32" in said
    assert recorded == 1


def test_a_model_beyond_the_range_of_its_numbers_is_said_when_it_is_evaluated(place):
    said, recorded = failed(place, "huge", 1)
    assert said.startswith("FloatingPointError: round 1: global_loss is nan; lower the learning")
    assert recorded == 0


@pytest.mark.parametrize(
    ("label", "after", "sentence"),
    [
        ("quits", 1, "round 2: Quits.plan"),
        ("quitsearly", 0, "before the first round: QuitsEarly.init"),
        ("term", 0, "round 1: QuittingTerm.add_gradient"),
        ("fedavg", 0, "round 1: QuittingAttack.tamper"),
    ],
)
def test_a_part_that_ends_the_program_is_a_failed_run(place, label, after, sentence):
    changed = {}
    if label == "fedavg":
        changed["conditions"] = {"attack": {"type": "quitting", "share": 0.3}}
    said, recorded = failed(place, label, **changed)
    assert said == f"ValueError: {sentence} tried to end the program; let it raise an error"
    assert recorded == after
