"""What there is: methods, data sets, arenas; configs and plugins that are checked."""

import numpy as np
import pytest
import yaml
from PIL import Image

from fedsdg.cli import main
from fedsdg.methods.families import FAMILIES, METHODS

PLUGIN = """
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.methods.method import Method

METHODS = {"mine": Method("Mine", rule=Mean(), formula="the mean", source="nobody")}
"""
BROKEN = """
import torch
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.methods.method import Method

class Drifting(Mean):
    def plan(self, rows, context, state):
        return super().plan(rows, context, state)._replace(weights=torch.rand(len(rows["update"])))

METHODS = {"drifting": Method("Drifting", rule=Drifting())}
"""


def test_methods_are_listed_by_family_within_80_columns(said):
    lines = said("methods").splitlines()
    assert max(map(len, lines)) <= 80
    assert [line[:-1] for line in lines if line.endswith(":")] == list(FAMILIES)
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [
        name for rows in FAMILIES.values() for name in rows
    ]


@pytest.mark.parametrize("columns", ["50", "120"])
def test_a_method_is_shown_in_lines_as_wide_as_the_terminal(columns, said, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    lines = said("methods", "fedsdg").splitlines()
    assert max(map(len, lines)) <= int(columns)
    text = " ".join(" ".join(lines).split())
    row = METHODS["fedsdg"]
    assert all(part in text for part in (row.formula, row.source, *row.parameters))
    assert "lambda2: λ₂ of Eq. 5" in text and "default 0.0001; number from 0" in text


def test_a_script_reads_the_same_of_one_method_and_of_all(told):
    every = told("methods")
    assert [row["name"] for row in every] == list(METHODS)
    one = told("methods", "show", "krum")
    assert one in every and one == told("methods", "krum")
    assert [parameter["name"] for parameter in one["parameters"]] == ["f"]


def test_methods_of_a_plugin_are_shown_too(empty, said, told):
    (empty / "mine.py").write_text(PLUGIN)
    assert "formula: the mean" in said("methods", "mine", "--plugin", "mine.py")
    assert told("methods", "--plugin", "mine.py")[-1]["family"] == "Plugins"


def test_data_sets_are_counted_where_they_are(empty, told, said, monkeypatch):
    monkeypatch.delenv("FEDSDG_DATA", raising=False)
    for number in range(12):
        folder = empty / "pets" / ("cat", "dog", "owl")[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((9, 9), 20 * number, np.uint8)).save(folder / f"{number}.png")
    own = [{"name": "pets", "folder": "pets"}, {"name": "gone", "folder": "nowhere"}]
    (empty / "mine.yaml").write_text(yaml.safe_dump({"datasets": own, "experiment": "mine"}))
    found = {row["name"]: row for row in told("data", "--config", "mine.yaml")}
    assert (found["digits"]["images"], found["digits"]["size"]) == (1797, 8)
    assert (found["pets"]["classes"], found["pets"]["images"], found["pets"]["here"]) == (
        3,
        12,
        True,
    )
    assert not found["gone"]["here"] and "nowhere" in found["gone"]["place"]
    assert not found["mnist"]["here"] and "ylecun/mnist" in found["mnist"]["place"]
    assert "pets" not in said("data") and "True" not in said("data")


def test_a_plugin_s_data_that_are_not_there_are_listed_so(empty, told):
    (empty / "far.py").write_text("DATASETS = {'far': lambda: open('/nowhere/far.npz')}\n")
    (found,) = [row for row in told("data", "--plugin", "far.py") if row["name"] == "far"]
    assert not found["here"] and found["images"] is None and "/nowhere/far.npz" in found["place"]


def test_check_looks_at_the_loss_of_every_method(empty, refused):
    loss = {"type": "cross-entropy", "class_weights": [1.0, 2.0]}
    methods = ["fedavg", {"type": "krum", "loss": loss}]
    (empty / "mine.yaml").write_text(yaml.safe_dump({"methods": methods, "experiment": "mine"}))
    assert "class_weights has 2 weights for 10 classes" in refused("check", "mine.yaml")


def test_arenas_are_those_of_readme(told, said):
    assert [row["name"] for row in told("arenas")] == ["needs", "label-skew", "views"]
    (needs, *_) = told("arenas")
    assert (needs["clients"], needs["rounds"], needs["seeds"]) == (20, 120, 10)
    assert needs["about"][:30] in said("arenas")


def test_check_counts_the_grid_of_a_config(here, said, told):
    line = "tiny: 2 methods x 1 data sets x 1 skews x 1 seeds = 2 runs\n"
    assert said("check", "--config", "tiny.yaml") == said("check", "tiny.yaml") == line
    assert told("check", "--config", "tiny.yaml")["runs"] == 2
    assert said("check", "smoke") == said("check", "--config", "smoke")
    assert said("check", "--config", "tiny.yaml", "--brief") == ""


def test_check_says_which_values_are_still_to_be_searched(here, capsys):
    assert main(["check", "tiny.yaml", "--set", "tuned=[none.yaml]"]) == 0
    assert "there are no values for fedavg, fedsdg" in capsys.readouterr().err


def test_check_refuses_a_partition_that_run_refuses(empty, refused):
    words = ["--config", "smoke", "--set", "skews=['classes~1']", "partition.retries=0"]
    words += ["partition.min_samples=72"]
    assert "min_samples" in refused("check", *words)


def test_check_names_the_properties_that_a_plugin_lacks(empty, capsys, said):
    (empty / "sound.py").write_text(PLUGIN.replace("mine", "sound"))
    (empty / "broken.py").write_text(BROKEN)
    listed = said("check", "sound.py", "--verbose").splitlines()
    assert sum(line.startswith("ok: ") for line in listed) >= 5
    assert main(["check", "broken.py"]) == 1
    first, *_, last, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("FAILED: ") and "drifting" in first and "failed" in last


def test_check_says_that_a_file_of_metrics_has_nothing_to_examine(empty, said):
    metric = '@metric("length", table="rounds")\ndef length(rows):\n    return len(rows)\n'
    (empty / "metrics.py").write_text("from fedsdg.analysis import metric\n\n\n" + metric)
    sentence = "metrics.py: nothing to examine: it has no METHODS and no part with a name"
    assert said("check", "metrics.py").startswith(sentence)
