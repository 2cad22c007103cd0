"""The methods of the benchmark: a table of rows, and rows from elsewhere."""
