"""Rows of ids by their hash."""
