"""Adapters of a plain vision transformer on a CPU: compiled, without autograd.

`model` is the entry. `transformer` is the pass over a batch, `layers` the operations between
products, `tiles` the products, `vectors` the groups of sixteen numbers that everything works on.
"""
