"""Aggregation over a group of one rank, in this process; and the documentation's example."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from fedsdg.aggregation import aggregate, aggregate_by_client, aggregate_sharded
from fedsdg.aggregation.engines.distributed import Peers, ShardedRows
from fedsdg.aggregation.engines.distributed.exchange import Layout
from fedsdg.aggregation.engines.rows import TensorRows

from ..api_cases import EVERY_RULE, KINDS, draw, flat, form, needs

ROOT = Path(__file__).parents[3]
THETA, CLIENTS = draw(0, 6, 11)


@pytest.fixture(scope="module")
def _group(tmp_path_factory):
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_without_a_group_there_is_nothing_to_do():
    with pytest.raises(ValueError, match="torch.distributed is not initialised; call"):
        aggregate_sharded("fedsdg", THETA, CLIENTS)


@pytest.mark.usefixtures("_group")
class TestOneRank:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("rule", EVERY_RULE, ids=str)
    def test_gives_what_one_process_gives(self, rule, kind):
        rows = [form(row, kind) for row in CLIENTS]
        by_id = dict(enumerate(rows))
        options = needs(rule, 6, controls=rows)
        expected = aggregate(rule, form(THETA, kind), rows, **options)
        sharded = aggregate_sharded(rule, form(THETA, kind), rows, **options)
        for name in ("num_samples", "num_batches"):
            if name in options:
                options[name] = dict(enumerate(options[name]))
        if "uploads" in options:
            options["uploads"] = dict.fromkeys(options["uploads"], by_id)
        by_client = aggregate_by_client(rule, form(THETA, kind), by_id, **options)
        for found in (sharded, by_client):
            np.testing.assert_allclose(flat(found.parameters), flat(expected.parameters), 1e-12)
            assert type(found.parameters) is type(expected.parameters)
            assert found.state.keys() == expected.state.keys()
            for name, value in expected.state.items():
                torch.testing.assert_close(found.state[name], value)
        assert sharded.weights == pytest.approx(expected.weights)
        if expected.weights is not None:
            assert by_client.weights == pytest.approx(dict(enumerate(expected.weights)))

    @pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
    def test_timeouts_must_be_positive(self, timeout):
        with pytest.raises(ValueError, match="must be a positive number of seconds"):
            Peers(timeout=timeout)

    def test_an_error_keeps_its_sentence(self):
        with pytest.raises(ValueError, match=r"^there is no rule 'krumm'; did you mean 'krum'\?$"):
            aggregate_sharded("krumm", THETA, CLIENTS)
        with pytest.raises(ValueError, match="^upload 'control' is missing"):
            aggregate_by_client("scaffold", THETA, dict(enumerate(CLIENTS)), num_clients=6)

    def test_an_empty_cohort_leaves_the_parameters_as_they_are(self):
        result = aggregate_sharded("krum", THETA, [])
        assert result.weights == []
        assert np.array_equal(result.parameters, THETA)
        assert aggregate_sharded("fedsdg", {}, [{}] * 3).parameters == {}

    def test_rows_of_dtypes_that_no_rank_could_compare_are_refused(self):
        rows = TensorRows(torch.ones(2, 3, dtype=torch.int64))
        with pytest.raises(ValueError, match=r"the rows are torch\.int64; convert"):
            ShardedRows(rows, Peers())


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("width", [1, 2, 100])
def test_every_column_travels_once(ranks, width):
    """Whatever the cuts, and in ranges that differ by at most one in size."""
    tensors = {
        "a": torch.zeros(2, 3),
        "none": torch.zeros(0),
        "b": torch.zeros(()),
        "c": torch.zeros(4),
    }
    layout = Layout(tensors, ranks)
    seen = {
        name: torch.zeros(tensor.numel(), dtype=torch.int64) for name, tensor in tensors.items()
    }
    sizes = np.zeros(ranks)
    for pieces in layout.rounds(width):
        for rank, part in enumerate(pieces):
            whole = layout.of(rank)
            for name, columns in part.items():
                assert whole[name].start <= columns.start < columns.stop <= whole[name].stop
                seen[name][columns] += 1
                sizes[rank] += columns.stop - columns.start
    assert all((count == 1).all() for count in seen.values())
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.slow
def test_the_example_of_the_documentation_runs(tmp_path):
    text = (ROOT / "docs/distributed.md").read_text()
    example = re.search(r"```python\n(# Run it with: .*?)```", text, re.DOTALL)
    assert example is not None
    script = tmp_path / "aggregate_over_ranks.py"
    script.write_text(example[1])
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run(
        [*command, script], capture_output=True, text=True, check=False, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    # Both write to one pipe, a line not always in one piece.
    printed = dict(re.findall(r"rank (\d): weights ((?:\d\.\d{4}(?:, )?){5})", done.stdout))
    assert sorted(printed) == ["0", "1"], done.stdout
    assert printed["0"] == printed["1"]
