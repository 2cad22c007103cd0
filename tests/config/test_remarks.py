"""What a config may say, but perhaps does not mean, is said."""

import pytest
import yaml

from fedsdg.config.layers import load

PETS = [{"name": "pets", "folder": "pets", "size": 4}]
SAID = [
    ({}, []),
    ({"datasets": PETS}, ["'letters' has learned from rendered letters; if images of 'pets'"]),
    ({"datasets": PETS, "trainable": "full", "methods": ["fedavg"]}, []),
]


@pytest.mark.parametrize(("changed", "parts"), SAID)
def test_what_may_not_be_meant_is_one_sentence(changed, parts, tmp_path, capsys):
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({"experiment": "own", **changed}))
    load([file]).print_remarks()
    found = capsys.readouterr().err.splitlines()
    assert len(found) == len(parts)
    assert all(part in sentence for part, sentence in zip(parts, found, strict=True))
