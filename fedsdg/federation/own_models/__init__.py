"""Models that clients keep for themselves: a kind a file, and the neutral one."""
