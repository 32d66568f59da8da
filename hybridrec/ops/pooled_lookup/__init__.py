"""Rows of ids, pooled per bag."""
