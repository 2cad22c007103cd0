"""Federated training: a small grid in one job, else a job per cell (data set, skew, method)."""

from fedsdg.experiment.starts import FILES as START_FILES

# None where all parameters of a small CNN are trained.
BACKBONES = expand(
    [places.BACKBONE, FACTS], backbone=CONFIG.backbone if CONFIG.trainable == "adapters" else []
)
# The files of the checkpoint that training starts from, which may be made anew in their place.
START = (config.get("adapters") or {}).get("start")
START = [f"{START}/{name}" for name in START_FILES] if START else []

if TOGETHER:

    rule train_grid:
        """Train all runs of a small grid, in as many processes as cores were given.

        A process imports what it needs and loads data and backbone once for all of its runs; what
        the store holds is taken from there.
        """
        input:
            partitions=grid(places.PARTITION),
            backbone=BACKBONES,
            start=START,
        output:
            grid(f"{places.RUN}/{{record}}"),
        log:
            f"results/logs/train_grid/{EXPERIMENT}.log",
        benchmark:
            f"results/benchmarks/train_grid/{EXPERIMENT}.tsv"
        # More than a machine has: a job gets at most the cores that Snakemake was given.
        threads: 1024
        resources:
            mem_mb=lambda wildcards, threads, attempt: threads * memory(SMALL[0], attempt),
            runtime=480,
        params:
            jobs=lambda wildcards, threads: max(1, threads // config["training"].get("threads", 1)),
            settings=settings_and_code_of_grid,
        message:
            f"Train all runs of {EXPERIMENT}"
        shell:
            # Standard output has a line for each finished run.
            "fedsdg run --grid --runs-only --jobs {params.jobs} 2> {log}"

else:

    rule train_cell:
        """Train one method on one partitioned data set, for every seed in one process."""
        input:
            partitions=partitions_of_cell,
            backbone=BACKBONES,
            start=START,
        output:
            expand(
                f"{places.RUN}/{{record}}",
                seed=CONFIG.seeds,
                record=places.RUN_FILES,
                allow_missing=True,
            ),
        log:
            f"results/logs/train_cell/{{experiment}}/{places.CELL_BELOW}.log",
        benchmark:
            f"results/benchmarks/train_cell/{{experiment}}/{places.CELL_BELOW}.tsv"
        # The dearest cells first, so that no core waits for the last of them.
        priority: lambda wildcards: 10 * (CONFIG.method(wildcards.method).type == "fine-tune")
        threads: config["training"].get("threads", 1)
        resources:
            mem_mb=lambda wildcards, attempt: memory(wildcards.dataset, attempt),
            # Where it does not suffice, the next attempt goes on from the last checkpoint.
            runtime=lambda wildcards: 120 if wildcards.dataset in SMALL else 480,
            gpu=GPU,
        params:
            settings=lambda wildcards: settings_and_code(
                wildcards.dataset, wildcards.setting, wildcards.method
            ),
        message:
            "Train {wildcards.method} on {wildcards.dataset}, {wildcards.setting}, all seeds"
        shell:
            "fedsdg run --grid --runs-only"
            " --only {wildcards.dataset} {wildcards.setting} {wildcards.method} &> {log}"
