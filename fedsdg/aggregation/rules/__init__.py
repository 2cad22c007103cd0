"""Aggregation rules, one concept per file; each is a part (see `types.Rule`)."""
