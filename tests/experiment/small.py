"""Small runs on real digits with a tiny frozen backbone."""

import json
from functools import cache
from pathlib import Path

import torch
import yaml

from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.method_entries import method_entry
from fedsdg.experiment.runs import execute
from fedsdg.experiment.scenarios import laid_over
from fedsdg.models import Architecture, build_backbone, freeze
from tests.suited import suited

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
SKEW = "dirichlet~1.0"
TABLES = ("rounds.parquet", "clients.parquet")
SMALL = {
    "federation": {"clients": 8, "clients_per_round": 5, "rounds": 2, "evaluate_every": 1},
    "training": {"epochs": 1},
    "adapters": {"rank": 2, "alpha": 4},
}


@cache
def backbone(side=8, width=32):
    architecture = Architecture(side, 4, 1, width, 2, 2, (0.5,), (0.5,))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return freeze(build_backbone(architecture), architecture, "tiny", {})


@cache
def material(device="cpu", side=8, width=32):
    return prepare_material("digits", backbone(side, width), device)


def small_config(**sections):
    raw = laid_over(yaml.safe_load(CONFIG.read_text(encoding="utf-8")), SMALL)
    return parse_config(laid_over(raw, sections))


def small_run(entry="fedsdg", *, seed=0, skew=SKEW, **sections):
    """A run of a method; `sections` are laid over the config."""
    config = small_config(skews=[skew], **sections)
    config = suited(config, entry if isinstance(entry, str) else entry["type"])
    return config.run("digits", skew, method_entry(entry), seed)


def partition_of(run):
    clients = run.federation.clients
    return make_partition("digits", run.skew, run.seed, clients, run.partition)


def setup_of(run, images=None):
    """The federation of a run."""
    return build(run, images or material(run.training.device), partition_of(run))


def do(run, folder, store, *, images=None, **options):
    """Do a run as the command does; returns None or the sentence of its failure."""
    given = {"store": store, "identity": {"experiment": "test", "seed": run.seed}, **options}
    return execute(run, images or material(run.training.device), partition_of(run), folder, **given)


def read(folder, name="result"):
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def same_bytes(one, other):
    """Whether two folders have the same records."""
    names = (*TABLES, "result.json")
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)
