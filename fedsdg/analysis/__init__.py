"""Statistics, tables, figures and claims from the files of finished runs: files in, files out.

Nothing here trains and nothing here imports torch; of the package only ``fedsdg.files`` is used.
"""
