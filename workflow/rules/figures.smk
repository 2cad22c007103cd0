"""Figures: one rule, one wildcard."""


rule plot_figure:
    """One figure as pdf, svg and png, with a JSON that says what it was drawn from."""
    input:
        summary=summary_files(),
        partitions=grid(PARTITION, seed=min(config["seeds"])),
        sources=sources("figures"),
    output:
        pdf="paper_figures/{experiment}/{figure}.pdf",
        svg=report(
            "paper_figures/{experiment}/{figure}.svg",
            caption="../report/figure.rst",
            category="Figures",
            labels={"experiment": "{experiment}", "figure": "{figure}"},
        ),
        png="paper_figures/{experiment}/{figure}.png",
        facts="paper_figures/{experiment}/{figure}.json",
    log:
        "results/logs/plot_figure/{experiment}/{figure}.log",
    benchmark:
        "results/benchmarks/plot_figure/{experiment}/{figure}.tsv"
    threads: 1
    resources:
        mem_mb=2048,
        runtime=10,
    params:
        summary=subpath(input[0], parent=True),
        stem=subpath(output.pdf, strip_suffix=".pdf"),
    message:
        "Plot the figure {wildcards.figure} of {wildcards.experiment}"
    shell:
        "fedsdg figure --summary {params.summary} --figure {wildcards.figure}"
        " --partitions {input.partitions} --output {params.stem} &> {log}"
