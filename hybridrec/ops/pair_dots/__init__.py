"""Dot products of all pairs of a row's vectors, beside the vector of its numbers."""
