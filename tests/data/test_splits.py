"""Splits: which files are trained on, which are tested on, and images that are in both."""

import numpy as np
import pytest

from fedsdg.data.datasets import load_dataset
from fedsdg.data.own_data import OwnData
from fedsdg.data.own_images import survey
from fedsdg.data.splits import all_names, names_of
from fedsdg.experiment.declared_data import description, left_out
from fedsdg.experiment.loading import load_images
from tests.own_images import stamped, write_image, write_table
from tests.refusals import refused


def own(folder, **more):
    return OwnData(name="mine", folder=str(folder), **more)


def tables(folder, *files, each=2):
    """Parquet files of ``each`` images, all different; returns the numbers in each."""
    numbers = {}
    for place, file in enumerate(files):
        numbers[file] = list(range(each * place, each * (place + 1)))
        labels = [i % 2 for i in range(each)]
        write_table(folder / file, [stamped(n) for n in numbers[file]], label=labels)
    return numbers


def sides(data):
    """The numbers of the training and of the test images (see ``stamped``)."""
    found = data.images.reshape(len(data.images), -1)[:, 0]
    return [sorted(found[data.official_test == side].tolist()) for side in (False, True)]


# --- Whole names, shards and folders --------------------------------------------------------------


def test_a_split_is_a_whole_name_and_not_its_beginning(tmp_path):
    made = tables(tmp_path, "survey.parquet", "survey-2024.parquet", "survey-2025.parquet")
    data = load_images(own(tmp_path, train="survey", test="survey-2024"))
    assert sides(data) == [made["survey.parquet"], made["survey-2024.parquet"]]
    assert data.facts["left_out"] == ["survey-2025.parquet"]


def test_a_harder_test_set_beside_the_test_set_is_left_out(tmp_path):
    made = tables(tmp_path, "train.parquet", "test.parquet", "test_hard.parquet")
    data = load_images(own(tmp_path))
    assert sides(data) == [made["train.parquet"], made["test.parquet"]]
    assert data.facts["left_out"] == ["test_hard.parquet"]


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (["default/train/0000.parquet", "default/train/0001.parquet"],
         ["default/test/0000.parquet"]),
        (["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
         ["data/test-00000-of-00001.parquet"]),
        (["train-00000-of-00001-a09b74b3ef9c3b56.parquet"], ["test.parquet"]),
    ],
)  # fmt: skip
def test_the_layouts_of_the_hub_keep_their_splits(tmp_path, train, test):
    made = tables(tmp_path, *train, *test)
    wanted = [[n for file in files for n in made[file]] for files in (train, test)]
    data = load_images(own(tmp_path))
    assert sides(data) == wanted and "left_out" not in data.facts


def test_a_set_of_the_table_follows_the_same_rule(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    numbers = {"default/train/0000.parquet": [0, 1], "default/test/0000.parquet": [2],
               "default/test_hard/0000.parquet": [3], "training.parquet": [4]}  # fmt: skip
    for file, images in numbers.items():
        write_table(
            tmp_path / "usps" / file, [stamped(n, 16) for n in images], label=[0] * len(images)
        )
    data = load_dataset("usps")
    assert sides(data) == [[0, 1], [2]]
    assert data.facts["left_out"] == ["default/test_hard/0000.parquet", "training.parquet"]


def test_names_of_files_are_their_folders_and_their_own_without_a_shards_number(tmp_path):
    file = (tmp_path / "a" / "b-00001-of-00009.parquet").relative_to(tmp_path)
    assert names_of(file) == ("a", "b")
    assert all_names([file, file.with_name("0000.parquet")]) == ["a", "b"]


def test_a_test_split_alone_can_be_what_is_trained_on(tmp_path):
    made = tables(tmp_path, "train.parquet", "test.parquet", each=10)
    data = load_images(own(tmp_path, train="test"))
    assert sorted(np.concatenate(sides(data))) == made["test.parquet"]
    assert data.facts["test"] == {"drawn": 0.2, "images": 2}


def test_images_beside_the_folders_of_splits_are_listed(tmp_path):
    for number, name in enumerate(["train/a/0", "train/b/1", "test/a/2", "stray", "val/a/3"]):
        write_image(tmp_path / f"{name}.png", stamped(number))
    assert load_images(own(tmp_path)).facts["left_out"] == ["val", "stray.png"]


def test_what_is_left_out_is_said_before_training(tmp_path):
    tables(tmp_path, "train.parquet", *(f"extra_{n:02d}.parquet" for n in range(14)))
    (sentence,) = left_out({"mine": own(tmp_path)})
    assert "'mine'" in sentence and "extra_00.parquet" in sentence
    assert sentence.endswith("extra_11.parquet and 2 more")
    assert not list(left_out({"mine": own(tmp_path / "nowhere")}))


# --- What is refused ------------------------------------------------------------------------------


def test_a_split_without_files_is_refused_with_those_there_are(tmp_path):
    tables(tmp_path, "default/train/0000.parquet", "survey-2024.parquet")
    for given in ({"train": "survey"}, {"train": "train", "test": "0000.parq"}):
        with refused("has no split", "there are default, train, survey-2024"):
            survey(own(tmp_path, **given), np.random.default_rng(0))


def test_a_file_of_two_splits_is_refused(tmp_path):
    tables(tmp_path, "data/train.parquet", "data/test.parquet")
    with refused("data/test.parquet", "'data' and 'test'", "name other splits"):
        load_images(own(tmp_path, train="data", test="test"))


@pytest.mark.parametrize(
    "files", [("train_1.parquet", "test_1.parquet"), ("Train/0.parquet", "Test/0.parquet"),
              ("partial-train/0.parquet", "validation/0.parquet")]
)  # fmt: skip
def test_names_that_mean_a_split_are_not_pooled(tmp_path, files):
    tables(tmp_path, *files)
    with refused("has no split 'train'", "reads like one", "split: {train: …, test: …}"):
        load_images(own(tmp_path))


def test_folders_of_images_that_mean_a_split_are_not_domains(tmp_path):
    for number, place in enumerate(["Training/a", "Training/b", "Testing/a", "Testing/b"]):
        write_image(tmp_path / place / "0.png", stamped(number))
    with refused("has no split 'train'", "'Testing'", "split: {train: …, test: …}"):
        load_images(own(tmp_path))
    data = load_images(own(tmp_path, train="Training", test="Testing"))
    assert sides(data) == [[0, 1], [2, 3]] and data.domains == ()


def test_every_shard_is_there_once(tmp_path):
    tables(tmp_path, "data-00000-of-00002.parquet")
    with refused("has 1 of the 2 files data-", kind=FileNotFoundError):
        load_images(own(tmp_path))
    two = [f"train-0000{n}-of-00002{version}.parquet" for n, version in
           ((0, ""), (1, ""), (1, "-a09b74b3ef9c3b56"))]  # fmt: skip
    tables(tmp_path / "versions", *two)
    with refused("two versions"):
        load_images(own(tmp_path / "versions"))


# --- Images in both -------------------------------------------------------------------------------


def test_test_images_that_are_trained_on_are_refused_with_three_pairs(tmp_path):
    images = [stamped(n) for n in range(8)]
    write_table(tmp_path / "train.parquet", images, label=[0, 1] * 4)
    # Rows 1 to 4 of the test are 2 to 5 of the training, under other labels.
    write_table(tmp_path / "test.parquet", [stamped(99), *images[2:6]], label=[0, 1, 0, 1, 0])
    with refused(
        "4 of the 5 test images",
        *(f"test.parquet, row {n} is {tmp_path / 'train.parquet'}, row {n + 1}" for n in (1, 2, 3)),
        "mine.duplicates to report",
        without="row 4 is",
    ):
        load_images(own(tmp_path))
    reported = load_images(own(tmp_path, duplicates="report"))
    assert reported.facts["duplicates"]["images"] == 4
    assert reported.facts["duplicates"]["pairs"][0] == [
        f"{tmp_path / 'test.parquet'}, row 1",
        f"{tmp_path / 'train.parquet'}, row 2",
    ]


def test_pixels_are_compared_and_not_files(tmp_path):
    """The same pixels as PNG and BMP, as grey and as colour, in a table and in shards."""
    write_image(tmp_path / "train/a/0.png", stamped(7))
    write_image(tmp_path / "train/b/1.png", stamped(8, colour=True))
    write_image(tmp_path / "test/b/2.bmp", stamped(7, colour=True))
    write_image(tmp_path / "test/a/3.png", stamped(8, size=9))
    with refused("1 of the 2 test images", "test/b/2.bmp is", "train/a/0.png"):
        load_images(own(tmp_path))
    (tmp_path / "test/b/2.bmp").unlink()
    assert sides(load_images(own(tmp_path, size=8))) == [[7, 8], [8]], "of another size"


def test_images_that_only_become_equal_by_resizing_are_two(tmp_path):
    pixels = np.zeros((8, 8), dtype=np.uint8)
    for number, place in enumerate(["train/a", "train/b", "test/a", "test/b"]):
        one = pixels.copy()
        one[0, number] = 255
        write_image(tmp_path / place / "0.png", one)
    data = load_images(own(tmp_path, size=1, resize="nearest"))
    assert len(np.unique(data.images)) == 1


def test_a_drawn_test_set_is_compared_too(tmp_path):
    """Twenty copies of one image a class: every draw puts some of them on both sides."""
    for number in range(40):
        write_image(tmp_path / "ab"[number % 2] / f"{number:02d}.png", stamped(number % 2))
    with refused("8 of the 8 test images"):
        load_images(own(tmp_path))


def test_equal_images_within_the_training_split_are_no_error(tmp_path):
    write_table(tmp_path / "train.parquet", [stamped(1)] * 4, label=[0, 1] * 2)
    write_table(tmp_path / "test.parquet", [stamped(2)] * 2, label=[0, 1])
    plain = load_images(own(tmp_path))
    assert "duplicates" not in plain.facts
    assert load_images(own(tmp_path, duplicates="report")).facts["duplicates"]["images"] == 0


def test_the_key_leaves_divisions_made_before_up_to_date(tmp_path):
    tables(tmp_path, "train.parquet")
    entry = {"name": "mine", "folder": str(tmp_path)}

    def described(**more):
        return description({"datasets": [entry | more]}, "mine")["data"]

    assert "duplicates" not in described() and described() == described(duplicates="refuse")
    assert described(duplicates="report")["duplicates"] == "report"
