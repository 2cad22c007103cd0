"""The summary of an experiment: the tables of its runs, and all else that its pages need."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedsdg.config.config import Config
from fedsdg.errors import remark
from fedsdg.experiment.runs import is_current, tasks_of
from fedsdg.files.places import RECORD, SEARCH, SUMMARY, filled, root


def write_summary(runs: Path, output: Path, config: Config, search: Path | None = None) -> None:
    """Gather the runs of an experiment, and copy what its pages need.

    A run that was made by another config or version, or copied in part, counts as not run.

    Args:
        runs: ``results/runs/{experiment}``.
        output: The folder of the summary.
        config: The experiment.
        search: What a search of hyper-parameters found; None: what ``search_file`` names.

    Raises:
        ValueError: The folder holds another experiment, or a file of a run is damaged.
    """
    from fedsdg.analysis.gather import summarise
    from fedsdg.analysis.render import USUAL, add_pages
    from fedsdg.experiment.backbones import described_sha256

    runs = runs.absolute()
    if runs.name != config.experiment:
        raise ValueError(
            f"{runs} holds no runs of {config.experiment!r}; name results/runs/"
            f"{config.experiment}, or another config"
        )
    backbone = described_sha256(config, runs.parents[1] / "backbones")
    made = {run.folder: is_current(runs / run.folder, run, backbone) for run in config.runs()}
    if stale := [folder for folder, current in made.items() if not current]:
        remark(f"not counted: {len(stale)} runs of another config or version, such as {stale[0]}")
    # Their places are named below a folder that is never there, so that they count as not run.
    absent = runs.parent / ".absent" / runs.name
    folders = [(runs if current else absent) / folder for folder, current in made.items()]
    search = search or search_file(config.experiment)
    facts = {entry.label: entry.facts for entry in config.methods}
    summarise(folders, output, facts, search=search)
    tables = USUAL["tables"] if config.tables is None else config.tables
    figures = USUAL["figures"] if config.figures is None else config.figures
    add_pages(output, tables, figures)
    _copy_partitions(config, runs.parent.parent, output)


def search_file(experiment: str) -> Path | None:
    """Return what a search found of an experiment: here, or else for its record."""
    record = filled(RECORD, experiment=experiment) / "search.json"
    files = (filled(SEARCH, experiment=experiment), record)
    return next((file for file in files if file.is_file()), None)


def closing_lines(names: Sequence[str]) -> Iterator[str]:
    """Yield accuracies beside those of the record, and where to look, when experiments are done.

    Accuracies (%) are those of the main table: at the round that was selected on validation data,
    on the common test set as clients see it, as means over seeds, both over those that the record
    has as well, if there are any.

    Args:
        names: The experiments, of which there are summaries.
    """
    import pandas as pd

    from fedsdg.analysis.metrics import values
    from fedsdg.analysis.records import KEY, RUN, record

    found = []
    for name in names:
        here = values(record(filled(SUMMARY, experiment=name)), "accuracy")
        folder = root() / filled(RECORD, experiment=name)
        recorded = (folder / "runs.parquet").is_file()  # Before, a search may have left its values.
        published = values(record(folder), "accuracy") if recorded else here[:0]
        both = here.merge(published, "left", on=RUN, suffixes=("", " of record"))
        shared = both["value of record"].notna()
        of_key = shared.groupby([both[name] for name in KEY]).transform("any")
        both = both[shared | ~of_key]
        found.append(both.groupby(KEY, sort=False)[["value", "value of record"]].mean())
    means = pd.concat(found).set_axis(["here", "record"], axis="columns")
    table = means.dropna(axis="columns", how="all").reset_index()
    beside = "; of the record over the same seeds" if "record" in table else ""
    yield f"accuracy in %, means over seeds{beside}:"
    yield table.to_string(index=False, float_format="{:.1f}".format, na_rep="-")
    below = f"{names[0]}/" if len(names) == 1 else ""
    yield f"tables:  results/tables/{below}"
    yield f"figures: results/figures/{below}"
    yield "page:    results/report/index.html"


def _copy_partitions(config: Config, results: Path, output: Path) -> None:
    """Copy the partitions of the first seed, as far as they are there."""
    shutil.rmtree(output / "partitions", ignore_errors=True)
    tasks = [task for task in tasks_of(config, results) if task.run.seed == min(config.seeds)]
    for file in {task.partition for task in tasks if task.partition.is_file()}:
        copy = output / file.relative_to(results)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
