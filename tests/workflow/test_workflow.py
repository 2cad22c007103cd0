"""Which jobs are planned, what a change redoes, and what a failure or a kill leaves."""

import fcntl
import importlib.util
import json
import os
import re
import signal
import time

import pytest
import yaml

from fedsdg.config.layers import load
from fedsdg.files.places import ARENAS, RECORDS
from tests.workflow.conftest import ROOT

AFTER = {"summarise": 1, "verify": 1}
SMOKE = ("--configfile", f"{ROOT}/config/smoke.yaml")
needs_plugin = pytest.mark.skipif(
    importlib.util.find_spec("snakemake_executor_plugin_slurm") is None,
    reason="snakemake-executor-plugin-slurm is not installed: make environment",
)


def test_without_a_config_the_whole_reproduction_is_planned(project):
    assert project.planned() == {"grid": 5, "speed": 1, "summarise": 5, "verify": 1}
    (folder,) = (project.folder / ".fedsdg/config").iterdir()
    configs = {file.stem: yaml.safe_load(file.read_text()) for file in folder.iterdir()}
    assert set(configs) == {*ARENAS, "every-method", "every-condition"}
    for arena in ARENAS:
        assert configs[arena]["seeds"] == [3, 4] and len(configs[arena]["methods"]) == 8


def test_the_reproduced_rows_are_those_of_readme():
    shown = re.search(r"<!-- table \S+ (\S+) -->", (ROOT / "README.md").read_text())[1]
    made = load(["needs", "reproduced"]).methods
    assert [entry.label for entry in made] == shown.split(",")


def test_runs_are_a_target_of_their_own(project):
    assert project.planned("runs", *SMOKE) == {"grid": 1}


def test_a_number_of_seeds_takes_the_first_of_each_experiment(project):
    project.planned("--config", "seeds=3")
    files = (project.folder / ".fedsdg/config").glob("*/*.yaml")
    seeds = {file.stem: yaml.safe_load(file.read_text())["seeds"] for file in files}
    assert seeds["label-skew"] == [3, 4, 5] and seeds["every-method"] == [0]


@pytest.mark.parametrize("seeds", ["two", "0", "-1"])
def test_a_number_of_seeds_is_a_whole_number_from_1(project, seeds):
    code, output = project.snakemake("--dry-run", "--config", f"seeds={seeds}")
    assert code and "must be a whole number from 1" in output


def test_every_command_reads_the_effective_config_and_a_job_is_a_line(project):
    files = project.config("seeds: [7]")
    code, output = project.snakemake("--cores=2", *files, "--config", "experiment=tried")
    assert code == 0, output
    jobs = re.findall(r"^Job \d+: (.*)$", output, re.MULTILINE)
    assert jobs[0] == "Train all runs of tried" and len(jobs) == 4
    (grid,) = project.calls("grid")
    assert grid["words"] == ["grid", "--runs-only", "--jobs", "2"]
    config = yaml.safe_load(grid["config"])
    assert (config["experiment"], config["seeds"]) == ("tried", [7])
    assert config["federation"] == {
        **{"clients": 20, "clients_per_round": 10, "rounds": 6, "evaluate_every": 5}
    }
    assert project.planned(*files, "--config", "experiment=tried") == {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("federation: {evaluate_every: 4}", {"grid": 1, **AFTER}),
        ("seeds: [0, 1]", {"grid": 1, **AFTER}),
        ("backbones: {letters-small: {depth: 2}}", {"grid": 1, **AFTER}),
        ("tables: [main]", AFTER),
        ("checkpoint_seconds: 5\nsearch: {seeds: [100]}", {}),
    ],
)
def test_a_change_redoes_what_depends_on_it(finished, change, expected):
    project = finished(*SMOKE)
    assert project.planned(*SMOKE) == {}
    assert project.planned(*project.config(change)) == expected


def test_edited_claims_make_the_page_anew(finished):
    project = finished(*SMOKE)
    (project.folder / "claims.yaml").write_text("{}\n")
    assert project.planned(*SMOKE) == {"verify": 1}


def test_an_edited_plugin_redoes_its_runs(finished, project):
    plugin = project.folder / "mine.py"
    plugin.write_text("from fedsdg.methods.families import METHODS as OWN\n")
    with plugin.open("a") as file:
        file.write('METHODS = {"mine": OWN["fedavg"]}\n')
        file.write('DATASETS = {"stripes": lambda: None}\n')
    files = project.config("plugins: [mine.py]\nmethods: [fedavg, mine]\ndatasets: [stripes]")
    finished(*files)
    with plugin.open("a") as file:
        file.write("# edited\n")
    assert project.planned(*files) == {"grid": 1, **AFTER}


def test_a_failed_run_fails_the_workflow_after_all_tables_and_figures(project):
    code, output = project.snakemake("--cores=2", *SMOKE, FAILING="1")
    assert code and "fedavg, seed 0" in output, "the log of the failed job is shown"
    assert (project.folder / "results/figures/smoke").is_dir()
    assert any("page" in call["words"] for call in project.calls("render"))
    # The same command does what failed again.
    assert project.planned(*SMOKE) == {"grid": 1, **AFTER}


def test_a_killed_workflow_goes_on_by_the_same_command(project):
    running = project.start("--cores=2", *SMOKE, SLOW="grid")
    calls = project.folder / "calls.jsonl"
    while not calls.is_file():
        time.sleep(0.1)
        assert running.poll() is None, running.communicate()
    running.kill()
    running.wait()
    os.kill(json.loads(calls.read_text())["process"], signal.SIGKILL)
    assert [*(project.folder / ".snakemake/locks").iterdir()], "it has left its lock"
    code, output = project.snakemake("--cores=2", *SMOKE)
    assert code == 0, output


def test_a_living_workflow_keeps_its_lock(project):
    locks = project.folder / ".snakemake/locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text("results/runs/smoke/done\n")
    with open(project.folder / ".snakemake/alive", "w") as alive:
        fcntl.flock(alive, fcntl.LOCK_SH)
        code, output = project.snakemake("--cores=2", *SMOKE)
    assert code and "LockException" in output


def test_workers_on_gpus_are_as_many_as_the_profile_says(project):
    code, output = project.snakemake("--cores=2", *SMOKE, profile="gpu")
    assert code == 0, output
    (grid,) = project.calls("grid")
    assert grid["words"][-1] == "1" and yaml.safe_load(grid["config"])["training"] == {
        **yaml.safe_load((ROOT / "config/config.yaml").read_text())["training"],
        "device": "cuda",
    }


@needs_plugin
def test_on_a_cluster_cells_are_jobs_and_an_edited_one_is_trained_again(project):
    files = project.config("seeds: [0, 1]\nskews: [iid, dirichlet~0.3]")
    assert project.planned(*files, profile="slurm") == {"grid": 1, "cell": 4, **AFTER}
    code, output = project.snakemake("--cores=2", "--jobs=2", *files)
    assert code == 0, output
    prepare, *cells = (call["words"] for call in project.calls("grid"))
    assert prepare[-2:] == ["--minutes", "0"]
    assert sorted(words[-2:] for words in cells) == [
        ["dirichlet~0.3", "fedavg"],
        ["dirichlet~0.3", "fedsdg"],
        ["iid", "fedavg"],
        ["iid", "fedsdg"],
    ]
    text = (project.folder / "more.yaml").read_text()
    changed = project.config(f"{text}\nmethods: [fedavg, {{type: fedsdg, lambda1: 0.5}}]")
    assert project.planned(*changed, profile="slurm") == {"cell": 2, **AFTER}


@needs_plugin
def test_where_slurm_takes_no_jobs_nothing_begins(project):
    for command in ("sbatch", "squeue"):
        project.install(command, "#!/bin/sh\nexit 0\n")
    project.install("sinfo", "#!/bin/sh\necho 'cannot contact slurmctld' >&2; exit 1\n")
    code, output = project.snakemake(*SMOKE, profile="slurm")
    assert code and "SLURM takes no jobs here; start it: cannot contact slurmctld" in output


def test_records_are_drawn_again_from_their_committed_files(project):
    records = project.folder / RECORDS
    records.mkdir(parents=True)
    for record in (ROOT / RECORDS).iterdir():
        (records / record.name).symlink_to(record)
    (records / ".needs.123").symlink_to(ROOT / RECORDS / "needs")  # A killed `record` has left it.
    recorded = [*(ROOT / RECORDS).glob("*/pages.json")]
    assert project.planned("figures", "tables") == {"record": len(recorded) + 1}
