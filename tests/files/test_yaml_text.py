"""YAML that means something else than it seems to is refused, with its lines."""

import pytest
import yaml

from fedsdg.files.yaml_text import read_yaml, read_yaml_file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "seeds: [0]\nmethods: [krum]\nseeds: [1]\n",
            "'seeds' stands in line 1 and again in line 3",
        ),
        ("a: {b: 1, c: 2, b: 3}", "'b' stands in line 1 and again in line 1"),
        ("a:\n  - {type: krum, f: 1, f: 2}\n", "'f' stands in line 2 and again in line 2"),
        ("deadline: 1:30", "line 1: YAML reads 1:30 as a number of another base"),
        ("a: 1\nb: 1:30.5", "line 2: YAML reads 1:30.5"),
        ("seeds: [0, 010]", "YAML reads 010 as"),
        ("a: [1, 2", "line 1"),
        ("a: 2001-13-45", "month must be in 1..12"),
    ],
)
def test_what_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_yaml(text, "some.yaml")
    assert "\n" not in str(caught.value)
    file = tmp_path / "some.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"some.yaml is not valid YAML: .*{message}"):
        read_yaml_file(file)


@pytest.mark.parametrize(
    "text",
    [
        "a: '1:30'\nb: \"010\"\nc: 0\nd: -0.5\ne: 0x1f\nf: 1_000\ng: 2001-01-02\nh: 00:1a",
        "base: &base {x: 1, y: 2}\nother: {<<: *base, y: 3}\nthird: {y: 4}\n",
        "a: {b: 1}\nc: {b: 1}\n'1': x\n1: y\n",
        "",
    ],
)
def test_all_else_is_read_as_ever(text):
    assert read_yaml(text, "some.yaml") == yaml.safe_load(text)
