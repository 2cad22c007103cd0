"""The command ``fedsdg``: thin, and lazy, so that help and tables start without torch.

Every subcommand validates the whole config first. Whatever goes wrong in a foreseeable way is one
sentence on stderr and exit code 2; ``--traceback`` shows where it came from.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsdg import __version__

if TYPE_CHECKING:
    from fedsdg.experiment.config import Config
    from fedsdg.experiment.loading import Source

#: What bad input or a failing run raises; anything else is a defect and keeps its traceback.
FORESEEN = (ValueError, FloatingPointError, OSError)
_SETTING = "laid over the config, such as training.device=cuda"
_PLUGIN = "files that define further METHODS, or names of installed plugins"


def _store() -> Path:
    return Path(os.environ.get("FEDSDG_STORE", ".fedsdg")) / "runs"


def _checkpoints() -> Path:
    return _store().parent / "checkpoints"


def _load(arguments: argparse.Namespace) -> Config:
    from fedsdg.experiment.config import load_config

    return load_config(arguments.config or (), arguments.set or (), arguments.plugin or ())


def _one_of(value: str | None, known: Sequence[str], what: str) -> str:
    if value is None and len(known) != 1:
        raise ValueError(f"name one {what} with --{what}: {', '.join(known)}")
    return known[0] if value is None else value


def check(arguments: argparse.Namespace) -> int:
    """Validate the config and print the size of its grid, and whether its rounds suffice."""
    from fedsdg.experiment.declared_data import class_count
    from fedsdg.experiment.horizon import findings

    config = _load(arguments)
    for name in config.datasets:
        num_classes = class_count(config.source(name))
        for setting in config.settings:
            conflict = config.scenario(setting).conditions.label_conflict
            if conflict is not None:
                conflict.require_classes(num_classes, name)
    runs = len(config.datasets) * len(config.settings) * len(config.methods) * len(config.seeds)
    under = f"{len(config.scenarios)} scenarios x " if config.scenarios else ""
    print(
        f"{config.experiment}: {len(config.methods)} methods x {len(config.datasets)} data sets x "
        f"{len(config.skews)} skews x {under}{len(config.seeds)} seeds = {runs} runs"
    )
    for line in findings(config):
        print(line)
    cases = [config.scenario(setting).conditions for setting in config.settings]
    remarks = [remark for case in cases for remark in case.remarks(config.federation.clients)]
    for remark in dict.fromkeys(remarks):
        print(f"fedsdg: {remark}", file=sys.stderr)
    _say_remarks(config)
    return 0


def _say_remarks(config: Config) -> None:
    """What a person should know of images of their own and the backbone that they meet."""
    from fedsdg.experiment.declared_data import remarks

    if config.trainable == "adapters":
        for remark in remarks(config.own, config.backbone, config.backbones[config.backbone]):
            print(f"fedsdg: {remark}", file=sys.stderr)


def methods(arguments: argparse.Namespace) -> int:
    """Print the table of methods."""
    from fedsdg.methods.plugins import find_method, find_plugin, offered

    plugins = [find_plugin(place) for place in arguments.plugin or ()]
    table = {name: find_method(name, plugin) for name, plugin in offered(plugins).items()}
    if arguments.markdown:
        from fedsdg.methods.page import method_page

        print(method_page(table), end="")
        return 0
    rows = [("method", "rule", "objective", "personalisation", "optimiser", "parameters")]
    for name, row in table.items():
        terms = " + ".join(["cross-entropy", *(part.name for part in row.objective)])
        parameters = ", ".join(f"{k}={p.default}" for k, p in row.parameters.items())
        optimiser = row.optimiser or "adam"
        rows.append((name, row.rule.name, terms, row.personalisation.name, optimiser, parameters))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for cells_of_row in rows:
        cells = [cell.ljust(width) for cell, width in zip(cells_of_row, widths, strict=False)]
        print("  ".join([*cells, cells_of_row[5]]).rstrip())
    return 0


def partition(arguments: argparse.Namespace) -> int:
    """Divide a data set among clients."""
    from fedsdg.data.partition_files import write_partition
    from fedsdg.experiment.loading import load_images
    from fedsdg.experiment.runs import make_partition

    config = _load(arguments)
    clients = arguments.clients or config.federation.clients
    images = load_images(config.source(arguments.dataset))
    made = make_partition(images, arguments.skew, arguments.seed, clients, config.partition)
    write_partition(made, arguments.output)
    sizes = made.sizes().sum(1)
    print(
        f"{arguments.output}: {made.num_clients} clients with {sizes.min()} to {sizes.max()} "
        f"samples after {made.attempts} draw(s)"
    )
    if made.natural is not None:
        left = made.natural
        print(
            f"left out: {left.too_small} clients with fewer than {config.partition.min_samples} "
            f"samples and {left.not_drawn} that were not drawn, {left.samples_left_out} samples"
        )
    return 0


def pretrain(arguments: argparse.Namespace) -> int:
    """Make a backbone as the config describes it."""
    from fedsdg.experiment.backbones import pretraining

    config = _load(arguments)
    name = arguments.backbone or config.backbone
    if name not in config.backbones:
        raise ValueError(
            f"backbone {name!r} is not described under backbones: {', '.join(config.backbones)}"
        )
    pretraining.pretrain(
        config.backbones[name],
        Path(arguments.output),
        checkpoints=_checkpoints(),
        checkpoint_seconds=config.checkpoint_seconds,
    )
    return 0


def train(arguments: argparse.Namespace) -> int:
    """Train all seeds of one cell of the grid in one process; a failed seed is a row."""
    from fedsdg.data.partition_files import read_partition
    from fedsdg.experiment.continuing import is_asked_for, take_from_record
    from fedsdg.experiment.loading import load_images
    from fedsdg.experiment.machine.progress import round_progress
    from fedsdg.experiment.runs import address, execute, prepare_material, record_failure
    from fedsdg.models.backbones import load_backbone

    config = _load(arguments)
    method = config.method(arguments.method)
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
                    take_from_record(config.experiment, [wanted], _store())
                outcome = execute(
                    one,
                    material,
                    shares,
                    folder,
                    store=_store(),
                    identity=identity,
                    progress=progress,
                    checkpoint_seconds=config.checkpoint_seconds,
                )
        print(f"{title}: {outcome or 'ok'}", file=sys.stderr, flush=True)
    return 0


def run(arguments: argparse.Namespace) -> int:
    """One run alone, or a whole grid, making the partitions and the backbone they lack."""
    if arguments.grid is not None:
        return _run_grid(arguments)
    if arguments.method is None:
        raise ValueError("name a method with --method, or a whole grid with --grid")
    from fedsdg.experiment.backbones import pretraining
    from fedsdg.experiment.grid import backbone_file, division_of, kept_or_made, partition_file
    from fedsdg.experiment.loading import load_images
    from fedsdg.experiment.machine.progress import round_progress
    from fedsdg.experiment.runs import execute, prepare_material, require_start
    from fedsdg.files import read_json
    from fedsdg.models.backbones import load_backbone

    config = _load(arguments)
    grid = [one.label for one in config.methods]
    config = config.including(arguments.method, arguments.dataset, arguments.skew)
    method = config.method(arguments.method)
    dataset = _one_of(arguments.dataset, config.datasets, "dataset")
    skew = _one_of(arguments.skew, config.settings, "skew")
    seed = config.seeds[0] if arguments.seed is None else arguments.seed
    if method.label not in grid:
        values = ", ".join(f"{key}={value}" for key, value in method.parameters.items())
        print(
            f"fedsdg: {method.label} is not in the config: it runs with its defaults"
            f"{f' ({values})' if values else ''} and the rates of the config",
            file=sys.stderr,
        )
    # First of all, so that what cannot be had or divided is known before anything is trained.
    images = load_images(config.source(dataset))
    _say_remarks(config)
    clients = config.federation.clients
    wanted, source = config.run(dataset, skew, method, seed), config.source(dataset)
    needed = division_of(wanted, source, partition_file(config, dataset, skew, seed))
    shares = kept_or_made(needed, lambda _: images)
    weights_file = backbone_file(config)
    if weights_file and not weights_file.is_file():
        pretraining.pretrain(
            config.backbones[config.backbone],
            weights_file,
            checkpoints=_checkpoints(),
            checkpoint_seconds=config.checkpoint_seconds,
        )
    backbone = load_backbone(weights_file) if weights_file else None
    material = prepare_material(images, backbone, config.training.device)
    require_start(wanted, material)
    title = f"{dataset} {skew} {method.label} seed {seed}"
    output = Path(
        arguments.output
        or f"results/runs/{config.experiment}/{dataset}/clients~{clients}/{skew}/{method.label}"
        f"/seed~{seed}"
    )
    with round_progress(title, config.federation.rounds) as progress:
        failure = execute(
            wanted,
            material,
            shares,
            output,
            store=_store(),
            identity=config.identity(dataset, skew, method, seed),
            progress=progress,
            checkpoint_seconds=config.checkpoint_seconds,
        )
    if failure:
        print(f"fedsdg: error: {title} failed: {failure}", file=sys.stderr)
        return 1
    last = read_json(output / "result.json")["last"]
    for name, value in last.items():
        if value is not None:
            print(f"{name:28s}{value:.4f}" if name != "round" else f"{name:28s}{value}")
    print(f"records in {output}")
    return 0


def _run_grid(arguments: argparse.Namespace) -> int:
    from fedsdg.experiment.config import load_config
    from fedsdg.experiment.continuing import is_asked_for
    from fedsdg.experiment.grid import run_grid

    for option in ("method", "dataset", "skew", "seed", "output"):
        if getattr(arguments, option) is not None:
            raise ValueError(f"--{option} is for one run; choose runs of a grid with --only")
    if arguments.jobs < 1:
        raise ValueError(f"--jobs is {arguments.jobs}, but must be at least 1")
    if arguments.seeds_together < 1:
        raise ValueError(f"--seeds-together is {arguments.seeds_together}, but must be at least 1")
    files = [*(arguments.config or ()), *arguments.grid]
    config = load_config(files, arguments.set or (), arguments.plugin or ())
    _say_remarks(config)
    failed = run_grid(
        config,
        _store(),
        jobs=arguments.jobs,
        only=arguments.only or (),
        minutes=arguments.minutes,
        seeds_together=arguments.seeds_together,
        continue_record=arguments.continue_record or is_asked_for(),
    )
    if failed:
        print(f"fedsdg: error: {len(failed)} run(s) failed:", file=sys.stderr)
        for entry in failed:
            print(f"  {entry}", file=sys.stderr)
        print("mend the cause, and give the same command again", file=sys.stderr)
        return 1
    return 0


def search(arguments: argparse.Namespace) -> int:
    """Search hyper-parameters on seeds outside the grid, equally long for every method."""
    from fedsdg.experiment import search as searching
    from fedsdg.experiment.grid import backbone_file

    if arguments.found:
        print(searching.found_entries(searching.read_found(Path(arguments.found))))
        return 0
    config = _load(arguments)
    output = Path(arguments.output or f"results/search/{config.experiment}.json")
    if arguments.show:
        found = searching.read_found(output)
    else:
        if arguments.jobs is not None and arguments.jobs < 1:
            raise ValueError(f"--jobs is {arguments.jobs}, but must be at least 1")
        backbone = Path(arguments.backbone) if arguments.backbone else backbone_file(config)
        found = searching.search(
            config,
            _store(),
            backbone,
            output,
            jobs=arguments.jobs,
            only=arguments.only or (),
            minutes=arguments.minutes,
        )
    print("\n".join(searching.summary_lines(found)))
    return 0


def summarise(arguments: argparse.Namespace) -> int:
    """Gather the records of all runs of an experiment."""
    from fedsdg.analysis import summarise as analysis

    wanted, primary = None, []
    if arguments.config or arguments.set or "FEDSDG_CONFIG" in os.environ:
        config = _load(arguments)
        wanted = config.run_folders()
        primary = [comparison.to_dict() for comparison in config.primary]
    search = Path(arguments.search) if arguments.search else None
    analysis.summarise(Path(arguments.runs), Path(arguments.output), wanted, search, primary)
    return 0


def table(arguments: argparse.Namespace) -> int:
    """Render a table as csv, md and tex."""
    from fedsdg.analysis import tables

    tables.write_table(Path(arguments.summary), arguments.table, Path(arguments.output))
    return 0


def figure(arguments: argparse.Namespace) -> int:
    """Draw a figure as pdf, svg and png, with its sources beside it."""
    from fedsdg.analysis import plots

    plots.write_figure(
        Path(arguments.summary),
        arguments.figure,
        Path(arguments.output),
        partitions=tuple(Path(p) for p in arguments.partitions),
    )
    return 0


def kernels(arguments: argparse.Namespace) -> int:
    """Table and roofline figure of the aggregation benchmarks; prints the table."""
    from fedsdg.analysis.kernels import write_kernels

    written = write_kernels(arguments.measured, arguments.table, arguments.figure)
    print(next(path for path in written if path.suffix == ".md").read_text(encoding="utf-8"))
    return 0


def throughput(arguments: argparse.Namespace) -> int:
    """Table of the benchmarks of training; prints it."""
    from fedsdg.analysis.throughput import write_throughput

    written = write_throughput(arguments.measured, arguments.table)
    print(next(path for path in written if path.suffix == ".md").read_text(encoding="utf-8"))
    return 0


def claims(arguments: argparse.Namespace) -> int:
    """State the primary comparisons with their verdicts, and describe the others."""
    from fedsdg.analysis.claims import write_claims

    write_claims(Path(arguments.summary), Path(arguments.output))
    return 0


def ledger(arguments: argparse.Namespace) -> int:
    """Judge every claim of the specifications by the record."""
    from fedsdg.analysis.ledger import VERDICTS, write_ledger

    entries = write_ledger(arguments.claims, arguments.configs, arguments.records, arguments.output)
    counts = {v: sum(entry.verdict == v for entry in entries) for v in VERDICTS}
    print(f"{len(entries)} claims: {', '.join(f'{n} {v}' for v, n in counts.items())}")
    return 0


def record(arguments: argparse.Namespace) -> int:
    """Keep what tables and figures are made from, to be committed, in results/reference."""
    from fedsdg.analysis.record import keep_record
    from fedsdg.experiment.config import OVERRIDES
    from fedsdg.methods.table import METHODS

    def own_training(kind: str) -> frozenset[str]:
        """A plugin's method, whose row is not at hand, may have prescribed any of them."""
        row = METHODS.get(kind)
        return frozenset([*OVERRIDES, *(row.training if row else ("epochs", "batch_size"))])

    for experiment in arguments.experiment:
        print(keep_record(experiment, merge=arguments.merge, own_training=own_training))
    return 0


def agree(arguments: argparse.Namespace) -> int:
    """Say whether the primary comparisons come out here as in the record."""
    from fedsdg.analysis.agreement import agreement

    for experiment in arguments.experiment:
        for line in agreement(experiment):
            print(line)
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Fail, naming them, when runs failed; otherwise write the flag."""
    from fedsdg.analysis.summarise import failed_runs
    from fedsdg.files import atomic_path

    failed = failed_runs(Path(arguments.summary))
    if failed:
        print(f"fedsdg: error: {len(failed)} run(s) failed:", file=sys.stderr)
        for entry in failed:
            print(f"  {entry}", file=sys.stderr)
        print(
            "mend the cause, delete these folders, and run "
            "'snakemake --cores all --forcerun summarise_runs'",
            file=sys.stderr,
        )
        return 1
    if arguments.output:
        with atomic_path(arguments.output) as temporary:
            temporary.write_text("all runs succeeded\n")
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Write the models of a run for peft and timm, each with a card."""
    from fedsdg.experiment.exports.export import export_run

    done = export_run(
        Path(arguments.run),
        Path(arguments.output) if arguments.output else None,
        arguments.client,
        Path(arguments.backbone) if arguments.backbone else None,
    )
    for remark in done.remarks:
        print(f"fedsdg: {remark}", file=sys.stderr)
    print(f"{done.folder}: {', '.join(done.names)}")
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """Say how well an exported model does on data sets."""
    from fedsdg.experiment.exports.evaluate import evaluate_model
    from fedsdg.experiment.loading import load_images

    found = evaluate_model(
        Path(arguments.model),
        map(load_images, _sources_to_evaluate(arguments)),
        Path(arguments.backbone) if arguments.backbone else None,
        Path(arguments.partition) if arguments.partition else None,
    )
    for one in found:
        print(
            f"{one.dataset}: accuracy {one.accuracy:.4f}, loss {one.loss:.4f} on {one.images} "
            f"images ({one.samples})"
        )
    return 0


def _sources_to_evaluate(arguments: argparse.Namespace) -> list[Source]:
    """Data sets by name; one's own, which a config describes, and by default all of a config."""
    from fedsdg.files import hint
    from fedsdg.methods.plugins import offered_datasets

    if not (arguments.config or arguments.plugin):
        if not arguments.data:
            raise ValueError(
                "name data sets with --data, or a config that describes yours with --config"
            )
        return list(arguments.data)
    config = _load(arguments)
    names = arguments.data or config.datasets
    known = (*config.own, *offered_datasets(config.plugins))
    for name in names:
        if name not in known:
            raise ValueError(f"unknown data set {name!r}{hint(name, known)}")
    return [config.source(name) for name in names]


def aggregate(arguments: argparse.Namespace) -> int:
    """Aggregate clients' safetensors files into one, in little memory."""
    from fedsdg.aggregation.engines.files.inputs import check_no_input
    from fedsdg.aggregation.engines.files.new_files import check_target, new_file
    from fedsdg.aggregation.engines.files.streaming import aggregate_files, read_state
    from fedsdg.experiment.machine.progress import byte_progress
    from fedsdg.files import read_json

    def counts(path: str | None) -> Any:
        return None if path is None else read_json(path)

    if arguments.report:
        check_target(arguments.report, overwrite=arguments.overwrite)
        if Path(arguments.report).resolve() == Path(arguments.out).resolve():
            raise ValueError(f"{arguments.out} cannot hold both parameters and report")
    uploads = {}
    for name, folder in arguments.upload:
        uploads[name] = [Path(folder) / Path(client).name for client in arguments.clients]
    counted = [path for path in (arguments.num_samples, arguments.client_samples) if path]
    for target in (arguments.out, arguments.state_out, arguments.report):
        if target:
            check_no_input(target, counted)
    if arguments.report:
        read = [arguments.global_, *arguments.clients, *chain.from_iterable(uploads.values())]
        others = [path for path in (arguments.state, arguments.state_out) if path]
        check_no_input(arguments.report, [*read, *others])
    # A job that is told to end removes what it has begun.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with byte_progress() as progress:
            result = aggregate_files(
                _rule(arguments.rule),
                arguments.global_,
                arguments.clients,
                arguments.out,
                num_samples=counts(arguments.num_samples),
                client_samples=counts(arguments.client_samples),
                num_clients=arguments.num_clients,
                uploads=uploads,
                round=arguments.round,
                state=read_state(arguments.state) if arguments.state else None,
                state_out=arguments.state_out,
                on_nonfinite=arguments.on_nonfinite,
                overwrite=arguments.overwrite,
                memory=arguments.memory << 20,
                progress=progress,
            )
    finally:
        signal.signal(signal.SIGTERM, before)
    report = {"global": arguments.global_, "out": arguments.out, **result.report()}
    if arguments.report:
        text = json.dumps(report, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False)
        with new_file(arguments.report, overwrite=arguments.overwrite) as file:
            file.write(f"{text}\n".encode())
    else:
        print(json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False))
    return 0


def _rule(text: str) -> Any:
    """A rule as a config has it: a name, or a row such as {type: krum, f: 2}."""
    import yaml

    try:
        row = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"--rule {text!r} is neither a name nor a row {{type: …}}") from error
    if not isinstance(row, str | dict):
        raise ValueError(f"--rule {text!r} is neither a name nor a row {{type: …}}")
    return {key: _number(value) for key, value in row.items()} if isinstance(row, dict) else row


def _number(value: Any) -> Any:
    """YAML takes 1e-8 for a text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def _upload(text: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=FOLDER")
    return name, folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedsdg", description="Benchmark and reproduce federated fine-tuning."
    )
    parser.add_argument("--version", action="version", version=f"fedsdg {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    def command(function: Callable[[argparse.Namespace], int], *, config: bool = False) -> Any:
        text = (function.__doc__ or "").strip()
        sub = commands.add_parser(function.__name__, help=text, description=text)
        sub.set_defaults(function=function)
        if config:
            sub.add_argument(
                "--config", nargs="+", metavar="FILE", help="laid over the default config, in order"
            )
            sub.add_argument("--set", nargs="+", metavar="KEY=VALUE", help=_SETTING)
            sub.add_argument("--plugin", nargs="+", metavar="FILE", help=_PLUGIN)
        return sub

    command(check, config=True)
    sub = command(methods)
    sub.add_argument("--plugin", nargs="+", metavar="FILE", help=_PLUGIN)
    sub.add_argument("--markdown", action="store_true", help="the whole page, docs/methods.md")
    sub = command(partition, config=True)
    sub.add_argument("--dataset", required=True)
    sub.add_argument("--clients", type=int, help="default: the config's")
    sub.add_argument("--skew", required=True)
    sub.add_argument("--seed", type=_seed, required=True)
    sub.add_argument("--output", required=True)
    sub = command(pretrain, config=True)
    sub.add_argument("--backbone", help="default: the config's")
    sub.add_argument("--output", required=True)
    sub = command(train, config=True)
    sub.add_argument("--dataset", required=True)
    sub.add_argument("--skew", required=True)
    sub.add_argument("--method", required=True)
    sub.add_argument("--backbone", help="not with trainable: full")
    sub.add_argument("--partitions", nargs="+", required=True)
    sub.add_argument("--output", required=True)
    sub = command(run, config=True)
    one = sub.add_argument_group("one run")
    one.add_argument("--method", help="a label of the config, or any method of `fedsdg methods`")
    one.add_argument("--dataset", help="of the config, or any that the benchmark knows")
    one.add_argument("--skew", help="of the config, or any: dirichlet~0.05, classes~2, iid")
    one.add_argument("--seed", type=_seed, help="default: the config's first")
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
    sub = command(search, config=True)
    sub.add_argument("--backbone", help="default: results/backbones/<backbone>.safetensors")
    sub.add_argument("--output", help="default: results/search/<experiment>.json")
    sub.add_argument("--jobs", type=int, help="runs side by side (default: a processor each)")
    sub.add_argument("--only", nargs="+", metavar="METHOD", help="labels; others wait")
    sub.add_argument("--minutes", type=float, help="start no run after so many")
    sub.add_argument("--show", action="store_true", help="run nothing: show what is known")
    sub.add_argument(
        "--found", metavar="FILE", help="run nothing: print the values in FILE as methods entries"
    )
    sub = command(summarise, config=True)
    sub.add_argument("--runs", required=True)
    sub.add_argument("--output", required=True)
    sub.add_argument("--search", metavar="FILE", help="what `fedsdg search` wrote")
    sub = command(table)
    sub.add_argument("--summary", required=True)
    sub.add_argument("--table", required=True)
    sub.add_argument("--output", required=True)
    sub = command(figure)
    sub.add_argument("--summary", required=True)
    sub.add_argument("--figure", required=True)
    sub.add_argument("--partitions", nargs="*", default=[])
    sub.add_argument("--output", required=True)
    sub = command(kernels)
    sub.add_argument("--measured", required=True, help="file of measurements: see make bench")
    sub.add_argument("--table", required=True)
    sub.add_argument("--figure", required=True)
    sub = command(throughput)
    sub.add_argument("--measured", required=True, help="file of measurements: see make bench")
    sub.add_argument("--table", required=True)
    sub = command(claims)
    sub.add_argument("--summary", required=True)
    sub.add_argument("--output", required=True)
    sub = command(ledger)
    sub.add_argument("--claims", default="claims.yaml", help="default: %(default)s")
    sub.add_argument("--configs", default="config", help="their folder (default: %(default)s)")
    sub.add_argument("--records", default="results/reference", help="default: %(default)s")
    sub.add_argument("--output", default="docs/claims.md", help="default: %(default)s")
    sub = command(record)
    sub.add_argument("experiment", nargs="+", help="as its config names it: default")
    sub.add_argument(
        "--merge", action="store_true", help="keep the runs of the record that are not here"
    )
    sub = command(agree)
    sub.add_argument("experiment", nargs="+", help="as its config names it: needs")
    sub = command(verify)
    sub.add_argument("--summary", required=True)
    sub.add_argument("--output")
    sub = command(export)
    sub.add_argument("run", help="folder of a run that kept its models: training.save")
    sub.add_argument("--output", metavar="FOLDER", help="default: models, in the run's folder")
    sub.add_argument(
        "--client", nargs="+", type=int, metavar="K", help="these alone (default: all there are)"
    )
    sub.add_argument(
        "--backbone", metavar="FILE", help="default: results/backbones/<backbone>.safetensors"
    )
    sub = command(evaluate, config=True)
    sub.add_argument("model", help="folder of a model that `fedsdg export` wrote")
    sub.add_argument(
        "--data",
        nargs="+",
        metavar="NAME",
        help="data sets, of the benchmark or of --config (default: all of --config)",
    )
    sub.add_argument(
        "--partition", metavar="FILE", help="only images that no client of this partition holds"
    )
    sub.add_argument(
        "--backbone", metavar="FILE", help="of adapters: results/backbones/<backbone>.safetensors"
    )
    sub = command(aggregate)
    sub.add_argument(
        "--rule",
        required=True,
        metavar="RULE",
        help="a name (fedsdg, fedavg, krum, …) or a row of a config: '{type: krum, f: 2}'",
    )
    sub.add_argument(
        "--global", dest="global_", required=True, metavar="FILE", help="the global parameters"
    )
    sub.add_argument(
        "--clients",
        required=True,
        nargs="+",
        metavar="FILE",
        help="the clients' parameters, a file each, with the tensors of the global file",
    )
    sub.add_argument("--out", required=True, metavar="FILE", help="where the result goes")
    sub.add_argument("--overwrite", action="store_true", help="replace files that exist")
    sub.add_argument(
        "--report",
        metavar="FILE",
        help="write weights and diagnostics here, as JSON, and not to standard output",
    )
    sub.add_argument(
        "--num-samples",
        metavar="FILE",
        help='JSON: samples by client file ({"a.safetensors": 120, …}) or in their order; '
        "default: num_samples of the files' metadata",
    )
    sub.add_argument(
        "--on-nonfinite",
        choices=("raise", "drop"),
        default="raise",
        help="whether a client with NaN or infinity is an error (the default) or left out",
    )
    sub.add_argument(
        "--memory",
        type=int,
        default=256,
        metavar="MIB",
        help="for the blocks read at a time (default: %(default)s)",
    )
    sub.add_argument(
        "--client-samples",
        metavar="FILE",
        help="JSON: the list of the samples of all clients of the federation (for cgsv)",
    )
    sub.add_argument(
        "--num-clients", type=int, metavar="K", help="of the federation (for scaffold)"
    )
    sub.add_argument(
        "--upload",
        type=_upload,
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a further upload: files named as the clients' (control=FOLDER for scaffold)",
    )
    sub.add_argument("--state", metavar="FILE", help="what --state-out wrote in the last round")
    sub.add_argument("--state-out", metavar="FILE", help="where the state for the next round goes")
    sub.add_argument("--round", type=int, default=1, metavar="N", help="default: 1")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.function(arguments))
    except BrokenPipeError:
        # The reader has gone (`fedsdg methods | head`): end without a word, as other tools do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except FORESEEN as error:
        if arguments.traceback:
            raise
        print(f"fedsdg: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"fedsdg: {str(stop) or 'interrupted'}", file=sys.stderr)
        return int(getattr(stop, "exit_code", 130))
