"""What the rules share: the checked config, the grid, the paths, and the sources behind each rule.

Kept light on purpose (no pandas, no torch): Snakemake reads it on every call.
"""

import copy
import hashlib
import json
import os
import sys
from pathlib import Path

import yaml
from snakemake.utils import update_config, validate

validate(config, "../schemas/config.schema.yaml")

# The package of this checkout, of which only what needs no torch and no pandas is imported.
ROOT = Path(workflow.basedir)
ROOT = ROOT.parent if ROOT.name == "workflow" else ROOT
sys.path.insert(0, str(ROOT))
from fedsdg.methods.conditions import ATTACKS, parse_conditions
from fedsdg.data.datasets import DATASETS as DATA_TABLE
from fedsdg.experiment.declared_data import ALL, all_clients, description, parse_datasets
from fedsdg.methods.local_parts import LOSSES, OPTIMISERS
from fedsdg.methods.table import METHODS as METHOD_TABLE
from fedsdg.methods.plugins import find_plugin, plugin_sources
from fedsdg.experiment.reach import code_hash
from fedsdg.experiment.starts import FILES as START_FILES

# --- The grid -------------------------------------------------------------------------------

EXPERIMENT = config["experiment"]
# By name; some may be described by the config itself.
DATASETS, OWN_DATA = parse_datasets(config["datasets"])
if config["federation"]["clients"] == ALL:
    # Counted here, and a number for whoever reads the config that the jobs get.
    config["federation"]["clients"] = all_clients(config)
METHODS = {
    entry.get("name", entry["type"]): entry
    for entry in ({"type": m} if isinstance(m, str) else m for m in config["methods"])
}
# A skew, under one of the scenarios where there are any.
SCENARIOS = config.get("scenarios", {})
SETTINGS = [
    f"{skew}@{scenario}" if scenario else skew
    for skew in config["skews"]
    for scenario in SCENARIOS or [None]
]
# Every table of fedsdg.analysis.tables and every figure of fedsdg.analysis.plots (a test compares).
TABLES = [
    "main",
    "personal_accuracy",
    "worst_decile",
    "global_accuracy",
    "differences",
    "bytes",
    "seconds",
    "byzantine",
    "detection",
    "stragglers",
    "label_noise",
    "sensitivity",
    "verification",
    "tuning",
    "rounds_to_target",
    "groups",
    "horizon",
    "primary",
]
FIGURES = [
    "convergence",
    "accuracy_vs_alpha",
    "differences",
    "gates",
    "weights",
    "partition",
    "byzantine",
    "robustness",
    "stragglers",
    "label_noise",
    "sensitivity",
    "personalisation",
    "drift",
    "tuning",
    "progress",
    "gate_dynamics",
    "groups",
]
# What a record shows that does not say so, and the default config (a test compares these too).
USUAL_TABLES = [
    "main",
    "personal_accuracy",
    "worst_decile",
    "global_accuracy",
    "differences",
    "bytes",
    "seconds",
]
USUAL_FIGURES = ["convergence", "accuracy_vs_alpha", "differences", "gates", "weights", "partition"]

TABLE_FORMATS = ["csv", "md", "tex"]
FIGURE_FORMATS = ["pdf", "svg", "png", "json"]

# --- Paths ----------------------------------------------------------------------------------

PARTITION = "results/partitions/{dataset}/clients~{clients}/{skew}/seed~{seed}.parquet"
BACKBONE = "results/backbones/{backbone}.safetensors"
# None where all parameters of a small CNN are trained.
TRAINABLE = config.get("trainable", "adapters")
BACKBONES_OF_RUNS = expand(BACKBONE, backbone=config["backbone"] if TRAINABLE == "adapters" else [])
CELL = "results/runs/{experiment}/{dataset}/clients~{clients}/{setting}/{method}"
RECORDS = [
    "rounds.parquet",
    "clients.parquet",
    "result.json",
    "provenance.json",
    "timings.parquet",
]
SUMMARY = ["runs", "rounds", "clients", "timings", "differences"]
# The comparisons that the config names beforehand.
NAMED = "primary.json"

# What stands behind the published numbers is committed as results/reference/{experiment}/ (`fedsdg
# record` makes it). Its tables, and the figures in paper_figures/, are made from it alone. What is
# computed in this checkout lies beside it, in results/{summary,tables,figures}/: neither is ever
# taken for the other.
RECORD = "results/reference/{experiment}"
RECORDED = sorted(file.parent.name for file in Path("results/reference").glob("*/runs.parquet"))


SKEW = (
    r"dirichlet~[0-9.]+|mixed~[0-9.]+~[0-9.]+|classes~[0-9]+|quantity~[0-9.]+|domains"
    r"|column~[A-Za-z0-9][A-Za-z0-9_.-]*|iid"
)


wildcard_constraints:
    experiment=r"[A-Za-z0-9][A-Za-z0-9._+-]*",
    dataset=r"[A-Za-z0-9][A-Za-z0-9_-]*",
    clients=r"[0-9]+",
    skew=SKEW,
    setting=rf"({SKEW})(@[A-Za-z0-9][A-Za-z0-9._~-]*)?",
    method=r"[A-Za-z0-9][A-Za-z0-9._+-]*",
    seed=r"[0-9]+",
    backbone=r"[A-Za-z0-9][A-Za-z0-9._+-]*",
    table="|".join(TABLES),
    figure="|".join(FIGURES),


def grid(pattern, **more):
    """Fill a path pattern with every value that the config gives to its wildcards."""
    values = dict(
        experiment=EXPERIMENT,
        dataset=DATASETS,
        clients=config["federation"]["clients"],
        skew=config["skews"],
        setting=SETTINGS,
        method=list(METHODS),
        seed=config["seeds"],
        record=RECORDS,
        table=config["tables"],
        figure=config["figures"],
    )
    return expand(pattern, **{**values, **more})


def partitions_of_cell(wildcards):
    """Those of all seeds; they are the same in all scenarios."""
    skew = wildcards.setting.partition("@")[0]
    return expand(
        PARTITION,
        dataset=wildcards.dataset,
        clients=wildcards.clients,
        skew=skew,
        seed=config["seeds"],
    )


def run_records():
    return grid(f"{CELL}/seed~{{seed}}/{{record}}")


def summary_files():
    tables = expand("results/summary/{{experiment}}/{record}.parquet", record=SUMMARY)
    return [*tables, f"results/summary/{{experiment}}/{NAMED}"]


def table_files():
    return grid("results/tables/{experiment}/{table}.{suffix}", suffix=TABLE_FORMATS)


def figure_files():
    return grid("results/figures/{experiment}/{figure}.{suffix}", suffix=FIGURE_FORMATS)


def claim_files():
    return grid("results/claims/{experiment}.{suffix}", suffix=["md", "json"])


def last_pages():
    """A file of every table, figure and claim; where it is made, so are the others."""
    tables = grid("results/tables/{experiment}/{table}.md")
    figures = grid("results/figures/{experiment}/{figure}.json")
    return [*tables, *figures, *grid("results/claims/{experiment}.md")]


def recorded_summary(wildcards):
    """What pages are made from; the search, where there was one, concerns one table and figure.

    Records from before name no comparisons.
    """
    folder = RECORD.format(experiment=wildcards.experiment)
    files = [f"{folder}/{name}.parquet" for name in SUMMARY]
    page = wildcards.get("table", wildcards.get("figure"))
    more = [Path(folder, NAMED)] if page != "tuning" else [Path(folder, "search.json")]
    return files + [str(file) for file in more if file.exists()]


def search_file(wildcards):
    """What `fedsdg search` found of the experiment, here or for the record; nothing where none was."""
    places = [f"results/search/{wildcards.experiment}.json"]
    places.append(f"{RECORD.format(experiment=wildcards.experiment)}/search.json")
    return [file for file in places if Path(file).exists()][:1]


def recorded_partitions(wildcards):
    folder = Path(RECORD.format(experiment=wildcards.experiment), "partitions")
    return sorted(map(str, folder.rglob("*.parquet")))


def recorded_pages(kind):
    """(experiment, name) of every table or figure of the records; an old one says nothing of them."""
    for experiment in RECORDED:
        file = Path(RECORD.format(experiment=experiment), "pages.json")
        named = json.loads(file.read_text()) if file.exists() else {}
        usual = USUAL_TABLES if kind == "tables" else USUAL_FIGURES
        for name in named.get(kind, usual):
            yield experiment, name


def published_tables():
    names = [f"{RECORD.format(experiment=e)}/{name}" for e, name in recorded_pages("tables")]
    return expand("{stem}.{suffix}", stem=names, suffix=TABLE_FORMATS)


def published_figures():
    names = [f"paper_figures/{e}/{name}" for e, name in recorded_pages("figures")]
    return expand("{stem}.{suffix}", stem=names, suffix=FIGURE_FORMATS)


# --- What jobs ask for ----------------------------------------------------------------------

# Of CIFAR-100 a training process took 4.5 GB; what is small takes less than 1 GB, most of it PyTorch.
SMALL = ("digits", "digits_domains", "letters")
GPU = int(config["training"].get("device") == "cuda")


def memory(data, attempt):
    """Megabytes of a job that holds a data set; more where it was tried before and did not end."""
    return attempt * (2048 if data in SMALL else 6144)


# --- The sources behind each rule -----------------------------------------------------------
# They are inputs, compared by checksum: an edited plot draws figures again and trains nothing,
# an edited trainer trains again and neither partitions nor pretrains. A test compares these
# lists with what the modules import. The command line (cli/) only passes arguments on.
# Training is not among them: its rule carries the hash of the code that its runs can reach, as
# the store does, so that Snakemake runs a cell again exactly when its runs have other addresses.

SOURCES = {
    "partition": [
        "files/*.py",
        "rng.py",
        "experiment/__init__.py",
        "experiment/loading.py",
        "data/__init__.py",
        "data/allocation.py",
        "data/datasets.py",
        "data/domains.py",
        "data/natural.py",
        "data/own_*.py",
        "data/partition*.py",
        "data/skew.py",
        "data/stored_images.py",
        "data/stratified.py",
        "data/transforms.py",
    ],
    "pretrain": [
        "compiling.py",
        "files/*.py",
        "rng.py",
        "experiment/__init__.py",
        "experiment/backbones/*.py",
        "experiment/machine/__init__.py",
        "experiment/machine/devices.py",
        "experiment/machine/gpu.py",
        "experiment/machine/interruption.py",
        "data/__init__.py",
        "data/datasets.py",
        "data/domains.py",
        "data/glyphs.py",
        "data/images.py",
        "data/stored_images.py",
        "data/transforms.py",
        "models/__init__.py",
        "models/architecture.py",
        "models/attention.py",
        "models/attention_kernels.py",
        "models/backbones.py",
        "models/forward.py",
        "models/low_rank.py",
        "models/probe.py",
        "models/products.py",
        "models/torchvision_schemas.py",
        "models/training.py",
    ],
    "summarise": ["files/*.py", "analysis/*.py"],
    "tables": ["files/*.py", "analysis/*.py", "analysis/tables/**/*.py"],
    "figures": ["__init__.py", "files/*.py", "analysis/*.py", "analysis/plots/**/*.py"],
    "claims": ["files/*.py", "analysis/*.py"],
    "measure": ["__init__.py", "compiling.py", "files/*.py", "parts.py", "aggregation/**/*.py"],
    "kernels": [
        "__init__.py",
        "files/*.py",
        "analysis/*.py",
        "analysis/plots/**/*.py",
        "analysis/tables/**/*.py",
    ],
}


def sources(stage):
    """The package files that a stage's results depend on, relative to the working directory."""
    package = ROOT / "fedsdg"
    files = {file for pattern in SOURCES[stage] for file in package.glob(pattern)}
    return [os.path.relpath(file) for file in sorted(files)]


def plugin_files(wildcards):
    """The files that parts of a cell from outside may be in; none where all are the package's."""
    own = METHODS[wildcards.method]["type"] in METHOD_TABLE
    if own and not lent_parts(wildcards) and not outside_attack(conditions_of(wildcards)):
        return []
    return all_plugin_files()


def all_plugin_files():
    """The plugins of the config, with the modules beside them that they import."""
    places = [place for place in config.get("plugins", []) if place.endswith(".py")]
    return [os.path.relpath(file) for place in places for file in plugin_sources(place)]


def data_files(wildcards):
    """The plugins that a data set may be of; none for the package's and for one described."""
    known = wildcards.dataset in DATA_TABLE or wildcards.dataset in OWN_DATA
    return [] if known else all_plugin_files()


def conditions_of(wildcards):
    """What the runs of a cell have to cope with, as the config says it."""
    conditions = copy.deepcopy(config.get("conditions") or {})
    scenario = SCENARIOS.get(wildcards.setting.partition("@")[2]) or {}
    update_config(conditions, scenario.get("conditions") or {})
    return conditions


def outside_attack(conditions):
    """Whether an attack is none of the package."""
    attack = conditions.get("attack")
    return attack is not None and attack["type"] not in ATTACKS


def trained_with(wildcards):
    """Optimiser and loss of a cell by name, each with the package's table of such."""
    scenario = SCENARIOS.get(wildcards.setting.partition("@")[2]) or {}
    given = {**config["training"], **(scenario.get("training") or {}), **METHODS[wildcards.method]}
    row = METHOD_TABLE.get(METHODS[wildcards.method]["type"])
    prescribed = None if row is None else row.optimiser
    chosen = [
        (prescribed or given.get("optimiser", "adam"), OPTIMISERS),
        (given.get("loss", "cross-entropy"), LOSSES),
    ]
    return [(one if isinstance(one, str) else one["type"], table) for one, table in chosen]


def lent_parts(wildcards):
    """Optimiser and loss of a cell, as far as they are no rows of the package."""
    return [name for name, table in trained_with(wildcards) if name not in table]


def code(wildcards):
    """The hash of all code that the runs of a cell can reach, without its words."""
    method = METHODS[wildcards.method]["type"]
    conditions = conditions_of(wildcards)
    # A plugin is imported, and torch with it, only where its rows are needed to read the config.
    places = config.get("plugins", []) if outside_attack(conditions) else []
    parsed = parse_conditions(conditions, plugins=[find_plugin(place) for place in places])
    outside = [Path(file) for file in plugin_files(wildcards)]
    lent = outside if lent_parts(wildcards) else []
    training = [table[name].part for name, table in trained_with(wildcards) if name in table]
    if method not in METHOD_TABLE:  # It may prescribe an optimiser; which, only its import tells.
        training += [row.part for row in OPTIMISERS.values()]
    return code_hash(METHOD_TABLE.get(method, outside), parsed, training, lent)


def suites():
    """The benchmarks that the pipeline runs, relative to the working directory."""
    names = ("accuracy", "aggregation", "growth")
    return [os.path.relpath(ROOT / f"benchmarks/bench_{name}.py") for name in names]


def benchmark_sources():
    """Whatever the suites consist of."""
    return [os.path.relpath(file) for file in sorted((ROOT / "benchmarks").glob("*.py"))]


# --- The config as the jobs see it ----------------------------------------------------------
# Rules carry the parts of the config that they depend on as `params`, so that a changed λ₁
# trains one method again and nothing else. The commands read the whole effective config
# (files and `--config` overrides merged) from a file named by its own hash. Its path travels in
# the environment: in a shell command or in `params`, every change of the config would
# re-run everything.

# Sections whose values already stand in the paths of a run or of its inputs (the files of plugins
# are inputs), that only `fedsdg search` reads, or that change no result. What is not named here
# re-runs the training when it changes.
OUTSIDE_TRAINING = {
    "experiment",
    "datasets",
    "backbone",
    "backbones",
    "skews",
    "scenarios",
    "seeds",
    "partition",
    "methods",
    "plugins",
    "search",
    "checkpoint_seconds",
    "tables",
    "figures",
    "primary",
}


def canonical(value):
    """A plain string for `params`: equal settings give equal text, whatever their order."""
    return json.dumps(value, sort_keys=True)


def partition_settings(wildcards):
    """How samples are dealt and, of one's own data, what they are and which files there are."""
    return canonical({**config["partition"], **description(config, wildcards.dataset)})


#: The files of the checkpoint that training starts from, which may be made anew in their place.
START = [
    f"{folder}/{name}"
    for folder in [(config.get("adapters") or {}).get("start")]
    if folder
    for name in START_FILES
]


def training_settings(wildcards):
    shared = {key: config[key] for key in config if key not in OUTSIDE_TRAINING}
    scenario = SCENARIOS.get(wildcards.setting.partition("@")[2])
    here = {"scenario": scenario} if scenario is not None else {}
    return canonical({**shared, **here, "method": METHODS[wildcards.method]})


def write_effective_config():
    """Write the merged config once, atomically, and return its absolute path."""
    text = yaml.safe_dump(config, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = Path(".fedsdg", "config", f"{EXPERIMENT}-{digest}.yaml")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(text)
        os.replace(partial, path)
    return str(path.resolve())


os.environ.update(
    FEDSDG_CONFIG=write_effective_config(),
    # glibc gives large tensors back to the kernel when they are freed and faults them in again
    # at the next step, which costs a training run a large part of its time. These keep the
    # memory in the process. Other C libraries ignore them.
    MALLOC_MMAP_MAX_="0",
    MALLOC_TRIM_THRESHOLD_="4294967296",
    MALLOC_TOP_PAD_="268435456",
)
