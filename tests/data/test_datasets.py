"""Data sets: what is declared is what is loaded, and everything else is one clear sentence."""

import io
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from fedsdg.data import stored_images
from fedsdg.data.datasets import DATASETS, image_data, load_dataset
from fedsdg.experiment.conditioned import evaluated_samples
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.config_files import merged_config
from fedsdg.experiment.material import make_partition

CONFIGS = Path(__file__).parents[2] / "config"
REAL = os.environ.get("FEDSDG_DATA")


def encode(pixels, form="PNG", mode=None):
    buffer = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(buffer, form, lossless=True)
    return buffer.getvalue()


def write(path, images, labels, image="image", label="label", form="PNG", mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": encode(x, form, mode), "path": f"{i}.png"} for i, x in enumerate(images)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({image: pa.array(cells, kind), label: pa.array(labels)}), path)


@pytest.fixture
def usps(tmp_path, monkeypatch):
    """A folder with 5 + 3 random 16×16 images in two train files and a test file."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, 16, 16), dtype=np.uint8)
    labels = [3, 1, 4, 1, 5, 9, 2, 6]
    folder = tmp_path / "usps" / "data"
    # Written in this order to show that names decide, not time.
    write(folder / "test-00000-of-00001.parquet", images[5:], labels[5:])
    write(folder / "train-00001-of-00002.parquet", images[3:5], labels[3:5])
    write(folder / "train-00000-of-00002.parquet", images[:3], labels[:3])
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    return folder, images, labels


def test_digits_are_scikit_learns(monkeypatch):
    monkeypatch.delenv("FEDSDG_DATA", raising=False)
    data, source = load_dataset("digits"), load_digits()
    assert data.images.dtype == np.uint8 and data.images.shape == (1797, 8, 8)
    assert np.array_equal(data.labels, source.target) and data.labels.dtype == np.int64
    # 17 levels, ends at 0 and 255, invertible.
    assert np.array_equal(np.rint(data.images * (16 / 255)), source.images)
    assert data.images.min() == 0 and data.images.max() == 255
    assert data.num_classes == 10 and not data.official_test.any()


def test_folder_is_read_in_order(usps):
    _, images, labels = usps
    data = load_dataset("usps")
    assert np.array_equal(data.images, images)
    assert data.labels.tolist() == labels
    assert data.official_test.tolist() == [False] * 5 + [True] * 3
    assert data.images.shape == (8, 16, 16)


def test_hash_depends_on_the_content_alone(usps):
    folder, images, labels = usps
    before = load_dataset("usps").sha256
    for file in folder.iterdir():
        file.unlink()
    write(folder / "train.parquet", images[:5], labels[:5], form="WEBP", mode="RGB")
    write(folder / "test.parquet", images[5:], labels[5:])
    assert load_dataset("usps").sha256 == before, "grey stored as lossless RGB is the same data"
    images[7, 15, 15] ^= 1
    write(folder / "test.parquet", images[5:], labels[5:])
    assert load_dataset("usps").sha256 != before


def test_hash_covers_labels_flags_and_shape():
    images, labels = np.zeros((4, 2, 8), dtype=np.uint8), np.array([0, 1, 2, 3])
    flags = np.array([False, False, True, True])
    hashes = {
        image_data("x", images, labels, 4, flags).sha256,
        image_data("x", images, labels[::-1], 4, flags).sha256,
        image_data("x", images, labels, 4, ~flags).sha256,
        image_data("x", images, labels, 4).sha256,
        image_data("x", images.reshape(4, 4, 4), labels, 4, flags).sha256,
        image_data("x", images, labels, 5, flags).sha256,
    }
    assert len(hashes) == 6


def test_colour_and_declared_columns(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    for split, part in (("train", slice(0, 4)), ("test", slice(4, 6))):
        write(
            tmp_path / "cifar100" / f"{split}.parquet",
            images[part],
            [99, 0, 50, 7, 8, 9][part],
            image="img",
            label="fine_label",
        )
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    data = load_dataset("cifar100")
    assert np.array_equal(data.images, images)
    assert data.labels.tolist() == [99, 0, 50, 7, 8, 9] and data.num_classes == 100


def test_unknown_name_suggests_a_known_one():
    with pytest.raises(ValueError, match="did you mean 'cifar100'"):
        load_dataset("cifar-100")
    with pytest.raises(ValueError, match="known are digits") as caught:
        load_dataset("qqqqqq")
    assert all(name in str(caught.value) for name in DATASETS)


def test_missing_column_names_those_found(usps):
    folder, images, labels = usps
    write(folder / "test-00000-of-00001.parquet", images[5:], labels[5:], image="pixels")
    with pytest.raises(ValueError, match=r"no column 'image'.*'pixels', 'label'"):
        load_dataset("usps")


@pytest.mark.parametrize("keep", [0, 10, 0.5, -1])
def test_truncated_file_is_named(usps, keep):
    file = usps[0] / "train-00001-of-00002.parquet"
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match=r"train-00001-of-00002\.parquet is truncated"):
        load_dataset("usps")


def test_corrupt_image_is_named(usps):
    file = usps[0] / "test-00000-of-00001.parquet"
    table = pq.read_table(file)
    cells = table.column("image").to_pylist()
    for damaged in (cells[1]["bytes"][:60], b"", None, b"no image at all"):
        cells[1]["bytes"] = damaged
        column = pa.array(cells, table.schema.field("image").type)
        pq.write_table(table.set_column(0, "image", column), file)
        with pytest.raises(ValueError, match=r"test-00000.*row 1 cannot be decoded"):
            load_dataset("usps")


def test_wrong_size_is_named(usps):
    folder, images, labels = usps
    write(folder / "test-00000-of-00001.parquet", images[5:, :, :9], labels[5:])
    with pytest.raises(ValueError, match=r"row 0 is 9×16 pixels.*16×16"):
        load_dataset("usps")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 2, 10], "labels run from 1 to 10"),
        ([-1, 2, 3], "labels run from -1"),
        ([1, None, 2], "1 empty"),
        (["1", "2", "3"], "whole numbers"),
    ],
)
def test_bad_labels_are_named(usps, labels, message):
    folder, images, _ = usps
    write(folder / "test-00000-of-00001.parquet", images[5:], labels)
    with pytest.raises(ValueError, match=f"test-00000.*{message}"):
        load_dataset("usps")


def test_column_without_images(usps):
    pq.write_table(
        pa.table({"image": [1, 2], "label": [1, 2]}), usps[0] / "test-00000-of-00001.parquet"
    )
    with pytest.raises(ValueError, match="must hold encoded images"):
        load_dataset("usps")


def test_missing_shard_is_not_a_smaller_data_set(usps):
    (usps[0] / "train-00000-of-00002.parquet").unlink()
    with pytest.raises(FileNotFoundError, match="has 1 of the 2 files train"):
        load_dataset("usps")


def test_missing_test_set_is_not_an_unlabelled_choice(usps):
    (usps[0] / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"no test\.parquet.*has data/train-00000"):
        load_dataset("usps")


def test_folder_variable_must_name_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError, match="FEDSDG_DATA names"):
        load_dataset("usps")


def test_set_without_hub_says_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"'tiny_imagenet_32' is not on the hub.*FEDSDG"):
        load_dataset("tiny_imagenet_32")


def test_image_data_checks_its_arrays():
    images, labels = np.zeros((3, 2, 2), dtype=np.uint8), np.array([0, 1, 2])
    with pytest.raises(ValueError, match="must be uint8"):
        image_data("x", images.astype(np.float32), labels, 3)
    with pytest.raises(ValueError, match="must be uint8"):
        image_data("x", np.zeros((3, 2, 2, 4), dtype=np.uint8), labels, 3)
    with pytest.raises(ValueError, match="3 images, 2 labels"):
        image_data("x", images, labels[:2], 3)
    with pytest.raises(ValueError, match="from 0 to 2"):
        image_data("x", images, labels, 2)


@pytest.mark.slow
def test_hub_is_read_through_the_hub_library(usps, tmp_path, monkeypatch):
    """The hub's answer is stood in for by the library's own reading of local files."""
    import datasets

    folder, images, labels = usps
    asked = []
    load = datasets.load_dataset

    def from_files(hub_id):
        asked.append(hub_id)
        files = {s: sorted(map(str, folder.glob(f"{s}*.parquet"))) for s in ("train", "test")}
        features = datasets.Features(
            {"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)}
        )
        return load(
            "parquet", data_files=files, features=features, cache_dir=str(tmp_path / "cache")
        )

    local = load_dataset("usps")
    monkeypatch.setattr(datasets, "load_dataset", from_files)
    monkeypatch.delenv("FEDSDG_DATA")
    data = load_dataset("usps")
    assert asked == ["flwrlabs/usps"]
    assert np.array_equal(data.images, images) and data.labels.tolist() == labels
    assert data.sha256 == local.sha256

    parts = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"image": [], "digit": []})})
    monkeypatch.setattr(datasets, "load_dataset", lambda _: parts)
    with pytest.raises(ValueError, match=r"usps \(train\) has no column 'label'.*'image', 'digit'"):
        load_dataset("usps")
    monkeypatch.setattr(datasets, "load_dataset", lambda _: {"test": None})
    with pytest.raises(ValueError, match="no split 'train': found test"):
        load_dataset("usps")


def test_without_the_hubs_library_local_files_do_and_the_hub_says_what_to_do(usps, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert len(load_dataset("usps").images) == len(usps[1])
    monkeypatch.delenv("FEDSDG_DATA")
    with pytest.raises(FileNotFoundError, match="flwrlabs/usps.*datasets.*set FEDSDG_DATA"):
        load_dataset("usps")


@pytest.mark.slow
def test_hub_without_network_is_one_clear_error(tmp_path):
    program = textwrap.dedent("""
        from fedsdg.data.datasets import load_dataset
        try:
            load_dataset("mnist")
        except FileNotFoundError as error:
            print(error)
    """)
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    environment.pop("FEDSDG_DATA", None)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for word in ("'mnist'", "ylecun/mnist", "FEDSDG_DATA"):
        assert word in done.stdout
    assert len(done.stdout.strip().splitlines()) == 1


def test_importing_the_room_is_cheap():
    program = (
        "import sys, fedsdg.data.datasets, fedsdg.data.partition;"
        "assert not {'torch', 'datasets', 'sklearn', 'PIL', 'matplotlib'} & set(sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="FEDSDG_DATA is not set: no real data sets at hand")
@pytest.mark.parametrize(
    ("name", "train", "test", "shape", "classes"),
    [
        ("usps", 7291, 2007, (16, 16), 10),
        ("mnist", 60000, 10000, (28, 28), 10),
        ("cifar100", 50000, 10000, (32, 32, 3), 100),
    ],
)
def test_real_data(name, train, test, shape, classes):
    folder = Path(str(REAL)) / name
    if not folder.is_dir():
        pytest.skip(f"FEDSDG_DATA holds no {name}")
    data = load_dataset(name)
    assert data.images.shape == (train + test, *shape)
    assert (~data.official_test).sum() == train and data.official_test.sum() == test
    assert not data.official_test[:train].any()
    assert sorted(set(data.labels.tolist())) == list(range(classes)) and data.num_classes == classes
    spec = DATASETS[name]
    at = 0
    for file in [*sorted(folder.rglob("train*")), *sorted(folder.rglob("test*"))]:
        table = pq.read_table(file)
        stored = table.column(spec.label_column).to_numpy()
        assert np.array_equal(data.labels[at : at + len(stored)], stored)
        for row in (0, 17, len(stored) - 1):
            content = table.column(spec.image_column)[row].as_py()["bytes"]
            pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
            ours = data.images[at + row]
            assert np.array_equal(ours if ours.ndim == 3 else np.stack([ours] * 3, -1), pixels)
        at += len(stored)
    assert at == train + test


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="FEDSDG_DATA is not set: no real data sets at hand")
def test_global_images_of_cifar100_are_five_of_each_class():
    if not (Path(str(REAL)) / "cifar100").is_dir():
        pytest.skip("FEDSDG_DATA holds no cifar100")
    data = load_dataset("cifar100")
    raw = merged_config([CONFIGS / "paper.yaml", CONFIGS / "cifar100.yaml"])
    raw["partition"] |= {"test": "fixed"}
    raw["federation"] |= {"global_images": 500}
    config = parse_config(raw)
    chosen = []
    for seed, skew, clients in ((0, "dirichlet~0.1", 50), (3, "iid", 20)):
        run = replace(config.run("cifar100", config.skews[0], config.methods[0], seed), skew=skew)
        partition = make_partition(data, skew, seed, clients, config.partition)
        chosen.append(evaluated_samples(run, partition))
    assert np.array_equal(*chosen)
    assert data.official_test[chosen[0]].all()
    assert np.bincount(data.labels[chosen[0]]).tolist() == [5] * 100


def test_the_table_is_complete():
    assert list(DATASETS) == [
        "digits",
        "mnist",
        "usps",
        "fashion_mnist",
        "cifar10",
        "cifar100",
        "tiny_imagenet_32",
        "digits_domains",
        "mnist_usps",
    ]
    for spec in DATASETS.values():
        assert spec.channels in (1, 3)
        read = spec.image_column and spec.label_column
        assert read or spec.name == "digits" or spec.domains
    assert issubclass(stored_images.MissingColumnError, ValueError)
