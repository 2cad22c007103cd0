"""What there is: methods, data sets, experiments that ship; for a person and for a script."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from fedsdg.cli import main
from fedsdg.experiment.config_files import load_config
from fedsdg.methods.declared import methods

ROOT = Path(__file__).parents[2]
PLUGIN = """
from dataclasses import replace
from fedsdg.methods.families import METHODS as KNOWN

METHODS = {"halved": replace(KNOWN["fedavg"], title="Halved", formula="step = 1/2 mean")}
"""


def answer(capsys, *arguments):
    """The JSON that a command prints, which stands alone on standard output."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# --- One method -----------------------------------------------------------------------------------


def test_a_method_is_shown_with_all_that_is_declared_of_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["methods", "show", "scaffold"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    row = methods()["scaffold"]
    for word in (row.title, row.family, row.formula, row.source, row.rule, row.client_cost):
        assert word in text
    assert "2d up, 2d down" in text and "Every client uses the global model." in text
    assert "server_rate: η_g of SCAFFOLD's server, which multiplies the step (default 1;" in text
    assert "number from 1e-06 to 1e+06" in text and "optimiser = sgd" in text


def test_a_method_is_shown_by_its_name_alone(capsys):
    one = answer(capsys, "methods", "fedper")
    assert one == answer(capsys, "methods", "show", "fedper") and one["name"] == "fedper"
    for words, sentence in (
        (["scafold"], "there is no method 'scafold'; did you mean 'scaffold'?"),
        (["show"], "name one method, as in 'fedsdg methods show scaffold'"),
        (["krum", "fedper"], "name one method, as in"),
    ):
        assert main(["methods", *words]) == 2
        assert sentence in capsys.readouterr().err


def test_in_a_pipe_no_line_is_cut(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["methods"]) == 0
    listed = capsys.readouterr().out
    assert "…" not in listed and "lambda1=0.0001" in listed


@pytest.mark.parametrize("columns", ["60", "200"])
def test_lines_are_as_wide_as_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["methods"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert max(map(len, listed)) <= int(columns)
    headings = [line.rstrip(":") for line in listed if not line.startswith(" ")]
    assert headings == [*dict.fromkeys(row.family for row in methods().values())]
    assert [line.split()[0] for line in listed if line.startswith(" ")] == sorted(
        methods(), key=lambda name: headings.index(methods()[name].family)
    )
    assert f"  {'fedavg':{max(map(len, methods()))}}  FedAvg (samples)" in "\n".join(listed)
    for name in methods():
        assert main(["methods", "show", name]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= int(columns)


def test_a_script_reads_the_same_of_one_method_and_of_all(capsys):
    every = answer(capsys, "methods")
    assert [one["name"] for one in every] == list(methods())
    one = answer(capsys, "methods", "show", "krum")
    assert one in every
    row = methods()["krum"]
    assert [p["name"] for p in one["parameters"]] == list(row.parameters)
    for parameter in one["parameters"]:
        assert parameter["default"] == row.parameters[parameter["name"]].default
    assert all(one["keeps"] and one["formula"] for one in every)


def test_a_method_of_a_plugin_is_shown_too(capsys, tmp_path, monkeypatch):
    (tmp_path / "halved.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    assert main(["methods", "show", "halved", "--plugin", "halved.py"]) == 0
    text = capsys.readouterr().out
    assert "Halved (halved)" in text and "step = 1/2 mean" in text
    assert "halved" in [one["name"] for one in answer(capsys, "methods", "--plugin", "halved.py")]


# --- Data sets ------------------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path, monkeypatch):
    """A folder with 7 + 3 images as USPS, and one's own with 12 of three classes."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("FEDSDG_CONFIG", raising=False)
    (tmp_path / "data/usps").mkdir(parents=True)
    for split, count in (("train", 7), ("test", 3)):
        rows = {"image": [{"bytes": b"", "path": ""}] * count, "label": [0] * count}
        pq.write_table(pa.table(rows), tmp_path / f"data/usps/{split}.parquet")
    for number in range(12):
        folder = tmp_path / "pets" / ("cat", "dog", "owl")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((9, 9), 20 * number, np.uint8)).save(folder / f"{number}.png")
    return tmp_path


def test_data_sets_are_counted_where_they_are(images, capsys):
    found = {one["name"]: one for one in answer(capsys, "data")}
    assert found["digits"] | {"place": ""} == {
        "name": "digits", "classes": 10, "images": 1797, "size": 8, "channels": 1, "here": True,
        "place": "", "note": "",
    }  # fmt: skip
    assert (found["usps"]["images"], found["usps"]["here"]) == (10, True)
    assert found["usps"]["place"] == str(images / "data/usps")
    assert (found["mnist"]["images"], found["mnist"]["here"]) == (None, False)
    assert "ylecun/mnist" in found["mnist"]["place"] and "FEDSDG_DATA" in found["mnist"]["place"]
    assert found["tiny_imagenet_32"]["place"] == "to be put into $FEDSDG_DATA"
    assert main(["data"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(found)
    assert re.search(r"^usps +10 +10 +16×16 grey +yes", lines[3])


def test_ones_own_data_are_shown_with_the_config_that_describes_them(images, capsys):
    own = [{"name": "pets", "folder": "pets"}, {"name": "gone", "folder": "nowhere"}]
    config = {"datasets": own, "skews": ["iid"], "experiment": "mine"}
    (images / "mine.yaml").write_text(yaml.safe_dump(config))
    found = {one["name"]: one for one in answer(capsys, "data", "--config", "mine.yaml")}
    assert (found["pets"]["classes"], found["pets"]["images"]) == (3, 12)
    assert found["pets"]["here"] and not found["gone"]["here"]
    assert "nowhere" in found["gone"]["note"]
    (images / "pets").rename(images / "train")
    (images / "pets").mkdir()
    (images / "train").rename(images / "pets/train")
    shutil.copytree(images / "pets/train/cat", images / "pets/val/cat")
    found = {one["name"]: one for one in answer(capsys, "data", "--config", "mine.yaml")}
    assert found["pets"]["note"] == "ignored files: 4, such as pets/val/cat/0.png"


def test_a_folder_of_data_that_is_none_is_one_sentence(capsys, monkeypatch):
    monkeypatch.setenv("FEDSDG_DATA", "/there/is/none")
    assert main(["data"]) == 2
    assert "FEDSDG_DATA names '/there/is/none', which is no folder" in capsys.readouterr().err


# --- Experiments ----------------------------------------------------------------------------------


def test_every_config_that_ships_is_listed_with_a_sentence_of_its_own(capsys):
    found = answer(capsys, "arenas")
    files = {file.relative_to(ROOT / "config").as_posix() for file in ROOT.glob("config/**/*.yaml")}
    assert {one["file"] for one in found} == files
    said = [one["about"] for one in found]
    assert all(text.endswith((".", "?")) for text in said) and len(set(said)) == len(said)
    for one in found:
        record = ROOT / "results/reference" / one["name"]
        assert one["recorded"] == (record / "runs.parquet").is_file()
    needs = next(one for one in found if one["name"] == "cross-needs")
    assert (needs["seeds"], needs["rounds"], needs["clients"]) == (10, 120, 20)
    assert needs["runs"] == needs["methods"] * 10
    pictures = next(one for one in found if one["name"] == "cifar100-needs")
    assert pictures["datasets"] == ["cifar100"] and pictures["clients"] == 50


def test_the_command_that_is_shown_runs_that_experiment_in_any_folder(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSDG_CONFIG", raising=False)
    assert main(["arenas"]) == 0
    text = capsys.readouterr().out
    for block in text.strip().split("\n\n"):
        name = block.split(":")[0]
        # Of a search alone no number is known.
        recorded = (ROOT / "results/reference" / name / "runs.parquet").is_file()
        assert ("with a committed record" if recorded else "no committed record") in block
        (file,) = re.findall(r"^  fedsdg run --grid (\S+)$", block, re.MULTILINE)
        assert not file.endswith(".yaml")
        if file not in ("config", "cross-needs", "cross-views", "studies/cifar100-rates"):
            continue
        config = load_config([file])
        assert config.experiment == name
        runs = len(config.methods) * len(config.datasets) * len(config.settings)
        assert re.search(rf"\b{runs * len(config.seeds)} runs?;", block)
        assert not re.search(r"\b1 (methods|rounds|seeds|runs)\b", block)


def test_what_is_said_of_a_file_is_not_said_of_those_laid_over_it_and_changes_no_run(tmp_path):
    (tmp_path / "said.yaml").write_text("experiment: said\nabout: ' Said. '\n")
    (tmp_path / "mine.yaml").write_text("experiment: mine\nover: [said.yaml]\n")
    mine, said = (load_config([tmp_path / f"{name}.yaml"]) for name in ("mine", "said"))
    assert (mine.about, said.about) == ("", "Said.")
    place = ("digits", "dirichlet~0.1")
    assert mine.run(*place, mine.methods[0], 0).hash == said.run(*place, said.methods[0], 0).hash


def test_a_file_is_laid_over_those_it_names_each_once_and_before_it(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (tmp_path / "low.yaml").write_text("experiment: low\nseeds: [1]\nskews: [iid]\n")
    (folder / "high.yaml").write_text("experiment: high\nover: [../low.yaml]\n")
    (folder / "more.yaml").write_text("seeds: [2]\n")
    high, more = folder / "high.yaml", folder / "more.yaml"
    for files, seeds in (([high], (1,)), ([high, more], (2,)), ([more, high], (1,))):
        config = load_config(files)
        assert (config.experiment, config.skews, config.seeds) == ("high", ("iid",), seeds)
    # Named before, it stays where it was.
    assert load_config([tmp_path / "low.yaml", more, high]).seeds == (2,)
    (tmp_path / "low.yaml").unlink()
    with pytest.raises(FileNotFoundError, match=r"no .*low\.yaml, which .*high\.yaml is laid over"):
        load_config([high])


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("about: 3", "about is 3, but must be a text"),
        ("over: a.yaml", "over is 'a.yaml', but must be a list"),
        ("over: [1]", "over is 1, but must be a text"),
    ],
)
def test_what_is_said_of_a_file_and_is_none(said, sentence, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(said)
    assert main(["check", "--config", str(tmp_path / "mine.yaml")]) == 2
    assert sentence in capsys.readouterr().err


# --- For a script ---------------------------------------------------------------------------------


def test_check_tells_a_script_the_size_of_the_grid(capsys, monkeypatch):
    monkeypatch.delenv("FEDSDG_CONFIG", raising=False)
    found = answer(capsys, "check", "--config", str(ROOT / "config/cross-needs.yaml"))
    assert found["experiment"] == "cross-needs" and found["seeds"] == 10
    assert found["runs"] == found["methods"] * found["scenarios"] * 10
    assert found["untuned"] == []
