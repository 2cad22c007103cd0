"""A grid: what is run, in which order, what is finished, and what a fault costs."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from fedsdg.analysis.gather import NOT_RUN, failed_runs
from fedsdg.experiment.execution import record_failure
from fedsdg.experiment.grid import run_grid, runner, selected
from fedsdg.experiment.interruption import Stopped
from fedsdg.experiment.material import load_images
from fedsdg.experiment.runs import tasks_of
from fedsdg.experiment.store import RECORDS, store_folder
from fedsdg.experiment.summary import write_summary
from fedsdg.files import HASHES, changed_file, read_json
from tests.experiment.conftest import TINY, ended, place_backbone, python, tiny, wait_until


def records(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and the time of every file of results."""
    files = [file for file in sorted(folder.glob("results/runs/**/*.*")) if file.is_file()]
    return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


# --- What is run ----------------------------------------------------------------------------------


def test_the_first_seed_of_every_method_comes_first(folder):
    order = [
        (t.identity["seed"], t.identity["label"], t.identity["skew"]) for t in tasks_of(tiny())
    ]
    skews, methods = ("dirichlet~1.0", "iid"), ("fedsdg", "fedavg")
    assert order == [(n, m, s) for n in (0, 1) for s in skews for m in methods]


def test_results_lie_where_the_config_says(folder):
    task = next(tasks_of(tiny(), Path("elsewhere")))
    assert task.folder == Path("elsewhere/runs/tiny/digits/clients~6/dirichlet~1.0/fedsdg/seed~0")
    assert task.partition == Path(
        "elsewhere/partitions/digits/clients~6/dirichlet~1.0/seed~0.parquet"
    )
    assert task.backbone == Path("elsewhere/backbones/tiny.safetensors")


def test_a_partition_seed_is_that_of_all_runs(folder):
    tasks = list(tasks_of(tiny("partition_seed=7")))
    assert {task.partition.stem for task in tasks} == {"seed~7"}
    assert len({task.folder for task in tasks}) == 8


@pytest.mark.parametrize(
    ("only", "count"),
    [
        ([], 8),
        (["seed~1"], 4),
        (["fedsdg", "seed~1"], 2),
        (["fedsdg", "fedavg", "iid"], 4),
        (["digits"], 8),
    ],
)
def test_words_of_a_kind_are_alternatives_and_kinds_restrict(folder, only, count):
    chosen = selected(list(tasks_of(tiny())), only)
    assert len(chosen) == count
    for kind in ({"seed~0", "seed~1"}, {"fedsdg", "fedavg"}, {"iid", "dirichlet~1.0"}):
        for task in chosen:
            names = {*map(str, task.identity.values()), f"seed~{task.identity['seed']}"}
            assert not kind & set(only) or kind & set(only) & names


def test_a_word_that_names_nothing_is_an_error(folder):
    with pytest.raises(
        ValueError, match="--only: the grid has nothing called 'fedsgd'.*mean 'fedsdg'"
    ):
        selected(list(tasks_of(tiny())), ["fedsgd"])


# --- One real grid --------------------------------------------------------------------------------


def test_a_grid_and_the_same_grid_again(folder, forked, capsys):
    config = tiny()
    assert run_grid(config, jobs=2) == []
    log = capsys.readouterr().err
    assert "[8/8]" in log and "accuracy=" in log and "round 4/4" in log and " left" in log
    for task in tasks_of(config):
        assert changed_file(task.folder) is None
        result = read_json(task.folder / "result.json")
        assert {**result, **task.identity, "status": "ok"} == result
    before = records(folder)
    assert run_grid(config) == []
    assert records(folder) == before
    assert "8 runs, 8 of them finished before" in capsys.readouterr().err
    # Alone or side by side, each run has the same bytes.
    for stored in store_folder("runs").iterdir():
        for name in RECORDS:
            (stored / name).unlink()
    victim = next(tasks_of(config)).folder
    (victim / "result.json").write_text("{}")
    assert run_grid(config) == []
    same = ("rounds.parquet", "clients.parquet", "result.json")
    after = records(folder)
    assert {k: v[0] for k, v in after.items() if k.endswith(same)} == {
        k: v[0] for k, v in before.items() if k.endswith(same)
    }
    assert {k for k in after if after[k] != before[k]} <= {
        str(folder / f) for f in victim.iterdir()
    }


def test_a_failed_run_is_a_line_and_the_others_are_done(folder, forked):
    methods = "methods=[{type: fedavg, name: wild, eta_g: 1.0e+30, optimiser: sgd}, fedavg]"
    config = tiny(methods, "skews=[iid]", "seeds=[0]", "training.clip_norm=1.0e+30")
    [line] = run_grid(config)
    assert "wild" in line and "FloatingPointError" in line
    statuses = {t.identity["label"]: read_json(t.folder / "result.json") for t in tasks_of(config)}
    assert statuses["wild"]["status"] == "failed" and statuses["fedavg"]["status"] == "ok"
    assert line.endswith(statuses["wild"]["error"])


def test_runs_of_another_config_and_half_copies_are_no_runs_of_a_summary(folder, forked, capsys):
    settings = ["skews=[iid]", "seeds=[0]", "methods=[fedavg, fedsdg, fedprox]"]
    assert run_grid(tiny(*settings)) == []
    config = tiny(*settings, "federation.rounds=2")
    assert run_grid(config, only=["fedavg", "fedprox"]) == []
    runs, summary = Path("results/runs/tiny"), Path("results/summary/tiny")
    fedavg, fedsdg, _ = (task.run.folder for task in tasks_of(config))
    (runs / fedavg / HASHES).unlink()
    write_summary(runs, summary, config)
    assert failed_runs(summary) == dict.fromkeys([fedavg, fedsdg], NOT_RUN)
    sentence = f"not counted: 2 runs of another config or version, such as {fedavg}\n"
    assert sentence in capsys.readouterr().err
    config = tiny(*settings, "federation.rounds=2", "backbones.tiny.epochs=2")
    assert run_grid(config, only=["fedavg"]) == []
    write_summary(runs, summary, config)
    assert fedavg not in failed_runs(summary) and len(failed_runs(summary)) == 2


PLUGIN = """
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.federation.conditions.attack import Attack
from fedsdg.methods.method import Method

class Half(Mean):
    "The mean of the updates."

class Zero(Attack, name="zero-update"):
    "Attackers send nothing that counts."

    def tamper(self, view):
        return 0 * view.own

METHODS = {"half": Method("Half", rule=Half())}
"""


def test_workers_know_the_parts_of_a_plugin(folder, forked):
    Path("mine.py").write_text(PLUGIN)
    attack = "conditions.attack={type: zero-update, share: 0.4}"
    config = tiny("plugins=[mine.py]", "methods=[half]", "skews=[iid]", attack)
    assert run_grid(config, jobs=2) == []
    for task in tasks_of(config):
        assert read_json(task.folder / "result.json")["title"] == "Half"


IMAGES = """
from pathlib import Path

import numpy as np

from fedsdg.data.datasets import ImageData


def grey():
    labels = np.arange(240) % 2
    images = np.full((240, 8, 8), int(Path("shade").read_text()), np.uint8)
    images[labels == 1] //= 2
    return ImageData("grey", images, labels, num_classes=2)


DATASETS = {"grey": grey}
"""


def test_images_of_a_plugin_that_changed_are_other_runs(folder, forked, capsys):
    Path("mine.py").write_text(IMAGES)
    config = tiny("plugins=[mine.py]", "datasets=[grey]", "seeds=[0]", "methods=[fedavg]")
    for shade, finished in (("200", 0), ("200", 2), ("100", 0)):
        Path("shade").write_text(shade)
        load_images.cache_clear()
        assert run_grid(config) == []
        assert f"2 runs, {finished} of them finished before" in capsys.readouterr().err


def test_a_killed_worker_is_a_failed_run(folder, forked):
    config = tiny("skews=[iid]", "seeds=[0]")
    task = next(tasks_of(config))
    sentence = record_failure(task, RuntimeError("its process ended by signal 9"), task.facts())
    result = read_json(task.folder / "result.json")
    assert result["status"] == "failed" and result["error"] == sentence
    assert run_grid(config) == []
    assert read_json(task.folder / "result.json")["status"] == "ok"


def test_a_data_set_that_cannot_be_had_ends_the_grid(folder, forked):
    config = tiny("partition.min_samples=5000")
    with pytest.raises(ValueError, match="^1437 samples .*min_samples"):
        run_grid(config)
    assert not Path("results/runs").exists()


def test_no_run_is_started_when_time_is_up(folder, forked, capsys):
    assert run_grid(tiny(), minutes=0.0) == []
    assert "8 runs are left; give the same command" in capsys.readouterr().err
    assert not Path("results/runs").exists()


GRID = """
from fedsdg.config.layers import load
from fedsdg.experiment.grid import run_grid

if __name__ == "__main__":
    run_grid(load(["tiny.yaml"], {settings}), jobs=2)
"""


def workers_of(process: int) -> list[int]:
    """Return the children of a process that are workers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            command = (entry / "cmdline").read_text()
        except OSError:
            continue
        if int(parent) == process and "spawn_main" in command:
            found.append(int(entry.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_grid_goes_on_with_the_same_bytes(folder, made_backbone, forked, number):
    settings = ["skews=[iid]", "federation.rounds=30", "checkpoint_seconds=0"]
    config = tiny(*settings)
    run_grid(config, jobs=2)
    again = folder / "again"
    place_backbone(made_backbone, again)
    (again / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    script = again / "grid.py"
    script.write_text(GRID.format(settings=settings))
    process = python(script, stderr=subprocess.PIPE)
    for line in process.stderr:
        if "round 6/30" in line:
            break
    children = workers_of(process.pid)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert children
    wait_until(lambda: all(ended(child) for child in children))
    os.chdir(again)
    run_grid(tiny(*settings), jobs=2)
    same = ("rounds.parquet", "clients.parquet", "result.json")
    made, undisturbed = (
        {k: v[0] for k, v in records(place).items() if k.endswith(same)}
        for place in (again, folder)
    )
    names = {k.partition("results/")[2]: v for k, v in made.items()}
    assert names == {k.partition("results/")[2]: v for k, v in undisturbed.items()}


BAR = """
from fedsdg.config.layers import load
from fedsdg.experiment.progress import Progress
from fedsdg.experiment.runs import tasks_of

tasks = [*tasks_of(load(["tiny.yaml"]))]
progress = Progress("tiny")
progress.start(tasks, 0)
progress.finish(tasks[0], None)
"""


def test_a_disabled_bar_is_no_fault(folder, monkeypatch):
    tiny()
    script = folder / "bar.py"
    script.write_text(BAR)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    process = python(script, stderr=subprocess.PIPE)
    assert "[1/8]" in process.communicate()[1] and process.returncode == 0


def test_a_grid_that_is_stopped_before_its_first_run_says_so(folder):
    said = "stopped: no run had begun; the same command goes on from there"
    with pytest.raises(Stopped, match=said), runner(tiny(), "tiny", folder, 1, None):
        raise Stopped(signal.SIGTERM)
