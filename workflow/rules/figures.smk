"""Figures: of what was computed here, and of the committed record."""


rule plot_figure:
    """One figure as pdf, svg and png, with a JSON that says what it was drawn from."""
    input:
        summary=summary_files(),
        partitions=grid(places.PARTITION, seed=min(CONFIG.seeds)),
    output:
        pdf=f"{places.FIGURE}.pdf",
        svg=report(
            f"{places.FIGURE}.svg",
            caption="../report/figure.rst",
            category="Figures",
            labels={"experiment": "{experiment}", "figure": "{figure}"},
        ),
        png=f"{places.FIGURE}.png",
        facts=f"{places.FIGURE}.json",
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
        code=CODE["figures"],
    message:
        "Plot the figure {wildcards.figure} of {wildcards.experiment}"
    shell:
        "fedsdg figure --summary {params.summary} --figure {wildcards.figure}"
        " --partitions {input.partitions} --output {params.stem} &> {log}"


use rule plot_figure as redraw_figure with:
    input:
        summary=recorded_summary,
        partitions=recorded_partitions,
    output:
        pdf=f"{places.PAPER_FIGURE}.pdf",
        svg=f"{places.PAPER_FIGURE}.svg",
        png=f"{places.PAPER_FIGURE}.png",
        facts=f"{places.PAPER_FIGURE}.json",
    log:
        "results/logs/redraw_figure/{experiment}/{figure}.log",
    benchmark:
        "results/benchmarks/redraw_figure/{experiment}/{figure}.tsv"
    message:
        "Redraw the figure {wildcards.figure} of {wildcards.experiment} from its record"
