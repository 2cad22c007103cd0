"""Aggregation rules, one concept per file; each is a frozen dataclass (see `types.Rule`)."""
