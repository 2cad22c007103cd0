"""docs/own-data.md, followed by the wheel with photographs that are drawn here."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from fedsdg.config.sections import find_start
from fedsdg.data.partition import PartitionSettings, partition_clients
from fedsdg.data.reading import load
from fedsdg.data.skew import parse_skew
from fedsdg.data.sources import Source
from tests.documents import pages
from tests.own_images import PHOTO_CLASSES, write_photographs

PAGE = "docs/own-data.md"
RUN = Path("results/runs/photos/photos/clients~8/dirichlet~1.0/fedsdg/seed~0")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def printed(installed, tmp_path_factory):
    """What the commands of the page printed, in the folder in which they were given."""
    folder = tmp_path_factory.mktemp("followed")
    write_photographs(folder / "photos")
    for file in (folder / "photos").glob("*/*"):
        person = folder / "people" / file.name.partition("-")[0] / file.parent.name
        person.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, person)
    done = installed.python(pages.__file__, PAGE, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("FEDSDG_CONFIG", "FEDSDG_STORE", "FEDSDG_DATA"):
            patch.delenv(variable, raising=False)
        patch.chdir(folder)
        yield re.split(r"^\$ .*\n", done.stdout, flags=re.MULTILINE)[1:]


def test_what_plain_peft_predicts_is_what_evaluate_measures(printed):
    predicted = dict(line.rsplit(" ", 1) for line in printed[3].splitlines())
    assert set(predicted.values()) <= set(PHOTO_CLASSES) and len(predicted) == 280
    rate = re.search(r"^photos: accuracy_shared (0\.\d+), loss ", printed[4])[1]
    scores = np.load("scores.npy")
    assert scores.shape == (280, 7)
    right = []
    for kind in PHOTO_CLASSES:
        files = [file for file in predicted if file.startswith(f"photos/{kind}/")]
        right.append(np.mean([predicted[file] == kind for file in files]))
    # Of all photographs, not of the test images alone: close, and no more.
    assert float(rate) == pytest.approx(np.mean(right), abs=0.15)


def test_the_models_of_the_page_are_above_chance(printed):
    rates = dict(re.findall(r"^(accuracy\w*) +(0\.\d+)  of", printed[1], re.MULTILINE))
    assert float(rates["accuracy"]) > 0.5 and float(rates["accuracy_shared"]) > 0.3
    assert "at chance" not in "".join(printed)


def test_training_has_gone_on_from_the_shared_model(printed):
    result = json.loads(Path("results/again/result.json").read_text())
    start = find_start(str(RUN / "models/global"))
    assert result["status"] == "ok" and result["config"]["adapters"]["start"] == start.sha256


def test_people_are_clients(printed):
    raw = yaml.safe_load(Path("people.yaml").read_text())
    data = load(Source(**raw["datasets"][0]))
    made = partition_clients(data, 4, parse_skew(raw["skews"][0]), 0, PartitionSettings())
    assert made.facts["natural"]["names"] == ["art", "cartoon", "photo", "sketch"]
    assert data.classes == PHOTO_CLASSES and len(data.labels) == 280
    assert "\nclients, from 0 on: art, cartoon, photo, sketch\n" in printed[-1]
