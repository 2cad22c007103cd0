"""Where finished runs and checkpoints are kept: below $FEDSDG_STORE, else below .fedsdg."""

import os
from pathlib import Path


def store() -> Path:
    """The folder of finished runs."""
    return Path(os.environ.get("FEDSDG_STORE", ".fedsdg")) / "runs"


def checkpoints() -> Path:
    """The folder of what an interrupted pretraining continues from."""
    return store().parent / "checkpoints"
