"""Gradients summed by row for tables of few rows."""
