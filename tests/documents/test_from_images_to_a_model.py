"""docs/from-images-to-a-model.md, followed to the letter with photographs that are drawn here.

By the wheel, in an empty folder; what comes of it is looked at in this process.
"""

import contextlib
import io
import json
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from fedsdg.cli import main
from fedsdg.data.datasets import global_test_set
from fedsdg.data.partition_files import read_partition
from fedsdg.data.rows import read_rows
from fedsdg.experiment.building import build
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.exports.saved_models import ModelSaver
from fedsdg.experiment.loading import load_images
from fedsdg.experiment.material import prepare_material
from fedsdg.experiment.starts import find_start
from fedsdg.federation import rounds
from fedsdg.models import block_views, declare_torchvision_operators, load_backbone
from fedsdg.rng import stream
from tests.documents import pages
from tests.own_images import PHOTO_CLASSES, stamped, write_image, write_photographs

declare_torchvision_operators()
import peft  # noqa: E402, F401
import timm  # noqa: E402, F401

PAGE = "docs/from-images-to-a-model.md"
FILES = ["photos.yaml"]
RUN = "results/runs/photos/photos/clients~8/dirichlet~1.0/fedsdg/seed~0"


def follow(line):
    """What a further command prints, in this process."""
    program, *arguments = shlex.split(line)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert program == "fedsdg" and main(arguments) == 0, line
    return said.getvalue()


@pytest.fixture(scope="module")
def followed(installed, tmp_path_factory):
    """The folder in which the page was followed from the wheel, and what its commands printed."""
    folder = tmp_path_factory.mktemp("followed")
    write_photographs(folder / "photos")
    for file in sorted((folder / "photos").glob("horse/*.jpg")):
        Image.open(file).save(file.with_suffix(".png"))
        file.unlink()
    done = installed.python(pages.__file__, PAGE, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    _, *printed = re.split(r"^\$ .*\n", done.stdout, flags=re.MULTILINE)
    assert len(printed) == 6
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("FEDSDG_CONFIG", "FEDSDG_STORE", "FEDSDG_DATA"):
            patch.delenv(variable, raising=False)
        patch.chdir(folder)
        yield SimpleNamespace(folder=folder, printed=printed)


@pytest.fixture(scope="module")
def known(followed):
    """The files of all samples, the names of their classes, and which of them are for testing."""
    source = load_config(FILES).source("photos")
    rows = read_rows(source)
    test = global_test_set(rows.columns["label"].codes, rows.test, stream("test-split", 0))
    order = [*np.setdiff1d(np.arange(len(rows.where)), test), *test]
    files = [rows.where[row] for row in order]
    return SimpleNamespace(files=files, names=[Path(file).parent.name for file in files])


def division():
    return read_partition("results/partitions/photos/clients~8/dirichlet~1.0/seed~0.parquet")


@pytest.mark.slow
def test_plain_peft_gives_the_scores_of_the_run(followed, known):
    """The run is done again, and its federation asked what client 0 makes of every photograph."""
    config = load_config(FILES)
    run = config.run("photos", "dirichlet~1.0", config.method("fedsdg"), 0)
    partition = division()
    backbone = load_backbone("results/backbones/small.safetensors")
    material = prepare_material(load_images(config.source("photos")), backbone, "cpu")
    torch.set_num_threads(1)
    setup = build(run, material, partition)
    for _ in rounds.run(setup, *setup.initial()):
        pass
    state = next(one.state for one in setup.observers if isinstance(one, ModelSaver))
    assert state["uses_private"][0]
    row = state["models"][state["which"][0]]
    named = block_views(row[None], setup.layout.communicated)
    named |= block_views(state["private"][:1], setup.layout.private)
    images = material.samples.images
    with torch.no_grad():
        expected = setup.model.logits(images, [len(images)], named)
        shared = setup.model.logits(images, [len(images)], named, private=False)
    files = [Path(file) for file in known.files]
    order = sorted(range(len(files)), key=files.__getitem__)
    found = torch.from_numpy(np.load("scores.npy"))
    assert len(found) == 280
    torch.testing.assert_close(found, expected[order], rtol=0, atol=1e-4)
    assert (shared - expected).abs().max() > 0.01, "the private branch matters"


@pytest.mark.slow
def test_predictions_are_printed_and_measured(followed, known):
    predicted = [line.rsplit(" ", 1) for line in followed.printed[3].splitlines()]
    assert {name for _, name in predicted} <= set(PHOTO_CLASSES) and len(predicted) == 280
    named = dict(predicted)
    # The classes of the test images weigh as client 0 holds them.
    held = [
        name for name, client in zip(known.names, division().client, strict=True) if client == 0
    ]
    expected = 0.0
    last = list(zip(known.files, known.names, strict=True))[-56:]
    for kind in set(held):
        tests = [file for file, name in last if name == kind]
        right = np.mean([named[file] == kind for file in tests])
        expected += held.count(kind) / len(held) * right
    assert followed.printed[4].startswith(f"photos: accuracy {expected:.4f}, loss ")
    assert "(its test set, as the client sees it)" in followed.printed[4]
    # Without a name it is all data sets of the config.
    assert (
        follow(f"fedsdg evaluate {RUN}/models/client~0 --config {shlex.join(FILES)}")
        == (followed.printed[4])
    )


@pytest.mark.slow
def test_every_place_that_prints_an_accuracy_says_that_the_page_ends_at_chance(followed):
    """At most 12 of 56 right answers: 13 or more are luck in less than one of twenty draws."""
    run, evaluation = followed.printed[1], followed.printed[4]
    (shared,) = re.findall(r"^global_accuracy +(0\.\d+)  at chance \(1/7\)$", run, re.MULTILINE)
    assert float(shared) <= 12 / 56
    assert re.search(r"; at chance \(.*\)\n$", evaluation)
    for name in ("client~0", "global"):
        card = Path(RUN, f"models/{name}/README.md").read_text()
        assert f"on the global test set | {shared}, at chance (1/7) |" in card
        assert '"At chance" means' in card
    (found,) = json.loads(
        follow(f"fedsdg evaluate {RUN}/models/global --config photos.yaml --json")
    )
    assert found["chance"] == "at chance (1/7)"


@pytest.mark.slow
def test_training_has_gone_on_from_the_shared_model(followed):
    result = json.loads(Path("results/again/result.json").read_text())
    start = find_start(f"{RUN}/models/global")
    assert result["status"] == "ok" and result["config"]["adapters"]["start"] == start.sha256
    card = Path(RUN, "models/client~0/README.md").read_text()
    assert "crop`, with Pillow's bilinear filter" in card and "16 x 16" in card


def refused(capsys, *arguments):
    capsys.readouterr()
    assert main([*map(str, arguments)]) == 2
    said = capsys.readouterr().err
    error = said.strip().splitlines()[-1]
    assert error.startswith("fedsdg: error: ") and "Traceback" not in said
    return error


@pytest.mark.slow
def test_data_that_a_model_cannot_be_measured_on_are_one_sentence(followed, capsys):
    described = []
    for name, classes in (("few", PHOTO_CLASSES[:5]), ("others", ("cat", *PHOTO_CLASSES[1:]))):
        for number, kind in enumerate(classes):
            for image in range(2):
                pixels = stamped(2 * number + image, 16, colour=True)
                write_image(Path(name, kind, f"{image}.png"), pixels)
        described.append({"name": name, "folder": name})
    described.append({"name": "spoilt", "folder": "spoilt"})
    shutil.copytree("others", "spoilt")
    Path("spoilt/cat/1.png").write_bytes(b"none")
    described.append({"name": "gone", "folder": "nowhere"})
    Path("more.yaml").write_text(yaml.safe_dump({"datasets": described}))
    asked = ["evaluate", f"{RUN}/models/client~0", "--config", *FILES, "more.yaml", "--data"]
    for name, words in (
        ("few", "tells 7 classes apart, but few has 5"),
        ("others", "class 0 of the model in .* is 'dog', but of others 'cat'"),
        ("spoilt", "spoilt/cat/1.png: the image cannot be used"),
        ("gone", "there is no 'nowhere'"),
        ("other", "unknown data set 'other'; did you mean 'others'"),
    ):
        assert re.search(words, refused(capsys, *asked, name))
    assert "with --data" in refused(capsys, "evaluate", f"{RUN}/models/client~0")


@pytest.mark.slow
def test_a_start_for_another_backbone_is_refused_before_anything_is_trained(followed, capsys):
    other = yaml.safe_load(Path("photos.yaml").read_text())["backbones"]["small"] | {"seed": 1}
    Path("other.yaml").write_text(
        yaml.safe_dump({"backbone": "other", "backbones": {"other": other | {"images": 40}}})
    )
    start = f"adapters.start={RUN}/models/global"
    asked = ["run", "--config", *FILES, "other.yaml", "--method", "fedavg", "--output", "unmade"]
    error = refused(capsys, *asked, "--set", start)
    assert "was made for the backbone small" in error and "but this is other" in error
    assert not Path("unmade").exists()
    found = f"adapters.start={RUN}"
    assert "holds no peft checkpoint" in refused(capsys, *asked, "--set", found)
