"""Run the next part of the study, and stop where a commit is due.

    python -m benchmarks.study [--jobs N] [--minutes N]        (make study)

A part is a search, or runs of a grid. The first part that the committed record lacks is computed
and put into the record, and the last line says what to commit. Called again, on another machine
too, it goes on from what is committed. From the first commit of a grid's runs on, its values and
the code must stay as they are: go on in a worktree of that commit.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from fedsdg.experiment.config import Config
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.grid.runs import grid_runs
from fedsdg.experiment.replay import recorded_runs
from fedsdg.files.places import RECORD, SEARCH, filled, run_below

ROOT = Path(__file__).parents[1]
FIRST, SECOND = range(3, 8), range(8, 13)


@dataclass(frozen=True)
class Part:
    """A part of the study.

    Attributes:
        configs: Files of config/, laid over the default one.
        seeds: The seeds whose runs it holds; none: it is the search for the experiment's values.
    """

    configs: tuple[str, ...]
    seeds: tuple[int, ...] = ()

    def title(self, experiment: str) -> str:
        if not self.seeds:
            return f"{experiment}, search"
        first, last = self.seeds[0], self.seeds[-1]
        seeds = f"seed {first}" if first == last else f"seeds {first} to {last}"
        return f"{experiment}, {seeds}"


def cell(config: str) -> tuple[Part, Part]:
    """A cell of the cross: the search for its values, then five seeds."""
    return Part((config,)), Part((config,), tuple(FIRST))


CROSS = ("cross-needs", "cross-label-skew", "cross-views")
CIFAR100 = ("cross-cifar100-needs", "cross-cifar100-label-skew")
MNIST = ("cross-mnist-needs", "cross-mnist-label-skew")
PARTS = (
    Part(("studies/restarting",), tuple(range(5))),
    *(part for config in CROSS for part in cell(config)),
    *(Part((config,), tuple(SECOND)) for config in CROSS),
    *(Part((config, "studies/cifar100-rates")) for config in CIFAR100),
    *(Part((config,), (seed,)) for seed in FIRST for config in CIFAR100),
    *(part for config in MNIST for part in cell(config)),
)


def lacking(part: Part, config: Config) -> list[str]:
    """Return what the record has not: folders of runs, or labels of methods without values."""
    record = ROOT / filled(RECORD, experiment=config.experiment)
    if not part.seeds:
        file = record / "tuned.yaml"
        # A search that has begun leaves a file without values.
        known = (yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None) or {}
        labels = [one.label for one in config.methods if one.label in config.search.space]
        return [label for label in labels if label not in known]
    runs = grid_runs(config, ROOT, [f"seed~{seed}" for seed in part.seeds])
    labelled = [{**run.identity, "method": run.identity["label"]} for run in runs]
    wanted = list(map(run_below, labelled))
    if not (record / "runs.parquet").is_file():
        return wanted
    done = {run.folder for run in recorded_runs(record)}
    return [folder for folder in wanted if folder not in done]


def compute(part: Part, config: Config, jobs: int, minutes: float | None) -> None:
    """Compute what a part lacks, and put into the record what is there.

    Raises:
        subprocess.CalledProcessError: A command failed; it has said why.
    """
    common = ["--jobs", str(jobs)]
    common += [] if minutes is None else ["--minutes", f"{minutes:g}"]
    files = [f"config/{name}.yaml" for name in part.configs]
    if part.seeds:
        # Methods that the record has with all of these seeds wait.
        labels = {Path(folder).parent.name for folder in lacking(part, config)}
        only = [*sorted(labels), *(f"seed~{seed}" for seed in part.seeds)]
        _fedsdg("run", "--grid", *files, *common, "--only", *only)
        _fedsdg("record", config.experiment, "--merge")
        return
    found = ROOT / filled(SEARCH, experiment=config.experiment)
    record = ROOT / filled(RECORD, experiment=config.experiment)
    if (record / "search.json").is_file():  # Its trials count as done.
        found.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(record / "search.json", found)
    _fedsdg("search", "--config", *files, *common)
    record.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(found, record / "search.json")
    shutil.copyfile(found.with_suffix(".tuned.yaml"), record / "tuned.yaml")


def _fedsdg(*words: str) -> None:
    command = "import sys; from fedsdg.cli import main; sys.exit(main())"
    subprocess.run([sys.executable, "-c", command, *words], cwd=ROOT, check=True)


def uncommitted(experiment: str) -> bool:
    """Whether the record of an experiment differs from what is committed."""
    record = filled(RECORD, experiment=experiment)
    asked = ["git", "-C", str(ROOT), "status", "--porcelain", "--", record]
    return bool(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


def next_step(
    parts: Sequence[Part],
    compute: Callable[[Part, Config], None],
    uncommitted: Callable[[str], bool] = uncommitted,
    say: Callable[[str], None] = print,
) -> None:
    """Go through the parts up to the first that is not committed whole."""
    for number, part in enumerate(parts, 1):
        files = [
            ROOT / "config/config.yaml",
            *(ROOT / f"config/{one}.yaml" for one in part.configs),
        ]
        config = load_config(files)
        place, name = filled(RECORD, experiment=config.experiment), f"[{number}/{len(parts)}]"
        title = part.title(config.experiment)
        if not uncommitted(config.experiment):
            if not (left := lacking(part, config)):
                continue
            say(f"study: {name} {title}: {len(left)} of it to be computed")
            compute(part, config)
        left = lacking(part, config)
        more = f"{len(left)} of it are left" if left else "it is complete"
        say(f"study: {name} {title}: {more}; commit {place}, then call again")
        return
    say("study: all parts are in the record")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, the exit code of the command that failed, or 2 where a config is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side (default: 1)")
    parser.add_argument("--minutes", type=float, help="start no run after so many")
    given = parser.parse_args(arguments)
    try:
        next_step(PARTS, lambda part, config: compute(part, config, given.jobs, given.minutes))
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
