"""The door of the pipeline: `snakemake --cores N` in the root of the repository."""


include: "workflow/Snakefile"


# An included file sets no default target.
workflow.default_target = "all"
