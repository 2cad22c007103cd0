"""Bad configs: each is refused in one sentence with its place and a remedy, and nothing else."""

import copy
import datetime
import math
import random

import pytest

from fedsdg.config.config import Config
from fedsdg.config.layers import load, merged
from fedsdg.errors import ConfigError

REFUSED = [
    ("methods", ["fedsdgg"], "did you mean 'fedsdg'?"),
    ("methods", ["fedavg", "fedavg"], "two entries that are called 'fedavg'"),
    ("methods", [{"type": "fedprox", "mew": 1}], "methods.fedprox has an unknown key 'mew'; did"),
    (
        "methods",
        [{"type": "fedprox", "mu": -1}],
        "methods.fedprox.mu is -1, but must be at least 0",
    ),
    ("methods", [{"type": "fedprox", "mu": True}], "methods.fedprox.mu is True, but must be a num"),
    ("methods", [{"type": "fedprox", "mu": "1e-4"}], "mu is '1e-4', but must be a number"),
    ("methods", [{"mu": 1}], "with a 'type'"),
    ("methods", [{"type": "scaffold", "optimiser": "adam"}], "prescribes sgd; remove"),
    (
        "methods",
        [{"type": "scaffold", "optimiser": {"type": "sgd", "momentum": 0.9}}],
        "prescribes sgd without momentum; remove 'momentum'",
    ),
    ("methods", [{"type": "cgsv", "floor": 1}], "methods.cgsv.floor is 1, but must be at most"),
    ("methods", [{"type": "krum", "f": 4}], "methods.krum: Krum with f=4 needs at least"),
    ("methods", [{"type": "clustered", "clusters": 2, "beta": 1}], "has an unknown key 'beta'"),
    ("methods", [{"type": "semi-global", "partials": 4}], "partials is 4, but must be at most"),
    ("methods", [{"type": "fedprox-inexact", "gamma_by": "speed"}], "all clients are equally fast"),
    ("skews", ["dirichlet~0"], "numbers above 0"),
    ("skews", ["dirichlett~0.1"], "did you mean 'dirichlet~0.1'?"),
    ("skews", [0.1], "skews[0] is 0.1, but must be a text"),
    ("skews", ["iid", "iid"], "names 'iid' twice"),
    ("skews", ["column~A", "column~a"], "differ in upper and lower case alone"),
    ("seeds", [], "at least one entry"),
    ("seeds", [-1], "seeds[0] is -1, but must be at least 0"),
    ("seeds", ["a"], "seeds[0] is 'a', but must be a whole number"),
    ("federation.clients_per_round", 21, "more than the 20 clients"),
    ("federation.held_out", 0.9, "more than the 2 clients"),
    ("federation.clients", 0, "federation.clients is 0, but must be at least 1"),
    ("federation.clients", "all", "federation.clients is 'all', but must be a whole number"),
    ("federation.client", 5, "did you mean 'clients'?"),
    ("federation.evaluate_at", [5, 3], "must name rounds up to rounds = 60, rising"),
    ("federation.shapley", "estimatd", "did you mean 'estimated'?"),
    ("federation", 3, "federation is 3, but must be a mapping"),
    ("training.optimiser", "adan", "did you mean 'adam'?"),
    ("training.optimiser", {"type": "sgd", "momentun": 0.9}, "did you mean 'momentum'?"),
    ("training.precision", "tf32", "set device to cuda"),
    ("training.device", "gpu", "did you mean 'cpu'?"),
    ("adapters.start", "nowhere", "holds no peft checkpoint"),
    ("backbone", "lettres", "did you mean 'letters'?"),
    ("experiments", "x", "the config has an unknown key 'experiments'; did you mean 'experiment'?"),
    ("experiment", "a/b", "must be made of letters"),
    ("experiment", "x" * 300, "300 characters long"),
    ("search.seeds", [3], "seed 3 belongs to the grid"),
    ("search.space", {"fedsdg": {"eta_g": [0.1, 0.01, "log"]}}, "a numeric range must rise"),
    ("search.space", {"fedsdg": {"optimiser": ["adam", "sgd", "linear"]}}, "from 'adam' to 'sgd'"),
    ("search.space", {"fedsdg": {"eta_q": [0.1, 1]}}, "did you mean 'eta_p'?"),
    ("search.space", {"fedsdg": {"eta_g": ["bound", 1, "log"]}}, "eta_m alone has one"),
    ("search.space", {"fedsdg": {}}, "names no parameter"),
    ("search", {"trials": "two-stage"}, "search.trials is 'two-stage', but must be a whole num"),
    ("conditions.attack", {"type": "sign-flop", "share": 0.2}, "did you mean 'sign-flip'?"),
    ("conditions.attack", {"type": "sign-flip", "share": 1.2}, "attack.share is 1.2, but must be"),
    ("conditions.attack", {"type": "sign-flip"}, "lacks the key 'share': share of the clients"),
    ("conditions.attack", {"type": "sign-flip", "share": 1.0}, "all of 20 clients"),
    ("conditions", {"label_conflict": {"classes": 1}}, "a cycle needs 2 labels"),
    ("conditions", {"label_conflict": {}, "feature_shift": {}}, "choose one of them"),
    ("conditions", {"quantisation": {"who": "slowest"}}, "all clients are equally fast; add it"),
    ("conditions", {"compute": {"arrivals": 11}}, "a round has only 10 clients"),
    (
        "scenarios",
        {"half": {"conditions": {"label_conflikt": {}}}},
        "scenarios.half.conditions has",
    ),
    ("scenarios", {"half": {"federation": {"rounds": 0}}}, "scenarios.half.federation.rounds is 0"),
    ("scenarios", {"half": {"federation": {"clients": 9}}}, "scenarios share them"),
    ("scenarios", {"half": {"parameters": {"ff": 3}}}, "no method has a parameter 'ff'; did you"),
    ("scenarios", {"half": {"federaton": {}}}, "did you mean 'federation'?"),
    ("backbones.letters.epoch", 3, "did you mean 'epochs'?"),
    ("backbones.letters.heads", 3, "heads 3 must divide dim 64"),
    ("backbones.letters.data", "leters", "did you mean 'letters'?"),
    ("backbones.letters.source", "x", "known are pretrain, checkpoint, timm"),
    ("backbones.letters", {"source": "timm"}, "lacks the key 'timm_name'"),
    ("datasets", ["digit"], "did you mean 'digits'?"),
    ("datasets", [{"name": "pets"}], "needs 'folder' or 'hub'"),
    ("datasets", [{"name": "digits", "folder": "x"}], "digits"),
    ("plugins", ["nowhere.py"], "plugins: there is no plugin file nowhere.py; correct"),
    ("checkpoint_seconds", float("nan"), "must be a finite number"),
    ("trainable", "full", "works on adapters, but with trainable: full there are none"),
    ("partition_seed", -1, "partition_seed is -1"),
]
"""Place, value, and a part of the sentence, which users know: change it for a better one alone."""
JUNK = (
    *(None, True, False, 0, 1, -1, 10**9, 10**400, 0.5, -0.5, 1e-300, 1e300, math.nan, math.inf),
    *("", "text", "1e-4", "all", "~", "a/b", "../x", "x" * 300, "λ", "a\nb", b"bytes"),
    *([], [1], ["text"], [[]], [None], [{}], {}, {"a": 1}, {1: 2}, {None: None}, {"type": 3}),
    *((1, 2), {1, 2}, [1, 1], [math.nan], [0, 1, "log"], {"type": "fedsdg"}, {"name": "x"}),
    *(datetime.date(2026, 1, 1), 2**63, {"mu": [1]}, {"low": 1, "high": 0}, object()),
)
TEXTS = (
    *("", "\t", "{", "a: [1", "- a\n- b", "experiment", "? x", "!!python/object:os.x {}", "&a *b"),
    *("seeds: 010", "seeds: [1:30]", "experiment: x\nexperiment: y", "\ufeffexperiment: x"),
    *("%YAML 9", "a: !x 1", "federation: {rounds: 3", "\x00", "methods: [fedavg]\n  x: 1"),
)


def test_clients_that_start_elsewhere_have_no_control_variates():
    with pytest.raises(ConfigError, match="methods.scaffold takes its gradients from how far"):
        load(["smoke"], ["federation.trajectory=own", "methods=[scaffold]"])


@pytest.fixture(scope="module")
def base():
    """The default config with two methods, a scenario and conditions."""
    return {
        **merged(),
        "methods": ["fedsdg", {"type": "fedprox", "name": "mine", "mu": 0.1}],
        "conditions": {"attack": {"type": "alie", "share": 0.2}, "dropout": {"probability": 0.1}},
        "scenarios": {"half": {"federation": {"rounds": 30}, "parameters": {"mu": 0.2}}},
        "search": {"seeds": [100], "space": {"mine": {"mu": [0.1, 1.0, "log"]}}},
    }


def changed(base, place, value):
    raw = copy.deepcopy(base)
    *outer, last = place.split(".") if isinstance(place, str) else place
    below = raw
    for key in outer:
        below = below.setdefault(key, {}) if isinstance(below, dict) else below[key]
    below[last] = value
    return raw


def places(tree, outer=()):
    """Yield the place of every value of a tree, and a key that does not exist beside it."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in entries:
        yield (*outer, key)
        if isinstance(value, dict | list):
            yield from places(value, (*outer, key))
    if isinstance(tree, dict):
        yield (*outer, "unknown")


@pytest.mark.parametrize(("place", "value", "sentence"), REFUSED)
def test_a_pinned_sentence(place, value, sentence):
    with pytest.raises(ConfigError) as caught:
        Config.read(changed(merged(), place, value))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(8))
def test_anything_anywhere_is_accepted_or_one_sentence(base, seed):
    rng = random.Random(seed)
    before = copy.deepcopy(base)
    everywhere = list(places(base))
    refused = 0
    for _ in range(250):
        place = rng.choice(everywhere)
        value = rng.choice(JUNK)
        try:
            list(Config.read(changed(base, place, value)).runs())
        except (ValueError, FileNotFoundError) as error:
            refused += 1
            assert "\n" not in str(error) and 10 < len(str(error)) < 1000, (place, value)
    assert refused > 100
    assert base == before


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_is_no_config(tmp_path, text):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    try:
        load([file])
    except ValueError as error:
        assert "\n" not in str(error), text


@pytest.mark.parametrize("setting", ["", "x", "=1", ".=1", "a..b=1", "seeds=[", "seeds.x=1", "a=1"])
def test_a_setting_that_is_none(setting):
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        load(settings=[setting])
