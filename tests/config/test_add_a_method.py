"""The files of docs/add-a-method.md and examples/plugins, each run for two rounds."""

import re
from pathlib import Path

import pytest

from fedsdg.config import plugins
from fedsdg.config.layers import load
from fedsdg.experiment.grid import run_here
from fedsdg.experiment.runs import task_of
from fedsdg.files import read_json
from fedsdg.models import CnnArchitecture, SmallCnn

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/add-a-method.md").read_text()
NAME = r"`([a-z]+\.(?:py|yaml))`"
FILES = dict(
    re.findall(rf"{NAME}(?:(?!```|`[a-z]+\.py`).)*?\n```\w+\n(.*?)^```$", PAGE, re.S | re.M)
) | {file.name: file.read_text() for file in ROOT.glob("examples/plugins/*.py")}
SMALL = (
    "experiment=guide",
    "datasets=[digits]",
    "skews=[iid]",
    "seeds=[0]",
    "trainable=full",
    "federation={clients: 5, clients_per_round: 3, rounds: 2, evaluate_every: 1}",
)
CASES = {
    "clipped.py": "methods=[{type: clipped-mean, bound: 0.5}]",
    "momentum.py": "methods=[{type: fedavgm, beta: 0.5}]",
    "pull.py": "methods=[{type: pulled, nu: 0.001}]",
    "biases.py": "methods=[local-biases]",
    "away.py": "conditions={attack: {type: away, share: 0.4, scale: 3}}",
    "largest.py": "tables=[main, largest_update]",
    "server_samples.py": "conditions={benchmark_images: 100}",
    "condition.py": "conditions={others: [{type: night, share: 0.5}]}",
    "optimiser.py": "training={optimiser: {type: sign, share: 0.5}}",
    "loss.py": "training={loss: brier}",
    "data_set.py": "datasets=[checks]",
}
METHODS = {"server_samples.py": "methods=[fltrust]"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files of the page and of the examples."""
    folder = tmp_path_factory.mktemp("guide")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def test_every_file_is_tried():
    assert FILES.keys() == {*CASES, "clipped.yaml"}


@pytest.mark.parametrize("file", CASES)
def test_a_file_runs(file, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    methods = METHODS.get(file, "methods=[fedavg]")
    place = str(folder / file)
    config = load(settings=(*SMALL, methods, CASES[file]), plugins=[place])
    task = task_of(config, next(config.runs()))
    assert run_here(config, task) is None
    result = read_json(task.folder / "result.json")
    assert result["status"] == "ok" and 0 < result["last"]["accuracy"] <= 1
    uses = plugins.hashes(
        task.run.method.type,
        task.run.dataset,
        [task.run.training.optimiser, task.run.training.loss, *task.run.conditions.others]
        + ([task.run.conditions.attack.attack] if task.run.conditions.attack else []),
    )
    assert uses == ([] if file == "largest.py" else [plugins.load(place).sha256])
    if file == "biases.py":
        biases = 16 + 32 + 64 + 10
        assert result["private_parameters"] == biases
        assert result["communicated_parameters"] == 22_154 - biases


def test_the_config_of_the_page_is_one(folder, monkeypatch):
    monkeypatch.chdir(folder)
    labels = [entry.label for entry in load(["smoke", "clipped.yaml"]).methods]
    assert labels == ["fedavg", "clipped-mean", "clipped-half"]


def test_a_pattern_that_no_parameter_has_is_one_sentence():
    with pytest.raises(ValueError, match=r"called '\*.bais'; the model has .*conv1.bias"):
        SmallCnn(CnnArchitecture(8, 1), 10, own=("*.bais",))
