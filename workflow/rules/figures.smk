"""Figures: of what was computed here, and of the committed record."""


rule plot_figure:
    """One figure as pdf, svg and png, with a JSON that says what it was drawn from."""
    input:
        summary=summary_files(),
        partitions=grid(PARTITION, seed=min(config["seeds"])),
        sources=sources("figures"),
    output:
        pdf="results/figures/{experiment}/{figure}.pdf",
        svg=report(
            "results/figures/{experiment}/{figure}.svg",
            caption="../report/figure.rst",
            category="Figures",
            labels={"experiment": "{experiment}", "figure": "{figure}"},
        ),
        png="results/figures/{experiment}/{figure}.png",
        facts="results/figures/{experiment}/{figure}.json",
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


use rule plot_figure as redraw_figure with:
    input:
        summary=recorded_summary,
        partitions=recorded_partitions,
        sources=sources("figures"),
    output:
        pdf="paper_figures/{experiment}/{figure}.pdf",
        svg="paper_figures/{experiment}/{figure}.svg",
        png="paper_figures/{experiment}/{figure}.png",
        facts="paper_figures/{experiment}/{figure}.json",
    log:
        "results/logs/redraw_figure/{experiment}/{figure}.log",
    benchmark:
        "results/benchmarks/redraw_figure/{experiment}/{figure}.tsv"
    message:
        "Redraw the figure {wildcards.figure} of {wildcards.experiment} from its record"
