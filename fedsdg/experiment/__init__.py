"""Runs, grids and searches."""
