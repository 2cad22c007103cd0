"""Figures: of what was computed here, and of the committed records, one by one and together."""


rule plot_figures:
    """Every figure as pdf, svg and png, with a JSON that says what it was drawn from."""
    input:
        summary=summary_files(),
        partitions=grid(places.PARTITION, seed=min(CONFIG.seeds)),
    output:
        svg=[
            report(
                f"{figure}.svg",
                caption="../report/figure.rst",
                category="Figures",
                labels={"experiment": "{experiment}", "figure": Path(figure).name},
            )
            for figure in FIGURES
        ],
        others=expand("{stem}.{suffix}", stem=FIGURES, suffix=["pdf", "png", "json"]),
    log:
        "results/logs/plot_figures/{experiment}.log",
    benchmark:
        "results/benchmarks/plot_figures/{experiment}.tsv"
    threads: 1
    resources:
        mem_mb=2048,
        runtime=20,
    params:
        summary=subpath(input[0], parent=True),
        figures=config["figures"],
        stems=FIGURES,
        code=CODE["figures"],
    message:
        "Plot the figures of {wildcards.experiment}"
    shell:
        "fedsdg figure --summary {params.summary} --figure {params.figures}"
        " --partitions {input.partitions} --output {params.stems} &> {log}"


use rule plot_figures as redraw_figure with:
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
    params:
        summary=subpath(input[0], parent=True),
        figures="{figure}",
        stems=subpath(output.pdf, strip_suffix=".pdf"),
        code=CODE["figures"],
    message:
        "Redraw the figure {wildcards.figure} of {wildcards.experiment} from its record"


rule compare_arenas:
    """Regret of every method over the cells of all arenas: a table and a figure."""
    input:
        expand(
            f"{places.RECORD}/{{name}}.parquet",
            experiment=ARENAS,
            name=["runs", "rounds", "clients"],
        ),
    output:
        tables=expand(
            f"{record('across')}/regret.{{suffix}}",
            suffix=places.TABLE_FORMATS,
        ),
        figure="paper_figures/across/regret.pdf",
        copies=multiext("paper_figures/across/regret", ".svg", ".png", ".json"),
    log:
        "results/logs/compare_arenas.log",
    benchmark:
        "results/benchmarks/compare_arenas.tsv"
    threads: 1
    resources:
        mem_mb=1024,
        runtime=10,
    params:
        arenas=ARENAS,
        tables=subpath(output[0], parent=True),
        figures=subpath(output.figure, parent=True),
        code=CODE["across"],
    message:
        "Compare methods over the arenas {params.arenas}"
    shell:
        "fedsdg across {params.arenas} --output {params.tables} --figures {params.figures} &> {log}"
