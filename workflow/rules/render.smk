"""From the records of single runs to the experiment's summary, its pages and the last check."""


rule summarise_runs:
    """Collect the records of all runs, failed ones included, and compare methods over seeds."""
    input:
        records=grid(f"{places.RUN}/{{record}}"),
        search=search_file,
    output:
        SUMMARY,
    log:
        "results/logs/summarise_runs/{experiment}.log",
    benchmark:
        "results/benchmarks/summarise_runs/{experiment}.tsv"
    resources:
        mem_mb=2048,
        runtime=30,
    params:
        runs=places.RUNS,
        code=CODE["summarise"],
        pages=canonical_json(PAGES),
        summary=subpath(output[0], parent=True),
        search=lambda wildcards, input: [f"--search {file}" for file in input.search],
    message:
        "Summarise the runs of {wildcards.experiment}"
    shell:
        "fedsdg summarise --runs {params.runs} --output {params.summary} {params.search} &> {log}"


# The pages of this experiment, and those of each committed record: one process renders them all.
for SHOWN in [HERE, *RECORDS]:

    rule:
        name:
            SHOWN.rule
        input:
            SHOWN.input,
        output:
            SHOWN.output,
        log:
            f"results/logs/{SHOWN.rule}/{SHOWN.experiment}.log",
        benchmark:
            f"results/benchmarks/{SHOWN.rule}/{SHOWN.experiment}.tsv"
        # What is committed is rendered where the command is given, and sent to no cluster.
        localrule: SHOWN is not HERE
        resources:
            mem_mb=2048,
            runtime=40,
        params:
            summary=subpath(input[0], parent=True),
            names=SHOWN.names,
            folders=SHOWN.folders,
            options=SHOWN.options,
            code=CODE["render"],
        message:
            f"Render the tables and figures of {SHOWN.experiment}"
        # A folder without a figure is there all the same.
        shell:
            "mkdir -p {params.folders} && fedsdg render {params.names}"
            " --summary {params.summary} {params.options} &> {log}"


rule compare_arenas:
    """Regret of every method over the cells of the cross: a table and a figure."""
    input:
        expand(
            f"{places.RECORD}/{{name}}.parquet",
            experiment=CROSS,
            name=["runs", "rounds", "clients"],
        ),
    output:
        REGRET.tables,
        REGRET.figures,
    log:
        "results/logs/compare_arenas.log",
    benchmark:
        "results/benchmarks/compare_arenas.tsv"
    resources:
        mem_mb=1024,
        runtime=10,
    params:
        folders="--output results/reference/across --figures paper_figures/across",
        code=CODE["render"],
    message:
        "Compare methods over the arenas"
    shell:
        "fedsdg render regret {params.folders} &> {log}"


rule verify_runs:
    """Fail if a run failed: the last rule, so that all tables and figures stand before it does."""
    input:
        summary=SUMMARY,
        pages=[*map(str, HERE.output)],
    output:
        places.VERIFIED,
    log:
        "results/logs/verify_runs/{experiment}.log",
    benchmark:
        "results/benchmarks/verify_runs/{experiment}.tsv"
    resources:
        mem_mb=1024,
        runtime=10,
    params:
        summary=subpath(input[0], parent=True),
    message:
        "Verify that no run of {wildcards.experiment} failed"
    shell:
        "fedsdg summarise --succeeded {params.summary} --output {output} &> {log}"
