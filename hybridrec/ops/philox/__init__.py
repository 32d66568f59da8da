"""Philox4x32-10: the random numbers of a row, from its table, id and column alone."""
