"""Shared by all rules: the checked config, the grid, and the code behind each rule.

Kept light on purpose (no pandas, no torch): Snakemake reads it on every call.
"""

import atexit
import json
import os
import re
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

# The package of this checkout, of which only what needs no torch and no pandas is imported.
ROOT = Path(workflow.basedir)
ROOT = ROOT.parent if ROOT.name == "workflow" else ROOT
sys.path.insert(0, str(ROOT))
from fedsdg.experiment.backbones.made import takes_recorded
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.config_files import OVER, beneath, kept_whole
from fedsdg.experiment.declared_data import ALL, all_clients, description
from fedsdg.experiment.reach import code_of, source_hash
from fedsdg.experiment.store import libraries
from fedsdg.files import canonical_json, hint, note_spent, places, sha256_json
from fedsdg.files.declarations import declarations, families, titles
from fedsdg.files.strict_yaml import read_yaml
from fedsdg.methods.plugins import plugin_sources

# With FEDSDG_SPENT, what Snakemake has spent, its jobs included, is noted when it ends.
if workflow.is_main_process:
    atexit.register(note_spent, "report" if "--report" in sys.argv else "snakemake")

# Snakemake has read these files already, but keeps the last of two equal keys without a word, and
# knows nothing of the files that one is laid over.
LAID = [Path(file).resolve() for file in (*workflow.configfiles, *workflow.overwrite_configfiles)]
for number, file in enumerate(LAID):
    read_yaml(file)
    for lacking in set(beneath(file)) - set(LAID[:number]):
        raise ValueError(
            f"{file.name} is laid over {lacking.name}; name that file before it, or "
            f"call fedsdg reproduce --config {file.stem}"
        )
config.pop(OVER, None)
if config["federation"]["clients"] == ALL:
    # Counted here, and a number in the config that the jobs get.
    config["federation"]["clients"] = all_clients(config)
CONFIG = parse_config(config)
EXPERIMENT = CONFIG.experiment

# What the config has for each wildcard: a name in braces of fedsdg/files/places.py.
VALUES = dict(
    experiment=[EXPERIMENT],
    dataset=CONFIG.datasets,
    clients=[CONFIG.federation.clients],
    skew=CONFIG.skews,
    setting=CONFIG.settings,
    method=[method.label for method in CONFIG.methods],
    seed=CONFIG.seeds,
    backbone=[*CONFIG.backbones],
)


wildcard_constraints:
    **{name: "|".join(map(re.escape, map(str, known))) for name, known in VALUES.items()},


# --- The grid --------------------------------------------------------------------------------


def grid(pattern, **more):
    """Fill a path pattern with every value that the config gives to its wildcards."""
    return expand(pattern, **{**VALUES, "record": places.RUN_FILES, **more})


def partitions_of_cell(wildcards):
    """Those of all seeds; they are the same in all scenarios."""
    cell = (wildcards.dataset, wildcards.clients, wildcards.setting)
    return [str(places.partition_of(*cell, seed)) for seed in CONFIG.seeds]


# --- The code behind each rule ---------------------------------------------------------------
# A rule has among its params what the config says of it, and the hash of the code that its command
# can reach, without comments and docstrings: an edited plot renders again and trains nothing, an
# edited trainer trains again and neither partitions nor pretrains. Of a run it is that of its
# address in the store. The command line only passes arguments on.
CODE = {
    "partition": [
        "fedsdg.data.partition",
        "fedsdg.data.partition_files",
        "fedsdg.experiment.loading",
    ],
    "pretrain": ["fedsdg.experiment.backbones.pretraining", "fedsdg.experiment.backbones.made"],
    "summarise": [
        "fedsdg.analysis.gather:summarise",
        "fedsdg.experiment.method_facts:config_facts",
    ],
    "render": ["fedsdg.analysis.render"],
    "measure": ["fedsdg.aggregation.api", "fedsdg.aggregation.rule_table"],
    "speed": ["fedsdg.analysis.speed"],
}
# These stages take the printed names of methods from the declarations.
READ = ("summarise",)
CALLED = sha256_json([dict(families()), dict(titles("methods"))])[:12]
CODE = {
    stage: code_of(*doors) + (f"-{CALLED}" if stage in READ else "")
    for stage, doors in CODE.items()
}


def settings_and_code(dataset, setting, method):
    """The hash of what the config says of a cell's runs, whatever their seed, and of their code."""
    run = CONFIG.run(dataset, setting, CONFIG.method(method), min(CONFIG.seeds))
    return [replace(run, seed=0).hash, canonical_json({"code": source_hash(run), **libraries()})]


def settings_and_code_of_grid(wildcards):
    """One hash of those of all cells."""
    cells = product(CONFIG.datasets, CONFIG.settings, VALUES["method"])
    return sha256_json(sorted([*cell, *settings_and_code(*cell)] for cell in cells))


def partition_settings(wildcards):
    """How samples are dealt and, of a user's data, what they are and which files there are."""
    return canonical_json({**config["partition"], **description(config, wildcards.dataset)})


def plugin_files(wildcards):
    """The files of the plugin that a data set is from; none for others."""
    plugin = getattr(CONFIG.source(wildcards.dataset), "plugin", None)
    return sources_of(plugin) if plugin is not None else []


def sources_of(plugin):
    """The files of a plugin that is a file."""
    inside = plugin.place.endswith(".py")
    return [os.path.relpath(file) for file in plugin_sources(plugin.place)] if inside else []


def recorded_backbone(wildcards):
    """The hash of the record's backbone, which is taken if its recipe is the config's."""
    facts = ROOT / places.RECORDS / f"backbones/{wildcards.backbone}.json"
    return json.loads(facts.read_text())["sha256"] if takes_recorded() and facts.is_file() else ""
