"""Every command and block of code of README and documents, from the wheel alone.

The pages are followed in one folder, so that what one has computed the next finds, and in one
process, with small configs, for the package's own train for minutes. Pages with a test of their own
name it; what takes minutes says why it is not run.
"""

import os
import re
from types import SimpleNamespace

import nbclient
import nbformat
import pytest
import torch
from safetensors.torch import save_file

from tests.documents import pages
from tests.documents.pages import DOCS, ROOT, blocks, small_config
from tests.own_images import write_photographs

pytestmark = pytest.mark.slow

RUN = {
    page: found
    for page in pages.pages()
    if (found := [one for one in blocks(page) if one.kind not in ("not run", "run by")])
    and not pages.has_its_test(page)
}
#: Their blocks read files of the record, as a checkout has them; all others go without a checkout.
OF_THE_RECORD = [
    page for page, found in RUN.items() if any("results/reference/" in one.text for one in found)
]


def readme_commands() -> list[str]:
    """The lines of the README's block that this test runs."""
    (block,) = (one for one in blocks("README.md") if one.kind == "run by")
    return block.text.splitlines()


def write_uploads(folder) -> None:
    """What docs/aggregate.md has at hand: files of a server and of clients, controls, counts."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(40, generator=generator)
    save_file({"w": theta}, folder / "g.safetensors")
    for name in ("clients", "controls"):
        (folder / name).mkdir()
        for k in range(3):
            moved = theta + 0.1 * torch.randn(40, generator=generator) + 0.05
            facts = {"num_samples": str(10 + k)}
            save_file({"w": moved}, folder / name / f"client-{k}.safetensors", metadata=facts)
    (folder / "all.json").write_text("[10, 11, 12]")


@pytest.fixture(scope="module")
def followed(installed, tmp_path_factory):
    """The folder, the environment of its shell, and what each page printed there."""
    folder = tmp_path_factory.mktemp("pages")
    default = tmp_path_factory.mktemp("default") / "config.yaml"
    default.write_text(small_config("config"), encoding="utf-8")
    # A file of this name takes the place of the package's own.
    (folder / "smoke").write_text(small_config("smoke"), encoding="utf-8")
    write_uploads(folder)
    write_photographs(folder / "photos/pets")
    method = next(one for one in blocks("docs/add-a-method.md") if one.language == "python")
    (folder / "my_method.py").write_text(method.text)
    (folder / "README.md").write_text(f"```sh\n{readme_commands()[0]}\n```\n")
    more = {"FEDSDG_CONFIG": str(default), "MPLBACKEND": "agg"}
    printed = {}
    alone = [page for page in RUN if page not in OF_THE_RECORD]
    for part in ([str(folder / "README.md"), *alone], OF_THE_RECORD):
        done = installed.python(pages.__file__, *part, cwd=folder, **more)
        place, *said = re.split(r"^PAGE (\S+)\n", done.stdout, flags=re.MULTILINE)
        assert place.strip() == str(installed.package / "__init__.py"), done.stderr[-3000:]
        printed |= dict(zip(said[::2], said[1::2], strict=True))
        if not (folder / "results/reference").exists():
            (folder / "results/reference").symlink_to(ROOT / "results/reference")
    return SimpleNamespace(
        folder=folder, environment=installed.environment | more, printed=printed, place=place
    )


@pytest.mark.parametrize("page", RUN)
def test_every_block_runs(page, followed):
    assert "\nFAULT" not in f"\n{followed.printed[page]}", followed.printed[page][-3000:]


def test_the_notebook_runs_and_finds_the_tutorials_runs(followed, monkeypatch):
    for name in set(os.environ) - set(followed.environment):
        monkeypatch.delenv(name)
    for name, value in followed.environment.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(DOCS / "quickstart.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count] == [], "clear outputs"
    place = nbformat.v4.new_code_cell("import fedsdg; fedsdg.__file__")
    notebook.cells.append(place)
    resources = {"metadata": {"path": str(followed.folder)}}
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=resources
    ).execute()
    assert place.outputs[0]["data"]["text/plain"] == repr(followed.place.strip())
    table, plot = code[-2].outputs, code[-1].outputs
    assert re.search(r"fedavg +fedsdg", table[-1]["data"]["text/plain"])
    assert any("image/png" in output.get("data", {}) for output in plot)
