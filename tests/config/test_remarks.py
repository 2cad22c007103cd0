"""What a config may say, but perhaps does not mean, is said."""

import pytest
import yaml

from fedsdg.config.layers import load
from fedsdg.config.remarks import remarks

PETS = [{"name": "pets", "folder": "pets", "size": 4}]
NOBODY = {"label_conflict": {"share": 0.0}}
SAID = [
    ({}, []),
    ({"conditions": {"label_conflict": {"share": 0.5}}}, []),
    ({"conditions": NOBODY}, ["label_conflict.share is 0.0, none of 20 clients"]),
    ({"scenarios": {"a": {"conditions": NOBODY}, "b": {"conditions": NOBODY}}}, ["none of 20"]),
    ({"conditions": {"feature_shift": {"share": 0.01}}}, ["feature_shift.share is 0.01, none"]),
    ({"conditions": {"quantisation": {"share": 0.0}}}, ["none of 20 clients"]),
    ({"datasets": PETS}, ["'letters' has learned from rendered letters; if images of 'pets'"]),
    ({"datasets": PETS, "trainable": "full", "methods": ["fedavg"]}, []),
]


@pytest.mark.parametrize(("changed", "parts"), SAID)
def test_what_may_not_be_meant_is_one_sentence(changed, parts, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({"experiment": "own", **changed}))
    found = list(remarks(load([file])))
    assert len(found) == len(parts)
    assert all(part in sentence for part, sentence in zip(parts, found, strict=True))
