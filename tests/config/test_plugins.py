"""A user's own file: what it may bring, how it is refused, and what its hash covers."""

import pytest

from fedsdg.config import plugins
from fedsdg.config.config import Config
from fedsdg.config.entries import read_entry
from fedsdg.config.layers import merged
from fedsdg.errors import ConfigError
from fedsdg.federation.optimisers import Adam

WHOLE = '''
from fedsdg.aggregation.types import Combination, Plan, Rule
from fedsdg.federation.conditions.attack import Attack
from fedsdg.federation.conditions.condition import Condition
from fedsdg.federation.losses import Loss
from fedsdg.federation.optimisers import Optimiser
from fedsdg.federation.personalisation import Personalisation
from fedsdg.federation.terms import Term
from fedsdg.methods.method import Method
from fedsdg.parts import Share
import beside{n}


class Half(Rule):
    """step = damping * mean."""

    damping{n}: Share = 0.5
    "share of the mean"

    def plan(self, rows, context, state):
        raise NotImplementedError


class Pull(Term):
    """A term."""

    pull: Share = 0.1
    "how strong"


class Silent(Attack, name="silent{n}"):
    """Attackers send nothing."""

    volume: Share = 0.0
    "how loud"


class Slow(Optimiser, name="slow{n}"):
    """An optimiser."""


class Square(Loss, name="square{n}"):
    """A loss."""


class Night(Condition, name="night{n}"):
    """A condition."""

    share: Share = 0.3
    "of clients"


METHODS = {{"half{n}": Method("Half", rule=Half(), objective=(Pull(),))}}
DATASETS = {{"stripes{n}": lambda: None}}
'''


@pytest.fixture
def plugin(tmp_path):
    count = len(plugins._LOADED)
    (tmp_path / f"beside{count}.py").write_text("import random\n")
    file = tmp_path / f"mine{count}.py"
    file.write_text(WHOLE.format(n=count))
    return file, count


def test_a_plugin_brings_every_kind(plugin):
    file, n = plugin
    raw = {
        **merged(plugins=[str(file)]),
        "datasets": [f"stripes{n}"],
        "methods": ["fedavg", {"type": f"half{n}", "pull": 0.2, "optimiser": f"slow{n}"}],
        "training": {"loss": f"square{n}"},
        "conditions": {
            "attack": {"type": f"silent{n}", "share": 0.1, "volume": 0.4},
            "others": [{"type": f"night{n}", "share": 0.2}],
        },
    }
    config = Config.read(raw)
    made = config.run(f"stripes{n}", "iid", config.method(f"half{n}"), 0)
    assert made.method.parameters == {f"damping{n}": 0.5, "pull": 0.2}
    assert made.training.optimiser.registered_as == f"slow{n}"
    assert made.conditions.attack.attack.volume == 0.4
    assert made.conditions.others[0].share == 0.2
    assert made.identity("x")["title"] == "Half"
    optimiser = made.training.optimiser
    assert plugins.hashes(f"half{n}", "digits", []) == [plugins.load(str(file)).sha256]
    assert plugins.hashes("fedavg", "digits", [optimiser]) == plugins.hashes("x", f"stripes{n}", [])
    assert plugins.hashes("fedavg", "digits", [Adam()]) == []


KNOWING = """
from fedsdg.aggregation.rules.clusters import Clustered
from fedsdg.federation.data_sharing import Central
from fedsdg.methods.method import Method

METHODS = {
    "told": Method("Told", rule=Clustered(assignment="known", clusters=2), fixed=("assignment",)),
    "pooled": Method("Pooled", sharing=Central()),
    "learns": Method("Learns", rule=Clustered(clusters=2)),
}
"""


def test_what_a_method_knows_makes_it_an_oracle_and_not_its_name(tmp_path):
    (tmp_path / "knowing.py").write_text(KNOWING)
    plugins.load(str(tmp_path / "knowing.py"))
    facts = {name: read_entry(name).facts["oracle"] for name in ("told", "pooled", "learns")}
    assert facts == {"told": True, "pooled": True, "learns": False}


def test_the_hash_covers_what_lies_beside(plugin, tmp_path):
    file, n = plugin
    before = plugins._sha256(file)
    (tmp_path / "other.py").write_text("")
    assert plugins._sha256(file) == before
    (tmp_path / f"beside{n}.py").write_text("import json\n")
    assert plugins._sha256(file) != before


def test_the_hash_covers_packages_that_lie_beside(tmp_path):
    file = tmp_path / "plugin.py"
    file.write_text("import json, mylib\nfrom fedsdg.parts import Part\n")
    inner = tmp_path / "mylib/inner/rules.py"
    inner.parent.mkdir(parents=True)
    for other in (inner, tmp_path / "helper.py", tmp_path / "fedsdg/parts.py", tmp_path / "far.py"):
        other.parent.mkdir(exist_ok=True)
        other.write_text("import helper\n")
    assert plugins.sources(file) == [file, tmp_path / "helper.py", inner]


def test_the_hash_of_a_package_covers_all_its_files(tmp_path):
    files = [tmp_path / name for name in ("__init__.py", "rules/plain.py", "terms.py")]
    (tmp_path / "rules").mkdir()
    for file in files:
        file.write_text("")
    files[0].write_text("from .rules import plain\nfrom . import (\n    terms,\n)\n")
    assert plugins.sources(files[0]) == files


def test_a_plugin_that_changed_after_its_import_is_refused(plugin):
    file, _ = plugin
    assert plugins.load(str(file)) is plugins.load(str(file))
    file.write_text(file.read_text() + "x = 1\n")
    with pytest.raises(ConfigError, match="has changed since it was imported; start Python again"):
        plugins.load(str(file))


def test_a_module_without_a_file_is_no_plugin(tmp_path, monkeypatch):
    (tmp_path / "hollow").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("itertools", "hollow"):
        with pytest.raises(ConfigError, match=f"{name} is no plugin: .*it has no file; name a"):
            plugins.load(name)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import nothing_of_the_kind", "ModuleNotFoundError"),
        ("x = 1\n1 / 0", "ZeroDivisionError: division by zero (broken.py, line 2)"),
        ("x = 1\nexit()", "SystemExit: None (broken.py, line 2); leave out what ends the program"),
        ("METHODS = [3]", "its METHODS is a list; write {name: Method(...)}"),
        ("def", "SyntaxError"),
        (
            "from fedsdg.methods.method import Method\nMETHODS = {'fedavg': Method('x')}",
            "rename",
        ),
        ("METHODS = {'mine': 3}", "METHODS['mine'] is a int; write Method(...)"),
        ("from fedsdg.methods.composition import Key", "docs/add-a-method.md shows"),
        ("DATASETS = {'digits': print}", "'digits', which exists"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_one_sentence(tmp_path, text, sentence):
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Config.read(merged(plugins=[str(file)]))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plugin_that_failed_leaves_no_names(tmp_path):
    file = tmp_path / "late.py"
    text = "from fedsdg.federation.losses import Loss\nclass L(Loss, name='late'):\n    'x'\n"
    file.write_text(f"{text}1 / 0\n")
    with pytest.raises(ConfigError):
        plugins.load(str(file))
    file.write_text(text)
    plugins.load(str(file))
