"""One's own data: what lies in a folder is loaded as it is declared, or refused in a sentence."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedsdg.data.datasets import Column, image_data
from fedsdg.data.own_data import OwnData
from fedsdg.data.own_images import square, survey
from fedsdg.experiment.loading import load_images
from tests.own_images import (
    PHOTO_CLASSES,
    PHOTO_DOMAINS,
    encoded,
    stamped,
    write_image,
    write_photographs,
    write_table,
)


def own(folder, **more):
    return OwnData(name="mine", folder=str(folder), **more)


def numbers(data):
    """Which image each sample is (see ``stamped``)."""
    assert (data.images == data.images[:, :1, :1]).all()
    return data.images.reshape(len(data.images), -1)[:, 0].tolist()


def test_a_folder_of_classes_with_a_test_split(tmp_path):
    for number, place in enumerate(["train/b", "train/a", "train/a", "test/a", "test/b"]):
        write_image(tmp_path / place / f"{number}.png", stamped(number))
    (tmp_path / "train/a/notes.txt").write_text("no image")
    write_image(tmp_path / "train/a/.hidden.png", stamped(99))
    write_image(tmp_path / "extra/a/6.png", stamped(98))
    data = load_images(own(tmp_path))
    assert data.classes == ("a", "b") and data.num_classes == 2
    assert numbers(data) == [1, 2, 0, 3, 4]
    assert data.labels.tolist() == [0, 0, 1, 0, 1]
    assert data.official_test.tolist() == [False] * 3 + [True] * 2
    assert data.facts["test"] == {"split": "test", "images": 2}
    assert data.facts["left_out"] == ["extra"]
    assert data.domain is None and data.images.shape == (5, 8, 8)


def test_without_a_test_split_every_class_gives_its_share_once_and_for_all(tmp_path):
    counts = {"a": 50, "b": 20, "c": 5}
    number = 0
    for name, count in counts.items():
        for _ in range(count):
            write_image(tmp_path / name / f"{number:03d}.png", stamped(number))
            number += 1
    data = load_images(own(tmp_path))
    assert np.bincount(data.labels[data.official_test]).tolist() == [10, 4, 1]
    # Training first, and every image keeps its label: 0 … 49 are a, 50 … 69 b, 70 … 74 c.
    assert (np.diff(data.official_test.astype(int)) >= 0).all()
    found = numbers(data)
    assert sorted(found) == list(range(75))
    assert np.array_equal(np.digitize(found, [50, 70]), data.labels)
    again = load_images(own(tmp_path))
    assert again.sha256 == data.sha256 and numbers(again) == found
    assert data.facts["test"] == {"drawn": 0.2, "images": 15}
    assert found[60:] != sorted(range(75))[-15:], "the test set is drawn, not the last ones"


def test_photographs_in_seven_classes_and_four_domains_load_at_the_first_try(tmp_path):
    write_photographs(tmp_path, each=10)
    data = load_images(own(tmp_path))
    assert data.classes == PHOTO_CLASSES and data.domains == PHOTO_DOMAINS
    assert data.images.shape == (280, 64, 64, 3)
    cells = np.zeros((4, 7, 2), dtype=int)
    np.add.at(cells, (data.domain, data.labels, data.official_test.astype(int)), 1)
    assert (cells == [8, 2]).all(), "a fifth of every class in every domain"
    assert data.facts["resized"] == 280 and data.facts["resize"] == "bilinear"
    assert data.facts["fit"] == "crop" and len(data.facts["stored_sizes"]) == 2


def test_the_same_images_by_another_door_are_the_same_data(tmp_path):
    images = [stamped(number) for number in range(12)]
    labels = ["ab"[number % 2] for number in range(12)]
    for split, part in (("train", range(8)), ("test", range(8, 12))):
        for number in sorted(part, key=lambda i: (labels[i], i)):
            write_image(
                tmp_path / "f" / split / labels[number] / f"{number:02d}.png", images[number]
            )
        order = sorted(part, key=lambda i: (labels[i], i))
        write_table(
            tmp_path / "p" / f"{split}.parquet",
            [images[i] for i in order],
            label=[labels[i] for i in order],
        )
    folder, tables = load_images(own(tmp_path / "f")), load_images(own(tmp_path / "p"))
    assert folder.sha256 == tables.sha256
    assert folder.facts == {**tables.facts, "folder": str(tmp_path / "f")}


def test_the_hash_covers_names_and_columns_and_not_where_they_are_from():
    images, labels = np.zeros((4, 2, 2), dtype=np.uint8), np.array([0, 1, 0, 1])
    writer = Column(np.array([0, 0, 1, 1]), ("u", "v"))

    def made(**more):
        return image_data("mine", images, labels, 2, domain=np.zeros(4, dtype=int), **more).sha256

    hashes = {
        made(),
        made(classes=("a", "b")),
        made(classes=("a", "c")),
        made(domains=("a", "b")),
        made(columns={"writer": writer}),
        made(columns={"author": writer}),
        made(columns={"writer": writer._replace(names=("u", "w"))}),
        made(columns={"writer": writer._replace(codes=writer.codes[::-1])}),
    }
    assert len(hashes) == 8
    both = {"b": writer, "a": writer}
    assert made(columns=both, facts={"folder": "x"}) == made(columns=dict(sorted(both.items())))


def test_labels_of_any_kind_are_numbered_in_their_order(tmp_path):
    images = [stamped(number) for number in range(6)]
    for labels, classes, codes in (
        (
            ["zebra", "ant", "ant", "bee", "zebra", "bee"],
            ("ant", "bee", "zebra"),
            [2, 0, 0, 1, 2, 1],
        ),
        ([10, 9, 9, 100, 10, 100], ("9", "10", "100"), [1, 0, 0, 2, 1, 2]),
        ([0, 1, 2, 2, 1, 0], ("0", "1", "2"), [0, 1, 2, 2, 1, 0]),
        ([True, False, False, True, True, True], ("False", "True"), [1, 0, 0, 1, 1, 1]),
    ):
        write_table(tmp_path / "all.parquet", images, what=labels)
        data = load_images(own(tmp_path, label="what"))
        assert data.classes == classes
        assert [codes[number] for number in numbers(data)] == data.labels.tolist()
        assert data.facts["classes"] == list(classes)


def test_names_of_classes_that_the_hubs_library_wrote_are_kept(tmp_path):
    import datasets

    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["dog", "ant", "cow"])}
    )
    rows = {"image": [Image.fromarray(stamped(i)) for i in range(4)], "label": [0, 2, 2, 0]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / "all.parquet"))
    data = load_images(own(tmp_path))
    assert data.classes == ("dog", "ant", "cow") and data.num_classes == 3
    assert [{0: 0, 1: 2, 2: 2, 3: 0}[i] for i in numbers(data)] == data.labels.tolist()


def test_columns_splits_and_a_single_file_are_named(tmp_path, monkeypatch):
    write_table(tmp_path / "d" / "mine.parquet", [stamped(i) for i in range(4)],
                y=["a", "b", "a", "b"], where=["x", "x", "y", "y"])  # fmt: skip
    write_table(tmp_path / "d" / "other.parquet", [stamped(i) for i in range(4, 6)],
                y=["b", "a"], where=["y", "x"])  # fmt: skip
    declared = own(tmp_path / "d", label="y", domain="where", train="mine", test="other")
    data = load_images(declared)
    assert numbers(data) == list(range(6)) and data.labels.tolist() == [0, 1, 0, 1, 1, 0]
    assert data.domains == ("x", "y") and data.domain.tolist() == [0, 0, 1, 1, 1, 0]
    assert data.official_test.tolist() == [False] * 4 + [True] * 2
    alone = load_images(own(tmp_path / "d" / "mine.parquet", label="y"))
    assert sorted(numbers(alone)) == [0, 1, 2, 3] and alone.facts["test"] == {
        "drawn": 0.2,
        "images": 1,
    }
    one = load_images(own(tmp_path / "d", label="y", train="mine"))
    assert sorted(numbers(one)) == [0, 1, 2, 3] and one.facts["left_out"] == ["other.parquet"]
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    assert load_images(own("d", label="y", train="mine")).sha256 == one.sha256


def test_a_table_beside_the_images_says_more_of_them(tmp_path):
    rows = ["file_name,label,writer"]
    for number in range(10):
        write_image(tmp_path / f"{number}.png", stamped(number))
        rows.append(f"{number}.png,{'ab'[number % 2]},w{number // 4}")
    (tmp_path / "metadata.csv").write_text("\n".join(rows) + "\n")
    data = load_images(own(tmp_path))
    assert [i % 2 for i in numbers(data)] == data.labels.tolist()
    writer = data.columns["writer"]
    assert [f"w{i // 4}" for i in numbers(data)] == [writer.names[c] for c in writer.codes]


def test_bytes_alone_are_images_too(tmp_path):
    cells = pa.array([encoded(stamped(i)) for i in range(4)], pa.binary())
    pq.write_table(
        pa.table({"image": cells, "label": ["a", "b", "a", "b"]}), tmp_path / "a.parquet"
    )
    assert sorted(numbers(load_images(own(tmp_path)))) == [0, 1, 2, 3]


# --- Sizes and channels ---------------------------------------------------------------------------


def bars(width, height):
    """Black, but for a white square in the middle."""
    pixels = np.zeros((height, width), dtype=np.uint8)
    side = min(width, height)
    top, left = (height - side) // 2, (width - side) // 2
    pixels[top : top + side, left : left + side] = 255
    return pixels


@pytest.mark.parametrize("shape", [(60, 20), (20, 60)])
def test_images_become_square_as_is_said(shape):
    image = Image.fromarray(bars(*shape))
    assert (np.asarray(square(image, 10, "crop", "box")) == 255).all(), "the middle, all white"
    stretched = np.asarray(square(image, 30, "stretch", "box")) / 255
    assert stretched.mean() == pytest.approx(1 / 3) and stretched.shape == (30, 30)
    padded = np.asarray(square(image, 30, "pad", "nearest")) / 255
    # 60 by 20 becomes 30 by 10, a third of the square, of which a third is white.
    assert padded.mean() == pytest.approx(1 / 9, abs=0.01)


def test_a_filter_is_the_one_that_is_named(tmp_path):
    """Box takes the mean of blocks, nearest one of their pixels."""
    pixels = np.kron(np.eye(4, dtype=np.uint8), np.array([[0, 120], [80, 200]], dtype=np.uint8))
    for number in range(4):
        write_image(tmp_path / "ab"[number % 2] / f"{number}.png", pixels)
    alike = own(tmp_path, size=4, resize="box", duplicates="report")
    box = load_images(alike)
    assert (box.images == 100 * np.eye(4)).all() and box.facts["resize"] == "box"
    nearest = load_images(replace(alike, resize="nearest"))
    assert set(np.unique(nearest.images)) <= {0, 80, 120, 200}
    assert nearest.sha256 != box.sha256


def test_images_of_one_square_size_are_kept_as_they_are(tmp_path):
    generator = np.random.default_rng(0)
    stored = generator.integers(0, 256, (6, 12, 12, 3), dtype=np.uint8)
    write_table(tmp_path / "a.parquet", list(stored), label=[0, 1] * 3)
    data = load_images(own(tmp_path))
    order = [next(i for i in range(6) if (stored[i] == one).all()) for one in data.images]
    assert sorted(order) == list(range(6))
    assert "resized" not in data.facts and data.facts["stored_sizes"] == ["12×12"]


def test_channels_are_those_of_the_images_or_those_that_are_asked_for(tmp_path):
    for number in range(4):
        write_image(
            tmp_path / "ab"[number % 2] / f"{number}.png", stamped(number, colour=number == 3)
        )
    mixed = load_images(own(tmp_path))
    assert mixed.images.shape == (4, 8, 8, 3) and mixed.facts["converted"] == 3
    assert (mixed.images == mixed.images[..., :1]).all()
    grey = load_images(own(tmp_path, channels=1))
    assert grey.images.shape == (4, 8, 8) and grey.facts["converted"] == 1
    assert sorted(numbers(grey)) == [0, 1, 2, 3]


def test_a_photograph_that_lies_on_its_side_is_set_upright(tmp_path):
    upright = np.zeros((16, 16, 3), dtype=np.uint8)
    upright[:8] = 255
    for number in range(2):
        write_image(tmp_path / "ab"[number] / "0.png", upright)
        lying = Image.fromarray(np.rot90(upright))
        exif = lying.getexif()
        exif[0x0112] = 6  # turned by 90 degrees clockwise to be seen
        lying.save(tmp_path / "ab"[number] / "1.png", exif=exif)
    data = load_images(own(tmp_path, duplicates="report"))
    assert (data.images == upright).all()
    assert data.facts["duplicates"]["images"] == 1, "upright, all four are one image"


# --- What is refused ------------------------------------------------------------------------------


def refused(declared, *words, kind=ValueError):
    with pytest.raises(kind) as caught:
        load_images(declared)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_an_unknown_column_is_named_with_those_there_are(tmp_path):
    write_table(tmp_path / "a.parquet", [stamped(0)] * 2, species=["x", "y"], site=[1, 2])
    for key in ("image", "label", "domain"):
        given = {"label": "species", key: "kind"}
        refused(own(tmp_path, **given), "'kind'", f"mine.{key}", "'image', 'species', 'site'")
    write_photographs(tmp_path / "photos", each=1)
    refused(own(tmp_path / "photos", label="kind"), "'kind'", "'image', 'domain', 'label'")


def test_an_unreadable_image_is_named_with_its_row_or_file(tmp_path):
    file = write_table(tmp_path / "t/a.parquet", [stamped(i) for i in range(4)], label=[0, 1, 0, 1])
    table = pq.read_table(file)
    cells = table.column("image").to_pylist()
    whole = cells[2]["bytes"]
    for damaged in (whole[: len(whole) // 2], b"", None, b"no image at all"):
        cells[2]["bytes"] = damaged
        column = pa.array(cells, table.schema.field("image").type)
        pq.write_table(table.set_column(0, "image", column), file)
        refused(own(tmp_path / "t"), "a.parquet, row 2", "cannot be decoded")
    for number in range(4):
        write_image(tmp_path / "f" / "ab"[number % 2] / f"{number}.png", stamped(number))
    (tmp_path / "f/b/1.png").write_bytes(whole[: len(whole) // 2])
    refused(own(tmp_path / "f"), str(tmp_path / "f/b/1.png"), "cannot be decoded")
    os.truncate(file, 100)
    refused(own(tmp_path / "t"), "a.parquet is truncated")


def test_one_class_alone_is_nothing_to_tell_apart(tmp_path):
    for number in range(4):
        write_image(tmp_path / "dog" / f"{number}.png", stamped(number))
    refused(own(tmp_path), "one class alone", "'dog'")


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["a", None, "b"], ("'label' is empty in 1 rows", "row 1")),
        ([0.5, 1.5, 2.5], ("'label' must hold texts or whole numbers",)),
        ([[1], [2], [3]], ("'label' must hold texts or whole numbers",)),
    ],
)
def test_labels_that_say_nothing_are_named(tmp_path, labels, words):
    write_table(tmp_path / "a.parquet", [stamped(i) for i in range(3)], label=labels)
    refused(own(tmp_path), *words)


def test_what_lies_otherwise_than_it_should_is_named(tmp_path):
    refused(own(tmp_path / "absent"), "no folder", "absent", kind=FileNotFoundError)
    (tmp_path / "empty").mkdir()
    refused(own(tmp_path / "empty"), "neither parquet files nor images", kind=FileNotFoundError)
    write_image(tmp_path / "flat" / "0.png", stamped(0))
    refused(own(tmp_path / "flat"), "no folder of its class", "CLASS/image")
    write_image(tmp_path / "mixed" / "a" / "0.png", stamped(0))
    write_image(tmp_path / "mixed" / "a" / "b" / "0.png", stamped(0))
    refused(own(tmp_path / "mixed"), "different depths")
    write_image(tmp_path / "deep" / "a/b/c" / "0.png", stamped(0))
    refused(own(tmp_path / "deep"), "3 folders deep")
    for place in ("test/a", "other/a"):
        write_image(tmp_path / "half" / place / "0.png", stamped(0))
    refused(own(tmp_path / "half"), "no split 'train'", "other, test")
    for place in ("train/dog", "train/cat", "test/Dog"):
        write_image(tmp_path / "spelt" / place / "0.png", stamped(0))
    refused(own(tmp_path / "spelt"), "'Dog' occurs in the test split alone")
    refused(own(tmp_path / "spelt", train="train", test="val"), "no split 'val'", "test, train")
    write_image(tmp_path / "said" / "a" / "0.png", stamped(0))
    (tmp_path / "said/metadata.csv").write_text("file_name,writer\nb/0.png,1\n")
    refused(own(tmp_path / "said"), "a/0.png has no row in metadata.csv")
    (tmp_path / "said/metadata.csv").write_text("file,writer\nb/0.png,1\n")
    refused(own(tmp_path / "said"), "no column 'file_name'", "'file', 'writer'")
    write_table(tmp_path / "plain" / "a.parquet", [stamped(0)] * 2, label=[0, 1], pixels=[1, 2])
    refused(own(tmp_path / "plain", image="pixels"), "'pixels' must hold encoded images")


def test_pixels_deeper_than_8_bits_are_not_cut_off(tmp_path):
    deep = np.full((8, 8), 4000, dtype=np.uint16)
    for number in range(2):
        write_image(tmp_path / "ab"[number] / "0.png", deep)
    refused(own(tmp_path), "deeper than 8 bits")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "a/b"}, "the name 'a/b'"),
        ({"folder": None}, "needs 'folder' or 'hub'"),
        ({"hub": "a/b"}, "needs 'folder' or 'hub'"),
        ({"folder": None, "hub": "alone"}, "OWNER/NAME"),
        ({"size": 0}, "mine.size is 0"),
        ({"size": 8.5}, "mine.size is 8.5"),
        ({"channels": 2}, "channels is 2, but must be one of 1, 3"),
        ({"resize": "cubic"}, "must be one of bilinear"),
        ({"fit": "fill"}, "must be one of crop, pad, stretch"),
        ({"duplicates": "keep"}, "duplicates is 'keep', but must be one of refuse, report"),
        ({"label": 3}, "mine.label is 3"),
        ({"train": "a", "test": "a"}, "names 'a' for training and for the test"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        OwnData(**{"name": "mine", "folder": "x", **given})


# --- The hub --------------------------------------------------------------------------------------


def test_the_hub_gives_what_its_files_give(tmp_path, monkeypatch):
    import datasets

    asked = []
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["b", "a"]),
            "writer": datasets.Value("string"),
        }
    )
    rows = {
        "image": [Image.fromarray(stamped(i)) for i in range(6)],
        "label": [0, 1, 1, 0, 1, 0],
        "writer": ["u", "v"] * 3,
    }
    part = datasets.Dataset.from_dict(rows, features=features)
    bundle = datasets.DatasetDict({"train": part, "validation": part.select([0, 1])})
    part.to_parquet(str(tmp_path / "train.parquet"))

    def load(*named):
        asked.append(named)
        return bundle

    monkeypatch.setattr(datasets, "load_dataset", load)
    hub = OwnData(name="mine", hub="some/where/small")
    data = load_images(hub)
    assert asked[0] == ("some/where", "small")
    assert data.sha256 == load_images(own(tmp_path)).sha256
    assert data.classes == ("b", "a") and data.facts["left_out"] == ["validation"]
    both = OwnData(
        name="mine", hub="some/where", train="train", test="validation", duplicates="report"
    )
    tested = load_images(both)
    assert tested.official_test.tolist() == [False] * 6 + [True] * 2
    assert tested.facts["duplicates"] == {
        "images": 2,
        "pairs": [[f"some/where ({part}), row {row}" for part in ("validation", "train")]
                  for row in (0, 1)],
    }  # fmt: skip
    refused(replace(both, duplicates="refuse"), "2 of the 2 test images")
    refused(OwnData(name="mine", hub="some/where", label="kind"), "'image', 'label', 'writer'")
    refused(
        OwnData(name="mine", hub="some/where", train="all"), "no split 'all'", "train, validation"
    )

    def offline(*_):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    refused(hub, "some/where/small", "no route", "folder: PATH", kind=FileNotFoundError)


def test_a_survey_reads_no_image(tmp_path, monkeypatch):
    write_photographs(tmp_path, each=2)
    for file in tmp_path.rglob("*.jpg"):
        file.write_bytes(b"")
    known = survey(own(tmp_path), np.random.default_rng(0))
    assert known.classes == PHOTO_CLASSES and known.domain.names == PHOTO_DOMAINS
    assert Path(tmp_path).exists()
