"""Generated inputs for every door: wrong ones, and odd ones that are right.

Each module makes the cases of one door from numbers drawn by a seed. A case says what may come of
it: an error that the door documents, or the right answer, computed another way.
"""
