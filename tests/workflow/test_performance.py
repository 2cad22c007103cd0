"""The short measurement: apart from the experiment, alone on the machine, and not in vain.

That the default targets do without it is in test_grid.py.
"""

import json
from pathlib import Path

import pytest

BOTH = {"measure_speed": 1, "report_speed": 1}
SMOKE = ("--configfile", "config/smoke.yaml")


@pytest.fixture(scope="module")
def measured_once(tmp_path_factory, check_out, stand_in):
    """A checkout in which the smoke experiment was run and the machine measured."""
    project = check_out(
        tmp_path_factory.mktemp("measured") / "project", (stand_in / "fedsdg").read_text()
    )
    done = project.snakemake("all", "performance", "--cores", "2", *SMOKE)
    assert done.returncode == 0, done.stdout
    return project


def test_the_measurement_runs_first_with_all_cores_and_in_its_short_form(measured_once):
    (call,) = measured_once.calls("measure")
    lines = (measured_once.folder / "calls.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == call, "before other jobs and beside none"
    assert call["environment"]["OMP_NUM_THREADS"] == "2"
    assert call["environment"]["MALLOC_MMAP_MAX_"] == "0"
    assert "short" in call["given"]
    assert call["given"]["measured"] == ["results/performance/short/measured.json"]
    run = {Path(word).name for word in call["given"][""] if word.endswith(".py")}
    there = {file.name for file in (measured_once.folder / "benchmarks").glob("bench_*.py")}
    judged = ("files", "rounds")
    assert there - run == {f"bench_{name}.py" for name in judged}


def test_everything_lies_apart_from_what_is_compared_byte_by_byte(measured_once):
    made = {file for file in (measured_once.folder / "results").rglob("*") if file.is_file()}
    names = {str(file.relative_to(measured_once.folder)) for file in made}
    found = {n for n in names if "/speed." in n or "measured.json" in n}
    assert len(found) == 8
    assert all(name.startswith("results/performance/short/") for name in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            ("fedsdg/analysis/speed.py", "fedsdg/federation/rounds.py"),
            {"report_speed": 1},
        ),
        (("fedsdg/aggregation/statistics.py",), BOTH),
        (("benchmarks/floor.py",), BOTH),
    ],
)
def test_an_edited_source_measures_or_draws_again(measured_once, tmp_path, files, expected):
    project = measured_once.copy(tmp_path / "project")
    for file in files:
        project.edit(file)
    assert project.planned("performance", *SMOKE) == expected
