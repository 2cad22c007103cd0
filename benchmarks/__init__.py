"""Five questions about speed and memory, by pytest-benchmark: docs/maintainers/benchmarks.md."""
