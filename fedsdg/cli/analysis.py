"""Commands that judge and show what has been recorded: files in, files out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fedsdg.cli.command import JUDGE, WORKFLOW, Command
from fedsdg.cli.options import add_config_options, add_json_option, load, say_json

GROUP = JUDGE

_PLACES = "one for each, in their order, without a suffix"


def summarise(arguments: argparse.Namespace) -> int:
    """Gather the records of all runs of an experiment."""
    from fedsdg.analysis import summarise as analysis

    wanted, primary, roles = None, [], None
    if arguments.config or arguments.set or "FEDSDG_CONFIG" in os.environ:
        config = load(arguments)
        wanted = config.run_folders()
        primary = [comparison.to_dict() for comparison in config.primary]
        roles = asdict(config.roles)
    search = Path(arguments.search) if arguments.search else None
    runs, output = Path(arguments.runs), Path(arguments.output)
    analysis.summarise(runs, output, wanted, search, primary, roles)
    return 0


def _summarise_options(sub: argparse.ArgumentParser) -> None:
    add_config_options(sub)
    sub.add_argument("--runs", required=True)
    sub.add_argument("--output", required=True)
    sub.add_argument("--search", metavar="FILE", help="what `fedsdg search` wrote")


def table(arguments: argparse.Namespace) -> int:
    """Render tables as csv, md and tex."""
    from fedsdg.analysis import tables

    for name, output in _pages(arguments.table, arguments.output, "table"):
        tables.write_table(Path(arguments.summary), name, output)
    return 0


def _pages(names: Sequence[str], outputs: Sequence[str], kind: str) -> list[tuple[str, Path]]:
    """Each table or figure with its place."""
    if len(names) != len(outputs):
        raise ValueError(
            f"--output names {len(outputs)} places for {len(names)} {kind}s; name one for each, in "
            f"the order of --{kind}"
        )
    return list(zip(names, map(Path, outputs), strict=True))


def _table_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--summary", required=True)
    sub.add_argument("--table", nargs="+", required=True)
    sub.add_argument("--output", nargs="+", required=True, help=_PLACES)


def figure(arguments: argparse.Namespace) -> int:
    """Draw figures as pdf, svg and png, their sources beside them."""
    from fedsdg.analysis import plots

    partitions = tuple(map(Path, arguments.partitions))
    for name, output in _pages(arguments.figure, arguments.output, "figure"):
        plots.write_figure(Path(arguments.summary), name, output, partitions=partitions)
    return 0


def _figure_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--summary", required=True)
    sub.add_argument("--figure", nargs="+", required=True)
    sub.add_argument("--partitions", nargs="*", default=[])
    sub.add_argument("--output", nargs="+", required=True, help=_PLACES)


def kernels(arguments: argparse.Namespace) -> int:
    """Make table and roofline of the aggregation benchmarks."""
    from fedsdg.analysis.speed import write_kernels

    written = write_kernels(arguments.measured, arguments.table, arguments.figure)
    print(next(path for path in written if path.suffix == ".md").read_text(encoding="utf-8"))
    return 0


def _kernels_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--measured", required=True, help="file of measurements: see make bench")
    sub.add_argument("--table", required=True)
    sub.add_argument("--figure", required=True)


def throughput(arguments: argparse.Namespace) -> int:
    """Make the table of the benchmarks of training."""
    from fedsdg.analysis.speed import write_throughput

    written = write_throughput(arguments.measured, arguments.table)
    print(next(path for path in written if path.suffix == ".md").read_text(encoding="utf-8"))
    return 0


def _throughput_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--measured", required=True, help="file of measurements: see make bench")
    sub.add_argument("--table", required=True)


def claims(arguments: argparse.Namespace) -> int:
    """State the primary comparisons with their verdicts.

    The others are described and not judged.
    """
    from fedsdg.analysis.claims import write_claims

    write_claims(Path(arguments.summary), Path(arguments.output))
    return 0


def _claims_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--summary", required=True)
    sub.add_argument("--output", required=True)


def ledger(arguments: argparse.Namespace) -> int:
    """Judge every claim of the specifications by the record, and render the findings."""
    from fedsdg.analysis.findings import (
        primary_comparisons,
        read_findings,
        statements,
        write_findings,
    )
    from fedsdg.analysis.ledger import VERDICTS, write_ledger

    findings = read_findings(arguments.claims)
    entries = write_ledger(arguments.claims, arguments.configs, arguments.records, arguments.output)
    known = statements(entries, primary_comparisons(arguments.records))
    for path in write_findings(Path(arguments.claims).parent, findings, known):
        print(f"{path}: findings rendered")
    counts = {v: sum(entry.verdict == v for entry in entries) for v in VERDICTS}
    print(f"{len(entries)} claims: {', '.join(f'{n} {v}' for v, n in counts.items())}")
    if arguments.freeze:
        from fedsdg.analysis.grids import published_grids
        from fedsdg.analysis.ledger import read_claims
        from fedsdg.analysis.ledger.frozen import FROZEN, freeze

        claims = read_claims(arguments.claims, published_grids(arguments.configs))
        records = Path(arguments.records)
        print(f"{freeze(claims, records)} of their origins frozen in {records / FROZEN}")
    return 0


def _ledger_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--claims", default="claims.yaml", help="default: %(default)s")
    sub.add_argument("--configs", default="config", help="their folder (default: %(default)s)")
    sub.add_argument("--records", default="results/reference", help="default: %(default)s")
    sub.add_argument("--output", default="docs/claims.md", help="default: %(default)s")
    sub.add_argument(
        "--freeze",
        action="store_true",
        help="keep the origin and the substance of every claim that has an origin in "
        "RECORDS/origins.json; after its run 'fedsdg verify' names a change",
    )


def record(arguments: argparse.Namespace) -> int:
    """Keep in results/reference what tables and figures are made from."""
    if arguments.restamp:
        return _restamp(arguments)
    from fedsdg.analysis.record import keep_record
    from fedsdg.experiment.method_entries import OVERRIDES
    from fedsdg.methods.declared import methods

    def own_training(kind: str) -> frozenset[str]:
        """A plugin's method, whose row is not at hand, may have prescribed any of them."""
        row = methods().get(kind)
        return frozenset([*OVERRIDES, *(row.training if row else ("epochs", "batch_size"))])

    for experiment in arguments.experiment:
        print(keep_record(experiment, merge=arguments.merge, own_training=own_training))
    return 0


def _restamp(arguments: argparse.Namespace) -> int:
    from fedsdg.experiment.restamping import commits, restamp

    if arguments.merge:
        raise ValueError("--restamp computes nothing that --merge could add; leave one of them out")
    pair = commits(*arguments.restamp)
    for experiment in arguments.experiment:
        for sentence in restamp(experiment, *pair, arguments.evidence):
            print(sentence)
    return 0


def _record_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("experiment", nargs="+", help="as its config names it: default")
    sub.add_argument(
        "--restamp",
        nargs=2,
        metavar=("OLD", "NEW"),
        help="runs recorded at the commit OLD get the address of NEW, which is checked out, where "
        "'make gate BASE=OLD' found no difference",
    )
    sub.add_argument(
        "--evidence",
        type=Path,
        default=Path(".fedsdg/gate/evidence.json"),
        help="what the gate wrote (default: %(default)s)",
    )
    sub.add_argument(
        "--merge", action="store_true", help="keep the runs of the record that are not here"
    )


def agree(arguments: argparse.Namespace) -> int:
    """Say whether primary comparisons come out here as in the record."""
    from fedsdg.analysis.agreement import agreement, facts

    if arguments.json:
        say_json([fact for experiment in arguments.experiment for fact in facts(experiment)])
        return 0
    for experiment in arguments.experiment:
        for line in agreement(experiment):
            print(line)
    return 0


def _agree_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("experiment", nargs="+", help="as its config names it: needs")
    add_json_option(sub)


def succeeded(arguments: argparse.Namespace) -> int:
    """Fail, naming them, when runs failed; otherwise write the flag."""
    from fedsdg.analysis.summarise import failed_runs
    from fedsdg.files import atomic_path

    failed = failed_runs(Path(arguments.summary))
    if failed:
        print(f"fedsdg: error: {len(failed)} run(s) failed:", file=sys.stderr)
        for run, error in failed.items():
            print(f"  {run}: {error}", file=sys.stderr)
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


def _succeeded_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--summary", required=True)
    sub.add_argument("--output")


_SUMMARISE = """\
fedsdg run --grid smoke
fedsdg summarise --runs results/runs/smoke --output results/summary/smoke"""
_TABLE = "fedsdg table --summary results/reference/needs --table main --output main"
_FIGURE = "fedsdg figure --summary results/reference/needs --figure convergence --output curves"
_MEASURED = "results/reference/performance/measured.json"
_KERNELS = f"""\
fedsdg kernels --measured {_MEASURED} \\
  --table kernels --figure roofline"""
_THROUGHPUT = f"fedsdg throughput --measured {_MEASURED} --table throughput"
_CLAIMS = "fedsdg claims --summary results/reference/needs --output claims"
_RECORD = """\
fedsdg run --grid smoke
fedsdg record smoke"""
_AGREE = """\
fedsdg run --grid needs --jobs 2
fedsdg agree needs"""
_SUCCEEDED = "fedsdg succeeded --summary results/reference/label-skew"

COMMANDS = (
    Command(table, _table_options, ("tables",), _TABLE),
    Command(figure, _figure_options, ("figures",), _FIGURE),
    Command(agree, _agree_options, (), _AGREE),
    Command(record, _record_options, (), _RECORD),
    Command(ledger, _ledger_options, (), "fedsdg ledger --output claims.md"),
    Command(summarise, _summarise_options, (), _SUMMARISE, WORKFLOW),
    Command(claims, _claims_options, (), _CLAIMS, WORKFLOW),
    Command(kernels, _kernels_options, (), _KERNELS, WORKFLOW),
    Command(throughput, _throughput_options, (), _THROUGHPUT, WORKFLOW),
    Command(succeeded, _succeeded_options, (), _SUCCEEDED, WORKFLOW),
)
