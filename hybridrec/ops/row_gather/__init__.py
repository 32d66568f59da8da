"""Rows of many tables, copied one after the other."""
