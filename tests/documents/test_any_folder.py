"""Every command in any folder: the default config comes from the package, the rest is named."""

from pathlib import Path

import pytest
import yaml

from fedsdg.cli import main
from fedsdg.experiment import config_files
from fedsdg.experiment.config import PATIENCE, parse_config
from fedsdg.experiment.config_files import kept_whole, load_config, merged_config
from fedsdg.files import read_json

ROOT = Path(__file__).parents[2]
#: No backbone to be made first, and one round of little work.
BRIEF = ["trainable=full", "methods=[fedavg]", "federation.rounds=1"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, and nothing in the environment that would lead elsewhere."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    for variable in ("FEDSDG_CONFIG", "FEDSDG_STORE"):
        monkeypatch.delenv(variable, raising=False)
    return empty


def test_a_method_and_a_skew_that_are_in_no_config_run(folder, capsys):
    command = ["run", "--method", "ditto", "--skew", "dirichlet~0.05", "--seed", "7"]
    assert main([*command, "--set", *BRIEF]) == 0
    said = capsys.readouterr().err
    assert (
        "ditto is not in the config: it runs with its defaults (weights=samples, strength=0.1"
        in said
    )
    (result,) = (folder / "results").rglob("result.json")
    found = read_json(result)
    assert found["status"] == "ok"
    assert (found["label"], found["skew"], found["seed"]) == ("ditto", "dirichlet~0.05", 7)
    assert result.parent == folder / (
        "results/runs/label-skew/digits/clients~20/dirichlet~0.05/ditto/seed~7"
    )


def test_a_config_from_elsewhere_is_laid_over_the_default(folder, capsys):
    mine = folder.parent / "mine.yaml"
    mine.write_text("experiment: mine\nmethods: [{type: fedavg, eta_g: 0.5}]\nseeds: [3]\n")
    assert main(["check", "--config", str(mine), "--set", "skews=[iid]"]) == 0
    assert "mine: 1 methods x 1 data sets x 1 skews x 1 seeds = 1 runs" in capsys.readouterr().out
    config, default = load_config([mine]), load_config()
    assert config.backbones == default.backbones and config.federation == default.federation
    command = ["run", "--config", str(mine), "--method", "fedavg", "--skew", "dirichlet~1.0"]
    assert main([*command, "--set", *BRIEF]) == 0
    assert [found.parent.name for found in (folder / "results").rglob("result.json")] == ["seed~3"]


def test_a_config_that_the_environment_names_takes_the_place_of_the_default(folder, monkeypatch):
    raw = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    (folder / "base.yaml").write_text(yaml.safe_dump(raw | {"experiment": "base", "seeds": [5]}))
    (folder / "over.yaml").write_text("experiment: over\n")
    monkeypatch.setenv("FEDSDG_CONFIG", "base.yaml")
    config = load_config(["over.yaml"])
    assert (config.experiment, config.seeds) == ("over", (5,))


def test_what_a_run_adds_to_the_grid_leaves_its_other_runs_as_they_were():
    config = load_config()
    assert config.including("fedavg", "digits", "dirichlet~0.1") is config
    wider = config.including("ditto", "mnist", "quantity~0.5")
    assert wider.methods[:-1] == config.methods and wider.methods[-1].label == "ditto"
    assert wider.datasets == ("digits", "mnist") and wider.skews[-1] == "quantity~0.5"
    assert wider.partition.retries == PATIENCE
    only = config.including("ditto", None, None)
    one, other = (c.run("digits", "dirichlet~0.1", config.methods[0], 0) for c in (config, only))
    assert one.hash == other.hash


def test_under_scenarios_a_skew_names_one_of_them():
    config = load_config((), ["scenarios={calm: {}, slow: {conditions: {compute: {}}}}"])
    assert config.including(None, None, "iid@slow").settings[-1] == "iid@slow"
    with pytest.raises(ValueError, match="must be one of iid@calm, iid@slow"):
        config.including(None, None, "iid")


def test_a_config_of_the_package_goes_by_its_name_unless_there_is_a_file(folder):
    assert load_config(["cross-needs"]) == load_config([ROOT / "config/cross-needs.yaml"])
    assert load_config(["extended/drift"]).experiment == "drift"
    (folder / "cross-needs").write_text("experiment: mine\n")
    assert load_config(["cross-needs"]).experiment == "mine"
    with pytest.raises(
        FileNotFoundError, match=r"config/cros-views.yaml; .* did you mean 'cross-views'"
    ):
        load_config(["config/cros-views.yaml"])


def test_a_path_of_a_checkout_falls_back_to_the_config_of_the_package(folder, capsys):
    config_files._mention_fallback.cache_clear()
    assert load_config(["config/cross-needs.yaml"]) == load_config(["cross-needs"])
    assert load_config(["config/extended/drift.yaml"]) == load_config(["extended/drift"])
    load_config(["config/cross-needs.yaml"])
    assert capsys.readouterr().err == (
        "fedsdg: there is no config/cross-needs.yaml here; the package's own "
        "'cross-needs' is used\n"
        "fedsdg: there is no config/extended/drift.yaml here; the package's own "
        "'extended/drift' is used\n"
    )
    (folder / "config").mkdir()
    (folder / "config/cross-needs.yaml").write_text("experiment: mine\n")
    assert load_config(["config/cross-needs.yaml"]).experiment == "mine"
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["run --config", "run --grid", "run --grid --method x --config"]
)
def test_a_missing_config_is_named_first_with_the_closest_name(folder, capsys, command):
    (folder / "photos.yaml").touch()
    for name, meant in (
        ("photo.yaml", "photos.yaml"),
        ("config/cros-views.yaml", "cross-views"),
        ("config/extended/drft.yaml", "extended/drift"),
    ):
        assert main([*command.split(), name]) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert error.startswith(f"fedsdg: error: there is no config file {name};")
        assert error.endswith(f"did you mean {meant!r}?")
    assert main([*command.split(), "nothere.yaml"]) == 2
    assert "there is no config file nothere.yaml;" in capsys.readouterr().err


def test_a_config_is_kept_whole_under_a_name_of_its_own(folder):
    merged = merged_config(["smoke"], ["seeds=[7]"])
    kept = kept_whole(merged)
    assert kept.is_absolute() and kept.parent == folder / ".fedsdg/config"
    assert kept.name.startswith("smoke-") and kept == kept_whole(dict(reversed(merged.items())))
    assert kept_whole(merged_config(["smoke"])) != kept
    assert yaml.safe_load(kept.read_text()) == merged
    assert parse_config(merged) == load_config(["smoke"], ["seeds=[7]"])
