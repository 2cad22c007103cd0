"""What methods add to a client's cross-entropy: a term a file, and the neutral one."""
