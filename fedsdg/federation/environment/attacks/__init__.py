"""Attacks: what the attackers of a cohort send in place of their updates, or train on; one a file.

An attack is called as ``attack(updates [M, d], attackers bool [M], view, generator)`` and returns
updates [M, d] in which the honest rows are those that came in, bit for bit. Attackers have trained
like everybody else, so their own rows are honest updates on their data. One that poisons data
changes ``labels`` and leaves updates alone.
"""
