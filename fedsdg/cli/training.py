"""Commands that train: a cell of the grid, one run, a whole grid, a search."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedsdg.cli.command import FORESEEN, RUN, WORKFLOW, Command
from fedsdg.cli.options import add_config_options, load, say_remarks, whole_number
from fedsdg.experiment.store import store_folder


def train(arguments: argparse.Namespace) -> int:
    """Train all seeds of one cell of a grid in one process; a failed seed is a row."""
    from fedsdg.data.partition_files import read_partition
    from fedsdg.experiment.continuing import is_asked_for, take_from_record
    from fedsdg.experiment.loading import load_images
    from fedsdg.experiment.machine.progress import round_progress
    from fedsdg.experiment.material import prepare_material
    from fedsdg.experiment.possible import require_possible
    from fedsdg.experiment.run_files import address
    from fedsdg.experiment.runs import execute, record_failure
    from fedsdg.models.backbones import load_backbone

    config = load(arguments)
    method = config.method(arguments.method)
    require_possible(config, method.label)
    if len(arguments.partitions) != len(config.seeds):
        raise ValueError(
            f"--partitions names {len(arguments.partitions)} files, but the config has "
            f"{len(config.seeds)} seeds; name one file a seed, in the config's order"
        )
    runs = [config.run(arguments.dataset, arguments.skew, method, seed) for seed in config.seeds]
    identities = [
        config.identity(arguments.dataset, arguments.skew, method, seed) for seed in config.seeds
    ]
    folders = [Path(arguments.output) / f"seed~{seed}" for seed in config.seeds]
    try:
        backbone = load_backbone(arguments.backbone) if arguments.backbone else None
        images = load_images(config.source(arguments.dataset))
        material = prepare_material(images, backbone, config.training.device)
    except FORESEEN as error:
        for one, folder, identity in zip(runs, folders, identities, strict=True):
            failure = record_failure(one, error, folder, identity)
        print(f"fedsdg: error: all seeds failed: {failure}", file=sys.stderr)
        return 0
    for one, folder, identity, path in zip(
        runs, folders, identities, arguments.partitions, strict=True
    ):
        title = f"{arguments.dataset} {arguments.skew} {method.label} seed {one.seed}"
        with round_progress(title, config.federation.rounds) as progress:
            try:
                shares = read_partition(path)
            except FORESEEN as error:
                outcome: str | None = record_failure(one, error, folder, identity)
            else:
                if is_asked_for():
                    wanted = address(one, material, shares)
                    take_from_record(config.experiment, [wanted], store_folder())
                outcome = execute(
                    one,
                    material,
                    shares,
                    folder,
                    store=store_folder(),
                    identity=identity,
                    progress=progress,
                    checkpoint_seconds=config.checkpoint_seconds,
                )
        print(f"{title}: {outcome or 'ok'}", file=sys.stderr, flush=True)
    return 0


def _train_options(sub: argparse.ArgumentParser) -> None:
    add_config_options(sub)
    sub.add_argument("--dataset", required=True)
    sub.add_argument("--skew", required=True)
    sub.add_argument("--method", required=True)
    sub.add_argument("--backbone", help="not with trainable: full")
    sub.add_argument("--partitions", nargs="+", required=True)
    sub.add_argument("--output", required=True)


def run(arguments: argparse.Namespace) -> int:
    """Run one method, or a whole grid.

    Partitions and the backbone that are lacking are made.
    """
    if arguments.grid is not None:
        return _run_grid(arguments)
    config = load(arguments)
    if arguments.method is None:
        raise ValueError("name a method with --method, or a whole grid with --grid")
    from fedsdg.experiment.chance import ON_THE_GLOBAL_TEST, chance_of_run
    from fedsdg.experiment.machine.progress import round_progress
    from fedsdg.experiment.single import do, single
    from fedsdg.files import read_json

    grid = [one.label for one in config.methods]
    one = single(config, arguments.method, arguments.dataset, arguments.skew, arguments.seed)
    if one.method.label not in grid:
        values = ", ".join(f"{key}={value}" for key, value in one.method.parameters.items())
        print(
            f"fedsdg: {one.method.label} is not in the config: it runs with its defaults"
            f"{f' ({values})' if values else ''} and the rates of the config",
            file=sys.stderr,
        )
    say_remarks(one.config)
    output = Path(arguments.output) if arguments.output else one.folder
    failure = do(one, store_folder(), output, round_progress)
    if failure:
        print(f"fedsdg: error: {one.title} failed: {failure}", file=sys.stderr)
        return 1
    result = read_json(output / "result.json")
    chance = chance_of_run(result)
    for name, value in result["last"].items():
        if value is None:
            continue
        remark = chance.remark(value) if chance and name in ON_THE_GLOBAL_TEST else ""
        text = value if name == "round" else f"{value:.4f}"
        print(f"{name:28s}{text}{f'  {remark}' if remark else ''}")
    print(f"records in {output}")
    return 0


def _run_options(sub: argparse.ArgumentParser) -> None:
    add_config_options(sub)
    one = sub.add_argument_group("one run")
    one.add_argument("--method", help="a label of the config, or any method of `fedsdg methods`")
    one.add_argument("--dataset", help="of the config, or any that the benchmark knows")
    one.add_argument("--skew", help="of the config, or any: dirichlet~0.05, classes~2, iid")
    one.add_argument("--seed", type=whole_number, help="default: the config's first")
    one.add_argument("--output", help="default: where the grid would have it")
    many = sub.add_argument_group("a whole grid, with summary, tables, figures and claims")
    many.add_argument("--grid", nargs="*", metavar="FILE", help="files laid over the config")
    many.add_argument("--jobs", type=int, default=1, help="runs side by side (default: 1)")
    many.add_argument(
        "--seeds-together",
        type=int,
        default=1,
        metavar="N",
        help="seeds of a cell trained in one pass, meant for a GPU (default: 1)",
    )
    many.add_argument(
        "--only", nargs="+", metavar="NAME", help="data sets, skews, methods, seed~N; others wait"
    )
    many.add_argument(
        "--continue-record",
        action="store_true",
        help="take runs of the committed record that are the very ones (or FEDSDG_CONTINUE=1)",
    )
    many.add_argument(
        "--minutes", type=float, help="start no run after so many; 0: tables of what is there"
    )
    many.add_argument(
        "--runs-only",
        action="store_true",
        help="stop when the runs are done, failed ones included: no summary, tables or figures",
    )


def _run_grid(arguments: argparse.Namespace) -> int:
    from fedsdg.experiment.config_files import load_config
    from fedsdg.experiment.continuing import is_asked_for
    from fedsdg.experiment.grid import run_grid
    from fedsdg.experiment.possible import require_possible

    files = [*(arguments.config or ()), *arguments.grid]
    config = load_config(files, arguments.set or (), arguments.plugin or ())
    for option in ("method", "dataset", "skew", "seed", "output"):
        if getattr(arguments, option) is not None:
            raise ValueError(f"--{option} is for one run; choose runs of a grid with --only")
    if arguments.jobs < 1:
        raise ValueError(f"--jobs is {arguments.jobs}, but must be at least 1")
    if arguments.seeds_together < 1:
        raise ValueError(f"--seeds-together is {arguments.seeds_together}, but must be at least 1")
    require_possible(config)
    say_remarks(config)
    failed = run_grid(
        config,
        store_folder(),
        jobs=arguments.jobs,
        only=arguments.only or (),
        minutes=arguments.minutes,
        seeds_together=arguments.seeds_together,
        continue_record=arguments.continue_record or is_asked_for(),
        runs_only=arguments.runs_only,
    )
    if failed:
        print(f"fedsdg: error: {len(failed)} run(s) failed:", file=sys.stderr)
        for entry in failed:
            print(f"  {entry}", file=sys.stderr)
        print("mend the cause, and give the same command again", file=sys.stderr)
        return 1
    return 0


def search(arguments: argparse.Namespace) -> int:
    """Search hyper-parameters, equally long for every method.

    On seeds outside the grid, by validation accuracy.
    """
    from fedsdg.experiment import search as searching
    from fedsdg.experiment.continuing import is_asked_for
    from fedsdg.experiment.grid import backbone_file
    from fedsdg.experiment.possible import require_possible
    from fedsdg.files.places import RECORD, SEARCH, filled

    if arguments.found:
        print(searching.found_entries(searching.read_found(Path(arguments.found))))
        return 0
    config = load(arguments)
    output = Path(arguments.output or filled(SEARCH, experiment=config.experiment))
    if arguments.show:
        found = searching.read_found(output)
    else:
        if arguments.jobs is not None and arguments.jobs < 1:
            raise ValueError(f"--jobs is {arguments.jobs}, but must be at least 1")
        require_possible(config)
        backbone = Path(arguments.backbone) if arguments.backbone else backbone_file(config)
        record = filled(RECORD, experiment=config.experiment)
        continuing = arguments.continue_record or is_asked_for()
        found = searching.search(
            config,
            store_folder(),
            backbone,
            output,
            jobs=arguments.jobs,
            only=arguments.only or (),
            minutes=arguments.minutes,
            record=record / "search.json" if continuing else None,
        )
    print("\n".join(searching.summary_lines(found)))
    return 0


def _search_options(sub: argparse.ArgumentParser) -> None:
    add_config_options(sub)
    sub.add_argument("--backbone", help="default: results/backbones/<backbone>.safetensors")
    sub.add_argument("--output", help="default: results/search/<experiment>.json")
    sub.add_argument(
        "--jobs", type=int, help="runs side by side (default: a device or a processor each)"
    )
    sub.add_argument("--only", nargs="+", metavar="METHOD", help="labels; others wait")
    sub.add_argument("--minutes", type=float, help="start no run after so many")
    sub.add_argument(
        "--continue-record",
        action="store_true",
        help="in two stages: trials of the committed search count too (or FEDSDG_CONTINUE=1)",
    )
    sub.add_argument("--show", action="store_true", help="run nothing: show what is known")
    sub.add_argument(
        "--found", metavar="FILE", help="run nothing: print the values in FILE as methods entries"
    )


GROUP = RUN

_RUN = """\
fedsdg run --method fedsdg --skew dirichlet~0.1
fedsdg run --grid smoke --jobs 2"""
_SEARCH = """\
fedsdg pretrain --output results/backbones/letters.safetensors
fedsdg search --config needs --only fedavg --minutes 10"""
_TRAIN = """\
fedsdg partition --dataset digits --skew iid --seed 0 --output shares.parquet
fedsdg pretrain --output letters.safetensors
fedsdg train --dataset digits --skew iid --method fedavg --set seeds=[0] \\
  --backbone letters.safetensors --partitions shares.parquet --output cell"""

COMMANDS = (
    Command(run, _run_options, ("methods",), _RUN),
    Command(search, _search_options, ("methods",), _SEARCH),
    Command(train, _train_options, ("methods",), _TRAIN, WORKFLOW),
)
