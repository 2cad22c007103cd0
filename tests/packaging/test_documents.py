"""The commands of README and documents, from the wheel alone in empty folders.

The default config is a small one, since that of the package trains for minutes; configs that the
pages name, such as `smoke`, are those of the wheel.
"""

import os
import shlex
import subprocess
import sys

import nbclient
import nbformat
import pytest

from fedsdg.cli.main import parser
from tests.documents import pages
from tests.documents.pages import blocks, small_config
from tests.own_images import write_photographs

pytestmark = pytest.mark.slow

DOCS = pages.DOCS


@pytest.fixture(scope="module")
def environment(installed, tmp_path_factory):
    """What a shell in which the wheel is installed has, with a small default config."""
    default = tmp_path_factory.mktemp("default") / "config.yaml"
    default.write_text(small_config("config"), encoding="utf-8")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FEDSDG_")}
    more = {"PYTHONPATH": str(installed.site), "FEDSDG_CONFIG": str(default), "MPLBACKEND": "agg"}
    return kept | more


def follow(page, folder, environment, installed):
    """Run every block of a page in a folder, in one process that has the wheel's code."""
    done = subprocess.run(
        [sys.executable, "-P", pages.__file__, page],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[0] == str(installed.package / "__init__.py")
    return done


def test_the_readme_checks_a_method_in_an_empty_folder(empty, installed):
    """Its second line trains for minutes; docs/compare.md and the command's own tests run it."""
    (block,) = (one for one in blocks("README.md") if one.kind == "run by")
    check, compare = (shlex.split(line, comments=True) for line in block.text.splitlines())
    assert check == ["fedsdg", "check", "my_method.py"]
    assert parser().parse_args(compare[1:]).file == ["my_method.py"]
    (method,) = (one for one in blocks("docs/compare.md") if one.kind == "file")
    (empty / "my_method.py").write_text(method.text)
    done = installed(*check[1:], cwd=empty)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", ["docs/own-data.md", "docs/models.md"])
def test_a_page_runs_in_an_empty_folder(page, empty, environment, installed):
    if page == "docs/own-data.md":
        write_photographs(empty / "photos/pets")
    follow(page, empty, environment, installed)


def test_photographs_become_a_model_in_an_empty_folder(empty, environment, installed):
    write_photographs(empty / "photos")
    done = follow("docs/from-images-to-a-model.md", empty, environment, installed)
    assert "on 56 images (its test set)" in done.stdout
    assert (empty / "results/again/result.json").is_file()


def test_tutorial_and_notebook_run_in_an_empty_folder(empty, environment, installed, monkeypatch):
    """With the wheel's own `smoke`; the notebook finds the tutorial's runs finished."""
    follow("docs/tutorial.md", empty, environment, installed)
    for name in set(os.environ) - set(environment):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(DOCS / "quickstart.ipynb", as_version=4)
    place = nbformat.v4.new_code_cell("import fedsdg; fedsdg.__file__")
    notebook.cells.append(place)
    resources = {"metadata": {"path": str(empty)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    assert place.outputs[0]["data"]["text/plain"] == repr(str(installed.package / "__init__.py"))
    printed = "".join(o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", ()))
    assert "2 runs, 2 of them finished before" in printed
