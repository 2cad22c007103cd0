"""docs/methods.md: made from the table, complete, and true where it can be measured."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from fedsdg.aggregation.rows import MemoryRows
from fedsdg.aggregation.types import Rule
from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.examining.federations import Trial
from fedsdg.experiment.examining.rounds import bytes_are_as_declared
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.methods.declared import Row, methods
from fedsdg.methods.page import method_page
from fedsdg.models import Architecture, build_backbone, freeze
from fedsdg.parts import Declared, Range

ROOT = Path(__file__).parents[2]
CLIENTS, EPOCHS = 5, 2
METHODS = methods()
ROWS = pytest.mark.parametrize("name", METHODS)


def test_every_line_of_a_table_has_as_many_cells_as_its_head():
    row = Row(
        title="Bars",
        formula="|m| + ‖θ‖",
        parameters={"a": Declared("a", int, None, "x | y", Range(0), optional=True)},
        fixed={"b": None, "c": "held"},
        client_cost="E epochs",
        source="over\ntwo lines",
    )
    page = method_page({"bars": row})
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(counts) == 1
    assert r"| \|m\| + ‖θ‖ | `a` = null, `c` fixed at held | d, d | client: E epochs |" in page
    assert "| over two lines |" in page
    assert r"| `a` | null | whole number from 0, or null | x \| y | `bars` |" in page


@ROWS
def test_a_row_says_everything_that_the_page_shows(name):
    row = METHODS[name]
    costs = ("up", "down", "client_cost", "server_cost")
    for field in ("title", "family", "formula", "source", *costs):
        assert getattr(row, field).strip(), f"{name} has no {field}"
    for key, parameter in row.parameters.items():
        assert parameter.meaning, f"{name}: what does {key} mean?"
    assert re.fullmatch(r"\d+ pass(es)?( .*)?", row.server_cost), f"{name}: '2 passes'"


@pytest.fixture(scope="module")
def world():
    """A config whose every round has all clients and whose server has a benchmark set, for the
    methods that want them, a backbone that fits, and a partition."""
    raw = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    raw["federation"] |= {"clients": CLIENTS, "clients_per_round": CLIENTS}
    raw["federation"] |= {"rounds": 2, "evaluate_every": 2}
    raw["training"] |= {"epochs": EPOCHS}
    raw["conditions"] = {"benchmark_images": 20}
    config = parse_config(raw)
    architecture = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    torch.manual_seed(0)
    backbone = freeze(build_backbone(architecture), architecture, "tiny", {})
    shares = make_partition("digits", "dirichlet~1.0", 0, CLIENTS, config.partition)
    return config, prepare_material("digits", backbone, "cpu"), shares


class Counted:
    """Counts the numbers that rules read of their uploads."""

    def __init__(self, monkeypatch):
        self.delivered, self.within = 0, False
        blocks, call = MemoryRows.blocks, Rule.__call__

        def counted(rows):
            for block in blocks(rows):
                self.delivered += self.within * block.size * int(block.ends[-1])
                yield block

        def called(rule, *given):
            self.within = True
            try:
                return call(rule, *given)
            finally:
                self.within = False

        monkeypatch.setattr(MemoryRows, "blocks", counted)
        monkeypatch.setattr(Rule, "__call__", called)


@ROWS
def test_what_a_row_says_of_its_cost_is_what_a_round_costs(world, monkeypatch, name):
    config, material, shares = world
    row, method = METHODS[name], method_entry(name)
    run = config.run("digits", "dirichlet~1.0", method, 0)
    counted = Counted(monkeypatch)
    trial = Trial(lambda: build(run, material, shares), row)
    bytes_are_as_declared(trial)
    setup, last = trial.whole.setup, trial.whole.rounds[-1]
    if counted.delivered and setup.layout.d and setup.rule.models(CLIENTS) == 1:
        passes = int(row.server_cost.split()[0])
        updates = sum(row["participated"] for row in trial.whole.clients)
        numbers = updates * setup.layout.d
        assert counted.delivered / numbers == pytest.approx(passes, rel=0.02), f"passes of {name}"
    if epochs := re.match(r"(\d*)E epochs$", row.client_cost.split(",")[0]):
        often = int(epochs[1] or 1) * row.training.get("epochs", EPOCHS)
        named = [
            key for key in ("head_epochs", "personal_epochs") if f"{key} of" in row.client_cost
        ]
        further = sum(row.parameters[key].default for key in named)
        assert last["samples_processed"] == (often + further) * sum(map(len, setup.data.train))
