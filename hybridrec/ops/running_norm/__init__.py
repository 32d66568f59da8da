"""Columns to mean 0 and variance 1, by all rows that were counted."""
