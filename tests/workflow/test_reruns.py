"""What is done again after a change, and what is not."""

import os
import re
import resource
from collections import Counter

import pytest

from .conftest import CELLS, jobs_of

AFTER_TRAINING = {"summarise_runs": 1, "render": 1, "verify_runs": 1}
#: The job of the grid takes from the store what has not changed (tests/experiment/test_grid.py).
GRID = {"train_grid": 1, **AFTER_TRAINING}
PAGES = {"render": 1, "verify_runs": 1}

PLUGIN = """
from fedsdg.methods.families import METHODS as TABLE

METHODS = {"clipped": TABLE["fedavg"]}
"""


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


def planned_cells(project) -> Counter[str]:
    """Method -> number of its cells that would be trained; all after training follows."""
    dry = project.snakemake("--dry-run", "--cores", "2", *CELLS)
    cells = Counter(re.findall(r"^Job \d+: Train (\S+)", dry.stdout, re.MULTILINE))
    trained = {"train_cell": cells.total()} if cells else {}
    assert jobs_of(dry) == {**trained, **AFTER_TRAINING}
    return cells


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
        ("analysis/drawing.py", PAGES),
        ("analysis/gather.py", AFTER_TRAINING),
        ("data/skew.py", {"partition_clients": 3, **GRID}),
        ("experiment/backbones/pretraining.py", {"pretrain_backbone": 1, **GRID}),
        ("aggregation/rules/krum.py", GRID),
    ],
)
def test_an_edited_source_redoes_what_depends_on_it(finished, file, expected):
    finished.edit(f"fedsdg/{file}")
    assert finished.planned() == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("evaluate_every: 5", "evaluate_every: 4", GRID),
        ("min_samples: 12", "min_samples: 10", {"partition_clients": 3, **GRID}),
        ("    depth: 6", "    depth: 5", {"pretrain_backbone": 1, **GRID}),
        ("seeds: [0, 1, 2, 3, 4]", "seeds: [0, 1, 2, 3, 4, 5]", {"partition_clients": 3, **GRID}),
    ],
)
def test_an_edited_section_redoes_what_depends_on_it(finished, old, new, expected):
    change(finished, old, new)
    assert finished.planned() == expected


@pytest.mark.slow
def test_an_edited_source_trains_the_cells_that_reach_it(finished_cells):
    """All at once: each edit concerns the cells that it should, and no others."""
    project = finished_cells
    project.edit("fedsdg/aggregation/rules/krum.py")
    own = entry(project, "fedsdg")
    change(project, own, re.sub(r"lambda1: [^,}]+", "lambda1: 0.0002", own))
    plugin = project.folder / "clipped.py"
    plugin.write_text(PLUGIN)
    change(project, "experiment: label-skew\n", "experiment: label-skew\nplugins: [clipped.py]\n")
    more = "  - {type: krum, name: krum-0, f: 0}\n  - clipped\n"
    change(project, entry(project, "local-only"), more)
    changed = ("krum", "multikrum", "fedsdg", "krum-0", "clipped")
    assert planned_cells(project) == dict.fromkeys(changed, 1)
    done = project.snakemake("--cores", "2", *CELLS)
    assert done.returncode == 0, done.stdout
    plugin.write_text(f"{PLUGIN}# edited\n")
    assert planned_cells(project) == {"clipped": 1}


@pytest.mark.slow
def test_a_setting_of_training_trains_whom_it_concerns_and_redoes_nothing_upstream(finished_cells):
    """But FedSDG, whose entry has an η_m of its own: that is what its runs are made with."""
    change(finished_cells, "  eta_m: 0.1\n", "  eta_m: 0.2\n")
    cells = planned_cells(finished_cells)
    assert len(cells) == 12 and "fedsdg" not in cells


@pytest.mark.slow
def test_a_method_less_trains_nothing(finished_cells):
    change(finished_cells, entry(finished_cells, "local-only"), "")
    assert planned_cells(finished_cells) == {}


def test_what_concerns_no_result_redoes_nothing(finished):
    """All at once: if one of these concerned a job, it would be planned."""
    # Words in what all runs go through, and another time of what all runs go through.
    file = finished.folder / "fedsdg/federation/training.py"
    file.write_text('"""Edited."""\n# edited\n' + file.read_text())
    os.utime(finished.folder / "fedsdg/federation/rounds.py")
    # Code that no run of this grid reaches: of a row its parts count, which the declarations say;
    # nobody attacks.
    for name in ("families", "robust"):
        finished.edit(f"fedsdg/methods/{name}.py")
    finished.edit("fedsdg/federation/conditions/attack.py")
    # The command line only passes arguments on.
    finished.edit("fedsdg/cli/training.py")
    # The order of keys; what is searched, and how often a run is saved.
    for kind in ("fedsdg", "fedavg"):
        own = entry(finished, kind)
        keys = own.removeprefix("  - {").removesuffix("}\n").split(", ")
        change(finished, own, f"  - {{{', '.join(reversed(keys))}}}\n")
    change(finished, "seeds: [100, 101]", "seeds: [100]")
    change(finished, "checkpoint_seconds: 30", "checkpoint_seconds: 5")
    # A plugin of which no method takes part.
    (finished.folder / "clipped.py").write_text(PLUGIN)
    change(finished, "experiment: label-skew\n", "experiment: label-skew\nplugins: [clipped.py]\n")
    assert finished.planned() == {}


def test_the_checkpoint_that_training_starts_from_is_an_input(project):
    (project.folder / "start.yaml").write_text("adapters: {start: taken/global}")
    asked = ("--configfile", "start.yaml", "--until", "train_grid")
    lacking = project.snakemake("--dry-run", "--cores", "1", *asked)
    assert lacking.returncode and "adapter_config.json is missing" in lacking.stdout
    (project.folder / "taken/global").mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (project.folder / "taken/global" / name).touch()
    assert project.planned(*asked)["train_grid"] == 1


@pytest.mark.slow
def test_a_backbone_is_made_anew_where_it_is_asked_for_or_the_records_has_changed(project):
    recorded = project.folder / "results/reference/backbones/letters.json"
    recorded.parent.mkdir(parents=True)
    recorded.write_text('{"sha256": "of one machine"}')
    done = project.snakemake("--cores", "2", "--until", "pretrain_backbone")
    assert done.returncode == 0, done.stdout
    (call,) = project.calls("pretrain")
    assert "recorded" in call["given"]
    asked = ("--dry-run", "--cores", "2", "--until", "pretrain_backbone")
    assert jobs_of(project.snakemake(*asked)) == {}
    anew = project.snakemake(*asked, FEDSDG_PRETRAIN="1")
    assert jobs_of(anew) == {"pretrain_backbone": 1}
    recorded.write_text('{"sha256": "of another"}')
    assert jobs_of(project.snakemake(*asked)) == {"pretrain_backbone": 1}


@pytest.mark.slow
def test_experiments_share_partitions_and_keep_their_runs_apart(finished):
    # Six seeds of a skew that two experiments have: the five that were there come out the same.
    (finished.folder / "more.yaml").write_text("seeds: [0, 1, 2, 3, 4, 5]\nexperiment: more\n")
    done = finished.snakemake("--cores", "2", "--configfile", "more.yaml")
    assert done.returncode == 0 and len(finished.calls("partition")) > 3
    assert finished.planned() == {}
    smoke = finished.planned("--configfile", "config/smoke.yaml")
    assert "partition_clients" not in smoke and smoke["train_grid"] == 1
