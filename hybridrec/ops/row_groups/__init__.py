"""Occurrences of ids, grouped by the row they lead to."""
