"""The short measurement: apart from the experiment, alone on the machine, and not in vain."""

import json
from pathlib import Path

import pytest

BOTH = {"measure_kernels": 1, "report_kernels": 1}


@pytest.fixture(scope="module")
def measured_once(tmp_path_factory, check_out, stand_in):
    project = check_out(
        tmp_path_factory.mktemp("measured") / "project", (stand_in / "fedsdg").read_text()
    )
    done = project.snakemake("performance", "--cores", "2")
    assert done.returncode == 0, done.stdout
    return project


def test_timings_are_no_part_of_the_experiment(project):
    assert not set(project.planned()) & set(BOTH)
    assert project.planned("performance") == BOTH


def test_the_measurement_has_all_cores_and_the_short_form(measured_once):
    (call,) = measured_once.calls("measure")
    assert call["environment"]["OMP_NUM_THREADS"] == "2"
    assert call["environment"]["MALLOC_MMAP_MAX_"] == "0"
    assert "short" in call["given"]
    assert call["given"]["measured"] == ["results/performance/short/aggregation.json"]


def test_everything_lies_apart_from_what_is_compared_byte_by_byte(measured_once):
    made = {file for file in measured_once.folder.rglob("*") if file.is_file()}
    names = {str(file.relative_to(measured_once.folder)) for file in made}
    found = {n for n in names if "roofline" in n or "kernels." in n or "aggregation.json" in n}
    found = {n for n in found if not n.startswith(("fedsdg/", "benchmarks/", ".snakemake/"))}
    assert len(found) == 8
    assert all(name.startswith("results/performance/short/") for name in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("fedsdg/analysis/plots/roofline.py", {"report_kernels": 1}),
        ("fedsdg/aggregation/engines/statistics.py", BOTH),
        ("benchmarks/floor.py", BOTH),
        ("fedsdg/federation/rounds.py", {}),
    ],
)
def test_an_edited_source_measures_or_draws_again(measured_once, tmp_path, file, expected):
    project = measured_once.copy(tmp_path / "project")
    project.edit(file)
    assert project.planned("performance") == expected


@pytest.mark.slow
def test_the_measurement_runs_before_other_jobs_and_beside_none(project):
    done = project.snakemake(
        "all", "performance", "--cores", "2", "--configfile", "config/smoke.yaml"
    )
    assert done.returncode == 0, done.stdout
    lines = (project.folder / "calls.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["command"] == "measure"


def test_the_suites_of_the_pipeline_are_those_of_aggregation_on_this_machine(measured_once):
    (call,) = measured_once.calls("measure")
    run = {Path(word).name for word in call["given"][""] if word.endswith(".py")}
    there = {file.name for file in (measured_once.folder / "benchmarks").glob("bench_*.py")}
    judged = ("bars", "cuda", "files", "scale", "training")
    assert there - run == {f"bench_{name}.py" for name in judged}
