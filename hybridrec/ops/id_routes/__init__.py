"""Ids of a batch, each distinct one once, in the order of the ranks that have their rows."""
