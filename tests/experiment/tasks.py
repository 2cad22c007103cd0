"""Tasks for workers, which find them in a module."""

import os
import signal
import sys
import time


def do(task, note):
    """Do what a task says."""
    if task == "raise":
        raise ValueError("it cannot work")
    if task == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "exit":
        sys.exit(3)
    if task == "sleep":
        note(os.getpid())
        time.sleep(60)
    if task == "environment":
        time.sleep(0.3)  # so that the other worker takes the next task
        return os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ["OMP_NUM_THREADS"]
    for k in range(3):
        note(k)
    return f"done {task}"
