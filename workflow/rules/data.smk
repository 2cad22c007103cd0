"""Who holds which sample: one file per (data set, number of clients, skew, seed), for all methods."""


rule partition_clients:
    """Divide a data set among clients and into their train, validation and test splits, by seed."""
    input:
        plugins=data_files,
    output:
        expand(places.PARTITION, seed=CONFIG.seeds, allow_missing=True),
    log:
        f"results/logs/partition_clients/{places.DIVISIONS}.log",
    benchmark:
        f"results/benchmarks/partition_clients/{places.DIVISIONS}.tsv"
    # All partitions first: then every cell can start, the dearest before the others.
    priority: 50
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: memory(wildcards.dataset, attempt),
        runtime=30,
    params:
        settings=partition_settings,
        code=CODE["partition"],
    message:
        "Partition {wildcards.dataset} among {wildcards.clients} clients: {wildcards.skew}, all seeds"
    shell:
        "fedsdg partition --dataset {wildcards.dataset} --clients {wildcards.clients}"
        " --skew {wildcards.skew} --output {output} &> {log}"
