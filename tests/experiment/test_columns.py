"""Columns of the records: whoever fills one declares it, and nobody else needs to know it."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedsdg.aggregation.rules.focus import Focus
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.screened import Screened
from fedsdg.experiment.columns import declared_columns, gathered
from fedsdg.experiment.replay import IDENTITY
from fedsdg.files.columns import Column, columns_of
from fedsdg.files.records import CLIENTS_SCHEMA, ROUNDS_SCHEMA, more, recorded_diagnostics

ROOT = Path(__file__).parents[2]
RECORDED = sorted(ROOT.glob("results/reference/*/runs.parquet"))
#: Of runs that were recorded by earlier versions.
FORMER = ("answers",)


def test_every_column_of_every_record_is_declared():
    assert RECORDED
    for name, schema in (("rounds", ROUNDS_SCHEMA), ("clients", CLIENTS_SCHEMA)):
        known = more(name)
        for file in RECORDED:
            for field in pq.read_schema(file.with_name(f"{name}.parquet")):
                if field.name not in (*IDENTITY, *FORMER, *schema.names):
                    declared = known.field(field.name).type
                    assert str(field.type).replace("element", "item") == str(declared), field.name


def test_what_is_declared_is_read_without_the_parts_and_has_a_meaning():
    said = declared_columns()
    names = {table: [one["name"] for one in columns] for table, columns in said.items()}
    assert set(more("clients").names) == {*names["clients"], *names["diagnostics"]}
    assert more("rounds").names[: len(names["rounds"])] == names["rounds"]
    assert recorded_diagnostics() == tuple(names["diagnostics"])
    assert all(one["meaning"] for columns in said.values() for one in columns)


def test_a_part_has_the_columns_of_the_parts_within_it():
    assert [one.name for one in columns_of(Screened(Focus()))] == ["blocked", "credibility"]
    assert columns_of(Mean()) == ()
    own = Column("diagnostics", "trust", "float64", "how far it is trusted")
    assert more("clients", [own]).names == [*more("clients").names, "trust"]
    assert more("rounds", [own]) == more("rounds")


def test_one_name_has_one_meaning_and_none_that_every_run_has():
    one = Column("clients", "trust", "float64", "how far it is trusted")
    assert gathered([[one], [one]])["clients"] == [
        {"name": "trust", "kind": "float64", "meaning": "how far it is trusted"}
    ]
    other = Column("diagnostics", "trust", "int32", "how far it is trusted")
    with pytest.raises(TypeError, match="two declare a column 'trust' differently; rename one"):
        gathered([[one], [other]])
    with pytest.raises(TypeError, match="every run has a column 'weight' of clients; rename it"):
        gathered([[Column("clients", "weight", "float64", "its weight")]])
