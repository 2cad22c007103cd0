"""What is done again after a change, and what is not."""

import os
import re
import resource
from pathlib import Path

import pytest
import yaml

DEFAULT = yaml.safe_load((Path(__file__).parents[2] / "config/config.yaml").read_text())
TABLES, FIGURES = len(DEFAULT["tables"]), len(DEFAULT["figures"])
AFTER_TRAINING = {
    "summarise_runs": 1,
    "render_table": TABLES,
    "plot_figure": FIGURES,
    "write_claims": 1,
    "verify_runs": 1,
}
ALL_CELLS = {"train_cell": 39, **AFTER_TRAINING}

PLUGIN = """
from fedsdg.methods.families import METHODS as TABLE

METHODS = {"clipped": TABLE["fedavg"]}
"""

LESS_LIKELY = [
    ("analysis/tables/render.py", {"render_table": TABLES, "verify_runs": 1}),
    ("analysis/summarise.py", AFTER_TRAINING),
    ("data/skew.py", {"partition_clients": 15, **ALL_CELLS}),
    ("experiment/backbones/pretraining.py", {"pretrain_backbone": 1, **ALL_CELLS}),
]


def test_a_second_run_has_nothing_to_do_and_says_so_at_once(finished):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    second = finished.snakemake("--cores", "2")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert second.returncode == 0
    assert "Nothing to be done" in second.stdout
    # Processor time: the clock would measure the machine's other work too.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 6


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("analysis/plots/style.py", {"plot_figure": FIGURES, "verify_runs": 1}),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in LESS_LIKELY),
        # Krum and Multi-Krum, for three skews.
        ("aggregation/rules/krum.py", {"train_cell": 6, **AFTER_TRAINING}),
        ("federation/local_training.py", ALL_CELLS),
    ],
)
def test_an_edited_source_redoes_what_depends_on_it(finished, file, expected):
    finished.edit(f"fedsdg/{file}")
    assert finished.planned() == expected


def test_the_checkpoint_that_training_starts_from_is_an_input(project):
    (project.folder / "start.yaml").write_text("adapters: {start: taken/global}")
    asked = ("--configfile", "start.yaml", "--until", "train_cell")
    lacking = project.snakemake("--dry-run", "--cores", "1", *asked)
    assert lacking.returncode and "adapter_config.json is missing" in lacking.stdout
    (project.folder / "taken/global").mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (project.folder / "taken/global" / name).touch()
    assert project.planned(*asked)["train_cell"] == ALL_CELLS["train_cell"]


def change(project, old: str, new: str) -> None:
    """Replace a line of the default config, as its owner would."""
    file = project.folder / "config/config.yaml"
    text = file.read_text()
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the config"
    file.write_text(text.replace(old, new))


def entry(project, kind: str) -> str:
    """The line of the default config's method of a type, whatever values it has."""
    lines = (project.folder / "config/config.yaml").read_text().splitlines(keepends=True)
    (line,) = [line for line in lines if line.startswith(f"  - {{type: {kind},")]
    return line


def test_lambda_of_one_method_trains_that_method_alone(finished):
    own = entry(finished, "fedsdg")
    change(finished, own, re.sub(r"lambda1: [^,}]+", "lambda1: 0.0002", own))
    assert finished.planned() == {"train_cell": 3, **AFTER_TRAINING}


def test_what_concerns_no_result_redoes_nothing(finished):
    """All at once: if one of these concerned a job, it would be planned."""
    # Words in what all runs go through, and another time of what all runs go through.
    file = finished.folder / "fedsdg/federation/local_training.py"
    file.write_text('"""Edited."""\n# edited\n' + file.read_text())
    os.utime(finished.folder / "fedsdg/federation/rounds.py")
    # Code that no run of this grid reaches: of a row its parts count, which the declarations say;
    # nobody scales updates.
    for name in ("families", "robust"):
        finished.edit(f"fedsdg/methods/{name}.py")
    finished.edit("fedsdg/federation/environment/attacks/scaling.py")
    # The command line only passes arguments on.
    finished.edit("fedsdg/cli/training.py")
    # The order of keys; what is searched, and how often a run is saved.
    for kind in ("fedsdg", "fedavg"):
        own = entry(finished, kind)
        keys = own.removeprefix("  - {").removesuffix("}\n").split(", ")
        change(finished, own, f"  - {{{', '.join(reversed(keys))}}}\n")
    change(finished, "seeds: [100, 101]", "seeds: [100]")
    change(finished, "checkpoint_seconds: 30", "checkpoint_seconds: 5")
    assert finished.planned() == {}


@pytest.mark.slow
def test_a_setting_of_training_trains_whom_it_concerns_and_redoes_nothing_upstream(finished):
    """But FedSDG, whose entry has an η_m of its own: that is what its runs are made with."""
    change(finished, "  eta_m: 0.1\n", "  eta_m: 0.2\n")
    assert finished.planned() == {**ALL_CELLS, "train_cell": 36}


@pytest.mark.slow
def test_rounds_and_evaluation_belong_to_training(finished):
    change(finished, "evaluate_every: 5", "evaluate_every: 4")
    assert finished.planned() == ALL_CELLS


@pytest.mark.slow
def test_the_partition_section_redoes_partitions_but_not_the_backbone(finished):
    change(finished, "min_samples: 12", "min_samples: 10")
    assert finished.planned() == {"partition_clients": 15, **ALL_CELLS}


@pytest.mark.slow
def test_the_backbone_section_redoes_the_backbone_but_not_the_partitions(finished):
    change(finished, "    depth: 6", "    depth: 5")
    assert finished.planned() == {"pretrain_backbone": 1, **ALL_CELLS}


def test_a_new_seed_needs_its_partitions_and_every_cell(finished):
    change(finished, "seeds: [0, 1, 2, 3, 4]", "seeds: [0, 1, 2, 3, 4, 5]")
    assert finished.planned() == {"partition_clients": 3, **ALL_CELLS}


@pytest.mark.slow
def test_a_new_method_trains_alone(finished):
    last = entry(finished, "local-only")
    change(finished, last, f"{last}  - {{type: krum, name: krum-0, f: 0}}\n")
    assert finished.planned() == {"train_cell": 3, **AFTER_TRAINING}


@pytest.mark.slow
def test_an_edited_plugin_trains_its_own_methods_alone(finished):
    """Whose file it is: methods of the table do not depend on it."""
    plugin = finished.folder / "clipped.py"
    plugin.write_text(PLUGIN)
    change(finished, "experiment: label-skew\n", "experiment: label-skew\nplugins: [clipped.py]\n")
    assert finished.planned() == {}
    last = entry(finished, "local-only")
    change(finished, last, f"{last}  - clipped\n")
    assert finished.planned() == {"train_cell": 3, **AFTER_TRAINING}
    done = finished.snakemake("--cores", "2")
    assert done.returncode == 0, done.stdout
    plugin.write_text(f"{PLUGIN}# edited\n")
    assert finished.planned() == {"train_cell": 3, **AFTER_TRAINING}


@pytest.mark.slow
def test_a_method_less_trains_nothing(finished):
    change(finished, entry(finished, "local-only"), "")
    assert finished.planned() == AFTER_TRAINING


@pytest.mark.slow
def test_a_lost_table_comes_back(finished):
    (finished.folder / "results/tables/label-skew/main.tex").unlink()
    assert finished.planned() == {"render_table": 1, "verify_runs": 1}


@pytest.mark.slow
def test_experiments_share_partitions_and_keep_their_runs_apart(finished):
    planned = finished.planned("--configfile", "config/smoke.yaml")
    assert "partition_clients" not in planned
    assert planned["train_cell"] == 2
    assert finished.planned() == {}
