"""The aggregation rules, one a file."""
