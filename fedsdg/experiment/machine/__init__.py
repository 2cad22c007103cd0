"""Processes, GPUs, signals and progress on one machine."""
