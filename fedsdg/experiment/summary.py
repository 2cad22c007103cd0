"""The summary of an experiment: the tables of its runs, and all else that its pages need."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedsdg.analysis.gather import summarise
from fedsdg.analysis.render import USUAL, add_pages
from fedsdg.experiment.config import Config
from fedsdg.experiment.method_facts import config_facts, recorded_facts
from fedsdg.files import canonical_json, read_json
from fedsdg.files.places import ANY_RUN, DIVISION, split_setting


def write_summary(
    runs: Path, output: Path, config: Config | None = None, search: Path | None = None
) -> None:
    """Gather the runs of an experiment, and copy what its figures need.

    Args:
        runs: ``results/runs/{experiment}``.
        output: The folder of the summary.
        config: The experiment; without one every run that is there counts.
        search: What a search of hyper-parameters found.

    Raises:
        FileNotFoundError: There is no run.
        ValueError: A folder is misnamed, or a file of a run is damaged.
    """
    if config is None:
        folders = sorted(folder for folder in runs.glob(ANY_RUN) if folder.is_dir())
        facts = recorded_facts(_row(folder) for folder in folders)
    else:
        if runs.name != config.experiment:
            raise ValueError(
                f"{runs} holds no runs of {config.experiment!r}; name results/runs/"
                f"{config.experiment}, or another config"
            )
        folders = [runs / below for below in config.run_folders()]
        facts = config_facts(config)
    summarise(folders, output, facts, search=search)
    if config is not None:
        add_pages(output, *shown_pages(config))
        _copy_partitions(config, runs.parent.parent, output)


def shown_pages(config: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the tables and figures that a config shows."""
    tables = USUAL["tables"] if config.tables is None else config.tables
    figures = USUAL["figures"] if config.figures is None else config.figures
    return tuple(tables), tuple(figures)


def search_file(experiment: str, results: Path) -> Path | None:
    """Return what a search found of an experiment: here, or else for its record."""
    files = (results / f"search/{experiment}.json", results / f"reference/{experiment}/search.json")
    return next((file for file in files if file.is_file()), None)


def _row(folder: Path) -> dict[str, str | None]:
    """Return what ``recorded_facts`` reads of a run."""
    file = folder / "result.json"
    result = read_json(file) if file.is_file() else {}
    config = result.get("config")
    return {
        "method": folder.parent.name,
        "type": result.get("method"),
        "config": canonical_json(config) if config else None,
        "title": result.get("title"),
    }


def _copy_partitions(config: Config, results: Path, output: Path) -> None:
    """Copy the partitions of the first seed, as far as they are there."""
    shutil.rmtree(output / "partitions", ignore_errors=True)
    for dataset in config.datasets:
        for setting in config.settings:
            names = {"clients": config.federation.clients, "seed": min(config.seeds)}
            skew = split_setting(setting)[0]
            place = "partitions/" + DIVISION.format(dataset=dataset, skew=skew, **names)
            if (results / place).is_file():
                (output / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(results / place, output / place)
