"""From the records of single runs to the experiment's summary, tables, claims and last check."""


rule summarise_runs:
    """Collect the records of all runs, failed ones included, and compare methods over seeds."""
    input:
        records=run_records(),
        search=search_file,
    output:
        summary_files(),
    log:
        "results/logs/summarise_runs/{experiment}.log",
    benchmark:
        "results/benchmarks/summarise_runs/{experiment}.tsv"
    threads: 1
    resources:
        mem_mb=2048,
        runtime=30,
    params:
        runs=places.RUNS,
        code=CODE["summarise"],
        primary=canonical(config.get("primary")),
        roles=canonical(config.get("roles")),
        summary=subpath(output[0], parent=True),
        search=lambda wildcards, input: [f"--search {file}" for file in input.search],
    message:
        "Summarise the runs of {wildcards.experiment}"
    shell:
        "fedsdg summarise --runs {params.runs} --output {params.summary} {params.search} &> {log}"


rule render_tables:
    """Every table as csv, Markdown and LaTeX."""
    input:
        summary=summary_files(),
    output:
        csv=[
            report(
                f"{table}.csv",
                caption="../report/table.rst",
                category="Tables",
                labels={"experiment": "{experiment}", "table": Path(table).name},
            )
            for table in TABLES
        ],
        others=expand("{stem}.{suffix}", stem=TABLES, suffix=["md", "tex"]),
    log:
        "results/logs/render_tables/{experiment}.log",
    benchmark:
        "results/benchmarks/render_tables/{experiment}.tsv"
    threads: 1
    resources:
        mem_mb=1024,
        runtime=20,
    params:
        summary=subpath(input[0], parent=True),
        tables=config["tables"],
        stems=TABLES,
        code=CODE["tables"],
    message:
        "Render the tables of {wildcards.experiment}"
    shell:
        "fedsdg table --summary {params.summary} --table {params.tables} --output {params.stems} &> {log}"


use rule render_tables as rerender_table with:
    input:
        summary=recorded_summary,
    output:
        csv=f"{places.RECORD}/{{table}}.csv",
        markdown=f"{places.RECORD}/{{table}}.md",
        latex=f"{places.RECORD}/{{table}}.tex",
    log:
        "results/logs/rerender_table/{experiment}/{table}.log",
    benchmark:
        "results/benchmarks/rerender_table/{experiment}/{table}.tsv"
    params:
        summary=subpath(input[0], parent=True),
        tables="{table}",
        stems=subpath(output.csv, strip_suffix=".csv"),
        code=CODE["tables"],
    message:
        "Render the table {wildcards.table} of {wildcards.experiment} from its record"


rule write_claims:
    """Every claim of the README, computed from the summary, with its interval."""
    input:
        summary=summary_files(),
    output:
        markdown=report(
            f"{places.CLAIMS}.md",
            caption="../report/claims.rst",
            category="Claims",
            labels={"experiment": "{experiment}"},
        ),
        facts=f"{places.CLAIMS}.json",
    log:
        "results/logs/write_claims/{experiment}.log",
    benchmark:
        "results/benchmarks/write_claims/{experiment}.tsv"
    threads: 1
    resources:
        mem_mb=1024,
        runtime=10,
    params:
        summary=subpath(input[0], parent=True),
        stem=subpath(output.facts, strip_suffix=".json"),
        code=CODE["claims"],
    message:
        "Write the claims of {wildcards.experiment}"
    shell:
        "fedsdg claims --summary {params.summary} --output {params.stem} &> {log}"


rule verify_runs:
    """Fail if a run failed: the last rule, so that all tables and figures stand before it does."""
    input:
        summary=summary_files(),
        # One file of each page will do: Snakemake names them all where the rule fails.
        pages=last_pages(),
    output:
        places.VERIFIED,
    log:
        "results/logs/verify_runs/{experiment}.log",
    benchmark:
        "results/benchmarks/verify_runs/{experiment}.tsv"
    threads: 1
    resources:
        mem_mb=1024,
        runtime=10,
    params:
        summary=subpath(input[0], parent=True),
    message:
        "Verify that no run of {wildcards.experiment} failed"
    shell:
        "fedsdg succeeded --summary {params.summary} --output {output} &> {log}"
