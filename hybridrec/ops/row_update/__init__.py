"""One optimizer step on the rows that have a gradient."""
