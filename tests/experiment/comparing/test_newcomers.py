"""What somebody brings to a comparison, as files and config."""

import pytest

from fedsdg.experiment.comparing.newcomers import read_newcomers, settle

PLUGIN = """
from scores import BOUND
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.methods.method import Method

METHODS = {"mine": Method("Mine", rule=Mean()), "mine-too": Method("Mine too", rule=Mean())}
"""


@pytest.fixture
def plugin(tmp_path):
    (tmp_path / "scores.py").write_text("BOUND = 1\n")
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    return file


def test_a_plugin_brings_all_its_methods(plugin):
    found = read_newcomers([str(plugin)])
    assert found.labels == ("mine", "mine-too") and found.plugins == (str(plugin),)


def test_a_config_file_brings_entries_and_their_space(plugin, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"plugins: [{plugin}]\nmethods: [{{type: mine, name: fast, eta_g: 0.01}}]\n"
        "search: {space: {fast: {eta_g: [0.001, 0.1, log]}}}\n"
    )
    found = read_newcomers([str(file)])
    assert found.labels == ("fast",) and found.space == {"fast": {"eta_g": [0.001, 0.1, "log"]}}
    assert found.of("fast", {"eta_g": 0.02}).entries == (
        {"type": "mine", "name": "fast", "eta_g": 0.02},
    )


def test_what_runs_is_a_copy_with_the_modules_beside_it(plugin, tmp_path):
    folder = tmp_path / "kept"
    settled = settle(read_newcomers([str(plugin)]), folder)
    assert settled.plugins == ("mine.py",)
    assert sorted(file.name for file in folder.iterdir()) == ["mine.py", "scores.py"]
    assert (folder / "mine.py").read_bytes() == plugin.read_bytes()


def test_two_files_of_one_name_are_refused(plugin, tmp_path):
    other = tmp_path / "other" / "mine.py"
    other.parent.mkdir()
    other.write_text(PLUGIN.replace("from scores import BOUND\n", "").replace('"mine', '"his'))
    with pytest.raises(ValueError, match=r"two files called mine\.py, .*; rename one"):
        settle(read_newcomers([str(plugin), str(other)]), tmp_path / "kept")
    other = other.rename(other.with_name("Mine.py"))
    with pytest.raises(ValueError, match=r"two files called Mine\.py, .*; rename one"):
        settle(read_newcomers([str(plugin), str(other)]), tmp_path / "kept")


def test_two_modules_of_one_name_beside_plugins_are_refused(plugin, tmp_path):
    """Else one plugin would run with the other's scores."""
    other = tmp_path / "other" / "his.py"
    other.parent.mkdir()
    other.write_text(PLUGIN.replace('"mine', '"his'))
    (other.parent / "scores.py").write_text("BOUND = 2\n")
    with pytest.raises(ValueError, match=r"two files called scores\.py, .*; rename one"):
        settle(read_newcomers([str(plugin), str(other)]), tmp_path / "kept")


def test_two_plugins_may_share_a_module(plugin, tmp_path):
    other = tmp_path / "his.py"
    other.write_text(PLUGIN.replace('"mine', '"his'))
    settled = settle(read_newcomers([str(plugin), str(other)]), tmp_path / "kept")
    assert settled.plugins == ("mine.py", "his.py")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("none.py", None, "there is no file .*none.py; name the file that defines METHODS"),
        ("none.yaml", None, "there is no config file .*none.yaml"),
        ("data.py", "DATASETS = {'x': lambda: None}\n", "defines no METHODS, so .* nothing to"),
        ("broken.py", "import nothing_of_this_name\n", "nothing_of_this_name"),
        ("a.yaml", "federation: {rounds: 3}\n", "'federation' is the arena's to say"),
        ("b.yaml", "plugins: []\n", "no entry of 'methods'"),
        ("c.yaml", "methods: [\n", "is not valid YAML"),
    ],
)
def test_what_brings_nothing_is_one_sentence(tmp_path, name, text, sentence):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=sentence) as caught:
        read_newcomers([str(tmp_path / name)])
    assert "\n" not in str(caught.value)
