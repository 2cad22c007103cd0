"""The claims of the repository are about experiments that a config describes.

That the page says what the records say is for `fedsdg verify`.
"""

import re
from pathlib import Path

import pytest

from fedsdg.analysis.claims import read_claims
from fedsdg.experiment.arenas import arenas

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def claims():
    return read_claims(ROOT / "claims.yaml")


def experiments_of(claim) -> set[str]:
    """The experiments whose rows a claim is about."""
    keys = [key for name in claim.of for key in name.split(" + ")]
    return {key.split("/")[0] for key in keys}


def test_every_claim_is_about_an_experiment_that_ships(claims):
    assert 0 < len(claims) <= 40
    known = {one.name for one in arenas()}
    assert {name for claim in claims for name in experiments_of(claim)} <= known


def test_departures_link_to_claims_that_exist(claims):
    text = (ROOT / "docs/departures.md").read_text()
    linked = re.findall(r"\(claims\.md#([\w-]+)\)", text)
    assert linked
    assert set(linked) <= {claim.id for claim in claims}
    files = [t for t in re.findall(r"\]\(([^)#]+)\)", text) if not t.startswith("http")]
    assert [target for target in files if not (ROOT / "docs" / target).exists()] == []
