"""The code part of a run's address: words change it nowhere, code where it is reached."""

import ast
import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import pytest

from fedsdg.experiment import reach
from fedsdg.experiment.conditions import Conditions, parse_conditions
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.method_entries import method_entry
from fedsdg.experiment.sections import TrainingConfig
from fedsdg.methods import families
from fedsdg.methods.declared import Row, choices, methods
from fedsdg.methods.plugins import find_plugin
from fedsdg.parts import Absent, Range, part

ROOT = Path(__file__).parents[2]
ATTACKED = {"attack": {"type": "sign-flip", "share": 0.2}}
METHODS, OPTIMISERS, LOSSES = methods(), choices("optimisers"), choices("losses")
FEDSDG = {name for name in METHODS if name.startswith("fedsdg")}


def forget():
    reach._files.cache_clear()
    reach._sources.cache_clear()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package that may be edited; hashes are those of the copy."""
    copied = tmp_path / "fedsdg"
    shutil.copytree(ROOT / "fedsdg", copied, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(reach, "PACKAGE", copied)
    forget()
    yield copied
    forget()


def reached(row):
    """The definitions, (module, name), that a run of this method reaches."""
    return {use[:2] for use in reach.reached(row, Conditions())}


def hashes(conditions=None, training=()):
    forget()
    given = parse_conditions(conditions)
    return {name: reach.code_hash(row, given, training) for name, row in METHODS.items()}


def changed(before, conditions=None, training=()):
    after = hashes(conditions, training)
    return {name for name in before if before[name] != after[name]}


def edit(file, *names):
    """Add a statement to the functions and classes of these names; without names to all."""
    tree = ast.parse(file.read_text())
    kinds = (ast.FunctionDef, ast.ClassDef)
    chosen = [
        one for one in tree.body if isinstance(one, kinds) and (not names or one.name in names)
    ]
    assert len(chosen) >= max(1, len(names))
    for one in chosen:
        one.body += ast.parse("edited = True").body
    file.write_text(ast.unparse(tree))


def append(file, text):
    file.write_text(file.read_text() + text)


def replaced(file, old, new):
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def test_words_and_layout_are_no_code(package):
    """In every module at once: comments, docstrings, blank lines, what is printed, types."""
    before = hashes()
    for file in package.rglob("*.py"):
        append(file, '\n\n\n# edited\n"""Edited, too."""\nprint("edited")\nimport edited\n')
    krum = package / "aggregation/rules/krum.py"
    replaced(krum, '"""Krum', '"""Edited. Krum')
    clients = package / "federation/clients.py"
    replaced(clients, "has no training sample", "edited {purpose}")
    replaced(clients, "t: int, client: int, epochs: int) -> Epochs:\n",
             "t: float, client: Edited, epochs: int) -> Edited:\n    import edited\n"
             "    print(edited)\n    warnings.warn('edited')\n")  # fmt: skip
    assert changed(before) == set()
    replaced(
        clients, 'raise ValueError(\n            f"client', 'raise KeyError(\n            f"client'
    )
    assert changed(before) == set(METHODS)


def test_where_a_definition_stands_does_not_count(package):
    """A function that moves, a file that is called otherwise."""
    before = hashes()
    here, there = package / "federation/evaluation.py", package / "federation/scoring.py"
    text = here.read_text()
    begin = text.index("def worst_decile(")
    here.write_text(text[:begin])
    replaced(here, "from fedsdg.federation.scoring import CLIENTS_PER_PASS,",
             "from fedsdg.federation.scoring import worst_decile, CLIENTS_PER_PASS,")  # fmt: skip
    append(there, "\n\nimport math\n\n\n" + text[begin:])
    (package / "federation/micro_batches.py").rename(package / "federation/renamed.py")
    for file in package.rglob("*.py"):
        file.write_text(file.read_text().replace("federation.micro_batches", "federation.renamed"))
    assert changed(before) == set()
    edit(there, "worst_decile")
    assert changed(before) == set(METHODS)


def test_what_is_new_changes_no_run(package):
    """A method, a rule, a condition, a random stream, a constant that nobody uses."""
    before = hashes()
    append(package / "methods/robust.py", '\nROWS["new"] = ROWS["krum"]\n')
    (package / "aggregation/rules/new.py").write_text("class New:\n    pass\n")
    append(package / "experiment/conditions.py", "\n\nclass NewConfig:\n    modules = ('new',)\n")
    append(package / "federation/batches.py", "\n\ndef new():\n    return stream('new', 0)\n")
    append(package / "rng.py", "\n\nNEW = 1\n")
    assert changed(before) == set()


def test_an_edited_rule_is_reached_by_its_methods_alone(package):
    before = hashes()
    edit(package / "aggregation/rules/krum.py")
    assert changed(before) == {
        name for name, row in METHODS.items() if row.rule in ("Krum", "MultiKrum")
    }
    assert "fedsdg+multikrum" in changed(before) and "fedsdg" not in changed(before)


def test_another_release_and_doors_for_notebooks_change_no_run(package):
    """What the package as a whole offers is reached by nothing, and leads nowhere."""
    before = hashes()
    rules = reach.code_of("fedsdg.analysis.gather")
    replaced(package / "__init__.py", "__version__ = ", "__version__ = 'later than ' + ")
    append(package / "__init__.py", "def run():\n    from fedsdg.cli import main\n")
    assert changed(before) == set()
    assert reach.code_of("fedsdg.analysis.gather") == rules
    edit(package / "analysis/gather.py")
    forget()
    assert reach.code_of("fedsdg.analysis.gather") != rules


@pytest.mark.parametrize(
    ("part", "methods"),
    [
        ("terms:Proximal", {"fedprox", "fedprox-inexact"}),
        ("terms:PersonalProximal", {"ditto"}),
        ("terms:Curvature", {"fedcurv"}),
        ("terms:ControlVariates", {"scaffold"}),
        ("terms:GatePenalty", FEDSDG),
        ("terms:PrivatePenalty", FEDSDG),
        ("personalisation:DualPath", FEDSDG),
        ("personalisation:Ditto", {"ditto"}),
        ("personalisation:PrivateHead", {"fedper", "fedrep"}),
        ("personalisation:FineTune", {"fine-tune", "fedbabu"}),
        ("personalisation:LocalOnly", {"local-only"}),
        ("stopping:Inexactness", {"fedprox-inexact"}),
        ("data_sharing:Central", {"centralised"}),
    ],
)
def test_a_part_of_training_is_reached_by_its_methods_alone(package, part, methods):
    """Terms that a personalisation brings, and those of its phases, too."""
    before = hashes()
    module, name = part.split(":")
    edit(package / f"federation/{module}.py", name)
    assert changed(before) == methods


def test_a_rule_within_a_rule_is_reached(package):
    before = hashes()
    edit(package / "aggregation/rules/alignment.py")
    assert {"fedsdg", "fedsdg+screened"} <= changed(before)
    assert "screened" not in changed(before)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("federation/training.py", "CohortTraining"),
        ("models/cohort.py", "CohortModel"),
        ("models/fast/tiles.py", "product"),
        ("models/small_cnn.py", "cnn_layout"),
        ("experiment/runs.py", "execute"),
        ("rng.py", "stream"),
    ],
)
def test_what_every_run_does_is_reached_by_all(package, file, name):
    before = hashes()
    edit(package / file, name)
    assert changed(before) == set(METHODS)


def test_what_a_module_executes_beside_its_definitions_is_reached_with_them(package):
    before = hashes()
    append(package / "aggregation/rules/krum.py", "\nassert True\n")
    assert changed(before) == {"krum", "multikrum", "fedsdg+multikrum"}
    append(package / "federation/__init__.py", "\nassert True\n")
    assert changed(before) == set(METHODS)


@pytest.mark.parametrize(
    "file",
    [
        "experiment/grid/runs.py",
        "cli/training.py",
        "analysis/gather.py",
        "methods/plugins.py",
        "methods/declared.py",
        "experiment/conditions.py",
        "experiment/config.py",
        "data/reading.py",
        "models/pretraining.py",
    ],
)
def test_what_no_run_does_or_its_config_says_is_reached_by_none(package, file):
    before = hashes()
    edit(package / file)
    (package / "federation/nobody_imports_it.py").write_text("EDITED = True\n")
    assert changed(before) == set()


def test_a_new_use_is_followed_wherever_it_stands(package):
    before = hashes()
    new = package / "federation/imported_late.py"
    new.write_text("ONE = 1\nTWO = 2\n")
    late = "    from ...federation import imported_late\n    late = imported_late.ONE\n"
    replaced(
        package / "aggregation/rules/krum.py",
        "@part\nclass Krum(",
        f"def _late():\n{late}    return late\n\n\nassert _late()\n\n\n@part\nclass Krum(",
    )
    once = hashes()
    assert changed(before) == {"krum", "multikrum", "fedsdg+multikrum"}
    new.write_text("ONE = 1\nTWO = 3\n")
    assert changed(once) == set()
    new.write_text("ONE = 3\nTWO = 3\n")
    assert changed(once) == {"krum", "multikrum", "fedsdg+multikrum"}


def test_a_module_that_is_handed_on_counts_whole(package):
    new = package / "federation/handed_on.py"
    new.write_text("ONE = 1\n")
    append(
        package / "aggregation/rules/krum.py",
        "\nfrom fedsdg.federation import handed_on\nassert vars(handed_on)\n",
    )
    before = hashes()
    append(new, "TWO = 1\n")
    assert changed(before) == {"krum", "multikrum", "fedsdg+multikrum"}


def test_what_is_imported_for_types_alone_is_not_reached(package):
    (package / "federation/types_alone.py").write_text("class One:\n    pass\n")
    file = package / "federation/clients.py"
    append(file, "\nif TYPE_CHECKING:\n    from fedsdg.federation.types_alone import One\n")
    replaced(file, "    participation = Participation(drawn)\n",
             "    one: One = Participation(drawn)\n    participation = one\n")  # fmt: skip
    before = hashes()
    edit(package / "federation/types_alone.py")
    assert changed(before) == set()


@pytest.mark.parametrize(
    ("conditions", "file", "name"),
    [
        (ATTACKED, "federation/conditions/attack.py", "SignFlip"),
        (ATTACKED, "federation/conditions/attack.py", "Attackers"),
        ({"dropout": {}}, "federation/conditions/dropout.py", "Dropout"),
        ({"label_noise": {}}, "federation/conditions/label_noise.py", "LabelNoise"),
        ({"label_conflict": {}}, "federation/conditions/difference.py", "LabelConflict"),
        ({"feature_shift": {}}, "federation/conditions/difference.py", "FeatureShift"),
        ({"feature_shift": {}}, "federation/conditions/difference.py", "Difference"),
        ({"compute": {}}, "federation/conditions/compute.py", "Compute"),
        ({"quantisation": {}}, "federation/conditions/quantisation.py", "Quantisation"),
    ],
)
def test_the_code_of_a_condition_is_reached_under_it_alone(package, conditions, file, name):
    before, under = hashes(), hashes(conditions)
    assert not set(before.values()) & set(under.values())
    edit(package / file, name)
    assert changed(before) == set()
    assert changed(under, conditions) == set(METHODS)


def test_an_attack_is_reached_by_runs_under_it_alone(package):
    under = hashes(ATTACKED)
    edit(package / "federation/conditions/attack.py", "Scaling")
    assert changed(under, ATTACKED) == set()


@pytest.mark.parametrize(
    ("table", "name", "part"),
    [
        (OPTIMISERS, "adam", "optimisers:Adam"),
        (OPTIMISERS, "adamw", "optimisers:Adam"),
        (LOSSES, "cross-entropy", "losses:CrossEntropy"),
        (LOSSES, "focal", "losses:Focal"),
    ],
)
def test_an_optimiser_or_a_loss_is_reached_by_runs_that_train_with_it(package, table, name, part):
    training = (table[name],)
    other = (OPTIMISERS["adagrad"],)
    before, without = hashes(None, training), hashes(None, other)
    module, kind = part.split(":")
    edit(package / f"federation/{module}.py", kind)
    assert changed(without, None, other) == set()
    assert changed(before, None, training) == set(METHODS)


def test_a_plugin_reaches_what_it_imports(package, tmp_path):
    plugin = tmp_path / "plugin.py"
    plugin.write_text("from fedsdg.aggregation.rules import krum\nRULE = krum.Krum()\n")

    def now():
        forget()
        return reach.code_hash([plugin], Conditions())

    before = now()
    edit(package / "aggregation/rules/median.py")
    assert now() == before
    edit(package / "aggregation/rules/krum.py")
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


@part
class LaterTraining(TrainingConfig):
    """As in a release to come, with a key that this one does not know."""

    later: Annotated[int, Range(1), Absent(3)] = 5
    "runs of today trained as with 3"


def test_a_key_that_comes_later_leaves_runs_as_they_were_whatever_its_default_is():
    run = load_config([ROOT / "config/config.yaml"]).run("digits", "iid", method_entry("krum"), 0)
    today = {entry.name: getattr(run.training, entry.name) for entry in fields(run.training)}
    assert replace(run, training=LaterTraining(**today, later=3)).hash == run.hash
    by_default = replace(run, training=LaterTraining(**today))
    assert by_default.hash != run.hash and by_default.to_dict()["training"]["later"] == 5


def test_the_path_that_was_taken_is_in_the_address_and_never_auto():
    config = load_config([ROOT / "config/config.yaml"])
    assert config.training.kernel == "auto"
    run = config.run("digits", "iid", method_entry("krum"), 0)
    assert run.to_dict()["training"]["kernel"] == "compiled"
    assert run.to_dict()["partition"]["test"] == "fixed"
    by_torch = replace(run.training, kernel="torch")
    assert "kernel" not in replace(run, training=by_torch).to_dict()["training"]


def test_a_row_that_names_no_module_is_an_error():
    with pytest.raises(ValueError, match="no module 'fedsdg.nothing'"):
        reach.code_hash(Row("", modules=("fedsdg.nothing",)), Conditions())


RUN = """
import dataclasses, json, sys
from pathlib import Path
import numba
import torch
# Aggregation's kernels are Python here, so that their calls are seen; those of models count as
# whole modules, for Python knows nothing of their operations.
from fedsdg.models.fast import adam, model
numba.config.DISABLE_JIT = True
from fedsdg.experiment import runs
from fedsdg.experiment.conditions import parse_conditions
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.models import Architecture, build_backbone, freeze

root = Path(sys.argv[1])
settings = ["federation.rounds=2", "federation.evaluate_every=1", "federation.clients=8",
            "federation.clients_per_round=8", "training.epochs=1"]
config = load_config([root / "config/config.yaml"], settings)
shape = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
backbone = freeze(build_backbone(shape), shape, "tiny", {})
partition = make_partition("digits", "iid", 0, 8, config.partition)
# The tables hold all parts: what a run reaches is what it calls, not what is imported with them.
from fedsdg.methods import choices, families
called = set()
def watch(frame, event, _):
    code = frame.f_code
    module = frame.f_globals.get("__name__", "")
    if event == "call" and code.co_name != "<module>" and module.startswith("fedsdg.") \\
            and code.co_filename.endswith(".py"):
        called.add((module, code.co_firstlineno))
for number, (method, conditions) in enumerate(json.load(sys.stdin)):
    run = config.run("digits", "iid", method_entry(method), 0)
    run = dataclasses.replace(run, conditions=parse_conditions(conditions))
    folder = Path(sys.argv[2], str(number))
    folder.mkdir()
    called.clear()
    sys.setprofile(watch)
    material = prepare_material("digits", backbone, "cpu")
    failure = runs.execute(run, material, partition, folder, store=folder / "store", identity={})
    sys.setprofile(None)
    assert failure is None, failure
    print(json.dumps(sorted(called)), flush=True)
"""
SLOW = {"compute": {"slowest": 1, "fastest": 4}}
#: Every rule, term and personalisation; every attack; every condition.
TRACED = [
    *((name, {"benchmark_images": 20} if name == "focus" else {}) for name in METHODS),
    *(("fedavg-uniform", {"attack": {"type": name, "share": 0.2}}) for name in choices("attacks")),
    ("fedavg", {"dropout": {"probability": 0.2}}),
    ("fedavg", {"label_noise": {}}),
    ("fedsdg", {"label_conflict": {"share": 0.5, "classes": 3}}),
    ("fedsdg", {"feature_shift": {"share": 0.5, "kind": "rotate"}}),
    ("fedavg", {"compute": {"deadline": 60}}),
    ("fedavg", {**SLOW, "compute": {**SLOW["compute"], "arrivals": 3, "late": "compensate"}}),
    ("fedavg", {**SLOW, "compute": {**SLOW["compute"], "local_seconds": 1}}),
    ("fedsdg", {**SLOW, "quantisation": {"share": 0.5, "bits": 4, "who": "slowest"}}),
]
#: What runs call beside what counts: only modules call it whose work is in the address by other
#: means, to say what a run is made of; or it hands on names, whose definitions are reached.
ASIDE = (
    "fedsdg.methods.choice:require_declared",
    "fedsdg.methods.chosen:name_of",
    "fedsdg.methods.chosen:parameters_of",
    "fedsdg.methods.describing:_said",
    "fedsdg.methods.describing:text_of",
    "fedsdg.methods.method:Method",
    "fedsdg.models:__getattr__",
    "fedsdg.parts:_owned",
    "fedsdg.parts:is_part",
    "fedsdg.parts:parameters",
    "fedsdg.parts:plain",
    "fedsdg.parts:replaced",
)


def defined_at(module, line):
    """The name of the definition of a module that holds a line; None where it is none."""
    for one in ast.parse(reach._files()[module].read_bytes()).body:
        first = min([one.lineno, *(d.lineno for d in getattr(one, "decorator_list", ()))])
        if first <= line <= one.end_lineno:
            return next(iter(reach._defines(one)), None)
    return None


@pytest.mark.slow
def test_whatever_a_real_run_calls_is_reached(tmp_path):
    """Or is reached only through what the address holds by other means."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(ROOT), str(tmp_path)],
        input=json.dumps(TRACED),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name_at = functools.cache(defined_at)
    missing = {}
    for (method, conditions), line in zip(TRACED, done.stdout.splitlines(), strict=True):
        training = (OPTIMISERS[METHODS[method].optimiser or "adam"], LOSSES["cross-entropy"])
        inside = reach.reached(METHODS[method], parse_conditions(conditions), training)
        assert ("fedsdg.federation.rounds", "run") in inside
        called = {(module, name_at(module, at)) for module, at in json.loads(line)}
        executed = {module for module, *_ in inside}  # With what defines nothing in them.
        for module, name in called - {use[:2] for use in inside}:
            if module not in reach.ELSEWHERE and not (name is None and module in executed):
                missing.setdefault(f"{module}:{name}", []).append((method, conditions))
    assert sorted(missing) == sorted(ASIDE), missing


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_part_of_every_method_is_in_its_closure(name):
    made_of = families.METHODS[name]
    kinds = [type(one) for one in (*made_of.slots, *made_of.terms)]
    assert {(kind.__module__, kind.__name__) for kind in kinds} <= reached(METHODS[name])


def test_the_common_core_holds_no_part_of_a_method_or_a_condition():
    core = {tuple(use[:2]) for use in reach.used_by(reach.ROOTS)}
    rows = [*METHODS.values(), *OPTIMISERS.values(), *LOSSES.values(), *choices("attacks").values()]
    parts = {tuple(name.split(":")) for row in rows for name in row.modules}
    federation = "fedsdg.federation"
    assert parts & core == {
        (f"{federation}.data_sharing", "DataSharing"),
        (f"{federation}.optimisers", "Sgd"),
        (f"{federation}.personalisation", "Shared"),
    }
    in_conditions = {
        name for module, name in core if module.startswith(f"{federation}.conditions.")
    }
    assert not in_conditions & {"Attackers", "Compute", "Dropout", "LabelNoise", "Quantisation"}
    assert (f"{federation}.training", "CohortTraining") in core
    assert ("fedsdg.models.cohort", "CohortModel") in core, "packages hand its name on"


def test_it_is_found_quickly_and_without_the_libraries_of_training():
    code = (
        "import sys, time; begun = time.process_time()\n"
        "from fedsdg.experiment.reach import code_hash\n"
        "from fedsdg.experiment.conditions import Conditions\n"
        "from fedsdg.methods.declared import methods\n"
        "code_hash(methods()['fedsdg'], Conditions())\n"
        "print(time.process_time() - begun, {'torch', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    seconds, loaded = done.stdout.split(maxsplit=1)
    assert loaded.strip() == "set()"
    assert float(seconds) < 1
