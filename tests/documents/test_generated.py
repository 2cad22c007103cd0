"""What is generated from the parts is what the parts say, and a new part shows in all of it."""

import json
from dataclasses import replace
from typing import Annotated

import pytest
from jsonschema import Draft202012Validator

from fedsdg.experiment import documents as generated
from fedsdg.methods import describing
from fedsdg.methods.choice import Choice
from fedsdg.methods.families import METHODS
from fedsdg.parts import Range, part

PLACES = (
    "fedsdg/declarations.json",
    "workflow/schemas/config.schema.json",
    "docs/methods.md",
    "docs/config.md",
    "docs/records.md",
)


@pytest.fixture(scope="module")
def made():
    return generated.documents()


@pytest.mark.parametrize("place", PLACES)
def test_a_document_is_what_the_parts_say(made, place):
    assert set(made) == set(PLACES)
    there = (generated.ROOT / place).read_text(encoding="utf-8")
    assert there == made[place], "the parts have changed: give `make documents`"


def test_what_is_stale_is_named_and_written_again(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generated, "documents", lambda: made)
    monkeypatch.setattr(generated, "ROOT", tmp_path)
    assert generated.main([]) == 2
    assert "is no checkout of the sources" in capsys.readouterr().err
    (tmp_path / "pyproject.toml").touch()
    assert generated.main([]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / place) for place in PLACES]
    assert generated.main(["--check"]) == 0
    (tmp_path / "docs/config.md").unlink()
    with (tmp_path / "docs/methods.md").open("a") as file:
        file.write("edited\n")
    assert generated.main(["--check"]) == 2
    assert capsys.readouterr().err == (
        "fedsdg: error: not what the parts say: docs/methods.md, docs/config.md; "
        "give `make documents`\n"
    )
    assert not (tmp_path / "docs/config.md").exists(), "a check writes nothing"
    assert generated.main([]) == 0
    assert generated.stale(tmp_path) == []


def test_the_schema_is_one(made):
    Draft202012Validator.check_schema(json.loads(made["workflow/schemas/config.schema.json"]))


@part
class Stuck:
    """The update of the round before, again."""

    rounds_back: Annotated[int, Range(1, 9)] = 1
    "how many rounds ago it was"


def test_a_new_method_and_a_new_attack_show_in_every_document(made, monkeypatch):
    krum = replace(METHODS["krum"].with_values({"f": 3}), title="Krum, wary")
    monkeypatch.setattr(describing, "METHODS", {**METHODS, "wary": krum})
    families = {**describing.FAMILIES, "Wary rules": {"wary": krum}}
    monkeypatch.setattr(describing, "FAMILIES", families)
    attacks = {**describing.ATTACKS, "stuck": Choice("Stuck", Stuck(), "nobody 2026")}
    monkeypatch.setattr(describing, "ATTACKS", attacks)
    new = generated.documents()
    # All but the columns of records, which know no method.
    assert all(new[place] != made[place] for place in PLACES[:-1])

    declared = json.loads(new["fedsdg/declarations.json"])
    assert (declared["methods"][-1]["title"], declared["methods"][-1]["family"]) == (
        "Krum, wary",
        "Wary rules",
    )
    assert "| Krum, wary (`wary`) |" in new["docs/methods.md"]
    assert (
        "| Stuck (`stuck`) | `rounds_back` | 1 | whole number from 1 to 9 "
        "| how many rounds ago it was | nobody 2026 |"
    ) in new["docs/config.md"]
    check = Draft202012Validator(json.loads(new["workflow/schemas/config.schema.json"]))
    config = {"methods": ["wary", {"type": "wary", "name": "other", "f": 2}]}
    attack = {"type": "stuck", "share": 0.1, "rounds_back": 10}
    config["conditions"] = {"attack": attack}
    said = {error.message for error in check.iter_errors(config)}
    said = {one for one in said if "is a required property" not in one}
    assert said == {"10 is greater than the maximum of 9"}
