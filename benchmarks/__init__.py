"""Five questions about speed and memory, measured with pytest-benchmark: docs/maintainers/benchmarks.md."""
