"""The methods, one family a file: what each is made of."""
