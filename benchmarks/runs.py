"""How many times as fast as at another commit are whole runs, by the processor's time?

    python -m benchmarks.runs main        (make bench-runs BASE=main)

Nine runs of two arenas, seed 0, with training and evaluation, one thread each. A checkout of the
other commit, this tree, and this tree with its kernels built for AVX2 are a process each; they take
turns, and the median over the turns of the ratio of seconds counts. First each does two rounds of
the run, so that importing and compiling are not counted. Each has its own configs and sources;
whether they train on as many samples is checked. Fails where a ratio is below its bar.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import torch

from benchmarks import machine
from benchmarks.arithmetic import peak
from benchmarks.quiet import Watch, cores
from benchmarks.regression import ROOT, Unable, answering, checked_out
from fedsdg.experiment import building
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.federation import rounds
from fedsdg.federation.passes import Passes
from fedsdg.files import write_bytes, write_json
from fedsdg.models.backbones import load_backbone
from fedsdg.models.fast.tiles import wide

#: Arena -> its files over config/config.yaml, and the setting.
ARENAS = {"label-skew": ((), "dirichlet~0.1"), "needs": (("cross-needs",), "iid@half")}
RUNS = (
    *(("label-skew", method) for method in ("fedsdg", "fedavg")),
    *(
        ("needs", method)
        for method in ("fedsdg", "fedavg", "fine-tune", "ditto", "fedrep", "local-only", "feddpa")
    ),
)
ROUNDS, PAIRS = 60, 7
BACKBONE = "results/reference/backbones/letters.safetensors"
BEFORE = "before"
#: Builds of this tree's kernels. The name of a processor alone would leave this one's features.
BUILDS = {"AVX-512": {}, "AVX2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""}}
PARTS = ("total", "training", "evaluation")


class Bar(NamedTuple):
    """The least ratio before / here of one build: the geometric mean of the runs, and each run."""

    build: str
    part: str
    mean: float
    each: float


BARS = (
    Bar("AVX-512", "total", 2.5, 2.0),
    Bar("AVX-512", "evaluation", 2.0, 2.0),
    Bar("AVX2", "total", 1.6, 1.6),
)


# In the process of a side.


def work() -> None:
    """Answer each line of standard input, a run as JSON, with what it took.

    A line is [arena, method, rounds, settings], the answer the processor's seconds of ``PARTS``,
    the samples trained on and the images judged.
    """
    torch.set_num_threads(1)
    spent = _metered()
    print("ready", flush=True)
    for line in sys.stdin:
        arena, method, length, settings = json.loads(line)
        try:
            taken = _run(arena, method, length, tuple(settings), spent)
        except Exception as error:
            sys.exit(f"{method} in {arena}: {error}")
        print(json.dumps(taken), flush=True)


def _metered() -> Counter[str]:
    """Measure training and evaluation from now on; the counter that their runs add up in.

    Training within an evaluation, such as fine-tuning, is training.
    """
    spent: Counter[str] = Counter()

    def meter(owner: Any, name: str, part: str) -> None:
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def metered(*given: Any, **options: Any) -> Any:
            begun, before = time.process_time(), spent.copy()
            result = plain(*given, **options)
            within = spent["training"] - before["training"]
            spent[part] += time.process_time() - begun - within
            if part == "training":
                # Images of its own forward passes are trained on, not judged.
                spent["images"] = before["images"]
                spent["samples"] += int(result.samples.sum())
            return result

        setattr(owner, name, metered)

    meter(Passes, "train", "training")
    meter(rounds, "evaluate", "evaluation")
    return spent


def _run(
    arena: str, method: str, length: int, settings: tuple[str, ...], spent: Counter[str]
) -> dict[str, float]:
    """Do one run, from its material to the last evaluation; see ``work``."""
    config, material, partition = _prepared(arena, length, settings)
    run = config.run("digits", ARENAS[arena][1], config.method(method), 0)
    spent.clear()
    begun = time.process_time()
    federation = building.build(run, material, partition)
    forward: Callable[..., Any] = federation.model.forward

    def counted(images: Any, *given: Any) -> Any:
        spent["images"] += len(images)
        return forward(images, *given)

    federation.model.forward = counted  # type: ignore[method-assign]
    federation.run()
    return {"total": time.process_time() - begun, **spent}


@functools.cache
def _prepared(arena: str, length: int, settings: tuple[str, ...]) -> tuple[Any, Any, Any]:
    """The config of an arena, its material and the partition of seed 0."""
    names, setting = ARENAS[arena]
    files = [ROOT / "config" / f"{name}.yaml" for name in ("config", *names)]
    config = load_config(files, (f"federation.rounds={length}", *settings))
    material = prepare_material("digits", load_backbone(ROOT / BACKBONE), "cpu")
    skew, clients = setting.partition("@")[0], config.federation.clients
    return config, material, make_partition("digits", skew, 0, clients, config.partition)


# In the process that compares.

Taken = Mapping[str, float]
Side = Callable[[str, str, int], Taken]
#: By run: arena, method, rounds, and for every side what each turn took.
Row = Mapping[str, Any]


def side(
    stack: ExitStack, checkout: Path, environment: Mapping[str, str], settings: Sequence[str]
) -> Side:
    """A process that does runs in a checkout until the stack ends.

    Called with arena, method and number of rounds it gives what the run took; see ``work``.
    """
    process = answering(checkout, "benchmarks.runs", "the runs", environment)
    ask = stack.enter_context(process)

    def run(arena: str, method: str, length: int) -> Taken:
        taken: Taken = json.loads(ask(json.dumps([arena, method, length, list(settings)])))
        return taken

    return run


def measure(
    sides: Mapping[str, Side], arena: str, method: str, length: int = ROUNDS, pairs: int = PAIRS
) -> Row:
    """Have the sides do a run in turns.

    Args:
        sides: The other commit (``BEFORE``), and this tree by build.
        arena: Of ``ARENAS``.
        method: Of the arena.
        length: Rounds of the run.
        pairs: Turns.

    Returns:
        arena, method, rounds, and ``taken``: side -> what each turn took.

    Raises:
        Unable: A side cannot do the run, or the sides do not train on as many samples.
    """
    first = {name: one(arena, method, min(2, length)) for name, one in sides.items()}
    counts = {name: taken["samples"] for name, taken in first.items()}
    if len(set(counts.values())) > 1:
        raise Unable(
            f"{method} in {arena} is not the same work on both sides, which train on {counts} "
            "samples; lay over this side what the other commit's config says, such as "
            "--over partition.test=by-seed"
        )
    turns = [
        {name: one(arena, method, length) for name, one in sides.items()} for _ in range(pairs)
    ]
    taken = {name: [turn[name] for turn in turns] for name in sides}
    return {"arena": arena, "method": method, "rounds": length, "taken": taken}


def ratios(row: Row, build: str, part: str) -> list[float]:
    """Seconds before over seconds here, in every turn."""
    pairs = zip(row["taken"][BEFORE], row["taken"][build], strict=True)
    return [old[part] / new[part] for old, new in pairs]


def missed(rows: Sequence[Row], bars: Sequence[Bar] = BARS) -> list[str]:
    """A sentence for each bar that is not cleared; a build that was not measured has none."""
    sentences = []
    for build, part, least_mean, least in bars:
        found = {
            f"{row['method']} in {row['arena']}": median(ratios(row, build, part))
            for row in rows
            if build in row["taken"]
        }
        bounds = [(name, value, least) for name, value in found.items()]
        if found:
            bounds.append(("the geometric mean", geometric_mean(found.values()), least_mean))
        sentences += [
            f"{part}, {build}: {name} is {value:.2f} times as fast, but {bound:g} is asked"
            for name, value, bound in bounds
            if value < bound
        ]
    return sentences


def floor_seconds(taken: Taken, rate: float) -> float:
    """Seconds that a run would take if it did its products alone, as fast as a core multiplies.

    They are those with the frozen weights, 24 D² operations for each of T tokens and each block,
    and in attention, 4 T D. Forward the first block begins behind its attention, which is the same
    in every round, and the last one asks for keys and values of all tokens and for all else of the
    class token. Backward it is as much again, twice that in attention, down to the first adapter.
    Products with adapters and heads, about a tenth of all, are left out.

    Args:
        taken: ``samples`` trained on and ``images`` judged.
        rate: Operations a second.
    """
    dim, depth, tokens = 64, 6, 5
    # In products of a token with a matrix [D, D]: 12 in a block, 4 of them before the MLP.
    ends = 2 * tokens + 10
    forward = 9 * tokens + 12 * (depth - 2) * tokens + ends
    backward = 8 * tokens + 12 * (depth - 2) * tokens + ends
    attention = 4 * dim * ((depth - 2) * tokens**2 + tokens)
    image = 2 * dim**2 * forward + attention
    sample = image + 2 * dim**2 * backward + 2 * attention
    return (taken["images"] * image + taken["samples"] * sample) / rate


def page(rows: Sequence[Row], rate: float, notes: Sequence[str]) -> str:
    """The rows as Markdown, a table for each build; ``rate`` is that of the floor, notes follow."""
    lines = ["# Whole runs against another commit", ""]
    heads = ["run", "before", "here", *PARTS, "total, all turns", "floor", "floor / here"]
    for build in [name for name in BUILDS if name in rows[0]["taken"]]:
        lines += [f"Kernels built for {build}:", "", _line(heads), _line(["---"] * len(heads))]
        for row in rows:
            seconds = [median(t["total"] for t in row["taken"][name]) for name in (BEFORE, build)]
            found = {part: ratios(row, build, part) for part in PARTS}
            floor = floor_seconds(row["taken"][build][0], rate)
            cells = [f"{row['method']} in {row['arena']}", *(f"{one:.2f} s" for one in seconds)]
            cells += [f"{median(each):.2f}×" for each in found.values()]
            cells += [f"{min(found['total']):.2f}–{max(found['total']):.2f}×"]
            cells += [f"{floor:.2f} s", f"{floor / seconds[1]:.2f}"]
            lines.append(_line(cells))
        means = [geometric_mean(median(ratios(row, build, part)) for row in rows) for part in PARTS]
        lines += [_line(["geometric mean", "", "", *(f"{one:.2f}×" for one in means), "", "", ""])]
        lines.append("")
    return "\n".join([*lines, *(f"- {note}" for note in notes), ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every bar is cleared, 1 where one is missed, 2 for what cannot be compared."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", help="a commit")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="turns of each run")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each run")
    names = ["/".join(run) for run in RUNS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--over", nargs="+", default=[], help="settings laid over this side")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    given = parser.parse_args(arguments)
    builds = {name: own for name, own in BUILDS.items() if name != "AVX-512" or wide()}
    rate, watch, rows = peak(), Watch(), []
    try:
        with checked_out(given.base) as base, ExitStack() as stack:
            sides = {BEFORE: side(stack, base, {}, [])}
            sides |= {name: side(stack, ROOT, own, given.over) for name, own in builds.items()}
            for name in given.only:
                rows.append(measure(sides, *name.split("/"), given.rounds, given.pairs))
                for build in builds:
                    found = [
                        f"{part} {median(ratios(rows[-1], build, part)):.2f}" for part in PARTS
                    ]
                    print(f"{name}, {build}: {', '.join(found)}", flush=True)
    except (LookupError, Unable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    others, sentences = watch.others(), missed(rows)
    notes = [
        f"Seconds of the processor, medians of {given.pairs} turns; runs of {given.rounds} rounds; "
        f"ratios before / here. Other programs took {others:.1f} of {len(cores())} cores.",
        f"The floor is that of the products at {rate / 1e9:.0f} GFLOP/s, the peak of one core.",
        *sentences,
    ]
    print(page(rows, rate, notes))
    if given.out:
        facts = machine.facts() | {"base": given.base, "over": given.over}
        facts |= {"peak": rate, "others": others}
        write_json(given.out.with_suffix(".json"), {"machine": facts, "runs": rows})
        write_bytes(given.out.with_suffix(".md"), page(rows, rate, notes).encode())
    return int(bool(sentences))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work()
    else:
        sys.exit(main())
