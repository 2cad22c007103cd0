"""Compiled kernels on blocks: numba on the CPU, triton on a GPU."""
