"""Tables beside images: what they say is read, and what contradicts itself is refused."""

import pytest

from fedsdg.data.own_data import OwnData
from fedsdg.experiment.loading import load_images
from tests.own_images import stamped, write_image
from tests.refusals import refused


@pytest.fixture
def folder(tmp_path):
    """Four images in no folder of a class."""
    for number in range(4):
        write_image(tmp_path / f"{number}.png", stamped(number))
    return tmp_path


def loaded(folder, **more):
    return load_images(OwnData(name="mine", folder=str(folder), **more))


def say(folder, *lines, header="file_name,label"):
    (folder / "metadata.csv").write_text("\n".join([header, *lines]) + "\n")


ROWS = ("0.png,a", "1.png,b", "2.png,a", "3.png,b")


def test_rows_that_contradict_each_other_are_refused(folder):
    say(folder, *ROWS, "1.png,a")
    with refused("line 6", "line 3", "1.png is 'a'", "it is 'b'", "remove one of the two rows"):
        loaded(folder)
    say(folder, *ROWS, "./1.png,a")
    with refused("remove one of the two rows"):
        loaded(folder)


def test_a_row_that_stands_there_twice_says_the_same(folder):
    say(folder, *ROWS, "", "1.png,b")
    data = loaded(folder)
    assert [data.classes[label] for label in data.labels[data.images[:, 0, 0].argsort()]] == [
        "a", "b", "a", "b",
    ]  # fmt: skip


def test_two_tables_that_contradict_each_other_are_refused(tmp_path):
    for number, place in enumerate(["a", "a", "b", "b"]):
        write_image(tmp_path / place / f"{number}.png", stamped(number))
    rows = "a/0.png,u\na/1.png,u\nb/2.png,v\nb/3.png,v\n"
    (tmp_path / "metadata.csv").write_text(f"file_name,writer\n{rows}")
    (tmp_path / "b/metadata.csv").write_text("file_name,writer\n2.png,v\n3.png,w\n")
    with refused("b/metadata.csv, line 3", "metadata.csv, line 5", "b/3.png is 'v'", "it is 'w'"):
        loaded(tmp_path)


def test_a_column_that_is_there_twice_is_refused(folder):
    say(folder, *(f"{row},x" for row in ROWS), header="file_name,label,label")
    with refused("two columns 'label'"):
        loaded(folder)


@pytest.mark.parametrize("row", ["1.png,b,more", "1.png,b,", "1.png"])
def test_a_row_of_another_length_is_refused(folder, row):
    say(folder, ROWS[0], row, *ROWS[2:])
    with refused("metadata.csv, line 3", f"has {row.count(',') + 1} cells", "the header has 2"):
        loaded(folder)


def test_a_column_does_not_replace_the_folders_of_classes(tmp_path):
    for number, place in enumerate(["a", "a", "b", "b"]):
        write_image(tmp_path / place / f"{number}.png", stamped(number))
    rows = ["a/0.png,a", "a/1.png,a", "b/2.png,b", "b/3.png,a"]
    say(tmp_path, *rows)
    with refused("b/3.png", "folder of the label 'b'", "label 'a'", "rename that column"):
        loaded(tmp_path)
    say(tmp_path, *rows, header="file_name,species")
    assert loaded(tmp_path, label="species").labels.sum() == 1
    say(tmp_path, *rows[:3], "b/3.png,b")
    assert loaded(tmp_path).labels.sum() == 2, "the column agrees with the folders"
