"""What a comparison leaves beside its runs: the methods as they were run, and all hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from fedsdg import files
from fedsdg.experiment.comparing.newcomers import Newcomers
from fedsdg.experiment.comparing.pairing import Record
from fedsdg.experiment.config import Config
from fedsdg.experiment.replay import Agreement

#: Files of the folder, and its folder of records.
METHODS, FACTS, RECORDS = "methods.yaml", "comparison.json", "records"
#: The tables of the record that a comparison reads.
_READ = ("runs.parquet", "rounds.parquet", "clients.parquet")


def write_methods(folder: Path, arena: str, newcomers: Newcomers, seeds: Sequence[int]) -> Path:
    """Write a config to be laid over that of the arena: the newcomers in place of its methods.

    Plugins are named as they are seen from the folder.
    """
    laid: dict[str, Any] = {
        "experiment": arena,
        "seeds": list(seeds),
        "plugins": list(newcomers.plugins),
        "methods": list(newcomers.entries),
        # The arena's spaces and tuned values are those of its own rows.
        "tuned": None,
        "search": {"space": {}},
        "tables": ["main"],
        "figures": [],
    }
    with files.atomic_path(folder / METHODS) as temporary:
        temporary.write_text(yaml.safe_dump(laid, sort_keys=False, allow_unicode=True))
    return folder / METHODS


def write_facts(record: Record, config: Config, agreement: Agreement | None) -> None:
    """What was compared with what: configs, hashes, and where and with which versions."""
    place = (config.datasets[0], config.settings[0])
    runs = {one.label: config.run(*place, one, config.seeds[0]) for one in config.methods}
    hashes = {Path(plugin.place).name: plugin.sha256 for plugin in config.plugins}
    files.write_json(
        config.root / FACTS,
        {
            "arena": config.experiment,
            "seeds": list(config.seeds),
            "methods": {label: run.to_dict() for label, run in runs.items()},
            "plugins": hashes,
            "paired": None
            if agreement is None
            else {**asdict(agreement), "paired": agreement.paired},
            "record": {name: files.sha256_file(record.folder / name) for name in _READ},
            "backbone": sorted({str(run.row["backbone_hash"]) for run in record.runs}),
            "here": files.provenance(),
        },
    )
