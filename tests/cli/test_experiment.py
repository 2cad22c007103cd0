"""From a run to a record, a trace and an exported model, by the commands."""

import json
import shutil
import signal
from pathlib import Path

import pandas as pd
import pytest

from fedsdg.cli import main
from fedsdg.cli.running import _reached
from fedsdg.config.layers import load
from fedsdg.data.partition_files import read_partition
from fedsdg.experiment.runs import task_of
from fedsdg.experiment.summary import closing_lines
from tests.analysis.conftest import write_frame

RUN = Path("results/runs/tiny/digits/clients~6/iid/fedavg/seed~0")


def test_a_run_ends_with_the_accuracies_that_it_reached(here, said):
    lines = said("run", "--config", "tiny.yaml", "--method", "fedavg").splitlines()
    last = json.loads((RUN / "result.json").read_text())["last"]
    shown = dict(line.split()[:2] for line in lines if line.startswith("accuracy"))
    assert shown == {
        "accuracy": f"{last['accuracy']:.4f}",
        "accuracy_own_test": f"{last['accuracy_own_test']:.4f}",
        "accuracy_shared": f"{last['accuracy_shared']:.4f}",
    }
    assert lines[0].startswith("after round 4")
    assert f"records: {RUN}" in lines
    assert lines[-1].endswith("fedsdg grid --config tiny.yaml")


def test_at_chance_is_said_of_the_images_that_were_classified(here):
    """A fifth of 10 right may be luck; of the whole test set it would be more."""
    config = load(["tiny.yaml"], ["federation.global_images=10"])
    result = json.loads((RUN / "result.json").read_text())
    result["last"]["accuracy_shared"] = 0.2
    Path("few").mkdir()
    Path("few/result.json").write_text(json.dumps(result))
    for one, lucky in ((config, True), (load(["tiny.yaml"]), False)):
        shown = "".join(_reached(Path("few"), task_of(one, next(one.runs()))))
        assert ("0.2000  at chance" in shown) is lucky


def test_a_method_beyond_the_config_runs_with_its_defaults(here, capsys):
    words = ["run", "--config", "tiny.yaml", "--method", "local-only", "--output", "local"]
    assert main([*words, "--set", "federation.rounds=2"]) == 0
    printed = capsys.readouterr()
    assert "local-only is not in the config" in printed.err
    assert "accuracy_shared" not in printed.out, "there is no shared model"


def test_a_grid_ends_with_accuracies_and_paths_that_exist(here, said, monkeypatch):
    old = Path("results/figures/tiny/groups.png")
    old.write_bytes(b"of a config that showed it")
    title, names, *lines = said("grid", "tiny.yaml", "--only", "fedavg", "seed~0").splitlines()
    assert not old.exists()
    assert names.split() == ["experiment", "cell", "method", "here"] and "record" not in title
    assert [line.split()[-2] for line in lines[:2]] == ["fedsdg", "fedavg"]
    assert all(Path(line.split()[-1]).exists() for line in lines[2:]) and len(lines) == 5
    said("record", "tiny")
    monkeypatch.setattr("fedsdg.experiment.summary.root", Path)
    title, table, *_ = closing_lines(["tiny"])
    assert title.endswith("; of the record over the same seeds:")
    for line in table.splitlines()[1:]:
        *_, own, published = line.split()
        assert own == published
    # With a seed that the record lacks, both are of the others.
    runs = pd.read_parquet("results/summary/tiny/runs.parquet")
    others = runs.assign(seed=1, selected_accuracy=0.0)
    summary = Path("results/summary/more")
    shutil.copytree("results/summary/tiny", summary)
    write_frame(summary / "runs.parquet", pd.concat([runs, others]))
    shutil.copytree("results/reference/tiny", "results/reference/more")
    assert [*closing_lines(["more"])][1] == table
    for place in (summary, "results/reference/more"):
        shutil.rmtree(place)
    Path("results/reference/tiny/runs.parquet").unlink()  # As where a search alone has been made.
    _, table, *_ = closing_lines(["tiny"])
    assert table.split()[:4] == ["experiment", "cell", "method", "here"]
    assert "record" not in table


def test_failed_runs_of_a_grid_are_an_error_unless_runs_alone_are_wanted(here, capsys):
    row = "{type: fedavg, optimiser: sgd, eta_g: 1.0e+38}"
    settings = ["experiment=bad", "training.clip_norm=1.0e+30", "training.kernel=torch"]
    words = ["grid", "tiny.yaml", "--set", *settings, f"methods=[{row}, local-only]"]
    assert main([*words, "--runs-only"]) == 0
    assert "failed: digits iid fedavg seed 0" in capsys.readouterr().err
    assert main(words) == 1
    printed = capsys.readouterr()
    assert "1 run(s) failed" in printed.err and "local-only" in printed.out
    assert main([*words[:-1], f"methods=[{row}]"]) == 1  # Without a run there is no page.
    assert capsys.readouterr().err.splitlines()[-1].startswith("fedsdg: error: 1 run(s) failed")
    words = ["summarise", "--succeeded", "results/summary/bad", "--output", "flag"]
    assert main(words) == 1
    assert "fedavg/seed~0: FloatingPointError" in capsys.readouterr().err
    assert not Path("flag").exists()


def test_a_grid_without_a_finished_run_is_no_error(here, said, capsys):
    assert said("grid", "tiny.yaml", "--set", "experiment=none", "--minutes", 0) == ""


def test_a_search_is_shown_without_running_anything(here, said):
    found = said("search", "--config", "tiny.yaml", "--jobs", "1")
    assert found.startswith("fedavg: eta_g = ")
    assert said("search", "--config", "tiny.yaml", "--show") == found


def test_what_is_shown_must_have_been_searched(here, refused):
    assert "there is no none.json; search first, without --show" in refused(
        "search", "--config", "tiny.yaml", "--show", "--output", "none.json"
    )


def test_runs_are_found_from_within_their_folder(here, said, monkeypatch):
    config = here / "tiny.yaml"
    monkeypatch.chdir(here / "results/runs")
    said("summarise", "--config", config, "--runs", "tiny", "--output", here / "within")
    assert len(pd.read_parquet(here / "within/runs.parquet")) == 2
    assert [*(here / "within/partitions").rglob("*.parquet")]


def test_runs_become_a_summary_a_record_tables_and_a_trace(here, said, told):
    said("summarise", "--config", "tiny.yaml", "--runs", "results/runs/tiny", "--output", "mine")
    assert len(pd.read_parquet("mine/runs.parquet")) == 2
    assert said("summarise", "--succeeded", "mine", "--output", "flag") == ""
    assert Path("flag").is_file()
    words = ["--summary", "results/summary/tiny", "--output", "shown"]
    files = said("render", "main", "partition", *words).split()
    assert {"shown/main.md", "shown/figures/partition.svg"} <= set(files)
    place = ["--records", "results/summary", "--experiments", "tiny", "--output", "page.html"]
    for _ in range(2):  # A page takes the place of an earlier one.
        said("render", "page", *place)
    assert Path("page.html").stat().st_size > 10_000
    shutil.rmtree("results/reference", ignore_errors=True)
    assert said("record", "tiny") == "results/reference/tiny\n"
    traced = told("trace", "tiny/iid/fedavg", "accuracy")
    (run,) = traced["runs"]
    assert run["run"] == str(RUN) and run["value"] == pytest.approx(traced["seeds"]["0"])
    assert run["address"] == json.loads((RUN / "result.json").read_text())["address"]
    by_line = said("trace", "results/reference/tiny/main.csv:2")
    assert str(RUN) in by_line or str(RUN).replace("fedavg", "fedsdg") in by_line


def test_verify_finds_a_number_that_the_records_do_not_give(here, said, capsys):
    shutil.rmtree("results/reference", ignore_errors=True)
    said("record", "tiny")
    words = ["--summary", "results/reference/tiny", "--figures", "paper_figures/tiny"]
    said("render", "partition", *words)
    assert main(["verify"]) == 0
    table = Path("results/reference/tiny/main.md")
    table.write_text(table.read_text() + "one more line\n")
    assert main(["verify"]) == 1
    assert "error: results/reference/tiny/main.md" in capsys.readouterr().err


def test_a_kept_model_is_exported_and_evaluated_as_the_run_was(here, said, told):
    names = said("export", "kept").partition(": ")[2].split(", ")
    assert names[0] == "global" and Path("kept/models/global").is_dir()
    (found,) = told("evaluate", "kept/models/global", "--data", "digits")
    last = json.loads(Path("kept/result.json").read_text())["last"]
    assert found["metric"] == "accuracy_shared"
    assert found["accuracy"] == pytest.approx(last["accuracy_shared"], abs=1e-6)
    line = said("evaluate", "kept/models/global", "--config", "tiny.yaml")
    assert line.startswith(f"digits: accuracy_shared {last['accuracy_shared']:.4f}, loss ")


def test_a_partition_and_a_backbone_are_those_of_the_grid(here, said):
    words = ["--config", "tiny.yaml", "--dataset", "digits", "--skew", "iid"]
    line = said("partition", *words, "--seed", 0, 1, "--output", "a.parquet", "b.parquet")
    assert line.startswith("a.parquet: 6 clients with 239 to 240 samples, 1 draw(s)\nb.parquet")
    made = Path("results/partitions/digits/clients~6/iid/seed~0.parquet")
    assert Path("a.parquet").read_bytes() == made.read_bytes() != Path("b.parquet").read_bytes()
    said("partition", *words, "--set", "partition_seed=1", "--output", "c.parquet")
    assert Path("c.parquet").read_bytes() == Path("b.parquet").read_bytes()
    said("partition", *words[:-1], "dirichlet~9.0", "--output", "d.parquet")
    assert read_partition("d.parquet").facts["retries"] == 20_000, "as for a run"
    said("pretrain", "--config", "tiny.yaml", "--output", "weights.safetensors")
    made = Path("results/backbones/tiny.safetensors")
    assert Path("weights.safetensors").read_bytes() == made.read_bytes()


@pytest.mark.slow
def test_the_workflow_plans_an_experiment(here):
    handler = signal.getsignal(signal.SIGTERM)
    assert main(["reproduce", "--config", "tiny.yaml", "--cores", "1", "--", "--dry-run"]) == 0
    assert signal.getsignal(signal.SIGTERM) == handler
