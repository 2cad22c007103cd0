"""From images of one's own to records, by the config alone."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from fedsdg.cli import main
from fedsdg.data.partition_files import read_partition
from fedsdg.data.sources import Source
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.declared_data import remarks
from fedsdg.experiment.loading import load_images
from fedsdg.files import read_json
from tests.own_images import (
    PHOTO_CLASSES,
    write_image,
    write_photographs,
    write_table,
)

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config" / "config.yaml"
TINY = {
    "source": "pretrain",
    "data": "letters",
    "image_size": 8,
    "patch_size": 4,
    "channels": 1,
    "dim": 16,
    "depth": 2,
    "heads": 2,
    "images": 40,
    "held_out": 10,
    "epochs": 1,
    "threads": 1,
}


def raw(**sections):
    given = yaml.safe_load(CONFIG.read_text()) | {"methods": ["fedsdg", "fedavg"]}
    for key, value in sections.items():
        given[key] = given[key] | value if isinstance(given.get(key), dict) else value
    return given


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder to work in, with the default config."""
    monkeypatch.chdir(tmp_path)
    for variable in ("FEDSDG_CONFIG", "FEDSDG_STORE", "FEDSDG_DATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text(CONFIG.read_text())
    return tmp_path


def lay_over(place, **sections):
    file = place / "mine.yaml"
    tiny = {"backbone": "tiny", "backbones": {"tiny": TINY}, "experiment": "mine", "seeds": [0]}
    tiny["methods"] = ["fedsdg", "fedavg"]
    file.write_text(yaml.safe_dump({**tiny, **sections}))
    return file


def writers(folder, each=(30, 30, 30, 30, 4, 3)):
    """Handwriting of six writers, two of whom wrote little: strokes of the label's direction."""
    generator = np.random.default_rng(0)
    images, labels, names = [], [], []
    for number, count in enumerate(each):
        for _ in range(count):
            label = int(generator.integers(0, 3))
            pixels = generator.integers(0, 60, (10, 10)).astype(np.uint8)
            pixels[3 * label : 3 * label + 3] += 150
            images.append(pixels)
            labels.append(("left", "none", "right")[label])
            names.append(f"writer {number}")
    return write_table(folder / "train.parquet", images, label=labels, writer=names)


def test_a_config_may_describe_its_data(place):
    write_photographs(place / "photos", each=1)
    one = {"name": "pacs", "folder": "photos", "train": "a", "test": "b", "size": 32}
    config = parse_config(raw(datasets=["digits", one]))
    assert config.datasets == ("digits", "pacs")
    assert config.source("digits") == "digits"
    assert config.source("pacs") == Source("pacs", "photos", train="a", test="b", size=32)
    # A run names its data; which bytes they are stands in the partition's hash.
    method = config.methods[0]
    assert config.run("pacs", config.skews[0], method, 0).to_dict()["dataset"] == "pacs"
    plain = parse_config(raw())
    skew = plain.skews[0]
    assert config.run("digits", skew, method, 0).hash == plain.run("digits", skew, method, 0).hash


@pytest.mark.parametrize(
    ("datasets", "words"),
    [
        ([{"folder": "x"}], "has no 'name'"),
        ([{"name": "mnist", "folder": "x"}], "'mnist' is a data set of the benchmark"),
        ([{"name": "a", "folder": "x"}, {"name": "a", "folder": "y"}], "names 'a' twice"),
        ([{"name": "a", "folder": "x", "lable": "y"}], "unknown key 'lable'; did you mean 'label'"),
        ([{"name": "a", "folder": "x", "split": "y"}], "unknown key 'split'"),
        ([{"name": "a", "folder": "x", "fit": "cut"}], "a.fit is 'cut', but must be one of"),
        ([{"name": "a"}], "needs 'folder' or 'hub'"),
    ],
)
def test_a_description_that_cannot_be_is_one_sentence(datasets, words):
    with pytest.raises(ValueError, match=words):
        parse_config(raw(datasets=datasets))


def test_all_clients_are_the_values_with_enough_samples(place):
    writers(place / "w")
    mine = {"name": "mine", "folder": "w"}
    whole = {"clients": "all", "clients_per_round": 2}
    config = parse_config(raw(datasets=[mine], skews=["column~writer", "iid"], federation=whole))
    assert config.federation.clients == 4, "by hand: four writers have 12 of their 30 left"
    few = parse_config(
        raw(
            datasets=[mine],
            skews=["column~writer"],
            federation=whole,
            partition={"min_samples": 3, "min_test": 1},
        )
    )
    shared = load_images(few.source("mine"))
    column = shared.columns["writer"]
    counts = np.bincount(column.codes[~shared.test])
    assert few.federation.clients == (counts >= 3).sum()
    for given, words in (
        ({"skews": ["iid"]}, "no skew says which column"),
        ({"skews": ["column~author"]}, "no column 'author'.*'label', 'writer'"),
        ({"datasets": ["digits"]}, "'digits' has no column 'writer'"),
        ({"partition": {"min_samples": 90}}, "no value of 'writer' has 90"),
        ({"skews": ["column~writer", "column~label"]}, "a different number for each"),
    ):
        other = {"datasets": [mine], "skews": ["column~writer"], "federation": whole, **given}
        with pytest.raises(ValueError, match=words):
            parse_config(raw(**other))


def test_check_counts_and_hints(place, capsys):
    writers(place / "w")
    entry = {"name": "mine", "folder": "w", "size": 4}
    file = lay_over(place, datasets=[entry], skews=["column~writer"],
                    federation={"clients": "all", "clients_per_round": 2})  # fmt: skip
    assert main(["check", "--config", str(CONFIG), str(file)]) == 0
    out, err = capsys.readouterr()
    assert "mine: 2 methods x 1 data sets x 1 skews x 1 seeds = 2 runs" in out
    assert "'tiny' has learned from rendered letters" in err and "Photographs" in err
    assert "stored at 4 pixels and enlarged to the 8" in err
    assert not list(remarks({}, "tiny", TINY)), "nothing of data that the benchmark knows"
    large = {"a": Source("a", "b", size=9)}
    assert not list(remarks(large, "tiny", TINY | {"data": "cifar100"}))


def test_commands_say_what_is_ignored_and_what_is_in_both_splits(place, capsys):
    images = [np.full((8, 8), n, dtype=np.uint8) for n in range(40)]
    write_table(place / "w/train.parquet", images, label=[0, 1] * 20)
    write_table(place / "w/test.parquet", [images[7], images[0] + 99], label=[0, 1])
    write_table(place / "w/test_hard.parquet", images[:2], label=[0, 1])
    lay_over(place, datasets=[{"name": "mine", "folder": "w"}], skews=["iid"])
    ignored = "mine: ignored files: 1, such as w/test_hard.parquet"
    assert main(["check", "--config", str(CONFIG), "mine.yaml"]) == 0
    assert f"fedsdg: {ignored}\n" in capsys.readouterr().err
    assert main(["data", "--config", str(CONFIG), "mine.yaml"]) == 0
    assert ignored.removeprefix("mine: ") in capsys.readouterr().out
    command = ["partition", "--config", str(CONFIG), "mine.yaml", "--dataset", "mine", "--skew",
               "iid", "--seed", "0", "--clients", "2", "--output", "p.parquet"]  # fmt: skip
    assert main(command) == 0
    out = capsys.readouterr().out
    copies = "1 of 2, such as w/test.parquet, row 0, which is w/train.parquet, row 7"
    assert f"{ignored}\nmine: test images that are training images too: {copies}\n" in out


def spoil(place):
    (place / "photos/dog/art-0.jpg").write_bytes(b"none")


def move(place):
    (place / "photos").rename(place / "elsewhere")


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (spoil, "dog/art-0.jpg: the image"),
        (move, "there is no 'photos'"),
    ],
)
def test_bad_data_are_one_sentence_before_anything_is_made(place, capsys, break_it, words):
    write_photographs(place / "photos", each=2)
    lay_over(place, datasets=[{"name": "photos", "folder": "photos"}], skews=["iid"],
             federation={"clients": 2, "clients_per_round": 2, "rounds": 1})  # fmt: skip
    break_it(place)
    assert main(["run", "--config", str(CONFIG), "mine.yaml", "--method", "fedavg"]) == 2
    err = capsys.readouterr().err
    assert words in err and len([line for line in err.splitlines() if "error" in line]) == 1
    assert not (place / "results").exists() and not (place / ".fedsdg").exists()


@pytest.mark.slow
def test_photographs_are_trained_on_at_the_first_try(place, capsys):
    write_photographs(place / "photos", each=10)
    entry = {"name": "photos", "folder": "photos"}
    file = lay_over(place, datasets=[entry], skews=["dirichlet~1.0"],
                    federation={"clients": 8, "clients_per_round": 4, "rounds": 2})  # fmt: skip
    command = ["run", "--config", str(CONFIG), str(file), "--method", "fedsdg"]
    assert main(command) == 0
    assert "for photographs take one" in capsys.readouterr().err
    folder = place / "results/runs/mine/photos/clients~8/dirichlet~1.0/fedsdg/seed~0"
    result = read_json(folder / "result.json")
    assert result["status"] == "ok" and 0 <= result["last"]["global_accuracy"] <= 1
    data = read_json(folder / "provenance.json")["data"]
    assert data["classes"] == list(PHOTO_CLASSES) and data["size"] == 64
    assert data["images"] == 280 and data["leaked"] == data["transparent"] == 0
    made = read_partition(
        place / "results/partitions/photos/clients~8/dirichlet~1.0/seed~0.parquet"
    )
    assert made.facts["classes"] == list(PHOTO_CLASSES) and len(made.global_test()) == 56
    # Another image, another partition and another run: what is kept is never of other data.
    write_image(place / "photos/dog/art-0.jpg", np.zeros((30, 30, 3), dtype=np.uint8))
    assert main(command) == 0
    after = read_json(folder / "result.json")
    assert after["partition_hash"] != result["partition_hash"]
    assert after["config_hash"] == result["config_hash"]


@pytest.mark.slow
def test_natural_clients_go_through_a_grid(place, forked):
    writers(place / "w")
    lay_over(place, datasets=[{"name": "mine", "folder": "w"}],
             skews=["column~writer"], methods=["fedsdg", "fedavg"], tables=["main"],
             figures=["partition"], federation={"clients": "all", "clients_per_round": 2,
                                                "rounds": 2})  # fmt: skip
    assert main(["run", "--grid", "mine.yaml"]) == 0
    cell = place / "results/runs/mine/mine/clients~4/column~writer"
    for method in ("fedsdg", "fedavg"):
        assert read_json(cell / method / "seed~0/result.json")["status"] == "ok"
        clients = pq.read_table(cell / method / "seed~0/clients.parquet")
        assert set(clients.column("client").to_pylist()) == {0, 1, 2, 3}
    file = place / "results/partitions/mine/clients~4/column~writer/seed~0.parquet"
    facts = json.loads(pq.read_schema(file).metadata[b"fedsdg"])
    assert facts["natural"]["names"] == [f"writer {n}" for n in range(4)]
    assert facts["natural"]["too_small"] == 2 and facts["natural"]["not_drawn"] == 0
    assert facts["classes"] == ["left", "none", "right"]
    assert "column~writer" in (place / "results/tables/mine/main.csv").read_text()
