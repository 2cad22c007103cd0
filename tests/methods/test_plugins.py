"""Methods from outside the package: what they must be, and that their source belongs to a run."""

import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from fedsdg import files
from fedsdg.cli import main
from fedsdg.experiment.config import load_config, parse_config
from fedsdg.methods.plugins import Plugin, find_method, find_plugin, offered, plugin_methods
from fedsdg.methods.table import METHODS

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"

#: A method of a plugin that does what fedavg-uniform does.
TWIN = """
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.methods.composition import Key, Method, Parameter, Part

METHODS = {
    "twin": Method(
        title="Twin",
        rule=Part(Mean, {"weights": Key("weights")}),
        parameters={"weights": Parameter("uniform", choices=("uniform", "samples"))},
    )
}
"""
IMPORTS = "from fedsdg.methods.composition import Key, Method, Parameter, Part\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder to work in, with the plugin twin.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSDG_CONFIG", str(CONFIG))
    monkeypatch.setenv("FEDSDG_STORE", str(tmp_path / "store"))
    (tmp_path / "twin.py").write_text(TWIN)
    return tmp_path


def raw(**changed):
    given = yaml.safe_load(CONFIG.read_text()) | {"experiment": "outside", "seeds": [0]}
    given["federation"] |= {"clients": 6, "clients_per_round": 3, "rounds": 2, "evaluate_every": 1}
    return given | {"plugins": ["twin.py"], "methods": ["fedavg-uniform", "twin"]} | changed


def one_run(config, label):
    return config.run("digits", "dirichlet~1.0", config.method(label), 0)


# --- What a config takes from a plugin ------------------------------------------------------------


def test_a_method_of_a_plugin_is_checked_like_those_of_the_table(place):
    entry = {"type": "twin", "name": "twin-s", "weights": "samples", "eta_g": 0.1}
    config = parse_config(raw(methods=["fedavg", entry]))
    assert config.method("twin-s").parameters == {"weights": "samples"}
    assert one_run(config, "twin-s").training.eta_g == 0.1
    for wrong, message in (
        ("twim", r"unknown method 'twim'; did you mean 'twin'\?"),
        ({"type": "twin", "weight": "x"}, r"no parameter 'weight'; did you mean 'weights'\?"),
        ({"type": "twin", "weights": "x"}, "must be one of uniform, samples"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_config(raw(methods=[wrong]))
    config = parse_config(raw(scenarios={"skewed": {"parameters": {"weights": "samples"}}}))
    run = config.run("digits", "dirichlet~1.0@skewed", config.method("twin"), 0)
    assert run.parameters == {"weights": "samples"}
    section = {"seeds": [100], "space": {"twin": {"weights": ["uniform", "samples"]}}}
    axis = parse_config(raw(search=section)).search.space["twin"]["weights"]
    assert axis.values == ("uniform", "samples")


def test_the_command_line_adds_to_the_plugins_of_the_config(place):
    (place / "other.py").write_text(TWIN.replace('"twin"', '"other"'))
    file = place / "config.yaml"
    file.write_text(yaml.safe_dump(raw()))
    config = load_config([file], ["methods=[twin, other]"], ["twin.py", "other.py"])
    assert [plugin.place for plugin in config.plugins] == ["twin.py", "other.py"]


def test_plugins_stand_below_the_table_in_the_list_of_methods(place, capsys):
    assert main(["methods", "--plugin", "twin.py"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[-1].split()[:3] == ["twin", "Mean", "cross-entropy"]
    assert main(["methods"]) == 0
    own = capsys.readouterr().out.splitlines()
    assert [line.split() for line in own] == [line.split() for line in listed[:-1]]
    assert main(["methods", "--markdown", "--plugin", "twin.py"]) == 0
    assert "| Twin (`twin`) | — | `weights` = uniform | d, d |" in capsys.readouterr().out


def test_rows_of_the_table_come_first_and_from_nowhere_else(place):
    found = offered([find_plugin("twin.py")])
    assert list(found) == [*METHODS, "twin"]
    assert {name for name, plugin in found.items() if plugin is None} == set(METHODS)
    assert find_method("fedavg", None) is METHODS["fedavg"]


# --- The source belongs to the run ----------------------------------------------------------------


def test_a_plugin_changes_no_run_of_the_tables_methods(place):
    with_plugin, without = (
        parse_config(raw(plugins=p, methods=["fedavg"])) for p in (["twin.py"], [])
    )
    assert one_run(with_plugin, "fedavg").hash == one_run(without, "fedavg").hash
    assert "plugin" not in one_run(with_plugin, "fedavg").to_dict()


def test_the_content_of_the_file_makes_the_run_and_not_its_folder(place):
    before = one_run(parse_config(raw()), "twin")
    (place / "sub").mkdir()
    shutil.copy("twin.py", "sub/twin.py")
    moved = one_run(parse_config(raw(plugins=["sub/twin.py"])), "twin")
    assert moved.hash == before.hash
    (place / "twin.py").write_text(TWIN + "\n# edited\n")
    assert one_run(parse_config(raw()), "twin").hash != before.hash
    assert before.to_dict()["plugin"] == {
        "name": "twin.py",
        "sha256": files.sha256_file("sub/twin.py"),
    }


def test_a_file_that_is_edited_in_the_middle_of_a_grid_is_refused(place):
    (place / "twin.py").write_text(TWIN + "\n# one\n")
    found = find_plugin("twin.py")
    (place / "twin.py").write_text(TWIN + "\n# two\n")
    with pytest.raises(ValueError, match=r"twin.py was edited while it was in use; give the"):
        plugin_methods(found)


def test_a_run_of_a_plugin_equals_that_of_the_same_rule_and_an_edited_one_is_another(place):
    from fedsdg.experiment.runs import execute, make_partition, prepare_material
    from fedsdg.models.architecture import Architecture
    from fedsdg.models.backbones import build, freeze

    architecture = Architecture(8, 4, 1, 16, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    material = prepare_material(
        "digits", freeze(build(architecture), architecture, "tiny", {}), "cpu"
    )
    config = parse_config(raw())
    shares = make_partition("digits", "dirichlet~1.0", 0, 6, config.partition)

    def run(label, folder):
        one = one_run(parse_config(raw()), label)
        assert (
            execute(one, material, shares, Path(folder), store=Path("store"), identity={}) is None
        )
        return len(list(Path("store").iterdir()))

    assert run("fedavg-uniform", "table") == 1
    assert run("twin", "outside") == 2
    assert pq.read_table("outside/rounds.parquet") == pq.read_table("table/rounds.parquet")
    assert pq.read_table("outside/clients.parquet") == pq.read_table("table/clients.parquet")
    assert run("twin", "again") == 2, "taken from the store"
    (place / "twin.py").write_text(TWIN + "\n# edited\n")
    assert run("twin", "edited") == 3
    assert run("fedavg-uniform", "table-again") == 3
    hashes = [files.read_json(f"{f}/result.json")["config_hash"] for f in ("again", "edited")]
    assert hashes[0] != hashes[1]


# --- Other packages -------------------------------------------------------------------------------


@pytest.fixture
def installed(place, monkeypatch):
    """A package with a table of methods, as an installer would leave it."""
    site = place / "site"
    package = site / "outside_methods"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "rules.py").write_text("from fedsdg.aggregation.rules.mean import Mean\n")
    (package / "table.py").write_text(
        IMPORTS + 'RULE = Part("outside_methods.rules:Mean", {"weights": "uniform"})\n'
        'METHODS = {"packed": Method(title="Packed", rule=RULE)}\n'
    )
    facts = site / "outside_methods-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-methods\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        "[fedsdg.methods]\npacked = outside_methods.table:METHODS\n"
        "gone = no_such_package.table:METHODS\n"
    )
    monkeypatch.syspath_prepend(str(site))
    yield package
    for name in [name for name in sys.modules if name.startswith("outside_methods")]:
        del sys.modules[name]


def test_an_installed_package_offers_methods_by_an_entry_point(installed):
    config = parse_config(raw(plugins=["packed"], methods=["packed"]))
    run = one_run(config, "packed")
    assert type(find_method(run.method, run.plugin).rule.build({})).__name__ == "Mean"
    with pytest.raises(ValueError, match="unknown method 'packed'"):
        parse_config(raw(plugins=[], methods=["packed"]))


def test_every_source_of_the_package_belongs_to_the_run(installed):
    before = find_plugin("packed")
    assert find_plugin("packed") == before
    (installed / "rules.py").write_text("from fedsdg.aggregation.rules.mean import Mean as Mean\n")
    assert find_plugin("packed").sha256 != before.sha256


# --- What is wrong is one sentence ----------------------------------------------------------------

KRUM = '"fedsdg.aggregation.rules.krum:Krum"'
ROW = 'METHODS = {{"x": Method(title="X", rule=Part({reference}, {arguments}))}}\n'


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "bad.py defines no methods; write METHODS = {'name': Method(...)}"),
        ("METHODS = {}", "bad.py defines no methods"),
        ("METHODS = {'x': 3}", "bad.py has a int under 'x' of METHODS, which must map names"),
        ("METHODS = (", "bad.py cannot be imported: SyntaxError: "),
        ("import no_such_module", "cannot be imported: ModuleNotFoundError: No module named 'no_s"),
        (TWIN.replace('"twin"', '"krum"'), "bad.py defines 'krum', which the table of methods has"),
        (TWIN, "the plugin bad.py defines 'twin', which the plugin twin.py has already"),
        (
            IMPORTS + ROW.format(reference='"no_such_module:X"', arguments={}),
            "bad.py, method 'x': 'no_such_module:X' cannot be imported: No module named",
        ),
        (
            IMPORTS + ROW.format(reference='"fedsdg.rng:Stream"', arguments={}),
            "'fedsdg.rng:Stream' cannot be imported: fedsdg.rng has no 'Stream'",
        ),
        (
            IMPORTS + ROW.format(reference='"fedsdg.rng"', arguments={}),
            "'fedsdg.rng' names no part; write 'module:name'",
        ),
        (
            IMPORTS + ROW.format(reference="dict", arguments='{"a": Key("b")}'),
            "bad.py, method 'x': dict asks for 'b', which no parameter is",
        ),
        (
            IMPORTS + ROW.format(reference=KRUM, arguments={"g": 1}),
            "bad.py, method 'x': Krum.__init__() got an unexpected keyword argument 'g'",
        ),
        (TWIN.replace('("uniform", c', '("equal", c'), "the default of weights is 'equal', but"),
    ],
)  # fmt: skip
def test_a_plugin_that_cannot_be_used_is_named(place, capsys, source, message):
    (place / "bad.py").write_text(source)
    assert main(["check", "--plugin", "twin.py", "bad.py"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("none.py", "there is no plugin none.py; its path is relative to the working directory"),
        ("none", "no plugin 'none': neither a file, whose name ends in .py, nor an installed entry "
         "point of the group fedsdg.methods (there are: gone, packed)"),
        ("gone", "the plugin gone is in the package no_such_package, which has no sources"),
    ],
)  # fmt: skip
def test_a_plugin_that_is_not_there_is_named(installed, capsys, given, message):
    assert main(["check", "--plugin", given]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        ("twin.py", "plugins is 'twin.py', but must be a list"),
        (["twin.py", "twin.py"], "plugins names 'twin.py' twice"),
        ([3], "plugins: 3 is neither a file nor the name of a plugin"),
    ],
)
def test_a_config_says_plugins_as_a_list_of_places(place, plugins, message):
    with pytest.raises(ValueError, match=message):
        parse_config(raw(plugins=plugins))


def test_a_file_does_not_stand_in_for_a_module_of_its_name(place):
    import random

    shutil.copy("twin.py", "random.py")
    assert list(plugin_methods(find_plugin("random.py"))) == ["twin"]
    assert sys.modules["random"] is random


def test_plugins_travel_between_processes_by_place_and_hash():
    import pickle

    plugin = Plugin("twin.py", "0" * 64)
    assert pickle.loads(pickle.dumps(plugin)) == plugin
