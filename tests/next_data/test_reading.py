"""Data sets from files: layouts, labels, splits, and one sentence for each fault."""

import os
import struct
import sys
import warnings
import zlib

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from fedsdg.next_data.datasets import ImageData
from fedsdg.next_data.files import listing
from fedsdg.next_data.reading import load, survey
from fedsdg.next_data.sources import DATASETS, NUM_CLASSES, Source, built_in
from tests.next_data.pictures import encoded, folder, noise, table


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch, request):
    if "real" not in request.node.name:
        monkeypatch.delenv("FEDSDG_DATA", raising=False)


def pets(place, **given):
    return Source(name="pets", folder=str(place), **given)


def refused(source, *words, kind=ValueError, read=load):
    """Check that a data set is refused in one sentence with these words."""
    with pytest.raises(kind) as caught:
        read(source)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    for word in words:
        assert str(word) in message


# --- Built-in sets --------------------------------------------------------------------------------


def test_digits_are_scikit_learns():
    data = load(built_in("digits"))
    bundle = load_digits()
    assert np.abs(data.images / 255 * 16 - bundle.images).max() < 0.04
    assert np.array_equal(data.labels, bundle.target) and not data.test.any()
    assert data.sha256.startswith("efaf81ffb1c4")
    assert data.notes == () and data.classes == ()


def test_a_built_in_set_is_read_from_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    images = [noise(k, (28, 28)) for k in range(30)]
    labels = np.arange(30) % 10
    place = tmp_path / "mnist" / "data"
    table(place / "train-00000-of-00002.parquet", images[:10], label=labels[:10])
    table(place / "train-00001-of-00002.parquet", images[10:20], label=labels[10:20])
    table(place / "test-00000-of-00001.parquet", images[20:], label=labels[20:])
    data = load(built_in("mnist"))
    assert np.array_equal(data.images, images) and np.array_equal(data.labels, labels)
    assert np.flatnonzero(data.test).tolist() == list(range(20, 30))
    assert data.sha256 == ImageData("any", data.images, labels, 10, data.test).sha256
    (place / "train-00001-of-00002.parquet").unlink()
    refused(built_in("mnist"), "there are 1 files", "train-*, not 2")
    (place / "train-00000-of-00002.parquet").unlink()
    refused(built_in("mnist"), "no split 'train'", "test")


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        ([noise(1, (28, 27))] * 10, range(10), ("row 0", "27×28 pixels, not 28×28")),
        ([noise(1, (28, 28))] * 10, range(1, 11), ("11 classes", "10")),
        ([noise(1, (28, 28))] * 10, range(-1, 9), ("11 classes", "10")),
        ([noise(1, (28, 28))] * 10, [*range(9), None], ("train.parquet, row 9", "label")),
        ([noise(1, (28, 28))] * 10, np.arange(10) / 2, ("no column 'label'", "double")),
    ],
)
def test_a_built_in_set_is_as_declared(tmp_path, monkeypatch, images, labels, words):
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    table(tmp_path / "mnist" / "train.parquet", images, label=pa.array(list(labels)))
    table(tmp_path / "mnist" / "test.parquet", [noise(2, (28, 28))], label=pa.array(labels)[:1])
    refused(built_in("mnist"), *words)


def test_a_set_that_is_not_there(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="did you mean 'cifar100'"):
        built_in("cifar-100")
    assert set(DATASETS) == set(NUM_CLASSES)
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(built_in("usps"), "flwrlabs/usps", "FEDSDG_DATA", kind=FileNotFoundError)
    refused(built_in("tiny_imagenet_32"), "FEDSDG_DATA", kind=FileNotFoundError)
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path / "none"))
    refused(built_in("usps"), "no folder", kind=FileNotFoundError)
    refused(pets("photos"), "no folder", kind=FileNotFoundError)
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    refused(pets("photos"), tmp_path / "photos", kind=FileNotFoundError)


@pytest.mark.skipif("FEDSDG_DATA" not in os.environ, reason="FEDSDG_DATA names no data")
def test_real_usps():
    data = load(built_in("usps"))
    assert data.images.shape == (9298, 16, 16) and data.test.sum() == 2007
    assert np.array_equal(np.unique(data.labels), range(10))


def test_the_hub_gives_what_its_files_give(tmp_path, monkeypatch):
    import datasets

    images = [noise(k, (9, 9, 3)) for k in range(40)]
    labels = ["eel", "cat"] * 20
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["eel", "cat"])}
    )
    splits = {}
    for split, part in (("train", slice(0, 30)), ("test", slice(30, 40))):
        cells = {"image": [Image.fromarray(one) for one in images[part]], "label": labels[part]}
        splits[split] = datasets.Dataset.from_dict(cells, features=features)
    asked = []

    def load_dataset(*names):
        asked.append(names)
        return splits

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load(Source(name="fish", hub="me/fish/small"))
    assert asked == [("me/fish", "small")]
    assert np.array_equal(data.images, images) and data.classes == ("eel", "cat")
    for split, part in (("train", slice(0, 30)), ("test", slice(30, 40))):
        codes = [["eel", "cat"].index(one) for one in labels[part]]
        file = tmp_path / f"{split}.parquet"
        table(file, images[part], ["eel", "cat"], label=pa.array(codes))
    assert load(Source(name="fish", folder=str(tmp_path))).sha256 == data.sha256
    del splits["train"]
    refused(Source(name="fish", hub="me/fish"), "me/fish has no split 'train', but test")


# --- Layouts and splits ---------------------------------------------------------------------------


def test_a_folder_of_classes_gets_a_stratified_test_set(tmp_path):
    data = load(pets(folder(tmp_path, {"cat": 20, "dog": 10, "eel": 5})))
    assert data.classes == ("cat", "dog", "eel") and data.images.shape == (35, 12, 12, 3)
    assert np.bincount(data.labels[data.test]).tolist() == [4, 2, 1]
    assert not data.test[:28].any() and data.test[28:].all()
    # Every image has the label of its folder, wherever it was put.
    stored = {Image.open(f).tobytes(): f.parent.name for f in tmp_path.rglob("*.png")}
    for image, label in zip(data.images, data.labels, strict=True):
        assert stored[image.tobytes()] == data.classes[label]
    assert load(pets(tmp_path)).sha256 == data.sha256


def test_train_and_test_folders(tmp_path):
    data = load(pets(folder(tmp_path, {"train/cat": 6, "train/dog": 6, "test/dog": 2})))
    assert data.test.sum() == 2 and data.classes == ("cat", "dog")
    assert data.labels.tolist() == [0] * 6 + [1] * 8


def test_a_survey_is_the_data_without_pixels(tmp_path):
    folder(tmp_path, {"cat": 9, "dog": 9})
    known, data = survey(pets(tmp_path)), load(pets(tmp_path))
    assert np.array_equal(known.labels, data.labels) and np.array_equal(known.test, data.test)
    assert known.classes == data.classes and known.images.size == 0
    assert survey(built_in("digits")).num_classes == 10


def test_a_listing_changes_with_the_files(tmp_path):
    folder(tmp_path, {"cat": 2})
    before = listing(pets(tmp_path))
    assert listing(pets(tmp_path)) == before
    (tmp_path / "cat" / "0.png").write_bytes(b"other")
    assert listing(pets(tmp_path)) != before


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"cat": 3, "dog/small": 3}, "0.png is misplaced"),
        ({".": 3}, "0.png is misplaced"),
        ({"a/b/cat": 3}, "0.png is misplaced"),
        ({"train": 3, "train/cat": 3}, "0.png is misplaced"),
        ({"Training/cat": 3, "Testing/cat": 3}, "no split 'train', but"),
        ({"test/cat": 3, "test/dog": 3}, "no split 'train', but"),
        ({"cat": 5}, "1 classes"),
        ({"cat": 1, "dog": 1}, "too few test images"),
        ({"train/cat": 3, "train/dog": 3, "test/Dog": 3}, "too few images of class 'Dog'"),
    ],
)
def test_a_folder_that_lies_otherwise_is_refused(tmp_path, counts, words):
    refused(pets(folder(tmp_path, counts)), words)


def test_the_working_directory_can_be_the_folder(tmp_path, monkeypatch):
    folder(tmp_path, {"cat": 6, "dog": 6})
    (tmp_path / "notes.txt").write_text("ignored")
    monkeypatch.chdir(tmp_path)
    data = load(pets("."))
    assert data.classes == ("cat", "dog") and "notes.txt" in data.notes[0]


def test_links_are_followed_and_hidden_files_left_out(tmp_path):
    folder(tmp_path / "elsewhere", {"cat": 6})
    place = folder(tmp_path / "pets", {"dog": 6}, start=100)
    (place / "cat").symlink_to(tmp_path / "elsewhere" / "cat")
    for name in (".DS_Store", "dog/._0.png", ".git/x.png"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(b"junk")
    data = load(pets(place))
    assert data.classes == ("cat", "dog") and data.notes == ()


def test_names_of_splits_match_whole(tmp_path):
    images = [noise(k) for k in range(12)]
    for name, part in (
        ("train", slice(0, 8)),
        ("test", slice(8, 10)),
        ("test_hard", slice(10, 12)),
    ):
        table(tmp_path / f"{name}.parquet", images[part], label=pa.array((["a", "b"] * 6)[part]))
    data = load(pets(tmp_path))
    assert len(data.labels) == 10 and data.test.sum() == 2
    (note,) = data.notes
    assert "1 files" in note and "test_hard.parquet" in note
    named = load(pets(tmp_path, train="train", test="test_hard"))
    assert np.array_equal(named.images[named.test], images[10:])
    alone = load(pets(tmp_path / "train.parquet"))
    assert len(alone.labels) == 8
    refused(pets(tmp_path, test="exam"), "no split 'exam', but test, test_hard, train")


def test_a_truncated_table_is_named(tmp_path):
    file = table(tmp_path / "data.parquet", [noise(1)] * 4, label=pa.array([0, 1, 0, 1]))
    file.write_bytes(file.read_bytes()[:-20])
    refused(pets(tmp_path), file, "truncated")


# --- Labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["b", "a", "c"], ("a", "b", "c")),
        ([7, -1, 3], ("-1", "3", "7")),
        ([1, 10, 2], ("1", "2", "10")),
        ([True, False, True], ("False", "True")),
    ],
)
def test_labels_are_numbered_in_their_order(tmp_path, labels, classes):
    images = [noise(k) for k in range(30)]
    table(tmp_path / "all.parquet", images, label=pa.array(labels * 10))
    data = load(pets(tmp_path))
    assert data.classes == classes
    by_pixels = {
        image.tobytes(): str(label) for image, label in zip(images, labels * 10, strict=True)
    }
    for image, label in zip(data.images, data.labels, strict=True):
        assert by_pixels[image.tobytes()] == classes[label]


def test_classes_are_the_same_by_name_and_not_by_number(tmp_path):
    images = [noise(k) for k in range(12)]
    table(tmp_path / "train.parquet", images[:8], ["cat", "dog"], label=pa.array([0, 1] * 4))
    table(tmp_path / "test.parquet", images[8:], ["dog", "cat"], label=pa.array([0, 1] * 2))
    data = load(pets(tmp_path))
    assert data.classes == ("cat", "dog")
    assert data.labels.tolist() == [0, 1] * 4 + [1, 0] * 2
    table(tmp_path / "test.parquet", images[8:], label=pa.array(["dog", "cat"] * 2))
    assert load(pets(tmp_path)).labels.tolist() == [0, 1] * 4 + [1, 0] * 2
    table(tmp_path / "test.parquet", images[8:], label=pa.array([0, 1] * 2))
    refused(pets(tmp_path), "'label' holds numbers in some rows")


@pytest.mark.parametrize(
    ("labels", "names", "words"),
    [
        (["a", None, "b", "a"], None, "test.parquet, row 1: column 'label' is None"),
        ([0, 1, -1, 1], ["a", "b"], "test.parquet, row 2: column 'label' is -1"),
        ([0, 1, 2, 1], ["a", "b"], "test.parquet, row 2: column 'label' is 2"),
        ([0.5, 1.0, 2.0, 1.0], None, "test.parquet: no column 'label' of labels"),
    ],
)
def test_a_label_that_says_nothing_is_named_with_file_and_row(tmp_path, labels, names, words):
    kind = ["a", "b"] if isinstance(labels[0], str) else [0, 1]
    table(tmp_path / "train.parquet", map(noise, range(100)), names, label=pa.array(kind * 50))
    table(tmp_path / "test.parquet", map(noise, range(100, 104)), names, label=pa.array(labels))
    refused(pets(tmp_path), words)


def test_other_columns_are_kept_for_clients(tmp_path):
    writers = pa.array(["x", None, "y"] * 10)
    table(
        tmp_path / "a.parquet", map(noise, range(30)), label=pa.array([0, 1] * 15), writer=writers
    )
    column = load(pets(tmp_path)).columns["writer"]
    assert column.names == ("x", "y") and np.bincount(column.codes + 1).tolist() == [10, 10, 10]
    refused(pets(tmp_path, label="kind"), "no column 'kind' of labels", "writer")
    refused(pets(tmp_path, image="writer"), "no column 'writer' of images")


# --- Pixels ---------------------------------------------------------------------------------------


def strokes(mode):
    """Return a black square on transparent ground in a mode with transparency."""
    if mode == "P":
        image = Image.new("P", (8, 8), 1)
        image.putpalette([0, 0, 0, 0, 0, 0])
        image.paste(0, (2, 2, 6, 6))
        image.info["transparency"] = 1
        return image
    image = Image.new(mode, (8, 8), 0)
    image.paste((0, 0, 0, 255) if mode == "RGBA" else (0, 255), (2, 2, 6, 6))
    return image


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize(("colour", "value"), [("white", 255), ("#808080", 128)])
def test_transparent_pixels_are_composed_and_said_once(tmp_path, mode, colour, value):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(10):
            image = strokes(mode)
            image.save(tmp_path / name / f"{k}.png", **image.info)
    data = load(pets(tmp_path, background=colour))
    expected = np.full((8, 8), value)
    expected[2:6, 2:6] = 0
    grey = data.images if data.images.ndim == 3 else data.images[..., 0]
    assert (grey == expected).all()
    (said,) = [note for note in data.notes if "transparent pixels" in note]
    assert "20 images" in said and colour in said
    assert data.facts["transparent"] == 20


def test_half_transparent_pixels_are_mixed_and_opaque_ones_are_not_reported(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    Image.new("RGBA", (4, 4), (100, 0, 0, 128)).save(tmp_path / "a" / "half.png")
    for k in range(9):
        Image.new("RGBA", (4, 4), (k, 0, 0, 255)).save(tmp_path / "b" / f"{k}.png")
    data = load(pets(tmp_path))
    first = data.images[data.labels == 0][0, 0, 0]
    assert np.abs(first - np.array([177, 127, 127])).max() <= 1
    assert "1 images" in data.notes[-1]


MODES = ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"]


@pytest.mark.parametrize("mode", MODES)
def test_any_mode_is_read(tmp_path, mode):
    kind = {"CMYK": "jpg", "YCbCr": "jpg"}.get(mode, "png")
    folder(tmp_path, {"b": 5})
    (tmp_path / "a").mkdir()
    for k in range(5):
        Image.new("RGB", (12, 12), (204, 204, 204)).convert(mode).save(
            tmp_path / "a" / f"{k}.{kind}"
        )
    data = load(pets(tmp_path))
    if mode != "1":  # which is dithered
        assert np.abs(data.images[data.labels == 0].astype(int) - 204).max() <= 2
    assert data.images.shape == (10, 12, 12, 3)


def test_bitmaps_of_5_and_6_bits_are_read(tmp_path):
    folder(tmp_path, {"a": 5, "b": 5})
    sizes = (66, 0, 54, 40, 2, 2, 1, 16, 0, 8, 0, 0, 0, 0)
    header = b"BM" + struct.pack("<IIIIiiHHIIiiII", *sizes) + b"\xff\xff" * 4
    (tmp_path / "a" / "x.bmp").write_bytes(header)
    assert load(pets(tmp_path, size=2)).images.max() == 255


def test_channels_follow_the_images(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(5):
            Image.fromarray(noise(k, (6, 6))).save(tmp_path / name / f"{k}{name}.png")
    assert load(pets(tmp_path)).images.shape == (10, 6, 6)
    assert load(pets(tmp_path, channels=3)).images.shape == (10, 6, 6, 3)
    Image.fromarray(noise(9, (6, 6, 3))).save(tmp_path / "a" / "colour.png")
    assert load(pets(tmp_path)).images.shape == (11, 6, 6, 3)
    grey = load(pets(tmp_path, channels=1))
    assert grey.images.shape == (11, 6, 6) and grey.facts["channels"] == 1


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_images_become_square_as_declared(tmp_path, fit):
    image = np.zeros((10, 30, 3), np.uint8)
    image[:, 10:20] = 255
    table(tmp_path / "a.parquet", [image] * 4 + [noise(1)] * 4, label=pa.array([0] * 4 + [1] * 4))
    data = load(pets(tmp_path, size=10, fit=fit))
    wide = data.images[data.labels == 0][0, ..., 0]
    expected = {"crop": 1.0, "pad": 1 / 9, "stretch": 1 / 3}[fit]
    assert abs(wide.mean() / 255 - expected) < 0.06
    assert data.facts["fit"] == fit


def test_sizes_that_differ_become_64_and_equal_ones_stay(tmp_path):
    table(tmp_path / "a.parquet", [noise(k) for k in range(8)], label=pa.array([0, 1] * 4))
    assert load(pets(tmp_path)).images.shape == (8, 12, 12, 3)
    other = [noise(k, (12, 13 + k % 2, 3)) for k in range(8)]
    table(tmp_path / "a.parquet", other, label=pa.array([0, 1] * 4))
    assert load(pets(tmp_path)).images.shape == (8, 64, 64, 3)


def test_a_photograph_on_its_side_is_set_upright(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[0] = 255
    exif = Image.Exif()
    exif[274] = 6  # to be turned by 90 degrees clockwise
    turned = encoded(Image.fromarray(pixels), exif=exif)
    table(tmp_path / "a.parquet", [turned] * 5 + [pixels] * 5, label=pa.array([0] * 5 + [1] * 5))
    data = load(pets(tmp_path))
    upright = data.images[data.labels == 0][0]
    assert (upright[:, 7] == 255).all() and (upright[:, :7] == 0).all()


def deep_images():
    grey = Image.fromarray(np.full((8, 8), 40_000, np.uint16))
    yield "grey.png", encoded(grey)
    yield "colour.ppm", b"P6 2 2 65535\n" + b"\x12\x34" * 12
    yield "grey.tiff", encoded(grey, "tiff")
    yield "float.tiff", encoded(Image.fromarray(np.full((8, 8), 0.5, np.float32)), "tiff")
    yield "int.tiff", encoded(Image.fromarray(np.full((8, 8), 70_000, np.int32)), "tiff")

    # Pillow opens colour of 16 bits in a mode of 8 bits, and does not write it: IHDR says 16, RGB.
    def chunk(kind, content):
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    rows = zlib.compress((b"\0" + b"\x12\x34" * 3 * 8) * 8)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0))
    yield "colour.png", b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


DEEP = dict(deep_images())


@pytest.mark.parametrize("name", DEEP)
def test_more_than_8_bits_are_refused_by_name(tmp_path, name):
    folder(tmp_path, {"a": 5, "b": 5})
    (tmp_path / "a" / name).write_bytes(DEEP[name])
    refused(pets(tmp_path), tmp_path / "a" / name, "more than 8 bits per channel, such as 16")


# --- Faults of images -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.jfif", "x.JPG2", "x", "x.jpeg.bak"])
def test_images_are_known_by_their_content(tmp_path, name):
    folder(tmp_path, {"b": 10})
    (tmp_path / "a").mkdir()
    for k in range(10):
        (tmp_path / "a" / f"{k}{name}").write_bytes(encoded(noise(100 + k), "jpeg"))
    data = load(pets(tmp_path))
    assert np.bincount(data.labels).tolist() == [10, 10] and data.notes == ()


def test_a_class_without_a_readable_image_is_an_error_that_names_a_file(tmp_path):
    folder(tmp_path, {"train/a": 5, "train/b": 5, "test/a": 2, "test/b": 2})
    (tmp_path / "train" / "c").mkdir()
    (tmp_path / "train" / "c" / "1.heic").write_bytes(b"\0\0\0\x18ftypheic")
    refused(pets(tmp_path), "c has no image that Pillow can read", "1.heic")
    (tmp_path / "train" / "c").rename(tmp_path / "papers")
    (note,) = load(pets(tmp_path)).notes
    assert "1 files" in note and "1.heic" in note


def test_ignored_files_are_counted_on_one_line(tmp_path):
    folder(tmp_path, {"a": 5, "b": 5})
    for name in ("notes.txt", "a/Thumbs.db", "b/1.heic"):
        (tmp_path / name).write_text("no image")
    (note,) = load(pets(tmp_path)).notes
    assert "3 files" in note and "Thumbs.db" in note and "\n" not in note


def test_what_is_wrong_with_an_image_is_said(tmp_path, monkeypatch):
    folder(tmp_path, {"a": 5, "b": 5})
    file = tmp_path / "a" / "1.png"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    refused(pets(tmp_path), file, "cannot be used")
    file.write_bytes(b"no image")
    refused(pets(tmp_path), file, "no image that Pillow can read")
    file.unlink()
    file.symlink_to(tmp_path / "gone.png")
    refused(pets(tmp_path), file, "missing or empty")
    file.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Image.new("1", (20_000, 10_000)).save(file)
    refused(pets(tmp_path), file, "200000000 pixels")


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "missing or empty"), (b"junk", "no image that Pillow can read")]
)
def test_a_bad_image_in_a_table_is_named_with_file_and_row(tmp_path, content, words):
    good = [noise(k) for k in range(8)]
    table(tmp_path / "train.parquet", good, label=pa.array([0, 1] * 4))
    table(tmp_path / "test.parquet", [noise(9), content], label=pa.array([0, 1]))
    refused(pets(tmp_path), tmp_path / "test.parquet", "row 1", words)


def test_no_images_at_all(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("nothing")
    refused(pets(tmp_path), tmp_path, "no images that Pillow can read", kind=FileNotFoundError)


# --- Classes of one image, and test images that are training images -------------------------------


def test_the_only_image_of_a_class_is_for_training(tmp_path):
    single = {f"rare{k}": 1 for k in range(6)}
    data = load(pets(folder(tmp_path, {"a": 12, "b": 12} | single)))
    assert set(data.labels[~data.test]) == set(range(8))
    (note,) = data.notes
    assert all(name in note for name in single)


def test_test_images_that_are_training_images_are_counted_with_one_pair(tmp_path):
    folder(tmp_path, {"train/a": 5, "train/b": 5, "test/a": 3, "test/b": 3})
    for k in range(2):
        pixels = np.asarray(Image.open(tmp_path / "train" / "a" / f"{k}.png"))
        # Pixels are compared, not files.
        Image.fromarray(pixels).save(tmp_path / "test" / "a" / f"{k}.bmp")
    (note,) = load(pets(tmp_path)).notes
    assert "2 of 8 test images" in note
    pair = [tmp_path / "test" / "a" / "0.bmp", tmp_path / "train" / "a" / "0.png"]
    assert f"{pair[0]}, which is {pair[1]}" in note


def test_a_drawn_test_set_is_compared_too_and_resizing_makes_no_copies(tmp_path):
    images = [noise(5)] * 10 + [noise(k, (12 + k % 3, 12, 3)) for k in range(100, 110)]
    table(tmp_path / "all.parquet", images, label=pa.array([0] * 10 + [1] * 10))
    (note,) = load(pets(tmp_path, size=8)).notes
    assert "2 of 4 test images" in note
    flat = [np.full((k + 4, 12, 3), 7, np.uint8) for k in range(20)]
    table(tmp_path / "all.parquet", flat, label=pa.array([0, 1] * 10))
    assert load(pets(tmp_path, size=8)).notes == ()


# --- Declarations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "a/b", "folder": "x"}, "name is 'a/b'"),
        ({"name": "pets"}, "'folder' or 'hub'"),
        ({"name": "pets", "folder": "x", "hub": "me/x"}, "exactly one"),
        ({"name": "pets", "folder": "x", "size": 0}, "at least 1"),
        ({"name": "pets", "folder": "x", "channels": 2}, "one of 1, 3"),
        ({"name": "pets", "folder": "x", "fit": "cut"}, "one of crop, pad, stretch"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        Source(**given)


def test_importing_declarations_is_cheap():
    import subprocess

    code = "import sys, fedsdg.next_data.sources as s; print(*(m for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "PIL", "pyarrow", "sklearn"} & set(done.stdout.split())
