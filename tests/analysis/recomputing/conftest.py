"""A small repository: one record with its pages, a ledger of one claim, a README and findings."""

import shutil
from pathlib import Path

import pytest

from fedsdg.analysis.ledger import write_ledger
from fedsdg.analysis.tables import write_table

ROOT = Path(__file__).parents[3]
NAME = "label-noise"
RECORD = f"results/reference/{NAME}"
SIDECAR = f"paper_figures/{NAME}/label_noise.json"

CLAIMS = """
- id: weights-follow-noise
  source: "000"
  origin: specification
  section: Summary
  sentence: A client weighs less the more of its labels are wrong.
  experiment: label-noise
  cell: dirichlet~1.0
  method: fedsdg
  measure: credit
  arguments: {of: weight, against: noise_rate}
  threshold: {below: -0.3}
"""
SAID = """<!-- results -->
- Weights follow the noise by −0.605 on 3 seeds
  ([weights-follow-noise](claims.md#weights-follow-noise)).
<!-- /results -->
"""


@pytest.fixture(scope="session")
def repository(tmp_path_factory) -> Path:
    """Everything in it is what its record gives; copy it before you change it."""
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / RECORD, root / RECORD)
    for file in (SIDECAR, "config/config.yaml", f"config/extended/{NAME}.yaml"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, root / file)
    (root / "claims.yaml").write_text(CLAIMS)
    write_table(root / RECORD, "main", root / RECORD / "main")  # In LaTeX, too.
    records, page = root / "results/reference", root / "docs/claims.md"
    write_ledger(root / "claims.yaml", root / "config", records, page)
    table = (root / RECORD / "main.md").read_text()
    shown = f"<!-- main-table -->\n{table}<!-- /main-table -->\n"
    (root / "README.md").write_text(f"# A title\n\n{shown}\n{SAID}")
    (root / "docs/findings.md").write_text(f"# Findings\n\n{SAID}")
    return root
