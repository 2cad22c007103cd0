"""Methods from outside the package: what they must be, and that their source belongs to a run."""

import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from fedsdg import files
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.cli import main
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.possible import require_possible
from fedsdg.methods.families import METHODS
from fedsdg.methods.plugins import Plugin, contents, find_method, find_plugin, find_row, offered

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"

#: A method of a plugin that does what fedavg-uniform does.
TWIN = """
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.methods.method import Method

METHODS = {"twin": Method(title="Twin", rule=Mean(weights="uniform"))}
"""


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
        ({"type": "twin", "weights": "x"}, "must be one of samples, uniform"),
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
    heading, row = listed[-2:]
    assert heading == "Others:" and row.split()[:3] == ["twin", "Twin", "Mean,"]
    assert main(["methods"]) == 0
    own = capsys.readouterr().out.splitlines()
    assert [line.split() for line in own] == [line.split() for line in listed[:-2]]


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
        contents(found)


def test_a_run_of_a_plugin_equals_that_of_the_same_rule_and_an_edited_one_is_another(place):
    from fedsdg.experiment.material import make_partition, prepare_material
    from fedsdg.experiment.runs import execute
    from fedsdg.models import Architecture, build_backbone, freeze

    architecture = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    material = prepare_material(
        "digits", freeze(build_backbone(architecture), architecture, "tiny", {}), "cpu"
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
        "from fedsdg.methods.method import Method\n"
        "from outside_methods.rules import Mean\n"
        'METHODS = {"packed": Method(title="Packed", rule=Mean())}\n'
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
    assert type(find_method(run.method, run.plugin).rule).__name__ == "Mean"
    with pytest.raises(ValueError, match="unknown method 'packed'"):
        parse_config(raw(plugins=[], methods=["packed"]))


def test_every_source_of_the_package_belongs_to_the_run(installed):
    before = find_plugin("packed")
    assert find_plugin("packed") == before
    (installed / "rules.py").write_text("from fedsdg.aggregation.rules.mean import Mean as Mean\n")
    assert find_plugin("packed").sha256 != before.sha256


# --- What is wrong is one sentence ----------------------------------------------------------------

#: A rule of a plugin, with what is to be tried among its fields or below them.
OWN = """
from dataclasses import dataclass
from typing import Annotated

from fedsdg.aggregation.rules.krum import Krum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.types import Rule
from fedsdg.federation.personalisation import Personalisation
from fedsdg.federation.terms import Proximal
from fedsdg.methods.method import Method
from fedsdg.parts import Range, part

@{decorator}
class Own(Rule):
    low: Annotated[float, Range(0)] = 1.0
    "the lower end"
    {more}

    def {call}(self, rows, context, state):
        raise NotImplementedError

METHODS = {{
    "x": Method(
        title="X",
        {row},
    ),
}}
"""
CHECK = """
    def __post_init__(self):
        if self.low > 2:
            raise ValueError(f"low = {self.low} is above 2; lower it")

    def require(self, cohort, clients):
        if cohort > clients * self.low:
            raise ValueError(f"Own is for {clients * self.low:g} clients a round; raise low")
"""


def own(row, more="", decorator="part", call="plan"):
    return OWN.format(row=row, more=more, decorator=decorator, call=call)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "bad.py defines no methods; write METHODS = {'name': Method(...)}"),
        ("METHODS = {}", "bad.py defines no methods"),
        ("METHODS = {'x': 3}", "bad.py has a int under 'x' of METHODS, which must map names"),
        ("METHODS = (", "bad.py cannot be imported: SyntaxError: "),
        ("\nimport no_such_module", "bad.py cannot be imported: ModuleNotFoundError: No module "
         "named 'no_such_module' (bad.py, line 2)\n"),
        ("import sys\nsys.exit(0)", "bad.py cannot be imported: it calls sys.exit(0); raise a "
         "ValueError that says what is wrong (bad.py, line 2)\n"),
        ("METHODS = {'x': exit()}", "bad.py, method 'x': it calls sys.exit(None); raise a Val"),
        ("raise GeneratorExit", "bad.py cannot be imported: GeneratorExit:"),
        ("import fedsdg.aggregation.plan", "No module named 'fedsdg.aggregation.plan' (bad.py, li"),
        (TWIN.replace('"twin"', '"krum"'), "bad.py defines 'krum', which the table of methods has"),
        (TWIN, "the plugin bad.py defines 'twin', which the plugin twin.py has already"),
    ],
)  # fmt: skip
def test_a_plugin_that_cannot_be_used_is_named(place, capsys, source, message):
    (place / "bad.py").write_text(source)
    assert main(["check", "--plugin", "twin.py", "bad.py"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (own("rule=Own()", "high: float = 1\n    'the upper end'"),
         "Own.high has no range; write Annotated[float, Range(…)]"),
        (own("rule=Own()", "high: Annotated[float, Range(0)] = 1"),
         "Own.high has no meaning; write it as a string below the field"),
        (own("rule=Own(), objective=(Proximal(),)", "mu: bool = True\n    'whether'"),
         "both Own and Proximal own a parameter 'mu'; rename one of them"),
        (own("rule=Own(), fixed=('low', 'lov')"),
         "X fixes lov, which none of its parts has; correct `fixed`"),
        (own("rule=Own(low=3)", CHECK), "low = 3.0 is above 2; lower it"),
        (own("rule=Krum(f=-1)"), "f is -1, but must be at least 0"),
        (own("rule=Mean(weights='equal')"),
         "weights is 'equal', but must be one of samples, uniform, batches"),
        (own("rule=Krum(g=1)"), "Krum.__init__() got an unexpected keyword argument 'g'"),
        (own("rule=Own"), "X: its rule is the class Own; write Own(…)"),
        (own("rule='fedsdg.aggregation.rules.krum:Krum'"),
         "X: its rule is of type str, but must be of type Rule (fedsdg.aggregation.types)"),
        (own("rule=Own()", call="__call__"), "X: its rule Own defines no `plan`"),
        (own("rule=Own(), objective=(Mean(),)"),
         "X: a term of its objective is of type Mean, but must be of type Term (fedsdg.feder"),
        (own("rule=Own(), personalisation=Proximal()"),
         "X: its personalisation is of type Proximal, but must be of type Personalisation (fed"),
        (
            own("rule=Own()", "name: bool = True\n    'whose'"),
            "X has a parameter 'name', which says something else in a config; rename it",
        ),
        (own("rule=Own()", decorator="dataclass(frozen=True)"),
         "X: Own is a dataclass, whose fields no config could set; declare it by @part of fedsdg."),
        (own("rule=Own()").replace("@part\n", ""),
         "Own has the field 'low', but lacks @part, so that no config can set it; write @part of "
         "fedsdg.parts above class Own"),
        (own("rule=Half()").replace("@part", "class Half(Mean):\n    share: float = 0.5\n\n@part"),
         "Half has the field 'share', but lacks @part"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_used_is_named_with_the_remedy(place, source, message):
    (place / "bad.py").write_text(source)
    with pytest.raises(ValueError) as caught:
        offered([find_plugin("bad.py")])
        find_row("x", find_plugin("bad.py"))
    assert str(caught.value).startswith(f"the plugin bad.py, method 'x': {message}")
    assert "\n" not in str(caught.value)


def test_the_command_says_it_on_one_line_and_leaves_with_2(place, capsys):
    (place / "bad.py").write_text(own("rule=Krum(f=-1)"))
    for command in ("check", "methods"):
        assert main([command, "--plugin", "bad.py"]) == 2
        error = capsys.readouterr().err
        assert "the plugin bad.py, method 'x': f is -1, but must be at least 0\n" in error
        assert error.count("\n") == 1


def test_a_row_without_a_rule_takes_the_mean(place):
    (place / "plain.py").write_text(own("objective=(Proximal(),)"))
    assert find_method("x", find_plugin("plain.py")).rule == Mean()
    assert find_row("x", find_plugin("plain.py")).rule == "Mean"


def test_outside_of_rows_the_line_is_named(place):
    (place / "bad.py").write_text(own("rule=RULE", CHECK).replace("\nM", "\nRULE = Own(3)\nM"))
    with pytest.raises(ValueError, match=r"bad.py cannot be imported: low = 3.0 is above 2; lower "
                       r"it \(bad.py, line 30\)$"):  # fmt: skip
        contents(find_plugin("bad.py"))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"low": -1}, "methods: x.low is -1, but must be at least 0"),
        ({"low": 3}, "methods: x: low = 3.0 is above 2; lower it"),
        ({"low": 0.1}, "methods: x: Own is for 0.6 clients a round; raise low"),
        ({"lov": 1}, "methods: x has no parameter 'lov'; did you mean 'low'?"),
    ],
)
def test_what_a_part_of_a_plugin_refuses_is_said_before_anything_is_run(place, entry, message):
    (place / "own.py").write_text(own("rule=Own()", CHECK))
    with pytest.raises(ValueError) as caught:
        require_possible(parse_config(raw(plugins=["own.py"], methods=[{"type": "x", **entry}])))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_what_a_row_fixes_no_config_sets(place):
    (place / "own.py").write_text(own("rule=Krum(f=0), fixed=('f',)"))
    given = raw(plugins=["own.py"], methods=["x"])
    assert parse_config(given).method("x").parameters == {}
    with pytest.raises(ValueError, match="x has no parameter 'f'"):
        parse_config(given | {"methods": [{"type": "x", "f": 1}]})


def test_a_part_means_what_was_executed_even_where_its_file_was_edited_since(place):
    """A command that finds its plugin edited refuses it; a session of Python may import it anew."""
    (place / "own.py").write_text(own("rule=Own()"))
    assert list(find_row("x", find_plugin("own.py")).parameters) == ["low"]
    (place / "own.py").write_text(own("rule=Own()", "two: bool = False\n    'whether twice'"))
    found = find_row("x", find_plugin("own.py")).parameters
    assert {name: one.meaning for name, one in found.items()} == {
        "low": "the lower end",
        "two": "whether twice",
    }


@pytest.mark.parametrize(
    ("source", "former"),
    [
        ("from fedsdg.methods.composition import Key, Method, Parameter, Part",
         "fedsdg.methods.composition"),
        ("from fedsdg.composition import Method, Part", "fedsdg.composition"),
        ("from fedsdg.methods.table import METHODS", "fedsdg.methods.table"),
        ("from fedsdg.methods import table", "fedsdg.methods.table"),
        ("from fedsdg.methods.conditions import AttackKind", "fedsdg.methods.conditions"),
        ("from fedsdg.experiment.conditions import AttackKind",
         "AttackKind from fedsdg.experiment.conditions"),
        ("from fedsdg.parts import Part", "Part from fedsdg.parts"),
        ("from beside import Key", "fedsdg.methods.composition"),
        ("from fedsdg.federation.objectives.term import Term", "fedsdg.federation.objectives"),
        ("from fedsdg.federation.optimisers.adam import Adam",
         "fedsdg.federation.optimisers.adam"),
    ],
)  # fmt: skip
def test_a_plugin_of_version_0_1_is_refused_with_the_page_that_helps(place, capsys, source, former):
    (place / "beside.py").write_text("from fedsdg.methods.composition import Key\n")
    (place / "old.py").write_text(f"import numpy\n{source}\n")
    assert main(["check", "--plugin", "old.py"]) == 2
    error = capsys.readouterr().err
    assert error.endswith(
        f"the plugin old.py is of the kind of version 0.1: it imports {former}; docs/plugins.md "
        "says how it becomes one of version 0.2\n"
    )
    assert error.count("\n") == 1
    assert (CONFIG.parents[1] / "docs/plugins.md").is_file()


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
    assert list(contents(find_plugin("random.py"))["METHODS"]) == ["twin"]
    assert sys.modules["random"] is random


def test_plugins_travel_between_processes_by_place_and_hash():
    import pickle

    plugin = Plugin("twin.py", "0" * 64)
    assert pickle.loads(pickle.dumps(plugin)) == plugin
