"""How fast aggregation is on this machine: a short form of `make bench`.

Apart from the experiment and its target `all`: what a clock measured is not the same twice, so it
stands in results/performance alone.
"""

# The suites that the pipeline runs, and all sources of benchmarks, from the working directory.
SUITES = [
    os.path.relpath(ROOT / f"benchmarks/bench_{name}.py")
    for name in ("accuracy", "aggregation", "growth")
]
SOURCES = [os.path.relpath(file) for file in sorted((ROOT / "benchmarks").glob("*.py"))]
FOLDER = "results/performance/short"
REPORT = dict(caption="../report/performance.rst", category="Performance")


rule measure_kernels:
    """Time the aggregation rules, with all cores to itself so that no other job disturbs it."""
    input:
        # The suites are no part of the installed package, and pytest-benchmark is their clock:
        # so this one job calls pytest where all others call fedsdg.
        suites=SUITES,
        benchmarks=SOURCES,
    output:
        f"{FOLDER}/aggregation.json",
    log:
        "results/logs/measure_kernels/short.log",
    benchmark:
        "results/benchmarks/measure_kernels/short.tsv"
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
        "Measure the aggregation kernels (short form)"
    shell:
        "pytest {input.suites} -p no:cacheprovider --short --measured {output} &> {log}"


rule report_kernels:
    """The measurements as a table (csv, Markdown, LaTeX) and as the roofline figure."""
    input:
        measured=rules.measure_kernels.output,
    output:
        table=report(f"{FOLDER}/kernels.csv", **REPORT, labels={"part": "table"}),
        formats=multiext(f"{FOLDER}/kernels", ".md", ".tex"),
        figure=report(f"{FOLDER}/roofline.svg", **REPORT, labels={"part": "figure"}),
        copies=multiext(f"{FOLDER}/roofline", ".pdf", ".png"),
    log:
        "results/logs/report_kernels/short.log",
    benchmark:
        "results/benchmarks/report_kernels/short.tsv"
    resources:
        mem_mb=1024,
        runtime=10,
    params:
        folder=subpath(output.table, parent=True),
        code=CODE["kernels"],
    message:
        "Draw what was measured of the aggregation kernels"
    shell:
        "fedsdg render kernels --measured {input.measured} --output {params.folder} &> {log}"


localrules:
    performance,


rule performance:
    """How fast aggregation is here: table and figure of a short measurement."""
    input:
        rules.report_kernels.output,
    message:
        "The measurements are there"
