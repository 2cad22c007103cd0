"""README and findings lead to what they speak of; `fedsdg verify` compares what they say."""

import re
from pathlib import Path

import pytest

from fedsdg.config.layers import load
from fedsdg.files.places import ARENAS, REGRET
from fedsdg.methods.families import METHODS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/findings.md"])
def test_every_file_that_it_links_to_is_there(page):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text())
    files = [target for target in links if not target.startswith("http")]
    assert [file for file in files if not ((ROOT / page).parent / file).exists()] == []


def test_it_counts_methods_and_rows_as_they_are():
    assert int(re.search(r"(\d+) methods", README)[1]) == len(METHODS)
    counts = re.search(r"(\d+) of them, in (\d+) rows, .* and (\d+) in `views`", README, re.DOTALL)
    configs = {name: load([name]) for name in ARENAS}
    for arena in REGRET:
        methods = configs[arena].methods
        assert counts[1] == str(len({entry.type for entry in methods}))
        assert counts[2] == str(len(methods))
    assert counts[3] == str(len(configs["views"].methods))


@pytest.mark.parametrize("arena", REGRET)
def test_the_reproduced_rows_are_rows_of_the_arena(arena):
    whole, made = load([arena]), load([arena, "reproduced"])
    assert [whole.method(entry.label) for entry in made.methods] == [*made.methods]


def test_every_method_with_a_record_in_an_arena_is_one_of_the_package():
    for arena in ARENAS:
        assert {entry.type for entry in load([arena]).methods} <= set(METHODS)
