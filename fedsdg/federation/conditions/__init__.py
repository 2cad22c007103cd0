"""Conditions under which a method is tried, one in a file."""
