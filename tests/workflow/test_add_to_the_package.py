"""A rule, a term, an attack and a condition join the package by two edited files each.

In a copy of it: the part's file and its row (of a condition: its key, and its place in the order).
Then `make documents`, and everybody knows them: the command, the config and its schema, the
documents, `aggregate`, runs, tables and figures.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.copies import keep_compiled

ROOT = Path(__file__).resolve().parents[2]

RULE = '''"""The mean of updates that are cut to a length."""

from typing import Annotated, ClassVar

import numpy as np

from fedsdg.aggregation.types import Combination, Plan, Rule
from fedsdg.files.columns import Column
from fedsdg.parts import Range, part


@part
class CutMean(Rule):
    """step = mean of min(1, c / ‖Δ_k‖) Δ_k."""

    reads: ClassVar[tuple[str, ...]] = ("update",)
    columns: ClassVar = (
        Column("diagnostics", "kept", "float64", "share of its update that is left"),
    )

    length: Annotated[float, Range(1e-6)] = 2.0
    "c, the greatest length of an update"

    def plan(self, rows, context, state):
        """Return the plan of the round."""
        norms = rows["update"].measure().norms
        shares = np.minimum(1, self.length / np.maximum(norms, 1e-12))
        return Plan(Combination(shares / len(shares)), None, state, {"kept": shares})
'''
TERM = '''"""Short models."""

from typing import Annotated

from fedsdg.federation.terms import Term
from fedsdg.parts import Range, part


@part
class Ridge(Term):
    """ρ/2 ‖θ‖², gradient ρ θ."""

    rho: Annotated[float, Range(0)] = 0.5
    "ρ of the penalty ρ/2 ‖θ‖²"

    def value(self, rows):
        return self.rho / 2 * rows.theta.square().sum(1)

    def add_gradient(self, rows):
        rows.theta_grad.add_(rows.theta, alpha=self.rho)
'''
ATTACK = '''"""Updates of one number alone."""

from typing import Annotated

from fedsdg.federation.conditions.attack import Attack
from fedsdg.parts import Range, part


@part
class Flat(Attack):
    """height · (1, …, 1)."""

    height: Annotated[float, Range(-10, 10)] = 1.0
    "each number of the update"

    def tamper(self, view):
        return view.own * 0 + self.height
'''
CONDITION = '''"""Dark images."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from fedsdg.federation.conditions.condition import Condition
from fedsdg.files.columns import Column
from fedsdg.parts import Range, part


@dataclass(frozen=True)
class Darkened:
    """Images in less light."""

    light: float

    def __call__(self, images, numbers):
        return (images * self.light).astype(np.uint8)


@part
class Dim(Condition):
    """Images are darker for every client."""

    light: Annotated[float, Range(0, 1)] = 0.5
    "share of the light that is left"

    columns: ClassVar = (Column("clients", "dimmed", "float64", "share of the light it has lost"),)

    def prepare(self, data):
        views = dict.fromkeys(range(data.num_clients), Darkened(self.light))
        return replace(data, views=views).with_facts(
            dimmed=np.full(data.num_clients, 1 - self.light)
        )
'''
ROWS = {
    "aggregation/rules/cut_mean.py": RULE,
    "federation/ridge.py": TERM,
    "federation/conditions/flat.py": ATTACK,
    "federation/conditions/dim.py": CONDITION,
}
#: file -> [(what stands there, what is put before it)]
EDITS = {
    "methods/robust.py": [
        (
            "from fedsdg.aggregation.rules.krum",
            "from fedsdg.aggregation.rules.cut_mean import CutMean\n",
        ),
        (
            '    "krum": Method(',
            '    "cut-mean": Method(title="Cut mean", rule=CutMean(), source="here"),\n',
        ),
    ],
    "methods/averaging.py": [
        ("from fedsdg.methods.method", "from fedsdg.federation.ridge import Ridge\n"),
        (
            '    "fedprox": Method(',
            '    "ridge": Method(title="Ridge", rule=Mean(), objective=(Ridge(),)),\n',
        ),
    ],
    "methods/choices.py": [
        (
            "from fedsdg.federation.conditions.attack",
            "from fedsdg.federation.conditions.flat import Flat\n",
        ),
        (
            '        "gaussian": Choice(',
            '        "flat": Choice("Flat updates", Flat(), "here"),\n',
        ),
    ],
    "experiment/conditions.py": [
        (
            "from fedsdg.federation.conditions.dropout",
            "from fedsdg.federation.conditions.dim import Dim\n",
        ),
        (
            "    benchmark_images: Annotated",
            '    dim: Dim | None = None\n    "images are darker"\n',
        ),
    ],
    "experiment/building.py": [('"quantisation", "dropout"', '"dim", ')],
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The package with its documents in a folder of its own, to which all four were added."""
    place = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "pyproject.toml", place)
    for name in ("fedsdg", "docs", "workflow", "config"):
        skipped = shutil.ignore_patterns("__pycache__", "*.png", "*.svg")
        shutil.copytree(ROOT / name, place / name, ignore=skipped)
    for name, text in ROWS.items():
        (place / "fedsdg" / name).write_text(text, encoding="utf-8")
    keep_compiled(place / "fedsdg")
    for name, edits in EDITS.items():
        file = place / "fedsdg" / name
        text = file.read_text(encoding="utf-8")
        for there, put in edits:
            assert text.count(there) == 1, f"{name} has {there!r} {text.count(there)} times"
            text = text.replace(there, put + there)
        file.write_text(text, encoding="utf-8")
    python(place, "-m", "fedsdg.experiment.documents")
    return place


def python(place, *words):
    done = subprocess.run(
        [sys.executable, *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place), "FEDSDG_STORE": str(place / "store")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


#: What the copy's package answers, in one process: the methods, a step, sentences on wrong configs.
ASKED = """
import contextlib, io, json
import numpy as np
from fedsdg.aggregation import aggregate
from fedsdg.cli import main
from fedsdg.experiment.config_files import load_config

with contextlib.redirect_stdout(io.StringIO()) as methods:
    assert main(["methods"]) == 0
clients = np.array([[3.0, 4.0], [0.0, 0.5]])
step = aggregate({"type": "cut-mean", "length": 1}, np.zeros(2), clients).parameters
sentences = []
for wrong in ("methods=[{type: cut-mean, lenght: 1}]", "conditions={dim: {light: 2}}",
              "conditions={attack: {type: flat, share: 0.2, height: 11}}"):
    try:
        load_config((), [wrong])
    except ValueError as error:
        sentences.append(str(error))
print(json.dumps([methods.getvalue(), step.tolist(), sentences]))
"""


def test_command_aggregate_and_configs_know_them(copy, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    methods, step, sentences = json.loads(python(copy, "-c", ASKED))
    lines = {line.split()[0]: line for line in methods.splitlines()}
    assert "CutMean" in lines["cut-mean"] and "length=2.0" in lines["cut-mean"]
    assert "Mean + Ridge, " in lines["ridge"] and "rho=0.5" in lines["ridge"]
    assert step == pytest.approx([0.3, (0.8 + 0.5) / 2])
    assert "no parameter 'lenght'; did you mean 'length'?" in sentences[0]
    assert sentences[1] == "conditions.dim.light is 2, but must be at most 1"
    assert sentences[2] == "conditions.attack.height is 11, but must be at most 10"


def test_documents_and_schema_show_them(copy):
    page = (copy / "docs/methods.md").read_text(encoding="utf-8")
    assert "c, the greatest length of an update" in page and "Ridge (`ridge`)" in page
    keys = (copy / "docs/config.md").read_text(encoding="utf-8")
    assert "share of the light that is left" in keys and "each number of the update" in keys
    schema = json.loads((copy / "workflow/schemas/config.schema.json").read_text())
    text = json.dumps(schema)
    for name in ("cut-mean", "ridge", "flat", "dim", "light", "height", "rho"):
        assert f'"{name}"' in text, name
    # In their places among the others, whose declarations are as they were.
    before = json.loads((ROOT / "fedsdg/declarations.json").read_text())["methods"]
    after = json.loads((copy / "fedsdg/declarations.json").read_text())["methods"]
    assert [one for one in after if one["name"] not in ("cut-mean", "ridge")] == before


def read_rows(results, method, column=None):
    """What the clients of a run have in a column, or the names of all columns."""
    (file,) = (results / "runs/added").rglob(f"{method}/seed~0/clients.parquet")
    table = pq.read_table(file, partitioning=None)
    if column is None:
        return set(table.column_names)
    return {value for value in table[column].to_pylist() if value is not None}


def test_runs_tables_and_figures_show_them(copy):
    settings = [
        "experiment=added", "trainable=full", "methods=[fedavg, cut-mean, ridge]", "seeds=[0]",
        "skews=[iid]", "tables=[main]", "figures=[accuracy]", "federation.rounds=1",
        "conditions={attack: {type: flat, share: 0.2}, dim: {light: 0.25}}",
        "federation.global_images=100",
    ]  # fmt: skip
    python(copy, "-m", "fedsdg", "run", "--grid", "--jobs", "1", "--set", *settings)
    results = copy / "results"
    assert len(list((results / "runs/added").rglob("result.json"))) == 3
    assert read_rows(results, "cut-mean", "dimmed") == {0.75}
    kept = read_rows(results, "cut-mean", "kept")
    assert kept and all(0 < share <= 1 for share in kept)
    assert "kept" not in read_rows(results, "fedavg"), "a column of those that fill it"
    table = (results / "tables/added/main.md").read_text()
    assert "Cut mean" in table and "Ridge" in table
    drawn = (results / "figures/added/accuracy.csv").read_text()
    assert "cut-mean" in drawn and "ridge" in drawn
    (one,) = (results / "runs/added").rglob("ridge/seed~0/result.json")
    config = json.loads(one.read_text())["config"]
    assert config["parameters"] == {"weights": "samples", "rho": 0.5}
    assert config["conditions"]["dim"] == {"light": 0.25}
