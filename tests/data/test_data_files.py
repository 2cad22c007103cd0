"""Files below a data set's folder: links, hidden files, and names that cannot be written down."""

import os
import shutil

import pytest

from fedsdg.cli import main
from fedsdg.data.data_files import files_below
from fedsdg.data.own_data import OwnData
from fedsdg.experiment.loading import load_images, survey_of
from tests.own_images import stamped, write_image
from tests.refusals import refused


@pytest.fixture
def folder(tmp_path):
    """Two classes of two images."""
    for number in range(4):
        write_image(tmp_path / "set" / "ab"[number % 2] / f"{number}.png", stamped(number))
    return tmp_path / "set"


def own(folder):
    return OwnData(name="mine", folder=str(folder))


def test_a_class_that_is_a_link_to_a_folder_is_read(folder):
    for number in (4, 5):
        write_image(folder.parent / "elsewhere" / f"{number}.png", stamped(number))
    (folder / "c").symlink_to("../elsewhere")
    (folder / "a" / "6.png").symlink_to(write_image(folder.parent / "6.png", stamped(6)))
    data = load_images(own(folder))
    assert data.classes == ("a", "b", "c") and sorted(data.images[:, 0, 0]) == list(range(7))
    # An image more behind the link is seen, as one in the folder itself is.
    write_image(folder.parent / "elsewhere" / "7.png", stamped(7))
    assert len(survey_of(own(folder)).labels) == 8


@pytest.mark.parametrize("name", ["c", "a/9.png"])
def test_a_link_that_leads_nowhere_is_refused(folder, name):
    (folder / name).symlink_to("gone")
    with refused(f"{folder / name} is a link to gone, which is not there", "remove the link"):
        load_images(own(folder))


@pytest.mark.parametrize("target", ["..", "../a", "c"])
def test_links_in_a_circle_are_refused(folder, target):
    (folder / "a" / "c").symlink_to(target)
    with refused("is a link to", "remove the link"):
        load_images(own(folder))


def test_two_folders_that_hold_links_to_each_other_are_refused(folder):
    (folder / "a" / "to_b").symlink_to("../b")
    (folder / "b" / "to_a").symlink_to("../a")
    with refused("a folder that it lies in itself"):
        files_below(folder)


def test_hidden_files_and_what_they_link_to_are_passed_over(folder):
    shutil.copytree(folder / "a", folder / ".old")
    (folder / ".cache").symlink_to("gone")
    (folder / "a" / ".hidden.png").symlink_to("gone")
    assert [file.name for file in files_below(folder)] == ["0.png", "2.png", "1.png", "3.png"]


@pytest.mark.parametrize("file", [b"caf\xe9/1.png", b"a/\xff.png"])
def test_a_name_that_is_not_utf8_is_one_sentence(folder, file, capsys):
    place = os.path.join(os.fsencode(folder), file)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    try:
        shutil.copy(folder / "a/0.png", os.fsdecode(place))
    except OSError:
        pytest.skip("this file system keeps only names that are UTF-8")
    shown = file.split(b"/")[0 if b"\xe9" in file else 1].decode(errors="backslashreplace")
    with refused(shown, "is not UTF-8", "rename it"):
        load_images(own(folder))
    config = folder.parent / "mine.yaml"
    config.write_text(f"experiment: mine\ndatasets: [{{name: mine, folder: {folder}}}]\n")
    assert main(["data", "--config", str(config)]) == 2
    err = capsys.readouterr().err
    assert "is not UTF-8" in err and "Traceback" not in err and len(err.splitlines()) == 1
