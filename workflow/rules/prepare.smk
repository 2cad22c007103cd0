"""Partitions (the samples of each client) and the frozen backbone of all methods."""

# What lies beside a backbone: what it was made of, and where it is from.
FACTS = places.BACKBONE.replace(".safetensors", ".json")


rule partition_clients:
    """Divide a data set among clients and into their train, validation and test splits, by seed."""
    input:
        plugins=plugin_files,
    output:
        expand(places.PARTITION, seed=CONFIG.seeds, allow_missing=True),
    log:
        f"results/logs/partition_clients/{places.DIVISIONS}.log",
    benchmark:
        f"results/benchmarks/partition_clients/{places.DIVISIONS}.tsv"
    # All partitions first: then every cell can start, the dearest before the others.
    priority: 50
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


rule pretrain_backbone:
    """Take a backbone from the record, pretrain, convert or fetch it; the JSON beside it says which."""
    input:
        weights=lambda wildcards: config["backbones"][wildcards.backbone].get("file", []),
    output:
        weights=places.BACKBONE,
        facts=FACTS,
    log:
        "results/logs/pretrain_backbone/{backbone}.log",
    benchmark:
        "results/benchmarks/pretrain_backbone/{backbone}.tsv"
    priority: 100
    threads: lambda wildcards: config["backbones"][wildcards.backbone].get("threads", 1)
    resources:
        mem_mb=lambda wildcards, attempt: memory(
            config["backbones"][wildcards.backbone].get("data", "letters"), attempt
        ),
        runtime=240,
    params:
        # `threads` is capped by --cores, and a sum in two parts is not a sum in one:
        # the number that the config states is what counts.
        threads=lambda wildcards: config["backbones"][wildcards.backbone].get("threads", 1),
        settings=lambda wildcards: canonical_json(config["backbones"][wildcards.backbone]),
        code=CODE["pretrain"],
        recorded=recorded_backbone,
    message:
        "Take or pretrain the backbone {wildcards.backbone}"
    shell:
        "OMP_NUM_THREADS={params.threads} MKL_NUM_THREADS={params.threads}"
        " fedsdg pretrain --recorded --backbone {wildcards.backbone} --output {output.weights} &> {log}"
