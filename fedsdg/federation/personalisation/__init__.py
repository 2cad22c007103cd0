"""Personalisations, a file each, and the neutral one. Nothing else asks which method one serves."""
