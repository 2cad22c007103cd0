"""Aggregation of safetensors files, a block of columns at a time, in memory that does not grow."""
