"""Data sets from files: layouts, labels, splits, pixels, and one sentence for each fault."""

import os
import struct
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from fedsdg.data.datasets import ImageData
from fedsdg.data.files import listing
from fedsdg.data.reading import load, survey
from fedsdg.data.sources import DATASETS, NUM_CLASSES, Source, built_in
from tests.data.pictures import encoded, folder, noise, table


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch):
    monkeypatch.delenv("FEDSDG_DATA", raising=False)


def pets(root, **given):
    return Source(name="pets", folder=str(root), **given)


def two_classes(root, count=5):
    return folder(root, {"a": count, "b": count})


def split_classes(root):
    return folder(root, {"train/a": 5, "train/b": 5, "test/a": 2, "test/b": 2})


def noises(count, start=0):
    return [noise(start + k) for k in range(count)]


def refused(source, *words, kind=ValueError):
    """Check that a data set is refused in one sentence with these words."""
    with pytest.raises(kind) as caught:
        load(source)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    for word in words:
        assert str(word) in message


# --- Built-in sets and the hub --------------------------------------------------------------------


def test_digits_are_scikit_learns():
    data = load(built_in("digits"))
    bundle = load_digits()
    assert np.abs(data.images / 255 * 16 - bundle.images).max() < 0.04
    assert np.array_equal(data.labels, bundle.target) and not data.test.any()
    assert data.sha256.startswith("efaf81ffb1c4")
    assert set(DATASETS) == set(NUM_CLASSES) and survey(built_in("digits")).num_classes == 10


def test_a_built_in_set_is_read_from_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    images, labels = [noise(k, (28, 28)) for k in range(30)], np.arange(30) % 10
    files = tmp_path / "mnist" / "data"
    for number, name in enumerate(("train-00000-of-00002", "train-00001-of-00002", "test")):
        rows = slice(10 * number, 10 * number + 10)
        table(files / f"{name}.parquet", images[rows], labels[rows])
    data = load(built_in("mnist"))
    assert np.array_equal(data.images, images) and np.array_equal(data.labels, labels)
    assert np.flatnonzero(data.test).tolist() == list(range(20, 30))
    assert data.sha256 == ImageData("any", data.images, labels, 10, data.test).sha256
    (files / "train-00001-of-00002.parquet").unlink()
    refused(built_in("mnist"), "there are 1 files", "train-*, not 2")
    (files / "train-00000-of-00002.parquet").unlink()
    refused(built_in("mnist"), "needs the splits 'train' and 'test', but has", "test")


@pytest.mark.parametrize(
    ("width", "labels", "words"),
    [
        (27, range(10), ("row 0", "27×28 pixels, not 28×28")),
        (28, range(-1, 9), ("11 classes", "10")),
        (28, [*range(9), None], ("train.parquet, row 9", "label")),
    ],
)
def test_a_built_in_set_is_as_declared(tmp_path, monkeypatch, width, labels, words):
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    for split in ("train", "test"):
        images = [noise(k, (28, width)) for k in range(10)]
        table(tmp_path / "mnist" / f"{split}.parquet", images, labels)
    refused(built_in("mnist"), *words)


def test_a_set_that_is_not_there(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="did you mean 'cifar100'"):
        built_in("cifar-100")
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(built_in("usps"), "flwrlabs/usps", "FEDSDG_DATA", kind=FileNotFoundError)
    refused(built_in("tiny_imagenet_32"), "FEDSDG_DATA", kind=FileNotFoundError)
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path / "none"))
    refused(built_in("usps"), "no folder", kind=FileNotFoundError)
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    refused(pets("photos"), "photos", tmp_path, kind=FileNotFoundError)


def test_the_hub_gives_what_its_files_give(tmp_path, monkeypatch):
    import datasets

    images, labels, parts = noises(40), [0, 1] * 20, {}
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["eel", "cat"])}
    )
    for split, rows in (("train", slice(0, 30)), ("test", slice(30, 40))):
        cells = {"image": [*map(Image.fromarray, images[rows])], "label": labels[rows]}
        parts[split] = datasets.Dataset.from_dict(cells, features=features)
        table(tmp_path / "fish" / f"{split}.parquet", images[rows], labels[rows], ["eel", "cat"])
    subset = {("me/fish", "small"): parts}
    monkeypatch.setattr(datasets, "load_dataset", lambda *names: subset[names])
    source = Source(name="fish", hub="me/fish/small")
    data = load(source)
    assert np.array_equal(data.images, images) and data.classes == ("eel", "cat")
    del parts["train"]
    refused(source, "me/fish/small needs the splits 'train' and 'test', but has test")
    # Files in the data folder come first.
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    assert load(source).sha256 == data.sha256


# --- Layouts --------------------------------------------------------------------------------------


def test_a_folder_of_classes_gets_a_stratified_test_set(tmp_path):
    data = load(pets(folder(tmp_path, {"cat": 20, "dog": 10, "eel": 5})))
    assert data.classes == ("cat", "dog", "eel") and data.images.shape == (35, 12, 12, 3)
    assert np.bincount(data.labels[data.test]).tolist() == [4, 2, 1]
    assert not data.test[:28].any() and data.test[28:].all()
    # Every image has the label of its folder, wherever it was put.
    stored = {Image.open(f).tobytes(): f.parent.name for f in tmp_path.rglob("*.png")}
    names = [stored[bytes(image)] for image in data.images]
    assert names == [data.classes[label] for label in data.labels]
    assert load(pets(tmp_path)).sha256 == data.sha256 and data.notes == ()
    known = survey(pets(tmp_path))
    assert np.array_equal(known.labels, data.labels) and np.array_equal(known.test, data.test)


def test_a_class_may_be_called_train(tmp_path):
    counts = {"train/bus": 6, "train/train": 4, "test/bus": 2, "test/train": 1}
    data = load(pets(folder(tmp_path, counts)))
    assert data.classes == ("bus", "train") and np.bincount(data.labels).tolist() == [8, 5]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"cat": 3, "dog/small": 3}, "0.png is misplaced"),
        ({".": 3}, "0.png is misplaced"),
        ({"train": 3, "train/cat": 3}, "0.png is misplaced"),
        ({"Training/cat": 3, "Testing/cat": 3}, "needs the splits"),
        ({"train/cat": 3, "Testing/cat": 3}, "needs the splits"),
        ({"test/cat": 3, "test/dog": 3}, "needs the splits"),
        ({"cat": 5}, "1 classes"),
        ({"cat": 1, "dog": 1}, "too few test images"),
        ({"train/cat": 3, "train/dog": 3, "test/Dog": 3}, "too few images of class 'Dog'"),
        ({"cat": 3, "dog": 3, "eel": 0}, "eel has no image that Pillow can read"),
        ({"train/cat": 3, "train/dog": 3, "test/cat": 1, "test/dog": 0}, "test/dog has no image"),
    ],
)
def test_a_folder_that_lies_otherwise_is_refused(tmp_path, counts, words):
    refused(pets(folder(tmp_path, counts)), words)


def test_odd_files_beside_the_images(tmp_path, monkeypatch):
    folder(tmp_path / "elsewhere", {"cat": 6})
    root = folder(tmp_path / "[pets]", {"dog": 6}, start=100)
    (root / "cat").symlink_to(tmp_path / "elsewhere" / "cat")
    for name in (".DS_Store", "dog/._0.png", ".git/x.png", "__MACOSX/dog/._0.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"junk")
    # Links to folders above are followed by nobody, pipes would be read for ever.
    for name in ("loop", "again"):
        (root / "dog" / name).symlink_to(root / "dog")
    os.mkfifo(root / "dog" / "pipe.png")
    monkeypatch.chdir(root)
    data = load(pets("."))
    assert data.classes == ("cat", "dog") and len(data.labels) == 12 and data.notes == ()
    (root / "notes.txt").write_text("text")
    (root / "dog" / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    (root / "x.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    (note,) = load(pets(".")).notes
    assert note == "ignored files: 3, such as dog/Thumbs.db"


def test_names_that_are_not_utf_8(tmp_path):
    two_classes(tmp_path)
    (tmp_path / "a" / os.fsdecode(b"\xff.png")).write_bytes(encoded(noise(1)))
    (tmp_path / "b").rename(tmp_path / os.fsdecode(b"caf\xe9"))
    data = load(pets(tmp_path))
    assert data.classes == ("a", "caf\\xe9") and "leaked" in data.facts
    "\n".join((*data.classes, *data.notes)).encode()


def test_names_of_splits_match_whole(tmp_path):
    images, labels = noises(12), ["a", "b"] * 6
    parts = {"train": slice(0, 8), "test": slice(8, 10), "test_hard": slice(10, 12)}
    for name, rows in parts.items():
        table(tmp_path / f"{name}.parquet", images[rows], labels[rows])
    data = load(pets(tmp_path))
    assert len(data.labels) == 10 and data.test.sum() == 2
    assert data.notes == (f"ignored files: 1, such as {tmp_path / 'test_hard.parquet'}",)
    named = load(pets(tmp_path, test="test_hard"))
    assert np.array_equal(named.images[named.test], images[10:])
    assert len(load(pets(tmp_path / "train.parquet")).labels) == 8
    refused(pets(tmp_path, test="exam"), "needs the splits 'train' and 'exam'", "test_hard")


# --- Labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [["b", "a", "c"], [7, -1, 10], [True, False, True]])
def test_labels_are_numbered_in_their_order(tmp_path, labels):
    images = noises(30)
    table(tmp_path / "all.parquet", images, labels * 10)
    data = load(pets(tmp_path))
    classes = sorted(set(labels))
    assert data.classes == tuple(map(str, classes))
    stored = dict(zip(map(bytes, images), labels * 10, strict=True))
    assert [classes[label] for label in data.labels] == [stored[bytes(i)] for i in data.images]


def test_classes_are_the_same_by_name_and_not_by_number(tmp_path):
    table(tmp_path / "train.parquet", noises(8), [0, 1] * 4, ["cat", "dog"])
    for labels, names in (
        ([1, 0], ["cat", "dog"]),
        ([0, 1], ["dog", "cat"]),
        (["dog", "cat"], None),
    ):
        table(tmp_path / "test.parquet", noises(4, 8), labels * 2, names)
        data = load(pets(tmp_path))
        assert data.classes == ("cat", "dog")
        assert data.labels.tolist() == [0, 1] * 4 + [1, 0] * 2


@pytest.mark.parametrize(
    ("labels", "names", "words"),
    [
        (["a", None, "b", "a"], None, "test.parquet, row 1: column 'label' is empty"),
        ([0, 1, 2, -1], ["a", "b"], "test.parquet, row 2: column 'label' is empty or the number"),
        ([0.5, 1.0, 2.0, 1.0], None, "test.parquet: no column 'label' of labels"),
        ([True, False] * 2, None, "'label' holds numbers in some rows"),
    ],
)
def test_a_label_that_says_nothing_is_named_with_file_and_row(tmp_path, labels, names, words):
    kind = ["a", "b"] if isinstance(labels[0], str) else [0, 1]
    table(tmp_path / "train.parquet", noises(100), kind * 50, names)
    table(tmp_path / "test.parquet", noises(4, 100), labels, names)
    refused(pets(tmp_path), words)


def test_other_columns_are_kept_for_clients(tmp_path):
    writers = pa.array(["x", None, "y"] * 10)
    table(tmp_path / "a.parquet", noises(30), [0, 1] * 15, writer=writers)
    column = load(pets(tmp_path)).columns["writer"]
    assert column.names == ("x", "y") and np.bincount(column.codes + 1).tolist() == [10, 10, 10]
    refused(pets(tmp_path, label="kind"), "no column 'kind' of labels", "writer")
    refused(pets(tmp_path, image="writer"), "no column 'writer' of images")


def test_tables_that_cannot_be_read(tmp_path):
    file = tmp_path / "data.parquet"
    image, label = pa.array([encoded(noise(1))] * 4), pa.array([0, 1] * 2)
    pq.write_table(pa.table([image, label, label], names=["image", "label", "label"]), file)
    refused(pets(tmp_path), file, "no column 'label' of labels")
    file.write_bytes(file.read_bytes()[:-20])
    refused(pets(tmp_path), file, "truncated")
    file.rename(tmp_path / "data.npz")
    refused(pets(tmp_path), tmp_path, "no parquet files and no images", kind=FileNotFoundError)


# --- Pixels ---------------------------------------------------------------------------------------


def mean_of_class(data, label):
    return data.images[data.labels == label].astype(float).mean(axis=0)


# A bitmap of 2×2 white pixels, red and blue of 5 bits and green of 6.
BITMAP = struct.pack("<IIIIiiHHIIiiII", 66, 0, 54, 40, 2, 2, 1, 16, 0, 8, 0, 0, 0, 0)
CONTENTS = {
    "bitmap of 16 bits": (b"BM" + BITMAP + b"\xff\xff" * 4, "white", 255),
    "transparent RGBA": (encoded(Image.new("RGBA", (8, 8), 0)), "white", 255),
    "transparent LA": (encoded(Image.new("LA", (8, 8), 0)), "grey", 128),
    "transparent P": (encoded(Image.new("L", (8, 8), 0).quantize(), transparency=0), "white", 255),
    "half transparent": (encoded(Image.new("RGBA", (8, 8), (100, 100, 100, 128))), "black", 50),
}
for mode in ("L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"):
    grey = Image.new("RGB", (8, 8), (204, 204, 204)).convert(mode)
    CONTENTS[mode] = encoded(grey, "jpeg" if mode in ("CMYK", "YCbCr") else "png"), "white", 204


@pytest.mark.parametrize("kind", CONTENTS)
def test_any_mode_is_read_and_transparent_pixels_take_the_background(tmp_path, kind):
    content, background, value = CONTENTS[kind]
    table(tmp_path / "a.parquet", [content] * 5 + noises(5), [0] * 5 + [1] * 5)
    data = load(pets(tmp_path, size=8, background=background))
    assert np.abs(mean_of_class(data, 0) - value).max() <= 2 and data.images.shape[3] == 3
    note, transparent = f"transparent pixels, made {background}: 5", "transparent" in kind
    assert data.facts["transparent"] == 5 * transparent
    assert [note in line for line in data.notes].count(True) == transparent


def test_channels_follow_the_images(tmp_path):
    images = [noise(k, (6, 6)) for k in range(10)]
    table(tmp_path / "a.parquet", images, [0, 1] * 5)
    assert load(pets(tmp_path)).images.shape == (10, 6, 6)
    assert load(pets(tmp_path, channels=3)).images.shape == (10, 6, 6, 3)
    table(tmp_path / "a.parquet", [*images, noise(1, (6, 6, 3))], [0, 1] * 5 + [0])
    assert load(pets(tmp_path)).images.shape == (11, 6, 6, 3)
    grey = load(pets(tmp_path, channels=1))
    assert grey.images.shape == (11, 6, 6) and grey.facts["channels"] == 1


@pytest.mark.parametrize(("fit", "mean"), [("crop", 1.0), ("pad", 1 / 9), ("stretch", 1 / 3)])
def test_images_become_square_as_declared(tmp_path, fit, mean):
    image = np.zeros((10, 30, 3), np.uint8)
    image[:, 10:20] = 255
    table(tmp_path / "a.parquet", [image] * 4 + noises(4), [0] * 4 + [1] * 4)
    data = load(pets(tmp_path, size=10, fit=fit))
    assert abs(mean_of_class(data, 0).mean() / 255 - mean) < 0.06
    assert data.images.shape == (8, 10, 10, 3) and data.facts["fit"] == fit
    # Images of several sizes become 64 pixels wide.
    assert load(pets(tmp_path)).images.shape == (8, 64, 64, 3)


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, -1), (8, 1)])
def test_a_photograph_is_set_upright(tmp_path, orientation, turns):
    pixels = noise(0, (8, 8))
    exif = Image.Exif()
    exif[274] = orientation
    stored = encoded(Image.fromarray(pixels), exif=exif)
    table(tmp_path / "a.parquet", [stored] * 5 + [noise(1, (8, 8))] * 5, [0] * 5 + [1] * 5)
    assert np.array_equal(mean_of_class(load(pets(tmp_path)), 0), np.rot90(pixels, turns))


# Pillow opens colour of 16 bits in a mode of 8 bits, and does not write it: IHDR says 16, RGB.
RGB_16 = "89504e470d0a1a0a0000000d4948445200000001000000011002000000c0e78f9d0000000c494441"
RGB_16 += "54789c63103201410002b300d3fab702450000000049454e44ae426082"
DEEP = {
    "grey.png": encoded(Image.fromarray(np.full((8, 8), 40_000, np.uint16))),
    "colour.png": bytes.fromhex(RGB_16),
    "colour.ppm": b"P6 2 2 65535\n" + b"\x12\x34" * 12,
}


@pytest.mark.parametrize("name", DEEP)
def test_more_than_8_bits_are_refused_by_name(tmp_path, name):
    (two_classes(tmp_path) / "a" / name).write_bytes(DEEP[name])
    refused(pets(tmp_path), tmp_path / "a" / name, "more than 8 bits per channel, such as 16")


# --- Faults of images -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.jfif", "x.JPG2", "x", "x.jpeg.bak"])
def test_images_are_known_by_their_content(tmp_path, name):
    folder(tmp_path, {"a": 0, "b": 10})
    for k in range(10):
        (tmp_path / "a" / f"{k}{name}").write_bytes(encoded(noise(100 + k), "jpeg"))
    data = load(pets(tmp_path))
    assert np.bincount(data.labels).tolist() == [10, 10] and data.notes == ()


def test_a_class_without_a_readable_image_is_an_error_that_names_a_file(tmp_path):
    folder(split_classes(tmp_path), {"train/c": 0})
    (tmp_path / "train" / "c" / "1.heic").write_bytes(b"\0\0\0\x18ftypheic")
    refused(pets(tmp_path), "c has no image that Pillow can read", "1.heic")


def test_what_is_wrong_with_an_image_is_said(tmp_path, monkeypatch):
    file = two_classes(tmp_path) / "a" / "1.png"
    before = listing(pets(tmp_path))
    assert listing(pets(tmp_path)) == before
    os.utime(file, ns=(0, 0))
    assert listing(pets(tmp_path)) != before, "other pixels may have as many bytes"
    before = listing(pets(tmp_path))
    file.write_bytes(file.read_bytes()[:200])
    refused(pets(tmp_path), file, "truncated")
    assert listing(pets(tmp_path)) != before, "the workflow does what it did again"
    file.unlink()
    file.symlink_to(tmp_path / "gone.png")
    refused(pets(tmp_path), file, "No such file")
    file.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
        refused(pets(tmp_path), "0.png", "144 pixels")
    for content in (b"", b"junk"):
        table(tmp_path / "train.parquet", noises(8), [0, 1] * 4)
        table(tmp_path / "test.parquet", [noise(9), content], [0, 1])
        refused(pets(tmp_path), tmp_path / "test.parquet", "row 1", "empty, or no image")


# --- Classes of one image, and test images that are training images -------------------------------


def test_the_only_image_of_a_class_is_for_training(tmp_path):
    single = {f"rare{k}": 1 for k in range(6)}
    data = load(pets(folder(tmp_path, {"a": 12, "b": 12} | single)))
    assert set(data.labels[~data.test]) == set(range(8))
    (note,) = data.notes
    assert all(name in note for name in single)


def test_test_images_that_are_training_images_are_counted_with_one_pair(tmp_path):
    split_classes(tmp_path)
    for k in range(2):
        # Pixels are compared, not files.
        pixels = Image.open(tmp_path / "train" / "a" / f"{k}.png").convert("RGBA")
        pixels.save(tmp_path / "test" / "a" / f"{k}.webp", lossless=True)
    (note,) = load(pets(tmp_path)).notes
    pair = [tmp_path / "test" / "a" / "0.webp", tmp_path / "train" / "a" / "0.png"]
    assert "2 of 6" in note and f"{pair[0]}, which is {pair[1]}" in note


def test_a_drawn_test_set_is_compared_too_and_resizing_makes_no_copies(tmp_path):
    images = [noise(5)] * 10 + [noise(k, (12 + k % 3, 12, 3)) for k in range(100, 110)]
    table(tmp_path / "all.parquet", images, [0] * 10 + [1] * 10)
    (note,) = load(pets(tmp_path, size=8)).notes
    assert "2 of 4" in note
    flat = [np.full((k + 4, 12, 3), 7, np.uint8) for k in range(20)]
    table(tmp_path / "all.parquet", flat, [0, 1] * 10)
    assert load(pets(tmp_path, size=8)).notes == ()


@pytest.mark.parametrize("given", [{"folder": "x", "name": "a/b"}, {}, {"folder": "x", "hub": "y"}])
def test_a_declaration_has_a_name_and_one_origin(given):
    with pytest.raises(ValueError, match=r"name is 'a/b'|'folder' or 'hub', exactly one"):
        Source(**{"name": "pets", **given})
