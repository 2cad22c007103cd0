"""A world of processes that form a torch.distributed group, and run the same function together."""

import importlib
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

from tests.imported import Context

# From where this module can be imported by its name, whatever that is.
PATH = Path(__file__).parents[__name__.count(".")]
CASES = f"{__package__}.world_cases"
PATIENCE = 120


class World:
    """`size` processes; `run` has all of them call one function of `world_cases`."""

    def __init__(self, size, folder):
        context = Context()
        path, sys.path = sys.path, [str(PATH), *sys.path]  # Handed on to the processes.
        self.pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve, args=(rank, size, str(folder / "store"), theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        sys.path = path

    def run(self, case, *arguments, ranks=None):
        """What case(rank, size, *arguments) returned on every rank; (type, text) of an error."""
        ranks = range(len(self.pipes)) if ranks is None else ranks
        for rank in ranks:
            self.pipes[rank].send((case, arguments))
        answers = []
        for rank in ranks:
            assert self.pipes[rank].poll(PATIENCE), f"rank {rank} hangs in {case}"
            try:
                answers.append(self.pipes[rank].recv())
            except (EOFError, ConnectionResetError):
                answers.append("dead")
        return answers

    def results(self, case, *arguments):
        """As `run`, where no rank may fail."""
        answers = self.run(case, *arguments)
        for answer in answers:
            assert not isinstance(answer, Failure), answer.trace
        return answers

    def failure(self, case, *arguments):
        """The error, as (type, text), that all ranks must raise alike."""
        answers = self.run(case, *arguments)
        assert all(isinstance(answer, Failure) for answer in answers), answers
        kinds = {(answer.kind, answer.text) for answer in answers}
        assert len(kinds) == 1, kinds
        return kinds.pop()

    def close(self):
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(10)
            process.kill()


class Failure:
    """An error on its way from a process."""

    def __init__(self, error):
        self.kind, self.text = type(error).__name__, str(error)
        self.trace = traceback.format_exc()


def serve(rank, size, store, pipe):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # Longer than any test's own timeout: what is tested must not be gloo's default.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=PATIENCE),
    )
    cases = importlib.import_module(CASES)
    while True:
        try:
            case, arguments = pipe.recv()
        except EOFError:
            os._exit(0)  # Without taking leave of ranks that may be gone.
        try:
            answer = getattr(cases, case)(rank, size, *arguments)
        except Exception as error:
            answer = Failure(error)
        pipe.send(answer)
