"""The pipeline and data of one's own: the schema, the number of clients, what runs again."""

import re
import shutil

import pytest
import yaml

from fedsdg.data.sources import Source
from fedsdg.experiment.declared_data import own_data
from fedsdg.parts import declared
from tests.own_images import stamped, write_table
from tests.workflow.test_config_schema import DEFAULT, ROOT, judge, set_at

OWN = {"name": "mine", "folder": "w"}


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        (OWN, None),
        ({"name": "a-b", "hub": "o/n", "image": "i", "label": "l", "channels": 3, "train": "x",
          "test": "y", "size": 32, "fit": "pad", "background": "black"}, None),
        (OWN | {"lable": "x"}, "'lable' was unexpected"),
        ({"folder": "w"}, "'name' is a required property"),
        (OWN | {"name": "a/b"}, "'a/b' does not match"),
        (OWN | {"size": 0}, "0 is less than the minimum"),
        (OWN | {"channels": 2}, "2 is not one of"),
        (OWN | {"fit": "fill"}, "'fill' is not one of"),
        (OWN | {"split": "x"}, "'split' was unexpected"),
        (OWN | {"train": 3}, "3 is not of type 'string'"),
        ("minst", "'minst' is not one of"),
    ],
)  # fmt: skip
def test_the_schema_knows_a_description_and_nothing_else(entry, named):
    judge(set_at(DEFAULT, "datasets", ["digits", entry]), named)


def test_all_clients_and_columns_are_known():
    config = set_at(DEFAULT, "skews", ["column~writer_id.2"])
    judge(set_at(config, "federation.clients", "all"), None)
    judge(set_at(config, "federation.clients", "every"), "'all' was expected")
    judge(set_at(DEFAULT, "skews", ["column~a b"]), "does not match")


def test_the_configs_of_the_page_are_valid():
    """A block of the page, laid over the default config, is one for workflow and package."""
    page = (ROOT / "docs/own-data.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    assert len(blocks) > 3
    described = set()
    for block in blocks:
        config = {**DEFAULT, **block}
        for key in ("federation", "backbones"):
            config[key] = {**DEFAULT[key], **block.get(key, {})}
        judge(config, None)
        for entry in block.get("datasets", []):
            described |= set(own_data(entry).name and entry)
    assert described == set(declared(Source))


@pytest.mark.slow
def test_natural_clients_are_counted_once_and_edited_data_are_divided_again(project):
    names = [f"w{number // 20}" for number in range(60)] + ["small"] * 3
    images = [stamped(number % 250) for number in range(63)]
    labels = [number % 2 for number in range(63)]
    write_table(project.folder / "w/train.parquet", images, label=labels, writer=names)
    write_table(
        project.folder / "w/test.parquet",
        [stamped(98), stamped(99)],
        label=[0, 1],
        writer=names[:2],
    )
    mine = {"experiment": "mine", "datasets": ["digits", OWN], "skews": ["column~writer"],
            "seeds": [0], "methods": ["fedavg"], "search": {"skews": []},
            "federation": {"clients": "all", "clients_per_round": 2}}  # fmt: skip
    file = project.folder / "mine.yaml"
    file.write_text(yaml.safe_dump(mine))
    asked = ("--configfile", "mine.yaml", "--until", "partition_clients")
    refused = project.snakemake("--dry-run", "--cores", "1", *asked)
    assert refused.returncode and "'digits' has no column 'writer'" in refused.stdout
    file.write_text(yaml.safe_dump(mine | {"datasets": [OWN]}))
    done = project.snakemake("--cores", "1", *asked)
    assert done.returncode == 0, done.stdout
    (call,) = project.calls("partition")
    assert call["given"]["dataset"] == ["mine"] and call["given"]["clients"] == ["3"]
    assert yaml.safe_load(call["config"])["federation"]["clients"] == 3
    assert project.planned(*asked) == {}
    shutil.copy(project.folder / "w/test.parquet", project.folder / "w/test-1.parquet")
    assert project.planned(*asked) == {"partition_clients": 1}
    (project.folder / "w/test-1.parquet").unlink()
    file.write_text(yaml.safe_dump(mine | {"datasets": [OWN | {"size": 16}]}))
    assert project.planned(*asked) == {"partition_clients": 1}
