"""How fast aggregation is on this machine: a short form of `make bench`.

Apart from the experiment and its target `all`: what a clock measured is not the same twice, so it
stands in results/performance alone.
"""

# The suites that the pipeline runs, and all sources of benchmarks, from the working directory.
SUITES = [
    os.path.relpath(ROOT / f"benchmarks/bench_{name}.py") for name in ("dictionaries", "rules")
]
SOURCES = [os.path.relpath(file) for file in sorted((ROOT / "benchmarks").glob("*.py"))]
FOLDER = "results/performance/short"
REPORT = dict(caption="../report/performance.rst", category="Performance")


rule measure_speed:
    """Time the aggregation rules, with all cores to itself so that no other job disturbs it."""
    input:
        # The suites are no part of the installed package, and pytest-benchmark is their clock:
        # so this one job calls pytest where all others call fedsdg.
        suites=SUITES,
        benchmarks=SOURCES,
    output:
        f"{FOLDER}/measured.json",
    log:
        "results/logs/measure_speed/short.log",
    benchmark:
        "results/benchmarks/measure_speed/short.tsv"
    # Runs first: later it would wait until every core is free at once.
    priority: 200
    # More than a machine has: a job gets at most the cores that Snakemake was given.
    threads: 1024
    resources:
        mem_mb=4096,
        runtime=10,
    params:
        code=CODE["measure"],
    message:
        "Measure the speed of aggregation (short form)"
    shell:
        "pytest {input.suites} -p no:cacheprovider --short --measured {output} &> {log}"


rule report_speed:
    """The measurements as a table (csv, Markdown, LaTeX) and as a figure."""
    input:
        measured=rules.measure_speed.output,
    output:
        table=report(f"{FOLDER}/speed.csv", **REPORT, labels={"part": "table"}),
        formats=multiext(f"{FOLDER}/speed", ".md", ".tex"),
        figure=report(f"{FOLDER}/speed.svg", **REPORT, labels={"part": "figure"}),
        copies=multiext(f"{FOLDER}/speed", ".pdf", ".png"),
    log:
        "results/logs/report_speed/short.log",
    benchmark:
        "results/benchmarks/report_speed/short.tsv"
    resources:
        mem_mb=1024,
        runtime=10,
    params:
        folder=subpath(output.table, parent=True),
        code=CODE["speed"],
    message:
        "Draw the measured speed of aggregation"
    shell:
        "fedsdg render speed --measured {input.measured} --output {params.folder} &> {log}"


localrules:
    performance,


rule performance:
    """How fast aggregation is here: table and figure of a short measurement."""
    input:
        rules.report_speed.output,
    message:
        "The measurements are there"
