"""Files laid over one another, single values, and the traps of YAML; all without torch."""

import subprocess
import sys

import pytest

from fedsdg.config.layers import kept_whole, load, merged, named_file
from fedsdg.errors import ConfigError
from fedsdg.files.yaml_text import read_yaml


def write(folder, name, text):
    file = folder / name
    file.write_text(text)
    return file


def test_files_lie_over_one_another_each_once(tmp_path):
    write(tmp_path, "low.yaml", "about: low\nseeds: [7]\nfederation: {rounds: 3}\n")
    over = write(tmp_path, "over.yaml", "over: [low.yaml]\nfederation: {clients: 30}\n")
    found = merged([tmp_path / "low.yaml", over])
    assert (found["seeds"], found["federation"]["rounds"]) == ([7], 3)
    assert found["federation"]["clients"] == 30
    assert "about" not in found
    assert "over" not in found


def test_a_file_is_laid_once_however_its_path_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    low = write(tmp_path, "low.yaml", "federation: {rounds: 3}\n")
    write(tmp_path, "quick.yaml", "federation: {rounds: 2}\n")
    write(tmp_path, "mine.yaml", "over: [low.yaml]\n")
    for first in (low, "low.yaml"):
        assert merged([first, "quick.yaml", "mine.yaml"])["federation"]["rounds"] == 2


def test_over_is_followed_to_its_end(tmp_path):
    write(tmp_path, "a.yaml", "seeds: [7]\nfederation: {rounds: 3}\n")
    write(tmp_path, "b.yaml", "over: [a.yaml]\nfederation: {rounds: 4}\n")
    c = write(tmp_path, "c.yaml", "over: [b.yaml, a.yaml]\n")
    found = merged([c])
    assert (found["seeds"], found["federation"]["rounds"]) == ([7], 4)
    a = write(tmp_path, "a.yaml", "over: [c.yaml]\n")
    with pytest.raises(ConfigError, match=r"b\.yaml: over names .*a\.yaml, which is laid over it"):
        merged([a])


def test_a_search_belongs_to_its_file(tmp_path):
    low = write(tmp_path, "low.yaml", "search: {trials: 3, space: {fedavg: {eta_g: [1, 2]}}}\n")
    high = write(tmp_path, "high.yaml", "search: {seeds: [200]}\n")
    assert merged([low])["search"]["trials"] == 3
    assert merged([low, high])["search"] == {"seeds": [200]}


def test_single_values_and_plugins_come_last(tmp_path):
    found = merged(settings=["federation.rounds=3", "training.optimiser={type: sgd}", "seeds=[1]"])
    assert found["federation"]["rounds"] == 3
    assert found["training"]["optimiser"] == {"type": "sgd"}
    assert found["seeds"] == [1]
    assert merged(plugins=["my.py"])["plugins"] == ["my.py"]
    file = write(tmp_path, "with.yaml", "plugins: [their.py, my.py]\n")
    assert merged([file], plugins=["my.py", "new.py"])["plugins"] == ["their.py", "my.py", "new.py"]
    for setting, sentence in (
        ("rounds", "write key=value"),
        ("a..b=1", "write key=value"),
        ("a=[1", "--set a is not valid YAML"),
    ):
        with pytest.raises(ConfigError) as caught:
            merged(settings=[setting])
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_integer_in_a_float_and_null_sections():
    config = load(settings=["conditions=null", "scenarios=null", "training.clip_norm=2"])
    assert config.training.clip_norm == 2.0
    assert config.cases == {"": config}


def test_the_package_s_configs_have_names(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert named_file("smoke").name == "smoke.yaml"
    assert named_file("config/smoke.yaml").is_file()
    assert named_file("needs").name == "needs.yaml"
    with pytest.raises(FileNotFoundError, match="did you mean 'smoke'"):
        named_file("smok")
    missing = write(tmp_path, "a.yaml", "over: [b.yaml]\n")
    with pytest.raises(FileNotFoundError, match=r"b\.yaml, which .*a\.yaml is laid over"):
        merged([missing])
    with pytest.raises(ConfigError, match="must be a list of files"):
        merged([write(tmp_path, "c.yaml", "over: b.yaml\n")])
    with pytest.raises(ConfigError, match="must be a mapping"):
        merged([write(tmp_path, "d.yaml", "- 1\n")])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3", "'a' stands in line 1 and again in line 3"),
        ("{a: 1, a: 2}", "'a' stands in line 1 and again in line 1"),
        ("a: 1:30", "line 1: YAML reads 1:30 as a number of another base"),
        ("a: 010", "line 1: YAML reads 010 as a number of another base"),
        ("a: [1", "is not valid YAML"),
        ("a: 2024-02-31", "is not valid YAML"),
        ("[" * 5000, "is not valid YAML"),
    ],
)
def test_what_yaml_would_change_in_silence_is_refused(text, sentence):
    with pytest.raises(ConfigError) as caught:
        read_yaml(text, "file")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yaml_that_is_well(tmp_path):
    text = "a: &a {x: 1}\nb: {<<: *a, y: 0.5}\nc: '1:30'\nd: -1e-4\ne: 1.0e-4\nf: 0"
    assert read_yaml(text, "") == {
        "a": {"x": 1},
        "b": {"x": 1, "y": 0.5},
        "c": "1:30",
        "d": -1e-4,
        "e": 1e-4,
        "f": 0,
    }


def test_a_config_that_is_kept_whole_reads_back(tmp_path):
    found = merged(["smoke"]) | {"about": "1e-3", "checkpoint_seconds": 1e-5}
    file = kept_whole(found, tmp_path)
    assert file == kept_whole(found, tmp_path)
    assert merged([file]) == found
    assert [run.folder for run in load([file]).runs()] == [
        run.folder for run in load(["smoke"]).runs()
    ]


def test_a_config_is_read_without_torch():
    code = "import sys; from fedsdg.config.layers import load; list(load(['needs']).runs())"
    code += "; sys.exit(any(name in sys.modules for name in ('torch', 'numba', 'scipy', 'pandas')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
