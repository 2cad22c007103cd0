"""What every part has to hold, as functions that try to find a case in which it does not.

A file for each kind of part: the functions examine one case, and a table at the end says which of
them make a line of ``fedsdg check my_method.py``. The package's own tests call the same functions.
"""
