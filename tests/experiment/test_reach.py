"""The code part of a run's address: words change it nowhere, code where it is reached."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedsdg.experiment import reach
from fedsdg.experiment.conditions import Conditions, parse_conditions
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.method_entries import method_entry
from fedsdg.federation.asked import probes_of
from fedsdg.methods import families
from fedsdg.methods.declared import Row, choices, methods
from fedsdg.methods.plugins import find_plugin

ROOT = Path(__file__).parents[2]
ATTACKED = {"attack": {"type": "sign-flip", "share": 0.2}}
METHODS, OPTIMISERS, LOSSES = methods(), choices("optimisers"), choices("losses")
FEDSDG = {name for name in METHODS if name.startswith("fedsdg")}
CACHED = ("closure", "_file", "_tree", "_imports_of", "_digest")


def forget():
    for name in CACHED:
        getattr(reach, name).cache_clear()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package that may be edited; hashes are those of the copy."""
    copied = tmp_path / "fedsdg"
    shutil.copytree(ROOT / "fedsdg", copied, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(reach, "PACKAGE", copied)
    forget()
    yield copied
    forget()


def hashes(conditions=None, training=()):
    forget()
    given = parse_conditions(conditions)
    return {name: reach.code_hash(row, given, training) for name, row in METHODS.items()}


def changed(before, conditions=None, training=()):
    after = hashes(conditions, training)
    return {name for name in before if before[name] != after[name]}


def append(file, text="\nEDITED = True\n"):
    file.write_text(file.read_text() + text)


def replaced(file, old, new):
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def test_words_and_layout_are_no_code(package):
    """In every module at once: comments, docstrings of all kinds, blank lines."""
    before = hashes()
    for file in package.rglob("*.py"):
        append(file, '\n\n\n# edited\n"""Edited, too."""\n')
    krum = package / "aggregation/rules/krum.py"
    replaced(krum, '"""Krum', '"""Edited. Krum')
    assert changed(before) == set()


def test_an_edited_rule_is_reached_by_its_methods_alone(package):
    before = hashes()
    append(package / "aggregation/rules/krum.py")
    assert changed(before) == {
        name for name, row in METHODS.items() if row.rule in ("Krum", "MultiKrum")
    }
    assert "fedsdg+multikrum" in changed(before) and "fedsdg" not in changed(before)


def test_another_release_and_doors_for_notebooks_change_no_run(package):
    """What the package as a whole offers is reached by nothing, and leads nowhere."""
    before = hashes()
    rules = reach.code_of("fedsdg.analysis.summarise")
    append(package / "__init__.py", "\n__version__ = '99.0.0'\n")
    append(package / "__init__.py", "def run():\n    from fedsdg.cli import main\n")
    assert changed(before) == set()
    assert reach.code_of("fedsdg.analysis.summarise") == rules
    append(package / "analysis/summarise.py")
    forget()
    assert reach.code_of("fedsdg.analysis.summarise") != rules


@pytest.mark.parametrize(
    ("module", "methods"),
    [
        ("objectives.proximal", {"fedprox", "fedprox-inexact", "ditto"}),
        ("objectives.curvature", {"fedcurv"}),
        ("objectives.control_variates", {"scaffold"}),
        ("objectives.gate_penalty", FEDSDG),
        ("objectives.private_penalty", FEDSDG),
        ("own_models.ditto", {"ditto"}),
        ("own_models.interpolation", {"interpolate"}),
        ("personalisation.dual_path", FEDSDG),
        ("personalisation.ditto", {"ditto"}),
        ("personalisation.interpolate", {"interpolate"}),
        ("personalisation.fine_tune", {"fine-tune"}),
        ("personalisation.own_head", {"fedrep"}),
        ("personalisation.private_head", {"fedper"}),
        ("personalisation.frozen_a", {"ffa-lora"}),
        ("personalisation.private_b", {"fedsa-lora"}),
        ("personalisation.alternating", {"rolora"}),
        ("personalisation.apfl", {"apfl"}),
        ("personalisation.dual_adapter", {"feddpa"}),
        ("personalisation.local_only", {"local-only"}),
    ],
)
def test_a_part_of_training_is_reached_by_its_methods_alone(module, methods):
    """Terms that a personalisation brings, and those that an own model trains on, too."""
    module = f"fedsdg.federation.{module}"
    reaching = {n for n, row in METHODS.items() if module in reach.reached(row, Conditions())}
    assert reaching == methods


def test_a_rule_within_a_rule_is_reached(package):
    before = hashes()
    append(package / "aggregation/rules/alignment.py")
    assert {"fedsdg", "fedsdg+screened"} <= changed(before)
    assert "screened" not in changed(before)


@pytest.mark.parametrize(
    "file",
    [
        "federation/local_training.py",
        "models/cohort.py",
        "experiment/runs.py",
        "federation/__init__.py",
    ],
)
def test_what_every_run_does_is_reached_by_all(package, file):
    before = hashes()
    append(package / file)
    assert changed(before) == set(METHODS)


@pytest.mark.parametrize(
    "file",
    [
        "experiment/grid/runs.py",
        "cli/training.py",
        "analysis/summarise.py",
        "methods/robust.py",
        "methods/declared.py",
        "experiment/conditions.py",
        "experiment/config.py",
    ],
)
def test_what_no_run_does_or_its_config_says_is_reached_by_none(package, file):
    before = hashes()
    append(package / file)
    (package / "federation/nobody_imports_it.py").write_text("EDITED = True\n")
    assert changed(before) == set()


def test_a_new_import_is_followed_wherever_it_stands(package):
    before = hashes()
    new = package / "federation/imported_late.py"
    new.write_text("ONE = 1\n")
    rule = package / "aggregation/rules/krum.py"
    append(
        rule,
        "\ndef _late():\n    from ...federation import imported_late\n    return imported_late\n",
    )
    once = hashes()
    new.write_text("ONE = 2\n")
    assert changed(once) == changed(before) == {"krum", "multikrum", "fedsdg+multikrum"}


def test_what_is_imported_for_types_alone_is_not_reached(package):
    (package / "federation/types_alone.py").write_text("ONE = 1\n")
    append(
        package / "experiment/runs.py",
        "\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from fedsdg.federation import types_alone\n",
    )
    before = hashes()
    append(package / "federation/types_alone.py")
    assert changed(before) == set()


@pytest.mark.parametrize(
    ("conditions", "file"),
    [
        (ATTACKED, "federation/environment/attacks/sign_flip.py"),
        (ATTACKED, "federation/environment/attacks/attack.py"),
        ({"label_noise": {}}, "data/label_noise.py"),
        ({"label_conflict": {}}, "data/label_conflict.py"),
        ({"feature_shift": {}}, "data/transforms.py"),
        ({"compute": {"deadline": 60}}, "aggregation/rules/compensated.py"),
    ],
)
def test_the_code_of_a_condition_is_reached_under_it_alone(package, conditions, file):
    before, under = hashes(), hashes(conditions)
    assert not set(before.values()) & set(under.values())
    append(package / file)
    assert changed(before) == set()
    assert changed(under, conditions) == set(METHODS)


def test_an_attack_is_reached_by_runs_under_it_alone(package):
    under = hashes(ATTACKED)
    append(package / "federation/environment/attacks/scaling.py")
    assert changed(under, ATTACKED) == set()


@pytest.mark.parametrize(
    ("table", "name", "file"),
    [
        (OPTIMISERS, "adam", "optimisers/adam.py"),
        (OPTIMISERS, "adamw", "optimisers/adam.py"),
        (OPTIMISERS, "sgd", "optimisers/sgd.py"),
        (LOSSES, "cross-entropy", "losses/cross_entropy.py"),
        (LOSSES, "focal", "losses/focal.py"),
    ],
)
def test_an_optimiser_or_a_loss_is_reached_by_runs_that_train_with_it(package, table, name, file):
    training = (table[name],)
    other = (OPTIMISERS["adagrad"],)
    before, without = hashes(None, training), hashes(None, other)
    append(package / "federation" / file)
    assert changed(without, None, other) == set()
    assert changed(before, None, training) == set(METHODS)


def test_a_conditions_own_class_counts_under_it_alone(package):
    before, under = hashes(), hashes(ATTACKED)
    replaced(
        package / "experiment/attackers.py",
        "self.share * num_clients + 0.5",
        "self.share * num_clients",
    )
    assert changed(before) == set()
    assert changed(under, ATTACKED) == set(METHODS)


def test_so_does_the_class_that_it_is_a_kind_of(package):
    differing = {"feature_shift": {"share": 0.5, "kind": "rotate"}}
    under, other = hashes(differing), hashes(ATTACKED)
    base = "\nclass DifferenceConfig:\n"
    replaced(package / "experiment/conditions.py", base, base + "    edited = True\n")
    assert changed(under, differing) == set(METHODS)
    assert changed(other, ATTACKED) == set()


def test_a_plugin_reaches_what_it_imports(package, tmp_path):
    plugin = tmp_path / "plugin.py"
    plugin.write_text("from fedsdg.aggregation.rules.krum import Krum\nMETHODS = {}\n")

    def now():
        forget()
        return reach.code_hash([plugin], Conditions())

    before = now()
    append(package / "aggregation/rules/median.py")
    assert now() == before
    append(package / "aggregation/rules/krum.py")
    assert now() != before


def test_the_hash_of_a_run_is_that_of_its_method_and_conditions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config([ROOT / "config/config.yaml"])
    run = config.run("digits", "iid", method_entry("krum"), 0)
    training = (OPTIMISERS["adam"], LOSSES["cross-entropy"])
    assert reach.training_rows(run) == training
    assert reach.source_hash(run) == reach.code_hash(METHODS["krum"], Conditions(), training)
    attacked = replace(run, conditions=parse_conditions(ATTACKED))
    code = reach.code_hash(METHODS["krum"], attacked.conditions, training)
    assert reach.source_hash(attacked) == code
    scaffold = config.run("digits", "iid", method_entry("scaffold"), 0)
    assert reach.training_rows(scaffold) == (OPTIMISERS["sgd"], LOSSES["cross-entropy"])
    Path("own.py").write_text(
        "from fedsdg.methods.robust import ROWS\nMETHODS = {'own': ROWS['krum']}\n"
    )
    plugin = find_plugin("own.py")
    entry = method_entry("own", [plugin])
    code = reach.code_hash([Path("own.py")], Conditions(), training)
    assert reach.source_hash(config.run("digits", "iid", entry, 0)) == code


def test_a_row_that_names_no_module_is_an_error():
    with pytest.raises(ValueError, match="no module 'fedsdg.nothing'"):
        reach.code_hash(Row("", modules=("fedsdg.nothing",)), Conditions())


RUN = """
import dataclasses, json, sys
from pathlib import Path
from fedsdg.experiment.conditions import parse_conditions
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.method_entries import method_entry
from fedsdg.experiment.building import build
from fedsdg.experiment.material import make_partition, prepare_material
import torch
from fedsdg.models.architecture import Architecture
from fedsdg.models import backbones

root, method, conditions = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
settings = ["federation.rounds=1", "federation.evaluate_every=1", "federation.clients=8",
            "federation.clients_per_round=5", "training.epochs=1"]
config = load_config([Path(root, "config/config.yaml")], settings)
shape = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
backbone = backbones.freeze(backbones.build(shape), shape, "tiny", {})
run = config.run("digits", "iid", method_entry(method), 0)
run = dataclasses.replace(run, conditions=parse_conditions(conditions))
partition = make_partition("digits", "iid", 0, 8, config.partition)
material = prepare_material("digits", backbone, "cpu")
# The tables hold all parts: what a run reaches is what it calls, not what is imported with them.
from fedsdg.methods import choices, families
called = set()
def watch(frame, event, _):
    if event == "call" and frame.f_code.co_name != "<module>":
        called.add(frame.f_globals.get("__name__", ""))
sys.setprofile(watch)
build(run, material, partition).run()
sys.setprofile(None)
print(json.dumps([name for name in called if name.split(".")[0] == "fedsdg"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "conditions"),
    [
        ("fedsdg", {}),
        ("multikrum", ATTACKED),
        ("scaffold", {"dropout": {"probability": 0.2}}),
        ("fedavg", {"compute": {"deadline": 60}, "label_noise": {}}),
        ("focus", {"benchmark_images": 20}),
        ("clustered", {"label_conflict": {"share": 0.5, "classes": 3}}),
        ("fedsdg", {"feature_shift": {"share": 0.5, "kind": "rotate"}}),
    ],
)
def test_whatever_a_real_run_calls_is_reached(method, conditions):
    """Or is reached only through what the address holds by other means."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(ROOT), method, json.dumps(conditions)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    called = set(json.loads(done.stdout.splitlines()[-1]))
    optimiser = OPTIMISERS[METHODS[method].optimiser or "adam"]
    training = (optimiser, LOSSES["cross-entropy"])
    inside = reach.reached(METHODS[method], parse_conditions(conditions), training)
    aside = frozenset().union(*(reach.closure(n, frozenset()) for n in reach.ELSEWHERE))
    assert called & inside >= {"fedsdg.experiment.building", "fedsdg.federation.rounds"}
    assert called & {*METHODS[method].modules}
    assert called - inside <= aside
    # What was called aside is no rule, no part of a method, and none of the engine.
    rooms = ("fedsdg.aggregation.", "fedsdg.federation.", "fedsdg.models.")
    assert not [name for name in called - inside if name.startswith(rooms)]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_part_of_every_method_is_in_its_closure(name):
    inside = reach.reached(METHODS[name], Conditions())
    made_of = families.METHODS[name]
    assert {type(one).__module__ for one in (*made_of.slots, *made_of.terms)} <= inside
    assert {type(probe).__module__ for probe in probes_of(made_of.rule)} <= inside


def test_the_common_core_holds_no_rule_and_no_attack():
    core = reach.closure(reach.ROOT)
    # The rule of a row that names none.
    rules = [name for name in core if name.startswith("fedsdg.aggregation.rules.")]
    assert rules == ["fedsdg.aggregation.rules.mean"]
    federation = "fedsdg.federation"
    parts = [f"{federation}.{place}" for place in ("environment.attacks", "stopping", "fisher")]
    parts += [f"{federation}.optimisers.{name}" for name in ("adam", "adamw", "sgd", "adagrad")]
    parts += [f"{federation}.losses.{name}" for name in ("cross_entropy", "focal")]
    assert not [name for name in core if name.startswith(tuple(parts))]
    for room in ("objectives.term", "own_models.own_model", "personalisation.personalisation"):
        place, _, neutral = f"fedsdg.federation.{room}".rpartition(".")
        held = [name for name in core if name.startswith(f"{place}.")]
        usual = ["fedsdg.federation.personalisation.shared"] if "personal" in place else []
        assert sorted(held) == [f"{place}.{neutral}", *usual]
    assert "fedsdg.federation.local_training" in core


def test_it_is_found_quickly_and_without_the_libraries_of_training():
    code = (
        "import sys, time; begun = time.process_time()\n"
        "from fedsdg.experiment.reach import code_hash\n"
        "from fedsdg.experiment.conditions import Conditions\n"
        "from fedsdg.methods.declared import methods\n"
        "code_hash(methods()['fedsdg'], Conditions())\n"
        "print(time.process_time() - begun, {'torch', 'numpy', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    seconds, loaded = done.stdout.split(maxsplit=1)
    assert loaded.strip() == "set()"
    assert float(seconds) < 1
