"""The claims of the repository: each has an experiment that exists.

That the page says what the records say is for `fedsdg verify`.
"""

import re
from pathlib import Path

import pytest

from fedsdg.analysis.grids import published_grids
from fedsdg.analysis.ledger import read_claims
from fedsdg.experiment.config_files import load_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def grids():
    return published_grids(ROOT / "config")


@pytest.fixture(scope="module")
def claims(grids):
    return read_claims(ROOT / "claims.yaml", grids)


def test_every_specification_has_claims_and_every_claim_a_home(claims):
    """Reading checks experiment, cell, rows, measure and arguments of each."""
    assert len(claims) >= 30
    assert {claim.source for claim in claims} == {"000", "001", "002", "003", "004", "study"}


def test_grids_are_those_of_the_checked_configs(grids):
    """They are read without the package's own checks; a config of the ledger agrees with these."""
    for name in ("cross-needs", "label-skew", "verification", "byzantine"):
        config = load_config([ROOT / "config/config.yaml", grids[name].file])
        assert grids[name].cells == tuple(config.settings)
        assert grids[name].rows == tuple(method.label for method in config.methods)


def test_every_proof_is_a_test(claims):
    proofs = [claim.proof for claim in claims if claim.proof]
    assert proofs
    for proof in proofs:
        file, _, name = proof.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), proof


def test_departures_link_to_claims_that_exist(claims):
    text = (ROOT / "docs/departures.md").read_text()
    linked = re.findall(r"\(claims\.md#([\w-]+)\)", text)
    assert linked
    assert set(linked) <= {claim.id for claim in claims}
    files = [t for t in re.findall(r"\]\(([^)#]+)\)", text) if not t.startswith("http")]
    assert [target for target in files if not (ROOT / "docs" / target).exists()] == []
