"""Parameters of any kind: checked, read as rows less the server's, and written into their place."""
