"""The frozen backbone that every method starts from."""


rule pretrain_backbone:
    """Take a backbone from the record, pretrain, convert or fetch it; the JSON beside it says which."""
    input:
        weights=lambda wildcards: config["backbones"][wildcards.backbone].get("file", []),
    output:
        weights=places.BACKBONE,
        facts=places.BACKBONE.replace(".safetensors", ".json"),
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
        settings=lambda wildcards: canonical(config["backbones"][wildcards.backbone]),
        code=CODE["pretrain"],
        recorded=recorded_backbone,
    message:
        "Take or pretrain the backbone {wildcards.backbone}"
    shell:
        "OMP_NUM_THREADS={params.threads} MKL_NUM_THREADS={params.threads}"
        " fedsdg pretrain --recorded --backbone {wildcards.backbone} --output {output.weights} &> {log}"
