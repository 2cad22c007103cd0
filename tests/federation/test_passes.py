"""A cohort in several passes is the cohort in one; how many clients fit, and what if none do."""

import dataclasses
import itertools
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsdg.federation import passes
from fedsdg.federation.clients import Clients
from fedsdg.federation.local_training import train_clients
from fedsdg.federation.local_work import LocalWork, Samples
from fedsdg.federation.memory import halving, is_out_of_memory
from fedsdg.federation.objectives.control_variates import ControlVariates
from fedsdg.federation.objectives.gate_penalty import GatePenalty
from fedsdg.federation.objectives.private_penalty import PrivatePenalty
from fedsdg.federation.objectives.proximal import Proximal
from fedsdg.federation.optimisers.adam import Adam
from fedsdg.federation.optimisers.sgd import Sgd
from fedsdg.federation.passes import Passes, budget, bytes_of_a_client
from fedsdg.federation.steps import Steps
from fedsdg.federation.stopping import Inexactness
from tests.pretended_cuda import pretended_cuda

SIZES = [3, 17, 8, 1, 16, 9, 4]
#: The objectives of the table of methods, with the optimiser that each is used with.
OBJECTIVES = {
    "none": (Adam(), ()),
    "fedprox": (Adam(), (Proximal(0.1),)),
    "scaffold": (Sgd(), (ControlVariates(),)),
    "fedsdg": (Adam(), (GatePenalty(1e-2), PrivatePenalty(1e-2))),
    "fedsdg-residual": (Adam(), (GatePenalty(1e-2), PrivatePenalty(1e-2, "residual"))),
    "fedsdg-b-only": (Sgd(), (GatePenalty(1e-2), PrivatePenalty(1e-2, "b-only"))),
}


def relative(a, b):
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


def task(setting, batches_of, objective, dtype=torch.float64):
    """(model, layout, samples), clients that differ in everything, work."""
    optimiser, terms = OBJECTIVES[objective]
    s = setting(dtype, branch="dual" if "fedsdg" in objective else "none")
    m, generator = len(SIZES), torch.Generator().manual_seed(3)

    def noise(width):
        return 0.01 * torch.randn(m, width, generator=generator, dtype=torch.float64).to(dtype)

    vectors = [{name: noise(s.layout.d) for term in terms for name in term.keeps} for _ in range(2)]
    clients = Clients(
        batches_of(SIZES),
        s.theta + noise(s.layout.d),
        s.private + noise(s.layout.d_private),
        *vectors,
    )
    work = LocalWork(optimiser, 3e-3, 3e-3, 5e-3, 1.0, terms, trace_every=2)
    return (s.model, s.layout, s.samples), clients, work


def assert_same(a, b, start, bound):
    assert relative(a.theta - start.start, b.theta - start.start) < bound
    if start.private.shape[1]:
        assert relative(a.private - start.private, b.private - start.private) < bound
    for mine, other in ((a.uploads, b.uploads), (a.state, b.state)):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            assert relative(value, other[name]) < bound
    assert a.steps.tolist() == b.steps.tolist() and a.samples.tolist() == b.samples.tolist()
    assert np.allclose(a.loss, b.loss, rtol=bound, atol=0)
    assert len(a.trace) == len(b.trace)
    for mine, other in zip(a.trace, b.trace, strict=True):
        assert mine == pytest.approx(other, rel=10 * bound, abs=1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_results_do_not_depend_on_the_clients_per_pass(
    setting, batches_of, objective, dtype, bound
):
    where, clients, work = task(setting, batches_of, objective, dtype)
    whole = train_clients(*where, clients, work)
    if work.terms and work.terms[0].keeps:
        assert float(whole.uploads["control"].norm()) > 0
    for number in (1, 2, 3, 5):
        parts = Passes(4, number).train(*where, clients, work)
        assert_same(parts, whole, clients, bound)


def test_a_cohort_that_fits_is_one_pass_bit_for_bit(setting, batches_of):
    where, clients, work = task(setting, batches_of, "fedsdg", torch.float32)
    chosen = Passes(4)
    one = chosen.train(*where, clients, work)
    assert chosen.clients_per_pass > len(SIZES)
    whole = train_clients(*where, clients, work)
    assert torch.equal(one.theta, whole.theta) and torch.equal(one.private, whole.private)
    assert one.trace == whole.trace and one.loss.tolist() == whole.loss.tolist()


def test_groups_trained_in_common_are_the_groups_alone(setting, batches_of):
    where, clients, work = task(setting, batches_of, "scaffold")
    groups = [clients[np.array([4, 0, 2])], clients[np.array([1, 6, 3, 5])]]
    together = train_clients(*where, Clients.joined(groups), work)
    for group, rows in zip(groups, (np.arange(3), np.arange(3, 7)), strict=True):
        assert_same(together[rows], train_clients(*where, group, work), group, 1e-9)


# --- How many fit ---------------------------------------------------------------------------------


@pytest.mark.parametrize("branch", ["none", "dual"])
def test_what_autograd_keeps_grows_by_the_same_for_every_client(setting, branch):
    """The difference of two and one is that of five and four: a client's own share."""
    s = setting(torch.float32, branch=branch)

    def kept(clients):
        return passes._kept_by_autograd(
            s.model, s.layout, s.samples, [4] * clients, s.theta[None], s.private[None]
        )

    assert kept(2) - kept(1) == kept(5) - kept(4) > 0
    weights = sum(p.numel() * p.element_size() for p in s.model.model.parameters())
    assert kept(1) - (kept(2) - kept(1)) <= weights, "what is left over is the frozen weights"


def test_bytes_of_a_client_by_hand():
    """One product y = X w per client: autograd keeps X [batch, d] and w [d] of every client."""
    from fedsdg.models.parameters import Layout, ParameterSpec

    class Linear:
        def logits(self, images, counts, parameters):
            rows = images.view(len(counts), counts[0], -1)
            return torch.bmm(rows, parameters["w"][:, :, None]).flatten()

    batch, d = 6, 10
    layout = Layout((ParameterSpec("w", (d,), "shared"),), ())
    samples = Samples(torch.randn(50, d), torch.zeros(50, dtype=torch.int64))
    found = bytes_of_a_client(
        Linear(), layout, samples, batch, torch.zeros(1, d), torch.zeros(1, 0)
    )
    # w itself needs a gradient, X does not: the gradient of w needs X alone.
    assert found == int(passes.TEMPORARIES * 4 * batch * d) + passes.COPIES * 4 * d


def test_the_number_is_the_budget_over_a_client_and_at_least_one(setting, batches_of, monkeypatch):
    where, clients, work = task(setting, batches_of, "fedsdg")
    need = bytes_of_a_client(*where, 4, clients.start[:1], clients.private[:1])
    for memory, expected in ((need // 2, 1), (3 * need, 3), (3 * need + need // 2, 3)):
        monkeypatch.setattr(passes, "CPU_BYTES", memory)
        chosen = Passes(4)
        chosen.train(*where, clients, work)
        assert chosen.facts() == {"clients_per_pass": expected, "out_of_memory": []}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_budget_of_a_gpu_is_a_share_of_all_its_memory():
    total = torch.cuda.get_device_properties(0).total_memory
    assert budget(torch.device("cuda")) == int(passes.GPU_SHARE * total)


# --- When they do not fit -------------------------------------------------------------------------


class Small:
    """A model on a device that holds so many clients at once, and says so as torch does."""

    def __init__(self, model, most):
        self.model, self.most, self.seen = model, most, []

    def logits(self, images, counts, parameters):
        self.seen.append(len(counts))
        if len(counts) > self.most:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 MiB.\nGPU 0 has a total capacity of "
                "1.00 GiB of which 3.00 MiB is free."
            )
        return self.model.logits(images, counts, parameters)


@pytest.mark.parametrize("most, expected", [(5, [7, 3]), (2, [7, 3, 1]), (1, [7, 3, 1])])
def test_out_of_memory_halves_the_pass_and_says_so(setting, batches_of, most, expected):
    (model, *where), clients, work = task(setting, batches_of, "fedsdg")
    small, said = Small(model, most), []
    chosen = Passes(4, 7, said.append)
    result = chosen.train(small, *where, clients, work)
    assert_same(result, train_clients(model, *where, clients, work), clients, 1e-9)
    assert chosen.clients_per_pass == expected[-1]
    halvings = list(itertools.pairwise(expected))
    assert chosen.out_of_memory == [{"at": "row 0", "from": a, "to": b} for a, b in halvings]
    assert len(said) == len(halvings)
    assert "out of memory (row 0 and the others" in said[0] and "from 7 to 3" in said[0]

    small.seen.clear()
    chosen.train(small, *where, clients, work)
    assert max(small.seen) <= expected[-1], "what did not fit is not tried again"


def test_one_client_that_does_not_fit_is_an_error_with_the_numbers(setting, batches_of):
    (model, *where), clients, work = task(setting, batches_of, "none")
    d = clients.start.shape[1]
    with pytest.raises(MemoryError) as failure:
        Passes(16, say=lambda _: None).train(Small(model, 0), *where, clients, work)
    sentence = str(failure.value)
    for words in (
        "one client does not fit into memory",
        f"batches of 16 samples, {d} parameters",
        "total capacity of 1.00 GiB of which 3.00 MiB is free",
        "lower training.batch_size or adapters.rank",
    ):
        assert words in sentence
    assert "\n" not in sentence


def test_other_errors_pass_through(setting, batches_of):
    (_, *where), clients, work = task(setting, batches_of, "none")

    class Broken:
        def logits(self, images, counts, parameters):
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes cannot"):
        Passes(4, 3).train(Broken(), *where, clients, work)


@pytest.mark.parametrize(
    "sentence",
    [
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 12 bytes.",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "Triton Error [CUDA]: out of memory",
    ],
)
def test_memory_that_runs_out_is_known_in_everybodys_words(sentence):
    assert is_out_of_memory(RuntimeError(sentence))
    assert not is_out_of_memory(ValueError(sentence))


def test_half_as_much_is_tried_until_nothing_is_left_to_halve():
    tried = []

    def work(size, most):
        tried.append(size)
        if size > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return size

    assert halving(lambda size: work(size, 3), 16) == 2 and tried == [16, 8, 4, 2]
    with pytest.raises(torch.OutOfMemoryError):
        halving(lambda size: work(size, 0), 2)
    with pytest.raises(RuntimeError, match="shapes"):
        halving(lambda size: (_ for _ in ()).throw(RuntimeError("shapes differ")), 4)


def test_processes_that_share_a_gpu_share_its_memory(monkeypatch):
    class Properties:
        total_memory = 80 << 30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    alone = budget(torch.device("cuda"))
    assert alone == passes.GPU_SHARE * (80 << 30)
    monkeypatch.setenv(passes.SHARING, "4")
    assert budget(torch.device("cuda")) == alone // 4
    assert budget(torch.device("cpu")) == passes.CPU_BYTES


SCRIPT = """
import resource, sys
import numpy as np, torch
from fedsdg.federation.clients import Clients
from fedsdg.federation.local_work import LocalWork, Samples
from fedsdg.federation.optimisers.sgd import Sgd
from fedsdg.federation.passes import Passes
from fedsdg.models.parameters import Layout, ParameterSpec

class Wide:  # keeps 40 MB for the backward pass of one client
    def logits(self, images, counts, parameters):
        wide = parameters["w"].sum(1)[:, None] * torch.ones(len(counts), 10_000_000)
        return torch.stack([wide.square().mean(1), -wide.mean(1)], 1)

layout = Layout((ParameterSpec("w", (5,), "shared"),), ())
samples = Samples(torch.zeros(8, 1), torch.zeros(8, dtype=torch.int64))
clients = Clients([[np.array([k])] for k in range(8)], torch.ones(8, 5), torch.zeros(8, 0))
work = LocalWork(Sgd(), 0.1, 0.1, 0.1, 1.0)
expected = Passes(1, 1).train(Wide(), layout, samples, clients, work)  # and every library is loaded
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = now + int(float(sys.argv[1]) * 1e6)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
passes = Passes(1, 8)
result = passes.train(Wide(), layout, samples, clients, work)
assert torch.allclose(result.theta, expected.theta, rtol=1e-5)
print(passes.clients_per_pass)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a limit on memory")
def test_real_memory_that_runs_out():
    """A process that may grow by 700 MB: eight clients need more than a gigabyte."""

    def run(megabytes):
        environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""}
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, str(megabytes)],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip

    done = run(700)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) in (1, 2, 4)
    assert "clients_per_pass is halved from 8 to 4" in done.stderr
    short = run(10)
    assert short.returncode == 1
    assert "MemoryError: one client does not fit into memory" in short.stderr


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("objective", ["none", "scaffold", "fedsdg"])
def test_no_step_waits_for_a_pretended_device(setting, batches_of, objective, stops):
    """Waits are counted; what is filled in to make batches equally long counts nowhere."""
    (model, layout, samples), clients, work = task(setting, batches_of, objective)
    work = dataclasses.replace(
        work, trace_every=0, stopping=Inexactness((0.5,), 3) if stops else None
    )
    clients = dataclasses.replace(clients, gamma=np.full(len(SIZES), 1e-9))
    waits = []
    for batch_size in (8, 2):
        batches = batches_of(SIZES, batch_size=batch_size, epochs=work.epochs(2))
        asked = dataclasses.replace(clients, batches=batches)
        expected = train_clients(model, layout, samples, asked, work)
        with pretended_cuda() as machine:
            there = Samples(samples.images.cuda(), samples.labels.cuda())
            moved = dataclasses.replace(
                asked,
                start=asked.start.cuda(),
                private=asked.private.cuda(),
                state={name: rows.cuda() for name, rows in asked.state.items()},
                received={name: rows.cuda() for name, rows in asked.received.items()},
            )
            inside = model.to(torch.float64, "cuda")
            before = machine.waits.total()
            found = train_clients(inside, layout, there, moved, work)
            waits.append(machine.waits.total() - before)
            found = dataclasses.replace(
                found,
                theta=found.theta.cpu(),
                private=found.private.cpu(),
                uploads={name: rows.cpu() for name, rows in found.uploads.items()},
                state={name: rows.cpu() for name, rows in found.state.items()},
            )
        assert_same(found, expected, clients, 1e-9)
    assert waits[0] == waits[1] > 0


def test_what_is_filled_in_is_the_clients_own_and_weighs_nothing():
    """Batches of 3 and 1 of two clients, then one of 2: only the first step is uneven."""
    own = [[np.array([4, 5, 6]), np.array([7, 8])], [np.array([9])]]
    for place, filled in (("cpu", False), ("cuda", True)):
        with pretended_cuda():
            steps = Steps.of(own, torch.device(place))
            index, size = (x.cpu().tolist() for x in steps.batch(0))
        inf = float("inf")
        assert steps.sizes == ([[3, 3], [2]] if filled else [[3, 1], [2]])
        assert index == ([4, 5, 6, 9, 9, 9] if filled else [4, 5, 6, 9])
        assert size == ([3, 3, 3, 1, inf, inf] if filled else [3, 3, 3, 1])
        assert steps.drawn.tolist() == [5, 1] and steps.counts.tolist() == [2, 1]
        shares = torch.tensor([3.0, 1, 2, 5, 0, 0, 4, 4] if filled else [3.0, 1, 2, 5, 4, 4])
        assert steps.means(shares).tolist() == [[6, 5], [8, 0]]
    wide = [[np.arange(9)], [np.array([1])], [np.array([2])]]
    with pretended_cuda():  # 27 samples instead of 11 do not pay
        assert Steps.of(wide, torch.device("cuda")).sizes == [[9, 1, 1]]
        steps = Steps.of(own, torch.device("cuda"))
        all_of_them = steps.weighed(None, of_all=True)
        assert all_of_them.batch(0)[1].cpu().tolist() == [5, 5, 5, 1, inf, inf]
        assert all_of_them.batch(1)[1].cpu().tolist() == [5, 5]
        heavy = steps.weighed(np.array([1.0, 2, 3, 7, 7, 7, 4, 5]))
        assert heavy.batch(0)[1].cpu().tolist() == [6, 6, 6, 7, inf, inf]
        assert heavy.batch(1)[1].cpu().tolist() == [9, 9]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_step_waits_for_the_device(setting, batches_of, objective):
    """Host and device meet equally often in a pass of few steps and in one of many."""
    (model, layout, samples), clients, work = task(setting, batches_of, objective, torch.float32)
    there = Samples(samples.images.cuda(), samples.labels.cuda())
    moved = Clients(
        [],
        clients.start.cuda(),
        clients.private.cuda(),
        {name: rows.cuda() for name, rows in clients.state.items()},
        {name: rows.cuda() for name, rows in clients.received.items()},
    )
    work = dataclasses.replace(work, trace_every=0)
    meetings = []
    for epochs in (1, 1, 4):  # the first is a warm-up: libraries are loaded
        batches = batches_of(SIZES, epochs=epochs)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                train_clients(
                    model.to(torch.float32, "cuda"), layout, there,
                    dataclasses.replace(moved, batches=batches), work,
                )  # fmt: skip
            finally:
                torch.cuda.set_sync_debug_mode("default")
        meetings.append(len([entry for entry in seen if "synchroniz" in str(entry.message)]))
    assert meetings[1] == meetings[2] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="it is about glibc")
def test_freed_memory_is_given_back_where_the_heap_keeps_it():
    """As in a grid's processes: all tensors lie in the heap, and the last one keeps its top."""
    program = """
import torch
from fedsdg.federation.memory import trim

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if "VmRSS" in line)

tensors = [torch.ones(1 << 20) for _ in range(64)]
del tensors[:-1]
kept = resident()
trim()
print(kept - resident(), float(tensors[0].sum()))
"""
    heap = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **heap}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    freed, total = done.stdout.split()
    assert int(freed) > 200_000 and float(total) == 1 << 20  # kilobytes, of 63 times 4,096
