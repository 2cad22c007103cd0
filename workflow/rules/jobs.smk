"""Resources and environment of the jobs."""

import shutil
import subprocess

from fedsdg.experiment.machine.processes import ALLOCATOR

# A training process took 4.5 GB with CIFAR-100, and less than 1 GB with these, most of it PyTorch.
SMALL = ("digits", "letters")
GPU = int(config["training"].get("device") == "cuda")
# Whether one job trains the whole grid: where runs take seconds, a process for each cell would spend
# most of its time on imports. Nodes of a cluster and GPUs are for single cells.
CLUSTER = workflow.remote_exec or workflow.nodes is not None
TOGETHER = set(CONFIG.datasets) <= set(SMALL) and not GPU and not CLUSTER
# The commands read the whole effective config (files and `--config` merged) from a file named by
# its hash. Its path travels in the environment: in a shell command or in `params`, every change of
# the config would re-run everything.
os.environ.update(FEDSDG_CONFIG=str(kept_whole(config)), **ALLOCATOR)


def memory(data, attempt):
    """Megabytes of a job that holds a data set; more where it was tried before and did not end."""
    return attempt * (2048 if data in SMALL else 6144)


def require_slurm():
    """Refuse to begin where SLURM takes no jobs: its executor would try each again and again."""
    if not shutil.which("sbatch"):
        raise WorkflowError(
            "profiles/slurm needs SLURM, but there is no command sbatch: call it on a node from "
            "which jobs are submitted (Debian: apt-get install slurm-wlm munge)"
        )
    answer = subprocess.run(["sinfo", "--noheader"], capture_output=True, text=True)
    if answer.returncode and "munge" in answer.stderr.lower():
        raise WorkflowError(
            "SLURM needs munge, which does not run here: start it (service munge start)"
        )
    if answer.returncode:
        raise WorkflowError(
            f"SLURM does not answer ({answer.stderr.strip()}): start slurmctld, and see that this "
            "machine has its slurm.conf"
        )
