"""Whole runs against another commit: turns, ratios, bars, the floor; real runs in processes."""

import os
import platform
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
import torch

from benchmarks.arithmetic import operations, peak, product
from benchmarks.federations import MEASURED
from benchmarks.gate import one_thread
from benchmarks.regression import Unable
from benchmarks.runs import (
    ARENAS,
    BACKBONE,
    BEFORE,
    BUILDS,
    ROOT,
    RUNS,
    Bar,
    floor_seconds,
    measure,
    missed,
    page,
    ratios,
    side,
)
from benchmarks.timing import seconds
from fedsdg.data.partition_record import TRAIN
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.material import make_partition
from fedsdg.federation.cohorts import draw_cohort
from fedsdg.models.backbones import build


def taken(total, evaluation=1.0, samples=100):
    return {
        "total": total,
        "training": total / 2,
        "evaluation": evaluation,
        "samples": samples,
        "images": 10,
    }


def row(method="fedavg", **sides):
    return {"arena": "needs", "method": method, "rounds": 60, "taken": sides}


def stand_in(name, order, samples=100):
    def run(arena, method, rounds):
        order.append((name, rounds))
        return taken(1.0, samples=samples)

    return run


def test_after_two_rounds_each_the_sides_take_turns():
    order = []
    sides = {name: stand_in(name, order) for name in (BEFORE, "AVX-512", "AVX2")}
    found = measure(sides, "needs", "fedavg", length=9, pairs=2)
    assert order == [(name, 2) for name in sides] + 2 * [(name, 9) for name in sides]
    assert {name: len(own) for name, own in found["taken"].items()} == dict.fromkeys(sides, 2)


def test_other_work_is_not_compared():
    order = []
    sides = {BEFORE: stand_in(BEFORE, order), "AVX2": stand_in("AVX2", order, samples=99)}
    with pytest.raises(Unable, match=r"fedavg in needs is not the same work .* 'AVX2': 99"):
        measure(sides, "needs", "fedavg", 9, 7)
    assert order == [(BEFORE, 2), ("AVX2", 2)], "nothing is measured in vain"


def test_a_ratio_is_the_median_of_the_turns_and_not_the_ratio_of_medians():
    one = row(before=[taken(2.0), taken(9.0), taken(12.0)], AVX2=[taken(4.0), taken(3.0), taken(3)])
    assert ratios(one, "AVX2", "total") == [0.5, 3.0, 4.0]
    bars = [Bar("AVX2", "total", mean=3.0, each=3.1)]
    assert missed([one], bars) == [
        "total, AVX2: fedavg in needs is 3.00 times as fast, but 3.1 is asked"
    ]


def test_each_run_and_the_geometric_mean_have_a_bar_where_the_build_was_measured():
    rows = [
        row("fedsdg", before=[taken(8.0)], AVX2=[taken(1.0)]),
        row("fedavg", before=[taken(2.0)], AVX2=[taken(1.0)]),
    ]
    assert missed(rows, [Bar("AVX2", "total", mean=4.0, each=2.0)]) == []
    (sentence,) = missed(rows, [Bar("AVX2", "total", mean=4.1, each=2.0)])
    assert sentence == "total, AVX2: the geometric mean is 4.00 times as fast, but 4.1 is asked"
    (sentence,) = missed(rows, [Bar("AVX2", "total", mean=4.0, each=2.1)])
    assert "fedavg in needs is 2.00 times as fast" in sentence
    assert missed(rows, [Bar("AVX2", "evaluation", mean=0.9, each=1.1)])
    assert missed(rows, [Bar("AVX-512", "total", mean=99.0, each=99.0)]) == []


def test_the_page_has_a_row_for_each_run_and_their_mean():
    rows = [
        row("fedsdg", before=[taken(8.0), taken(6.0)], AVX2=[taken(1.0), taken(1.0)]),
        row("fedavg", before=[taken(2.0), taken(2.0)], AVX2=[taken(1.0), taken(0.5)]),
    ]
    text = page(rows, 1e9, ["a note"])
    lines = {line.split(" | ")[0]: line.split(" | ")[1:-1] for line in text.splitlines()}
    assert lines["| fedsdg in needs"][:3] == ["7.00 s", "1.00 s", "7.00×"]
    assert lines["| fedsdg in needs"][5] == "6.00–8.00×"
    assert lines["| geometric mean"][2] == "4.58×"
    assert "built for AVX2" in text and "AVX-512" not in text and text.endswith("- a note\n")


def test_the_floor_is_what_a_plain_pass_multiplies_but_for_what_nothing_asks_for():
    """Against torch's count of all blocks, one block less where the first or the last is spared."""
    architecture = MEASURED["digits"].architecture
    vit = build(architecture).requires_grad_(False)
    dim, tokens = architecture.dim, (architecture.image_size // architecture.patch_size) ** 2 + 1
    for block in vit.blocks:
        block.attn.fused_attn = False
    x = torch.randn(1, tokens, dim, requires_grad=True)
    forward = operations(lambda: vit.blocks(x.detach()))
    backward = operations(lambda: vit.blocks(x).sum().backward()) - forward
    attention, square = 4 * tokens**2 * dim, 2 * dim**2
    # All tokens but the class token need no query, projection and MLP in the last block.
    last = (tokens - 1) * (10 * square + 4 * tokens * dim)
    forward -= 3 * tokens * square + attention + last
    backward -= 4 * tokens * square + 2 * attention + last + (tokens - 1) * 4 * tokens * dim
    assert floor_seconds({"images": 1, "samples": 0}, 1.0) == forward
    assert floor_seconds({"images": 0, "samples": 1}, 1.0) == forward + backward
    assert floor_seconds({"images": 0, "samples": 3}, 2.0) == 1.5 * (forward + backward)


def test_the_peak_is_beyond_a_product_of_matrices_and_within_what_a_core_can_do():
    """Two fused products and sums of sixteen numbers a cycle, at 6 GHz at most."""
    work, count = product("float32")
    with one_thread():
        best = min(seconds(work, time.process_time) for _ in range(5))
    assert 0.5 * count / best < peak(100_000) < 2 * 2 * 16 * 6e9


@pytest.mark.parametrize("arena", ARENAS)
def test_the_runs_are_of_their_arenas(arena):
    files, setting = ARENAS[arena]
    config = load_config([ROOT / "config" / f"{name}.yaml" for name in ("config", *files)])
    assert config.experiment == (*files, arena)[0] and setting in config.settings
    for method in (method for of, method in RUNS if of == arena):
        assert config.method(method).label == method
    assert (ROOT / BACKBONE).is_file()


@pytest.mark.slow
def test_a_process_does_a_run_and_says_what_it_took():
    with ExitStack() as stack:
        one = side(stack, ROOT, {}, ["federation.evaluate_every=1"])
        found = one("needs", "fedavg", 1)
        parts = [found["training"], found["evaluation"]]
        assert min(parts) > 0 and sum(parts) < found["total"]
        config = load_config([ROOT / "config/cross-needs.yaml"])
        clients = make_partition("digits", "iid", 0, config.federation.clients, config.partition)
        cohort = draw_cohort(0, 1, config.federation.clients, config.federation.clients_per_round)
        sizes = [len(clients.indices(int(client), TRAIN)) for client in cohort]
        assert found["samples"] == config.training.epochs * sum(sizes)
        alone = one("needs", "local-only", 1)
        assert alone["samples"] == found["samples"]
        # All clients' own models are asked about the whole test set, the one model once.
        assert alone["images"] > 2 * found["images"] > 0
        # Fine-tuning before an evaluation is training, by epochs of all clients' samples.
        tuned = one("needs", "fine-tune", 1)
        everybody = sum(len(shard) for shard in clients.shards(TRAIN))
        epochs = config.method("fine-tune").parameters["personal_epochs"]
        assert tuned["samples"] == found["samples"] + epochs * everybody
        assert tuned["evaluation"] < tuned["training"]
        with pytest.raises(Unable, match="the runs in .*fedfoo in needs: .*fedfoo"):
            one("needs", "fedfoo", 1)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="compiles for x86")
def test_the_build_for_avx2_has_nothing_of_avx512(tmp_path):
    """The product's tile has twelve registers of eight numbers, and no register of sixteen."""
    program = (
        "import numba, numpy; from fedsdg.models.fast import tiles\n"
        "@numba.njit\n"
        "def f(a): tiles.product(a, 1, 1, a, a, 5, 64, 9, a, 0)\n"
        "f.compile('(int64,)'); print(tiles.LANES, 'zmm' in str(f.inspect_asm()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **BUILDS["AVX2"], "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["8", "False"]
