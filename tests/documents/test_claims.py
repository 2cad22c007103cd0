"""The claims are about experiments that a config describes; `fedsdg verify` judges them."""

import re
from pathlib import Path

from fedsdg.analysis.claims import read_claims

ROOT = Path(__file__).parents[2]
CLAIMS = read_claims(ROOT / "claims.yaml")


def test_every_claim_is_about_an_experiment_that_ships():
    keys = [key for claim in CLAIMS for name in claim.of for key in name.split(" + ")]
    texts = [file.read_text() for file in (ROOT / "config").rglob("*.yaml")]
    known = {name for text in texts for name in re.findall(r"^experiment: (\S+)", text, re.M)}
    assert 0 < len(CLAIMS) <= 40 and {key.split("/")[0] for key in keys} <= known


def test_departures_link_to_claims_that_exist():
    text = (ROOT / "docs/maintainers/departures.md").read_text()
    linked = re.findall(r"claims\.md#([\w-]+)\)", text)
    assert linked and {*linked} <= {claim.id for claim in CLAIMS}
