"""What the rules share: the checked config, the grid, the paths, and the sources behind each rule.

Kept light on purpose (no pandas, no torch): Snakemake reads it on every call.
"""

import atexit
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from snakemake.utils import validate

# The package of this checkout, of which only what needs no torch and no pandas is imported.
ROOT = Path(workflow.basedir)
ROOT = ROOT.parent if ROOT.name == "workflow" else ROOT
sys.path.insert(0, str(ROOT))
from fedsdg.experiment.backbones.made import takes_recorded
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.config_files import kept_whole
from fedsdg.experiment.declared_data import ALL, all_clients, description
from fedsdg.experiment.reach import code_of, source_hash
from fedsdg.experiment.starts import FILES as START_FILES
from fedsdg.experiment.store import libraries
from fedsdg.files import places, sha256_json
from fedsdg.files.declarations import declarations, families, titles
from fedsdg.files.spent import note_spent
from fedsdg.files.strict_yaml import read_yaml
from fedsdg.methods.plugins import plugin_sources

# With FEDSDG_SPENT, what Snakemake has spent, its jobs included, is noted when it ends.
if workflow.is_main_process:
    atexit.register(note_spent, "report" if "--report" in sys.argv else "snakemake")

# Snakemake has read these files already, but keeps the last of two equal keys without a word.
for file in (*workflow.configfiles, *workflow.overwrite_configfiles):
    read_yaml(Path(file))
validate(config, "../schemas/config.schema.json")

# --- The grid -------------------------------------------------------------------------------

if config["federation"]["clients"] == ALL:
    # Counted here, and a number for whoever reads the config that the jobs get.
    config["federation"]["clients"] = all_clients(config)
# Checked in full, as every command does.
CONFIG = parse_config(config)
EXPERIMENT = CONFIG.experiment
# All tables and figures, and those that a record shows which does not say so.
PAGES, USUAL = declarations()["pages"], declarations()["usual_pages"]

# --- Paths ----------------------------------------------------------------------------------
# All are in fedsdg/files/places.py, whose names in braces are the wildcards here.

# None where all parameters of a small CNN are trained.
BACKBONES_OF_RUNS = expand(
    places.BACKBONE, backbone=CONFIG.backbone if CONFIG.trainable == "adapters" else []
)
# What stands behind the published numbers is committed as results/reference/{experiment}/ (`fedsdg
# record` makes it). Its tables, and the figures in paper_figures/, are made from it alone. What is
# computed in this checkout lies beside it, in results/{summary,tables,figures}/: neither is ever
# taken for the other.
RECORDED = sorted(file.parent.name for file in Path(places.RECORDS).glob("*/runs.parquet"))


# The places of the experiment's tables and figures, without suffix.
TABLES = expand(places.TABLE, table=config["tables"], allow_missing=True)
FIGURES = expand(places.FIGURE, figure=config["figures"], allow_missing=True)

# The arenas of the three questions, in which the same methods are compared.
ARENAS = list(places.ARENAS)

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
    table="|".join(PAGES["tables"]),
    figure="|".join(PAGES["figures"]),


def grid(pattern, **more):
    """Fill a path pattern with every value that the config gives to its wildcards."""
    values = dict(
        experiment=EXPERIMENT,
        dataset=CONFIG.datasets,
        clients=CONFIG.federation.clients,
        skew=CONFIG.skews,
        setting=CONFIG.settings,
        method=[method.label for method in CONFIG.methods],
        seed=CONFIG.seeds,
        record=places.RUN_FILES,
        table=config["tables"],
        figure=config["figures"],
    )
    return expand(pattern, **{**values, **more})


def partitions_of_cell(wildcards):
    """Those of all seeds; they are the same in all scenarios."""
    cell = (wildcards.dataset, wildcards.clients, wildcards.setting)
    return [str(places.partition_of(*cell, seed)) for seed in CONFIG.seeds]


def run_records():
    return grid(f"{places.RUN}/{{record}}")


def summary_files():
    tables = [f"{places.SUMMARY}/{name}.parquet" for name in places.SUMMARY_TABLES]
    return tables + [f"{places.SUMMARY}/{name}" for name in (places.NAMED, places.ROLES)]


def table_files():
    return grid(f"{places.TABLE}.{{suffix}}", suffix=places.TABLE_FORMATS)


def figure_files():
    return grid(f"{places.FIGURE}.{{suffix}}", suffix=places.FIGURE_FORMATS)


def claim_files():
    return grid(f"{places.CLAIMS}.{{suffix}}", suffix=["md", "json"])


def where():
    """Where a person finds what the experiment has shown."""
    pages = [places.TABLE.format(experiment=EXPERIMENT, table=""), *grid(f"{places.CLAIMS}.md")]
    return [*pages, places.FIGURE.format(experiment=EXPERIMENT, figure="")]


def last_pages():
    """A file of every table, figure and claim; where it is made, so are the others."""
    tables, figures = grid(f"{places.TABLE}.md"), grid(f"{places.FIGURE}.json")
    return [*tables, *figures, *grid(f"{places.CLAIMS}.md")]


def record(experiment):
    """The folder of a committed record."""
    return places.filled(places.RECORD, experiment=experiment)


def recorded_summary(wildcards):
    """What pages are made from; the search, where there was one, concerns one table and figure.

    Records from before name no comparisons, and do not say who is who.
    """
    folder = record(wildcards.experiment)
    files = [f"{folder}/{name}.parquet" for name in places.SUMMARY_TABLES]
    page = wildcards.get("table", wildcards.get("figure"))
    more = [folder / places.NAMED] if page != "tuning" else [folder / "search.json"]
    return files + [str(file) for file in [*more, folder / places.ROLES] if file.exists()]


def search_file(wildcards):
    """What `fedsdg search` found of the experiment, here or for the record; nothing where none was."""
    here = places.filled(places.SEARCH, experiment=wildcards.experiment)
    found = [here, record(wildcards.experiment) / "search.json"]
    return [str(file) for file in found if file.exists()][:1]


def recorded_partitions(wildcards):
    folder = record(wildcards.experiment) / "partitions"
    return sorted(map(str, folder.rglob("*.parquet")))


def recorded_pages(kind):
    """(experiment, name) of every table or figure of the records; an old one says nothing of them."""
    for experiment in RECORDED:
        file = record(experiment) / "pages.json"
        named = json.loads(file.read_text()) if file.exists() else {}
        for name in named.get(kind, USUAL[kind]):
            yield experiment, name


def recorded_arenas():
    """Those whose records are summarised together; none where one has no record."""
    return ARENAS if set(ARENAS) <= set(RECORDED) else []


def published_tables():
    names = [f"{record(e)}/{name}" for e, name in recorded_pages("tables")]
    names += [f"{record('across')}/{name}" for name in ("regret",) if recorded_arenas()]
    return expand("{stem}.{suffix}", stem=names, suffix=places.TABLE_FORMATS)


def published_figures():
    pages = recorded_pages("figures")
    pages = [*pages, *[("across", "regret") for _ in recorded_arenas()[:1]]]
    names = [places.PAPER_FIGURE.format(experiment=e, figure=name) for e, name in pages]
    return expand("{stem}.{suffix}", stem=names, suffix=places.FIGURE_FORMATS)


# --- What jobs ask for ----------------------------------------------------------------------

# Of CIFAR-100 a training process took 4.5 GB; what is small takes less than 1 GB, most of it PyTorch.
SMALL = ("digits", "digits_domains", "letters")
GPU = int(config["training"].get("device") == "cuda")
# Whether one job trains the whole grid: where runs take seconds, a process for each cell would spend
# most of its time on imports. Nodes of a cluster and GPUs are for single cells.
CLUSTER = workflow.remote_exec or workflow.nodes is not None
TOGETHER = set(CONFIG.datasets) <= set(SMALL) and not GPU and not CLUSTER


def memory(data, attempt):
    """Megabytes of a job that holds a data set; more where it was tried before and did not end."""
    return attempt * (2048 if data in SMALL else 6144)


def require_slurm():
    """Refuse to begin where SLURM takes no jobs, with the reason and the remedy."""
    if not shutil.which("sbatch"):
        raise WorkflowError(
            "profiles/slurm needs SLURM, but there is no command sbatch: call it on a node from "
            "which jobs are submitted (Debian: apt-get install slurm-wlm munge)"
        )
    asked = subprocess.run(["sinfo", "--noheader"], capture_output=True, text=True)
    if not asked.returncode:
        return
    if "munge" in asked.stderr.lower():
        raise WorkflowError(
            "SLURM needs munge, which does not run here: start it (service munge start)"
        )
    raise WorkflowError(
        f"SLURM does not answer ({asked.stderr.strip()}): start slurmctld, and see that this "
        "machine has its slurm.conf"
    )


# --- The code behind each rule ---------------------------------------------------------------
# A rule has the hash of the code that its command can reach among its params, without comments
# and docstrings: an edited plot draws figures again and trains nothing, an edited trainer trains
# again and neither partitions nor pretrains, and edited words redo nothing. Of a run it is that of
# its address in the store, so that Snakemake trains a cell again exactly when its runs have other
# addresses. The command line (fedsdg/cli) only passes arguments on. `package.*` is all of its modules.

CODE = {
    "partition": [
        "fedsdg.data.partition",
        "fedsdg.data.partition_files",
        "fedsdg.experiment.loading",
    ],
    "pretrain": ["fedsdg.experiment.backbones.pretraining", "fedsdg.experiment.backbones.made"],
    "summarise": ["fedsdg.analysis.summarise"],
    "tables": ["fedsdg.analysis.tables.*"],
    "figures": ["fedsdg.analysis.plots.*"],
    "claims": ["fedsdg.analysis.claims"],
    "across": ["fedsdg.analysis.regret", "fedsdg.analysis.plots.regret"],
    "measure": ["fedsdg.aggregation.api", "fedsdg.aggregation.rule_table"],
    "kernels": ["fedsdg.analysis.speed", "fedsdg.analysis.plots.roofline"],
}
# What people read is called as the parts declare it, in a file that analysis reads.
CALLED = [dict(families()), dict(titles("methods")), dict(titles("attacks"))]
CALLED = sha256_json([*CALLED, declarations()["usual_roles"]])[:12]
READ = ("summarise", "tables", "figures", "claims", "across", "kernels")
CODE = {
    stage: code_of(*doors) + (f"-{CALLED}" if stage in READ else "")
    for stage, doors in CODE.items()
}


def run_of(wildcards):
    """A run of the cell; its seeds differ in nothing else."""
    method = CONFIG.method(wildcards.method)
    return CONFIG.run(wildcards.dataset, wildcards.setting, method, min(CONFIG.seeds))


def run_settings(wildcards):
    """The hash of all that the config says of the runs of a cell, whatever their seed."""
    return replace(run_of(wildcards), seed=0).hash


def code(wildcards):
    """The hash of all code that the runs of a cell can reach, and the libraries' versions.

    The settings have that of a plugin.
    """
    return canonical({"code": source_hash(run_of(wildcards)), **libraries()})


def grid_settings(wildcards):
    """One hash of the settings and the code of all cells."""
    cells = [
        SimpleNamespace(dataset=dataset, setting=setting, method=method.label)
        for dataset in CONFIG.datasets
        for setting in CONFIG.settings
        for method in CONFIG.methods
    ]
    return sha256_json(sorted([*vars(c).values(), run_settings(c), code(c)] for c in cells))


def data_files(wildcards):
    """The files of the plugin that a data set is from; none for others."""
    plugin = getattr(CONFIG.source(wildcards.dataset), "plugin", None)
    inside = plugin is not None and plugin.place.endswith(".py")
    return [os.path.relpath(file) for file in plugin_sources(plugin.place)] if inside else []


def recorded_backbone(wildcards):
    """The hash of the record's backbone of this name, which is taken if its recipe is the config's."""
    facts = ROOT / places.RECORDS / f"backbones/{wildcards.backbone}.json"
    return json.loads(facts.read_text())["sha256"] if takes_recorded() and facts.is_file() else ""


def suites():
    """The benchmarks that the pipeline runs, relative to the working directory."""
    names = ("accuracy", "aggregation", "growth")
    return [os.path.relpath(ROOT / f"benchmarks/bench_{name}.py") for name in names]


def benchmark_sources():
    """Whatever the suites consist of."""
    return [os.path.relpath(file) for file in sorted((ROOT / "benchmarks").glob("*.py"))]


# --- The config as the jobs see it ----------------------------------------------------------
# Rules carry what the config says of them as `params`, so that a changed λ₁ trains one method
# again and nothing else. The commands read the whole effective config
# (files and `--config` overrides merged) from a file named by its own hash. Its path travels in
# the environment: in a shell command or in `params`, every change of the config would
# re-run everything.


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


os.environ.update(
    FEDSDG_CONFIG=str(kept_whole(config)),
    # glibc gives large tensors back to the kernel when they are freed and faults them in again
    # at the next step, which costs a training run a large part of its time. These keep the
    # memory in the process. Other C libraries ignore them.
    MALLOC_MMAP_MAX_="0",
    MALLOC_TRIM_THRESHOLD_="4294967296",
    MALLOC_TOP_PAD_="268435456",
    # oneDNN keeps a kernel for each of 1024 shapes of a product; in bfloat16, where clients' last
    # batches have all sizes, these take over half a gigabyte and are seldom met again.
    ONEDNN_PRIMITIVE_CACHE_CAPACITY="256",
)
