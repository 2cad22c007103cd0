"""Optimisers and losses in a config: short and long forms, what methods prescribe, plugins."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from fedsdg.experiment.config import parse_config
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.possible import require_possible
from fedsdg.federation.optimisers import AdamW
from fedsdg.methods.choices import LOSSES, OPTIMISERS
from fedsdg.methods.declared import choices
from fedsdg.methods.plugins import build_choice

DEFAULT = Path(__file__).parents[2] / "config" / "config.yaml"


@pytest.fixture
def raw():
    given = yaml.safe_load(DEFAULT.read_text())
    return given | {"methods": ["fedavg", "fedsdg", "scaffold"], "search": {}}


def run(raw, label="fedavg", **changed):
    training = {**raw["training"], **changed.pop("training", {})}
    config = parse_config({**raw, "training": training, **changed})
    return config.run("digits", config.settings[0], config.method(label), 0)


def plain(raw, **training):
    return run(raw, training=training).to_dict()["training"]


def test_what_says_the_default_is_the_run_that_says_nothing(raw):
    before = run(raw)
    for training in (
        {"optimiser": "adam", "loss": "cross-entropy"},
        {"optimiser": {"type": "adam", "beta1": 0.9}, "loss": {"type": "cross-entropy"}},
        {"loss": {"type": "cross-entropy", "label_smoothing": 0, "class_weights": None}},
    ):
        assert run(raw, training=training).hash == before.hash
    assert before.to_dict()["training"]["loss"] == "cross-entropy"
    assert "borrowed" not in before.to_dict()


def test_a_row_is_written_with_what_differs_from_its_defaults(raw):
    nesterov = {"type": "sgd", "nesterov": True, "momentum": 0.9, "weight_decay": 0.0}
    assert plain(raw, optimiser=nesterov)["optimiser"] == {
        "type": "sgd",
        "momentum": 0.9,
        "nesterov": True,
    }
    loss = {"type": "cross-entropy", "class_weights": [1, 2.5, 1]}
    assert plain(raw, loss=loss)["loss"] == {
        "type": "cross-entropy",
        "class_weights": [1.0, 2.5, 1.0],
    }
    assert plain(raw, loss="focal")["loss"] == "focal"


def test_entries_and_scenarios_choose_their_own(raw):
    raw["methods"] = [{"type": "fedavg", "optimiser": "adagrad", "loss": {"type": "focal"}}]
    assert run(raw).training.optimiser == "adagrad" and run(raw).training.loss == "focal"
    raw["methods"] = ["fedavg"]
    raw["scenarios"] = {"heavy": {"training": {"optimiser": {"type": "sgd", "momentum": 0.5}}}}
    assert run(raw).training.optimiser == {"type": "sgd", "momentum": 0.5}


def test_a_method_that_forbids_weight_decay_runs_without(raw):
    decayed = {"optimiser": {"type": "adamw", "weight_decay": 0.1}}
    assert run(raw, training=decayed).training.optimiser == decayed["optimiser"]
    without = {"type": "adamw", "weight_decay": 0.0}
    assert run(raw, "fedsdg", training=decayed).training.optimiser == without
    assert run(raw, "fedsdg", training={"optimiser": "adamw"}).training.optimiser == without
    l2 = {"type": "sgd", "momentum": 0.9, "weight_decay": 0.1}
    assert run(raw, "fedsdg", training={"optimiser": l2}).training.optimiser == {
        "type": "sgd",
        "momentum": 0.9,
    }
    raw["methods"] = [{"type": "fedsdg", **decayed}]
    with pytest.raises(ValueError, match=r"fedsdg forbids weight decay; remove 'weight_decay: 0.1"):
        parse_config(raw)


def test_a_method_that_prescribes_sgd_means_the_plain_one(raw):
    heavy = {"optimiser": {"type": "sgd", "momentum": 0.9}}
    assert run(raw, "scaffold", training=heavy).training.optimiser == "sgd"
    raw["methods"] = [{"type": "scaffold", **heavy}]
    with pytest.raises(ValueError, match="scaffold prescribes sgd; remove 'optimiser: "):
        parse_config(raw)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"optimiser": "adamm"}, r"training.optimiser: there is no 'adamm'; did you mean 'adam'"),
        ({"optimiser": {"momentum": 1}}, "training.optimiser is .* but must name a 'type'"),
        ({"optimiser": 3}, "training.optimiser is 3, but must be a mapping"),
        ({"optimiser": {"type": "sgd", "mu": 1}}, "training.optimiser: unknown key 'mu'"),
        ({"optimiser": {"type": "sgd", "momentum": 1}}, "optimiser.momentum is 1, .* at most 0.99"),
        ({"optimiser": {"type": "sgd", "nesterov": 2}}, "must be true or false"),
        ({"optimiser": {"type": "adamw", "weight_decay": -1}}, "must be at least 0"),
        ({"loss": "hinge"}, "training.loss: there is no 'hinge'; known are cross-entropy, focal"),
        ({"loss": {"type": "focal", "gamma": "2"}}, "training.loss.gamma is the text '2'"),
        ({"loss": {"type": "cross-entropy", "class_weights": 2}}, "must be a list of numbers"),
        ({"loss": {"type": "cross-entropy", "class_weights": [1, 0]}}, r"\[1\] is 0, but must be"),
    ],
)
def test_what_is_wrong_is_one_sentence(raw, training, message):
    with pytest.raises(ValueError, match=message) as caught:
        run(raw, training=training)
    assert "\n" not in str(caught.value)


def test_a_config_builds_the_part_of_the_row_with_what_it_gives():
    for key, table in (("optimiser", OPTIMISERS), ("loss", LOSSES)):
        for name, choice in table.items():
            assert build_choice(key, name, None) == choice.part, name
    built = build_choice("optimiser", {"type": "adamw", "beta1": 0.5}, None)
    assert built == AdamW(beta1=0.5) != OPTIMISERS["adamw"].part
    known = choices("optimisers")["adamw"].parameters
    assert {key: one.default for key, one in known.items()} == vars(AdamW())


# --- The server's side ----------------------------------------------------------------------------


def test_servers_weigh_as_they_are_told_and_a_run_says_how(raw):
    raw["methods"] = ["fedavg", {"type": "fedavg", "name": "by-steps", "weights": "batches"}]
    silent = run(raw)
    assert silent.parameters == {"weights": "samples"}
    assert run(raw, "by-steps").parameters == {"weights": "batches"}
    raw["methods"] = [{"type": "fedavg", "weights": "samples"}]
    assert run(raw).hash == silent.hash
    raw["methods"] = [{"type": "fedavg-uniform", "weights": "samples"}]
    with pytest.raises(ValueError, match="fedavg-uniform has no parameter 'weights'"):
        parse_config(raw)


def test_a_scenario_sets_parameters_of_whichever_method_has_them(raw):
    raw["methods"] = ["scaffold", {"type": "multikrum", "f": 1}]
    raw["scenarios"] = {
        "fast": {"parameters": {"server_rate": 1.5, "m": 2}},
        "usual": {"parameters": {"server_rate": 1.0}},
    }
    config = parse_config(raw)
    scaffold, krum = config.methods
    fast, usual = config.settings[:2]
    assert config.run("digits", fast, scaffold, 0).parameters == {"server_rate": 1.5}
    assert config.run("digits", usual, scaffold, 0).parameters == {"server_rate": 1.0}
    assert config.run("digits", fast, krum, 0).parameters == {"f": 1, "m": 2}
    found = config.run("digits", usual, krum, 0)
    assert found.parameters == {"f": 1, "m": None}
    assert found.to_dict()["parameters"] == {"f": 1}, "what is null is not written"


def test_multikrum_takes_no_more_than_there_are(raw):
    raw["federation"]["clients_per_round"] = 10
    for m, wrong in ((8, False), (9, True)):
        raw["methods"] = [{"type": "multikrum", "f": 2, "m": m}]
        if not wrong:
            require_possible(parse_config(raw))
            continue
        with pytest.raises(ValueError, match=r"multikrum: m=9 must be at most n - f = 8; lower m"):
            require_possible(parse_config(raw))


# --- Plugins --------------------------------------------------------------------------------------

PLUGIN = """
from typing import Annotated

from fedsdg.federation.losses import Loss
from fedsdg.federation.optimisers import RowOptimiser, descend
from fedsdg.methods.choice import Choice
from fedsdg.parts import Range, part


@part
class SignDescent(RowOptimiser):
    share: Annotated[float, Range(0, 1)] = 0.0
    "share of the past in the direction"
    weight_decay: Annotated[float, Range(0, 1)] = 0.0
    "taken note of by nobody"

    @property
    def memory(self):
        return ("past",)

    def move(self, parameters, gradients, rate, memory, step):
        past = memory["past"].mul_(self.share).add_(gradients, alpha=1 - self.share)
        descend(parameters, past.sign(), rate)


@part
class Squared(Loss):
    def __call__(self, logits, labels, reduction="none"):
        return (1 - logits.softmax(1).gather(1, labels[:, None])[:, 0]) ** 2


OPTIMISERS = {"sign": Choice("Sign descent", SignDescent())}
LOSSES = {"squared": Choice("Squared", Squared())}
"""


@pytest.fixture
def outside(raw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outside.py").write_text(PLUGIN)
    training = {"optimiser": {"type": "sign", "share": 0.5}, "loss": "squared"}
    return raw | {"plugins": ["outside.py"], "training": raw["training"] | training}


def test_a_plugin_brings_an_optimiser_and_a_loss(outside):
    from fedsdg.experiment.reach import source_hash
    from fedsdg.methods.plugins import build_choice

    one = run(outside)
    assert one.training.optimiser == {"type": "sign", "share": 0.5}
    said = one.to_dict()["borrowed"]
    assert set(said) == {"optimiser", "loss"} and said["loss"]["name"] == "outside.py"
    built = build_choice("optimiser", one.training.optimiser, one.borrowed["optimiser"])
    assert (type(built).__name__, built.share) == ("SignDescent", 0.5)
    assert len(source_hash(one)) == 64
    Path("outside.py").write_text(PLUGIN + "\n# edited\n")
    assert run(outside).hash != one.hash
    # A method that prescribes its optimiser borrows the loss alone.
    assert set(run(outside, "scaffold").borrowed) == {"loss"}
    decayed = {"optimiser": {"type": "sign", "weight_decay": 0.5}}
    assert run(outside, "fedsdg", training=decayed).training.optimiser == "sign"


def test_a_run_that_borrows_nothing_does_not_know_of_the_plugin(outside, raw):
    silent = {"training": raw["training"]}
    assert run({**outside, **silent}).hash == run(raw).hash


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (PLUGIN.replace('"sign":', '"adam":'), "has 'adam' in OPTIMISERS, which is there already"),
        ("LOSSES = {'x': 3}", "has a int under 'x' of LOSSES, which must map names to Choice"),
        ("OPTIMISERS = 3", "has a int as OPTIMISERS, which must map names to Choice"),
        (
            PLUGIN.replace('"share of the past in the direction"', ""),
            "optimiser 'sign': SignDescent.share has no meaning; write it as a string below",
        ),
        (
            PLUGIN.replace("Annotated[float, Range(0, 1)] = 0.0", "float = 0.0"),
            r"optimiser 'sign': SignDescent.share has no range; write Annotated\[float, Range",
        ),
        (
            PLUGIN.replace('"Sign descent", SignDescent()', '"Sign descent", SignDescent'),
            "optimiser 'sign': Sign descent: its part is the class SignDescent; write SignDesc",
        ),
        (
            PLUGIN.replace('"Squared", Squared()', '"Squared", SignDescent()'),
            "loss 'squared': Squared: its part is of type SignDescent, but must be of type Loss",
        ),
    ],
)
def test_a_plugin_whose_rows_cannot_be_used_is_named(outside, source, message):
    Path("outside.py").write_text(source)
    with pytest.raises(ValueError, match=message) as caught:
        parse_config(outside)
    assert "\n" not in str(caught.value)


def test_files_say_it_like_any_other_key(tmp_path):
    more = tmp_path / "more.yaml"
    more.write_text("training: {optimiser: {type: sgd, momentum: 0.9}}\n")
    assert load_config([DEFAULT, more]).training.optimiser == {"type": "sgd", "momentum": 0.9}


# --- Whole runs -----------------------------------------------------------------------------------


@pytest.fixture
def built(raw):
    """Puts a run together: six clients, a tiny backbone."""
    import torch

    from fedsdg.experiment.building import build
    from fedsdg.experiment.examining.federations import Federation
    from fedsdg.experiment.material import make_partition, prepare_material
    from fedsdg.models import Architecture, build_backbone, freeze

    shape = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    material = prepare_material("digits", freeze(build_backbone(shape), shape, "tiny", {}), "cpu")
    small = {"clients": 6, "clients_per_round": 3, "rounds": 2, "evaluate_every": 2}

    def make(given, label="fedavg", **changed):
        one = run(given | {"federation": small, "skews": ["dirichlet~1.0"]}, label, **changed)
        shares = make_partition("digits", one.skew, 0, 6, one.partition)
        return Federation(build(one, material, shares))

    return make


def first_step(federation):
    """The server's step in the first round."""
    before = federation.server.models
    return (federation.run(1).server.models - before)[0]


def test_a_run_trains_with_what_its_config_names(outside, raw, built):
    """Sign descent moves every trained parameter by η or not at all, step by step."""
    one = built(outside, training={"optimiser": "sign", "epochs": 1, "batch_size": None})
    # The mean by samples of three clients, each of which took one step of ±η.
    assert 0 < float(first_step(one).abs().max()) <= one.setup.work.eta_g * (1 + 1e-6)
    usual = first_step(built(raw))
    focal = first_step(built(raw, training={"loss": {"type": "focal", "gamma": 0}}))
    assert (focal - usual).norm() <= 1e-3 * usual.norm()
    weights = {"type": "cross-entropy", "class_weights": [1, 2, 3]}
    with pytest.raises(ValueError, match="class_weights has 3 weights for 10 classes"):
        built(raw, training={"loss": weights})


def test_servers_weights_and_rates_reach_the_rule(raw, built):
    raw["methods"] = [{"type": "scaffold", "server_rate": 2.0, "eta_g": 0.1}]
    twice = first_step(built(raw, "scaffold"))
    raw["methods"] = [{"type": "scaffold", "eta_g": 0.1}]
    assert (twice - 2 * first_step(built(raw, "scaffold"))).norm() <= 1e-5
    raw["methods"] = [{"type": "fedavg", "weights": "uniform"}, "fedavg-uniform"]
    steps = [first_step(built(raw, label)) for label in ("fedavg", "fedavg-uniform")]
    assert (steps[0] == steps[1]).all()


def test_what_the_authors_of_fedsdg_run(raw, built):
    for label in ("fedsdg-official", "fedsdg-official-aligned"):
        raw["methods"] = [label]
        setup = built(raw, label).setup
        gates = setup.private[setup.columns.gates]
        assert len(gates) == 2 * 2, "two adapted layers in each of two blocks"
        assert (gates == -2).all()
        assert setup.schedule.epochs == 5 and setup.work.eta_m == 0.1
        gate_term, private_term = setup.work.terms
        assert (gate_term.lambda1, private_term.lambda2) == (0.01, 0.001)


# --- FedProx's γ ----------------------------------------------------------------------------------


def inexact(raw, **entry):
    return raw | {"methods": [{"type": "fedprox-inexact", **entry}]}


def test_gamma_is_a_list_or_a_range(raw):
    silent = run(inexact(raw), "fedprox-inexact")
    gammas = {"gamma": (0.9, 0.7, 0.5), "gamma_by": "chance"}
    others = {"weights": "samples", "mu": 0.1, "most_epochs": 10}
    assert silent.parameters == {**others, **gammas}
    said = inexact(raw, gamma=[0.9, 0.7, 0.5], gamma_by="chance")
    assert run(said, "fedprox-inexact").hash == silent.hash
    span = run(inexact(raw, gamma={"low": 0.5, "high": 1}, mu=1), "fedprox-inexact").to_dict()
    assert span["parameters"]["gamma"] == {"low": 0.5, "high": 1.0}
    assert span["parameters"]["mu"] == 1.0


@pytest.mark.parametrize(
    ("entry", "conditions", "message"),
    [
        ({"gamma": 0.5}, {}, "must be a list of numbers, or a mapping of low and high"),
        ({"gamma": []}, {}, "must be a list of numbers"),
        ({"gamma": [0.5, 1.5]}, {}, r"gamma\[1\] is 1.5, but must be at most 1"),
        ({"gamma": {"low": 0.9, "high": 0.5}}, {}, "low = 0.9 is above high = 0.5; exchange"),
        ({"gamma": {"low": 0.9}}, {}, "must be a list of numbers, or a mapping of low and high"),
        ({"gamma_by": "speed"}, {}, "gamma_by is speed, but all clients are equally fast; set"),
        ({"gamma_by": "speed"}, {"compute": {"slowest": 2, "fastest": 2}}, "equally fast"),
    ],
)
def test_a_gamma_that_cannot_be_is_named(raw, entry, conditions, message):
    with pytest.raises(ValueError, match=message):
        require_possible(parse_config(inexact(raw, **entry) | {"conditions": conditions}))


def test_the_stragglers_experiment_has_an_entry_whose_gamma_follows_speed():
    config = load_config([DEFAULT, DEFAULT.parent / "extended" / "stragglers.yaml"])
    followers = [m for m in config.methods if m.parameters.get("gamma_by") == "speed"]
    assert [method.type for method in followers] == ["fedprox-inexact"]


def test_partial_aggregates_of_a_run_are_chosen_by_what_the_config_says(raw, built):
    """By labels the server is told them; in a run of known clusters two groups serve all."""
    entry = {"type": "semi-global", "clusters": 4, "partials": 2, "beta": 1.0}
    for nearness in ("labels", "models"):
        raw["methods"] = [{**entry, "assignment": "known", "nearness": nearness}]
        one = built(raw, "semi-global").run()
        setup, server = one.setup, one.server
        assert ("labels" in server.state) == (nearness == "labels")
        assert len(setup.downloads(server, np.arange(6)).unique(dim=0)) == 2
    raw["methods"] = [{**entry, "partials": 5}]
    with pytest.raises(ValueError, match="partials is 5, but must be at most clusters = 4; lower"):
        require_possible(parse_config(raw))
    raw["methods"] = ["semi-global", {"type": "semi-global", "name": "as-ever", "partials": 1}]
    config = parse_config(raw)
    assert config.method("as-ever").parameters == config.method("semi-global").parameters
