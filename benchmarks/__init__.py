"""Benchmarks: how fast clients train and how fast and how well their updates are aggregated.

They are read by docs/benchmarks.md; nothing here is part of the installed package.
"""
