"""A fast path for adapters of a plain vision transformer on a CPU: compiled, without autograd.

``model`` is the door. ``transformer`` is the pass over a batch, ``layers`` what stands between its
products, ``tiles`` the products, ``vectors`` the sixteen numbers that everything works on.
"""
