"""The summary of an experiment: the tables of its runs, and all else that its pages need."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from fedsdg.config.config import Config
from fedsdg.config.facts import config_facts
from fedsdg.experiment.runs import tasks_of
from fedsdg.files import read_json
from fedsdg.files.places import RECORD, SEARCH, filled


def write_summary(runs: Path, output: Path, config: Config, search: Path | None = None) -> None:
    """Gather the runs of an experiment, and copy what its pages need.

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

    if runs.name != config.experiment:
        raise ValueError(
            f"{runs} holds no runs of {config.experiment!r}; name results/runs/"
            f"{config.experiment}, or another config"
        )
    folders = [runs / run.folder for run in config.runs()]
    search = search or search_file(config.experiment)
    summarise(folders, output, config_facts(config), search=search)
    tables = USUAL["tables"] if config.tables is None else config.tables
    figures = USUAL["figures"] if config.figures is None else config.figures
    add_pages(output, tables, figures)
    _copy_partitions(config, runs.parent.parent, output)


def search_file(experiment: str) -> Path | None:
    """Return what a search found of an experiment: here, or else for its record."""
    record = filled(RECORD, experiment=experiment) / "search.json"
    files = (filled(SEARCH, experiment=experiment), record)
    return next((file for file in files if file.is_file()), None)


def closing_lines(config: Config, results: Path = Path("results")) -> Iterator[str]:
    """Yield the accuracy of each method, and where to look, when an experiment is done.

    Accuracies are those of the main table: at the round that was selected on validation data, on
    the common test set as clients see it, as a mean over settings and seeds.

    Args:
        config: The experiment.
        results: The folder of its results.
    """
    accuracies: dict[str, list[float]] = {entry.label: [] for entry in config.methods}
    for run in config.runs():
        file = results / "runs" / config.experiment / run.folder / "result.json"
        reading = read_json(file).get("selected") if file.is_file() else None
        if reading:
            accuracies[run.method.label].append(reading["expected_accuracy"])
    for label, values in accuracies.items():
        yield (
            f"{label:20}accuracy {sum(values) / len(values):.1%}" if values else f"{label:20}failed"
        )
    name = config.experiment
    yield f"tables:  {results}/tables/{name}/"
    yield f"figures: {results}/figures/{name}/"
    yield f"page:    {results}/report/index.html"


def _copy_partitions(config: Config, results: Path, output: Path) -> None:
    """Copy the partitions of the first seed, as far as they are there."""
    shutil.rmtree(output / "partitions", ignore_errors=True)
    tasks = [task for task in tasks_of(config, results) if task.run.seed == min(config.seeds)]
    for file in {task.partition for task in tasks if task.partition.is_file()}:
        copy = output / file.relative_to(results)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
