"""Which jobs a fresh checkout plans, and how the commands are called."""

import re
import textwrap

import pytest
import yaml

from .conftest import CELLS, jobs_of

METHODS = 13
#: Of the smoke experiment.
TABLES = 2
FIGURES = 1


def write_config(project, text):
    """A config of the reader's own, to be laid over the others."""
    (project.folder / "more.yaml").write_text(textwrap.dedent(text))


def test_default_grid_is_a_job_per_skew_and_one_for_all_runs(project):
    assert project.planned() == {
        "partition_clients": 3,
        "pretrain_backbone": 1,
        "train_grid": 1,
        "summarise_runs": 1,
        "render": 1,
        "verify_runs": 1,
    }
    (config,) = (project.folder / ".fedsdg/config").iterdir()
    assert yaml.safe_load(config.read_text())["training"]["device"] == "cpu"


def test_smoke_config_replaces_lists_and_has_a_backbone_of_its_own(project):
    dry = project.snakemake("-n", "-p", "--cores", "1", "--configfile", "config/smoke.yaml")
    planned = jobs_of(dry)
    assert planned["partition_clients"] == 1
    assert planned["train_grid"] == 1
    assert planned["pretrain_backbone"] == 1
    assert "results/backbones/letters-small.safetensors" in dry.stdout
    assert "results/backbones/letters.safetensors" not in dry.stdout
    assert "Reason:" not in dry.stdout


def test_where_all_parameters_are_trained_no_backbone_is_made(project):
    full = ("--configfile", "config/extended/full.yaml")
    dry = project.snakemake("-n", "-p", "--cores", "1", *CELLS, *full)
    assert dry.returncode == 0, dry.stdout
    assert "fedsdg run --grid --runs-only --only digits" in dry.stdout
    assert "pretrain_backbone" not in dry.stdout


#: Of a file that a job waits for or makes; logs and the folder of a run are not among them.
FILE_NAME = re.compile(r"[\w~./-]+\.(?:parquet|safetensors|json|md|csv|tex|pdf|svg|png)\b")


def test_the_log_is_a_line_for_each_job_and_every_command_sees_the_effective_config(project):
    write_config(project, "seeds: [7]")
    files = ("--configfile", "config/smoke.yaml", "more.yaml")
    done = project.snakemake("--cores", "2", *files, "--config", "experiment=tried")
    assert done.returncode == 0, done.stdout
    jobs = re.findall(r"^Job \d+: (.*)$", done.stdout, re.MULTILINE)
    steps = re.findall(r"^(\d+) of (\d+) steps", done.stdout, re.MULTILINE)
    assert "Train all runs of tried" in jobs
    assert len(jobs) == len(steps) == int(steps[-1][1])
    # The last says where a person looks, and no other names a file.
    assert jobs[-1].startswith("All of tried is there: results/tables/tried/, ")
    assert FILE_NAME.findall(done.stdout) == []
    for command in ("partition", "pretrain", "run"):
        (call,) = project.calls(command)
        config = yaml.safe_load(call["config"])
        assert config["experiment"] == "tried"
        assert config["seeds"] == [7]
        assert config["federation"]["rounds"] == 6
        assert config["federation"]["clients"] == 20
        assert config["training"]["eta_g"] == 0.003
    (partition,) = project.calls("partition")
    assert partition["given"] == {
        "dataset": ["digits"],
        "clients": ["20"],
        "skew": ["dirichlet~0.3"],
        "output": ["results/partitions/digits/clients~20/dirichlet~0.3/seed~7.parquet"],
    }


def test_the_reason_of_a_job_is_told_on_demand(project):
    """And otherwise not: the test of the smoke config looks for it."""
    told = ("-n", "--cores", "1", "--quiet", "host", "--configfile", "config/smoke.yaml")
    assert "Reason: Missing output files" in project.snakemake(*told).stdout


@pytest.mark.slow
def test_grid_grows_with_the_config(project):
    write_config(
        project,
        """
        datasets: [digits, mnist]
        seeds: [3]
        methods:
          - fedavg
          - {type: fedsdg}
          - {type: fedsdg, name: fedsdg-softmax, transform: softmax}
        """,
    )
    planned = project.planned("--configfile", "more.yaml")
    assert planned["partition_clients"] == 2 * 3
    # MNIST's runs take long enough for a process each.
    assert planned["train_cell"] == 2 * 3 * 3
    assert planned["pretrain_backbone"] == 1


@pytest.mark.slow
def test_works_from_another_folder(project, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    dry = project.snakemake("-n", "--cores", "1", "--directory", str(elsewhere))
    assert dry.returncode == 0, dry.stdout
    assert re.search(r"train_grid +1\b", dry.stdout)


@pytest.mark.slow
def test_threads_are_the_configs_whatever_cores_there_are(project):
    cell = "results/runs/label-skew/digits/clients~20/dirichlet~0.3/fedavg/seed~0/result.json"
    (project.folder / "threads.yaml").write_text("backbones: {letters: {threads: 2}}\n")
    done = project.snakemake(cell, "--cores", "1", *CELLS, "--configfile", "threads.yaml")
    assert done.returncode == 0, done.stdout
    (pretrain,) = project.calls("pretrain")
    (train,) = project.calls("run")
    assert pretrain["environment"]["OMP_NUM_THREADS"] == "2"
    assert train["environment"]["OMP_NUM_THREADS"] == "1"
    assert train["environment"]["MALLOC_MMAP_MAX_"] == "0"


def test_the_grid_trains_in_as_many_processes_as_there_are_cores(finished):
    (call,) = finished.calls("run")
    assert call["given"] == {"grid": [], "runs-only": [], "jobs": ["2"]}


def test_the_dearest_cells_train_first(finished_cells):
    cells = [call["given"]["only"] for call in finished_cells.calls("run")]
    assert len({tuple(cell) for cell in cells}) == METHODS
    # Two run side by side, so that the second may note its call before the first.
    assert "fine-tune" in [method for *_, method in cells[:2]]


@pytest.mark.slow
def test_a_failed_run_fails_the_workflow_after_all_tables_and_figures(project):
    failed = project.snakemake(
        "--cores", "2", "--configfile", "config/smoke.yaml", FAILING="summarise"
    )
    assert failed.returncode != 0
    assert "fedavg, seed 0" in failed.stdout, "the log of the failed job is shown"
    assert len(FILE_NAME.findall(failed.stdout)) < 40, "and few names of files"
    assert len(list((project.folder / "results/tables/smoke").glob("*.csv"))) == TABLES
    assert len(list((project.folder / "results/figures/smoke").glob("*.svg"))) == FIGURES
    assert not (project.folder / "results/summary/smoke/verified.txt").exists()
    mended = project.planned("--configfile", "config/smoke.yaml")
    assert mended == {"verify_runs": 1}
