"""The tables and figures that there are: of this experiment, and of the committed records.

`fedsdg record` makes the records, results/reference/{experiment}/. Their tables, and the figures in
paper_figures/, are made from them alone. What is computed in this checkout lies beside them, in
results/{summary,tables,figures}/: neither is ever taken for the other.
"""

RECORDED = sorted(file.parent.name for file in Path(places.RECORDS).glob("*/runs.parquet"))
# The cells of the cross are summarised together where each of them has a record.
CROSS = list(places.CROSS) if set(places.CROSS) <= set(RECORDED) else []
REGRET = SimpleNamespace(
    tables=expand(f"{places.RECORDS}/across/regret.{{suffix}}", suffix=("csv", "md")),
    figures=expand("paper_figures/across/regret.{suffix}", suffix=places.FIGURE_FORMATS),
)
ACROSS = [REGRET] if CROSS else []
# The files of a summary; those of the runs of this checkout.
SUMMARY_FILES = [*(f"{name}.parquet" for name in places.SUMMARY_TABLES), places.METHODS]
SUMMARY = [f"{places.SUMMARY}/{name}" for name in SUMMARY_FILES]


def named_pages(named):
    """The names of the tables and figures; the usual ones where none are said."""
    said = {kind: names for kind, names in named.items() if names is not None}
    return {**declarations()["usual_pages"], **said}


def words(named):
    """The same as the command takes them."""
    return [f"{kind[:-1]}:{name}" for kind in ("tables", "figures") for name in named[kind]]


def computed_pages():
    """Those of the config, made from the summary. A figure without data is not made."""
    shown = SimpleNamespace(experiment=EXPERIMENT, rule="render", input=grid(SUMMARY))
    shown.tables = shown_in(f"results/tables/{EXPERIMENT}", "Tables", "table.rst", ".csv")
    shown.figures = shown_in(f"results/figures/{EXPERIMENT}", "Figures", "figure.rst", ".svg")
    shown.output = [shown.tables, shown.figures]
    shown.folders = f"{shown.tables} {shown.figures}"
    shown.names = words(PAGES)
    shown.options = f"--output {shown.tables} --figures {shown.figures}"
    # A name that is not the package's is a metric of a plugin.
    known = {*declarations()["metrics"], *sum(declarations()["pages"].values(), [])}
    unknown = sorted({*PAGES["tables"], *PAGES["figures"]} - known)
    if unknown and not CONFIG.plugins:
        # Said before anything is trained.
        raise ValueError(
            f"there is no table, figure or metric {unknown[0]!r}{hint(unknown[0], known)}"
        )
    if unknown:
        shown.options += "".join(f" --plugin {one.place}" for one in CONFIG.plugins)
        shown.input += [file for one in CONFIG.plugins for file in sources_of(one)]
    return shown


def shown_in(folder, category, caption, suffix):
    """A folder whose files with this suffix stand in the report."""
    return report(
        directory(folder),
        patterns=[f"{{page}}{suffix}"],
        caption=f"../report/{caption}",
        category=category,
        labels={"page": "{page}"},
    )


def recorded_pages(experiment):
    """Those of a record, made from its files."""
    folder = places.filled(places.RECORD, experiment=experiment)
    named = named_pages(json.loads((folder / "pages.json").read_text()))
    shown = SimpleNamespace(experiment=experiment, rule=f"render_record_{experiment}")
    shown.tables = expand(
        f"{folder}/{{table}}.{{suffix}}", table=named["tables"], suffix=("csv", "md")
    )
    shown.figures = expand(
        f"{places.PAPER_FIGURE}.{{suffix}}",
        experiment=experiment,
        figure=named["figures"],
        suffix=places.FIGURE_FORMATS,
    )
    shown.output = [*shown.tables, *shown.figures]
    shown.folders = f"{folder} paper_figures/{experiment}"
    files = [folder / name for name in (*SUMMARY_FILES, "search.json")]
    files += sorted((folder / "partitions").rglob("*.parquet"))
    shown.input = [str(file) for file in files if file.exists()]
    shown.names = words(named)
    shown.options = f"--output {folder} --figures paper_figures/{experiment}"
    return shown


def published(kind):
    """All tables or figures of the records; of an experiment without one those computed here."""
    if EXPERIMENT not in RECORDED:
        return str(getattr(HERE, kind))
    return [file for one in [*RECORDS, *ACROSS] for file in getattr(one, kind)]


def search_file(wildcards):
    """What `fedsdg search` found of the experiment, here or for the record; else nothing."""
    record = places.filled(places.RECORD, experiment=wildcards.experiment)
    files = [places.filled(places.SEARCH, experiment=wildcards.experiment), record / "search.json"]
    return [str(file) for file in files if file.exists()][:1]


PAGES = named_pages({kind: config.get(kind) for kind in ("tables", "figures")})
HERE = computed_pages()
RECORDS = [recorded_pages(experiment) for experiment in RECORDED]
