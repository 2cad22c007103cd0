"""Run the next part of the study, and say where a commit is due.

    python -m benchmarks.study [--jobs N] [--minutes N]        (make study)

A part is a search or some runs of a grid. Parts are gone through in their order: what a part lacks is computed and put into the record,
and where that changed the record, the study stops with a line that says what to commit. A part that the committed record has
whole costs some seconds, so the same command goes on from there, on another machine too. Once runs of a grid
have begun, its values and the code stay as they are: go on from a worktree of that commit.
"""
