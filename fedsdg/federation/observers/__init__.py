"""What looks at a federation after each round and changes nothing of it, one in a file."""
