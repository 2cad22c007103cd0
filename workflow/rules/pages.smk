"""The tables, figures and claims that there are: of this experiment, and of the committed records.

`fedsdg record` makes the records, results/reference/{experiment}/. Their tables, and the figures in
paper_figures/, are made from them alone. What is computed in this checkout lies beside them, in
results/{summary,tables,figures}/: neither is ever taken for the other.
"""

RECORDED = sorted(file.parent.name for file in Path(places.RECORDS).glob("*/runs.parquet"))
# The cells of the cross are summarised together where each of them has a record.
CROSS = list(places.CROSS) if set(places.CROSS) <= set(RECORDED) else []
ACROSS = SimpleNamespace(
    tables=[f"{places.RECORDS}/across/regret"],
    figures=["paper_figures/across/regret"],
)
# What the report shows of an experiment: caption and category.
REPORTED = {
    ".csv": ("../report/table.rst", "Tables"),
    ".svg": ("../report/figure.rst", "Figures"),
    "claims": ("../report/claims.rst", "Claims"),
}


# The files of a summary; those of the runs of this checkout.
SUMMARY_FILES = [*(f"{name}.parquet" for name in places.SUMMARY_TABLES), places.NAMED, places.ROLES]
SUMMARY = [f"{places.SUMMARY}/{name}" for name in SUMMARY_FILES]


def pages(experiment, named, table, figure):
    """The pages of an experiment: stems of tables and figures, and the names that render takes."""
    shown = SimpleNamespace(
        experiment=experiment,
        tables=expand(table, experiment=experiment, table=named["tables"]),
        figures=expand(figure, experiment=experiment, figure=named["figures"]),
        names=[f"{kind[:-1]}:{name}" for kind in ("tables", "figures") for name in named[kind]],
    )
    shown.output = [*files_of(shown, "tables"), *files_of(shown, "figures")]
    return shown


def files_of(shown, kind):
    """The files of tables or figures."""
    suffixes = {"tables": places.TABLE_FORMATS, "figures": places.FIGURE_FORMATS}[kind]
    return expand("{stem}.{suffix}", stem=getattr(shown, kind), suffix=suffixes)


def computed_pages():
    """Those of the config, which are made from the summary; they stand in the report."""
    shown = pages(EXPERIMENT, config, places.TABLE, places.FIGURE)
    partitions = grid(places.PARTITION, seed=min(CONFIG.seeds))
    shown.rule, shown.input = "render", [*grid(SUMMARY), *partitions]
    (claims,) = grid(places.CLAIMS)
    shown.output = [*map(reported, [*shown.output, f"{claims}.md", f"{claims}.json"])]
    shown.options = f"--output results/tables/{EXPERIMENT} --figures results/figures/{EXPERIMENT}"
    shown.options += f" --claims {claims} --partitions {' '.join(partitions)}"
    shown.names = ["claims", *shown.names]
    return shown


def reported(file):
    """The file, for the report where it is a table's csv, a figure's svg, or the claims."""
    path = Path(file)
    kind = {"results/claims": "claims"}.get(str(path.parent), path.suffix)
    if kind not in REPORTED or path.suffix == ".json":
        return file
    caption, category = REPORTED[kind]
    return report(file, caption=caption, category=category, labels={"page": path.stem})


def recorded_pages(experiment):
    """Those of a record, made from its files; an old one does not name them."""
    folder = places.filled(places.RECORD, experiment=experiment)
    file = folder / "pages.json"
    named = json.loads(file.read_text()) if file.exists() else {}
    named = {**declarations()["usual_pages"], **named}
    shown = pages(experiment, named, f"{places.RECORD}/{{table}}", places.PAPER_FIGURE)
    shown.rule = f"render_record_{experiment}"
    files = [folder / name for name in (*SUMMARY_FILES, "search.json")]
    files += sorted((folder / "partitions").rglob("*.parquet"))
    shown.input = [str(file) for file in files if file.exists()]
    shown.options = f"--output {folder} --figures paper_figures/{experiment}"
    return shown


def published(kind):
    """All tables or figures of the records; of an experiment without one those computed here."""
    shown = [*RECORDS, *([ACROSS] if CROSS else [])] if EXPERIMENT in RECORDED else [HERE]
    return [file for one in shown for file in files_of(one, kind)]


def search_file(wildcards):
    """What `fedsdg search` found of the experiment, here or for the record; else nothing."""
    record = places.filled(places.RECORD, experiment=wildcards.experiment)
    files = [places.filled(places.SEARCH, experiment=wildcards.experiment), record / "search.json"]
    return [str(file) for file in files if file.exists()][:1]


HERE = computed_pages()
RECORDS = [recorded_pages(experiment) for experiment in RECORDED]
