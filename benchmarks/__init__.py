"""Five questions about speed and memory, measured with pytest-benchmark: docs/benchmarks.md."""
